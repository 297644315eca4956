// SPDX-License-Identifier: MIT OR Apache-2.0
//! Strangers' repositories.

use super::*;
use crate::{
    KernelError, Tree,
    series::{self, Range, SeriesError},
    source::{self, Local, SourceError},
};
use nix::{sys::stat::Mode, unistd::mkfifo};
use std::{
    fs,
    net::TcpListener,
    os::unix::fs::{PermissionsExt, chown, symlink},
    path::PathBuf,
};
use tempfile::TempDir;
use tramplab_host::cache::Cache;
use tramplab_testdata::git::run as git;

/// The settings that we read; a wrong value is an error.
const READ: [&str; 2] = ["extensions.objectformat", "extensions.refstorage"];

struct Place(TempDir);

impl Place {
    fn new() -> Place {
        Place(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// A repository with two commits of a kernel.
    fn repository(&self, words: &[&str]) -> PathBuf {
        let linux = self.path("linux");
        fs::create_dir(&linux).unwrap();
        git(&linux, &[&["init", "-q"], words].concat());
        for (name, text) in [
            ("Makefile", "VERSION = 6\n"),
            ("Kbuild", ""),
            ("Kconfig", ""),
            ("main.c", "int main;\n"),
            (".gitignore", "*.o\n"),
            (".gitattributes", "* filter=evil diff=evil merge=evil text eol=crlf ident\n"),
        ] {
            fs::write(linux.join(name), text).unwrap();
        }
        commit(&linux, "first");
        fs::write(linux.join("main.c"), "int second; /* $Id$ */\n").unwrap();
        commit(&linux, "second");
        linux
    }

    fn files(&self, folder: &str) -> Vec<(String, String)> {
        let mut files: Vec<(String, String)> = fs::read_dir(self.path(folder))
            .unwrap()
            .map(|entry| entry.unwrap())
            .map(|entry| {
                let name = entry.file_name().into_string().unwrap();
                (name, fs::read_to_string(entry.path()).unwrap_or_default())
            })
            .filter(|(name, _)| name != ".git")
            .collect();
        files.sort();
        files
    }

    /// Does all that is done with a repository: finds commits, reads a range, lists the work tree,
    /// and checks out twice.
    fn all(&self, linux: &Path) -> Result<(), String> {
        let text = |error: KernelError| error.to_string();
        let local = Local::open(linux).map_err(text)?;
        let head = local.commit("main").map_err(text)?;
        local.ask(["log", "--format=%H %s", "--patch", "--end-of-options", &head]).map_err(text)?;
        let range = Range::parse("main~1..main", Path::new("/none")).unwrap();
        series::from_range(&range, linux, None).map_err(|error: SeriesError| error.to_string())?;
        self.check_out(linux, "main~1").map_err(text)?;
        self.check_out(linux, "main").map_err(text)?;
        let tree = Tree::Folder(linux.to_owned());
        let cache = Cache::at(self.path("cache"), true);
        source::resolve(&tree, &cache, &mut |_| ()).map(drop).map_err(text)
    }

    fn check_out(&self, repository: &Path, reference: &str) -> Result<(), KernelError> {
        let cache = Cache::at(self.path("cache"), true);
        let repository = repository.to_str().unwrap().to_owned();
        let tree = Tree::Git { repository, reference: reference.to_owned() };
        let resolved = source::resolve(&tree, &cache, &mut |_| ())?;
        resolved.checkout(&self.path("into"), &cache, &mut |_| ())
    }
}

pub fn commit(folder: &Path, message: &str) -> String {
    git(folder, &["add", "-A"]);
    git(folder, &["commit", "-qm", message]);
    git(folder, &["rev-parse", "HEAD"])
}

/// Every setting that this git knows, with its placeholders filled in.
fn all_settings() -> Vec<String> {
    let listed = git(Path::new("/"), &["help", "--config"]);
    let mut names: Vec<String> = listed
        .lines()
        .map(|line| line.trim().replace(['<', '>'], "").replace('*', "evil"))
        // git lists one name that it cannot read itself.
        .filter(|name| name.contains('.') && !name.contains([' ', '_']))
        .collect();
    names.extend(["filter.evil.process", "filter.evil.required"].map(str::to_owned));
    names.retain(|name| !READ.contains(&name.to_ascii_lowercase().as_str()));
    names
}

/// A configuration file that gives each setting this value.
fn configuration(names: &[String], value: &str) -> String {
    let mut text = "[core]\n\trepositoryformatversion = 1\n".to_owned();
    for name in names {
        let (section, key) = name.rsplit_once('.').unwrap();
        let section = match section.split_once('.') {
            Some((section, sub)) => format!("{section} \"{sub}\""),
            None => section.to_owned(),
        };
        text += &format!("[{section}]\n\t{key} = {value}\n");
    }
    text
}

/// Each setting names a program, then a folder, then a host.
#[test]
fn no_setting_of_a_repository_has_an_effect() {
    let names = all_settings();
    assert!(names.len() > 400, "{names:?}");
    for wanted in
        ["core.worktree", "core.fsmonitor", "core.sshCommand", "http.proxy", "core.hooksPath"]
    {
        assert!(names.iter().any(|name| name == wanted), "{wanted}");
    }
    let place = Place::new();
    let linux = place.repository(&[]);
    let (ran, program, victim) = (place.path("ran"), place.path("program"), place.path("victim"));
    fs::write(&program, format!("#!/bin/sh\ntouch {}; exec cat\n", ran.display())).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    fs::create_dir(&victim).unwrap();
    fs::write(victim.join(".bashrc"), "years of work\n").unwrap();
    fs::create_dir_all(linux.join(".git/hooks")).unwrap();
    for hook in ["post-checkout", "reference-transaction", "post-index-change"] {
        fs::copy(&program, linux.join(".git/hooks").join(hook)).unwrap();
    }
    let host = TcpListener::bind("127.0.0.1:0").unwrap();
    host.set_nonblocking(true).unwrap();
    let url = format!("http://{}/", host.local_addr().unwrap());
    place.all(&linux).unwrap();
    let expected = place.files("into");
    assert_eq!(expected[5].1, "int second; /* $Id$ */\n", "byte by byte as committed");

    let config = linux.join(".git/config");
    for value in [&program, &victim, Path::new(&url)].map(|value| value.to_str().unwrap()) {
        fs::write(&config, configuration(&names, value)).unwrap();
        fs::write(linux.join(".git/config.worktree"), configuration(&names, value)).unwrap();
        fs::remove_dir_all(place.path("into")).unwrap();
        place.all(&linux).unwrap();
        assert_eq!(place.files("into"), expected, "{value}");
        assert!(!ran.exists(), "{value}");
        assert!(host.accept().is_err(), "{value}");
        assert_eq!(place.files("victim"), [(".bashrc".into(), "years of work\n".into())]);
    }
    // The traps work.
    fs::write(&config, configuration(&["core.fsmonitor".into()], program.to_str().unwrap()))
        .unwrap();
    let _ = tramplab_testdata::git::command(&linux).args(["status"]).output().unwrap();
    assert!(ran.exists());
}

/// git would empty this folder.
#[test]
fn checkout_ignores_the_work_tree_that_a_repository_names() {
    let place = Place::new();
    let linux = place.repository(&[]);
    let home = place.path("home");
    fs::create_dir(&home).unwrap();
    fs::write(home.join("thesis.tex"), "years of work\n").unwrap();
    for (name, value) in
        [("extensions.worktreeConfig", "true"), ("core.worktree", home.to_str().unwrap())]
    {
        git(&linux, &["config", "--file", ".git/config", name, value]);
    }
    fs::copy(linux.join(".git/config"), linux.join(".git/config.worktree")).unwrap();
    place.all(&linux).unwrap();
    assert_eq!(place.files("home"), [("thesis.tex".into(), "years of work\n".into())]);
    // The trap works.
    git(&linux, &["checkout", "--quiet", "--force", "--detach", "main"]);
    git(&linux, &["clean", "-ffdxq"]);
    assert!(!home.join("thesis.tex").exists() && home.join("main.c").exists());
}

#[test]
fn fetches_nothing_for_a_partial_clone() {
    let place = Place::new();
    let linux = place.repository(&[]);
    for name in ["allowFilter", "allowAnySHA1InWant"] {
        git(&linux, &["config", &format!("uploadpack.{name}"), "true"]);
    }
    let part = place.path("part");
    let url = format!("file://{}", linux.display());
    let words = ["clone", "-q", "--no-checkout", "--filter=blob:none", &url];
    git(place.0.path(), &[&words[..], &[part.to_str().unwrap()]].concat());
    let host = TcpListener::bind("127.0.0.1:0").unwrap();
    host.set_nonblocking(true).unwrap();
    let proxied = format!("http://{}/", host.local_addr().unwrap());
    git(&part, &["config", "remote.origin.url", &proxied]);
    let error = place.check_out(&part, "origin/main").unwrap_err();
    assert!(error.is_usage());
    let KernelError::Git(GitError::Partial { folder, empty, commit, .. }) = error else {
        panic!("{error}")
    };
    assert!(host.accept().is_err());
    // The line of the message mends it.
    git(&part, &["config", "remote.origin.url", &url]);
    git(&folder, &["diff", "--shortstat", &empty, &commit]);
    place.check_out(&part, "origin/main").unwrap();
    assert_eq!(place.files("into"), place.files("linux"));
}

/// Neither a pipe nor a device is waited for, nor read without end.
#[test]
fn rejects_files_that_no_repository_has() {
    for (file, is_needed) in [
        ("HEAD", false),
        ("config", false),
        ("shallow", false),
        ("packed-refs", false),
        ("objects/info/alternates", false),
        ("index", true),
        ("info/exclude", true),
        ("commondir", false),
    ] {
        for kind in ["pipe", "link", "large"] {
            let place = Place::new();
            let linux = place.repository(&[]);
            let path = linux.join(".git").join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            let _ = fs::remove_file(&path);
            match kind {
                "pipe" => mkfifo(&path, Mode::S_IRWXU).unwrap(),
                "link" => symlink("/dev/zero", &path).unwrap(),
                _ => fs::File::create(&path).unwrap().set_len(1 << 40).unwrap(),
            }
            let opened = Repository::open(&linux).and_then(|repository| {
                Borrowed::whole(&repository)?;
                if is_needed { files(&repository).map(drop) } else { Ok(()) }
            });
            // git itself says that these are not its own.
            if kind == "large" && ["packed-refs", "index"].contains(&file) {
                continue;
            }
            let error = opened.unwrap_err();
            assert!(matches!(&error, GitError::Unfit { .. }), "{file}, {kind}: {error}");
            assert!(error.is_usage());
        }
    }
    for (text, is_folder) in
        [("gitdir: /none\n", false), ("nothing", false), ("", false), ("", true)]
    {
        let place = Place::new();
        let folder = place.path("x");
        fs::create_dir(&folder).unwrap();
        match is_folder {
            true => fs::create_dir(folder.join(".git")).unwrap(),
            false => fs::write(folder.join(".git"), text).unwrap(),
        }
        let error = Repository::open(&folder).unwrap_err();
        assert!(error.is_usage(), "{error}");
    }
}

#[test]
fn rejects_repositories_and_objects_of_others() {
    if !geteuid_is_root() {
        eprintln!("skipped: only root can give files away");
        return;
    }
    let place = Place::new();
    let linux = place.repository(&[]);
    let owner = |path: &Path| match Repository::open(path).unwrap_err() {
        GitError::Owner { path, owner } => (path, owner),
        error => panic!("{error}"),
    };
    let lender = place.path("lender.git");
    git(place.0.path(), &["clone", "-q", "--bare", linux.to_str().unwrap(), "lender.git"]);
    let borrower = place.path("borrower");
    let words = ["clone", "-q", "--shared", lender.to_str().unwrap(), "borrower"];
    git(place.0.path(), &words);
    Repository::open(&borrower).unwrap();
    chown(lender.join("objects"), Some(4242), None).unwrap();
    assert_eq!(owner(&borrower), (lender.join("objects"), 4242));
    for part in ["", ".git", ".git/objects"] {
        chown(linux.join(part), Some(4242), None).unwrap();
        let checked = Repository::open(&linux);
        // git does not look at the objects of a repository that is the user's.
        assert_eq!(checked.is_ok(), part == ".git/objects", "{part}");
        chown(linux.join(part), Some(0), None).unwrap();
    }
    chown(&linux, Some(4242), None).unwrap();
    assert_eq!(owner(&linux), (linux.clone(), 4242));
}

fn geteuid_is_root() -> bool {
    nix::unistd::geteuid().is_root()
}

/// git believes the names of a repository's objects. Kernels are cached by the commit's id.
#[test]
fn rejects_objects_that_do_not_have_their_hash() {
    for (forged, by) in [
        ("main:main.c", "main:Makefile"),
        ("main:folder", "main:other"),
        ("main^{tree}", "main~1^{tree}"),
        ("main", "main~1"),
    ] {
        let place = Place::new();
        let linux = place.repository(&[]);
        for (folder, text) in [("folder", "1"), ("other", "2")] {
            fs::create_dir(linux.join(folder)).unwrap();
            fs::write(linux.join(folder).join("a.c"), text).unwrap();
        }
        symlink("main.c", linux.join("link.c")).unwrap();
        commit(&linux, "third");
        let name = forged;
        let [forged, by] = [forged, by].map(|name| {
            let id = git(&linux, &["rev-parse", name]);
            linux.join(".git/objects").join(&id[..2]).join(&id[2..])
        });
        fs::remove_file(&forged).unwrap();
        fs::copy(by, forged).unwrap();
        let error = place.check_out(&linux, "main").expect_err(name);
        // git itself looks at commits and their trees.
        let is_found = match &error {
            KernelError::Source(SourceError::Forged { .. }) => name.contains(':'),
            KernelError::Git(GitError::Git { .. }) => name == "main^{tree}",
            KernelError::Source(SourceError::NoReference { .. }) => name == "main",
            _ => false,
        };
        assert!(is_found && error.is_usage(), "{name}: {error}");
    }
}

#[test]
fn finds_what_git_finds() {
    let place = Place::new();
    let linux = place.repository(&[]);
    git(&linux, &["branch", "-q", "mine", "main~1"]);
    git(&linux, &["branch", "-q", "--set-upstream-to=main", "mine"]);
    git(&linux, &["fetch", "-q", ".", "mine"]);
    git(&linux, &["tag", "-am", "t", "v1", "main~1"]);
    git(&linux, &["update-ref", "refs/heads/mine", "main"]);
    git(&linux, &["pack-refs", "--all"]);
    git(&linux, &["worktree", "add", "-q", place.path("tree").to_str().unwrap(), "v1"]);
    git(place.0.path(), &["clone", "-q", "--bare", "--depth=1", &file(&linux), "shallow.git"]);
    git(place.0.path(), &["clone", "-q", "--shared", "linux", "shared"]);
    for (folder, references) in [
        (
            "linux",
            &["HEAD", "main~1", "v1", "FETCH_HEAD", "mine@{upstream}", "mine@{1}", "@{0}"][..],
        ),
        ("linux/.git", &["HEAD", "v1"]),
        ("tree", &["HEAD", "main", "HEAD@{0}"]),
        ("shallow.git", &["HEAD", "main"]),
        ("shared", &["HEAD", "origin/main~1"]),
    ] {
        let folder = place.path(folder);
        let local = Local::open(&folder).unwrap();
        for reference in references {
            let wanted = git(&folder, &["rev-parse", &format!("{reference}^{{commit}}")]);
            assert_eq!(local.commit(reference).unwrap(), wanted, "{reference}");
        }
        for none in ["none", "--all", "HEAD:main.c", "HEAD~7", "main;x"] {
            local.commit(none).unwrap_err();
        }
    }
}

fn file(path: &Path) -> String {
    format!("file://{}", path.display())
}

#[test]
fn reads_other_formats_of_objects_and_references() {
    for words in [&["--object-format=sha256"][..], &["--ref-format=reftable"]] {
        let place = Place::new();
        let mut init = tramplab_testdata::git::command(place.0.path());
        let trial = init.args([&["init", "-q", "trial"], words].concat()).output();
        if !trial.unwrap().status.success() {
            eprintln!("skipped: this git lacks {words:?}");
            continue;
        }
        let linux = place.repository(words);
        place.all(&linux).unwrap();
        assert_eq!(place.files("into"), place.files("linux"), "{words:?}");
    }
}
