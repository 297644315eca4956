// SPDX-License-Identifier: MIT OR Apache-2.0
//! Bisect a real kernel that is built here. `bisect-history/` has harmless patches, and four bad
//! ones: one does not build, one does not boot, one makes attaching dearer, one adds a branch
//! record. Other patches mend these.
//!
//! As a series they share the kernel that `series.rs` builds. As a git repository they make the
//! long test, which is in the full tier.

use crate::command::{said, tramplab};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    thread,
    time::Duration,
};
use tramplab_host::{given::Given, runs::RunDir};
use tramplab_kernel::compile::Means;
use tramplab_lab::bisect::{End, Found, Reading, State, TestedCommit, Verdict, state::PREFIX};

/// Finds a patch by its number in the history.
fn patch(number: usize) -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/bisect-history");
    let is_it = |path: &PathBuf| {
        path.file_name().unwrap().to_str().unwrap().starts_with(&format!("{number:04}-"))
    };
    fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).find(is_it).unwrap()
}

/// Copies some patches into a quilt series, which may reorder them.
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

/// Returns the only bisection in a folder.
fn stored(runs: &Path) -> Option<(PathBuf, State)> {
    let folders = fs::read_dir(runs).ok()?.map(|entry| entry.unwrap().path());
    let mut folders =
        folders.filter(|path| path.file_name().unwrap().to_str().unwrap().starts_with(PREFIX));
    let folder = folders.next()?;
    assert!(folders.next().is_none(), "more than one bisection in {}", runs.display());
    let state = State::load(&folder)?;
    Some((folder, state))
}

fn found(state: &State) -> &TestedCommit {
    let Some(End::Found(Found { commit, .. })) = &state.end else { panic!("{:?}", state.end) };
    state.step(commit).unwrap()
}

/// Starts a bisection; interrupts it once it has tested a commit between the ends.
fn interrupted(mut command: Command, runs: &Path) -> Output {
    let child =
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let pid = Pid::from_raw(child.id() as i32);
    let mut given = Given::to(pid);
    let waiter = thread::spawn(move || child.wait_with_output().unwrap());
    while !waiter.is_finished() {
        assert!(given.elapsed() < Duration::from_mins(40), "nothing was tested");
        if stored(runs).is_some_and(|(_, state)| state.steps.len() > 2) {
            kill(pid, Signal::SIGINT).unwrap();
            break;
        }
        thread::sleep(Duration::from_millis(50));
    }
    waiter.join().unwrap()
}

fn arguments<'a>(series: &'a Path, metric: &'a str) -> [&'a str; 6] {
    ["--series", series.to_str().unwrap(), "--kernel", "6.12-source", "--metric", metric]
}

#[test]
fn bisects_a_metric_around_broken_commits() {
    let dir = tempfile::tempdir().unwrap();
    let runs = dir.path().join("runs");
    // In this order: three comments, panics, boots again, adds a record, broken, mended, slower.
    // git picks the fourth first and the seventh later, and has to go around both. The last patch
    // gives an image of its own, so that a kernel between the ends must boot.
    let series = series(dir.path(), &[1, 2, 3, 6, 8, 11, 4, 5, 9]);
    let arguments = arguments(&series, "lbr_waste.fexit.any");
    let output = interrupted(bisect(&runs, &arguments), &runs);
    assert_eq!(output.status.code(), Some(130), "{}", said(&output));
    let (folder, before) = stored(&runs).unwrap();
    assert!(before.end.is_none() && before.steps.len() >= 3, "{before:?}");

    rejects_other_means(&runs, &arguments, &folder, &before);

    let output = bisect(&runs, &arguments).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    let (again, state) = stored(&runs).unwrap();
    // It does not measure a commit again.
    assert_eq!((again, &state.steps[..before.steps.len()]), (folder.clone(), &before.steps[..]));
    assert!(said(&output).contains("going on with"), "{}", said(&output));
    let culprit = found(&state);
    assert_eq!(culprit.subject, "bpf: Jump once more on the way to a program", "{}", said(&output));
    skips_broken_commits_and_measures_twins_once(&state);
    let report = fs::read_to_string(folder.join("report.txt")).unwrap();
    for words in [
        "is the first bad commit for lbr_waste.fexit.any",
        "fexit, any",
        "cargo xtask vm-test --accel tcg",
    ] {
        assert!(report.contains(words), "{words}: {report}");
    }
    // The run's id names its bisection.
    let run =
        RunDir::load(&folder.join("steps").join(state.measured(culprit).run.as_ref().unwrap()))
            .unwrap();
    assert!(run.id.starts_with(folder.file_name().unwrap().to_str().unwrap()), "{}", run.id);
    // The report shows the added record in a diff of the listings.
    let came = |line: &str| line.starts_with('+') && line.contains("-> __bpf_prog_enter_recur");
    assert!(report.lines().any(came), "{report}");
    // A finished bisection only prints its report.
    let output = bisect(&runs, &arguments).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    assert_eq!(stored(&runs).unwrap().1, state);
    assert_eq!(String::from_utf8_lossy(&output.stdout), report);
}

