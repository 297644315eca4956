// SPDX-License-Identifier: MIT OR Apache-2.0
//! Modelled CPUs: `configs/cpus/NAME.yaml`, and how a run keeps the one that its guests booted as.

use crate::arch::Arch;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::num::NonZeroU32;
use tramplab_protocol::estimate::{Event, Events, LINE, Parts, Shape};

/// A CPU, and how Linux boots on it. Each part names its source.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "tramplab CPU")]
pub struct Cpu {
    /// Its products, in a line.
    pub about: String,
    pub arch: Arch,
    pub qemu: Emulated,
    pub mitigations: Mitigations,
    pub branches: Branches,
    /// None for a CPU whose return stack is not known: then one of 16 entries is modelled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub returns: Option<Returns>,
    /// Its costs in cycles. None for a CPU of which no cycles are estimated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cycles: Option<Cycles>,
}

/// The CPU that QEMU emulates for it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Emulated {
    /// QEMU's `-cpu` under TCG, perhaps with features: `EPYC-Genoa`, `max,pauth-impdef=on`.
    pub cpu: String,
    pub source: String,
}

/// The mitigations with which its machines boot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Mitigations {
    /// Words of the guest's command line, with which the kernel patches in what it patches in on
    /// such a machine.
    pub append: Vec<String>,
    pub source: String,
}

/// Its branch records: `family` and `depth`, or `none`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Branches {
    /// The family of records: filters, and what enters the ring.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = FAMILIES))]
    pub family: Option<String>,
    /// Number of records that it keeps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub depth: Option<u32>,
    /// Why no snapshot has records of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub none: Option<String>,
    pub source: String,
}

impl Branches {
    /// The records that the TCG plugin plays: `amd-lbrv2:16`. None for a CPU without records.
    pub fn played(&self) -> Option<String> {
        Some(format!("{}:{}", self.family.as_ref()?, self.depth?))
    }
}

/// Its predictor of returns, a stack of the addresses behind calls.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Returns {
    /// Number of addresses that it keeps. One more overwrites the oldest.
    pub depth: NonZeroU32,
    pub underflow: Underflow,
    pub source: String,
}

/// The prediction of a return whose call is not on the stack.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Underflow {
    /// It is wrong.
    #[default]
    Wrong,
    /// The return is predicted as an indirect branch: to its last target.
    LastTarget,
}

/// Costs in cycles: sizes decide how often, the numbers of cycles how much.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Cycles {
    pub pipeline: Pipeline,
    pub caches: Caches,
    pub tlbs: Tlbs,
    pub instructions: Instructions,
}

/// Instructions that cost nothing special, and branches.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Pipeline {
    /// Instructions of a cycle, at most. Each costs its part.
    pub width: NonZeroU32,
    /// Cycles of a mispredicted branch.
    pub mispredicted: u32,
    /// Cycles of a taken branch.
    pub taken: u32,
    pub source: String,
}

/// The caches of a core, and those that it shares.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Caches {
    pub l1i: Cache,
    pub l1d: Cache,
    pub l2: Cache,
    pub l3: Cache,
    /// Cycles of an access to what the second level has.
    pub l2_cycles: u32,
    /// Cycles of an access to what only the third level has.
    pub l3_cycles: u32,
    /// Cycles of an access to what no cache has.
    pub memory_cycles: u32,
    pub prefetch: Prefetch,
    pub source: String,
}

/// Lines that come before they are asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Prefetch {
    Nothing,
    /// After data in two neighbouring lines, one after the other, the page's next line.
    Streams,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Cache {
    /// Its size, in KiB.
    pub kib: NonZeroU32,
    /// Lines of a set.
    pub ways: NonZeroU32,
}

/// The caches of address translations.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Tlbs {
    pub code: Tlb,
    pub data: Tlb,
    /// The second level, of both.
    pub l2: Tlb,
    /// Cycles of a translation that the second level has.
    pub l2_cycles: u32,
    /// Cycles of a translation that only the page table has.
    pub walk_cycles: u32,
    pub source: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Tlb {
    /// The number of pages that it knows.
    pub entries: NonZeroU32,
    /// Entries of a set: all, if a page may be anywhere.
    pub ways: NonZeroU32,
}

