// SPDX-License-Identifier: MIT OR Apache-2.0
//! The client against a server that plays archive, mirror and proxy, and attacks.

mod packages;
mod server;
mod signer;

use super::*;
use crate::{fetch::Client, index::Index, pool::CONNECTIONS};
use server::{Answer, Server};
use signer::Key;
use std::{
    collections::BTreeMap,
    io::Write,
    sync::{
        Arc, Mutex as StdMutex,
        atomic::{AtomicUsize, Ordering},
        mpsc,
    },
};
use tar::{EntryType, Header};

const SUITES: [Suite; 2] =
    [Suite { name: "trixie", prefix: "" }, Suite { name: "sid", prefix: "linux-" }];
const PACKAGES: &str = "main/binary-amd64/Packages.xz";

/// An archive with two suites, as its mirror has it.
struct Played {
    key: Key,
    /// Its public part is in the keyring, too.
    expired: Key,
    files: Arc<StdMutex<BTreeMap<String, Vec<u8>>>>,
    server: Server,
    folder: tempfile::TempDir,
}

/// The fields of an `InRelease` besides its hashes.
#[derive(Clone)]
struct Said {
    codename: &'static str,
    date: &'static str,
    more: &'static str,
}

const TRIXIE: Said = Said { codename: "trixie", date: "Sat, 21 Nov 2026 09:15:44 UTC", more: "" };
const BY_HASH: &str = "Acquire-By-Hash: yes\n";

fn stanza(name: &str, deb: &[u8], more: &str) -> String {
    let (path, size, hash) = (format!("pool/{name}_1_amd64.deb"), deb.len(), digest(deb));
    format!(
        "Package: {name}\nVersion: 1\nArchitecture: amd64\nInstalled-Size: 3\n{more}\
         Description: d\n of two lines\nFilename: {path}\nSize: {size}\nSHA256: {hash}\n\n"
    )
}

fn digest(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

fn xz(bytes: &[u8]) -> Vec<u8> {
    let mut writer =
        lzma_rust2::XzWriter::new(Vec::new(), lzma_rust2::XzOptions::with_preset(1)).unwrap();
    writer.write_all(bytes).unwrap();
    writer.finish().unwrap()
}

impl Played {
    fn new() -> Played {
        let files = Arc::new(StdMutex::new(BTreeMap::<String, Vec<u8>>::new()));
        let of_server = files.clone();
        let server = Server::start(move |request| {
            let files = of_server.lock().unwrap();
            match files.get(request.path()) {
                Some(bytes) => Answer::file(bytes, request.from()),
                // As S3 answers.
                None if request.path().contains("by-hash") => Answer::status(403),
                None => Answer::status(404),
            }
        });
        let folder = tempfile::tempdir().unwrap();
        let played = Played { key: Key::new(), expired: Key::expired(), files, server, folder };
        let deb = deb(&[("usr/bin/a", EntryType::Regular, "")]);
        played.put("pool/a_1_amd64.deb", deb.clone());
        let packages = stanza("a", &deb, "Depends: b (>= 1), c | d\n")
            + &stanza("b", &deb, "Provides: e (= 2)\n")
            + &stanza("d", &deb, "Pre-Depends: e (>= 2)\n")
            + &stanza("linux-image-1", &deb, "");
        played.publish("trixie", &packages, &TRIXIE);
        played.publish("sid", &packages, &Said { codename: "sid", ..TRIXIE });
        played
    }

    fn put(&self, path: &str, bytes: impl Into<Vec<u8>>) {
        self.files.lock().unwrap().insert(format!("/debian/{path}"), bytes.into());
    }

    fn get(&self, path: &str) -> Vec<u8> {
        self.files.lock().unwrap()[&format!("/debian/{path}")].clone()
    }

    fn publish(&self, suite: &str, packages: &str, said: &Said) {
        let packed = xz(packages.as_bytes());
        let release = release(&packed, said);
        self.put(&format!("dists/{suite}/{PACKAGES}"), packed);
        self.put(&format!("dists/{suite}/InRelease"), self.key.sign(&release));
    }

    fn archive(&self) -> Archive {
        self.archive_by(&self.server.url(), Settings::default())
    }

    fn archive_by(&self, url: &str, mut settings: Settings) -> Archive {
        settings.mirrors = vec![format!("{url}/debian")];
        let folder = self.folder.path().join("archive");
        Archive {
            pool: Pool::new(&folder, settings, Vec::new()).unwrap(),
            folder,
            architecture: "amd64".into(),
            suites: &SUITES,
            verifier: Verifier::Library,
            keyring: [self.key.public.as_slice(), &self.expired.public].concat().leak(),
        }
    }

    /// The snapshot archive is on the same server.
    fn pinned(&self, pin: Pin) -> Pinned {
        let url = self.server.url();
        let mut settings = Settings::default();
        settings.mirrors = vec![format!("{url}/debian")];
        settings.snapshot = format!("{url}/debian/snapshot");
        Pinned::new(&self.folder.path().join("archive"), pin, settings).unwrap()
    }

    /// All files that were kept.
    fn kept(&self) -> Vec<String> {
        let mut folders = vec![self.folder.path().to_owned()];
        let mut files = Vec::new();
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).unwrap().flatten() {
                match entry.path() {
                    path if path.is_dir() => folders.push(path),
                    path => files.push(path.file_name().unwrap().to_str().unwrap().to_owned()),
                }
            }
        }
        files.sort();
        files
    }
}

