// SPDX-License-Identifier: MIT OR Apache-2.0
//! The agent's link: sends frames, and reads frames in a thread.

use super::{Signal, TICK};
use std::{
    io::{self, BufReader, Read, Write},
    os::unix::net::UnixStream,
    sync::{Arc, Mutex, PoisonError, mpsc::SyncSender},
    thread,
    time::Instant,
};
use tramplab_model::text;
use tramplab_protocol::{
    frame::{self, FrameError},
    message::{Event, Request},
};

/// The number of unread frames, without heartbeats. A guest that sends more must wait: only one
/// answer is due at a time, and in memory it can be fifteen times as large as on the link.
pub const QUEUE: usize = 1;

pub struct Link {
    stream: UnixStream,
    last_frame: Arc<Mutex<Instant>>,
}

impl Link {
    pub fn open(stream: UnixStream, signals: SyncSender<Signal>) -> io::Result<Link> {
        let input = stream.try_clone()?;
        let last_frame = Arc::new(Mutex::new(Instant::now()));
        let seen = Arc::clone(&last_frame);
        thread::Builder::new()
            .name("link".to_owned())
            .spawn(move || receive(input, &seen, &signals))?;
        Ok(Link { stream, last_frame })
    }

    /// Sends a request. A guest that reads nothing, or slowly, delays the host at most until
    /// `is_late`.
    pub fn send(
        &mut self,
        request: &Request,
        is_late: &mut dyn FnMut() -> bool,
    ) -> Result<(), FrameError> {
        let frame = frame::encode(request)?;
        let mut rest = &frame[..];
        self.stream.set_write_timeout(Some(TICK))?;
        while !rest.is_empty() {
            if is_late() {
                return Err(io::Error::from(io::ErrorKind::TimedOut).into());
            }
            match self.stream.write(rest) {
                Ok(written) => rest = &rest[written..],
                Err(e)
                    if matches!(
                        e.kind(),
                        io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock
                    ) => {}
                Err(e) => return Err(e.into()),
            }
        }
        Ok(())
    }

    /// Restarts the measurement of silence.
    pub fn heard(&self) {
        *self.last_frame.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    pub fn last_frame(&self) -> Instant {
        *self.last_frame.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Reads a message. Removes escape sequences from all of the guest's strings.
fn event(input: &mut impl Read) -> Result<Option<Event>, FrameError> {
    let Some(payload) = frame::payload(input)? else { return Ok(None) };
    Ok(Some(serde_json::from_slice(&text::json(&payload))?))
}

/// Runs until QEMU closes its end, a frame is invalid, or the receiver is gone.
fn receive(input: UnixStream, last_frame: &Mutex<Instant>, signals: &SyncSender<Signal>) {
    let mut input = BufReader::new(input);
    loop {
        let frame = event(&mut input);
        *last_frame.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
        let signal = match frame {
            // Not queued: a host that is busy between two requests must not delay the guest.
            Ok(Some(Event::Heartbeat { .. })) => continue,
            Ok(Some(event)) => Signal::Event(event),
            Ok(None) => Signal::LinkEnded,
            Err(error) => Signal::LinkBroken(error),
        };
        let last = !matches!(signal, Signal::Event(_));
        if signals.send(signal).is_err() || last {
            return;
        }
    }
}
