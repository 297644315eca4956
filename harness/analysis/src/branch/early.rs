// SPDX-License-Identifier: MIT OR Apache-2.0
//! What-if capture points: the records of a hit, had the kernel taken the snapshot earlier on the
//! way from the traced function to the program. `docs/branch-records.md` has the rules.

use super::{symbols, waste};
use strum::{EnumCount, IntoStaticStr, VariantArray};
use tramplab_model::run::{NamedRecord, Place};
use tramplab_protocol::{Mechanism, mechanism::Way, message::Symbol, trace::Kind};

#[cfg(test)]
mod tests;

/// A place on that way.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, EnumCount, IntoStaticStr, VariantArray,
)]
#[strum(serialize_all = "snake_case")]
pub enum Stage {
    /// The first trampoline: BPF's, ftrace's, or that of a return.
    Trampoline,
    /// The first instruction of `__bpf_prog_enter*`, which only BPF trampolines call.
    ProgEnter,
    /// The code that calls the program. In BPF trampolines: the call of the program. Elsewhere: the
    /// start of the function that runs programs.
    ProgRun,
    /// The first instruction of the program.
    Program,
}

impl Stage {
    pub const ALL: [Stage; Stage::COUNT] = *Stage::VARIANTS.first_chunk().unwrap();

    pub fn name(self) -> &'static str {
        self.into()
    }
}

/// ftrace's trampolines and those of returns, by the names of kallsyms. `ftrace_trampoline` is the
/// copy of `ftrace_caller` that x86-64 makes for one ops.
const TRAMPOLINES: [&str; 6] = [
    "ftrace_caller",
    "ftrace_regs_caller",
    "ftrace_trampoline",
    "arch_rethook_trampoline",
    "return_to_handler",
    "__kretprobe_trampoline",
];

/// The functions that `kprobe_multi_link_prog_run` is inlined into.
const MULTI_HANDLERS: [&str; 2] = ["kprobe_multi_link_handler", "kprobe_multi_link_exit_handler"];
/// The functions that it calls before the program.
const MULTI_PROTECTS: [&str; 2] = ["__rcu_read_lock", "migrate_disable"];

/// The target of the added record.
const SNAPSHOT: &str = "perf_snapshot_branch_stack";

/// Returns the records of a snapshot at a stage, newest first: its call, added by rule, and the
/// records that led to the stage. `None` if the way has no such stage. `records` are those of
/// today's snapshot, newest first.
pub fn taken_at(
    stage: Stage,
    mechanism: Mechanism,
    records: &[NamedRecord],
    function: &Symbol,
) -> Option<Vec<NamedRecord>> {
    let (from, kept) = Hit::find(records, function)?.stage(stage, mechanism.way())?;
    let to = Place { address: 0, symbol: Some(SNAPSHOT.to_owned()), module: None, offset: 0 };
    // Kernel and program call it alike: directly on x86-64, through a pointer on arm64.
    let kind = records.first().map_or(Kind::Call, |today| today.kind);
    let snapshot = NamedRecord { from: from.clone(), to, kind, modelled: true };
    Some([&[snapshot], &records[kept..]].concat())
}

/// The part of a capture point's records between function and program.
struct Hit<'a> {
    records: &'a [NamedRecord],
    /// Index of the record that enters the program.
    program: usize,
    /// Index of the newest record that touches the function.
    left: usize,
}

