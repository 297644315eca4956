// SPDX-License-Identifier: MIT OR Apache-2.0
//! The cache: folders that cost time to make, each filled once, by one run, completely or not at all.
//!
//! ```text
//! ROOT/KIND/KEY/             a complete entry: it has a `.complete`
//! ROOT/KIND/.KEY.unfinished  being filled by whoever holds the lock, else left by a run that died
//! ROOT/KIND/.KEY.lock        flock(2), so it ends with its holder
//! ROOT/.users.lock           shared by all who use it; exclusive for who takes things away
//! ```

use nix::fcntl::{Flock, FlockArg, RenameFlags, renameat2};
use std::{
    collections::HashSet,
    env,
    error::Error,
    fs, io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
    thread,
    time::{Duration, Instant, SystemTime},
};
use tramplab_model::text;

pub(super) const MARKER: &str = ".complete";
const UNFINISHED: &str = ".unfinished";
const LOCK: &str = ".lock";
const USERS: &str = ".users.lock";

/// Longer than any fill (a series of kernels is one): whoever holds a lock for so long hangs.
const LOCK_LIMIT: Duration = Duration::from_secs(12 * 3600);
/// For who takes things away, on a slow disk.
const PRUNING: Duration = Duration::from_secs(600);

#[derive(Debug, thiserror::Error)]
pub enum CacheError {
    #[error("failed to find a folder for the cache: none of TRAMPLAB_CACHE, XDG_CACHE_HOME and HOME is set")]
    NoHome,
    #[error("the cache is to be at {root}, which is no folder; set TRAMPLAB_CACHE to another")]
    NoFolder { root: PathBuf },
    #[error(
        "the cache is to be at {root:?}; expected a path in UTF-8 on one line, as apt and make take it: set TRAMPLAB_CACHE to another"
    )]
    Unfit { root: PathBuf },
    #[error(
        "failed to write to the cache {root}: {source}; make it writable or set TRAMPLAB_CACHE to another folder"
    )]
    NotWritable { root: PathBuf, source: io::Error },
    #[error(
        "failed to fill the cache {root}: no room is left there; free some, or set TRAMPLAB_CACHE to a folder \
         on another disk ({source})"
    )]
    Full { root: PathBuf, source: Box<dyn Error + Send + Sync> },
    #[error(
        "failed to fill the cache {folder}: it takes about {needed} MiB and {free} MiB are free; free some, or set \
         TRAMPLAB_CACHE to a folder on another disk"
    )]
    NoRoom { folder: PathBuf, needed: u64, free: u64 },
    #[error(
        "another run ({holder}) has held {lock} for {minutes} minutes; end it, or set TRAMPLAB_CACHE to another folder"
    )]
    Locked { lock: PathBuf, holder: String, minutes: u64 },
}

impl CacheError {
    /// Whether other settings would mend it, and nothing on the disk is at fault.
    pub fn is_usage(&self) -> bool {
        matches!(self, CacheError::NoHome | CacheError::NoFolder { .. } | CacheError::Unfit { .. })
    }
}

impl From<CacheError> for io::Error {
    fn from(error: CacheError) -> io::Error {
        io::Error::other(error)
    }
}

/// Clones are one user of it.
#[derive(Clone, Debug)]
pub struct Cache {
    root: PathBuf,
    reuse: bool,
    /// Filled by this object: without `reuse` an entry is made anew once, not at every use.
    filled: Arc<Mutex<HashSet<PathBuf>>>,
    /// Shared by all who use it, so that nothing is taken away from under them. None where it cannot be written.
    users: Option<Arc<Mutex<Flock<fs::File>>>>,
}

