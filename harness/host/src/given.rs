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
/// A process that runs for less than this part of the time does not want to.
const BUSY: u32 = 20;

/// A deadline ends after so many times its length in wall time, even if nothing was given. A
/// machine that starves a process for so long will continue.
pub const PATIENCE: u32 = 16;

/// A clock that stands still while its processes are starved.
pub struct Given {
    root: Pid,
    family: Vec<Pid>,
    looked: Instant,
    last: Reading,
    account: Account,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Account {
    given: Duration,
    /// Waiting that was counted as given, since the kernel told of it only at its end.
    owed: Duration,
}

struct Reading {
    at: Instant,
    threads: HashMap<Pid, Times>,
    /// The time for which a limit stopped the control group, summed over CPUs.
    throttled: Duration,
    /// The time that the hypervisor took from one CPU, on average.
    stolen: Duration,
}

/// A thread's times.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Times {
    ran: Duration,
    /// Could have run, and waited for a CPU. The kernel adds a wait at its end.
    waited: Duration,
}

/// The time between two readings, and what happened in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Span {
    passed: Duration,
    /// The CPU time of the thread that ran longest.
    ran: Duration,
    /// The thread that waited longest: threads that wait at the same time are starved once.
    starved: Times,
    throttled: Duration,
    stolen: Duration,
}

/// True if this machine's kernel tells how long a thread waits for a CPU.
pub fn can_tell() -> bool {
    fs::read_to_string("/proc/self/schedstat").is_ok_and(|text| times(&text).is_some())
}

impl Given {
    /// Starts the clock of `root` and its descendants.
    pub fn to(root: Pid) -> Given {
        let family = family(root);
        let last = Reading::of(root, &family);
        Given { root, family, looked: Instant::now(), last, account: Account::default() }
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
            self.account.add(&Span::between(&self.last, &now));
            self.last = now;
        }
        self.account.given
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
        let times = threads.filter_map(|thread| {
            // A thread's number serves as that of a process, though no listing shows it.
            let text = fs::read_to_string(format!("/proc/{thread}/schedstat")).ok()?;
            Some((thread, times(&text)?))
        });
        let threads = times.collect();
        let stolen = fs::read_to_string("/proc/stat").ok().and_then(|text| stolen(&text));
        let throttled = throttled(root).unwrap_or_default();
        Reading { at: Instant::now(), threads, throttled, stolen: stolen.unwrap_or_default() }
    }
}

impl Span {
    fn between(before: &Reading, after: &Reading) -> Span {
        let since = |(thread, now): (&Pid, &Times)| {
            // A new thread has done all of it in this time.
            let then = before.threads.get(thread).copied().unwrap_or_default();
            Times {
                ran: now.ran.saturating_sub(then.ran),
                waited: now.waited.saturating_sub(then.waited),
            }
        };
        let threads: Vec<Times> = after.threads.iter().map(since).collect();
        Span {
            passed: after.at.duration_since(before.at),
            ran: threads.iter().map(|times| times.ran).max().unwrap_or_default(),
            starved: threads.into_iter().max_by_key(|times| times.waited).unwrap_or_default(),
            throttled: after.throttled.saturating_sub(before.throttled),
            stolen: after.stolen.saturating_sub(before.stolen),
        }
    }
}

impl Account {
    fn add(&mut self, span: &Span) {
        // Others of its control group may be throttled while it sleeps. Before Linux 6.18 a
        // throttled thread also waits.
        let worked = span.ran * BUSY >= span.passed;
        let throttled = if worked { span.throttled.min(span.passed) } else { Duration::ZERO };
        let waited = self.owed.max(span.starved.waited);
        let lost = waited.max(throttled) + span.stolen;
        // CPU time was given, whatever else is told.
        let ran = if throttled > waited { span.ran } else { span.starved.ran };
        self.given += span.passed.saturating_sub(lost).max(ran.min(span.passed));
        self.owed = waited.saturating_sub(span.passed);
    }
}

