// SPDX-License-Identifier: MIT OR Apache-2.0
//! Drains and logs the guest's serial console, and watches it for the kernel's death.

use super::{Death, Signal, death};
use std::{
    collections::VecDeque,
    fs,
    io::{self, BufRead, BufReader, PipeReader, Read, Write},
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, Ordering},
        mpsc::SyncSender,
    },
    thread,
    time::Instant,
};
use tramplab_model::{run::ErrorKind, text::plain};
use tramplab_protocol::message::UP;

/// Bytes of the log: a guest that prints without end must not fill the disk.
const LOG_LIMIT: u64 = 16 << 20;
/// Longer lines are split. In bytes.
const LINE_LIMIT: u64 = 4096;
/// Last lines that are kept in memory, also beyond the log's limit.
const TAIL: usize = 60;
/// Different allowed warnings that are told. A guest that lies could have any number.
const MOST_ALLOWED: usize = 16;

pub struct Console {
    seen: Arc<Mutex<Seen>>,
    minds_warnings: Arc<AtomicBool>,
}

struct Seen {
    tail: VecDeque<String>,
    last_line: Instant,
    flaw: Option<String>,
    clock_source: Option<String>,
    /// Warnings that are allowed, each once.
    allowed: Vec<String>,
}

impl Seen {
    fn new() -> Seen {
        Seen {
            tail: VecDeque::new(),
            last_line: Instant::now(),
            flaw: None,
            clock_source: None,
            allowed: Vec::new(),
        }
    }
}

impl Console {
    /// `allow` has words of warnings that are only told.
    pub fn watch(
        from: PipeReader,
        log: fs::File,
        signals: SyncSender<Signal>,
        allow: Vec<String>,
    ) -> io::Result<Console> {
        let seen = Arc::new(Mutex::new(Seen::new()));
        let minds_warnings = Arc::new(AtomicBool::new(false));
        let console =
            Console { seen: Arc::clone(&seen), minds_warnings: Arc::clone(&minds_warnings) };
        let work = move || drain(from, log, &seen, &minds_warnings, &signals, &allow);
        thread::Builder::new().name("console".to_owned()).spawn(work)?;
        Ok(console)
    }

    /// From now on a warning counts as a death. The agent's line on the console ([`UP`]) has the
    /// same effect. Warnings during the boot concern the machine and occur in every guest.
    pub fn mind_warnings(&self) {
        self.minds_warnings.store(true, Ordering::Relaxed);
    }

    /// Returns true once the agent runs.
    pub fn is_up(&self) -> bool {
        self.minds_warnings.load(Ordering::Relaxed)
    }

    pub fn tail(&self) -> Vec<String> {
        lock(&self.seen).tail.iter().cloned().collect()
    }

    pub fn last_line(&self) -> Instant {
        lock(&self.seen).last_line
    }

    /// The first line that [`death::flaw`] accepts.
    pub fn flaw(&self) -> Option<String> {
        lock(&self.seen).flaw.clone()
    }

    /// The allowed warnings so far, as the kernel words them.
    pub fn allowed(&self) -> Vec<String> {
        lock(&self.seen).allowed.clone()
    }

    /// The clock source that the kernel last switched to.
    pub fn clock_source(&self) -> Option<String> {
        lock(&self.seen).clock_source.clone()
    }
}

fn lock(seen: &Mutex<Seen>) -> MutexGuard<'_, Seen> {
    seen.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Ends when QEMU's end of the console closes.
fn drain(
    from: PipeReader,
    mut log: fs::File,
    seen: &Mutex<Seen>,
    minds_warnings: &AtomicBool,
    signals: &SyncSender<Signal>,
    allow: &[String],
) {
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
            // Ignore a full disk: it must not stop the guest, and the tail has the last lines.
            let _ = log.write_all(&line);
        }
        let text = plain(&String::from_utf8_lossy(&line)).trim_end().to_owned();
        if text == UP {
            minds_warnings.store(true, Ordering::Relaxed);
        }
        let warning =
            || minds_warnings.load(Ordering::Relaxed).then(|| death::warning(&text)).flatten();
        let is_allowed = |found: &Death| {
            found.kind == ErrorKind::Warning
                && allow.iter().any(|words| found.title.contains(words))
        };
        let found = death::detect(&text).or_else(warning);
        let (allowed, death) = match found {
            Some(found) if is_allowed(&found) => (Some(found.title), None),
            found => (None, found),
        };
        {
            let mut seen = lock(seen);
            let room = seen.allowed.len() < MOST_ALLOWED;
            if let Some(title) = allowed.filter(|title| room && !seen.allowed.contains(title)) {
                seen.allowed.push(title);
            }
            seen.last_line = Instant::now();
            if seen.flaw.is_none() {
                seen.flaw = death::flaw(&text).map(str::to_owned);
            }
            if let Some(name) = death::clock_source(&text) {
                seen.clock_source = Some(name.to_owned());
            }
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    const WARNING: &str =
        "[    1.0] WARNING: CPU: 0 PID: 1 at fs/open.c:1016 do_dentry_open+0x435/0x580";

    /// Returns the number of deaths, and the allowed warnings.
    fn drained(console: &str, allow: &[&str]) -> (usize, Vec<String>) {
        let (from, mut to) = io::pipe().unwrap();
        to.write_all(console.as_bytes()).unwrap();
        drop(to);
        let seen = Mutex::new(Seen::new());
        let (signals, told) = mpsc::sync_channel(4);
        let allow: Vec<String> = allow.iter().map(ToString::to_string).collect();
        let log = tempfile::tempfile().unwrap();
        drain(from, log, &seen, &AtomicBool::new(false), &signals, &allow);
        drop(signals);
        (told.into_iter().count(), seen.into_inner().unwrap().allowed)
    }

    #[test]
    fn counts_a_warning_only_after_the_agents_line() {
        let deaths = |console: &str| drained(console, &[]).0;
        assert_eq!(deaths(&format!("{WARNING}\n{UP}\nall is well\n")), 0);
        assert_eq!(deaths(&format!("{UP}\r\n{WARNING}\r\n{WARNING}\r\n")), 1);
    }

    #[test]
    fn tells_allowed_warnings_once_and_allows_nothing_else() {
        let title = WARNING.split_once("] ").unwrap().1;
        let twice = format!("{UP}\n{WARNING}\n{WARNING}\n");
        assert_eq!(drained(&twice, &["fs/open.c"]), (0, vec![title.to_owned()]));
        assert_eq!(drained(&twice, &["fs/exec.c"]), (1, vec![]));
        let panic = "[    2.0] Kernel panic - not syncing: fs/open.c";
        assert_eq!(drained(&format!("{twice}{panic}\n"), &["fs/open.c"]).0, 1);
        let many: String =
            (0..99).map(|pid| WARNING.replace("PID: 1", &format!("PID: {pid}")) + "\n").collect();
        assert_eq!(drained(&format!("{UP}\n{many}"), &["fs/open.c"]).1.len(), MOST_ALLOWED);
    }
}