/// A bisection rejects another compiler and another configuration when it continues.
fn rejects_other_means(runs: &Path, arguments: &[&str], folder: &Path, before: &State) {
    type Change = fn(&mut Means);
    let changes: [(&str, Change); 2] = [
        ("another toolchain (gcc 1; ld 1, now gcc", |means| {
            means.toolchain = "gcc 1; ld 1".to_owned()
        }),
        ("another kernel configuration", |means| means.config_sha256 = "0".repeat(64)),
    ];
    for (words, change) in changes {
        let mut other = before.clone();
        change(other.means.as_mut().unwrap());
        other.save(folder).unwrap();
        let output = bisect(runs, arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{}", said(&output));
        assert!(said(&output).contains(words), "{words}: {}", said(&output));
        assert_eq!(stored(runs).unwrap().1, other);
    }
    before.save(folder).unwrap();
}

fn skips_broken_commits_and_measures_twins_once(state: &State) {
    let by_subject = |start: &str| {
        state.steps.iter().find(|step| step.subject.starts_with(start)).expect("was tested")
    };
    // git went around both; neither was called bad.
    for (start, why) in
        [("init: Panic", "panic"), ("bpf: Call what is not there", "does not build")]
    {
        let step = by_subject(start);
        assert!(matches!(&step.verdict, Verdict::Skip(reason) if reason.contains(why)), "{step:?}");
    }
    // A commit with the image of another one takes its verdict without a boot.
    let twins: Vec<&TestedCommit> =
        state.steps.iter().filter(|step| step.same_as.is_some()).collect();
    let is_as_measured =
        |twin: &&TestedCommit| twin.run.is_none() && state.measured(twin).verdict == twin.verdict;
    assert!(!twins.is_empty() && twins.iter().all(is_as_measured), "{twins:?}");
}

/// A patch that does not build is no answer to the question which one does not boot.
#[test]
#[ignore = "full: another bisection"]
fn finds_the_patch_that_panics() {
    let dir = tempfile::tempdir().unwrap();
    let panics = series(dir.path(), &[1, 4, 5, 6]);
    let runs = dir.path().join("boot");
    let arguments = [&arguments(&panics, "boot")[..], &["--unconfined"]].concat();
    let output = bisect(&runs, &arguments).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    assert_eq!(
        found(&stored(&runs).unwrap().1).subject,
        "init: Panic as soon as there is a console"
    );
    assert!(said(&output).contains("this kernel is not to boot"), "{}", said(&output));
    // The command that reproduces it builds unconfined too.
    assert!(said(&output).contains("vm-test --accel tcg --unconfined"), "{}", said(&output));
}

/// There is nothing to search; only the good end is booted.
#[test]
#[ignore = "full: another bisection"]
fn finds_nothing_where_no_image_changes() {
    let dir = tempfile::tempdir().unwrap();
    let same = series(dir.path(), &[1]);
    let runs = dir.path().join("same");
    let arguments = arguments(&same, "lbr_waste.fexit.any");
    let output = bisect(&runs, &arguments).output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{}", said(&output));
    assert!(said(&output).contains("both ends give the same"), "{}", said(&output));
    assert_eq!(stored(&runs).unwrap().1.steps[1].run, None);
}

/// The series wastes fewer records on a Zen 4, and more in the usual guest.
#[test]
#[ignore = "full: another bisection"]
fn bisects_guests_of_another_cpu() {
    let dir = tempfile::tempdir().unwrap();
    let runs = dir.path().join("runs");
    let patches = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/two-signs");
    let arguments = arguments(&patches, KPROBE_MULTI);
    let output = bisect(&runs, &arguments).args(["--model", "zen4"]).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    let (folder, state) = stored(&runs).unwrap();
    let readings: Vec<_> = state.steps.iter().map(|step| step.reading.clone()).collect();
    let wasted = |number| Some(Reading::Exact { number: Some(number), functions: None });
    assert_eq!(readings, [wasted(11), wasted(10)]);
    for step in state.steps.iter().filter_map(|step| step.run.as_ref()) {
        let run = RunDir::load(&folder.join("steps").join(step)).unwrap();
        assert_eq!(run.kernels[0].cpu().unwrap().name, "zen4");
    }
}

#[test]
fn refuses_a_cpu_that_cannot_answer() {
    let dir = tempfile::tempdir().unwrap();
    for (model, metric, words) in [
        ("neoverse-n1", "boot", "neoverse-n1 is of arm64"),
        ("zen3", KPROBE_MULTI, "no branch records"),
        ("zen5", KPROBE_MULTI, "no CPU `zen5`"),
    ] {
        let arguments = ["--series", "lbr-helpers", "--arch", "x86_64", "--metric", metric];
        let mut command = bisect(&dir.path().join("runs"), &arguments);
        let output = command.args(["--model", model]).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{model}: {}", said(&output));
        assert!(said(&output).contains(words), "{model}: {}", said(&output));
        assert!(stored(&dir.path().join("runs")).is_none(), "{model}");
    }
}

/// git takes 1 to 127, except 125, for "bad": a wrong command line needs another exit code.
#[test]
fn failed_step_stops_git_bisect() {
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
        let mut command = tramplab_testdata::git::command(&self.0);
        for who in ["AUTHOR", "COMMITTER"] {
            command
                .env(format!("GIT_{who}_NAME"), "tramplab")
                .env(format!("GIT_{who}_EMAIL"), "tramplab@example.org");
            command.env(format!("GIT_{who}_DATE"), "2026-11-21T12:00:00Z");
        }
        tramplab_testdata::git::output(command.args(words))
    }

    /// Makes the same commits each time, so that their kernels are built once.
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
            self.git(&[
                "am",
                "--quiet",
                "--committer-date-is-author-date",
                patch(number).to_str().unwrap(),
            ]);
            self.git(&["tag", &format!("p{number}")]);
        }
    }
}

