// SPDX-License-Identifier: MIT OR Apache-2.0
//! The folder in which kernels of one lineage are built.
//!
//! ```text
//! CACHE/kernel-build/NAME/      held by one run at a time
//!   src/      the sources, patched in place
//!   src.json  their identity; absent while they are being replaced
//!   journal/  copies of patched files, to restore them
//!   build/    make's O= for the current build, always at this path: kbuild records the path
//!   base/     a copy of build/ after the base was built; copied back before a series is built,
//!             so that a series leaves no trace
//!   base.json describes base/; absent while the copy is incomplete
//!   configuration/  make's O= where only a .config is made; empty before
//! ```

use super::{
    Configured,
    journal::{self, Journal},
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use sha2::{Digest, Sha256};
use std::{
    collections::{BTreeSet, HashSet},
    fs,
    io::{self, Read},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, SystemTime},
};
use tramplab_host::{
    cache::{self, Cache, CacheError, Lock},
    child::{self, ChildError},
};
use tramplab_model::name::hex;
use walkdir::WalkDir;

const KIND: &str = "kernel-build";

const COPY_LIMIT: Duration = Duration::from_secs(30 * 60);

const MIB: u64 = 1 << 20;
/// Bytes for sources (1.6 GiB), build (1.1 GiB), base (0.9 GiB) and a reserve.
const ROOM_FOR_ALL: u64 = 4096 * MIB;
/// Bytes for a build folder.
const ROOM_FOR_BUILD: u64 = 1300 * MIB;

#[derive(Debug, thiserror::Error)]
pub enum WorkspaceError {
    #[error("failed to {action} {path}: {source}")]
    Io { action: &'static str, path: PathBuf, source: io::Error },
    #[error("failed to copy {from}: {source}")]
    Copy { from: PathBuf, source: ChildError },
    #[error("failed to check out the sources of {what}: {reason}")]
    Checkout { what: String, reason: String },
    #[error(transparent)]
    Journal(#[from] journal::JournalError),
    #[error(transparent)]
    Cache(#[from] CacheError),
}

#[derive(Debug)]
pub struct Workspace {
    folder: PathBuf,
    _lock: Lock,
}

/// The state of `src/` without patches.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct SourceState {
    digest: String,
    /// Hash of names, sizes, modes and times of all files.
    listing: String,
}

/// The state of `base/`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BaseState {
    /// The cache key of the base's kernel.
    pub key: String,
    /// The sources' digest. None: of an older version.
    #[serde(default)]
    pub digest: Option<String>,
    /// Steps that a dry run does not predict: those that link vmlinux and pack the image.
    pub tail: u64,
    #[serde(default)]
    pub configured: Configured,
}

/// Makes a workspace's name. Workspaces that differ in `identity` cannot share a folder.
pub fn name(lineage: &str, identity: &[&str]) -> String {
    let short: String =
        lineage.chars().filter(|c| c.is_ascii_alphanumeric() || "._-".contains(*c)).collect();
    let short: String = short.trim_start_matches(['.', '-']).chars().take(40).collect();
    let mut words = vec![lineage];
    words.extend(identity);
    format!("{short}-{}", &super::digest(words)[..12])
}

/// Returns the process that builds in the workspace, if any.
pub fn user(cache: &Cache, name: &str) -> Option<String> {
    cache.holder(&lock_name(name))
}

/// Returns a folder that holds these sources without patches, if a workspace has one now.
pub fn sources(cache: &Cache, digest: &str) -> Option<PathBuf> {
    let all = fs::read_dir(cache.root().join(KIND)).ok()?;
    let mut folders = all.flatten().map(|entry| entry.path());
    let folder = folders.find(|folder| {
        let state = read_state::<SourceState>(&folder.join("src.json"));
        // Patches may define options, or remove them.
        state.is_some_and(|state| state.digest == digest) && !folder.join("journal").exists()
    })?;
    Some(folder.join("src"))
}

fn lock_name(name: &str) -> String {
    format!("{KIND}-{name}")
}

impl Workspace {
    /// Opens a workspace. Waits until no other run builds there, and repairs what a killed run
    /// left.
    pub fn open(cache: &Cache, name: &str) -> Result<Workspace, WorkspaceError> {
        let folder = cache.folder(&format!("{KIND}/{name}"))?;
        let lock = cache.lock(&lock_name(name))?;
        // make and bubblewrap use the real path.
        let folder = fs::canonicalize(&folder).map_err(io_error("find", &folder))?;
        let workspace = Workspace { folder, _lock: lock };
        workspace.restore()?;
        Ok(workspace)
    }

