// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sources out of a git repository.
//!
//! A checkout is a worktree of its own with a detached head. Of the user's repository nothing else changes: not the checkout,
//! no branch, no index, no stash, and none of its hooks runs. A commit of a URL is fetched alone, into a bare repository in
//! the cache.

use super::{KernelError, SourceError, io_error};
use sha2::{Digest, Sha256};
use std::{
    collections::BTreeSet,
    fs, io,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};
use tramplab_host::{
    cache::Cache,
    child::{self, ChildError},
};
use tramplab_model::name::{hex, is_commit_id};

const QUERY_LIMIT: Duration = Duration::from_secs(2 * 60);
const CHECKOUT_LIMIT: Duration = Duration::from_secs(15 * 60);
const FETCH_LIMIT: Duration = Duration::from_secs(30 * 60);

/// In a worktree's administrative folder: it is one of ours.
const OURS: &str = "tramplab";

/// Set where git itself runs tramplab (a hook, `git rebase --exec`), and then meant for another repository.
const GITS_OWN: [&str; 15] = [
    "GIT_ALTERNATE_OBJECT_DIRECTORIES",
    "GIT_CONFIG",
    "GIT_CONFIG_PARAMETERS",
    "GIT_CONFIG_COUNT",
    "GIT_OBJECT_DIRECTORY",
    "GIT_DIR",
    "GIT_WORK_TREE",
    "GIT_IMPLICIT_WORK_TREE",
    "GIT_GRAFT_FILE",
    "GIT_INDEX_FILE",
    "GIT_NO_REPLACE_OBJECTS",
    "GIT_REPLACE_REF_BASE",
    "GIT_PREFIX",
    "GIT_SHALLOW_FILE",
    "GIT_COMMON_DIR",
];

/// A repository on this host.
pub struct Local {
    pub folder: PathBuf,
    /// What all its worktrees share.
    pub common: PathBuf,
}

impl Local {
    pub fn open(folder: &Path) -> Result<Local, KernelError> {
        let folder = fs::canonicalize(folder)
            .map_err(|_| SourceError::NoRepository { repository: folder.to_owned() })?;
        let mut command = local(&folder);
        command.args(["rev-parse", "--path-format=absolute", "--git-common-dir"]);
        let output = child::run(&mut command, QUERY_LIMIT).map_err(|source| SourceError::Repository {
            repository: folder.display().to_string(),
            source: Box::new(source),
        })?;
        Ok(Local { common: output.stdout.trim_end_matches('\n').into(), folder })
    }

    /// The commit that a reference names now.
    pub fn commit(&self, reference: &str) -> Result<String, KernelError> {
        let missing = || {
            let repository = self.folder.display();
            SourceError::NoReference {
                repository: repository.to_string(),
                reference: reference.to_owned(),
                advice: format!("perhaps it is not fetched yet: git -C {repository} fetch --tags"),
            }
        };
        let mut command = local(&self.folder);
        command.args(["rev-parse", "--verify", "--quiet", "--end-of-options"]);
        command.arg(format!("{reference}^{{commit}}"));
        let (status, output) = child::finish(&mut command, QUERY_LIMIT).map_err(self.failed("read"))?;
        let id = output.stdout.lines().last().unwrap_or_default();
        if status.success() && is_commit_id(id) { Ok(id.to_owned()) } else { Err(missing().into()) }
    }

    /// That a commit holds a kernel's sources, before anything is checked out.
    pub fn check_tree(&self, commit: &str) -> Result<(), KernelError> {
        let wanted = ["Kbuild", "Kconfig", "Makefile"];
        let mut command = local(&self.folder);
        command.args(["ls-tree", "--full-tree", "--name-only", commit, "--"]).args(wanted);
        let output = child::run(&mut command, QUERY_LIMIT).map_err(self.failed("read"))?;
        let place = || format!("{commit} of {}", self.folder.display());
        match wanted.into_iter().find(|file| !output.stdout.lines().any(|line| line == *file)) {
            Some(lacks) => Err(SourceError::NotATree { place: place(), lacks }.into()),
            None => Ok(()),
        }
    }

