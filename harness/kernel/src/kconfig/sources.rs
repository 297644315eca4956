// SPDX-License-Identifier: MIT OR Apache-2.0
//! A tree's Kconfig files. The parser gets their text and opens no file itself.

use serde::{Deserialize, Serialize};
use std::{
    fs, io,
    path::{Component, Path, PathBuf},
};
use tramplab_host::regular;
use tramplab_model::run::Arch;

/// 6.12 has 1700 files with 6 MiB in all; the largest has 100 KiB.
const FILES: usize = 20_000;
const FILE_SIZE: u64 = 4 << 20;
const SIZE: usize = 64 << 20;
/// Limit for nested files.
const DEPTH: usize = 100;

/// The text of a comment that stands for a sourced file.
const SOURCED: &str = "sourced by tramplab: ";

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("failed to read this tree's Kconfig files: {0}")]
pub struct Unreadable(pub String);

/// The files of one architecture, the top one first. A file is there once for each `source`.
#[derive(Clone, Debug)]
pub struct Sources {
    pub files: Vec<File>,
}

#[derive(Clone, Debug)]
pub struct File {
    /// Relative to the tree.
    pub path: PathBuf,
    /// Each `source` of a file that exists is a comment with its number. Others are as they were.
    pub text: String,
}

/// Returns the file that a comment stands for.
pub fn sourced(comment: &str) -> Option<usize> {
    comment.strip_prefix(SOURCED)?.parse().ok()
}

impl Sources {
    pub fn read(tree: &Path, arch: Arch) -> Result<Sources, Unreadable> {
        let error = |error: std::io::Error| Unreadable(error.to_string());
        let mut reading = Reading {
            tree: &fs::canonicalize(tree).map_err(error)?,
            source_arch: arch.platform().tree.folder,
            files: Vec::new(),
            left: SIZE,
        };
        match reading.add(Path::new("Kconfig"), 0)? {
            Some(_) => Ok(Sources { files: reading.files }),
            None => Err(Unreadable("no file Kconfig at the top".to_owned())),
        }
    }
}

struct Reading<'a> {
    tree: &'a Path,
    source_arch: &'a str,
    files: Vec<File>,
    /// Bytes.
    left: usize,
}

impl Reading<'_> {
    /// Reads a file and those that it sources. Returns its number, or None if it does not exist.
    fn add(&mut self, path: &Path, depth: usize) -> Result<Option<usize>, Unreadable> {
        let refused = |why: String| Unreadable(format!("{}: {why}", path.display()));
        if depth > DEPTH || self.files.len() >= FILES {
            let why = format!("more than {DEPTH} files deep, or more than {FILES} files in all");
            return Err(refused(why));
        }
        let Some(text) = self.text(path)? else { return Ok(None) };
        let number = self.files.len();
        // Files that it sources come later.
        self.files.push(File { path: path.to_owned(), text: String::new() });
        let mut lines = String::with_capacity(text.len());
        for line in text.split_inclusive('\n') {
            let file = match source(line) {
                Some(name) => self.add(Path::new(name), depth + 1)?,
                None => None,
            };
            match file {
                Some(file) => lines.push_str(&format!("comment \"{SOURCED}{file}\"\n")),
                None => lines.push_str(line),
            }
        }
        self.files[number].text = lines;
        Ok(Some(number))
    }

    fn text(&mut self, path: &Path) -> Result<Option<String>, Unreadable> {
        let refused = |why: String| Err(Unreadable(format!("{}: {why}", path.display())));
        let is_plain =
            path.components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir));
        // A folder may be a link.
        let real = match (is_plain, fs::canonicalize(self.tree.join(path))) {
            (true, Ok(real)) if !real.starts_with(self.tree) => None,
            (true, Ok(real)) => Some(real),
            // Perhaps only a line of a help text. Otherwise the parser reports the line.
            (true, Err(_)) => return Ok(None),
            (false, _) => None,
        };
        let Some(real) = real else {
            return refused("the path leads outside the tree".to_owned());
        };
        let bytes = match regular::read(&real, FILE_SIZE) {
            Err(error) if regular::is_refused(&error) => {
                return refused("expected a file of at most 4 MiB".to_owned());
            }
            read => read,
        };
        let text = bytes.and_then(|bytes| String::from_utf8(bytes).map_err(io::Error::other));
        let mut text = match text {
            Ok(text) => text,
            Err(error) => return refused(error.to_string()),
        };
        let Some(left) = self.left.checked_sub(text.len()) else {
            return refused(format!("the tree's files have more than {} MiB", SIZE >> 20));
        };
        self.left = left;
        // All trees have `comma := ,` in scripts/Kconfig.include. Other variables stay as they are.
        for (variable, value) in
            [("$(SRCARCH)", self.source_arch), ("${SRCARCH}", self.source_arch), ("$(comma)", ",")]
        {
            text = text.replace(variable, value);
        }
        Ok(Some(text))
    }
}

/// Returns the path of a line `source "arch/x86/Kconfig"`.
fn source(line: &str) -> Option<&str> {
    let rest = line.trim().strip_prefix("source")?;
    let path = rest.trim().trim_matches('"');
    // Other variables are not known.
    let is_path = !path.is_empty() && !path.contains(|c: char| c.is_whitespace() || c == '$');
    (rest.starts_with([' ', '\t', '"']) && is_path).then_some(path)
}
