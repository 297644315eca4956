// SPDX-License-Identifier: MIT OR Apache-2.0
//! The protocol between the host, the guest agent and the TCG plugin.
//!
//! - [`message`]: the host's requests and the guest agent's events, sent as [`frame`]s over
//!   virtio-serial.
//! - [`magic`]: the instructions by which the agent arms and disarms the plugin.
//! - [`binary`]: user-space code of the user's, on its way into the guest.
//! - [`counts`]: the file in which the plugin hands counted instructions to the host.
//! - [`pattern`]: functions to attach to, as users name them.
//! - [`delivery`]: the data the plugin needs to hand branch records to the guest.
//! - [`file`]: the envelope of the plugin's files.
//! - [`emulated`]: the file with the registers of emulated branch records.
//! - [`program`]: a BPF program of the user's, on its way into the guest.
//! - [`storm`]: what many threads do to a kernel at the same time.
//! - [`switches`]: words of the kernel's command line that change what a guest measures.
//! - [`trace`]: the file in which the plugin hands recorded branches to the host.

/// Has serde read and write the type as the text that `FromStr` and `Display` agree on.
#[macro_export]
macro_rules! by_text {
    ($of:ty, $error:ty) => {
        impl TryFrom<String> for $of {
            type Error = $error;

            fn try_from(text: String) -> Result<$of, $error> {
                text.parse()
            }
        }

        impl From<$of> for String {
            fn from(value: $of) -> String {
                value.to_string()
            }
        }
    };
}

mod beside;
pub mod binary;
pub mod counts;
pub mod delivery;
pub mod emulated;
pub mod estimate;
pub mod file;
pub mod frame;
mod functions;
pub mod magic;
pub mod mechanism;
pub mod message;
pub mod pattern;
pub mod program;
mod refusal;
mod remark;
#[cfg(feature = "schema")]
pub mod schema;
pub mod storm;
pub mod switches;
pub mod trace;
mod triggered;

pub use beside::{Beside, BesideSet, LIVEPATCH_MODULE, NotBeside};
pub use functions::{Functions, MOST_HERE, NotFunctions};
pub use mechanism::{Mechanism, Point};
