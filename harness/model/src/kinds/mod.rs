// SPDX-License-Identifier: MIT OR Apache-2.0
//! The kinds of test: names of their cells and metrics, and their measurements in `run.json`.
//!
//! Each kind has a file of its name here, in `suite::kinds`, in `analysis::compare::kinds` and in
//! `report::kinds`. One enum in each layer lists all kinds. Names are parsed only here.

// A stranger's run may have any number: saturate, or use floating point.
#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects, clippy::disallowed_methods))]

/// A test with one parameter, which is also its name.
macro_rules! one_parameter {
    ($schema:literal, $parameter:ident: $of:ty) => {
        /// Its only metric takes the same parameters.
        #[derive(
            Clone,
            Copy,
            Debug,
            PartialEq,
            Eq,
            PartialOrd,
            Ord,
            Hash,
            serde::Serialize,
            serde::Deserialize,
            schemars::JsonSchema,
        )]
        #[serde(deny_unknown_fields)]
        #[schemars(rename = $schema)]
        pub struct Test {
            pub $parameter: $of,
        }

        impl Test {
            pub fn parse(name: &str) -> Option<Test> {
                Some(Test { $parameter: name.parse().ok()? })
            }
        }

        impl std::fmt::Display for Test {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                self.$parameter.fmt(f)
            }
        }
    };
}
use one_parameter;

pub mod attach;
pub mod bench;
pub mod fault;
pub mod kselftest;
pub mod lbr_waste;
mod metric;
pub mod survive;
pub mod test_progs;
pub mod trigger;

pub use metric::{Definition, Metric, Repeats, Tolerance, UnknownMetric};

use crate::{
    name::{Marked, split},
    program::{OF, ProgramName},
    tree_tests::TreeTest,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::str::FromStr;
use strum::{EnumCount, EnumDiscriminants, EnumString, IntoStaticStr, VariantArray};
use tramplab_protocol::{Beside, BesideSet, Mechanism};

/// A test: its kind, and the parameters in its name.
#[derive(
    Clone,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Serialize,
    Deserialize,
    JsonSchema,
    EnumDiscriminants,
)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
#[strum_discriminants(name(Kind), doc = "A test without its parameters.")]
#[strum_discriminants(derive(EnumCount, EnumString, IntoStaticStr, VariantArray))]
#[strum_discriminants(strum(serialize_all = "snake_case"))]
pub enum Test {
    LbrWaste(lbr_waste::Test),
    Attach(attach::Test),
    Trigger(trigger::Test),
    Bench(bench::Test),
    TestProgs(test_progs::Test),
    Kselftest(kselftest::Test),
    Survive(survive::Test),
    /// Building the kernel: no guest is booted.
    Build,
    /// The kernel boots until the agent reports the guest's facts.
    Boot,
    Fault(fault::Test),
}

impl Kind {
    /// The first word of the names of its cells and metrics.
    pub fn name(self) -> &'static str {
        self.into()
    }

    /// The syntax of its cells' names. None if users do not name its cells.
    fn test_syntax(self) -> Option<&'static str> {
        match self {
            Kind::LbrWaste => Some(lbr_waste::TEST_SYNTAX),
            Kind::Attach => Some(attach::TEST_SYNTAX),
            Kind::Trigger => Some(trigger::TEST_SYNTAX),
            Kind::Bench => Some(bench::TEST_SYNTAX),
            Kind::TestProgs => Some(test_progs::TEST_SYNTAX),
            Kind::Kselftest => Some(kselftest::TEST_SYNTAX),
            Kind::Survive => Some(survive::TEST_SYNTAX),
            Kind::Build | Kind::Boot => Some(self.name()),
            Kind::Fault => None,
        }
    }
}

impl Test {
    pub fn kind(&self) -> Kind {
        self.into()
    }

