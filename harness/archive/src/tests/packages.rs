// SPDX-License-Identifier: MIT OR Apache-2.0
//! Packages of each format, right and hostile. They are made here: none is a distribution's.

use super::*;
use cpio::newc;
use tramplab_testdata::packed::{LEAD, rpm as rpm_of, rpm_header as header, rpm_of_digest};

/// An entry of a cpio archive with its data.
struct Packed<'a> {
    name: &'a str,
    mode: u32,
    inode: (u32, u32),
    data: &'a [u8],
}

fn cpio(entries: &[Packed]) -> Vec<u8> {
    let mut archive = Vec::new();
    for (index, Packed { name, mode, inode: (inode, names), data }) in entries.iter().enumerate() {
        let inode = if *names > 1 { *inode } else { 1000 + index as u32 };
        let builder = newc::Builder::new(name).mode(*mode).ino(inode).nlink(*names);
        let mut writer = builder.write(&mut archive, data.len() as u32);
        writer.write_all(data).unwrap();
        writer.finish().unwrap();
    }
    newc::trailer(&mut archive).unwrap();
    archive
}

fn zst(bytes: &[u8]) -> Vec<u8> {
    zstd::encode_all(bytes, 1).unwrap()
}

fn rpm<'a>(entries: &[Entry<'a>]) -> Vec<u8> {
    let packed = |&(name, kind, target): &Entry<'a>| {
        let (kind, data) = match kind {
            EntryType::Directory => (0o040_000, &b""[..]),
            EntryType::Symlink => (0o120_000, target.as_bytes()),
            EntryType::Block => (0o060_000, &b""[..]),
            EntryType::Char => (0o020_000, &b""[..]),
            EntryType::Fifo => (0o010_000, &b""[..]),
            _ => (0o100_000, &b"content"[..]),
        };
        Packed { name, mode: kind | 0o4755, inode: (0, 1), data }
    };
    rpm_of(&zst(&cpio(&entries.iter().map(packed).collect::<Vec<_>>())))
}

fn of_pacman(entries: &[Entry]) -> Vec<u8> {
    zst(&tar(entries))
}

fn unpacked(package: &[u8], to: &Path, most: u64) -> Result<(), ArchiveError> {
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(&file, package).unwrap();
    unpack(file.path(), to, most, |path| !path.starts_with("usr/share"))
}

#[test]
fn checks_the_payload_by_the_digest_in_its_header() {
    let file = Packed { name: "a", mode: 0o100_644, inode: (0, 1), data: b"content" };
    let payload = cpio(&[file]);
    let digest = hex(&Sha256::digest(&payload));
    let mut damaged = payload.clone();
    let at = payload.windows(7).position(|bytes| bytes == b"content").unwrap();
    damaged[at] ^= 1;
    let long = format!("{digest}{digest}");
    for (name, digest, payload, is_taken) in [
        ("whole", digest.as_str(), &payload, true),
        ("damaged", &digest, &damaged, false),
        ("of another algorithm", &long, &damaged, true),
        ("none", "", &damaged, true),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let result = unpacked(&rpm_of_digest(digest, payload), folder.path(), 1 << 20);
        assert_eq!(result.is_ok(), is_taken, "{name}: {result:?}");
    }
    // Bytes behind the archive belong to the payload.
    let folder = tempfile::tempdir().unwrap();
    let longer = [&payload[..], b"more"].concat();
    assert!(unpacked(&rpm_of_digest(&digest, &longer), folder.path(), 1 << 20).is_err());
}

