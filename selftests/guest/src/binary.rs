// SPDX-License-Identifier: MIT OR Apache-2.0
//! The user-space binary that uprobes and USDT probes attach to.
//!
//! The agent writes it itself, so that neither a compiler nor the agent's own size changes what is
//! measured. To measure attaching, a process runs it and sleeps: each breakpoint is then written
//! into that process, and nothing hits one. To measure hits, the agent maps it and calls one of its
//! functions.

use crate::bpf;
use crate::role;
use crate::target::Target;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::waitpid;
use nix::unistd::Pid;
use std::ffi::{CStr, CString};
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::thread;
use std::time::Duration;
use tramplab_protocol::Mechanism;
use tramplab_protocol::binary::{Binary as UserBinary, Function};
use tramplab_protocol::mechanism::{Site, USER_FUNCTIONS, USER_SPACE};
use tramplab_protocol::message::{GuestError, Symbol};

/// The largest page. Segments begin at such an offset.
const PAGE: u64 = 1 << 16;
/// Bytes from function to function, as many as a function of a compiled program has.
const SPACING: u64 = 128;
/// The program's start and the functions that the agent calls; then those that attach tests choose
/// from.
const CALLED: u64 = 1 + USER_FUNCTIONS.len() as u64;
const CHOSEN: u64 = 1 << 14;
/// The offset of the code, of the USDT probe in a chosen function, and of the semaphores.
const TEXT: u64 = PAGE;
const PROBE: u64 = SPACING / 2;
const DATA: u64 = TEXT + ((CALLED + CHOSEN) * SPACING).next_multiple_of(PAGE);
/// Bytes of a semaphore, and of all.
const SEMAPHORE: u64 = 2;
const DATA_SIZE: u64 = ((CALLED + CHOSEN) * SEMAPHORE).next_multiple_of(PAGE);
/// The address of the file's first byte in the process.
const BASE: u64 = 0x40_0000;
/// The agent's own mappings of a file begin here, below all others: those of its image too, where
/// it is linked to a fixed address. A hit looks its mapping up in a tree of all of them, and the
/// way there depends on those before it, which are random.
const OWN: u64 = 0x10_0000;

/// How a function that the user names is hit.
pub const WORKLOAD: &str = "a call of it";

/// The bytes of instructions.
#[cfg(target_arch = "aarch64")]
macro_rules! words {
    ($($word:expr),* $(,)?) => {{
        const WORDS: &[[u8; 4]] = &[$(u32::to_le_bytes($word)),*];
        WORDS.as_flattened()
    }};
}

/// Waits for a signal forever.
#[cfg(target_arch = "x86_64")]
const START: &[u8] = &[
    0xb8, 34, 0, 0, 0, // mov $__NR_pause, %eax
    0x0f, 0x05, // syscall
    0xeb, 0xf7, // jmp back
];
#[cfg(target_arch = "aarch64")]
const START: &[u8] = words![
    0xd280_0000, // mov x0, #0
    0xd280_0001, // mov x1, #0
    0xd280_0002, // mov x2, #0
    0xd280_0003, // mov x3, #0
    0xd280_0004, // mov x4, #0
    0xd280_0928, // mov x8, #__NR_ppoll
    0xd400_0001, // svc #0
    0x17ff_fff9, // b back
];

/// A compiler's prologue and epilogue.
#[cfg(target_arch = "x86_64")]
const FRAME: &[u8] = &[
    0x55, // push %rbp
    0x48, 0x89, 0xe5, // mov %rsp, %rbp
    0x5d, // pop %rbp
    0xc3, // ret
];
#[cfg(target_arch = "aarch64")]
const FRAME: &[u8] = words![
    0xa9bf_7bfd, // stp x29, x30, [sp, #-16]!
    0x9100_03fd, // mov x29, sp
    0xa8c1_7bfd, // ldp x29, x30, [sp], #16
    0xd65f_03c0, // ret
];

#[cfg(target_arch = "x86_64")]
const NOP: &[u8] = &[0x90, 0xc3];
#[cfg(target_arch = "aarch64")]
const NOP: &[u8] = words![0xd503_201f, 0xd65f_03c0];

/// `nopl 0x0(%rax,%rax,1)` and `cs nopw 0x0(%rax,%rax,1)`. Recent kernels put a call in place of
/// one of them, not a breakpoint. arm64 has none.
#[cfg(target_arch = "x86_64")]
const LONG_NOPS: [Option<&[u8]>; 2] = [
    Some(&[0x0f, 0x1f, 0x44, 0, 0, 0xc3]),
    Some(&[0x66, 0x2e, 0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0, 0xc3]),
];
#[cfg(target_arch = "aarch64")]
const LONG_NOPS: [Option<&[u8]>; 2] = [None; 2];

