// SPDX-License-Identifier: MIT OR Apache-2.0
//! Files of profiles: their names, and how to read them without trust.

use super::{Phase, Profile, SCHEMA, Unit};
use serde::Deserialize;
use std::{
    io,
    path::{Path, PathBuf},
};
use strum::{EnumCount, IntoStaticStr, VariantArray};
use tramplab_protocol::message::Explain;

#[derive(Debug, thiserror::Error)]
pub enum ProfileError {
    #[error("no profile at {0}: the run's folder is incomplete")]
    NotFound(PathBuf),
    #[error("failed to read {path}: {source}")]
    Io { path: PathBuf, source: io::Error },
    #[error("{path} is not a profile of this version: {source}")]
    Format { path: PathBuf, source: serde_json::Error },
    #[error("{path} has schema {found}; this tramplab reads schema {SCHEMA}")]
    Schema { path: PathBuf, found: u64 },
    #[error("{path} is damaged: {wrong}")]
    Damaged { path: PathBuf, wrong: Wrong },
}

/// A contradiction in a profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Wrong {
    #[error("node {node} names thread {thread}, but there are {threads}")]
    Thread { node: usize, thread: u32, threads: usize },
    #[error("node {node} names function {function}, but there are {functions}")]
    Function { node: usize, function: u32, functions: usize },
    #[error("node {node} comes before its parent {parent}")]
    Order { node: usize, parent: u32 },
    #[error("node {node} has another thread than its parent {parent}")]
    OtherThread { node: usize, parent: u32 },
    #[error("the sum of its nodes exceeds 64 bits")]
    Overflow,
    #[error("a name has more than {LONGEST_NAME} bytes")]
    Name,
    #[error("node {node} is deeper than {DEEPEST} calls")]
    Deep { node: usize },
    #[error("its stacks have more than {} MiB of names", MOST_TEXT >> 20)]
    Text,
}

/// Bytes of a function's name (K `include/linux/kallsyms.h`, `KSYM_NAME_LEN`), and of a command's.
const LONGEST_NAME: usize = 512;
/// Calls below one another. The plugin follows 1024, and perf's stacks are shorter. Text grows with
/// the square of the depth.
const DEEPEST: u32 = 1 << 11;
/// Bytes of all folded stacks. A profile of 500,000 nodes has 310 MB, and real ones have thousands
/// of nodes.
const MOST_TEXT: u64 = 2 << 30;

/// How a profile was measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, EnumCount, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "snake_case")]
pub enum How {
    /// Instructions, counted by the plugin.
    Exact,
    /// Samples of the guest's clock.
    Sampled,
    /// Time off the CPU.
    Waiting,
    /// Estimated cycles of a modelled CPU.
    Estimated,
}

impl How {
    pub const ALL: [How; How::COUNT] = *How::VARIANTS.first_chunk().unwrap();

    pub fn name(self) -> &'static str {
        self.into()
    }

    pub fn of(unit: Unit) -> How {
        match unit {
            Unit::Instructions => How::Exact,
            Unit::Samples => How::Sampled,
            Unit::Nanoseconds => How::Waiting,
            Unit::EstimatedCycles => How::Estimated,
        }
    }

    /// How a phase was explained that has such a summary. The waiting profile has none: it is made
    /// beside the sampled one.
    pub fn explained(self) -> Option<Explain> {
        match self {
            How::Exact => Some(Explain::Exact),
            How::Sampled => Some(Explain::Sampled),
            How::Waiting => None,
            How::Estimated => Some(Explain::Estimated),
        }
    }

    /// Returns the file's name in the cell's folder.
    pub fn file(self, phase: Phase) -> String {
        format!("profile-{}-{}.json", phase.name(), self.name())
    }
}

impl Profile {
    /// Parses and checks a profile. Errors name `path`; `bytes` are its content.
    pub fn read(bytes: io::Result<Vec<u8>>, path: &Path) -> Result<Profile, ProfileError> {
        let bytes = bytes.map_err(|source| match source.kind() {
            io::ErrorKind::NotFound => ProfileError::NotFound(path.to_owned()),
            _ => ProfileError::Io { path: path.to_owned(), source },
        })?;
        let refused = |found| ProfileError::Schema { path: path.to_owned(), found };
        let profile: Profile = match serde_json::from_slice(&bytes) {
            Ok(profile) => profile,
            // A file of another schema may lack fields of this one.
            Err(source) => match serde_json::from_slice(&bytes) {
                Ok(Version { schema }) if schema != u64::from(SCHEMA) => {
                    return Err(refused(schema));
                }
                _ => return Err(ProfileError::Format { path: path.to_owned(), source }),
            },
        };
        if profile.schema != SCHEMA {
            return Err(refused(profile.schema.into()));
        }
        profile.check().map_err(|wrong| ProfileError::Damaged { path: path.to_owned(), wrong })?;
        Ok(profile)
    }

    /// Checks everything that the rest of this module takes for granted.
    pub fn check(&self) -> Result<(), Wrong> {
        let (threads, functions) = (self.threads.len(), self.functions.len());
        let mut sum: u64 = 0;
        let commands = self.threads.iter().map(|thread| &thread.command);
        let mut names = self.functions.iter().map(|function| &function.name).chain(commands);
        if names.any(|name| name.len() > LONGEST_NAME) {
            return Err(Wrong::Name);
        }
        // The depth of each node, and the length of its stack in text.
        let mut stacks: Vec<(u32, u64)> = Vec::with_capacity(self.nodes.len());
        let mut text: u64 = 0;
        for (node, at) in self.nodes.iter().enumerate() {
            if at.thread as usize >= threads {
                return Err(Wrong::Thread { node, thread: at.thread, threads });
            }
            if at.function as usize >= functions {
                return Err(Wrong::Function { node, function: at.function, functions });
            }
            if let Some(parent) = at.parent {
                if parent as usize >= node {
                    return Err(Wrong::Order { node, parent });
                }
                if self.nodes[parent as usize].thread != at.thread {
                    return Err(Wrong::OtherThread { node, parent });
                }
            }
            let (depth, above) = match at.parent {
                Some(parent) => stacks[parent as usize],
                None => (0, self.threads[at.thread as usize].command.len() as u64),
            };
            if depth >= DEEPEST {
                return Err(Wrong::Deep { node });
            }
            let length = above + 1 + self.functions[at.function as usize].name.len() as u64;
            stacks.push((depth + 1, length));
            text = text.saturating_add(if at.own > 0 { length } else { 0 });
            if text > MOST_TEXT {
                return Err(Wrong::Text);
            }
            sum = sum.checked_add(at.own).ok_or(Wrong::Overflow)?;
        }
        Ok(())
    }
}

#[derive(Deserialize)]
struct Version {
    schema: u64,
}
