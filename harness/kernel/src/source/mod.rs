// SPDX-License-Identifier: MIT OR Apache-2.0
//! Kernel sources. [`resolve`] identifies them exactly. [`Resolved::checkout`] puts them into a
//! folder. It can update a folder it filled before, which keeps builds incremental.

pub(crate) mod debian;
mod git;
mod state;
mod tarball;
mod tree;

pub use git::{BASE_TAG, Local, is_url};
pub use tarball::TARBALLS;
use tramplab_model::name::hex;
pub use tree::check_tree;

use super::{
    KernelError, io_error,
    manifest::{Download, Tree},
};
use sha2::{Digest, Sha256};
use state::State;
use std::{
    fs,
    path::{Path, PathBuf},
};
use tramplab_host::{
    cache::{Cache, require_room},
    child::ChildError,
    debian::{Package, Pin},
    sha256,
};

/// Disk space for an unpacked tree, in bytes; 6.12 needs a bit less.
const TREE_ROOM: u64 = 1700 << 20;
/// Disk space for a tarball or the objects of one commit, in bytes.
const PACKED_ROOM: u64 = 400 << 20;

#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    #[error(
        "failed to find a kernel's sources in {place}: no {lacks}; expected Kbuild, Kconfig and a \
         Makefile with a line `VERSION =` at the top"
    )]
    NotATree { place: String, lacks: &'static str },
    #[error(
        "failed to use {path} as sources: {there} shows that it was built in, and build products \
         would be taken for sources; save your .config and run `make -C {path} mrproper`"
    )]
    Built { path: PathBuf, there: &'static str },
    #[error("failed to use {path} as sources: {entry} {why}")]
    Entry { path: PathBuf, entry: PathBuf, why: String },
    #[error("failed to copy {path}: it changed during the copy; retry when nothing writes there")]
    Changed { path: PathBuf },
    #[error(
        "failed to find `{reference}` in {repository}: no such branch, tag or commit; {advice}"
    )]
    NoReference { repository: String, reference: String, advice: String },
    #[error(
        "failed to check out {commit} of {repository}: its files do not have the hash that names \
         the commit; the repository is damaged: git -C {repository} fsck"
    )]
    Forged { repository: PathBuf, commit: String },
    #[error("failed to unpack {path}: {source}")]
    Unpack { path: PathBuf, source: Box<ChildError> },
    #[error("failed to unpack {path}: {why}")]
    Tarball { path: PathBuf, why: String },
    #[error("failed to put sources into {into}: {why}; remove it or pass another folder")]
    Foreign { into: PathBuf, why: &'static str },
    #[error(
        "failed to make a repository of {described}: commit in that folder or repository itself; \
         expected a kernel of Debian's sources or of a tarball"
    )]
    Committable { described: String },
}

impl SourceError {
    /// True if the user can fix it by asking for something else.
    pub fn is_usage(&self) -> bool {
        match self {
            SourceError::NotATree { .. }
            | SourceError::Built { .. }
            | SourceError::Entry { .. }
            | SourceError::NoReference { .. }
            | SourceError::Forged { .. }
            | SourceError::Foreign { .. }
            | SourceError::Committable { .. }
            | SourceError::Tarball { .. } => true,
            // tar started and rejected its input.
            SourceError::Unpack { source, .. } => matches!(**source, ChildError::Failed { .. }),
            SourceError::Changed { .. } => false,
        }
    }
}

/// Sources whose exact content is known. Nothing is unpacked yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resolved {
    /// For the report: `debian-source linux-source-6.12 6.12.107-1`.
    pub described: String,
    /// Equal digests mean equal sources. Lower-case hexadecimal.
    pub digest: String,
    /// Fit for a file name. Sources of one lineage can replace each other in one folder and be
    /// built there incrementally.
    pub lineage: String,
    origin: Origin,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Origin {
    /// The repository's folder, as the user named it, made absolute.
    Repository(PathBuf),
    RepositoryUrl(String),
    Debian(Package, Option<Pin>),
    TarballFile(PathBuf),
    TarballUrl(Download),
    Folder(PathBuf),
}

/// Identifies the current content of a tree.
pub fn resolve(
    tree: &Tree,
    cache: &Cache,
    progress: &mut dyn FnMut(&str),
) -> Result<Resolved, KernelError> {
    match tree {
        Tree::Git { repository, reference } if git::is_url(repository) => {
            let digest = git::remote_commit(repository, reference)?;
            let shown = git::without_secrets(repository);
            Ok(Resolved {
                described: described_commit(&shown, reference, &digest),
                lineage: lineage("git", repository.as_bytes()),
                digest,
                origin: Origin::RepositoryUrl(repository.clone()),
            })
        }
        Tree::Git { repository, reference } => {
            let local = git::Local::open(Path::new(repository))?;
            let digest = local.commit(reference)?;
            local.check_tree(&digest)?;
            Ok(Resolved {
                described: described_commit(repository, reference, &digest),
                lineage: lineage("git", local.repository.common.as_os_str().as_encoded_bytes()),
                digest,
                origin: Origin::Repository(local.repository.folder),
            })
        }
        Tree::DebianSource { package, version, pin } => {
            let version = version.as_deref();
            let package = debian::resolve(package, version, pin.as_ref(), cache, progress)?;
            Ok(Resolved {
                described: format!("debian-source {} {}", package.name, package.version),
                digest: package.sha256.clone(),
                lineage: format!("debian-{}", package.name),
                origin: Origin::Debian(package, pin.clone()),
            })
        }
        Tree::TarballFile(path) => {
            let digest = sha256(path).map_err(io_error("read", path))?;
            Ok(Resolved {
                described: format!("tarball {}", path.display()),
                lineage: format!("tarball-{digest}"),
                digest,
                origin: Origin::TarballFile(path.clone()),
            })
        }
        Tree::TarballUrl(download) => Ok(Resolved {
            described: format!("tarball {}", git::without_secrets(&download.url)),
            digest: download.sha256.clone(),
            lineage: format!("tarball-{}", download.sha256),
            origin: Origin::TarballUrl(download.clone()),
        }),
        Tree::Folder(path) => {
            let path = fs::canonicalize(path).map_err(io_error("find", path))?;
            tree::check_tree(&path)?;
            tree::check_usable(&path)?;
            progress(&format!("reading the sources in {}", path.display()));
            let digest = tree::digest(&path)?;
            Ok(Resolved {
                described: format!("path {} {}", path.display(), &digest[..12]),
                digest,
                lineage: lineage("folder", path.as_os_str().as_encoded_bytes()),
                origin: Origin::Folder(path),
            })
        }
    }
}

