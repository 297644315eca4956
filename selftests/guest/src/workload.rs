// SPDX-License-Identifier: MIT OR Apache-2.0
//! Work that passes through many kernel functions, to hit the one that the user names.
//!
//! A workload does the same each time and leaves nothing behind. The order matters: of two that hit
//! a function equally often, the first one is taken.

use crate::bpf;
use crate::command::Line;
use std::borrow::Cow;
use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, OwnedFd};
use tramplab_protocol::message::GuestError;

/// One system call, or a few that belong together.
#[derive(Debug)]
pub struct Workload {
    pub name: Cow<'static, str>,
    work: Work,
}

#[derive(Debug)]
enum Work {
    Calls(fn()),
    /// Runs a tracing program that is not attached: the kernel calls its test functions.
    TestRun(OwnedFd),
    /// Opens a file system of this name, without mounting it.
    OpenFs(CString),
    /// Runs the user's command.
    Command(Line),
}

impl Workload {
    /// All workloads. `runner` is a program for the kernel's test functions, if it has them.
    /// `module` has the function, unless the kernel image has it.
    pub fn all(runner: Option<OwnedFd>, module: Option<&str>) -> Vec<Workload> {
        let calls = CALLS
            .iter()
            .map(|&(name, calls)| Workload { name: name.into(), work: Work::Calls(calls) });
        let run =
            runner.map(|program| Workload { name: TEST_RUN.into(), work: Work::TestRun(program) });
        // The kernel would look for the module of a file system that it does not have.
        let name = module.filter(|module| is_file_system(module));
        let name = name.and_then(|module| CString::new(module).ok());
        let open = name.map(|name| Workload { name: OPEN_FS.into(), work: Work::OpenFs(name) });
        calls.chain(run).chain(open).collect()
    }

    /// The user's command.
    pub fn command(line: &str) -> Result<Workload, GuestError> {
        Ok(Workload { name: line.to_owned().into(), work: Work::Command(Line::new(line)?) })
    }

    pub fn is_command(&self) -> bool {
        matches!(self.work, Work::Command(_))
    }

    /// Runs it once. Errors of its system calls are part of it, a command must succeed.
    pub fn run(&self) -> Result<(), GuestError> {
        match &self.work {
            Work::Calls(calls) => {
                calls();
                Ok(())
            }
            Work::TestRun(program) => Ok(bpf::test_run(program.as_fd())?),
            Work::Command(line) => line.run(),
            Work::OpenFs(name) => {
                open_fs(name);
                Ok(())
            }
        }
    }
}

const TEST_RUN: &str = "bpf(2) BPF_PROG_TEST_RUN";
/// Modules of file systems are named after them.
const OPEN_FS: &str = "fsopen(2) of the module's file system";

/// From the smallest to the largest.
const CALLS: [(&str, fn()); 12] = [
    ("bpf(2)", failing_bpf),
    ("getppid(2)", getppid),
    ("sched_yield(2)", sched_yield),
    ("prctl(2)", rename),
    ("read of /dev/zero", read_zero),
    ("read of /proc/version", read_version),
    ("stat(2)", stat),
    ("pipe(2)", pipe),
    ("execve(2) of a missing file", exec_nothing),
    ("a Unix socket", unix_socket),
    ("a TCP socket", tcp_socket),
    ("nanosleep(2)", sleep),
];

/// A command that does not exist: it passes the checks of bpf(2) and fails.
fn failing_bpf() {
    // SAFETY: no memory is passed.
    unsafe { libc::syscall(libc::SYS_bpf, -1, 0, 0) };
}

fn getppid() {
    // SAFETY: takes nothing.
    unsafe { libc::syscall(libc::SYS_getppid) };
}

pub fn sched_yield() {
    let _ = nix::sched::sched_yield();
}

pub fn rename() {
    // SAFETY: the name outlives the call. It cannot fail: the pointer is good.
    unsafe { libc::prctl(libc::PR_SET_NAME, c"tramplab-agent".as_ptr()) };
}

fn read_zero() {
    read(c"/dev/zero");
}

fn read_version() {
    read(c"/proc/version");
}