/// Held until dropped, or until the process ends however it ends.
#[derive(Debug)]
pub struct Lock(#[expect(dead_code, reason = "held for its drop")] Flock<fs::File>);

impl Cache {
    /// The user's cache: `TRAMPLAB_CACHE`, else `tramplab` in `XDG_CACHE_HOME`, else in `~/.cache`.
    /// Without `reuse` (`--no-cache`) all that is asked for is made anew, and replaces what was there.
    pub fn open(reuse: bool) -> Result<Cache, CacheError> {
        let mut cache = Cache::located(reuse)?;
        // Waits for who is just taking things away, for the moment that it takes.
        let users = cache.root.join(USERS);
        if let Ok(file) = fs::create_dir_all(&cache.root).and_then(|()| lock_file(&users)) {
            let lock = cache.acquire(file, &users, FlockArg::LockSharedNonblock, PRUNING)?;
            cache.users = Some(Arc::new(Mutex::new(lock)));
        }
        Ok(cache)
    }

    /// The same, to look at only: nothing is made or locked.
    pub fn located(reuse: bool) -> Result<Cache, CacheError> {
        let folder = |name| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let root = folder("TRAMPLAB_CACHE")
            .or_else(|| Some(folder("XDG_CACHE_HOME")?.join("tramplab")))
            .or_else(|| Some(folder("HOME")?.join(".cache/tramplab")))
            .ok_or(CacheError::NoHome)?;
        if !text::is_plain_path(&root) {
            return Err(CacheError::Unfit { root });
        }
        let cache = Cache::at(root, reuse);
        if cache.root.exists() && !cache.root.is_dir() {
            return Err(CacheError::NoFolder { root: cache.root });
        }
        Ok(cache)
    }

    /// Does what may be done only while nobody else uses the cache; none where somebody does, or where it cannot be written.
    pub fn alone<T>(&self, work: impl FnOnce() -> T) -> Option<T> {
        let users = self.users.as_ref()?.lock().expect("not poisoned: no panic while it is held");
        let done = users.relock(FlockArg::LockExclusiveNonblock).ok().map(|()| work());
        // Also where it was refused: what was held is gone by then, flock(2). Nobody can be in the way for longer than it takes
        // to find that others are there.
        let _ = users.relock(FlockArg::LockShared);
        done
    }

    /// Whether something was made.
    pub fn has_grown(&self) -> bool {
        !self.filled.lock().expect("not poisoned").is_empty()
    }

    pub fn at(root: impl Into<PathBuf>, reuse: bool) -> Cache {
        let root = root.into();
        // apt's configuration holds paths.
        let root = std::path::absolute(&root).unwrap_or(root);
        Cache { root, reuse, filled: Arc::default(), users: None }
    }

    pub fn reuses(&self) -> bool {
        self.reuse
    }

    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Where an entry is, or will be.
    pub fn path(&self, kind: &str, key: &str) -> PathBuf {
        self.root.join(kind).join(file_name(key))
    }

    /// An entry that is there; nothing is written, so a read-only cache serves as well.
    pub fn get(&self, kind: &str, key: &str) -> Option<PathBuf> {
        let path = self.path(kind, key);
        self.is_current(&path).then(|| used(path))
    }

    /// Gives up an entry that turned out to be broken. Whoever is reading it goes on with what it has open.
    pub fn discard(&self, kind: &str, key: &str) -> io::Result<()> {
        discard(&self.path(kind, key))
    }

    /// All complete entries of a kind.
    pub fn list(&self, kind: &str) -> Vec<PathBuf> {
        let Ok(folder) = fs::read_dir(self.root.join(kind)) else { return Vec::new() };
        let mut entries: Vec<_> =
            folder.flatten().map(|entry| entry.path()).filter(|path| self.is_current(path)).collect();
        entries.sort();
        entries
    }

    /// The entry's folder, filled first if it is not there. `fill` gets an empty folder; if it fails, nothing stays.
    pub fn entry<E>(
        &self,
        kind: &str,
        key: &str,
        fill: impl FnOnce(&Path) -> Result<(), E>,
    ) -> Result<PathBuf, E>
    where
        E: Error + Send + Sync + 'static + From<CacheError>,
    {
        let path = self.path(kind, key);
        if self.is_current(&path) {
            return Ok(used(path));
        }
        let _lock = self.lock_in(&self.root.join(kind), &file_name(key), LOCK_LIMIT)?;
        // Someone else may have filled it while this run waited.
        if self.is_current(&path) {
            return Ok(used(path));
        }
        self.fill(kind, key, Durability::Synced, fill)?;
        Ok(path)
    }

    /// As [`entry`](Cache::entry), for what is checked whenever it is used, so that it need not be on the disk, and is made only in passing: where
    /// another run is at it, none is made. Says whether it was made now.
    pub fn entry_in_passing<E>(
        &self,
        kind: &str,
        key: &str,
        fill: impl FnOnce(&Path) -> Result<(), E>,
    ) -> Result<bool, E>
    where
        E: Error + Send + Sync + 'static + From<CacheError>,
    {
        let path = self.path(kind, key);
        match self.lock_in(&self.root.join(kind), &file_name(key), Duration::ZERO) {
            Err(CacheError::Locked { .. }) => Ok(false),
            Err(error) => Err(error.into()),
            Ok(_lock) if self.is_current(&path) => Ok(false),
            Ok(_lock) => self.fill(kind, key, Durability::Checked, fill).map(|()| true),
        }
    }

    /// With the lock held.
    fn fill<E>(
        &self,
        kind: &str,
        key: &str,
        durability: Durability,
        fill: impl FnOnce(&Path) -> Result<(), E>,
    ) -> Result<(), E>
    where
        E: Error + Send + Sync + 'static + From<CacheError>,
    {
        let (folder, name, path) = (self.root.join(kind), file_name(key), self.path(kind, key));
        sweep(&folder);
        let unfinished = Unfinished(folder.join(format!(".{name}{UNFINISHED}")));
        // With the lock held, what lies there is a dead run's.
        let fresh = remove(&unfinished.0).and_then(|()| fs::create_dir(&unfinished.0));
        fresh.map_err(|source| self.write_error(source))?;
        fill(&unfinished.0).map_err(|error| self.explain(error))?;
        complete(&unfinished.0, &path, key, durability).map_err(|source| self.write_error(source))?;
        self.filled.lock().expect("not poisoned: no panic while it is held").insert(path);
        Ok(())
    }

    /// A lock of the caller's own, for a folder that changes in place.
    pub fn lock(&self, name: &str) -> Result<Lock, CacheError> {
        self.lock_in(&self.root, name, LOCK_LIMIT)
    }

    /// Which process has a lock of [`Cache::lock`] now, if one has and says so.
    pub fn holder(&self, name: &str) -> Option<String> {
        let path = lock_path(&self.root, name);
        let file = fs::File::open(&path).ok()?;
        let held = Flock::lock(file, FlockArg::LockSharedNonblock).is_err();
        held.then(|| fs::read_to_string(&path).ok()).flatten().filter(|pid| !pid.is_empty())
    }

    /// Makes a folder that is no entry.
    pub fn folder(&self, name: &str) -> Result<PathBuf, CacheError> {
        let folder = self.root.join(name);
        fs::create_dir_all(&folder).map_err(|source| self.write_error(source))?;
        Ok(folder)
    }

    /// Writes a small file, whole or not at all.
    pub fn write(&self, name: &str, bytes: &[u8]) -> Result<(), CacheError> {
        write_whole(&self.root.join(name), bytes).map_err(|source| self.write_error(source))
    }

    fn is_current(&self, path: &Path) -> bool {
        is_whole(path) && (self.reuse || self.filled.lock().expect("not poisoned").contains(path))
    }

    fn lock_in(&self, folder: &Path, name: &str, limit: Duration) -> Result<Lock, CacheError> {
        let path = lock_path(folder, name);
        let open = || {
            fs::create_dir_all(folder)?;
            lock_file(&path)
        };
        let file = open().map_err(|source| self.write_error(source))?;
        let mut lock = self.acquire(file, &path, FlockArg::LockExclusiveNonblock, limit)?;
        // For the message of those who wait in vain; a full disk must not matter here.
        let _ = lock.set_len(0);
        let _ = io::Write::write_all(&mut *lock, std::process::id().to_string().as_bytes());
        Ok(Lock(lock))
    }

    fn acquire(
        &self,
        mut file: fs::File,
        path: &Path,
        how: FlockArg,
        limit: Duration,
    ) -> Result<Flock<fs::File>, CacheError> {
        let end = Instant::now() + limit;
        loop {
            match Flock::lock(file, how) {
                Ok(lock) => return Ok(lock),
                Err((back, nix::errno::Errno::EWOULDBLOCK | nix::errno::Errno::EINTR)) => file = back,
                Err((_, errno)) => return Err(self.write_error(errno.into())),
            }
            if Instant::now() >= end {
                let holder = fs::read_to_string(path).ok().filter(|pid| !pid.is_empty());
                let holder = holder.map_or("unknown process".to_owned(), |pid| format!("process {pid}"));
                return Err(CacheError::Locked {
                    lock: path.to_owned(),
                    holder,
                    minutes: limit.as_secs() / 60,
                });
            }
            thread::sleep(Duration::from_millis(50));
        }
    }

    fn write_error(&self, source: io::Error) -> CacheError {
        let root = self.root.clone();
        if is_full(&source) {
            CacheError::Full { root, source: Box::new(source) }
        } else {
            CacheError::NotWritable { root, source }
        }
    }

    /// A fill that failed for want of room says so, whatever it was doing.
    fn explain<E: Error + Send + Sync + 'static + From<CacheError>>(&self, error: E) -> E {
        if is_full(&error) {
            CacheError::Full { root: self.root.clone(), source: Box::new(error) }.into()
        } else {
            error
        }
    }
}

