// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs make: environment, log, progress, limits.

use super::{
    confine::{Confinement, Launch, PATH_IN_ROOT, View, folders_of},
    toolchain::Tools,
};
use std::{
    env,
    ffi::{OsStr, OsString},
    fs::{self, File},
    io::{self, Read},
    ops::ControlFlow,
    os::unix::process::ExitStatusExt,
    path::{Path, PathBuf},
    process::{Command, ExitStatus, Stdio},
    thread,
    time::{Duration, Instant},
};
use tramplab_host::cache::{self, CacheError, RESERVE};

/// Time limit. A full build takes six minutes on two cores; a distribution's configuration on a
/// slow machine takes an hour.
pub const LIMIT: Duration = Duration::from_secs(2 * 60 * 60);

const TICK: Duration = Duration::from_millis(100);

/// Most bytes of log. A full build logs 4 MiB; a longer log comes from an endless loop.
const LOG_LIMIT: u64 = 64 << 20;

/// ccache's folder, and whether this build may add to it.
#[derive(Clone, Debug)]
pub struct Ccache {
    pub folder: PathBuf,
    pub write: bool,
}

/// A make run except for its targets.
#[derive(Clone, Debug)]
pub struct Make<'a> {
    pub tools: &'a Tools,
    pub confinement: Option<&'a Confinement>,
    pub source: &'a Path,
    pub build: &'a Path,
    pub ccache: Option<Ccache>,
    /// The log that output is appended to.
    pub log: &'a Path,
}