/// Finds each metric's commit in a git repository with a merge, then again by `git bisect run`. The
/// first kernel takes minutes to build; some dozen smaller builds follow. Run it with `cargo
/// xtask test --full -- bisects_a_git`.
#[test]
#[ignore = "full: builds a kernel whole in a folder of its own"]
fn bisects_a_git_history_with_a_merge() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"))
        .ancestors()
        .nth(2)
        .unwrap()
        .join("target/bisect-history");
    let cache = std::env::var_os("TRAMPLAB_CACHE").map_or_else(
        || PathBuf::from(std::env::var_os("HOME").unwrap()).join(".cache/tramplab"),
        PathBuf::from,
    );
    fs::create_dir_all(&root).unwrap();
    let suite = root.join("suite.yaml");
    fs::write(&suite, "name: t\ndescription: d\nkernels: [6.12-source]\ntests:\n  - boot: {}\n")
        .unwrap();
    // Fetch the sources.
    let output = tramplab()
        .args(["vm-test", "--list", "--accel", "tcg", "--suite"])
        .arg(&suite)
        .output()
        .unwrap();
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
        assert_eq!(
            found(&state).commit,
            tree.git(&["rev-parse", culprit]),
            "{metric}: {}",
            said(&output)
        );

        // By hand, in another folder, so that no earlier result is known.
        tree.git(&["bisect", "start", bad, "v0"]);
        let by_hand = dir.path().join(format!("{metric}-by-hand"));
        let step = bisect(&by_hand, &[&arguments[..], &["--step"]].concat());
        let mut words =
            vec!["bisect", "run", "env", "-C", concat!(env!("CARGO_MANIFEST_DIR"), "/../..")];
        words.push(step.get_program().to_str().unwrap());
        words.extend(step.get_args().map(|word| word.to_str().unwrap()));
        let said = tree.git(&words);
        tree.git(&["bisect", "reset"]);
        let found = tree.git(&["rev-parse", culprit]);
        assert!(said.contains(&format!("{found} is the first bad commit")), "{metric}: {said}");
    }
}

