// SPDX-License-Identifier: MIT OR Apache-2.0
//! Work that passes through many kernel functions, to hit the one that the user names.
//!
//! A workload does the same each time and leaves nothing behind. The order matters: of two that hit
//! a function equally often, the first one is taken.

use crate::bpf;
use crate::changes;
use crate::children::Children;
use crate::command::Line;
use crate::role;
use nix::sys::memfd::{MFdFlags, memfd_create};
use std::borrow::Cow;
use std::ffi::{CStr, CString};
use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::process::{Command, Stdio};
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
    /// Runs a program that ends at once.
    Program(File),
    /// Runs the user's command.
    Command(Line),
}

impl Workload {
    /// All workloads. `runner` is a program for the kernel's test functions, if it has them.
    /// `module` has the function, unless the kernel image has it.
    pub fn all(runner: Option<OwnedFd>, module: Option<&str>) -> Vec<Workload> {
        // On the user's own machine the file may exist, and would replace this process.
        let is_safe = |name: &str| {
            name != MISSING || !role::is_own_machine() || !std::path::Path::new("/none").exists()
        };
        let calls = CALLS
            .iter()
            .filter(|(name, _)| is_safe(name))
            .map(|&(name, calls)| Workload { name: name.into(), work: Work::Calls(calls) });
        let run =
            runner.map(|program| Workload { name: TEST_RUN.into(), work: Work::TestRun(program) });
        // The kernel would look for the module of a file system that it does not have.
        let name = module.filter(|module| is_file_system(module));
        let name = name.and_then(|module| CString::new(module).ok());
        let open = name.map(|name| Workload { name: OPEN_FS.into(), work: Work::OpenFs(name) });
        calls.chain(run).chain(open).collect()
    }

    /// Larger work, for functions that nothing else hits. It needs the loopback device. On the
    /// user's own machine there are no files and no ports for it.
    pub fn larger() -> Vec<Workload> {
        raise_loopback();
        Workload::larger_on(role::is_own_machine())
    }

    fn larger_on(own_machine: bool) -> Vec<Workload> {
        let one = |larger: &Larger| Workload {
            name: larger.name.into(),
            work: Work::Calls(larger.calls),
        };
        let program = tiny_program().ok();
        let program =
            program.map(|file| Workload { name: PROGRAM.into(), work: Work::Program(file) });
        let fitting = LARGER.iter().filter(|larger| !own_machine || larger.stays_inside);
        fitting.map(one).chain(program).collect()
    }

    /// The user's command.
    pub fn command(line: &str) -> Result<Workload, GuestError> {
        Ok(Workload { name: line.to_owned().into(), work: Work::Command(Line::new(line)?) })
    }

    pub fn is_command(&self) -> bool {
        matches!(self.work, Work::Command(_))
    }

    /// True if each run takes milliseconds, in which the cost of a hit cannot be seen.
    pub fn starts_process(&self) -> bool {
        matches!(self.work, Work::Program(_) | Work::Command(_))
    }

