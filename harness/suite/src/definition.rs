// SPDX-License-Identifier: MIT OR Apache-2.0
//! The suite file, `configs/suites/*.yaml`. Its keys are documented in `docs/suites.md`.

use super::{
    budget::Bounded,
    kernels::Kernels,
    kinds::{Group, TestGroup, Work, attach::Clocks, targets::TargetSet, test_progs},
    program::{Kept, Program},
    yaml::{filled, nonzero, words},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    num::NonZeroU32,
    path::Path,
};
use time::Date;
use tramplab_analysis::branch::Filter;
use tramplab_host::config::{self, ConfigError, Spanned};
use tramplab_model::{
    function::{FunctionName, NotAFunction},
    run::{Arch, Binary, Test, Tolerance, WasteRow},
    tree_tests::{Name, WantedTests},
};
use tramplab_protocol::{Mechanism, message::Explain, switches};

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Suite {
    pub name: String,
    pub description: String,
    pub kernels: Kernels,
    /// Measures each kernel also as these CPUs boot: names of `configs/cpus/`. `--model` replaces
    /// them.
    #[serde(default)]
    pub models: Vec<String>,
    #[serde(default)]
    pub machine: Machine,
    #[serde(deserialize_with = "filled")]
    #[schemars(length(min = 1))]
    pub tests: Vec<TestGroup>,
    #[serde(default)]
    pub budgets: Vec<Budget>,
    #[serde(default)]
    pub tolerance: Tolerance,
    #[serde(default)]
    pub experiments: BTreeSet<Experiment>,
    /// Known warnings of kernels, which end no measurement.
    #[serde(default)]
    pub allow: Vec<Allowance>,
}

/// A warning that is known and reported.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Allowance {
    /// Words of the kernel's line.
    #[serde(deserialize_with = "of_warning")]
    #[schemars(regex(pattern = r"\S"))]
    pub warning: String,
    #[serde(deserialize_with = "words")]
    #[schemars(regex(pattern = r"\S"))]
    pub reason: String,
    /// The last day on which it holds.
    #[serde(with = "day")]
    #[schemars(with = "String", regex(pattern = "^[0-9]{4}-[0-9]{2}-[0-9]{2}$"))]
    pub until: Date,
}

/// `2027-01-31`.
mod day {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};
    use time::{Date, format_description::StaticFormatDescription, macros::format_description};

    const FORM: StaticFormatDescription = format_description!("[year]-[month]-[day]");

    pub fn serialize<S: Serializer>(day: &Date, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(day)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Date, D::Error> {
        let text = String::deserialize(deserializer)?;
        Date::parse(&text, FORM).map_err(|error| {
            D::Error::custom(format!("`{text}` is no day, as 2027-01-31 is: {error}"))
        })
    }
}

/// Words of a warning. Lines of a dying kernel cannot be allowed.
fn of_warning<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    let text = words(deserializer)?;
    match tramplab_vm::death::detect(&text) {
        Some(death) => Err(serde::de::Error::custom(format!(
            "`{text}` is a {}, which ends a guest; only warnings can be allowed",
            death.kind
        ))),
        None => Ok(text),
    }
}

/// A feature that a suite must ask for by name.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Experiment {
    /// The plugin hands branch records to programs that ask for them.
    DeliverRecords,
}

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Machine {
    pub cpus: NonZeroU32,
    #[serde(deserialize_with = "enough_mib")]
    #[schemars(range(min = LEAST_MIB))]
    pub memory_mib: NonZeroU32,
    /// Time limit of a boot, on the host's clock. A debug kernel under TCG needs minutes.
    pub boot_seconds: NonZeroU32,
    /// Added to the kernel's command line.
    #[serde(deserialize_with = "measurable")]
    pub append: Vec<String>,
}

/// Words with which a guest can measure.
fn measurable<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    let words = Vec::deserialize(deserializer)?;
    switches::objection(&words).map_or(Ok(words), |why| Err(serde::de::Error::custom(why)))
}

impl Default for Machine {
    fn default() -> Machine {
        // One CPU: only an interrupt can run between the traced function and the capture.
        Machine {
            cpus: NonZeroU32::MIN,
            memory_mib: nonzero(1024),
            boot_seconds: nonzero(90),
            append: Vec::new(),
        }
    }
}

