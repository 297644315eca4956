// SPDX-License-Identifier: MIT OR Apache-2.0
//! Checks out a small tree that looks like a kernel's.

use super::*;
use crate::git::tests::commit;
use std::{
    collections::BTreeMap,
    os::unix::fs::{PermissionsExt, symlink},
    process::Command,
    time::{Duration, SystemTime},
};
use tramplab_host::debian::File;
use tramplab_testdata::git::run as git;

struct Place {
    folder: tempfile::TempDir,
    cache: Cache,
}

impl Place {
    fn new() -> Place {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::at(folder.path().join("cache"), true);
        Place { folder, cache }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn resolve(&self, tree: &Tree) -> Result<Resolved, String> {
        resolve(tree, &self.cache, &mut |_| ()).map_err(|error| error.to_string())
    }

    fn checkout(&self, resolved: &Resolved, into: &Path) -> Result<(), String> {
        resolved.checkout(into, &self.cache, &mut |_| ()).map_err(|error| error.to_string())
    }

    /// Resolves and checks out. Returns the content of `into`.
    fn check_out(&self, tree: &Tree, into: &Path) -> BTreeMap<String, String> {
        let resolved = self.resolve(tree).unwrap();
        self.checkout(&resolved, into).unwrap();
        contents(into)
    }
}

fn write(root: &Path, files: &[(&str, &str)]) {
    for (name, text) in files {
        let path = root.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
}

fn kernel(root: &Path) {
    write(
        root,
        &[
            ("Makefile", "# SPDX\nVERSION = 6\nPATCHLEVEL = 12\n"),
            ("Kbuild", "obj-y += init/\n"),
            ("Kconfig", "source \"init/Kconfig\"\n"),
            ("init/main.c", "int main;\n"),
            ("init/gone.c", "int gone;\n"),
            ("scripts/run.sh", "#!/bin/sh\n"),
        ],
    );
    fs::set_permissions(root.join("scripts/run.sh"), fs::Permissions::from_mode(0o755)).unwrap();
    symlink("init/main.c", root.join("main.c")).unwrap();
}

/// Returns names and contents, without `.git`.
fn contents(root: &Path) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    for entry in walkdir::WalkDir::new(root).min_depth(1) {
        let entry = entry.unwrap();
        let name = entry.path().strip_prefix(root).unwrap().to_str().unwrap().to_owned();
        if name == ".git" || name.starts_with(".git/") || entry.file_type().is_dir() {
            continue;
        }
        let text = match fs::read_link(entry.path()) {
            Ok(target) => format!("-> {}", target.display()),
            Err(_) => fs::read_to_string(entry.path()).unwrap(),
        };
        let executable =
            !entry.path_is_symlink() && entry.metadata().unwrap().permissions().mode() & 0o100 != 0;
        found.insert(name, if executable { format!("x {text}") } else { text });
    }
    found
}

fn run(program: &str, folder: &Path, arguments: &[&str]) -> String {
    finished(Command::new(program).current_dir(folder).args(arguments))
}

fn finished(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim_end().to_owned()
}

/// Makes a repository with a kernel. Returns its folder and first commit, which has the annotated
/// tag `v1`.
fn repository(place: &Place) -> (PathBuf, String) {
    let folder = place.path("linux");
    fs::create_dir(&folder).unwrap();
    kernel(&folder);
    git(&folder, &["init", "-q"]);
    let first = commit(&folder, "first");
    git(&folder, &["tag", "-am", "one", "v1"]);
    (folder, first)
}

fn at(repository: &Path, reference: &str) -> Tree {
    Tree::Git { repository: repository.to_str().unwrap().into(), reference: reference.into() }
}

fn age(root: &Path) {
    let old = SystemTime::now() - Duration::from_secs(1000);
    for name in contents(root).keys().filter(|name| !root.join(name).is_symlink()) {
        fs::File::options().append(true).open(root.join(name)).unwrap().set_modified(old).unwrap();
    }
}

/// Has git know the new times of a checkout's files.
fn refresh(into: &Path) {
    let ours = into.with_added_extension("git");
    let [ours, tree] = [&ours, into].map(|path| path.to_str().unwrap());
    git(into, &["--git-dir", ours, "--work-tree", tree, "update-index", "-q", "--refresh"]);
}

/// Returns the files written since [`age`].
fn written(root: &Path) -> Vec<String> {
    let is_new = |name: &String| {
        let age = fs::symlink_metadata(root.join(name)).unwrap().modified().unwrap().elapsed();
        age.is_ok_and(|age| age < Duration::from_secs(900)) && !root.join(name).is_symlink()
    };
    contents(root).into_keys().filter(is_new).collect()
}

#[test]
fn checkout_leaves_users_repository_unchanged() {
    let place = Place::new();
    let (linux, first) = repository(&place);
    git(&linux, &["branch", "other"]);
    write(&linux, &[("init/main.c", "stashed\n")]);
    git(&linux, &["stash", "-q"]);
    // A dirty checkout, a hook that leaves a trace, and a worktree of the user.
    write(&linux, &[("init/main.c", "changed, not committed\n"), ("new.c", "untracked\n")]);
    fs::remove_file(linux.join("init/gone.c")).unwrap();
    git(&linux, &["add", "init/main.c"]);
    let hook = linux.join(".git/hooks/post-checkout");
    write(
        &linux,
        &[(
            ".git/hooks/post-checkout",
            "#!/bin/sh\ntouch \"$(git rev-parse --git-common-dir)/hooked\"\n",
        )],
    );
    fs::set_permissions(&hook, fs::Permissions::from_mode(0o755)).unwrap();
    let own = place.path("own");
    git(
        &linux,
        &[
            "-c",
            "core.hooksPath=/dev/null",
            "worktree",
            "add",
            "-q",
            own.to_str().unwrap(),
            "other",
        ],
    );
    let state = || {
        let what: [&[&str]; 6] = [
            &["status", "--porcelain"],
            &["for-each-ref"],
            &["stash", "list"],
            &["rev-parse", "--symbolic-full-name", "HEAD"],
            &["diff", "--cached"],
            &["config", "--local", "--list"],
        ];
        what.map(|arguments| git(&linux, arguments))
    };
    let before = (state(), contents(&own), git(&own, &["status", "--porcelain"]));

    let into = place.path("into");
    for reference in ["v1", "main", "HEAD", &first, &first[..10]] {
        let resolved = place.resolve(&at(&linux, reference)).unwrap();
        assert_eq!(resolved.digest, first, "{reference}");
        assert!(
            resolved.described.starts_with(&format!("git {} ", linux.display())),
            "{}",
            resolved.described
        );
    }
    let files = place.check_out(&at(&linux, "v1"), &into);
    assert_eq!(files["init/main.c"], "int main;\n");
    assert!(files.contains_key("init/gone.c") && !files.contains_key("new.c"), "{files:?}");
    assert_eq!(files["scripts/run.sh"], "x #!/bin/sh\n");
    assert_eq!((state(), contents(&own), git(&own, &["status", "--porcelain"])), before);
    assert!(!linux.join(".git/hooked").exists());
    let worktrees = git(&linux, &["worktree", "list", "--porcelain"]);
    assert!(worktrees.contains(own.to_str().unwrap()), "{worktrees}");
    assert!(!worktrees.contains(into.to_str().unwrap()), "{worktrees}");
    // A worktree has a HEAD of its own.
    write(&own, &[("init/main.c", "of the worktree\n")]);
    let of_own = commit(&own, "own");
    for (folder, expected) in [(&own, &of_own), (&linux, &first)] {
        assert_eq!(place.resolve(&at(folder, "HEAD")).unwrap().digest, *expected);
    }
}

#[test]
fn moved_reference_changes_only_files_that_differ() {
    let place = Place::new();
    let (linux, first) = repository(&place);
    let into = place.path("into");
    place.check_out(&at(&linux, "main"), &into);
    fs::remove_file(linux.join("init/gone.c")).unwrap();
    write(&linux, &[("init/main.c", "int other;\n")]);
    let second = commit(&linux, "second");

    age(&into);
    refresh(&into);
    // Leftovers of a series and a build.
    write(&into, &[("Kbuild", "patched\n"), ("init/main.o", "built\n"), (".gitignore", "*.o\n")]);
    let moved = place.resolve(&at(&linux, "main")).unwrap();
    assert_eq!(moved.digest, second);
    assert_eq!(moved.lineage, place.resolve(&at(&linux, "v1")).unwrap().lineage);
    place.checkout(&moved, &into).unwrap();
    assert_eq!(contents(&into), contents(&linux));
    assert_eq!(written(&into), ["Kbuild", "init/main.c"]);

    // A killed run left the index locked or half written. The user's branch must not move.
    let ours = place.path("into.git");
    fs::write(ours.join("index.lock"), "").unwrap();
    place.check_out(&at(&linux, "v1"), &into);
    fs::write(ours.join("index"), "half").unwrap();
    git(&linux, &["branch", "mine", "main"]);
    let files = place.check_out(&at(&linux, "v1"), &into);
    assert!(files.contains_key("init/gone.c"), "{files:?}");
    assert_eq!(fs::read_to_string(ours.join("HEAD")).unwrap().trim(), first);
    assert_eq!(git(&linux, &["rev-parse", "mine"]), second);
}

#[test]
fn rejects_unknown_repository_and_reference() {
    let place = Place::new();
    let (linux, _) = repository(&place);
    git(&linux, &["tag", "tree", "HEAD^{tree}"]);
    git(&linux, &["rm", "-qr", "--cached", "Kconfig"]);
    git(&linux, &["commit", "-qm", "no kernel"]);
    fs::create_dir(linux.join("within")).unwrap();
    for (tree, words) in [
        (at(&linux, "v2"), "failed to find `v2` in "),
        (at(&linux, "tree"), "failed to find `tree` in "),
        (at(&linux, "--all"), "failed to find `--all` in "),
        (at(&linux, &"0".repeat(40)), "git -C"),
        (at(&linux, "main"), "no Kconfig; expected Kbuild, Kconfig and a Makefile"),
        (at(&place.path("none"), "v1"), "no such folder"),
        // Does not fall back to the repository around it.
        (at(&linux.join("within"), "v1"), "not a git repository"),
    ] {
        let error = place.resolve(&tree).unwrap_err();
        assert!(error.contains(words), "{tree:?}: {error}");
    }
}

#[test]
fn fetches_single_commit_of_url_once() {
    let place = Place::new();
    let (linux, first) = repository(&place);
    write(&linux, &[("init/main.c", "int second;\n")]);
    let second = commit(&linux, "second");
    let url = |reference: &str| at(Path::new(&format!("file://{}", linux.display())), reference);
    let (tagged, main) = (place.resolve(&url("v1")).unwrap(), place.resolve(&url("main")).unwrap());
    assert_eq!((&tagged.digest, &main.digest), (&first, &second));
    assert_eq!(tagged.lineage, main.lineage);

    let into = place.path("into");
    assert_eq!(place.check_out(&url("main"), &into), contents(&linux));
    let shallow = fs::read_to_string(place.path("into.git/shallow")).unwrap();
    assert_eq!(shallow.trim(), second, "only one commit is fetched");
    age(&into);
    refresh(&into);
    place.check_out(&url(&first), &into);
    assert_eq!(written(&into), ["init/main.c"]);
    // A fetched commit needs no network.
    fs::rename(&linux, place.path("away")).unwrap();
    place.checkout(&main, &into).unwrap();
    assert_eq!(contents(&into)["init/main.c"], "int second;\n");

    for (reference, words) in [("v1", "failed to use file://"), ("main~1", "failed to use file://")]
    {
        let error = place.resolve(&url(reference)).unwrap_err();
        assert!(error.contains(words), "{error}");
    }
    fs::rename(place.path("away"), &linux).unwrap();
    let error = place.resolve(&url("main~1")).unwrap_err();
    assert!(error.contains("expected a branch, a tag or a full commit id"), "{error}");
}

#[test]
fn copies_folder_then_only_differences() {
    let place = Place::new();
    let linux = place.path("linux");
    kernel(&linux);
    let tree = Tree::Folder(linux.clone());
    let into = place.path("into");
    let before = place.resolve(&tree).unwrap();
    place.checkout(&before, &into).unwrap();
    let copied = contents(&into);
    assert_eq!(copied["main.c"], "-> init/main.c");

    // Each change gives the folder another digest.
    type Change<'a> = (&'a str, &'a dyn Fn());
    let run_sh = linux.join("scripts/run.sh");
    let changes: [Change; 6] = [
        ("contents", &|| write(&linux, &[("init/main.c", "int same;\n")])),
        ("a mode", &|| fs::set_permissions(&run_sh, fs::Permissions::from_mode(0o644)).unwrap()),
        ("a file gone", &|| fs::remove_file(linux.join("init/gone.c")).unwrap()),
        ("a new file", &|| write(&linux, &[("mm/slab.c", "int slab;\n")])),
        ("a link", &|| {
            fs::remove_file(linux.join("main.c")).unwrap();
            symlink("Kbuild", linux.join("main.c")).unwrap();
        }),
        ("a folder for a file", &|| {
            fs::remove_file(&run_sh).unwrap();
            write(&linux, &[("scripts/run.sh/a", "a\n")]);
        }),
    ];
    let mut digests = vec![before.digest.clone()];
    for (what, change) in changes {
        change();
        // The changed files are older than the build, as after `cp -p` or with a slow clock.
        age(&linux);
        let resolved = place.resolve(&tree).unwrap();
        assert!(!digests.contains(&resolved.digest), "{what}");
        assert_eq!(resolved.lineage, before.lineage);
        digests.push(resolved.digest.clone());
        age(&into);
        write(&into, &[("init/main.o", "built\n")]);
        place.checkout(&resolved, &into).unwrap();
        assert_eq!(contents(&into), contents(&linux), "{what}");
        let changed: &[&str] = match what {
            "contents" => &["init/main.c"],
            "a mode" => &["scripts/run.sh"],
            "a new file" => &["mm/slab.c"],
            "a folder for a file" => &["scripts/run.sh/a"],
            _ => &[],
        };
        assert_eq!(written(&into), changed, "{what}");
    }
}

#[test]
fn rejects_folders_that_would_not_build() {
    let refused = |change: &dyn Fn(&Path)| {
        let place = Place::new();
        kernel(&place.path("linux"));
        change(&place.path("linux"));
        place.resolve(&Tree::Folder(place.path("linux"))).unwrap_err()
    };
    for (file, there) in [(".config", ".config"), ("include/config/auto.conf", "include/config")] {
        let error = refused(&|linux| write(linux, &[(file, "")]));
        assert!(
            error.contains(&format!("{there} shows that it was built in"))
                && error.contains("mrproper"),
            "{error}"
        );
    }
    for target in ["/etc", "../../outside", "../.."] {
        let error = refused(&|linux| symlink(target, linux.join("init/link")).unwrap());
        assert!(error.contains("init/link is a link that leads outside"), "{error}");
    }
    let error = refused(&|linux| {
        drop(std::os::unix::net::UnixListener::bind(linux.join("socket")).unwrap())
    });
    assert!(error.contains("socket is not a file, folder or link"), "{error}");
    let error = refused(&|linux| write(linux, &[("Makefile", "all:\n")]));
    assert!(error.contains("no version in its Makefile"), "{error}");
}

/// A developer builds in place. Ignored files are build products.
#[test]
fn takes_a_built_work_tree_without_what_git_ignores() {
    let place = Place::new();
    let linux = place.path("linux");
    kernel(&linux);
    let before = place.resolve(&Tree::Folder(linux.clone())).unwrap();
    write(&linux, &[(".gitignore", ".*\n!.gitignore\n*.o\n/include/config/\n")]);
    git(&linux, &["init", "--quiet"]);
    git(&linux, &["add", "--all"]);
    let with_ignores = place.resolve(&Tree::Folder(linux.clone())).unwrap();
    assert_ne!(with_ignores.digest, before.digest);
    let clean = contents(&linux);
    write(&linux, &[(".config", ""), ("include/config/auto.conf", ""), ("init/main.o", "")]);
    let built = place.resolve(&Tree::Folder(linux.clone())).unwrap();
    assert_eq!(built.digest, with_ignores.digest);
    let into = place.path("into");
    place.checkout(&built, &into).unwrap();
    assert_eq!(contents(&into), clean);
    assert!(!into.join(".git").exists());
    // New files and removed ones count, whether or not git was told.
    write(&linux, &[("mm/new.c", "")]);
    fs::remove_file(linux.join("init/gone.c")).unwrap();
    let changed = place.resolve(&Tree::Folder(linux.clone())).unwrap();
    place.checkout(&changed, &into).unwrap();
    let names: Vec<String> = contents(&into).into_keys().collect();
    assert!(names.contains(&"mm/new.c".to_owned()), "{names:?}");
    assert!(!names.contains(&"init/gone.c".to_owned()), "{names:?}");
}

/// git lists names of its index. What is there may be another thing.
#[test]
fn takes_only_what_is_in_the_work_tree() {
    let place = Place::new();
    let (linux, _) = repository(&place);
    write(
        &linux,
        &[(".gitignore", "/lib\n"), ("lib/a.c", "a"), ("mm/b.c", "b"), ("fs/main.c", "")],
    );
    git(&linux, &["add", "--force", "lib/a.c", "mm/b.c", "fs/main.c"]);
    // Links in place of folders, one of them ignored, and a file in place of another.
    fs::remove_dir_all(linux.join("fs")).unwrap();
    symlink("init", linux.join("fs")).unwrap();
    write(&place.path("outside"), &[("a.c", "secret")]);
    fs::remove_dir_all(linux.join("lib")).unwrap();
    symlink("../outside", linux.join("lib")).unwrap();
    fs::remove_dir_all(linux.join("mm")).unwrap();
    write(&linux, &[("mm", "")]);
    // A driver has a repository of its own, with ignored files of its own.
    let driver = linux.join("drivers/own");
    write(&driver, &[("own.c", ""), ("own.o", ""), (".gitignore", "*.o\n")]);
    git(&driver, &["init", "--quiet"]);
    let resolved = place.resolve(&Tree::Folder(linux.clone())).unwrap();
    let into = place.path("into");
    place.checkout(&resolved, &into).unwrap();
    let found = contents(&into);
    assert_eq!((&*found["mm"], &*found["fs"]), ("", "-> init"));
    assert!(!found.contains_key("fs/main.c"), "{found:?}");
    assert!(found.contains_key("drivers/own/own.c") && !found.contains_key("drivers/own/own.o"));
    assert!(!found.keys().any(|name| name.starts_with("lib")), "{found:?}");
    // Debian's sources ignore themselves.
    let ignoring = place.path("ignoring");
    kernel(&ignoring);
    write(&ignoring, &[(".gitignore", "/*\n")]);
    git(&ignoring, &["init", "--quiet"]);
    let error = place.resolve(&Tree::Folder(ignoring)).unwrap_err();
    assert!(error.contains("Makefile is ignored by git"), "{error}");
    // git's own error is told: advice about build products would be wrong.
    fs::write(linux.join(".git/index"), "broken").unwrap();
    let error = place.resolve(&Tree::Folder(linux.clone())).unwrap_err();
    assert!(error.contains("index"), "{error}");
}

/// The repository is a stranger's: objects that it lacks are fetched by no program of its own.
#[test]
fn listing_files_runs_no_program_of_the_repository() {
    let place = Place::new();
    let (linux, _) = repository(&place);
    write(&linux, &[(".gitignore", "*.o\n")]);
    commit(&linux, "ignore");
    let blob = git(&linux, &["rev-parse", "HEAD:.gitignore"]);
    fs::remove_file(linux.join(".git/objects").join(&blob[..2]).join(&blob[2..])).unwrap();
    git(&linux, &["update-index", "--skip-worktree", ".gitignore"]);
    fs::remove_file(linux.join(".gitignore")).unwrap();
    let touched = place.path("touched");
    let program = format!("touch {}", touched.display());
    for (name, value) in [
        ("core.repositoryFormatVersion", "1"),
        ("extensions.partialClone", "origin"),
        ("remote.origin.url", "ssh://example.org/linux"),
        ("remote.origin.promisor", "true"),
        ("core.sshCommand", &program),
    ] {
        git(&linux, &["config", name, value]);
    }
    let _ = place.resolve(&Tree::Folder(linux.clone()));
    assert!(!touched.exists());
    // The trap works.
    let tried = tramplab_testdata::git::command(&linux)
        .args(["ls-files", "--others", "--exclude-standard"])
        .output();
    assert!(touched.exists(), "{tried:?}");
}

/// Packs `folder`; `transform` changes the names.
fn pack(place: &Place, name: &str, folder: &str, transform: &[&str]) -> PathBuf {
    let path = place.path(name);
    let fixed =
        ["--create", "--auto-compress", "--absolute-names", "--file", path.to_str().unwrap()];
    run("tar", place.folder.path(), &[&fixed, transform, &[folder]].concat());
    path
}

#[test]
fn unpacks_tarball_and_repairs_checkout() {
    let place = Place::new();
    kernel(&place.path("linux-6.12"));
    let expected = contents(&place.path("linux-6.12"));
    for (name, folder) in [("linux-6.12.tar.gz", "linux-6.12"), ("b.tar.xz", "linux-6.12")] {
        let tarball = pack(&place, name, folder, &[]);
        let tree = Tree::TarballFile(tarball);
        let into = place.path(&format!("into-{name}"));
        assert_eq!(place.check_out(&tree, &into), expected, "{name}");
        age(&into);
        write(&into, &[("init/main.c", "patched\n"), ("init/main.o", "built\n")]);
        fs::remove_file(into.join("Kbuild")).unwrap();
        assert_eq!(place.check_out(&tree, &into), expected, "{name}");
        assert_eq!(written(&into), ["Kbuild", "init/main.c"]);
        assert!(!place.path(&format!("into-{name}.unpacked")).exists());
    }
}

#[test]
fn gives_a_base_as_a_repository_whose_commits_are_a_series_on_it() {
    let place = Place::new();
    kernel(&place.path("linux-6.12"));
    write(&place.path("linux-6.12"), &[(".gitignore", "*.c\n")]);
    let tree = Tree::TarballFile(pack(&place, "linux-6.12.tar.gz", "linux-6.12", &[]));
    let resolved = place.resolve(&tree).unwrap();
    let into = place.path("mine");
    let give = |into: &Path| resolved.commit_into(into, &place.cache, &mut |_| ());
    give(&into).unwrap();
    assert_eq!(contents(&into), contents(&place.path("linux-6.12")));
    assert_eq!(git(&into, &["status", "--porcelain", "--ignored"]), "");
    let base = git(&into, &["rev-parse", BASE_TAG]);
    assert_eq!(base, git(&into, &["rev-parse", "HEAD"]));
    // Equal sources are an equal commit. Nothing else is left.
    give(&place.path("other")).unwrap();
    assert_eq!(git(&place.path("other"), &["rev-parse", "HEAD"]), base);
    assert!(!into.with_added_extension("checkout").exists());

    write(&into, &[("init/main.c", "int mine;\n")]);
    commit(&into, "init: Make it mine");
    let mails = git(&into, &["format-patch", "--stdout", "base.."]);
    let mbox = place.path("mine.mbox");
    fs::write(&mbox, mails + "\n").unwrap();
    let series = crate::series::load(mbox.to_str().unwrap(), place.folder.path()).unwrap();
    let built = place.path("built");
    place.checkout(&resolved, &built).unwrap();
    let apply = |patch| crate::series::apply(patch, &built, false).unwrap();
    series.patches.iter().for_each(apply);
    assert_eq!(contents(&built), contents(&into));

    // A user's work is not overwritten, and a user's repository is not copied.
    let error = give(&into).unwrap_err();
    let is_foreign = matches!(error, KernelError::Source(SourceError::Foreign { .. }));
    assert!(is_foreign && error.is_usage(), "{error}");
    let (linux, _) = repository(&place);
    for tree in [at(&linux, "v1"), Tree::Folder(linux.clone())] {
        let resolved = place.resolve(&tree).unwrap();
        let error = resolved.commit_into(&place.path("no"), &place.cache, &mut |_| ()).unwrap_err();
        let own = matches!(error, KernelError::Source(SourceError::Committable { .. }));
        assert!(own && error.is_usage(), "{error}");
        assert!(!place.path("no").exists());
    }
}

#[test]
fn rejects_bad_tarballs_and_writes_nothing_outside() {
    let place = Place::new();
    kernel(&place.path("linux-6.12"));
    write(&place.path("two"), &[("a/x", ""), ("b/x", "")]);
    write(&place.path("plain"), &[("a/x", "")]);
    kernel(&place.path("linked"));
    symlink("/etc", place.path("linked/etc")).unwrap();
    let outside = place.path("outside");
    let absolute = format!("s,linux-6.12,{},", outside.display());
    let text = place.path("text.tar.xz");
    fs::write(&text, "hello").unwrap();
    let whole = pack(&place, "whole.tar.gz", "linux-6.12", &[]);
    let cut = place.path("cut.tar.gz");
    fs::write(&cut, &fs::read(whole).unwrap()[..200]).unwrap();
    for (tarball, words) in [
        (
            pack(&place, "up.tar.gz", "linux-6.12", &["--transform", "s,linux-6.12,../outside,"]),
            "contains '..'",
        ),
        (
            pack(&place, "abs.tar.gz", "linux-6.12", &["--transform", &absolute]),
            "outside its own folder",
        ),
        (pack(&place, "two.tar.gz", "two", &["--transform", "s,two/,,"]), "expected one folder"),
        (pack(&place, "plain.tar.gz", "plain", &[]), "no Kbuild"),
        (pack(&place, "linked.tar.gz", "linked", &[]), "etc is a link that leads outside"),
        (text, "failed to unpack"),
        (cut, "failed to unpack"),
    ] {
        let tree = Tree::TarballFile(tarball.clone());
        let into = place.path("into");
        let resolved = place.resolve(&tree).unwrap();
        let error = resolved.checkout(&into, &place.cache, &mut |_| ()).unwrap_err();
        assert!(error.to_string().contains(words), "{}: {error}", tarball.display());
        assert!(error.is_usage(), "{error}");
        assert!(!outside.exists(), "{}", tarball.display());
        assert_eq!(contents(&into), BTreeMap::new());
    }
    let error = place.resolve(&Tree::TarballFile(place.path("none.tar.xz"))).unwrap_err();
    assert!(error.contains("none.tar.xz"), "{error}");
}

#[test]
fn keeps_foreign_files_and_redoes_unfinished_checkout() {
    let place = Place::new();
    for name in ["linux", "other"] {
        kernel(&place.path(name));
    }
    let resolved = place.resolve(&Tree::Folder(place.path("linux"))).unwrap();
    let other = place.resolve(&Tree::Folder(place.path("other"))).unwrap();
    let mine = place.path("mine");
    write(&mine, &[("thesis.tex", "years of work")]);
    let error = place.checkout(&resolved, &mine).unwrap_err();
    assert!(error.contains("it holds other files"), "{error}");
    assert_eq!(contents(&mine).len(), 1);

    let into = place.path("into");
    place.checkout(&resolved, &into).unwrap();
    assert!(State::load(&into).unwrap().holds(&resolved.digest, &into).unwrap());
    let error = place.checkout(&other, &into).unwrap_err();
    assert!(error.contains("it holds other sources"), "{error}");

    // As a killed run leaves it.
    State::begin(&resolved.lineage, &into).unwrap();
    fs::remove_file(into.join("Kbuild")).unwrap();
    assert!(!State::load(&into).unwrap().holds(&resolved.digest, &into).unwrap());
    place.checkout(&resolved, &into).unwrap();
    assert_eq!(contents(&into), contents(&place.path("linux")));

    // The folder changes between resolve and checkout.
    write(&place.path("linux"), &[("Kbuild", "changed\n")]);
    fs::remove_file(into.join("Kconfig")).unwrap();
    let error = place.checkout(&resolved, &into).unwrap_err();
    assert!(error.contains("it changed during the copy"), "{error}");
    assert!(!State::load(&into).unwrap().holds(&resolved.digest, &into).unwrap());
}

/// A stranger's repository: its configuration names programs. One is set only for git's worktrees.
#[test]
fn checkout_runs_no_program_of_the_repository() {
    let place = Place::new();
    let (linux, _) = repository(&place);
    let ran = place.path("ran");
    let program = format!("touch {}; cat", ran.display());
    let settings = [
        ("filter.evil.smudge", program.as_str()),
        ("filter.evil.required", "true"),
        ("filter.e.v=i l.process", &program),
        ("filter.e.v=i l.required", "true"),
        ("core.fsmonitor", &program),
        ("core.sshCommand", &program),
        ("core.askPass", &program),
        ("credential.helper", &program),
    ];
    let calm = fs::read(linux.join(".git/config")).unwrap();
    for (key, value) in settings {
        git(&linux, &["config", key, value]);
    }
    let of_worktrees = linux.join(".git/of-worktrees");
    git(
        &linux,
        &["config", "includeIf.gitdir:**/worktrees/**.path", of_worktrees.to_str().unwrap()],
    );
    let included = format!("[filter \"late\"]\n\tsmudge = \"{program}\"\n");
    fs::write(&of_worktrees, included).unwrap();
    let attributes = "*.c filter=evil\nKbuild filter=late\nKconfig filter=e.v=i\\ l\n";
    let config = linux.join(".git/config");
    let hostile = fs::read(&config).unwrap();
    let record = |name: &str, text: &str| {
        write(&linux, &[(name, text)]);
        fs::write(&config, &calm).unwrap();
        commit(&linux, name);
        fs::write(&config, &hostile).unwrap();
    };
    record(".gitattributes", attributes);
    let _ = fs::remove_file(&ran);

    // Plain git runs them.
    let naive = place.path("naive");
    git(&linux, &["worktree", "add", "-q", naive.to_str().unwrap(), "HEAD", "--detach"]);
    assert!(ran.exists());
    fs::remove_file(&ran).unwrap();

    let into = place.path("into");
    fs::create_dir(&into).unwrap();
    let resolved = place.resolve(&at(&linux, "main")).unwrap();
    place.checkout(&resolved, &into).unwrap();
    assert!(!ran.exists());
    let main = fs::read_to_string(into.join("init/main.c")).unwrap();
    assert_eq!(main, git(&linux, &["show", "HEAD:init/main.c"]) + "\n");
    // Again, into the existing worktree.
    record("init/main.c", "int other;\n");
    let _ = fs::remove_file(&ran);
    let resolved = place.resolve(&at(&linux, "main")).unwrap();
    place.checkout(&resolved, &into).unwrap();
    assert_eq!(fs::read_to_string(into.join("init/main.c")).unwrap(), "int other;\n");
    assert!(!ran.exists());
}

/// Packages share a build folder by name, and a stranger's pin may give one another content.
#[test]
fn a_package_is_built_on_no_base_of_another_content() {
    let place = Place::new();
    let pinned = |digit: &str| {
        let path = "pool/main/l/linux/linux-source-7.2_7.2.13-1_all.deb".into();
        let files = vec![File { path, size: 7, sha256: digit.repeat(64) }];
        let pin = Some(Pin { snapshot: "20261030T120000Z".into(), files });
        let tree = Tree::DebianSource { package: "linux-source-7.2".into(), version: None, pin };
        place.resolve(&tree).unwrap()
    };
    let (ours, theirs) = (pinned("1"), pinned("2"));
    assert_eq!(ours.lineage, theirs.lineage);
    assert_eq!(ours.base(), Some("1".repeat(64).as_str()));
    assert_ne!(ours.base(), theirs.base());
}