/// `mov $1, %eax` or `mov w0, #1`, which no kernel emulates.
#[cfg(target_arch = "x86_64")]
const STEP: &[u8] = &[0xb8, 1, 0, 0, 0, 0xc3];
#[cfg(target_arch = "aarch64")]
const STEP: &[u8] = words![0x5280_0020, 0xd65f_03c0];

#[cfg(target_arch = "x86_64")]
const RET: &[u8] = &[0xc3];
#[cfg(target_arch = "aarch64")]
const RET: &[u8] = words![0xd65f_03c0];

/// In the order of [`USER_FUNCTIONS`].
const CODE: [Option<&[u8]>; USER_FUNCTIONS.len()] =
    [Some(FRAME), Some(NOP), LONG_NOPS[0], LONG_NOPS[1], Some(STEP), Some(RET)];

#[cfg(target_arch = "x86_64")]
const MACHINE: u16 = 62;
#[cfg(target_arch = "aarch64")]
const MACHINE: u16 = 183;

/// The file, which only this process holds.
#[derive(Debug)]
pub struct Binary {
    file: File,
    path: CString,
}

impl Binary {
    /// Writes the file at the first call.
    pub fn get() -> Result<&'static Binary, GuestError> {
        static BINARY: OnceLock<Binary> = OnceLock::new();
        if let Some(binary) = BINARY.get() {
            return Ok(binary);
        }
        let binary = Binary::write(&contents()).map_err(|error| {
            GuestError::failed(format!("failed to write the binary to probe: {error}"))
        })?;
        Ok(BINARY.get_or_init(|| binary))
    }

    /// Writes a file of the user's, and maps it into this process, which so gets the breakpoints.
    /// Both stay until the guest ends.
    pub fn of(user: &UserBinary) -> Result<&'static Binary, GuestError> {
        let UserBinary { name, machine, contents, .. } = user;
        if *machine != MACHINE {
            let named = |machine| match machine {
                62 => "x86_64".to_owned(),
                183 => "arm64".to_owned(),
                other => format!("the machine {other} (ELF's e_machine)"),
            };
            let (code, own) = (named(*machine), named(MACHINE));
            let reason = format!("{name} has code for {code}, the guest is {own}");
            return Err(GuestError::Unsupported(reason));
        }
        let binary = Binary::write(&contents.0).and_then(|binary| {
            let rights = libc::PROT_READ | libc::PROT_EXEC;
            map(&binary.file, None, 0, contents.0.len(), rights)?;
            Ok(Box::leak(Box::new(binary)))
        });
        let failed = |error| GuestError::failed(format!("failed to map {name}: {error}"));
        binary.map(|binary| &*binary).map_err(failed)
    }

    fn write(contents: &[u8]) -> io::Result<Binary> {
        let name = c"tramplab-binary";
        // A kernel before 6.3 rejects the flag; others print a line without it.
        let fd = [libc::MFD_CLOEXEC | libc::MFD_EXEC, libc::MFD_CLOEXEC]
            .into_iter()
            // SAFETY: the name outlives the call.
            .map(|flags| unsafe { libc::memfd_create(name.as_ptr(), flags) })
            .find(|&fd| fd >= 0)
            .ok_or_else(io::Error::last_os_error)?;
        // SAFETY: a fresh descriptor from the kernel, owned by nobody else.
        let mut file = unsafe { File::from_raw_fd(fd) };
        file.write_all(contents)?;
        Ok(Binary { file, path: bpf::c_string(&format!("/proc/self/fd/{fd}")) })
    }

    /// Its path in this process.
    pub fn path(&self) -> &CStr {
        &self.path
    }

    /// The functions, or the USDT probes in them, that attach tests choose from.
    pub fn functions(mechanism: Mechanism) -> Vec<Target> {
        let within = if mechanism.site() == Site::UserProbe { PROBE } else { 0 };
        let target = |number: u64| {
            let address = TEXT + (CALLED + number) * SPACING + within;
            Target { name: format!("function_{number:05}"), btf_id: 0, btf: 0, address }
        };
        (0..CHOSEN).map(target).collect()
    }

    /// The offset of the semaphore of the USDT probe at this offset. Each has one of its own.
    pub fn semaphore(site: u64) -> u64 {
        DATA + (site - TEXT) / SPACING * SEMAPHORE
    }

    /// Starts a process that runs the binary, and waits until it sleeps.
    pub fn run(&self) -> Result<Process, GuestError> {
        let failed = |error: io::Error| {
            GuestError::failed(format!("failed to run the binary to probe: {error}"))
        };
        let path = self.path.to_str().expect("it is ASCII");
        let null = || Stdio::null();
        let mut command = Command::new(path);
        command.stdin(null()).stdout(null()).stderr(null());
        if role::is_own_machine() {
            end_with_this_process(&mut command);
        }
        let child = command.spawn();
        let process = Process(Pid::from_raw(child.map_err(failed)?.id() as i32));
        while !process.sleeps().map_err(failed)? {
            thread::sleep(Duration::from_millis(1));
        }
        Ok(process)
    }

    /// Maps the functions that the agent calls, and their semaphores, for as long as it lives.
    fn map(&self) -> Result<u64, GuestError> {
        let map = |offset, protection| {
            map(&self.file, Some(OWN + offset), offset, PAGE as usize, protection).map_err(
                |error| GuestError::failed(format!("failed to map the binary to probe: {error}")),
            )
        };
        map(DATA, libc::PROT_READ | libc::PROT_WRITE)?;
        map(TEXT, libc::PROT_READ | libc::PROT_EXEC)
    }
}