fn lock_path(folder: &Path, name: &str) -> PathBuf {
    folder.join(format!(".{name}{LOCK}"))
}

fn lock_file(path: &Path) -> io::Result<fs::File> {
    fs::OpenOptions::new().create(true).truncate(false).write(true).read(true).open(path)
}

/// Marks when an entry was last of use, so that what is not can go. A read-only cache is not pruned.
pub(super) fn used(path: PathBuf) -> PathBuf {
    if let Ok(marker) = fs::File::options().write(true).open(path.join(MARKER)) {
        let _ = marker.set_modified(SystemTime::now());
    }
    path
}

/// It is no entry before it is less than whole.
pub(super) fn discard(path: &Path) -> io::Result<()> {
    match fs::remove_file(path.join(MARKER)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => remove(path),
    }
}

/// Writes a file, whole or not at all, also when the power fails. One that is replaced keeps its permissions.
pub fn write_whole(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let folder = path.parent().expect("a file in a folder");
    fs::create_dir_all(folder)?;
    let mut file = tempfile::NamedTempFile::new_in(folder)?;
    io::Write::write_all(&mut file, bytes)?;
    if let Ok(before) = fs::metadata(path) {
        file.as_file().set_permissions(before.permissions())?;
    }
    file.as_file().sync_all()?;
    file.persist(path)?;
    Ok(())
}

