// SPDX-License-Identifier: MIT OR Apache-2.0
//! `tramplab.yaml` of a kernel's tree, which may be a stranger's, and of the user.

use super::SUITE;
use crate::command::{kernel_tree, said, stderr, tramplab};
use std::{
    fs,
    os::unix::fs::{chown, symlink},
    path::PathBuf,
    process::{Command, Output},
};
use tramplab_testdata::git::run as git;

struct Place {
    _dir: tempfile::TempDir,
    tree: PathBuf,
    /// The user's XDG_CONFIG_HOME.
    own: PathBuf,
}

impl Place {
    /// A kernel's tree with one commit.
    fn new() -> Place {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        let place = Place { _dir: dir, tree: root.join("linux"), own: root.join("own") };
        kernel_tree(&place.tree);
        git(&place.tree, &["init", "--quiet"]);
        place.commit();
        place
    }

    fn commit(&self) {
        git(&self.tree, &["add", "--all"]);
        git(&self.tree, &["commit", "--quiet", "--message", "m"]);
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.tree.join(name), text).unwrap();
    }

    fn list(&self, words: &[&str]) -> Output {
        let mut command = tramplab();
        command.env("XDG_CONFIG_HOME", &self.own).current_dir(&self.tree);
        command.args(["vm-test", "--list"]).args(words).output().unwrap()
    }

    fn refused(&self, words: &[&str], why: &str) -> String {
        let output = self.list(words);
        assert_eq!(output.status.code(), Some(2), "{why}: {}", said(&output));
        assert!(stderr(&output).contains(why), "{why}: {}", said(&output));
        stderr(&output)
    }

    fn accepted(&self, words: &[&str], cell: &str) {
        let output = self.list(words);
        assert!(output.status.success(), "{words:?}: {}", said(&output));
        let listed = String::from_utf8_lossy(&output.stdout);
        assert!(listed.contains(cell), "{words:?}: {}", said(&output));
    }

    /// Runs the command that the error names.
    fn agree(&self, words: &[&str]) {
        let told = self.refused(words, "if you agree to this content: ");
        let line = told.split("agree to this content: ").nth(1).unwrap().lines().next().unwrap();
        assert!(Command::new("sh").args(["-c", line]).status().unwrap().success(), "{line}");
    }
}

/// Defaults of the tree are for the tree, those of the user are for all.
#[test]
fn takes_defaults_of_the_tree_and_of_the_user() {
    let place = Place::new();
    fs::create_dir_all(place.own.join("tramplab")).unwrap();
    fs::write(place.own.join("tramplab/tramplab.yaml"), "suite: attach\naccel: tcg\n").unwrap();
    place.write("tramplab.yaml", "suite: waste\narch: [arm64]\n");
    place.agree(&["fexit"]);
    for (words, cell) in [
        (&["fexit"][..], "arm64/linux/tcg/lbr_waste/fexit\n"),
        (&["--arch", "x86_64", "fexit"], "x86_64/linux/tcg/lbr_waste/fexit\n"),
        (&["--kernel", "6.12", "--arch", "x86_64", "fexit"], "x86_64/6.12/tcg/attach/fexit/1\n"),
    ] {
        place.accepted(words, cell);
    }
    place.write("tramplab.yaml", "suites: waste\n");
    place.refused(&[], "tramplab.yaml:1:1: unknown key `suites`");
    fs::write(place.own.join("tramplab/tramplab.yaml"), "jobs: 1\naccel: fast\n").unwrap();
    place.refused(&["--kernel", "6.12"], "tramplab.yaml:2:8: invalid value 'fast'");
    fs::write(place.own.join("tramplab/tramplab.yaml"), "mirror: ftp://a\n").unwrap();
    let told = place.refused(&["--kernel", "6.12"], "tramplab.yaml:1:9: expected a URL");
    assert_eq!(told.matches("expected a URL").count(), 1, "{told}");
}

