// SPDX-License-Identifier: MIT OR Apache-2.0
//! Toolchain roots: their programs are those of their release, and nothing of this host is seen in
//! them.

use std::{collections::BTreeSet, ffi::OsStr, fs, path::Path, time::Duration};
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

/// None where nothing can be confined, so no root is entered.
fn confinement() -> Option<Confinement> {
    let probed = Confinement::probe();
    if let Err(error) = &probed {
        eprintln!("skipped: {error}");
    }
    probed.ok()
}

/// The first lines of `--version` of the programs that a kernel is built with.
fn identity(root: &Root, confinement: &Confinement, compiler: &str, arch: Arch) -> Vec<String> {
    let system = System::Root(root, confinement);
    let mut identity = toolchain::find(&compiler.parse().unwrap(), arch, system).unwrap().identity;
    assert_eq!(identity.pop(), Some(root.identity()));
    identity
}

/// Compiles, links and runs a program of each compiler; lists the folders that a build sees.
const SCRIPT: &str = r#"
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

fn sees_nothing_of_this_host(root: &Root, confinement: &Confinement) {
    let folder = tempfile::tempdir_in(Cache::open(true).unwrap().root()).unwrap();
    let work = fs::canonicalize(folder.path()).unwrap();
    let view = View { write: vec![work.clone()], ..View::of_root(&root.folder) };
    confinement.hand_over(&view).unwrap();
    let mut launch = confinement.command(&view, &work, OsStr::new("bash")).unwrap();
    let (status, output) = child::finish(launch.command.args(["-c", SCRIPT]), LIMIT).unwrap();
    let output = output.stdout + &output.stderr;
    assert!(status.success(), "{output}");
    for machine in ["X86-64", "AArch64"] {
        assert!(output.contains(machine), "{output}");
    }
    let above = work.components().nth(1).unwrap().as_os_str().to_str().unwrap();
    let of_system = ["bin", "dev", "etc", "lib", "lib64", "proc", "sbin", "tmp", "usr"];
    let expected: BTreeSet<_> =
        of_system.into_iter().chain([above]).map(|name| format!("/{name}")).collect();
    let seen = output.lines().last().unwrap().split(' ').map(str::to_owned);
    assert_eq!(seen.collect::<BTreeSet<_>>(), expected);
}

#[test]
fn a_root_has_the_compilers_of_its_release() {
    let Some(confinement) = confinement() else { return };
    let root = root("debian-12");
    for arch in Arch::ALL {
        let prefix = match Arch::host() == Some(arch) {
            true => String::new(),
            false => format!("{}-", arch.platform().triplet),
        };
        let identity = identity(&root, &confinement, "gcc", arch);
        for (line, expected) in identity.iter().zip([
            format!("{prefix}gcc: {prefix}gcc (Debian 12.2.0-"),
            format!("{prefix}ld: GNU ld (GNU Binutils for Debian) 2.40"),
            format!("{prefix}as: GNU assembler (GNU Binutils for Debian) 2.40"),
            "pahole: v1.24".to_owned(),
            "make: GNU Make 4.3".to_owned(),
        ]) {
            assert!(line.starts_with(&expected), "{line}, expected {expected}");
        }
    }
    let of_clang = identity(&root, &confinement, "clang", Arch::Arm64);
    assert!(of_clang[0].starts_with("clang: Debian clang version 14.0."), "{of_clang:?}");
    sees_nothing_of_this_host(&root, &confinement);
}

#[test]
#[ignore = "full: fetches another root; that of the shipped kernels is tested in every change"]
fn a_root_of_the_next_release_has_its_own_compilers() {
    let Some(confinement) = confinement() else { return };
    let root = root("debian-13");
    for (compiler, expected) in [
        ("gcc", "gcc: gcc (Debian 14.2.0-"),
        ("gcc-14", "gcc-14: gcc-14 (Debian 14.2.0-"),
        ("clang-19", "clang-19: Debian clang version 19.1."),
    ] {
        let identity = identity(&root, &confinement, compiler, Arch::host().unwrap());
        assert!(identity[0].starts_with(expected), "{identity:?}");
    }
    let system = System::Root(&root, &confinement);
    let absent = toolchain::find(&"gcc-12".parse().unwrap(), Arch::X86_64, system).unwrap_err();
    assert!(matches!(absent, toolchain::ToolchainError::Absent { .. }), "{absent}");
    sees_nothing_of_this_host(&root, &confinement);
}
