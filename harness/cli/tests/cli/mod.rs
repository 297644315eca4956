// SPDX-License-Identifier: MIT OR Apache-2.0
//! The command line from outside: it names wrong input and ends with the documented exit code
//! before anything boots.

mod bad_input;
mod defaults;
mod terminal;

use crate::command::{kernel_tree, said, stderr, tramplab, write_script};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use std::{fs, path::Path, process::Stdio, time::Duration};
use tramplab_host::given::Given;
use tramplab_testdata::git::run as git;

/// A suite of one cell.
const SUITE: &str = "name: t\ndescription: d\nkernels: [\"6.12\"]\ntests:\n  \
                     - lbr_waste: { mechanisms: [fentry] }\n";

/// With cargo's variables kept, each command would rebuild packages whose build scripts read them.
#[test]
fn removes_own_cargo_variables_for_children() {
    let dir = tempfile::tempdir().unwrap();
    let (cargo, seen) = (dir.path().join("cargo"), dir.path().join("seen"));
    write_script(&cargo, &format!("#!/bin/sh\nenv > {}\nexit 1\n", seen.display()));
    let output = tramplab()
        .args(["test", "--", "nothing"])
        .env("CARGO", &cargo)
        .env("CARGO_PKG_NAME", "tramplab")
        .env("CARGO_MANIFEST_PATH", "/nowhere")
        .env("OUT_DIR", "/nowhere")
        .env("CARGO_HOME", "/kept")
        .output()
        .unwrap();
    let seen =
        fs::read_to_string(&seen).unwrap_or_else(|error| panic!("{error}: {}", said(&output)));
    assert!(seen.contains("CARGO_HOME=/kept"), "{seen}");
    for name in ["CARGO_PKG_", "CARGO_MANIFEST_", "OUT_DIR"] {
        assert!(!seen.contains(name), "{name}: {seen}");
    }
}

#[test]
fn rejects_unusable_qemu() {
    let dir = tempfile::tempdir().unwrap();
    let fake = |name: &str, version: &str| {
        let path = dir.path().join(name);
        write_script(&path, &format!("#!/bin/sh\necho QEMU emulator version {version}\n"));
        path
    };
    for (program, word) in [
        (fake("old", "8.2.2"), "8.2.2"),
        (fake("new", "11.2.0"), "11.2.0"),
        // The version is in range, but `-plugin` is missing.
        (fake("plain", "10.0.2"), "plugin"),
        (dir.path().join("none"), "none"),
    ] {
        let output = tramplab()
            .args(["vm-test", "--no-run", "--arch", "x86_64"])
            .env("TRAMPLAB_QEMU_X86_64", &program)
            .output()
            .unwrap();
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains(word), "{word} is missing in: {said}");
    }
}

fn sources(dir: &Path) -> String {
    let sources = dir.join("linux");
    kernel_tree(&sources);
    sources.to_str().unwrap().to_owned()
}

