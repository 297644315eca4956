// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sends requests to a guest and waits for its answers.

use super::{
    Signal, TICK, Vm, VmError,
    brief::shown,
    time::{Moment, Over},
};
use std::{io, sync::mpsc::RecvTimeoutError, time::Duration};
use tramplab_model::run::ErrorKind;
use tramplab_protocol::{
    frame::FrameError,
    message::{Command, Event, ExecRequest, GuestError, Request, Response},
};

impl Vm {
    /// Sends a request and waits for its answer. The inner error is the agent's. After an outer
    /// error the guest is gone.
    pub fn request(
        &mut self,
        command: Command,
        within: Duration,
    ) -> Result<Result<Response, GuestError>, VmError> {
        self.request_with_output(command, within, None)
    }

    /// Runs a program in the guest. `said` gets its output line by line. Only `within` limits how
    /// much that is.
    pub fn exec(
        &mut self,
        program: ExecRequest,
        within: Duration,
        said: &mut dyn FnMut(&str),
    ) -> Result<Result<Response, GuestError>, VmError> {
        self.request_with_output(Command::Exec(program), within, Some(said))
    }

    fn request_with_output(
        &mut self,
        command: Command,
        within: Duration,
        mut said: Option<&mut dyn FnMut(&str)>,
    ) -> Result<Result<Response, GuestError>, VmError> {
        let id = self.next_id;
        self.next_id += 1;
        let began = self.time.now();
        let (time, silence) = (&mut self.time, within.min(self.silence));
        let mut over = None;
        let sent = self.link.send(&Request { id, command }, &mut || {
            over = began.over(time.now(), silence);
            over.is_some()
        });
        match sent {
            Ok(()) => {}
            Err(FrameError::Io(error)) if error.kind() == io::ErrorKind::TimedOut => {
                let kind = late(over.unwrap_or(Over::Late), ErrorKind::Silence);
                let waited = began.until(self.time.now());
                let message = format!("the guest took no request for {waited}");
                return Err(self.link_failed(kind, &message));
            }
            Err(error) => {
                let message = format!("failed to send a request: {error}");
                return Err(self.link_failed(ErrorKind::Protocol, &message));
            }
        }
        loop {
            match self.next_event(began, within, ErrorKind::Timeout, "the answer to a request")? {
                Event::Reply { id: answered, result } if answered == id => return Ok(result),
                Event::Output { id: of, text }
                    if of == id
                        && said.is_some()
                        && began.over(self.time.now(), within).is_none() =>
                {
                    said.as_mut().expect("asked before")(&text);
                }
                other => {
                    let message =
                        format!("expected the answer to request {id}, got {}", shown(&other));
                    return Err(self.dead(ErrorKind::Protocol, message));
                }
            }
        }
    }

    /// Waits for the next message that is not a heartbeat, which is due `within` of `began`. `what`
    /// names it in the error `missed`.
    pub(super) fn next_event(
        &mut self,
        began: Moment,
        within: Duration,
        missed: ErrorKind,
        what: &str,
    ) -> Result<Event, VmError> {
        loop {
            match self.signals.recv_timeout(TICK) {
                Ok(Signal::Event(event)) => return Ok(event),
                Ok(Signal::Death(death)) => return Err(self.died(death)),
                Ok(Signal::LinkBroken(error)) => {
                    let message = format!("the agent sent an invalid message: {error}");
                    return Err(self.link_failed(ErrorKind::Protocol, &message));
                }
                Ok(Signal::LinkEnded) => {
                    return Err(self.link_failed(ErrorKind::Protocol, "the agent's link ended"));
                }
                Err(RecvTimeoutError::Timeout) => {
                    if let Some(status) = self.process.exited() {
                        return Err(self.qemu_exited(&status));
                    }
                }
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(self.link_failed(ErrorKind::Protocol, "the guest's links ended"));
                }
            }
            let now = self.time.now();
            if let Some(over) = began.over(now, within) {
                let message = format!("{what} did not come within {}", began.until(now));
                return Err(self.dead(late(over, missed), message));
            }
            let heard = self.link.last_frame().max(self.console.last_line());
            if heard != self.heard.0 {
                self.heard = (heard, now);
            }
            let (_, since) = self.heard;
            if let Some(over) = since.over(now, self.silence) {
                let message =
                    format!("neither heartbeat nor console line for {}", since.until(now));
                return Err(self.dead(late(over, ErrorKind::Silence), message));
            }
        }
    }
}

/// The error of a wait that is over: `missed`, unless the host is the reason.
fn late(over: Over, missed: ErrorKind) -> ErrorKind {
    match over {
        Over::Late => missed,
        Over::Starved => ErrorKind::Starved,
    }
}
