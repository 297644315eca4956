// SPDX-License-Identifier: MIT OR Apache-2.0
//! The cache: folders that take long to make. One run fills an entry, completely or not at all.
//!
//! ```text
//! ROOT/KIND/KEY/             a complete entry: it contains `.complete`
//! ROOT/KIND/.KEY.unfinished  an entry that the lock's holder fills, or that a dead run left
//! ROOT/KIND/.KEY.lock        flock(2): the lock ends with its holder
//! ROOT/.users.lock           shared by all users; exclusive while entries are pruned
//! ```

mod disk;
mod entry;
pub mod holder;
#[cfg(test)]
mod tests;

pub use disk::{RESERVE, require_room, write_whole};
pub(super) use entry::{MARKER, discard, used};

use disk::is_full;
use entry::{Durability, Unfinished, complete, file_name, is_whole, remove, sweep};
use nix::{
    errno::Errno,
    fcntl::{Flock, FlockArg},
};
use std::{
    collections::HashSet,
    env,
    error::Error,
    fs, io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
    thread,
    time::{Duration, Instant},
};
use tramplab_model::text;

const UNFINISHED: &str = ".unfinished";
const LOCK: &str = ".lock";
const USERS: &str = ".users.lock";

/// Longer than any fill, also than building a series of kernels: a lock held longer means a hang.
const LOCK_LIMIT: Duration = Duration::from_secs(12 * 3600);
/// The longest time that pruning takes on a slow disk.
const PRUNING: Duration = Duration::from_secs(600);

#[derive(Debug, thiserror::Error)]
pub enum CacheError {
    #[error("failed to find a folder for the cache: set TRAMPLAB_CACHE, XDG_CACHE_HOME or HOME")]
    NoHome,
    #[error("failed to use the cache {root}: not a folder; set TRAMPLAB_CACHE to another path")]
    NoFolder { root: PathBuf },
    #[error(
        "failed to use the cache {root:?}: expected a path in UTF-8 on one line, which make \
         needs; set TRAMPLAB_CACHE to another path"
    )]
    Unfit { root: PathBuf },
    #[error(
        "failed to write to the cache {root}: {source}; make it writable or set TRAMPLAB_CACHE to \
         another folder"
    )]
    NotWritable { root: PathBuf, source: io::Error },
    #[error(
        "failed to fill the cache {root}: no room is left there; free some, or set TRAMPLAB_CACHE \
         to a folder on another disk ({source})"
    )]
    Full { root: PathBuf, source: Box<dyn Error + Send + Sync> },
    #[error(
        "failed to fill the cache {folder}: it takes about {needed} MiB and {free} MiB are free; \
         free some, or set TRAMPLAB_CACHE to a folder on another disk"
    )]
    NoRoom { folder: PathBuf, needed: u64, free: u64 },
    #[error(
        "failed to fill the cache {folder}: it takes about {needed} files and the disk has inodes \
         for {free}; remove files, or set TRAMPLAB_CACHE to a folder on another disk"
    )]
    NoFiles { folder: PathBuf, needed: u64, free: u64 },
    #[error(
        "another run ({holder}) has held {lock} for {minutes} minutes; end it, or set \
         TRAMPLAB_CACHE to another folder"
    )]
    Locked { lock: PathBuf, holder: String, minutes: u64 },
}

impl CacheError {
    /// Other settings mend it, and the disk is not at fault.
    pub fn is_usage(&self) -> bool {
        matches!(self, CacheError::NoHome | CacheError::NoFolder { .. } | CacheError::Unfit { .. })
    }
}

impl From<CacheError> for io::Error {
    fn from(error: CacheError) -> io::Error {
        io::Error::other(error)
    }
}

/// Clones count as one user of the cache.
#[derive(Clone, Debug)]
pub struct Cache {
    root: PathBuf,
    reuse: bool,
    /// Entries that this object has filled. Without `reuse` it makes each entry once, not at every
    /// use.
    filled: Arc<Mutex<HashSet<PathBuf>>>,
    /// A shared lock: nobody prunes the cache while it is held. None in a read-only cache.
    users: Option<Arc<Mutex<Flock<fs::File>>>>,
}