/// Cells' names are known before a kernel is built.
#[test]
fn lists_cells_without_building_kernels() {
    let dir = tempfile::tempdir().unwrap();
    let (sources, runs) = (sources(dir.path()), dir.path().join("runs"));
    fs::write(dir.path().join("suite.yaml"), SUITE).unwrap();
    let list = |arguments: &[&str]| {
        let mut command = tramplab();
        command
            .args(["vm-test", "--accel", "tcg", "--arch", "x86_64", "--suite"])
            .arg(dir.path().join("suite.yaml"));
        let output = command.arg("--runs").arg(&runs).args(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{}", said(&output));
        assert_eq!(fs::read_dir(&runs).into_iter().flatten().count(), 0);
        (String::from_utf8(output.stdout.clone()).unwrap(), stderr(&output))
    };
    let (names, said) = list(&["--list", "--kernel", &sources]);
    assert_eq!(names, "x86_64/linux/tcg/lbr_waste/fentry\n");
    assert!(said.contains("1 cell; and 1 build"), "{said}");
    let series = ["--list", "--kernel", &sources, "--series", "lbr-helpers", "--each-patch"];
    let (names, said) = list(&series);
    assert_eq!(names, "x86_64/linux+lbr-helpers.0..linux/tcg/lbr_waste/fentry\n");
    assert!(said.contains("3 cells: 1 test") && said.contains("3 builds"), "{said}");
    // A prebuilt kernel is fetched; no cell runs.
    let kernel = std::env::var("TRAMPLAB_TEST_KERNEL_X86_64").expect("run `cargo xtask test`");
    assert_eq!(list(&["--no-run", "--kernel", &kernel]).0, "");
}

#[test]
fn rejects_options_that_no_tree_has_before_a_build() {
    let dir = tempfile::tempdir().unwrap();
    let sources = sources(dir.path());
    let at = |name: &str| dir.path().join(name);
    fs::write(Path::new(&sources).join("Kconfig"), "config TRACED\n\tbool \"t\"\n").unwrap();
    fs::write(at("suite.yaml"), SUITE).unwrap();
    fs::write(at("mistyped.config"), "CONFIG_TRACED=y\n\nCONFIG_OTHER=m\n").unwrap();
    let whole = "# Automatically generated file; DO NOT EDIT.\nCONFIG_OTHER=y\n";
    fs::write(at("whole.config"), whole).unwrap();
    let series = "--- a/Kconfig\n+++ b/Kconfig\n@@ -1,2 +1,4 @@\n config TRACED\n \tbool \"t\"\n\
                  +config TRACES\n+\tbool \"s\"\n";
    fs::write(at("adds.patch"), series).unwrap();
    let (axis, config) = ("--config-axis", "--config");
    for (words, expected) in [
        (&[axis, "CONFIG_TRACED=n,y"][..], None),
        (&[axis, "CONFIG_TRACES=n,y"], Some("CONFIG_TRACES (did you mean CONFIG_TRACED?)")),
        // A tree without the option leaves it unset.
        (&[axis, "CONFIG_TRACES=n"], None),
        (&[axis, "CONFIG_TRACES=n,y", "--series", "adds.patch"], None),
        (&[config, "mistyped.config"], Some("./mistyped.config:3: this tree has no option")),
        // The file may be that of another version.
        (&[config, "whole.config"], None),
    ] {
        let mut command = tramplab();
        command.current_dir(&dir).args(["vm-test", "--list", "--accel", "tcg", "--suite"]);
        command.args(["suite.yaml", "--runs", "runs", "--arch", "x86_64", "--kernel", &sources]);
        let output = command.args(words).output().unwrap();
        let said = said(&output);
        let code = if expected.is_some() { 2 } else { 0 };
        assert_eq!(output.status.code(), Some(code), "{words:?}: {said}");
        assert!(said.contains(expected.unwrap_or_default()), "{words:?}: {said}");
    }
}

/// Prebuilt kernels, QEMU, cargo, the network and a folder of runs are not needed for names.
#[test]
fn lists_cells_with_nothing_at_hand() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    fs::create_dir(at("empty")).unwrap();
    let mut command = tramplab();
    command.args(["vm-test", "--list", "--suite", "waste", "--kernel", "7.2", "--arch", "x86_64"]);
    let output = command
        .arg("--runs")
        .arg(at("runs"))
        .args(["lbr_waste/fexit"])
        .env("PATH", at("empty"))
        .env("TRAMPLAB_CACHE", at("cache"))
        .env_remove("TRAMPLAB_QEMU_X86_64")
        .env_remove("CARGO")
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    let cells = ["7.2+zen4", "7.2"].map(|kernel| format!("x86_64/{kernel}/tcg/lbr_waste/fexit\n"));
    assert_eq!(String::from_utf8_lossy(&output.stdout), cells.concat());
    assert!(!at("cache").exists(), "something was fetched or built");
    assert!(!at("runs").exists(), "the folder of runs may not be writable");
}

#[test]
fn names_the_page_of_a_run_last() {
    let dir = tempfile::tempdir().unwrap();
    let (run, merged) = (dir.path().join("run"), dir.path().join("merged"));
    fs::create_dir(&run).unwrap();
    fs::write(run.join("run.json"), include_bytes!("../../../testdata/run.json")).unwrap();
    let output = tramplab().args(["merge", "--into"]).args([&merged, &run]).output().unwrap();
    let said = stderr(&output);
    let page = merged.canonicalize().unwrap().join("report.html");
    assert_eq!(said.lines().last(), Some(&*format!("to see it: {}", page.display())), "{said}");
    let written = fs::read(&page).unwrap();
    let output = tramplab().args(["report", "--format", "html"]).arg(&merged).output().unwrap();
    assert!(output.stdout == written, "report renders another page");
}

