// SPDX-License-Identifier: MIT OR Apache-2.0
//! The folder of a row: it holds everything the row writes, and shows what is left afterwards.

use crate::{NotRun, command::tramplab, started::SOON, wire};
use nix::unistd::Pid;
use std::{
    fs, io,
    os::unix::{ffi::OsStrExt, fs::PermissionsExt},
    path::{Path, PathBuf},
    process::Command,
    thread::sleep,
    time::{Duration, Instant},
};
use tempfile::TempDir;
use tramplab_model::run::Backend;
use walkdir::WalkDir;

/// A process of a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    Qemu,
    Vng,
}

/// Files that a run's folder may have at its end.
const KNOWN: [&str; 14] = [
    "run.json",
    "plan.json",
    "report.md",
    "report.html",
    "details.md",
    "junit.xml",
    "cell.json",
    "console.log",
    "qemu.log",
    "snapshot.log",
    "trace-0000.bin",
    "functions.txt",
    "6.12.config",
    "summary.md",
];
/// Prefix of the folders' names.
pub const PREFIX: &str = "tramplab-fault-";
/// How long killed processes may take to disappear.
const GOING: Duration = Duration::from_secs(60);

pub struct Place {
    dir: TempDir,
    vm: Backend,
    /// Shared by rows that do not harm it.
    shared_cache: PathBuf,
}

pub fn from_env(name: &str) -> PathBuf {
    std::env::var_os(name)
        .unwrap_or_else(|| panic!("{name} is not set: run `cargo xtask test`"))
        .into()
}

impl Place {
    pub fn new(vm: Backend, shared_cache: &Path) -> io::Result<Place> {
        let dir = tempfile::Builder::new().prefix(PREFIX).tempdir()?;
        fs::create_dir(dir.path().join("tmp"))?;
        fs::create_dir(dir.path().join("runs"))?;
        Ok(Place { dir, vm, shared_cache: shared_cache.to_owned() })
    }

    /// The backend that starts the guests.
    pub fn vm(&self) -> Backend {
        self.vm
    }

    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    pub fn runs(&self) -> PathBuf {
        self.dir.path().join("runs")
    }

    /// A cache for rows that would harm the shared one.
    pub fn own_cache(&self) -> PathBuf {
        self.dir.path().join("cache")
    }

    /// The file that says how far the wall clock of commands is off.
    pub fn clock(&self) -> PathBuf {
        self.dir.path().join("clock")
    }

    /// Makes the wall clock differ by so many seconds.
    pub fn set_clock(&self, seconds: i64) {
        // Renamed, so that no process reads half of it.
        let new = self.clock().with_extension("new");
        fs::write(&new, format!("{seconds:+}\n")).unwrap();
        fs::rename(new, self.clock()).unwrap();
    }

    /// Copies the shared cache, which another row may be filling.
    pub fn copy_cache(&self) -> io::Result<()> {
        let mut copy = Command::new("cp");
        copy.args(["-a", "--sparse=always"]).arg(&self.shared_cache).arg(self.own_cache());
        match copy.status()?.success() {
            true => Ok(()),
            false => Err(io::Error::other("cp failed")),
        }
    }

    /// A script in QEMU's place that tampers with its link to the agent. It is the same file for
    /// all places: snapshots depend on it.
    pub fn qemu_with_wire(&self, real: &Path) -> PathBuf {
        let path = self.shared_cache.with_file_name("qemu-with-wire");
        let this = std::env::current_exe().unwrap();
        let script = format!(
            "#!/bin/sh\nexec '{}' {} '{}' \"$@\"\n",
            this.display(),
            wire::IN_PLACE_OF_QEMU,
            real.display()
        );
        if !path.exists() {
            fs::write(&path, script).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        }
        path
    }

    /// `vm-test` for a suite with these tests.
    pub fn vm_test(&self, suite: &str) -> Command {
        self.vm_test_under("tcg", suite)
    }

    pub fn vm_test_under(&self, accel: &str, suite: &str) -> Command {
        let file = self.dir.path().join("suite.yaml");
        fs::write(&file, format!("name: t\ndescription: d\nkernels: [\"6.12\"]\n{suite}")).unwrap();
        let mut command = tramplab();
        command.arg("vm-test").args(["--accel", accel, "--jobs", "1", "--kernel"]);
        command.arg(from_env("TRAMPLAB_TEST_KERNEL_X86_64")).arg("--suite").arg(file);
        command.args(["--arch", "x86_64", "--runs"]).arg(self.runs());
        command.env("TMPDIR", self.dir.path().join("tmp"));
        match self.vm {
            Backend::Qemu => command.env("TRAMPLAB_CACHE", &self.shared_cache),
            // The user's cache, which may have the only virtme-ng.
            Backend::VirtmeNg => command.args(["--vm", "virtme-ng"]),
            Backend::None => unreachable!("faults are of guests"),
        };
        command
    }

    /// Writes a script to run in place of another program, which is `$REAL`.
    pub fn script(&self, name: &str, real: &Path, script: &str) -> PathBuf {
        let path = self.dir.path().join(name);
        fs::write(&path, format!("#!/bin/sh\nREAL='{}'\n{script}\n", real.display())).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        path
    }

