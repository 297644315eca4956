// SPDX-License-Identifier: MIT OR Apache-2.0
//! One guest of a cell that runs the tree's own `bench` or `test_progs`.

use super::{
    cell::{Stop, unexpected},
    plan::{BenchParameters, TestProgsParameters},
};
use crate::{
    kernel::build::{IN_GUEST, PROGRAMS},
    run::{Bench, BenchBoot, ErrorKind, TreeTest},
    selftests::{End, Name, Program, Ran, bench, ktap, test_progs},
    vm::Vm,
};
use std::{
    fs::File,
    io::{self, Read, Seek, SeekFrom, Write},
    path::Path,
    time::Duration,
};
use tramplab_protocol::message::{ExecEnd, ExecRequest, Response};

/// Seconds that bench runs before those that count.
const WARMUP: u32 = 1;
/// What bench takes beside its seconds: loading programs, and attaching them.
const SETUP: u32 = 120;
/// Beyond the guest's own limit, on the host's clock: a guest under TCG lags behind it.
const GRACE: Duration = Duration::from_secs(120);
/// All that is kept of what a program prints.
const OUTPUT: u64 = 4 << 20;
const CONSOLE: u64 = 16 << 20;

pub(super) fn bench(
    vm: &mut Vm,
    benchmark: Name,
    parameters: &BenchParameters,
    folder: &Path,
) -> Result<Bench, Stop> {
    let &BenchParameters { seconds, producers, .. } = parameters;
    let mut words = vec!["-w".to_owned(), WARMUP.to_string(), "-d".to_owned(), seconds.to_string()];
    words.extend(["-p".to_owned(), producers.to_string(), benchmark.to_string()]);
    let said = run(vm, "bench", words, seconds + WARMUP + SETUP, folder)?;
    if bench::is_unknown(&said.output) {
        return Err(Stop::Skip(format!("this kernel's tree has no benchmark `{benchmark}`")));
    }
    said.require_exit("bench", |code| code == 0)?;
    let measured = bench::read(&said.output, WARMUP, seconds).map_err(|error| failed(error.to_string()))?;
    Ok(Bench { producers, boots: vec![BenchBoot { hits: measured.hits }] })
}

pub(super) fn test_progs(
    vm: &mut Vm,
    test: Name,
    parameters: &TestProgsParameters,
    folder: &Path,
) -> Result<TreeTest, Stop> {
    let TestProgsParameters { deny, seconds } = parameters;
    // `-a` takes a name as it is; `-t` would take all that contain it.
    let mut words = vec!["-a".to_owned(), test.to_string()];
    words.extend(deny.iter().flat_map(|pattern| ["-d".to_owned(), pattern.clone()]));
    let said = run(vm, "test_progs", words, *seconds, folder)?;
    // 0 and 1 are its verdicts; with all else it could not do its work.
    let code = said.require_exit("test_progs", |code| code == 0 || code == 1)?;
    let ran =
        test_progs::read(&said.output, test.as_str(), code).map_err(|error| failed(error.to_string()))?;
    if ran.end == End::Skip {
        return Err(Stop::Skip(format!("test_progs skips it{}", reason(&said.output))));
    }
    let Ran { end, subtests, failures } = ran;
    if end == End::Ok && subtests.is_empty() && !deny.is_empty() {
        return Err(Stop::Skip(format!("all its subtests are denied: {}", deny.join(", "))));
    }
    Ok(TreeTest { end, subtests, denied: deny.clone(), failures })
}

