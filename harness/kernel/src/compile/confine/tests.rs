// SPDX-License-Identifier: MIT OR Apache-2.0
//! Each hostile act runs inside and, if possible, also outside, where it succeeds.

use super::*;
use nix::{
    fcntl::{AT_FDCWD, RenameFlags, renameat2},
    unistd::getuid,
};
use std::{
    io::Read,
    net::TcpListener,
    os::{
        fd::AsRawFd,
        unix::fs::{MetadataExt, PermissionsExt, symlink},
    },
    process::{Child, Stdio},
    sync::atomic::{AtomicBool, Ordering},
    time::Instant,
};

const LIMIT: Duration = Duration::from_secs(60);

#[test]
fn arguments_show_and_allow_only_what_is_named() {
    let view = View {
        root: None,
        read: vec!["/home/me/src".into()],
        write: vec!["/home/me/build".into()],
        environment: vec![("LC_ALL", "C".into())],
    };
    for way in [Way::Become, Way::Namespace] {
        let words = arguments(way, &view, Path::new("/home/me/build"));
        let words: Vec<_> = words.iter().map(|word| word.to_str().unwrap()).collect();
        let pairs: Vec<_> = words.windows(3).collect();
        let writable: Vec<_> =
            pairs.iter().filter(|words| words[0] == "--bind").map(|words| words[1]).collect();
        assert_eq!(writable, ["/home/me/build"]);
        for option in ["--unshare-net", "--unshare-pid", "--die-with-parent", "--clearenv"] {
            assert!(words.contains(&option), "{option}");
        }
        assert!(words.windows(2).any(|words| words == ["--cap-drop", "ALL"]));
        let shown = pairs.iter().filter(|words| words[0].starts_with("--ro-bind"));
        for path in shown.map(|words| words[1]) {
            let allowed =
                path.starts_with("/etc/") || path == "/home/me/src" || SYSTEM.contains(&path);
            assert!(allowed && path != "/etc/shadow", "{path}");
        }
        // A cache in /tmp is bound after /tmp is hidden and before / becomes read-only.
        let at = |word| words.iter().position(|other| *other == word).unwrap();
        assert!(at("--tmpfs") < at("/home/me/src"));
        assert!(at("/home/me/src") < at("--remount-ro"));
    }
}

/// Nothing of the host's system is seen beside a root.
#[test]
fn a_root_replaces_the_whole_system() {
    let root = tempfile::tempdir().unwrap();
    fs::create_dir_all(root.path().join("usr/bin")).unwrap();
    symlink("usr/bin", root.path().join("bin")).unwrap();
    let words = arguments(Way::Namespace, &View::of_root(root.path()), Path::new("/"));
    let words: Vec<_> = words.iter().map(|word| word.to_str().unwrap()).collect();
    let binds = words.windows(3).filter(|words| words[0].starts_with("--ro-bind"));
    let binds: Vec<_> = binds.map(|words| (Path::new(words[1]), words[2])).collect();
    assert!(binds.contains(&(&root.path().join("usr"), "/usr")), "{binds:?}");
    assert!(binds.iter().all(|(from, _)| from.starts_with(root.path())), "{binds:?}");
    assert!(words.windows(3).any(|words| words == ["--symlink", "usr/bin", "/bin"]));
    assert!(words.windows(3).any(|words| words == ["--setenv", "PATH", PATH_IN_ROOT]));
}

