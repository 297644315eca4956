// SPDX-License-Identifier: MIT OR Apache-2.0
//! The folder in which one lineage of kernels is built, again and again.
//!
//! ```text
//! CACHE/kernel-build/NAME/      held by one run at a time
//!   src/      the sources; patched in place
//!   src.json  what they are; absent while they are being replaced
//!   journal/  what patched files were, to put back
//!   build/    make's O=, always at this path, as kbuild writes it into what it makes; only what is built now
//!   base/     a copy of build/ from when the base had been built; copied back before a series is built,
//!   base.json so that nothing a series did outlives it; absent while the copy is not whole
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
/// Sources 1.6 GiB, build 1.1 GiB, base 0.9 GiB, and some.
const ROOM_FOR_ALL: u64 = 4096 * MIB;
/// A build folder.
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

/// What is in `src/` when no patch is applied.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct SourceState {
    digest: String,
    /// Of names, sizes, modes and times of all files.
    listing: String,
}

/// What is in `base/`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BaseState {
    /// The product's key.
    pub key: String,
    /// Steps that a dry run does not foresee: those that link vmlinux and pack the image.
    pub tail: u64,
}

/// A workspace's name; `identity` is what one folder cannot serve two of.
pub fn name(lineage: &str, identity: &[&str]) -> String {
    let short: String = lineage.chars().filter(|c| c.is_ascii_alphanumeric() || "._-".contains(*c)).collect();
    let short: String = short.trim_start_matches(['.', '-']).chars().take(40).collect();
    let mut words = vec![lineage];
    words.extend(identity);
    format!("{short}-{}", &super::digest(words)[..12])
}

/// The process that builds in it, if one does.
pub fn user(cache: &Cache, name: &str) -> Option<String> {
    cache.holder(&lock_name(name))
}

fn lock_name(name: &str) -> String {
    format!("{KIND}-{name}")
}

impl Workspace {
    /// Waits until no other run builds there, and repairs what a run that died has left.
    pub fn open(cache: &Cache, name: &str) -> Result<Workspace, WorkspaceError> {
        let folder = cache.folder(&format!("{KIND}/{name}"))?;
        let lock = cache.lock(&lock_name(name))?;
        // make and bubblewrap see the real path.
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

    /// Brings the sources, if they are not those already. `checkout` may find in the folder what it put there before, of
    /// this lineage; it then writes only what differs, so that make sees only what has changed.
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
        // Until it is whole again.
        remove_file(&state_file)?;
        fs::create_dir_all(&source).map_err(io_error("make", &source))?;
        checkout(&source)
            .map_err(|error| WorkspaceError::Checkout { what: what.to_owned(), reason: error.to_string() })?;
        let listing = listing(&source).map_err(io_error("list", &source))?;
        write_state(&state_file, &SourceState { digest: digest.to_owned(), listing })
    }

    /// The base that is kept, if it is whole.
    pub fn base_state(&self) -> Option<BaseState> {
        read_state(&self.folder.join("base.json"))
    }

    /// Makes `build/` what to build a base in: the base before it if there is one, else empty.
    pub fn begin_base(&self) -> Result<(), WorkspaceError> {
        if self.base_state().is_some() {
            return self.begin_series();
        }
        remove(&self.base())?;
        remove(&self.build())?;
        cache::require_room(&self.folder, 2 * ROOM_FOR_BUILD)?;
        fs::create_dir(self.build()).map_err(io_error("make", &self.build()))
    }

    /// Keeps a copy of `build/` as the base.
    pub fn keep_base(&self, state: &BaseState) -> Result<(), WorkspaceError> {
        let state_file = self.folder.join("base.json");
        remove_file(&state_file)?;
        remove(&self.base())?;
        cache::require_room(&self.folder, ROOM_FOR_BUILD)?;
        self.copy(&self.build(), &self.base())?;
        prune(&self.base())?;
        write_state(&state_file, state)
    }

    /// Forgets the base, and all that was built.
    pub fn forget_base(&self) -> Result<(), WorkspaceError> {
        remove_file(&self.folder.join("base.json"))?;
        remove(&self.base())?;
        remove(&self.build())
    }

    /// Gives back what a build has taken of the disk.
    pub fn discard_build(&self) -> Result<(), WorkspaceError> {
        remove(&self.build())
    }

    /// Makes `build/` a fresh copy of the base.
    pub fn begin_series(&self) -> Result<(), WorkspaceError> {
        remove(&self.build())?;
        cache::require_room(&self.folder, ROOM_FOR_BUILD)?;
        self.copy(&self.base(), &self.build())
    }

    /// `cp` keeps times to the nanosecond, symbolic links, holes, and copies nothing where the file system can share.
    fn copy(&self, from: &Path, to: &Path) -> Result<(), WorkspaceError> {
        let mut command = Command::new("cp");
        command.args(["--archive", "--reflink=auto", "--no-target-directory", "--"]).arg(from).arg(to);
        child::run(&mut command, COPY_LIMIT)
            .map_err(|source| WorkspaceError::Copy { from: from.to_owned(), source })?;
        Ok(())
    }

