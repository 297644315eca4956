// SPDX-License-Identifier: MIT OR Apache-2.0
//! The machines that these tests boot, one of each architecture.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};
use tramplab_host::QemuProgram;
use tramplab_model::run::Arch;
use tramplab_vm::{Deadlines, Spec, initramfs};

pub fn from_env(name: &str) -> PathBuf {
    std::env::var_os(name)
        .unwrap_or_else(|| panic!("{name} is not set: run `cargo xtask test`"))
        .into()
}

/// Reads a variable that exists once for each architecture.
fn of(arch: Arch, what: &str) -> PathBuf {
    let arch = match arch {
        Arch::X86_64 => "X86_64",
        Arch::Arm64 => "ARM64",
    };
    from_env(&format!("TRAMPLAB_{what}_{arch}"))
}

/// The same machine, in a QEMU that lets the plugin write to the guest.
pub fn delivering(arch: Arch, dir: &Path) -> Spec {
    let mut spec = spec(arch, dir);
    spec.qemu.program = of(arch, "QEMU_DELIVERING");
    spec
}

/// A machine with the tests' kernel, the agent, the plugin and the host's clock.
pub fn spec(arch: Arch, dir: &Path) -> Spec {
    let initrd = dir.join("initramfs.cpio");
    initramfs::build(&of(arch, "AGENT"), &[], &initrd).unwrap();
    let qemu = QemuProgram { program: of(arch, "QEMU"), arguments: vec![], environment: vec![] };
    Spec {
        initrd,
        plugin: Some(from_env("TRAMPLAB_PLUGIN")),
        // A starved machine takes long; a test that waits for them shortens them.
        deadlines: Deadlines { boot: Duration::from_mins(5), silence: Duration::from_mins(2) },
        ..Spec::new(qemu, arch, of(arch, "TEST_KERNEL"), dir)
    }
}
