// SPDX-License-Identifier: MIT OR Apache-2.0
//! Debian's kernels and QEMU, really fetched: needs the network the first time, the user's cache afterwards.

use std::{fs, path::Path};
use tramplab_host::{Cache, Purpose, Qemu};
use tramplab_kernel as kernel;
use tramplab_lab::doctor;
use tramplab_model::run::Arch;

fn shipped() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../kernels"))
}

/// Each shipped manifest gives a kernel of its series that can be measured, modules included where it takes them.
#[test]
fn the_shipped_kernels_can_be_measured() {
    let cache = Cache::open(true).unwrap();
    let names = kernel::names(shipped());
    assert_eq!(names, ["6.1", "6.12", "6.12-source", "7.2", "newest"]);
    // What is built from sources, tests/series.rs builds.
    let manifests = names.iter().flat_map(|name| kernel::find(name, shipped()).unwrap());
    for manifest in manifests.filter(|manifest| !matches!(manifest.source, kernel::Source::Built(_))) {
        let (name, arch) = (manifest.name.clone(), manifest.arch);
        let mut notes = Vec::new();
        let image = kernel::fetch(&manifest, &cache, &mut |note| notes.push(note.to_owned())).unwrap();
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
        // Its header was read right: half of it is not taken for a kernel, and with its name all of it is.
        let folder = tempfile::tempdir().unwrap();
        let copy = folder.path().join("vmlinuz");
        fs::copy(&image.image, &copy).unwrap();
        let found = kernel::find(copy.to_str().unwrap(), shipped()).unwrap().remove(0);
        assert_eq!(found.arch, arch);
        // An arm64 Image has none.
        let named = image.source.contains(&found.name);
        assert!(named || arch == Arch::Arm64, "{} in {}", found.name, image.source);
        let length = fs::metadata(&copy).unwrap().len();
        fs::File::options().write(true).open(&copy).unwrap().set_len(length / 2).unwrap();
        let error = kernel::fetch(&found, &cache, &mut |_| ()).unwrap_err().to_string();
        assert!(error.contains("it is truncated"), "{error}");
    }
}

#[test]
fn a_private_qemu_runs_and_so_does_its_wrapper() {
    let cache = Cache::open(true).unwrap();
    let mut notes = Vec::new();
    let qemu =
        Qemu::provision(&cache, Arch::X86_64, Purpose::Measuring, &mut |note| notes.push(note.to_owned()))
            .unwrap_or_else(|error| panic!("{error}, notes: {notes:?}"));
    let output = std::process::Command::new(qemu.single_program()).arg("--version").output().unwrap();
    let first = String::from_utf8(output.stdout).unwrap().lines().next().unwrap_or_default().to_owned();
    assert_eq!(first, qemu.version);
    let checks = doctor::checkup(&cache).checks;
    let found = checks.iter().find(|check| check.name == "QEMU for x86-64").unwrap();
    assert_eq!(found.state, doctor::State::Ok, "{}", doctor::render(&checks));
    assert!(found.detail.contains(&qemu.version), "{found:?}");
}
