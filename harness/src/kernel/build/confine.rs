// SPDX-License-Identifier: MIT OR Apache-2.0
//! A series comes from strangers, and a Makefile is a program: builds run under bubblewrap. They see the system's
//! programs, the sources (read-only) and their build folder; no network, no home, no environment, no other process.

use crate::host::child;
use std::{
    env,
    ffi::{OsStr, OsString},
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

const PROBE_LIMIT: Duration = Duration::from_secs(20);

/// All that a build may see of `/`. Merely listing what to hide would show what nobody thought of.
const SYSTEM: [&str; 8] = ["/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/nix/store"];

/// Of `/etc` what the dynamic linker and Debian's alternatives take.
const ETC: [&str; 4] = ["/etc/alternatives", "/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d"];

/// A bubblewrap that works here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Confinement {
    program: PathBuf,
}

/// What one child sees besides the system.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct View {
    pub read: Vec<PathBuf>,
    pub write: Vec<PathBuf>,
    /// The whole environment.
    pub environment: Vec<(&'static str, OsString)>,
}

#[derive(Debug, thiserror::Error)]
#[error(
    "failed to confine the build: {reason}; install the Debian package bubblewrap and allow user namespaces \
     (sysctl kernel.apparmor_restrict_unprivileged_userns=0, or a profile for bwrap)"
)]
pub struct Unconfined {
    pub reason: String,
}

impl Confinement {
    /// Tries it: bubblewrap may be installed where the kernel or a container forbids user namespaces.
    pub fn probe() -> Result<Confinement, Unconfined> {
        let confinement = Confinement { program: PathBuf::from("bwrap") };
        let mut command = confinement.command(&View::default(), Path::new("/"), OsStr::new("true"));
        match child::run(&mut command, PROBE_LIMIT) {
            Ok(_) => Ok(confinement),
            Err(error) => Err(Unconfined { reason: reason(&error) }),
        }
    }

    /// `program` in the confinement, in the folder `cwd`; its arguments can be added.
    pub fn command(&self, view: &View, cwd: &Path, program: &OsStr) -> Command {
        let mut command = Command::new(&self.program);
        command.args(arguments(view, cwd)).arg("--").arg(program);
        command
    }
}

fn reason(error: &child::ChildError) -> String {
    match error {
        child::ChildError::Start { source, .. } => format!("bwrap does not start ({source})"),
        child::ChildError::Deadline { .. } => "bwrap hangs".to_owned(),
        child::ChildError::Failed { status, stderr, .. } => match stderr.lines().next() {
            Some(line) => format!("bwrap does not work here ({})", line.trim_start_matches("bwrap: ")),
            None => format!("bwrap does not work here ({status})"),
        },
    }
}