    /// True if the user names the functions: also by the section of a program, which alone tells
    /// an attach test where its program belongs.
    pub fn names_functions(&self) -> bool {
        match self {
            Test::LbrWaste(test) => test.function.is_some(),
            Test::Trigger(test) => test.function.is_some(),
            Test::Attach(test) => test.among.is_some() || test.program.is_some(),
            Test::Bench(_)
            | Test::TestProgs(_)
            | Test::Kselftest(_)
            | Test::Survive(_)
            | Test::Build
            | Test::Boot
            | Test::Fault(_) => false,
        }
    }

    /// The user's program that it measures.
    pub fn program(&self) -> Option<ProgramName> {
        match self {
            Test::LbrWaste(test) => test.program,
            Test::Attach(test) => test.program,
            Test::Trigger(test) => test.program,
            Test::Bench(_)
            | Test::TestProgs(_)
            | Test::Kselftest(_)
            | Test::Survive(_)
            | Test::Build
            | Test::Boot
            | Test::Fault(_) => None,
        }
    }

    /// True if the kernel tree brings the test.
    pub fn is_of_the_tree(&self) -> bool {
        match self.kind() {
            Kind::Bench | Kind::TestProgs | Kind::Kselftest => true,
            Kind::LbrWaste
            | Kind::Attach
            | Kind::Trigger
            | Kind::Survive
            | Kind::Build
            | Kind::Boot
            | Kind::Fault => false,
        }
    }

    /// `lbr_waste/fexit`, `attach/fentry/100`, `kselftest/perf_events/remove_on_exec`, `boot`.
    pub fn name(&self) -> String {
        let kind = self.kind().name();
        match self {
            Test::LbrWaste(test) => format!("{kind}/{test}"),
            Test::Attach(test) => format!("{kind}/{test}"),
            Test::Trigger(test) => format!("{kind}/{test}"),
            Test::Bench(test) => format!("{kind}/{test}"),
            Test::TestProgs(test) => format!("{kind}/{test}"),
            Test::Kselftest(test) => format!("{kind}/{test}"),
            Test::Survive(test) => format!("{kind}/{test}"),
            Test::Build | Test::Boot => kind.to_owned(),
            Test::Fault(test) => format!("{kind}/{test}"),
        }
    }

    /// Parses a name. `rest` is the part after the kind and a slash.
    fn parse(kind: Kind, rest: Option<&str>) -> Option<Test> {
        Some(match kind {
            Kind::LbrWaste => Test::LbrWaste(lbr_waste::Test::parse(rest?)?),
            Kind::Attach => Test::Attach(attach::Test::parse(rest?)?),
            Kind::Trigger => Test::Trigger(trigger::Test::parse(rest?)?),
            Kind::Bench => Test::Bench(bench::Test::parse(rest?)?),
            Kind::TestProgs => Test::TestProgs(test_progs::Test::parse(rest?)?),
            Kind::Kselftest => Test::Kselftest(kselftest::Test::parse(rest?)?),
            Kind::Survive => Test::Survive(survive::Test::parse(rest?)?),
            Kind::Build => rest.is_none().then_some(Test::Build)?,
            Kind::Boot => rest.is_none().then_some(Test::Boot)?,
            Kind::Fault => Test::Fault(fault::Test::parse(rest?)?),
        })
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown test `{0}`, expected one of: {syntax}", syntax = test_syntax())]
pub struct UnknownTest(String);

fn test_syntax() -> String {
    let all: Vec<&str> = Kind::VARIANTS.iter().filter_map(|kind| kind.test_syntax()).collect();
    all.join(", ")
}

/// Parses the output of [`Test::name`].
impl FromStr for Test {
    type Err = UnknownTest;

    fn from_str(name: &str) -> Result<Test, UnknownTest> {
        let (kind, rest) = match name.split_once('/') {
            Some((kind, rest)) => (kind, Some(rest)),
            None => (name, None),
        };
        let found = kind.parse().ok().and_then(|kind| Test::parse(kind, rest));
        found.ok_or_else(|| UnknownTest(name.to_owned()))
    }
}

/// The measurement of a cell. A build and a fault measure nothing.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Measurement {
    /// The kernel booted. There is no number.
    Boot,
    LbrWaste(lbr_waste::LbrWaste),
    Attach(attach::Attach),
    Trigger(trigger::Trigger),
    Bench(bench::Bench),
    TestProgs(TreeTest),
    Kselftest(TreeTest),
    Survive(survive::Survive),
}

impl Measurement {
    /// Adds what a later guest of the same cell measured.
    pub fn add(&mut self, next: Measurement) {
        match (self, next) {
            (Measurement::Attach(all), Measurement::Attach(next)) => all.add(next),
            (Measurement::Bench(all), Measurement::Bench(next)) => all.boots.extend(next.boots),
            // The other kinds have one guest.
            _ => {}
        }
    }

