// SPDX-License-Identifier: MIT OR Apache-2.0
//! KVM or TCG. `/dev/kvm` may open, answer its API version, create a VM, and still run no guest: only a guest that
//! answered counts.

use crate::run::Accel;
use serde::{Deserialize, Serialize};
use std::{fs, path::Path};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    Auto,
    Only(Accel),
}

/// What a probe found, remembered until the host boots again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Memory {
    boot_id: String,
    /// None: a guest answered under KVM.
    failure: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    pub accel: Accel,
    /// Why not KVM, for the user to see.
    pub fallback: Option<String>,
}

#[derive(Debug, thiserror::Error)]
#[error("no guest runs under KVM here: {0}")]
pub struct KvmRefused(pub String);

/// Chooses; `probe` boots a guest under KVM and is asked at most once per boot of the host.
pub fn choose(
    request: Request,
    memory: &Path,
    boot_id: &str,
    probe: impl FnOnce() -> Result<(), String>,
) -> Result<Choice, KvmRefused> {
    if request == Request::Only(Accel::Tcg) {
        return Ok(Choice { accel: Accel::Tcg, fallback: None });
    }
    let known = remembered(memory).filter(|known| known.boot_id == boot_id);
    let failure = match known {
        Some(known) => known.failure,
        None => {
            let failure = probe().err();
            let now = Memory { boot_id: boot_id.to_owned(), failure: failure.clone() };
            // Not remembering only means probing again.
            let _ = fs::write(memory, serde_json::to_vec(&now).expect("plain data"));
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

    #[test]
    fn only_a_guest_that_answered_counts_and_is_asked_once_per_boot() {
        let dir = tempfile::tempdir().unwrap();
        let memory = dir.path().join("kvm.json");
        let fails = || Err("it hung".to_owned());
        let never = || -> Result<(), String> { panic!("probed again") };
        let tcg =
            |fallback: Option<&str>| Choice { accel: Accel::Tcg, fallback: fallback.map(str::to_owned) };

        // TCG asked for: no probe.
        assert_eq!(choose(Request::Only(Accel::Tcg), &memory, "a", never).unwrap(), tcg(None));
        // A failure is a visible fallback, an error where KVM was asked for, and remembered.
        assert_eq!(choose(Request::Auto, &memory, "a", fails).unwrap(), tcg(Some("it hung")));
        assert_eq!(choose(Request::Auto, &memory, "a", never).unwrap(), tcg(Some("it hung")));
        let refused = choose(Request::Only(Accel::Kvm), &memory, "a", never).unwrap_err();
        assert!(refused.to_string().contains("it hung"));
        // After a reboot of the host the answer may differ.
        let kvm = Choice { accel: Accel::Kvm, fallback: None };
        assert_eq!(choose(Request::Auto, &memory, "b", || Ok(())).unwrap(), kvm);
        assert_eq!(choose(Request::Only(Accel::Kvm), &memory, "b", never).unwrap(), kvm);
        // A damaged memory is no memory.
        fs::write(&memory, b"{").unwrap();
        assert_eq!(choose(Request::Auto, &memory, "b", || Ok(())).unwrap(), kvm);
    }
}
