// SPDX-License-Identifier: MIT OR Apache-2.0
//! `boot`: boots the kernel until the agent reports the guest's facts.

use super::Kind;
use crate::guest::{Booted, Stop};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tramplab_model::run::{Measurement, Test};

/// One test without parameters: `boot: {}`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "BootGroup")]
pub struct Group {}

impl super::Group for Group {
    fn work(&self, _compared: bool) -> Vec<super::Work> {
        vec![super::Work::Boot(Work {})]
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Work {}

impl Kind for Work {
    fn test(&self) -> Test {
        Test::Boot
    }

    fn is_timed(&self) -> bool {
        false
    }

    fn on_this_machine(&mut self, _most: u32) -> Option<String> {
        Some("this machine has booted long ago; use --vm qemu".to_owned())
    }

    fn measure(&self, _booted: &mut Booted) -> Result<Measurement, Stop> {
        Ok(Measurement::Boot)
    }
}