    /// What git says to a question about commits.
    pub fn ask<'a>(&self, arguments: impl IntoIterator<Item = &'a str>) -> Result<String, KernelError> {
        let mut command = local(&self.folder);
        let output = child::run(command.args(arguments), QUERY_LIMIT).map_err(self.failed("read"))?;
        Ok(output.stdout)
    }

    pub fn checkout(&self, commit: &str, into: &Path) -> Result<(), KernelError> {
        self.remove_stale();
        // One that cannot be brought up to date (its index was being written when a run died) is
        // made anew.
        if let Some(admin) = self.worktree_at(into)
            && self.update(&admin, commit, into).is_ok()
        {
            return Ok(());
        }
        clear(into)?;
        let mut command = local(&self.folder);
        // Twice `--force`: an entry whose folder is gone is taken over even if it is locked.
        command
            .args(["worktree", "add", "--force", "--force", "--detach", "--quiet", "--no-checkout"])
            .arg(into)
            .arg(commit);
        child::run(&mut command, CHECKOUT_LIMIT).map_err(self.failed("check out a commit of"))?;
        let Some(admin) = self.worktree_at(into) else {
            let why = "git made no worktree there";
            return Err(SourceError::Foreign { into: into.to_owned(), why }.into());
        };
        let mark = admin.join(OURS);
        fs::write(&mark, "").map_err(io_error("write", &mark))?;
        self.update(&admin, commit, into)
    }

    fn update(&self, admin: &Path, commit: &str, into: &Path) -> Result<(), KernelError> {
        for lock in ["index.lock", "HEAD.lock"] {
            // Left by a run that died: the folder is this one's alone.
            let _ = fs::remove_file(admin.join(lock));
        }
        let filters = self.filters(into)?;
        for words in [&["checkout", "--force", "--detach", "--quiet", commit][..], &["clean", "-ffdxq"]] {
            let mut command = local(into);
            without_filters(&mut command, &filters);
            child::run(command.args(words), CHECKOUT_LIMIT).map_err(self.failed("check out a commit of"))?;
        }
        Ok(())
    }

    /// The filter drivers that git's configuration names, as it is in this worktree: one that is
    /// included for some folders only is there, too.
    fn filters(&self, worktree: &Path) -> Result<BTreeSet<String>, KernelError> {
        let mut command = local(worktree);
        command.args(["config", "--null", "--name-only", "--get-regexp", "^filter\\."]);
        let (status, output) = child::finish(&mut command, QUERY_LIMIT).map_err(self.failed("read"))?;
        // 1: there are none.
        if !status.success() && status.code() != Some(1) {
            let source =
                ChildError::Failed { command: "git config".to_owned(), status, stderr: output.stderr };
            return Err(self.failed("read the configuration of")(source).into());
        }
        let keys = output.stdout.split_terminator('\0');
        let driver = |key: &str| Some(key.strip_prefix("filter.")?.rsplit_once('.')?.0.to_owned());
        let filters: BTreeSet<String> = keys.filter_map(driver).collect();
        // Another name than git's would leave the driver as it is.
        match filters.iter().find(|name| name.contains(char::REPLACEMENT_CHARACTER)) {
            Some(name) => Err(SourceError::Filter {
                repository: self.folder.display().to_string(),
                name: name.escape_debug().to_string(),
            }
            .into()),
            None => Ok(filters),
        }
    }

    /// The administrative folder of the worktree in `into`, if each knows of the other.
    fn worktree_at(&self, into: &Path) -> Option<PathBuf> {
        let link = fs::read_to_string(into.join(".git")).ok()?;
        let admin = fs::canonicalize(link.trim_end().strip_prefix("gitdir: ")?).ok()?;
        let back = fs::read_to_string(admin.join("gitdir")).ok()?;
        let here = fs::canonicalize(into.join(".git")).ok()?;
        let is_here = fs::canonicalize(back.trim_end()).ok()? == here;
        let worktrees = fs::canonicalize(self.common.join("worktrees")).ok()?;
        (is_here && admin.parent() == Some(&worktrees)).then_some(admin)
    }

    /// Takes out of the repository's list those of our worktrees whose folder is gone.
    fn remove_stale(&self) {
        for entry in fs::read_dir(self.common.join("worktrees")).into_iter().flatten().flatten() {
            let admin = entry.path();
            let Ok(place) = fs::read_to_string(admin.join("gitdir")) else { continue };
            let Some(folder) = Path::new(place.trim_end()).parent() else { continue };
            if admin.join(OURS).is_file() && fs::symlink_metadata(folder).is_err() {
                let mut command = local(&self.folder);
                command.args(["worktree", "remove", "--force", "--force"]).arg(folder);
                // An entry too many is in nobody's way.
                let _ = child::run(&mut command, QUERY_LIMIT);
            }
        }
    }

    fn failed(&self, action: &'static str) -> impl FnOnce(ChildError) -> SourceError {
        failed(action, self.folder.display().to_string())
    }
}

pub fn is_url(repository: &str) -> bool {
    repository.contains("://")
}