fn release(packed: &[u8], said: &Said) -> String {
    let Said { codename, date, more } = said;
    let (hash, size) = (digest(packed), packed.len());
    format!("Codename: {codename}\nDate: {date}\n{more}SHA256:\n {hash} {size} {PACKAGES}\n")
}

/// A package with these entries.
fn deb(entries: &[Entry]) -> Vec<u8> {
    packed("data.tar.xz", &xz(&tar(entries)))
}

/// Path, kind and target of a link.
type Entry<'a> = (&'a str, EntryType, &'a str);

fn tar(entries: &[Entry]) -> Vec<u8> {
    let mut tar = tar::Builder::new(Vec::new());
    for (path, kind, target) in entries {
        let mut header = Header::new_gnu();
        // `set_path` refuses what a hostile package has.
        header.as_gnu_mut().unwrap().name[..path.len()].copy_from_slice(path.as_bytes());
        header.as_gnu_mut().unwrap().linkname[..target.len()].copy_from_slice(target.as_bytes());
        header.set_entry_type(*kind);
        header.set_mode(0o4755);
        let content: &[u8] = if *kind == EntryType::Regular { b"content" } else { b"" };
        header.set_size(content.len() as u64);
        header.set_cksum();
        tar.append(&header, content).unwrap();
    }
    tar.into_inner().unwrap()
}

fn packed(name: &str, data: &[u8]) -> Vec<u8> {
    let mut builder = ar::Builder::new(Vec::new());
    let mut add = |name: &str, bytes: &[u8]| {
        let header = ar::Header::new(name.as_bytes().to_vec(), bytes.len() as u64);
        builder.append(&header, bytes).unwrap();
    };
    add("debian-binary", b"2.0\n");
    add(name, data);
    builder.into_inner().unwrap()
}

fn names(packages: &[Package]) -> Vec<&str> {
    packages.iter().map(|package| package.name.as_str()).collect()
}

#[test]
fn finds_resolves_fetches_and_unpacks_packages() {
    let played = Played::new();
    let archive = played.archive();
    let mut said = String::new();
    archive.refresh(&mut |text| said += text).unwrap();
    assert_eq!(
        said,
        format!("fetching Debian's package lists from {}/debian", played.server.url())
    );
    let closure = archive.closure("a").unwrap();
    // `c` does not exist; `b` provides what `d` needs.
    assert_eq!(names(&closure), ["a", "b", "d"]);
    let image = archive.search(|name| name.starts_with("linux-")).unwrap();
    assert_eq!(names(&image), ["linux-image-1"]);
    assert_eq!(image[0].room, played.get("pool/a_1_amd64.deb").len() as u64 + 3 * 1024);
    let sid = Index::read(&archive.index_of(&SUITES[1])).unwrap();
    assert_eq!(sid.entries().map(|entry| entry.name).collect::<Vec<_>>(), ["linux-image-1"]);
    let missing = archive.not_found("a=2");
    assert_eq!(missing.to_string(), "failed to find a=2 in Debian's suites trixie, sid");

    let to = played.folder.path().join("to");
    fs::create_dir(&to).unwrap();
    let asked = played.server.asked().len();
    let files = archive.download(&closure[..1], &to, &mut |_| ()).unwrap();
    assert_eq!(files, [to.join("a_1_amd64.deb")]);
    assert_eq!(played.server.asked().len(), asked + 1);
    unpack(&files[0], &to, MOST_UNPACKED, |_| true).unwrap();
    assert_eq!(fs::read(to.join("usr/bin/a")).unwrap(), b"content");

    // Unchanged lists are not fetched again.
    let before = played.server.asked().len();
    archive.refresh(&mut |_| ()).unwrap();
    assert_eq!(played.server.asked().len(), before + 2);
}

/// Each attack is a release file, with the error that names it.
#[test]
fn rejects_what_a_hostile_mirror_says_of_a_suite() {
    type Attack = fn(&Played) -> Vec<u8>;
    let attacks: [(&str, Attack, &str); 10] = [
        ("no signature", |played| release(&played.get(&in_trixie()), &TRIXIE).into(), "Unsigned"),
        ("a stranger's signature", |played| signed(&Key::new(), played, &TRIXIE), "Signature"),
        ("an expired key", |played| signed(&played.expired, played, &TRIXIE), "Signature"),
        ("another text", |played| altered(played, "Date: Sat, 21", "Date: Sun, 22"), "Signature"),
        (
            "a line before",
            |played| altered(played, "-----BEGIN PGP SIGNED", "X: 1\n-----BEGIN PGP SIGNED"),
            "Unsigned",
        ),
        (
            "another suite",
            |played| signed(&played.key, played, &Said { codename: "bookworm", ..TRIXIE }),
            "OtherSuite",
        ),
        (
            "an expired release",
            |played| {
                signed(
                    &played.key,
                    played,
                    &Said { more: "Valid-Until: Sat, 28 Nov 2020 00:00:00 UTC\n", ..TRIXIE },
                )
            },
            "Expired",
        ),
        (
            "no date",
            |played| signed(&played.key, played, &Said { date: "today", ..TRIXIE }),
            "Format",
        ),
        ("an endless text", |_| vec![b'x'; MOST_OF_A_RELEASE as usize + 1], "TooLong"),
        (
            "no packages",
            |played| {
                played.key.sign("Codename: trixie\nDate: Sat, 21 Nov 2026 09:15:44 UTC\n").into()
            },
            "Format",
        ),
    ];
    for (attack, message, expected) in attacks {
        let played = Played::new();
        let message = message(&played);
        played.put("dists/trixie/InRelease", message);
        let error = played.archive().update(&format!("{}/debian", played.server.url()), &SUITES[0]);
        let error = error.unwrap_err();
        assert!(format!("{error:?}").starts_with(expected), "{attack}: {error:?}");
        assert_eq!(played.kept(), [""; 0], "{attack}");
    }
}

