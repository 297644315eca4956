// SPDX-License-Identifier: MIT OR Apache-2.0
//! Confines builds with bubblewrap: a series comes from strangers, and a Makefile is a program.
//!
//! A build sees the system's programs, the sources (read-only) and its build folder. It has no
//! network, no home, no capabilities, and none of the caller's environment, descriptors or keys. It
//! sees no other process. `docs/threat-model.md` describes the protection.
//!
//! A user's build runs in a user namespace, where the kernel still takes it for that user. A build
//! of root's would still be root wherever the kernel checks the user and not a capability, such as
//! `/proc/sys`. So root's builds run as [`BUILDER`], a user that owns nothing.

mod hand_over;
mod launch;
mod syscalls;
#[cfg(test)]
mod tests;

pub use launch::Launch;

use nix::{
    fcntl::{FcntlArg, FdFlag, fcntl},
    sys::memfd::{MFdFlags, memfd_create},
    unistd::{Whence, geteuid, lseek},
};
use std::{
    collections::BTreeSet,
    env,
    ffi::{OsStr, OsString},
    fs, io,
    io::Write,
    os::{
        fd::{AsFd, AsRawFd},
        unix::process::CommandExt,
    },
    path::{Path, PathBuf},
    process::Command,
    thread,
    time::Duration,
};
use tramplab_host::{child, packages::install_line, program::in_path};

const PROBE_LIMIT: Duration = Duration::from_secs(20);

/// Everything a build may see of `/`. An allowlist, because a list of things to hide would miss
/// some.
const SYSTEM: [&str; 8] =
    ["/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/nix/store"];

/// The files of `/etc` that the dynamic linker and Debian's alternatives need.
const ETC: [&str; 4] =
    ["/etc/alternatives", "/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d"];

/// User and group of a build. Debian and systemd give this number to nobody.
const BUILDER: u32 = 65533;

/// Size of `/tmp` in bytes. It is in memory. A compiler's temporary files need some MiB per job.
const TMP: u64 = 1 << 30;
/// Size of `/dev/shm` in bytes. It is in memory, too.
const SHM: u64 = 64 << 20;
/// Most processes and threads. A make job has about six at once.
const PROCESSES: usize = 4096;
const PROCESSES_A_CPU: usize = 64;

/// When memory runs out, the kernel kills a build first.
const OOM_SCORE_ADJ: &[u8] = b"1000";

/// `keyctl(2)`: join a new session keyring.
const KEYCTL_JOIN_SESSION_KEYRING: libc::c_long = 1;

/// A bubblewrap that works here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Confinement {
    program: PathBuf,
    way: Way,
}

/// How a build gives up the caller's identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// For root: bubblewrap mounts with root's privileges, then the build becomes [`BUILDER`].
    Become,
    /// For others: a user namespace in which the user is called [`BUILDER`].
    Namespace,
}

/// The paths and variables that a child sees besides the system.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct View {
    /// The folder that is its system, instead of the host's.
    pub root: Option<PathBuf>,
    pub read: Vec<PathBuf>,
    pub write: Vec<PathBuf>,
    /// The whole environment.
    pub environment: Vec<(&'static str, OsString)>,
}

/// Where a root has its programs.
pub const PATH_IN_ROOT: &str = "/usr/bin";

impl View {
    /// Of a system without anything else.
    pub fn of_root(root: &Path) -> View {
        let environment = vec![("PATH", PATH_IN_ROOT.into())];
        View { root: Some(root.to_owned()), environment, ..View::default() }
    }
}

#[derive(Debug, thiserror::Error)]
#[error(
    "failed to confine the build: {reason}; install bubblewrap and util-linux ({line}) and allow \
     user namespaces (sysctl kernel.apparmor_restrict_unprivileged_userns=0, or a profile for \
     bwrap)",
    line = install_line(&["bubblewrap", "util-linux"])
)]
pub struct Unconfined {
    pub reason: String,
}

impl Confinement {
    /// Runs a trial: bubblewrap may be installed although the kernel or a container forbids
    /// namespaces.
    pub fn probe() -> Result<Confinement, Unconfined> {
        let absent = || Unconfined { reason: "bwrap is not installed".to_owned() };
        let program = in_path("bwrap").ok_or_else(absent)?;
        // A container's root may lack the privileges of the first way.
        let ways: &[Way] = if geteuid().is_root() && is_mapped(BUILDER) {
            &[Way::Become, Way::Namespace]
        } else {
            &[Way::Namespace]
        };
        let mut failed = absent();
        for &way in ways {
            let confinement = Confinement { program: program.clone(), way };
            match confinement.try_out() {
                Ok(()) => return Ok(confinement),
                Err(error) => failed = Unconfined { reason: reason(&error) },
            }
        }
        Err(failed)
    }