/// A URL as it may stand in a report: without a user's name and password.
pub fn without_secrets(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else { return url.to_owned() };
    let (host, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let host = host.rsplit('@').next().unwrap_or(host);
    format!("{scheme}://{host}{path}")
}

/// The commit that a reference of a URL names now.
pub fn remote_commit(url: &str, reference: &str) -> Result<String, KernelError> {
    if is_commit_id(reference) {
        return Ok(reference.to_owned());
    }
    let mut command = git(Path::new("/"));
    command.args(["ls-remote", "--quiet", "--", url]);
    command.args(places(reference).iter().flat_map(|place| [format!("{place}^{{}}"), place.clone()]));
    let shown = without_secrets(url);
    let output = child::run(&mut command, QUERY_LIMIT)
        .map_err(|source| SourceError::Repository { repository: shown.clone(), source: Box::new(source) })?;
    advertised(&output.stdout, reference).ok_or_else(|| {
        let advice = "of a URL expected a branch, a tag or a commit's whole id".to_owned();
        SourceError::NoReference { repository: shown, reference: reference.to_owned(), advice }.into()
    })
}

/// Where git looks for a reference, in its order.
fn places(reference: &str) -> [String; 3] {
    [reference.to_owned(), format!("refs/tags/{reference}"), format!("refs/heads/{reference}")]
}

/// Of the lines `ID<TAB>NAME` that `git ls-remote` prints. `NAME^{}` is the commit that the tag NAME is of.
fn advertised(lines: &str, reference: &str) -> Option<String> {
    let id = |wanted: &str| {
        let mut pairs = lines.lines().filter_map(|line| line.split_once('\t'));
        pairs.find(|(_, name)| *name == wanted).map(|(id, _)| id)
    };
    let found =
        places(reference).iter().find_map(|place| id(&format!("{place}^{{}}")).or_else(|| id(place)))?;
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
    let run = |command: &mut Command, limit| {
        child::run(command, limit).map(drop).map_err(failed("fetch from", shown.clone()))
    };
    // Does nothing where there is one.
    run(git(&folder).args(["init", "--bare", "--quiet", "--template="]), QUERY_LIMIT)?;
    let local = Local::open(&folder)?;
    // Made last, when all that it names is there.
    let kept = format!("refs/tramplab/{commit}");
    if local.commit(&kept).is_err() {
        sweep(&folder);
        progress(&format!("fetching {commit} from {shown}"));
        let mut command = git(&folder);
        command
            .args(["fetch", "--depth=1", "--no-tags", "--no-write-fetch-head", "--no-recurse-submodules"])
            .args(["--quiet", "--force", "--", url])
            .arg(format!("{commit}:{kept}"));
        run(&mut command, FETCH_LIMIT)?;
    }
    local.check_tree(commit)?;
    local.checkout(commit, into)
}

/// Removes what a fetch that was killed has left. Nobody else is at it: the lock is held.
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

fn failed(action: &'static str, repository: String) -> impl FnOnce(ChildError) -> SourceError {
    move |source| SourceError::Git { action, repository, source: Box::new(source) }
}

/// git in a repository that somebody else may have made: its configuration runs no program.
/// Objects that a partial clone lacks are fetched by HTTP or not at all, as other transports run
/// what the configuration says.
fn local(folder: &Path) -> Command {
    let mut command = git(folder);
    command.env("GIT_ALLOW_PROTOCOL", "https:http").env("GIT_ASKPASS", "");
    for setting in [
        "credential.helper=",
        "log.showSignature=false",
        "submodule.recurse=false",
        // Files as they are in the commit.
        "core.attributesFile=/dev/null",
        "core.autocrlf=false",
        "core.eol=lf",
        "core.symlinks=true",
    ] {
        command.args(["-c", setting]);
    }
    command
}

/// By git's environment, as names may have a `=`.
fn without_filters(command: &mut Command, filters: &BTreeSet<String>) {
    let settings = [("smudge", ""), ("clean", ""), ("process", ""), ("required", "false")];
    let all = filters.iter().flat_map(|name| settings.map(|setting| (name, setting)));
    let mut count = 0;
    for (name, (key, value)) in all {
        command.env(format!("GIT_CONFIG_KEY_{count}"), format!("filter.{name}.{key}"));
        command.env(format!("GIT_CONFIG_VALUE_{count}"), value);
        count += 1;
    }
    command.env("GIT_CONFIG_COUNT", count.to_string());
}

/// git in exactly this repository, never one around it, with nothing that runs a program of the user's.
pub fn git(folder: &Path) -> Command {
    let mut command = Command::new("git");
    for name in GITS_OWN {
        command.env_remove(name);
    }
    command
        .env("GIT_CEILING_DIRECTORIES", folder.parent().unwrap_or(folder))
        .env("GIT_TERMINAL_PROMPT", "0")
        .env("GIT_ALLOW_PROTOCOL", "https:http:git:ssh:file")
        .arg("-C")
        .arg(folder);
    for setting in [
        "core.hooksPath=/dev/null",
        "core.fsmonitor=false",
        "core.sparseCheckout=false",
        "gc.auto=0",
        "maintenance.auto=false",
    ] {
        command.args(["-c", setting]);
    }
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_are_found_as_git_finds_them() {
        let [a, b, c] = ["a", "b", "c"].map(|digit| digit.repeat(40));
        let lines = format!(
            "{a}\trefs/heads/v1\n{b}\trefs/tags/v1\n{c}\trefs/tags/v1^{{}}\n{a}\trefs/heads/x/refs/heads/main\nwarning\n"
        );
        for (reference, expected) in [
            ("v1", Some(&c)),
            ("refs/heads/v1", Some(&a)),
            ("refs/tags/v1", Some(&c)),
            ("x/refs/heads/main", Some(&a)),
            // The end of a name is not the name.
            ("main", None),
            ("v*", None),
        ] {
            assert_eq!(advertised(&lines, reference).as_ref(), expected, "{reference}");
        }
    }

    #[test]
    fn what_a_report_shows_of_a_url() {
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
