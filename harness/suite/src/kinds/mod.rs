// SPDX-License-Identifier: MIT OR Apache-2.0
//! The kinds of test: their keys in a suite's file, the work of their cells, their own verdicts.
//!
//! Each kind has a file. A [`Group`] of a suite's file makes the [`Work`] of cells. A planned cell
//! is that work on a kernel.

pub mod attach;
pub mod bench;
pub mod boot;
pub mod fault;
pub mod kselftest;
pub mod lbr_waste;
pub mod survive;
pub mod targets;
pub mod test_progs;
pub mod trigger;

use crate::{
    Budget,
    guest::{Booted, Stop},
    program::{Kept, Program, Programs},
    tree_tests::failures,
    yaml::Mechanisms,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::{collections::BTreeSet, path::Path, time::Duration};
use tramplab_host::config::ConfigError;
use tramplab_kernel::compile::TreeTests;
use tramplab_model::{
    function::NotAFunction,
    kinds::Metric,
    run::{Accel, Backend, Cell, Clock, ErrorKind, Measurement, Test},
    tree_tests::WantedTests,
};
use tramplab_protocol::{Mechanism, message::Command};
use tramplab_vm::Feature;

/// Tests of a suite's file that share their parameters.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum TestGroup {
    LbrWaste(lbr_waste::Group),
    Attach(attach::Group),
    #[serde(deserialize_with = "trigger::untimed_if_estimated")]
    Trigger(trigger::Group),
    Boot(boot::Group),
    Bench(bench::Group),
    TestProgs(test_progs::Group),
    Kselftest(kselftest::Group),
    Survive(survive::Group),
    Fault(fault::Group),
}

/// The content of any variant of [`TestGroup`] or [`Work`].
macro_rules! of_kind {
    ($all:ident, $one:expr) => {
        match $one {
            $all::LbrWaste(one) => one,
            $all::Attach(one) => one,
            $all::Trigger(one) => one,
            $all::Boot(one) => one,
            $all::Bench(one) => one,
            $all::TestProgs(one) => one,
            $all::Kselftest(one) => one,
            $all::Survive(one) => one,
            $all::Fault(one) => one,
        }
    };
}

/// A group of any kind.
pub trait Group {
    /// The work of its cells on one kernel. If kernels are `compared`, timed work has as many boots
    /// as statistics need.
    fn work(&self, compared: bool) -> Vec<Work>;

    /// Adds the tree's own tests that the group runs. Returns false if it runs none. A series
    /// brings `files` in `prog_tests/`.
    fn add_tree_tests(&self, _wanted: &mut WantedTests, _files: &BTreeSet<String>) -> bool {
        false
    }

    /// Hits its functions by this line for the guest's shell. Returns false if it hits none.
    fn trigger(&mut self, _line: &str) -> bool {
        false
    }

    /// Traces these functions instead of the suite's. Returns false if it traces none. An error if
    /// its cells have one function each, and a set holds a pattern.
    fn trace(&mut self, _sets: &[targets::TargetSet]) -> Result<bool, NotAFunction> {
        Ok(false)
    }

    /// The user's programs that it measures.
    fn programs(&self) -> &[Program] {
        &[]
    }

    /// Its mechanisms and the user's programs. None if it measures no programs.
    fn attached(&mut self) -> Option<(&Mechanisms, &mut Programs)> {
        None
    }

    /// Reads the programs that the file `suite` names for it.
    fn read(&mut self, suite: &Path, kept: &Kept) -> Result<(), ConfigError> {
        self.attached().map_or(Ok(()), |(_, programs)| programs.read(suite, kept))
    }

    /// Measures these programs instead of the suite's. Returns false if it measures none of them.
    fn attach(&mut self, all: &[Program]) -> bool {
        self.attached().is_some_and(|(mechanisms, programs)| {
            *programs = Programs::of(all, &mechanisms.0);
            !programs.is_empty()
        })
    }

    /// The reason why it cannot be measured anywhere.
    fn misfit(&self) -> Option<String> {
        None
    }
}

impl TestGroup {
    /// A group of this one test, which measures only what the metric needs.
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
            Test::Trigger(test) => {
                let cost = metric.and_then(|metric| match metric {
                    Metric::Trigger(metric) => Some(metric.cost),
                    _ => None,
                });
                TestGroup::Trigger(trigger::Group::only(test, cost))
            }
            Test::Bench(test) => TestGroup::Bench(bench::Group::only(test)),
            Test::TestProgs(test) => TestGroup::TestProgs(test_progs::Group::only(test)),
            Test::Kselftest(test) => TestGroup::Kselftest(kselftest::Group::only(test)),
            Test::Survive(test) => TestGroup::Survive(survive::Group::only(test)),
            // Building needs a valid suite. This group measures nothing.
            Test::Build | Test::Boot => TestGroup::Boot(boot::Group {}),
            Test::Fault(test) => TestGroup::Fault(fault::Group { faults: vec![test.fault] }),
        }
    }

    pub fn group_mut(&mut self) -> &mut dyn Group {
        of_kind!(TestGroup, self)
    }

    pub fn group(&self) -> &dyn Group {
        of_kind!(TestGroup, self)
    }
}

/// A cell's test, with the parameters that are not in the test's name.
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
    Survive(survive::Work),
    Fault(fault::Work),
}

