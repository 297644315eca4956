// SPDX-License-Identifier: MIT OR Apache-2.0
//! Debian's kernels and QEMU, really fetched: needs the network the first time, the user's cache afterwards.

use std::path::Path;
use tramplab::{
    host::{Cache, Qemu, doctor},
    kernel,
    run::Arch,
};

fn shipped() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../kernels"))
}

/// Each shipped manifest gives a kernel of its series that can be measured, modules included where it takes them.
#[test]
fn the_shipped_kernels_can_be_measured() {
    let cache = Cache::open(true).unwrap();
    let names = kernel::names(shipped());
    assert_eq!(names, ["6.1", "6.12", "7.2", "newest"]);
    for name in names {
        let manifest = kernel::find(&name, shipped()).unwrap();
        let mut notes = Vec::new();
        let image = kernel::fetch(&manifest, &cache, &mut |note| notes.push(note.to_owned())).unwrap();
        let config = image.config.as_ref().expect("Debian's kernels come with their configuration");
        assert_eq!(image.missing_base(), [], "{name}, notes: {notes:?}");
        assert_eq!(config.get("X86_64"), Some("y"));
        assert_eq!(image.sha256.len(), 64);
        let series = if name == "newest" { "" } else { &name };
        assert!(
            image.source.contains(&format!("-{series}")) && image.source.contains("cloud-amd64"),
            "{}",
            image.source
        );
        println!("{name}: {} {} {} modules", image.source, image.sha256, image.modules.len());
    }
}

#[test]
fn a_private_qemu_runs_and_so_does_its_wrapper() {
    let cache = Cache::open(true).unwrap();
    let mut notes = Vec::new();
    let qemu = Qemu::provision(&cache, Arch::X86_64, &mut |note| notes.push(note.to_owned()))
        .unwrap_or_else(|error| panic!("{error}, notes: {notes:?}"));
    let output = std::process::Command::new(qemu.single_program()).arg("--version").output().unwrap();
    let first = String::from_utf8(output.stdout).unwrap().lines().next().unwrap_or_default().to_owned();
    assert_eq!(first, qemu.version);
    println!("{first} {}", qemu.origin);
    let checks = doctor::checks(&cache);
    println!("{}", doctor::render(&checks));
}