    /// The places in its branch records.
    pub fn places<'a>(&'a self) -> Vec<&'a Place> {
        match self {
            Measurement::LbrWaste(waste) => {
                let of_point = |point: &'a lbr_waste::CapturePoint| {
                    point.records.iter().chain(point.by_filter.values().flatten())
                };
                let records = waste.points.iter().flat_map(of_point);
                records.flat_map(|record| [&record.from, &record.to]).collect()
            }
            Measurement::Trigger(trigger) => {
                let parts = trigger.cost.iter().flat_map(|cost| &cost.parts);
                let records = parts.flat_map(|part| &part.records);
                let ends = records.flat_map(|record| [&record.from, &record.to]);
                let predicted = trigger.cost.iter().filter_map(|cost| cost.predicted.as_ref());
                let missed = predicted.flat_map(|predicted| &predicted.mispredicted);
                ends.chain(missed.flat_map(|missed| [&missed.from, &missed.to])).collect()
            }
            Measurement::Boot
            | Measurement::Attach(_)
            | Measurement::Bench(_)
            | Measurement::TestProgs(_)
            | Measurement::Kselftest(_)
            | Measurement::Survive(_) => Vec::new(),
        }
    }
}

/// An address with its name.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Place {
    /// An unsigned 64-bit number: a reader that stores numbers as doubles loses its low bits.
    pub address: u64,
    /// None if kallsyms has none for the address.
    pub symbol: Option<String>,
    /// kallsyms' module, `bpf` for programs and trampolines. Absent without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub module: Option<String>,
    /// Bytes from the symbol's start.
    pub offset: u64,
}

/// Makes a name fit into a metric's name, where dots separate the parts.
fn plain(name: &str) -> String {
    name.replace(['.', '/'], "_")
}

/// Finds a mechanism by its name in cells or in metrics: `kprobe.multi`, `kprobe_multi`.
fn mechanism(name: &str) -> Option<Mechanism> {
    Mechanism::ALL.into_iter().find(|known| plain(known.name()) == plain(name))
}

/// The name of a mechanism with the user's program: `fentry`, `kprobe.multi=on_connect`.
pub fn attached(mechanism: Mechanism, program: Option<ProgramName>) -> String {
    format!("{mechanism}{}", Marked(OF, program))
}

/// Parses what [`attached`] prints.
fn programmed(name: &str) -> Option<(Mechanism, Option<ProgramName>)> {
    let (name, program) = split(name, OF)?;
    Some((mechanism(name)?, program))
}