/// Has the kernel kill the command's process when this one dies, however it dies.
fn end_with_this_process(command: &mut Command) {
    let parent = std::process::id();
    let arm = move || {
        // SAFETY: both calls are async-signal-safe and take no memory.
        let (armed, now) =
            unsafe { (libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL), libc::getppid()) };
        // It may have died before.
        match armed == 0 && now as u32 == parent {
            true => Ok(()),
            false => Err(io::Error::from_raw_os_error(libc::ESRCH)),
        }
    };
    // SAFETY: it allocates nothing between fork and exec.
    unsafe { command.pre_exec(arm) };
}

/// Maps a part of a file, privately, for as long as the process lives.
fn map(
    file: &File,
    at: Option<u64>,
    offset: u64,
    length: usize,
    protection: i32,
) -> io::Result<u64> {
    let fixed = if at.is_some() { libc::MAP_FIXED_NOREPLACE } else { 0 };
    let (flags, fd) = (libc::MAP_PRIVATE | fixed, file.as_raw_fd());
    let at = at.unwrap_or(0) as *mut libc::c_void;
    // SAFETY: a new mapping, which replaces none.
    match unsafe { libc::mmap(at, length, protection, flags, fd, offset as i64) } {
        libc::MAP_FAILED => Err(io::Error::last_os_error()),
        at => Ok(at as u64),
    }
}

/// The functions of a file of the user's.
pub fn functions_of(user: &UserBinary) -> Vec<Target> {
    let target = |function: &Function| {
        let name = format!("{}:{}", user.name, function.name);
        Target { name, btf_id: 0, btf: 0, address: function.offset }
    };
    user.functions.iter().map(target).collect()
}

/// A process that runs the binary. Dropping it ends it.
#[derive(Debug)]
pub struct Process(Pid);

impl Process {
    fn sleeps(&self) -> io::Result<bool> {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.0))?;
        let state = stat.rsplit_once(") ").map_or("", |(_, rest)| rest);
        if state.starts_with(['Z', 'X']) {
            return Err(io::Error::other("it ended at once"));
        }
        Ok(state.starts_with('S'))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = kill(self.0, Signal::SIGKILL);
        // An error says that the kernel has reaped it, as this process ignores the end of children.
        let _ = waitpid(self.0, None);
    }
}

/// A function that the agent can call.
#[derive(Clone, Copy, Debug)]
pub struct Callable {
    address: extern "C" fn(),
    /// True if the test names it.
    pub is_named: bool,
}

impl Callable {
    /// # Safety
    /// A mapping that lives as long as the process has a function of [`CODE`] at `address`. Each
    /// keeps to the calling convention and takes no arguments.
    unsafe fn at(address: u64, is_named: bool) -> Callable {
        // SAFETY: by the caller's promise.
        let address =
            unsafe { std::mem::transmute::<*const (), extern "C" fn()>(address as *const ()) };
        Callable { address, is_named }
    }

    pub fn call(self) {
        (self.address)();
    }
}

