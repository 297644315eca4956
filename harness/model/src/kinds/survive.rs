// SPDX-License-Identifier: MIT OR Apache-2.0
//! `survive`: a storm of attaching, hitting and detaching, and whether the kernel survived it.

use crate::outcome::ErrorKind;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;
use tramplab_protocol::storm::{State, Step, SurviveReply};

pub const TEST_SYNTAX: &str = "survive/SEED";
pub const METRIC_SYNTAX: &str = "survive.SEED.result";

/// Its only metric takes the same parameters.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "SurviveTest")]
pub struct Test {
    pub seed: u32,
}

impl Test {
    pub fn parse(name: &str) -> Option<Test> {
        let seed = name.parse().ok()?;
        (name == u32::to_string(&seed)).then_some(Test { seed })
    }
}

impl fmt::Display for Test {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.seed.fmt(f)
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Survive {
    /// Threads of the storm.
    pub threads: u32,
    /// Steps of the storm. The agent runs it several times.
    pub steps: u32,
    /// None if the kernel died.
    pub done: Option<SurviveReply>,
    /// The kernel's line, if it died or warned.
    pub splat: Option<Splat>,
    /// Set if the storm failed and was made smaller.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub smallest: Option<Smallest>,
}

/// The line of a kernel that found a bug of its own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Splat {
    pub kind: ErrorKind,
    pub title: String,
}

/// The smallest storm that failed in the same way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Smallest {
    pub steps: Vec<Step>,
    /// Guests that ran smaller storms.
    pub guests: u32,
    /// Those in which the storm failed in the same way.
    pub failed: u32,
}

/// Growth of a kind of memory, each time the storm runs, that counts as a leak.
const LEAK_KIB: u64 = 1024;

