// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where a run measures, and the programs of guests, found on this machine.

use crate::error::{Error, Result};
use std::path::Path;
use tramplab_host::{Cache, VirtmeNg};
use tramplab_model::run::{Arch, Backend};
use tramplab_vm::{Features, Launcher, Root};

/// Where a run measures: in the guests of one program, on this machine without a guest, or both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backends {
    /// The program that starts guests.
    pub guests: Option<Backend>,
    pub this_machine: bool,
}

impl Default for Backends {
    fn default() -> Backends {
        Backends { guests: Some(Backend::Qemu), this_machine: false }
    }
}

impl Backends {
    /// Rejects two programs for guests: their cells would have the same names.
    pub fn of(named: &[Backend]) -> Result<Backends> {
        let this_machine = named.contains(&Backend::None);
        let mut guests = named.iter().copied().filter(|&one| one != Backend::None);
        let first = guests.next();
        if guests.any(|other| Some(other) != first) {
            return Err(Error::usage(
                "--vm takes one program that starts guests, and `none` beside it: none,qemu",
            ));
        }
        Ok(Backends { guests: first, this_machine })
    }
}

/// The programs that start guests, beside QEMU.
pub enum Programs {
    Qemu,
    VirtmeNg(VirtmeNg),
}

impl Programs {
    /// None of this machine, which needs none.
    pub fn find(backend: Backend, cache: &Cache) -> Result<Option<Programs>> {
        Ok(match backend {
            Backend::Qemu => Some(Programs::Qemu),
            Backend::VirtmeNg => Some(Programs::VirtmeNg(VirtmeNg::find(cache)?)),
            Backend::None => None,
        })
    }

    pub fn backend(&self) -> Backend {
        match self {
            Programs::Qemu => Backend::Qemu,
            Programs::VirtmeNg(_) => Backend::VirtmeNg,
        }
    }

    /// None if QEMU's version tells it.
    pub fn version(&self) -> Option<&str> {
        match self {
            Programs::Qemu => None,
            Programs::VirtmeNg(VirtmeNg { version, .. }) => Some(version),
        }
    }

    pub fn launcher(&self, agent: &Path) -> Launcher {
        match self {
            Programs::Qemu => Launcher::Qemu,
            Programs::VirtmeNg(VirtmeNg { vng, .. }) => {
                Launcher::VirtmeNg { vng: vng.clone(), agent: agent.to_owned() }
            }
        }
    }

    /// The root of guests without an agent. None if it has to be made of a busybox.
    pub fn root(&self) -> Option<Root> {
        match self {
            Programs::Qemu => None,
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
    fn a_run_has_guests_of_one_program_and_this_machine() {
        use Backend::{None as Here, Qemu, VirtmeNg};
        let of = |named: &[Backend]| {
            let Backends { guests, this_machine } = Backends::of(named).ok()?;
            Some((guests, this_machine))
        };
        for (named, expected) in [
            (&[Qemu][..], Some((Some(Qemu), false))),
            (&[Here], Some((None, true))),
            (&[Here, VirtmeNg], Some((Some(VirtmeNg), true))),
            (&[Qemu, Here, Qemu], Some((Some(Qemu), true))),
            (&[Qemu, VirtmeNg], None),
            (&[Qemu, Here, VirtmeNg], None),
        ] {
            assert_eq!(of(named), expected, "{named:?}");
        }
    }

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
