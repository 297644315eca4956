// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which commit, or which patch of a series, changed a metric: everything but building and booting.
//!
//! ```text
//! Question ─► suite of one cell ─► cell ─► Reading ─► Ends (good, bad) ─► Verdict ─► git bisect ─► the next commit
//! ```
//!
//! [`question`] is what is asked, [`reading`] judges what kernels gave, both pure; [`search`] has git choose the commits, in a
//! repository of its own; [`state`] is kept after each commit, so that what was interrupted goes on.

mod driver;
pub mod question;
pub mod reading;
pub mod search;
pub mod state;
mod told;
mod walk;

pub use driver::{Options, Range, Repository, bisect};
pub use question::Question;
pub use reading::{Ending, Ends, Reading, Side, Unread};
pub use search::{Commit, History, Mark, Next, SearchError};
pub use state::{Asked, End, Found, State, Step, Verdict};
pub use walk::Answer;
