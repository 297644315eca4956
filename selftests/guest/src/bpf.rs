// SPDX-License-Identifier: MIT OR Apache-2.0
//! Thin wrappers of bpf(2) and perf_event_open(2): one function makes one call.
//!
//! libbpf's attach functions also resolve names, probe features and parse BTF, whose cost must not
//! count for a mechanism in a timed round. Besides, libbpf 1.7 has no call for tracing multi.

use crate::lockdown::Lockdown;
use crate::measuring_cpu;
use std::borrow::Cow;
use std::ffi::{CStr, CString};
use std::fmt;
use std::fs;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use tramplab_protocol::message::{GuestError, LONGEST_LOG, Missing, Remark};

/// The kernel's internal "not supported", which has no name in user space.
const ENOTSUPP: i32 = 524;
const LOG_BYTES: usize = LONGEST_LOG;

/// Program and attach type, as the kernel's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kind {
    pub program: u32,
    pub attach: u32,
}

/// A call the kernel refused.
#[derive(Clone, Debug, thiserror::Error)]
#[error("failed to {action}: {reason}")]
pub struct BpfError {
    action: Cow<'static, str>,
    errno: i32,
    reason: Reason,
    /// The verifier's log; may be empty.
    log: String,
}

#[derive(Clone, Debug)]
struct Reason {
    errno: i32,
    /// The reason in the verifier's log; may be empty.
    verdict: String,
    lockdown: Option<Lockdown>,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(lockdown) = &self.lockdown {
            return write!(f, "{lockdown} (EPERM)");
        }
        if self.errno == ENOTSUPP {
            f.write_str("not supported (ENOTSUPP)")?;
        } else {
            write!(f, "{}", nix::errno::Errno::from_raw(self.errno))?;
        }
        if self.verdict.is_empty() { Ok(()) } else { write!(f, ": {}", self.verdict) }
    }
}

impl BpfError {
    pub fn new(action: &'static str, errno: i32, log: &str) -> BpfError {
        // The verifier tells its own reasons.
        let lockdown = if log.is_empty() { Lockdown::of(errno) } else { None };
        let reason = Reason { errno, verdict: verdict(log), lockdown };
        BpfError { action: action.into(), errno, reason, log: log.to_owned() }
    }

    /// Names the refused action more closely.
    pub fn during(self, action: String) -> BpfError {
        BpfError { action: action.into(), ..self }
    }

    fn last(action: &'static str) -> BpfError {
        BpfError::new(action, io::Error::last_os_error().raw_os_error().unwrap_or(0), "")
    }

    /// Adds the verifier's reason that another error has.
    pub fn because(mut self, other: Option<BpfError>) -> BpfError {
        if let Some(other) = other
            && self.reason.verdict.is_empty()
        {
            self.reason.verdict = other.reason.verdict;
        }
        self
    }

    /// The verifier's log. Empty if the verifier did not refuse.
    pub fn log(&self) -> &str {
        &self.log
    }

    /// Returns true if the machine ran out of memory or descriptors.
    pub fn is_out_of_resources(&self) -> bool {
        matches!(self.errno, libc::ENOMEM | libc::EMFILE | libc::ENFILE)
    }

    /// Returns true if there is no such CPU: it is offline, or its number is too large. The other
    /// arguments must be right.
    pub fn is_no_cpu(&self) -> bool {
        [libc::ENODEV, libc::EINVAL].contains(&self.errno)
    }

    /// Returns true if the kernel has no room for one more program on a function, or none beside
    /// those there.
    pub fn is_limit(&self) -> bool {
        matches!(self.errno, libc::E2BIG | libc::EEXIST | libc::EBUSY)
    }

    /// Returns true if the kernel lacks the feature, rather than that something is wrong.
    pub fn is_unsupported(&self) -> bool {
        matches!(self.errno, libc::EOPNOTSUPP | ENOTSUPP)
            || self.is_locked_down()
            || self.is_of_sleeping()
    }

