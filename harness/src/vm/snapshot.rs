// SPDX-License-Identifier: MIT OR Apache-2.0
//! Guests that have booted, kept on disk: the next one of the kind goes on from there.
//!
//! ```text
//! CACHE/snapshot/KEY/state        QEMU's migration stream, memory at fixed places (`mapped-ram`)
//! CACHE/snapshot/KEY/console.log  what the guest had printed
//! CACHE/snapshot/KEY/about.json   what the agent had said of the guest, and checksums of the two
//! ```

use super::{
    Ready, Spec,
    machine::{command_line, guest},
    monitor::{Monitor, MonitorError},
};
use crate::{
    host::{Cache, CacheError, apt, prune},
    run::{Accel, Clock},
};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::{
    fs, io,
    os::unix::{ffi::OsStrExt, net::UnixStream},
    path::{Path, PathBuf},
};
use tramplab_protocol::message::{self, Facts};
use xxhash_rust::xxh3::Xxh3;

/// The cache's name for them.
pub const KIND: &str = "snapshot";
/// What all of them may take together: one has some 100 MB.
const LIMIT: u64 = 2 << 30;
/// Raised when what is kept, or when, changes.
const VERSION: u32 = 1;

const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

const STATE: &str = "state";
const CONSOLE: &str = "console.log";
const ABOUT: &str = "about.json";

/// Where they are kept, and for which contents.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshots {
    /// The cache's root.
    pub cache: PathBuf,
    /// What QEMU, kernel and initramfs are, whatever their names.
    pub contents: String,
}

#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    #[error(transparent)]
    Monitor(#[from] MonitorError),
    #[error("failed to keep a snapshot: {0}")]
    Io(#[from] io::Error),
    #[error(transparent)]
    Cache(#[from] CacheError),
}

#[derive(Serialize, Deserialize)]
struct About {
    ready: Ready,
    facts: Facts,
    state: u64,
    console: u64,
}

/// What became of a guest that was to be kept.
pub(super) enum Kept {
    /// It is on disk, and stands still.
    Saved,
    Untouched,
}

/// A snapshot that is whole.
pub(super) struct Saved {
    pub state: PathBuf,
    pub console: PathBuf,
    pub ready: Ready,
    pub facts: Facts,
}

impl Snapshots {
    /// None for a guest that has to boot: with the exact clock its orders are in its root, under KVM it boots in a second and its
    /// CPU is the host's, and another init's files are not ours.
    pub(super) fn of(spec: &Spec) -> Option<&Snapshots> {
        let fits = spec.accel == Accel::Tcg && spec.clock == Clock::Free && spec.virtme.is_none();
        spec.snapshots.as_ref().filter(|_| fits)
    }

    /// All that a guest can see of what it runs on.
    fn key(&self, spec: &Spec) -> String {
        let mut hash = Sha256::new();
        let mut add = |bytes: &[u8]| {
            hash.update((bytes.len() as u64).to_le_bytes());
            hash.update(bytes);
        };
        add(format!("{VERSION} {}", message::VERSION).as_bytes());
        add(self.contents.as_bytes());
        // The guest's counter of time is the host's, and it has measured how fast that is.
        add(&fs::read(BOOT_ID).unwrap_or_default());
        add(command_line(spec.arch, &spec.append).as_bytes());
        for word in guest(spec) {
            add(word.as_bytes());
        }
        apt::hex(&hash.finalize())
    }

    /// An error is one that is not what was written.
    pub(super) fn find(&self, spec: &Spec) -> io::Result<Option<Saved>> {
        self.cache().get(KIND, &self.key(spec)).map(|folder| read(&folder)).transpose()
    }

    pub(super) fn discard(&self, spec: &Spec) {
        // The next one who finds it so will try again.
        let _ = self.cache().discard(KIND, &self.key(spec));
    }

    /// Keeps a guest that has only booted and said what it is, unless another run is about to.
    pub(super) fn keep(
        &self,
        spec: &Spec,
        monitor: UnixStream,
        (ready, facts): (&Ready, &Facts),
        console_log: &Path,
    ) -> Result<Kept, SnapshotError> {
        let cache = self.cache();
        let made = cache.entry_in_passing::<SnapshotError>(KIND, &self.key(spec), |folder| {
            let (state, console) = (folder.join(STATE), folder.join(CONSOLE));
            Monitor::open(monitor)?.save(&state)?;
            fs::copy(console_log, &console)?;
            let (ready, facts) = (ready.clone(), facts.clone());
            let about = About { ready, facts, state: checksum(&state)?, console: checksum(&console)? };
            fs::write(folder.join(ABOUT), serde_json::to_vec(&about).map_err(io::Error::from)?)?;
            Ok(())
        })?;
        if !made {
            return Ok(Kept::Untouched);
        }
        for item in prune::excess(&prune::of_kind(&cache, KIND), LIMIT) {
            // It goes another time.
            let _ = prune::remove(item);
        }
        Ok(Kept::Saved)
    }

    fn cache(&self) -> Cache {
        Cache::at(&self.cache, true)
    }
}

fn read(folder: &Path) -> io::Result<Saved> {
    let about: About = serde_json::from_slice(&fs::read(folder.join(ABOUT))?)?;
    let (state, console) = (folder.join(STATE), folder.join(CONSOLE));
    if (checksum(&state)?, checksum(&console)?) != (about.state, about.console) {
        return Err(io::Error::other("its checksum is not what it was"));
    }
    Ok(Saved { state, console, ready: about.ready, facts: about.facts })
}

const PAGE: usize = 4096;

/// Of a file that is mostly holes: of all pages that are not empty, with their places, and of its length.
fn checksum(path: &Path) -> io::Result<u64> {
    use std::os::unix::fs::FileExt;
    let file = fs::File::open(path)?;
    let length = file.metadata()?.len();
    let mut hash = Xxh3::new();
    let mut buffer = vec![0; 256 * PAGE];
    let mut at = 0;
    while let Some((start, end)) = data(&file, at, length)? {
        at = start;
        while at < end {
            let wanted = buffer.len().min((end - at) as usize);
            file.read_exact_at(&mut buffer[..wanted], at)?;
            for (page, bytes) in buffer[..wanted].chunks(PAGE).enumerate() {
                if bytes != &[0; PAGE][..bytes.len()] {
                    hash.update(&(at + (page * PAGE) as u64).to_le_bytes());
                    hash.update(bytes);
                }
            }
            at += wanted as u64;
        }
    }
    hash.update(&length.to_le_bytes());
    Ok(hash.digest())
}

/// The next stretch that is no hole, from and to whole pages.
fn data(file: &fs::File, from: u64, length: u64) -> io::Result<Option<(u64, u64)>> {
    use nix::unistd::{Whence, lseek};
    if from >= length {
        return Ok(None);
    }
    let start = match lseek(file, from as i64, Whence::SeekData) {
        Ok(start) => start as u64,
        Err(nix::errno::Errno::ENXIO) => return Ok(None),
        Err(errno) => return Err(errno.into()),
    };
    let end = lseek(file, start as i64, Whence::SeekHole)? as u64;
    let page = PAGE as u64;
    Ok(Some((start / page * page, end.next_multiple_of(page).min(length))))
}