#[derive(Debug, thiserror::Error)]
pub enum MakeError {
    #[error("make failed ({0})")]
    Failed(ExitStatus),
    #[error("make did not end within {} minutes", LIMIT.as_secs() / 60)]
    Deadline,
    #[error("make wrote more than {} MiB of log", LOG_LIMIT >> 20)]
    LogTooLong,
    #[error("interrupted")]
    Interrupted,
    /// Noticed before other users of the disk are affected.
    #[error(transparent)]
    NoRoom(#[from] CacheError),
    #[error("failed to run make: {0}")]
    Io(#[from] io::Error),
}

impl Make<'_> {
    /// Builds targets of the kernel. Returns the number of steps. `step` is called often with the
    /// steps so far; `Break` ends the build.
    pub fn run(
        &self,
        targets: &[&str],
        step: &mut dyn FnMut(u64) -> ControlFlow<()>,
    ) -> Result<u64, MakeError> {
        self.run_words(&self.words(targets), step)
    }

    /// Like [`Make::run`], with any arguments for make.
    pub fn run_words(
        &self,
        words: &[OsString],
        step: &mut dyn FnMut(u64) -> ControlFlow<()>,
    ) -> Result<u64, MakeError> {
        let log = File::options().create(true).append(true).open(self.log)?;
        let start = log.metadata()?.len();
        let mut launch = self.launch(words)?;
        launch.command.stdout(log.try_clone()?).stderr(log);
        let mut counter = Counter::new(File::open(self.log)?, start)?;
        let status =
            supervise(launch, &mut || unless_broken(step(counter.read()?)), self.log, start)?;
        let steps = counter.read()?;
        if status.success() { Ok(steps) } else { Err(MakeError::Failed(status)) }
    }

    /// Predicts the steps of the targets by a dry run. The steps that link vmlinux and use it are
    /// not predicted. None if the dry run fails.
    pub fn count(
        &self,
        targets: &[&str],
        tick: &mut dyn FnMut() -> ControlFlow<()>,
    ) -> Option<u64> {
        let listing = tempfile::NamedTempFile::new().ok()?;
        let mut words = vec!["--dry-run", "--keep-going"];
        words.extend(targets);
        let mut launch = self.launch(&self.words(&words)).ok()?;
        launch.command.stdout(listing.reopen().ok()?).stderr(Stdio::null());
        // The dry run always fails at vmlinux, whose inputs only the real build makes.
        supervise(launch, &mut || unless_broken(tick()), listing.path(), 0).ok()?;
        let mut text = String::new();
        File::open(listing.path()).ok()?.take(LOG_LIMIT).read_to_string(&mut text).ok()?;
        Some(text.lines().filter(|line| is_dry_step(line)).count() as u64)
    }

    /// Returns make's arguments for targets of the kernel.
    pub fn words(&self, targets: &[&str]) -> Vec<OsString> {
        let mut output = OsString::from("O=");
        output.push(self.build);
        let mut words: Vec<OsString> = vec!["-C".into(), self.source.into(), output];
        words.extend(self.tools.variables.iter().map(OsString::from));
        // Keeps git's commit out of the kernel's name. The report has it.
        words.push("LOCALVERSION=".into());
        words.extend(targets.iter().map(OsString::from));
        words
    }

    fn launch(&self, words: &[OsString]) -> io::Result<Launch> {
        let environment = self.environment();
        let mut launch = match self.confinement {
            Some(confinement) => {
                let mut view = View {
                    root: self.tools.root.as_ref().map(|root| root.folder.clone()),
                    read: vec![self.source.to_owned()],
                    write: vec![self.build.to_owned()],
                    environment,
                };
                // A root has its programs where the system has them.
                if self.tools.root.is_none() {
                    view.read.extend(folders_of(&self.tools.programs));
                }
                if let Some(ccache) = &self.ccache {
                    if ccache.write { &mut view.write } else { &mut view.read }
                        .push(ccache.folder.clone());
                }
                confinement.hand_over(&view)?;
                confinement.command(&view, self.build, OsStr::new("make"))?
            }
            None => {
                let mut command = Command::new("make");
                command.env_clear().envs(environment);
                Launch::unconfined(command)
            }
        };
        let jobs = thread::available_parallelism().map_or(1, |cores| cores.get());
        launch
            .command
            .current_dir(self.build)
            // No --output-sync: make would buffer output in /tmp, out of reach of the log limit.
            .args([format!("-j{jobs}"), "--no-print-directory".to_owned()])
            .args(words)
            .stdin(Stdio::null());
        Ok(launch)
    }

    /// The complete environment. It is fixed, so that equal inputs give equal bits.
    fn environment(&self) -> Vec<(&'static str, OsString)> {
        let mut variables: Vec<(&'static str, OsString)> = vec![
            (
                "PATH",
                match self.tools.root {
                    Some(_) => PATH_IN_ROOT.into(),
                    None => env::var_os("PATH").unwrap_or_default(),
                },
            ),
            // A path where nothing can be created. Some programs would create even a missing home.
            ("HOME", "/dev/null".into()),
            ("LC_ALL", "C".into()),
            ("TZ", "UTC".into()),
            ("KBUILD_BUILD_TIMESTAMP", "Thu Jan  1 00:00:00 UTC 1970".into()),
            ("KBUILD_BUILD_USER", "tramplab".into()),
            ("KBUILD_BUILD_HOST", "tramplab".into()),
            ("KBUILD_BUILD_VERSION", "1".into()),
        ];
        let config = self.build.join(CONFIG_FRAGMENT);
        variables.push(("KCONFIG_ALLCONFIG", config.into()));
        // A ccache.conf in the folder could name a program; other builds write there.
        variables.push(("CCACHE_CONFIGPATH", "/dev/null".into()));
        if self.ccache.is_none() {
            variables.push(("CCACHE_DISABLE", "1".into()));
        }
        if let Some(Ccache { folder, write }) = &self.ccache {
            variables.push(("CCACHE_DIR", folder.into()));
            // ccache's folder may be read-only, so temporary files go elsewhere.
            variables.push(("CCACHE_TEMPDIR", self.build.join(".ccache-tmp").into()));
            variables.push(("CCACHE_MAXSIZE", "5G".into()));
            // No CCACHE_BASEDIR: it makes the paths in `__FILE__` relative and so changes the
            // image.
            if !write {
                variables.push(("CCACHE_READONLY", "1".into()));
                variables.push(("CCACHE_NOSTATS", "1".into()));
            }
        }
        variables
    }
}

/// Name of the file, in the build folder, that answers `allnoconfig`.
pub const CONFIG_FRAGMENT: &str = ".tramplab.config";

/// True for a line in which kbuild reports a step: `  CC      kernel/fork.o`, two blanks and a word
/// in capitals.
fn is_step(line: &str) -> bool {
    let Some(rest) = line.strip_prefix("  ") else { return false };
    let Some((word, rest)) = rest.split_once(' ') else { return false };
    let capital = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_';
    !word.is_empty()
        && word.starts_with(|c: char| c.is_ascii_uppercase())
        && word.chars().all(capital)
        && {
            let rest = rest.trim_start();
            !rest.is_empty()
        }
}

/// The same for a dry run, which prints commands: `set -e;  echo '  CC      kernel/fork.o'; gcc …`.
fn is_dry_step(line: &str) -> bool {
    line.split_once("echo '")
        .is_some_and(|(_, rest)| is_step(rest.split('\'').next().unwrap_or_default()))
}

/// Counts the steps in a growing log.
struct Counter {
    log: File,
    steps: u64,
    /// The current incomplete line. Lines beyond the limit are not steps.
    partial: Vec<u8>,
}

impl Counter {
    fn new(mut log: File, start: u64) -> io::Result<Counter> {
        io::Seek::seek(&mut log, io::SeekFrom::Start(start))?;
        Ok(Counter { log, steps: 0, partial: Vec::new() })
    }

