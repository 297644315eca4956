// SPDX-License-Identifier: GPL-2.0-or-later
//! The families of branch records of all architectures. Their tables are in a module for each.
//! Pure.

use super::{
    aarch64::brbe,
    x86_64::family::{self as x86, Family as X86},
};
use crate::{
    decode::Guest,
    flow::Stretch,
    recorder::{Selected, Selection},
};
use std::{fmt, ops::Range, str::FromStr};
use tramplab_protocol::trace::Kind;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// Model-specific registers.
    X86(X86),
    /// FEAT_BRBE of arm64.
    Brbe,
}

/// As in `configs/cpus/`, with the depths.
const NAMES: [(&str, Family, &[usize]); 4] = [
    ("amd-lbrv2", Family::X86(X86::AmdLbrV2), &[8, 16, 32]),
    ("intel-lbr", Family::X86(X86::IntelLbr), &[8, 16, 32]),
    ("arch-lbr", Family::X86(X86::ArchLbr), &[8, 16, 32]),
    ("brbe", Family::Brbe, &[8, 16, 32, 64]),
];

/// The most entries that a family has.
pub const MOST_DEPTH: usize = 64;
/// The most registers that a family keeps.
pub const MOST_KEPT: usize = 40;

impl Family {
    pub fn depths(self) -> &'static [usize] {
        NAMES.iter().find(|(_, family, _)| *family == self).expect("all have names").2
    }

    pub fn guest(self) -> Guest {
        match self {
            Family::X86(_) => Guest::X86_64,
            Family::Brbe => Guest::Aarch64,
        }
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(NAMES.iter().find(|(_, family, _)| family == self).expect("all have names").0)
    }
}

impl FromStr for Family {
    type Err = String;

    fn from_str(name: &str) -> Result<Family, String> {
        let found = NAMES.iter().find(|(known, ..)| *known == name);
        found.map(|(_, family, _)| *family).ok_or_else(|| {
            let names = NAMES.map(|(name, ..)| name).join(", ");
            format!("unknown family `{name}`, expected one of: {names}")
        })
    }
}

/// A register of the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Register {
    /// A kept one, by its place.
    Kept(usize),
    /// A part of an entry. The slot is one of the chosen bank.
    Entry {
        slot: usize,
        part: Part,
    },
    /// The slot of the newest entry.
    Top,
    Fixed(u64),
    /// A write empties the ring.
    Empties,
    /// A write adds an entry.
    Injects,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    From,
    To,
    Info,
}

/// An entry of the ring.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shown {
    pub from: u64,
    pub to: u64,
    /// None for an entry that was never written.
    pub kind: Option<Kind>,
    pub info: u64,
}

/// The place of a kept register.
pub fn place(kept: &[Range<u32>], number: u32) -> Option<usize> {
    let mut before = 0;
    for range in kept {
        if range.contains(&number) {
            return Some(before + (number - range.start) as usize);
        }
        before += range.len();
    }
    None
}

impl Family {
    /// The register behind a number, if the plugin plays it: that of an MSR, or an encoding of
    /// arm64's.
    pub fn register(self, number: u32, depth: usize) -> Option<Register> {
        match self {
            Family::X86(family) => family.register(number, depth),
            Family::Brbe => brbe::register(number, depth),
        }
    }

    /// True if a write of a kept register empties the ring.
    pub fn resets(self, number: u32) -> bool {
        matches!(self, Family::X86(family) if family.resets(number))
    }

    /// True if slots keep their places and [`Register::Top`] moves; otherwise slot 0 is the newest.
    pub fn has_top(self) -> bool {
        matches!(self, Family::X86(family) if family.has_top())
    }

    /// The first slot of the chosen bank. `kept` has the kept registers.
    pub fn bank(self, kept: &[u64]) -> usize {
        match self {
            Family::X86(_) => 0,
            Family::Brbe => brbe::bank(kept),
        }
    }

    /// True while the ring records.
    pub fn is_on(self, kept: &[u64]) -> bool {
        match self {
            Family::X86(family) => family.is_on(kept),
            Family::Brbe => brbe::is_on(kept),
        }
    }

    /// The selection that the registers ask for.
    pub fn filter(self, kept: &[u64]) -> Filter {
        match self {
            Family::X86(family) => Filter::X86(family.filter(kept)),
            Family::Brbe => Filter::Brbe(brbe::Filter::new(kept)),
        }
    }

    /// The value that a register shows of an entry.
    pub fn shown(self, part: Part, entry: Shown) -> u64 {
        let Shown { from, to, kind, info } = entry;
        match (self, part) {
            (Family::X86(family), _) => family.shown(part, from, to, kind),
            (Family::Brbe, Part::From) => from,
            (Family::Brbe, Part::To) => to,
            (Family::Brbe, Part::Info) => info,
        }
    }

    /// The kind that a driver restores with a part of an entry.
    pub fn written(self, part: Part, value: u64) -> Option<Kind> {
        match self {
            Family::X86(family) => family.written(part, value),
            Family::Brbe => None,
        }
    }

    /// The entry that [`Register::Injects`] adds.
    pub fn injected(self, kept: &[u64]) -> Shown {
        match self {
            Family::X86(_) => Shown::default(),
            Family::Brbe => brbe::injected(kept),
        }
    }

    /// An entry's information, as the recorder keeps it instead of the number of instructions.
    pub fn packed(self, info: u64) -> u32 {
        match self {
            Family::X86(_) => 0,
            Family::Brbe => brbe::packed(info),
        }
    }

    pub fn unpacked(self, packed: u32) -> u64 {
        match self {
            Family::X86(_) => 0,
            Family::Brbe => brbe::unpacked(packed),
        }
    }
}

/// The selected branches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Filter {
    X86(x86::Filter),
    Brbe(brbe::Filter),
}

impl Selection for Filter {
    #[inline]
    fn of(&self, from: u64, to: u64, stretch: Stretch) -> Selected {
        let Some(kind) = stretch.kind() else { return Selected::Dropped };
        match self {
            Filter::X86(filter) => filter.selects(kind, to),
            Filter::Brbe(filter) => filter.selects(kind, from, to),
        }
    }

    #[inline]
    fn kept(&self, from: u64, to: u64, stretch: Stretch) -> (u64, u64, Stretch) {
        match (self, stretch.kind()) {
            (Filter::Brbe(filter), Some(kind)) => {
                let (from, to, info) = filter.recorded(kind, from, to);
                (from, to, Stretch::new(Some(kind), brbe::packed(info)))
            }
            _ => (from, to, stretch),
        }
    }
}
