// SPDX-License-Identifier: MIT OR Apache-2.0
//! Workspaces with small sources.

use super::*;

fn touched() -> BTreeSet<PathBuf> {
    ["one.c", "new/deep/three.c", "dir/two.h"].map(PathBuf::from).into()
}

fn checkout(folder: &Path) -> io::Result<()> {
    fs::write(folder.join("one.c"), "one\n")?;
    fs::create_dir(folder.join("dir"))?;
    fs::write(folder.join("dir/two.h"), "two\n")?;
    std::os::unix::fs::symlink("dir", folder.join("link"))
}

fn apply(source: &Path) -> io::Result<()> {
    fs::write(source.join("one.c"), "uno\n")?;
    fs::create_dir_all(source.join("new/deep"))?;
    fs::write(source.join("new/deep/three.c"), "three\n")?;
    fs::remove_file(source.join("dir/two.h"))
}

fn workspace() -> (tempfile::TempDir, Cache) {
    let folder = tempfile::tempdir().unwrap();
    let cache = Cache::at(folder.path().join("cache"), true);
    (folder, cache)
}

fn open(cache: &Cache) -> Workspace {
    Workspace::open(cache, &name("mainline/../x", &["x86_64"])).unwrap()
}

#[test]
fn restores_patched_sources_with_their_times() {
    let (_folder, cache) = workspace();
    let workspace = open(&cache);
    workspace.check_out("d1", "some", checkout).unwrap();
    let before = listing(&workspace.source()).unwrap();
    assert_eq!(sources(&cache, "d2"), None);
    assert_eq!(sources(&cache, "d1").unwrap().canonicalize().unwrap(), workspace.source());
    workspace.patch(&touched(), apply).unwrap().unwrap();
    assert_eq!(sources(&cache, "d1"), None);
    // A second patch to the same file keeps the original copy.
    workspace
        .patch(&[PathBuf::from("one.c")].into(), |source| fs::write(source.join("one.c"), "eins\n"))
        .unwrap()
        .unwrap();
    assert_ne!(listing(&workspace.source()).unwrap(), before);
    workspace.restore().unwrap();
    assert_eq!(listing(&workspace.source()).unwrap(), before);
    assert_eq!(fs::read_to_string(workspace.source().join("one.c")).unwrap(), "one\n");
    assert!(!workspace.source().join("new").exists());
    assert!(sources(&cache, "d1").is_some());
    // Not checked out again.
    workspace.check_out("d1", "some", |_| Err(io::Error::other("again"))).unwrap();
}

#[test]
fn next_run_restores_sources_of_killed_run() {
    let (_folder, cache) = workspace();
    let workspace = open(&cache);
    workspace.check_out("d1", "some", checkout).unwrap();
    let before = listing(&workspace.source()).unwrap();
    // Killed while applying: one file is half written, the second not begun.
    let died = |source: &Path| -> io::Result<()> {
        fs::write(source.join("one.c"), "u")?;
        fs::create_dir(source.join("new"))
    };
    workspace.patch(&touched(), died).unwrap().unwrap();
    drop(workspace);
    let workspace = open(&cache);
    assert_eq!(listing(&workspace.source()).unwrap(), before);
    assert!(!workspace.source().join("new").exists());
}

#[test]
fn restored_link_needs_no_checkout() {
    let (_folder, cache) = workspace();
    let workspace = open(&cache);
    let with_link = |folder: &Path| -> io::Result<()> {
        checkout(folder)?;
        std::os::unix::fs::symlink("one.c", folder.join("a-link"))
    };
    workspace.check_out("d1", "some", with_link).unwrap();
    let link = workspace.source().join("a-link");
    let other = |_: &Path| -> io::Result<()> {
        fs::remove_file(&link)?;
        std::os::unix::fs::symlink("dir", &link)
    };
    workspace.patch(&[PathBuf::from("a-link")].into(), other).unwrap().unwrap();
    workspace.restore().unwrap();
    // The sources count as intact, so there is no new checkout.
    workspace.check_out("d1", "some", |_| Err(io::Error::other("again"))).unwrap();
    assert_eq!(fs::read_link(&link).unwrap(), Path::new("one.c"));
}

/// Root may write anywhere; for root only the depth is an obstacle.
#[test]
fn removes_leftovers_of_hostile_build() {
    let folder = tempfile::tempdir().unwrap();
    let build = folder.path().join("build");
    let script = "mkdir -p build/shut build/$(printf 'd/%.0s' $(seq 1500)) && touch build/shut/x";
    let mut command = Command::new("bash");
    command.args(["-c", script]).current_dir(folder.path());
    child::run(&mut command, COPY_LIMIT).unwrap();
    let mut command = Command::new("chmod");
    child::run(command.args(["000"]).arg(build.join("shut")), COPY_LIMIT).unwrap();
    remove(&build).unwrap();
    assert!(!build.exists());
}

