// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs a function on a stranger's data in a process of its own, which can compute but open
//! nothing. It may take too much memory or time there, recurse without end or abort.
//!
//! The process is a copy of this one, not a new program: so it works in every binary, and also
//! where bubblewrap does not. Other threads may hold locks at the time of the copy, which nobody
//! releases in it; the deadline ends a process that waits for one.

use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::{
        prctl,
        resource::{Resource, setrlimit},
        signal::{Signal, kill},
        wait::{WaitStatus, waitpid},
    },
    unistd::{ForkResult, Pid, fork},
};
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, TargetArch, apply_filter};
use serde::{Serialize, de::DeserializeOwned};
use std::{
    env, fs,
    io::{self, BufWriter, PipeReader, PipeWriter, Read, Write},
    os::fd::AsFd,
    panic::{AssertUnwindSafe, catch_unwind},
    thread,
    time::{Duration, Instant},
};

/// Parsers recurse.
const STACK: usize = 512 << 20;
/// Bytes of memory beside that of this process.
const MEMORY: u64 = 2 << 30;
/// Seconds of processor time. The options of 6.12 take 7 in an unoptimised build.
const PROCESSOR: u64 = 60;
/// For a busy machine.
const LIMIT: Duration = Duration::from_secs(10 * 60);
/// Bytes of an answer: a hundred thousand places with their source lines.
const ANSWER: usize = 64 << 20;

#[derive(Debug, thiserror::Error)]
pub enum IsolatedError {
    #[error("failed to start a process for it: {0}")]
    Start(#[from] io::Error),
    #[error(
        "its process, with {} GiB of memory and {PROCESSOR} s, ended without an answer{}",
        MEMORY >> 30,
        .by.map(|signal| format!(" ({signal})")).unwrap_or_default()
    )]
    Died { by: Option<Signal> },
    #[error("it took more than {} minutes", LIMIT.as_secs() / 60)]
    Deadline,
    #[error("its answer is longer than {} MiB", ANSWER >> 20)]
    TooLong,
}

/// Returns the result of `work`, which crosses as JSON.
pub fn run<T: Serialize + DeserializeOwned + Send>(
    work: impl FnOnce() -> T + Send,
) -> Result<T, IsolatedError> {
    let filter = filter().map_err(io::Error::other)?;
    thread::scope(|scope| {
        let copied = || copy(work, &filter);
        let thread = thread::Builder::new().stack_size(STACK).spawn_scoped(scope, copied)?;
        thread.join().expect("it does not panic")
    })
}

fn copy<T: Serialize + DeserializeOwned>(
    work: impl FnOnce() -> T,
    filter: &BpfProgram,
) -> Result<T, IsolatedError> {
    let (reader, writer) = io::pipe()?;
    // SAFETY: the copy has this thread alone. It allocates, for which libc prepares the copy, and
    // takes no lock of ours.
    match unsafe { fork() }.map_err(io::Error::from)? {
        ForkResult::Child => {
            let answered = confine(filter).and_then(|()| answer(work, writer));
            // SAFETY: ends the process without the exit handlers of the original.
            unsafe { libc::_exit(i32::from(answered.is_err())) }
        }
        ForkResult::Parent { child } => {
            drop(writer);
            let bytes = collect(reader).inspect_err(|_| {
                let _ = kill(child, Signal::SIGKILL);
            });
            let by = signal_of(child);
            serde_json::from_slice(&bytes?).map_err(|_| IsolatedError::Died { by })
        }
    }
}

/// In the copy: sets its limits. From here on it opens nothing.
fn confine(filter: &BpfProgram) -> io::Result<()> {
    // Not before the copy: other threads of the original map and free memory.
    let memory = own_memory()?.saturating_add(MEMORY);
    prctl::set_pdeathsig(Signal::SIGKILL)?;
    for (resource, most) in [
        (Resource::RLIMIT_AS, memory),
        (Resource::RLIMIT_CPU, PROCESSOR),
        (Resource::RLIMIT_CORE, 0),
    ] {
        setrlimit(resource, most, most)?;
    }
    for stream in 0..3 {
        // SAFETY: nobody here uses the standard streams. A parser's panic is no message of ours.
        unsafe { libc::close(stream) };
    }
    apply_filter(filter).map_err(io::Error::other)
}

/// In the copy: works, and writes the result.
fn answer<T: Serialize>(work: impl FnOnce() -> T, writer: PipeWriter) -> io::Result<()> {
    let result = catch_unwind(AssertUnwindSafe(work));
    let result = result.map_err(|_| io::Error::other("it panicked"))?;
    let mut writer = BufWriter::new(writer);
    serde_json::to_writer(&mut writer, &result)?;
    writer.flush()
}

