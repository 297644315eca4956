// SPDX-License-Identifier: MIT OR Apache-2.0
//! Guests that have booted, kept on disk: the next one of the kind goes on from there.
//!
//! ```text
//! CACHE/snapshot/KEY/state        QEMU's migration stream, memory at fixed places (`mapped-ram`)
//! CACHE/snapshot/KEY/console.log  what the guest had printed
//! CACHE/snapshot/KEY/about.json   what the agent had said of the guest, and checksums of the two
//! CACHE/snapshot/KEY/sound        which files the checksums were last those of
//! ```

use super::{
    Ready, Spec,
    machine::{command_line, guest},
    monitor::{Monitor, MonitorError},
};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::{
    fs, io,
    os::unix::{ffi::OsStrExt, net::UnixStream},
    path::{Path, PathBuf},
};
use tramplab_host::{Cache, CacheError, prune};
use tramplab_model::name::hex;
use tramplab_model::run::{Accel, Clock};
use tramplab_protocol::message::{self, Facts};
use xxhash_rust::xxh3::Xxh3;

/// The cache's name for them.
pub const KIND: &str = "snapshot";
/// What all of them may take together: one has some 100 MB.
const LIMIT: u64 = 2 << 30;
/// Raised when what is kept, or when, changes.
const VERSION: u32 = 3;

const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

const STATE: &str = "state";
const CONSOLE: &str = "console.log";
const ABOUT: &str = "about.json";
const SOUND: &str = "sound";

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
        hex(&hash.finalize())
    }

    /// An error is one that is not what was written.
    pub(super) fn find(&self, spec: &Spec) -> io::Result<Option<Saved>> {
        self.cache().get(KIND, &self.key(spec)).map(|folder| read(&folder)).transpose()
    }

    pub(super) fn discard(&self, spec: &Spec) {
        // The next one who finds it so will try again.
        let _ = self.cache().discard(KIND, &self.key(spec));
    }

    /// Keeps a guest that has booted, said what it is and got ready, unless another run is about to.
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
    let (state, console, about) = (folder.join(STATE), folder.join(CONSOLE), folder.join(ABOUT));
    let seen = [stamp(&state)?, stamp(&console)?, stamp(&about)?].concat();
    let about: About = serde_json::from_slice(&fs::read(about)?)?;
    if fs::read_to_string(folder.join(SOUND)).ok().as_ref() != Some(&seen) {
        if (checksum(&state)?, checksum(&console)?) != (about.state, about.console) {
            return Err(io::Error::other("its checksum is not what it was"));
        }
        // What was read may be in memory only: from here on it is the disk's, or an error.
        fs::File::open(&state)?.sync_data()?;
        // Who finds none, or half of one, looks again.
        let _ = fs::write(folder.join(SOUND), seen);
    }
    Ok(Saved { state, console, ready: about.ready, facts: about.facts })
}

/// Another one for whatever is written to the file, and for a file put in its place: no call sets the time of a file's last change
/// (inode(7)). What rots on the disk itself is not seen, for as long as the snapshot is of use: one boot of the host.
fn stamp(path: &Path) -> io::Result<String> {
    use std::os::unix::fs::MetadataExt;
    let of = fs::metadata(path)?;
    Ok(format!("{} {} {} {}.{:09}\n", of.dev(), of.ino(), of.len(), of.ctime(), of.ctime_nsec()))
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

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_snapshot_is_looked_at_again_when_it_is_not_the_one_that_was_sound() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name| folder.path().join(name);
        fs::write(at(STATE), [1; 3 * PAGE]).unwrap();
        fs::write(at(CONSOLE), "up\n").unwrap();
        let facts = json!({
            "release": "6.12", "version": "", "machine": "x86_64", "cpus": 1, "memory_kib": 1, "clocksource": "tsc",
            "btf_bytes": 1, "ftrace_functions": 1, "btf_functions": 1, "mitigations": [], "cmdline": ""
        });
        let keep = |state: u64| {
            let console = checksum(&at(CONSOLE)).unwrap();
            let about =
                json!({"ready": Ready::default(), "facts": facts, "state": state, "console": console});
            fs::write(at(ABOUT), about.to_string()).unwrap();
        };
        let right = checksum(&at(STATE)).unwrap();
        keep(right);
        read(folder.path()).unwrap();
        // The files that were sound are not read again, whatever is said of them elsewhere.
        keep(right ^ 1);
        assert!(read(folder.path()).is_err());
        let stamps = [STATE, CONSOLE, ABOUT].map(|name| stamp(&at(name)).unwrap());
        fs::write(at(SOUND), stamps.concat()).unwrap();
        read(folder.path()).unwrap();
        // What is written to one of them is noticed.
        let mut file = fs::File::options().append(true).open(at(STATE)).unwrap();
        io::Write::write_all(&mut file, &[0]).unwrap();
        assert!(read(folder.path()).is_err());
    }
}