fn times(schedstat: &str) -> Option<Times> {
    let mut numbers = schedstat.split_ascii_whitespace();
    let mut next = || numbers.next()?.parse().ok().map(Duration::from_nanos);
    Some(Times { ran: next()?, waited: next()? })
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
pub(crate) mod tests {
    use super::*;
    use crate::child::Group;
    use nix::sys::signal::{Signal, kill};
    use std::process::Command;

    fn reading(at: Instant, threads: &[(i32, u64, u64)]) -> Reading {
        let ms = Duration::from_millis;
        let times = |&(thread, ran, waited)| {
            (Pid::from_raw(thread), Times { ran: ms(ran), waited: ms(waited) })
        };
        let threads = threads.iter().map(times).collect();
        Reading { at, threads, throttled: ms(0), stolen: ms(0) }
    }

    #[test]
    fn takes_the_thread_that_waited_longest_and_the_one_that_ran_longest() {
        let start = Instant::now();
        for (before, after, ran, waited) in [
            (&[(1, 10, 500)][..], &[(1, 10, 500)][..], 0, 0),
            (&[(1, 10, 500)], &[(1, 30, 900)], 20, 400),
            // Two at the same time.
            (&[(1, 0, 0), (2, 0, 0)], &[(1, 700, 300), (2, 600, 400)], 700, 400),
            // A new one, and one that ended.
            (&[(1, 900, 5000)], &[(2, 40, 250)], 40, 250),
            (&[], &[], 0, 0),
        ] {
            let span = Span::between(&reading(start, before), &reading(start, after));
            let found = (span.ran.as_millis(), span.starved.waited.as_millis());
            assert_eq!(found, (ran, waited), "{before:?} {after:?}");
        }
    }

    #[test]
    fn leaves_out_waiting_throttling_and_what_the_hypervisor_took() {
        let ms = Duration::from_millis;
        // Each row: what happened in a second, as milliseconds run, waited, throttled and stolen.
        for (seconds, given, owed) in [
            (&[[0, 0, 0, 0]][..], 1000, 0),
            (&[[600, 400, 0, 0]], 600, 0),
            (&[[700, 100, 0, 200]], 700, 0),
            // Throttled, with and without counting it as waiting. Summed over four CPUs.
            (&[[700, 100, 300, 0]], 700, 0),
            (&[[500, 300, 300, 200]], 500, 0),
            (&[[250, 0, 3000, 0]], 250, 0),
            // Others are throttled, and it sleeps.
            (&[[10, 0, 3000, 0]], 1000, 0),
            // A wait of three seconds is told at its end.
            (&[[0, 0, 0, 0], [0, 0, 0, 0], [0, 3000, 0, 0]], 2000, 2000),
            (&[[0, 3000, 0, 0], [500, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0]], 1500, 0),
            // Each thread's wait is told in another second.
            (&[[0, 3000, 0, 0], [0, 3000, 0, 0], [0, 3000, 0, 0]], 0, 2000),
        ] {
            let mut account = Account::default();
            for &[ran, waited, throttled, stolen] in seconds {
                account.add(&Span {
                    passed: ms(1000),
                    ran: ms(ran),
                    starved: Times { ran: ms(ran), waited: ms(waited) },
                    throttled: ms(throttled),
                    stolen: ms(stolen),
                });
            }
            assert_eq!(account, Account { given: ms(given), owed: ms(owed) }, "{seconds:?}");
        }
    }

    /// A process's own rival, which takes all CPUs.
    #[test]
    fn counts_what_the_starved_thread_ran() {
        let ms = Duration::from_millis;
        let starved = Times { ran: ms(100), waited: ms(900) };
        let passed = ms(1000);
        let mut account = Account::default();
        account.add(&Span { passed, ran: ms(1000), starved, ..Span::default() });
        assert_eq!(account.given, ms(100));
    }

    #[test]
    fn reads_the_kernels_files() {
        let (ran, waited) = (Duration::from_nanos(1108969), Duration::from_nanos(42));
        assert_eq!(times("1108969 42 17\n"), Some(Times { ran, waited }));
        assert_eq!(times(""), None);
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
    pub fn spinner() -> Group {
        let mut command = Command::new("taskset");
        let spin = ["-c", &first_cpu(), "sh", "-c", "while :; do :; done"];
        Group::spawn(command.args(spin)).unwrap()
    }

    /// The first CPU on which we may run.
    pub fn first_cpu() -> String {
        let status = fs::read_to_string("/proc/self/status").unwrap();
        let allowed = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
        allowed.unwrap().trim().split(['-', ',']).next().unwrap().to_owned()
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