    /// Reads up to the current end. A log may grow faster than it is read.
    fn read(&mut self) -> io::Result<u64> {
        const LINE: usize = 1024;
        let mut buffer = [0; 64 << 10];
        let end = self.log.metadata()?.len();
        while io::Seek::stream_position(&mut self.log)? < end {
            let length = self.log.read(&mut buffer)?;
            if length == 0 {
                break;
            }
            for piece in buffer[..length].split_inclusive(|byte| *byte == b'\n') {
                let room = LINE.saturating_sub(self.partial.len());
                self.partial.extend_from_slice(&piece[..piece.len().min(room)]);
                if piece.ends_with(b"\n") {
                    self.steps += u64::from(is_step(&String::from_utf8_lossy(&self.partial)));
                    self.partial.clear();
                }
            }
        }
        Ok(self.steps)
    }
}

/// Fails if the disk of the folder or the log is nearly full.
pub fn require_reserve(folder: &Path, log: &Path) -> Result<(), CacheError> {
    cache::require_room(log.parent().unwrap_or(Path::new("/")), RESERVE)?;
    cache::require_room(folder, RESERVE)
}

fn unless_broken(flow: ControlFlow<()>) -> Result<(), MakeError> {
    if flow.is_break() { Err(MakeError::Interrupted) } else { Ok(()) }
}

/// Runs a command in its own process group until it ends, `tick` fails, the time is over, a disk is
/// full or the log too long.
fn supervise(
    launch: Launch,
    tick: &mut dyn FnMut() -> Result<(), MakeError>,
    log: &Path,
    start: u64,
) -> Result<ExitStatus, MakeError> {
    let folder = launch.command.get_current_dir().unwrap_or(Path::new("/")).to_owned();
    let mut running = launch.start()?;
    let end = Instant::now() + LIMIT;
    let mut pause = Duration::from_millis(1);
    loop {
        if let Some(status) = running.try_wait()? {
            return Ok(status);
        }
        // Checks the limits first: they bound how much `tick` reads.
        if Instant::now() >= end {
            return Err(MakeError::Deadline);
        }
        require_reserve(&folder, log)?;
        if fs::metadata(log)?.len().saturating_sub(start) > LOG_LIMIT {
            return Err(MakeError::LogTooLong);
        }
        tick()?;
        thread::sleep(pause);
        pause = (pause * 2).min(TICK);
    }
}

/// True if a signal from outside ended the program, such as Ctrl-C in its terminal.
pub fn was_interrupted(status: ExitStatus) -> bool {
    [status.signal(), status.code().map(|code| code - 128)]
        .into_iter()
        .flatten()
        .any(|number| [libc::SIGINT, libc::SIGTERM, libc::SIGHUP].contains(&number))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    struct Tree(tempfile::TempDir, Tools);

    impl Tree {
        fn new(makefile: &str) -> Tree {
            let folder = tempfile::tempdir().unwrap();
            for name in ["src", "build"] {
                fs::create_dir(folder.path().join(name)).unwrap();
            }
            fs::write(folder.path().join("src/Makefile"), makefile).unwrap();
            let tools = Tools {
                variables: vec!["CC=cc".into()],
                identity: vec![],
                programs: vec![],
                root: None,
                ccache: false,
            };
            Tree(folder, tools)
        }

        fn run(
            &self,
            step: &mut dyn FnMut(u64) -> ControlFlow<()>,
        ) -> (Result<u64, MakeError>, String) {
            let path = |name: &str| self.0.path().join(name);
            let (source, build, log) = (path("src"), path("build"), path("log"));
            let make = Make {
                tools: &self.1,
                confinement: None,
                source: &source,
                build: &build,
                ccache: None,
                log: &log,
            };
            let result = make.run(&["all"], step);
            let mut text = String::new();
            File::open(&log).unwrap().take(4096).read_to_string(&mut text).unwrap();
            (result, text)
        }
    }

    fn go_on(_: u64) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }

