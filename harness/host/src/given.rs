// SPDX-License-Identifier: MIT OR Apache-2.0
//! Counts the time that the machine gave to a process and its descendants.
//!
//! A deadline in wall time calls a starved process a hanging one. [`Given`] leaves out the time in
//! which one of the threads was ready to run and waited for a CPU: `run_delay`, the second number
//! of `/proc/PID/task/TID/schedstat` (Documentation/scheduler/sched-stats.rst). It also leaves out
//! the time in which a limit of CPU bandwidth stopped the process's control group
//! (`throttled_usec`, Documentation/admin-guide/cgroup-v2.rst), and the time that the hypervisor
//! took (`steal`, proc_stat(5)). Sleeping counts, so a deadlock reaches its deadline. On a kernel
//! without `CONFIG_SCHED_INFO` all wall time counts; [`can_tell`] says so.

use crate::process_tree::{family, threads};
use nix::unistd::{Pid, SysconfVar, sysconf};
use std::{
    collections::HashMap,
    fs,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

/// Reading `/proc` costs a millisecond; what happens between two readings counts as one.
const PERIOD: Duration = Duration::from_millis(200);
/// Looking for descendants reads all processes of the machine.
const RELATIVES: Duration = Duration::from_secs(2);

/// A clock that stands still while its processes are starved.
pub struct Given {
    root: Pid,
    family: Vec<Pid>,
    looked: Instant,
    last: Reading,
    given: Duration,
    /// Waiting that was only told once it was over, and counted as given before.
    owed: Duration,
}

struct Reading {
    at: Instant,
    /// By thread, the time that it has waited for a CPU.
    waited: HashMap<Pid, Duration>,
    /// The time for which a limit stopped the control group.
    throttled: Duration,
    /// The time that the hypervisor took from one CPU, on average.
    stolen: Duration,
}

/// True if this machine's kernel tells how long a thread waits for a CPU.
pub fn can_tell() -> bool {
    fs::read_to_string("/proc/self/schedstat").is_ok_and(|text| run_delay(&text).is_some())
}

impl Given {
    /// Starts the clock of `root` and its descendants.
    pub fn to(root: Pid) -> Given {
        let family = family(root);
        let last = Reading::of(root, &family);
        Given {
            root,
            family,
            looked: Instant::now(),
            last,
            given: Duration::ZERO,
            owed: Duration::ZERO,
        }
    }

    /// Starts the clock of this process and its descendants.
    pub fn to_us() -> Given {
        Given::to(nix::unistd::getpid())
    }

    /// Returns the time given so far. Call it often: a thread that ends between two calls takes its
    /// waiting with it.
    pub fn elapsed(&mut self) -> Duration {
        if self.last.at.elapsed() >= PERIOD {
            if self.looked.elapsed() >= RELATIVES {
                self.family = family(self.root);
                self.looked = Instant::now();
            }
            let now = Reading::of(self.root, &self.family);
            let passed = now.at.duration_since(self.last.at);
            let taken = self.owed + taken(&self.last, &now);
            self.given += passed.saturating_sub(taken);
            self.owed = taken.saturating_sub(passed);
            self.last = now;
        }
        self.given
    }

    /// Waits until `done` returns true. Returns false once `limit` was given.
    pub fn wait(mut self, limit: Duration, mut done: impl FnMut() -> bool) -> bool {
        const PAUSE: Duration = Duration::from_millis(20);
        loop {
            if done() {
                return true;
            }
            if self.elapsed() >= limit {
                return false;
            }
            thread::sleep(PAUSE);
        }
    }
}

impl Reading {
    fn of(root: Pid, family: &[Pid]) -> Reading {
        let threads = family.iter().copied().flat_map(threads);
        let waited = threads.filter_map(|thread| {
            // A thread's number serves as that of a process, though no listing shows it.
            let text = fs::read_to_string(format!("/proc/{thread}/schedstat")).ok()?;
            Some((thread, run_delay(&text)?))
        });
        let waited = waited.collect();
        let stolen = fs::read_to_string("/proc/stat").ok().and_then(|text| stolen(&text));
        let throttled = throttled(root).unwrap_or_default();
        Reading { at: Instant::now(), waited, throttled, stolen: stolen.unwrap_or_default() }
    }
}

/// The time that was not given, told between two readings. The kernel tells of a wait at its end, so
/// this can be longer than the time between them.
fn taken(before: &Reading, after: &Reading) -> Duration {
    // A new thread's waiting is all of this time.
    let longer = |(thread, &now): (&Pid, &Duration)| {
        now.saturating_sub(before.waited.get(thread).copied().unwrap_or_default())
    };
    // Threads that wait at the same time hinder each other once.
    let waited = after.waited.iter().map(longer).max().unwrap_or_default();
    // Before Linux 6.18 a throttled thread also waits.
    let waited = waited.max(after.throttled.saturating_sub(before.throttled));
    waited + after.stolen.saturating_sub(before.stolen)
}

fn run_delay(schedstat: &str) -> Option<Duration> {
    schedstat.split_ascii_whitespace().nth(1)?.parse().ok().map(Duration::from_nanos)
}

/// The time for which limits stopped the control group of a process, or one above it.
fn throttled(process: Pid) -> Option<Duration> {
    let groups = fs::read_to_string(format!("/proc/{process}/cgroup")).ok()?;
    let folders = groups.lines().filter_map(group).flat_map(|(mount, group)| {
        let above: Vec<PathBuf> = Path::new(&group).ancestors().map(Path::to_owned).collect();
        above.into_iter().map(move |group| mount.join(group.strip_prefix("/").unwrap_or(&group)))
    });
    let read = |folder: PathBuf| fs::read_to_string(folder.join("cpu.stat")).ok();
    folders.filter_map(read).filter_map(|text| throttling(&text)).max()
}

/// Where a line of `/proc/PID/cgroup` has its control group, if that one limits CPU bandwidth.
fn group(line: &str) -> Option<(PathBuf, String)> {
    let mut parts = line.splitn(3, ':').skip(1);
    let (controllers, group) = (parts.next()?, parts.next()?);
    let mount = Path::new("/sys/fs/cgroup");
    let is_cpu = controllers.split(',').any(|controller| controller == "cpu");
    match controllers {
        "" => Some((mount.to_owned(), group.to_owned())),
        _ => is_cpu.then(|| (mount.join(controllers), group.to_owned())),
    }
}

/// From `cpu.stat`, of version 2 or 1 of control groups.
fn throttling(stat: &str) -> Option<Duration> {
    stat.lines().find_map(|line| match line.split_once(' ')? {
        ("throttled_usec", time) => time.parse().ok().map(Duration::from_micros),
        ("throttled_time", time) => time.parse().ok().map(Duration::from_nanos),
        _ => None,
    })
}

/// `steal` of all CPUs, shared out among them.
fn stolen(stat: &str) -> Option<Duration> {
    const STEAL: usize = 8;
    let cpus = stat.lines().filter(|line| line.starts_with("cpu")).count().checked_sub(1)?;
    let ticks: u64 = stat.lines().next()?.split_ascii_whitespace().nth(STEAL)?.parse().ok()?;
    let hertz = sysconf(SysconfVar::CLK_TCK).ok().flatten()?;
    Some(Duration::from_secs(ticks) / u32::try_from(hertz).ok()? / u32::try_from(cpus).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::child::Group;
    use nix::sys::signal::{Signal, kill};
    use std::process::Command;

    fn reading(at: Instant, waited: &[(i32, u64)], [throttled, stolen]: [u64; 2]) -> Reading {
        let waited =
            waited.iter().map(|&(thread, ms)| (Pid::from_raw(thread), Duration::from_millis(ms)));
        let waited = waited.collect();
        let [throttled, stolen] = [throttled, stolen].map(Duration::from_millis);
        Reading { at, waited, throttled, stolen }
    }

    #[test]
    fn leaves_out_the_longest_wait_and_what_the_hypervisor_took() {
        let start = Instant::now();
        for (before, after, others, expected) in [
            (&[(1, 500)][..], &[(1, 500)][..], [0, 0], 0),
            (&[(1, 500)], &[(1, 900)], [0, 0], 400),
            // Two that wait at the same time.
            (&[(1, 0), (2, 0)], &[(1, 300), (2, 400)], [0, 0], 400),
            // A new one, and one that ended.
            (&[(1, 5000)], &[(2, 250)], [0, 0], 250),
            (&[(1, 0)], &[(1, 100)], [0, 200], 300),
            // Throttled, with and without counting it as waiting.
            (&[(1, 0)], &[(1, 100)], [300, 0], 300),
            (&[(1, 0)], &[(1, 300)], [300, 200], 500),
            (&[], &[], [0, 0], 0),
        ] {
            let (before, after) = (reading(start, before, [0, 0]), reading(start, after, others));
            assert_eq!(taken(&before, &after), Duration::from_millis(expected));
        }
    }

    /// The kernel tells of a wait of two seconds at its end.
    #[test]
    fn makes_up_for_waiting_that_was_told_late() {
        let us = nix::unistd::getpid();
        let mut clock = Given::to(us);
        let ago = |ms: u64| Instant::now().checked_sub(Duration::from_millis(ms)).unwrap();
        clock.family = Vec::new();
        clock.looked = Instant::now() + Duration::from_secs(60);
        clock.owed = Duration::from_secs(2);
        clock.last.at = ago(1500);
        assert_eq!(clock.elapsed(), Duration::ZERO);
        clock.last.at = ago(1500);
        let given = clock.elapsed();
        assert!((900..1400).contains(&given.as_millis()), "{given:?}");
    }

    #[test]
    fn reads_the_kernels_files() {
        assert_eq!(run_delay("1108969 42 17\n"), Some(Duration::from_nanos(42)));
        assert_eq!(run_delay(""), None);
        let stat = "cpu  1 2 3 4 5 6 7 400 0 0\ncpu0 1 2 3 4 5 6 7 200 0 0\ncpu1 1 2 3 4 5 6 7 \
                    200 0 0\nintr 5\n";
        assert_eq!(stolen(stat), Some(Duration::from_secs(2)));
        assert_eq!(stolen(""), None);
        let two = "usage_usec 5\nnr_throttled 1\nthrottled_usec 1500\n";
        assert_eq!(throttling(two), Some(Duration::from_micros(1500)));
        let one = "nr_periods 0\nnr_throttled 0\nthrottled_time 1500\n";
        assert_eq!(throttling(one), Some(Duration::from_nanos(1500)));
        assert_eq!(throttling("usage_usec 5\n"), None);
        for (line, mount) in [
            ("0::/a/b", Some("/sys/fs/cgroup")),
            ("4:cpu,cpuacct:/a:b", Some("/sys/fs/cgroup/cpu,cpuacct")),
            ("3:cpuset:/a", None),
            ("", None),
        ] {
            assert_eq!(group(line).map(|(mount, _)| mount), mount.map(PathBuf::from), "{line}");
        }
        assert_eq!(group("4:cpu:/a:b").unwrap().1, "/a:b");
    }

    /// A shell that works without end, on a CPU that it shares with its like.
    fn spinner() -> Group {
        let status = fs::read_to_string("/proc/self/status").unwrap();
        let allowed = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
        let first = allowed.unwrap().trim().split(['-', ',']).next().unwrap();
        let mut command = Command::new("taskset");
        Group::spawn(command.args(["-c", first, "sh", "-c", "while :; do :; done"])).unwrap()
    }

    /// CPU time of a process.
    fn worked(process: Pid) -> Duration {
        let text = fs::read_to_string(format!("/proc/{process}/schedstat")).unwrap();
        Duration::from_nanos(text.split(' ').next().unwrap().parse().unwrap())
    }

    /// Whatever else the machine does: a process that only works was given what it worked, and one
    /// that is stopped all the time.
    #[test]
    fn counts_what_a_starved_process_worked() {
        if !fs::exists("/proc/self/schedstat").unwrap() {
            return eprintln!("not run: this kernel has no CONFIG_SCHED_INFO");
        }
        let spinners = [spinner(), spinner(), spinner()];
        let process = spinners[0].id();
        let (mut clock, began) = (Given::to(process), Instant::now());
        let before = worked(process);
        while began.elapsed() < Duration::from_secs(3) {
            clock.elapsed();
            thread::sleep(Duration::from_millis(100));
        }
        thread::sleep(PERIOD);
        let (given, worked) = (clock.elapsed(), worked(process).checked_sub(before).unwrap());
        let passed = began.elapsed();
        assert!(worked < passed * 2 / 3, "{worked:?} of {passed:?}: it was not starved");
        assert!(given.abs_diff(worked) < passed / 5, "{given:?}, worked {worked:?}");
        kill(process, Signal::SIGSTOP).unwrap();
        assert!(!Given::to(process).wait(Duration::from_secs(1), || false));
        kill(process, Signal::SIGCONT).unwrap();
    }

    #[test]
    fn waits_for_what_comes_and_not_for_what_does_not() {
        let mut left = 3;
        let counted = || {
            left -= 1;
            left == 0
        };
        assert!(Given::to_us().wait(Duration::from_secs(60), counted));
        assert!(!Given::to_us().wait(Duration::from_millis(300), || false));
    }
}