fn in_trixie() -> String {
    format!("dists/trixie/{PACKAGES}")
}

fn signed(key: &Key, played: &Played, said: &Said) -> Vec<u8> {
    key.sign(&release(&played.get(&in_trixie()), said)).into_bytes()
}

fn altered(played: &Played, from: &str, to: &str) -> Vec<u8> {
    let text = String::from_utf8(played.get("dists/trixie/InRelease")).unwrap();
    assert!(text.contains(from));
    text.replacen(from, to, 1).into_bytes()
}

#[test]
fn rejects_a_release_that_is_older_than_the_one_before() {
    let played = Played::new();
    let archive = played.archive();
    archive.refresh(&mut |_| ()).unwrap();
    let kept = played.kept();
    let older = Said { date: "Fri, 20 Nov 2026 09:15:44 UTC", ..TRIXIE };
    played.publish("trixie", &stanza("evil", b"", ""), &older);
    let mut said = String::new();
    archive.refresh(&mut |text| said += text).unwrap();
    assert!(said.contains("trixie: failed to use ") && said.contains("2026-11-20"), "{said}");
    assert_eq!(played.kept(), kept);
    assert_eq!(names(&archive.closure("b").unwrap()), ["b"]);
    assert!(archive.closure("evil").is_err());
}

/// Each attack is an answer to a request for a file with a known hash.
#[test]
fn rejects_what_a_hostile_mirror_sends() {
    type Attack = fn(&[u8]) -> Answer;
    let attacks: [(&str, Attack, &str); 9] = [
        ("a wrong hash", |bytes| Answer::whole(&vec![b'x'; bytes.len()]), "Checksum"),
        ("a wrong size", |bytes| Answer::whole(&bytes[1..]), "Size"),
        ("an endless body", |bytes| Answer::endless(bytes), "TooLong"),
        ("a truncated body", |bytes| Answer::cut(bytes, bytes.len() / 2), "Truncated"),
        ("a body without its end", |bytes| Answer::unsized_(&bytes[1..]), "Truncated"),
        ("another host", |_| Answer::redirect("http://127.0.0.2:9/x"), "Redirect"),
        ("another scheme", |_| Answer::redirect("file:///etc/passwd"), "Redirect"),
        ("a loop", |_| Answer::redirect("/loop"), "Fetch"),
        ("nothing", |_| Answer::status(403), "Status"),
    ];
    let bytes = vec![7; 100_000];
    for (attack, answer, expected) in attacks {
        let folder = tempfile::tempdir().unwrap();
        let of_server = bytes.clone();
        let server = Server::start(move |_| answer(&of_server));
        let client = Client::new(Settings::default());
        let file = File { path: "x".into(), size: bytes.len() as u64, sha256: digest(&bytes) };
        let to = folder.path().join("x");
        let error = client
            .file(&format!("{}/x", server.url()), &file, &to, &AtomicU64::new(0))
            .unwrap_err();
        assert!(format!("{error:?}").starts_with(expected), "{attack}: {error:?}");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "{attack}");
    }
}

/// A list or a package that fails leaves nothing, also not in the folder of partial files.
#[test]
fn keeps_nothing_of_a_list_or_package_with_a_wrong_hash() {
    let played = Played::new();
    let archive = played.archive();
    let real = played.get(&in_trixie());
    played.put(&in_trixie(), vec![0; real.len()]);
    let mirror = format!("{}/debian", played.server.url());
    let error = archive.update(&mirror, &SUITES[0]).unwrap_err();
    assert!(matches!(error, ArchiveError::Checksum { .. }), "{error}");
    assert_eq!(played.kept(), [""; 0]);

    played.put(&in_trixie(), real);
    archive.refresh(&mut |_| ()).unwrap();
    let kept = played.kept();
    let package = archive.search(|name| name == "a").unwrap().remove(0);
    let real = played.get("pool/a_1_amd64.deb");
    played.put("pool/a_1_amd64.deb", vec![0; real.len()]);
    let error = archive.download(&[package], played.folder.path(), &mut |_| ()).unwrap_err();
    assert!(matches!(error, ArchiveError::Checksum { .. }), "{error}");
    assert_eq!(played.kept(), kept);
}