/// A lock that ends when it is dropped, and when the process ends in any way.
#[derive(Debug)]
pub struct Lock(#[expect(dead_code, reason = "held for its drop")] Flock<fs::File>);

impl Cache {
    /// The user's cache: `TRAMPLAB_CACHE`, else `tramplab` in `XDG_CACHE_HOME`, else in `~/.cache`.
    /// Without `reuse` (`--no-cache`) each requested entry is made again and replaces the old one.
    pub fn open(reuse: bool) -> Result<Cache, CacheError> {
        let mut cache = Cache::located(reuse)?;
        // Waits while another process prunes the cache.
        let users = cache.root.join(USERS);
        if let Ok(file) = fs::create_dir_all(&cache.root).and_then(|()| lock_file(&users)) {
            let lock = cache.acquire(file, &users, FlockArg::LockSharedNonblock, PRUNING)?;
            cache.users = Some(Arc::new(Mutex::new(lock)));
        }
        Ok(cache)
    }

    /// Locates the user's cache. Makes and locks nothing.
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

    /// Runs `work` while no other process uses the cache. Returns None without running it if one
    /// does, or if the cache is read-only.
    pub fn alone<T>(&self, work: impl FnOnce() -> T) -> Option<T> {
        let users = self.users.as_ref()?.lock().expect("not poisoned: no panic while it is held");
        let done = users.relock(FlockArg::LockExclusiveNonblock).ok().map(|()| work());
        // Also after a refusal, which has dropped the shared lock: flock(2). Another process holds
        // the exclusive lock only for the moment in which it finds that there are other users.
        let _ = users.relock(FlockArg::LockShared);
        done
    }

    /// Returns true if this object has filled an entry.
    pub fn has_grown(&self) -> bool {
        !self.filled.lock().expect("not poisoned").is_empty()
    }

    /// The cache in a folder of the caller's, without the users' lock.
    pub fn at(root: impl Into<PathBuf>, reuse: bool) -> Cache {
        let root = root.into();
        let root = std::path::absolute(&root).unwrap_or(root);
        Cache { root, reuse, filled: Arc::default(), users: None }
    }

    pub fn reuses(&self) -> bool {
        self.reuse
    }

    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The path of an entry, even if it does not exist.
    pub fn path(&self, kind: &str, key: &str) -> PathBuf {
        self.root.join(kind).join(file_name(key))
    }

    /// An entry that exists. Works in a read-only cache.
    pub fn get(&self, kind: &str, key: &str) -> Option<PathBuf> {
        let path = self.path(kind, key);
        self.is_current(&path).then(|| used(path))
    }

    /// Removes an entry, for example a broken one. Its readers keep the files that they have open.
    pub fn discard(&self, kind: &str, key: &str) -> io::Result<()> {
        discard(&self.path(kind, key))
    }

    /// All complete entries of a kind.
    pub fn list(&self, kind: &str) -> Vec<PathBuf> {
        let Ok(folder) = fs::read_dir(self.root.join(kind)) else { return Vec::new() };
        let mut entries: Vec<_> = folder
            .flatten()
            .map(|entry| entry.path())
            .filter(|path| self.is_current(path))
            .collect();
        entries.sort();
        entries
    }

    /// The entry's folder. If it does not exist, `fill` gets an empty folder to fill. If `fill`
    /// fails, nothing is kept.
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
        // Another process may have filled it while this one waited.
        if self.is_current(&path) {
            return Ok(used(path));
        }
        self.fill(kind, key, Durability::Synced, fill)?;
        Ok(path)
    }

    /// Makes an optional entry that its readers check at each use: it is not synced to the disk.
    /// Does nothing if the entry exists or another process fills it. Returns true if it made the
    /// entry.
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

    /// Fills an entry. The caller holds its lock.
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
        // The lock is held: an unfinished entry is a dead run's.
        let fresh = remove(&unfinished.0).and_then(|()| fs::create_dir(&unfinished.0));
        fresh.map_err(|source| self.write_error(source))?;
        fill(&unfinished.0).map_err(|error| self.explain(error))?;
        complete(&unfinished.0, &path, key, durability)
            .map_err(|source| self.write_error(source))?;
        self.filled.lock().expect("not poisoned: no panic while it is held").insert(path);
        Ok(())
    }

    /// Takes a named lock, for a folder that changes in place. Waits for its holder.
    pub fn lock(&self, name: &str) -> Result<Lock, CacheError> {
        self.lock_in(&self.root, name, LOCK_LIMIT)
    }

    /// The process ID of the holder of a [`Cache::lock`], if there is one and it is known.
    pub fn holder(&self, name: &str) -> Option<String> {
        let path = lock_path(&self.root, name);
        let file = fs::File::open(&path).ok()?;
        let held = Flock::lock(file, FlockArg::LockSharedNonblock).is_err();
        held.then(|| holder::written(&path)).flatten()
    }

    /// Makes a folder that is not an entry.
    pub fn folder(&self, name: &str) -> Result<PathBuf, CacheError> {
        let folder = self.root.join(name);
        fs::create_dir_all(&folder).map_err(|source| self.write_error(source))?;
        Ok(folder)
    }

    /// Writes a small file atomically.
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
        // The process ID is for the error message of waiting processes: ignore a full disk.
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
        let began = Instant::now();
        let end = began + limit;
        let mut told = false;
        loop {
            match Flock::lock(file, how) {
                Ok(lock) => return Ok(lock),
                Err((back, Errno::EWOULDBLOCK | Errno::EINTR)) => file = back,
                Err((_, errno)) => return Err(self.write_error(errno.into())),
            }
            if !told && began.elapsed() >= holder::PATIENCE {
                told = true;
                holder::tell(path);
            }
            if Instant::now() >= end {
                let holder = holder::written(path);
                let holder =
                    holder.map_or("unknown process".to_owned(), |pid| format!("process {pid}"));
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

    /// Turns any error that a full disk caused into [`CacheError::Full`].
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