    /// Returns true if the program may sleep and the function, or programs of its type, may not (K
    /// `check_attach_btf_id` in `kernel/bpf/verifier.c`).
    pub fn is_of_sleeping(&self) -> bool {
        let verdict = &self.reason.verdict;
        let is_of_type = verdict.starts_with("Only ") && verdict.ends_with("can be sleepable")
            || verdict.starts_with("Program of this type cannot be sleepable");
        self.errno == libc::EINVAL && (is_of_type || verdict.ends_with("is not sleepable"))
    }

    /// Returns true if the kernel does not have the target.
    pub fn is_of_absence(&self) -> bool {
        self.errno == libc::ENOENT
    }

    /// Returns true if the kernel is locked down against it.
    pub fn is_locked_down(&self) -> bool {
        self.reason.lockdown.is_some()
    }
}

impl From<BpfError> for GuestError {
    fn from(error: BpfError) -> GuestError {
        if error.is_unsupported() {
            GuestError::Unsupported(error.to_string())
        } else {
            GuestError::failed(error)
        }
    }
}

/// Extracts the reason from the verifier's log: the last line that is neither an instruction, a
/// register state nor a count.
fn verdict(log: &str) -> String {
    let noise = |line: &str| {
        line.is_empty()
            || line.starts_with("processed ")
            || line.starts_with("verification time")
            || line.starts_with("stack depth")
            || line.starts_with("0: R1")
            // Both states of an endless loop.
            || line.starts_with("cur state: ")
            || line.starts_with("old state: ")
            || line
                .split_once(": (")
                .is_some_and(|(number, _)| number.bytes().all(|b| b.is_ascii_digit()))
    };
    log.lines()
        .rev()
        .map(|line| line.trim_end_matches(['\0', ' ']))
        .find(|line| !noise(line))
        .unwrap_or_default()
        .to_owned()
}

/// Takes a fresh descriptor, or the error of the call that should have made it.
pub fn owned(fd: i64, action: &'static str) -> Result<OwnedFd, BpfError> {
    match i32::try_from(fd) {
        // SAFETY: a fresh descriptor from the kernel, owned by nobody else.
        Ok(fd) if fd >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        _ => Err(BpfError::last(action)),
    }
}

/// The bytes of `struct bpf_insn`.
pub type Instruction = [u8; size_of::<libbpf_sys::bpf_insn>()];

/// A program as the kernel takes it.
#[derive(Clone, Copy)]
pub struct Program<'a> {
    pub name: &'a CStr,
    pub license: &'a CStr,
    /// `BPF_F_SLEEPABLE` or 0.
    pub flags: u32,
    pub instructions: &'a [Instruction],
    pub described: Option<Described<'a>>,
}

/// A program's functions and source lines, in BTF. Without it the kernel shows at most 15 bytes of
/// the name, and rejects callbacks and global functions.
#[derive(Clone, Copy)]
pub struct Described<'a> {
    pub btf: BorrowedFd<'a>,
    pub functions: &'a [libbpf_sys::bpf_func_info],
    /// Only the verifier's log has them.
    pub lines: &'a [libbpf_sys::bpf_line_info],
}

/// `r0 = 0; exit`: the program without a cost of its own.
pub const EMPTY: Program<'_> = Program {
    name: c"tramplab_empty",
    license: c"GPL",
    flags: 0,
    instructions: &[[0xb7, 0, 0, 0, 0, 0, 0, 0], [0x95, 0, 0, 0, 0, 0, 0, 0]],
    described: None,
};

/// A program that inet sockets of a cgroup run when they connect.
pub const CONNECT: Kind = Kind {
    program: libbpf_sys::BPF_PROG_TYPE_CGROUP_SOCK_ADDR,
    attach: libbpf_sys::BPF_CGROUP_INET4_CONNECT,
};

/// `r0 = 1; exit`: the program of a cgroup that permits everything.
pub const PERMIT: Program<'_> = Program {
    name: c"tramplab_permit",
    instructions: &[[0xb7, 0, 0, 0, 1, 0, 0, 0], [0x95, 0, 0, 0, 0, 0, 0, 0]],
    ..EMPTY
};

/// Loads a program. `btf_id` is its target in the kernel image, or 0 if the link names the target.
pub fn load(kind: Kind, btf_id: u32, program: Program<'_>) -> Result<OwnedFd, BpfError> {
    load_for(kind, 0, btf_id, program)
}

