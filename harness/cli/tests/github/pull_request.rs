// SPDX-License-Identifier: MIT OR Apache-2.0
//! A pull request is measured as a series, and cannot choose what is measured.

use super::{SUITE, act, git, job};
use std::{fs, path::Path};
use tramplab_host::runs::RunDir;
use tramplab_kernel::series::{self, Range};

/// Makes a repository of three commits; returns their ids.
fn three_commits(tree: &Path) -> Vec<String> {
    fs::create_dir_all(tree).unwrap();
    git(tree, &["init", "--quiet"]);
    let mut commits = Vec::new();
    for (number, subject) in
        ["v1", "bpf: One `$(touch x)`", "bpf: Two; \"touch x\" %0A::error::"].iter().enumerate()
    {
        fs::write(tree.join("file.c"), format!("int value = {number};\n")).unwrap();
        git(tree, &["add", "file.c"]);
        git(tree, &["commit", "--quiet", "--message", subject]);
        commits.push(git(tree, &["rev-parse", "HEAD"]));
    }
    // The user's git configuration must not matter.
    git(tree, &["config", "diff.noprefix", "true"]);
    git(tree, &["config", "format.attach", "true"]);
    commits
}

#[test]
#[ignore = "full: runs whole jobs; builds kernels"]
fn measures_a_pull_request_as_a_series() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("job");
    let tree = folder.join("tree");
    let commits = three_commits(&tree);
    let base = |count: &str| {
        job(
            &folder,
            "build",
            &[("github.event.pull_request.commits", count), ("matrix.kernel", "tree")],
        )
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
}

#[test]
fn rejects_a_range_that_is_no_series() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("job");
    let tree = folder.join("tree");
    let commits = three_commits(&tree);
    // A history with a merge is no series.
    git(&tree, &["checkout", "--quiet", "-b", "side", &commits[0]]);
    git(&tree, &["commit", "--quiet", "--allow-empty", "--message", "beside"]);
    git(&tree, &["merge", "--quiet", "--strategy", "ours", "--no-edit", &commits[2]]);
    let head = git(&tree, &["rev-parse", "HEAD"]);
    let unknown = "0123456789012345678901234567890123456789";
    for (base, head, words) in [
        (&*commits[0], &*head, "has 1 merges; expected a linear history: rebase it"),
        (&commits[0], &commits[0], "has no commit"),
        (&commits[2], &commits[1], "is not in the history"),
        (unknown, &commits[1], "`depth`"),
        (&commits[0], unknown, "fetch more of its history"),
    ] {
        let inputs = [
            ("tree", "tree"),
            ("base", base),
            ("head", head),
            ("kernel", "tree"),
            ("suite", "waste"),
        ];
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
    for (name, text) in
        [("Makefile", makefile), ("Kbuild", ""), ("Kconfig", ""), ("harmless.c", "int a;\n")]
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
    let inputs = [
        ("tree", "tree"),
        ("base", &*base),
        ("head", &head),
        ("kernel", "tree"),
        ("suite", "waste"),
    ];
    let done = act(dir.path(), &inputs);
    assert!(done.failed && done.outputs["measure.code"] == "3", "{}", done.said);
    let applied: Vec<&str> =
        done.said.lines().filter(|line| line.starts_with("applying ")).collect();
    assert_eq!(applied, ["applying bpf: Slower"], "{}", done.said);
    let range = Range::parse(&format!("{base}..{head}"), dir.path()).unwrap();
    let series = series::from_range(&range, &tree, None).unwrap();
    assert_eq!(series.patches[0].touched, [Path::new("slower.c")]);
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
        let all = [
            ("kernel", &*kernel),
            ("tree", "tree"),
            ("head", &head),
            ("suite", "tree/ci/suite.yaml"),
        ];
        act(dir.path(), &[&all[..], more].concat())
    };
    let done = measured(&[("base", &base)]);
    assert!(done.failed && done.outputs["measure.code"] == "1", "{}", done.said);
    let run = RunDir::load(Path::new(&done.outputs["measure.run"])).unwrap();
    let [note] = &run.notes[..] else { panic!("{:?}", run.notes) };
    assert!(note.contains("ci/suite.yaml") && note.contains(&base[..12]), "{note}");
    assert!(done.summary.contains(&format!("- note: {note}")), "{}", done.summary);
    assert!(
        done.annotations("warning").iter().any(|line| line.contains("ci/suite.yaml")),
        "{}",
        done.said
    );
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
        (
            [("config", "tree/ci/no.config"), ("base", &base)],
            "the configuration `ci/no.config` is no file",
        ),
        ([("kernel", &manifest), ("base", &base)], "which the series may change"),
        (
            [("arguments", &format!("--kernel={manifest}")), ("base", &base)],
            "which the series may change",
        ),
        (
            [("suite", "tree/ci/suite.yaml"), ("base", "0123456789012345678901234567890123456789")],
            "`depth`",
        ),
    ] {
        let done = measured(&more);
        let said = done.annotations("error");
        assert!(
            done.failed && said.iter().any(|line| line.contains(words)),
            "{words}: {}",
            done.said
        );
        assert!(done.used("upload-artifact").is_none(), "{words}");
    }
}