#[test]
fn writes_mechanisms_of_a_stored_run_to_each_file() {
    let dir = tempfile::tempdir().unwrap();
    let stored = include_str!("../../../testdata/two-architectures.json");
    let mut run: serde_json::Value = serde_json::from_str(stored).unwrap();
    run["suite"]["name"] = "mechanisms".into();
    for kernel in run["kernels"].as_array_mut().unwrap() {
        kernel["source"] = "another 7.2".into();
    }
    let [json, data, page] = ["run.json", "a.json", "a.md"].map(|name| dir.path().join(name));
    fs::write(&json, run.to_string()).unwrap();
    let mechanisms = || {
        let mut command = tramplab();
        command.args(["mechanisms", "--run"]).arg(&json);
        command
    };
    // The run is a part of the suite, and of another kernel: the shipped files stay.
    let output = mechanisms().output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{}", said(&output));
    assert!(stderr(&output).contains("and is another 7.2: a page is of"), "{}", stderr(&output));
    let output = mechanisms().arg("-o").arg(&data).arg("-o").arg(&page).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    let data: serde_json::Value = serde_json::from_slice(&fs::read(&data).unwrap()).unwrap();
    assert_eq!(data["waste"][0]["mechanism"], "fexit");
    assert!(fs::read_to_string(&page).unwrap().starts_with("# Mechanisms by kernel"));
}

/// The report goes to a file: without this message only an exit code would be seen.
#[test]
fn says_why_a_rendered_run_fails() {
    let dir = tempfile::tempdir().unwrap();
    let json = dir.path().join("run.json");
    fs::write(&json, include_bytes!("../../../testdata/run.json")).unwrap();
    let junit = dir.path().join("junit.xml");
    let output = tramplab()
        .args(["report", "--format", "junit", "-o"])
        .args([&junit, &json])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(output.stdout.is_empty() && junit.is_file());
    assert!(stderr(&output).contains("exit code 1: 21 cells"), "{}", stderr(&output));
    assert!(
        stderr(&output).contains("lbr_waste/fexit: fexit wastes 11 records"),
        "{}",
        stderr(&output)
    );
    // The terminal's report says why itself. One cell of the run is an error.
    let output = tramplab().arg("report").arg(&json).output().unwrap();
    let rerun = format!("cargo xtask vm-test --rerun {}\n", dir.path().display());
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).lines().count() == 1 && stderr(&output).ends_with(&rerun));
}

/// The base was interrupted before it had measured all that the head has.
#[test]
fn compares_with_an_interrupted_base_and_lists_what_it_lacks() {
    let dir = tempfile::tempdir().unwrap();
    let head: serde_json::Value =
        serde_json::from_str(include_str!("../../../testdata/run.json")).unwrap();
    let mut base = head.clone();
    base["id"] = "base".into();
    base["interrupted"] = true.into();
    let cells = base["cells"].as_array_mut().unwrap();
    let at = cells.iter().position(|cell| cell["id"]["kernel"] == "6.12").unwrap();
    let missing = cells.remove(at)["id"].clone();
    let test = missing["test"]["lbr_waste"]["mechanism"].as_str().unwrap().to_owned();
    base["missing"] = serde_json::json!([missing]);
    let write = |name: &str, run: &serde_json::Value| {
        let path = dir.path().join(name);
        fs::write(&path, run.to_string()).unwrap();
        path
    };
    let paths = [write("base.json", &base), write("head.json", &head)];
    let compare = |arguments: &[&str]| {
        let mut command = tramplab();
        command.arg("compare").args(&paths).args([
            "--base-kernel",
            "6.12",
            "--head-kernel",
            "6.12",
        ]);
        command.args(arguments).output().unwrap()
    };
    let output = compare(&[]);
    assert_eq!(output.status.code(), Some(2), "{}", said(&output));
    assert!(
        stderr(&output).contains("the run base did not come to its end"),
        "{}",
        stderr(&output)
    );
    let output = compare(&["--anyway"]);
    // This is no failure of the head.
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    let row = |line: &&str| {
        line.contains(&format!("lbr_waste/{test}")) && line.contains("not in the run")
    };
    assert_eq!(said(&output).lines().filter(row).count(), 1, "{}", said(&output));
    assert!(stderr(&output).contains("1 tests are in the head's run only"), "{}", stderr(&output));
}