/// Loads a program for a target in the BTF with the descriptor `btf`; 0 is the kernel image's.
pub fn load_for(
    kind: Kind,
    btf: RawFd,
    btf_id: u32,
    program: Program<'_>,
) -> Result<OwnedFd, BpfError> {
    let action = "load a program";
    let load = |log: &mut [u8]| {
        let mut options = libbpf_sys::bpf_prog_load_opts {
            sz: size_of::<libbpf_sys::bpf_prog_load_opts>() as libbpf_sys::size_t,
            attempts: 1,
            expected_attach_type: kind.attach,
            attach_btf_id: btf_id,
            attach_btf_obj_fd: btf as u32,
            prog_flags: program.flags,
            log_level: u32::from(!log.is_empty()),
            log_size: log.len() as u32,
            log_buf: if log.is_empty() { std::ptr::null_mut() } else { log.as_mut_ptr().cast() },
            ..Default::default()
        };
        if let Some(Described { btf, functions, lines }) = program.described {
            options.prog_btf_fd = btf.as_raw_fd() as u32;
            options.func_info = functions.as_ptr().cast();
            options.func_info_cnt = functions.len() as u32;
            options.func_info_rec_size = size_of::<libbpf_sys::bpf_func_info>() as u32;
            options.line_info = lines.as_ptr().cast();
            options.line_info_cnt = lines.len() as u32;
            options.line_info_rec_size = size_of::<libbpf_sys::bpf_line_info>() as u32;
        }
        // SAFETY: all pointers outlive the call, and the counts belong to them.
        unsafe {
            libbpf_sys::bpf_prog_load(
                kind.program,
                program.name.as_ptr(),
                program.license.as_ptr(),
                program.instructions.as_ptr().cast(),
                program.instructions.len() as libbpf_sys::size_t,
                &mut options,
            )
        }
    };
    let fd = load(&mut []);
    if fd >= 0 {
        return owned(fd.into(), action);
    }
    // The log costs time, so only a retry after a failure asks for it.
    let mut log = vec![0; LOG_BYTES];
    let again = load(&mut log);
    if again >= 0 {
        return owned(again.into(), action);
    }
    let length = log.iter().position(|b| *b == 0).unwrap_or(log.len());
    // The retry fails with ENOSPC if the log does not fit.
    Err(BpfError::new(action, -fd, &String::from_utf8_lossy(&log[..length])))
}

/// The BTF object of a module.
pub fn btf_object(module: &str) -> Result<OwnedFd, BpfError> {
    let action = "find its BTF object";
    let mut id = 0;
    loop {
        // SAFETY: the id outlives the call.
        let ended = unsafe { libbpf_sys::bpf_btf_get_next_id(id, &mut id) };
        if ended < 0 {
            return Err(BpfError::new(action, -ended, ""));
        }
        // SAFETY: takes no pointer.
        let fd = unsafe { libbpf_sys::bpf_btf_get_fd_by_id(id) };
        // Another one may be gone meanwhile.
        let Ok(object) = owned(fd.into(), action) else { continue };
        let mut name = [0u8; 64];
        let mut info = libbpf_sys::bpf_btf_info {
            name: name.as_mut_ptr() as u64,
            name_len: name.len() as u32,
            ..Default::default()
        };
        let mut length = size_of::<libbpf_sys::bpf_btf_info>() as u32;
        // SAFETY: all outlive the call, and the lengths are theirs.
        let result = unsafe { libbpf_sys::bpf_btf_get_info_by_fd(fd, &mut info, &mut length) };
        let named = CStr::from_bytes_until_nul(&name)
            .is_ok_and(|name| name.to_bytes() == module.as_bytes());
        if result == 0 && info.kernel_btf != 0 && named {
            return Ok(object);
        }
    }
}

/// The addresses of a program's code, without its other functions.
pub fn code(program: BorrowedFd<'_>) -> Result<Range<u64>, BpfError> {
    let (mut address, mut bytes) = (0u64, 0u32);
    let info = libbpf_sys::bpf_prog_info {
        nr_jited_ksyms: 1,
        jited_ksyms: (&raw mut address) as u64,
        nr_jited_func_lens: 1,
        jited_func_lens: (&raw mut bytes) as u64,
        ..Default::default()
    };
    program_info(program, info, "ask for a program's code")?;
    Ok(address..address + u64::from(bytes))
}