    fn try_out(&self) -> Result<(), child::ChildError> {
        let start_error = |source| child::ChildError::Start {
            command: self.program.display().to_string(),
            source,
        };
        // bubblewrap itself: not every host has /usr/bin/true.
        let program = fs::canonicalize(&self.program).map_err(start_error)?;
        let view = View { read: folders_of(std::slice::from_ref(&program)), ..View::default() };
        let launch = self.command(&view, Path::new("/"), program.as_os_str());
        let mut launch = launch.map_err(start_error)?;
        child::run(launch.command.arg("--version"), PROBE_LIMIT).map(drop)
    }

    /// Makes a command that runs `program` confined, in the folder `cwd`. Arguments can be added.
    pub fn command(&self, view: &View, cwd: &Path, program: &OsStr) -> io::Result<Launch> {
        let program_of_filter = syscalls::filter().map_err(io::Error::other)?;
        let mut filter = fs::File::from(memfd_create(c"tramplab-seccomp", MFdFlags::MFD_CLOEXEC)?);
        filter.write_all(&syscalls::bytes(&program_of_filter))?;
        let (info, told) = io::pipe()?;
        let mut command = Command::new(&self.program);
        command
            // The sandbox's first process exposes bubblewrap's environment.
            .env_clear()
            .args(arguments(self.way, view, cwd))
            .args(["--seccomp".into(), filter.as_raw_fd().to_string()])
            .args(["--info-fd".into(), told.as_raw_fd().to_string()])
            .arg("--")
            .args(inside(self.way))
            .arg(program);
        // SAFETY: between fork and exec only async-signal-safe calls are made: close_range, lseek,
        // fcntl, keyctl, open, write, close.
        unsafe {
            command.pre_exec(move || {
                child::close_inherited()?;
                lseek(filter.as_fd(), 0, Whence::SeekSet)?;
                for kept in [filter.as_fd(), told.as_fd()] {
                    fcntl(kept, FcntlArg::F_SETFD(FdFlag::empty()))?;
                }
                leave_keyring()?;
                // Fails if /proc is not mounted; the build is then killed like any other process.
                let _ = raise_oom_score();
                Ok(())
            });
        }
        Ok(Launch::confined(command, info))
    }

    /// Makes `read` readable for the build, and `write` its own, recursively. Nothing may run in
    /// there meanwhile.
    pub fn hand_over(&self, view: &View) -> io::Result<()> {
        if self.way == Way::Namespace {
            return Ok(());
        }
        let mut folders = view.read.iter().filter(|path| path.is_dir());
        folders.try_for_each(|folder| hand_over::make_readable(folder))?;
        view.write.iter().try_for_each(|folder| hand_over::make_own(folder))
    }
}

/// True if the user exists in this namespace. A container may have few users.
fn is_mapped(user: u32) -> bool {
    let map = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    map.lines().any(|line| {
        let mut numbers = line.split_whitespace().map(str::parse::<u32>);
        match (numbers.next(), numbers.next(), numbers.next()) {
            (Some(Ok(first)), Some(_), Some(Ok(count))) => user >= first && user - first < count,
            _ => false,
        }
    })
}

/// Leaves the session keyring, which is inherited even into new namespaces.
fn leave_keyring() -> io::Result<()> {
    let none = std::ptr::null::<libc::c_char>();
    // SAFETY: no memory is passed.
    let keyring = unsafe { libc::syscall(libc::SYS_keyctl, KEYCTL_JOIN_SESSION_KEYRING, none) };
    match (keyring, io::Error::last_os_error()) {
        // The kernel has no keyrings.
        (-1, error) if error.raw_os_error() == Some(libc::ENOSYS) => Ok(()),
        // A container's filter blocks all keys.
        (-1, error) if error.raw_os_error() == Some(libc::EPERM) => Ok(()),
        (-1, error) => Err(error),
        _ => Ok(()),
    }
}

fn raise_oom_score() -> io::Result<()> {
    use nix::{fcntl::OFlag, fcntl::open, sys::stat::Mode, unistd::write};
    let flags = OFlag::O_WRONLY | OFlag::O_CLOEXEC;
    let file = open(c"/proc/self/oom_score_adj", flags, Mode::empty())?;
    write(&file, OOM_SCORE_ADJ)?;
    Ok(())
}

fn reason(error: &child::ChildError) -> String {
    match error {
        child::ChildError::Start { source, .. } => format!("bwrap does not start ({source})"),
        child::ChildError::Deadline { .. } => "bwrap hangs".to_owned(),
        child::ChildError::Failed { status, stderr, .. } => match stderr.lines().next() {
            Some(line) => {
                format!("bwrap does not work here ({})", line.trim_start_matches("bwrap: "))
            }
            None => format!("bwrap does not work here ({status})"),
        },
    }
}

