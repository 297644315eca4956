// SPDX-License-Identifier: MIT OR Apache-2.0
//! `ci.sh measure` and `ci.sh keep` without GitHub's runner.

use super::{ACTION, SUITE, WORKFLOW, git, read, repository};
use std::{fs, os::unix::fs::PermissionsExt, path::Path, process::Command};
use tramplab_model::run::Arch;

#[test]
fn refuses_unconfined_builds_unless_allowed() {
    let dir = tempfile::tempdir().unwrap();
    let bwrap = dir.path().join("bwrap");
    fs::write(
        &bwrap,
        "#!/bin/sh\necho 'bwrap: No permissions to create a new namespace' >&2\nexit 1\n",
    )
    .unwrap();
    fs::set_permissions(&bwrap, fs::Permissions::from_mode(0o755)).unwrap();
    let path = format!("{}:{}", dir.path().display(), std::env::var("PATH").unwrap());
    let measure = |unconfined: &str| {
        let arguments = [("KERNEL", "6.12-source"), ("SUITE", "waste"), ("SHARD", "none")];
        let more = [("UNCONFINED", unconfined), ("PATH", &path)];
        measure(dir.path(), &[&arguments[..], &more].concat())
    };
    let (code, said) = measure("false");
    assert_eq!(code, Some(2), "{said}");
    assert!(
        said.contains("cannot confine builds") && said.contains("No permissions to create"),
        "{said}"
    );
    // The runner's machine is thrown away after the job.
    let (code, said) = measure("true");
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("are built UNCONFINED"), "{said}");
}

/// Runs `ci.sh measure` as any other CI would; returns the exit code and all output.
fn measure(folder: &Path, environment: &[(&str, &str)]) -> (Option<i32>, String) {
    script("measure", folder, environment)
}

fn script(command: &str, folder: &Path, environment: &[(&str, &str)]) -> (Option<i32>, String) {
    let output = Command::new("bash")
        .arg(repository().join(".github/ci.sh"))
        .arg(command)
        .current_dir(folder)
        .env("RUNNER_TEMP", folder.join("temp"))
        .env("TRAMPLAB_PROGRAM", env!("CARGO_BIN_EXE_tramplab"))
        .env("XDG_CONFIG_HOME", folder.join("none"))
        .envs(environment.iter().copied())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned()
        + &String::from_utf8_lossy(&output.stderr);
    (output.status.code(), said)
}

/// The branch of a real repository, which the first night makes.
#[test]
fn keeps_the_runs_of_every_night_on_a_branch() {
    let dir = tempfile::tempdir().unwrap();
    let remote = dir.path().join("remote.git");
    git(dir.path(), &["init", "--quiet", "--bare", "remote.git"]);
    let store = |folder: &str, id: &str, started: &str| {
        let run = dir.path().join(folder).join(format!("nightly-{id}"));
        fs::create_dir_all(&run).unwrap();
        let json = serde_json::json!({ "id": id, "started": started });
        fs::write(run.join("run.json"), json.to_string()).unwrap();
        // Consoles are not kept.
        fs::write(run.join("console.log"), "noise").unwrap();
    };
    let keep = |runs: &str| {
        script("keep", dir.path(), &[("RUNS", runs), ("REMOTE", remote.to_str().unwrap())])
    };
    store("first", "a", "2026-12-31T01:00:00Z");
    store("first", "b", "2026-12-31T02:00:00Z");
    store("second", "c", "2027-01-01T01:00:00Z");
    for runs in ["first", "second", "second"] {
        let (code, said) = keep(runs);
        assert_eq!(code, Some(0), "{said}");
    }
    let files = git(&remote, &["ls-tree", "-r", "--name-only", "runs"]);
    let files: Vec<&str> = files.lines().collect();
    assert_eq!(files, ["2026/a/run.json", "2026/b/run.json", "2027/c/run.json"]);
    // Keeping a night twice makes no commit.
    assert_eq!(git(&remote, &["rev-list", "--count", "runs"]).trim(), "2");
    // An id is a folder's name: no run is written elsewhere.
    store("hostile", "d", "2027-01-02T01:00:00Z");
    let json = r#"{"id": "../../x", "started": "2027-01-02T01:00:00Z"}"#;
    fs::write(dir.path().join("hostile/nightly-d/run.json"), json).unwrap();
    fs::create_dir(dir.path().join("empty")).unwrap();
    for (runs, words) in [("hostile", "has no id"), ("empty", "nothing was measured")] {
        let (code, said) = keep(runs);
        assert!(code == Some(2) && said.contains(words), "{said}");
    }
}