impl<'a> Hit<'a> {
    fn find(records: &'a [NamedRecord], function: &Symbol) -> Option<Hit<'a>> {
        let touches = |r: &NamedRecord| {
            waste::contains(function, &r.from) || waste::contains(function, &r.to)
        };
        let left = records.iter().position(touches)?;
        // Subprograms and helpers are entered from, or return into, a program.
        let enters =
            |r: &NamedRecord| r.to.offset == 0 && is_program(&r.to) && !is_program(&r.from);
        let program = records[..=left].iter().position(enters)?;
        Some(Hit { records, program, left })
    }

    /// Returns the place of the snapshot's call and the index of the newest record before it.
    fn stage(&self, stage: Stage, way: Way) -> Option<(&'a Place, usize)> {
        let at = |index: usize| (&self.records[index].to, index);
        match (stage, way) {
            (Stage::Trampoline, Way::Tracepoint) => None,
            (Stage::Trampoline, Way::BpfTrampoline) => self.first(is_bpf_trampoline).map(at),
            (Stage::Trampoline, Way::Kprobe | Way::Fprobe | Way::Uprobe) => {
                self.first(|to| is_one(to, &TRAMPOLINES)).map(at)
            }
            (Stage::ProgEnter, Way::BpfTrampoline) => {
                self.last(|to| starts(to, "__bpf_prog_enter")).map(at)
            }
            (Stage::ProgEnter, _) => None,
            (Stage::ProgRun, Way::BpfTrampoline) => self.before(self.program),
            // No waste test has uprobes.
            (Stage::ProgRun, Way::Kprobe | Way::Uprobe) => {
                self.last(|to| starts(to, "trace_call_bpf")).map(at)
            }
            // The second runs programs of classic tracepoints.
            (Stage::ProgRun, Way::Tracepoint) => {
                self.last(|to| starts(to, "bpf_trace_run") || starts(to, "trace_call_bpf")).map(at)
            }
            (Stage::ProgRun, Way::Fprobe) => self
                .last(|to| starts(to, "kprobe_multi_link_prog_run"))
                .map(at)
                .or_else(|| self.before(self.first_of_inlined_prog_run()?)),
            (Stage::Program, _) => Some(at(self.program)),
        }
    }

    /// Finds the oldest record into such code.
    fn first(&self, is: impl Fn(&Place) -> bool) -> Option<usize> {
        (self.program..=self.left).rev().find(|&index| is(&self.records[index].to))
    }

    /// Finds the newest record into such code.
    fn last(&self, is: impl Fn(&Place) -> bool) -> Option<usize> {
        (self.program..=self.left).find(|&index| is(&self.records[index].to))
    }

    /// Right before a record: its own place, and the index of the record before it.
    fn before(&self, index: usize) -> Option<(&'a Place, usize)> {
        (index < self.left).then(|| (&self.records[index].from, index + 1))
    }

    /// Finds the first call that the handler makes for `kprobe_multi_link_prog_run`; the handler's
    /// other calls come before it. That of the program may lead through a thunk.
    fn first_of_inlined_prog_run(&self) -> Option<usize> {
        let handler = self.last(|to| to.offset == 0 && is_one(to, &MULTI_HANDLERS))?;
        let leaves = |to: &dyn Fn(&Place) -> bool, index: &usize| {
            let record = &self.records[*index];
            is_one(&record.from, &MULTI_HANDLERS) && to(&record.to)
        };
        let protects = |to: &Place| is_one(to, &MULTI_PROTECTS);
        let way = self.program..handler;
        way.clone()
            .rev()
            .find(|index| leaves(&protects, index))
            .or_else(|| way.clone().find(|index| leaves(&|to| !is_one(to, &MULTI_HANDLERS), index)))
    }
}

/// True for a function of one of the names. Compilers add `.isra.0` and the like.
fn is_one(place: &Place, names: &[&str]) -> bool {
    let symbol = place.symbol.as_deref().unwrap_or_default();
    names.contains(&symbol.split('.').next().unwrap_or_default())
}

/// True for the first instruction of a function whose name starts so: `bpf_trace_run2`,
/// `__bpf_prog_enter_sleepable_recur`, `kprobe_multi_link_prog_run.isra.0`.
fn starts(place: &Place, name: &str) -> bool {
    place.offset == 0 && place.symbol.as_ref().is_some_and(|symbol| symbol.starts_with(name))
}

fn is_bpf(place: &Place, prefix: &str) -> bool {
    place.module.as_deref() == Some("bpf")
        && place.symbol.as_ref().is_some_and(|symbol| symbol.starts_with(prefix))
}

fn is_bpf_trampoline(place: &Place) -> bool {
    is_bpf(place, symbols::TRAMPOLINE)
}

fn is_program(place: &Place) -> bool {
    is_bpf(place, symbols::PROGRAM)
}
