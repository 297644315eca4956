// SPDX-License-Identifier: MIT OR Apache-2.0
//! `kselftest`: programs of other folders of the tree's selftests, which report in KTAP.

use super::{Kind, test_progs, too_long};
use crate::{
    guest::{Booted, Stop},
    tree_tests::{
        Ran,
        exec::{self, failed},
        ktap,
    },
    yaml::filled,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::{collections::BTreeSet, num::NonZeroU32};
use tramplab_kernel::compile::{PROGRAMS, TreeTests};
use tramplab_model::{
    kinds::kselftest,
    run::{Measurement, Test, TreeTest},
    tree_tests::{End, Program, WantedTests, absent},
};

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "KselftestGroup")]
pub struct Group {
    #[serde(deserialize_with = "filled")]
    #[schemars(length(min = 1))]
    pub programs: Vec<Program>,
    /// Limit of each program.
    #[serde(default = "test_progs::default_limit")]
    pub seconds: NonZeroU32,
}

impl Group {
    pub fn only(test: kselftest::Test) -> Group {
        Group { programs: vec![test.program], seconds: test_progs::default_limit() }
    }
}

impl super::Group for Group {
    fn work(&self, _compared: bool) -> Vec<super::Work> {
        let seconds = self.seconds.get();
        let work =
            |&program| super::Work::Kselftest(Work { test: kselftest::Test { program }, seconds });
        self.programs.iter().map(work).collect()
    }

    fn add_tree_tests(&self, wanted: &mut WantedTests, _files: &BTreeSet<String>) -> bool {
        wanted.programs.extend(&self.programs);
        true
    }

    fn misfit(&self) -> Option<String> {
        too_long(self.seconds.get())
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Work {
    pub test: kselftest::Test,
    /// Limit of the program.
    pub seconds: u32,
}

impl Kind for Work {
    fn test(&self) -> Test {
        Test::Kselftest(self.test)
    }

    fn is_timed(&self) -> bool {
        false
    }

    fn is_in(&self, tree: &TreeTests) -> bool {
        tree.record.programs.contains(&self.test.program)
    }

    fn refuse(&mut self, tree: &TreeTests) -> Option<String> {
        (!self.is_in(tree)).then(|| absent("program", self.test.program))
    }

    fn measure(&self, booted: &mut Booted) -> Result<Measurement, Stop> {
        let program = self.test.program;
        let path = format!("{PROGRAMS}/{program}");
        let said = exec::run(booted, &path, Vec::new(), None, self.seconds)?;
        let code = said.require_exit(program.as_str(), ktap::is_verdict)?;
        let Ran { end, subtests, left_out, failures } = ktap::read(&said.output, code)
            .map_err(|error| failed(format!("{program}: {error}")))?;
        if end == End::Skip {
            let why = ktap::skipped(&said.output).map_or_else(String::new, |why| {
                format!(": {}", why.chars().take(200).collect::<String>())
            });
            return Err(Stop::Skip(format!("it skips itself{why}")));
        }
        Ok(Measurement::Kselftest(TreeTest {
            end,
            subtests,
            left_out,
            denied: Vec::new(),
            failures,
        }))
    }
}
