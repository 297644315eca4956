// SPDX-License-Identifier: MIT OR Apache-2.0
//! Keeps booted guests on disk. The next guest of the same kind continues from there.
//!
//! ```text
//! CACHE/snapshot/KEY/state        QEMU's migration stream, memory at fixed places (`mapped-ram`)
//! CACHE/snapshot/KEY/console.log  the guest's console so far
//! CACHE/snapshot/KEY/about.json   the agent's description, and checksums of the two files
//! CACHE/snapshot/KEY/sound        identifies the files whose checksums were last correct
//! ```

use super::{
    machine::{command_line, guest},
    monitor::{Monitor, MonitorError},
};
use crate::{Ready, Snapshots, Spec};
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
use tramplab_protocol::{
    emulated,
    message::{self, Facts},
};
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

/// The cache's kind.
const KIND: &str = "snapshot";
/// Bytes of all snapshots together. One has about 100 MB.
const LIMIT: u64 = 2 << 30;
/// Increase it when the contents or the moment of a snapshot change.
const VERSION: u32 = 4;

const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

const STATE: &str = "state";
const CONSOLE: &str = "console.log";
const ABOUT: &str = "about.json";
const SOUND: &str = "sound";

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
    /// The plugin's registers of emulated branch records, which QEMU's state lacks.
    registers: Vec<u8>,
    registers_sum: u64,
}

/// The result of keeping a guest.
pub(crate) enum Kept {
    /// The guest is on disk and paused.
    Saved,
    /// Another run keeps one. This guest is unchanged.
    Untouched,
}

/// A snapshot whose checksums are correct.
pub(crate) struct Saved {
    pub state: PathBuf,
    pub console: PathBuf,
    pub ready: Ready,
    pub facts: Facts,
    pub registers: Vec<u8>,
}

impl Snapshots {
    /// None for a guest that must boot: with the exact clock its commands are in its root; under
    /// KVM it boots in a second and has the host's CPU.
    pub(crate) fn of(spec: &Spec) -> Option<&Snapshots> {
        let fits = spec.accel == Accel::Tcg && spec.clock == Clock::Free;
        spec.snapshots.as_ref().filter(|_| fits && spec.launcher.features().restores)
    }

    /// Hashes everything that a guest can see of its machine.
    fn key(&self, spec: &Spec) -> String {
        let mut hash = Sha256::new();
        let mut add = |bytes: &[u8]| {
            hash.update((bytes.len() as u64).to_le_bytes());
            hash.update(bytes);
        };
        add(format!("{VERSION} {}", message::VERSION).as_bytes());
        add(self.contents.as_bytes());
        // The guest has measured the speed of the host's time counter: valid for one boot of the
        // host.
        add(&fs::read(BOOT_ID).unwrap_or_default());
        add(command_line(spec.arch, &spec.append).as_bytes());
        add(spec.played.as_deref().unwrap_or_default().as_bytes());
        for word in guest(spec) {
            add(word.as_bytes());
        }
        hex(&hash.finalize())
    }

    /// Finds the snapshot. Fails if it is damaged.
    pub(crate) fn find(&self, spec: &Spec) -> io::Result<Option<Saved>> {
        self.cache().get(KIND, &self.key(spec)).map(|folder| read(&folder)).transpose()
    }

    pub(crate) fn discard(&self, spec: &Spec) {
        // Ignore an error: the next run that finds it damaged tries again.
        let _ = self.cache().discard(KIND, &self.key(spec));
    }

