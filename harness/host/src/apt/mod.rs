// SPDX-License-Identifier: MIT OR Apache-2.0
//! Fetches Debian packages through the host's own apt, without root and without installing them.
//!
//! apt runs with lists, sources and a configuration in the cache, and with an empty dpkg status. It
//! checks the lists' signatures against Debian's keyring, and each file against the signed lists.
//! [`Apt::download`] checks each SHA-256 again: the code that fills the cache verifies it.

mod mirror;
mod output;

use super::{
    cache::{Cache, CacheError, Lock, require_room},
    child::{self, ChildError},
};
use output::Answers;
use sha2::{Digest, Sha256};
use std::{
    cmp::Ordering,
    fs,
    io::{self, Read},
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, SystemTime},
};
use tramplab_model::name::hex;

const DEFAULT_MIRROR: &str = "http://deb.debian.org/debian";
/// From the oldest release with a kernel of interest to the newest kernel. A suite that does not
/// answer is left out.
const SUITES: [&str; 5] = ["bookworm", "trixie", "forky", "sid", "experimental"];
const KEYRINGS: [&str; 2] = [
    "/usr/share/keyrings/debian-archive-keyring.gpg",
    // The name since trixie. The older name is a link to it, which Debian may remove.
    "/usr/share/keyrings/debian-archive-keyring.pgp",
];

const LISTS_MAX_AGE: Duration = Duration::from_secs(24 * 3600);
/// Younger lists are not fetched again, even if they lack a package.
const LISTS_FRESH: Duration = Duration::from_secs(10 * 60);

/// Bytes: twice the size of one architecture's lists and apt's index of them in 2026.
const LISTS_ROOM: u64 = 350 << 20;

const UPDATE_LIMIT: Duration = Duration::from_secs(10 * 60);
const DOWNLOAD_LIMIT: Duration = Duration::from_secs(30 * 60);
const UNPACK_LIMIT: Duration = Duration::from_secs(5 * 60);
/// The first query after a refresh makes the index, which takes minutes on a slow machine.
const QUERY_LIMIT: Duration = Duration::from_secs(5 * 60);