#[test]
fn rejects_packages_that_lead_out_of_their_folder() {
    use EntryType as Is;
    let file = ("out", Is::Regular, "");
    let deep = &"a/".repeat(40)[..];
    for (attack, entries, expected) in [
        ("a file above", vec![("../out", Is::Regular, "")], "Outside"),
        ("a file above, inside", vec![("a/../../out", Is::Regular, "")], "Outside"),
        ("an absolute file", vec![("/tmp/out", Is::Regular, "")], "Outside"),
        ("a link above", vec![("a", Is::Symlink, "../out"), file], "Outside"),
        ("a deep link above", vec![("b/a", Is::Symlink, "x/../../../out")], "Outside"),
        (
            "a link by a link",
            vec![("l", Is::Symlink, "."), ("l/l/a", Is::Symlink, "../..")],
            "Outside",
        ),
        (
            "a link that is turned",
            vec![("a", Is::Symlink, "x/.."), ("x", Is::Symlink, ".")],
            "Outside",
        ),
        (
            "a file through such a link",
            vec![("a", Is::Symlink, "x/.."), ("x", Is::Symlink, "."), ("a/out", Is::Regular, "")],
            "Outside",
        ),
        ("an absolute link above", vec![("a", Is::Symlink, "/../out")], "Outside"),
        (
            "a file through a link",
            vec![("l", Is::Symlink, "/l"), ("l/a", Is::Regular, "")],
            "Outside",
        ),
        ("a hard link above", vec![("a", Is::Link, "../out")], "Outside"),
        ("an absolute hard link", vec![("a", Is::Link, "/etc/passwd")], "Outside"),
        ("a hard link to a link", vec![("l", Is::Symlink, "a"), ("b", Is::Link, "l")], "Outside"),
        ("a block device", vec![("a", Is::Block, "")], "Device"),
        ("a character device", vec![("a", Is::Char, "")], "Device"),
        ("a pipe", vec![("a", Is::Fifo, "")], "Device"),
        (
            "a hard link to a file left out",
            vec![("usr/share/b", Is::Regular, ""), ("a", Is::Link, "usr/share/b")],
            "Unwanted",
        ),
        ("many folders", vec![(deep, Is::Regular, "")], "Deep"),
    ] {
        // cpio has no hard links to paths.
        let has_hard_link = entries.iter().any(|(_, kind, _)| *kind == Is::Link);
        let rpm = (!has_hard_link).then(|| rpm(&entries));
        for package in [Some(deb(&entries)), Some(of_pacman(&entries)), rpm].into_iter().flatten() {
            let folder = tempfile::tempdir().unwrap();
            let to = folder.path().join("to");
            let error = unpacked(&package, &to, MOST_UNPACKED).unwrap_err();
            assert!(format!("{error:?}").starts_with(expected), "{attack}: {error:?}");
            assert!(!folder.path().join("out").exists(), "{attack}");
            let links = fs::read_dir(&to).unwrap().flatten().map(|entry| entry.path());
            let real = to.canonicalize().unwrap();
            for link in links.filter_map(|link| link.canonicalize().ok()) {
                assert!(link.starts_with(&real), "{attack}: {link:?}");
            }
        }
    }
}

/// Neither package alone leads out.
#[test]
fn checks_the_links_of_earlier_packages_too() {
    use EntryType as Is;
    let folder = tempfile::tempdir().unwrap();
    let to = folder.path().join("to");
    unpacked(&deb(&[("b/a", Is::Symlink, "../x/..")]), &to, MOST_UNPACKED).unwrap();
    let turned = unpacked(&deb(&[("x", Is::Symlink, ".")]), &to, MOST_UNPACKED);
    let error = turned.and_then(|()| check_links(&to)).unwrap_err();
    assert!(matches!(&error, ArchiveError::Outside { path, .. } if path.ends_with("b/a")));
    assert!(fs::symlink_metadata(to.join("b/a")).is_err());
}

#[test]
fn skips_hard_links_that_are_not_wanted_and_reads_long_names() {
    use EntryType as Is;
    let entries = [("usr/share/b", Is::Regular, ""), ("usr/share/a", Is::Link, "usr/share/b")];
    let folder = tempfile::tempdir().unwrap();
    unpacked(&deb(&entries), folder.path(), MOST_UNPACKED).unwrap();
    assert!(!folder.path().join("usr").exists());

    let long = "n".repeat(200);
    let data = extended(&[(b'L', long.as_bytes()), (b'0', b"content"), (b'0', &[0; 3 << 20])]);
    let package = packed("data.tar", &data);
    unpacked(&package, folder.path(), MOST_UNPACKED).unwrap();
    assert_eq!(fs::read(folder.path().join(long)).unwrap(), b"content");
    // GNU's ar ends names with a slash.
    unpacked(&packed("data.tar/", &data), folder.path(), MOST_UNPACKED).unwrap();
}

