// SPDX-License-Identifier: MIT OR Apache-2.0
//! What falls to the first process of a machine: file systems, sysctls, limits, modules, and switching off. Where there is
//! another, all but its console, its orphans and the modules, which that one has seen to.

use crate::Role;
use nix::errno::Errno;
use nix::mount::{MsFlags, mount};
use nix::sys::reboot::{RebootMode, reboot};
use nix::sys::resource::{Resource, setrlimit};
use nix::sys::signal::{SigHandler, Signal, signal};
use std::fs::{self, File, OpenOptions};
use std::path::PathBuf;

/// Kernel modules (`*.ko`, uncompressed) that the host packed for kernels whose virtio is not built in;
/// loaded in the order of their names.
const MODULES: &str = "/modules";

struct Mount {
    source: &'static str,
    target: &'static str,
    kind: &'static str,
    /// Whether nothing can be measured without it.
    needed: bool,
}

const MOUNTS: [Mount; 6] = [
    Mount { source: "proc", target: "/proc", kind: "proc", needed: true },
    Mount { source: "sysfs", target: "/sys", kind: "sysfs", needed: true },
    Mount { source: "devtmpfs", target: "/dev", kind: "devtmpfs", needed: true },
    Mount { source: "tracefs", target: "/sys/kernel/tracing", kind: "tracefs", needed: false },
    Mount { source: "bpf", target: "/sys/fs/bpf", kind: "bpf", needed: false },
    // Lists the error-injectable functions, which are the ones fmod_ret may attach to.
    Mount { source: "debugfs", target: "/sys/kernel/debug", kind: "debugfs", needed: false },
];

/// Set before the first measurement; one that a kernel lacks is left out.
const SYSCTLS: [(&str, &str); 7] = [
    ("kernel/kptr_restrict", "0"),
    ("kernel/perf_event_paranoid", "-1"),
    // Hardening first: with it on, the JIT keeps its symbols to itself.
    ("net/core/bpf_jit_harden", "0"),
    ("net/core/bpf_jit_enable", "1"),
    ("net/core/bpf_jit_kallsyms", "1"),
    // Two clock reads around every program would be measured as the mechanism's cost.
    ("kernel/bpf_stats_enabled", "0"),
    ("kernel/ftrace_enabled", "1"),
];

/// A link of some mechanisms holds two descriptors and a program of its own a third; 40,000 of them must fit.
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

/// Makes the machine ready to measure.
pub fn prepare(role: Role) -> Result<(), InitError> {
    for entry in &MOUNTS {
        // Fails where it exists, or where its parent is a kernel file system; the mount then tells.
        let _ = fs::create_dir_all(entry.target);
        let mounted =
            mount(Some(entry.source), entry.target, Some(entry.kind), MsFlags::empty(), None::<&str>);
        match mounted {
            // devtmpfs may have been mounted by the kernel, and all of them by another init.
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
    for (name, value) in SYSCTLS {
        match fs::write(format!("/proc/sys/{name}"), value) {
            Ok(()) => {}
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => eprintln!("tramplab-agent: failed to set {name} to {value}: {error}"),
        }
    }
    for (resource, limit) in
        [(Resource::RLIMIT_NOFILE, DESCRIPTORS), (Resource::RLIMIT_MEMLOCK, libc::RLIM_INFINITY)]
    {
        if let Err(errno) = setrlimit(resource, limit, limit) {
            eprintln!("tramplab-agent: failed to raise {resource:?}: {errno}");
        }
    }
    if role == Role::Program {
        return Ok(());
    }
    // Orphans become children of the first process; the kernel reaps those of one that ignores SIGCHLD.
    // SAFETY: ignoring a signal installs no handler.
    let _ = unsafe { signal(Signal::SIGCHLD, SigHandler::SigIgn) };
    load_modules()
}

/// An initramfs without /dev/console leaves the first process without standard streams.
fn open_console() {
    let Ok(console) = OpenOptions::new().read(true).write(true).open("/dev/console") else { return };
    let _ = nix::unistd::dup2_stdin(&console);
    let _ = nix::unistd::dup2_stdout(&console);
    let _ = nix::unistd::dup2_stderr(&console);
}

fn load_modules() -> Result<(), InitError> {
    let read = |error| InitError::Read { path: MODULES.into(), error };
    let entries = match fs::read_dir(MODULES) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(read(error)),
    };
    let mut paths = entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>, _>>().map_err(read)?;
    paths.sort();
    for path in paths {
        let file = File::open(&path).map_err(|error| InitError::Read { path: path.clone(), error })?;
        match nix::kmod::finit_module(&file, c"", nix::kmod::ModuleInitFlags::empty()) {
            Ok(()) | Err(Errno::EEXIST) => {}
            Err(errno) => return Err(InitError::Module { path, errno }),
        }
    }
    Ok(())
}

/// Switches the machine off; returns only when the kernel refused.
pub fn power_off() {
    nix::unistd::sync();
    for mode in [RebootMode::RB_POWER_OFF, RebootMode::RB_AUTOBOOT] {
        let Err(errno) = reboot(mode);
        eprintln!("tramplab-agent: failed to switch off ({mode:?}): {errno}");
    }
}
