// SPDX-License-Identifier: MIT OR Apache-2.0
//! Bisection: finding the commit, or the patch of a series, that changed a metric.
//!
//! ```text
//! Question ─► suite of one cell ─► cell ─► Reading ─► Ends ─► Verdict ─► git bisect ─► next commit
//! ```
//!
//! [`question`] and [`reading`] are pure: the question, and the judgement of answers. [`search`]
//! has git choose the commits; [`configs`] chooses configurations by [`narrow`]. [`state`] is saved
//! after each candidate, so that an interrupted bisection continues.

mod configs;
mod driver;
mod narrow;
mod options;
pub mod question;
pub mod reading;
pub mod search;
mod setting;
mod space;
pub mod state;
mod told;
mod walk;

pub use driver::bisect;
pub use options::{BisectOptions, Configs, Range, Repository};
pub use question::Question;
pub use reading::{Ending, Ends, Reading, Unread};
pub use search::{Commit, History, Mark, Next, SearchError};
pub use state::{End, Found, Identity, State, TestedCommit, Verdict};
pub use walk::Answer;
