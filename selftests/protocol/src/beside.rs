// SPDX-License-Identifier: MIT OR Apache-2.0
//! Further tracers on the function of a measured hit, or on another one. With several tracers
//! ftrace may take another path than with one.

use crate::mechanism::{Mechanism, UnknownMechanism};
use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr};

/// One further tracer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Beside {
    /// Another empty program.
    Mechanism(Mechanism),
    /// ftrace's tracer `function`, which every kernel with ftrace has.
    FunctionTracer,
    /// The same on a function that no hit runs. Does a tracer slow down those of other functions?
    FunctionTracerElsewhere,
}

const FUNCTION_TRACER: &str = "function_tracer";
const FUNCTION_TRACER_ELSEWHERE: &str = "function_tracer_elsewhere";

impl Beside {
    pub fn name(self) -> &'static str {
        match self {
            Beside::Mechanism(mechanism) => mechanism.name(),
            Beside::FunctionTracer => FUNCTION_TRACER,
            Beside::FunctionTracerElsewhere => FUNCTION_TRACER_ELSEWHERE,
        }
    }

    /// Returns true if it attaches to the kind of target that a mechanism is measured on.
    pub fn fits(self, measured: Mechanism) -> bool {
        match self {
            // `fmod_ret` attaches to few functions, so it is measured on one of its own.
            Beside::Mechanism(beside) => {
                measured.is_tracepoint() == beside.is_tracepoint()
                    && (beside != Mechanism::FmodRet || measured == Mechanism::FmodRet)
            }
            Beside::FunctionTracer | Beside::FunctionTracerElsewhere => !measured.is_tracepoint(),
        }
    }

    /// All tracers. A set has one bit for each.
    pub fn all() -> impl Iterator<Item = Beside> {
        Mechanism::ALL
            .into_iter()
            .map(Beside::Mechanism)
            .chain([Beside::FunctionTracer, Beside::FunctionTracerElsewhere])
    }
}

impl fmt::Display for Beside {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

#[derive(Clone, Debug, thiserror::Error)]
#[error("{0}, {FUNCTION_TRACER}, {FUNCTION_TRACER_ELSEWHERE}")]
pub struct UnknownBeside(#[from] UnknownMechanism);

impl FromStr for Beside {
    type Err = UnknownBeside;

    fn from_str(name: &str) -> Result<Beside, UnknownBeside> {
        match name {
            FUNCTION_TRACER => Ok(Beside::FunctionTracer),
            FUNCTION_TRACER_ELSEWHERE => Ok(Beside::FunctionTracerElsewhere),
            _ => Ok(Beside::Mechanism(name.parse()?)),
        }
    }
}

impl TryFrom<String> for Beside {
    type Error = UnknownBeside;

    fn try_from(name: String) -> Result<Beside, UnknownBeside> {
        name.parse()
    }
}

impl From<Beside> for String {
    fn from(beside: Beside) -> String {
        beside.name().to_owned()
    }
}

/// A set of tracers; empty for most measurements.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(from = "Vec<Beside>", into = "Vec<Beside>")]
pub struct BesideSet(u32);

impl BesideSet {
    pub fn is_empty(&self) -> bool {
        self.0 == 0
    }

    /// In attach order.
    pub fn iter(self) -> impl Iterator<Item = Beside> {
        Beside::all()
            .enumerate()
            .filter(move |(bit, _)| self.0 & (1 << bit) != 0)
            .map(|(_, beside)| beside)
    }

    /// The tracers that are BPF programs.
    pub fn mechanisms(self) -> impl Iterator<Item = Mechanism> {
        self.iter().filter_map(|beside| match beside {
            Beside::Mechanism(mechanism) => Some(mechanism),
            Beside::FunctionTracer | Beside::FunctionTracerElsewhere => None,
        })
    }

    /// The name of a measurement with its tracers: `fentry`, `fentry+kprobe.multi+function_tracer`.
    pub fn with(self, measured: impl fmt::Display) -> String {
        self.iter().fold(measured.to_string(), |name, beside| format!("{name}+{beside}"))
    }
}

impl FromIterator<Beside> for BesideSet {
    fn from_iter<I: IntoIterator<Item = Beside>>(list: I) -> BesideSet {
        let bit = |beside| Beside::all().position(|known| known == beside).expect("one of all");
        BesideSet(list.into_iter().fold(0, |set, beside| set | 1 << bit(beside)))
    }
}

impl From<Vec<Beside>> for BesideSet {
    fn from(list: Vec<Beside>) -> BesideSet {
        list.into_iter().collect()
    }
}

impl From<BesideSet> for Vec<Beside> {
    fn from(set: BesideSet) -> Vec<Beside> {
        set.iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_tracer_has_a_name_and_a_place_in_the_set() {
        let all: Vec<Beside> = Beside::all().collect();
        let mut text = "fentry".to_owned();
        for &beside in &all {
            assert_eq!(beside.name().parse::<Beside>().unwrap(), beside);
            let set: BesideSet = [beside].into_iter().collect();
            assert_eq!(set.iter().collect::<Vec<_>>(), [beside]);
            assert_eq!(serde_json::to_string(&set).unwrap(), format!("[\"{beside}\"]"));
            text = format!("{text}+{beside}");
        }
        // The order of the list does not matter.
        let set: BesideSet = all.iter().rev().copied().collect();
        assert_eq!(Vec::from(set), all);
        assert_eq!(set.with(Mechanism::Fentry), text);
        assert_eq!(set.mechanisms().collect::<Vec<_>>(), Mechanism::ALL);
        assert_eq!(BesideSet::default().with(Mechanism::KprobeMulti), "kprobe.multi");
    }

    #[test]
    fn fits_only_tracers_of_the_same_target() {
        use Mechanism::{Fentry, FmodRet, KprobeMulti, RawTp, TpBtf};
        for (measured, beside, fits) in [
            (Fentry, KprobeMulti, true),
            (Fentry, Fentry, true),
            (FmodRet, Fentry, true),
            (FmodRet, FmodRet, true),
            (TpBtf, RawTp, true),
            (Fentry, FmodRet, false),
            (Fentry, RawTp, false),
            (TpBtf, Fentry, false),
        ] {
            assert_eq!(
                Beside::Mechanism(beside).fits(measured),
                fits,
                "{beside} beside {measured}"
            );
            for tracer in [Beside::FunctionTracer, Beside::FunctionTracerElsewhere] {
                assert_eq!(tracer.fits(measured), !measured.is_tracepoint());
            }
        }
    }

    #[test]
    fn lists_the_known_tracers_with_an_unknown_one() {
        let error = serde_json::from_str::<BesideSet>("[\"function\"]").unwrap_err().to_string();
        assert!(
            error.contains("`function`") && error.contains("raw_tp, function_tracer"),
            "{error}"
        );
    }
}