/// The kernel's facts about a program. `info` has pointers to the caller's buffers.
pub fn program_info(
    program: BorrowedFd<'_>,
    mut info: libbpf_sys::bpf_prog_info,
    action: &'static str,
) -> Result<libbpf_sys::bpf_prog_info, BpfError> {
    let mut length = size_of::<libbpf_sys::bpf_prog_info>() as u32;
    // SAFETY: all outlive the call, and the length is the structure's.
    let result =
        unsafe { libbpf_sys::bpf_prog_get_info_by_fd(program.as_raw_fd(), &mut info, &mut length) };
    if result < 0 { Err(BpfError::new(action, -result, "")) } else { Ok(info) }
}

/// The kernel's facts about a link.
pub fn link_info(
    link: BorrowedFd<'_>,
    action: &'static str,
) -> Result<libbpf_sys::bpf_link_info, BpfError> {
    let mut info = libbpf_sys::bpf_link_info::default();
    let mut length = size_of::<libbpf_sys::bpf_link_info>() as u32;
    // SAFETY: both outlive the call, and the length is the structure's.
    let result =
        unsafe { libbpf_sys::bpf_link_get_info_by_fd(link.as_raw_fd(), &mut info, &mut length) };
    if result < 0 { Err(BpfError::new(action, -result, "")) } else { Ok(info) }
}

/// Finds the id after another.
pub type NextId = unsafe extern "C" fn(u32, *mut u32) -> i32;

/// The ids of all objects of a kind, up to an error.
pub fn ids(next: NextId) -> impl Iterator<Item = io::Result<u32>> {
    let mut last = Some(0);
    std::iter::from_fn(move || {
        let mut id = last.take()?;
        // SAFETY: the id outlives the call.
        match unsafe { next(id, &mut id) } {
            0 => {
                last = Some(id);
                Some(Ok(id))
            }
            error if error == -libc::ENOENT => None,
            error => Some(Err(io::Error::from_raw_os_error(-error))),
        }
    })
}

/// Hits for which the kernel did not run a program, by its own counts. Older kernels count none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Misses {
    /// `recursion_misses` of all links of the program.
    pub program: u64,
    /// `nmissed` of one link's probes.
    pub probe: u64,
}

impl Misses {
    /// Reads the counts of a program and one of its links.
    pub fn read(program: BorrowedFd<'_>, link: &Link) -> Result<Misses, BpfError> {
        Ok(Misses { program: recursion_misses(program)?, probe: nmissed(link.as_fd())? })
    }

    /// Adds the counts of the program's next link, if this is of those before.
    pub fn and_of_next_link(self, next: Misses) -> Misses {
        Misses { program: next.program, probe: self.probe + next.probe }
    }

    /// Adds those of other programs and links.
    pub fn and(self, others: Misses) -> Misses {
        Misses { program: self.program + others.program, probe: self.probe + others.probe }
    }

    /// Reads the counts of these programs.
    pub fn of_programs<'a>(
        programs: impl Iterator<Item = BorrowedFd<'a>>,
    ) -> Result<Misses, BpfError> {
        let mut sum = Misses::default();
        for program in programs {
            sum.program += recursion_misses(program)?;
        }
        Ok(sum)
    }

    /// Reads the counts of these links' probes.
    pub fn of_links(links: &[Link]) -> Result<Misses, BpfError> {
        let mut sum = Misses::default();
        for link in links {
            sum.probe += nmissed(link.as_fd())?;
        }
        Ok(sum)
    }

    pub fn remarks(self) -> Vec<Remark> {
        [(self.program, Missing::Program), (self.probe, Missing::Probe)]
            .into_iter()
            .filter(|&(hits, _)| hits > 0)
            .map(|(hits, by)| Remark::Missed { hits, by })
            .collect()
    }
}

