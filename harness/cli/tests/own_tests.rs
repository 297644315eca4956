// SPDX-License-Identifier: MIT OR Apache-2.0
//! `cargo xtask test`, in a small repository of its own.

use crate::command::{said, tramplab};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use std::{
    fs,
    path::Path,
    process::{Command, Output, Stdio},
    time::Duration,
};
use tempfile::TempDir;
use tramplab_host::given::Given;

/// Two of these start a process that outlives them, in a session of its own.
const TESTS: &str = r#"
use std::process::{Command, Stdio};
fn leave(words: &str) {
    let mut command = Command::new("setsid");
    command.args(["sleep", words]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().unwrap();
}
#[test] fn passes() { std::fs::write(std::env::temp_dir().join("file"), "").unwrap() }
#[test] fn fails() { panic!() }
#[test] fn leaves_a_process() { leave("601") }
#[test] #[ignore] fn is_slow() { }
#[test] #[ignore] fn waits() {
    leave("602");
    std::fs::write(env!("WAITS"), "").unwrap();
    loop { std::thread::park() }
}
"#;

/// A repository with the packages that `test` knows.
fn repository() -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    let write = |path: &str, text: &str| {
        let path = dir.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    let folders = [("tramplab", "cli"), ("tramplab-agent", "agent"), ("tramplab-lab", "lab")];
    write("Cargo.toml", "[workspace]\nresolver = \"3\"\nmembers = [\"harness/*\"]\n");
    write(".gitignore", "target\n");
    write(".config/nextest.toml", "[profile.default]\nfail-fast = false\n");
    for (name, folder) in folders {
        let manifest = format!("[package]\nname = \"{name}\"\nedition = \"2024\"\n");
        write(&format!("harness/{folder}/Cargo.toml"), &manifest);
        write(&format!("harness/{folder}/src/main.rs"), "fn main() {}\n");
    }
    write("harness/lab/src/lib.rs", "");
    // A part of the full tier names it.
    write("harness/cli/tests/faults.rs", "");
    write("harness/lab/tests/small.rs", TESTS);
    tramplab_testdata::git::run(dir.path(), &["init", "--quiet"]);
    dir
}

fn test(repository: &Path) -> Command {
    let mut command = tramplab();
    command.current_dir(repository).arg("test");
    command.env("CARGO_MANIFEST_DIR", repository.join("harness/cli"));
    command.env("WAITS", repository.join("target/waits"));
    // Lints are for our own code.
    command.env_remove("RUSTC_WORKSPACE_WRAPPER");
    command
}

fn ran(repository: &Path, words: &[&str]) -> (Option<i32>, Output) {
    let output = test(repository).args(words).output().unwrap();
    (output.status.code(), output)
}

/// Processes that work in the repository's folder.
fn running(repository: &Path) -> Vec<String> {
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let is_ours = |process: &fs::DirEntry| {
        fs::read_link(process.path().join("cwd")).is_ok_and(|cwd| cwd.starts_with(repository))
    };
    let lines = processes.filter(is_ours).map(|process| {
        String::from_utf8_lossy(&fs::read(process.path().join("cmdline")).unwrap_or_default())
            .replace('\0', " ")
    });
    lines.filter(|line| !line.is_empty()).collect()
}

#[test]
fn runs_tiers_and_names_what_tests_leave() {
    let repository = repository();
    let ran = |words: &[&str]| ran(repository.path(), words);
    let (code, output) = ran(&["tramplab-lab/small", "--", "passes"]);
    assert_eq!(code, Some(0), "{}", said(&output));
    assert!(said(&output).contains("1 test run: 1 passed"), "{}", said(&output));
    // Slow tests belong to the full tier.
    assert_eq!(ran(&["tramplab-lab", "--", "is_slow"]).0, Some(2));
    assert_eq!(ran(&["--full", "tramplab-lab", "--", "is_slow"]).0, Some(0));
    assert_eq!(ran(&["--full=rest", "tramplab-lab", "--", "is_slow"]).0, Some(0));
    assert_eq!(ran(&["--full=kvm", "tramplab-lab", "--", "is_slow"]).0, Some(2));
    // Every test passed, and yet; also when it is resumed.
    for resume in [&[][..], &["--resume"]] {
        let words = [resume, &["tramplab-lab", "--", "leaves_a_process"]].concat();
        let (code, output) = ran(&words);
        assert_eq!(code, Some(1), "{}", said(&output));
        let left = "sleep 601 (of leaves_a_process)";
        assert!(said(&output).contains(left), "{}", said(&output));
    }
    let (code, output) = ran(&[]);
    assert_eq!(code, Some(1), "{}", said(&output));
    assert!(said(&output).contains("3 tests run: 2 passed, 1 failed"), "{}", said(&output));
    // Passed tests are skipped until a file changes.
    ran(&["--", "passes", "fails"]);
    let (code, output) = ran(&["--resume", "--", "passes", "fails"]);
    assert_eq!(code, Some(1), "{}", said(&output));
    assert!(said(&output).contains("1 test run: 0 passed, 1 failed"), "{}", said(&output));
    assert_eq!(ran(&["--resume", "--", "passes"]).0, Some(0));
    assert_eq!(ran(&["--resume", "--", "typo"]).0, Some(2));
    fs::write(repository.path().join("new"), "").unwrap();
    let (_, output) = ran(&["--resume", "--", "passes", "fails"]);
    assert!(said(&output).contains("2 tests run: 1 passed, 1 failed"), "{}", said(&output));
    assert_eq!(running(repository.path()), Vec::<String>::new());
}

#[test]
fn a_signal_to_it_alone_ends_all_that_it_started() {
    let repository = repository();
    let temporary = tempfile::tempdir().unwrap();
    for signal in [Signal::SIGINT, Signal::SIGTERM] {
        let _ = fs::remove_file(repository.path().join("target/waits"));
        let mut command = test(repository.path());
        command.args(["--full", "tramplab-lab", "--", "waits"]).env("TMPDIR", temporary.path());
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let pid = Pid::from_raw(child.id().cast_signed());
        let waits = || repository.path().join("target/waits").exists();
        let ready = || waits() || child.try_wait().unwrap().is_some();
        assert!(Given::to(pid).wait(Duration::from_mins(5), ready) && waits());
        kill(pid, signal).unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(130), "{signal}");
        assert_eq!(running(repository.path()), Vec::<String>::new(), "{signal}");
        assert_eq!(fs::read_dir(temporary.path()).unwrap().count(), 0, "{signal}");
    }
}
