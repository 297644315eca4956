// SPDX-License-Identifier: MIT OR Apache-2.0
//! Chooses KVM or TCG. `/dev/kvm` may open, create a VM and still run no guest: only a guest that
//! answers proves that KVM works.

use super::{Spec, VmError};
use nix::unistd::{AccessFlags, access};
use serde::{Deserialize, Serialize};
use std::{
    fs,
    path::{Path, PathBuf},
};
use tramplab_host::{
    Cache, QemuProgram,
    kvm::{self, KvmError},
};
use tramplab_model::run::{Accel, Arch, ErrorKind};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Request {
    #[default]
    Auto,
    Only(Accel),
}

/// The conditions under which a probe's result is valid. A reboot of the host (with other BIOS
/// settings), a reload of KVM's modules with other parameters, another QEMU, or new access rights
/// may change it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Circumstances {
    boot_id: String,
    /// This user may open `/dev/kvm`. Loading the module or joining a group needs no reboot.
    accessible: bool,
    /// `kvm_amd.npt=1`, of the modules that are loaded or built in.
    parameters: Vec<String>,
    qemu: QemuProgram,
}

const MODULES: [&str; 3] = ["kvm", "kvm_amd", "kvm_intel"];

impl Circumstances {
    pub fn of(qemu: &QemuProgram) -> Circumstances {
        Circumstances {
            boot_id: fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default(),
            accessible: access("/dev/kvm", AccessFlags::R_OK | AccessFlags::W_OK).is_ok(),
            parameters: parameters(Path::new("/sys/module")),
            qemu: qemu.clone(),
        }
    }
}

/// The parameters of KVM's modules. Some are readable by root only, and left out for others.
fn parameters(sys_module: &Path) -> Vec<String> {
    let mut all = Vec::new();
    for module in MODULES {
        let files = fs::read_dir(sys_module.join(module).join("parameters"));
        for file in files.into_iter().flatten().flatten() {
            if let Ok(value) = fs::read_to_string(file.path()) {
                let name = file.file_name();
                all.push(format!("{module}.{}={}", name.to_string_lossy(), value.trim()));
            }
        }
    }
    all.sort();
    all
}

/// The result of a probe's guest, stored in a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Memory {
    circumstances: Circumstances,
    /// None if a guest answered under KVM.
    failure: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccelChoice {
    pub accel: Accel,
    /// Why KVM is not used, for the user.
    pub fallback: Option<String>,
}

/// Says that TCG takes KVM's place.
pub fn fallback_line(reason: &str) -> String {
    format!("KVM runs no guest here ({reason}); using TCG")
}

#[derive(Debug, thiserror::Error)]
#[error("no guest runs under KVM here: {0}")]
pub struct KvmRefused(pub String);

/// Why a probe's guest did not answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoAnswer {
    /// Stored: the next guest would fail as well.
    #[error("{0}")]
    Failed(String),
    /// Not stored: KVM is not the reason, or it was slow today, or asking again is cheap.
    #[error("{0}")]
    Undecided(String),
}

impl From<VmError> for NoAnswer {
    fn from(error: VmError) -> NoAnswer {
        use ErrorKind::*;
        let message = error.to_string();
        match error.kind {
            QemuStart | QemuExit | Protocol => NoAnswer::Failed(message),
            // It may have been slow. A kernel that reported its death did run, as did an agent that
            // gave up: the next may live.
            Silence | BootTimeout | Timeout | Starved | Panic | Oops | RcuStall | HungTask
            | Lockup | Warning | Guest | Program | Build | Trace | Harness => {
                NoAnswer::Undecided(message)
            }
        }
    }
}

impl From<KvmError> for NoAnswer {
    fn from(error: KvmError) -> NoAnswer {
        NoAnswer::Undecided(error.to_string())
    }
}

/// The guest of a probe. It does not depend on the user's guests: the result is valid for all. It
/// has as much time as theirs, since nested KVM may be as slow as TCG.
pub fn probe(qemu: &QemuProgram, arch: Arch, kernel: &Path, initrd: &Path, dir: &Path) -> Spec {
    Spec {
        accel: Accel::Kvm,
        initrd: initrd.to_owned(),
        // Each byte of the console is an exit from the guest.
        append: vec!["quiet".to_owned()],
        ..Spec::new(qemu.clone(), arch, kernel, dir)
    }
}

/// Asks the host's KVM to run four instructions. Most hosts without a working KVM fail here, in
/// milliseconds, and need no guest.
pub fn tried() -> Result<(), NoAnswer> {
    Ok(kvm::probe().map(drop)?)
}

