// SPDX-License-Identifier: MIT OR Apache-2.0
//! Bisections of a real kernel that is built here. The history is `bisect-history/`: patches that are harmless, one that does not
//! build, one that does not boot, one that makes attaching dearer and one that adds a branch record, with the commits that mend them.
//! As a series they share the kernel that `series.rs` builds; as a git repository they are the long test, which is run by its name.

mod command;

use command::{said, tramplab};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    thread,
    time::{Duration, Instant},
};
use tramplab_host::runs::RunDir;
use tramplab_kernel::compile::Means;
use tramplab_lab::bisect::{End, Found, State, Step, Verdict, state::PREFIX};

/// By its number in the history.
fn patch(number: usize) -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/bisect-history");
    let is_it =
        |path: &PathBuf| path.file_name().unwrap().to_str().unwrap().starts_with(&format!("{number:04}-"));
    fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).find(is_it).unwrap()
}

/// Some of the patches as a quilt series, which has an order of its own.
fn series(dir: &Path, numbers: &[usize]) -> PathBuf {
    let folder = dir.join("history");
    fs::create_dir(&folder).unwrap();
    let mut names = String::new();
    for &number in numbers {
        let from = patch(number);
        let name = from.file_name().unwrap().to_str().unwrap();
        fs::copy(&from, folder.join(name)).unwrap();
        names += &format!("{name}\n");
    }
    fs::write(folder.join("series"), names).unwrap();
    folder
}

fn bisect(runs: &Path, arguments: &[&str]) -> Command {
    let mut command = tramplab();
    command.args(["bisect", "--accel", "tcg", "--runs"]).arg(runs).args(arguments);
    command
}

/// The only bisection in a folder.
fn stored(runs: &Path) -> Option<(PathBuf, State)> {
    let folders = fs::read_dir(runs).ok()?.map(|entry| entry.unwrap().path());
    let mut folders = folders.filter(|path| path.file_name().unwrap().to_str().unwrap().starts_with(PREFIX));
    let folder = folders.next()?;
    assert!(folders.next().is_none(), "more than one bisection in {}", runs.display());
    let state = State::load(&folder)?;
    Some((folder, state))
}

fn found(state: &State) -> &Step {
    let Some(End::Found(Found { commit, .. })) = &state.end else { panic!("{:?}", state.end) };
    state.step(commit).unwrap()
}

/// Starts it, and interrupts it as soon as it has tested a commit between the ends.
fn interrupted(mut command: Command, runs: &Path) -> Output {
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let pid = Pid::from_raw(child.id() as i32);
    let deadline = Instant::now() + Duration::from_secs(40 * 60);
    let waiter = thread::spawn(move || child.wait_with_output().unwrap());
    while !waiter.is_finished() {
        assert!(Instant::now() < deadline, "nothing was tested");
        if stored(runs).is_some_and(|(_, state)| state.steps.len() > 2) {
            kill(pid, Signal::SIGINT).unwrap();
            break;
        }
        thread::sleep(Duration::from_millis(50));
    }
    waiter.join().unwrap()
}

