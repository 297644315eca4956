// SPDX-License-Identifier: MIT OR Apache-2.0
//! Applies patches to trees: some do not fit, some are hostile.

use super::*;

/// In a tree inside another repository, plain git would skip every file and report success.
#[test]
fn patches_tree_inside_unrelated_repository() {
    let outer = tempfile::tempdir().unwrap();
    git::run(outer.path(), &["init", "-q"]);
    let inner = outer.path().join("trees/linux");
    fs::create_dir(outer.path().join("trees")).unwrap();
    let tree = tree();
    fs::rename(tree.path(), &inner).unwrap();
    let series = loaded("format-patch");
    let before = snapshot(&inner);
    // Plain git does nothing here.
    let file = data("single.patch");
    git::run(&inner, &["apply", file.to_str().unwrap()]);
    assert_eq!(snapshot(&inner), before);

    apply(&series.patches[0], &inner, false).unwrap();
    assert_ne!(snapshot(&inner), before);
    apply(&series.patches[0], &inner, true).unwrap();
    assert_eq!(snapshot(&inner), before);
    // The settings of the tree's own repository are ignored too.
    fs::rename(outer.path().join(".git"), inner.join(".git")).unwrap();
    fs::write(
        inner.join(".git/config"),
        "[core]\n\tautocrlf = true\n[apply]\n\twhitespace = fix\n",
    )
    .unwrap();
    apply(&series.patches[0], &inner, false).unwrap();
    assert!(!fs::read(inner.join("kernel/bpf/trampoline.c")).unwrap().contains(&b'\r'));
}

#[test]
fn conflict_shows_hunk_and_tree_and_changes_nothing() {
    let series = loaded("format-patch");
    let tree = tree();
    let file = tree.path().join("kernel/bpf/trampoline.c");
    let text =
        fs::read_to_string(&file).unwrap().replace("int line_30;", "int\u{1b}[31m line_XXX;");
    fs::write(&file, text).unwrap();
    let before = snapshot(tree.path());
    let error = apply(&series.patches[0], tree.path(), false).unwrap_err();
    assert_eq!(snapshot(tree.path()), before, "the first hunk fits and is not applied");
    let expected = format!(
        "failed to apply patch 1 ({}): it does not fit the tree\n\
         kernel/bpf/trampoline.c:28: this hunk does not fit:\n\
         @@ -28,7 +28,7 @@ int line_26;\n int line_27;\n int line_28;\n int line_29;\n\
         -int line_30;\n\
         +int line_thirty;\n int line_31;\n int line_32;\n int line_33;\n\
         the tree's kernel/bpf/trampoline.c has (`!` where it differs):\n\
         \u{20}   28  int line_27;\n    29  int line_28;\n    30  int line_29;\n\
         \u{20}   31! int\u{fffd}[31m line_XXX;\n\
         \u{20}   32  int line_31;\n    33  int line_32;\n    34  int line_33;\n\
         git says:\nerror: patch failed: kernel/bpf/trampoline.c:28\n\
         error: kernel/bpf/trampoline.c: patch does not apply",
        TITLES[0],
    );
    assert_eq!(error.to_string(), expected);

    // The error shows where the code moved to. (A hunk at the first line of a file has a fixed
    // place.)
    let text = fs::read_to_string(&file).unwrap();
    fs::write(&file, "// more\n\n".repeat(50) + &text.replace("int line_3;", "int LINE_3;"))
        .unwrap();
    let error = apply(&series.patches[0], tree.path(), false).unwrap_err().to_string();
    let shown = "differs):\n   101  // trampoline\n   102  int line_1;\n   103  int line_2;\n\
                 \u{20}  104! int LINE_3;\n";
    assert!(error.contains(shown), "{error}");
    fs::write(&file, text).unwrap();

    // Reverting an absent patch, a missing file, an existing file.
    let error = apply(&series.patches[0], tree.path(), true).unwrap_err().to_string();
    assert!(error.starts_with("failed to revert patch 1 ("), "{error}");
    assert!(
        error.contains("kernel/bpf/trampoline.c:1: this hunk does not fit:\n@@ -1,7 +1,7 @@"),
        "{error}"
    );
    fs::remove_file(tree.path().join("kernel/bpf/old.c")).unwrap();
    let error = apply(&series.patches[1], tree.path(), false).unwrap_err().to_string();
    assert!(error.contains("kernel/bpf/old.c: No such file or directory"), "{error}");
    fs::write(tree.path().join("kernel/bpf/added.c"), "").unwrap();
    let before = snapshot(tree.path());
    let error = apply(&series.patches[2], tree.path(), false).unwrap_err().to_string();
    assert!(error.contains("kernel/bpf/added.c: already exists"), "{error}");
    assert_eq!(snapshot(tree.path()), before);
}

/// git fails only while writing: `kernel/new` is created as a file and then needed as a folder.
#[test]
fn undoes_patch_that_fails_half_way() {
    let tree = tree();
    let before = snapshot(tree.path());
    let diff = "diff --git a/kernel/bpf/old.c b/kernel/bpf/old.c\ndeleted file mode 100644\n\
                --- a/kernel/bpf/old.c\n+++ /dev/null\n@@ -1,7 +0,0 @@\n-old\n-file\n-to\n-move\n\
                -with\n-enough\n-lines\n\
                diff --git a/deep/er/new b/deep/er/new\nnew file mode 100644\n--- /dev/null\n\
                +++ b/deep/er/new\n@@ -0,0 +1 @@\n+a\n\
                diff --git a/deep/er/new/er b/deep/er/new/er\nnew file mode 100644\n--- /dev/null\n\
                +++ b/deep/er/new/er\n@@ -0,0 +1 @@\n+a\n";
    let error = apply(&patch(diff), tree.path(), false).unwrap_err();
    assert!(matches!(error.reason, ApplyReason::Git(_)), "{error}");
    assert!(error.to_string().contains("unable to write file 'deep/er/new/er'"), "{error}");
    assert_eq!(snapshot(tree.path()), before);
}

