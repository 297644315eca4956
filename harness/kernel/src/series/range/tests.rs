// SPDX-License-Identifier: MIT OR Apache-2.0
//! Ranges of real, hostile and shallow repositories.

use super::*;
use crate::series::{Series, SeriesError, apply, from_range};
use std::os::unix::fs::symlink;
use tempfile::TempDir;

struct Repository(TempDir);

impl Repository {
    fn new() -> Repository {
        let repository = Repository(tempfile::tempdir().unwrap());
        repository.git(&["init", "--quiet", "--initial-branch=main"]);
        repository
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn write(&self, name: &str, text: impl AsRef<[u8]>) {
        let path = self.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn git(&self, words: &[&str]) -> String {
        tramplab_testdata::git::run(self.path(), words)
    }

    /// Commits all changes. Returns the id.
    fn commit(&self, message: &str) -> String {
        self.git(&["add", "--all", "--force"]);
        self.git(&[
            "commit",
            "--quiet",
            "--allow-empty",
            "--cleanup=verbatim",
            "--message",
            message,
        ]);
        self.git(&["rev-parse", "HEAD"])
    }

    fn range(&self, base: &str, head: &str) -> Range {
        Range::parse(&format!("{base}..{head}"), Path::new("/none")).unwrap()
    }

    fn read(&self, base: &str, head: &str) -> Result<Series, SeriesError> {
        from_range(&self.range(base, head), self.path(), None)
    }

    fn refused(&self, base: &str, head: &str) -> RangeError {
        match self.read(base, head) {
            Err(SeriesError::Range(error)) => {
                assert!(error.is_usage(), "{error}");
                error
            }
            other => panic!("{other:?}"),
        }
    }

    /// Makes a folder with the files of a commit.
    fn checkout(&self, commit: &str) -> TempDir {
        let folder = tempfile::tempdir().unwrap();
        let work = format!("--work-tree={}", folder.path().display());
        self.git(&[&work, "checkout", "--quiet", commit, "--", "."]);
        self.git(&["reset", "--quiet", "--hard"]);
        folder
    }
}

/// Applies all patches and checks the tree after each.
fn apply_all(series: &Series, sources: &Path) -> Result<(), RangeError> {
    for patch in &series.patches {
        apply(patch, sources, false).unwrap();
        series.commits.as_ref().unwrap().check(patch, sources)?;
    }
    Ok(())
}

/// A commit message that looks like a mail with its own diff and base, separated as git
/// separates mails.
const MAIL: &str = "bpf: Change nothing\n\n\
    From 0123456789012345678901234567890123456789 Mon Sep 17 00:00:00 2001\n\
    From: A <a@example.org>\nDate: Mon, 1 Jan 2024 00:00:00 +0000\n\
    Subject: [PATCH v9 1/1] bpf: Harmless\nMIME-Version: 1.0\nContent-Type: text/plain\n\n\
    base-commit: 0123456789012345678901234567890123456789\n---\n a.c | 2 +-\n\n\
    diff --git a/a.c b/a.c\n--- a/a.c\n+++ b/a.c\n@@ -1 +1 @@\n-int a;\n+int harmless;\n\
    -- \n2.47.3\n";

#[test]
fn ignores_diff_in_commit_message() {
    let repository = Repository::new();
    repository.write("a.c", "int a;\n");
    repository.write("b.c", "int b;\n");
    let base = repository.commit("base");
    repository.write("b.c", "int evil;\n");
    repository.commit(MAIL);
    repository.write("b.c", "int worse;\n");
    // Quoted, as mboxes quote `From `.
    let head = repository.commit(&MAIL.replace("\nFrom ", "\n>From "));
    let series = repository.read(&base, &head).unwrap();
    let subjects: Vec<&str> = series.patches.iter().map(|patch| patch.subject.as_str()).collect();
    assert_eq!(subjects, ["bpf: Change nothing"; 2]);
    assert!(series.patches.iter().all(|patch| patch.touched == [Path::new("b.c")]), "{series:?}");
    assert_eq!((series.base_commit.as_deref(), &series.name[..]), (Some(&*base), &head[..12]));
    let sources = repository.checkout(&base);
    apply_all(&series, sources.path()).unwrap();
    assert_eq!(fs::read_to_string(sources.path().join("b.c")).unwrap(), "int worse;\n");
    assert_eq!(fs::read_to_string(sources.path().join("a.c")).unwrap(), "int a;\n");
}

/// As in a shell in the tree: the last commits of the branch, and those that its upstream lacks.
#[test]
fn reads_commits_of_the_branch_that_is_checked_out() {
    let repository = Repository::new();
    let ids: Vec<String> = (0..4)
        .map(|number| {
            repository.write("a.c", format!("int a{number};\n"));
            repository.commit(&format!("commit {number}"))
        })
        .collect();
    repository.git(&["branch", "theirs", &ids[0]]);
    repository.git(&["branch", "--quiet", "--set-upstream-to=theirs"]);
    for (spec, base) in [("HEAD~2..", &ids[1]), ("@{u}..", &ids[0]), ("@{upstream}..@~1", &ids[0])]
    {
        let range = Range::parse(spec, Path::new("/none")).unwrap();
        let series = from_range(&range, repository.path(), None).unwrap();
        assert_eq!(series.base_commit.as_ref(), Some(base), "{spec}");
        assert_eq!(series.patches.len(), 2 + usize::from(spec == "@{u}.."), "{spec}");
    }
    repository.git(&["branch", "--unset-upstream"]);
    assert!(matches!(repository.refused("@{u}", "HEAD"), RangeError::UnknownCommit { .. }));
}

#[test]
fn ignores_users_configuration_and_attributes() {
    let repository = Repository::new();
    repository.write("a.c", "int a;\nint b;\nint c;\nint d;\nint e;\n");
    repository.write("run.sh", "#!/bin/sh\n");
    repository.write("folder/file", "x\n");
    let base = repository.commit("base");
    let marker = repository.path().join("ran");
    let program = format!("touch {}; cat", marker.display());
    for (name, value) in [
        ("diff.noprefix", "true"),
        ("diff.context", "0"),
        ("diff.renames", "copies"),
        ("diff.external", &*program),
        ("diff.evil.textconv", &*program),
        ("diff.evil.command", &*program),
        ("filter.evil.clean", &*program),
        ("filter.evil.smudge", &*program),
        ("log.showSignature", "true"),
        ("color.ui", "always"),
        ("core.autocrlf", "true"),
        ("core.quotePath", "false"),
    ] {
        repository.git(&["config", name, value]);
    }
    repository.write(".git/info/attributes", "* diff=evil text eol=crlf\n");
    repository.write(".gitattributes", "*.c diff=evil -text\n* eol=crlf ident\n");
    repository.write("a.c", "int a;\nint b;\nint x;\nint d;\nint e;\n");
    repository.write("new.bin", b"\0\x01\r\n\xff");
    repository.write("caf\u{e9} \"quoted\"\t.c", "$Id$\r\nno end");
    fs::rename(repository.path().join("run.sh"), repository.path().join("moved.sh")).unwrap();
    fs::set_permissions(repository.path().join("moved.sh"), fs::Permissions::from_mode(0o755))
        .unwrap();
    fs::remove_dir_all(repository.path().join("folder")).unwrap();
    symlink("a.c", repository.path().join("link")).unwrap();
    // Plumbing, so that no filter changes the commit.
    let all = ["-c", "core.autocrlf=false", "-c", "filter.evil.clean="];
    fs::remove_file(repository.path().join(".git/info/attributes")).unwrap();
    repository.git(&[&all[..], &["add", "--all"]].concat());
    repository.git(&["commit", "--quiet", "--message", "change"]);
    let head = repository.git(&["rev-parse", "HEAD"]);
    repository.write(".git/info/attributes", "* diff=evil text eol=crlf\n");
    let _ = fs::remove_file(&marker);
    let before: Vec<String> = objects(repository.path());

    let series = repository.read(&base, &head).unwrap();
    let diff = String::from_utf8_lossy(&series.patches[0].diff).into_owned();
    assert!(
        diff.contains("--- a/a.c\n+++ b/a.c\n") && diff.contains(" int b;\n-int c;\n"),
        "{diff}"
    );
    assert!(!diff.contains("rename from") && !diff.contains('\u{1b}'), "{diff}");
    assert!(!marker.exists(), "a program of the configuration has run");
    // The base's files, unchanged by attributes.
    let sources = tempfile::tempdir().unwrap();
    for (name, text) in [
        ("a.c", "int a;\nint b;\nint c;\nint d;\nint e;\n"),
        ("run.sh", "#!/bin/sh\n"),
        ("folder/file", "x\n"),
    ] {
        fs::create_dir_all(sources.path().join(name).parent().unwrap()).unwrap();
        fs::write(sources.path().join(name), text).unwrap();
    }
    apply_all(&series, sources.path()).unwrap();
    assert!(!marker.exists(), "a program of the configuration has run");
    assert_eq!(objects(repository.path()), before, "the user's repository was written to");
}

fn objects(repository: &Path) -> Vec<String> {
    let all = fs::read_dir(repository.join(".git/objects")).unwrap();
    let mut names: Vec<String> = all
        .flat_map(|folder| fs::read_dir(folder.unwrap().path()).unwrap())
        .map(|entry| entry.unwrap().path().display().to_string())
        .collect();
    names.sort();
    names
}

#[test]
fn rejects_sources_that_differ_from_commits_tree() {
    let repository = Repository::new();
    repository.write("a.c", "int a;\n");
    let base = repository.commit("base");
    repository.write("a.c", "int b;\n");
    repository.write("gone.c", "");
    let first = repository.commit("one");
    repository.write("a.c", "int c;\n");
    fs::remove_file(repository.path().join("gone.c")).unwrap();
    let head = repository.commit("two");
    let series = repository.read(&base, &head).unwrap();
    let commits = series.commits.as_ref().unwrap();
    type Case = (usize, fn(&Path));
    let cases: [Case; 5] = [
        (0, |sources| fs::write(sources.join("a.c"), "int b;\r\n").unwrap()),
        (0, |sources| fs::remove_file(sources.join("gone.c")).unwrap()),
        (0, |sources| {
            fs::set_permissions(sources.join("a.c"), fs::Permissions::from_mode(0o755)).unwrap();
        }),
        (0, |sources| {
            fs::remove_file(sources.join("a.c")).unwrap();
            symlink("gone.c", sources.join("a.c")).unwrap();
        }),
        (1, |sources| fs::write(sources.join("gone.c"), "").unwrap()),
    ];
    for (index, (at, change)) in cases.into_iter().enumerate() {
        let sources = repository.checkout(&base);
        for patch in &series.patches[..=at] {
            apply(patch, sources.path(), false).unwrap();
        }
        let patch = &series.patches[at];
        commits.check(patch, sources.path()).unwrap();
        change(sources.path());
        let id = [&first, &head][at];
        let tree = repository.git(&["rev-parse", &format!("{id}^{{tree}}")]);
        match commits.check(patch, sources.path()).unwrap_err() {
            RangeError::OtherTree { commit, expected, found } => {
                assert_eq!((&commit, &expected), (id, &tree), "case {index}");
                assert!(is_commit_id(&found) && found != tree, "case {index}: {found}");
            }
            error => panic!("case {index}: {error}"),
        }
    }
    // A diff that differs from the commit's is rejected before anything is checked out.
    let mut patches = series.patches.clone();
    patches[1].diff =
        String::from_utf8_lossy(&patches[1].diff).replace("+int c;", "+int d;").into_bytes();
    commits.check_diffs(&series.patches).unwrap();
    let error = commits.check_diffs(&patches).unwrap_err();
    assert!(matches!(&error, RangeError::OtherTree { commit, .. } if *commit == head), "{error}");
}

#[test]
fn rejects_empty_unknown_and_nonlinear_ranges() {
    let repository = Repository::new();
    repository.write("a.c", "int a;\n");
    let base = repository.commit("base");
    repository.write("a.c", "int b;\n");
    let head = repository.commit("one");
    let empty = repository.commit("nothing");
    assert!(matches!(repository.refused(&head, &head), RangeError::Empty { .. }));
    assert!(matches!(repository.refused(&head, &empty), RangeError::Empty { .. }));
    assert!(matches!(repository.refused(&head, &base), RangeError::NotAncestor { .. }));
    let unknown = "0123456789012345678901234567890123456789";
    for (base, head) in [(&*base, unknown), (unknown, &*head), (&*base, "no-such")] {
        let error = repository.refused(base, head);
        assert!(matches!(error, RangeError::UnknownCommit { .. }), "{error}");
        assert!(error.to_string().contains("fetch more of its history"), "{error}");
    }
    // A commit that changes nothing is skipped with a note.
    let series = repository.read(&base, &empty).unwrap();
    assert_eq!((series.patches.len(), series.notes.len()), (1, 1), "{series:?}");
    assert!(series.notes[0].contains(&empty) && series.notes[0].contains("changes no file"));

    repository.git(&["checkout", "--quiet", "-b", "side", &base]);
    let side = repository.commit("beside");
    let error = repository.refused(&side, &head);
    assert!(matches!(error, RangeError::NotAncestor { .. }), "{error}");
    repository.git(&["merge", "--quiet", "--no-edit", &head]);
    let error = repository.refused(&base, "side");
    assert!(matches!(error, RangeError::Merges { count: 1, .. }), "{error}");

    let read = |kernel| {
        from_range(&repository.range("main~2", "main"), repository.path(), Some(("tree", kernel)))
    };
    assert_eq!(read(&base).unwrap().patches.len(), 1);
    match read("main") {
        Err(SeriesError::Range(RangeError::OtherBase { base: of, kernel, commit, .. })) => {
            assert_eq!((of, &*kernel, commit), (base, "tree", empty));
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn rejects_unfetched_base_and_says_how_to_fetch() {
    let repository = Repository::new();
    let mut commits = Vec::new();
    for text in ["a", "b", "c", "d"] {
        repository.write("a.c", text);
        commits.push(repository.commit(text));
    }
    let clone = Repository::new();
    let url = format!("file://{}", repository.path().display());
    clone.git(&["fetch", "--quiet", "--depth=3", &url, "main"]);
    assert_eq!(clone.read(&commits[1], &commits[3]).unwrap().patches.len(), 2);
    let error = clone.refused(&commits[0], &commits[3]);
    assert!(matches!(error, RangeError::UnknownCommit { .. }), "{error}");
    clone.git(&["fetch", "--quiet", "--depth=1", &url, &commits[0]]);
    let error = clone.refused(&commits[0], &commits[3]);
    assert!(matches!(error, RangeError::NotAncestor { .. }), "{error}");
    assert!(error.to_string().contains("fetch more of it"), "{error}");
    let none = tempfile::tempdir().unwrap();
    let error = from_range(&repository.range("a", "b"), none.path(), None).unwrap_err();
    assert!(error.is_usage(), "{error}");
}

#[test]
fn rejects_submodule_on_apply() {
    let repository = Repository::new();
    repository.write("a.c", "int a;\n");
    let base = repository.commit("base");
    repository.git(&["update-index", "--add", "--cacheinfo", &format!("160000,{base},module")]);
    repository.git(&["commit", "--quiet", "--message", "module"]);
    let series = repository.read(&base, "HEAD").unwrap();
    let sources = repository.checkout(&base);
    assert!(apply(&series.patches[0], sources.path(), false).is_err());
}

#[test]
fn distinguishes_ranges_from_paths_and_names() {
    let folder = tempfile::tempdir().unwrap();
    let range =
        |spec: &str| Range::parse(spec, folder.path()).map(|range| (range.base, range.head));
    let pair = |base: &str, head: &str| Some((base.to_owned(), head.to_owned()));
    assert_eq!(range("v6.12..HEAD"), pair("v6.12", "HEAD"));
    assert_eq!(range("origin/main..topic/x~1"), pair("origin/main", "topic/x~1"));
    assert_eq!(range("HEAD~3.."), pair("HEAD~3", "HEAD"));
    assert_eq!(range("@{u}.."), pair("@{u}", "HEAD"));
    for other in [
        "../a.mbx",
        "a/../b.mbx",
        "a...b",
        "a...",
        "..",
        "..b",
        "-a..b",
        "a..-b",
        "a..b c",
        "a..b..c",
    ] {
        assert_eq!(range(other), None, "{other}");
    }
    fs::create_dir(folder.path().join("a..b")).unwrap();
    fs::write(folder.path().join("a..b/series.yaml"), "").unwrap();
    assert_eq!(range("a..b"), None);
    let path = folder.path().join("a..b");
    assert_eq!(range(path.to_str().unwrap()), None);
}
