// SPDX-License-Identifier: MIT OR Apache-2.0
//! The duties of a machine's first process: file systems, sysctls, limits, modules, and power-off.
//! Under another init, all except console, orphans and modules, which that init handles. On the
//! user's own machine, only its own limits.

use crate::changes;
use crate::role::{self, Role};
use crate::switches;
use nix::errno::Errno;
use nix::sys::reboot::RebootMode;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::{SigHandler, Signal, signal};
use std::fs::{self, File};
use std::path::PathBuf;
use tramplab_protocol::message::WANTED_MODULES;

/// Kernel modules (`*.ko`, uncompressed) that the host packs for kernels without built-in virtio.
/// Loaded in the order of their names.
const MODULES: &str = "/modules";

struct Mount {
    source: &'static str,
    target: &'static str,
    kind: &'static str,
    /// True if nothing can be measured without it.
    needed: bool,
}

const MOUNTS: [Mount; 6] = [
    Mount { source: "proc", target: "/proc", kind: "proc", needed: true },
    Mount { source: "sysfs", target: "/sys", kind: "sysfs", needed: true },
    Mount { source: "devtmpfs", target: "/dev", kind: "devtmpfs", needed: true },
    Mount { source: "tracefs", target: "/sys/kernel/tracing", kind: "tracefs", needed: false },
    Mount { source: "bpf", target: "/sys/fs/bpf", kind: "bpf", needed: false },
    // Lists the error-injectable functions, which fmod_ret may attach to.
    Mount { source: "debugfs", target: "/sys/kernel/debug", kind: "debugfs", needed: false },
];

/// Set before the first measurement, unless the command line sets them. Those that a kernel lacks
/// are skipped.
const SYSCTLS: [(&str, &str); 7] = [
    ("kernel/kptr_restrict", "0"),
    ("kernel/perf_event_paranoid", "-1"),
    // Hardening first: with it on, the JIT does not export its symbols.
    ("net/core/bpf_jit_harden", "0"),
    ("net/core/bpf_jit_enable", "1"),
    ("net/core/bpf_jit_kallsyms", "1"),
    // Statistics read the clock twice around every program, which would count for the mechanism.
    ("kernel/bpf_stats_enabled", "0"),
    ("kernel/ftrace_enabled", "1"),
];

/// Links of some mechanisms hold two descriptors, and their program a third; 40,000 of them must
/// fit.
const DESCRIPTORS: u64 = 1 << 18;

#[derive(Debug, thiserror::Error)]
pub enum InitError {
    #[error("failed to mount {kind} on {target}: {errno}")]
    Mount { kind: &'static str, target: &'static str, errno: Errno },
    #[error("failed to load the module {}: {errno}", path.display())]
    Module { path: PathBuf, errno: Errno },
    #[error("failed to read {}: {error}", path.display())]
    Read { path: PathBuf, error: std::io::Error },
}

/// A module's file, and whether the kernel took it.
pub type Loaded = (PathBuf, nix::Result<()>);

/// Prepares the machine for measurements.
pub fn prepare(role: Role) -> Result<(), InitError> {
    if let Role::Machine { .. } = role {
        raise_limits();
        // SAFETY: the default action installs no handler. It ends the process, and its links.
        let _ = unsafe { signal(Signal::SIGTERM, SigHandler::SigDfl) };
        return Ok(());
    }
    for entry in &MOUNTS {
        // Fails if it exists or if its parent is a kernel file system; then the mount reports the
        // error.
        let _ = changes::make_folders(entry.target);
        match changes::mount(entry.source, entry.target, entry.kind) {
            // The kernel may have mounted devtmpfs, and another init all of them.
            Ok(()) | Err(Errno::EBUSY) => {}
            Err(errno) if entry.needed => {
                return Err(InitError::Mount { kind: entry.kind, target: entry.target, errno });
            }
            Err(errno) => eprintln!("tramplab-agent: no {}: {errno}", entry.kind),
        }
    }
    if role == Role::Init {
        open_console();
    }
    let asked = switches::of_this_boot().sysctls;
    for (name, value) in SYSCTLS.into_iter().filter(|(name, _)| !asked.contains_key(*name)) {
        match changes::write(format!("/proc/sys/{name}"), value) {
            Ok(()) => {}
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => eprintln!("tramplab-agent: failed to set {name} to {value}: {error}"),
        }
    }
    raise_limits();
    if role == Role::Program {
        return Ok(());
    }
    // Orphans become children of the first process. The kernel reaps the children of a process that
    // ignores SIGCHLD.
    // SAFETY: ignoring a signal installs no handler.
    let _ = unsafe { signal(Signal::SIGCHLD, SigHandler::SigIgn) };
    if let Some((path, Err(errno))) =
        load_modules(MODULES)?.into_iter().find(|(_, result)| result.is_err())
    {
        return Err(InitError::Module { path, errno });
    }
    Ok(())
}

/// Raises the limits of this process, as far as it may.
fn raise_limits() {
    for (resource, limit) in
        [(Resource::RLIMIT_NOFILE, DESCRIPTORS), (Resource::RLIMIT_MEMLOCK, libc::RLIM_INFINITY)]
    {
        if let Err(errno) = setrlimit(resource, limit, limit) {
            if !role::is_own_machine() {
                eprintln!("tramplab-agent: failed to raise {resource:?}: {errno}");
            }
            let _ = getrlimit(resource).and_then(|(_, hard)| setrlimit(resource, hard, hard));
        }
    }
}

/// Loads the modules that tests name. Only the first process has them.
pub fn load_wanted(role: Role) -> Result<Vec<Loaded>, InitError> {
    match role {
        Role::Init => load_modules(WANTED_MODULES),
        Role::Program | Role::Machine { .. } => Ok(Vec::new()),
    }
}

/// Opens the standard streams: an initramfs without /dev/console leaves the first process without.
fn open_console() {
    let Ok(console) = changes::open("/dev/console") else {
        return;
    };
    let _ = nix::unistd::dup2_stdin(&console);
    let _ = nix::unistd::dup2_stdout(&console);
    let _ = nix::unistd::dup2_stderr(&console);
}

/// Loads all modules of a folder, in the order of their names.
fn load_modules(folder: &str) -> Result<Vec<Loaded>, InitError> {
    let read = |error| InitError::Read { path: folder.into(), error };
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(read(error)),
    };
    let mut paths =
        entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>, _>>().map_err(read)?;
    paths.sort();
    let load = |path: PathBuf| {
        let file =
            File::open(&path).map_err(|error| InitError::Read { path: path.clone(), error })?;
        let loaded = changes::load_module(&file);
        Ok((path, loaded.or_else(|errno| (errno == Errno::EEXIST).then_some(()).ok_or(errno))))
    };
    paths.into_iter().map(load).collect()
}

/// Ends what the host started: the guest, or on the user's own machine this process. Returns only
/// if the guest's kernel refused.
pub fn end(role: Role, code: i32) {
    match role {
        Role::Init | Role::Program => power_off(),
        Role::Machine { .. } => std::process::exit(code),
    }
}

/// Switches the machine off. Returns only if the kernel refused.
fn power_off() {
    nix::unistd::sync();
    for mode in [RebootMode::RB_POWER_OFF, RebootMode::RB_AUTOBOOT] {
        let Err(errno) = changes::reboot(mode);
        eprintln!("tramplab-agent: failed to switch off ({mode:?}): {errno}");
    }
}
