// SPDX-License-Identifier: MIT OR Apache-2.0
//! A guest's time: how much the host gave it, and for how long the host starved it.
//!
//! Deadlines of guests count given time ([`Given`]), so that a starved guest is not called a
//! hanging one. A kernel's own watchdogs count wall time: what they say of a starved guest is
//! doubtful.

use nix::unistd::Pid;
use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};
use tramplab_host::given::{Given, PATIENCE, can_tell};
use tramplab_model::run::ErrorKind;

/// Longer pauses between two readings count as this much. The guest is asked for ten times a
/// second, so this process itself did not run: it was stopped, or starved.
const LONGEST_STEP: Duration = Duration::from_secs(1);
/// The time before a death in which starvation makes it doubtful: half of what the slowest of the
/// kernels' watchdogs waits for (hung tasks, 120 s).
const PAST: Duration = Duration::from_secs(60);
/// The shortest wait of a watchdog: 20 s (soft lockup; RCU's is 21 s).
const WATCHDOG: Duration = Duration::from_secs(20);
/// A guest that was given less than a third of a watchdog's time was starved. One with four CPUs
/// on two of an idle host has half.
const ENOUGH: u32 = 3;

/// Counts a guest's time.
pub struct GuestTime {
    given: Given,
    began: Instant,
    /// The last reading.
    at: Instant,
    given_at: Duration,
    /// Given time without long pauses.
    counted: Duration,
    /// Readings of the [`PAST`], a second apart.
    readings: VecDeque<(Instant, Duration)>,
}

/// A point in a guest's life.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    wall: Instant,
    given: Duration,
}

/// The end of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Over {
    /// The guest had its time.
    Late,
    /// The host did not give the guest its time, and will not.
    Starved,
}

impl GuestTime {
    /// Starts the time of a guest that runs in this process and its children.
    pub fn of(process: u32) -> GuestTime {
        let now = Instant::now();
        GuestTime {
            given: Given::to(Pid::from_raw(process.cast_signed())),
            began: now,
            at: now,
            given_at: Duration::ZERO,
            counted: Duration::ZERO,
            readings: VecDeque::from([(now, Duration::ZERO)]),
        }
    }

    /// Reads the clock. Call it often while waiting.
    pub fn now(&mut self) -> Moment {
        const APART: Duration = Duration::from_secs(1);
        let (wall, given) = (Instant::now(), self.given.elapsed());
        self.counted += given.saturating_sub(self.given_at).min(LONGEST_STEP);
        (self.at, self.given_at) = (wall, given);
        if self.readings.back().is_none_or(|(last, _)| wall.duration_since(*last) >= APART) {
            self.readings.push_back((wall, given));
            while self.readings.get(1).is_some_and(|(at, _)| wall.duration_since(*at) >= PAST) {
                self.readings.pop_front();
            }
        }
        Moment { wall, given: self.counted }
    }

    /// The time for which the guest could have run and the host let it wait.
    pub fn starved(&self) -> Duration {
        self.at.duration_since(self.began).saturating_sub(self.given_at)
    }

    /// The time of the last minute in which the guest was starved worst, if that makes it doubtful
    /// what the kernel's watchdogs say: its length, and the part of it that was given.
    pub fn recent_starvation(&self) -> Option<(Duration, Duration)> {
        let now = (self.at, self.given_at);
        let spans = self.readings.iter().enumerate().map(|(first, &(began, given))| {
            let is_over = |&&(at, _): &&(Instant, Duration)| at.duration_since(began) >= WATCHDOG;
            let &(ended, given_then) =
                self.readings.iter().skip(first).find(is_over).unwrap_or(&now);
            (ended.duration_since(began), given_then.saturating_sub(given))
        });
        // Shorter ones end now, and their beginning is part of a whole one.
        let whole = self.at.duration_since(self.began).min(WATCHDOG);
        let starved = spans.filter(|&(wall, given)| wall >= whole && given * ENOUGH < wall);
        starved.min_by_key(|&(_, given)| given)
    }
}

impl Moment {
    /// Asks whether a wait since this moment is over `now`.
    pub fn over(self, now: Moment, limit: Duration) -> Option<Over> {
        if now.given.saturating_sub(self.given) >= limit {
            Some(Over::Late)
        } else if now.wall.duration_since(self.wall) >= limit * PATIENCE {
            Some(Over::Starved)
        } else {
            None
        }
    }

    /// How long a wait since this moment lasts `now`, for people.
    pub fn until(self, now: Moment) -> String {
        let wall = now.wall.duration_since(self.wall);
        let given = now.given.saturating_sub(self.given);
        let untold = if can_tell() { "" } else { " (this machine cannot tell if it was starved)" };
        match wall.as_secs().saturating_sub(given.as_secs()) {
            0..=1 => format!("{} s{untold}", wall.as_secs()),
            _ => format!("{} s, of which the host gave it {}", wall.as_secs(), given.as_secs()),
        }
    }
}

/// True if the kernel reports it because a time has passed on its clock, which a host can cause.
pub fn judges_time(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::Lockup | ErrorKind::RcuStall | ErrorKind::HungTask)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moment(start: Instant, wall: u64, given: u64) -> Moment {
        Moment { wall: start + Duration::from_secs(wall), given: Duration::from_secs(given) }
    }

    #[test]
    fn counts_given_time_and_ends_even_if_nothing_is_given() {
        let start = Instant::now();
        let limit = Duration::from_secs(30);
        for (wall, given, over) in [
            (29, 29, None),
            (30, 30, Some(Over::Late)),
            (400, 29, None),
            (400, 30, Some(Over::Late)),
            (480, 0, Some(Over::Starved)),
        ] {
            let now = moment(start, wall, given);
            assert_eq!(moment(start, 0, 0).over(now, limit), over, "{wall} {given}");
        }
    }

    #[test]
    fn doubts_a_watchdog_only_of_a_guest_that_was_starved() {
        let start = Instant::now();
        // A second of each wall second, then a part of each, in per cent.
        let time = |good: u64, bad: u64, percent: u64| {
            let at = |second: u64| {
                let given = second.min(good) * 1000 + second.saturating_sub(good) * percent * 10;
                (start + Duration::from_secs(second), Duration::from_millis(given))
            };
            let (wall, given_at) = at(good + bad);
            GuestTime {
                given: Given::to_us(),
                began: start,
                at: wall,
                given_at,
                counted: Duration::ZERO,
                readings: (0..=good + bad).map(at).collect(),
            }
        };
        let starved = |wall: u64, given_ms: u64| {
            Some((Duration::from_secs(wall), Duration::from_millis(given_ms)))
        };
        for (good, bad, percent, expected) in [
            (60, 0, 0, None),
            // Four CPUs on two.
            (0, 60, 50, None),
            (0, 60, 12, starved(20, 2400)),
            // For a while only.
            (40, 20, 10, starved(20, 2000)),
            (50, 10, 0, None),
            // A guest's first seconds.
            (0, 3, 10, starved(3, 300)),
            (3, 0, 0, None),
        ] {
            let found = time(good, bad, percent).recent_starvation();
            assert_eq!(found, expected, "{good} {bad} {percent}");
        }
        assert_eq!(time(0, 60, 10).starved(), Duration::from_secs(54));
    }
}