/// Cycles of instructions and events that take long by themselves.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Instructions {
    /// Cycles of an atomic instruction: x86-64's with a lock, arm64's atomics and exclusive stores.
    pub atomic: u32,
    /// Cycles of a barrier: `lfence`, `mfence`, `dmb`, `dsb`.
    pub fence: u32,
    /// Cycles of `cpuid`, `serialize`, `isb`.
    pub serializing: u32,
    /// Cycles of a write of a control register or MSR.
    pub system_register: u32,
    /// Cycles of `invlpg`, `tlbi`.
    pub invalidation: u32,
    /// Cycles from an interrupt or exception to its handler.
    pub exception: u32,
    /// Cycles of `iret`, `eret`.
    pub exception_return: u32,
    /// Cycles of `syscall`, `svc`.
    pub system_call: u32,
    /// Cycles of `sysret`.
    pub system_call_return: u32,
    pub source: String,
}

/// True if addresses of code and data decide how often it happens, and so the build.
pub fn hangs_on_addresses(event: Event) -> bool {
    match event {
        Event::MispredictedConditional
        | Event::CodeL2
        | Event::CodeL3
        | Event::CodeMemory
        | Event::DataL2
        | Event::DataL3
        | Event::DataMemory
        | Event::CodeTlb
        | Event::CodeWalk
        | Event::DataTlb
        | Event::DataWalk => true,
        Event::MispredictedReturn
        | Event::MispredictedIndirect
        | Event::TakenBranch
        | Event::Return
        | Event::Atomic
        | Event::Fence
        | Event::Serializing
        | Event::SystemRegister
        | Event::Invalidation
        | Event::Exception
        | Event::ExceptionReturn
        | Event::SystemCall
        | Event::SystemCallReturn => false,
    }
}

/// Instructions of a cycle that no CPU exceeds.
const WIDEST: u32 = 64;
/// Cycles that no single event takes.
const SLOWEST: u32 = 100_000;

/// Thousandths of a cycle.
pub const MILLI: u64 = 1000;

impl Cycles {
    /// Cycles of an event.
    pub fn of(&self, event: Event) -> u32 {
        let Cycles { pipeline, caches, tlbs, instructions } = self;
        match event {
            Event::MispredictedReturn
            | Event::MispredictedIndirect
            | Event::MispredictedConditional => pipeline.mispredicted,
            Event::TakenBranch => pipeline.taken,
            // It costs what an instruction does.
            Event::Return => 0,
            Event::CodeL2 | Event::DataL2 => caches.l2_cycles,
            Event::CodeL3 | Event::DataL3 => caches.l3_cycles,
            Event::CodeMemory | Event::DataMemory => caches.memory_cycles,
            Event::CodeTlb | Event::DataTlb => tlbs.l2_cycles,
            Event::CodeWalk | Event::DataWalk => tlbs.walk_cycles,
            Event::Atomic => instructions.atomic,
            Event::Fence => instructions.fence,
            Event::Serializing => instructions.serializing,
            Event::SystemRegister => instructions.system_register,
            Event::Invalidation => instructions.invalidation,
            Event::Exception => instructions.exception,
            Event::ExceptionReturn => instructions.exception_return,
            Event::SystemCall => instructions.system_call,
            Event::SystemCallReturn => instructions.system_call_return,
        }
    }

    /// Estimated thousandths of a cycle.
    pub fn milli(&self, instructions: u64, events: &Events) -> u64 {
        let own = instructions.saturating_mul(MILLI) / u64::from(self.pipeline.width.get());
        events.iter().fold(own, |sum, (&event, &count)| {
            let each = u64::from(self.of(event)) * MILLI;
            sum.saturating_add(count.saturating_mul(each))
        })
    }

    /// Why no CPU has these numbers.
    fn implausible(&self) -> Option<String> {
        let Cycles { pipeline, caches, .. } = self;
        if pipeline.width.get() > WIDEST {
            return Some(format!("`width: {}`: expected at most {WIDEST}", pipeline.width));
        }
        let Caches { l2_cycles, l3_cycles, memory_cycles, .. } = caches;
        if !(l2_cycles <= l3_cycles && l3_cycles <= memory_cycles) {
            return Some(format!(
                "`l2_cycles: {l2_cycles}`, `l3_cycles: {l3_cycles}`, \
                 `memory_cycles: {memory_cycles}`: expected no level faster than the one before"
            ));
        }
        let Caches { l1i, l1d, l2, l3, .. } = caches;
        let left = |of: &Cache| (u64::from(of.kib.get()) * 1024 / LINE) % u64::from(of.ways.get());
        let named = [("l1i", l1i), ("l1d", l1d), ("l2", l2), ("l3", l3)];
        if let Some((name, Cache { kib, ways })) = named.into_iter().find(|(_, of)| left(of) != 0) {
            return Some(format!(
                "`{name}: {{ kib: {kib}, ways: {ways} }}`: expected whole sets of lines of {LINE} \
                 bytes"
            ));
        }
        let slowest = Event::ALL.map(|event| self.of(event)).into_iter().max()?;
        (slowest > SLOWEST)
            .then(|| format!("`{slowest}` cycles of one event: expected at most {SLOWEST}"))
    }