    /// Processes of this place: they have its name in their environment or on their command line.
    pub fn processes(&self) -> Vec<(i32, String)> {
        let name = self.dir.path().as_os_str().as_bytes();
        let has = |text: &[u8]| text.windows(name.len()).any(|part| part == name);
        let mut found = Vec::new();
        for entry in fs::read_dir("/proc").unwrap().flatten() {
            let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
                continue;
            };
            let read = |file| fs::read(entry.path().join(file)).unwrap_or_default();
            let line = read("cmdline");
            if has(&line) || has(&read("environ")) {
                found.push((pid, String::from_utf8_lossy(&line).replace('\0', " ")));
            }
        }
        found
    }

    /// A process with all these words on its command line, except one in QEMU's place.
    pub fn process_with(&self, words: &[&str]) -> Option<Pid> {
        let is_it = |line: &str| {
            words.iter().all(|word| line.contains(word)) && !line.contains(wire::IN_PLACE_OF_QEMU)
        };
        self.processes()
            .into_iter()
            .find(|(_, line)| is_it(line))
            .map(|(pid, _)| Pid::from_raw(pid))
    }

    /// A process that runs the guest of a cell. virtme-ng runs one guest at a time.
    pub fn process_of(&self, part: Part, cell: &Path) -> Option<i32> {
        let folder = format!("{} ", cell.display());
        let is_of_a_shell =
            |line: &str| line.split(' ').next().is_some_and(|program| program.ends_with("sh"));
        let is_it = |line: &str| match (part, self.vm) {
            (Part::Qemu, Backend::Qemu) => line.contains("-plugin") && line.contains(&folder),
            (Part::Qemu, Backend::VirtmeNg) => line.contains(" -plugin ") && !is_of_a_shell(line),
            (Part::Qemu, Backend::None) => false,
            // Not its guarding shell, which has the same words on its command line.
            (Part::Vng, _) => line.contains(" --skip-modules ") && !is_of_a_shell(line),
        };
        self.processes().into_iter().find(|(_, line)| is_it(line)).map(|(pid, _)| pid)
    }

    /// Processes that should be gone after the end.
    pub fn left_processes(&self) -> Vec<String> {
        let began = Instant::now();
        while !self.processes().is_empty() && began.elapsed() < GOING {
            sleep(SOON);
        }
        let left = self.processes().into_iter();
        left.map(|(pid, line)| format!("process {pid}: {line}")).collect()
    }

    /// Processes, sockets and files that should be gone after the end.
    pub fn left(&self) -> Vec<String> {
        let mut left = self.left_processes();
        let sockets = fs::read_to_string("/proc/net/unix").unwrap_or_default();
        let name = self.dir.path().to_str().expect("made of ASCII");
        left.extend(
            sockets.lines().filter(|line| line.contains(name)).map(|line| format!("socket {line}")),
        );
        let files = |folder: &str| {
            let files =
                WalkDir::new(self.dir.path().join(folder)).min_depth(1).into_iter().flatten();
            files.filter(|entry| !entry.file_type().is_dir()).map(walkdir::DirEntry::into_path)
        };
        let unknown = |path: &PathBuf| {
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            let is_of_the_plan = path.parent().is_some_and(|folder| folder.ends_with("jobs"));
            // Written by `suite::boots`.
            let says_what_boots = name.ends_with(".boots");
            !KNOWN.contains(&name) && name != "latest" && !is_of_the_plan && !says_what_boots
        };
        let unfinished = |path: &PathBuf| path.to_string_lossy().contains(".unfinished");
        let temporary =
            WalkDir::new(self.dir.path().join("tmp")).min_depth(1).into_iter().flatten();
        let temporary = temporary.map(walkdir::DirEntry::into_path);
        let found =
            temporary.chain(files("runs").filter(unknown)).chain(files("cache").filter(unfinished));
        left.extend(found.map(|path| format!("file {}", path.display())));
        left
    }
}

/// Wraps a command so that it alone sees the mounts of `script`.
pub fn with_mounts(script: &str, command: &Command) -> Result<Command, NotRun> {
    let unshare = |script: &str| {
        let mut unshare = Command::new("unshare");
        if !nix::unistd::geteuid().is_root() {
            unshare.arg("--map-root-user");
        }
        unshare.args(["--mount", "sh", "-c", &format!("set -e\n{script}\nexec \"$@\""), "sh"]);
        unshare
    };
    let tried = unshare(script).arg("true").output();
    match tried {
        Ok(output) if output.status.success() => {}
        Ok(output) => {
            return Err(NotRun(format!(
                "nothing can be mounted here: {}",
                String::from_utf8_lossy(&output.stderr).trim()
            )));
        }
        Err(error) => return Err(NotRun(format!("nothing can be mounted here: unshare: {error}"))),
    }
    let mut mounted = unshare(script);
    mounted.arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        mounted.env(name, value.expect("nothing is taken away"));
    }
    if let Some(folder) = command.get_current_dir() {
        mounted.current_dir(folder);
    }
    Ok(mounted)
}
