// SPDX-License-Identifier: MIT OR Apache-2.0
//! Names the process for whose lock this one waits. A silent wait looks like a hang.

use nix::unistd::{Pid, SysconfVar, sysconf};
use std::{fmt, fs, os::unix::fs::MetadataExt, path::Path, sync::OnceLock, time::Duration};
use tramplab_model::text;

/// Shorter waits are not told.
pub const PATIENCE: Duration = Duration::from_secs(2);

/// Characters of a command line.
const MOST: usize = 80;

/// Shows the lines about waits. Set once, by the command line.
pub static SHOW: OnceLock<fn(&str)> = OnceLock::new();

/// The process that holds a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    pub process: Pid,
    /// Its command line.
    pub command: String,
    /// How long it has been running.
    pub age: Duration,
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let minutes = self.age.as_secs() / 60;
        let Holder { process, command, .. } = self;
        write!(f, "process {process}, `{command}`, which has been running for {minutes} min")
    }
}

/// Says who holds a lock.
pub fn tell(lock: &Path) {
    let holder = of(lock).map(|holder| holder.to_string());
    let holder = holder.or_else(|| Some(format!("process {}", written(lock)?)));
    let holder = holder.unwrap_or_else(|| "another process".to_owned());
    if let Some(show) = SHOW.get() {
        show(&format!("waiting for {holder}: it holds {}", lock.display()));
    }
}

/// The process ID that a lock's holder wrote into its file. Over NFS, and in another PID namespace,
/// `/proc/locks` does not tell it.
pub fn written(lock: &Path) -> Option<String> {
    fs::read_to_string(lock).ok().filter(|pid| !pid.is_empty())
}

/// The process that holds a lock on a file (flock(2)), by `/proc/locks` (proc_locks(5)).
pub fn of(lock: &Path) -> Option<Holder> {
    let file = fs::metadata(lock).ok()?;
    let locks = fs::read_to_string("/proc/locks").ok()?;
    let process = locks.lines().find_map(|line| process(line, file.ino()))?;
    let command = fs::read(format!("/proc/{process}/cmdline")).ok()?;
    let command = String::from_utf8_lossy(&command).replace('\0', " ");
    let command = text::line(command.trim()).chars().take(MOST).collect();
    Some(Holder { process, command, age: age(process)? })
}

/// The holder in a line of `/proc/locks`: `1: FLOCK  ADVISORY  WRITE 4242 fe:00:1234 0 EOF`. The
/// device differs from stat's on some file systems; two files with the same number are unlikely.
fn process(line: &str, inode: u64) -> Option<Pid> {
    let mut words = line.split_ascii_whitespace().skip(1);
    // `->` stands before those who wait.
    let (kind, process, file) = (words.next()?, words.nth(2)?, words.next()?);
    let number: u64 = file.rsplit(':').next()?.parse().ok()?;
    let process: i32 = process.parse().ok().filter(|&process| process > 0)?;
    (kind == "FLOCK" && number == inode).then(|| Pid::from_raw(process))
}

fn age(process: Pid) -> Option<Duration> {
    // Counted behind the name, which may hold anything: proc_pid_stat(5).
    const STARTED: usize = 19;
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    let started: u64 =
        stat.rsplit_once(") ")?.1.split_ascii_whitespace().nth(STARTED)?.parse().ok()?;
    let hertz = u64::try_from(sysconf(SysconfVar::CLK_TCK).ok()??).ok()?;
    let uptime = fs::read_to_string("/proc/uptime").ok()?;
    let uptime: f64 = uptime.split(' ').next()?.parse().ok()?;
    Some(Duration::from_secs((uptime as u64).saturating_sub(started / hertz)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::fcntl::{Flock, FlockArg};

    #[test]
    fn finds_the_holder_of_a_lock() {
        let file = tempfile::NamedTempFile::new().unwrap();
        assert_eq!(of(file.path()), None);
        let held = Flock::lock(file.reopen().unwrap(), FlockArg::LockExclusive).unwrap();
        let holder = of(file.path()).expect("it is locked");
        assert_eq!(holder.process, nix::unistd::getpid());
        assert!(holder.command.contains("tramplab"), "{holder}");
        assert!(holder.age < Duration::from_secs(3600), "{holder}");
        drop(held);
        assert_eq!(of(file.path()), None);
        // A waiter, and a lock of another kind.
        assert_eq!(process("1: -> FLOCK  ADVISORY  WRITE 7 fe:00:1234 0 EOF", 1234), None);
        assert_eq!(process("1: POSIX  ADVISORY  WRITE 7 fe:00:1234 0 EOF", 1234), None);
        let line = "1: FLOCK  ADVISORY  WRITE 7 fe:00:1234 0 EOF";
        assert_eq!(process(line, 1234), Some(Pid::from_raw(7)));
    }
}
