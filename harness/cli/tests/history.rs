// SPDX-License-Identifier: MIT OR Apache-2.0
//! `history` and `--update-budgets` from outside, on recorded runs.

use serde_json::{Value, json};
use std::{
    fs,
    os::unix::fs::{PermissionsExt, symlink},
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

fn tramplab(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tramplab")).args(arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn git(folder: &Path, arguments: &[&str]) -> String {
    let mut command = tramplab_testdata::git::command(folder);
    // history sorts commits on different branches by date, oldest first.
    let date =
        if arguments.contains(&"bpf: Aside") { "1700000600 +0000" } else { "1700000000 +0000" };
    command.env("GIT_COMMITTER_DATE", date);
    tramplab_testdata::git::output(command.args(arguments))
}

/// Stores the recorded cells of `kernel` as the run of a commit.
fn store(folder: &Path, number: u32, kernel: &str, commit: &str) -> PathBuf {
    let mut run: Value = serde_json::from_str(include_str!("../../testdata/lbr-helpers.json"))
        .expect("the recorded run");
    let name = format!("linux-{}", &commit[..12]);
    run["id"] = json!(format!("run-{number}"));
    run["started"] = json!(format!("2026-11-{number:02}T10:00:00Z"));
    run["series"] = json!([]);
    run["kernels"].as_array_mut().unwrap().retain(|one| one["name"] == kernel);
    run["kernels"][0]["name"] = json!(name);
    run["kernels"][0]["commit"] = json!(commit);
    run["kernels"][0]["source"] = json!(format!("git /src/linux {commit}"));
    run["cells"].as_array_mut().unwrap().retain(|cell| cell["id"]["kernel"] == kernel);
    for cell in run["cells"].as_array_mut().unwrap() {
        cell["id"]["kernel"] = json!(name);
    }
    let place = folder.join(format!("ci/{number}"));
    fs::create_dir_all(&place).unwrap();
    fs::write(place.join("run.json"), run.to_string()).unwrap();
    place
}

/// A suite with the kernel of such a run, and with tests of it.
fn suite_of(commit: &str) -> String {
    format!(
        "# mine\nname: fixture\ndescription: d\nkernels: [linux-{}]\ntests:\n\
         \x20 - lbr_waste: {{ mechanisms: [fexit] }}\n\
         \x20 - attach: {{ mechanisms: [kprobe.multi], functions: [10], rounds: 3 }}\n",
        &commit[..12]
    )
}

const PLAIN: &str = "6.12-source";
const PATCHED: &str = "6.12-source+lbr-helpers.1";
const METRIC: &str = "lbr_waste.fexit.any";

/// Commits of a real repository, and runs of them in another order.
struct Measured {
    _dir: tempfile::TempDir,
    tree: String,
    runs: String,
    commits: Vec<String>,
}

fn measured() -> Measured {
    let dir = tempfile::tempdir().unwrap();
    let tree = dir.path().join("linux");
    fs::create_dir(&tree).unwrap();
    git(&tree, &["init", "-q"]);
    let commits: Vec<String> = (0..6)
        .map(|number| {
            git(
                &tree,
                &["commit", "-q", "--allow-empty", "-m", &format!("bpf: Change number {number}")],
            );
            git(&tree, &["rev-parse", "HEAD"])
        })
        .collect();
    let runs = dir.path().join("runs");
    // Change 4 was measured first; 3 was not measured.
    for (number, commit, kernel) in
        [(1, 4, PATCHED), (2, 0, PLAIN), (3, 1, PLAIN), (4, 2, PLAIN), (5, 5, PATCHED)]
    {
        store(&runs, number, kernel, &commits[commit]);
    }
    std::os::unix::fs::symlink("5", runs.join("ci/latest")).unwrap();
    fs::create_dir_all(runs.join("old")).unwrap();
    fs::write(runs.join("old/run.json"), r#"{"schema": 99}"#).unwrap();
    fs::create_dir_all(runs.join("cut")).unwrap();
    fs::write(runs.join("cut/run.json"), r#"{"schema": 4, "id"#).unwrap();
    let [runs, tree] = [&runs, &tree].map(|path| path.to_str().unwrap().to_owned());
    Measured { _dir: dir, tree, runs, commits }
}

#[test]
fn sorts_commits_by_tree_and_names_the_step() {
    let Measured { _dir, tree, runs, commits } = measured();
    let asked = ["history", "--runs", &runs, "--metric", METRIC];
    let output = tramplab(&[&asked[..], &["--tree", &tree, "--fail-on-step"]].concat());
    let (said, warned) = (text(&output.stdout), text(&output.stderr));
    // The newest commit measures the same as the one before it.
    assert_eq!(output.status.code(), Some(0), "{said}{warned}");
    let rows: Vec<&str> =
        said.lines().filter(|line| line.contains("| bpf: Change number")).collect();
    let numbers = [0, 1, 2, 4, 5].map(|number| format!("bpf: Change number {number}"));
    assert!(
        rows.len() == 5 && rows.iter().zip(numbers).all(|(row, subject)| row.contains(&subject)),
        "{said}"
    );
    let [old, new] = [&commits[2], &commits[4]];
    let step = format!(
        "worse at {}: 9 -> 10; 2 commits since {}; + bpf_prog_* -> bpf_get_branch_snapshot; ",
        &new[..12],
        &old[..12]
    );
    let bisect = format!(
        ": cargo xtask bisect --tree {tree} --good {old} --bad {new} --arch x86_64 --metric \
         {METRIC}"
    );
    assert!(said.contains(&step) && said.contains(&bisect), "{step}{bisect}: {said}");
    assert!(
        warned.contains("old/run.json has schema 99") && warned.contains("cut/run.json"),
        "{warned}"
    );

    // A commit on a side branch is no ancestor, so there is no range to bisect.
    let folder = Path::new(&tree);
    git(folder, &["checkout", "-q", "-b", "side", &commits[1]]);
    git(folder, &["commit", "-q", "--allow-empty", "-m", "bpf: Aside"]);
    store(Path::new(&runs), 6, PLAIN, &git(folder, &["rev-parse", "HEAD"]));
    let said =
        text(&tramplab(&[&asked[..], &["--tree", &tree, "--format", "markdown"]].concat()).stdout);
    assert!(
        said.contains(&format!("not on one line with {}, which has 4 commits", &commits[5][..12])),
        "{said}"
    );
    // Without a metric: one line for each metric that changed.
    let said = text(&tramplab(&["history", "--runs", &runs]).stdout);
    assert!(said.contains(METRIC) && said.contains("did not change"), "{said}");
}

#[test]
fn sorts_commits_by_time_without_a_tree() {
    let Measured { _dir, runs, commits, .. } = measured();
    let asked = ["history", "--runs", &runs, "--metric", METRIC];
    // By time, change 5 comes last and is worse than the run before it.
    let output = tramplab(&[&asked[..], &["--fail-on-step", "--format", "json"]].concat());
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    let rows = found["histories"][0]["rows"].as_array().unwrap();
    let shape =
        |row: &Value| (row["commit"].as_str().unwrap().to_owned(), row["value"].as_f64().unwrap());
    let expected = [(4, 10.0), (0, 9.0), (1, 9.0), (2, 9.0), (5, 10.0)]
        .map(|(at, value)| (commits[at].clone(), value));
    assert_eq!(rows.iter().map(shape).collect::<Vec<_>>(), expected);
    assert_eq!((&rows[4]["step"]["worse"], &rows[4]["change"]), (&json!(true), &json!(1.0)));
    assert_eq!(found["left_out"].as_array().unwrap().len(), 2);
}

#[test]
fn rejects_impossible_queries_with_2() {
    let dir = tempfile::tempdir().unwrap();
    let run = store(dir.path(), 1, "6.12-source", &"a1".repeat(20));
    let empty = dir.path().join("empty");
    fs::create_dir_all(empty.join("old")).unwrap();
    fs::write(empty.join("old/run.json"), r#"{"schema": 99}"#).unwrap();
    let [run, empty, none] =
        [&run, &empty, &dir.path().join("none")].map(|path| path.to_str().unwrap().to_owned());
    for (arguments, words) in [
        (vec!["--runs", &none], "no run at"),
        (vec!["--runs", &empty], "schema 99"),
        (vec!["--runs", &run, "--metric", "lbr_waste.fexit"], "unknown metric"),
        (
            vec!["--runs", &run, "--metric", "trigger.fexit.branches"],
            "they have: lbr_waste.fexit.any",
        ),
        (
            vec!["--runs", &run, "--metric", "attach.kprobe_multi.10.load", "--arch", "arm64"],
            "of its test they have",
        ),
        (vec!["--runs", &run, "--kernel", "6.1"], "--kernel"),
        (vec!["--runs", &run, "--model", "brbe"], "brbe is of arm64"),
        (vec!["--runs", &run, "--tree", &empty], "is not a git repository"),
    ] {
        let output = tramplab(&[&["history"][..], &arguments].concat());
        let said = text(&output.stderr);
        assert!(
            output.status.code() == Some(2) && said.contains(words),
            "{arguments:?}: {words} in {said}"
        );
    }
}

/// Runs of released schemas are read as everywhere: the site has the oldest ones' numbers.
#[test]
fn writes_a_site_of_runs_of_every_schema() {
    let dir = tempfile::tempdir().unwrap();
    let runs = dir.path().join("runs");
    let stored = Path::new(env!("CARGO_MANIFEST_DIR")).join("../host/src/runs/testdata");
    const OLD: [&str; 4] = ["schema-1", "schema-2-series", "schema-3", "schema-4-first"];
    for (number, schema) in OLD.iter().enumerate() {
        let run = fs::read_to_string(stored.join(format!("{schema}.json"))).unwrap();
        let mut run: Value = serde_json::from_str(&run).unwrap();
        run["id"] = json!(format!("run-{number}"));
        let place = runs.join(schema);
        fs::create_dir_all(&place).unwrap();
        fs::write(place.join("run.json"), run.to_string()).unwrap();
    }
    store(&runs, 7, PLAIN, &"a1".repeat(20));
    let site = dir.path().join("site");
    let [runs, folder] = [&runs, &site].map(|path| path.to_str().unwrap());
    let output = tramplab(&["history", "--runs", runs, "--site", folder]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let said = text(&output.stdout);
    assert!(said.ends_with("of 5 runs\n") && said.starts_with(folder), "{said}");
    let index = fs::read_to_string(site.join("index.html")).unwrap();
    assert!(index.contains("<dd>5, first numbers from"), "{index}");
    let page = |metric: &str| {
        fs::read_to_string(site.join(format!("metrics/lbr_waste.{metric}.any.html"))).unwrap()
    };
    // Only runs of schema 1 have no machine, and only the series of the others have patches.
    assert!(page("fentry").contains("machine not recorded"), "{}", page("fentry"));
    assert!(page("fexit").contains("6.12-source+lbr-helpers.0 (x86_64"), "{}", page("fexit"));
}

#[test]
fn replaces_only_a_site_of_its_own() {
    let Measured { _dir, tree, runs, commits } = measured();
    let site = Path::new(&runs).with_file_name("site");
    let folder = site.to_str().unwrap();
    let write =
        |more: &[&str]| tramplab(&[&["history", "--runs", &runs, "--site", folder], more].concat());
    let output = write(&["--tree", &tree]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let pages = || fs::read_dir(site.join("metrics")).unwrap().count();
    assert!(pages() > 20, "{}", pages());
    let page = fs::read_to_string(site.join(format!("metrics/{METRIC}.html"))).unwrap();
    let command = format!("--good {} --bad {} --arch x86_64", commits[2], commits[4]);
    assert!(page.contains(&command) && page.contains("bpf: Change number 4"), "{page}");
    // One metric: the other pages go.
    let output = write(&["--metric", METRIC, "--fail-on-step"]);
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
    assert_eq!(pages(), 1);
    let output = write(&["--format", "json"]);
    assert_eq!(output.status.code(), Some(2), "{}", text(&output.stderr));
    fs::remove_file(site.join("tramplab-site.json")).unwrap();
    let output = write(&[]);
    let said = text(&output.stderr);
    assert!(output.status.code() == Some(2) && said.contains("files that are no site"), "{said}");
    assert_eq!(pages(), 1);
}

#[test]
fn writes_a_run_as_budgets_of_its_suite() {
    let dir = tempfile::tempdir().unwrap();
    let suite = dir.path().join("suite.yaml");
    let commit = "a1".repeat(20);
    let before = suite_of(&commit);
    fs::write(&suite, &before).unwrap();
    let run = store(dir.path(), 1, "6.12-source", &commit);
    let update = format!("--update-budgets={}", suite.display());
    let report = |run: &Path, option: &str| tramplab(&["report", run.to_str().unwrap(), option]);
    let output = report(&run, &update);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let now = fs::read_to_string(&suite).unwrap();
    let added = now.strip_prefix(&*before).expect("the old text stays").to_owned();
    assert!(
        added.starts_with(&format!("budgets:\n  - kernels: [\"linux-{}\"]\n", &commit[..12])),
        "{added}"
    );
    assert!(
        added.contains("fexit: { any: 9, ")
            && added.contains("attach.kprobe_multi.10.attach.instructions: 3539800")
    );
    // The diff on stdout is the text that was added.
    let shown = text(&output.stdout);
    assert!(added.lines().all(|line| shown.contains(&format!("\n+{line}\n"))), "{shown}");
    let again = report(&run, &update);
    assert!(
        again.stdout.is_empty() && text(&again.stderr).contains("needs no change"),
        "{}",
        text(&again.stderr)
    );
    // The suite would be rejected with a budget of a kernel that it does not have.
    let of_others = before.replace("linux-", "other-");
    fs::write(&suite, &of_others).unwrap();
    let output = report(&run, &update);
    assert_eq!(output.status.code(), Some(3), "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains("tests and kernels"), "{}", text(&output.stderr));
    assert_eq!(fs::read_to_string(&suite).unwrap(), of_others);
    fs::write(&suite, &now).unwrap();
    // A run with an error leaves the suite as it is.
    let json = fs::read_to_string(run.join("run.json")).unwrap();
    let panic = json.replacen("\"pass\"", r#"{"error":{"kind":"panic","message":"oh"}}"#, 1);
    fs::write(run.join("run.json"), panic).unwrap();
    let output = report(&run, &update);
    assert_eq!(output.status.code(), Some(3));
    assert!(
        text(&output.stderr).contains("cells end in an error: x86_64/linux-"),
        "{}",
        text(&output.stderr)
    );
    assert_eq!(fs::read_to_string(&suite).unwrap(), now);
    // The suite that the run names need not exist here.
    fs::write(run.join("run.json"), json).unwrap();
    let output = report(&run, "--update-budgets");
    assert!(
        output.status.code() == Some(2) && text(&output.stderr).contains("--update-budgets=SUITE")
    );
}

/// The suite is the user's file. A limit on file size has the kernel kill the program as it writes;
/// the file must not become empty.
#[test]
fn writes_a_suite_atomically_and_keeps_its_mode_and_link() {
    let dir = tempfile::tempdir().unwrap();
    let [file, suite] = ["file.yaml", "suite.yaml"].map(|name| dir.path().join(name));
    let commit = "a1".repeat(20);
    let before = suite_of(&commit);
    fs::write(&file, &before).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
    symlink("file.yaml", &suite).unwrap();
    let run = store(dir.path(), 1, "6.12-source", &commit);
    let update = format!("--update-budgets={}", suite.display());
    let killed = Command::new("sh")
        .args([
            "-c",
            "ulimit -c 0; ulimit -f 0; exec \"$@\"",
            "sh",
            env!("CARGO_BIN_EXE_tramplab"),
            "report",
        ])
        .args([run.to_str().unwrap(), &update])
        .output()
        .unwrap();
    assert!(!killed.status.success(), "{}", text(&killed.stderr));
    assert_eq!(fs::read_to_string(&file).unwrap(), before);

    let output = tramplab(&["report", run.to_str().unwrap(), &update]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert!(fs::read_to_string(&file).unwrap().contains("budgets:"));
    assert!(suite.is_symlink());
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o640);
}

/// `tramplab … | head` closes the pipe early; the exit code stays the same.
#[test]
fn closed_pipe_keeps_exit_code_and_files() {
    let dir = tempfile::tempdir().unwrap();
    let commits = ["1", "2"].map(|digit| digit.repeat(40));
    let runs = dir.path().join("runs");
    store(&runs, 1, "6.12-source", &commits[0]);
    let run = store(&runs, 2, "6.12-source+lbr-helpers.1", &commits[1]);
    let json = fs::read_to_string(run.join("run.json")).unwrap();
    fs::write(
        run.join("run.json"),
        json.replacen("\"pass\"", r#"{"fail":{"reasons":["beyond"]}}"#, 1),
    )
    .unwrap();
    let suite = dir.path().join("suite.yaml");
    fs::write(&suite, suite_of(&commits[1])).unwrap();
    let merged = dir.path().join("merged");
    let update = format!("--update-budgets={}", suite.display());
    let [run, runs, merged_] = [&run, &runs, &merged].map(|path| path.to_str().unwrap());
    for (arguments, code) in [
        (&["report", run][..], 1),
        (&["report", run, "--format", "json"], 1),
        (&["merge", "--into", merged_, run], 1),
        (&["history", "--runs", runs, "--metric", "lbr_waste.fexit.any", "--fail-on-step"], 1),
        (&["profile", run], 2),
        (&["report", run, &update], 0),
    ] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = Command::new(env!("CARGO_BIN_EXE_tramplab"))
            .args(arguments)
            .stdout(writer)
            .stderr(Stdio::piped())
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {}", text(&output.stderr));
    }
    for file in ["report.md", "report.html", "junit.xml"] {
        assert!(merged.join(file).is_file(), "{file}");
    }
    assert!(fs::read_to_string(&suite).unwrap().contains("budgets:"));
}

/// Artefacts are not trusted: files behind their links are not part of the run.
#[test]
fn merge_follows_no_link_out_of_a_run() {
    let dir = tempfile::tempdir().unwrap();
    let run = store(dir.path(), 1, "6.12-source", &"a1".repeat(20));
    let elsewhere = dir.path().join("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    fs::write(elsewhere.join("secret"), "s").unwrap();
    symlink(&elsewhere, run.join("cells")).unwrap();
    fs::create_dir(run.join("kernels")).unwrap();
    symlink(&elsewhere, run.join("kernels/link")).unwrap();
    fs::write(run.join("kernels/own"), "o").unwrap();
    let into = dir.path().join("into");
    let output = tramplab(&["merge", "--into", into.to_str().unwrap(), run.to_str().unwrap()]);
    assert!(into.join("run.json").is_file(), "{}", text(&output.stderr));
    assert!(into.join("kernels/own").is_file());
    for place in ["cells", "kernels/link"] {
        assert!(!into.join(place).join("secret").exists(), "{place}");
    }
    // No guest and no build writes so much. The file takes no room here, its copy would.
    fs::File::create(run.join("kernels/large")).unwrap().set_len(2 << 30).unwrap();
    let into = dir.path().join("again");
    let output = tramplab(&["merge", "--into", into.to_str().unwrap(), run.to_str().unwrap()]);
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{said}");
    assert!(said.contains("kernels/large: has more than 1024 MiB"), "{said}");
    assert!(!into.exists(), "what was copied until then is left");
}

/// A rerun took over what the killed run had measured, and measured the rest.
#[test]
fn merge_leaves_out_a_run_that_another_went_on_with() {
    let dir = tempfile::tempdir().unwrap();
    let recorded: Value =
        serde_json::from_str(include_str!("../../testdata/lbr-helpers.json")).unwrap();
    let cells = recorded["cells"].as_array().unwrap();
    let (attach, others): (Vec<Value>, Vec<Value>) =
        cells.iter().cloned().partition(|cell| !cell["id"]["test"]["attach"].is_null());
    let console = |run: &str| {
        let id = &attach[0]["id"];
        let kernel = id["kernel"].as_str().unwrap();
        format!("{run}/cells/x86_64/{kernel}/tcg/attach/kprobe.multi/10/console.log")
    };
    let write = |run: &Value| {
        let id = run["id"].as_str().unwrap();
        let console = dir.path().join(console(id));
        fs::create_dir_all(console.parent().unwrap()).unwrap();
        fs::write(console, id).unwrap();
        fs::write(dir.path().join(id).join("run.json"), run.to_string()).unwrap();
        dir.path().join(id).display().to_string()
    };
    let mut killed = recorded.clone();
    (killed["id"], killed["finished"], killed["interrupted"]) =
        (json!("killed"), Value::Null, json!(true));
    killed["missing"] = attach.iter().map(|cell| cell["id"].clone()).collect();
    killed["cells"] = json!(others);
    let mut rerun = recorded.clone();
    (rerun["id"], rerun["rest_of"]) = (json!("rerun"), json!("killed"));
    let (killed, rerun) = (write(&killed), write(&rerun));

    for order in [[&killed, &rerun], [&rerun, &killed]] {
        let into = tempfile::tempdir().unwrap();
        let to = into.path().join("merged").display().to_string();
        let output = tramplab(&["merge", "--expect", "1", "--into", &to, order[0], order[1]]);
        let said = text(&output.stdout) + &text(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{said}");
        assert!(said.contains("15 cells: 12 pass, 0 fail, 0 error, 3 skip"), "{said}");
        let left_out = "run killed is left out: another run goes on with it";
        assert!(said.contains(left_out), "{said}");
        let merged = fs::read(into.path().join("merged/run.json")).unwrap();
        let merged: Value = serde_json::from_slice(&merged).unwrap();
        assert!(merged["notes"].as_array().unwrap().contains(&json!(left_out)), "{merged}");
        assert_eq!(fs::read_to_string(into.path().join(console("merged"))).unwrap(), "rerun");
    }
}

/// CI merges each commit's shards into a folder of the same name.
#[test]
fn merged_runs_have_distinct_ids() {
    let dir = tempfile::tempdir().unwrap();
    let commits = ["1", "2"].map(|digit| digit.repeat(40));
    let mut ids = Vec::new();
    for (number, commit) in [1, 2].into_iter().zip(&commits) {
        let part = store(&dir.path().join("parts"), number, "6.12-source", commit);
        let into = dir.path().join(format!("artifacts/{number}/merged"));
        let place = [&part, &into].map(|path| path.to_str().unwrap());
        let output = tramplab(&["merge", "--into", place[1], place[0]]);
        assert!(into.join("report.md").is_file(), "{}", text(&output.stderr));
        let run: Value = serde_json::from_slice(&fs::read(into.join("run.json")).unwrap()).unwrap();
        ids.push(run["id"].as_str().unwrap().to_owned());
    }
    assert_ne!(ids[0], ids[1]);
    let artifacts = dir.path().join("artifacts");
    let metric = ["--metric", "lbr_waste.fexit.any", "--format", "json"];
    let output =
        tramplab(&[&["history", "--runs", artifacts.to_str().unwrap()], &metric[..]].concat());
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(found["histories"][0]["rows"].as_array().unwrap().len(), 2, "{found}");
}