/// A tool or an editor may touch files that the diff does not name.
#[test]
fn checks_out_again_if_sources_cannot_be_restored() {
    let (_folder, cache) = workspace();
    let workspace = open(&cache);
    workspace.check_out("d1", "some", checkout).unwrap();
    fs::write(workspace.source().join("dir/extra.h"), "").unwrap();
    drop(workspace);
    let workspace = open(&cache);
    let anew = |folder: &Path| -> io::Result<()> {
        fs::remove_dir_all(folder)?;
        fs::create_dir(folder)?;
        checkout(folder)
    };
    workspace.check_out("d1", "some", anew).unwrap();
    assert!(!workspace.source().join("dir/extra.h").exists());
    // A failed checkout does not count either.
    let error = workspace
        .check_out("d2", "the other", |folder| {
            fs::write(folder.join("one.c"), "half")?;
            Err(io::Error::other("no network"))
        })
        .unwrap_err();
    assert_eq!(error.to_string(), "failed to check out the sources of the other: no network");
    let half = fs::read_to_string(workspace.source().join("one.c")).unwrap();
    assert_eq!(half, "half");
    workspace.check_out("d1", "some", anew).unwrap();
    assert_eq!(fs::read_to_string(workspace.source().join("one.c")).unwrap(), "one\n");
}

#[test]
fn series_leaves_no_trace_and_incomplete_base_is_ignored() {
    let (_folder, cache) = workspace();
    let workspace = open(&cache);
    workspace.begin_base(None).unwrap();
    let object = workspace.build().join("one.o");
    fs::write(&object, "base").unwrap();
    fs::write(workspace.build().join(".tmp_vmlinux1"), "large").unwrap();
    let time = |path: &Path| fs::metadata(path).unwrap().modified().unwrap();
    let built = time(&object);
    let state = BaseState {
        key: "k".to_owned(),
        digest: Some("d".to_owned()),
        tail: 3,
        configured: Configured::default(),
    };
    workspace.keep_base(&state).unwrap();
    fs::write(&object, "poison").unwrap();
    fs::write(workspace.build().join("planted"), "").unwrap();
    drop(workspace);

    let workspace = open(&cache);
    assert_eq!(workspace.base_state(), Some(state));
    workspace.begin_series().unwrap();
    assert_eq!(fs::read_to_string(&object).unwrap(), "base");
    assert_eq!(time(&object), built, "make would build it again");
    assert!(!workspace.build().join("planted").exists());
    assert!(!workspace.build().join(".tmp_vmlinux1").exists());

    // A copy without its state: the run was killed while copying.
    fs::remove_file(workspace.folder.join("base.json")).unwrap();
    assert_eq!(workspace.base_state(), None);
    workspace.begin_base(None).unwrap();
    assert_eq!(fs::read_dir(workspace.build()).unwrap().count(), 0);
    assert!(!workspace.base().exists());
}

/// Programs that one commit left are not run for another.
#[test]
fn starts_from_no_base_of_other_sources() {
    let (_folder, cache) = workspace();
    let workspace = open(&cache);
    let planted = |workspace: &Workspace| workspace.build().join("scripts/fixdep").exists();
    for (starts_from, starts_there) in
        [(None, true), (Some("d"), true), (Some("other"), false), (None, false)]
    {
        if starts_there {
            workspace.begin_base(None).unwrap();
            fs::create_dir_all(workspace.build().join("scripts")).unwrap();
            fs::write(workspace.build().join("scripts/fixdep"), "poison").unwrap();
            let digest = Some("d".to_owned());
            workspace
                .keep_base(&BaseState {
                    key: "k".to_owned(),
                    digest,
                    tail: 3,
                    configured: Configured::default(),
                })
                .unwrap();
        }
        workspace.begin_base(starts_from).unwrap();
        assert_eq!(planted(&workspace), starts_there, "{starts_from:?}");
    }
    // The state of an older version lacks the sources.
    let state = "{\"key\": \"k\", \"tail\": 3}";
    workspace.keep_base(&serde_json::from_str(state).unwrap()).unwrap();
    fs::write(workspace.folder.join("base.json"), state).unwrap();
    fs::write(workspace.base().join("poison"), "").unwrap();
    workspace.begin_base(Some("d")).unwrap();
    assert_eq!(fs::read_dir(workspace.build()).unwrap().count(), 0);
}

#[test]
fn counts_files_that_depend_on_source() {
    let (_folder, cache) = workspace();
    let workspace = open(&cache);
    workspace.begin_base(None).unwrap();
    let source = workspace.source();
    for (object, depends) in [("a", "one.c dir/two.h"), ("b", "dir/two.h"), ("c", "dir/two.hpp")] {
        let lines: String = depends
            .split(' ')
            .map(|path| format!("  {} \\\n", source.join(path).display()))
            .collect();
        fs::write(workspace.build().join(format!(".{object}.o.cmd")), lines).unwrap();
    }
    for (touched, expected) in [("one.c", 1), ("dir/two.h", 2), ("two.h", 0)] {
        assert_eq!(workspace.affected(&BTreeSet::from([touched.into()])), expected, "{touched}");
    }
}

#[test]
fn keeps_any_lineage_inside_the_cache() {
    let (folder, cache) = workspace();
    for lineage in ["../../etc", "", "a b/c", ".hidden", "-rf"] {
        let workspace = Workspace::open(&cache, &name(lineage, &[])).unwrap();
        let parent = fs::canonicalize(folder.path().join("cache").join(KIND)).unwrap();
        assert_eq!(workspace.folder.parent(), Some(parent.as_path()));
    }
    assert_ne!(name("a", &["b", "c"]), name("a", &["bc"]));
}

#[test]
fn names_process_that_uses_workspace() {
    let (_folder, cache) = workspace();
    let name = name("mainline/../x", &["x86_64"]);
    assert_eq!(user(&cache, &name), None);
    let workspace = open(&cache);
    assert_eq!(user(&cache, &name), Some(std::process::id().to_string()));
    drop(workspace);
    assert_eq!(user(&cache, &name), None);
}