/// A function that the agent can call: mapped, as a target, and as a symbol.
pub fn callable(wanted: &str, is_named: bool) -> Result<(Callable, Target, Symbol), GuestError> {
    static MAPPED: OnceLock<Result<u64, GuestError>> = OnceLock::new();
    let position = USER_FUNCTIONS.iter().position(|known| *known == wanted).ok_or_else(|| {
        let known = USER_FUNCTIONS.join(", ");
        GuestError::Unsupported(format!("the agent has no function {wanted}; it has {known}"))
    })?;
    let length = CODE[position].map(<[u8]>::len).ok_or_else(|| {
        GuestError::Unsupported(format!("{wanted}: the architecture has no such instruction"))
    })?;
    let mapped = MAPPED.get_or_init(|| Binary::get().and_then(Binary::map)).clone()?;
    let within = (1 + position as u64) * SPACING;
    let target = Target { name: wanted.to_owned(), btf_id: 0, btf: 0, address: TEXT + within };
    let start = mapped + within;
    // SAFETY: the mapping has it.
    let call = unsafe { Callable::at(start, is_named) };
    let function = Symbol {
        name: wanted.to_owned(),
        module: Some(USER_SPACE.to_owned()),
        start,
        end: start + length as u64,
    };
    Ok((call, target, function))
}

/// An executable of two segments: code, and semaphores.
fn contents() -> Vec<u8> {
    const READ: u32 = 4;
    let mut file = vec![0; (DATA + DATA_SIZE) as usize];
    let mut header = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0".to_vec();
    for half in [2, MACHINE] {
        header.extend(half.to_le_bytes());
    }
    header.extend(1u32.to_le_bytes());
    // The start, the segments, no sections.
    for long in [BASE + TEXT, 64, 0] {
        header.extend(long.to_le_bytes());
    }
    header.extend(0u32.to_le_bytes());
    for half in [64u16, 56, 2, 0, 0, 0] {
        header.extend(half.to_le_bytes());
    }
    for (flags, offset, size) in [(READ | 1, TEXT, DATA - TEXT), (READ | 2, DATA, DATA_SIZE)] {
        for word in [1, flags] {
            header.extend(word.to_le_bytes());
        }
        for long in [offset, BASE + offset, BASE + offset, size, size, PAGE] {
            header.extend(long.to_le_bytes());
        }
    }
    file[..header.len()].copy_from_slice(&header);
    let mut put = |offset: u64, code: &[u8]| {
        file[offset as usize..offset as usize + code.len()].copy_from_slice(code);
    };
    put(TEXT, START);
    for (slot, code) in (1..).zip(CODE) {
        put(TEXT + slot * SPACING, code.unwrap_or(NOP));
    }
    for slot in CALLED..CALLED + CHOSEN {
        put(TEXT + slot * SPACING, FRAME);
        put(TEXT + slot * SPACING + PROBE, NOP);
    }
    file
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// The host's kernel loads and runs it.
    #[test]
    fn runs_and_sleeps_until_it_is_dropped() {
        let binary = Binary::write(&contents()).unwrap();
        let process = binary.run().unwrap();
        let maps = fs::read_to_string(format!("/proc/{}/maps", process.0)).unwrap();
        for (start, rights) in [(BASE + TEXT, "r-xp"), (BASE + DATA, "rw-p")] {
            let is_it =
                |line: &str| line.starts_with(&format!("{start:08x}-")) && line.contains(rights);
            assert!(maps.lines().any(is_it), "{rights} at {start:#x}: {maps}");
        }
        let pid = process.0;
        drop(process);
        assert!(kill(pid, None).is_err(), "it is gone");
    }

    #[test]
    fn functions_can_be_called() {
        let mapped = Binary::write(&contents()).unwrap().map().unwrap();
        for (slot, code) in (1..).zip(CODE) {
            if code.is_some() {
                // SAFETY: the mapping has it.
                unsafe { Callable::at(mapped + slot * SPACING, false) }.call();
            }
        }
    }

    /// A semaphore that two probes share would count for both.
    #[test]
    fn every_probe_has_a_place_and_a_semaphore_of_its_own() {
        let file = contents();
        let mut seen = BTreeSet::new();
        for (mechanism, code) in [(Mechanism::UprobeMulti, FRAME), (Mechanism::Usdt, NOP)] {
            let functions = Binary::functions(mechanism);
            assert_eq!(functions.len() as u64, CHOSEN);
            for target in &functions {
                assert!(file[target.address as usize..].starts_with(code), "{}", target.name);
                assert!(seen.insert(target.address), "{}", target.name);
            }
            let semaphores: BTreeSet<u64> =
                functions.iter().map(|target| Binary::semaphore(target.address)).collect();
            assert_eq!(semaphores.len() as u64, CHOSEN);
            let inside = DATA + CALLED * SEMAPHORE..=DATA + DATA_SIZE - SEMAPHORE;
            assert!(semaphores.iter().all(|offset| inside.contains(offset)));
        }
    }
}