#[test]
fn shows_foreign_compiler_but_not_the_home() {
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

/// Returns all ways that work on this host. Prints the reason if none does.
fn confinements() -> Vec<Confinement> {
    match Confinement::probe() {
        Ok(found) => {
            let ways =
                [Way::Become, Way::Namespace].map(|way| Confinement { way, ..found.clone() });
            ways.into_iter().filter(|confinement| confinement.try_out().is_ok()).collect()
        }
        Err(error) => {
            assert!(error.to_string().contains("bwrap"), "{error}");
            eprintln!("skipped: {error}");
            Vec::new()
        }
    }
}

/// Alpine has only /bin/true, NixOS neither.
#[test]
fn is_tried_out_on_a_host_without_usr_bin_true() {
    const INSIDE: &str = "TRAMPLAB_WITHOUT_TRUE";
    if env::var_os(INSIDE).is_some() {
        Confinement::probe().unwrap();
        return;
    }
    if confinements().is_empty() {
        return;
    }
    let mut command = Command::new("bwrap");
    command.args(["--dev-bind", "/", "/", "--ro-bind", "/dev/null", "/usr/bin/true"]);
    command.args(["--setenv", INSIDE, "1"]).arg(env::current_exe().unwrap());
    let name = "compile::confine::tests::is_tried_out_on_a_host_without_usr_bin_true";
    let (status, output) = child::finish(command.args(["--exact", name]), LIMIT).unwrap();
    let said = output.stdout + &output.stderr;
    assert!(status.success() && said.contains("1 passed"), "{said}");
}

fn path() -> View {
    View { environment: vec![("PATH", "/usr/bin:/bin".into())], ..View::default() }
}

/// Runs a script. Returns true on success, and its output.
fn sh(confinement: &Confinement, view: &View, cwd: &Path, script: &str) -> (bool, String) {
    confinement.hand_over(view).unwrap();
    let mut launch = confinement.command(view, cwd, OsStr::new("bash")).unwrap();
    let (status, output) = child::finish(launch.command.args(["-c", script]), LIMIT).unwrap();
    (status.success(), output.stdout + &output.stderr)
}

fn outside(script: &str) -> (bool, String) {
    let (status, output) = child::finish(Command::new("bash").args(["-c", script]), LIMIT).unwrap();
    (status.success(), output.stdout + &output.stderr)
}

#[test]
fn reads_and_writes_only_what_is_shown() {
    for confinement in confinements() {
        let folder = tempfile::tempdir().unwrap();
        let root = fs::canonicalize(folder.path()).unwrap();
        for name in ["src", "build", "secret"] {
            fs::create_dir(root.join(name)).unwrap();
            fs::write(root.join(name).join("file"), name).unwrap();
        }
        // Sources of somebody with a umask of 077.
        for (name, mode) in [("src", 0o700), ("src/file", 0o600)] {
            fs::set_permissions(root.join(name), fs::Permissions::from_mode(mode)).unwrap();
        }
        let view = View { read: vec![root.join("src")], write: vec![root.join("build")], ..path() };
        let sh = |script: &str| sh(&confinement, &view, &root.join("build"), script);
        let root = root.display();

        let script = format!(
            "cat {root}/src/file && echo new > {root}/build/file && pwd && \
             echo x > /tmp/tramplab-was-here"
        );
        let (well, output) = sh(&script);
        assert!(well, "{confinement:?}: {output}");
        assert_eq!(output, format!("src{root}/build\n"));
        assert_eq!(fs::read_to_string(format!("{root}/build/file")).unwrap(), "new\n");

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
            "echo x > /tramplab-was-here".to_owned(),
            "echo x > /dev/tramplab-was-here".to_owned(),
            format!("mount -o remount,rw,bind {root}/src && echo x > {root}/src/file"),
            "mount -o remount,rw,bind /usr && echo x > /usr/tramplab-was-here".to_owned(),
            "unshare -Urm true".to_owned(),
            "ls /dev/vda || ls /dev/sda || ls /dev/mem || ls /dev/kvm".to_owned(),
        ] {
            let (well, output) = sh(&script);
            assert!(!well, "{confinement:?}: {script}: {output}");
        }
        assert_eq!(fs::read_to_string(format!("{root}/src/file")).unwrap(), "src");
        assert!(!Path::new("/usr/tramplab-was-here").exists());
        // The sandbox's /tmp is gone.
        assert!(!Path::new("/tmp/tramplab-was-here").exists());
    }
}

