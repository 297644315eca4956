// SPDX-License-Identifier: MIT OR Apache-2.0
//! From make's log the first error: what a person would scroll up for.

use std::{
    fmt,
    fs::File,
    io::{self, Read},
    path::Path,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Compiler,
    Other,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FirstError {
    pub kind: Kind,
    pub file: Option<String>,
    pub line: Option<u32>,
    pub message: String,
    pub context: Vec<String>,
}

impl fmt::Display for FirstError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

pub fn read(log: &Path) -> io::Result<FirstError> {
    let mut text = Vec::new();
    File::open(log)?.take(64 << 20).read_to_end(&mut text)?;
    Ok(find(&String::from_utf8_lossy(&text)))
}

pub fn find(log: &str) -> FirstError {
    FirstError {
        kind: Kind::Other,
        file: None,
        line: None,
        message: log.lines().last().unwrap_or_default().to_owned(),
        context: Vec::new(),
    }
}
