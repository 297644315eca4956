// SPDX-License-Identifier: MIT OR Apache-2.0
//! Counts wasted branch records and trigger cost in a trace. Pure functions.
//! `docs/branch-records.md` has the rules and their sources.
//!
//! [`capture`] finds the capture points of a trace and names their records. [`model`] decides which
//! of them a modelled CPU keeps for a [`Filter`]. [`waste`] counts the kept records;
//! [`mod@listing`] and [`brstack`] print them; [`mod@beside`] compares a driver's with them.
//! [`useful`] is what a ring has left beside them and the driver's own. [`trigger`] finds the code
//! that a hit runs between the traced function and the program, and counts its instructions.
//! `split` tells the mechanism's from those of a user's program and its helpers.

pub mod beside;
pub mod brstack;
pub mod capture;
pub mod delivered;
pub mod driver;
pub mod early;
mod hit;
pub mod listing;
pub mod model;
mod predict;
pub mod returns;
mod split;
#[cfg(test)]
mod split_tests;
mod symbolic;
pub mod symbols;
#[cfg(test)]
mod tests;
pub mod trigger;
#[cfg(test)]
mod trigger_tests;
pub mod useful;
#[cfg(test)]
mod user_trigger_tests;
pub mod waste;

pub use capture::{CaptureError, lbr_waste};
pub use delivered::{DeliveryError, delivered};
pub use driver::{DriverError, driver_waste};
pub use hit::is_asynchronous;
pub use listing::listing;
pub use model::{Model, UnknownModel};
pub use predict::PREDICTABLE;
pub use split::{Share, Split, reached, split};
pub use symbolic::{digest, stable_name};
pub use symbols::Symbols;
pub use tramplab_model::filter::{Branch, Filter, UnknownFilter};
pub use trigger::{TriggerError, trigger_cost};
pub use useful::{Driver, Taken, Useful};