/// Asked before what is known to be large: apt was seen to wait for ever on a disk that filled up under it.
pub fn require_room(folder: &Path, bytes: u64) -> Result<(), CacheError> {
    // Where it cannot be asked, the writing itself will tell.
    let Ok(disk) = nix::sys::statvfs::statvfs(folder) else { return Ok(()) };
    let free = disk.blocks_available().saturating_mul(disk.fragment_size());
    if free >= bytes {
        return Ok(());
    }
    const MIB: u64 = 1 << 20;
    Err(CacheError::NoRoom { folder: folder.to_owned(), needed: bytes.div_ceil(MIB), free: free / MIB })
}

/// Removed when dropped, also by a panic.
struct Unfinished(PathBuf);

impl Drop for Unfinished {
    fn drop(&mut self) {
        let _ = remove(&self.0);
    }
}

fn file_name(key: &str) -> String {
    key.chars().map(|c| if c.is_ascii_alphanumeric() || "._+~=-".contains(c) { c } else { '_' }).collect()
}

/// The files of a folder, those of its own: what is as large as a kernel's sources is not looked through at every use.
fn lengths(folder: &Path) -> io::Result<Vec<(u64, String)>> {
    let mut lengths = Vec::new();
    for file in fs::read_dir(folder)? {
        let file = file?;
        // A name that is no text, or more than a line, is not held against anything.
        let name = file.file_name().into_string().ok().filter(|name| !name.contains('\n'));
        if let (Some(name), true) = (name, file.file_type()?.is_file()) {
            lengths.push((file.metadata()?.len(), name));
        }
    }
    Ok(lengths)
}

