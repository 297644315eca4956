// SPDX-License-Identifier: MIT OR Apache-2.0
//! The kernel tree's own tests before they are built: a test's sources, a program's libraries, deny
//! lists. Pure.

mod deny;
pub mod linked;
pub mod makefile;
pub mod selection;

pub use deny::{Denied, DenyList};
