// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs a program from the guest's root for the host. Sends its output by line, limits its time,
//! and kills its process group.

use crate::children::Children;
use crate::command;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, killpg};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use tramplab_protocol::message::{ExecEnd, ExecReply, ExecRequest, GuestError};

/// Bytes. Longer lines are sent in pieces.
const LINE: usize = 8 << 10;
const TICK: Duration = Duration::from_millis(20);
/// How long to wait for output after the program's end. The pipe holds its last words; a process it
/// left behind may keep the pipe open forever.
const LAST_WORDS: Duration = Duration::from_millis(500);

/// Runs a program. `say` sends a line to the host; its error ends the program.
pub fn run(
    request: &ExecRequest,
    say: &mut dyn FnMut(String) -> Result<(), GuestError>,
) -> Result<ExecReply, GuestError> {
    let failed = |what: &str, error: &dyn std::fmt::Display| {
        GuestError::Failed(format!("failed to {what}: {error}"))
    };
    let [program, arguments @ ..] = request.argv.as_slice() else {
        return Err(GuestError::Failed("the request names no program".to_owned()));
    };
    command::install()?;
    let (mut output, input) = io::pipe().map_err(|error| failed("make a pipe", &error))?;
    let second = input.try_clone().map_err(|error| failed("make a pipe", &error))?;
    let _children = Children::awaited();
    let mut command = Command::new(program);
    command
        .args(arguments)
        .env_clear()
        .envs(request.env.iter().map(|(name, value)| (name, value)))
        .current_dir(&request.cwd)
        .stdin(Stdio::null())
        .stdout(input)
        .stderr(second)
        .process_group(0);
    let every = every_cpu();
    // SAFETY: between fork and exec only sched_setaffinity is called, which is async-signal-safe.
    unsafe {
        command.pre_exec(move || {
            nix::sched::sched_setaffinity(Pid::from_raw(0), &every)?;
            Ok(())
        });
    }
    let child = command.spawn().map_err(|error| match error.kind() {
        io::ErrorKind::NotFound if Path::new(program).exists() => {
            failed(&format!("start {program}"), &"the guest has not the interpreter that it names")
        }
        _ => failed(&format!("start {program}"), &error),
    })?;
    // The command holds the pipe's other end, which only the program may hold.
    drop(command);
    let mut group = Group { leader: Pid::from_raw(child.id() as i32), ended: None };
    let mut lines = Lines { pending: Vec::new(), left: request.output_bytes, dropped: 0 };
    let deadline = Instant::now() + Duration::from_secs(u64::from(request.seconds));
    let mut buffer = vec![0; 64 << 10];
    let mut open = true;
    let mut last_words = None;
    let end = loop {
        if open {
            let mut ready = [PollFd::new(output.as_fd(), PollFlags::POLLIN)];
            let timeout = PollTimeout::try_from(TICK).expect("a short time");
            match poll(&mut ready, timeout) {
                Ok(0) | Err(Errno::EINTR) => {}
                Ok(_) => match output
                    .read(&mut buffer)
                    .map_err(|error| failed("read its output", &error))?
                {
                    0 => open = false,
                    length => lines.add(&buffer[..length], say)?,
                },
                Err(errno) => return Err(failed("wait for its output", &errno)),
            }
        } else {
            std::thread::sleep(TICK);
        }
        let now = Instant::now();
        if let Some(end) = group.ended().map_err(|errno| failed("wait for its end", &errno))? {
            let until = *last_words.get_or_insert(now + LAST_WORDS);
            if !open || now >= until {
                break end;
            }
        } else if now >= deadline {
            break ExecEnd::TimedOut;
        }
    };
    lines.end(say)?;
    Ok(ExecReply { end, dropped: lines.dropped })
}

/// The agent stays on the measuring CPU; its programs may use all.
fn every_cpu() -> nix::sched::CpuSet {
    let mut cpus = nix::sched::CpuSet::new();
    (0..nix::sched::CpuSet::count()).for_each(|cpu| cpus.set(cpu).expect("within the set"));
    cpus
}

/// A process group, killed as a whole when dropped.
struct Group {
    leader: Pid,
    ended: Option<ExecEnd>,
}

impl Group {
    fn ended(&mut self) -> nix::Result<Option<ExecEnd>> {
        if self.ended.is_none() {
            self.ended = match waitpid(self.leader, Some(WaitPidFlag::WNOHANG))? {
                WaitStatus::Exited(_, code) => Some(ExecEnd::Exited(code)),
                WaitStatus::Signaled(_, signal, _) => Some(ExecEnd::Signaled(signal as i32)),
                _ => None,
            };
        }
        Ok(self.ended)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // Kill after the leader's end too: it may have left processes in the background.
        let _ = killpg(self.leader, Signal::SIGKILL);
        // Orphans become children of the first process. Give them a moment to die, or the next
        // program would meet them.
        let end = Instant::now() + LAST_WORDS;
        let group = Pid::from_raw(-self.leader.as_raw());
        while waitpid(group, Some(WaitPidFlag::WNOHANG)).is_ok() && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Splits output into lines.
struct Lines {
    pending: Vec<u8>,
    /// Bytes that may still be sent.
    left: u64,
    dropped: u64,
}

impl Lines {
    fn add(
        &mut self,
        bytes: &[u8],
        say: &mut dyn FnMut(String) -> Result<(), GuestError>,
    ) -> Result<(), GuestError> {
        for piece in bytes.split_inclusive(|&byte| byte == b'\n') {
            for piece in piece.chunks(LINE) {
                self.pending.extend_from_slice(piece);
                if self.pending.ends_with(b"\n") || self.pending.len() >= LINE {
                    self.end(say)?;
                }
            }
        }
        Ok(())
    }

    /// Sends the pending line.
    fn end(
        &mut self,
        say: &mut dyn FnMut(String) -> Result<(), GuestError>,
    ) -> Result<(), GuestError> {
        let line = std::mem::take(&mut self.pending);
        let length = line.len() as u64;
        // Send whole lines only, as half a line could be misread. Later lines are dropped too.
        if self.dropped > 0 || length > self.left {
            self.dropped += length;
            return Ok(());
        }
        self.left -= length;
        if line.is_empty() { Ok(()) } else { say(String::from_utf8_lossy(&line).into_owned()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn through(pieces: &[&[u8]], output_bytes: u64) -> (Vec<String>, u64) {
        let mut lines = Lines { pending: Vec::new(), left: output_bytes, dropped: 0 };
        let mut said = Vec::new();
        let mut say = |line| {
            said.push(line);
            Ok(())
        };
        for piece in pieces {
            lines.add(piece, &mut say).unwrap();
        }
        lines.end(&mut say).unwrap();
        (said, lines.dropped)
    }

    #[test]
    fn sends_lines_and_cuts_a_flood_at_a_line() {
        let plus_minus = "hits 1 \u{b1} 2\nend".as_bytes();
        // Cut in the middle of a character.
        let (said, dropped) = through(&[&plus_minus[..8], &plus_minus[8..]], 100);
        assert_eq!((said, dropped), (vec!["hits 1 \u{b1} 2\n".to_owned(), "end".to_owned()], 0));
        let (said, dropped) = through(&[b"one\ntwo\n", b"three\n4\n"], 9);
        assert_eq!((said, dropped), (vec!["one\n".to_owned(), "two\n".to_owned()], 8));
        let long = vec![b'x'; 3 * LINE];
        let (said, _) = through(&[&long], u64::MAX);
        assert!(said.iter().all(|line| line.len() == LINE) && said.len() == 3);
    }
}
