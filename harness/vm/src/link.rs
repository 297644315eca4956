// SPDX-License-Identifier: MIT OR Apache-2.0
//! The agent's link: frames out, a thread that reads frames in.

use super::Signal;
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

/// Frames that may wait to be looked at, heartbeats not counted; a guest that floods its host is held up, not stored.
/// Only answers are due, one at a time. One may be fifteen times as large in memory as on the link.
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
        thread::Builder::new().name("link".to_owned()).spawn(move || receive(input, &seen, &signals))?;
        Ok(Link { stream, last_frame })
    }

    /// A guest that reads nothing, or a byte now and then, holds up its host until the deadline at most.
    pub fn send(&mut self, request: &Request, deadline: Instant) -> Result<(), FrameError> {
        let frame = frame::encode(request)?;
        let mut rest = &frame[..];
        while !rest.is_empty() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(io::Error::from(io::ErrorKind::TimedOut).into());
            }
            self.stream.set_write_timeout(Some(left))?;
            match self.stream.write(rest) {
                Ok(written) => rest = &rest[written..],
                Err(e) if matches!(e.kind(), io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock) => {}
                Err(e) => return Err(e.into()),
            }
        }
        Ok(())
    }

    /// Begins to wait for a frame anew.
    pub fn heard(&self) {
        *self.last_frame.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    pub fn last_frame(&self) -> Instant {
        *self.last_frame.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// No name or word of a guest's gets further with an escape in it than here, whichever message it is in.
fn event(input: &mut impl Read) -> Result<Option<Event>, FrameError> {
    let Some(payload) = frame::payload(input)? else { return Ok(None) };
    Ok(Some(serde_json::from_slice(&text::json(&payload))?))
}

/// Ends when QEMU's end closes, at the first frame that is none, or when nobody listens.
fn receive(input: UnixStream, last_frame: &Mutex<Instant>, signals: &SyncSender<Signal>) {
    let mut input = BufReader::new(input);
    loop {
        let frame = event(&mut input);
        *last_frame.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
        let signal = match frame {
            // Not queued: a host that is busy between two requests must not hold up the guest.
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
