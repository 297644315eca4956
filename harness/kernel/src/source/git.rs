// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sources from a git repository.
//!
//! A checkout has a repository of its own beside it, `FOLDER.git`, which borrows objects. Nothing
//! changes in the user's repository. For a URL, only the wanted commit is fetched, into a bare
//! repository in the cache.

use super::{KernelError, SourceError, io_error};
use crate::git::{self, Borrowed, GitError, QUERY_LIMIT, Repository, fetching};
use sha2::{Digest, Sha256};
use std::{fs, io, path::Path, process::Command, time::Duration};
use tramplab_host::{
    cache::Cache,
    child::{self, ChildError},
};
use tramplab_model::name::{hex, is_commit_id};

/// The tag of the commit that holds a kernel's own sources.
pub const BASE_TAG: &str = "base";

const CHECKOUT_LIMIT: Duration = Duration::from_secs(15 * 60);
const FETCH_LIMIT: Duration = Duration::from_secs(30 * 60);

/// git checks files out byte by byte as committed: these have precedence over `.gitattributes`.
const ATTRIBUTES: &str = "* -text -eol -ident -filter -working-tree-encoding\n";

/// A repository on this host.
#[derive(Debug)]
pub struct Local {
    pub repository: Repository,
    borrowed: Borrowed,
}

impl Local {
    pub fn open(folder: &Path) -> Result<Local, KernelError> {
        let repository = Repository::open(folder)?;
        Ok(Local { borrowed: Borrowed::whole(&repository)?, repository })
    }

    /// Returns the commit that a reference names now.
    pub fn commit(&self, reference: &str) -> Result<String, KernelError> {
        let missing = || {
            let repository = self.repository.folder.display();
            SourceError::NoReference {
                repository: repository.to_string(),
                reference: reference.to_owned(),
                advice: format!("perhaps you must fetch it: git -C {repository} fetch --tags"),
            }
        };
        let mut command = self.borrowed.tracking();
        command.args(["rev-parse", "--verify", "--quiet", "--end-of-options"]);
        command.arg(format!("{reference}^{{commit}}"));
        let (status, output) =
            child::finish(&mut command, QUERY_LIMIT).map_err(self.borrowed.failed("read", None))?;
        let id = output.stdout.lines().last().unwrap_or_default();
        if status.success() && is_commit_id(id) { Ok(id.to_owned()) } else { Err(missing().into()) }
    }

    /// Checks that a commit holds a kernel's sources, before anything is checked out.
    pub fn check_tree(&self, commit: &str) -> Result<(), KernelError> {
        let wanted = ["Kbuild", "Kconfig", "Makefile"];
        let mut command = self.command();
        command.args(["ls-tree", "--full-tree", "--name-only", "--end-of-options", commit, "--"]);
        let output = child::run(command.args(wanted), QUERY_LIMIT)
            .map_err(self.borrowed.failed("read", Some(commit)))?;
        let place = || format!("{commit} of {}", self.repository.folder.display());
        match wanted.into_iter().find(|file| !output.stdout.lines().any(|line| line == *file)) {
            Some(lacks) => Err(SourceError::NotATree { place: place(), lacks }.into()),
            None => Ok(()),
        }
    }

    /// git in a repository of ours that has its objects and references.
    pub fn command(&self) -> Command {
        self.borrowed.command()
    }