/// Whether an entry is complete, and its files have the lengths they had then: one that somebody cut is made again.
fn is_whole(path: &Path) -> bool {
    let Ok(marker) = fs::read_to_string(path.join(MARKER)) else { return false };
    // Entries of before have their key alone.
    marker.lines().skip(1).filter_map(|line| line.split_once(' ')).all(|(length, name)| {
        fs::metadata(path.join(name)).is_ok_and(|file| length.parse() == Ok(file.len()))
    })
}

/// What a complete entry is known by.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Durability {
    /// It is on the disk.
    Synced,
    /// Its first reader sees whether it is what was written, and that it gets to the disk.
    Checked,
}

fn complete(unfinished: &Path, path: &Path, key: &str, durability: Durability) -> io::Result<()> {
    let mut marker = format!("{key}\n");
    if durability == Durability::Synced {
        // On disk before it counts: after a power cut a marker must not vouch for empty files.
        nix::unistd::syncfs(fs::File::open(unfinished)?)?;
        for (length, name) in lengths(unfinished)? {
            marker.push_str(&format!("{length} {name}\n"));
        }
    }
    fs::write(unfinished.join(MARKER), marker)?;
    if !path.exists() {
        return fs::rename(unfinished, path);
    }
    // Swapped in one step: another run may be reading the old one. It then goes with `Unfinished`.
    let here = nix::fcntl::AT_FDCWD;
    match renameat2(here, unfinished, here, path, RenameFlags::RENAME_EXCHANGE) {
        Ok(()) => Ok(()),
        Err(_) => {
            // Not every file system can swap.
            remove(path)?;
            fs::rename(unfinished, path)
        }
    }
}

/// Removes what dead runs left: an unfinished entry whose lock is free.
fn sweep(folder: &Path) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        let file = entry.file_name();
        let Some(name) = file.to_str().and_then(|name| name.strip_suffix(UNFINISHED)) else { continue };
        let Ok(lock) = fs::File::open(folder.join(format!("{name}{LOCK}"))) else { continue };
        if Flock::lock(lock, FlockArg::LockExclusiveNonblock)
            .is_ok_and(|_lock| remove(&entry.path()).is_err())
        {
            // What cannot be removed is in nobody's way: its own next fill reports it.
        }
    }
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result,
    }
}

