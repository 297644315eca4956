// SPDX-License-Identifier: MIT OR Apache-2.0
//! The events of a modelled CPU that cost cycles, and the parts that the plugin models to count
//! them. `docs/estimated-cycles.md` says what is modelled.

use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, fmt, str::FromStr};
use strum::{EnumCount, EnumString, IntoStaticStr, VariantArray};

/// Something that takes a CPU more time than its instructions.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Serialize,
    Deserialize,
    EnumCount,
    EnumString,
    IntoStaticStr,
    VariantArray,
)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
#[repr(u8)]
pub enum Event {
    /// Returns that the return stack mispredicts. Mispredictions are counted at the branch's
    /// target, where the CPU waits.
    MispredictedReturn,
    /// Indirect jumps and calls with another target than the time before.
    MispredictedIndirect,
    MispredictedConditional,
    /// Taken branches of any kind, returns among them.
    TakenBranch,
    /// Returns, predicted or not.
    Return,
    /// Lines of code that the first-level cache lacks, and the second has.
    CodeL2,
    /// Those that only the last-level cache has.
    CodeL3,
    /// Those that no cache has.
    CodeMemory,
    /// The same for lines of data.
    DataL2,
    DataL3,
    DataMemory,
    /// Pages of code that the first-level TLB lacks, and the second has.
    CodeTlb,
    /// Those that no TLB has: the CPU walks the page table.
    CodeWalk,
    /// The same for pages of data.
    DataTlb,
    DataWalk,
    /// Atomic instructions: of x86-64 those that lock, of arm64 exclusive stores too.
    Atomic,
    /// Barriers of accesses: `lfence`, `mfence`, `dmb`, `dsb`.
    Fence,
    /// Instructions that wait for all before them and fetch again: `cpuid`, `serialize`, `isb`.
    Serializing,
    /// Writes of a control register or an MSR: `wrmsr`, `mov` to `cr3`, `msr`.
    SystemRegister,
    /// `invlpg`, `tlbi`.
    Invalidation,
    /// Interrupts and exceptions: page faults, `int3`, `brk`. Counted in the handler.
    Exception,
    /// `iret`, `eret`.
    ExceptionReturn,
    /// `syscall`, `svc`.
    SystemCall,
    /// `sysret`.
    SystemCallReturn,
}

impl Event {
    pub const ALL: [Event; Event::COUNT] = *Event::VARIANTS.first_chunk().unwrap();

    pub fn name(self) -> &'static str {
        self.into()
    }
}

/// Rounds of hits whose events are counted. The least one tells a hit: a tick of the clock may have
/// the kernel switch tasks between two hits.
pub const HIT_ROUNDS: u32 = 4;
/// The counts of hits, first without the program and then with it: one cold trigger, hits that warm
/// caches, and the rounds.
pub const HIT_COUNTS: u32 = 2 + HIT_ROUNDS;

/// How often each event happened. Events that did not happen are absent.
pub type Events = BTreeMap<Event, u64>;

/// The size of a cache or TLB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Lines or pages that it holds.
    pub entries: u32,
    /// Entries of a set, of which a new one replaces the least recently used. As many as `entries`
    /// if any line may be anywhere.
    pub ways: u32,
}

/// Bytes of a cache line.
pub const LINE: u64 = 64;

/// The modelled parts of a CPU: the plugin's argument `cpu=`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parts {
    pub l1i: Shape,
    pub l1d: Shape,
    /// Of code and data, as are the levels behind it.
    pub l2: Shape,
    pub l3: Shape,
    pub itlb: Shape,
    pub dtlb: Shape,
    pub l2_tlb: Shape,
    /// Entries of the return stack.
    pub returns: u32,
    /// A return whose call is not on the stack is predicted to its last target.
    pub last_target: bool,
    /// Data that is read line by line comes before it is asked for.
    pub streams: bool,
}

impl Parts {
    fn shapes(&self) -> [Shape; 7] {
        [self.l1i, self.l1d, self.l2, self.l3, self.itlb, self.dtlb, self.l2_tlb]
    }

    /// Returns the parts if they are possible.
    pub fn checked(self) -> Result<Parts, PartsError> {
        let most = |at| if at == L3 { MOST } else { MOST_OF_CORE };
        let shapes = self.shapes();
        if let Some(at) = (0..shapes.len()).find(|&at| !shapes[at].is_possible(most(at))) {
            return Err(PartsError::Shape(shapes[at].to_string()));
        }
        match (1..=MOST_RETURNS).contains(&self.returns) {
            true => Ok(self),
            false => Err(PartsError::Returns(self.returns.to_string())),
        }
    }
}

