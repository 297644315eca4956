// SPDX-License-Identifier: MIT OR Apache-2.0
//! The records of a ring that a program really gets: depth - wasted - the driver's own.

use super::{
    Filter, Model,
    returns::{self, Form},
};
use std::fmt;
use tramplab_model::run::{BranchSource, NamedRecord};

/// The useful records of a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Useful {
    Exactly(u32),
    /// The driver may take more records than are known.
    AtMost(u32),
}

impl Useful {
    /// Never below 0, where a bound is exact.
    pub fn new(depth: u32, wasted: u32, taken: Taken) -> Useful {
        let left = depth.saturating_sub(wasted).saturating_sub(taken.least);
        match left {
            0 => Useful::Exactly(0),
            left if taken.exactly().is_some() => Useful::Exactly(left),
            left => Useful::AtMost(left),
        }
    }
}

impl fmt::Display for Useful {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Useful::Exactly(count) => write!(f, "{count}"),
            Useful::AtMost(count) => write!(f, "≤ {count}"),
        }
    }
}

/// The number of records that the driver itself leaves in the ring by some filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taken {
    pub least: u32,
    /// None if nothing limits it.
    pub most: Option<u32>,
}

impl Taken {
    const NONE: Taken = Taken { least: 0, most: Some(0) };
    const UNKNOWN: Taken = Taken { least: 0, most: None };

    pub fn exactly(self) -> Option<u32> {
        self.most.filter(|&most| most == self.least)
    }

    /// The range of both.
    pub fn or(self, other: Taken) -> Taken {
        let most = self.most.zip(other.most).map(|(one, two)| one.max(two));
        Taken { least: self.least.min(other.least), most }
    }
}

impl fmt::Display for Taken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Taken { least, most } = self;
        match most {
            Some(most) if most == least => write!(f, "{least}"),
            Some(most) => write!(f, "{least} to {most}"),
            None => f.write_str("unknown"),
        }
    }
}

/// The driver that hands a capture point's records to the program, as far as it is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Driver {
    /// It left its records in the CPU's own ring, where they count as wasted.
    Counted,
    /// Virtual records have none of its own: the model tells them.
    Modelled {
        /// The kernel's option of that name. Older runs do not have it.
        paravirt_xxl: Option<bool>,
        /// The forms that its returns may have.
        returns: Vec<Form>,
    },
}

impl Driver {
    /// `records` are those of the capture point, newest first; `mitigations` the guest's lines.
    pub fn new(
        source: BranchSource,
        paravirt_xxl: Option<bool>,
        mitigations: &[String],
        records: &[NamedRecord],
    ) -> Driver {
        match source {
            BranchSource::Hardware | BranchSource::Emulated => Driver::Counted,
            BranchSource::Virtual => {
                Driver::Modelled { paravirt_xxl, returns: returns::forms(records, mitigations) }
            }
        }
    }

    /// Counts the driver's own records, which are newer than `#00` and not among the wasted.
    pub fn takes(&self, model: Model, filter: impl Into<Filter>) -> Taken {
        let Driver::Modelled { paravirt_xxl, returns } = self else { return Taken::NONE };
        let filter = filter.into();
        let kernels: &[bool] = match paravirt_xxl {
            Some(true) => &[true],
            Some(false) => &[false],
            None => &[false, true],
        };
        let forms = kernels.iter().flat_map(|xxl| returns.iter().map(move |form| (*xxl, form)));
        let taken = forms.map(|(xxl, form)| match model.of_the_driver(filter, xxl, form) {
            Some(count) => Taken { least: count, most: Some(count) },
            None => Taken::UNKNOWN,
        });
        taken.reduce(Taken::or).unwrap_or(Taken::UNKNOWN)
    }