const KPROBE_MULTI: &str = "lbr_waste.kprobe_multi.any";
const RCU_CHECK: &str = "CONFIG_FTRACE_VALIDATE_RCU_IS_WATCHING";

/// Three builds on the base of 6.12-source, each of a few files.
#[test]
#[ignore = "full: builds kernels of several configurations"]
fn finds_the_option_that_adds_records_and_the_command_that_shows_it() {
    let dir = tempfile::tempdir().unwrap();
    let runs = dir.path().join("runs");
    let [good, bad] = ["good.config", "bad.config"].map(|name| dir.path().join(name));
    // Guests need 8 CPUs at most, and tramplab's own options say so.
    fs::write(
        &good,
        format!("# {RCU_CHECK} is not set\n# CONFIG_NLS_ASCII is not set\nCONFIG_NR_CPUS=64\n"),
    )
    .unwrap();
    fs::write(&bad, format!("{RCU_CHECK}=y\nCONFIG_NLS_ASCII=y\n")).unwrap();
    let search = || {
        let mut command = bisect(
            &runs,
            &["--arch", "x86_64", "--kernel", "6.12-source", "--metric", KPROBE_MULTI],
        );
        command.arg("--good-config").arg(&good).arg("--bad-config").arg(&bad);
        command
    };
    let output = search().output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    let headline = format!("{RCU_CHECK}=y makes the difference in {KPROBE_MULTI}");
    assert!(said(&output).contains(&headline), "{}", said(&output));
    let overridden = "CONFIG_NR_CPUS=8 replaces CONFIG_NR_CPUS=64";
    assert!(said(&output).contains(overridden), "{}", said(&output));
    let (folder, state) = stored(&runs).unwrap();
    assert_eq!(state.steps.len(), 3, "{state:?}");
    let Some(End::Found(Found { commit, before })) = &state.end else { panic!("{state:?}") };
    assert_eq!(before.as_ref(), Some(&state.asked.good));
    assert!(state.step(commit).unwrap().subject.contains(RCU_CHECK), "{state:?}");

    // The same again is only told.
    let report = fs::read_to_string(folder.join("report.txt")).unwrap();
    let output = search().output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), report);
    assert_eq!(stored(&runs).unwrap().1, state);

    // The kernels of the command are in the cache.
    let (_, command) = report.rsplit_once("cargo xtask ").unwrap();
    let words = shell_words::split(command).unwrap();
    let output = tramplab().args(words).arg("--runs").arg(dir.path().join("again")).output();
    let output = output.unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    let table = said(&output);
    let (_, costs) = table.split_once("Cost of each setting").unwrap_or_else(|| panic!("{table}"));
    assert!(costs.contains("config=with"), "{costs}");
}