/// Whether an error, or one that caused it, is a full disk. Of a child there is only what it wrote.
fn is_full(error: &(dyn Error + 'static)) -> bool {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(io) = error.downcast_ref::<io::Error>()
            && matches!(
                io.kind(),
                io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge
            )
        {
            return true;
        }
        let text = error.to_string();
        if ["No space left on device", "Disk quota exceeded", "You don't have enough free space"]
            .iter()
            .any(|words| text.contains(words))
        {
            return true;
        }
        next = error.source();
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[derive(Debug, thiserror::Error)]
    enum FillError {
        #[error("failed to get it: {0}")]
        Io(#[from] io::Error),
        #[error("`apt-get download` failed (exit status: 100):\n{0}")]
        Child(&'static str),
        #[error(transparent)]
        Cache(#[from] CacheError),
    }

    /// Every name below a folder, locks left out.
    fn names(folder: &Path) -> Vec<String> {
        let mut found = Vec::new();
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            let name = entry.file_name().into_string().unwrap();
            if entry.path().is_dir() {
                found.extend(names(&entry.path()).into_iter().map(|below| format!("{name}/{below}")));
                found.push(name);
            } else if !name.ends_with(LOCK) {
                found.push(name);
            }
        }
        found.sort();
        found
    }

    fn cache() -> (tempfile::TempDir, Cache) {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::at(folder.path().join("cache"), true);
        (folder, cache)
    }

    fn fill(text: &str) -> impl Fn(&Path) -> Result<(), FillError> {
        move |folder| Ok(fs::write(folder.join("file"), text)?)
    }

    #[test]
    fn taking_things_away_waits_for_nobody_and_nobody_goes_without_a_lock() {
        let root = tempfile::tempdir().unwrap();
        let open = || {
            let mut cache = Cache::at(root.path(), true);
            let users = lock_file(&root.path().join(USERS)).unwrap();
            let lock = cache.acquire(users, root.path(), FlockArg::LockSharedNonblock, Duration::ZERO);
            cache.users = lock.ok().map(|lock| Arc::new(Mutex::new(lock)));
            cache
        };
        let (one, other) = (open(), open());
        assert_eq!(one.alone(|| 1), None);
        drop(one);
        // It was refused, and is a user all the same.
        assert_eq!(other.alone(|| open().users.is_some()), Some(false));
        let one = open();
        assert_eq!((one.alone(|| 1), other.alone(|| 1)), (None, None));
        drop(other);
        assert_eq!(one.clone().alone(|| 1), Some(1));
    }

    #[test]
    fn what_another_run_is_making_is_not_made_in_passing() {
        let root = tempfile::tempdir().unwrap();
        let cache = Cache::at(root.path(), true);
        let lock = cache.lock_in(&root.path().join("kind"), "key", Duration::ZERO).unwrap();
        let make =
            || cache.entry_in_passing::<io::Error>("kind", "key", |folder| fs::write(folder.join("a"), ""));
        assert!(!make().unwrap());
        drop(lock);
        assert!(make().unwrap());
        assert!(!make().unwrap());
        let failing = cache.entry_in_passing("kind", "other", |_| Err(io::Error::other("no")));
        assert_eq!(failing.unwrap_err().to_string(), "no");
        assert!(cache.get("kind", "key").is_some() && cache.get("kind", "other").is_none());
    }

    #[test]
    fn an_entry_that_was_cut_or_lost_a_file_is_made_again() {
        let (_folder, cache) = cache();
        let fill = || {
            cache.entry::<FillError>("kind", "key", |folder| Ok(fs::write(folder.join("a file"), "whole")?))
        };
        let file = fill().unwrap().join("a file");
        for damage in [|file: &Path| fs::write(file, "wh"), |file: &Path| fs::remove_file(file)] {
            damage(&file).unwrap();
            assert!(cache.get("kind", "key").is_none());
            assert_eq!(fs::read_to_string(fill().unwrap().join("a file")).unwrap(), "whole");
            assert!(cache.get("kind", "key").is_some());
        }
    }

    #[test]
    fn runs_at_the_same_time_fill_an_entry_once() {
        let (_folder, cache) = cache();
        let fills = AtomicUsize::new(0);
        thread::scope(|scope| {
            for _ in 0..8 {
                // Each with an object of its own, as another process would.
                let cache = Cache::at(cache.root(), true);
                let fills = &fills;
                scope.spawn(move || {
                    let fill = |folder: &Path| -> Result<(), FillError> {
                        fills.fetch_add(1, Ordering::SeqCst);
                        fs::write(folder.join("file"), "a")?;
                        thread::sleep(Duration::from_millis(50));
                        Ok(fs::write(folder.join("other"), "b")?)
                    };
                    let entry = cache.entry("kind", "key:1", fill).unwrap();
                    assert_eq!(names(&entry), [MARKER, "file", "other"]);
                });
            }
        });
        assert_eq!(fills.into_inner(), 1);
        assert_eq!(cache.list("kind"), [cache.root().join("kind/key_1")]);
        assert_eq!(cache.get("kind", "key:1"), Some(cache.root().join("kind/key_1")));
        assert_eq!(cache.get("kind", "key:2"), None);
    }

    #[test]
    fn a_fill_that_fails_or_panics_leaves_nothing_and_can_be_tried_again() {
        let (_folder, cache) = cache();
        let fails = |folder: &Path| -> Result<(), FillError> {
            fs::write(folder.join("half"), "h")?;
            Err(FillError::Child("E: Failed to fetch"))
        };
        let error = cache.entry("kind", "key", fails).unwrap_err();
        assert!(matches!(error, FillError::Child(_)), "{error}");
        assert_eq!(names(cache.root()), ["kind"]);

        let panics = |folder: &Path| -> Result<(), FillError> {
            fs::write(folder.join("half"), "h")?;
            panic!("a bug")
        };
        let caught =
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| cache.entry("kind", "key", panics)));
        assert!(caught.is_err());
        assert_eq!(names(cache.root()), ["kind"]);

        cache.entry("kind", "key", fill("whole")).unwrap();
        assert_eq!(names(cache.root()), ["kind", "kind/key", "kind/key/.complete", "kind/key/file"]);
    }

    #[test]
    fn what_dead_runs_left_goes_and_what_live_ones_fill_stays() {
        let (_folder, cache) = cache();
        let kind = cache.root().join("kind");
        for key in ["dead", "live", "key"] {
            fs::create_dir_all(kind.join(format!(".{key}{UNFINISHED}"))).unwrap();
            fs::write(kind.join(format!(".{key}{UNFINISHED}/half")), "h").unwrap();
            fs::write(kind.join(format!(".{key}{LOCK}")), "4194305").unwrap();
        }
        // Also a folder that was never completed is not an entry.
        fs::create_dir_all(kind.join("key")).unwrap();
        let _live = cache.lock_in(&kind, "live", LOCK_LIMIT).unwrap();
        cache.entry("kind", "key", fill("whole")).unwrap();
        assert_eq!(
            names(&kind),
            [".live.unfinished", ".live.unfinished/half", "key", "key/.complete", "key/file"]
        );
    }

    /// `/dev/full` gives the kernel's own ENOSPC; a child's is only in what it wrote.
    #[test]
    fn a_full_disk_is_named_with_the_way_out_and_leaves_nothing() {
        type Fill = fn(&Path) -> Result<(), FillError>;
        let fills: [Fill; 2] = [
            |folder| {
                fs::write(folder.join("half"), "h")?;
                Ok(fs::write("/dev/full", "x")?)
            },
            |_| Err(FillError::Child("E: You don't have enough free space in /cache/apt/archives/.")),
        ];
        for fill in fills {
            let (_folder, cache) = cache();
            let error = cache.entry("kind", "key", fill).unwrap_err();
            assert!(matches!(error, FillError::Cache(CacheError::Full { .. })), "{error:?}");
            let text = error.to_string();
            assert!(
                text.contains(&cache.root().display().to_string()) && text.contains("TRAMPLAB_CACHE"),
                "{text}"
            );
            assert_eq!(names(cache.root()), ["kind"]);
        }
    }

    #[test]
    fn what_cannot_fit_is_refused_before_it_is_begun() {
        let folder = tempfile::tempdir().unwrap();
        require_room(folder.path(), 1).unwrap();
        let error = require_room(folder.path(), u64::MAX).unwrap_err().to_string();
        assert!(
            error.contains("it takes about 17592186044416 MiB") && error.contains("TRAMPLAB_CACHE"),
            "{error}"
        );
    }

    /// Where even root may not make a folder, and where a file is in the way.
    #[test]
    fn a_cache_that_cannot_be_written_is_named_with_the_way_out() {
        let file = tempfile::NamedTempFile::new().unwrap();
        for root in [Path::new("/proc/tramplab-cache").to_owned(), file.path().join("cache")] {
            let cache = Cache::at(&root, true);
            let error = cache.entry("kind", "key", fill("x")).unwrap_err();
            assert!(matches!(error, FillError::Cache(CacheError::NotWritable { .. })), "{error:?}");
            let text = error.to_string();
            assert!(text.contains(&root.display().to_string()) && text.contains("TRAMPLAB_CACHE"), "{text}");
        }
    }

    #[test]
    fn without_reuse_an_entry_is_made_anew_once_and_replaced_whole() {
        let (_folder, cache) = cache();
        let entry = cache.entry("kind", "key", fill("old")).unwrap();
        let anew = Cache::at(cache.root(), false);
        assert_eq!(anew.get("kind", "key"), None);
        // If it cannot be made anew, the old one stays.
        anew.entry("kind", "key", |_| Err(FillError::Child("no network"))).unwrap_err();
        assert_eq!(fs::read_to_string(entry.join("file")).unwrap(), "old");
        for text in ["new", "never written"] {
            assert_eq!(anew.entry("kind", "key", fill(text)).unwrap(), entry);
            assert_eq!(fs::read_to_string(entry.join("file")).unwrap(), "new");
        }
        assert_eq!(names(cache.root()), ["kind", "kind/key", "kind/key/.complete", "kind/key/file"]);
    }
}
