// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where a run measures, and the programs of guests, found on this machine.

use crate::error::{Error, Result};
use std::{path::Path, str::FromStr};
use tramplab_host::{Cache, VirtmeNg};
use tramplab_model::run::{Arch, Backend};
use tramplab_protocol::{Functions, MOST_HERE};
use tramplab_vm::{Features, Launcher, Root};

/// Where a run measures: in the guests of one program, on this machine without a guest, or both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backends {
    /// The program that starts guests.
    pub guests: Option<Backend>,
    /// The functions and programs to attach at once on this machine, at most.
    pub this_machine: Option<u32>,
}

/// A value of `--vm`: guests of one program, or this machine, where `most` functions and programs
/// are attached at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Where {
    Guests(Backend),
    ThisMachine { most: u32 },
}

impl Where {
    /// The values beside `none:NUMBER`.
    pub const NAMES: [&str; 4] = ["qemu", "virtme-ng", "none", "none:all"];
}

#[derive(Debug, thiserror::Error)]
#[error("expected one of {}, or none:NUMBER", Where::NAMES.join(", "))]
pub struct NotWhere;

impl FromStr for Where {
    type Err = NotWhere;

    fn from_str(text: &str) -> std::result::Result<Where, NotWhere> {
        Ok(match text {
            "qemu" => Where::Guests(Backend::Qemu),
            "virtme-ng" => Where::Guests(Backend::VirtmeNg),
            "none" => Where::ThisMachine { most: MOST_HERE },
            _ => {
                let most = text.strip_prefix("none:").ok_or(NotWhere)?;
                match most.parse().map_err(|_| NotWhere)? {
                    Functions::Count(most) => Where::ThisMachine { most: most.get() },
                    Functions::All => Where::ThisMachine { most: u32::MAX },
                    Functions::Links { .. } => return Err(NotWhere),
                }
            }
        })
    }
}

impl Default for Backends {
    fn default() -> Backends {
        Backends { guests: Some(Backend::Qemu), this_machine: None }
    }
}

impl Backends {
    /// Rejects two programs for guests: their cells would have the same names.
    pub fn of(named: &[Where]) -> Result<Backends> {
        let mut backends = Backends { guests: None, this_machine: None };
        for &one in named {
            let is_second = match one {
                Where::Guests(program) => {
                    backends.guests.replace(program).is_some_and(|first| first != program)
                }
                Where::ThisMachine { most } => {
                    backends.this_machine.replace(most).is_some_and(|first| first != most)
                }
            };
            if is_second {
                return Err(Error::usage(
                    "--vm takes one program that starts guests, and beside it one `none` or \
                     `none:NUMBER`: none,qemu",
                ));
            }
        }
        Ok(backends)
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
        use Backend::{Qemu, VirtmeNg};
        let of = |typed: &str| {
            let named: Vec<Where> =
                typed.split(',').map(|one| one.parse().ok()).collect::<Option<_>>()?;
            let Backends { guests, this_machine } = Backends::of(&named).ok()?;
            Some((guests, this_machine))
        };
        for (typed, expected) in [
            ("qemu", Some((Some(Qemu), None))),
            ("none", Some((None, Some(100)))),
            ("none:2000", Some((None, Some(2000)))),
            ("none,virtme-ng", Some((Some(VirtmeNg), Some(100)))),
            ("qemu,none:all,qemu", Some((Some(Qemu), Some(u32::MAX)))),
            ("qemu,virtme-ng", None),
            ("qemu,none,virtme-ng", None),
            ("none,none:7", None),
            ("none:0", None),
            ("none:2x3", None),
            ("none:", None),
            ("kvm", None),
        ] {
            assert_eq!(of(typed), expected, "{typed}");
        }
        assert!(Where::NAMES.iter().all(|name| of(name).is_some()));
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
