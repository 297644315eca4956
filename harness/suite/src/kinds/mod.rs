// SPDX-License-Identifier: MIT OR Apache-2.0
//! The kinds of test: what a suite says of them, what their cells do, and how they judge themselves.
//!
//! Each kind has a file. A [`Group`] of a suite's file makes the [`Work`] of cells. A planned cell is that work on a kernel.

pub mod attach;
pub mod bench;
pub mod boot;
pub mod fault;
pub mod kselftest;
pub mod lbr_waste;
pub mod test_progs;
pub mod trigger;

use crate::{
    Budget,
    guest::{Booted, Stop},
};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeSet, time::Duration};
use tramplab_kernel::compile::Selftests;
use tramplab_model::{
    kinds::Metric,
    run::{Accel, Backend, Cell, Clock, Measurement, Test},
    selftests::Wanted,
};
use tramplab_protocol::{Mechanism, message::Command};

/// Tests of a suite's file that share their parameters.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum TestGroup {
    LbrWaste(lbr_waste::Group),
    Attach(attach::Group),
    Trigger(trigger::Group),
    Boot(boot::Group),
    Bench(bench::Group),
    TestProgs(test_progs::Group),
    Kselftest(kselftest::Group),
    Fault(fault::Group),
}

/// What a group of any kind says.
pub trait Group {
    /// Its cells on one kernel. Where kernels are `compared`, timed cells have as many boots as statistics need.
    fn work(&self, compared: bool) -> Vec<Work>;

    /// Adds what it takes of the tree's own tests; false if that is nothing. `files` in `prog_tests/` are a series'.
    fn add_selftests(&self, _wanted: &mut Wanted, _files: &BTreeSet<String>) -> bool {
        false
    }

    /// Why it cannot be measured anywhere.
    fn misfit(&self) -> Option<String> {
        None
    }
}

impl TestGroup {
    /// One test, measured no more than the metric takes.
    pub fn only(test: &Test, metric: Option<&Metric>) -> TestGroup {
        match *test {
            Test::LbrWaste(test) => TestGroup::LbrWaste(lbr_waste::Group::only(test)),
            Test::Attach(test) => {
                let number = metric.and_then(|metric| match metric {
                    Metric::Attach(metric) => Some(metric.number),
                    _ => None,
                });
                TestGroup::Attach(attach::Group::only(test, number))
            }
            Test::Trigger(test) => TestGroup::Trigger(trigger::Group::only(test)),
            Test::Bench(test) => TestGroup::Bench(bench::Group::only(test)),
            Test::TestProgs(test) => TestGroup::TestProgs(test_progs::Group::only(test)),
            Test::Kselftest(test) => TestGroup::Kselftest(kselftest::Group::only(test)),
            // A kernel is built for any test. This one measures nothing.
            Test::Build | Test::Boot => TestGroup::Boot(boot::Group {}),
            Test::Fault(test) => TestGroup::Fault(fault::Group { faults: vec![test.fault] }),
        }
    }

    pub fn group(&self) -> &dyn Group {
        match self {
            TestGroup::LbrWaste(group) => group,
            TestGroup::Attach(group) => group,
            TestGroup::Trigger(group) => group,
            TestGroup::Boot(group) => group,
            TestGroup::Bench(group) => group,
            TestGroup::TestProgs(group) => group,
            TestGroup::Kselftest(group) => group,
            TestGroup::Fault(group) => group,
        }
    }
}

/// What a cell does: its test, with parameters that the test's name does not have.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Work {
    LbrWaste(lbr_waste::Work),
    Attach(attach::Work),
    Trigger(trigger::Work),
    Boot(boot::Work),
    Bench(bench::Work),
    TestProgs(test_progs::Work),
    Kselftest(kselftest::Work),
    Fault(fault::Work),
}

/// The work of any kind. Methods with a body say what most kinds do.
pub trait Kind {
    fn test(&self) -> Test;

    /// Its measurement is that of a guest that has booted, and has not its own addresses at random.
    fn may_restore(&self) -> bool;

    /// Something is measured against the host's clock, and so must run alone.
    fn is_timed(&self) -> bool;

