// SPDX-License-Identifier: MIT OR Apache-2.0
//! The action and the workflow's jobs: they measure, merge, report and plan.

use super::{SUITE, act, job, runner::Done};
use std::{fs, path::Path};
use tramplab_host::runs::RunDir;
use tramplab_model::run::{ErrorKind, Outcome, Run};

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
        let inputs =
            [("kernel", kernel.as_str()), ("suite", suite), ("shard", &format!("{number}/2"))];
        let done = act(&dir.path().join(format!("shard-{number}")), &inputs);
        // Put the run where the job would download its artefact.
        let run =
            done.used("upload-artifact").unwrap_or_else(|| panic!("{}", done.said))["path"].clone();
        assert!(
            Path::new(&run).join("junit.xml").is_file()
                && Path::new(&run).join("report.md").is_file()
        );
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
    assert!(
        whole.summary.contains("2 cells: 1 pass, 1 fail, 0 error, 0 skip"),
        "{}",
        whole.summary
    );
    let merged: Run =
        RunDir::load(Path::new(&whole.used("upload-artifact").unwrap()["path"])).unwrap();
    assert!(
        matches!(merged.cells[..], [ref a, ref b] if a.outcome != b.outcome),
        "{:?}",
        merged.cells
    );
    let console = RunDir::at(Path::new(&whole.outputs["merge.run"]))
        .cell(&merged.cells[0].id)
        .join("console.log");
    assert!(console.is_file(), "{}", console.display());

    // The shard that failed never reports. The other one passed, but the whole does not.
    fs::remove_dir_all(runs.join("tramplab-measure-2")).unwrap();
    let rest = job(&dir.path().join("report"), "report", &expect);
    assert!(rest.failed && rest.outputs["merge.code"] == "3", "{}", rest.said);
    let [missing, cell] = rest.annotations("error")[..] else { panic!("{}", rest.said) };
    assert!(missing.contains("1 of 2 runs"), "{missing}");
    assert!(cell.contains("/lbr_waste/fexit::") && cell.contains("did not report"), "{cell}");
    let merged = RunDir::load(Path::new(&rest.outputs["merge.run"])).unwrap();
    let lost =
        |outcome: &Outcome| matches!(outcome, Outcome::Error { kind: ErrorKind::Harness, .. });
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
    let inputs = [
        ("kernel", kernel.as_str()),
        ("suite", suite.to_str().unwrap()),
        ("arguments", "--jobs 2 fexit"),
    ];
    let done = act(&dir.path().join("alone"), &inputs);
    assert!(done.failed && done.outputs["measure.code"] == "1", "{}", done.said);
    let [error] = done.annotations("error")[..] else { panic!("{}", done.said) };
    assert!(
        error.starts_with("::error title=fail x86_64/") && error.contains("budget 1"),
        "{error}"
    );
    assert!(
        done.summary.contains("1 cell: 0 pass, 1 fail") && done.summary.contains("<details>"),
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
        assert!(
            with.get("key").is_none_or(|key| !key.is_empty() && !key.contains(',')),
            "{with:?}"
        );
    }

    // A compiler's name becomes nothing but a name.
    let done = act(&dir.path().join("odd"), &[("kernel", "tree:gcc; touch x"), ("tree", ".")]);
    assert!(
        done.failed && done.annotations("error")[0].contains("a compiler such as"),
        "{}",
        done.said
    );
    // A missing file is named.
    let folder = dir.path().join("gone");
    for inputs in [
        &[("kernel", "7.2"), ("suite", "tree/suite.yaml")][..],
        &[("kernel", "tree"), ("tree", "."), ("head", "HEAD"), ("config", "tree/kernel.config")],
        &[("kernel", "tree"), ("tree", "tree"), ("head", "HEAD")],
    ] {
        let done = act(&folder, inputs);
        let said = done.annotations("error");
        assert!(
            done.failed && said.iter().any(|line| line.contains("is not there")),
            "{}",
            done.said
        );
    }
    // The run never began: the job uploads nothing and names the reason.
    let inputs = [("kernel", "no-such-kernel"), ("suite", "waste")];
    let done = act(&dir.path().join("wrong"), &inputs);
    assert!(done.failed && done.outputs["measure.code"] == "2", "{}", done.said);
    assert!(
        done.used("upload-artifact").is_none() && done.said.contains("no-such-kernel"),
        "{}",
        done.said
    );
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

/// A suite may come from the tree although the kernel does not.
#[test]
fn checks_out_the_tree_only_where_needed() {
    let dir = tempfile::tempdir().unwrap();
    for (kernel, suite, expected) in [
        ("7.2", "tree/tools/tramplab.yaml", true),
        ("7.2", "waste", false),
        ("tree:clang-19", "waste", true),
    ] {
        let done = job(dir.path(), "build", &[("matrix.kernel", kernel), ("inputs.suite", suite)]);
        let checkouts = done.used.iter().filter(|(used, _)| used.contains("actions/checkout"));
        let of_the_tree = checkouts.filter(|(_, with)| with["path"] == "tree").count() == 1;
        assert_eq!(of_the_tree, expected, "{kernel} {suite}");
    }
}