#[test]
fn runs_without_a_common_test_are_no_measurement() {
    let run = concat!(env!("CARGO_MANIFEST_DIR"), "/../testdata/run.json");
    let output = tramplab()
        .args(["compare", run, run, "--anyway", "--base-kernel", "6.1", "--head-kernel", "7.2"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(3), "{}", said(&output));
    assert!(stderr(&output).contains("tests are not measured on both sides"), "{}", said(&output));
}

/// A run of some cells knows all kernels of its suite.
#[test]
fn kernels_without_cells_are_neither_compared_nor_mailed() {
    let dir = tempfile::tempdir().unwrap();
    let text = include_str!("../../../testdata/same-kernel.json");
    let mut run: serde_json::Value = serde_json::from_str(text).unwrap();
    let kernels = run["kernels"].as_array_mut().unwrap();
    let mut other = kernels[0].clone();
    other["name"] = "unmeasured".into();
    kernels.push(other);
    let file = dir.path().join("run.json");
    fs::write(&file, run.to_string()).unwrap();
    let output = tramplab().arg("compare").args([&file, &file]).arg("--anyway").output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    let output = tramplab().arg("report").arg(&file).args(["--format", "mail"]).output().unwrap();
    let mail = String::from_utf8_lossy(&output.stdout);
    assert!(mail.contains("6.12 x86_64: ") && !mail.contains("unmeasured"), "{mail}");
}

/// A signal that only the program gets, as a CI's does.
#[test]
fn a_signal_while_cargo_builds_ends_cargo_too() {
    let dir = tempfile::tempdir().unwrap();
    let (cargo, began) = (dir.path().join("cargo"), dir.path().join("began"));
    // Its child is the compiler.
    let script = format!("#!/bin/sh\nsleep 600 &\necho $! > {}\nwait\n", began.display());
    write_script(&cargo, &script);
    let mut command = tramplab();
    command.args(["vm-test", "--no-run", "--accel", "tcg", "--kernel", "6.12", "--runs"]);
    let child = command.arg(dir.path().join("runs")).env("CARGO", &cargo).stderr(Stdio::piped());
    let child = child.spawn().unwrap();
    let pid = Pid::from_raw(child.id().cast_signed());
    let compiler = || fs::read_to_string(&began).ok()?.trim().parse::<i32>().ok();
    assert!(Given::to(pid).wait(Duration::from_mins(1), || compiler().is_some()));
    kill(pid, Signal::SIGINT).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{}", said(&output));
    assert!(stderr(&output).contains("error: interrupted\n"), "{}", said(&output));
    // A zombie has no command line.
    let line = format!("/proc/{}/cmdline", compiler().unwrap());
    let ended = || fs::read(&line).map_or(true, |line| line.is_empty());
    assert!(Given::to(Pid::this()).wait(Duration::from_secs(10), ended), "it runs on");
}

/// Leaves no folder in `runs/`, and so no bisection that the next try would find.
#[test]
fn failed_bisection_start_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (tree, runs) = (dir.path().join("linux"), dir.path().join("runs"));
    fs::create_dir(&tree).unwrap();
    let git = |arguments: &[&str]| git(&tree, arguments);
    git(&["init", "--quiet"]);
    for commit in ["good", "bad"] {
        for file in ["Kbuild", "Kconfig", "Makefile"] {
            fs::write(tree.join(file), commit).unwrap();
        }
        git(&["add", "."]);
        git(&["commit", "--quiet", "-m", commit]);
        git(&["tag", commit]);
    }
    let output = tramplab()
        .args(["bisect", "--accel", "tcg", "--arch", "x86_64", "--good", "good", "--bad", "bad"])
        .args(["--metric", "lbr_waste.fexit.any", "--tree"])
        .arg(&tree)
        .arg("--runs")
        .arg(&runs)
        .env("TRAMPLAB_QEMU_X86_64", dir.path().join("none"))
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
    assert!(stderr(&output).contains("QEMU"), "{}", stderr(&output));
    assert_eq!(fs::read_dir(&runs).into_iter().flatten().count(), 0);
}