/// A tar archive with entries of these types and data, all named `a`.
fn extended(entries: &[(u8, &[u8])]) -> Vec<u8> {
    let mut tar = tar::Builder::new(Vec::new());
    for &(kind, data) in entries {
        let mut header = Header::new_gnu();
        header.set_path("a").unwrap();
        header.set_entry_type(EntryType::new(kind));
        header.set_mode(0o644);
        header.set_size(data.len() as u64);
        header.set_cksum();
        tar.append(&header, data).unwrap();
    }
    tar.into_inner().unwrap()
}

#[test]
fn unpacks_packages_of_rpm_and_pacman() {
    use EntryType as Is;
    use std::os::unix::fs::PermissionsExt;
    let entries = [
        ("./usr/lib/a", Is::Regular, ""),
        ("./usr/bin/link", Is::Symlink, "/usr/lib/a"),
        ("./usr/share/no", Is::Regular, ""),
        (".INSTALL", Is::Regular, ""),
    ];
    let plain = tar(&entries);
    let mut gz = flate2::write::GzEncoder::new(Vec::new(), Default::default());
    gz.write_all(&plain).unwrap();
    let packages = [gz.finish().unwrap(), xz(&plain), of_pacman(&entries), plain, rpm(&entries)];
    for package in &packages {
        let folder = tempfile::tempdir().unwrap();
        let to = folder.path().join("to");
        unpacked(package, &to, MOST_UNPACKED).unwrap();
        assert_eq!(fs::read(to.join("usr/bin/link")).unwrap(), b"content");
        let mode = fs::metadata(to.join("usr/lib/a")).unwrap().permissions().mode();
        assert_eq!(mode & 0o7777, 0o755);
        assert!(!to.join("usr/share").exists());
    }
}

/// Of files with several names only the last has the content.
#[test]
fn unpacks_hard_links_of_rpm_though_the_last_is_not_wanted() {
    let file = |name, data| Packed { name, mode: 0o100_644, inode: (7, 3), data };
    for last in ["./a/c", "./usr/share/c"] {
        let entries = [file("./a/a", b""), file("./a/b", b""), file(last, b"content")];
        let folder = tempfile::tempdir().unwrap();
        let to = folder.path().join("to");
        unpacked(&rpm_of(&xz(&cpio(&entries))), &to, MOST_UNPACKED).unwrap();
        for name in ["a/a", "a/b", "a/c"] {
            let is_wanted = name != "a/c" || last == "./a/c";
            let content = fs::read(to.join(name)).ok();
            assert_eq!(content.as_deref(), is_wanted.then_some(&b"content"[..]), "{name} {last}");
        }
    }
}