/// Upper bounds that turn a measurement into pass or fail.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Budget {
    /// The kernels that it holds for. All of the run if left out.
    #[serde(default)]
    pub kernels: Option<Vec<String>>,
    /// The architectures that it holds for. All of the run if left out.
    #[serde(default)]
    pub arch: Option<Vec<Arch>>,
    /// Most records that may be wasted, by row and filter, on the architecture's first modelled CPU
    /// (`intel-lbr`, `brbe`).
    #[serde(default)]
    pub wasted: BTreeMap<WasteRow, BTreeMap<Filter, u32>>,
    /// Most instructions, branches, data accesses or mispredicted branches, by the metric's name.
    #[serde(default)]
    pub most: BTreeMap<Bounded, u64>,
}

impl Suite {
    /// The work of all cells on one kernel, group by group.
    pub fn work(&self, compared: bool) -> impl Iterator<Item = Work> {
        self.tests.iter().flat_map(move |group| group.group().work(compared))
    }

    /// Returns true if the suite counts branch records.
    pub fn counts_records(&self) -> bool {
        self.tests.iter().any(|group| matches!(group, TestGroup::LbrWaste(_)))
    }

    /// Returns true if a test estimates cycles.
    pub fn estimates(&self) -> bool {
        self.work(false).any(|work| work.kind().estimates())
    }

    /// Returns true if a test needs modules of its kernel.
    pub fn needs_modules(&self) -> bool {
        self.work(false).any(|work| !work.kind().needs().modules.is_empty())
    }

    /// Returns true if programs ask for branch records.
    pub fn asks_for_records(&self) -> bool {
        self.work(false).any(|work| work.kind().asks_for_records())
    }

    /// Returns true if programs get branch records from the plugin.
    pub fn delivers_records(&self) -> bool {
        self.experiments.contains(&Experiment::DeliverRecords)
    }

    /// Replaces the clocks and explanations of all attach tests. Hits are estimated if the
    /// explanations say so.
    pub fn with(
        mut self,
        clocks: Option<Clocks>,
        explanations: Option<&BTreeSet<Explain>>,
    ) -> Suite {
        for group in &mut self.tests {
            match group {
                TestGroup::Attach(group) => group.set(clocks, explanations),
                TestGroup::Trigger(group) => group.set(explanations),
                _ => {}
            }
        }
        self
    }

    /// Traces these functions instead of its own, and keeps only the tests and budgets that they
    /// concern. None if there are no such tests, an error if one of these cannot have a pattern.
    pub fn tracing(self, sets: &[TargetSet]) -> Result<Option<Suite>, NotAFunction> {
        let mut wrong = None;
        let suite = self.narrowed(|group| {
            let traced = group.trace(sets);
            traced.unwrap_or_else(|error| {
                wrong = Some(error);
                false
            })
        });
        wrong.map_or(Ok(suite.map(Suite::without_repetitions)), Err)
    }

    /// Removes mechanisms of attach groups whose tests an earlier group has: they differed in the
    /// functions.
    fn without_repetitions(mut self) -> Suite {
        let mut seen = BTreeSet::new();
        self.tests.retain_mut(|group| {
            let work = group.group().work(false);
            let TestGroup::Attach(attach) = group else { return true };
            let mut new = BTreeSet::new();
            for work in work {
                if seen.insert(work.test()) {
                    new.extend(work.kind().mechanisms());
                }
            }
            attach.mechanisms.0.retain(|mechanism| new.contains(mechanism));
            !attach.mechanisms.0.is_empty()
        });
        self
    }

    /// True if a test is of this set, or of a function of it.
    pub fn traces(&self, set: &TargetSet) -> bool {
        let functions: BTreeSet<FunctionName> = set.names().filter_map(Result::ok).collect();
        let is_of = |test: Test| match test {
            Test::Attach(test) => test.among == Some(set.name),
            Test::LbrWaste(test) => test.function.is_some_and(|one| functions.contains(&one)),
            Test::Trigger(test) => test.function.is_some_and(|one| functions.contains(&one)),
            _ => false,
        };
        self.work(false).any(|work| is_of(work.test()))
    }

    /// The user's files whose functions tests attach to.
    pub fn binaries(&self) -> Vec<Binary> {
        let groups = self.tests.iter().filter_map(|group| match group {
            TestGroup::Attach(attach) => Some(&attach.targets),
            _ => None,
        });
        let mut all = Vec::new();
        for TargetSet { name, binary, .. } in groups.flatten() {
            let of = |sha256: &String| Binary { name: *name, sha256: sha256.clone() };
            let binary = binary.as_ref().map(|binary| of(&binary.sha256));
            all.extend(binary.filter(|binary| !all.contains(binary)));
        }
        all
    }

    /// Hits functions by this line for the guest's shell, and keeps only the tests that do. None if
    /// there are no such tests.
    pub fn triggering(self, line: &str) -> Option<Suite> {
        self.narrowed(|group| group.trigger(line))
    }