/// bubblewrap's arguments. Later mounts cover earlier ones, so what is bound comes after what is hidden.
fn arguments(view: &View, cwd: &Path) -> Vec<OsString> {
    let mut words: Vec<OsString> = [
        "--unshare-all",
        // Started by root, bubblewrap would leave its powers to the child, and with them the mounts.
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
    for (name, value) in &view.environment {
        words.extend(["--setenv".into(), (*name).into(), value.clone()]);
    }
    for folder in SYSTEM {
        match fs::read_link(folder) {
            // Merged /usr.
            Ok(target) => words.extend(["--symlink".into(), target.into(), folder.into()]),
            Err(_) => words.extend(["--ro-bind-try", folder, folder].map(OsString::from)),
        }
    }
    for file in ETC {
        words.extend(["--ro-bind-try", file, file].map(OsString::from));
    }
    words.extend(["--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp"].map(OsString::from));
    for (option, paths) in [("--ro-bind", &view.read), ("--bind", &view.write)] {
        for path in paths {
            words.extend([option.into(), path.into(), path.into()]);
        }
    }
    words.extend(["--chdir".into(), cwd.into()]);
    words
}

/// The folders to show for programs outside the system's folders: `/opt/llvm` for `/opt/llvm/bin/clang`.
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
    // `~/bin/gcc` must not show the home, nor `/home/somebody/gcc` all homes.
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        io::Read,
        net::TcpListener,
        process::{Child, Stdio},
        thread,
        time::Instant,
    };

    #[test]
    fn nothing_is_shown_that_is_not_named() {
        let view = View {
            read: vec!["/home/me/src".into()],
            write: vec!["/home/me/build".into()],
            environment: vec![("LC_ALL", "C".into())],
        };
        let words = arguments(&view, Path::new("/home/me/build"));
        let words: Vec<_> = words.iter().map(|word| word.to_str().unwrap()).collect();
        let writable: Vec<_> =
            words.windows(3).filter(|words| words[0] == "--bind").map(|words| words[1]).collect();
        assert_eq!(writable, ["/home/me/build"]);
        for option in ["--unshare-all", "--die-with-parent", "--new-session", "--clearenv"] {
            assert!(words.contains(&option), "{option}");
        }
        assert!(!words.contains(&"--share-net"));
        assert!(words.windows(2).any(|words| words == ["--cap-drop", "ALL"]));
        let shown = words.windows(3).filter(|words| words[0].starts_with("--ro-bind")).map(|words| words[1]);
        for path in shown {
            let allowed = path.starts_with("/etc/") || path == "/home/me/src" || SYSTEM.contains(&path);
            assert!(allowed && path != "/etc/shadow", "{path}");
        }
        // A cache in /tmp: shown after /tmp is hidden.
        let at = |word| words.iter().position(|other| *other == word).unwrap();
        assert!(at("--tmpfs") < at("/home/me/src"));
    }

    #[test]
    fn a_compiler_elsewhere_is_shown_and_the_home_is_not() {
        let home = Some(Path::new("/home/me"));
        for (program, expected) in [
            ("/usr/bin/gcc-13", None),
            ("/nix/store/x-gcc/bin/gcc", None),
            ("/opt/llvm/bin/clang", Some("/opt/llvm")),
            ("/home/me/x-tools/bin/gcc", Some("/home/me/x-tools")),
            ("/home/me/bin/gcc", Some("/home/me/bin/gcc")),
            ("/home/you/bin/gcc", Some("/home/you/bin/gcc")),
            ("/home/bin/gcc", Some("/home/bin/gcc")),
            ("/opt/bin/gcc", Some("/opt/bin/gcc")),
            ("/srv/gcc", Some("/srv/gcc")),
        ] {
            assert_eq!(folder_of(Path::new(program), home), expected.map(PathBuf::from), "{program}");
        }
    }

    /// None where bubblewrap does not work: the reason then has been shown to be one.
    fn confinement() -> Option<Confinement> {
        match Confinement::probe() {
            Ok(confinement) => Some(confinement),
            Err(error) => {
                assert!(error.to_string().contains("bwrap"), "{error}");
                eprintln!("skipped: {error}");
                None
            }
        }
    }

    /// The script's output and whether it ended well. Each hostile act is also done outside, where it succeeds.
    fn sh(confinement: &Confinement, view: &View, cwd: &Path, script: &str) -> (bool, String) {
        let mut command = confinement.command(view, cwd, OsStr::new("sh"));
        let (status, output) = child::finish(command.args(["-c", script]), Duration::from_secs(60)).unwrap();
        (status.success(), output.stdout + &output.stderr)
    }

    #[test]
    fn a_confined_child_reads_and_writes_what_it_is_shown_only() {
        let Some(confinement) = confinement() else { return };
        let folder = tempfile::tempdir().unwrap();
        let root = fs::canonicalize(folder.path()).unwrap();
        for name in ["src", "build", "secret"] {
            fs::create_dir(root.join(name)).unwrap();
            fs::write(root.join(name).join("file"), name).unwrap();
        }
        let view = View {
            read: vec![root.join("src")],
            write: vec![root.join("build")],
            environment: vec![("PATH", "/usr/bin:/bin".into())],
        };
        let sh = |script: &str| sh(&confinement, &view, &root.join("build"), script);
        let root = root.display();

        let script = format!("cat {root}/src/file && echo new > {root}/build/new && pwd && echo x > /tmp/x");
        let (well, output) = sh(&script);
        assert!(well, "{output}");
        assert_eq!(output, format!("src{root}/build\n"));
        assert_eq!(fs::read_to_string(format!("{root}/build/new")).unwrap(), "new\n");

        for script in [
            format!("echo x > {root}/src/file"),
            format!("rm {root}/src/file"),
            format!("cat {root}/secret/file"),
            "ls /root".to_owned(),
            "ls /home".to_owned(),
            "ls /var".to_owned(),
            "ls /run".to_owned(),
            "cat /etc/shadow".to_owned(),
            "echo x > /usr/tramplab-was-here".to_owned(),
            format!("mount -o remount,rw,bind {root}/src && echo x > {root}/src/file"),
            "mount -o remount,rw,bind /usr && echo x > /usr/tramplab-was-here".to_owned(),
            "unshare -Urm sh -c 'mount -o remount,rw,bind /usr' && echo x > /usr/tramplab-was-here"
                .to_owned(),
            "ls /dev/vda || ls /dev/sda || ls /dev/mem || ls /dev/kvm".to_owned(),
        ] {
            let (well, output) = sh(&script);
            assert!(!well, "{script}: {output}");
        }
        assert_eq!(fs::read_to_string(format!("{root}/src/file")).unwrap(), "src");
        assert!(!Path::new("/usr/tramplab-was-here").exists());
        // What was written to its /tmp is nowhere.
        assert!(!Path::new("/tmp/x").exists() || fs::read_to_string("/tmp/x").unwrap() != "x\n");
    }

    #[test]
    fn a_confined_child_has_no_network_no_environment_and_sees_no_process() {
        let Some(confinement) = confinement() else { return };
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let connect = format!("exec 3<>/dev/tcp/127.0.0.1/{port}");
        let here = child::run(Command::new("bash").args(["-c", &connect]), Duration::from_secs(20));
        here.expect("reachable from outside");
        let mut command = confinement.command(
            &View { environment: vec![("PATH", "/usr/bin:/bin".into())], ..View::default() },
            Path::new("/"),
            OsStr::new("bash"),
        );
        command.env("TRAMPLAB_SECRET", "hunter2");
        let script =
            format!("env; ls /sys/class/net /proc/net/dev; cat /proc/net/dev; echo /proc/[0-9]*; {connect}");
        let (status, output) = child::finish(command.args(["-c", &script]), Duration::from_secs(20)).unwrap();
        assert!(!status.success(), "{output:?}");
        assert!(output.stderr.contains("127.0.0.1"), "{output:?}");
        assert!(
            !output.stdout.contains("hunter2") && output.stdout.contains("PATH=/usr/bin:/bin"),
            "{output:?}"
        );
        let own = format!("/proc/{} ", std::process::id());
        assert!(output.stdout.contains("/proc/1 ") && !output.stdout.contains(&own), "{output:?}");
    }

    /// A shell stands for tramplab: when it is killed, so is what it had bubblewrap run.
    #[test]
    fn a_confined_child_dies_with_its_parent() {
        let Some(confinement) = confinement() else { return };
        let folder = tempfile::tempdir().unwrap();
        let root = fs::canonicalize(folder.path()).unwrap();
        let view = View {
            write: vec![root.clone()],
            environment: vec![("PATH", "/usr/bin:/bin".into())],
            ..View::default()
        };
        let script = "trap '' TERM INT HUP; (while :; do date +%N > beat; sleep 0.02; done) & wait";
        let mut command = confinement.command(&view, &root, OsStr::new("sh"));
        command.args(["-c", script]);
        let words = std::iter::once(command.get_program()).chain(command.get_args());
        let line = shell_words::join(words.map(|word| word.to_string_lossy()));
        let mut parent: Child = Command::new("sh")
            .args(["-c", &format!("{line}; true")])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let beat = root.join("beat");
        let end = Instant::now() + Duration::from_secs(30);
        while !beat.exists() && Instant::now() < end {
            thread::sleep(Duration::from_millis(10));
        }
        assert!(beat.exists(), "it runs");
        parent.kill().unwrap();
        parent.wait().unwrap();
        // Its output is closed when the last of its processes is gone.
        parent.stdout.take().unwrap().read_to_end(&mut Vec::new()).unwrap();
        let last = fs::read(&beat).unwrap();
        thread::sleep(Duration::from_millis(200));
        assert_eq!(fs::read(&beat).unwrap(), last);
    }
}