#[test]
fn a_metric_is_followed_through_what_does_not_build_or_boot_and_after_an_interruption() {
    let dir = tempfile::tempdir().unwrap();
    let runs = dir.path().join("runs");
    // Three comments, panics, boots again, a record more, broken, mended, slower. git takes the fourth first, and later the seventh:
    // around both it has to go. The last is an image of its own, so that something between the ends has to boot.
    let series = series(dir.path(), &[1, 2, 3, 6, 8, 11, 4, 5, 9]);
    let arguments =
        ["--series", series.to_str().unwrap(), "--kernel", "6.12-source", "--metric", "lbr_waste.fexit.any"];
    let output = interrupted(bisect(&runs, &arguments), &runs);
    assert_eq!(output.status.code(), Some(130), "{}", said(&output));
    let (folder, before) = stored(&runs).unwrap();
    assert!(before.end.is_none() && before.steps.len() >= 3, "{before:?}");

    // With another compiler than it was begun with, or other lines of a configuration, it does not go on.
    type Change = fn(&mut Means);
    let changes: [(&str, Change); 2] = [
        ("another toolchain (gcc 1; ld 1, now gcc", |means| means.toolchain = "gcc 1; ld 1".to_owned()),
        ("another kernel configuration", |means| means.config_sha256 = "0".repeat(64)),
    ];
    for (words, change) in changes {
        let mut other = before.clone();
        change(other.means.as_mut().unwrap());
        other.save(&folder).unwrap();
        let output = bisect(&runs, &arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{}", said(&output));
        assert!(said(&output).contains(words), "{words}: {}", said(&output));
        assert_eq!(stored(&runs).unwrap().1, other);
    }
    before.save(&folder).unwrap();

    let output = bisect(&runs, &arguments).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    let (again, state) = stored(&runs).unwrap();
    // What was known is not measured again.
    assert_eq!((again, &state.steps[..before.steps.len()]), (folder.clone(), &before.steps[..]));
    assert!(said(&output).contains("going on with"), "{}", said(&output));
    let culprit = found(&state);
    assert_eq!(culprit.subject, "bpf: Jump once more on the way to a program", "{}", said(&output));
    let by_subject =
        |start: &str| state.steps.iter().find(|step| step.subject.starts_with(start)).expect("was tested");
    // Neither was called bad, and git went around them.
    for (start, why) in [("init: Panic", "panic"), ("bpf: Call what is not there", "does not build")] {
        let step = by_subject(start);
        assert!(matches!(&step.verdict, Verdict::Skip(reason) if reason.contains(why)), "{step:?}");
    }
    // The same image as another's: nothing was booted, and the verdict is that one's.
    let twins: Vec<&Step> = state.steps.iter().filter(|step| step.same_as.is_some()).collect();
    let is_as_measured = |twin: &&Step| twin.run.is_none() && state.measured(twin).verdict == twin.verdict;
    assert!(!twins.is_empty() && twins.iter().all(is_as_measured), "{twins:?}");
    let report = fs::read_to_string(folder.join("report.txt")).unwrap();
    for words in
        ["is the first bad commit for lbr_waste.fexit.any", "fexit, any", "cargo xtask vm-test --accel tcg"]
    {
        assert!(report.contains(words), "{words}: {report}");
    }
    // Its runs are told from those of any other bisection.
    let run =
        RunDir::load(&folder.join("steps").join(state.measured(culprit).run.as_ref().unwrap())).unwrap();
    assert!(run.id.starts_with(folder.file_name().unwrap().to_str().unwrap()), "{}", run.id);
    // The record that came, in the listings side by side.
    let came = |line: &str| line.starts_with('+') && line.contains("-> __bpf_prog_enter_recur");
    assert!(report.lines().any(came), "{report}");
    // Asked once more, it only says so.
    let output = bisect(&runs, &arguments).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    assert_eq!(stored(&runs).unwrap().1, state);
    assert_eq!(String::from_utf8_lossy(&output.stdout), report);

    // From here on all kernels are there. Which patch no longer boots? What does not build is none.
    fs::remove_dir_all(dir.path().join("history")).unwrap();
    let panics = self::series(dir.path(), &[1, 4, 5, 6]);
    let runs = dir.path().join("boot");
    let arguments =
        ["--series", panics.to_str().unwrap(), "--kernel", "6.12-source", "--metric", "boot", "--unconfined"];
    let output = bisect(&runs, &arguments).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    assert_eq!(found(&stored(&runs).unwrap().1).subject, "init: Panic as soon as there is a console");
    assert!(said(&output).contains("this kernel is not to boot"), "{}", said(&output));
    // What shows it again builds as this did.
    assert!(said(&output).contains("vm-test --accel tcg --unconfined"), "{}", said(&output));

    // Nothing that is built changes: there is nothing to search, and nothing is booted to know it but the good end.
    fs::remove_dir_all(dir.path().join("history")).unwrap();
    let same = self::series(dir.path(), &[1]);
    let runs = dir.path().join("same");
    let arguments =
        ["--series", same.to_str().unwrap(), "--kernel", "6.12-source", "--metric", "lbr_waste.fexit.any"];
    let output = bisect(&runs, &arguments).output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{}", said(&output));
    assert!(said(&output).contains("both ends give the same"), "{}", said(&output));
    assert_eq!(stored(&runs).unwrap().1.steps[1].run, None);
}

/// git takes 1 to 127 for "bad" but for 125: what is wrong with the command line must not end so.
#[test]
fn a_step_that_cannot_answer_stops_git() {
    let dir = tempfile::tempdir().unwrap();
    let tree = dir.path().to_str().unwrap();
    for (arguments, step, code) in [
        (&["--metric", "boot"][..], true, 129),
        (&["--metric", "no.such.metric", "--tree", tree, "--good", "a", "--bad", "b"], true, 129),
        (&["--metric", "boot", "--tree", tree, "--good", "a", "--bad", "b"], true, 129),
        (&["--metric", "boot", "--tree", "/no/such", "--good", "a", "--bad", "b"], true, 129),
        (&["--metric", "boot", "--tree", "/no/such", "--good", "a", "--bad", "b"], false, 2),
        (&["--metric", "boot", "--tree", tree, "--good", "a"], false, 2),
        (&["--metric", "boot", "--series", "lbr-helpers", "--tree", tree], false, 2),
        (&["--metric", "boot", "--series", "no-such"], false, 2),
        (&["--metric", "boot"], false, 2),
    ] {
        let mut command = bisect(&dir.path().join("runs"), arguments);
        let output = command.args(step.then_some("--step")).output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{arguments:?} {step}: {}", said(&output));
    }
}

struct Tree(PathBuf);

impl Tree {
    fn git(&self, words: &[&str]) -> String {
        let mut command = Command::new("git");
        for who in ["AUTHOR", "COMMITTER"] {
            command
                .env(format!("GIT_{who}_NAME"), "tramplab")
                .env(format!("GIT_{who}_EMAIL"), "tramplab@example.org");
            command.env(format!("GIT_{who}_DATE"), "2026-11-21T12:00:00Z");
        }
        let output = command.arg("-C").arg(&self.0).args(words).output().unwrap();
        assert!(output.status.success(), "{words:?}: {}", said(&output));
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    /// The same commits each time, so that their kernels are built once.
    fn make(folder: PathBuf, sources: &Path) -> Tree {
        let tree = Tree(folder);
        if tree.0.join(".git/done").exists() {
            return tree;
        }
        let _ = fs::remove_dir_all(&tree.0);
        fs::create_dir_all(&tree.0).unwrap();
        let unpacked = Command::new("tar")
            .arg("-C")
            .arg(&tree.0)
            .arg("--strip-components=1")
            .arg("-xf")
            .arg(sources)
            .status();
        assert!(unpacked.unwrap().success());
        tree.git(&["init", "--quiet", "--initial-branch=main"]);
        tree.git(&["config", "gc.auto", "0"]);
        tree.git(&["-c", "core.compression=0", "add", "--all", "--force"]);
        tree.git(&["commit", "--quiet", "-m", "Linux 6.12, as Debian ships it"]);
        tree.git(&["tag", "v0"]);
        tree.am(1..=3);
        tree.git(&["branch", "side"]);
        tree.am(4..=8);
        tree.git(&["checkout", "--quiet", "side"]);
        tree.am(9..=10);
        tree.git(&["checkout", "--quiet", "main"]);
        tree.git(&["merge", "--quiet", "--no-ff", "-m", "Merge branch 'side'", "side"]);
        tree.am(11..=13);
        fs::write(tree.0.join(".git/done"), "").unwrap();
        tree
    }

    fn am(&self, patches: std::ops::RangeInclusive<usize>) {
        for number in patches {
            self.git(&["am", "--quiet", "--committer-date-is-author-date", patch(number).to_str().unwrap()]);
            self.git(&["tag", &format!("p{number}")]);
        }
    }
}

/// Each metric to its commit in a git repository with a merge, and the same by hand. A first build of a kernel (minutes), then some
/// dozen builds of what changed: `cargo test --test bisect -- --ignored`.
#[test]
#[ignore = "builds a kernel whole in a folder of its own"]
fn the_long_history() {
    let root =
        Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap().join("target/bisect-history");
    let cache = std::env::var_os("TRAMPLAB_CACHE").map_or_else(
        || PathBuf::from(std::env::var_os("HOME").unwrap()).join(".cache/tramplab"),
        PathBuf::from,
    );
    fs::create_dir_all(&root).unwrap();
    let suite = root.join("suite.yaml");
    fs::write(&suite, "name: t\ndescription: d\nkernels: [6.12-source]\ntests:\n  - boot: {}\n").unwrap();
    // Brings the sources.
    let output =
        tramplab().args(["vm-test", "--list", "--accel", "tcg", "--suite"]).arg(&suite).output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
    let sources = fs::read_dir(cache.join("kernel-source-debian")).unwrap();
    let sources = sources
        .map(|entry| entry.unwrap().path())
        .find(|path| path.file_name().unwrap().to_str().unwrap().starts_with("linux-source-6.12="))
        .unwrap();
    let tree = Tree::make(root.join("linux"), &sources.join("linux-source.tar"));
    let place = tree.0.to_str().unwrap();
    let dir = tempfile::tempdir().unwrap();
    for (metric, bad, culprit) in [
        ("lbr_waste.fexit.any", "main", "p11"),
        ("attach.fentry.1.instructions", "main", "p9"),
        ("boot", "p7", "p6"),
        ("build", "p4", "p4"),
    ] {
        let arguments = ["--tree", place, "--good", "v0", "--bad", bad, "--metric", metric];
        let runs = dir.path().join(metric);
        if metric.starts_with("attach") {
            let output = interrupted(bisect(&runs, &arguments), &runs);
            assert_eq!(output.status.code(), Some(130), "{metric}: {}", said(&output));
        }
        let output = bisect(&runs, &arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{metric}: {}", said(&output));
        let (_, state) = stored(&runs).unwrap();
        assert_eq!(found(&state).commit, tree.git(&["rev-parse", culprit]), "{metric}: {}", said(&output));

        // By hand, in a place of its own: nothing is known from before.
        tree.git(&["bisect", "start", bad, "v0"]);
        let by_hand = dir.path().join(format!("{metric}-by-hand"));
        let step = bisect(&by_hand, &[&arguments[..], &["--step"]].concat());
        let mut words = vec!["bisect", "run", "env", "-C", concat!(env!("CARGO_MANIFEST_DIR"), "/../..")];
        words.push(step.get_program().to_str().unwrap());
        words.extend(step.get_args().map(|word| word.to_str().unwrap()));
        let said = tree.git(&words);
        tree.git(&["bisect", "reset"]);
        let found = tree.git(&["rev-parse", culprit]);
        assert!(said.contains(&format!("{found} is the first bad commit")), "{metric}: {said}");
    }
}