impl Resolved {
    /// Makes `into` hold exactly these sources. The folder may be absent, empty, or hold an earlier
    /// checkout of the same lineage that was built in or patched. Then only files that differ are
    /// written. The caller must keep others out of the folder.
    pub fn checkout(
        &self,
        into: &Path,
        cache: &Cache,
        progress: &mut dyn FnMut(&str),
    ) -> Result<(), KernelError> {
        let into = &std::path::absolute(into).map_err(io_error("find", into))?;
        fs::create_dir_all(into).map_err(io_error("make", into))?;
        let is_empty = fs::read_dir(into).map_err(io_error("read", into))?.next().is_none();
        match State::load(into) {
            None if !is_empty => {
                return Err(SourceError::Foreign {
                    into: into.clone(),
                    why: "it holds other files",
                }
                .into());
            }
            Some(state) if !is_empty && state.lineage != self.lineage => {
                return Err(SourceError::Foreign {
                    into: into.clone(),
                    why: "it holds other sources",
                }
                .into());
            }
            Some(state) if !is_empty && !self.is_git() && state.holds(&self.digest, into)? => {
                return Ok(());
            }
            _ => {}
        }
        require_room(into, self.room(is_empty))?;
        progress(&format!("checking out {}", self.described));
        // Marks the folder as incomplete until the checkout ends.
        State::begin(&self.lineage, into)?;
        match &self.origin {
            Origin::Repository(folder) => git::Local::open(folder)?.checkout(&self.digest, into)?,
            Origin::RepositoryUrl(url) => {
                git::checkout_remote(url, &self.digest, into, cache, progress)?
            }
            Origin::Debian(package, pin) => {
                let tarball = debian::tarball(package, pin.as_ref(), cache, progress)?;
                tarball::checkout(&tarball, into)?;
            }
            Origin::TarballFile(path) => {
                tarball::checkout(path, into)?;
                if sha256(path).map_err(io_error("read", path))? != self.digest {
                    return Err(SourceError::Changed { path: path.clone() }.into());
                }
            }
            Origin::TarballUrl(download) => {
                tarball::checkout(&tarball::fetched(download, cache, progress)?, into)?;
            }
            Origin::Folder(path) => {
                tree::check_usable(path)?;
                tree::sync(path, into)?;
                if tree::digest(into)? != self.digest {
                    return Err(SourceError::Changed { path: path.clone() }.into());
                }
            }
        }
        tree::check_tree(into)?;
        State::complete(&self.lineage, &self.digest, into)
    }

    /// Makes `into`, a new folder, a git repository whose only commit holds these sources and has
    /// the tag [`BASE_TAG`].
    pub fn commit_into(
        &self,
        into: &Path,
        cache: &Cache,
        progress: &mut dyn FnMut(&str),
    ) -> Result<(), KernelError> {
        if self.is_git() || matches!(self.origin, Origin::Folder(_)) {
            return Err(SourceError::Committable { described: self.described.clone() }.into());
        }
        self.checkout(into, cache, progress)?;
        progress("committing them");
        git::commit_all(into, &self.described)?;
        // The folder is the user's from now on.
        State::remove(into)
    }

    /// The commit, if the sources come from git.
    pub fn commit(&self) -> Option<&str> {
        self.is_git().then_some(&self.digest)
    }

    /// The only sources on whose base it may be built: other ones may be a stranger's, whose build
    /// left programs and objects there. None: tarballs and folders are alone in their lineage.
    pub fn base(&self) -> Option<&str> {
        let is_shared = self.is_git() || matches!(self.origin, Origin::Debian(..));
        is_shared.then_some(&self.digest)
    }

    fn is_git(&self) -> bool {
        matches!(self.origin, Origin::Repository(_) | Origin::RepositoryUrl(_))
    }

    fn room(&self, is_empty: bool) -> u64 {
        let tree = if is_empty { TREE_ROOM } else { 0 };
        match self.origin {
            Origin::Repository(_) | Origin::Folder(_) => tree,
            Origin::RepositoryUrl(_) => tree + PACKED_ROOM,
            // Tarballs are unpacked beside the folder; then the files are moved.
            Origin::Debian(..) | Origin::TarballFile(_) | Origin::TarballUrl(_) => {
                TREE_ROOM + PACKED_ROOM
            }
        }
    }
}

fn described_commit(repository: &str, reference: &str, commit: &str) -> String {
    if reference == commit {
        format!("git {repository} {commit}")
    } else {
        format!("git {repository} {reference} {}", &commit[..12])
    }
}

fn lineage(kind: &str, place: &[u8]) -> String {
    format!("{kind}-{}", &hex(&Sha256::digest(place))[..16])
}

#[cfg(test)]
mod tests;