#[test]
fn reads_a_whole_list_of_garbage_as_an_error() {
    let played = Played::new();
    let garbage = vec![b'x'; 1000];
    played.put("dists/trixie/InRelease", played.key.sign(&release(&garbage, &TRIXIE)));
    played.put(&in_trixie(), garbage);
    let mirror = format!("{}/debian", played.server.url());
    let error = played.archive().update(&mirror, &SUITES[0]).unwrap_err();
    assert!(matches!(error, ArchiveError::Io { .. }), "{error}");
    assert_eq!(played.kept(), [""; 0]);
}

#[test]
fn asks_by_hash_if_the_release_has_it_and_the_mirror_too() {
    let played = Played::new();
    let packed = played.get(&in_trixie());
    let message = signed(&played.key, &played, &Said { more: BY_HASH, ..TRIXIE });
    played.put("dists/trixie/InRelease", message);
    let hashed = format!("dists/trixie/main/binary-amd64/by-hash/SHA256/{}", digest(&packed));
    let mirror = format!("{}/debian", played.server.url());
    let asked = |archive: &Archive| {
        let before = played.server.asked().len();
        archive.update(&mirror, &SUITES[0]).unwrap();
        played.server.asked().split_off(before + 1)
    };
    let by_hash = format!("/debian/{hashed}");
    let plain = format!("/debian/{}", in_trixie());
    assert_eq!(asked(&played.archive()), [by_hash.clone(), plain]);
    fs::remove_dir_all(played.folder.path().join("archive")).unwrap();
    played.put(&hashed, packed);
    assert_eq!(asked(&played.archive()), [by_hash]);
}

/// A connection that breaks, a process that was killed, and a first part of another file.
#[test]
fn resumes_interrupted_downloads_and_verifies_them_as_a_whole() {
    let bytes: Vec<u8> = (0..200_000_u32).map(|number| (number % 251) as u8).collect();
    let file = File { path: "x".into(), size: bytes.len() as u64, sha256: digest(&bytes) };
    for (what, kept, ranges) in [
        ("nothing", &bytes[..0], vec![0, 150_000]),
        ("a part", &bytes[..100_000], vec![100_000, 150_000]),
        ("all", &bytes[..], vec![]),
        ("a part of another file", &[9; 160_000][..], vec![160_000, 0, 150_000]),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let to = folder.path().join("x");
        fs::write(&to, kept).unwrap();
        let of_server = bytes.clone();
        let server = Server::start(move |request| match request.from() {
            from if from < 150_000 => Answer::file(&of_server, from).up_to(150_000 - from),
            from => Answer::file(&of_server, from),
        });
        let client = Client::new(Settings::default());
        let count = AtomicU64::new(0);
        client.file(&format!("{}/x", server.url()), &file, &to, &count).unwrap();
        assert_eq!(fs::read(&to).unwrap(), bytes, "{what}");
        assert_eq!(server.ranges(), ranges, "{what}");
    }
}

/// A server may answer a range with the whole file.
#[test]
fn starts_again_if_the_server_cannot_resume() {
    let bytes = vec![3; 1000];
    let file = File { path: "x".into(), size: 1000, sha256: digest(&bytes) };
    let folder = tempfile::tempdir().unwrap();
    let to = folder.path().join("x");
    fs::write(&to, vec![3; 400]).unwrap();
    let of_server = bytes.clone();
    let server = Server::start(move |_| Answer::whole(&of_server));
    let client = Client::new(Settings::default());
    client.file(&format!("{}/x", server.url()), &file, &to, &AtomicU64::new(0)).unwrap();
    assert_eq!(fs::read(&to).unwrap(), bytes);
}

#[test]
fn keeps_the_part_that_came_when_the_network_is_gone() {
    let folder = tempfile::tempdir().unwrap();
    let to = folder.path().join("x");
    fs::write(&to, b"part").unwrap();
    let file = File { path: "x".into(), size: 1000, sha256: "0".repeat(64) };
    let client = Client::new(Settings::default());
    let url = format!("{}/x", Server::closed());
    let error = client.file(&url, &file, &to, &AtomicU64::new(0)).unwrap_err();
    assert!(matches!(error, ArchiveError::Fetch { .. }) && error.to_string().contains(&url));
    assert_eq!(fs::read(&to).unwrap(), b"part");
}

#[test]
fn asks_the_proxy_but_for_excepted_hosts() {
    let played = Played::new();
    let files = played.files.clone();
    // Requests for http come whole, with the user's name.
    let proxy = Server::start(move |request| {
        let files = files.lock().unwrap();
        let path = request.line.strip_prefix("GET http://archive.invalid");
        let path = path.and_then(|rest| rest.split_once(' ')).map(|(path, _)| path);
        let is_named = request.header("Proxy-Authorization") == Some("Basic dTpw");
        match path.and_then(|path| files.get(path)) {
            Some(bytes) if is_named => Answer::file(bytes, request.from()),
            _ => Answer::status(407),
        }
    });
    let url = proxy.url().replace("http://", "http://u:p@");
    let settings = Settings::with_environment(&[("http_proxy", &url)]);
    let archive = played.archive_by("http://archive.invalid", settings);
    archive.refresh(&mut |_| ()).unwrap();
    assert_eq!(played.server.asked(), [""; 0]);
    assert_eq!(proxy.asked().len(), 4);

    let except = [("http_proxy", url.as_str()), ("no_proxy", "example.org, 127.0.0.1")];
    let archive = played.archive_by(&played.server.url(), Settings::with_environment(&except));
    archive.refresh(&mut |_| ()).unwrap();
    assert_eq!((played.server.asked().len(), proxy.asked().len()), (2, 4));
}

