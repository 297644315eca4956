// SPDX-License-Identifier: MIT OR Apache-2.0
//! The agent's link: frames out, a thread that reads frames in.

use super::Signal;
use std::{
    io::{self, BufReader},
    os::unix::net::UnixStream,
    sync::mpsc::SyncSender,
    thread,
    time::Duration,
};
use tramplab_protocol::{
    frame::{self, FrameError},
    message::Request,
};

/// Frames that may wait to be looked at; a guest that floods its host is held up, not stored.
pub const QUEUE: usize = 64;
/// A guest that does not read must not hold up its host.
const SEND_LIMIT: Duration = Duration::from_secs(10);

pub struct Link(UnixStream);

impl Link {
    pub fn open(stream: UnixStream, signals: SyncSender<Signal>) -> io::Result<Link> {
        stream.set_write_timeout(Some(SEND_LIMIT))?;
        let input = stream.try_clone()?;
        thread::Builder::new().name("link".to_owned()).spawn(move || receive(input, &signals))?;
        Ok(Link(stream))
    }

    pub fn send(&mut self, request: &Request) -> Result<(), FrameError> {
        frame::write(&mut self.0, request)
    }
}

/// Ends when QEMU's end closes, at the first frame that is none, or when nobody listens.
fn receive(input: UnixStream, signals: &SyncSender<Signal>) {
    let mut input = BufReader::new(input);
    loop {
        let signal = match frame::read(&mut input) {
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