pub(super) fn kselftest(
    vm: &mut Vm,
    program: Program,
    seconds: u32,
    folder: &Path,
) -> Result<TreeTest, Stop> {
    let path = format!("{PROGRAMS}/{program}");
    let said = run(vm, &path, Vec::new(), seconds, folder)?;
    let code = said.require_exit(program.as_str(), ktap::is_verdict)?;
    let Ran { end, subtests, failures } =
        ktap::read(&said.output, code).map_err(|error| failed(format!("{program}: {error}")))?;
    if end == End::Skip {
        let why = ktap::skipped(&said.output)
            .map_or_else(String::new, |why| format!(": {}", why.chars().take(200).collect::<String>()));
        return Err(Stop::Skip(format!("it skips itself{why}")));
    }
    Ok(TreeTest { end, subtests, denied: Vec::new(), failures })
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
            _ => format!("it last said `{}`", tail.into_iter().rev().collect::<Vec<_>>().join(" / ")),
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

fn run(vm: &mut Vm, program: &str, words: Vec<String>, seconds: u32, folder: &Path) -> Result<Said, Stop> {
    let console = folder.join("console.log");
    let before = std::fs::metadata(&console).map_or(0, |meta| meta.len());
    let path = folder.join("output.log");
    let harness = |error: io::Error| Stop::harness(format!("failed to write {}: {error}", path.display()));
    let mut log = File::create(&path).map_err(harness)?;
    let mut output = String::new();
    let mut broken = None;
    // The guest has the same limit, and may lie.
    let mut flooded = false;
    let mut said = |text: &str| {
        flooded |= output.len() + text.len() > OUTPUT as usize;
        if !flooded {
            output.push_str(text);
            if let Err(error) = log.write_all(text.as_bytes()) {
                broken.get_or_insert(error);
            }
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
    };
    let within = Duration::from_secs(u64::from(seconds)) + GRACE;
    let reply = match vm.exec(request, within, &mut said)?? {
        Response::Exec(reply) => reply,
        other => return Err(unexpected(&other)),
    };
    if let Some(error) = broken {
        return Err(harness(error));
    }
    if flooded || reply.dropped > 0 {
        let limit = OUTPUT >> 20;
        return Err(failed(format!(
            "{program} printed more than {limit} MiB, of which its result is no part"
        )));
    }
    let warnings = warnings(&console, before)
        .map_err(|error| Stop::harness(format!("failed to read {}: {error}", console.display())))?;
    if let Some(warning) = warnings {
        return Err(failed(format!("the kernel complained while {program} ran: {warning}")));
    }
    Ok(Said { output, end: reply.end, seconds })
}

/// The first warning on the console since then: the kernel went on, but did what it says it should not.
fn warnings(console: &Path, since: u64) -> io::Result<Option<String>> {
    let mut file = File::open(console)?;
    file.seek(SeekFrom::Start(since))?;
    let mut bytes = Vec::new();
    file.take(CONSOLE).read_to_end(&mut bytes)?;
    Ok(first_warning(&String::from_utf8_lossy(&bytes)))
}

/// `WARNING: CPU: 0 PID: 1 at kernel/x.c:1 f+0x1/0x2`, since 6.18 `WARNING: kernel/x.c:1 at f+0x1/0x2, CPU#0: a/1`.
fn first_warning(console: &str) -> Option<String> {
    let line = console
        .lines()
        .find(|line| line.contains("WARNING: ") && line.contains("+0x") && line.contains("CPU"))?;
    let at = line.find("WARNING: ").expect("just found");
    Some(line[at..].chars().take(200).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_splat_is_found_and_a_remark_is_not() {
        let old = "[    9.1] ------------[ cut here ]------------\n\
                   [    9.1] WARNING: CPU: 0 PID: 91 at kernel/trace/ftrace.c:2100 ftrace_bug+0x1/0x2\n";
        let new =
            "[    9.1][  T91] WARNING: kernel/bpf/verifier.c:1 at do_check+0x10/0x20, CPU#0: test_progs/91\n";
        for (text, expected) in [
            (old, Some("WARNING: CPU: 0 PID: 91 at kernel/trace/ftrace.c:2100 ftrace_bug+0x1/0x2")),
            (new, Some("WARNING: kernel/bpf/verifier.c:1 at do_check+0x10/0x20, CPU#0: test_progs/91")),
            ("[    1.0] bpf_testmod: loading out-of-tree module taints kernel.\n", None),
            ("[    1.0] WARNING: The mand mount option has been deprecated\n", None),
            ("", None),
        ] {
            assert_eq!(first_warning(text).as_deref(), expected);
        }
    }
}