    /// Measures these programs instead of its own, and keeps only the tests and budgets that they
    /// concern. None if there are no such tests.
    pub fn attaching(self, programs: &[Program]) -> Option<Suite> {
        self.narrowed(|group| group.attach(programs))
    }

    fn narrowed(mut self, mut keeps: impl FnMut(&mut dyn Group) -> bool) -> Option<Suite> {
        self.tests.retain_mut(|group| keeps(group.group_mut()));
        if self.tests.is_empty() {
            return None;
        }
        let tests: BTreeSet<Test> = self.work(false).map(|work| work.test()).collect();
        for budget in &mut self.budgets {
            budget.wasted.retain(|row, _| tests.contains(&Test::LbrWaste(row.test())));
            budget.most.retain(|bounded, _| tests.contains(&bounded.metric().test()));
        }
        self.budgets.retain(|budget| !budget.wasted.is_empty() || !budget.most.is_empty());
        Some(self)
    }

    /// The user's programs that tests measure, each once.
    pub fn programs(&self) -> Vec<&Program> {
        let mut all: Vec<&Program> = Vec::new();
        for program in self.tests.iter().flat_map(|group| group.group().programs()) {
            if !all.contains(&program) {
                all.push(program);
            }
        }
        all
    }

    /// The kernel tree's own tests that are run; none if there are none. A series brings `files` in
    /// `prog_tests/`.
    pub fn tree_tests(&self, files: &BTreeSet<String>) -> Option<WantedTests> {
        let mut wanted = WantedTests::default();
        let add = |any, group: &TestGroup| group.group().add_tree_tests(&mut wanted, files) | any;
        self.tests.iter().fold(false, add).then_some(wanted)
    }

    /// Removes allowances that no longer hold, and returns them.
    pub fn expire(&mut self, today: Date) -> Vec<Allowance> {
        self.allow.extract_if(.., |allowance| allowance.until < today).collect()
    }

    /// Adds tests of `test_progs`, if the suite has any.
    pub fn with_tests(mut self, more: &BTreeSet<Name>) -> Suite {
        test_progs::add(&mut self.tests, more);
        self
    }

    /// The tests of `test_progs` that the suite names.
    pub fn test_progs(&self) -> impl Iterator<Item = Name> {
        self.work(false).filter_map(|work| match work.test() {
            Test::TestProgs(test) => Some(test.test),
            _ => None,
        })
    }

    /// Mechanisms that the tests measure. A kernel built for the suite must support them.
    pub fn mechanisms(&self) -> Vec<Mechanism> {
        let all: BTreeSet<Mechanism> =
            self.work(false).flat_map(|work| work.kind().mechanisms()).collect();
        all.into_iter().collect()
    }
}

impl Budget {
    /// A kernel that is configured or booted otherwise than usual (`6.12+zen4`) has budgets only if
    /// they name it.
    pub fn holds_for(&self, arch: Arch, kernel: &str, is_usual: bool) -> bool {
        let is_named = |names: &Vec<String>| names.iter().any(|name| name == kernel);
        self.kernels.as_ref().map_or(is_usual, is_named)
            && self.arch.as_ref().is_none_or(|arches| arches.contains(&arch))
    }
}

/// A test takes seconds, so these take a day.
const MOST_TESTS: usize = 10_000;

/// Reads a suite, and the programs that it names. Rejects a budget if no test of the suite can be
/// judged by it.
pub fn load(path: &Path, kept: &Kept) -> Result<Suite, ConfigError> {
    let text = config::text(path)?;
    let mut suite: Suite = config::parse(&text, path)?;
    for group in &mut suite.tests {
        group.group_mut().read(path, kept)?;
    }
    if suite.work(false).nth(MOST_TESTS).is_some() {
        return Err(ConfigError::Invalid {
            path: path.to_owned(),
            line: 1,
            column: 1,
            message: format!("expected at most {MOST_TESTS} tests on a kernel; split the suite"),
            snippet: String::new(),
        });
    }
    let placed: Placed = config::parse(&text, path)?;
    placed.check(&suite, path)?;
    Ok(suite)
}

/// A suite's budgets, each number with its place in the file. Ignores all other keys: [`load`] has
/// checked that the file is a suite.
#[derive(Deserialize)]
pub(super) struct Placed {
    #[serde(default)]
    pub budgets: Vec<Spanned<PlacedBudget>>,
}

#[derive(Deserialize)]
pub(super) struct PlacedBudget {
    #[serde(default)]
    pub kernels: Option<Vec<String>>,
    #[serde(default)]
    pub arch: Option<Vec<Arch>>,
    #[serde(default)]
    pub wasted: BTreeMap<WasteRow, BTreeMap<Filter, Spanned<u32>>>,
    #[serde(default)]
    pub most: BTreeMap<Bounded, Spanned<u64>>,
}

