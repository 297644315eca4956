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
//! ```

use super::journal::{self, Journal};
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
    /// Steps that a dry run does not predict: those that link vmlinux and pack the image.
    pub tail: u64,
}

/// Makes a workspace's name. Workspaces that differ in `identity` cannot share a folder.
pub fn name(lineage: &str, identity: &[&str]) -> String {
    let short: String = lineage.chars().filter(|c| c.is_ascii_alphanumeric() || "._-".contains(*c)).collect();
    let short: String = short.trim_start_matches(['.', '-']).chars().take(40).collect();
    let mut words = vec![lineage];
    words.extend(identity);
    format!("{short}-{}", &super::digest(words)[..12])
}

/// Returns the process that builds in the workspace, if any.
pub fn user(cache: &Cache, name: &str) -> Option<String> {
    cache.holder(&lock_name(name))
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

    pub fn source(&self) -> PathBuf {
        self.folder.join("src")
    }

    pub fn build(&self) -> PathBuf {
        self.folder.join("build")
    }

    fn base(&self) -> PathBuf {
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
        checkout(&source)
            .map_err(|error| WorkspaceError::Checkout { what: what.to_owned(), reason: error.to_string() })?;
        let listing = listing(&source).map_err(io_error("list", &source))?;
        write_state(&state_file, &SourceState { digest: digest.to_owned(), listing })
    }

    /// Returns the kept base, if it is complete.
    pub fn base_state(&self) -> Option<BaseState> {
        read_state(&self.folder.join("base.json"))
    }

    /// Prepares `build/` for a base: a copy of the previous base if there is one, else empty.
    pub fn begin_base(&self) -> Result<(), WorkspaceError> {
        if self.base_state().is_some() {
            return self.begin_series();
        }
        remove(&self.base())?;
        remove(&self.build())?;
        cache::require_room(&self.folder, 2 * ROOM_FOR_BUILD)?;
        fs::create_dir(self.build()).map_err(io_error("make", &self.build()))
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
        command.args(["--archive", "--reflink=auto", "--no-target-directory", "--"]).arg(from).arg(to);
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
        let touched: HashSet<Vec<u8>> =
            touched.iter().map(|path| source.join(path).into_os_string().into_encoded_bytes()).collect();
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
fn remove(path: &Path) -> Result<(), WorkspaceError> {
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
fn walk(folder: &Path, each: &mut dyn FnMut(&Path, &fs::Metadata) -> io::Result<()>) -> io::Result<()> {
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
mod tests {
    use super::*;

    fn touched() -> BTreeSet<PathBuf> {
        ["one.c", "new/deep/three.c", "dir/two.h"].map(PathBuf::from).into()
    }

    fn checkout(folder: &Path) -> io::Result<()> {
        fs::write(folder.join("one.c"), "one\n")?;
        fs::create_dir(folder.join("dir"))?;
        fs::write(folder.join("dir/two.h"), "two\n")?;
        std::os::unix::fs::symlink("dir", folder.join("link"))
    }

    fn apply(source: &Path) -> io::Result<()> {
        fs::write(source.join("one.c"), "uno\n")?;
        fs::create_dir_all(source.join("new/deep"))?;
        fs::write(source.join("new/deep/three.c"), "three\n")?;
        fs::remove_file(source.join("dir/two.h"))
    }

    fn workspace() -> (tempfile::TempDir, Cache) {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::at(folder.path().join("cache"), true);
        (folder, cache)
    }

    fn open(cache: &Cache) -> Workspace {
        Workspace::open(cache, &name("mainline/../x", &["x86_64"])).unwrap()
    }

    #[test]
    fn restores_patched_sources_with_their_times() {
        let (_folder, cache) = workspace();
        let workspace = open(&cache);
        workspace.check_out("d1", "some", checkout).unwrap();
        let before = listing(&workspace.source()).unwrap();
        workspace.patch(&touched(), apply).unwrap().unwrap();
        // A second patch to the same file keeps the original copy.
        workspace
            .patch(&[PathBuf::from("one.c")].into(), |source| fs::write(source.join("one.c"), "eins\n"))
            .unwrap()
            .unwrap();
        assert_ne!(listing(&workspace.source()).unwrap(), before);
        workspace.restore().unwrap();
        assert_eq!(listing(&workspace.source()).unwrap(), before);
        assert_eq!(fs::read_to_string(workspace.source().join("one.c")).unwrap(), "one\n");
        assert!(!workspace.source().join("new").exists());
        // Not checked out again.
        workspace.check_out("d1", "some", |_| Err(io::Error::other("again"))).unwrap();
    }

    #[test]
    fn next_run_restores_sources_of_killed_run() {
        let (_folder, cache) = workspace();
        let workspace = open(&cache);
        workspace.check_out("d1", "some", checkout).unwrap();
        let before = listing(&workspace.source()).unwrap();
        // Killed while applying: one file is half written, the second not begun.
        let died = |source: &Path| -> io::Result<()> {
            fs::write(source.join("one.c"), "u")?;
            fs::create_dir(source.join("new"))
        };
        workspace.patch(&touched(), died).unwrap().unwrap();
        drop(workspace);
        let workspace = open(&cache);
        assert_eq!(listing(&workspace.source()).unwrap(), before);
        assert!(!workspace.source().join("new").exists());
    }

    #[test]
    fn restored_link_needs_no_checkout() {
        let (_folder, cache) = workspace();
        let workspace = open(&cache);
        let with_link = |folder: &Path| -> io::Result<()> {
            checkout(folder)?;
            std::os::unix::fs::symlink("one.c", folder.join("a-link"))
        };
        workspace.check_out("d1", "some", with_link).unwrap();
        let link = workspace.source().join("a-link");
        let other = |_: &Path| -> io::Result<()> {
            fs::remove_file(&link)?;
            std::os::unix::fs::symlink("dir", &link)
        };
        workspace.patch(&[PathBuf::from("a-link")].into(), other).unwrap().unwrap();
        workspace.restore().unwrap();
        // The sources count as intact, so there is no new checkout.
        workspace.check_out("d1", "some", |_| Err(io::Error::other("again"))).unwrap();
        assert_eq!(fs::read_link(&link).unwrap(), Path::new("one.c"));
    }

    /// Root may write anywhere; for root only the depth is an obstacle.
    #[test]
    fn removes_leftovers_of_hostile_build() {
        let folder = tempfile::tempdir().unwrap();
        let build = folder.path().join("build");
        let script = "mkdir -p build/shut build/$(printf 'd/%.0s' $(seq 1500)) && touch build/shut/x";
        let mut command = Command::new("bash");
        command.args(["-c", script]).current_dir(folder.path());
        child::run(&mut command, COPY_LIMIT).unwrap();
        let mut command = Command::new("chmod");
        child::run(command.args(["000"]).arg(build.join("shut")), COPY_LIMIT).unwrap();
        remove(&build).unwrap();
        assert!(!build.exists());
    }

    /// A tool or an editor may touch files that the diff does not name.
    #[test]
    fn checks_out_again_if_sources_cannot_be_restored() {
        let (_folder, cache) = workspace();
        let workspace = open(&cache);
        workspace.check_out("d1", "some", checkout).unwrap();
        fs::write(workspace.source().join("dir/extra.h"), "").unwrap();
        drop(workspace);
        let workspace = open(&cache);
        let anew = |folder: &Path| -> io::Result<()> {
            fs::remove_dir_all(folder)?;
            fs::create_dir(folder)?;
            checkout(folder)
        };
        workspace.check_out("d1", "some", anew).unwrap();
        assert!(!workspace.source().join("dir/extra.h").exists());
        // A failed checkout does not count either.
        let error = workspace
            .check_out("d2", "the other", |folder| {
                fs::write(folder.join("one.c"), "half")?;
                Err(io::Error::other("no network"))
            })
            .unwrap_err();
        assert_eq!(error.to_string(), "failed to check out the sources of the other: no network");
        let half = fs::read_to_string(workspace.source().join("one.c")).unwrap();
        assert_eq!(half, "half");
        workspace.check_out("d1", "some", anew).unwrap();
        assert_eq!(fs::read_to_string(workspace.source().join("one.c")).unwrap(), "one\n");
    }

    #[test]
    fn series_leaves_no_trace_and_incomplete_base_is_ignored() {
        let (_folder, cache) = workspace();
        let workspace = open(&cache);
        workspace.begin_base().unwrap();
        let object = workspace.build().join("one.o");
        fs::write(&object, "base").unwrap();
        fs::write(workspace.build().join(".tmp_vmlinux1"), "large").unwrap();
        let time = |path: &Path| fs::metadata(path).unwrap().modified().unwrap();
        let built = time(&object);
        let state = BaseState { key: "k".to_owned(), tail: 3 };
        workspace.keep_base(&state).unwrap();
        fs::write(&object, "poison").unwrap();
        fs::write(workspace.build().join("planted"), "").unwrap();
        drop(workspace);

        let workspace = open(&cache);
        assert_eq!(workspace.base_state(), Some(state));
        workspace.begin_series().unwrap();
        assert_eq!(fs::read_to_string(&object).unwrap(), "base");
        assert_eq!(time(&object), built, "make would build it again");
        assert!(!workspace.build().join("planted").exists());
        assert!(!workspace.build().join(".tmp_vmlinux1").exists());

        // A copy without its state: the run was killed while copying.
        fs::remove_file(workspace.folder.join("base.json")).unwrap();
        assert_eq!(workspace.base_state(), None);
        workspace.begin_base().unwrap();
        assert_eq!(fs::read_dir(workspace.build()).unwrap().count(), 0);
        assert!(!workspace.base().exists());
    }

    #[test]
    fn counts_files_that_depend_on_source() {
        let (_folder, cache) = workspace();
        let workspace = open(&cache);
        workspace.begin_base().unwrap();
        let source = workspace.source();
        for (object, depends) in [("a", "one.c dir/two.h"), ("b", "dir/two.h"), ("c", "dir/two.hpp")] {
            let lines: String =
                depends.split(' ').map(|path| format!("  {} \\\n", source.join(path).display())).collect();
            fs::write(workspace.build().join(format!(".{object}.o.cmd")), lines).unwrap();
        }
        for (touched, expected) in [("one.c", 1), ("dir/two.h", 2), ("two.h", 0)] {
            assert_eq!(workspace.affected(&BTreeSet::from([touched.into()])), expected, "{touched}");
        }
    }

    #[test]
    fn keeps_any_lineage_inside_the_cache() {
        let (folder, cache) = workspace();
        for lineage in ["../../etc", "", "a b/c", ".hidden", "-rf"] {
            let workspace = Workspace::open(&cache, &name(lineage, &[])).unwrap();
            let parent = fs::canonicalize(folder.path().join("cache").join(KIND)).unwrap();
            assert_eq!(workspace.folder.parent(), Some(parent.as_path()));
        }
        assert_ne!(name("a", &["b", "c"]), name("a", &["bc"]));
    }

    #[test]
    fn names_process_that_uses_workspace() {
        let (_folder, cache) = workspace();
        let name = name("mainline/../x", &["x86_64"]);
        assert_eq!(user(&cache, &name), None);
        let workspace = open(&cache);
        assert_eq!(user(&cache, &name), Some(std::process::id().to_string()));
        drop(workspace);
        assert_eq!(user(&cache, &name), None);
    }
}
