// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sources from a git repository.
//!
//! A checkout is a separate worktree with a detached head. Nothing else in the user's repository
//! changes: not its checkout, branches, index or stash. None of its hooks runs. For a URL, only the
//! wanted commit is fetched, into a bare repository in the cache.

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

pub(super) const QUERY_LIMIT: Duration = Duration::from_secs(2 * 60);
const CHECKOUT_LIMIT: Duration = Duration::from_secs(15 * 60);
const FETCH_LIMIT: Duration = Duration::from_secs(30 * 60);

/// Marks our worktrees, in their administrative folder.
const OURS: &str = "tramplab";

/// git sets these when it runs tramplab (a hook, `git rebase --exec`). They name another
/// repository.
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
    /// The git folder that all its worktrees share.
    pub common: PathBuf,
}

impl Local {
    pub fn open(folder: &Path) -> Result<Local, KernelError> {
        let folder = fs::canonicalize(folder)
            .map_err(|_| SourceError::NoRepository { repository: folder.to_owned() })?;
        let mut command = local(&folder);
        command.args(["rev-parse", "--path-format=absolute", "--git-common-dir"]);
        let output =
            child::run(&mut command, QUERY_LIMIT).map_err(|source| SourceError::Repository {
                repository: folder.display().to_string(),
                source: Box::new(source),
            })?;
        Ok(Local { common: output.stdout.trim_end_matches('\n').into(), folder })
    }

    /// Returns the commit that a reference names now.
    pub fn commit(&self, reference: &str) -> Result<String, KernelError> {
        let missing = || {
            let repository = self.folder.display();
            SourceError::NoReference {
                repository: repository.to_string(),
                reference: reference.to_owned(),
                advice: format!("perhaps you must fetch it: git -C {repository} fetch --tags"),
            }
        };
        let mut command = local(&self.folder);
        command.args(["rev-parse", "--verify", "--quiet", "--end-of-options"]);
        command.arg(format!("{reference}^{{commit}}"));
        let (status, output) =
            child::finish(&mut command, QUERY_LIMIT).map_err(self.failed("read"))?;
        let id = output.stdout.lines().last().unwrap_or_default();
        if status.success() && is_commit_id(id) { Ok(id.to_owned()) } else { Err(missing().into()) }
    }

    /// Checks that a commit holds a kernel's sources, before anything is checked out.
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