#[derive(Debug, thiserror::Error)]
pub enum AptError {
    #[error("failed to fetch Debian packages: this host has no {program}")]
    NoApt { program: &'static str },
    #[error(
        "failed to find or fetch Debian's archive keyring: {source}\n\
         install it: apt-get install debian-archive-keyring"
    )]
    NoKeyring { source: Box<AptError> },
    #[error("failed to get package lists from {mirror}: no suite answered{}", lines(.messages))]
    Silent { mirror: String, messages: Vec<String> },
    #[error(
        "failed to find {wanted} in Debian's suites {}{}",
        .suites.join(", "), fetched(.messages)
    )]
    NotFound { wanted: String, suites: Vec<String>, messages: Vec<String> },
    #[error("failed to pair Debian's {packages}: their versions are {versions}")]
    Apart { packages: String, versions: String },
    #[error("failed to verify {package}: expected SHA-256 {expected}, found {found}")]
    Checksum { package: String, expected: String, found: String },
    #[error("failed to read apt's description of {package}: no {field}")]
    Format { package: String, field: &'static str },
    #[error("failed to {action} {path}: {source}")]
    Io { action: &'static str, path: PathBuf, source: io::Error },
    #[error(transparent)]
    Child(#[from] ChildError),
    #[error(transparent)]
    Cache(#[from] CacheError),
}

impl AptError {
    /// The lists may be older than the registry: what they name is gone, or the package is new.
    fn may_be_stale(&self) -> bool {
        matches!(self, AptError::NotFound { .. } | AptError::Apart { .. } | AptError::Child(_))
    }
}

fn lines(messages: &[String]) -> String {
    messages.iter().map(|message| format!("\n{message}")).collect()
}

fn fetched(messages: &[String]) -> String {
    if messages.is_empty() {
        return String::new();
    }
    format!("\napt's messages when it fetched the lists:{}", lines(messages))
}

/// One version of one package, as the signed lists describe it.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Package {
    pub name: String,
    pub version: String,
    pub architecture: String,
    pub sha256: String,
    /// Bytes needed to download and unpack it. 0 in a package that was read from the cache.
    #[serde(skip)]
    pub room: u64,
}

impl Package {
    /// The file name that `apt-get download` uses.
    fn file(&self) -> String {
        format!("{}_{}_{}.deb", self.name, self.version.replace(':', "%3a"), self.architecture)
    }

    fn exact(&self) -> String {
        format!("{}={}", self.name, self.version)
    }
}

/// Debian's registry for one architecture. Holds a lock: one process uses it at a time.
#[derive(Debug)]
pub struct Apt {
    cache: PathBuf,
    folder: PathBuf,
    _lock: Lock,
}

impl Apt {
    /// Refreshes lists that are older than a day, and keeps them if the registry does not answer.
    /// `architecture` is Debian's name: `amd64`, `arm64`.
    pub fn open(
        cache: &Cache,
        architecture: &str,
        progress: &mut dyn FnMut(&str),
    ) -> Result<Apt, AptError> {
        for program in ["apt-get", "apt-cache", "dpkg", "dpkg-deb"] {
            if super::program::in_path(program).is_none() {
                return Err(AptError::NoApt { program });
            }
        }
        let keyring = keyring(cache)?;
        let lock = cache.lock(&format!("apt-{architecture}"))?;
        let folder = cache.folder(&format!("apt/{architecture}"))?;
        let apt = Apt { cache: cache.root().to_owned(), folder, _lock: lock };
        apt.configure(architecture, &keyring)?;
        match apt.lists_age() {
            Some(age) if age < if cache.reuses() { LISTS_MAX_AGE } else { LISTS_FRESH } => {}
            None => apt.refresh(progress)?,
            Some(age) => {
                if let Err(error) = apt.refresh(progress) {
                    let hours = age.as_secs() / 3600;
                    progress(&format!("using {hours} hours old package lists of Debian: {error}"));
                }
            }
        }
        Ok(apt)
    }

    fn is_fresh(&self) -> bool {
        self.lists_age().is_some_and(|age| age < LISTS_FRESH)
    }

    /// Fetches the lists. Fails only if no suite answers.
    fn refresh(&self, progress: &mut dyn FnMut(&str)) -> Result<(), AptError> {
        require_room(&self.cache, LISTS_ROOM)?;
        let mut mirrors = vec![DEFAULT_MIRROR.to_owned()];
        mirrors.splice(0..0, mirror::host_mirror().filter(|mirror| mirror != DEFAULT_MIRROR));
        let mut silent = None;
        for mirror in mirrors {
            progress(&format!("fetching Debian's package lists from {mirror}"));
            self.write("sources.list", sources(&mirror).as_bytes())?;
            let (_, output) = child::finish(self.command("apt-get").arg("update"), UPDATE_LIMIT)?;
            let Answers { answered, messages } = output::answers(&output);
            if answered.is_empty() {
                silent = Some(AptError::Silent { mirror, messages });
                continue;
            }
            let failed: Vec<_> =
                SUITES.into_iter().filter(|suite| !answered.contains(*suite)).collect();
            let mut text = format!("{mirror}\n");
            if !failed.is_empty() {
                let messages = lines(&messages);
                progress(&format!("apt failed to fetch Debian's {}{messages}", failed.join(", ")));
                text.push_str(messages.trim_start());
            }
            return self.write("refreshed", text.as_bytes());
        }
        // The old lists remain: name their mirror again.
        if let Some(mirror) = self.refreshed().first() {
            self.write("sources.list", sources(mirror).as_bytes())?;
        }
        Err(silent.expect("at least one mirror was tried"))
    }

    /// All versions of the packages whose names match an extended regular expression.
    pub fn search(&self, name: &str) -> Result<Vec<Package>, AptError> {
        let mut command = self.command("apt-cache");
        command.args(["search", "--names-only", name]);
        let found = child::run(&mut command, QUERY_LIMIT)?.stdout;
        let names: Vec<_> = found.lines().filter_map(|line| line.split(" - ").next()).collect();
        if names.is_empty() { Ok(Vec::new()) } else { self.show(&names) }
    }

    /// The package and its dependencies in one suite, in the versions that an empty system would
    /// get.
    pub fn closure(&self, suite: &str, package: &str) -> Result<Vec<Package>, AptError> {
        let arguments =
            ["install", "--simulate", "--quiet=2", "--no-install-recommends", "-t", suite, package];
        let plan = child::run(self.command("apt-get").args(arguments), QUERY_LIMIT)?.stdout;
        let wanted = output::installed(&plan);
        let mut packages = self.show(&wanted)?;
        // Several suites can list the same version.
        packages.sort_by(|a, b| (&a.name, &a.version).cmp(&(&b.name, &b.version)));
        packages.dedup();
        if packages.len() == wanted.len() && !wanted.is_empty() {
            Ok(packages)
        } else {
            Err(self.not_found(&format!("{package} with all its dependencies of {suite}")))
        }
    }

    /// Finds one version of a package.
    pub fn exactly(&self, name: &str, version: &str) -> Result<Package, AptError> {
        let wanted = format!("{name}={version}");
        self.show(&[&wanted])?.into_iter().next().ok_or_else(|| self.not_found(&wanted))
    }

    /// Fetches packages into a folder and verifies them. Returns their files in the same order.
    pub fn download(&self, packages: &[Package], folder: &Path) -> Result<Vec<PathBuf>, AptError> {
        require_room(&self.cache, packages.iter().map(|package| package.room).sum())?;
        let mut command = self.command("apt-get");
        command
            .args(["download", "--quiet=2"])
            .args(packages.iter().map(Package::exact))
            .current_dir(folder);
        child::run(&mut command, DOWNLOAD_LIMIT)?;
        packages.iter().map(|package| verified(package, folder)).collect()
    }

    pub fn not_found(&self, wanted: &str) -> AptError {
        AptError::NotFound {
            wanted: wanted.to_owned(),
            suites: SUITES.map(str::to_owned).to_vec(),
            messages: self.refreshed().into_iter().skip(1).collect(),
        }
    }

    /// The mirror of the lists, and apt's errors and warnings if it did not fetch all of them.
    fn refreshed(&self) -> Vec<String> {
        let text = fs::read_to_string(self.folder.join("refreshed")).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    fn show(&self, names: &[impl AsRef<str>]) -> Result<Vec<Package>, AptError> {
        let mut command = self.command("apt-cache");
        command.arg("show").args(names.iter().map(|name| name.as_ref()));
        output::packages(&child::run(&mut command, QUERY_LIMIT)?.stdout)
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.arg("-c").arg(self.folder.join("apt.conf"));
        command
    }

    fn lists_age(&self) -> Option<Duration> {
        let written = fs::metadata(self.folder.join("refreshed")).ok()?.modified().ok()?;
        // A clock that was set back must not keep lists forever.
        Some(SystemTime::now().duration_since(written).unwrap_or(Duration::MAX))
    }

    fn configure(&self, architecture: &str, keyring: &Path) -> Result<(), AptError> {
        for folder in ["lists/partial", "archives/partial", "keys", "empty"] {
            let path = self.folder.join(folder);
            fs::create_dir_all(&path).map_err(io_error("make", &path))?;
        }
        let key = fs::read(keyring).map_err(io_error("read", keyring))?;
        self.write("keys/debian-archive-keyring.gpg", &key)?;
        self.write("apt.conf", configuration(&self.folder, architecture).as_bytes())
    }

    fn write(&self, name: &str, bytes: &[u8]) -> Result<(), AptError> {
        let path = self.folder.join(name);
        fs::write(&path, bytes).map_err(io_error("write", &path))
    }
}

fn io_error(action: &'static str, path: &Path) -> impl Fn(io::Error) -> AptError + use<> {
    let path = path.to_owned();
    move |source| AptError::Io { action, path: path.clone(), source }
}

/// Runs `attempt`. If it fails and old lists may be the reason, refreshes the lists of all
/// `registries` and runs it once more. `cause` finds the apt error in the attempt's error.
pub fn attempt<T, E: From<AptError>>(
    registries: &[&Apt],
    progress: &mut dyn FnMut(&str),
    cause: fn(&E) -> Option<&AptError>,
    mut attempt: impl FnMut(&mut dyn FnMut(&str)) -> Result<T, E>,
) -> Result<T, E> {
    match attempt(progress) {
        Err(error)
            if !registries.iter().all(|apt| apt.is_fresh())
                && cause(&error).is_some_and(AptError::may_be_stale) =>
        {
            for apt in registries {
                apt.refresh(progress)?;
            }
            attempt(progress)
        }
        result => result,
    }
}

/// Checks a package's checksum. Returns the file that it was downloaded to.
fn verified(package: &Package, folder: &Path) -> Result<PathBuf, AptError> {
    let file = folder.join(package.file());
    let found = sha256(&file).map_err(io_error("read", &file))?;
    if found == package.sha256 {
        Ok(file)
    } else {
        let (package, expected) = (package.exact(), package.sha256.clone());
        Err(AptError::Checksum { package, expected, found })
    }
}

/// Unpacks a package's files. Runs none of its scripts.
pub fn unpack(package: &Path, folder: &Path) -> Result<(), AptError> {
    child::run(Command::new("dpkg-deb").arg("-x").arg(package).arg(folder), UNPACK_LIMIT)?;
    Ok(())
}

/// Unpacks those of a package's files that match a pattern, whose `*` matches slashes too. It is an
/// error if none does.
pub fn unpack_only(package: &Path, folder: &Path, pattern: &str) -> Result<(), AptError> {
    // dpkg-deb selects no files.
    let mut archive = Command::new("dpkg-deb");
    archive.arg("--fsys-tarfile").arg(package);
    let mut tar = Command::new("tar");
    tar.arg("--extract").arg("--directory").arg(folder).arg("--wildcards").arg(pattern);
    child::pipe(&mut archive, &mut tar, UNPACK_LIMIT)?;
    Ok(())
}

/// Compares versions as dpkg does: `7.3~rc7-1` comes before `7.3-1`.
pub fn compare_versions(a: &str, b: &str) -> Result<Ordering, AptError> {
    for (relation, ordering) in [("eq", Ordering::Equal), ("lt", Ordering::Less)] {
        let mut command = Command::new("dpkg");
        command.args(["--compare-versions", a, relation, b]);
        if child::finish(&mut command, QUERY_LIMIT)?.0.success() {
            return Ok(ordering);
        }
    }
    Ok(Ordering::Greater)
}

/// The SHA-256 of a file, in hexadecimal.
pub fn sha256(path: &Path) -> io::Result<String> {
    let mut file = fs::File::open(path)?;
    let mut hash = Sha256::new();
    let mut buffer = vec![0; 64 * 1024];
    loop {
        match file.read(&mut buffer) {
            Ok(0) => return Ok(hex(&hash.finalize())),
            Ok(read) => hash.update(&buffer[..read]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Finds the host's keyring of Debian's archive. On hosts without one (Ubuntu), unpacks the package
/// of the host's own registry into the cache.
fn keyring(cache: &Cache) -> Result<PathBuf, AptError> {
    if let Some(found) = KEYRINGS.iter().map(Path::new).find(|path| path.exists()) {
        return Ok(found.to_owned());
    }
    let fill = |folder: &Path| -> Result<(), AptError> {
        // Uses the host's apt configuration: its keys vouch for this package.
        let mut command = Command::new("apt-get");
        command.args(["download", "--quiet=2", "debian-archive-keyring"]).current_dir(folder);
        child::run(&mut command, DOWNLOAD_LIMIT)?;
        let error = io_error("read", folder);
        for entry in fs::read_dir(folder).map_err(&error)? {
            let path = entry.map_err(&error)?.path();
            if path.extension().is_some_and(|extension| extension == "deb") {
                unpack(&path, folder)?;
            }
        }
        Ok(())
    };
    let entry = cache
        .entry("keyring", "debian-archive-keyring", fill)
        .map_err(|source| AptError::NoKeyring { source: Box::new(source) })?;
    let unpacked = KEYRINGS.map(|path| entry.join(path.trim_start_matches('/')));
    unpacked.into_iter().find(|path| path.exists()).ok_or_else(|| AptError::NoKeyring {
        source: Box::new(AptError::Format {
            package: "debian-archive-keyring".into(),
            field: "keyring",
        }),
    })
}

/// apt reads the file of `-c` after the host's own: proxies stay, hooks and pins are cleared.
fn configuration(folder: &Path, architecture: &str) -> String {
    let quoted = |name: &str| format!("\"{}\"", folder.join(name).display());
    let settings = [
        ("Dir::Etc::SourceList", quoted("sources.list")),
        ("Dir::Etc::SourceParts", quoted("empty")),
        ("Dir::Etc::Preferences", "\"/dev/null\"".to_owned()),
        ("Dir::Etc::PreferencesParts", quoted("empty")),
        ("Dir::Etc::Trusted", "\"/dev/null\"".to_owned()),
        ("Dir::Etc::TrustedParts", quoted("keys")),
        ("Dir::State::Lists", quoted("lists")),
        ("Dir::State::Status", "\"/dev/null\"".to_owned()),
        ("Dir::State::Extended_States", quoted("extended_states")),
        ("Dir::Cache", quoted(".")),
        ("Dir::Cache::Archives", quoted("archives")),
        // One index of the lists; docker's images have none, and apt makes it for each query.
        ("Dir::Cache::pkgcache", quoted("pkgcache.bin")),
        ("Dir::Cache::srcpkgcache", "\"\"".to_owned()),
        ("Dir::Log", quoted(".")),
        ("APT::Architecture", format!("\"{architecture}\"")),
        ("APT::Default-Release", "\"\"".to_owned()),
        ("APT::Get::AllowUnauthenticated", "\"false\"".to_owned()),
        // As root, apt would switch to a user who cannot write to a private cache.
        ("APT::Sandbox::User", "\"\"".to_owned()),
        ("Acquire::AllowInsecureRepositories", "\"false\"".to_owned()),
        ("Acquire::Languages", "\"none\"".to_owned()),
        // Lists stay compressed: 80 MB instead of 220.
        ("Acquire::GzipIndexes", "\"true\"".to_owned()),
        ("Acquire::Retries", "\"2\"".to_owned()),
        // `Apt` holds its own lock.
        ("Debug::NoLocking", "\"true\"".to_owned()),
    ];
    let mut text: String = ["APT::Update", "APT::Architectures", "DPkg", "APT::NeverAutoRemove"]
        .iter()
        .map(|tree| format!("#clear {tree};\n"))
        .collect();
    text.push_str(&format!("APT::Architectures {{ \"{architecture}\"; }};\n"));
    for (key, value) in settings {
        text.push_str(&format!("{key} {value};\n"));
    }
    text
}

fn sources(mirror: &str) -> String {
    // Fetch only the package lists, without translations, icons and contents.
    SUITES.iter().map(|suite| format!("deb [target=Packages] {mirror} {suite} main\n")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rejects_a_file_with_another_checksum_than_the_list() {
        const HELLO: &str = "5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03";
        let folder = tempfile::tempdir().unwrap();
        let [name, version, architecture] = ["foo", "1:2", "all"].map(str::to_owned);
        let mut package = Package { name, version, architecture, sha256: "00".into(), room: 0 };
        let file = folder.path().join("foo_1%3a2_all.deb");
        fs::write(&file, "hello\n").unwrap();
        let error = verified(&package, folder.path()).unwrap_err().to_string();
        assert_eq!(error, format!("failed to verify foo=1:2: expected SHA-256 00, found {HELLO}"));
        package.sha256 = HELLO.into();
        assert_eq!(verified(&package, folder.path()).unwrap(), file);
    }
}
