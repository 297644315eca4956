// SPDX-License-Identifier: MIT OR Apache-2.0
//! A series whose build is an attack, through `vm-test --confined --series`, as root and as a user.
//!
//! The tree is small: its Makefile has Linux's targets and copies an image that is there. The
//! series changes a script that the last target runs. make's log tells what the attack reached.

use crate::command::{said, stored, tramplab};
use nix::unistd::{Pid, Uid, geteuid};
use std::{
    collections::BTreeSet,
    fs,
    os::{fd::AsRawFd, unix::process::CommandExt},
    path::PathBuf,
    process::{Command, Output, Stdio},
};
use tramplab_host::{Cache, process_tree::family, runs::RunDir};
use tramplab_model::run::{Arch, ErrorKind, Outcome, Test};

const SUITE: &str = "name: t\ndescription: d\nkernels: [\"6.12\"]\ntests:\n  \
                     - lbr_waste: { mechanisms: [fentry] }\n";

const MAKEFILE: &str = "\
VERSION = 6
PATCHLEVEL = 12
.PHONY: bzImage Image
allnoconfig:
\tcp $(KCONFIG_ALLCONFIG) $(O)/.config
prepare:
\t@echo '  GEN     prepared'
bzImage: $(O)/arch/x86/boot/bzImage
Image: $(O)/arch/arm64/boot/Image
$(O)/arch/x86/boot/bzImage $(O)/arch/arm64/boot/Image: image attack.sh
\t@sh attack.sh $(O)
\t@mkdir -p $(@D)
\tcp image $@
";

/// The user that runs tramplab.
#[derive(Clone, Copy, Debug)]
enum Caller {
    Own,
    /// Another user id without capabilities, in a user namespace. It can still read root's files.
    User,
}

struct Scene {
    dir: tempfile::TempDir,
}