    /// Runs a git query about commits and returns its standard output.
    pub fn ask<'a>(
        &self,
        arguments: impl IntoIterator<Item = &'a str>,
    ) -> Result<String, KernelError> {
        let output = child::run(self.command().args(arguments), QUERY_LIMIT)
            .map_err(self.borrowed.failed("read", None))?;
        Ok(output.stdout)
    }

    /// Makes `into` hold the files of a commit.
    pub fn checkout(&self, commit: &str, into: &Path) -> Result<(), KernelError> {
        let ours = into.with_added_extension("git");
        // An index that a killed run left half-written is made anew.
        if ours.exists() && self.update(&ours, commit, into).is_ok() {
            return Ok(());
        }
        clear(into)?;
        match fs::remove_dir_all(&ours) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(io_error("remove", &ours)(error));
            }
            _ => {}
        }
        self.update(&ours, commit, into)
    }

    /// `ours` keeps the index, so that unchanged files are not written again.
    fn update(&self, ours: &Path, commit: &str, into: &Path) -> Result<(), KernelError> {
        for lock in ["index.lock", "HEAD.lock", "verified.lock", "index-of-trees.lock"] {
            // A killed run left the lock. Nobody else uses this folder.
            let _ = fs::remove_file(ours.join(lock));
        }
        // Made by tramplab before it had repositories of its own.
        let _ = fs::remove_file(into.join(".git"));
        let borrowed = Borrowed::objects(&self.repository, ours)?;
        let info = ours.join("info");
        let attributes = info.join("attributes");
        fs::create_dir_all(&info)
            .and_then(|()| fs::write(&attributes, ATTRIBUTES))
            .map_err(io_error("write", &attributes))?;
        for words in
            [&["checkout", "--force", "--detach", "--quiet", commit][..], &["clean", "-ffdxq"]]
        {
            child::run(borrowed.in_work_tree(into).args(words), CHECKOUT_LIMIT)
                .map_err(borrowed.failed("check out a commit of", Some(commit)))?;
        }
        self.verify(&borrowed, commit, into)
    }

    /// Checks that the files have the hash that names the commit: git believes a repository's names
    /// of its objects, and kernels are cached by this id.
    fn verify(&self, borrowed: &Borrowed, commit: &str, into: &Path) -> Result<(), KernelError> {
        let git = |index: &str, words: &[&str]| {
            let mut command = borrowed.in_work_tree(into);
            command.env("GIT_INDEX_FILE", borrowed.folder.join(index)).args(words);
            command
        };
        let trees = borrowed.folder.join("index-of-trees");
        let is_right = || -> Result<bool, ChildError> {
            let run = |command: &mut Command| child::run(command, CHECKOUT_LIMIT);
            // git hashes each file that is new or changed since the last call.
            run(&mut git("verified", &["read-tree", "--reset", commit]))?;
            run(&mut git("verified", &["update-index", "--really-refresh"]))?;
            // From names and hashes of files alone, git computes those of trees.
            let _ = fs::remove_file(&trees);
            let mut listing = git("verified", &["ls-files", "--stage", "-z"]);
            let mut taking = git("index-of-trees", &["update-index", "-z", "--index-info"]);
            child::pipe(&mut listing, &mut taking, CHECKOUT_LIMIT)?;
            let tree = run(&mut git("index-of-trees", &["write-tree"]))?.stdout;
            // git checks the hash of what it peels.
            let mut peeling = borrowed.command();
            run(peeling.args(["rev-parse", "--verify", &format!("{commit}^{{commit}}")]))?;
            let mut reading = borrowed.command();
            let content = run(reading.args(["cat-file", "commit", commit]))?.stdout;
            Ok(content.lines().next() == Some(&format!("tree {}", tree.trim())))
        };
        match is_right() {
            Ok(true) => Ok(()),
            Ok(false) | Err(ChildError::Failed { .. }) => Err(self.forged(commit).into()),
            Err(source) => Err(borrowed.failed("read", None)(source).into()),
        }
    }

    fn forged(&self, commit: &str) -> SourceError {
        SourceError::Forged {
            repository: self.repository.folder.clone(),
            commit: commit.to_owned(),
        }
    }
}

/// Makes `folder` a repository whose only commit holds all its files. Equal files make an equal
/// commit.
pub fn commit_all(folder: &Path, message: &str) -> Result<(), KernelError> {
    for words in [
        &["init", "--quiet", "--template="][..],
        &["add", "--all", "--force"],
        &["commit", "--quiet", "--message", message],
        &["tag", BASE_TAG],
    ] {
        let mut command = git::command();
        command.env("GIT_DIR", folder.join(".git")).current_dir(folder).args(words);
        for who in ["AUTHOR", "COMMITTER"] {
            command.env(format!("GIT_{who}_NAME"), "tramplab");
            command.env(format!("GIT_{who}_EMAIL"), "tramplab@localhost");
            command.env(format!("GIT_{who}_DATE"), "2000-01-01T00:00:00Z");
        }
        child::run(&mut command, CHECKOUT_LIMIT)
            .map_err(failed("commit to", &folder.display().to_string()))?;
    }
    Ok(())
}

pub fn is_url(repository: &str) -> bool {
    repository.contains("://")
}