/// The place of the last-level cache among the shapes.
const L3: usize = 3;

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}x{}", self.entries, self.ways)
    }
}

const LAST_TARGET: &str = "last_target";
const WRONG: &str = "wrong";
const STREAMS: &str = "streams";
const NOTHING: &str = "nothing";

/// `512x8:512x8:16384x8:524288x16:64x64:64x64:2048x8:32:wrong:streams`. QEMU separates its options
/// by commas.
impl fmt::Display for Parts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for shape in self.shapes() {
            write!(f, "{shape}:")?;
        }
        let underflow = if self.last_target { LAST_TARGET } else { WRONG };
        let prefetched = if self.streams { STREAMS } else { NOTHING };
        write!(f, "{}:{underflow}:{prefetched}", self.returns)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PartsError {
    #[error(
        "expected seven shapes, the entries of the return stack, `wrong` or `last_target`, and \
         `streams` or `nothing`"
    )]
    Form,
    #[error("`{0}`: expected ENTRIESxWAYS, whole sets, and no more than any CPU has")]
    Shape(String),
    #[error("`{0}`: expected 1 to {MOST_RETURNS} entries of a return stack")]
    Returns(String),
}

/// Entries of the largest last-level cache: 2 GiB of lines.
const MOST: u32 = 1 << 25;
/// Entries of the largest cache or TLB of a core: 64 MiB of lines.
const MOST_OF_CORE: u32 = 1 << 20;
/// An access looks through a set.
const MOST_WAYS: u32 = 1 << 8;
const MOST_RETURNS: u32 = 1 << 10;

impl Shape {
    /// True for sets of equal size, as large as CPUs have.
    fn is_possible(self, most: u32) -> bool {
        let Shape { entries, ways } = self;
        (1..=MOST_WAYS).contains(&ways) && (ways..=most).contains(&entries) && entries % ways == 0
    }
}

impl FromStr for Parts {
    type Err = PartsError;

    fn from_str(text: &str) -> Result<Parts, PartsError> {
        let words: Vec<&str> = text.split(':').collect();
        let [shapes @ .., returns, underflow, prefetched] = &words[..] else {
            return Err(PartsError::Form);
        };
        let shape = |word: &&str| {
            let (entries, ways) = word.split_once('x')?;
            Some(Shape { entries: entries.parse().ok()?, ways: ways.parse().ok()? })
        };
        let shapes: Vec<Shape> = shapes
            .iter()
            .map(|word| shape(word).ok_or_else(|| PartsError::Shape((*word).to_owned())))
            .collect::<Result<_, _>>()?;
        let [l1i, l1d, l2, l3, itlb, dtlb, l2_tlb] = shapes[..] else {
            return Err(PartsError::Form);
        };
        let either = |word: &str, [yes, no]: [&str; 2]| match word {
            _ if word == yes => Ok(true),
            _ if word == no => Ok(false),
            _ => Err(PartsError::Form),
        };
        let last_target = either(underflow, [LAST_TARGET, WRONG])?;
        let streams = either(prefetched, [STREAMS, NOTHING])?;
        let returns = returns.parse().map_err(|_| PartsError::Returns((*returns).to_owned()))?;
        Parts { l1i, l1d, l2, l3, itlb, dtlb, l2_tlb, returns, last_target, streams }.checked()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_its_own_argument() {
        let text = "512x8:512x8:16384x8:524288x16:64x64:64x64:2048x8:32:wrong:streams";
        assert_eq!(text.parse::<Parts>().unwrap().to_string(), text);
        // A last level may be larger than the other parts.
        assert!(text.replace("524288x16", "1048584x8").parse::<Parts>().is_ok());
        for (word, by, error) in [
            ("wrong", "right", PartsError::Form),
            ("streams", "", PartsError::Form),
            (":32:", ":", PartsError::Form),
            (":32:", ":0:", PartsError::Returns("0".to_owned())),
            ("512x8", "512", PartsError::Shape("512".to_owned())),
            ("512x8", "512x0", PartsError::Shape("512x0".to_owned())),
            ("512x8", "511x8", PartsError::Shape("511x8".to_owned())),
            ("16384x8", "1048584x8", PartsError::Shape("1048584x8".to_owned())),
            ("64x64", "512x512", PartsError::Shape("512x512".to_owned())),
            (":32:", ":1025:", PartsError::Returns("1025".to_owned())),
            ("512x8:", "", PartsError::Form),
        ] {
            let text = text.replacen(word, by, 1);
            assert_eq!(text.parse::<Parts>(), Err(error), "{text}");
        }
    }
}