/// kbuild runs awk. On Debian that is a link through `/etc/alternatives`.
#[test]
fn runs_programs_by_debians_alternatives() {
    let folder = tempfile::tempdir().unwrap();
    let root = fs::canonicalize(folder.path()).unwrap();
    let view = View { write: vec![root.clone()], ..path() };
    for confinement in confinements() {
        let (well, output) = sh(&confinement, &view, &root, "awk 'BEGIN { print 6 * 7 }'");
        assert!(well && output == "42\n", "{confinement:?}: {output}");
    }
}

/// Writes back the current value, so that nothing changes if the defence fails. Root may do it
/// outside.
#[test]
fn writes_nothing_below_proc() {
    let again = |file: &str| format!("value=$(cat {file}) && echo \"$value\" > {file}");
    let pattern = again("/proc/sys/kernel/core_pattern");
    assert_eq!(outside(&pattern).0, getuid().is_root() && is_mapped(0));
    for confinement in confinements() {
        for file in ["/proc/sys/kernel/core_pattern", "/proc/sys/vm/swappiness", "/proc/self/comm"]
        {
            let (well, output) = sh(&confinement, &path(), Path::new("/"), &again(file));
            assert!(!well, "{confinement:?}: {file}: {output}");
        }
        let (well, output) = sh(&confinement, &path(), Path::new("/"), "id -u; id -g");
        assert_eq!((well, output), (true, format!("{BUILDER}\n{BUILDER}\n")), "{confinement:?}");
        let capabilities = "grep -E '^Cap' /proc/self/status";
        let (_, output) = sh(&confinement, &path(), Path::new("/"), capabilities);
        let empty = |line: &str| line.split_whitespace().nth(1) == Some("0000000000000000");
        assert!(output.lines().count() >= 4 && output.lines().all(empty), "{output}");
    }
}

#[test]
fn has_no_network_no_environment_and_sees_no_process() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let connect = format!("exec 3<>/dev/tcp/127.0.0.1/{port}");
    assert!(outside(&connect).0, "reachable from outside");
    // SAFETY: other tests read no variable of this name.
    unsafe { env::set_var("TRAMPLAB_SECRET", "hunter2") };
    assert!(outside("env").1.contains("hunter2"));
    for confinement in confinements() {
        let script = format!(
            "env; cat /proc/[0-9]*/environ; echo /proc/[0-9]*; cat /proc/net/dev; {connect}"
        );
        let (well, output) = sh(&confinement, &path(), Path::new("/"), &script);
        assert!(!well && output.contains("127.0.0.1"), "{output}");
        assert!(!output.contains("hunter2") && output.contains("PATH=/usr/bin:/bin"), "{output}");
        let own = format!("/proc/{} ", std::process::id());
        assert!(output.contains("/proc/1 ") && !output.contains(&own), "{output}");
    }
}

/// An inherited descriptor would give access to its file or folder despite all mounts.
#[test]
fn inherits_no_descriptor() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("secret"), "hunter2").unwrap();
    let opened = [folder.path().join("secret"), folder.path().to_owned()]
        .map(|path| fs::File::open(path).unwrap());
    let numbers = opened.each_ref().map(AsRawFd::as_raw_fd);
    for file in &opened {
        fcntl(file, FcntlArg::F_SETFD(FdFlag::empty())).unwrap();
    }
    let script = format!(
        "exec 2>&1; cat /proc/self/fd/{}; echo x > /proc/self/fd/{}/planted; echo; ls \
         /proc/self/fd",
        numbers[0], numbers[1]
    );
    assert!(outside(&script).1.contains("hunter2"));
    let planted = folder.path().join("planted");
    fs::remove_file(&planted).unwrap();
    for confinement in confinements() {
        let (_, output) = sh(&confinement, &path(), Path::new("/"), &script);
        assert!(!output.contains("hunter2") && !planted.exists(), "{output}");
        // `ls` itself opens the fourth.
        assert!(output.ends_with("\n0\n1\n2\n3\n"), "{output}");
    }
}

