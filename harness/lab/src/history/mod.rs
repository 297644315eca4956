// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reading the runs of a history, asking git for the order of their commits, and keeping its site.

pub mod commits;
pub mod folder;
pub mod load;

pub use commits::Commits;
pub use folder::Folder;
pub use load::load;
