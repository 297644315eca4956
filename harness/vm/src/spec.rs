// SPDX-License-Identifier: MIT OR Apache-2.0
//! The description of a guest.

use super::{Deadlines, Launcher, VmError, harness};
use serde::{Deserialize, Serialize};
use std::{fs, path::PathBuf};
use tramplab_host::{QemuProgram, lbr::LbrFormat};
use tramplab_model::run::{Accel, Arch, Clock};
use tramplab_protocol::estimate::Parts;

/// A guest to boot.
#[derive(Clone, Debug)]
pub struct Spec {
    pub qemu: QemuProgram,
    pub arch: Arch,
    pub accel: Accel,
    pub clock: Clock,
    pub kernel: PathBuf,
    pub initrd: PathBuf,
    pub launcher: Launcher,
    pub cpus: u32,
    pub memory_mib: u32,
    /// Words added to the kernel's command line.
    pub append: Vec<String>,
    /// The TCG plugin.
    pub plugin: Option<PathBuf>,
    /// Where snapshots are kept.
    pub snapshots: Option<Snapshots>,
    /// The CPU's own branch records for a guest under KVM.
    pub lbr: Option<LbrFormat>,
    /// The branch records that the plugin plays: `amd-lbrv2:16`.
    pub played: Option<String>,
    /// The CPU whose events the plugin counts.
    pub modelled: Option<Parts>,
    /// QEMU's `-cpu` under TCG, instead of the usual model.
    pub cpu: Option<String>,
    /// Words of warnings that do not end the guest.
    pub allow: Vec<String>,
    /// An existing folder for `console.log`, `qemu.log` and the plugin's traces.
    pub dir: PathBuf,
    pub deadlines: Deadlines,
}

impl Spec {
    /// A guest of QEMU under TCG, with one CPU and 1 GiB.
    pub fn new(
        qemu: QemuProgram,
        arch: Arch,
        kernel: impl Into<PathBuf>,
        dir: impl Into<PathBuf>,
    ) -> Spec {
        Spec {
            qemu,
            arch,
            accel: Accel::Tcg,
            clock: Clock::Free,
            kernel: kernel.into(),
            initrd: "none".into(),
            launcher: Launcher::Qemu,
            cpus: 1,
            memory_mib: 1024,
            append: Vec::new(),
            plugin: None,
            snapshots: None,
            lbr: None,
            played: None,
            modelled: None,
            cpu: None,
            allow: Vec::new(),
            dir: dir.into(),
            deadlines: Deadlines::default(),
        }
    }

    /// Makes a file in the guest's folder.
    pub(crate) fn create(&self, name: &str) -> Result<(PathBuf, fs::File), VmError> {
        let path = self.dir.join(name);
        let file = fs::File::create(&path);
        let file = file.map_err(harness(&format!("create {}", path.display())))?;
        Ok((path, file))
    }
}

/// Where snapshots are kept, and of which files.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshots {
    /// The cache's root.
    pub cache: PathBuf,
    /// Identifies QEMU, kernel and initramfs by their contents, not by their paths.
    pub contents: String,
}

#[cfg(test)]
impl Spec {
    pub fn example(arch: Arch, accel: Accel) -> Spec {
        let qemu = QemuProgram { program: "qemu".into(), arguments: vec![], environment: vec![] };
        Spec {
            accel,
            initrd: "i".into(),
            cpus: 2,
            memory_mib: 512,
            append: vec!["mitigations=auto".to_owned(), "dyndbg=a b".to_owned()],
            ..Spec::new(qemu, arch, "k", "runs/a b")
        }
    }
}
