// SPDX-License-Identifier: MIT OR Apache-2.0
//! `bench`: benchmarks of the tree's own `bench`.

use super::{COMPARED_BOOTS, Kind, too_long};
use crate::{
    guest::{Booted, Stop},
    tree_tests::{
        bench as output,
        exec::{self, failed},
    },
    yaml::{filled, nonzero},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::{collections::BTreeSet, num::NonZeroU32};
use tramplab_model::{
    kinds::bench,
    run::{Backend, Bench, BenchBoot, Clock, Measurement, Test},
    tree_tests::{Name, WantedTests},
};

/// Seconds that bench runs before it counts.
const WARMUP: u32 = 1;
/// Seconds that bench takes to load and attach programs.
const SETUP: u32 = 120;

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "BenchGroup")]
pub struct Group {
    #[serde(deserialize_with = "filled")]
    #[schemars(length(min = 1))]
    pub triggers: Vec<Name>,
    /// Measured seconds in each guest, after the warm-up.
    #[serde(default = "default_seconds")]
    pub seconds: NonZeroU32,
    /// Threads that trigger.
    #[serde(default = "one")]
    pub producers: NonZeroU32,
}

impl Group {
    /// Measures one second: a bisection only asks how the benchmark ends.
    pub fn only(test: bench::Test) -> Group {
        Group { triggers: vec![test.benchmark], seconds: one(), producers: one() }
    }
}

fn default_seconds() -> NonZeroU32 {
    nonzero(5)
}

fn one() -> NonZeroU32 {
    NonZeroU32::MIN
}

impl super::Group for Group {
    fn work(&self, compared: bool) -> Vec<super::Work> {
        // Rates mean something only beside another kernel's, boot by boot.
        let boots = if compared { COMPARED_BOOTS } else { 1 };
        let (seconds, producers) = (self.seconds.get(), self.producers.get());
        let work = |&benchmark| {
            super::Work::Bench(Work { test: bench::Test { benchmark }, seconds, producers, boots })
        };
        self.triggers.iter().map(work).collect()
    }

    fn add_tree_tests(&self, wanted: &mut WantedTests, _files: &BTreeSet<String>) -> bool {
        wanted.bench = true;
        true
    }

    fn misfit(&self) -> Option<String> {
        too_long(self.seconds.get())
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Work {
    pub test: bench::Test,
    pub seconds: u32,
    pub producers: u32,
    /// Number of guests.
    pub boots: u32,
}

impl Kind for Work {
    fn test(&self) -> Test {
        Test::Bench(self.test)
    }

    fn is_timed(&self) -> bool {
        true
    }

    fn clocks(&self, _cpus: u32, _backend: Backend) -> Vec<Clock> {
        vec![Clock::Free; self.boots as usize]
    }

    fn measure(&self, booted: &mut Booted) -> Result<Measurement, Stop> {
        let &Work { test: bench::Test { benchmark }, seconds, producers, .. } = self;
        let mut words =
            vec!["-w".to_owned(), WARMUP.to_string(), "-d".to_owned(), seconds.to_string()];
        words.extend(["-p".to_owned(), producers.to_string(), benchmark.to_string()]);
        let said = exec::run(booted, "bench", words, None, seconds + WARMUP + SETUP)?;
        if output::is_unknown(&said.output) {
            return Err(Stop::Skip(format!("this kernel's tree has no benchmark `{benchmark}`")));
        }
        said.require_exit("bench", |code| code == 0)?;
        let measured = output::read(&said.output, WARMUP, seconds)
            .map_err(|error| failed(error.to_string()))?;
        let boots = vec![BenchBoot { hits: measured.hits }];
        Ok(Measurement::Bench(Bench { producers, boots }))
    }
}