impl Placed {
    fn check(&self, suite: &Suite, path: &Path) -> Result<(), ConfigError> {
        let tests: Vec<Test> = suite.work(false).map(|work| work.test()).collect();
        let unmeasured = |name: &dyn fmt::Display, kind: &str| {
            format!(
                "no {kind}test of the suite measures `{name}`; correct the name, or add the test"
            )
        };
        for at in &self.budgets {
            let budget = &at.value;
            for (row, filters) in &budget.wasted {
                let is_measured = tests.contains(&Test::LbrWaste(row.test()));
                match filters.values().next() {
                    None => {
                        let message =
                            format!("`{row}` has no filter; expected such as `{{ any: 9 }}`");
                        return Err(config::invalid(path, at, message));
                    }
                    Some(number) if !is_measured => {
                        return Err(config::invalid(path, number, unmeasured(row, "lbr_waste ")));
                    }
                    Some(_) => {}
                }
            }
            for (bounded, number) in &budget.most {
                if !tests.contains(&bounded.metric().test()) {
                    return Err(config::invalid(path, number, unmeasured(bounded, "")));
                }
            }
            if budget.wasted.is_empty() && budget.most.is_empty() {
                let message = "a budget bounds nothing; expected `wasted:` or `most:`";
                return Err(config::invalid(path, at, message));
            }
        }
        Ok(())
    }
}

/// A distribution's kernel does not fit into less: on x86-64 QEMU exits without a message.
const LEAST_MIB: u32 = 128;