    #[test]
    fn counts_steps_and_reports_failure() {
        let steps = "\t@echo '  CC      a.o'; echo '  CC [M]  b.o'; echo '  AR      built-in.a'; \
                     echo ' no'; echo '  no step'\n";
        let tree = Tree::new(&format!("all:\n{steps}"));
        let mut seen = 0;
        let (result, log) = tree.run(&mut |done| {
            seen = done;
            go_on(done)
        });
        assert_eq!(result.unwrap(), 3, "{log}");
        assert!(seen <= 3);
        // The log is appended to, and earlier steps are not counted again.
        assert_eq!(tree.run(&mut go_on).0.unwrap(), 3);
        let (result, log) = Tree::new("all:\n\t@echo why >&2; exit 3\n").run(&mut go_on);
        assert!(matches!(result, Err(MakeError::Failed(status)) if !was_interrupted(status)));
        assert!(log.contains("why\n"), "{log}");
    }

    #[test]
    fn hides_callers_environment() {
        let (result, log) = Tree::new("all:\n\t@env\n").run(&mut go_on);
        result.unwrap();
        assert!(
            log.contains("KBUILD_BUILD_USER=tramplab") && log.contains("HOME=/dev/null"),
            "{log}"
        );
        // Cargo sets this for tests.
        assert!(
            env::var_os("CARGO_MANIFEST_DIR").is_some() && !log.contains("CARGO_MANIFEST_DIR"),
            "{log}"
        );
    }

    /// Another build may write there.
    #[test]
    fn no_ccache_conf_of_the_cache_names_a_program() {
        if tramplab_host::program::in_path("ccache").is_none() {
            eprintln!("skipped: ccache is not installed");
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let (cache, ran) = (folder.path().join("ccache"), folder.path().join("ran"));
        fs::create_dir(&cache).unwrap();
        let program = folder.path().join("program");
        fs::write(&program, format!("#!/bin/sh\ntouch {}; exec \"$@\"\n", ran.display())).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        let hostile = format!("prefix_command = {}\n", program.display());
        fs::write(cache.join("ccache.conf"), hostile).unwrap();
        let compile = |ccache: Option<Ccache>| {
            let tree = Tree::new(
                "all:\n\t@echo 'int a;' > $(O)/a.c; ccache gcc -c $(O)/a.c -o $(O)/a.o\n",
            );
            let path = |name: &str| tree.0.path().join(name);
            let make = Make {
                tools: &tree.1,
                confinement: None,
                source: &path("src"),
                build: &path("build"),
                ccache,
                log: &path("log"),
            };
            make.run(&["all"], &mut go_on).unwrap();
            assert!(path("build/a.o").exists());
        };
        compile(Some(Ccache { folder: cache.clone(), write: true }));
        compile(None);
        assert!(!ran.exists());
        // The trap works.
        let mut plain = Command::new("ccache");
        plain.env("CCACHE_DIR", &cache).current_dir(folder.path());
        fs::write(folder.path().join("b.c"), "int b;").unwrap();
        assert!(plain.args(["gcc", "-c", "b.c"]).status().unwrap().success() && ran.exists());
    }

    #[test]
    fn interrupted_make_leaves_no_process() {
        let beat = "while :; do date +%N > $(O)/beat; sleep 0.02; done";
        let tree = Tree::new(&format!("all:\n\t@trap '' TERM; ({beat}) & {beat}\n"));
        let file = tree.0.path().join("build/beat");
        let (result, _) = tree.run(&mut |_| {
            if file.exists() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        assert!(matches!(result, Err(MakeError::Interrupted)), "{result:?}");
        let last = fs::read(&file).unwrap();
        thread::sleep(Duration::from_millis(200));
        assert_eq!(fs::read(&file).unwrap(), last);
    }

    #[test]
    fn endless_log_ends_build() {
        let (result, _) = Tree::new("all:\n\t@exec yes\n").run(&mut go_on);
        assert!(matches!(result, Err(MakeError::LogTooLong)), "{result:?}");
    }

    #[test]
    fn recognizes_kbuild_steps() {
        for (line, is) in [
            ("  CC      kernel/fork.o", true),
            ("  LD [M]  a.ko", true),
            ("  AR", false),
            ("  cc      x", false),
            (" CC x", false),
            ("make[1]: Entering", false),
            ("", false),
        ] {
            assert_eq!(is_step(line), is, "{line}");
            assert_eq!(is_dry_step(&format!("set -e;  echo '{line}'; gcc -c x.c")), is, "{line}");
        }
    }
}