#[test]
fn https_goes_through_a_tunnel_of_the_proxy() {
    let proxy = Server::start(|_| Answer::status(403));
    let settings = Settings::with_environment(&[("https_proxy", &proxy.url())]);
    let client = Client::new(settings);
    let error = client.bytes("https://archive.invalid/x", 1).unwrap_err();
    assert!(matches!(error, ArchiveError::Fetch { .. }), "{error}");
    // Each try is one.
    assert_eq!(proxy.lines(), ["CONNECT archive.invalid:443 HTTP/1.1"; 3]);
}

#[test]
fn keeps_links_within_the_folder_and_drops_set_user_id() {
    use EntryType as Is;
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let package = folder.path().join("p.deb");
    let entries = [
        ("./", Is::Directory, ""),
        ("./usr/", Is::Directory, ""),
        ("./usr/lib/", Is::Directory, ""),
        ("./usr/lib/a", Is::Regular, ""),
        ("./usr/lib/hard", Is::Link, "./usr/lib/a"),
        ("./usr/bin/absolute", Is::Symlink, "/usr/lib/a"),
        ("./usr/bin/relative", Is::Symlink, "../lib/a"),
        ("./lib", Is::Symlink, "usr/lib"),
        ("./lib/through", Is::Regular, ""),
        ("./usr/share/no", Is::Regular, ""),
    ];
    fs::write(&package, deb(&entries)).unwrap();
    let to = folder.path().join("to");
    unpack(&package, &to, MOST_UNPACKED, |path| !path.starts_with("usr/share")).unwrap();
    // Again, as if a second package had the same files.
    unpack(&package, &to, MOST_UNPACKED, |path| !path.starts_with("usr/share")).unwrap();
    for path in [
        "usr/lib/a",
        "usr/lib/hard",
        "usr/bin/absolute",
        "usr/bin/relative",
        "lib/a",
        "usr/lib/through",
    ] {
        assert_eq!(fs::read(to.join(path)).unwrap(), b"content", "{path}");
    }
    assert_eq!(fs::read_link(to.join("usr/bin/absolute")).unwrap(), Path::new("../../usr/lib/a"));
    assert_eq!(fs::metadata(to.join("usr/lib/a")).unwrap().permissions().mode() & 0o7777, 0o755);
    assert!(!to.join("usr/share").exists());
}

#[test]
fn unpacks_every_kind_of_package_and_rejects_broken_ones() {
    let plain = deb(&[("a", EntryType::Regular, "")]);
    let mut archive = ar::Archive::new(plain.as_slice());
    archive.next_entry().unwrap().unwrap();
    let mut tar = Vec::new();
    let data = archive.next_entry().unwrap().unwrap();
    lzma_rust2::XzReader::new(data, true).read_to_end(&mut tar).unwrap();
    let mut gz = flate2::write::GzEncoder::new(Vec::new(), Default::default());
    gz.write_all(&tar).unwrap();
    let zst = zstd::encode_all(tar.as_slice(), 1).unwrap();
    let whole = xz(&tar);
    for (name, data, is_fine) in [
        ("data.tar", tar.clone(), true),
        ("data.tar.gz", gz.finish().unwrap(), true),
        ("data.tar.zst", zst, true),
        ("data.tar.xz", whole.clone(), true),
        ("data.tar.lz", whole.clone(), false),
        ("data.tar.xz", whole[..whole.len() / 2].to_vec(), false),
        ("control.tar.xz", whole, false),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let package = folder.path().join("p.deb");
        fs::write(&package, packed(name, &data)).unwrap();
        match unpack(&package, &folder.path().join("to"), MOST_UNPACKED, |_| true) {
            Ok(()) => assert!(is_fine, "{name}"),
            Err(ArchiveError::Broken { .. }) => assert!(!is_fine, "{name}"),
            Err(error) => panic!("{name}: {error}"),
        }
    }
}

/// A link that leads nowhere yet could lead out later.
#[test]
fn rejects_links_above_that_begin_with_a_dot() {
    for (path, target, is_fine) in [
        ("l", "./../x", false),
        ("usr/l", "./../../x", false),
        ("usr/l", "./../x", true),
        ("usr/l", "././x", true),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let package = folder.path().join("p.deb");
        fs::write(&package, deb(&[(path, EntryType::Symlink, target)])).unwrap();
        let done = unpack(&package, &folder.path().join("to"), MOST_UNPACKED, |_| true);
        match done {
            Ok(()) => assert!(is_fine, "{path} {target}"),
            Err(ArchiveError::Outside { .. }) => assert!(!is_fine, "{path} {target}"),
            Err(error) => panic!("{path} {target}: {error}"),
        }
    }
}