fn enough_mib<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<NonZeroU32, D::Error> {
    let mib = NonZeroU32::deserialize(deserializer)?;
    if mib.get() < LEAST_MIB {
        let message = format!("{mib} MiB are too few for a guest, expected {LEAST_MIB} or more");
        return Err(serde::de::Error::custom(message));
    }
    Ok(mib)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs, path::Path};
    use tramplab_host::config;

    /// Users start their own suites from this example.
    #[test]
    fn parses_the_suite_in_the_docs() {
        let page = include_str!("../../../docs/suites.md");
        let example = page.split("```yaml\n").nth(1).unwrap().split("```").next().unwrap();
        let suite: Suite = config::parse(example, Path::new("docs/suites.md")).unwrap();
        assert!(!suite.experiments.is_empty());
        assert!(suite.budgets.iter().any(|budget| !budget.most.is_empty()));
        assert_eq!(suite.allow.len(), 1);
    }

    #[test]
    fn rejects_words_with_which_nothing_can_be_measured() {
        let read = |word: &str| {
            let text = format!(
                "name: t\ndescription: d\nkernels: [a]\nmachine:\n  append: [quiet, {word}]\n\
                 tests:\n\x20 - boot: {{}}\n"
            );
            config::parse::<Suite>(&text, Path::new("s.yaml")).map(|suite| suite.machine.append)
        };
        let error = read("sysctl.kernel.kptr_restrict=2").unwrap_err();
        assert!(error.to_string().contains("`sysctl.kernel.kptr_restrict=2` hides"), "{error}");
        assert!(matches!(error, ConfigError::Invalid { line: 5, .. }), "{error:?}");
        let error = read("\"a\\nb\"").unwrap_err();
        assert!(error.to_string().contains("control character"), "{error}");
        let stats = "sysctl.kernel.bpf_stats_enabled=1";
        assert_eq!(read(stats).unwrap(), ["quiet", stats]);
    }

    #[test]
    fn rejects_a_budget_that_no_test_can_be_judged_by() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s.yaml");
        let tests = "name: t\ndescription: d\nkernels: [a]\ntests:\n\
                     \x20 - lbr_waste: { mechanisms: [fexit] }\n\
                     \x20 - lbr_waste: { mechanisms: [kprobe, tp_btf], targets: [vfs_read] }\n\
                     \x20 - attach: { mechanisms: [fentry], functions: [10], rounds: 1 }\n\
                     budgets:\n  - kernels: [a]\n";
        let most =
            |metric: &str| format!("    most:\n      attach.{metric}.attach.instructions: 9\n");
        for (budget, line) in [
            ("    wasted:\n      fexit: { any: 9 }\n".to_owned(), None),
            ("    wasted:\n      fentry: { any: 9 }\n".to_owned(), Some(11)),
            (
                "    wasted:\n      fexit: { any: 9 }\n      kprobe: { any: 9 }\n".to_owned(),
                Some(12),
            ),
            ("    wasted: { fexit: {} }\n".to_owned(), Some(9)),
            ("    wasted: { kprobe@vfs_read: { any: 9 } }\n".to_owned(), None),
            ("    wasted: { fexit@vfs_read: { any: 9 } }\n".to_owned(), Some(10)),
            (most("fentry.10"), None),
            (most("fentry.100"), Some(11)),
            (most("fexit.10"), Some(11)),
            ("    most: { trigger.fexit.branches: 9 }\n".to_owned(), Some(10)),
            (String::new(), Some(9)),
        ] {
            fs::write(&path, format!("{tests}{budget}")).unwrap();
            let found = match load(&path, &|_| None) {
                Ok(_) => None,
                Err(ConfigError::Invalid { line, .. }) => Some(line),
                Err(error) => panic!("{error}"),
            };
            assert_eq!(found, line, "{budget}");
        }
    }

    #[test]
    fn rejects_suites_that_nobody_waits_for() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("t.yaml");
        let counts = |count: u32| {
            let counts: Vec<String> = (1..=count).map(|number| number.to_string()).collect();
            let text = format!(
                "name: t\ndescription: d\nkernels: [a]\ntests:\n  - attach: {{ mechanisms: \
                 [fentry, fexit], functions: [{}], rounds: 1 }}\n",
                counts.join(", ")
            );
            fs::write(&path, text).unwrap();
            load(&path, &|_| None)
        };
        counts(5000).unwrap();
        let error = counts(5001).unwrap_err();
        assert!(matches!(error, ConfigError::Invalid { line: 1, .. }), "{error}");
    }

    #[test]
    fn allows_warnings_for_a_reason_and_until_a_day() {
        let read = |allow: &str| {
            let text = format!(
                "name: t\ndescription: d\nkernels: [a]\ntests:\n  - boot: {{}}\nallow:\n{allow}\n"
            );
            config::parse::<Suite>(&text, Path::new("t.yaml"))
        };
        let mut suite = read("  - { warning: a.c, reason: r, until: 2026-11-25 }").unwrap();
        let all = suite.allow.clone();
        let last = all[0].until;
        assert_eq!(suite.expire(last), []);
        assert_eq!(suite.expire(last.next_day().unwrap()), all);
        assert_eq!(suite.allow, []);
        for bad in [
            "  - { warning: a.c, until: 2026-11-25 }",
            "  - { warning: a.c, reason: ' ', until: 2026-11-25 }",
            "  - { warning: '', reason: r, until: 2026-11-25 }",
            "  - { warning: 'Kernel panic - not syncing', reason: r, until: 2026-11-25 }",
            "  - { warning: a.c, reason: r }",
            "  - { warning: a.c, reason: r, until: 2026-02-30 }",
            "  - { warning: a.c, reason: r, until: 25.11.2026 }",
        ] {
            assert!(matches!(read(bad), Err(ConfigError::Invalid { line: 7, .. })), "{bad}");
        }
    }

    #[test]
    fn applies_deny_lists_and_limits_to_tests_of_a_series() {
        let brings = |groups: &str| {
            let text = format!("name: t\ndescription: d\nkernels: [a]\ntests:\n{groups}");
            let suite: Suite = config::parse(&text, Path::new("t.yaml")).unwrap();
            let before = suite.tests.len();
            let all = suite.with_tests(&["a", "b"].map(|name| name.parse().unwrap()).into()).tests;
            let added = all.into_iter().skip(before).map(|group| match group {
                TestGroup::TestProgs(test_progs::Group { tests, deny, seconds }) => (
                    tests.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "),
                    deny.join(" "),
                    seconds.get(),
                ),
                other => panic!("{other:?}"),
            });
            added.collect::<Vec<_>>()
        };
        let told =
            |tests: &str, deny: &str, seconds| vec![(tests.to_owned(), deny.to_owned(), seconds)];
        let named = "  - test_progs: { tests: [a], deny: [x], seconds: 50 }\n";
        assert_eq!(brings(named), told("b", "x", 50));
        let later =
            format!("{named}  - test_progs: {{ tests: [c], deny: [\"b/*\"], seconds: 700 }}\n");
        assert_eq!(brings(&later), told("b", "x b/*", 700));
        // A group without tests sets the limit of added tests.
        assert_eq!(
            brings(&format!("{later}  - test_progs: {{ seconds: 30 }}\n")),
            told("b", "x b/*", 30)
        );
        assert_eq!(brings("  - test_progs: { tests: [a, b] }\n"), vec![]);
        assert_eq!(brings("  - boot: {}\n"), vec![]);
    }
}