impl Scene {
    fn new(attack: &str) -> Scene {
        let scene = Scene { dir: tempfile::tempdir().unwrap() };
        for folder in ["tree", "series", "tmp"] {
            fs::create_dir(scene.path(folder)).unwrap();
        }
        let tree = scene.path("tree");
        let kernel =
            std::env::var_os("TRAMPLAB_TEST_KERNEL_X86_64").expect("run `cargo xtask test`");
        fs::copy(kernel, tree.join("image")).unwrap();
        for (name, text) in
            [("Makefile", MAKEFILE), ("Kbuild", ""), ("Kconfig", ""), ("attack.sh", "exit 0\n")]
        {
            fs::write(tree.join(name), text).unwrap();
        }
        let lines: Vec<&str> = attack.lines().collect();
        let added: String = lines.iter().map(|line| format!("+{line}\n")).collect();
        let patch = format!(
            "Subject: [PATCH] Attack\n\n---\n\
             --- a/attack.sh\n+++ b/attack.sh\n@@ -1 +1,{} @@\n-exit 0\n{added}",
            lines.len()
        );
        fs::write(scene.path("series/0001.patch"), patch).unwrap();
        fs::write(scene.path("suite.yaml"), SUITE).unwrap();
        scene
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn vm_test(&self, caller: Caller) -> Command {
        let own = tramplab();
        let mut command = match caller {
            Caller::Own => Command::new(own.get_program()),
            Caller::User => {
                let mut command = Command::new("unshare");
                command.args(["--user", "--map-user=1000", "--map-group=1000", "--"]);
                command.arg(own.get_program());
                command
            }
        };
        command.current_dir(own.get_current_dir().unwrap());
        command.args(["vm-test", "--accel", "tcg", "--arch", "x86_64", "--confined"]);
        command.arg("--kernel").arg(self.path("tree")).arg("--series").arg(self.path("series"));
        command.arg("--suite").arg(self.path("suite.yaml")).arg("--runs").arg(self.path("runs"));
        command.env("TMPDIR", self.path("tmp"));
        command
    }

    /// Returns make's log of the series' build, which must have failed.
    fn log(&self, output: &Output) -> String {
        assert_eq!(output.status.code(), Some(3), "{}", said(output));
        assert!(self.path("runs/latest").exists(), "{}", said(output));
        let run = stored(&self.path("runs"));
        let head = &run.series[0].head().kernel;
        let build =
            run.cells.iter().find(|cell| cell.id.kernel == *head && cell.id.test == Test::Build);
        let outcome = &build.expect("a cell of the head's build").outcome;
        assert!(matches!(outcome, Outcome::Error { kind: ErrorKind::Build, .. }), "{outcome:?}");
        let log = RunDir::new(self.path("runs/latest")).build_log(Arch::X86_64, head);
        fs::read_to_string(log).unwrap()
    }
}

fn callers() -> Vec<Caller> {
    match geteuid() == Uid::from_raw(0) {
        true => vec![Caller::Own, Caller::User],
        false => vec![Caller::Own],
    }
}

/// Kernels of other architectures need another compiler and prove nothing more.
fn skipped() -> bool {
    Arch::host() != Some(Arch::X86_64)
}

#[test]
fn build_reaches_nothing_of_the_caller() {
    if skipped() {
        return;
    }
    for caller in callers() {
        // Each line that begins with `got` reports a success of the attack.
        let attack = "\
exec 2>&1
O=$1
pattern=$(cat /proc/sys/kernel/core_pattern)
echo \"$pattern\" >/proc/sys/kernel/core_pattern && echo got sysctl
cat /proc/[0-9]*/environ | tr '\\0' '\\n' | grep 'hunter[2]' && echo got environment
env | grep 'hunter[2]' && echo got own environment
for fd in /proc/[0-9]*/fd/*; do
    case $fd in /proc/self/*) continue ;; esac
    # Not a pipe, such as make's own: it would be read for ever. This script is open, too.
    [ -f $fd ] && grep -s 'hunter[2]' $fd && echo got descriptor $fd
    [ -d $fd ] && echo planted 2>/dev/null >$fd/planted && echo got folder $fd
done
echo x >/planted && echo got root
echo x >/proc/self/oom_score_adj && echo got proc
head -c 1100000000 /dev/zero >/tmp/fill && echo got all memory
perl -e 'exit(syscall(41, 40, 1, 0) < 0)' && echo got vsock
perl -e 'exit(syscall(250, 0, -3, 0) < 0)' && echo got keyring
unshare -U true && echo got user namespace
rm -f /tmp/fill
echo attacked as $(id -u)
exit 1
";
        let scene = Scene::new(attack);
        let secret = scene.path("secret");
        fs::write(&secret, "hunter2").unwrap();
        let opened = [&secret, &scene.path("tmp")].map(|path| fs::File::open(path).unwrap());
        let numbers = opened.each_ref().map(AsRawFd::as_raw_fd);
        let mut command = scene.vm_test(caller);
        command.env("TRAMPLAB_SECRET", "hunter2");
        // SAFETY: only fcntl, which is async-signal-safe.
        unsafe {
            command.pre_exec(move || {
                for number in numbers {
                    libc::fcntl(number, libc::F_SETFD, 0);
                }
                Ok(())
            });
        }
        let output = command.output().unwrap();
        let log = scene.log(&output);
        assert!(log.contains("attacked as 65533"), "{caller:?}: {log}");
        let got: Vec<&str> = log.lines().filter(|line| line.starts_with("got")).collect();
        assert!(got.is_empty(), "{caller:?}: {got:#?}");
        assert!(!scene.path("tmp/planted").exists());
    }
}

/// A build that fills its disk is stopped and its folder emptied, so that the next run has room.
#[test]
fn build_that_fills_the_disk_leaves_nothing() {
    const MIB: u64 = 1 << 20;
    if skipped() || !geteuid().is_root() {
        return eprintln!("skipped: mounting a disk of its own takes root");
    }
    let scene = Scene::new("fallocate -l 3500M $1/fill && fallocate -l 1000M $1/more\nsleep 600\n");
    let folder = Cache::open(true).unwrap().root().join("kernel-build");
    fs::create_dir_all(&folder).unwrap();
    let vm_test = scene.vm_test(Caller::Own);
    let words = std::iter::once(vm_test.get_program()).chain(vm_test.get_args());
    let line = words.map(|word| shell_words::quote(word.to_str().unwrap()).into_owned());
    let script = format!(
        "mount -t tmpfs -o size=4400m none {folder} && {line}; code=$?; \
         du -sm {folder} | cut -f1; exit $code",
        folder = shell_words::quote(folder.to_str().unwrap()),
        line = line.collect::<Vec<_>>().join(" "),
    );
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", &script]).current_dir(vm_test.get_current_dir().unwrap());
    let output = command.env("TMPDIR", scene.path("tmp")).output().unwrap();
    assert_eq!(output.status.code(), Some(3), "{}", said(&output));
    assert!(said(&output).contains("free"), "{}", said(&output));
    let text = String::from_utf8_lossy(&output.stdout);
    let left: u64 = text.lines().last().unwrap().parse().unwrap();
    let image = fs::metadata(scene.path("tree/image")).unwrap().len() / MIB;
    // The sources and the base's build remain.
    assert!(left <= 3 * image + 8, "{left} MiB are left: {}", said(&output));
}

#[test]
fn says_that_a_series_changes_no_byte() {
    if skipped() {
        return;
    }
    let scene = Scene::new("exit 0\n# Nothing.\n");
    let mut command = scene.vm_test(Caller::Own);
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    let said = said(&output);
    let told = tramplab_report::comparison::SAME_IMAGE;
    assert_eq!(said.matches(told).count(), 1, "{said}");
}

/// Neither QEMU nor any other child inherits a descriptor that the caller left open.
#[test]
fn children_inherit_no_descriptor() {
    if skipped() {
        return;
    }
    let scene = Scene::new("exit 0\n# Nothing.\n");
    let secret = scene.path("secret");
    fs::write(&secret, "hunter2").unwrap();
    let opened = fs::File::open(&secret).unwrap();
    let number = opened.as_raw_fd();
    let mut command = scene.vm_test(Caller::Own);
    // SAFETY: only fcntl, which is async-signal-safe.
    unsafe {
        command.pre_exec(move || {
            libc::fcntl(number, libc::F_SETFD, 0);
            Ok(())
        });
    }
    let mut child = command.stdout(Stdio::null()).spawn().unwrap();
    let own = Pid::from_raw(child.id().cast_signed());
    let mut seen = BTreeSet::new();
    while child.try_wait().unwrap().is_none() {
        for process in descendants(own) {
            let line = fs::read(format!("/proc/{process}/cmdline")).unwrap_or_default();
            let line = String::from_utf8_lossy(&line).replace('\0', " ");
            let links = fs::read_dir(format!("/proc/{process}/fd")).into_iter().flatten().flatten();
            let has =
                links.filter_map(|link| fs::read_link(link.path()).ok()).any(|to| to == secret);
            seen.insert((line, has));
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    let leaking: Vec<_> = seen.iter().filter(|(_, has)| *has).collect();
    assert!(leaking.is_empty(), "{leaking:?}");
    let is_guest = |line: &str| line.contains("qemu-system") && line.contains(" -kernel ");
    assert!(seen.iter().any(|(line, _)| is_guest(line)), "{seen:?}");
}

/// All descendants, except children that still run their parent's program before exec.
fn descendants(of: Pid) -> Vec<Pid> {
    let program = |process: Pid| fs::read_link(format!("/proc/{process}/exe")).ok();
    let descendants = family(of).into_iter().skip(1);
    descendants.filter(|&process| program(process) != program(of)).collect()
}
