// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs a program of the tree's own tests in a guest, and keeps what it prints.

use crate::guest::{Booted, Stop, unexpected};
use std::{
    fs::File,
    io::{self, Write},
    time::Duration,
};
use tramplab_kernel::compile::IN_GUEST;
use tramplab_model::run::ErrorKind;
use tramplab_protocol::{
    delivery::Filters,
    message::{ExecEnd, ExecRequest, Response},
};
use tramplab_vm::brief;

/// Added to the guest's own limit, on the host's clock: a guest under TCG lags behind.
const GRACE: Duration = Duration::from_secs(120);
/// Bytes to keep of a program's output.
const OUTPUT: u64 = 4 << 20;

pub fn failed(message: String) -> Stop {
    Stop::Error { kind: ErrorKind::Guest, message }
}

/// A program's output, and how it ended.
pub struct Said {
    pub output: String,
    end: ExecEnd,
    seconds: u32,
}

impl Said {
    /// Rejects exit codes and signals that are not a verdict.
    pub fn require_exit(&self, program: &str, is_fine: fn(i32) -> bool) -> Result<i32, Stop> {
        let tail: Vec<&str> = self.output.trim_end().lines().rev().take(3).collect();
        let last = match tail[..] {
            [] => "it printed nothing".to_owned(),
            _ => {
                let said = tail.into_iter().rev().collect::<Vec<_>>().join(" / ");
                format!("it last said `{}`", brief(said))
            }
        };
        match self.end {
            ExecEnd::Exited(code) if is_fine(code) => Ok(code),
            ExecEnd::Exited(code) => {
                Err(failed(format!("{program} ended with exit code {code}: {last}")))
            }
            ExecEnd::Signaled(signal) => {
                let name = nix::sys::signal::Signal::try_from(signal)
                    .map_or("signal", |signal| signal.as_str());
                Err(failed(format!("{program} was killed by {name} ({signal}): {last}")))
            }
            ExecEnd::TimedOut => Err(Stop::Error {
                kind: ErrorKind::Timeout,
                message: format!("{program} did not end within {} s: {last}", self.seconds),
            }),
        }
    }
}

/// Runs tests in their own folder, where they find their files.
fn cwd(program: &str) -> String {
    match program.rsplit_once('/') {
        Some((folder, _)) => format!("/{IN_GUEST}/{folder}"),
        None => format!("/{IN_GUEST}"),
    }
}

/// Runs a program for at most `seconds`.
pub fn run(
    booted: &mut Booted,
    program: &str,
    words: Vec<String>,
    deliver: Option<Filters>,
    seconds: u32,
) -> Result<Said, Stop> {
    let path = booted.folder.join("output.log");
    let harness =
        |error: io::Error| Stop::harness(format!("failed to write {}: {error}", path.display()));
    let mut log = File::create(&path).map_err(harness)?;
    let mut output = Output::default();
    let mut broken = None;
    let mut said = |text: &str| {
        if output.add(text)
            && let Err(error) = log.write_all(text.as_bytes())
        {
            broken.get_or_insert(error);
        }
    };
    let request = ExecRequest {
        argv: std::iter::once(format!("/{IN_GUEST}/{program}")).chain(words).collect(),
        env: [("PATH", "/usr/sbin:/usr/bin:/sbin:/bin"), ("HOME", "/root"), ("LC_ALL", "C")]
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .into(),
        cwd: cwd(program),
        seconds,
        output_bytes: OUTPUT,
        deliver,
    };
    let within = Duration::from_secs(u64::from(seconds)) + GRACE;
    let reply = match booted.vm.exec(request, within, &mut said)?? {
        Response::Exec(reply) => reply,
        other => return Err(unexpected(&other)),
    };
    if let Some(error) = broken {
        return Err(harness(error));
    }
    let Output { text: output, flooded } = output;
    if flooded || reply.dropped > 0 {
        let limit = OUTPUT >> 20;
        return Err(failed(format!(
            "{program} printed more than {limit} MiB: its result may be in the rest"
        )));
    }
    Ok(Said { output, end: reply.end, seconds })
}

/// The kept part of a program's output.
#[derive(Default)]
struct Output {
    text: String,
    flooded: bool,
}

impl Output {
    /// The guest limits its output in bytes, but may lie. Decoding turns each byte of invalid UTF-8
    /// into three.
    const LIMIT: usize = 3 * OUTPUT as usize;

    /// Returns true if the text was kept.
    fn add(&mut self, text: &str) -> bool {
        self.flooded |= self.text.len() + text.len() > Output::LIMIT;
        if !self.flooded {
            self.text.push_str(text);
        }
        !self.flooded
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The guest limits raw bytes; here none of them is valid UTF-8.
    #[test]
    fn allows_for_growth_of_invalid_utf8() {
        let mut output = Output::default();
        let line = String::from_utf8_lossy(&[0xff; 4096]).into_owned();
        for _ in 0..OUTPUT / 4096 {
            assert!(output.add(&line));
        }
        assert!(!output.add("x") && output.flooded && !output.text.ends_with('x'));
    }
}
