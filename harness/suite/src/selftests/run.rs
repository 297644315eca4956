// SPDX-License-Identifier: MIT OR Apache-2.0
//! One guest of a cell that runs the tree's own `bench` or `test_progs`.

use super::{Ran, bench, ktap, test_progs};
use crate::{
    cell::{Stop, unexpected},
    plan::{BenchParameters, TestProgsParameters},
};
use std::{
    fs::File,
    io::{self, Write},
    path::Path,
    time::Duration,
};
use tramplab_kernel::compile::{IN_GUEST, PROGRAMS};
use tramplab_model::{
    run::{Bench, BenchBoot, ErrorKind, TreeTest},
    selftests::{End, Name, Program},
};
use tramplab_protocol::{
    delivery::Cpu,
    message::{ExecEnd, ExecRequest, Response},
    trace,
};
use tramplab_vm::{Vm, brief};

/// Seconds that bench runs before those that count.
const WARMUP: u32 = 1;
/// What bench takes beside its seconds: loading programs, and attaching them.
const SETUP: u32 = 120;
/// Beyond the guest's own limit, on the host's clock: a guest under TCG lags behind it.
const GRACE: Duration = Duration::from_secs(120);
/// All that is kept of what a program prints.
const OUTPUT: u64 = 4 << 20;

pub fn bench(
    vm: &mut Vm,
    benchmark: Name,
    parameters: &BenchParameters,
    folder: &Path,
) -> Result<Bench, Stop> {
    let &BenchParameters { seconds, producers, .. } = parameters;
    let mut words = vec!["-w".to_owned(), WARMUP.to_string(), "-d".to_owned(), seconds.to_string()];
    words.extend(["-p".to_owned(), producers.to_string(), benchmark.to_string()]);
    let said = run(vm, "bench", words, None, seconds + WARMUP + SETUP, folder)?;
    if bench::is_unknown(&said.output) {
        return Err(Stop::Skip(format!("this kernel's tree has no benchmark `{benchmark}`")));
    }
    said.require_exit("bench", |code| code == 0)?;
    let measured = bench::read(&said.output, WARMUP, seconds).map_err(|error| failed(error.to_string()))?;
    Ok(Bench { producers, boots: vec![BenchBoot { hits: measured.hits }] })
}

pub fn test_progs(
    vm: &mut Vm,
    test: Name,
    parameters: &TestProgsParameters,
    deliver: Option<Cpu>,
    folder: &Path,
) -> Result<TreeTest, Stop> {
    let TestProgsParameters { deny, seconds } = parameters;
    // `-a` takes a name as it is; `-t` would take all that contain it.
    let mut words = vec!["-a".to_owned(), test.to_string()];
    words.extend(deny.iter().flat_map(|pattern| ["-d".to_owned(), pattern.clone()]));
    let said = run(vm, "test_progs", words, deliver, *seconds, folder)?;
    if deliver.is_some() {
        // What the plugin kept of the whole run, which nobody reads: what counts is what it handed over. Where there is none, it stopped
        // looking before the test's end.
        std::fs::remove_file(trace::file_name(folder, 0)).map_err(|error| Stop::Error {
            kind: ErrorKind::Trace,
            message: format!("the plugin left no trace, so what it handed over may have holes: {error}"),
        })?;
    }
    // 0 and 1 are its verdicts; with all else it could not do its work.
    let code = said.require_exit("test_progs", |code| code == 0 || code == 1)?;
    let ran =
        test_progs::read(&said.output, test.as_str(), code).map_err(|error| failed(error.to_string()))?;
    if ran.end == End::Skip {
        return Err(Stop::Skip(format!("test_progs skips it{}", reason(&said.output))));
    }
    let Ran { end, subtests, left_out, failures } = ran;
    if end == End::Ok && subtests.is_empty() && !deny.is_empty() {
        return Err(Stop::Skip(format!("all its subtests are denied: {}", deny.join(", "))));
    }
    Ok(TreeTest { end, subtests, left_out, denied: deny.clone(), failures })
}

