// SPDX-License-Identifier: MIT OR Apache-2.0
//! Chooses KVM or TCG. `/dev/kvm` may open, create a VM and still run no guest: only a guest that
//! answers proves that KVM works.

use super::{Deadlines, Spec, VmError};
use nix::unistd::{AccessFlags, access};
use serde::{Deserialize, Serialize};
use std::{fs, path::Path, time::Duration};
use tramplab_host::QemuProgram;
use tramplab_model::run::{Accel, Arch, Clock, ErrorKind};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    Auto,
    Only(Accel),
}

/// The conditions under which a probe's result is valid. A reboot of the host (with other BIOS
/// settings), another QEMU, or new access rights may change it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Circumstances {
    boot_id: String,
    /// This user may open `/dev/kvm`. Loading the module or joining a group needs no reboot.
    accessible: bool,
    qemu: QemuProgram,
}

impl Circumstances {
    pub fn of(qemu: &QemuProgram) -> Circumstances {
        Circumstances {
            boot_id: fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default(),
            accessible: access("/dev/kvm", AccessFlags::R_OK | AccessFlags::W_OK).is_ok(),
            qemu: qemu.clone(),
        }
    }
}

/// A probe's result, stored in a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Memory {
    circumstances: Circumstances,
    /// None if a guest answered under KVM.
    failure: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    pub accel: Accel,
    /// Why KVM is not used, for the user.
    pub fallback: Option<String>,
}

#[derive(Debug, thiserror::Error)]
#[error("no guest runs under KVM here: {0}")]
pub struct KvmRefused(pub String);

/// Why a probe's guest did not answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoAnswer {
    #[error("{0}")]
    Failed(String),
    /// The probe failed for another reason than KVM. The result is not stored.
    #[error("unknown: {0}")]
    Untried(String),
}

impl From<VmError> for NoAnswer {
    fn from(error: VmError) -> NoAnswer {
        // A kernel that reported its death did run, as did an agent that gave up. The next may
        // live.
        let ran = error.kind.is_kernel_death() || error.kind == ErrorKind::Guest;
        let is_of_kvm = !ran && error.kind != ErrorKind::Harness;
        if is_of_kvm {
            NoAnswer::Failed(error.to_string())
        } else {
            NoAnswer::Untried(error.to_string())
        }
    }
}

/// A guest under KVM answers within two seconds. A guest that hangs takes this long, once.
pub const PROBE: Duration = Duration::from_secs(10);

/// The guest of a probe. It does not depend on the user's guests: the result is valid for all.
pub fn probe(qemu: &QemuProgram, arch: Arch, kernel: &Path, initrd: &Path, dir: &Path) -> Spec {
    Spec {
        qemu: qemu.clone(),
        arch,
        accel: Accel::Kvm,
        clock: Clock::Free,
        kernel: kernel.to_owned(),
        initrd: initrd.to_owned(),
        virtme: None,
        cpus: 1,
        memory_mib: 1024,
        append: Vec::new(),
        plugin: None,
        snapshots: None,
        lbr: None,
        dir: dir.to_owned(),
        deadlines: Deadlines { boot: PROBE, silence: PROBE },
    }
}

/// Chooses for guests of the host's architecture, or of a `foreign` one. `probe` boots a guest
/// under KVM. The file `memory` keeps its result while `circumstances` stay the same.
pub fn choose(
    request: Request,
    foreign: bool,
    memory: &Path,
    circumstances: &Circumstances,
    probe: impl FnOnce() -> Result<(), NoAnswer>,
) -> Result<Choice, KvmRefused> {
    if request == Request::Only(Accel::Tcg) {
        return Ok(Choice { accel: Accel::Tcg, fallback: None });
    }
    if foreign {
        return match request {
            Request::Auto => Ok(Choice { accel: Accel::Tcg, fallback: None }),
            Request::Only(_) => {
                Err(KvmRefused("it runs guests of the host's own architecture only".to_owned()))
            }
        };
    }
    let known = remembered(memory).filter(|known| known.circumstances == *circumstances);
    let failure = match known {
        Some(known) => known.failure,
        None => {
            let no_answer = probe().err();
            let failure = no_answer.as_ref().map(ToString::to_string);
            let now = Memory { circumstances: circumstances.clone(), failure: failure.clone() };
            if !matches!(no_answer, Some(NoAnswer::Untried(_))) {
                // Ignore an error: the next run then probes again.
                let _ = fs::write(memory, serde_json::to_vec(&now).expect("plain data"));
            }
            failure
        }
    };
    match (failure, request) {
        (None, _) => Ok(Choice { accel: Accel::Kvm, fallback: None }),
        (Some(reason), Request::Auto) => Ok(Choice { accel: Accel::Tcg, fallback: Some(reason) }),
        (Some(reason), Request::Only(_)) => Err(KvmRefused(reason)),
    }
}