    /// Runs a git query and returns its standard output.
    pub fn ask<'a>(
        &self,
        arguments: impl IntoIterator<Item = &'a str>,
    ) -> Result<String, KernelError> {
        let mut command = local(&self.folder);
        let output =
            child::run(command.args(arguments), QUERY_LIMIT).map_err(self.failed("read"))?;
        Ok(output.stdout)
    }

    pub fn checkout(&self, commit: &str, into: &Path) -> Result<(), KernelError> {
        self.remove_stale();
        // A worktree that cannot be updated is made anew: a killed run may have left a half-written
        // index.
        if let Some(admin) = self.worktree_at(into)
            && self.update(&admin, commit, into).is_ok()
        {
            return Ok(());
        }
        clear(into)?;
        let mut command = local(&self.folder);
        // `--force` twice takes over an entry whose folder is gone, even if it is locked.
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
            // A killed run left the lock. Nobody else uses this folder.
            let _ = fs::remove_file(admin.join(lock));
        }
        let filters = self.filters(into)?;
        for words in
            [&["checkout", "--force", "--detach", "--quiet", commit][..], &["clean", "-ffdxq"]]
        {
            let mut command = local(into);
            without_filters(&mut command, &filters);
            child::run(command.args(words), CHECKOUT_LIMIT)
                .map_err(self.failed("check out a commit of"))?;
        }
        Ok(())
    }

    /// Returns the filter drivers that git's configuration names in this worktree. Conditional
    /// includes can add drivers for some folders only.
    fn filters(&self, worktree: &Path) -> Result<BTreeSet<String>, KernelError> {
        let mut command = local(worktree);
        command.args(["config", "--null", "--name-only", "--get-regexp", "^filter\\."]);
        let (status, output) =
            child::finish(&mut command, QUERY_LIMIT).map_err(self.failed("read"))?;
        // Exit code 1: there are none.
        if !status.success() && status.code() != Some(1) {
            let source = ChildError::Failed {
                command: "git config".to_owned(),
                status,
                stderr: output.stderr,
            };
            return Err(self.failed("read the configuration of")(source).into());
        }
        let keys = output.stdout.split_terminator('\0');
        let driver = |key: &str| Some(key.strip_prefix("filter.")?.rsplit_once('.')?.0.to_owned());
        let filters: BTreeSet<String> = keys.filter_map(driver).collect();
        // The name lost bytes, so an override would not reach the driver.
        match filters.iter().find(|name| name.contains(char::REPLACEMENT_CHARACTER)) {
            Some(name) => Err(SourceError::Filter {
                repository: self.folder.display().to_string(),
                name: name.escape_debug().to_string(),
            }
            .into()),
            None => Ok(filters),
        }
    }

    /// Returns the administrative folder of the worktree `into`, if each names the other.
    fn worktree_at(&self, into: &Path) -> Option<PathBuf> {
        let link = fs::read_to_string(into.join(".git")).ok()?;
        let admin = fs::canonicalize(link.trim_end().strip_prefix("gitdir: ")?).ok()?;
        let back = fs::read_to_string(admin.join("gitdir")).ok()?;
        let here = fs::canonicalize(into.join(".git")).ok()?;
        let is_here = fs::canonicalize(back.trim_end()).ok()? == here;
        let worktrees = fs::canonicalize(self.common.join("worktrees")).ok()?;
        (is_here && admin.parent() == Some(&worktrees)).then_some(admin)
    }

    /// Removes our worktrees whose folder is gone from the repository's list.
    fn remove_stale(&self) {
        for entry in fs::read_dir(self.common.join("worktrees")).into_iter().flatten().flatten() {
            let admin = entry.path();
            let Ok(place) = fs::read_to_string(admin.join("gitdir")) else { continue };
            let Some(folder) = Path::new(place.trim_end()).parent() else { continue };
            if admin.join(OURS).is_file() && fs::symlink_metadata(folder).is_err() {
                let mut command = local(&self.folder);
                command.args(["worktree", "remove", "--force", "--force"]).arg(folder);
                // A leftover entry does no harm.
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
    let mut command = git(Path::new("/"));
    command.args(["ls-remote", "--quiet", "--", url]);
    command
        .args(places(reference).iter().flat_map(|place| [format!("{place}^{{}}"), place.clone()]));
    let shown = without_secrets(url);
    let output = child::run(&mut command, QUERY_LIMIT).map_err(|source| {
        SourceError::Repository { repository: shown.clone(), source: Box::new(source) }
    })?;
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
    let run = |command: &mut Command, limit| {
        child::run(command, limit).map(drop).map_err(failed("fetch from", shown.clone()))
    };
    // Does nothing if the repository exists.
    run(git(&folder).args(["init", "--bare", "--quiet", "--template="]), QUERY_LIMIT)?;
    let local = Local::open(&folder)?;
    // git writes this reference last, when all its objects are there.
    let kept = format!("refs/tramplab/{commit}");
    if local.commit(&kept).is_err() {
        sweep(&folder);
        progress(&format!("fetching {commit} from {shown}"));
        let mut command = git(&folder);
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
        run(&mut command, FETCH_LIMIT)?;
    }
    local.check_tree(commit)?;
    local.checkout(commit, into)
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

fn failed(action: &'static str, repository: String) -> impl FnOnce(ChildError) -> SourceError {
    move |source| SourceError::Git { action, repository, source: Box::new(source) }
}

/// Runs git in a repository that a stranger may have made: its configuration starts no program.
/// Objects missing from a partial clone are fetched only by HTTP, as other transports run programs
/// from the configuration.
pub(super) fn local(folder: &Path) -> Command {
    let mut command = git(folder);
    command.env("GIT_ALLOW_PROTOCOL", "https:http").env("GIT_ASKPASS", "");
    for setting in [
        "credential.helper=",
        "log.showSignature=false",
        "submodule.recurse=false",
        // Check out files byte by byte as committed.
        "core.attributesFile=/dev/null",
        "core.autocrlf=false",
        "core.eol=lf",
        "core.symlinks=true",
    ] {
        command.args(["-c", setting]);
    }
    command
}

/// Uses git's environment, because names may contain `=`.
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

/// Runs git in exactly this repository, not in one around it, and starts none of the user's
/// programs.
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