/// Library and programs decide alike, as far as the host has them.
#[test]
fn every_verifier_decides_alike() {
    let (key, expired) = (Key::new(), Key::expired());
    let by_subkey = Key::with_subkey(true, false);
    let expired_subkey = Key::with_subkey(true, true);
    let other_subkey = Key::with_subkey(false, false);
    let keys = [&key, &expired, &by_subkey, &expired_subkey, &other_subkey];
    let keyring = keys.map(|key| key.public.as_slice()).concat();
    let text = "Codename: trixie\n- dashed\n";
    let programs = [Verifier::Sqv("sqv".into()), Verifier::Gpgv("gpgv".into())];
    let has = |verifier: &Verifier| match verifier {
        Verifier::Library => true,
        Verifier::Sqv(program) | Verifier::Gpgv(program) => {
            let asked = std::process::Command::new(program).arg("--version").output();
            asked.is_ok()
        }
    };
    let verifiers = [Verifier::Library].into_iter().chain(programs).filter(has);
    for verifier in verifiers {
        for (what, message, expected) in [
            ("good", key.sign(text), true),
            ("altered", key.sign(text).replacen("trixie", "sid", 1), false),
            ("a stranger's", Key::new().sign(text), false),
            ("expired", key.sign_expired(text), false),
            ("of another type", key.sign_first_byte(text), false),
            ("of an expired key", expired.sign(text), false),
            ("of a subkey", by_subkey.sign(text), true),
            ("of an expired subkey", expired_subkey.sign(text), false),
            ("of a subkey that may not sign", other_subkey.sign(text), false),
        ] {
            let message = ClearSigned::parse(&message).unwrap();
            let done = verifier.verify(&message, &keyring);
            assert_eq!(done.is_ok(), expected, "{what} {verifier:?}: {done:?}");
        }
    }
}

#[test]
fn takes_only_the_status_of_gpgv_however_much_it_prints() {
    let good = "echo '[GNUPG:] GOODSIG x'; echo '[GNUPG:] VALIDSIG x'";
    let message = ClearSigned { text: String::new(), signature: String::new() };
    for (what, script, expected) in [
        ("good", good.to_owned(), true),
        ("good among other keys' signatures", format!("{good}; exit 2"), true),
        ("on stderr", format!("{{ {good}; }} >&2"), false),
        ("one is bad", format!("{good}; echo '[GNUPG:] BADSIG x'"), false),
        ("more than a pipe holds", format!("head -c 200000 /dev/zero; echo; {good}"), true),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let gpgv = program(folder.path(), "gpgv", &script);
        let done = Verifier::Gpgv(gpgv).verify(&message, b"");
        assert_eq!(done.is_ok(), expected, "{what}: {done:?}");
    }
}

/// Another process writes it: a file that a fork of ours holds open cannot be run.
fn program(folder: &Path, name: &str, script: &str) -> PathBuf {
    let (source, path) = (folder.join("source"), folder.join(name));
    fs::write(&source, format!("#!/bin/sh\n{script}\n")).unwrap();
    let mut install = std::process::Command::new("install");
    assert!(install.args(["-m", "755"]).args([&source, &path]).status().unwrap().success());
    path
}

#[test]
fn runs_only_executable_files_of_absolute_folders() {
    let folder = tempfile::tempdir().unwrap();
    let (first, last) = (folder.path().join("first"), folder.path().join("last"));
    fs::create_dir_all(first.join("a-folder")).unwrap();
    fs::create_dir(&last).unwrap();
    fs::write(first.join("a-text"), "").unwrap();
    let expected = program(&last, "a-text", "");
    program(&last, "a-folder", "");
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    assert_eq!(std::env::current_dir().unwrap(), here);
    let up = here.components().skip(1).map(|_| "..").collect::<PathBuf>();
    let relative = up.join(last.strip_prefix("/").unwrap());
    assert!(relative.join("a-text").is_file());

    let find =
        |name, folders: &[&Path]| verify::in_path(name, &std::env::join_paths(folders).unwrap());
    assert_eq!(find("a-text", &[&first, &last]), Some(expected));
    assert_eq!(find("a-folder", &[&first, &last]), Some(last.join("a-folder")));
    assert_eq!(find("a-text", &[&first]), None);
    assert_eq!(find("a-text", &[&relative]), None);
}

/// Fails a year before the last of Debian's keys expires: `keys/README.md`.
#[test]
fn shipped_keys_are_in_force() {
    use pgp::composed::{Deserializable, SignedPublicKey};
    use pgp::types::KeyDetails;
    let keys = SignedPublicKey::from_bytes_many(verify::DEBIAN).unwrap();
    let keys: Vec<SignedPublicKey> = keys.map(Result::unwrap).collect();
    let ends = keys.iter().map(|key| {
        let of_users = key.details.users.iter().flat_map(|user| &user.signatures);
        let lasts = of_users.filter_map(|signature| signature.key_expiration_time());
        let lasts = lasts.map(|lasts| lasts.as_secs()).max().unwrap();
        u64::from(key.primary_key.created_at().as_secs()) + u64::from(lasts)
    });
    let mut ends: Vec<u64> = ends.collect();
    ends.sort();
    assert_eq!(ends.len(), 9);
    let now = OffsetDateTime::now_utc().unix_timestamp() as u64;
    assert!(ends[8] > now + 365 * 24 * 3600, "renew them: keys/README.md");
}