    /// Has `apply` change these files of the sources; they can be put back, whatever happens meanwhile.
    pub fn patch<E>(
        &self,
        touched: &BTreeSet<PathBuf>,
        apply: impl FnOnce(&Path) -> Result<(), E>,
    ) -> Result<Result<(), E>, WorkspaceError> {
        let journal = self.journal();
        journal.save(touched)?;
        let result = apply(&self.source());
        // Newer than anything that was built, whatever times the patch's tool sets.
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

    /// How many of the files that make has made depend on these sources, by what kbuild wrote down beside each.
    pub fn affected(&self, touched: &BTreeSet<PathBuf>) -> u64 {
        let source = self.source();
        let touched: HashSet<Vec<u8>> =
            touched.iter().map(|path| source.join(path).into_os_string().into_encoded_bytes()).collect();
        let mut count = 0;
        // Only for the progress: what cannot be read is not counted.
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

    /// Takes all patches out of the sources. Sources that are not again what they were are given up: the next
    /// checkout brings them anew.
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

/// A series' Makefile can leave folders that nobody may write to, or more of them in each other than a process can open.
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
    // Links are not followed by either.
    let _ = run("chmod", ["-R", "u+rwx"]);
    run("rm", ["-r", "-f"]).map(drop).map_err(io_error("remove", path))
}

fn remove_file(path: &Path) -> Result<(), WorkspaceError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result.map_err(io_error("remove", path)),
    }
}

/// None when it is absent or not what this program writes.
fn read_state<T: DeserializeOwned>(path: &Path) -> Option<T> {
    serde_json::from_slice(&fs::read(path).ok()?).ok()
}

/// Only once what it vouches for is on the disk.
fn write_state<T: Serialize>(path: &Path, state: &T) -> Result<(), WorkspaceError> {
    let json = serde_json::to_vec(state).expect("plain data");
    let synced = fs::File::open(path.parent().expect("in the workspace"))
        .and_then(|folder| Ok(nix::unistd::syncfs(folder)?));
    synced.and_then(|()| cache::write_whole(path, &json)).map_err(io_error("write", path))
}

/// Files that each link of vmlinux writes anew: a third of what a build weighs.
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

/// Every file below a folder in order, symbolic links not followed.
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
        // A link that is put back is made anew, with a time of its own; what counts is where it leads.
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
    fn patched_sources_are_put_back_with_their_times() {
        let (_folder, cache) = workspace();
        let workspace = open(&cache);
        workspace.check_out("d1", "some", checkout).unwrap();
        let before = listing(&workspace.source()).unwrap();
        workspace.patch(&touched(), apply).unwrap().unwrap();
        // A second patch on the same file does not overwrite what it was at first.
        workspace
            .patch(&[PathBuf::from("one.c")].into(), |source| fs::write(source.join("one.c"), "eins\n"))
            .unwrap()
            .unwrap();
        assert_ne!(listing(&workspace.source()).unwrap(), before);
        workspace.restore().unwrap();
        assert_eq!(listing(&workspace.source()).unwrap(), before);
        assert_eq!(fs::read_to_string(workspace.source().join("one.c")).unwrap(), "one\n");
        assert!(!workspace.source().join("new").exists());
        // Not brought again.
        workspace.check_out("d1", "some", |_| Err(io::Error::other("again"))).unwrap();
    }

    #[test]
    fn a_run_that_died_while_patched_is_cleaned_up_by_the_next() {
        let (_folder, cache) = workspace();
        let workspace = open(&cache);
        workspace.check_out("d1", "some", checkout).unwrap();
        let before = listing(&workspace.source()).unwrap();
        // Died in the middle of applying: the file is half, the second not begun.
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
    fn a_link_that_is_put_back_is_the_same_link() {
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
        // Not given up, and so not brought again.
        workspace.check_out("d1", "some", |_| Err(io::Error::other("again"))).unwrap();
        assert_eq!(fs::read_link(&link).unwrap(), Path::new("one.c"));
    }

    /// Root may write anywhere: there, only the depth is a hindrance.
    #[test]
    fn what_a_hostile_build_leaves_can_be_removed() {
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

    /// A patch's tool that touches what the diff does not name, or somebody's editor.
    #[test]
    fn sources_that_cannot_be_put_back_are_brought_anew() {
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
        // Also when the checkout fails, nothing half-way counts.
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
    fn what_a_series_does_to_the_build_folder_is_gone_and_half_a_base_is_none() {
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

        // A copy without its state: the run died in it.
        fs::remove_file(workspace.folder.join("base.json")).unwrap();
        assert_eq!(workspace.base_state(), None);
        workspace.begin_base().unwrap();
        assert_eq!(fs::read_dir(workspace.build()).unwrap().count(), 0);
        assert!(!workspace.base().exists());
    }

    #[test]
    fn what_depends_on_a_source_is_counted() {
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
    fn a_lineage_names_a_folder_in_the_cache_whatever_it_contains() {
        let (folder, cache) = workspace();
        for lineage in ["../../etc", "", "a b/c", ".hidden", "-rf"] {
            let workspace = Workspace::open(&cache, &name(lineage, &[])).unwrap();
            let parent = fs::canonicalize(folder.path().join("cache").join(KIND)).unwrap();
            assert_eq!(workspace.folder.parent(), Some(parent.as_path()));
        }
        assert_ne!(name("a", &["b", "c"]), name("a", &["bc"]));
    }

    #[test]
    fn tells_which_process_builds_in_a_folder() {
        let (_folder, cache) = workspace();
        let name = name("mainline/../x", &["x86_64"]);
        assert_eq!(user(&cache, &name), None);
        let workspace = open(&cache);
        assert_eq!(user(&cache, &name), Some(std::process::id().to_string()));
        drop(workspace);
        assert_eq!(user(&cache, &name), None);
    }
}