#[test]
fn a_tree_chooses_nothing_of_the_host() {
    let place = Place::new();
    for text in ["vm: virtme-ng", "accel: kvm", "branches: lbr"] {
        place.write("tramplab.yaml", text);
        place.refused(&[], "put them into ~/.config/tramplab/tramplab.yaml");
    }
    for text in ["mirror: http://a", "snapshot: http://a"] {
        place.write("tramplab.yaml", text);
        place
            .refused(&[], "servers are the user's: put this into ~/.config/tramplab/tramplab.yaml");
    }
    let outside = place.tree.parent().unwrap().join("outside");
    fs::write(&outside, "secret: word\n").unwrap();
    symlink(&outside, place.tree.join("link.yaml")).unwrap();
    symlink("/dev/zero", place.tree.join("zero.yaml")).unwrap();
    let outside = outside.to_str().unwrap();
    for text in [
        format!("suite: {outside}"),
        "suite: ../outside".to_owned(),
        "suite: ~/none.yaml".to_owned(),
        "suite: ./link.yaml".to_owned(),
        "suite: ./zero.yaml".to_owned(),
        format!("config: {outside}"),
        "config: link.yaml".to_owned(),
        format!("config-axis: [\"config={outside}.config\"]"),
        format!("config-axis: [\"{outside}:preempt=full\"]"),
    ] {
        place.write("tramplab.yaml", &text);
        let told = place.refused(&[], "is outside the tree");
        assert!(!told.contains("secret"), "{text}: {told}");
    }
    fs::remove_file(place.tree.join("tramplab.yaml")).unwrap();
    symlink(outside, place.tree.join("tramplab.yaml")).unwrap();
    let told = place.refused(&[], "found a link");
    assert!(!told.contains("secret"), "{told}");
}

#[test]
fn a_tree_chooses_its_judge_only_if_the_user_agrees() {
    let place = Place::new();
    // These choose no judge.
    place.write("tramplab.yaml", "arch: [x86_64]\njobs: 1\nconfined: true\n");
    place.accepted(&["--suite", "waste", "--accel", "tcg", "fexit"], "lbr_waste/fexit\n");
    place.write("own.yaml", SUITE);
    place.write("tramplab.yaml", "suite: ./own.yaml\n");
    let words = ["--arch", "x86_64", "--accel", "tcg"];
    place.agree(&words);
    place.accepted(&words, "lbr_waste/fentry\n");
    // Typed: nothing is left to agree to.
    place.write("tramplab.yaml", "suite: ./own.yaml # changed\n");
    place.accepted(&[&words[..], &["--suite", "waste"]].concat(), "lbr_waste/fexit\n");
    place.agree(&words);
    place.write("own.yaml", &format!("{SUITE}# changed\n"));
    place.agree(&words);
    place.accepted(&words, "lbr_waste/fentry\n");

    // A series that brings its judge.
    place.commit();
    let told =
        place.refused(&[&words[..], &["--series", "HEAD~1.."]].concat(), "HEAD~1..HEAD changes");
    assert!(told.contains("would judge it"), "{told}");
    place.write("new.c", "int new;\n");
    place.commit();
    place.accepted(&[&words[..], &["--series", "HEAD~1.."]].concat(), "lbr_waste/fentry\n");
}

#[test]
fn takes_no_defaults_of_another_user() {
    let place = Place::new();
    place.write("tramplab.yaml", "jobs: 1\n");
    for path in [place.tree.join("tramplab.yaml"), place.tree.clone()] {
        if chown(&path, Some(4242), None).is_err() {
            eprintln!("skipped: only root can give files away");
            return;
        }
        place.refused(&["--suite", "waste"], "belongs to user 4242");
        chown(&path, Some(0), None).unwrap();
    }
    place
        .accepted(&["--suite", "waste", "--arch", "x86_64", "--accel", "tcg"], "lbr_waste/fexit\n");
}