/// Returns bubblewrap's arguments. Later mounts cover earlier ones, so binds follow the mounts that
/// hide. Folders with mounts in them become read-only last.
fn arguments(way: Way, view: &View, cwd: &Path) -> Vec<OsString> {
    let builder = BUILDER.to_string();
    let mut words: Vec<OsString> = [
        "--unshare-ipc",
        "--unshare-pid",
        "--unshare-net",
        "--unshare-uts",
        "--unshare-cgroup-try",
        // bubblewrap started by root would leave its capabilities to the child, which could then
        // change mounts.
        "--cap-drop",
        "ALL",
        "--die-with-parent",
        // No terminal to type into.
        "--new-session",
        "--hostname",
        "tramplab",
        "--clearenv",
    ]
    .map(OsString::from)
    .into();
    match way {
        // `setpriv` needs them, and drops them.
        Way::Become => words.extend(
            ["--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID", "--cap-add", "CAP_SETPCAP"]
                .map(OsString::from),
        ),
        Way::Namespace => words
            .extend(["--unshare-user", "--uid", &builder, "--gid", &builder].map(OsString::from)),
    }
    for (name, value) in &view.environment {
        words.extend(["--setenv".into(), (*name).into(), value.clone()]);
    }
    let system = view.root.as_deref().unwrap_or(Path::new("/"));
    let in_system = |path: &str| system.join(path.trim_start_matches('/'));
    for folder in SYSTEM {
        let place = in_system(folder);
        match fs::read_link(&place) {
            // A merged /usr.
            Ok(target) => words.extend(["--symlink".into(), target.into(), folder.into()]),
            Err(_) => words.extend(["--ro-bind-try".into(), place.into(), folder.into()]),
        }
    }
    // bubblewrap makes the parents of binds accessible only to root.
    let parents = view.read.iter().chain(&view.write).flat_map(|path| path.ancestors().skip(1));
    let parents: BTreeSet<&Path> = parents.filter(|path| path.parent().is_some()).collect();
    let folders = |paths: BTreeSet<&Path>| {
        let folder = |path: &Path| ["--perms".into(), "0755".into(), "--dir".into(), path.into()];
        paths.into_iter().flat_map(folder).collect::<Vec<OsString>>()
    };
    words.extend(folders([Path::new("/etc")].into()));
    for file in ETC {
        words.extend(["--ro-bind-try".into(), in_system(file).into(), file.into()]);
    }
    words.extend(["--proc", "/proc", "--dev", "/dev"].map(OsString::from));
    for (folder, bytes) in [("/dev/shm", SHM), ("/tmp", TMP)] {
        let bytes = bytes.to_string();
        let tmpfs = ["--perms", "1777", "--size", &bytes, "--tmpfs", folder];
        words.extend(tmpfs.map(OsString::from));
    }
    words.extend(folders(parents));
    for (option, paths) in [("--ro-bind", &view.read), ("--bind", &view.write)] {
        for path in paths {
            words.extend([option.into(), path.into(), path.into()]);
        }
    }
    for folder in ["/proc", "/dev", "/"] {
        words.extend(["--remount-ro", folder].map(OsString::from));
    }
    words.extend(["--chdir".into(), cwd.into()]);
    words
}

/// Returns the wrapper that starts the program inside the sandbox.
fn inside(way: Way) -> Vec<OsString> {
    let cpus = thread::available_parallelism().map_or(1, |cpus| cpus.get());
    // Set inside: outside, the user's other processes would count, and root has no limit.
    let processes = format!("--nproc={}", PROCESSES.max(PROCESSES_A_CPU * cpus));
    let limits = ["prlimit".to_owned(), processes, "--core=0".to_owned(), "--".to_owned()];
    let builder = BUILDER.to_string();
    let become_builder = [
        "setpriv",
        "--reuid",
        &builder,
        "--regid",
        &builder,
        "--clear-groups",
        "--inh-caps=-all",
        "--bounding-set=-all",
        "--no-new-privs",
        "--",
    ]
    .map(OsString::from);
    let become_builder = if way == Way::Become { become_builder.to_vec() } else { Vec::new() };
    become_builder.into_iter().chain(limits.map(OsString::from)).collect()
}

/// Returns the folders to show for programs outside the system's folders: `/opt/llvm` for
/// `/opt/llvm/bin/clang`.
pub fn folders_of(programs: &[PathBuf]) -> Vec<PathBuf> {
    let home = env::var_os("HOME").map(PathBuf::from);
    let mut folders: Vec<_> =
        programs.iter().filter_map(|program| folder_of(program, home.as_deref())).collect();
    folders.sort();
    folders.dedup();
    folders
}

fn folder_of(program: &Path, home: Option<&Path>) -> Option<PathBuf> {
    if SYSTEM.iter().any(|folder| program.starts_with(folder)) {
        return None;
    }
    let bin = program.parent()?;
    let prefix = bin.parent()?;
    // `~/bin/gcc` must not expose the home, nor `/home/somebody/gcc` all homes.
    let shows_home = home.is_some_and(|home| home.starts_with(prefix));
    let deep = prefix.components().count() > 2 || prefix.starts_with("/opt");
    let bare = prefix == Path::new("/opt");
    let is_user = prefix.parent() == Some(Path::new("/home"));
    if bin.ends_with("bin") && deep && !bare && !shows_home && !is_user {
        Some(prefix.to_owned())
    } else {
        Some(program.to_owned())
    }
}
