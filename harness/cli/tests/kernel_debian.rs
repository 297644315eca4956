// SPDX-License-Identifier: MIT OR Apache-2.0
//! Fetches Debian's kernels and QEMU: needs the network at first, later only the user's cache.

use crate::command::{said, stored, tramplab};
use std::{
    fs,
    io::{BufRead, BufReader, Write},
    net::TcpListener,
    path::{Path, PathBuf},
    process::Command,
    thread,
};
use tramplab_host::{Cache, Purpose, Qemu, sha256};
use tramplab_kernel as kernel;
use tramplab_lab::doctor;
use tramplab_model::run::{Arch, Outcome};

fn shipped() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../kernels"))
}

/// Each shipped manifest gives a kernel of its series that has all options, with modules where
/// needed.
#[test]
fn shipped_kernels_have_all_options() {
    let cache = Cache::open(true).unwrap();
    let names = kernel::names(shipped());
    assert_eq!(
        names,
        [
            "6.1",
            "6.12",
            "6.12-source",
            "7.2",
            "7.2-livepatch",
            "7.2-source",
            "letter-2024",
            "newest",
            "newest-source"
        ]
    );
    // Kernels from sources are built in tests/series.rs.
    let manifests = names.iter().flat_map(|name| kernel::find(name, shipped()).unwrap());
    for manifest in
        manifests.filter(|manifest| !matches!(manifest.source, kernel::Source::Built(_)))
    {
        let (name, arch) = (manifest.name.clone(), manifest.arch);
        let mut notes = Vec::new();
        let image =
            kernel::fetch(&manifest, &cache, &mut |note| notes.push(note.to_owned())).unwrap();
        let config = image.config.as_ref().expect("Debian's kernels come with their configuration");
        assert_eq!(image.missing_base(), [], "{name} for {arch}, notes: {notes:?}");
        let (option, flavour) = match arch {
            Arch::X86_64 => ("X86_64", "cloud-amd64"),
            Arch::Arm64 => ("ARM64", "cloud-arm64"),
        };
        assert_eq!(config.get(option), Some("y"));
        assert_eq!(image.sha256.len(), 64);
        let series = if name == "newest" { "" } else { &name };
        assert!(
            image.source.contains(&format!("-{series}")) && image.source.contains(flavour),
            "{}",
            image.source
        );
        // The header is read correctly: it names the kernel, and reveals that half an image is
        // truncated.
        let folder = tempfile::tempdir().unwrap();
        let copy = folder.path().join("vmlinuz");
        fs::copy(&image.image, &copy).unwrap();
        let found = kernel::find(copy.to_str().unwrap(), shipped()).unwrap().remove(0);
        assert_eq!(found.arch, arch);
        // An arm64 Image has no name.
        let named = image.source.contains(&found.name);
        assert!(named || arch == Arch::Arm64, "{} in {}", found.name, image.source);
        let length = fs::metadata(&copy).unwrap().len();
        fs::File::options().write(true).open(&copy).unwrap().set_len(length / 2).unwrap();
        let error = kernel::fetch(&found, &cache, &mut |_| ()).unwrap_err().to_string();
        assert!(error.contains("it is truncated"), "{error}");
    }
}

#[test]
fn private_qemu_runs_by_its_wrapper() {
    let cache = Cache::open(true).unwrap();
    let mut notes = Vec::new();
    let qemu = Qemu::provision(&cache, Arch::X86_64, Purpose::Measuring, &mut |note| {
        notes.push(note.to_owned())
    })
    .unwrap_or_else(|error| panic!("{error}, notes: {notes:?}"));
    let output =
        std::process::Command::new(qemu.single_program()).arg("--version").output().unwrap();
    let first =
        String::from_utf8(output.stdout).unwrap().lines().next().unwrap_or_default().to_owned();
    assert_eq!(first, qemu.version);
    let checks = doctor::checkup(&cache).checks;
    let found = checks.iter().find(|check| check.name == "QEMU for x86-64").unwrap();
    assert_eq!(found.state, doctor::State::Ok, "{}", doctor::render(&checks));
    assert!(found.detail.contains(&qemu.version), "{found:?}");
}

const TIME: &str = "20261030T120000Z";
const PACKAGE: &str = "linux-image-6.99.1-cloud-amd64";
const POOL: &str = "pool/main/l/linux/linux-image-6.99.1-cloud-amd64_6.99.1-1_amd64.deb";

/// Packs the kernel 6.12 as another one of Debian.
fn packed(folder: &Path) -> PathBuf {
    let cache = Cache::open(true).unwrap();
    let manifest = kernel::find("6.12", shipped()).unwrap().remove(0);
    let image = kernel::fetch(&manifest, &cache, &mut |_| ()).unwrap();
    let (tree, package) = (folder.join("tree"), folder.join("p.deb"));
    for folder in ["boot", "DEBIAN"] {
        fs::create_dir_all(tree.join(folder)).unwrap();
    }
    fs::copy(&image.image, tree.join("boot/vmlinuz-6.99.1-cloud-amd64")).unwrap();
    fs::copy(image.config_file.unwrap(), tree.join("boot/config-6.99.1-cloud-amd64")).unwrap();
    let control = format!(
        "Package: {PACKAGE}\nVersion: 6.99.1-1\nArchitecture: amd64\nMaintainer: m\n\
         Description: d\n"
    );
    fs::write(tree.join("DEBIAN/control"), control).unwrap();
    let mut command = Command::new("dpkg-deb");
    command.args(["-Znone", "--root-owner-group", "--build"]).args([&tree, &package]);
    assert!(command.output().unwrap().status.success());
    package
}

