// SPDX-License-Identifier: MIT OR Apache-2.0
//! How guests run: accelerator, backend, clock.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use strum::IntoStaticStr;

/// The source of a guest's clock.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Serialize,
    Deserialize,
    JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Clock {
    /// The host's time.
    #[default]
    Free,
    /// The guest's own instructions (QEMU's `-icount`). They are the same at every boot.
    Exact,
}

#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Serialize,
    Deserialize,
    JsonSchema,
    IntoStaticStr,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum Accel {
    Kvm,
    Tcg,
    /// No guest: the kernel runs on the machine itself.
    Native,
}

impl Accel {
    pub fn name(self) -> &'static str {
        self.into()
    }

    /// True if the kernel runs on this machine's CPU: times and events are that CPU's, and no
    /// plugin counts.
    pub fn has_real_cpu(self) -> bool {
        match self {
            Accel::Kvm | Accel::Native => true,
            Accel::Tcg => false,
        }
    }
}

/// The program that starts the guests and gives them a root, if there are guests.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Serialize,
    Deserialize,
    JsonSchema,
    IntoStaticStr,
)]
#[serde(rename_all = "kebab-case")]
#[strum(serialize_all = "kebab-case")]
pub enum Backend {
    /// QEMU, with the agent as the only program of an initramfs.
    #[default]
    Qemu,
    /// virtme-ng, with the host's own files.
    VirtmeNg,
    /// No guest: the kernel that runs on this machine.
    None,
}

impl Backend {
    pub fn name(self) -> &'static str {
        self.into()
    }
}
