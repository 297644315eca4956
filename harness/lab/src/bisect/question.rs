// SPDX-License-Identifier: MIT OR Apache-2.0
//! The question to each commit, and the suite of one cell that answers it.

use std::{fmt, str::FromStr};
use tramplab_model::{
    kinds::{Metric, Repeats, Test, UnknownMetric, UnknownTest},
    program::ProgramName,
};
use tramplab_suite::{Kernels, Machine, Suite, TestGroup, program::Shipped};

#[derive(Clone, Debug, PartialEq)]
pub enum Question {
    /// The value of a metric.
    Number(Metric),
    /// How the test ends.
    Ending(Test),
}

impl Question {
    fn of_metric(metric: Metric, name: &str) -> Result<Question, UnknownQuestion> {
        of_own_program(&metric.test(), name)?;
        match &metric {
            Metric::LbrWaste(_) | Metric::Attach(_) | Metric::Trigger(_) => {
                match metric.definition().repeats {
                    Repeats::InOneBoot => Err(UnknownQuestion::OneBoot(name.to_owned())),
                    _ => Ok(Question::Number(metric)),
                }
            }
            Metric::Bench(_) => Err(UnknownQuestion::Rate(name.to_owned())),
            // The only number is how the test ends.
            Metric::TestProgs(_) | Metric::Kselftest(_) | Metric::Survive(_) => {
                Ok(Question::Ending(metric.test()))
            }
        }
    }

    fn of_test(test: Test, name: &str) -> Result<Question, UnknownQuestion> {
        of_own_program(&test, name)?;
        match &test {
            Test::Build
            | Test::Boot
            | Test::LbrWaste(_)
            | Test::Attach(_)
            | Test::Trigger(_)
            | Test::Bench(_)
            | Test::TestProgs(_)
            | Test::Kselftest(_)
            | Test::Survive(_) => Ok(Question::Ending(test)),
            Test::Fault(_) => Err(UnknownQuestion::Fault(name.to_owned())),
        }
    }

    /// The test that answers it.
    pub fn test(&self) -> Test {
        match self {
            Question::Number(metric) => metric.test(),
            Question::Ending(test) => test.clone(),
        }
    }

    /// True if answers have noise: both ends are then measured beside each candidate.
    pub fn is_timed(&self) -> bool {
        matches!(self, Question::Number(metric) if metric.is_time())
    }

    /// True if the build alone answers it.
    pub fn is_of_builds(&self) -> bool {
        matches!(self, Question::Ending(Test::Build))
    }

    /// The one cell, on the kernels of both ends: what the reproducer runs.
    pub fn suite(&self, kernels: Vec<String>) -> Suite {
        let metric = match self {
            Question::Number(metric) => Some(metric),
            Question::Ending(_) => None,
        };
        Suite {
            models: Vec::new(),
            allow: Vec::new(),
            experiments: Default::default(),
            name: "bisect".to_owned(),
            description: format!("made by tramplab bisect, for {self}"),
            kernels: Kernels::Same(kernels),
            machine: Machine::default(),
            tests: vec![TestGroup::only(&self.test(), metric)],
            budgets: Vec::new(),
            tolerance: Default::default(),
        }
    }
}

/// Rejects tests of a user's program. Only trigger tests have shipped ones.
fn of_own_program(test: &Test, name: &str) -> Result<(), UnknownQuestion> {
    let is_shipped =
        |name: &ProgramName| matches!(test, Test::Trigger(_)) && Shipped::of(*name).is_some();
    match test.program().filter(|name| !is_shipped(name)) {
        Some(_) => Err(UnknownQuestion::Program(name.to_owned())),
        None => Ok(()),
    }
}

impl fmt::Display for Question {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Question::Number(metric) => metric.fmt(f),
            Question::Ending(test) => f.pad(&test.name()),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnknownQuestion {
    #[error("{metric}; to ask how a test ends: {test}")]
    Name { metric: UnknownMetric, test: UnknownTest },
    #[error(
        "`{0}` is measured in a single boot, so it cannot be bisected: ask for its instructions or \
         branches"
    )]
    OneBoot(String),
    #[error(
        "`{0}` depends on the host's speed, so it cannot be bisected: ask for \
         trigger.fentry.instructions and the like, or how bench/trig-fentry ends"
    )]
    Rate(String),
    #[error(
        "`{0}` measures a program of a user's, which bisect does not take: compare kernels by \
         `vm-test --program`, or leave out `=PROGRAM`"
    )]
    Program(String),
    #[error("`{0}` makes a guest fail on purpose, whatever its kernel: it cannot be bisected")]
    Fault(String),
}

/// A metric, or a test's name.
impl FromStr for Question {
    type Err = UnknownQuestion;

