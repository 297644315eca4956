// SPDX-License-Identifier: MIT OR Apache-2.0
//! The programs of a backend, found on this machine.

use crate::error::{Error, Result};
use std::path::Path;
use tramplab_host::{Cache, VirtmeNg};
use tramplab_model::run::{Arch, Backend};
use tramplab_vm::{Features, Launcher, Root};

/// The programs that a backend runs beside QEMU.
pub enum Programs {
    Qemu,
    VirtmeNg(VirtmeNg),
    /// No guest.
    ThisMachine,
}

impl Programs {
    pub fn find(backend: Backend, cache: &Cache) -> Result<Programs> {
        Ok(match backend {
            Backend::Qemu => Programs::Qemu,
            Backend::VirtmeNg => Programs::VirtmeNg(VirtmeNg::find(cache)?),
            Backend::None => Programs::ThisMachine,
        })
    }

    pub fn backend(&self) -> Backend {
        match self {
            Programs::Qemu => Backend::Qemu,
            Programs::VirtmeNg(_) => Backend::VirtmeNg,
            Programs::ThisMachine => Backend::None,
        }
    }

    /// None if QEMU's version tells it, and without guests.
    pub fn version(&self) -> Option<&str> {
        match self {
            Programs::Qemu | Programs::ThisMachine => None,
            Programs::VirtmeNg(VirtmeNg { version, .. }) => Some(version),
        }
    }

    pub fn launcher(&self, agent: &Path) -> Launcher {
        match self {
            Programs::Qemu => Launcher::Qemu,
            Programs::VirtmeNg(VirtmeNg { vng, .. }) => {
                Launcher::VirtmeNg { vng: vng.clone(), agent: agent.to_owned() }
            }
            Programs::ThisMachine => Launcher::ThisMachine { agent: agent.to_owned() },
        }
    }

    /// The root of guests without an agent. None if it has to be made of a busybox.
    pub fn root(&self) -> Option<Root> {
        match self {
            Programs::Qemu | Programs::ThisMachine => None,
            Programs::VirtmeNg(VirtmeNg { vng, .. }) => Some(Root::Host(vng.clone())),
        }
    }
}

/// Rejects guests of another architecture that would have this machine's files.
pub fn check(backend: Backend, arches: &[Arch]) -> Result<()> {
    let foreign = arches.iter().find(|&&arch| Arch::host() != Some(arch));
    match foreign.filter(|_| Features::of(backend).has_host_files) {
        Some(arch) => Err(Error::Usage(format!(
            "guests of {} have this machine's own files, which are not for {arch}; a guest of \
             {arch} needs `--vm qemu`, and `--deliver-records` a host of {arch}",
            backend.name()
        ))),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tramplab_kernel::kconfig::{Uses, fragments};

    #[test]
    fn kernels_for_a_backend_have_the_options_of_its_root() {
        let configs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../configs/kconfig");
        for backend in [Backend::Qemu, Backend::VirtmeNg] {
            let Features { built_in, fragment, .. } = Features::of(backend);
            let uses = Uses { tree_tests: false, backend: *fragment };
            let all = fragments(&configs, Arch::X86_64, &[], uses, &[], &[], &[]).unwrap();
            for option in *built_in {
                let wanted = all.wanted.iter().find(|wanted| wanted.option == *option);
                assert_eq!(wanted.map(|wanted| &*wanted.value), Some("y"), "{option}");
            }
        }
    }
}
