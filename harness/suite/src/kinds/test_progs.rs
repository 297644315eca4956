// SPDX-License-Identifier: MIT OR Apache-2.0
//! `test_progs`: tests of the tree's own `test_progs`, and those that a series adds or changes.

use super::{Kind, TestGroup, too_long};
use crate::{
    guest::{Booted, Stop},
    tree_tests::{
        Ran,
        exec::{self, failed},
        test_progs as output,
    },
    yaml::nonzero,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::{collections::BTreeSet, fs, num::NonZeroU32};
use tramplab_kernel::{compile::TreeTests, tree_tests::DenyList};
use tramplab_model::{
    kinds::test_progs,
    run::{ErrorKind, Measurement, Test, TreeTest},
    tree_tests::{End, Name, SNAPSHOT_TEST, WantedTests, absent},
};
use tramplab_protocol::trace;

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "TestProgsGroup")]
pub struct Group {
    /// May be empty if a series brings its own tests.
    #[serde(default)]
    pub tests: Vec<Name>,
    /// Tests that are not run, in addition to the tree's own deny lists: `test`, `test/subtest`,
    /// `*` for any text.
    #[serde(default)]
    pub deny: Vec<String>,
    /// Limit of each test.
    #[serde(default = "default_limit")]
    pub seconds: NonZeroU32,
}

/// Under TCG a test takes ten times as long as on hardware.
pub(super) fn default_limit() -> NonZeroU32 {
    nonzero(300)
}

impl Group {
    pub fn only(test: test_progs::Test) -> Group {
        Group { tests: vec![test.test], deny: Vec::new(), seconds: default_limit() }
    }
}

impl super::Group for Group {
    fn work(&self, _compared: bool) -> Vec<super::Work> {
        let (deny, seconds) = (&self.deny, self.seconds.get());
        let work = |&test| {
            super::Work::TestProgs(Work {
                test: test_progs::Test { test },
                deny: deny.clone(),
                seconds,
            })
        };
        self.tests.iter().map(work).collect()
    }

    fn add_tree_tests(&self, wanted: &mut WantedTests, files: &BTreeSet<String>) -> bool {
        wanted.tests.extend(&self.tests);
        wanted.files.clone_from(files);
        true
    }

    fn misfit(&self) -> Option<String> {
        too_long(self.seconds.get())
    }
}

/// Adds tests, if the suite has any of `test_progs`. The deny lists of all groups apply to them.
/// Their time limit is that of a group without tests, or else the longest.
pub fn add(groups: &mut Vec<TestGroup>, more: &BTreeSet<Name>) {
    let of = |group: &'_ TestGroup| match group {
        TestGroup::TestProgs(group) => Some(group.clone()),
        _ => None,
    };
    let own: Vec<Group> = groups.iter().filter_map(of).collect();
    let named: BTreeSet<Name> = own.iter().flat_map(|group| group.tests.iter().copied()).collect();
    let tests: Vec<Name> = more.difference(&named).copied().collect();
    let limit = own.iter().map(|group| (group.tests.is_empty(), group.seconds)).max();
    let last = groups.iter().rposition(|group| matches!(group, TestGroup::TestProgs(_)));
    if let (Some(last), Some((_, seconds)), false) = (last, limit, tests.is_empty()) {
        let deny = own.into_iter().flat_map(|group| group.deny).collect();
        groups.insert(last + 1, TestGroup::TestProgs(Group { tests, deny, seconds }));
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Work {
    pub test: test_progs::Test,
    /// Subtests that are not run. Once the kernel is known, includes those that its tree denies.
    pub deny: Vec<String>,
    /// Limit of the test.
    pub seconds: u32,
}

impl Kind for Work {
    fn test(&self) -> Test {
        Test::TestProgs(self.test)
    }

    fn is_timed(&self) -> bool {
        false
    }

    fn asks_for_records(&self) -> bool {
        self.test.test.as_str() == SNAPSHOT_TEST
    }

    fn is_in(&self, tree: &TreeTests) -> bool {
        tree.record.tests.contains_key(&self.test.test)
    }

    fn refuse(&mut self, tree: &TreeTests) -> Option<String> {
        let test = &self.test.test;
        if !self.is_in(tree) {
            return Some(absent("test", test));
        }
        let list = tree.denied.clone().and(DenyList::of(&self.deny, "the suite"));
        if let Some(denied) = list.denies(test) {
            return Some(denied.to_string());
        }
        self.deny = list.of_subtests(test);
        None
    }

    fn measure(&self, booted: &mut Booted) -> Result<Measurement, Stop> {
        self.run(booted).map(Measurement::TestProgs)
    }
}

impl Work {
    fn run(&self, booted: &mut Booted) -> Result<TreeTest, Stop> {
        let Work { test: test_progs::Test { test }, deny, seconds } = self;
        let (model, _) = booted.planned.records();
        let deliver = booted.planned.deliver.then(|| model.deliverable());
        // `-a` takes exactly this name; `-t` would take all names that contain it.
        let mut words = vec!["-a".to_owned(), test.to_string()];
        words.extend(deny.iter().flat_map(|pattern| ["-d".to_owned(), pattern.clone()]));
        let said = exec::run(booted, "test_progs", words, deliver, *seconds)?;
        if booted.planned.deliver {
            // Nobody reads the plugin's trace of the whole run. If there is no trace, the plugin
            // stopped recording before the test's end.
            fs::remove_file(trace::file_name(booted.folder, 0)).map_err(|error| Stop::Error {
                kind: ErrorKind::Trace,
                message: format!(
                    "the plugin left no trace, so what it handed over may have holes: {error}"
                ),
            })?;
        }
        // 0 and 1 are verdicts. With any other code test_progs could not run.
        let code = said.require_exit("test_progs", |code| code == 0 || code == 1)?;
        let ran = output::read(&said.output, test.as_str(), code)
            .map_err(|error| failed(error.to_string()))?;
        if ran.end == End::Skip {
            return Err(Stop::Skip(format!("test_progs skips it{}", reason(&said.output))));
        }
        let Ran { end, subtests, left_out, failures } = ran;
        if end == End::Ok && subtests.is_empty() && !deny.is_empty() {
            return Err(Stop::Skip(format!("all its subtests are denied: {}", deny.join(", "))));
        }
        Ok(TreeTest { end, subtests, left_out, denied: deny.clone(), failures })
    }
}

/// The test's own reason to skip, if it prints one.
fn reason(output: &str) -> String {
    let line = output.lines().find(|line| line.contains(":SKIP:"));
    line.and_then(|line| line.split(":SKIP:").nth(1)).map_or_else(String::new, |why| {
        format!(": {}", why.trim().chars().take(200).collect::<String>())
    })
}