    /// The parts that the plugin models. An error names sizes and numbers that no CPU has.
    pub fn parts(&self, returns: Option<&Returns>) -> Result<Parts, String> {
        if let Some(why) = self.implausible() {
            return Err(why);
        }
        let Cycles { caches, tlbs, .. } = self;
        let shape = |entries: u64, ways: NonZeroU32| Shape {
            // One that is too large stays too large.
            entries: u32::try_from(entries).unwrap_or(u32::MAX),
            ways: ways.get(),
        };
        let cache = |of: Cache| shape(u64::from(of.kib.get()) * 1024 / LINE, of.ways);
        let tlb = |of: Tlb| shape(of.entries.get().into(), of.ways);
        let parts = Parts {
            l1i: cache(caches.l1i),
            l1d: cache(caches.l1d),
            l2: cache(caches.l2),
            l3: cache(caches.l3),
            itlb: tlb(tlbs.code),
            dtlb: tlb(tlbs.data),
            l2_tlb: tlb(tlbs.l2),
            returns: returns.map_or(USUAL_RETURNS, |returns| returns.depth.get()),
            last_target: returns.is_some_and(|returns| returns.underflow == Underflow::LastTarget),
            streams: caches.prefetch == Prefetch::Streams,
        };
        parts.checked().map_err(|error| error.to_string())
    }
}

/// Entries of a return stack that no CPU describes.
pub const USUAL_RETURNS: u32 = 16;

/// The families of branch records that are modelled.
pub const FAMILIES: [&str; 4] = ["intel-lbr", "arch-lbr", "amd-lbrv2", "brbe"];

/// A CPU by its name: the name of its file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Named {
    /// The name of its file.
    pub name: String,
    pub cpu: Cpu,
}

impl Named {
    /// Why its machines have no branch records that a snapshot takes.
    pub fn recordless(&self) -> Option<String> {
        let why = self.cpu.branches.none.as_ref()?;
        Some(format!("{} has no branch records that a snapshot takes: {why}", self.name))
    }
}

/// A guest's state of a vulnerability, of the lines of `/sys/devices/system/cpu/vulnerabilities`:
/// `NAME: STATE`.
pub fn state<'a>(states: &'a [String], name: &str) -> Option<&'a str> {
    let mut lines = states.iter().filter_map(|line| line.split_once(": "));
    lines.find(|(known, _)| *known == name).map(|(_, state)| state)
}

/// True if a state has these words. Kernels differ in `Safe RET` and `safe RET`.
pub fn says(state: &str, words: &str) -> bool {
    state.to_lowercase().contains(&words.to_lowercase())
}

/// True if the kernel returns by SRSO's thunks. Without its microcode the state is still
/// `Vulnerable: Safe RET, no microcode` (K arch/x86/kernel/cpu/bugs.c).
pub fn returns_safely(state: &str) -> bool {
    // `Vulnerable: Microcode, no safe RET`
    says(state, "safe RET") && !says(state, "no safe RET")
}

