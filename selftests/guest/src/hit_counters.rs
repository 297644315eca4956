// SPDX-License-Identifier: MIT OR Apache-2.0
//! Counts perf events of hits on the user's own machine. The hits are repeated for each event, so
//! that it needs two counters of the PMU, and shares none.

use crate::bpf;
use crate::link::Heartbeat;
use crate::role;
use crate::stat::{self, Count, Event, OF_PMU, Of, misses};
use std::fs::File;
use std::os::fd::AsFd;
use tramplab_protocol::message::{GuestError, HitCounter};

const MISSES: [Event; 3] = [
    misses("L1-dcache-load-misses", libbpf_sys::PERF_COUNT_HW_CACHE_L1D),
    misses("L1-icache-load-misses", libbpf_sys::PERF_COUNT_HW_CACHE_L1I),
    misses("LLC-load-misses", libbpf_sys::PERF_COUNT_HW_CACHE_LL),
];
const MODES: [(Of, &str); 2] = [(Of::User, "u"), (Of::Kernel, "k")];

/// The hits that are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum With {
    Program,
    Nothing,
}

/// The counters of each event: of user space, and of the kernel.
pub struct HitCounters(Vec<[One; MODES.len()]>);

struct One {
    event: Option<File>,
    counts: HitCounter,
}

impl One {
    fn open(event: &Event, (of, modifier): (Of, &str)) -> One {
        let (opened, refused) = match event.open(of) {
            Ok(opened) => (Some(opened), None),
            Err(error) => (None, Some(error.to_string())),
        };
        let event = format!("{}:{modifier}", event.name);
        let (attached, detached) = Default::default();
        One { event: opened, counts: HitCounter { event, attached, detached, refused } }
    }

    fn read(&self) -> Result<Option<Count>, GuestError> {
        self.event.as_ref().map(|event| stat::read(&self.counts.event, event)).transpose()
    }

    fn add(&mut self, with: With, before: Option<Count>) -> Result<(), GuestError> {
        let Some((before, now)) = before.zip(self.read()?) else { return Ok(()) };
        match between(before, now) {
            Ok(count) if with == With::Program => self.counts.attached.push(count),
            Ok(count) => self.counts.detached.push(count),
            Err(why) => {
                self.event = None;
                (self.counts.attached, self.counts.detached) = Default::default();
                self.counts.refused = Some(why);
            }
        }
        Ok(())
    }
}

/// An event that counted for a part of the time says nothing exact.
fn between(before: Count, now: Count) -> Result<u64, String> {
    let (enabled, running) = (now.enabled - before.enabled, now.running - before.running);
    match enabled == running {
        true => Ok(now.count - before.count),
        false => {
            Err(format!("it counted for {running} of {enabled} ns: another event has the PMU"))
        }
    }
}

impl HitCounters {
    /// None in guests, whose plugin counts.
    pub fn open() -> HitCounters {
        let all = |event: &Event| MODES.map(|mode| One::open(event, mode));
        HitCounters(match role::is_own_machine() {
            true => OF_PMU.iter().chain(&MISSES).map(all).collect(),
            false => Vec::new(),
        })
    }

    /// Repeats hits for each event.
    pub fn count(
        &mut self,
        with: With,
        heartbeat: Option<&Heartbeat>,
        hits: impl Fn() -> Result<(), GuestError>,
    ) -> Result<(), GuestError> {
        for modes in &mut self.0 {
            let _held = heartbeat.map(Heartbeat::hold);
            let before = [modes[0].read()?, modes[1].read()?];
            if before == [None; MODES.len()] {
                continue;
            }
            switch(modes, true)?;
            let done = hits();
            switch(modes, false)?;
            done?;
            for (mode, before) in modes.iter_mut().zip(before) {
                mode.add(with, before)?;
            }
        }
        Ok(())
    }

    pub fn finish(self) -> Vec<HitCounter> {
        self.0.into_iter().flatten().map(|one| one.counts).collect()
    }
}

fn switch(modes: &[One], on: bool) -> Result<(), GuestError> {
    let mut events = modes.iter().filter_map(|mode| mode.event.as_ref());
    Ok(events.try_for_each(|event| bpf::switch_event(event.as_fd(), on))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_no_count_of_a_part_of_the_time() {
        let at = |count, enabled, running| Count { count, enabled, running };
        for (before, now, expected) in [
            (at(0, 0, 0), at(70, 5, 5), Ok(70)),
            // It ran at all times since, if not before.
            (at(10, 9, 5), at(70, 19, 15), Ok(60)),
            (at(10, 9, 9), at(70, 19, 15), Err("it counted for 6 of 10 ns")),
            (at(0, 0, 0), at(0, 5, 0), Err("it counted for 0 of 5 ns")),
        ] {
            match (between(before, now), expected) {
                (Ok(count), Ok(expected)) => assert_eq!(count, expected),
                (Err(why), Err(expected)) => assert!(why.starts_with(expected), "{why}"),
                (other, _) => panic!("{before:?} {now:?}: {other:?}"),
            }
        }
    }

    #[test]
    fn guests_have_none() {
        assert_eq!(HitCounters::open().finish(), []);
    }
}
