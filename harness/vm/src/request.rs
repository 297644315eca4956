// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sends requests to a guest and waits for its answers.

use super::{Signal, TICK, Vm, VmError, brief::shown};
use std::{
    io,
    sync::mpsc::RecvTimeoutError,
    time::{Duration, Instant},
};
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
        let now = Instant::now();
        let deadline = now + within;
        match self.link.send(&Request { id, command }, now + within.min(self.silence)) {
            Ok(()) => {}
            Err(FrameError::Io(error)) if error.kind() == io::ErrorKind::TimedOut => {
                let waited = now.elapsed().as_secs();
                return Err(self.link_failed(
                    ErrorKind::Silence,
                    &format!("the guest took no request for {waited} s"),
                ));
            }
            Err(error) => {
                let message = format!("failed to send a request: {error}");
                return Err(self.link_failed(ErrorKind::Protocol, &message));
            }
        }
        loop {
            match self.next_event(deadline, ErrorKind::Timeout, "the answer to a request")? {
                Event::Reply { id: answered, result } if answered == id => return Ok(result),
                Event::Output { id: of, text }
                    if of == id && said.is_some() && Instant::now() < deadline =>
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

    /// Waits for the next message that is not a heartbeat. `what` names it in the error `late`.
    pub(super) fn next_event(
        &mut self,
        deadline: Instant,
        late: ErrorKind,
        what: &str,
    ) -> Result<Event, VmError> {
        let waiting_since = Instant::now();
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
                    if let Some(status) = self.qemu.exited() {
                        return Err(self.qemu_exited(&status));
                    }
                }
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(self.link_failed(ErrorKind::Protocol, "the guest's links ended"));
                }
            }
            let now = Instant::now();
            if now > deadline {
                let waited = waiting_since.elapsed().as_secs();
                return Err(self.dead(late, format!("{what} did not come within {waited} s")));
            }
            let quiet = now.duration_since(self.link.last_frame().max(self.console.last_line()));
            if quiet > self.silence {
                let message =
                    format!("neither heartbeat nor console line for {} s", quiet.as_secs());
                return Err(self.dead(ErrorKind::Silence, message));
            }
        }
    }
}
