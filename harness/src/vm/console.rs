// SPDX-License-Identifier: MIT OR Apache-2.0
//! The guest's serial console: always kept, always drained, and watched for the kernel's death.

use super::{Signal, death};
use std::{
    collections::VecDeque,
    fs,
    io::{self, BufRead, BufReader, PipeReader, Read, Write},
    sync::{Arc, Mutex, MutexGuard, mpsc::SyncSender},
    thread,
    time::Instant,
};

/// A guest that prints without end does not fill the disk; the tail is kept all the same.
const LOG_LIMIT: u64 = 16 << 20;
const LINE_LIMIT: u64 = 4096;
const TAIL: usize = 60;

pub struct Console(Arc<Mutex<Seen>>);

struct Seen {
    tail: VecDeque<String>,
    last_line: Instant,
}

impl Console {
    pub fn watch(from: PipeReader, log: fs::File, signals: SyncSender<Signal>) -> io::Result<Console> {
        let seen = Arc::new(Mutex::new(Seen { tail: VecDeque::new(), last_line: Instant::now() }));
        let console = Console(Arc::clone(&seen));
        thread::Builder::new().name("console".to_owned()).spawn(move || drain(from, log, &seen, &signals))?;
        Ok(console)
    }

    pub fn tail(&self) -> Vec<String> {
        lock(&self.0).tail.iter().cloned().collect()
    }

    pub fn last_line(&self) -> Instant {
        lock(&self.0).last_line
    }
}

fn lock(seen: &Mutex<Seen>) -> MutexGuard<'_, Seen> {
    seen.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Ends when QEMU's end of the console closes.
fn drain(from: PipeReader, mut log: fs::File, seen: &Mutex<Seen>, signals: &SyncSender<Signal>) {
    let mut input = BufReader::new(from);
    let mut written = 0;
    let mut dead = false;
    loop {
        let mut line = Vec::new();
        match input.by_ref().take(LINE_LIMIT).read_until(b'\n', &mut line) {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
        if written < LOG_LIMIT {
            written += line.len() as u64;
            // A full disk must not stop the guest; the tail still has what matters.
            let _ = log.write_all(&line);
        }
        let text = strip_ansi_escapes::strip_str(String::from_utf8_lossy(&line)).trim_end().to_owned();
        let death = death::detect(&text);
        {
            let mut seen = lock(seen);
            seen.last_line = Instant::now();
            if seen.tail.len() == TAIL {
                seen.tail.pop_front();
            }
            seen.tail.push_back(text);
        }
        if let (Some(death), false) = (death, dead) {
            dead = true;
            if signals.send(Signal::Death(death)).is_err() {
                return;
            }
        }
    }
}