    /// Runs it once. Errors of its system calls are part of it, a command must succeed.
    pub fn run(&self) -> Result<(), GuestError> {
        match &self.work {
            Work::Calls(calls) => {
                calls();
                Ok(())
            }
            Work::TestRun(program) => Ok(bpf::test_run(program.as_fd())?),
            Work::Program(file) => {
                start(file);
                Ok(())
            }
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

const MISSING: &str = "execve(2) of a missing file";

/// From the smallest to the largest.
const CALLS: [(&str, fn()); 14] = [
    ("getppid(2)", getppid),
    ("bpf(2)", failing_bpf),
    ("sched_yield(2)", sched_yield),
    ("prctl(2)", rename),
    ("read of /dev/zero", read_zero),
    ("read of /proc/version", read_version),
    ("read of /proc/cmdline", read_cmdline),
    ("stat(2)", stat),
    ("pipe(2)", pipe),
    (MISSING, exec_nothing),
    ("a Unix socket", unix_socket),
    ("a TCP socket", tcp_socket),
    ("nanosleep(2)", sleep),
    // Last: it is never chosen before another one that hits a function as often.
    ("getpgid(2)", getpgid),
];

/// Work that needs more than one system call.
struct Larger {
    name: &'static str,
    calls: fn(),
    /// True if nobody outside this process sees it: it needs no file and no port.
    stays_inside: bool,
}

const LARGER: [Larger; 4] = [
    Larger { name: "timerfd(2)", calls: timer, stays_inside: true },
    Larger {
        name: "a file that is made, written, read, renamed and removed",
        calls: file,
        stays_inside: false,
    },
    Larger {
        name: "a TCP connection over loopback",
        calls: || tcp_connection(false),
        stays_inside: false,
    },
    Larger {
        name: "a byte over a TCP connection",
        calls: || tcp_connection(true),
        stays_inside: false,
    },
];

const PROGRAM: &str = "a program that starts and ends";

/// A command that does not exist: it passes the checks of bpf(2) and fails. It is without
/// `BPF_COMMON_ATTRS`, for which 7.2 reads two more arguments.
fn failing_bpf() {
    const NO_COMMAND: libc::c_long = 0xffff;
    // SAFETY: no memory is passed.
    unsafe { libc::syscall(libc::SYS_bpf, NO_COMMAND, 0, 0) };
}

fn getppid() {
    // SAFETY: takes nothing.
    unsafe { libc::syscall(libc::SYS_getppid) };
}

pub fn getpgid() {
    // SAFETY: 0 is this process.
    unsafe { libc::syscall(libc::SYS_getpgid, 0) };
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

fn read_cmdline() {
    read(c"/proc/cmdline");
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
    // SAFETY: path and array outlive the call, which fails: the root has no such file.
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

fn on_loopback(port: u16) -> libc::sockaddr_in {
    libc::sockaddr_in {
        sin_family: libc::AF_INET as libc::sa_family_t,
        sin_port: port.to_be(),
        sin_addr: libc::in_addr { s_addr: u32::from_be_bytes([127, 0, 0, 1]).to_be() },
        sin_zero: [0; 8],
    }
}

/// Connects to nobody, and sends without a connection. Both fail at once.
fn tcp_socket() {
    let address = on_loopback(9);
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

fn timer() {
    let time = libc::timespec { tv_sec: 0, tv_nsec: 1 };
    let once =
        libc::itimerspec { it_interval: libc::timespec { tv_sec: 0, tv_nsec: 0 }, it_value: time };
    let mut count = 0u64;
    // SAFETY: both outlive the calls. Without a timer, the other calls fail.
    unsafe {
        let timer = libc::timerfd_create(libc::CLOCK_MONOTONIC, libc::TFD_CLOEXEC);
        if libc::timerfd_settime(timer, 0, &once, std::ptr::null_mut()) == 0 {
            libc::read(timer, (&raw mut count).cast(), size_of::<u64>());
        }
        libc::close(timer);
    }
}

fn file() {
    let [path, other] = [c"/tmp/tramplab-workload", c"/tmp/tramplab-workload-2"];
    let mut byte = 0u8;
    // SAFETY: paths and byte outlive the calls. Without a file, the other calls fail.
    unsafe {
        // Never a file that somebody else made.
        let flags = libc::O_RDWR | libc::O_CREAT | libc::O_EXCL | libc::O_CLOEXEC;
        let file = libc::open(path.as_ptr(), flags, 0o600);
        libc::write(file, (&raw const byte).cast(), 1);
        libc::pread(file, (&raw mut byte).cast(), 1, 0);
        libc::fsync(file);
        libc::ftruncate(file, 0);
        libc::close(file);
        libc::rename(path.as_ptr(), other.as_ptr());
        libc::unlink(other.as_ptr());
    }
}

/// The system call `exit(0)`.
#[cfg(target_arch = "x86_64")]
const EXIT: [u8; 12] = [0x31, 0xff, 0xb8, 60, 0, 0, 0, 0x0f, 0x05, 0x90, 0x90, 0x90];
#[cfg(target_arch = "aarch64")]
const EXIT: [u8; 12] = [0, 0, 0x80, 0xd2, 0xa8, 0x0b, 0x80, 0xd2, 1, 0, 0, 0xd4];

/// A static program of one system call: the agent's own start would fill the recorder's ring.
fn tiny_program() -> std::io::Result<File> {
    const BASE: u64 = 0x40_0000;
    const HEADERS: u64 = 64 + 56;
    let machine: u16 = if cfg!(target_arch = "x86_64") { 62 } else { 183 };
    let mut elf = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\x02\0".to_vec();
    elf.extend(machine.to_le_bytes());
    elf.extend(1u32.to_le_bytes());
    for word in [BASE + HEADERS, 64, 0] {
        elf.extend(word.to_le_bytes());
    }
    elf.extend(0u32.to_le_bytes());
    for half in [64u16, 56, 1, 0, 0, 0] {
        elf.extend(half.to_le_bytes());
    }
    // One segment, to be read and executed.
    elf.extend([1u32, 5].map(u32::to_le_bytes).concat());
    let size = HEADERS + EXIT.len() as u64;
    for word in [0, BASE, BASE, size, size, 0x1000] {
        elf.extend(word.to_le_bytes());
    }
    elf.extend(EXIT);
    let mut written = File::from(memfd_create(c"program", MFdFlags::MFD_CLOEXEC)?);
    written.write_all(&elf)?;
    // The kernel starts no file that somebody may write.
    File::open(format!("/proc/self/fd/{}", written.as_raw_fd()))
}

/// Runs a program on the same CPU.
fn start(program: &File) {
    let _children = Children::awaited();
    let mut command = Command::new(format!("/proc/self/fd/{}", program.as_raw_fd()));
    command.env_clear().stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let _ = command.status();
}

/// Connects and resets, from one port to one other: nothing stays, and each run does the same.
fn tcp_connection(sends: bool) {
    const PORTS: [u16; 2] = [9, 10];
    let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC;
    let length = size_of::<libc::sockaddr_in>() as libc::socklen_t;
    let set = |socket: i32, name: i32, value: &[i32]| {
        let length = size_of_val(value) as libc::socklen_t;
        // SAFETY: the value outlives the call, and the length is the value's.
        unsafe {
            libc::setsockopt(socket, libc::SOL_SOCKET, name, value.as_ptr().cast(), length);
        }
    };
    let mut byte = 0u8;
    // SAFETY: addresses and byte outlive the calls. Without a socket, the other calls fail; none
    // waits for longer than a second.
    unsafe {
        let ends =
            [kind | libc::SOCK_NONBLOCK, kind].map(|kind| libc::socket(libc::AF_INET, kind, 0));
        for (socket, port) in ends.into_iter().zip(PORTS) {
            set(socket, libc::SO_REUSEADDR, &[1]);
            // Closes with a reset.
            set(socket, libc::SO_LINGER, &[1, 0]);
            let own = on_loopback(port);
            libc::bind(socket, (&raw const own).cast(), length);
        }
        let [listener, client] = ends;
        let limit = libc::timeval { tv_sec: 1, tv_usec: 0 };
        let size = size_of::<libc::timeval>() as libc::socklen_t;
        libc::setsockopt(
            client,
            libc::SOL_SOCKET,
            libc::SO_SNDTIMEO,
            (&raw const limit).cast(),
            size,
        );
        libc::listen(listener, 1);
        let server = on_loopback(PORTS[0]);
        libc::connect(client, (&raw const server).cast(), length);
        let server = libc::accept4(
            listener,
            std::ptr::null_mut(),
            std::ptr::null_mut(),
            libc::SOCK_NONBLOCK,
        );
        if sends {
            libc::send(client, (&raw const byte).cast(), 1, libc::MSG_NOSIGNAL);
            libc::recv(server, (&raw mut byte).cast(), 1, 0);
        }
        for socket in [client, server, listener] {
            libc::close(socket);
        }
    }
}

/// The guest's loopback device is down. Without a device, work over it fails.
fn raise_loopback() {
    let _ = changes::raise_loopback();
}

/// Makes all the system calls of [`CALLS`], and nothing else.
pub fn call_all() {
    CALLS.iter().for_each(|(_, calls)| calls());
}

/// System calls that do not wait, with their number.
const FIXED: [(u32, fn()); 5] =
    [(1, getppid), (3, read_version), (1, stat), (5, pipe), (5, unix_socket)];

/// Makes the same system calls each time. Returns their number.
pub fn fixed() -> u32 {
    FIXED.iter().for_each(|(_, calls)| calls());
    FIXED.iter().map(|(number, _)| number).sum()
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

    #[test]
    fn makes_no_files_and_no_connections_on_the_users_own_machine() {
        let names = |own_machine| {
            let all = Workload::larger_on(own_machine).into_iter();
            all.map(|workload| workload.name.into_owned()).collect::<Vec<_>>()
        };
        assert_eq!(names(true), ["timerfd(2)", PROGRAM]);
        assert_eq!(names(false).len(), LARGER.len() + 1);
    }

    /// A workload that leaks runs out of descriptors, and then hits other functions.
    #[test]
    fn workloads_leave_no_descriptor_behind() {
        let open = || std::fs::read_dir("/proc/self/fd").unwrap().count();
        let before = open();
        let all = Workload::all(None, Some("ramfs"));
        let program = tiny_program().unwrap();
        assert!(
            Command::new(format!("/proc/self/fd/{}", program.as_raw_fd()))
                .status()
                .unwrap()
                .success()
        );
        for workload in all.into_iter().chain(Workload::larger()) {
            for _ in 0..200 {
                workload.run().unwrap();
            }
            assert!(open() <= before + 20, "{}", workload.name);
        }
    }
}
