// SPDX-License-Identifier: MIT OR Apache-2.0
//! Faults drawn from a seed: which one, on what, and when.

use fastrand::Rng;
use nix::sys::signal::Signal::{self, SIGABRT, SIGHUP, SIGINT, SIGKILL, SIGSEGV, SIGSTOP, SIGTERM};
use serde::{Deserialize, Serialize};
use std::{iter, time::Duration};

/// A process of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    Harness,
    /// The process that runs a cell.
    Cell,
    Qemu,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wrong {
    Signal(Target, Signal),
    /// SIGSTOP, and SIGCONT so much later.
    Pause(Target, Duration),
    /// From now on, each file that the process writes is too large, as on a full disk.
    NoRoom(Target),
    /// A file of a stored snapshot.
    Snapshot(Damage),
    /// The newest trace of a plugin.
    Trace(Damage),
    /// The wall clock of all processes jumps by so many seconds.
    Clock(i64),
    /// The bytes between a cell and the agent of one guest.
    Wire(Tampering),
}

/// Damage to a file, at this thousandth of its length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Damage {
    FlipBit(u64),
    Cut(u64),
}

/// Damage to one byte on its way to a side.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tampering {
    pub to: Side,
    /// Bytes before it.
    pub at: u64,
    pub how: How,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Side {
    Agent,
    Cell,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum How {
    FlipBit,
    Drop,
    Repeat,
    /// It comes two seconds later.
    Delay,
    /// The stream ends before it.
    Close,
}

/// A fault and its moment, after the start of the command. At zero it comes before the start.
#[derive(Clone, Copy, Debug)]
pub struct Injection {
    pub after: Duration,
    pub wrong: Wrong,
}

/// Bytes that agents and cells send in a short test, roughly.
const TO_CELL: u64 = 6000;
const TO_AGENT: u64 = 600;
/// Milliseconds. Shorter than every deadline.
const LONGEST_PAUSE: u64 = 2000;
/// Seconds, up to a year.
const JUMPS: [i64; 4] = [2, 3600, 86_400, 31_536_000];
/// Faults of one command.
pub const MOST: usize = 8;

/// The faults of one command, which takes about `usual` without them, in their order.
pub fn draw(rng: &mut Rng, usual: Duration) -> Vec<Injection> {
    let count = rng.usize(1..=MOST);
    let mut drawn: Vec<Injection> =
        iter::repeat_with(|| injection(rng, usual)).take(count).collect();
    drawn.sort_by_key(|injection| injection.after);
    drawn
}

fn injection(rng: &mut Rng, usual: Duration) -> Injection {
    let wrong = wrong(rng);
    // Damage at rest, which the next command must find.
    let before = matches!(wrong, Wrong::Snapshot(_)) && rng.bool();
    let after = match before || matches!(wrong, Wrong::Wire(_)) {
        true => Duration::ZERO,
        false => Duration::from_millis(1).max(usual.mul_f64(rng.f64())),
    };
    Injection { after, wrong }
}

fn wrong(rng: &mut Rng) -> Wrong {
    let target = |rng: &mut Rng| {
        rng.choice([Target::Harness, Target::Cell, Target::Cell, Target::Qemu, Target::Qemu])
            .expect("not empty")
    };
    let damage = |rng: &mut Rng| match rng.bool() {
        true => Damage::FlipBit(rng.u64(..1000)),
        false => Damage::Cut(rng.u64(..1000)),
    };
    match rng.u32(..1000) {
        // A stopped QEMU costs half a minute of silence.
        0..4 => Wrong::Signal(Target::Qemu, SIGSTOP),
        4..350 => {
            let signals = [SIGKILL, SIGKILL, SIGTERM, SIGINT, SIGHUP, SIGSEGV, SIGABRT];
            Wrong::Signal(target(rng), rng.choice(signals).expect("not empty"))
        }
        350..400 => {
            let jump = rng.choice(JUMPS).expect("not empty");
            Wrong::Clock(if rng.bool() { jump } else { -jump })
        }
        400..600 => Wrong::Pause(target(rng), Duration::from_millis(rng.u64(10..LONGEST_PAUSE))),
        600..700 => Wrong::NoRoom(target(rng)),
        700..780 => Wrong::Snapshot(damage(rng)),
        780..880 => Wrong::Trace(damage(rng)),
        _ => {
            let (to, most) =
                rng.choice([(Side::Agent, TO_AGENT), (Side::Cell, TO_CELL)]).expect("not empty");
            let ways = [How::FlipBit, How::Drop, How::Repeat, How::Delay, How::Close];
            let how = rng.choice(ways).expect("not empty");
            Wrong::Wire(Tampering { to, at: rng.u64(..most), how })
        }
    }
}

/// The kinds of faults that are drawn.
pub const KINDS: [&str; 7] = ["signal", "pause", "no room", "snapshot", "trace", "clock", "wire"];

impl Injection {
    /// One of [`KINDS`].
    pub fn kind(&self) -> &'static str {
        match self.wrong {
            Wrong::Signal(..) => "signal",
            Wrong::Pause(..) => "pause",
            Wrong::NoRoom(_) => "no room",
            Wrong::Snapshot(_) => "snapshot",
            Wrong::Trace(_) => "trace",
            Wrong::Clock(_) => "clock",
            Wrong::Wire(_) => "wire",
        }
    }

    /// Returns true if everything must be measured as without the fault.
    pub fn is_harmless(&self) -> bool {
        match self.wrong {
            Wrong::Pause(..) | Wrong::Clock(_) => true,
            Wrong::Wire(Tampering { how, .. }) => how == How::Delay,
            // A guest may be reading it otherwise.
            Wrong::Snapshot(_) => self.after.is_zero(),
            Wrong::Signal(..) | Wrong::NoRoom(_) | Wrong::Trace(_) => false,
        }
    }

    /// Returns true if the harness may end by a signal.
    pub fn may_kill_harness(&self) -> bool {
        match self.wrong {
            Wrong::Signal(Target::Harness, signal) => {
                matches!(signal, SIGKILL | SIGSEGV | SIGABRT)
            }
            // SIGXFSZ.
            Wrong::NoRoom(target) => target == Target::Harness,
            _ => false,
        }
    }

    /// Returns true if the harness may refuse to begin.
    pub fn is_a_limit(&self) -> bool {
        matches!(self.wrong, Wrong::NoRoom(_))
    }

    /// Returns true if the harness may say that the user stopped it.
    pub fn may_interrupt(&self) -> bool {
        matches!(self.wrong, Wrong::Signal(Target::Harness, SIGINT | SIGTERM | SIGHUP))
    }
}