/// Makes a raw system call through perl, which every kernel build needs.
fn call(number: libc::c_long, arguments: &str) -> String {
    let script =
        format!("my @a = ({arguments}); print syscall({number}, @a) < 0 ? $! + 0 : \"done\"");
    format!("perl -e {}", shell_words::quote(&script))
}

#[test]
fn refuses_calls_that_namespaces_do_not_hold() {
    let refused = libc::ENOSYS.to_string();
    let keyctl_get_session = "0, -3, 0";
    let mut calls = vec![
        call(libc::SYS_keyctl, keyctl_get_session),
        call(libc::SYS_add_key, "\"user\", \"a\", \"b\", 1, -3"),
        call(libc::SYS_request_key, "\"user\", \"a\", 0, 0"),
        call(libc::SYS_socket, &format!("{}, {}, 0", libc::AF_VSOCK, libc::SOCK_STREAM)),
        call(libc::SYS_bpf, "0, 0, 0"),
        call(libc::SYS_perf_event_open, "0, 0, 0, 0, 0"),
        call(libc::SYS_userfaultfd, "0"),
        call(libc::SYS_io_uring_setup, "1, 0"),
        call(libc::SYS_syslog, "10, 0, 0"),
        call(libc::SYS_unshare, &libc::CLONE_NEWUSER.to_string()),
        call(libc::SYS_setns, "0, 0"),
    ];
    // Skip the calls that this kernel lacks.
    calls.retain(|call| outside(call).1 != refused);
    assert!(calls.len() >= 4, "{calls:?}");
    if cfg!(target_arch = "x86_64") {
        // The same call by its x32 number.
        calls.push(call(libc::SYS_keyctl | 0x4000_0000, keyctl_get_session));
    }
    for confinement in confinements() {
        for call in &calls {
            let (well, output) = sh(&confinement, &path(), Path::new("/"), call);
            assert_eq!((well, &output), (true, &refused), "{confinement:?}: {call}");
        }
        // Calls that a build needs still work.
        for call in [
            call(libc::SYS_socket, &format!("{}, {}, 0", libc::AF_UNIX, libc::SOCK_STREAM)),
            call(libc::SYS_unshare, &libc::CLONE_FS.to_string()),
        ] {
            let (_, output) = sh(&confinement, &path(), Path::new("/"), &call);
            assert_eq!(output, "done", "{confinement:?}: {call}");
        }
    }
}

#[test]
fn is_in_a_session_keyring_of_its_own() {
    // KEYCTL_GET_KEYRING_ID for the session keyring. The filter refuses it, so it runs without
    // bubblewrap.
    let ask = || {
        // SAFETY: no memory is passed.
        unsafe { libc::syscall(libc::SYS_keyctl, 0, -3, 0) }
    };
    let before = ask();
    if before < 0 {
        return eprintln!("skipped: this kernel has no keyrings");
    }
    let left = thread::spawn(move || leave_keyring().map(|()| ask())).join().unwrap().unwrap();
    assert!(left > 0 && left != before, "{left}");
    assert_eq!(ask(), before);
}

