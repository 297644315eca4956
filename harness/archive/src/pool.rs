// SPDX-License-Identifier: MIT OR Apache-2.0
//! Fetches packages from the servers that may have them.

use crate::{ArchiveError, error::io_error, fetch::Client, host::Settings, release::File};
use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
    sync::{
        Mutex,
        atomic::{AtomicU64, AtomicUsize, Ordering},
        mpsc::{self, RecvTimeoutError},
    },
    thread,
    time::Duration,
};

/// Fetches at a time.
pub(crate) const CONNECTIONS: usize = 4;
/// Between two messages on how much of the packages came.
const REPORT: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(crate) struct Pool {
    /// Holds files by their hashes while they are fetched.
    partial: PathBuf,
    pub client: Client,
    /// URLs without a trailing slash, in the order in which they are asked.
    servers: Vec<String>,
}

impl Pool {
    /// Asks the mirrors, then the `others`.
    pub fn new(
        folder: &Path,
        settings: Settings,
        others: Vec<String>,
    ) -> Result<Pool, ArchiveError> {
        let partial = folder.join("partial");
        fs::create_dir_all(&partial).map_err(io_error("make", &partial))?;
        let servers = settings.mirrors.iter().cloned().chain(others).collect();
        Ok(Pool { partial, client: Client::new(settings), servers })
    }

    /// With another server that is asked first.
    #[cfg(test)]
    pub fn after(mut self, server: String) -> Pool {
        self.servers.insert(0, server);
        self
    }

    pub fn mirrors(&self) -> &[String] {
        &self.client.settings().mirrors
    }

    /// Asks each server for all files. Tells the first that it lacks.
    pub fn availability(&self, files: &[File]) -> Vec<Result<(), ArchiveError>> {
        let has_all = |server: &String| {
            files
                .iter()
                .try_for_each(|file| self.client.has(&format!("{server}/{}", file.path), file))
        };
        self.servers.iter().map(has_all).collect()
    }

    pub fn partial(&self, file: &File) -> PathBuf {
        self.partial.join(&file.sha256)
    }

    /// Fetches files into a folder and verifies them. Returns them in the same order, and the last
    /// server that was needed.
    pub fn download(
        &self,
        files: &[File],
        folder: &Path,
        progress: &mut dyn FnMut(&str),
    ) -> Result<(Vec<PathBuf>, &str), ArchiveError> {
        // Two fetches of one package would share a partial file.
        let distinct: BTreeMap<&str, &File> =
            files.iter().map(|file| (file.sha256.as_str(), file)).collect();
        let wanted: Vec<&File> = distinct.into_values().collect();
        let all: u64 = wanted.iter().map(|file| file.size).sum();
        // The server that the next file is fetched from first. Those before it lack files.
        let current = AtomicUsize::new(0);
        let (next, count) = (AtomicUsize::new(0), AtomicU64::new(0));
        let (sender, ended) = mpsc::channel();
        let failed = Mutex::new(None);
        let work = || {
            while let Some(file) = wanted.get(next.fetch_add(1, Ordering::Relaxed)) {
                if let Err(error) = self.fetch(file, folder, &current, &count) {
                    // The others stop after their files.
                    next.store(wanted.len(), Ordering::Relaxed);
                    failed.lock().expect("no panic while it is held").get_or_insert(error);
                }
            }
        };
        thread::scope(|scope| {
            for _ in 0..CONNECTIONS.min(wanted.len()) {
                let (sender, work) = (sender.clone(), &work);
                scope.spawn(move || {
                    work();
                    drop(sender);
                });
            }
            drop(sender);
            while let Err(RecvTimeoutError::Timeout) = ended.recv_timeout(REPORT) as Result<(), _> {
                let count = count.load(Ordering::Relaxed);
                progress(&format!("fetched {} of {} MiB", count >> 20, all >> 20));
            }
        });
        match failed.into_inner().expect("no panic while it is held") {
            Some(error) => Err(error),
            None => {
                let files = files.iter().map(|file| folder.join(file.name())).collect();
                Ok((files, &self.servers[current.into_inner()]))
            }
        }
    }

    fn fetch(
        &self,
        file: &File,
        folder: &Path,
        current: &AtomicUsize,
        count: &AtomicU64,
    ) -> Result<(), ArchiveError> {
        let partial = self.partial(file);
        let (start, number) = (current.load(Ordering::Relaxed), self.servers.len());
        let mut errors = Vec::new();
        for at in (start..start + number).map(|at| at % number) {
            let url = format!("{}/{}", self.servers[at], file.path);
            match self.client.file(&url, file, &partial, count) {
                Ok(()) => {
                    current.fetch_max(at, Ordering::Relaxed);
                    let to = folder.join(file.name());
                    return moved(&partial, &to).map_err(io_error("write", &to));
                }
                Err(error) if error.is_of_server() => errors.push(error),
                Err(error) => return Err(error),
            }
        }
        Err(match errors.len() {
            1 => errors.remove(0),
            _ => ArchiveError::Nowhere { file: file.name().to_owned(), errors },
        })
    }
}

/// Renames a file; copies it to another disk.
fn moved(from: &Path, to: &Path) -> io::Result<()> {
    if fs::rename(from, to).is_ok() {
        return Ok(());
    }
    fs::copy(from, to)?;
    fs::remove_file(from)
}