/// Removes user name and password from a URL, for reports.
pub fn without_secrets(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else { return url.to_owned() };
    let (host, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let host = host.rsplit('@').next().unwrap_or(host);
    format!("{scheme}://{host}{path}")
}

/// Returns the commit that a reference of a URL names now.
pub fn remote_commit(url: &str, reference: &str) -> Result<String, KernelError> {
    if is_commit_id(reference) {
        return Ok(reference.to_owned());
    }
    let mut command = fetching(None);
    command.args(["ls-remote", "--quiet", "--", url]);
    command
        .args(places(reference).iter().flat_map(|place| [format!("{place}^{{}}"), place.clone()]));
    let shown = without_secrets(url);
    let output = child::run(&mut command, QUERY_LIMIT).map_err(failed("use", &shown))?;
    advertised(&output.stdout, reference).ok_or_else(|| {
        let advice = "with a URL, expected a branch, a tag or a full commit id".to_owned();
        SourceError::NoReference { repository: shown, reference: reference.to_owned(), advice }
            .into()
    })
}

/// The names that git tries for a reference, in its order.
fn places(reference: &str) -> [String; 3] {
    [reference.to_owned(), format!("refs/tags/{reference}"), format!("refs/heads/{reference}")]
}

/// Finds a reference in the lines `ID<TAB>NAME` of `git ls-remote`. `NAME^{}` is the commit of the
/// tag NAME.
fn advertised(lines: &str, reference: &str) -> Option<String> {
    let id = |wanted: &str| {
        let mut pairs = lines.lines().filter_map(|line| line.split_once('\t'));
        pairs.find(|(_, name)| *name == wanted).map(|(id, _)| id)
    };
    let found = places(reference)
        .iter()
        .find_map(|place| id(&format!("{place}^{{}}")).or_else(|| id(place)))?;
    is_commit_id(found).then(|| found.to_owned())
}

pub fn checkout_remote(
    url: &str,
    commit: &str,
    into: &Path,
    cache: &Cache,
    progress: &mut dyn FnMut(&str),
) -> Result<(), KernelError> {
    let name = format!("kernel-git-{}", &hex(&Sha256::digest(url))[..16]);
    let _lock = cache.lock(&name)?;
    let folder = cache.folder(&format!("kernel-git/{name}"))?;
    let shown = without_secrets(url);
    // Does nothing if the repository exists.
    Borrowed::nothing(&folder, shown.clone(), "sha1")?;
    // git writes this reference last, when all its objects are there.
    let kept = format!("refs/tramplab/{commit}");
    if Local::open(&folder)?.commit(&kept).is_err() {
        sweep(&folder);
        progress(&format!("fetching {commit} from {shown}"));
        let mut command = fetching(Some(&folder));
        command
            .args([
                "fetch",
                "--depth=1",
                "--no-tags",
                "--no-write-fetch-head",
                "--no-recurse-submodules",
            ])
            .args(["--quiet", "--force", "--", url])
            .arg(format!("{commit}:{kept}"));
        child::run(&mut command, FETCH_LIMIT).map_err(failed("fetch from", &shown))?;
    }
    let local = Local::open(&folder)?;
    local.check_tree(commit)?;
    local.checkout(commit, into)
}

fn failed(action: &'static str, url: &str) -> impl FnOnce(ChildError) -> GitError {
    let repository = url.to_owned();
    move |source| GitError::Git { action, repository, source: Box::new(source) }
}

/// Removes leftovers of a killed fetch. The caller holds the lock.
fn sweep(bare: &Path) {
    let _ = fs::remove_file(bare.join("shallow.lock"));
    for entry in fs::read_dir(bare.join("objects/pack")).into_iter().flatten().flatten() {
        if entry.file_name().to_string_lossy().starts_with("tmp_") {
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// Empties a folder.
fn clear(folder: &Path) -> Result<(), KernelError> {
    let empty = || -> io::Result<()> {
        fs::remove_dir_all(folder)?;
        fs::create_dir(folder)
    };
    empty().map_err(io_error("empty", folder))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resolves_references_in_gits_order() {
        let [a, b, c] = ["a", "b", "c"].map(|digit| digit.repeat(40));
        let lines = format!(
            "{a}\trefs/heads/v1\n{b}\trefs/tags/v1\n{c}\trefs/tags/v1^{{}}\n\
             {a}\trefs/heads/x/refs/heads/main\nwarning\n"
        );
        for (reference, expected) in [
            ("v1", Some(&c)),
            ("refs/heads/v1", Some(&a)),
            ("refs/tags/v1", Some(&c)),
            ("x/refs/heads/main", Some(&a)),
            // The end of a name does not match.
            ("main", None),
            ("v*", None),
        ] {
            assert_eq!(advertised(&lines, reference).as_ref(), expected, "{reference}");
        }
    }

    #[test]
    fn removes_credentials_from_urls() {
        for (url, shown) in [
            ("https://me:token@example.org/linux.git", "https://example.org/linux.git"),
            ("https://example.org/a@b", "https://example.org/a@b"),
            ("https://me:a@b@example.org", "https://example.org"),
            ("file:///srv/linux", "file:///srv/linux"),
            ("/srv/me@host/linux", "/srv/me@host/linux"),
        ] {
            assert_eq!(without_secrets(url), shown);
        }
    }
}
