// SPDX-License-Identifier: MIT OR Apache-2.0
//! Ends guests, and finds out why they ended.

use super::{Death, LAST_WORDS, Signal, TICK, Vm, VmError, brief::brief, time::judges_time};
use std::{sync::mpsc::RecvTimeoutError, thread, time::Duration};
use tramplab_model::run::ErrorKind;
use tramplab_protocol::message::{Command, GAVE_UP};

impl Vm {
    /// Powers the guest off, and kills it at the deadline. Reads the console to its end: an error
    /// can concern an earlier answer, given by a kernel that was dying. Returns the allowed
    /// warnings.
    pub fn power_off(mut self, within: Duration) -> Result<Vec<String>, VmError> {
        let began = self.time.now();
        self.request(Command::PowerOff, within)?
            .map_err(|error| self.dead(ErrorKind::Guest, error.to_string()))?;
        while began.over(self.time.now(), within).is_none() {
            if let Some(status) = self.process.exited() {
                return match self.death_on_the_way() {
                    Some(death) => Err(self.died(death)),
                    None if self.process.is_good_end(&status) => Ok(self.console.allowed()),
                    None => Err(self.qemu_exited(&status)),
                };
            }
            thread::sleep(TICK / 50);
        }
        Err(self.dead(ErrorKind::Timeout, format!("the guest did not power off within {within:?}")))
    }

    /// The link failed. Reports the kernel's death or QEMU's end as the cause, else `kind` and
    /// `message`.
    pub(super) fn link_failed(&mut self, kind: ErrorKind, message: &str) -> VmError {
        // A program that started QEMU exits later than QEMU.
        let wait = if self.process.has_log() { LAST_WORDS } else { LAST_WORDS * 6 };
        let began = self.time.now();
        while began.over(self.time.now(), wait).is_none() {
            match self.signals.recv_timeout(TICK) {
                Ok(Signal::Death(death)) => return self.died(death),
                Ok(_) | Err(RecvTimeoutError::Timeout) => {}
                // QEMU closes its ends shortly before it exits.
                Err(RecvTimeoutError::Disconnected) => thread::sleep(TICK / 5),
            }
            if let Some(status) = self.process.exited() {
                return self.qemu_exited(&status);
            }
        }
        self.dead(kind, message.to_owned())
    }

    /// After QEMU's end, reads the rest of the console for a death. Both threads then end.
    pub(super) fn death_on_the_way(&mut self) -> Option<Death> {
        // The thread needs a CPU as well.
        while let Ok(signal) = self.signals.recv_timeout(LAST_WORDS * 6) {
            if let Signal::Death(death) = signal {
                return Some(death);
            }
        }
        None
    }

    pub(super) fn qemu_exited(&mut self, status: &std::process::ExitStatus) -> VmError {
        if let Some(death) = self.death_on_the_way() {
            return self.died(death);
        }
        let tail = self.console.tail();
        // An agent that gives up powers the machine off.
        let gave_up = || tail.iter().rev().find_map(|line| line.strip_prefix(GAVE_UP));
        if let Some(why) = self.process.is_good_end(status).then(gave_up).flatten() {
            return self.dead(ErrorKind::Guest, format!("the agent gave up: {why}"));
        }
        // Without a log, the programs that run the guest print on the console.
        let said = self.process.last_words().unwrap_or_else(|| {
            tail.iter().rev().find(|line| !line.trim().is_empty()).cloned().unwrap_or_default()
        });
        let kernel_ran = tail.iter().any(|line| self.process.has_log() || line.starts_with('['));
        let never_ran = self.boot_time.is_zero() && !kernel_ran && !status.success();
        let kind = if never_ran { ErrorKind::QemuStart } else { ErrorKind::QemuExit };
        let said = match &*said {
            // -no-reboot turns a reset into QEMU's end.
            "" if status.success() => "the guest reset or powered off without a word",
            "" => "it said nothing",
            said => said,
        };
        let message = format!("{} ended with {status}: {said}", self.process.name());
        self.dead(kind, message)
    }

    /// Waits for the kernel's last lines, then ends the guest.
    pub(super) fn died(&mut self, death: Death) -> VmError {
        let began = self.time.now();
        // The starvation before these words, not after them.
        let starvation = self.time.recent_starvation();
        while began.over(self.time.now(), LAST_WORDS).is_none() {
            if let Err(RecvTimeoutError::Disconnected) = self.signals.recv_timeout(TICK) {
                break;
            }
        }
        match starvation.filter(|_| judges_time(death.kind) && !self.exact) {
            None => self.dead(death.kind, death.title),
            // The kernel may be stuck or starved: its watchdog cannot tell.
            Some((wall, given)) => {
                let (wall, given) = (wall.as_secs(), given.as_secs());
                let title = death.title;
                let message = format!("the host gave the guest {given} of {wall} s: {title}");
                VmError { doubted: true, ..self.dead(ErrorKind::Starved, message) }
            }
        }
    }

    pub(super) fn dead(&mut self, kind: ErrorKind, message: String) -> VmError {
        self.process.kill();
        // An agent with orders speaks on the console long before it opens its link.
        let booted = !self.boot_time.is_zero() || self.console.is_up();
        let (console_tail, starved) = (self.console.tail(), self.time.starved());
        let message = brief(message);
        VmError { kind, message, console_tail, booted, doubted: false, starved }
    }
}