#[test]
fn memory_and_processes_have_limits() {
    for confinement in confinements() {
        let sh = |script: &str| sh(&confinement, &path(), Path::new("/"), script);
        for (folder, bytes) in [("/tmp", TMP), ("/dev/shm", SHM)] {
            let script = format!("head -c {} /dev/zero > {folder}/x", bytes + 1);
            let (well, output) = sh(&script);
            assert!(!well && output.contains("No space"), "{confinement:?}: {output}");
        }
        assert_eq!(sh("cat /proc/self/oom_score_adj"), (true, "1000\n".to_owned()));
        let limit = PROCESSES.max(PROCESSES_A_CPU * thread::available_parallelism().unwrap().get());
        assert_eq!(sh("ulimit -u").1, format!("{limit}\n"));
        // Root and its namespace are exempt from the limit. Starts few processes: other confined
        // builds of root's run as the same user.
        if confinement.way == Way::Become || !getuid().is_root() {
            let (_, output) = sh("prlimit --nproc=1 -- sh -c 'sleep 0 & wait'");
            assert!(output.contains("Cannot fork"), "{confinement:?}: {output}");
            let (well, output) = sh("ulimit -u unlimited");
            assert!(!well, "{confinement:?}: {output}");
        }
    }
}

#[test]
fn passes_for_unprivileged_user_too() {
    if !getuid().is_root() || confinements().is_empty() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let program = folder.path().join("tests");
    fs::copy(env::current_exe().unwrap(), &program).unwrap();
    let mut command = Command::new("setpriv");
    command
        .args(["--reuid=65534", "--regid=65534", "--clear-groups", "--"])
        .arg(&program)
        .arg("compile::confine::")
        .env("TMPDIR", folder.path())
        .current_dir(folder.path());
    let (status, output) = child::finish(&mut command, 10 * LIMIT).unwrap();
    let output = output.stdout + &output.stderr;
    assert!(status.success(), "{output}");
    let ran = output.lines().filter(|line| line.ends_with("... ok")).count();
    assert!(ran >= 8 && output.contains("0 failed"), "{output}");
}

/// A shell plays tramplab. When it is killed, bubblewrap's child dies too.
#[test]
fn dies_with_its_parent() {
    let Some(confinement) = confinements().pop() else { return };
    let folder = tempfile::tempdir().unwrap();
    let root = fs::canonicalize(folder.path()).unwrap();
    let view = View { write: vec![root.clone()], ..path() };
    let script = "trap '' TERM INT HUP; (while :; do date +%N > beat; sleep 0.02; done) & wait";
    confinement.hand_over(&view).unwrap();
    let mut launch = confinement.command(&view, &root, OsStr::new("sh")).unwrap();
    let command = launch.command.args(["-c", script]);
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let mut words: Vec<_> = words.map(|word| word.to_string_lossy()).collect();
    // The shell inherits no descriptor.
    for option in ["--seccomp", "--info-fd"] {
        let at = words.iter().position(|word| word == option).unwrap();
        words.drain(at..at + 2);
    }
    let line = shell_words::join(words);
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
    // The pipe closes when the last process is gone.
    parent.stdout.take().unwrap().read_to_end(&mut Vec::new()).unwrap();
    let last = fs::read(&beat).unwrap();
    thread::sleep(Duration::from_millis(200));
    assert_eq!(fs::read(&beat).unwrap(), last);
}

/// Root's confinement, as far as handing over goes. None for a user, whose folders need none.
fn roots() -> Option<Confinement> {
    let is_needed = getuid().is_root() && is_mapped(BUILDER);
    is_needed.then(|| Confinement { program: "bwrap".into(), way: Way::Become })
}

/// Folders to hand over, and files outside that nobody else may read.
struct Outside {
    dir: tempfile::TempDir,
}

impl Outside {
    const FILES: usize = 500;

