// SPDX-License-Identifier: MIT OR Apache-2.0
//! Fetches Debian's kernels and QEMU: needs the network at first, later only the user's cache.

use std::{fs, path::Path};
use tramplab_host::{Cache, Purpose, Qemu};
use tramplab_kernel as kernel;
use tramplab_lab::doctor;
use tramplab_model::run::Arch;

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