fn recursion_misses(program: BorrowedFd<'_>) -> Result<u64, BpfError> {
    let info = program_info(program, Default::default(), "ask for a program's missed hits")?;
    Ok(info.recursion_misses)
}

fn nmissed(link: BorrowedFd<'_>) -> Result<u64, BpfError> {
    let info = link_info(link, "ask for a link's missed hits")?;
    // SAFETY: the type tells the member. The kernel has filled it, or left its zeros.
    Ok(unsafe {
        match info.type_ {
            libbpf_sys::BPF_LINK_TYPE_KPROBE_MULTI => info.__bindgen_anon_1.kprobe_multi.missed,
            libbpf_sys::BPF_LINK_TYPE_PERF_EVENT => {
                let event = info.__bindgen_anon_1.perf_event;
                match event.type_ {
                    libbpf_sys::BPF_PERF_EVENT_KPROBE | libbpf_sys::BPF_PERF_EVENT_KRETPROBE => {
                        event.__bindgen_anon_1.kprobe.missed
                    }
                    _ => 0,
                }
            }
            _ => 0,
        }
    })
}

/// A link. Dropping it detaches the program.
#[derive(Debug)]
pub struct Link {
    // Fields are dropped in this order: first the link frees the program, then the event removes
    // its probe.
    link: OwnedFd,
    _event: Option<OwnedFd>,
}

/// `bpf_attr.link_create`. libbpf's headers do not have tracing multi yet. `detail` is the union,
/// of little-endian words.
#[repr(C)]
struct LinkCreate {
    program: u32,
    target: u32,
    attach_type: u32,
    flags: u32,
    detail: [u64; 6],
}

const NONE: [u64; 6] = [0; 6];

/// Two `u32` of a structure.
fn pair(first: u32, second: u32) -> u64 {
    u64::from(second) << 32 | u64::from(first)
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.link.as_fd()
    }
}

fn link_create(
    program: BorrowedFd<'_>,
    target: u32,
    attach_type: u32,
    detail: [u64; 6],
) -> Result<Link, BpfError> {
    let attr =
        LinkCreate { program: program.as_raw_fd() as u32, target, attach_type, flags: 0, detail };
    // SAFETY: the attribute outlives the call; its pointers are borrowed by the callers.
    let fd = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            libbpf_sys::BPF_LINK_CREATE,
            &raw const attr,
            size_of::<LinkCreate>(),
        )
    };
    Ok(Link { link: owned(fd, "make a link")?, _event: None })
}

/// Attaches a program to the target it was loaded for (fentry and its kin, tp_btf).
pub fn link_tracing(program: BorrowedFd<'_>, attach_type: u32) -> Result<Link, BpfError> {
    link_create(program, 0, attach_type, NONE)
}

/// Attaches a program to a cgroup.
pub fn link_cgroup(
    program: BorrowedFd<'_>,
    cgroup: BorrowedFd<'_>,
    attach_type: u32,
) -> Result<Link, BpfError> {
    link_create(program, cgroup.as_raw_fd() as u32, attach_type, NONE)
}

/// Attaches an extension to a function of a program, by the function's id in the program's BTF.
pub fn link_extension(
    extension: BorrowedFd<'_>,
    program: BorrowedFd<'_>,
    id: u32,
) -> Result<Link, BpfError> {
    // `target_btf_id`.
    let detail = [id.into(), 0, 0, 0, 0, 0];
    link_create(extension, program.as_raw_fd() as u32, 0, detail)
}

/// Attaches a program to all functions with the given BTF ids.
pub fn link_tracing_multi(
    program: BorrowedFd<'_>,
    attach_type: u32,
    ids: &[u32],
) -> Result<Link, BpfError> {
    // `ids`, `cookies`, `cnt`.
    let detail = [ids.as_ptr() as u64, 0, ids.len() as u64, 0, 0, 0];
    link_create(program, 0, attach_type, detail)
}

/// Attaches a program to the functions at the given addresses; to their exits if `exit`.
pub fn link_kprobe_multi(
    program: BorrowedFd<'_>,
    attach_type: u32,
    addresses: &[u64],
    exit: bool,
) -> Result<Link, BpfError> {
    let flags = if exit { libbpf_sys::BPF_F_KPROBE_MULTI_RETURN } else { 0 };
    // `flags` and `cnt`, `syms`, `addrs`, `cookies`.
    let detail = [pair(flags, addresses.len() as u32), 0, addresses.as_ptr() as u64, 0, 0, 0];
    link_create(program, 0, attach_type, detail)
}