#[test]
fn rejects_broken_and_endless_packages() {
    let whole = rpm(&[("a", EntryType::Regular, "")]);
    let long = "a".repeat(5000);
    let file = |name, data| Packed { name, mode: 0o100_644, inode: (0, 1), data };
    let cpio_of = |entries: &[Packed]| rpm_of(&zst(&cpio(entries)));
    let with = |headers: &[Vec<u8>]| [LEAD.to_vec(), headers.concat()].concat();
    let mut stripped = cpio(&[file("a", b"")]);
    stripped[..6].copy_from_slice(b"07070X");
    let zeros = vec![0; 40 << 20];
    let names = |kind| zst(&extended(&[(kind, &zeros), (b'0', b"content")]));
    let member = |name: &str, size: &str| {
        let header = format!("!<arch>\n{name:<16}{:32}{size:<10}`\n", "");
        [header.into_bytes(), vec![b'/'; 100]].concat()
    };
    for (name, package, most, expected) in [
        ("half an rpm", whole[..whole.len() - 9].to_vec(), MOST_UNPACKED, "Broken"),
        ("a lead", LEAD.to_vec(), MOST_UNPACKED, "Broken"),
        ("many entries", with(&[header(u32::MAX, u32::MAX)]), MOST_UNPACKED, "Broken"),
        ("much data", with(&[header(0, 0), header(0, u32::MAX)]), MOST_UNPACKED, "Broken"),
        ("another version", with(&[vec![1; 64]]), MOST_UNPACKED, "Broken"),
        ("bzip2", rpm_of(b"BZh91AY&SY"), MOST_UNPACKED, "Broken"),
        ("no cpio", rpm_of(&zst(b"hello")), MOST_UNPACKED, "Broken"),
        ("no trailer", rpm_of(&zst(&cpio(&[file("a", b"x")])[..130])), MOST_UNPACKED, "Broken"),
        ("a long name", cpio_of(&[file(&long, b"x")]), MOST_UNPACKED, "Broken"),
        ("a name of 300 bytes", cpio_of(&[file(&long[..300], b"")]), MOST_UNPACKED, "Broken"),
        ("a file in a file", cpio_of(&[file("a", b""), file("a/b", b"")]), MOST_UNPACKED, "Broken"),
        ("a file for a folder", cpio_of(&[file("a/b", b""), file("a", b"")]), 9, "Broken"),
        ("large files", rpm_of(&stripped), MOST_UNPACKED, "Broken"),
        ("a bomb", cpio_of(&[file("a", &zeros)]), 1 << 20, "TooBig"),
        ("a long name of tar", names(b'L'), MOST_UNPACKED, "more than 1 MiB"),
        ("a long link of tar", names(b'K'), MOST_UNPACKED, "more than 1 MiB"),
        ("a long pax header", names(b'x'), MOST_UNPACKED, "more than 1 MiB"),
        ("a table of names", member("//", "9999999999"), MOST_UNPACKED, "no data.tar"),
        ("a name of BSD", member("#1/9999999999", "9999999999"), MOST_UNPACKED, "no data.tar"),
        ("a size of no member", member("data.tar", "-1"), MOST_UNPACKED, "Broken"),
        ("text", b"hello".to_vec(), MOST_UNPACKED, "Broken"),
        ("compressed text", zst(b"hello"), MOST_UNPACKED, "Broken"),
        ("half a tar", of_pacman(&[("a", EntryType::Regular, "")])[..40].to_vec(), 9, "Broken"),
        ("a large tar", of_pacman(&[("a", EntryType::Regular, "")]), 3, "TooBig"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let error = unpacked(&package, &folder.path().join("to"), most).unwrap_err();
        assert!(format!("{error:?}").contains(expected), "{name}: {error:?}");
    }
}

#[test]
fn counts_global_pax_headers_as_entries() {
    let header = extended(&[(b'g', b"")]);
    // Without the two blocks that end an archive.
    let headers = header[..512].repeat(500_001);
    let folder = tempfile::tempdir().unwrap();
    let error = unpacked(&zst(&headers), folder.path(), MOST_UNPACKED).unwrap_err();
    assert!(matches!(error, ArchiveError::TooBig { .. }), "{error:?}");
}

proptest::proptest! {
    /// Any package gives a result without a panic.
    #[test]
    fn no_package_panics_the_reader(
        bytes: Vec<u8>,
        at in 0..400_usize,
        is_packed in proptest::bool::ANY,
    ) {
        let mut cpio = cpio(&[
            Packed { name: "./boot/a", mode: 0o100_644, inode: (1, 2), data: b"" },
            Packed { name: "./boot/b", mode: 0o100_644, inode: (1, 2), data: b"content" },
        ]);
        let mut rpm = rpm_of(&cpio);
        let damaged = if is_packed { &mut cpio } else { &mut rpm };
        let end = (at + bytes.len()).min(damaged.len());
        if at < end {
            damaged[at..end].copy_from_slice(&bytes[..end - at]);
        }
        if is_packed {
            rpm = rpm_of(&zst(&cpio));
        }
        let folder = tempfile::tempdir().unwrap();
        let _ = unpacked(&rpm, &folder.path().join("to"), 1 << 20);
    }
}