/// Each such server would otherwise hold the lock of the indexes forever.
#[test]
fn gives_up_on_servers_that_keep_a_fetch_alive() {
    type Attack = fn(&[u8], usize) -> Answer;
    let attacks: [(&str, Attack, &str, usize); 2] = [
        (
            "a cut, then garbage",
            |bytes, from| match from {
                0 => Answer::cut(bytes, bytes.len() / 2),
                from => Answer::file(&vec![b'x'; bytes.len()], from),
            },
            "Checksum",
            4,
        ),
        ("a byte at a time", |bytes, from| Answer::file(bytes, from).up_to(1), "Truncated", 3),
    ];
    let bytes = vec![7; 100_000];
    for (attack, answer, expected, requests) in attacks {
        let folder = tempfile::tempdir().unwrap();
        let of_server = bytes.clone();
        let server = Server::start(move |request| answer(&of_server, request.from()));
        let client = Client::new(Settings::default());
        let file = File { path: "x".into(), size: bytes.len() as u64, sha256: digest(&bytes) };
        let url = format!("{}/x", server.url());
        let to = folder.path().join("x");
        let error = client.file(&url, &file, &to, &AtomicU64::new(0)).unwrap_err();
        assert!(format!("{error:?}").starts_with(expected), "{attack}: {error:?}");
        assert_eq!(server.asked().len(), requests, "{attack}");
        assert!(!to.exists(), "{attack}");
    }
}

#[test]
fn asks_again_for_a_release_after_a_short_failure() {
    type First = fn() -> Answer;
    let firsts: [(&str, First, bool); 3] = [
        ("a cut", || Answer::cut(b"text", 2), true),
        ("a busy server", || Answer::status(503), true),
        ("nothing there", || Answer::status(404), false),
    ];
    for (what, first, is_repeated) in firsts {
        let count = AtomicUsize::new(0);
        let server = Server::start(move |_| match count.fetch_add(1, Ordering::Relaxed) {
            0 => first(),
            _ => Answer::whole(b"text"),
        });
        let client = Client::new(Settings::default());
        let found = client.bytes(&format!("{}/x", server.url()), 10).ok();
        assert_eq!(found, is_repeated.then(|| b"text".to_vec()), "{what}");
    }
}

/// SOCKS5 begins with 5, TLS with 22. The host's name has no address here.
#[test]
fn speaks_the_protocol_of_the_proxy() {
    for (scheme, first) in [("http", b'G'), ("https", 22), ("HTTPS", 22), ("socks5h", 5)] {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("{scheme}://u:p@{}", listener.local_addr().unwrap());
        let (sender, received) = mpsc::channel();
        thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                let mut byte = [0];
                let _ = stream.read_exact(&mut byte);
                let _ = sender.send(byte[0]);
            }
        });
        let client = Client::new(Settings::with_environment(&[("http_proxy", &url)]));
        let error = client.bytes("http://archive.invalid/x", 1).unwrap_err();
        assert!(matches!(error, ArchiveError::Fetch { .. }), "{scheme}: {error}");
        assert_eq!(received.try_recv(), Ok(first), "{scheme}");
    }
}

#[test]
fn asks_the_next_mirror_for_lists_and_packages_and_says_why() {
    let played = Played::new();
    let mut list = String::new();
    for name in ["a", "b", "c", "d", "e", "f", "g", "h"] {
        let deb = deb(&[(name, EntryType::Regular, "")]);
        list += &stanza(name, &deb, "");
        played.put(&format!("pool/{name}_1_amd64.deb"), deb);
    }
    played.publish("trixie", &list, &TRIXIE);
    let bad = Server::start(|_| Answer::status(404));
    let by = |first: String| {
        let mut settings = Settings::default();
        let urls = [first, played.server.url()];
        settings.mirrors = urls.map(|url| format!("{url}/debian")).into();
        let archive = played.archive();
        let pool = Pool::new(&archive.folder, settings, Vec::new()).unwrap();
        Archive { pool, ..archive }
    };
    for (what, first) in [("closed", Server::closed()), ("without files", bad.url())] {
        let archive = by(first.clone());
        let mut said = String::new();
        archive.refresh(&mut |text| said += text).unwrap();
        assert!(said.contains(&format!("from {first}/debian: no suite answered\ntrixie: ")));
        let packages = archive.search(|_| true).unwrap();
        let packages = &packages[..8];
        let asked = bad.asked().len();
        let to = tempfile::tempdir().unwrap();
        let files = archive.download(packages, to.path(), &mut |_| ()).unwrap();
        assert!(files.iter().all(|file| file.exists()), "{what}");
        // Once for each connection: the mirror that answered stays the first.
        assert!(bad.asked().len() <= asked + CONNECTIONS, "{what}");
    }
    let archive = by(bad.url());
    played.files.lock().unwrap().clear();
    let packages = archive.search(|name| name == "a").unwrap().remove(0);
    let error = archive.download(&[packages], played.folder.path(), &mut |_| ()).unwrap_err();
    assert!(error.to_string().contains(&bad.url()), "{error}");
}