/// Attaches a program to the functions of these names; to their exits if `exit`.
pub fn link_kprobe_multi_names(
    program: BorrowedFd<'_>,
    attach_type: u32,
    names: &[CString],
    exit: bool,
) -> Result<Link, BpfError> {
    let names: Vec<*const libc::c_char> = names.iter().map(|name| name.as_ptr()).collect();
    let flags = if exit { libbpf_sys::BPF_F_KPROBE_MULTI_RETURN } else { 0 };
    // As above.
    let detail = [pair(flags, names.len() as u32), names.as_ptr() as u64, 0, 0, 0, 0];
    link_create(program, 0, attach_type, detail)
}

/// Attaches a program to the offsets of a file, for all processes; to the exits of the functions
/// there if `exit`. `semaphores` is empty, or has the offset of one for each.
pub fn link_uprobe_multi(
    program: BorrowedFd<'_>,
    attach_type: u32,
    path: &CStr,
    offsets: &[u64],
    semaphores: &[u64],
    exit: bool,
) -> Result<Link, BpfError> {
    let flags = if exit { libbpf_sys::BPF_F_UPROBE_MULTI_RETURN } else { 0 };
    let count = pair(offsets.len() as u32, flags);
    let semaphores = if semaphores.is_empty() { 0 } else { semaphores.as_ptr() as u64 };
    // `path`, `offsets`, `ref_ctr_offsets`, `cookies`, `cnt` and `flags`, `pid` (0: all processes).
    let detail = [path.as_ptr() as u64, offsets.as_ptr() as u64, semaphores, 0, count, 0];
    link_create(program, 0, attach_type, detail)
}

/// Attaches a program to a raw tracepoint.
pub fn link_raw_tracepoint(program: BorrowedFd<'_>, name: &str) -> Result<Link, BpfError> {
    let name = c_string(name);
    // SAFETY: the name outlives the call.
    let fd = unsafe { libbpf_sys::bpf_raw_tracepoint_open(name.as_ptr(), program.as_raw_fd()) };
    Ok(Link { link: owned(fd.into(), "open a raw tracepoint")?, _event: None })
}

/// The type and format of kprobes or uprobes in this kernel's perf.
#[derive(Clone, Copy, Debug)]
pub struct ProbePmu {
    kind: u32,
    return_bit: u32,
}

/// The place of one probe.
#[derive(Clone, Copy, Debug)]
pub struct ProbeAt<'a> {
    /// The function of a kprobe, the file of a uprobe.
    pub name: &'a CStr,
    pub offset: u64,
    /// The offset of a uprobe's semaphore; 0 for none.
    pub semaphore: u32,
    pub exit: bool,
}

impl ProbePmu {
    /// Finds `kprobe` or `uprobe`. Returns none if the kernel has no such PMU.
    pub fn find(pmu: &str) -> Option<ProbePmu> {
        let read = |name: &str| {
            fs::read_to_string(format!("/sys/bus/event_source/devices/{pmu}/{name}")).ok()
        };
        let kind = read("type")?.trim().parse().ok()?;
        let return_bit = read("format/retprobe")?.trim().strip_prefix("config:")?.parse().ok()?;
        Some(ProbePmu { kind, return_bit })
    }

    /// Attaches a program to one place.
    pub fn link(self, program: BorrowedFd<'_>, at: ProbeAt<'_>) -> Result<Link, BpfError> {
        let mut attr = libbpf_sys::perf_event_attr {
            type_: self.kind,
            size: size_of::<libbpf_sys::perf_event_attr>() as u32,
            config: u64::from(at.exit) << self.return_bit | u64::from(at.semaphore) << SEMAPHORE,
            ..Default::default()
        };
        attr.__bindgen_anon_3.kprobe_func = at.name.as_ptr() as u64;
        attr.__bindgen_anon_4.probe_offset = at.offset;
        let event = perf_event_open(&attr, -1, measuring_cpu::get() as i32)?;
        let link =
            link_create(program, event.as_raw_fd() as u32, libbpf_sys::BPF_PERF_EVENT, NONE)?;
        // Events of this PMU start enabled, so the link is live.
        Ok(Link { _event: Some(event), ..link })
    }
}