/// Lists the cells that the shards would run; measures nothing.
#[test]
fn runs_the_ci_suite_under_tcg_and_timed_tests_under_kvm() {
    let dir = tempfile::tempdir().unwrap();
    let cache = dir.path().join("cache");
    crate::kvm::remember(&cache);
    let kernel = std::env::var("TRAMPLAB_TEST_KERNEL_X86_64").expect("run `cargo xtask test`");
    let timed =
        "name: t\ndescription: d\nkernels: [a]\ntests:\n  - trigger: { mechanisms: [fentry] }\n";
    fs::write(dir.path().join("timed.yaml"), timed).unwrap();
    let under = if Arch::host() == Some(Arch::X86_64) { "kvm" } else { "tcg" };
    for (suite, expected) in [
        ("", vec!["tcg/lbr_waste/fexit", "tcg/trigger/fentry", "tcg/attach/fentry/10"]),
        ("timed.yaml", vec![&*format!("{under}/trigger/fentry")]),
    ] {
        let arguments = [
            ("KERNEL", &*kernel),
            ("ARCH", "x86_64"),
            ("SUITE", suite),
            ("SHARD", ""),
            ("ARGUMENTS", "--list"),
        ];
        let (code, said) = measure(
            dir.path(),
            &[&arguments[..], &[("TRAMPLAB_CACHE", cache.to_str().unwrap())]].concat(),
        );
        assert_eq!(code, Some(0), "{said}");
        for cell in expected {
            assert!(said.lines().any(|line| line.ends_with(cell)), "{suite} {cell}: {said}");
        }
    }
    let (action, workflow) = (read(ACTION), read(WORKFLOW));
    for inputs in [&action["inputs"], &workflow["on"]["workflow_call"]["inputs"]] {
        assert_eq!(inputs["suite"]["default"], "ci");
    }
}

/// A build fails once, then works: no run is kept, as the shards measure all cells. All lines of
/// the arguments count: with fexit the run would fail.
#[test]
fn build_that_works_on_retry_leaves_no_run() {
    let dir = tempfile::tempdir().unwrap();
    let kernel = std::env::var("TRAMPLAB_TEST_KERNEL_X86_64").expect("run `cargo xtask test`");
    let program = dir.path().join("tramplab");
    let real = env!("CARGO_BIN_EXE_tramplab");
    let script = format!(
        "#!/bin/sh\nfor word; do if [ \"$word\" = --no-run ]; then exit 3; fi; done\n\
         exec '{real}' \"$@\"\n"
    );
    fs::write(&program, script).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    fs::write(dir.path().join("suite.yaml"), SUITE).unwrap();
    let (code, said) = measure(
        dir.path(),
        &[
            ("KERNEL", kernel.as_str()),
            ("SUITE", "suite.yaml"),
            ("SHARD", "none"),
            ("ARGUMENTS", "--jobs 2\nfentry\n"),
            ("TRAMPLAB_PROGRAM", program.to_str().unwrap()),
        ],
    );
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("1 cell: 1 pass"), "{said}");
    assert!(
        said.lines().any(|line| line == "run=") && said.lines().any(|line| line == "code=0"),
        "{said}"
    );
}