/// A way in which a kernel did not survive. Two storms fail in the same way if theirs are equal.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Failure {
    /// The kernel's line without its numbers.
    Splat(String),
    WrongRuns,
    /// Kinds of objects that stayed.
    Left(Vec<&'static str>),
    Kmemleak,
    /// Kinds of memory that grew.
    Grew(Vec<&'static str>),
}

impl Failure {
    /// Returns true if both are of one way, and have something in common.
    pub fn is_like(&self, other: &Failure) -> bool {
        match (self, other) {
            (Failure::Left(these), Failure::Left(those))
            | (Failure::Grew(these), Failure::Grew(those)) => {
                these.iter().any(|kind| those.contains(kind))
            }
            _ => self == other,
        }
    }
}

impl Survive {
    /// The ways in which the kernel failed, with a line for the reader.
    pub fn failures(&self) -> Vec<(Failure, String)> {
        let mut all = Vec::new();
        if let Some(Splat { kind, title }) = &self.splat {
            all.push((Failure::Splat(without_numbers(title)), format!("{kind}: {title}")));
        }
        if let Some(done) = &self.done {
            all.extend(of_reply(done));
        }
        all
    }
}

fn of_reply(done: &SurviveReply) -> Vec<(Failure, String)> {
    let mut all = Vec::new();
    if let [first, more @ ..] = &done.wrong[..] {
        let more = match more.len() {
            0 => String::new(),
            more => format!(" (and {more} more)"),
        };
        all.push((Failure::WrongRuns, format!("{first}, at a quiet moment{more}")));
    }
    let (Some(start), Some(end)) = (done.states.first(), done.states.last()) else { return all };
    let left: Vec<(&str, u32, u32)> = start
        .objects()
        .into_iter()
        .zip(end.objects())
        .filter(|((_, start), (_, end))| end > start)
        .map(|((name, start), (_, end))| (name, start, end))
        .collect();
    if !left.is_empty() {
        let told: Vec<String> =
            left.iter().map(|(name, start, end)| format!("{start} -> {end} {name}")).collect();
        let kinds = left.iter().map(|(name, ..)| *name).collect();
        all.push((Failure::Left(kinds), format!("left after the storm: {}", told.join(", "))));
    }
    if let Some(first) = done.kmemleak.iter().flatten().next() {
        let count = done.kmemleak.iter().flatten().count();
        let title = allocator(first).unwrap_or("an unknown function");
        let told = format!("kmemleak reports {count} objects, the first allocated by {title}");
        all.push((Failure::Kmemleak, told));
    }
    let grew = growing(&done.states);
    if !grew.is_empty() {
        let told: Vec<String> = grew
            .iter()
            .map(|(name, sizes)| {
                let sizes: Vec<String> = sizes.iter().map(u64::to_string).collect();
                format!("{name} {} KiB", sizes.join(" -> "))
            })
            .collect();
        let kinds = grew.iter().map(|(name, _)| *name).collect();
        let told = format!("memory grows each time the storm runs: {}", told.join(", "));
        all.push((Failure::Grew(kinds), told));
    }
    all
}

/// Kinds of memory that grew each time after the first, which fills caches.
fn growing(states: &[State]) -> Vec<(&'static str, Vec<u64>)> {
    let settled = states.get(1..).unwrap_or_default();
    let Some(first) = settled.first() else { return Vec::new() };
    let kinds = first.memory().map(|(name, _)| name).into_iter().enumerate();
    let sizes = kinds.map(|(at, name)| {
        (name, settled.iter().map(|state| state.memory()[at].1).collect::<Vec<u64>>())
    });
    let grew = |sizes: &[u64]| {
        sizes.len() > 2 && sizes.windows(2).all(|pair| pair[1].saturating_sub(pair[0]) >= LEAK_KIB)
    };
    sizes.filter(|(_, sizes)| grew(sizes)).collect()
}

/// The function of a report of kmemleak that asked for the memory: the first one that is not of
/// the allocators.
fn allocator(report: &str) -> Option<&str> {
    const ALLOCATORS: [&str; 10] = [
        "kmem",
        "__km",
        "kmalloc",
        "__kmalloc",
        "slab",
        "__alloc",
        "pcpu",
        "__vmalloc",
        "vmalloc",
        "kvmalloc",
    ];
    let lines = report.lines().skip_while(|line| !line.contains("backtrace")).skip(1);
    let names = lines.filter_map(|line| line.split_whitespace().find(|word| word.contains("+0x")));
    names.map(|word| word.split('+').next().unwrap_or(word)).find(|name| {
        !ALLOCATORS.iter().any(|prefix| name.starts_with(prefix)) && !name.contains("alloc_noprof")
    })
}

/// Addresses, CPUs and process ids differ at every boot.
fn without_numbers(title: &str) -> String {
    let words = title.split_whitespace().map(|word| {
        if word.contains(|c: char| c.is_ascii_digit()) && !word.contains('+') {
            "N"
        } else {
            // A function's offset stays the same on one kernel.
            word
        }
    });
    words.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use tramplab_protocol::{Mechanism, storm::Wrong};

    fn survived() -> Survive {
        let state = State { slab_kib: 20_000, percpu_kib: 900, ..State::default() };
        let first = State { slab_kib: 15_000, ..state };
        let done = SurviveReply { states: vec![first, state, state, state], ..Default::default() };
        Survive { threads: 4, steps: 10, done: Some(done), splat: None, smallest: None }
    }

    fn kinds(change: impl Fn(&mut SurviveReply)) -> Vec<Failure> {
        let mut one = survived();
        change(one.done.as_mut().unwrap());
        one.failures().into_iter().map(|(failure, _)| failure).collect()
    }

    #[test]
    fn names_each_way_to_fail() {
        assert!(kinds(|_| ()).is_empty());
        let wrong = Wrong {
            round: 0,
            mechanism: Some(Mechanism::Fentry),
            functions: vec!["bpf_fentry_test1".to_owned()],
            expected: 2,
            at_least: false,
            ran: 0,
        };
        assert_eq!(kinds(|done| done.wrong.push(wrong.clone())), [Failure::WrongRuns]);
        assert_eq!(kinds(|done| done.states[3].links = 1), [Failure::Left(vec!["links"])]);
        // Fewer is no leak.
        assert_eq!(kinds(|done| done.states[0].links = 1), []);
        assert_eq!(
            kinds(|done| done.kmemleak = Some(vec![REPORT.to_owned()])),
            [Failure::Kmemleak]
        );
        assert_eq!(kinds(|done| done.kmemleak = Some(Vec::new())), []);
        let grow = |by: [u64; 2]| {
            kinds(move |done| {
                done.states[2].slab_kib += by[0];
                done.states[3].slab_kib += by[0] + by[1];
            })
        };
        assert_eq!(grow([LEAK_KIB, LEAK_KIB]), [Failure::Grew(vec!["slab"])]);
        assert_eq!(grow([10 * LEAK_KIB, LEAK_KIB - 1]), []);
        assert_eq!(grow([LEAK_KIB - 1, 10 * LEAK_KIB]), []);
        let huge = |done: &mut SurviveReply| {
            done.states.iter_mut().for_each(|state| state.slab_kib = u64::MAX);
        };
        assert_eq!(kinds(huge), []);
    }

    const REPORT: &str = "unreferenced object 0xffff888004f1b000 (size 192):\n  comm \"init\", pid \
                          88\n  backtrace (crc 5d9d9b4f):\n    __kmalloc_cache_noprof+0x1/0x2\n    \
                          bpf_tracing_prog_attach+0x1/0x2\n";

    #[test]
    fn names_the_function_that_leaked() {
        assert_eq!(allocator(REPORT), Some("bpf_tracing_prog_attach"));
        assert_eq!(allocator("unreferenced object"), None);
    }

    #[test]
    fn splats_of_two_guests_are_the_same() {
        let of = |title: &str| without_numbers(title);
        assert_eq!(
            of("WARNING: CPU: 0 PID: 88 at kernel/bpf/trampoline.c:1 bpf_tramp+0x1/0x2"),
            of("WARNING: CPU: 1 PID: 91 at kernel/bpf/trampoline.c:1 bpf_tramp+0x1/0x2")
        );
        assert_ne!(
            of("BUG: KASAN: slab-use-after-free in a+0x1/0x2"),
            of("BUG: KASAN: slab-use-after-free in b+0x1/0x2")
        );
    }

    #[test]
    fn parses_only_the_names_that_it_prints() {
        assert_eq!(Test::parse("7"), Some(Test { seed: 7 }));
        for name in ["", "07", "+7", "x", "7/1"] {
            assert_eq!(Test::parse(name), None, "{name}");
        }
    }
}