/// Attaches a program to a tracepoint, by the id that tracefs gives it.
pub fn link_tracepoint(program: BorrowedFd<'_>, id: u64) -> Result<Link, BpfError> {
    let attr = libbpf_sys::perf_event_attr {
        type_: libbpf_sys::PERF_TYPE_TRACEPOINT,
        size: size_of::<libbpf_sys::perf_event_attr>() as u32,
        config: id,
        ..Default::default()
    };
    let event = perf_event_open(&attr, -1, measuring_cpu::get() as i32)?;
    let link = link_create(program, event.as_raw_fd() as u32, libbpf_sys::BPF_PERF_EVENT, NONE)?;
    switch_event(event.as_fd(), true)?;
    Ok(Link { _event: Some(event), ..link })
}

/// The lowest bit of a uprobe's semaphore in `config` (`PERF_UPROBE_REF_CTR_OFFSET_SHIFT`).
const SEMAPHORE: u32 = 32;

/// Opens an event for a thread (-1: all) on a CPU (-1: all).
pub fn perf_event_open(
    attr: &libbpf_sys::perf_event_attr,
    pid: i32,
    cpu: i32,
) -> Result<OwnedFd, BpfError> {
    // SAFETY: the attribute and its pointers outlive the call.
    let fd = unsafe {
        libc::syscall(
            libc::SYS_perf_event_open,
            &raw const *attr,
            pid,
            cpu,
            -1,
            libbpf_sys::PERF_FLAG_FD_CLOEXEC,
        )
    };
    owned(fd, "open a perf event")
}

/// `PERF_EVENT_IOC_ENABLE` and `PERF_EVENT_IOC_DISABLE`: `_IO('$', 0)` and `_IO('$', 1)`.
const ENABLE: libc::c_ulong = 0x2400;
const DISABLE: libc::c_ulong = 0x2401;

/// Starts or stops a perf event.
pub fn switch_event(event: BorrowedFd<'_>, on: bool) -> Result<(), BpfError> {
    // SAFETY: these requests take no pointer.
    let result = unsafe { libc::ioctl(event.as_raw_fd(), if on { ENABLE } else { DISABLE }, 0) };
    if result < 0 { Err(BpfError::last("switch a perf event")) } else { Ok(()) }
}

/// Kernel branches of all kinds.
pub const ALL_BRANCHES: u64 =
    (libbpf_sys::PERF_SAMPLE_BRANCH_KERNEL | libbpf_sys::PERF_SAMPLE_BRANCH_ANY) as u64;

/// Turns on the branch records of a CPU while the event is open.
pub fn record_branches(cpu: i32, branch_sample_type: u64) -> Result<OwnedFd, BpfError> {
    let attr = libbpf_sys::perf_event_attr {
        type_: libbpf_sys::PERF_TYPE_HARDWARE,
        size: size_of::<libbpf_sys::perf_event_attr>() as u32,
        config: u64::from(libbpf_sys::PERF_COUNT_HW_CPU_CYCLES),
        sample_type: u64::from(libbpf_sys::PERF_SAMPLE_BRANCH_STACK),
        branch_sample_type,
        ..Default::default()
    };
    perf_event_open(&attr, -1, cpu)
}

/// Opens the event of a CPU to which programs write records. It wakes no reader before its buffer
/// is full: a hit must not cost an interrupt.
pub fn open_output(cpu: u32) -> Result<OwnedFd, BpfError> {
    let mut attr = libbpf_sys::perf_event_attr {
        type_: libbpf_sys::PERF_TYPE_SOFTWARE,
        size: size_of::<libbpf_sys::perf_event_attr>() as u32,
        config: u64::from(libbpf_sys::PERF_COUNT_SW_BPF_OUTPUT),
        sample_type: u64::from(libbpf_sys::PERF_SAMPLE_RAW),
        ..Default::default()
    };
    attr.__bindgen_anon_1.sample_period = 1;
    attr.set_watermark(1);
    attr.__bindgen_anon_2.wakeup_watermark = u32::MAX;
    perf_event_open(&attr, -1, cpu as i32)
}