    pub fn name(&self) -> String {
        self.folder.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    pub fn source(&self) -> PathBuf {
        self.folder.join("src")
    }

    pub fn build(&self) -> PathBuf {
        self.folder.join("build")
    }

    pub fn base(&self) -> PathBuf {
        self.folder.join("base")
    }

    fn journal(&self) -> Journal {
        Journal::new(self.folder.join("journal"), self.source())
    }

    /// Checks out the sources unless they are there already. `checkout` may find its earlier output
    /// of the same lineage in the folder. It must then write only files that differ, so that make
    /// rebuilds only what changed.
    pub fn check_out<E: std::fmt::Display>(
        &self,
        digest: &str,
        what: &str,
        checkout: impl FnOnce(&Path) -> Result<(), E>,
    ) -> Result<(), WorkspaceError> {
        self.restore()?;
        let state_file = self.folder.join("src.json");
        let source = self.source();
        if read_state::<SourceState>(&state_file).is_some_and(|state| state.digest == digest) {
            return Ok(());
        }
        cache::require_room(&self.folder, ROOM_FOR_ALL)?;
        // Absent until the sources are complete again.
        remove_file(&state_file)?;
        fs::create_dir_all(&source).map_err(io_error("make", &source))?;
        checkout(&source).map_err(|error| WorkspaceError::Checkout {
            what: what.to_owned(),
            reason: error.to_string(),
        })?;
        let listing = listing(&source).map_err(io_error("list", &source))?;
        write_state(&state_file, &SourceState { digest: digest.to_owned(), listing })
    }

    /// Returns the kept base, if it is complete.
    pub fn base_state(&self) -> Option<BaseState> {
        read_state(&self.folder.join("base.json"))
    }

    /// Prepares `build/` for a base: a copy of the previous base if it may be used, else empty.
    pub fn begin_base(&self, starts_from: Option<&str>) -> Result<(), WorkspaceError> {
        let fits = |state: BaseState| {
            starts_from.is_none_or(|wanted| state.digest.as_deref() == Some(wanted))
        };
        if self.base_state().is_some_and(fits) {
            return self.begin_series();
        }
        remove_file(&self.folder.join("base.json"))?;
        remove(&self.base())?;
        remove(&self.build())?;
        cache::require_room(&self.folder, 2 * ROOM_FOR_BUILD)?;
        fs::create_dir(self.build()).map_err(io_error("make", &self.build()))
    }

    /// Makes an empty folder in which only a configuration is made.
    pub fn begin_configuration(&self) -> Result<PathBuf, WorkspaceError> {
        let folder = self.folder.join("configuration");
        remove(&folder)?;
        fs::create_dir(&folder).map_err(io_error("make", &folder))?;
        Ok(folder)
    }

    /// Saves a copy of `build/` as the base.
    pub fn keep_base(&self, state: &BaseState) -> Result<(), WorkspaceError> {
        let state_file = self.folder.join("base.json");
        remove_file(&state_file)?;
        remove(&self.base())?;
        cache::require_room(&self.folder, ROOM_FOR_BUILD)?;
        self.copy(&self.build(), &self.base())?;
        prune(&self.base())?;
        write_state(&state_file, state)
    }

    /// Removes the base and everything built.
    pub fn forget_base(&self) -> Result<(), WorkspaceError> {
        remove_file(&self.folder.join("base.json"))?;
        remove(&self.base())?;
        remove(&self.build())
    }

    /// Frees the disk space of a build.
    pub fn discard_build(&self) -> Result<(), WorkspaceError> {
        remove(&self.build())
    }

    /// Makes `build/` a fresh copy of the base.
    pub fn begin_series(&self) -> Result<(), WorkspaceError> {
        remove(&self.build())?;
        cache::require_room(&self.folder, ROOM_FOR_BUILD)?;
        self.copy(&self.base(), &self.build())
    }

    /// Uses `cp`, which preserves times to the nanosecond, symbolic links and holes, and shares
    /// blocks if the file system can.
    fn copy(&self, from: &Path, to: &Path) -> Result<(), WorkspaceError> {
        let mut command = Command::new("cp");
        command
            .args(["--archive", "--reflink=auto", "--no-target-directory", "--"])
            .arg(from)
            .arg(to);
        child::run(&mut command, COPY_LIMIT)
            .map_err(|source| WorkspaceError::Copy { from: from.to_owned(), source })?;
        Ok(())
    }

    /// Runs `apply` on the sources. The `touched` files are saved first, so that they can be
    /// restored in any case.
    pub fn patch<E>(
        &self,
        touched: &BTreeSet<PathBuf>,
        apply: impl FnOnce(&Path) -> Result<(), E>,
    ) -> Result<Result<(), E>, WorkspaceError> {
        let journal = self.journal();
        journal.save(touched)?;
        let result = apply(&self.source());
        // Makes the files newer than any build product, whatever times the tool sets.
        for path in touched {
            let path = self.source().join(path);
            if path.symlink_metadata().is_ok_and(|meta| meta.is_file()) {
                let file = fs::File::open(&path);
                file.and_then(|file| file.set_modified(SystemTime::now()))
                    .map_err(io_error("set the time of", &path))?;
            }
        }
        Ok(result)
    }

    /// Counts the built files that depend on these sources, from the command files that kbuild
    /// wrote.
    pub fn affected(&self, touched: &BTreeSet<PathBuf>) -> u64 {
        let source = self.source();
        let touched: HashSet<Vec<u8>> = touched
            .iter()
            .map(|path| source.join(path).into_os_string().into_encoded_bytes())
            .collect();
        let mut count = 0;
        // Only the progress bar needs the number, so unreadable files are ignored.
        let _ = walk(&self.build(), &mut |path, meta| {
            let name = path.file_name().unwrap_or_default().as_encoded_bytes();
            if meta.is_file() && name.starts_with(b".") && name.ends_with(b".cmd") {
                let mut text = Vec::new();
                fs::File::open(path)?.take(MIB).read_to_end(&mut text)?;
                let mut words = text.split(|byte| byte.is_ascii_whitespace());
                count += u64::from(words.any(|word| touched.contains(word)));
            }
            Ok(())
        });
        count
    }

    /// Removes all patches from the sources. If the sources then differ from their checkout, the
    /// next checkout replaces them.
    pub fn restore(&self) -> Result<(), WorkspaceError> {
        let state_file = self.folder.join("src.json");
        let Some(state) = read_state::<SourceState>(&state_file) else {
            return Ok(self.journal().forget()?);
        };
        let put_back = self.journal().restore();
        let as_before = listing(&self.source()).is_ok_and(|listing| listing == state.listing);
        if !as_before {
            remove_file(&state_file)?;
            return Ok(self.journal().forget()?);
        }
        Ok(put_back?)
    }
}

fn io_error(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> WorkspaceError {
    move |source| WorkspaceError::Io { action, path: path.to_owned(), source }
}

/// Removes a folder. A hostile Makefile can leave unwritable folders, or folders nested deeper than
/// a process can open.
pub fn remove(path: &Path) -> Result<(), WorkspaceError> {
    match fs::remove_dir_all(path) {
        Ok(()) => return Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(_) => {}
    }
    let run = |program: &str, words: [&str; 2]| {
        let mut command = Command::new(program);
        command.args(words).arg("--").arg(path);
        child::run(&mut command, COPY_LIMIT).map_err(io::Error::other)
    };
    // Neither program follows links.
    let _ = run("chmod", ["-R", "u+rwx"]);
    run("rm", ["-r", "-f"]).map(drop).map_err(io_error("remove", path))
}

fn remove_file(path: &Path) -> Result<(), WorkspaceError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result.map_err(io_error("remove", path)),
    }
}

/// Returns None if the file is absent or cannot be parsed.
fn read_state<T: DeserializeOwned>(path: &Path) -> Option<T> {
    serde_json::from_slice(&fs::read(path).ok()?).ok()
}

/// Writes the state after syncing the files that it describes.
fn write_state<T: Serialize>(path: &Path, state: &T) -> Result<(), WorkspaceError> {
    let json = serde_json::to_vec(state).expect("plain data");
    let synced = fs::File::open(path.parent().expect("in the workspace"))
        .and_then(|folder| Ok(nix::unistd::syncfs(folder)?));
    synced.and_then(|()| cache::write_whole(path, &json)).map_err(io_error("write", path))
}

/// Removes files that every link of vmlinux rewrites. They are a third of a build's size.
fn prune(build: &Path) -> Result<(), WorkspaceError> {
    let entries = fs::read_dir(build).map_err(io_error("list", build))?;
    for entry in entries.flatten() {
        let name = entry.file_name();
        let is_scratch = name.to_str().is_some_and(|name| name.starts_with(".tmp_vmlinux"));
        if is_scratch && entry.file_type().is_ok_and(|kind| kind.is_file()) {
            remove_file(&entry.path())?;
        }
    }
    remove(&build.join(".ccache-tmp"))
}

/// Visits every file below a folder in order. Does not follow symbolic links.
fn walk(
    folder: &Path,
    each: &mut dyn FnMut(&Path, &fs::Metadata) -> io::Result<()>,
) -> io::Result<()> {
    for entry in WalkDir::new(folder).sort_by_file_name() {
        let entry = entry?;
        if !entry.file_type().is_dir() {
            each(entry.path(), &entry.metadata()?)?;
        }
    }
    Ok(())
}

fn listing(source: &Path) -> io::Result<String> {
    let mut hasher = Sha256::new();
    walk(source, &mut |path, meta| {
        let path = path.strip_prefix(source).expect("below it");
        // A restored link has a new time; only its target counts.
        let [seconds, nanoseconds] = match meta.is_symlink() {
            true => [0, 0],
            false => [meta.mtime() as u64, meta.mtime_nsec() as u64],
        };
        let fields = [u64::from(meta.mode()), meta.len(), seconds, nanoseconds];
        hasher.update(path.as_os_str().as_encoded_bytes());
        hasher.update([0]);
        if meta.is_symlink() {
            hasher.update(fs::read_link(source.join(path))?.as_os_str().as_encoded_bytes());
            hasher.update([0]);
        }
        for field in fields {
            hasher.update(field.to_le_bytes());
        }
        Ok(())
    })?;
    Ok(hex(&hasher.finalize()))
}

#[cfg(test)]
mod tests;
