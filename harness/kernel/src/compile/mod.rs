// SPDX-License-Identifier: MIT OR Apache-2.0
//! Builds kernels out of tree. The caller provides the sources and applies the patches.
//!
//! A [`Builder`] builds one order: the kernel without its patches, with the first, with the first
//! two, and so on. Each build continues from the previous one. Finished kernels are cached under a
//! key of all inputs.

mod builder;
pub mod compiler_error;
pub mod confine;
mod debug;
mod error;
mod journal;
mod make;
mod modules;
mod output;
#[cfg(test)]
mod tests;
pub mod toolchain;
mod tree_tests;
mod workspace;

pub use builder::{Apply, Builder, Checkout};
pub use compiler_error::{FirstError, Kind};
pub use confine::{Confinement, Unconfined};
pub use debug::cached_vmlinux;
pub(crate) use debug::{keep_vmlinux, vmlinux_in};
pub use error::BuildError;
#[cfg(test)]
pub(crate) use journal::Journal;
pub use toolchain::{Pinned as PinnedRoot, Root, ToolchainError, Tools};
pub use tree_tests::{IN_GUEST, PROGRAMS, TreeTests, TreeTestsRecord};
pub use workspace::WorkspaceError;

use super::{Toolchain, Tree, source};
use crate::{kconfig::Fragments, series::Patch};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::{collections::BTreeSet, error::Error, ops::ControlFlow, path::PathBuf};
use tramplab_host::cache::Cache;
use tramplab_model::{name::hex, run::Arch};

/// The sources of a tree, if they are on this machine: the user's own folder, or a copy in the
/// cache. Asks no server.
pub fn sources_here(tree: &Tree, cache: &Cache) -> Option<PathBuf> {
    match tree {
        Tree::Folder(folder) => Some(folder.clone()),
        Tree::DebianSource { pin: None, .. } => None,
        Tree::Git { repository, .. } if source::is_url(repository) => None,
        tree => {
            let sources = source::resolve(tree, cache, &mut |_| ()).ok()?;
            workspace::sources(cache, &sources.digest)
        }
    }
}

/// A kernel to build.
#[derive(Clone, Debug)]
pub struct Order {
    /// For messages.
    pub name: String,
    pub arch: Arch,
    /// Identifies the sources without patches: a commit, a tarball's SHA-256.
    pub digest: String,
    /// For messages and reports: `git v6.12-rc1 (0123456789ab)`.
    pub description: String,
    /// Kernels of one lineage are built in one folder, each on top of the previous one.
    pub lineage: String,
    /// The digest of the only sources on whose base it may be built. None: any of the lineage.
    /// Commits of a repository come from several people: programs and objects that one commit left
    /// are not for another, except for those of a commit that the user names.
    pub starts_from: Option<String>,
    pub toolchain: Toolchain,
    /// The system with the toolchain, if that is not the host's. Only a confined build enters it.
    pub root: Option<Root>,
    /// Options that it does not set are as in `allnoconfig`.
    pub config: Fragments,
    /// Kconfig's defaults may complete options that `allnoconfig` would lose.
    pub completes: bool,
    /// Options that the patches define or remove. A kernel whose tree lacks one is built without
    /// it.
    pub introduced: BTreeSet<String>,
    /// In the order of their application or reversal.
    pub patches: Vec<Patch>,
    /// The patches are reverted, not applied.
    pub reverse: bool,
    /// None: the build runs with the user's privileges.
    pub confinement: Option<Confinement>,
    /// Leaves the base that the build folder keeps: the build starts from a copy of it. A folder
    /// without a base keeps this one.
    pub aside: bool,
    /// Builds a cached kernel again if its source lines are not in the cache.
    pub lines: bool,
    /// Builds modules too, if the configuration has any.
    pub modules: bool,
}

impl Order {
    fn system(&self) -> toolchain::System<'_> {
        match (&self.root, &self.confinement) {
            (Some(root), Some(confinement)) => toolchain::System::Root(root, confinement),
            _ => toolchain::System::Host,
        }
    }

    fn stage(&self, events: &mut Events, text: &str) -> Result<(), BuildError> {
        match events(Event::Stage(text.to_owned())) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(BuildError::Interrupted { name: self.name.clone() }),
        }
    }
}

/// A built kernel in the cache.
#[derive(Clone, Debug)]
pub struct Built {
    pub image: PathBuf,
    pub config: PathBuf,
    pub log: PathBuf,
    /// The sizes of its functions, as [`FunctionSizes`]. None if the build left no readable
    /// `vmlinux`, and for entries of older versions.
    ///
    /// [`FunctionSizes`]: tramplab_model::code::FunctionSizes
    pub functions: Option<PathBuf>,
    /// The folder of its modules and of the list of those built in. None for entries of older
    /// versions.
    pub modules: Option<PathBuf>,
    /// Its code and source lines. None if they are not in the cache.
    pub vmlinux: Option<PathBuf>,
    pub record: BuildRecord,
    /// The kernel was in the cache already.
    pub cached: bool,
}

/// How a kernel was built.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BuildRecord {
    pub key: String,
    pub description: String,
    pub seconds: f64,
    /// Number of kbuild steps, one for each file that it made.
    pub steps: u64,
    pub confined: bool,
    pub toolchain: Vec<String>,
    #[serde(default)]
    pub configured: Configured,
    /// SHA-256 of the image. Equal images are the same kernel, whatever the patches.
    pub sha256: String,
}

/// How a configuration was made.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Configured {
    pub completion: Completion,
    /// Wanted options that the tree lacks, as only other patches define them: `CONFIG_A=y`.
    pub left_out: Vec<String>,
    /// Wanted options that a later one of the same choice replaces.
    pub replaced: Vec<String>,
}

/// How a configuration was completed. A series' kernels have that of their base.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Completion {
    /// Options that no fragment mentions have Kconfig's defaults, as after `make olddefconfig`;
    /// else they are off.
    pub defaults: bool,
    /// The last of several set options of a choice counts.
    pub last_of_choice: bool,
}

impl Completion {
    /// In the order in which they are tried.
    const ALL: [Completion; 3] = [
        Completion { defaults: false, last_of_choice: false },
        Completion { defaults: false, last_of_choice: true },
        Completion { defaults: true, last_of_choice: true },
    ];

    fn target(self) -> &'static str {
        if self.defaults { "alldefconfig" } else { "allnoconfig" }
    }
}

/// The inputs of a kernel besides its sources.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Means {
    /// Versions of compiler, linker and pahole, as they print them.
    pub toolchain: String,
    /// SHA-256 of the wanted options. The resulting configuration varies from commit to commit.
    pub config_sha256: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The current step: `checking out …`.
    Stage(String),
    Progress {
        done: u64,
        total: u64,
    },
    /// A step of unknown length is running.
    Waiting,
}

/// Receives events. `Break` ends the build. Called at least every second while make runs.
pub type Events<'a> = dyn FnMut(Event) -> ControlFlow<()> + 'a;

/// An error of the caller's closures.
pub type Reason = Box<dyn Error + Send + Sync>;

/// Hashes words with their lengths, so that different lists have different input.
#[derive(Default)]
struct Hasher(Sha256);

impl Hasher {
    fn add(&mut self, bytes: &[u8]) {
        self.0.update((bytes.len() as u64).to_le_bytes());
        self.0.update(bytes);
    }

    fn end(self) -> String {
        hex(&self.0.finalize())
    }
}

fn digest<'a>(words: impl IntoIterator<Item = &'a str>) -> String {
    let mut hasher = Hasher::default();
    words.into_iter().for_each(|word| hasher.add(word.as_bytes()));
    hasher.end()
}