    /// Keeps only what is the same at every boot; false if that is nothing.
    fn reduce_to_exact(&mut self) -> bool;

    /// Measures in a guest that has booted.
    fn measure(&self, booted: &mut Booted) -> Result<Measurement, Stop>;

    /// The clock of each guest, in order.
    fn clocks(&self, _cpus: u32, _backend: Backend) -> Vec<Clock> {
        vec![Clock::Free]
    }

    /// Why only TCG will do: the plugin counts, or the exact clock times.
    fn only_tcg(&self) -> Option<&'static str> {
        None
    }

    /// Why a guest with so many CPUs will not do.
    fn too_many_cpus(&self, _cpus: u32) -> Option<String> {
        None
    }

    /// Why a guest that virtme-ng starts will not do.
    fn no_virtme(&self) -> Option<&'static str> {
        None
    }

    /// The kernel must be able to attach these.
    fn mechanisms(&self) -> Vec<Mechanism> {
        Vec::new()
    }

    /// Programs of its guest ask for branch records.
    fn asks_for_records(&self) -> bool {
        false
    }

    /// It ends with this number of its test under an accelerator.
    fn measures(&self, _metric: &Metric, _accel: Accel) -> bool {
        true
    }

    /// One of the trees has the test.
    fn is_in(&self, _tree: &Selftests) -> bool {
        true
    }

    /// Why a tree's own test is not run on its kernel; else leaves out what the tree denies of it.
    fn refuse(&mut self, _tree: &Selftests) -> Option<String> {
        None
    }

    /// What a guest with the exact clock does before it answers, and how long that may take.
    fn commands(&self, _clock: Clock, _is_last: bool) -> (Vec<Command>, Duration) {
        (Vec::new(), Duration::ZERO)
    }
}

impl Work {
    pub fn kind(&self) -> &dyn Kind {
        match self {
            Work::LbrWaste(work) => work,
            Work::Attach(work) => work,
            Work::Trigger(work) => work,
            Work::Boot(work) => work,
            Work::Bench(work) => work,
            Work::TestProgs(work) => work,
            Work::Kselftest(work) => work,
            Work::Fault(work) => work,
        }
    }

    pub fn kind_mut(&mut self) -> &mut dyn Kind {
        match self {
            Work::LbrWaste(work) => work,
            Work::Attach(work) => work,
            Work::Trigger(work) => work,
            Work::Boot(work) => work,
            Work::Bench(work) => work,
            Work::TestProgs(work) => work,
            Work::Kselftest(work) => work,
            Work::Fault(work) => work,
        }
    }

    pub fn test(&self) -> Test {
        self.kind().test()
    }
}

/// Why a cell fails by the rules of its kind, beside bounds of its metrics.
pub fn reasons(cell: &Cell, budgets: &[Budget]) -> Vec<String> {
    match &cell.id.test {
        Test::LbrWaste(_) => lbr_waste::over_budget(cell, budgets),
        Test::TestProgs(_) => test_progs::failures(cell),
        Test::Kselftest(_) => kselftest::failures(cell),
        Test::Attach(_) | Test::Trigger(_) | Test::Bench(_) | Test::Build | Test::Boot | Test::Fault(_) => {
            Vec::new()
        }
    }
}

/// Why virtme-ng runs no test of the tree's own.
const NOT_PACKED: &str =
    "the tree's own tests are packed into the guest's root, and virtme-ng's is the host's; use --vm qemu";
/// Of one of the tree's own tests, in seconds: less than what ends a cell from outside (`.config/nextest.toml`), its
/// guest's boot included.
const LONGEST: u32 = 3000;

/// Why one of the tree's own tests may not take so long.
fn too_long(seconds: u32) -> Option<String> {
    (seconds > LONGEST)
        .then(|| format!("`seconds: {seconds}` is more than a cell may take: {LONGEST} at most"))
}

/// Boots of timed cells that are compared, where the suite does not say.
pub(crate) const COMPARED_BOOTS: u32 = 6;
/// With fewer no statistics are made: nothing would be judged, and that would look like a pass.
const FEWEST_BOOTS: u32 = 4;