    fn from_str(name: &str) -> Result<Question, UnknownQuestion> {
        match (name.parse(), name.parse()) {
            (Ok(metric), _) => Question::of_metric(metric, name),
            (Err(_), Ok(test)) => Question::of_test(test, name),
            (Err(metric), Err(test)) => Err(UnknownQuestion::Name { metric, test }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;
    use tramplab_host::config;
    use tramplab_suite::plan;

    #[test]
    fn metrics_and_tests_are_asked_for_by_name() {
        for row in [
            "lbr_waste.kretprobe_multi.any | lbr_waste/kretprobe.multi",
            "attach.fentry.1000.instructions = attach.fentry.1000.attach.instructions \
             | attach/fentry/1000",
            "attach.fentry.10.detach.exact | attach/fentry/10",
            "attach.kprobe.multi.all.attach = attach.kprobe_multi.all.attach \
             | attach/kprobe.multi/all | timed",
            "trigger.fexit.branches | trigger/fexit",
            "boot | boot",
            "build | build",
            "attach/kprobe.multi/100 | attach/kprobe.multi/100",
            "trigger/fentry+function_tracer | trigger/fentry+function_tracer",
            "trigger.fexit+fentry.multi:all.instructions \
             = trigger.fexit+fentry_multi:all.instructions | trigger/fexit+fentry.multi:all",
            "trigger.kprobe.multi=hash_inc.instructions \
             = trigger.kprobe_multi=hash_inc.instructions | trigger/kprobe.multi=hash_inc",
            "attach.kprobe.multi.12x1000.attach = attach.kprobe_multi.12x1000.attach \
             | attach/kprobe.multi/12x1000 | timed",
        ] {
            let mut parts = row.split(" | ");
            let name = parts.next().unwrap();
            let (name, shown) = name.split_once(" = ").unwrap_or((name, name));
            let question: Question = name.parse().unwrap();
            assert_eq!(question.to_string(), shown);
            assert_eq!(Some(&*question.test().name()), parts.next(), "{name}");
            assert_eq!(question.is_timed(), parts.next() == Some("timed"), "{name}");
        }
        for (name, words) in [
            ("", ["lbr_waste.ROW[=PROGRAM][@FUNCTION].FILTER", "build, boot"]),
            ("boots", ["lbr_waste.ROW[=PROGRAM][@FUNCTION].FILTER", "build, boot"]),
            ("lbr_waste/no", ["lbr_waste.ROW[=PROGRAM][@FUNCTION].FILTER", "build, boot"]),
            ("lbr_waste.fentry.all", ["lbr_waste.ROW[=PROGRAM][@FUNCTION].FILTER", "build, boot"]),
            ("fault/panic", ["fault/panic", "on purpose"]),
            ("trigger.fexit.time", ["single boot", "branches"]),
            ("trigger.fexit=on_exit.branches", ["trigger.fexit=on_exit.branches", "--program"]),
            ("attach/fexit=on_exit/10", ["attach/fexit=on_exit/10", "--program"]),
            ("attach/fexit=hash_inc/10", ["attach/fexit=hash_inc/10", "--program"]),
        ] {
            let error = name.parse::<Question>().unwrap_err().to_string();
            assert!(words.iter().all(|word| error.contains(word)), "{name}: {error}");
        }
    }

    /// The suite is written beside the bisection for its reproducer, and must read back equal.
    #[test]
    fn the_suite_measures_the_one_thing_and_survives_being_written() {
        for row in [
            "lbr_waste.fexit.any => mechanisms: Mechanisms([Fexit]), \
             programs: Programs { given: [], read: [] }, targets: [], trigger: None, hits: 8",
            "lbr_waste.fexit@__sys_bpf.any \
             => targets: [FunctionName(\"__sys_bpf\")], trigger: None",
            "trigger.fexit@vfs_read.branches \
             => targets: [FunctionName(\"vfs_read\")], trigger: None",
            "trigger.fexit=hash_inc.branches => shipped: [HashInc]",
            "attach.fentry.10.instructions => rounds: 1, boots: None, seed: 0, seconds: None, \
             clock: Exact, explain: {Exact}",
            "attach.kprobe.multi.all.syscall_instructions \
             => clock: Exact, explain: {Exact}, system_calls: true",
            "attach.fentry+kprobe.multi:1000.10.instructions \
             => explain: {Exact}, system_calls: false",
            "attach.fentry.10.attach.exact => rounds: 1, boots: None, seed: 0, seconds: None, \
             clock: Exact, explain: {}",
            "attach.fentry.10.attach => rounds: 3, boots: None, seed: 0, seconds: None, \
             clock: Free, explain: {}",
            "attach/fentry/10 => rounds: 1, boots: None, seed: 0, seconds: None, clock: Free, \
             explain: {}",
            "trigger.fentry+function_tracer.instructions \
             => throughput: Some(false), estimated: false",
            "trigger.fexit.estimated_cycles => throughput: Some(false), estimated: true",
            "trigger.fexit+37xfentry+fentry.multi:all.branches => throughput: Some(false)",
            "attach.fexit.multi.12x1000.detach => functions: [Links { links: 12, each: 1000 }]",
            "boot => Boot",
            "build => Boot",
        ] {
            let (name, group) = row.split_once(" => ").unwrap();
            let question: Question = name.parse().unwrap();
            let suite = question.suite(vec!["git:/linux#v6.12".to_owned()]);
            let shown = format!("{:?}", suite.tests);
            assert!(shown.contains(group), "{name}: {shown}");
            let text = config::write(&suite);
            let again: Suite = config::parse(&text, Path::new("suite.yaml"))
                .unwrap_or_else(|e| panic!("{e}\n{text}"));
            assert_eq!(format!("{again:?}"), format!("{suite:?}"), "{text}");
            assert_eq!(plan::contradiction(&again), None);
        }
    }
}
