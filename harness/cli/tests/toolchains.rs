// SPDX-License-Identifier: MIT OR Apache-2.0
//! Toolchain roots: their programs are those of their release, and nothing of this host is seen in
//! them.

use std::{ffi::OsStr, fs, path::Path, time::Duration};
use tramplab_host::{Cache, child};
use tramplab_kernel::compile::{
    Confinement, PinnedRoot, Root,
    confine::View,
    toolchain::{self, System},
};
use tramplab_model::run::Arch;

const LIMIT: Duration = Duration::from_secs(120);

fn root(name: &str) -> Root {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../configs/toolchains");
    let pinned = PinnedRoot::read(name, Path::new(folder)).unwrap();
    let cache = Cache::open(true).unwrap();
    Root::provision(&pinned, &cache, &mut |step| eprintln!("{step}")).unwrap()
}

/// The first lines of `--version` of the programs that a kernel is built with.
fn identity(root: &Root, compiler: &str, arch: Arch) -> Vec<String> {
    let confinement = Confinement::probe().unwrap();
    let system = System::Root(root, &confinement);
    let mut identity = toolchain::find(&compiler.parse().unwrap(), arch, system).unwrap().identity;
    assert_eq!(identity.pop(), Some(root.identity()));
    identity
}

/// Compiles, links and runs a program of each compiler; lists what a build sees.
fn built_in(root: &Root, work: &Path) -> String {
    let script = r#"
        set -e
        echo '#include <libelf.h>
            int main(void) { return elf_version(EV_CURRENT) != EV_CURRENT; }' >a.c
        for cc in gcc clang; do $cc a.c -o a.$cc -lelf; ./a.$cc; done
        for triplet in x86_64-linux-gnu aarch64-linux-gnu; do
            case $(uname -m)-linux-gnu in
                $triplet) cc=gcc ;;
                *) cc=$triplet-gcc ;;
            esac
            $cc a.c -o a.$triplet -lelf
            readelf -h a.$triplet | grep Machine
        done
        awk 'BEGIN { print "awk" }'
        echo /*
    "#;
    let view = View { write: vec![work.to_owned()], ..View::of_root(&root.folder) };
    let confinement = Confinement::probe().unwrap();
    confinement.hand_over(&view).unwrap();
    let mut launch = confinement.command(&view, work, OsStr::new("bash")).unwrap();
    let (status, output) = child::finish(launch.command.args(["-c", script]), LIMIT).unwrap();
    assert!(status.success(), "{}{}", output.stdout, output.stderr);
    output.stdout
}

fn sees_nothing_of_this_host(root: &Root) {
    let cache = Cache::open(true).unwrap();
    let folder = tempfile::tempdir_in(cache.root()).unwrap();
    let work = fs::canonicalize(folder.path()).unwrap();
    let output = built_in(root, &work);
    for machine in ["X86-64", "AArch64"] {
        assert!(output.contains(machine), "{output}");
    }
    let seen = output.lines().last().unwrap();
    let above = work.components().nth(1).unwrap().as_os_str().to_str().unwrap().to_owned();
    let mut expected = ["bin", "dev", "etc", "lib", "lib64", "proc", "sbin", "tmp", "usr"]
        .map(|name| format!("/{name}"))
        .to_vec();
    expected.push(format!("/{above}"));
    expected.sort();
    expected.dedup();
    assert_eq!(seen.split(' ').collect::<Vec<_>>(), expected);
}

#[test]
fn a_root_has_the_compilers_of_its_release() {
    let root = root("debian-12");
    let (own, foreign) = match Arch::host().unwrap() {
        Arch::X86_64 => ("", "aarch64-linux-gnu-"),
        Arch::Arm64 => ("", "x86_64-linux-gnu-"),
    };
    let foreign_arch = Arch::ALL.into_iter().find(|&arch| Arch::host() != Some(arch)).unwrap();
    for (prefix, arch, version) in [
        (own, Arch::host().unwrap(), "(Debian 12.2.0-14+deb12u1) 12.2.0"),
        (foreign, foreign_arch, "(Debian 12.2.0-14) 12.2.0"),
    ] {
        assert_eq!(
            identity(&root, "gcc", arch),
            [
                format!("{prefix}gcc: {prefix}gcc {version}"),
                format!("{prefix}ld: GNU ld (GNU Binutils for Debian) 2.40"),
                format!("{prefix}as: GNU assembler (GNU Binutils for Debian) 2.40"),
                "pahole: v1.24".to_owned(),
                "make: GNU Make 4.3".to_owned(),
            ]
        );
    }
    assert_eq!(identity(&root, "clang", Arch::Arm64)[0], "clang: Debian clang version 14.0.6");
    sees_nothing_of_this_host(&root);
}

#[test]
#[ignore = "full: fetches another root; that of the shipped kernels is tested in every change"]
fn a_root_of_the_next_release_has_its_own_compilers() {
    let root = root("debian-13");
    for (compiler, expected) in [
        ("gcc", "gcc: gcc (Debian 14.2.0-"),
        ("gcc-14", "gcc-14: gcc-14 (Debian 14.2.0-"),
        ("clang-19", "clang-19: Debian clang version 19.1."),
    ] {
        let identity = identity(&root, compiler, Arch::host().unwrap());
        assert!(identity[0].starts_with(expected), "{identity:?}");
    }
    let confinement = Confinement::probe().unwrap();
    let system = System::Root(&root, &confinement);
    let absent = toolchain::find(&"gcc-12".parse().unwrap(), Arch::X86_64, system).unwrap_err();
    assert!(matches!(absent, toolchain::ToolchainError::Absent { .. }), "{absent}");
    sees_nothing_of_this_host(&root);
}