fn remembered(memory: &Path) -> Option<Memory> {
    serde_json::from_slice(&fs::read(memory).ok()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn circumstances(boot_id: &str, accessible: bool, qemu: &str) -> Circumstances {
        let qemu = QemuProgram { program: qemu.into(), arguments: vec![], environment: vec![] };
        Circumstances { boot_id: boot_id.to_owned(), accessible, qemu }
    }

    #[test]
    fn probes_once_and_trusts_only_a_guest_that_answered() {
        let dir = tempfile::tempdir().unwrap();
        let memory = dir.path().join("kvm.json");
        let fails = || Err(NoAnswer::Failed("it hung".to_owned()));
        let never = || -> Result<(), NoAnswer> { panic!("probed again") };
        let tcg = |fallback: Option<&str>| Choice {
            accel: Accel::Tcg,
            fallback: fallback.map(str::to_owned),
        };
        let now = circumstances("a", true, "qemu");

        // A guest that was interrupted, or whose kernel died, proves nothing.
        let ran = |kind, message: &str| VmError {
            kind,
            message: message.to_owned(),
            console_tail: vec![],
            booted: false,
        };
        let died = ran(ErrorKind::Panic, "no init");
        let gave_up = ran(ErrorKind::Guest, "the agent gave up");
        for why in [NoAnswer::Untried("stopped".to_owned()), died.into(), gave_up.into()] {
            let untried = || Err(why.clone());
            assert!(
                choose(Request::Auto, false, &memory, &now, untried).unwrap().fallback.is_some()
            );
            assert!(choose(Request::Only(Accel::Kvm), false, &memory, &now, untried).is_err());
            assert!(!memory.exists(), "{why}");
        }
        // --accel tcg: no probe.
        assert_eq!(
            choose(Request::Only(Accel::Tcg), false, &memory, &now, never).unwrap(),
            tcg(None)
        );
        // Guests of another architecture: no probe.
        assert_eq!(choose(Request::Auto, true, &memory, &now, never).unwrap(), tcg(None));
        let refused = choose(Request::Only(Accel::Kvm), true, &memory, &now, never).unwrap_err();
        assert!(refused.to_string().contains("the host's own architecture"), "{refused}");
        // A failure is a fallback with a reason, or an error with --accel kvm. It is stored.
        assert_eq!(
            choose(Request::Auto, false, &memory, &now, fails).unwrap(),
            tcg(Some("it hung"))
        );
        assert_eq!(
            choose(Request::Auto, false, &memory, &now, never).unwrap(),
            tcg(Some("it hung"))
        );
        let refused = choose(Request::Only(Accel::Kvm), false, &memory, &now, never).unwrap_err();
        assert!(refused.to_string().contains("it hung"));
        // Success is stored as well.
        let kvm = Choice { accel: Accel::Kvm, fallback: None };
        let later = circumstances("b", true, "qemu");
        assert_eq!(choose(Request::Auto, false, &memory, &later, || Ok(())).unwrap(), kvm);
        assert_eq!(choose(Request::Only(Accel::Kvm), false, &memory, &later, never).unwrap(), kvm);
        // A damaged file is ignored.
        fs::write(&memory, b"{").unwrap();
        assert_eq!(choose(Request::Auto, false, &memory, &later, || Ok(())).unwrap(), kvm);
    }

    #[test]
    fn probes_again_under_other_circumstances() {
        let dir = tempfile::tempdir().unwrap();
        let memory = dir.path().join("kvm.json");
        let before = circumstances("a", false, "qemu");
        for now in [
            circumstances("b", false, "qemu"),
            circumstances("a", true, "qemu"),
            circumstances("a", false, "another-qemu"),
        ] {
            choose(Request::Auto, false, &memory, &before, || {
                Err(NoAnswer::Failed("no".to_owned()))
            })
            .unwrap();
            let choice = choose(Request::Auto, false, &memory, &now, || Ok(())).unwrap();
            assert_eq!(choice.accel, Accel::Kvm, "{now:?}");
        }
    }
}
