// SPDX-License-Identifier: MIT OR Apache-2.0
//! A file with user-space code that the user brings, for probes of its functions.

use crate::program::Object;
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Binary {
    /// The file's name, without its folder.
    pub name: String,
    /// The beginning of the file, up to the end of its code.
    pub contents: Object,
    /// `e_machine` of the code.
    pub machine: u16,
    /// SHA-256 of the whole file.
    pub sha256: String,
    pub functions: Vec<Function>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Function {
    pub name: String,
    /// The place of its first instruction in the file.
    pub offset: u64,
}