fn read(path: &CStr) {
    let mut bytes = [0u8; 64];
    // SAFETY: path and buffer outlive the calls, and the length is the buffer's.
    unsafe {
        let file = libc::open(path.as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC);
        libc::read(file, bytes.as_mut_ptr().cast(), bytes.len());
        libc::close(file);
    }
}

fn stat() {
    // SAFETY: both outlive the call, and any bytes are a valid `stat`.
    unsafe {
        let mut stat: libc::stat = std::mem::zeroed();
        libc::stat(c"/proc/self".as_ptr(), &mut stat);
    }
}

fn pipe() {
    let mut ends = [-1; 2];
    let mut byte = 0u8;
    // SAFETY: the arrays outlive the calls. If there is no pipe, the other calls fail.
    unsafe {
        libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC | libc::O_NONBLOCK);
        libc::write(ends[1], (&raw const byte).cast(), 1);
        libc::read(ends[0], (&raw mut byte).cast(), 1);
        libc::close(ends[0]);
        libc::close(ends[1]);
    }
}

fn exec_nothing() {
    let arguments = [c"/none".as_ptr(), std::ptr::null()];
    // SAFETY: path and array outlive the call, which fails: the guest's root has no such file.
    unsafe { libc::execve(arguments[0], arguments.as_ptr(), arguments[1..].as_ptr()) };
}

fn unix_socket() {
    let mut ends = [-1; 2];
    let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    let mut byte = 0u8;
    // SAFETY: as in `pipe`.
    unsafe {
        libc::socketpair(libc::AF_UNIX, kind, 0, ends.as_mut_ptr());
        libc::send(ends[0], (&raw const byte).cast(), 1, libc::MSG_NOSIGNAL);
        libc::recv(ends[1], (&raw mut byte).cast(), 1, 0);
        libc::close(ends[0]);
        libc::close(ends[1]);
    }
}

/// Connects to nobody, and sends without a connection. Both fail at once.
fn tcp_socket() {
    let address = libc::sockaddr_in {
        sin_family: libc::AF_INET as libc::sa_family_t,
        sin_port: 9u16.to_be(),
        sin_addr: libc::in_addr { s_addr: u32::from_be_bytes([127, 0, 0, 1]).to_be() },
        sin_zero: [0; 8],
    };
    let length = size_of::<libc::sockaddr_in>() as libc::socklen_t;
    let mut byte = 0u8;
    let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: address and byte outlive the calls. If there is no socket, the other calls fail.
    unsafe {
        let socket = libc::socket(libc::AF_INET, kind, 0);
        libc::connect(socket, (&raw const address).cast(), length);
        libc::send(socket, (&raw const byte).cast(), 1, libc::MSG_NOSIGNAL);
        libc::recv(socket, (&raw mut byte).cast(), 1, 0);
        libc::close(socket);
    }
}

fn sleep() {
    let time = libc::timespec { tv_sec: 0, tv_nsec: 1 };
    // SAFETY: the time outlives the call.
    unsafe { libc::nanosleep(&time, std::ptr::null_mut()) };
}

/// Makes all the system calls of [`CALLS`], and nothing else.
pub fn call_all() {
    CALLS.iter().for_each(|(_, calls)| calls());
}

fn is_file_system(name: &str) -> bool {
    let all = std::fs::read_to_string("/proc/filesystems").unwrap_or_default();
    all.lines().any(|line| line.split_whitespace().next_back() == Some(name))
}

/// Opens a file system without mounting it. If the kernel has no such file system, it asks for a
/// module of that name.
pub fn open_fs(name: &CStr) {
    const FSOPEN_CLOEXEC: libc::c_uint = 1;
    // SAFETY: the name outlives the calls.
    unsafe {
        let context = libc::syscall(libc::SYS_fsopen, name.as_ptr(), FSOPEN_CLOEXEC);
        libc::close(context as i32);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A workload that leaks runs out of descriptors, and then hits other functions.
    #[test]
    fn workloads_leave_no_descriptor_behind() {
        let open = || std::fs::read_dir("/proc/self/fd").unwrap().count();
        let before = open();
        for workload in Workload::all(None, Some("ramfs")) {
            for _ in 0..200 {
                workload.run().unwrap();
            }
            assert!(open() <= before + 20, "{}", workload.name);
        }
    }
}
