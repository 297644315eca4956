// SPDX-License-Identifier: MIT OR Apache-2.0
//! `fault`: makes a guest fail on purpose.

use super::Kind;
use crate::{
    guest::{Booted, QUICK, Stop},
    yaml::filled,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tramplab_model::{
    kinds::fault,
    run::{Measurement, Test},
};
use tramplab_protocol::message::{Command, Fault};

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "FaultGroup")]
pub struct Group {
    #[serde(deserialize_with = "filled")]
    #[schemars(length(min = 1))]
    pub faults: Vec<Fault>,
}

impl super::Group for Group {
    fn work(&self, _compared: bool) -> Vec<super::Work> {
        let work = |&fault| super::Work::Fault(Work { test: fault::Test { fault } });
        self.faults.iter().map(work).collect()
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Work {
    pub test: fault::Test,
}

impl Kind for Work {
    fn test(&self) -> Test {
        Test::Fault(self.test)
    }

    fn may_restore(&self) -> bool {
        true
    }

    fn is_timed(&self) -> bool {
        false
    }

    fn measure(&self, booted: &mut Booted) -> Result<Measurement, Stop> {
        let fault = self.test.fault;
        booted.vm.request(Command::Inject(fault), QUICK)??;
        Err(Stop::harness(format!("the guest was to fail ({fault}), and answered")))
    }
}