fn collect(mut reader: PipeReader) -> Result<Vec<u8>, IsolatedError> {
    let end = Instant::now() + LIMIT;
    let (mut bytes, mut buffer) = (Vec::new(), [0; 64 << 10]);
    loop {
        let left = end.saturating_duration_since(Instant::now());
        let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
        match poll(&mut [PollFd::new(reader.as_fd(), PollFlags::POLLIN)], timeout) {
            Ok(0) => return Err(IsolatedError::Deadline),
            Err(Errno::EINTR) => continue,
            result => result.map_err(io::Error::from)?,
        };
        let length = reader.read(&mut buffer)?;
        if length == 0 {
            return Ok(bytes);
        }
        bytes.extend_from_slice(&buffer[..length]);
        if bytes.len() > ANSWER {
            return Err(IsolatedError::TooLong);
        }
    }
}

/// Waits for the copy. None if no signal killed it, or if somebody else waited for it.
fn signal_of(child: Pid) -> Option<Signal> {
    loop {
        match waitpid(child, None) {
            Err(Errno::EINTR) => {}
            Ok(WaitStatus::Signaled(_, signal, _)) => return Some(signal),
            _ => return None,
        }
    }
}

/// Bytes of this process's address space.
fn own_memory() -> io::Result<u64> {
    let text = fs::read_to_string("/proc/self/statm")?;
    let pages: Option<u64> = text.split_whitespace().next().and_then(|word| word.parse().ok());
    let page = nix::unistd::sysconf(nix::unistd::SysconfVar::PAGE_SIZE)?.unwrap_or(4096);
    let bytes = pages.map(|pages| pages.saturating_mul(page.unsigned_abs()));
    bytes.ok_or_else(|| io::Error::other("/proc/self/statm has no number"))
}

/// The system calls of a function that computes. Others fail.
fn filter() -> Result<BpfProgram, seccompiler::Error> {
    let allowed = [
        // Memory.
        libc::SYS_brk,
        libc::SYS_mmap,
        libc::SYS_mremap,
        libc::SYS_munmap,
        libc::SYS_mprotect,
        libc::SYS_madvise,
        libc::SYS_futex,
        libc::SYS_getrandom,
        libc::SYS_clock_gettime,
        // The answer.
        libc::SYS_write,
        libc::SYS_close,
        // The end, also by a stack that is full.
        libc::SYS_exit,
        libc::SYS_exit_group,
        libc::SYS_rt_sigaction,
        libc::SYS_rt_sigprocmask,
        libc::SYS_rt_sigreturn,
        libc::SYS_sigaltstack,
        libc::SYS_gettid,
        libc::SYS_getpid,
        libc::SYS_tgkill,
    ];
    let filter = SeccompFilter::new(
        allowed.iter().map(|&number| (number, Vec::new())).collect(),
        SeccompAction::Errno(libc::EPERM.unsigned_abs()),
        SeccompAction::Allow,
        TargetArch::try_from(env::consts::ARCH)?,
    )?;
    Ok(filter.try_into()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn returns_what_was_computed() {
        let words = ["a", "b"];
        assert_eq!(run(|| words.join(" ")).unwrap(), "a b");
    }

    #[test]
    fn opens_nothing() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let kinds = run(|| {
            let kind = |result: io::Result<()>| result.map_err(|error| error.raw_os_error());
            [
                kind(fs::read(file.path()).map(drop)),
                kind(fs::write(file.path(), "x")),
                kind(std::process::Command::new("true").status().map(drop)),
                kind(std::net::TcpListener::bind("127.0.0.1:0").map(drop)),
            ]
        });
        assert_eq!(kinds.unwrap(), [Err(Some(libc::EPERM)); 4]);
    }

    #[expect(unconditional_recursion, reason = "it is the attack")]
    fn endless(depth: u64) -> u64 {
        std::hint::black_box(endless(std::hint::black_box(depth + 1))) + 1
    }

    #[test]
    fn dies_of_its_limits_alone() {
        let endless = run(|| endless(0));
        assert!(matches!(endless, Err(IsolatedError::Died { by: Some(_) })), "{endless:?}");
        let large = run(|| vec![1_u8; (MEMORY + 1) as usize].len());
        assert!(matches!(large, Err(IsolatedError::Died { by: Some(_) })), "{large:?}");
        let panicking = run(|| -> u8 { panic!("some bug") });
        assert!(matches!(panicking, Err(IsolatedError::Died { by: None })), "{panicking:?}");
        let long = run(|| "x".repeat(ANSWER));
        assert!(matches!(long, Err(IsolatedError::TooLong)));
    }
}