/// Puts a descriptor into an array.
pub fn set_element(map: BorrowedFd<'_>, index: u32, fd: RawFd) -> Result<(), BpfError> {
    let (index, fd) = (&raw const index, &raw const fd);
    // SAFETY: both outlive the call. Keys and values of such an array have 4 bytes.
    let result =
        unsafe { libbpf_sys::bpf_map_update_elem(map.as_raw_fd(), index.cast(), fd.cast(), 0) };
    if result < 0 { Err(BpfError::new("fill a slot of an array", -result, "")) } else { Ok(()) }
}

/// Runs a program once (BPF_PROG_TEST_RUN).
pub fn test_run(program: BorrowedFd<'_>) -> Result<(), BpfError> {
    let mut options = libbpf_sys::bpf_test_run_opts {
        sz: size_of::<libbpf_sys::bpf_test_run_opts>() as libbpf_sys::size_t,
        ..Default::default()
    };
    // SAFETY: the options outlive the call and have no pointers.
    let result = unsafe { libbpf_sys::bpf_prog_test_run_opts(program.as_raw_fd(), &mut options) };
    if result < 0 { Err(BpfError::new("run a test program", -result, "")) } else { Ok(()) }
}

pub fn c_string(name: &str) -> CString {
    CString::new(name).expect("kernel symbols hold no NUL")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extracts_the_verifiers_reason() {
        for (log, expected) in [
            ("", ""),
            (
                "JIT does not support fsession\nprocessed 0 insns (limit 1000000) \
                 max_states_per_insn 0\n",
                "JIT does not support fsession",
            ),
            (
                "func#0 @0\n0: R1=ctx() R10=fp0\n0: (85) call bpf_get_branch_snapshot#176\n\
                 program of this type cannot use helper bpf_get_branch_snapshot#176\nprocessed 1 \
                 insns (limit 1000000)\n",
                "program of this type cannot use helper bpf_get_branch_snapshot#176",
            ),
            (
                "1: (05) goto pc-1\ninfinite loop detected at insn 3\ncur state: R1=scalar() \
                 R10=fp0\nold state: R1=scalar() R10=fp0\nprocessed 4 insns (limit 1000000)\n",
                "infinite loop detected at insn 3",
            ),
            (
                "do_sys_open() is not modifiable\nprocessed 0 insns\n\0\0",
                "do_sys_open() is not modifiable",
            ),
        ] {
            assert_eq!(verdict(log), expected);
        }
    }

    #[test]
    fn skips_only_on_the_kernels_own_errors() {
        let guest = |errno| GuestError::from(BpfError::new("make a link", errno, ""));
        assert!(matches!(guest(libc::EOPNOTSUPP), GuestError::Unsupported(_)));
        assert_eq!(
            guest(ENOTSUPP),
            GuestError::Unsupported("failed to make a link: not supported (ENOTSUPP)".to_owned())
        );
        assert!(
            matches!(guest(libc::EINVAL), GuestError::Failed(reason) if reason.contains("EINVAL"))
        );
    }

    /// The program's count goes on over all of its links. Each probe begins at 0.
    #[test]
    fn tells_missed_hits() {
        let first = Misses { program: 2, probe: 3 };
        let both = first.and_of_next_link(Misses { program: 5, probe: 4 });
        assert_eq!(both, Misses { program: 5, probe: 7 });
        let missed = |hits, by| Remark::Missed { hits, by };
        assert_eq!(both.remarks(), [missed(5, Missing::Program), missed(7, Missing::Probe)]);
        assert_eq!(Misses { program: 0, ..both }.remarks(), [missed(7, Missing::Probe)]);
        assert_eq!(Misses::default().remarks(), []);
        // Another round has programs of its own.
        let rounds = first.and(Misses { program: 5, probe: 4 });
        assert_eq!(rounds, Misses { program: 7, probe: 7 });
    }
}