    fn new() -> Outside {
        let outside = Outside { dir: tempfile::tempdir().unwrap() };
        fs::create_dir(outside.path("shared")).unwrap();
        for (name, mode) in [("secrets", 0o600), ("shared/folder", 0o644)] {
            fs::create_dir(outside.path(name)).unwrap();
            for number in 0..Outside::FILES {
                let path = outside.path(name).join(number.to_string());
                fs::write(&path, "").unwrap();
                fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
            }
        }
        outside
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Hands the folder `shared` over, to be read and to be written.
    fn hand_over(&self, confinement: &Confinement) -> [io::Result<()>; 2] {
        let shared = || vec![self.path("shared")];
        [View { read: shared(), ..View::default() }, View { write: shared(), ..View::default() }]
            .map(|view| confinement.hand_over(&view))
    }

    fn require_untouched(&self) {
        for file in fs::read_dir(self.path("secrets")).unwrap() {
            let state = file.unwrap().metadata().unwrap();
            assert_eq!((state.uid(), state.gid(), state.mode() & 0o777), (0, 0, 0o600));
        }
    }
}

/// Another thread plays a build that exchanges a folder for a link while root walks there.
#[test]
fn hands_over_no_file_that_a_link_leads_to() {
    let Some(confinement) = roots() else {
        return eprintln!("skipped: only root hands folders over");
    };
    let outside = Outside::new();
    let [folder, link] = ["shared/folder", "shared/link"].map(|name| outside.path(name));
    symlink(outside.path("secrets"), &link).unwrap();
    let ended = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let exchange = RenameFlags::RENAME_EXCHANGE;
            while !ended.load(Ordering::Relaxed) {
                renameat2(AT_FDCWD, &folder, AT_FDCWD, &link, exchange).unwrap();
            }
        });
        for _ in 0..20 {
            // It may fail: the entry that it opens may be a link by then.
            let _ = outside.hand_over(&confinement);
        }
        ended.store(true, Ordering::Relaxed);
    });
    outside.require_untouched();
}

#[test]
fn hands_over_no_hard_link_and_no_endless_folder() {
    let Some(confinement) = roots() else {
        return eprintln!("skipped: only root hands folders over");
    };
    let outside = Outside::new();
    for result in outside.hand_over(&confinement) {
        result.unwrap();
    }
    let own = fs::metadata(outside.path("shared/folder/0")).unwrap();
    assert_eq!((own.uid(), own.gid()), (BUILDER, BUILDER));
    let link = outside.path("shared/folder/link");
    fs::hard_link(outside.path("secrets/0"), &link).unwrap();
    for result in outside.hand_over(&confinement) {
        let error = result.unwrap_err().to_string();
        assert!(error.contains(link.to_str().unwrap()), "{error}");
    }
    outside.require_untouched();
    fs::remove_file(link).unwrap();
    // Each level takes a descriptor.
    fs::create_dir_all(outside.path("shared").join("d/".repeat(1000))).unwrap();
    for result in outside.hand_over(&confinement) {
        result.unwrap_err();
    }
}

/// The command lines and environments of all processes.
fn environments() -> impl Iterator<Item = String> {
    let processes = fs::read_dir("/proc").unwrap().flatten().map(|entry| entry.path());
    let files = processes.flat_map(|folder| ["cmdline", "environ"].map(|name| folder.join(name)));
    files.filter_map(|file| Some(String::from_utf8_lossy(&fs::read(file).ok()?).into_owned()))
}

/// The program ends first. What it left could write while its results are read.
#[test]
fn ends_with_everything_in_the_sandbox() {
    for confinement in confinements() {
        let folder = tempfile::tempdir().unwrap();
        let root = fs::canonicalize(folder.path()).unwrap();
        let mut view = View { write: vec![root.clone()], ..path() };
        view.environment.push(("MARK", root.clone().into()));
        confinement.hand_over(&view).unwrap();
        let mut launch = confinement.command(&view, &root, OsStr::new("bash")).unwrap();
        let mark = root.to_str().unwrap();
        let script = "for i in $(seq 300); do sleep 600 & done";
        launch.command.args(["-c", script]).stdin(Stdio::null());
        let mut running = launch.start().unwrap();
        while running.try_wait().unwrap().is_none() {
            thread::sleep(Duration::from_millis(1));
        }
        drop(running);
        let left: Vec<_> = environments().filter(|text| text.contains(mark)).collect();
        assert!(left.is_empty(), "{confinement:?}: {left:?}");
    }
}