/// One cache has entries of two kinds; a folder beside it must not be touched.
#[test]
fn lists_and_prunes_only_the_cache() {
    let dir = tempfile::tempdir().unwrap();
    let cache = dir.path().join("cache");
    for entry in ["cache/snapshot/old", "cache/qemu/new", "beside/mine"] {
        let entry = dir.path().join(entry);
        fs::create_dir_all(&entry).unwrap();
        fs::write(entry.join("file"), vec![1; 3 << 20]).unwrap();
        fs::write(entry.join(".complete"), "").unwrap();
    }
    let then = std::time::SystemTime::now() - std::time::Duration::from_secs(5 * 24 * 3600);
    let marker =
        fs::File::options().write(true).open(cache.join("snapshot/old/.complete")).unwrap();
    marker.set_modified(then).unwrap();
    let run = |arguments: &[&str], limit: &str| {
        let mut command = tramplab();
        command.env("TRAMPLAB_CACHE", &cache).env("TRAMPLAB_CACHE_LIMIT", limit);
        let output = command.arg("cache").args(arguments).output().unwrap();
        (output.status.code(), said(&output))
    };
    let (code, said) = run(&["ls"], "1GiB");
    let line =
        |kind: &str| said.lines().find(|line| line.ends_with(kind)).unwrap_or_default().to_owned();
    assert_eq!(code, Some(0), "{said}");
    assert!(
        line("snapshot").contains("3.0 MiB") && line("snapshot").contains("5 days ago"),
        "{said}"
    );
    assert!(line("qemu").contains("within the hour"), "{said}");
    assert!(line("all; limit 1.0 GiB").contains("6.0 MiB"), "{said}");
    assert_eq!(run(&["ls"], "abc").0, Some(2));

    for (kind, limit, words) in [
        ("..", "1GiB", "the cache has nothing of kind"),
        ("snapshot/old", "1GiB", "the cache has nothing of kind"),
        ("qemu", "30", "TRAMPLAB_CACHE_LIMIT=\"30\": expected a size"),
    ] {
        let (code, said) = run(&["prune", "--kind", kind], limit);
        assert!(code == Some(2) && said.contains(words), "{kind}: {said}");
    }
    // Within the limit nothing is removed; beyond it the least recently used entry is.
    assert_eq!(run(&["prune"], "7MiB").0, Some(0));
    assert!(cache.join("snapshot/old/file").exists());
    let (code, said) = run(&["prune"], "4MiB");
    assert!(code == Some(0) && said.contains("snapshot/old"), "{said}");
    assert!(!cache.join("snapshot/old").exists() && cache.join("qemu/new/file").exists(), "{said}");

    // Another run uses the cache.
    let users = fs::File::open(cache.join(".users.lock")).unwrap();
    let users = nix::fcntl::Flock::lock(users, nix::fcntl::FlockArg::LockShared).unwrap();
    let (code, said) = run(&["prune", "--to", "0"], "1GiB");
    assert!(code == Some(3) && said.contains("in use by another run"), "{said}");
    drop(users);
    assert_eq!(run(&["prune", "--to", "0"], "1GiB").0, Some(0));
    assert!(!cache.join("qemu/new").exists() && dir.path().join("beside/mine/file").exists());

    // Listing creates no cache.
    let none = dir.path().join("none");
    let output = tramplab().env("TRAMPLAB_CACHE", &none).args(["cache", "ls"]).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(!none.exists());

    let file = dir.path().join("beside/mine/file");
    let output = tramplab().env("TRAMPLAB_CACHE", &file).args(["cache", "ls"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
    assert!(stderr(&output).contains("not a folder; set TRAMPLAB_CACHE"), "{}", stderr(&output));
}

/// As in `cd linux && tramplab vm-test --series HEAD~1..`.
#[test]
fn measures_the_kernel_tree_that_the_user_is_in() {
    let dir = tempfile::tempdir().unwrap();
    let tree = dir.path().canonicalize().unwrap().join("linux");
    kernel_tree(&tree);
    let git = |words: &[&str]| git(&tree, words);
    git(&["init", "--quiet"]);
    git(&["add", "."]);
    git(&["commit", "--quiet", "--message", "base"]);
    fs::write(tree.join("new.c"), "int new;\n").unwrap();
    git(&["add", "."]);
    git(&["commit", "--quiet", "--message", "head"]);
    let list = |words: &[&str]| {
        let mut command = tramplab();
        command
            .args(["vm-test", "--list", "--suite", "waste", "--arch", "x86_64", "--accel", "tcg"]);
        command.args(words).arg("lbr_waste/fexit").current_dir(&tree).output().unwrap()
    };
    let told = format!("--kernel {}", tree.display());
    for (words, cell, is_told) in [
        (&["--series", "HEAD~1.."][..], "x86_64/linux..linux+", true),
        (&[], "x86_64/linux/tcg/", true),
        (&["--kernel", "6.12"], "x86_64/6.12/tcg/", false),
        // A shipped series has a kernel of its own.
        (&["--series", "lbr-helpers"], "+lbr-helpers", false),
    ] {
        let output = list(words);
        assert!(output.status.success(), "{words:?}: {}", said(&output));
        let listed = String::from_utf8_lossy(&output.stdout);
        assert!(listed.contains(cell), "{words:?}: {}", said(&output));
        assert_eq!(stderr(&output).contains(&told), is_told, "{words:?}: {}", said(&output));
    }
}