/// The first mitigation that a guest lacks of those that it must show, in words.
pub fn lacking(shows: &[String], states: &[String]) -> Option<String> {
    shows.iter().find_map(|wanted| {
        let Some((name, wanted)) = wanted.split_once(": ") else {
            return Some(format!("`{wanted}` is not of the form NAME: STATE"));
        };
        match state(states, name) {
            None => Some(format!("this kernel knows no {name}, which was to be `{wanted}`")),
            Some(state) if says(state, wanted) => None,
            Some(state) => Some(format!("{name} is `{state}`, not `{wanted}`")),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cycles() -> Cycles {
        let source = String::new;
        let number = |n| NonZeroU32::new(n).unwrap();
        let cache = |kib, ways| Cache { kib: number(kib), ways: number(ways) };
        let tlb = |entries, ways| Tlb { entries: number(entries), ways: number(ways) };
        Cycles {
            pipeline: Pipeline { width: number(6), mispredicted: 13, taken: 0, source: source() },
            caches: Caches {
                l1i: cache(32, 8),
                l1d: cache(48, 12),
                l2: cache(512, 8),
                l3: cache(33792, 11),
                l2_cycles: 12,
                l3_cycles: 47,
                memory_cycles: 300,
                prefetch: Prefetch::Streams,
                source: source(),
            },
            tlbs: Tlbs {
                code: tlb(64, 64),
                data: tlb(96, 6),
                l2: tlb(1536, 12),
                l2_cycles: 7,
                walk_cycles: 19,
                source: source(),
            },
            instructions: Instructions {
                atomic: 1,
                fence: 2,
                serializing: 3,
                system_register: 4,
                invalidation: 5,
                exception: 6,
                exception_return: 7,
                system_call: 8,
                system_call_return: 9,
                source: source(),
            },
        }
    }

    #[test]
    fn weighs_each_event_by_its_own_number() {
        let expected =
            [13, 13, 13, 0, 0, 12, 47, 300, 12, 47, 300, 7, 19, 7, 19, 1, 2, 3, 4, 5, 6, 7, 8, 9];
        assert_eq!(Event::ALL.map(|event| cycles().of(event)), expected);
        assert_eq!(cycles().milli(1, &Events::new()), 166);
        let events = Events::from([(Event::DataL2, 2), (Event::Atomic, 1)]);
        assert_eq!(cycles().milli(6, &events), 26_000);
        let most = Events::from([(Event::DataL2, u64::MAX)]);
        assert_eq!(cycles().milli(u64::MAX, &most), u64::MAX);
    }

    #[test]
    fn sizes_caches_in_lines() {
        let parts = cycles().parts(None).unwrap();
        assert_eq!(
            parts.to_string(),
            "512x8:768x12:8192x8:540672x11:64x64:96x6:1536x12:16:wrong:streams"
        );
        let returns = Returns {
            depth: NonZeroU32::new(20).unwrap(),
            underflow: Underflow::LastTarget,
            source: String::new(),
        };
        let parts = cycles().parts(Some(&returns)).unwrap();
        assert_eq!((parts.returns, parts.last_target), (20, true));
        let mut wrong = cycles();
        wrong.caches.l2.ways = NonZeroU32::new(7).unwrap();
        let why = wrong.parts(None).unwrap_err();
        assert!(why.starts_with("`l2: { kib: 512, ways: 7 }`: expected"), "{why}");
        let deep = Returns { depth: NonZeroU32::new(5000).unwrap(), ..returns };
        assert!(cycles().parts(Some(&deep)).unwrap_err().starts_with("`5000`: expected"));
    }

    #[test]
    fn refuses_numbers_that_no_cpu_has() {
        let because = |change: fn(&mut Cycles)| {
            let mut wrong = cycles();
            change(&mut wrong);
            wrong.parts(None).unwrap_err()
        };
        for (found, named) in [
            (because(|of| of.pipeline.width = NonZeroU32::MAX), "`width: 4294967295`"),
            (because(|of| of.caches.memory_cycles = 46), "`memory_cycles: 46`"),
            (because(|of| of.caches.l2_cycles = 48), "`l2_cycles: 48`"),
            (because(|of| of.instructions.exception = 100_001), "`100001` cycles"),
            (because(|of| of.tlbs.walk_cycles = u32::MAX), "`4294967295` cycles"),
            (
                because(|of| of.caches.l1d.ways = NonZeroU32::MIN.saturating_add(6)),
                "`l1d: { kib: 48",
            ),
        ] {
            assert!(found.contains(named) && found.contains("expected"), "{found}");
        }
    }

    #[test]
    fn names_the_mitigation_that_a_guest_lacks() {
        // Of Debian's 7.2 on QEMU's EPYC-Genoa.
        let states = [
            "spec_rstack_overflow: Vulnerable: Safe RET, no microcode",
            "spectre_v2: Mitigation: Retpolines; STIBP: disabled; BHI: Not affected",
            "retbleed: Not affected",
        ]
        .map(str::to_owned);
        let lacks = |wanted: &str| lacking(&[wanted.to_owned()], &states);
        assert_eq!(lacks("spec_rstack_overflow: Safe RET"), None);
        assert_eq!(lacks("spectre_v2: Retpoline"), None);
        assert_eq!(lacks("spec_rstack_overflow: safe ret"), None);
        for (wanted, why) in [
            ("retbleed: Stuffing", "retbleed is `Not affected`, not `Stuffing`"),
            (
                "spec_rstack: Safe RET",
                "this kernel knows no spec_rstack, which was to be `Safe RET`",
            ),
            ("spectre_v2", "`spectre_v2` is not of the form NAME: STATE"),
        ] {
            assert_eq!(lacks(wanted).as_deref(), Some(why));
        }
        assert_eq!(lacking(&[], &states), None);
    }
}