pub fn kselftest(vm: &mut Vm, program: Program, seconds: u32, folder: &Path) -> Result<TreeTest, Stop> {
    let path = format!("{PROGRAMS}/{program}");
    let said = run(vm, &path, Vec::new(), None, seconds, folder)?;
    let code = said.require_exit(program.as_str(), ktap::is_verdict)?;
    let Ran { end, subtests, left_out, failures } =
        ktap::read(&said.output, code).map_err(|error| failed(format!("{program}: {error}")))?;
    if end == End::Skip {
        let why = ktap::skipped(&said.output)
            .map_or_else(String::new, |why| format!(": {}", why.chars().take(200).collect::<String>()));
        return Err(Stop::Skip(format!("it skips itself{why}")));
    }
    Ok(TreeTest { end, subtests, left_out, denied: Vec::new(), failures })
}

/// The test's own word on why it skips, where it says one.
fn reason(output: &str) -> String {
    let line = output.lines().find(|line| line.contains(":SKIP:"));
    line.and_then(|line| line.split(":SKIP:").nth(1))
        .map_or_else(String::new, |why| format!(": {}", why.trim().chars().take(200).collect::<String>()))
}

fn failed(message: String) -> Stop {
    Stop::Error { kind: ErrorKind::Guest, message }
}

/// What a program said until its end.
struct Said {
    output: String,
    end: ExecEnd,
    seconds: u32,
}

impl Said {
    /// Ends that are none of a test's are no result.
    fn require_exit(&self, program: &str, is_fine: fn(i32) -> bool) -> Result<i32, Stop> {
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
            ExecEnd::Exited(code) => Err(failed(format!("{program} ended with exit code {code}: {last}"))),
            ExecEnd::Signaled(signal) => {
                let name =
                    nix::sys::signal::Signal::try_from(signal).map_or("signal", |signal| signal.as_str());
                Err(failed(format!("{program} was killed by {name} ({signal}): {last}")))
            }
            ExecEnd::TimedOut => Err(Stop::Error {
                kind: ErrorKind::Timeout,
                message: format!("{program} did not end within {} s: {last}", self.seconds),
            }),
        }
    }
}

/// Tests find their files beside themselves.
fn cwd(program: &str) -> String {
    match program.rsplit_once('/') {
        Some((folder, _)) => format!("/{IN_GUEST}/{folder}"),
        None => format!("/{IN_GUEST}"),
    }
}

fn run(
    vm: &mut Vm,
    program: &str,
    words: Vec<String>,
    deliver: Option<Cpu>,
    seconds: u32,
    folder: &Path,
) -> Result<Said, Stop> {
    let path = folder.join("output.log");
    let harness = |error: io::Error| Stop::harness(format!("failed to write {}: {error}", path.display()));
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
    let reply = match vm.exec(request, within, &mut said)?? {
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
            "{program} printed more than {limit} MiB, of which its result is no part"
        )));
    }
    Ok(Said { output, end: reply.end, seconds })
}

/// What a program prints, as far as it is kept.
#[derive(Default)]
struct Output {
    text: String,
    flooded: bool,
}

impl Output {
    /// The guest has its limit in bytes, and may lie. What is no UTF-8 has grown since: each byte to three.
    const LIMIT: usize = 3 * OUTPUT as usize;

    /// Whether it was kept.
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

    /// The guest's limit is of the program's own bytes, and these are no text.
    #[test]
    fn what_grew_on_the_way_is_no_flood() {
        let mut output = Output::default();
        let line = String::from_utf8_lossy(&[0xff; 4096]).into_owned();
        for _ in 0..OUTPUT / 4096 {
            assert!(output.add(&line));
        }
        assert!(!output.add("x") && output.flooded && !output.text.ends_with('x'));
    }
}