fn new_file(name: &str, mode: &str, content: &str) -> String {
    format!(
        "diff --git a/{name} b/{name}\nnew file mode {mode}\n--- /dev/null\n+++ b/{name}\n\
         @@ -0,0 +1 @@\n+{content}\n\
         \\ No newline at end of file\n"
    )
}

#[test]
fn rejects_hostile_patches_and_changes_nothing() {
    let outside = tempfile::tempdir().unwrap();
    let victim = outside.path().join("victim");
    fs::write(&victim, "mine\n").unwrap();
    let absolute = outside.path().display().to_string();
    let file = |name: &str| new_file(name, "100644", "x");
    let change = |name: &str| format!("--- a/{name}\n+++ b/{name}\n@@ -1 +1 @@\n-mine\n+yours\n");
    let through = |link: &str, target: &str| new_file(link, "120000", target);
    for (what, diff, words) in [
        ("up", file("../victim2"), "`../victim2`, which leads out of the tree"),
        ("up inside", file("kernel/../../victim2"), "which leads out of the tree"),
        (
            "absolute",
            change(&format!("/{absolute}/victim")).replace(" a//", " /").replace(" b//", " /"),
            "",
        ),
        (
            "absolute after stripping",
            change(&format!("/{absolute}/victim")),
            "which leads out of the tree",
        ),
        ("git", file(".git/hooks/post-checkout"), "which belongs to git itself"),
        ("git below", file("tools/.GIT/config"), "which belongs to git itself"),
        (
            "submodule",
            new_file("sub", "160000", &format!("Subproject commit {}", "1".repeat(40))),
            "it makes sub a submodule",
        ),
        ("link to the root", through("link", "/etc/passwd"), "a link to /etc/passwd; expected"),
        ("link up", through("kernel/link", "../../victim"), "a link to ../../victim; expected"),
        (
            "link by a detour",
            through("link", "kernel/../../victim"),
            "a link to kernel/../../victim",
        ),
        (
            "through a new link",
            through("link", &absolute) + &file("link/new"),
            "beyond a symbolic link",
        ),
        ("through an old link", file("old-link/new"), "beyond a symbolic link"),
        ("through an old link, change", change("old-link/victim"), "beyond a symbolic link"),
        (
            "through an old link, delete",
            "--- a/old-link/victim\n+++ /dev/null\n@@ -1 +0,0 @@\n-mine\n".to_owned(),
            "beyond a symbolic link",
        ),
        (
            "rename from outside",
            "diff --git a/../victim b/stolen\nsimilarity index 100%\nrename from ../victim\n\
             rename to stolen\n"
                .to_owned(),
            "",
        ),
        (
            "copy through a link",
            "diff --git a/old-link/victim b/stolen\nsimilarity index 100%\n\
             copy from old-link/victim\ncopy to stolen\n"
                .to_owned(),
            "beyond a symbolic link",
        ),
        (
            "a second file hidden from one reader",
            file("seen") + "--- a/../victim\n+++ b/../victim\n@@ -1 +1 @@\n-mine\n+yours\n",
            "`../victim`, which leads out of the tree",
        ),
        (
            "quoted up",
            file("x").replace("b/x", "\"b/\\056\\056/x\"").replace("a/x", "\"a/\\056\\056/x\""),
            "",
        ),
        ("nothing", "no diff at all\n".to_owned(), "git cannot read it"),
        ("empty", String::new(), "git cannot read it"),
    ] {
        let tree = tree();
        symlink(outside.path(), tree.path().join("old-link")).unwrap();
        let before = snapshot(tree.path());
        let error = apply(&patch(&diff), tree.path(), false).expect_err(what);
        assert!(
            error.to_string().starts_with("failed to apply patch 2 (bpf: Harm)"),
            "{what}: {error}"
        );
        assert!(error.to_string().contains(words), "{what}: {error}");
        assert_eq!(snapshot(tree.path()), before, "{what}");
        let names: Vec<_> =
            fs::read_dir(outside.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names, ["victim"], "{what}");
        assert_eq!(fs::read_to_string(&victim).unwrap(), "mine\n", "{what}");
        assert!(!tree.path().parent().unwrap().join("victim2").exists(), "{what}");
    }
    // Links inside the tree are allowed: the kernel has some.
    let tree = tree();
    apply(&patch(&through("kernel/bpf/link", "../../include/bpf.h")), tree.path(), false).unwrap();
    assert!(fs::read(tree.path().join("kernel/bpf/link")).unwrap().starts_with(b"#define A"));
}

#[test]
fn rejects_patch_truncated_anywhere_in_its_diff() {
    let whole = loaded("single.patch").patches.remove(0);
    let end = whole.diff.windows(4).position(|text| text == b"\n-- ").unwrap();
    let last_hunk = whole.diff.windows(6).position(|text| text == b"@@ -28").unwrap();
    let tree = tree();
    let before = snapshot(tree.path());
    let mut refused = 0;
    for cut in (last_hunk + 1..end).step_by(7).chain([end - 1, end]) {
        let patch = Patch { diff: whole.diff[..cut].to_vec(), ..whole.clone() };
        let error = apply(&patch, tree.path(), false).unwrap_err();
        assert!(matches!(error.reason, ApplyReason::Diff(_)), "cut at {cut}: {error}");
        refused += 1;
    }
    assert!(refused > 10, "{refused}");
    assert_eq!(snapshot(tree.path()), before);
}