    pub fn useful(
        &self,
        model: Model,
        filter: impl Into<Filter>,
        depth: u32,
        wasted: u32,
    ) -> Useful {
        Useful::new(depth, wasted, self.takes(model, filter))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::branch::{
        Branch,
        returns::tests::{ITS, SRSO, trace},
    };
    use proptest::prelude::*;
    use tramplab_protocol::trace::Kind;

    const PLAIN: &[(&str, Kind, &str)] = &[("g", Kind::Ret, "f")];

    fn driver(xxl: Option<bool>, lines: &[(&str, Kind, &str)]) -> Driver {
        Driver::new(BranchSource::Virtual, xxl, &[], &trace(lines))
    }

    /// `any`, `any_call`, `any_return`, `ind_call`, `ind_jump`, `cond`, `call`, and both unions.
    fn taken(driver: &Driver, model: Model) -> String {
        let filters = Branch::ALL.map(Filter::of).into_iter().chain(Filter::UNIONS);
        filters.map(|f| driver.takes(model, f).to_string()).collect::<Vec<_>>().join(", ")
    }

    /// Counted in Debian's 6.12.117, where MSR accessors are calls of `pv_ops`.
    #[test]
    fn counts_the_drivers_records_by_every_filter() {
        let untrained: &[(&str, Kind, &str)] = &[
            ("f", Kind::Jump, "retbleed_return_thunk"),
            ("retbleed_return_thunk", Kind::Ret, "g"),
        ];
        let (legacy, arch) = (Model::IntelLbr, Model::ArchLbr);
        let table = [
            (legacy, Some(true), PLAIN, "5, 3, 2, 0, 0, 0, 3, 3, 5"),
            (Model::AmdLbrV2, Some(true), PLAIN, "5, 3, 2, 0, 0, 0, 3, 3, 5"),
            (arch, Some(true), PLAIN, "3, 2, 1, 0, 0, 0, 2, 2, 3"),
            // Measured on EPYC-Genoa: 9 of 16.
            (Model::AmdLbrV2, Some(true), SRSO, "9, 5, 2, 0, 0, 0, 5, 5, 7"),
            (arch, Some(true), SRSO, "5, 3, 1, 0, 0, 0, 3, 3, 4"),
            (legacy, Some(true), untrained, "7, 3, 2, 0, 0, 0, 3, 3, 5"),
            (legacy, Some(true), ITS, "5 to 7, 3, 2, 0, 0, 0, 3, 3, 5"),
            (legacy, Some(false), SRSO, "0, 0, 0, 0, 0, 0, 0, 0, 0"),
            (legacy, None, PLAIN, "0 to 5, 0 to 3, 0 to 2, 0, 0, 0, 0 to 3, 0 to 3, 0 to 5"),
            (legacy, Some(true), &[], "5 to 9, 3 to 5, 2, 0, 0, 0, 3 to 5, 3 to 5, 5 to 7"),
        ];
        for (model, xxl, lines, expected) in table {
            assert_eq!(taken(&driver(xxl, lines), model), expected, "{model} {xxl:?} {lines:?}");
        }
        for xxl in [Some(true), Some(false), None] {
            let taken = taken(&driver(xxl, PLAIN), Model::Brbe);
            assert_eq!(taken, ["unknown"; 9].join(", "), "{xxl:?}");
        }
        let hardware = Driver::new(BranchSource::Hardware, Some(true), &[], &trace(SRSO));
        assert_eq!(taken(&hardware, legacy), ["0"; 9].join(", "));
    }

    #[test]
    fn subtracts_the_drivers_records_and_bounds_what_it_does_not_know() {
        let any = |model, xxl, lines, depth, wasted| {
            driver(xxl, lines).useful(model, Branch::Any, depth, wasted).to_string()
        };
        let (legacy, amd) = (Model::IntelLbr, Model::AmdLbrV2);
        let table = [
            (legacy, Some(true), PLAIN, 32, 6, "21"),
            (amd, Some(true), SRSO, 16, 6, "1"),
            (amd, Some(true), SRSO, 16, 10, "0"),
            (legacy, Some(true), ITS, 32, 6, "≤ 21"),
            (legacy, Some(true), &[], 32, 6, "≤ 21"),
            (legacy, Some(false), SRSO, 32, 6, "26"),
            (legacy, None, PLAIN, 32, 6, "≤ 26"),
            (Model::Brbe, Some(false), PLAIN, 64, 24, "≤ 40"),
            // At most 0 is exactly 0.
            (Model::Brbe, None, PLAIN, 16, 16, "0"),
            (legacy, None, PLAIN, 16, 40, "0"),
            (legacy, Some(true), ITS, 16, 11, "0"),
            (legacy, Some(true), PLAIN, 16, 15, "0"),
        ];
        for (model, xxl, lines, depth, wasted, expected) in table {
            let found = any(model, xxl, lines, depth, wasted);
            assert_eq!(found, expected, "{model} {xxl:?} {lines:?} {depth} - {wasted}");
        }
        // No driver has an indirect call of its own.
        let ind_call = driver(None, PLAIN).useful(legacy, Branch::IndCall, 16, 4);
        assert_eq!(ind_call, Useful::Exactly(12));
    }

    proptest! {
        #[test]
        fn is_between_0_and_what_is_not_wasted(
            depth in 0u32..70, wasted: u32, least in 0u32..20, more in 0u32..20, is_known: bool,
        ) {
            let taken = Taken { least, most: is_known.then_some(least + more) };
            let without = depth.saturating_sub(wasted);
            match Useful::new(depth, wasted, taken) {
                Useful::Exactly(0) => prop_assert!(without <= least),
                Useful::Exactly(left) => {
                    prop_assert_eq!((left + least, taken.exactly()), (without, Some(least)));
                }
                Useful::AtMost(left) => {
                    prop_assert!(left > 0 && taken.exactly().is_none());
                    prop_assert_eq!(left + least, without);
                }
            }
        }
    }
}