/// Parses what [`BesideSet::with`] prints of what [`attached`] prints.
fn beside(name: &str) -> Option<(Mechanism, Option<ProgramName>, BesideSet)> {
    let mut parts = name.split('+');
    let (of, program) = programmed(parts.next()?)?;
    let beside = parts.map(|part| Beside::parse(part, mechanism).ok());
    let beside = BesideSet::of(beside.collect::<Option<Vec<_>>>()?).ok()?;
    Some((of, program, beside))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_tests_by_their_names() {
        for name in [
            "build",
            "boot",
            "lbr_waste/kprobe.session",
            "lbr_waste/kprobe.multi@__sys_bpf",
            "attach/kprobe.multi/1000",
            "attach/fentry/all",
            "attach/kprobe.multi/all@tcp_*",
            "attach/fentry/10@ext4:ext4_*",
            "trigger/fexit",
            "trigger/fentry+kprobe.multi+function_tracer",
            "trigger/fentry+function_tracer+function_tracer:1",
            "trigger/fentry+kprobe.multi@do_open.isra.0",
            "trigger/fentry+fexit+livepatch@cmdline_proc_show",
            "trigger/fentry+37xfentry+fentry.multi:1000+kprobe.multi:12x1000+function_tracer",
            "trigger/kprobe.multi=on_hit+2xkprobe.multi+kprobe.multi:all@__sys_bpf",
            "attach/kprobe.multi/12x1000",
            "attach/fentry+kprobe.multi:1000/100",
            "attach/kprobe.multi=on_hit+fentry:3+kprobe.multi:12x1000+function_tracer:1/2x5@tcp_*",
            "attach/fentry.multi=on_hit/2x10@tcp_*",
            "lbr_waste/kprobe.session=on_hit",
            "lbr_waste/kprobe.session=on_hit@__sys_bpf",
            "attach/kprobe.multi=on_hit/1000",
            "trigger/fentry=on_connect+kprobe.multi@tcp_connect",
            "bench/trig-fentry",
            "test_progs/fentry_test",
            "kselftest/perf_events/remove_on_exec",
            "survive/7",
            "fault/rcu_stall",
        ] {
            let test: Test = name.parse().unwrap();
            assert_eq!(test.name(), name);
        }
        for name in [
            "",
            "boots",
            "boot/x",
            "lbr_waste",
            "attach/fentry",
            "attach/fentry/0",
            "attach/fentry/1/2",
            "attach/fentry@tcp_*",
            "attach/fentry/all@a b",
            "trigger/fentry+x",
            "trigger/fentry+",
            "trigger/fentry+0xfentry",
            "trigger/fentry+fentry+2xfentry",
            "trigger/fentry+kprobe.multi/1000",
            "trigger/fentry+kprobe:2x10",
            "attach/fentry/2x10",
            "attach/kprobe.multi/2x",
            "attach/fentry+/1",
            "attach/fentry+x/1",
            "attach/fentry/1+kprobe.multi:1000",
            "attach/fentry+kprobe.multi:0/1",
            "attach/fentry+fentry:2+fentry:3/1",
            "attach/fentry+fentry/1",
            "attach/fentry+function_tracer/1",
            "attach/uprobe+kprobe.multi:1/1",
            "trigger/fentry@",
            "lbr_waste/fentry@tcp_*",
            "lbr_waste/fentry=",
            "attach/fentry=a.b/1",
            "trigger/fentry+kprobe.multi=on_connect",
            "trigger/fentry@tcp_connect=on_connect",
            "survive",
            "survive/07",
            "fault/no",
        ] {
            assert!(name.parse::<Test>().is_err(), "{name}");
        }
    }

    /// Old runs and shell histories have it.
    #[test]
    fn reads_the_former_name_of_function_tracer_1() {
        let test: Test = "trigger/fentry+function_tracer_elsewhere".parse().unwrap();
        assert_eq!(test.name(), "trigger/fentry+function_tracer:1");
    }

    #[test]
    fn lists_the_names_of_all_kinds_in_errors() {
        let error = "boots".parse::<Test>().unwrap_err().to_string();
        for words in ["`boots`", "lbr_waste/MECHANISM", "kselftest/FOLDER/PROGRAM", "build, boot"] {
            assert!(error.contains(words), "{words}: {error}");
        }
    }
}
