// SPDX-License-Identifier: MIT OR Apache-2.0
//! Ends hanging tests, and what tests leave behind.
//!
//! nextest's own time-out is wall time, which a starved machine exceeds without a fault of the
//! test. Here a test's limit counts the time that the machine gave it.

use crate::error::Result;
use nix::{
    errno::Errno,
    sys::{
        prctl,
        signal::{Signal, kill, killpg},
        wait::{WaitPidFlag, WaitStatus, waitpid},
    },
    unistd::{Pid, getpid},
};
use std::{
    collections::{HashMap, HashSet},
    fs,
    sync::mpsc::{self, RecvTimeoutError},
    thread,
    time::{Duration, Instant},
};
use tramplab_host::{
    given::Given,
    process_tree::{children, family},
};

/// The time that ended tests' processes get to end themselves.
const GRACE: Duration = Duration::from_secs(3);
const PERIOD: Duration = Duration::from_secs(1);
/// No machine is slower: one of the test's processes starves for ever, beside a hanging one.
const STARVED: u32 = 8;

/// Takes over the orphans of this process's descendants.
pub fn adopt_orphans() -> Result<()> {
    Ok(prctl::set_child_subreaper(true).map_err(std::io::Error::from)?)
}

/// Runs `work`, whose tests are children of this process. Kills those that were given `limit`;
/// `say` gets a line about each.
pub fn limited<T>(limit: Duration, say: &(dyn Fn(&str) + Sync), work: impl FnOnce() -> T) -> T {
    watched(|| children(getpid()), limit, say, work)
}

/// Watches these process groups.
fn watched<T>(
    tests: impl Fn() -> Vec<Pid> + Send,
    limit: Duration,
    say: &(dyn Fn(&str) + Sync),
    work: impl FnOnce() -> T,
) -> T {
    let (ended, end) = mpsc::channel::<()>();
    thread::scope(|scope| {
        scope.spawn(move || {
            let mut clocks: HashMap<Pid, (Given, Instant)> = HashMap::new();
            let mut killed: HashSet<Pid> = HashSet::new();
            while end.recv_timeout(PERIOD) == Err(RecvTimeoutError::Timeout) {
                let tests = tests();
                clocks.retain(|test, _| tests.contains(test));
                killed.retain(|test| tests.contains(test));
                for test in tests {
                    let new = || (Given::to(test), Instant::now());
                    let clock = clocks.entry(test).or_insert_with(new);
                    let (given, began) = clock;
                    let hangs = given.elapsed() >= limit || began.elapsed() >= limit * STARVED;
                    if !hangs || !killed.insert(test) {
                        continue;
                    }
                    say(&format!("killing a test that hangs for {limit:?}: {}", command(test)));
                    let _ = killpg(test, Signal::SIGKILL);
                }
            }
        });
        let result = work();
        drop(ended);
        result
    })
}

/// Waits for the processes that tests left, then kills them. Returns their command lines.
/// Does not wait for those of tests that a signal stopped.
pub fn clear(were_stopped: bool) -> Vec<String> {
    let none = || {
        reap();
        left().is_empty()
    };
    let grace = if were_stopped { Duration::ZERO } else { GRACE };
    if Given::to_us().wait(grace, none) {
        return Vec::new();
    }
    let left: Vec<(Pid, String)> = left().into_iter().map(|pid| (pid, command(pid))).collect();
    let kill = |process| {
        let _ = kill(process, Signal::SIGKILL);
    };
    // One that may not be killed, such as sudo's, stays.
    Given::to_us().wait(GRACE, || {
        self::left().into_iter().for_each(kill);
        none()
    });
    left.into_iter().map(|(_, command)| command).collect()
}

/// The processes of tests that are left. Daemons that a build started, such as sccache's, are none.
fn left() -> Vec<Pid> {
    let is_of_a_test = |process: &Pid| test_of(*process).is_some();
    family(getpid()).into_iter().skip(1).filter(is_of_a_test).collect()
}

/// Reaps children that have ended.
fn reap() {
    while !matches!(
        waitpid(None, Some(WaitPidFlag::WNOHANG)),
        Ok(WaitStatus::StillAlive) | Err(Errno::ECHILD)
    ) {}
}

/// The test that started a process, which nextest names in the environment.
fn test_of(process: Pid) -> Option<String> {
    let variables = fs::read(format!("/proc/{process}/environ")).ok()?;
    let variables = String::from_utf8_lossy(&variables);
    let test = variables.split('\0').find_map(|line| line.strip_prefix("NEXTEST_TEST_NAME="));
    test.map(str::to_owned)
}

/// A process's command line, with the test that started it.
fn command(process: Pid) -> String {
    let words = fs::read(format!("/proc/{process}/cmdline")).unwrap_or_default();
    let words = String::from_utf8_lossy(&words).replace('\0', " ");
    format!("{} (of {})", words.trim(), test_of(process).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{process::Command, sync::Mutex};
    use tramplab_host::child::Group;

    #[test]
    fn kills_the_test_that_hangs_and_no_other() {
        let start = |seconds| Group::spawn(Command::new("sleep").arg(seconds)).unwrap();
        let (mut hangs, mut ends) = (start("600"), start("1"));
        let ours = [hangs.id(), ends.id()];
        let tests =
            move || children(getpid()).into_iter().filter(|pid| ours.contains(pid)).collect();
        let said = Mutex::new(Vec::new());
        let say = |line: &str| said.lock().unwrap().push(line.to_owned());
        let statuses = watched(tests, Duration::from_secs(3), &say, || {
            [&mut hangs, &mut ends].map(|group| {
                loop {
                    match group.try_wait().unwrap() {
                        Some(status) => break status.success(),
                        None => thread::sleep(Duration::from_millis(50)),
                    }
                }
            })
        });
        assert_eq!(statuses, [false, true]);
        let said = said.into_inner().unwrap();
        assert!(matches!(&said[..], [line] if line.contains("sleep 600")), "{said:?}");
    }
}