    /// Keeps a guest that has booted and read ahead, unless another run keeps one.
    pub(crate) fn keep(
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
            let registers = match spec.played {
                Some(_) => fs::read(emulated::registers(&spec.dir))?,
                None => Vec::new(),
            };
            let (state, console) = (checksum(&state)?, checksum(&console)?);
            let registers_sum = xxh3_64(&registers);
            let about = About { ready, facts, state, console, registers, registers_sum };
            fs::write(folder.join(ABOUT), serde_json::to_vec(&about).map_err(io::Error::from)?)?;
            Ok(())
        })?;
        if !made {
            return Ok(Kept::Untouched);
        }
        for item in prune::excess(&prune::of_kind(&cache, KIND), LIMIT) {
            // Ignore an error: a later run removes it.
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
        let sums = (checksum(&state)?, checksum(&console)?, xxh3_64(&about.registers));
        if sums != (about.state, about.console, about.registers_sum) {
            return Err(io::Error::other("its checksum is not what it was"));
        }
        // The data may be only in the page cache: sync it, or fail.
        fs::File::open(&state)?.sync_data()?;
        // Ignore an error: without a complete file the next reader checks again.
        let _ = fs::write(folder.join(SOUND), seen);
    }
    let About { ready, facts, registers, .. } = about;
    Ok(Saved { state, console, ready, facts, registers })
}

/// Identifies a file's state: it changes with each write and with a replaced file, as no call can
/// set a file's ctime (inode(7)). Does not detect bit rot on the disk. A snapshot is used for one
/// boot of the host.
fn stamp(path: &Path) -> io::Result<String> {
    use std::os::unix::fs::MetadataExt;
    let of = fs::metadata(path)?;
    Ok(format!("{} {} {} {}.{:09}\n", of.dev(), of.ino(), of.len(), of.ctime(), of.ctime_nsec()))
}

const PAGE: usize = 4096;

/// The checksum of a sparse file: of its length, and of all pages that are not zero, with their
/// places.
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

/// The next range that is not a hole, extended to whole pages.
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
    use tramplab_model::run::Arch;

    /// A guest with another runtime switch is another guest.
    #[test]
    fn hashes_all_words_of_the_command_line() {
        let snapshots = Snapshots { cache: "c".into(), contents: "k".to_owned() };
        let key = |word: &str| {
            let append = vec!["quiet".to_owned(), word.to_owned()];
            snapshots.key(&Spec { append, ..Spec::example(Arch::X86_64, Accel::Tcg) })
        };
        let [off, on] = ["0", "1"].map(|value| format!("sysctl.kernel.bpf_stats_enabled={value}"));
        assert_eq!(key(&on), key(&on));
        assert_ne!(key(&off), key(&on));
        assert_ne!(key("tramplab.cgroup_program=0"), key("tramplab.cgroup_program=1"));
    }

    #[test]
    fn checks_a_snapshot_again_when_its_files_have_changed() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name| folder.path().join(name);
        fs::write(at(STATE), [1; 3 * PAGE]).unwrap();
        fs::write(at(CONSOLE), "up\n").unwrap();
        let facts = json!({
            "release": "6.12", "version": "", "machine": "x86_64", "cpus": 1, "memory_kib": 1,
            "clocksource": "tsc", "btf_bytes": 1, "ftrace_functions": 1, "btf_functions": 1,
            "mitigations": [], "cmdline": ""
        });
        let keep = |state: u64| {
            let console = checksum(&at(CONSOLE)).unwrap();
            let ready = Ready::default();
            let about = json!({
                "ready": ready, "facts": facts, "state": state, "console": console,
                "registers": [], "registers_sum": xxh3_64(&[]),
            });
            fs::write(at(ABOUT), about.to_string()).unwrap();
        };
        let right = checksum(&at(STATE)).unwrap();
        keep(right);
        read(folder.path()).unwrap();
        // Unchanged files are not read again, even if the checksum in about.json is wrong.
        keep(right ^ 1);
        assert!(read(folder.path()).is_err());
        let stamps = [STATE, CONSOLE, ABOUT].map(|name| stamp(&at(name)).unwrap());
        fs::write(at(SOUND), stamps.concat()).unwrap();
        read(folder.path()).unwrap();
        // A write to one of them is detected.
        let mut file = fs::File::options().append(true).open(at(STATE)).unwrap();
        io::Write::write_all(&mut file, &[0]).unwrap();
        assert!(read(folder.path()).is_err());
    }
}
