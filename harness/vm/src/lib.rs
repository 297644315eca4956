// SPDX-License-Identifier: MIT OR Apache-2.0
//! One guest.
//!
//! [`Vm::start`] returns a guest whose agent has answered: it restores a snapshot of the guest's
//! kind, or boots the guest and keeps a snapshot for the next one. [`Vm::request`] has the agent
//! run one command at a time, while two threads watch the guest's console and link; a dying kernel,
//! a silence or a missed deadline kills QEMU and returns a [`VmError`], after which the guest is
//! gone. [`Vm::power_off`] shuts the guest down and reports a kernel that died while it answered;
//! dropping the [`Vm`] kills and reaps QEMU at any time.

pub mod accel;
mod backends;
pub mod branches;
mod brief;
mod console;
pub mod death;
mod end;
pub mod initramfs;
mod link;
mod process;
mod request;
pub mod shell;
mod spec;
mod start;
mod time;
pub mod yardstick;

pub use backends::{Feature, Features, Launcher, Root, WITH_HOST_FILES, cpu_model};
pub use brief::{brief, shown};
pub use death::Death;
pub use process::last_words;
pub use spec::{Snapshots, Spec};

use console::Console;
use link::Link;
use process::Process;
use serde::{Deserialize, Serialize};
use std::{
    io,
    sync::mpsc::Receiver,
    time::{Duration, Instant},
};
use time::{GuestTime, Moment};
use tramplab_model::run::ErrorKind;
use tramplab_protocol::{frame::FrameError, message::Event};

/// The longest waits for a guest, in time that the host gave it.
#[derive(Clone, Copy, Debug)]
pub struct Deadlines {
    /// From starting QEMU to the agent's first message.
    pub boot: Duration,
    /// Without a heartbeat and without a console line.
    pub silence: Duration,
}

impl Default for Deadlines {
    fn default() -> Deadlines {
        // Under TCG a guest boots in 5 s and sends two heartbeats a second. A loaded CI machine is
        // a few times slower.
        Deadlines { boot: Duration::from_secs(90), silence: Duration::from_secs(30) }
    }
}

/// The time that a dying kernel gets to print registers and the call trace.
const LAST_WORDS: Duration = Duration::from_millis(500);
/// How often a waiting host checks that QEMU lives.
const TICK: Duration = Duration::from_millis(100);

/// Why a guest has ended.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{kind}: {message}")]
pub struct VmError {
    pub kind: ErrorKind,
    pub message: String,
    pub console_tail: Vec<String>,
    /// The agent had spoken, on its link or on the console.
    pub booted: bool,
    /// The kernel reported its death, which the host may have caused.
    pub doubted: bool,
    /// The time for which the guest could have run and the host let it wait.
    pub starved: Duration,
}

impl VmError {
    /// The error of a guest that has said nothing.
    fn new(kind: ErrorKind, message: String) -> VmError {
        VmError {
            kind,
            message,
            console_tail: Vec::new(),
            booted: false,
            doubted: false,
            starved: Duration::ZERO,
        }
    }
}

fn failed(kind: ErrorKind, action: &str) -> impl FnOnce(io::Error) -> VmError + use<> {
    let action = action.to_owned();
    move |error| VmError::new(kind, format!("failed to {action}: {error}"))
}

fn harness(action: &str) -> impl FnOnce(io::Error) -> VmError + use<> {
    failed(ErrorKind::Harness, action)
}

/// A report of the threads that watch a guest.
enum Signal {
    Death(Death),
    Event(Event),
    LinkBroken(FrameError),
    LinkEnded,
}

/// The agent's first message.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Ready {
    pub release: String,
    pub uptime: Duration,
}

/// A running guest. Dropping it kills and reaps QEMU.
pub struct Vm {
    // Dropped first: QEMU's end closes its side of console and link, which ends their threads.
    process: Process,
    console: Console,
    link: Link,
    signals: Receiver<Signal>,
    time: GuestTime,
    /// When the guest was last heard: on the host's clock, and when that was noticed.
    heard: (Instant, Moment),
    silence: Duration,
    /// The guest's own clock stands still while the guest is starved.
    exact: bool,
    next_id: u64,
    boot_time: Duration,
    restored: bool,
    ready: Ready,
}

impl Vm {
    /// The clock source that the kernel last switched to, from its console.
    pub fn clock_source(&self) -> Option<String> {
        self.console.clock_source()
    }

    pub fn ready(&self) -> &Ready {
        &self.ready
    }

    /// From starting QEMU to the agent's first message.
    pub fn boot_time(&self) -> Duration {
        self.boot_time
    }

    /// The time for which the guest could have run and the host let it wait.
    pub fn starved(&self) -> Duration {
        self.time.starved()
    }

    /// Returns true for a guest that was restored from a snapshot.
    pub fn restored(&self) -> bool {
        self.restored
    }

    /// The console's last lines.
    pub fn console_tail(&self) -> Vec<String> {
        self.console.tail()
    }

    pub fn process_id(&self) -> u32 {
        self.process.id()
    }
}