/// Additions to a guest's root.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Needs {
    /// Modules to load, by the kernel's names.
    pub modules: BTreeSet<String>,
    /// A shell with its programs.
    pub shell: bool,
}

/// Work of any kind. The bodies here suit most kinds.
pub trait Kind {
    fn test(&self) -> Test;

    /// True if it reads the host's clock: nothing else may run at the same time.
    fn is_timed(&self) -> bool;

    /// Measures in a guest that has booted.
    fn measure(&self, booted: &mut Booted) -> Result<Measurement, Stop>;

    /// True if its guests may be restored from a snapshot. All guests of one snapshot have the same
    /// random addresses, and a root without the tree's tests.
    fn may_restore(&self) -> bool {
        false
    }

    /// Keeps only the numbers that repeat at every boot. Returns false if there are none.
    fn reduce_to_exact(&mut self) -> bool {
        false
    }

    /// Keeps only the harmless numbers that need no guest, of at most `most` functions and programs
    /// at once. The reason if there are none.
    fn on_this_machine(&mut self, _most: u32) -> Option<String> {
        Some(format!("{} runs in guests only; use --vm qemu", self.test().name()))
    }

    /// The clock of each guest, in order.
    fn clocks(&self, _cpus: u32, _backend: Backend) -> Vec<Clock> {
        vec![Clock::Free]
    }

    /// The reason why it needs TCG: the plugin's counts, or the exact clock.
    fn only_tcg(&self) -> Option<&'static str> {
        None
    }

    /// The reason why it cannot run in a guest with so many CPUs.
    fn too_many_cpus(&self, _cpus: u32) -> Option<String> {
        None
    }

    /// The exact clock, if it needs it.
    fn exact_clock(&self) -> Option<Feature> {
        None
    }

    /// Mechanisms that the kernel must have.
    fn mechanisms(&self) -> Vec<Mechanism> {
        Vec::new()
    }

    /// True if it estimates cycles.
    fn estimates(&self) -> bool {
        false
    }

    /// True if guests under TCG run with the plugin, which slows all code down.
    fn uses_plugin(&self) -> bool {
        !self.test().is_of_the_tree()
    }

    /// The measurement of a guest whose kernel died or warned while it ran the test, if that is what
    /// the test measures.
    fn died(&self, _kind: ErrorKind, _title: &str) -> Option<Measurement> {
        None
    }

    /// Finds a smaller test that fails in the same way, and keeps it in the cell's folder. `run`
    /// measures one in a guest of its own.
    fn shrink(
        &self,
        measured: Measurement,
        _folder: &Path,
        _run: &mut dyn FnMut(Work) -> Result<Measurement, Stop>,
    ) -> Measurement {
        measured
    }

    /// The additions to the root of its guest.
    fn needs(&self) -> Needs {
        Needs::default()
    }

    /// True if programs in its guest ask for branch records.
    fn asks_for_records(&self) -> bool {
        false
    }

    /// True if it measures this metric of its test under the accelerator.
    fn measures(&self, _metric: &Metric, _accel: Accel) -> bool {
        true
    }

    /// True if the tree has the test. Tests that are not the tree's own always return true.
    fn is_in(&self, _tree: &TreeTests) -> bool {
        true
    }

    /// The reason why a tree's own test is not run on the tree's kernel. If it is run, takes over
    /// the subtests that the tree denies.
    fn refuse(&mut self, _tree: &TreeTests) -> Option<String> {
        None
    }

    /// Gives up estimates, and keeps the reason for the report.
    fn refuse_estimates(&mut self, _why: String) {}

    /// Commands that a guest with the exact clock runs before it answers, and their time limit.
    fn commands(&self, _clock: Clock, _is_last: bool) -> (Vec<Command>, Duration) {
        (Vec::new(), Duration::ZERO)
    }
}

impl Work {
    pub fn kind(&self) -> &dyn Kind {
        of_kind!(Work, self)
    }

    pub fn kind_mut(&mut self) -> &mut dyn Kind {
        of_kind!(Work, self)
    }

    pub fn test(&self) -> Test {
        self.kind().test()
    }
}

/// The reasons why a cell fails by the rules of its kind. `budget` judges bounds of metrics.
pub fn reasons(cell: &Cell, budgets: &[Budget]) -> Vec<String> {
    match &cell.id.test {
        Test::LbrWaste(_) => lbr_waste::over_budget(cell, budgets),
        Test::TestProgs(_) => failures("test_progs", cell),
        Test::Kselftest(_) => failures("the program", cell),
        Test::Survive(_) => survive::reasons(cell),
        Test::Attach(_)
        | Test::Trigger(_)
        | Test::Bench(_)
        | Test::Build
        | Test::Boot
        | Test::Fault(_) => Vec::new(),
    }
}

/// Most seconds that one of the tree's own tests may take. Nextest kills a cell later than that,
/// boot included (`configs/nextest.toml`).
const LONGEST: u32 = 3000;

/// The reason why a test may not take so many seconds.
fn too_long(seconds: u32) -> Option<String> {
    (seconds > LONGEST)
        .then(|| format!("`seconds: {seconds}` is more than a cell may take: {LONGEST} at most"))
}

/// Boots of a compared timed cell, if the suite does not say.
pub(crate) const COMPARED_BOOTS: u32 = 6;
/// Fewer boots are not judged, and that would look like a pass.
const FEWEST_BOOTS: u32 = 4;