/// Answers with the file of the snapshot archive while it exists. The mirror has nothing.
fn serve(file: PathBuf) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
            let first = lines.next().and_then(Result::ok).unwrap_or_default();
            while lines.next().is_some_and(|line| line.is_ok_and(|line| !line.is_empty())) {}
            let is_asked = first.split(' ').nth(1) == Some(&format!("/snapshot/{TIME}/{POOL}"));
            let bytes = fs::read(&file).ok().filter(|_| is_asked);
            let status = if bytes.is_some() { "200 OK" } else { "404 Not Found" };
            let bytes = bytes.unwrap_or_default();
            let length = bytes.len();
            let head = format!("HTTP/1.1 {status}\r\nContent-Length: {length}\r\n");
            let _ = write!(stream, "{head}Connection: close\r\n\r\n");
            let _ = stream.write_all(&bytes);
        }
    });
    url
}

/// The kernel boots, and the report says which way it came.
#[test]
fn a_pinned_kernel_that_debian_no_longer_has_comes_from_the_snapshot() {
    let folder = tempfile::tempdir().unwrap();
    let package = packed(folder.path());
    let (size, sha256) = (fs::metadata(&package).unwrap().len(), sha256(&package).unwrap());
    let manifest = folder.path().join("gone.yaml");
    let text = format!(
        "arch: x86_64\ndebian: {{ series: \"6.99\", flavour: cloud }}\npin:\n  snapshot: {TIME}\n  \
         files:\n  - {{ path: {POOL}, size: {size}, sha256: {sha256} }}\n"
    );
    fs::write(&manifest, text).unwrap();
    let cache = Cache::open(true).unwrap();
    let qemu = Qemu::provision(&cache, Arch::X86_64, Purpose::Measuring, &mut |_| ()).unwrap();
    let served = folder.path().join("served.deb");
    let url = serve(served.clone());
    // The user's own file names the servers.
    let own = folder.path().join("config/tramplab");
    fs::create_dir_all(&own).unwrap();
    let servers = format!("mirror: {url}/debian\nsnapshot: {url}/snapshot/\n");
    fs::write(own.join("tramplab.yaml"), servers).unwrap();
    let run = |words: &[&str]| {
        let mut command = tramplab();
        command
            .args(words)
            .arg(&manifest)
            .env("TRAMPLAB_CACHE", folder.path().join("cache"))
            .env("XDG_CONFIG_HOME", folder.path().join("config"))
            .env_remove("TRAMPLAB_MIRROR")
            .env("TRAMPLAB_QEMU_X86_64", qemu.single_program())
            .env("no_proxy", "127.0.0.1");
        command.output().unwrap()
    };
    let row = |output: &std::process::Output| {
        let text = String::from_utf8(output.stdout.clone()).unwrap();
        let row = text.lines().find(|line| line.starts_with("gone ")).unwrap().to_owned();
        let words: Vec<_> = row.split_whitespace().skip(1).map(str::to_owned).collect();
        (output.status.code().unwrap(), words.join(" "))
    };
    let gone = run(&["kernels"]);
    assert_eq!(row(&gone), (3, "x86_64 6.99.1-1 (pinned) no no no".to_owned()), "{}", said(&gone));
    fs::copy(&package, &served).unwrap();
    let there = row(&run(&["kernels"]));
    assert_eq!(there, (0, "x86_64 6.99.1-1 (pinned) no no yes".to_owned()));

    let runs = folder.path().join("runs");
    let kept = runs.to_str().unwrap();
    let suite = folder.path().join("one.yaml");
    let text =
        "name: one\ndescription: d\nkernels: [a]\ntests:\n- lbr_waste: { mechanisms: [fentry] }\n";
    fs::write(&suite, text).unwrap();
    let suite = suite.to_str().unwrap();
    let output = run(&["vm-test", "--suite", suite, "--runs", kept, "--kernel"]);
    assert!(output.status.success(), "{}", said(&output));
    let found = stored(&runs);
    assert_eq!(
        found.kernels[0].source,
        format!("debian {PACKAGE} 6.99.1-1, of the snapshot {TIME}")
    );
    assert!(found.cells.iter().all(|cell| cell.outcome == Outcome::Pass));
    // Cached packages need no server.
    fs::remove_file(&served).unwrap();
    assert_eq!(row(&run(&["kernels"])), (0, "x86_64 6.99.1-1 (pinned) yes no no".to_owned()));
}