#[test]
fn fetches_a_package_once_that_is_wanted_twice() {
    let played = Played::new();
    let archive = played.archive();
    archive.refresh(&mut |_| ()).unwrap();
    let package = archive.search(|name| name == "a").unwrap().remove(0);
    let asked = played.server.asked().len();
    let to = played.folder.path();
    let files = archive.download(&[package.clone(), package], to, &mut |_| ()).unwrap();
    assert_eq!(files, [to.join("a_1_amd64.deb"), to.join("a_1_amd64.deb")]);
    assert_eq!(played.server.asked().len(), asked + 1);
}

#[test]
fn makes_a_damaged_index_again() {
    let played = Played::new();
    let archive = played.archive();
    archive.refresh(&mut |_| ()).unwrap();
    let path = archive.index_of(&SUITES[0]);
    let whole = fs::read(&path).unwrap();
    for (what, damaged) in
        [("empty", &b""[..]), ("half", &whole[..whole.len() / 2]), ("garbage", &[0; 100])]
    {
        fs::write(&path, damaged).unwrap();
        let error = archive.search(|name| name == "a").unwrap_err();
        assert!(matches!(error, ArchiveError::Index { .. }) && error.may_be_stale(), "{what}");
        assert_eq!(archive.age(), None, "{what}");
        archive.refresh(&mut |_| ()).unwrap();
        archive.search(|name| name == "a").unwrap().remove(0);
    }
}

/// A pin outlives its suite: neither its release nor its list is asked for.
#[test]
fn fetches_what_is_pinned_from_a_mirror_or_from_the_snapshot() {
    let played = Played::new();
    let archive = played.archive();
    archive.refresh(&mut |_| ()).unwrap();
    let wanted = archive.search(|name| name == "a").unwrap();
    let pin = archive.pin(&wanted).unwrap();
    // Half a day after the release.
    assert_eq!(pin.snapshot, "20261121T210000Z");
    let deb = played.get("pool/a_1_amd64.deb");
    let path = "pool/a_1_amd64.deb".to_owned();
    assert_eq!(pin.files, [File { path, size: deb.len() as u64, sha256: digest(&deb) }]);
    played.put("dists/trixie/InRelease", "gone");
    let asked = played.server.asked().len();

    let to = played.folder.path().join("to");
    fs::create_dir(&to).unwrap();
    let pinned = played.pinned(pin.clone());
    let fetch = |pinned: &Pinned| pinned.download(&wanted, &to, &mut |_| ());
    assert_eq!(fetch(&pinned).unwrap(), [to.join("a_1_amd64.deb")]);
    assert!(!pinned.used_snapshot());
    assert_eq!(played.server.asked()[asked..], ["/debian/pool/a_1_amd64.deb"]);
    let [mirror, snapshot] = pinned.availability();
    assert!(mirror.is_ok());
    assert!(matches!(snapshot, Err(ArchiveError::Status { status: 404, .. })), "{snapshot:?}");

    let of_snapshot = "snapshot/20261121T210000Z/pool/a_1_amd64.deb";
    played.files.lock().unwrap().remove("/debian/pool/a_1_amd64.deb");
    played.put(of_snapshot, deb.clone());
    let pinned = played.pinned(pin.clone());
    assert_eq!(fetch(&pinned).unwrap(), [to.join("a_1_amd64.deb")]);
    assert!(pinned.used_snapshot());
    assert!(matches!(pinned.availability(), [Err(_), Ok(())]));
    fs::remove_dir_all(&to).unwrap();
    fs::create_dir(&to).unwrap();

    let other: Vec<u8> = deb.iter().map(|byte| byte ^ 1).collect();
    for (bytes, expected) in [(&deb[1..], "Size"), (&other, "Checksum"), (&[], "Nowhere")] {
        match bytes {
            [] => drop(played.files.lock().unwrap().remove(&format!("/debian/{of_snapshot}"))),
            _ => played.put(of_snapshot, bytes),
        }
        let error = fetch(&played.pinned(pin.clone())).unwrap_err();
        assert!(format!("{error:?}").contains(expected), "{error:?}");
        assert_eq!(fs::read_dir(&to).unwrap().count(), 0, "{error}");
        assert!(!played.kept().iter().any(|file| *file == pin.files[0].sha256), "{error}");
    }
    // A mirror with something else does not hide the snapshot; the first mirror's error is told.
    played.put("pool/a_1_amd64.deb", "a page of a proxy");
    played.put(of_snapshot, deb);
    let mut two = played.pinned(pin.clone());
    two.pool = two.pool.after(Server::closed());
    assert_eq!(fetch(&two).unwrap(), [to.join("a_1_amd64.deb")]);
    assert!(two.used_snapshot());
    let [mirrors, snapshot] = two.availability();
    assert!(matches!(mirrors, Err(ArchiveError::Fetch { .. })), "{mirrors:?}");
    assert!(snapshot.is_ok());
    // A fetch that is stopped keeps what it has, and asks nobody else.
    let stopped = played.pinned(pin.clone());
    stopped.pool.client.settings().stopped.store(true, Ordering::Relaxed);
    let error = fetch(&stopped).unwrap_err();
    assert!(matches!(error, ArchiveError::Stopped { .. }), "{error:?}");
    let unknown = Package { sha256: digest(b"other"), ..wanted[0].clone() };
    let error = played.pinned(pin).download(&[unknown], &to, &mut |_| ()).unwrap_err();
    assert!(matches!(error, ArchiveError::NotPinned { .. }), "{error:?}");
}