/// Chooses for guests of the host's architecture, or of a `foreign` one. `probe` boots a guest
/// under KVM. The file `memory` keeps its result while `circumstances` stay the same.
pub fn choose(
    request: Request,
    foreign: bool,
    memory: &Path,
    circumstances: &Circumstances,
    probe: impl FnOnce() -> Result<(), NoAnswer>,
) -> Result<AccelChoice, KvmRefused> {
    if request == Request::Only(Accel::Tcg) {
        return Ok(AccelChoice { accel: Accel::Tcg, fallback: None });
    }
    if foreign {
        return match request {
            Request::Auto => Ok(AccelChoice { accel: Accel::Tcg, fallback: None }),
            Request::Only(_) => {
                Err(KvmRefused("it runs guests of the host's own architecture only".to_owned()))
            }
        };
    }
    let failure = match remembered(memory, circumstances) {
        Some(failure) => failure,
        None => {
            let no_answer = probe().err();
            let failure = no_answer.as_ref().map(ToString::to_string);
            let now = Memory { circumstances: circumstances.clone(), failure: failure.clone() };
            if !matches!(no_answer, Some(NoAnswer::Undecided(_))) {
                // Ignore errors: the next run then probes again.
                let _ = memory.parent().map(fs::create_dir_all);
                let _ = fs::write(memory, serde_json::to_vec(&now).expect("plain data"));
            }
            failure
        }
    };
    match (failure, request) {
        (None, _) => Ok(AccelChoice { accel: Accel::Kvm, fallback: None }),
        (Some(reason), Request::Auto) => {
            Ok(AccelChoice { accel: Accel::Tcg, fallback: Some(reason) })
        }
        (Some(reason), Request::Only(_)) => Err(KvmRefused(reason)),
    }
}

/// The file that keeps what a probe's guest found.
pub fn memory(cache: &Cache) -> PathBuf {
    cache.root().join("accel/kvm.json")
}

/// Returns the stored result of a probe's guest. `Some(None)` if it answered under KVM; else the
/// reason, and how to try again.
pub fn remembered(memory: &Path, circumstances: &Circumstances) -> Option<Option<String>> {
    let known: Memory = serde_json::from_slice(&fs::read(memory).ok()?).ok()?;
    let again = |failure| {
        format!("{failure}; so it was at an earlier run, remove {} to try again", memory.display())
    };
    (known.circumstances == *circumstances).then(|| known.failure.map(again))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn circumstances(boot_id: &str, accessible: bool, qemu: &str) -> Circumstances {
        let qemu = QemuProgram { program: qemu.into(), arguments: vec![], environment: vec![] };
        let parameters = vec!["kvm_amd.npt=1".to_owned()];
        Circumstances { boot_id: boot_id.to_owned(), accessible, parameters, qemu }
    }

    #[test]
    fn probes_once_and_trusts_only_a_guest_that_answered() {
        let dir = tempfile::tempdir().unwrap();
        let memory = dir.path().join("kvm.json");
        let fails = || Err(NoAnswer::Failed("it reset".to_owned()));
        let never = || -> Result<(), NoAnswer> { panic!("probed again") };
        let tcg = |fallback: Option<&str>| AccelChoice {
            accel: Accel::Tcg,
            fallback: fallback.map(str::to_owned),
        };
        let now = circumstances("a", true, "qemu");

        // A guest that was interrupted, slow, or whose kernel died, proves nothing.
        let ran = |kind, message: &str| VmError {
            kind,
            message: message.to_owned(),
            console_tail: vec![],
            booted: false,
            doubted: false,
            starved: std::time::Duration::ZERO,
        };
        let died = ran(ErrorKind::Panic, "no init");
        let gave_up = ran(ErrorKind::Guest, "the agent gave up");
        let slow = ran(ErrorKind::BootTimeout, "no word within 90 s");
        let quick: NoAnswer = KvmError::Hangs(2).into();
        let stopped = NoAnswer::Undecided("stopped".to_owned());
        for why in [stopped, died.into(), gave_up.into(), slow.into(), quick] {
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
            tcg(Some("it reset"))
        );
        let again = choose(Request::Auto, false, &memory, &now, never).unwrap();
        let told = again.fallback.unwrap();
        assert!(told.starts_with("it reset; ") && told.contains("kvm.json to try again"), "{told}");
        let refused = choose(Request::Only(Accel::Kvm), false, &memory, &now, never).unwrap_err();
        assert!(refused.to_string().contains("it reset"));
        // Success is stored as well.
        let kvm = AccelChoice { accel: Accel::Kvm, fallback: None };
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
            Circumstances { parameters: vec!["kvm_amd.npt=0".to_owned()], ..before.clone() },
        ] {
            choose(Request::Auto, false, &memory, &before, || {
                Err(NoAnswer::Failed("no".to_owned()))
            })
            .unwrap();
            let choice = choose(Request::Auto, false, &memory, &now, || Ok(())).unwrap();
            assert_eq!(choice.accel, Accel::Kvm, "{now:?}");
        }
    }

    #[test]
    fn reads_the_parameters_of_the_modules_that_are_loaded() {
        let sys = tempfile::tempdir().unwrap();
        assert!(parameters(sys.path()).is_empty());
        for (file, value) in [
            ("kvm_amd/parameters/npt", "Y\n"),
            ("kvm/parameters/halt_poll_ns", "200000\n"),
            ("kvm_amd/refcnt", "1\n"),
            ("loop/parameters/max_loop", "8\n"),
        ] {
            let path = sys.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, value).unwrap();
        }
        assert_eq!(parameters(sys.path()), ["kvm.halt_poll_ns=200000", "kvm_amd.npt=Y"]);
    }
}
