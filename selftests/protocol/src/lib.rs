// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the three sides of tramplab say to each other, defined once.
//!
//! - [`message`]: requests of the host and events of the guest agent, sent as [`frame`]s over virtio-serial.
//! - [`magic`]: the instructions by which the agent arms and disarms the TCG plugin.
//! - [`counts`]: the file in which it hands over instructions counted by call path.
//! - [`delivery`]: what it must know to hand branch records to the guest.
//! - [`trace`]: the file in which the plugin hands recorded branches to the host.

mod beside;
pub mod counts;
pub mod delivery;
pub mod frame;
mod functions;
pub mod magic;
pub mod mechanism;
pub mod message;
pub mod trace;

pub use beside::{Beside, BesideSet};
pub use functions::Functions;
pub use mechanism::{Mechanism, Point};
