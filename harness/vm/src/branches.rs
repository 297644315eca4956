// SPDX-License-Identifier: MIT OR Apache-2.0
//! Chooses the branch records: the CPU's own, which need KVM, or the plugin's, which need TCG. The
//! plugin's are those of its trace, or of a CPU that it plays.

use tramplab_host::lbr::{LbrFormat, NoHardware};
use tramplab_model::run::Accel;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Request {
    #[default]
    Auto,
    Hardware,
    Virtual,
    Emulated,
}

/// The source of branch records for the guests of one architecture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// The plugin, in guests under TCG. Other guests may run under KVM.
    Virtual,
    /// The guest's driver, on registers that the plugin plays, in guests under TCG.
    Emulated,
    Hardware(LbrFormat),
    /// The driver of the kernel that runs on this machine.
    ThisMachine,
    /// No records, with the reason.
    None(String),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BranchesChoice {
    pub source: Source,
    /// The reason, for the user, if the request allowed the CPU's records and there are none.
    pub fallback: Option<String>,
}

/// Chooses for guests that run under `accel`. `named`: the user asked for that accelerator.
/// `decide` examines the host and is called only if its result matters.
pub fn choose(
    request: Request,
    accel: Accel,
    named: bool,
    decide: impl FnOnce() -> Result<LbrFormat, NoHardware>,
) -> Result<BranchesChoice, NoHardware> {
    const TAKE_TCG: &str =
        "the plugin's branch records need TCG, but --accel is kvm: --accel auto uses both";
    let quietly = |source| Ok(BranchesChoice { source, fallback: None });
    match (request, accel) {
        (_, Accel::Native) => return quietly(Source::ThisMachine),
        (Request::Virtual | Request::Emulated, Accel::Kvm) if named => {
            return quietly(Source::None(TAKE_TCG.to_owned()));
        }
        (Request::Emulated, _) => return quietly(Source::Emulated),
        // Under TCG there are no others, and the choice of the accelerator has told its reason.
        (Request::Virtual, _) | (Request::Auto, Accel::Tcg) => return quietly(Source::Virtual),
        (Request::Auto | Request::Hardware, _) => {}
    }
    match (decide(), request, accel) {
        (Ok(format), _, Accel::Kvm) => quietly(Source::Hardware(format)),
        (Ok(_), _, Accel::Tcg | Accel::Native) => Err(NoHardware::Kvm("--accel is tcg".to_owned())),
        (Err(reason), Request::Hardware, _) => Err(reason),
        (Err(reason), _, Accel::Kvm) if named => {
            quietly(Source::None(format!("{reason}; {TAKE_TCG}")))
        }
        (Err(reason), ..) => {
            Ok(BranchesChoice { source: Source::Virtual, fallback: Some(reason.to_string()) })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chooses_by_request_and_accelerator() {
        use Accel::{Kvm, Native, Tcg};
        use Request::{Auto, Emulated, Hardware, Virtual};
        let format: LbrFormat = serde_json::from_str("5").unwrap();
        let (can, cannot) = (Ok(format), Err(NoHardware::ArchLbr));
        const TOLD: &str = "Arch LBR";
        // The choice, and a word of the fallback, the skip or the error.
        for (request, accel, named, decided, expected, said) in [
            (Auto, Kvm, false, &can, "hardware", None),
            (Auto, Kvm, true, &can, "hardware", None),
            (Auto, Kvm, false, &cannot, "virtual", Some(TOLD)),
            (Auto, Kvm, true, &cannot, "none", Some(TOLD)),
            (Auto, Tcg, false, &cannot, "virtual", None),
            (Auto, Tcg, true, &cannot, "virtual", None),
            (Auto, Tcg, false, &can, "virtual", None),
            (Auto, Tcg, true, &can, "virtual", None),
            (Hardware, Kvm, true, &can, "hardware", None),
            (Hardware, Kvm, true, &cannot, "error", Some(TOLD)),
            (Hardware, Tcg, true, &can, "error", Some("--accel is tcg")),
            (Hardware, Tcg, true, &cannot, "error", Some(TOLD)),
            (Virtual, Kvm, false, &can, "virtual", None),
            (Virtual, Kvm, true, &can, "none", Some("need TCG")),
            (Virtual, Tcg, false, &cannot, "virtual", None),
            (Virtual, Tcg, true, &can, "virtual", None),
            (Emulated, Kvm, false, &can, "emulated", None),
            (Emulated, Kvm, true, &can, "none", Some("need TCG")),
            (Emulated, Tcg, true, &cannot, "emulated", None),
            (Auto, Native, true, &cannot, "own", None),
        ] {
            let what = format!("{request:?} {accel:?} {named} {decided:?}");
            let (found, words) = match choose(request, accel, named, || decided.clone()) {
                Ok(BranchesChoice { source: Source::Hardware(found), fallback }) => {
                    assert_eq!(found, format, "{what}");
                    ("hardware", fallback)
                }
                Ok(BranchesChoice { source: Source::Virtual, fallback }) => ("virtual", fallback),
                Ok(BranchesChoice { source: Source::Emulated, fallback }) => ("emulated", fallback),
                Ok(BranchesChoice { source: Source::ThisMachine, fallback }) => ("own", fallback),
                Ok(BranchesChoice { source: Source::None(reason), .. }) => ("none", Some(reason)),
                Err(reason) => ("error", Some(reason.to_string())),
            };
            assert_eq!(found, expected, "{what}");
            assert_eq!(words.is_some(), said.is_some(), "{what}: {words:?}");
            assert!(words.unwrap_or_default().contains(said.unwrap_or_default()), "{what}");
        }
    }
}
