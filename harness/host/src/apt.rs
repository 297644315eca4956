// SPDX-License-Identifier: MIT OR Apache-2.0
//! Debian's registry through the host's own apt, without root and without installing anything.
//!
//! apt runs on lists, sources and a configuration of its own in the cache, with an empty dpkg status. It checks the
//! lists' signatures against Debian's keyring and each file against the signed lists; the SHA-256 is checked
//! here once more, so that what enters the cache was seen to be right by the code that puts it there.

use super::{
    cache::{Cache, CacheError, Lock, require_room},
    child::{self, ChildError},
};
use sha2::{Digest, Sha256};
use std::{
    cmp::Ordering,
    collections::BTreeSet,
    fs,
    io::{self, Read},
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, SystemTime},
};
use tramplab_model::{name::hex, run::Arch};

pub const DEFAULT_MIRROR: &str = "http://deb.debian.org/debian";
/// From the oldest release with a kernel of interest to the newest kernel there is. One that does not answer is left out.
const SUITES: [&str; 5] = ["bookworm", "trixie", "forky", "sid", "experimental"];
const KEYRINGS: [&str; 2] = [
    "/usr/share/keyrings/debian-archive-keyring.gpg",
    // The name since trixie; the other is a link to it, which may go.
    "/usr/share/keyrings/debian-archive-keyring.pgp",
];

const LISTS_MAX_AGE: Duration = Duration::from_secs(24 * 3600);
/// Lists younger than this are not fetched again because something was not found in them.
const LISTS_FRESH: Duration = Duration::from_secs(10 * 60);

/// Twice what the lists of one architecture and apt's index of them took in 2026.
const LISTS_ROOM: u64 = 170 << 20;

const UPDATE_LIMIT: Duration = Duration::from_secs(10 * 60);
const DOWNLOAD_LIMIT: Duration = Duration::from_secs(30 * 60);
const UNPACK_LIMIT: Duration = Duration::from_secs(5 * 60);
const QUERY_LIMIT: Duration = Duration::from_secs(60);

#[derive(Debug, thiserror::Error)]
pub enum AptError {
    #[error(
        "failed to reach Debian's packages: this host has no {program}; use a kernel of kind `path` or `url`, and a \
         QEMU of the system (or one named in TRAMPLAB_QEMU_X86_64 or _ARM64)"
    )]
    NoApt { program: &'static str },
    #[error(
        "failed to find Debian's archive keyring, and to fetch the package debian-archive-keyring: {source}\n\
         install it: apt-get install debian-archive-keyring"
    )]
    NoKeyring { source: Box<AptError> },
    #[error("failed to get package lists from {mirror}: no suite answered{}", lines(.messages))]
    Silent { mirror: String, messages: Vec<String> },
    #[error("failed to find {wanted} in Debian's suites {}", .suites.join(", "))]
    NotFound { wanted: String, suites: Vec<String> },
    #[error("failed to verify {package}: its SHA-256 is {found}, the registry's list says {expected}")]
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

fn lines(messages: &[String]) -> String {
    messages.iter().map(|message| format!("\n{message}")).collect()
}

/// One version of one package, as the signed lists describe it.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Package {
    pub name: String,
    pub version: String,
    pub architecture: String,
    pub sha256: String,
    /// Bytes that downloading and unpacking it take; not known of one read from the cache.
    #[serde(skip)]
    pub room: u64,
}

impl Package {
    /// The name `apt-get download` gives the file.
    fn file(&self) -> String {
        format!("{}_{}_{}.deb", self.name, self.version.replace(':', "%3a"), self.architecture)
    }

    fn exact(&self) -> String {
        format!("{}={}", self.name, self.version)
    }
}

/// Debian's registry for one architecture; one user at a time.
#[derive(Debug)]
pub struct Apt {
    cache: PathBuf,
    folder: PathBuf,
    _lock: Lock,
}

impl Apt {
    /// With lists no older than a day, if the registry answers. `architecture` in Debian's words: `amd64`, `arm64`.
    pub fn open(cache: &Cache, architecture: &str, progress: &mut dyn FnMut(&str)) -> Result<Apt, AptError> {
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
                    progress(&format!("using Debian's package lists of {hours} hours ago: {error}"));
                }
            }
        }
        Ok(apt)
    }

    /// Whether fetching the lists again could show anything new.
    pub fn is_fresh(&self) -> bool {
        self.lists_age().is_some_and(|age| age < LISTS_FRESH)
    }

    /// Runs `attempt`, and once more on newer lists where old ones may be why it failed: what they name is gone from the registry, or
    /// what is wanted is new. `cause` is the error of ours within the attempt's, if there is one.
    pub fn attempt<T, E: From<AptError>>(
        &self,
        progress: &mut dyn FnMut(&str),
        cause: fn(&E) -> Option<&AptError>,
        mut attempt: impl FnMut(&mut dyn FnMut(&str)) -> Result<T, E>,
    ) -> Result<T, E> {
        match attempt(progress) {
            Err(error)
                if !self.is_fresh()
                    && matches!(cause(&error), Some(AptError::NotFound { .. } | AptError::Child(_))) =>
            {
                self.refresh(progress)?;
                attempt(progress)
            }
            result => result,
        }
    }

    /// Fetches the lists; fails only when no suite at all answers.
    pub fn refresh(&self, progress: &mut dyn FnMut(&str)) -> Result<(), AptError> {
        require_room(&self.cache, LISTS_ROOM)?;
        let mut mirrors = vec![DEFAULT_MIRROR.to_owned()];
        mirrors.splice(0..0, host_mirror().filter(|mirror| mirror != DEFAULT_MIRROR));
        let mut silent = None;
        for mirror in mirrors {
            progress(&format!("fetching Debian's package lists from {mirror}"));
            self.write("sources.list", &sources(&mirror))?;
            let (_, output) = child::finish(self.command("apt-get").arg("update"), UPDATE_LIMIT)?;
            let Answers { answered, failed } = answers(&output.stdout);
            let messages: Vec<String> = output
                .stderr
                .lines()
                .filter(|line| line.starts_with("E:") || line.starts_with("W:"))
                .map(str::to_owned)
                .collect();
            if answered.is_empty() {
                silent = Some(AptError::Silent { mirror, messages });
                continue;
            }
            if !failed.is_empty() {
                let failed: Vec<_> = failed.into_iter().collect();
                progress(&format!("Debian's {} did not answer and is left out", failed.join(", ")));
            }
            return self.write("refreshed", &format!("{mirror}\n"));
        }
        // The lists of before are those of the mirror of before.
        if let Ok(mirror) = fs::read_to_string(self.folder.join("refreshed")) {
            self.write("sources.list", &sources(mirror.trim_end()))?;
        }
        Err(silent.expect("at least one mirror was tried"))
    }

    /// All versions of the packages whose name matches an extended regular expression.
    pub fn search(&self, name: &str) -> Result<Vec<Package>, AptError> {
        let mut command = self.command("apt-cache");
        command.args(["search", "--names-only", name]);
        let found = child::run(&mut command, QUERY_LIMIT)?.stdout;
        let names: Vec<_> = found.lines().filter_map(|line| line.split(" - ").next()).collect();
        if names.is_empty() { Ok(Vec::new()) } else { self.show(&names) }
    }

    /// A package and all it depends on, of one suite: the versions an empty system would get.
    pub fn closure(&self, suite: &str, package: &str) -> Result<Vec<Package>, AptError> {
        let arguments =
            ["install", "--simulate", "--quiet=2", "--no-install-recommends", "-t", suite, package];
        let plan = child::run(self.command("apt-get").args(arguments), QUERY_LIMIT)?.stdout;
        let wanted = installed(&plan);
        let mut packages = self.show(&wanted)?;
        // One version can stand in several suites' lists.
        packages.sort_by(|a, b| (&a.name, &a.version).cmp(&(&b.name, &b.version)));
        packages.dedup();
        if packages.len() == wanted.len() && !wanted.is_empty() {
            Ok(packages)
        } else {
            Err(self.not_found(&format!("all of {package} and what it depends on in {suite}")))
        }
    }

    /// One version of a package.
    pub fn exactly(&self, name: &str, version: &str) -> Result<Package, AptError> {
        let wanted = format!("{name}={version}");
        self.show(&[&wanted])?.into_iter().next().ok_or_else(|| self.not_found(&wanted))
    }

    /// Fetches packages into a folder and verifies them; their files, in the same order.
    pub fn download(&self, packages: &[Package], folder: &Path) -> Result<Vec<PathBuf>, AptError> {
        require_room(&self.cache, packages.iter().map(|package| package.room).sum())?;
        let mut command = self.command("apt-get");
        command.args(["download", "--quiet=2"]).args(packages.iter().map(Package::exact)).current_dir(folder);
        child::run(&mut command, DOWNLOAD_LIMIT)?;
        packages.iter().map(|package| verified(package, folder)).collect()
    }

    pub fn not_found(&self, wanted: &str) -> AptError {
        AptError::NotFound { wanted: wanted.to_owned(), suites: SUITES.map(str::to_owned).to_vec() }
    }

    fn show(&self, names: &[impl AsRef<str>]) -> Result<Vec<Package>, AptError> {
        let mut command = self.command("apt-cache");
        command.arg("show").args(names.iter().map(|name| name.as_ref()));
        packages(&child::run(&mut command, QUERY_LIMIT)?.stdout)
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.arg("-c").arg(self.folder.join("apt.conf"));
        command
    }

    fn lists_age(&self) -> Option<Duration> {
        let written = fs::metadata(self.folder.join("refreshed")).ok()?.modified().ok()?;
        // A clock that was set back must not keep lists for ever.
        Some(SystemTime::now().duration_since(written).unwrap_or(Duration::MAX))
    }

    fn configure(&self, architecture: &str, keyring: &Path) -> Result<(), AptError> {
        for folder in ["lists/partial", "archives/partial", "keys", "empty"] {
            let path = self.folder.join(folder);
            fs::create_dir_all(&path).map_err(|source| AptError::Io { action: "make", path, source })?;
        }
        let key = fs::read(keyring).map_err(|source| AptError::Io {
            action: "read",
            path: keyring.to_owned(),
            source,
        })?;
        let path = self.folder.join("keys/debian-archive-keyring.gpg");
        fs::write(&path, key).map_err(|source| AptError::Io { action: "write", path, source })?;
        self.write("apt.conf", &configuration(&self.folder, architecture))
    }

    fn write(&self, name: &str, text: &str) -> Result<(), AptError> {
        let path = self.folder.join(name);
        fs::write(&path, text).map_err(|source| AptError::Io { action: "write", path, source })
    }
}

/// The file that a package was downloaded to.
fn verified(package: &Package, folder: &Path) -> Result<PathBuf, AptError> {
    let file = folder.join(package.file());
    let found =
        sha256(&file).map_err(|source| AptError::Io { action: "read", path: file.clone(), source })?;
    if found == package.sha256 {
        Ok(file)
    } else {
        let (package, expected) = (package.exact(), package.sha256.clone());
        Err(AptError::Checksum { package, expected, found })
    }
}

/// Unpacks a package's files; none of its scripts run.
pub fn unpack(package: &Path, folder: &Path) -> Result<(), AptError> {
    child::run(Command::new("dpkg-deb").arg("-x").arg(package).arg(folder), UNPACK_LIMIT)?;
    Ok(())
}

/// Debian's order of versions, which dpkg knows (`7.3~rc7-1` is before `7.3-1`).
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

/// Debian's word for it.
pub fn debian_architecture(arch: Arch) -> &'static str {
    match arch {
        Arch::X86_64 => "amd64",
        Arch::Arm64 => "arm64",
    }
}

/// The host's, or, where it has none (Ubuntu), that of its own registry's package, unpacked into the cache.
fn keyring(cache: &Cache) -> Result<PathBuf, AptError> {
    if let Some(found) = KEYRINGS.iter().map(Path::new).find(|path| path.exists()) {
        return Ok(found.to_owned());
    }
    let fill = |folder: &Path| -> Result<(), AptError> {
        // With the host's own configuration: its keys vouch for this package.
        let mut command = Command::new("apt-get");
        command.args(["download", "--quiet=2", "debian-archive-keyring"]).current_dir(folder);
        child::run(&mut command, DOWNLOAD_LIMIT)?;
        let error = |source| AptError::Io { action: "read", path: folder.to_owned(), source };
        for entry in fs::read_dir(folder).map_err(error)? {
            let path = entry.map_err(error)?.path();
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
        source: Box::new(AptError::Format { package: "debian-archive-keyring".into(), field: "keyring" }),
    })
}

/// `-c` is read after the host's own files, so its proxies stay and its hooks and pins go.
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
        ("Dir::Log", quoted(".")),
        ("APT::Architecture", format!("\"{architecture}\"")),
        ("APT::Default-Release", "\"\"".to_owned()),
        ("APT::Get::AllowUnauthenticated", "\"false\"".to_owned()),
        // Root's apt would change to a user who cannot write to a private cache.
        ("APT::Sandbox::User", "\"\"".to_owned()),
        ("Acquire::AllowInsecureRepositories", "\"false\"".to_owned()),
        ("Acquire::Languages", "\"none\"".to_owned()),
        ("Acquire::Retries", "\"2\"".to_owned()),
        // `Apt` holds a lock of its own.
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
    // Only the packages: hosts also ask for translations, icons and contents.
    SUITES.iter().map(|suite| format!("deb [target=Packages] {mirror} {suite} main\n")).collect()
}

/// What an update brought, by suite.
#[derive(Debug, PartialEq, Eq)]
struct Answers {
    answered: BTreeSet<String>,
    failed: BTreeSet<String>,
}

/// Of lines such as `Get:1 http://deb.debian.org/debian trixie InRelease [140 kB]` and
/// `Err:6 http://deb.debian.org/debian sid/main amd64 Packages`. A line `Ign:` says that something else is tried.
fn answers(update: &str) -> Answers {
    let suites = |tags: &[&str]| -> BTreeSet<String> {
        let suite = |line: &str| {
            let mut words = line.split(' ');
            let tag = words.next()?.split_once(':')?.0;
            let place = words.nth(1)?;
            tags.contains(&tag).then(|| place.split('/').next().unwrap_or(place).to_owned())
        };
        update.lines().filter_map(suite).collect()
    };
    let failed = suites(&["Err"]);
    Answers { answered: &suites(&["Hit", "Get"]) - &failed, failed }
}

/// Of apt's plan, `Inst libc6 (2.41-12+deb13u4 Debian:13.7/stable [amd64])`, the packages as `libc6=2.41-12+deb13u4`.
fn installed(plan: &str) -> Vec<String> {
    let exact = |line: &str| -> Option<String> {
        let mut words = line.strip_prefix("Inst ")?.split_whitespace();
        let name = words.next()?;
        let version = words.find_map(|word| word.strip_prefix('('))?;
        Some(format!("{name}={version}"))
    };
    plan.lines().filter_map(exact).collect()
}

/// Reads what `apt-cache show` prints.
fn packages(text: &str) -> Result<Vec<Package>, AptError> {
    let field = |stanza: &str, field: &'static str| {
        let line = stanza.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(": "));
        let package = || stanza.lines().next().unwrap_or_default().to_owned();
        line.map(|value| value.trim().to_owned())
            .ok_or_else(|| AptError::Format { package: package(), field })
    };
    text.split("\n\n")
        .map(str::trim)
        .filter(|stanza| !stanza.is_empty())
        .map(|stanza| {
            let number =
                |name| field(stanza, name).ok().and_then(|value| value.parse::<u64>().ok()).unwrap_or(0);
            Ok(Package {
                // Debian counts installed sizes in KiB.
                room: number("Size") + number("Installed-Size") * 1024,
                name: field(stanza, "Package")?,
                version: field(stanza, "Version")?,
                architecture: field(stanza, "Architecture")?,
                sha256: field(stanza, "SHA256")?,
            })
        })
        .collect()
}

/// The mirror this Debian host uses; none on other systems.
fn host_mirror() -> Option<String> {
    let os_release = fs::read_to_string("/etc/os-release").ok()?;
    let etc = Path::new("/etc/apt");
    let mut files = vec![etc.join("sources.list")];
    let parts = fs::read_dir(etc.join("sources.list.d")).into_iter().flatten().flatten();
    files.extend(parts.map(|entry| entry.path()));
    files.sort();
    let texts =
        files.iter().filter_map(|path| Some((path.extension()?.to_str()?, fs::read_to_string(path).ok()?)));
    let texts: Vec<_> = texts.collect();
    let texts: Vec<_> = texts.iter().map(|(extension, text)| (*extension, text.as_str())).collect();
    mirror(&os_release, &texts)
}

/// The first http(s) source of the host's own release and `main`; `texts` are (extension, content).
fn mirror(os_release: &str, texts: &[(&str, &str)]) -> Option<String> {
    let value = |key: &str| {
        let value = os_release.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='))?;
        Some(value.trim_matches('"').to_owned())
    };
    if value("ID")? != "debian" {
        return None;
    }
    let codename = value("VERSION_CODENAME")?;
    let fits = |uri: &str, suites: &[&str], components: &[&str]| {
        let http = uri.starts_with("http://") || uri.starts_with("https://");
        // A snapshot's release files have expired.
        http && !uri.contains("snapshot.debian.org")
            && suites.contains(&codename.as_str())
            && components.contains(&"main")
    };
    for (extension, text) in texts {
        let found = match *extension {
            "sources" => text.split("\n\n").find_map(|stanza| deb822_uri(stanza, fits)),
            "list" => text.lines().find_map(|line| one_line_uri(line, fits)),
            _ => None,
        };
        if let Some(uri) = found {
            return Some(uri.trim_end_matches('/').to_owned());
        }
    }
    None
}

fn deb822_uri(stanza: &str, fits: impl Fn(&str, &[&str], &[&str]) -> bool) -> Option<String> {
    let words = |field: &str| -> Vec<&str> {
        let value = stanza.lines().find_map(|line| {
            let (name, value) = line.split_once(':')?;
            name.eq_ignore_ascii_case(field).then_some(value)
        });
        value.unwrap_or_default().split_whitespace().collect()
    };
    if !words("Types").contains(&"deb") || words("Enabled").contains(&"no") {
        return None;
    }
    let (suites, components) = (words("Suites"), words("Components"));
    words("URIs").into_iter().find(|uri| fits(uri, &suites, &components)).map(str::to_owned)
}

fn one_line_uri(line: &str, fits: impl Fn(&str, &[&str], &[&str]) -> bool) -> Option<String> {
    let rest = line.trim().strip_prefix("deb ")?.trim_start();
    let rest = match rest.strip_prefix('[') {
        Some(options) => options.split_once(']')?.1,
        None => rest,
    };
    let words: Vec<_> = rest.split_whitespace().take_while(|word| !word.starts_with('#')).collect();
    let (uri, rest) = words.split_first()?;
    let (suite, components) = rest.split_first()?;
    fits(uri, &[suite], components).then(|| (*uri).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOOKWORM: &str =
        "PRETTY_NAME=\"Debian GNU/Linux 12 (bookworm)\"\nVERSION_CODENAME=bookworm\nID=debian\n";
    const UBUNTU: &str = "VERSION_CODENAME=noble\nID=ubuntu\nID_LIKE=debian\n";

    #[test]
    fn the_hosts_mirror_is_that_of_its_own_release() {
        let security = "Types: deb\nURIs: http://deb.debian.org/debian-security\nSuites: bookworm-security\nComponents: main\n";
        let own = "Types: deb\n# a comment: here\nURIs: https://ftp.example.org/debian/\nSuites: bookworm bookworm-updates\nComponents: main contrib\n";
        let list = "# deb http://old.example.org/debian bookworm main\n\
                    deb-src http://src.example.org/debian bookworm main\n\
                    deb [arch=amd64 signed-by=/k.gpg] http://list.example.org/debian bookworm main # ours\n";
        let both = format!("{security}\n{own}");
        let disabled = format!("Enabled: no\n{own}");
        let snapshot =
            own.replace("ftp.example.org/debian", "snapshot.debian.org/archive/debian/20250520T000000Z");
        let other_component = own.replace("main contrib", "contrib");
        let file = own.replace("https://ftp.example.org", "file:/srv");
        for (os_release, sources, expected) in [
            (BOOKWORM, vec![("sources", both.as_str())], Some("https://ftp.example.org/debian")),
            (BOOKWORM, vec![("list", list)], Some("http://list.example.org/debian")),
            (BOOKWORM, vec![("list", ""), ("sources", own)], Some("https://ftp.example.org/debian")),
            (BOOKWORM, vec![("disabled", list)], None),
            (BOOKWORM, vec![("sources", security)], None),
            (BOOKWORM, vec![("sources", disabled.as_str())], None),
            (BOOKWORM, vec![("sources", snapshot.as_str())], None),
            (BOOKWORM, vec![("sources", other_component.as_str())], None),
            (BOOKWORM, vec![("sources", file.as_str())], None),
            (BOOKWORM, vec![("list", "deb [unclosed http://x/debian bookworm main\ndeb\n")], None),
            (BOOKWORM, vec![], None),
            (UBUNTU, vec![("list", "deb http://archive.ubuntu.com/ubuntu noble main")], None),
        ] {
            assert_eq!(mirror(os_release, &sources).as_deref(), expected, "{sources:?}");
        }
    }

    /// As apt 2.6 printed it for a suite that does not exist and one on a host that does not. The lines of bookworm and
    /// trixie are added in the same form: lists that are still the newest, and one that did not come.
    #[test]
    fn suites_that_answer_are_told_from_those_that_do_not() {
        let update = "\
Ign:1 http://no-such-host.invalid/debian sid InRelease
Ign:2 http://deb.debian.org/debian nosuch InRelease
Get:3 http://deb.debian.org/debian experimental InRelease [91.7 kB]
Hit:7 http://deb.debian.org/debian bookworm InRelease
Err:4 http://deb.debian.org/debian nosuch Release
  404  Not Found [IP: 203.0.113.80 80]
Get:5 http://deb.debian.org/debian experimental/main amd64 Packages [365 kB]
Ign:1 http://no-such-host.invalid/debian sid InRelease
Err:1 http://no-such-host.invalid/debian sid InRelease
  Could not resolve 'no-such-host.invalid'
Get:8 http://deb.debian.org/debian trixie InRelease [140 kB]
Err:9 http://deb.debian.org/debian trixie/main amd64 Packages
  404  Not Found [IP: 203.0.113.80 80]
Fetched 9818 kB in 2s (4909 kB/s)
Reading package lists...
";
        let set = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let expected = Answers {
            answered: set(&["bookworm", "experimental"]),
            failed: set(&["nosuch", "sid", "trixie"]),
        };
        assert_eq!(answers(update), expected);
        assert_eq!(answers(""), Answers { answered: set(&[]), failed: set(&[]) });
    }

    #[test]
    fn the_plan_names_each_package_with_its_version() {
        let plan = "Inst gcc-14-base (14.2.0-19 Debian:13.7/stable [amd64]) []\n\
                    Inst libc6 [2.36-9] (2.41-12+deb13u4 Debian:13.7/stable [amd64])\n\
                    Inst libaio1t64 (0.3.113-8+b1 Debian:13.7/stable [amd64])\n\
                    Conf libc6 (2.41-12+deb13u4 Debian:13.7/stable [amd64])\n";
        assert_eq!(
            installed(plan),
            ["gcc-14-base=14.2.0-19", "libc6=2.41-12+deb13u4", "libaio1t64=0.3.113-8+b1"]
        );
    }

    const SHOWN: &str = "\
Package: linux-binary-7.3-cloud-amd64
Source: linux-signed-amd64 (7.3~rc7+1~exp1)
Version: 7.3~rc7-1~exp1
Installed-Size: 13876
Architecture: amd64
Depends: linux-base-7.3-cloud-amd64 (= 7.3~rc7-1~exp1)
Description: Linux 7.3-rc7 for x86-64 cloud (kernel image)
 The Linux kernel 7.3-rc7 for use on cloud platforms.
Filename: pool/main/l/linux-signed-amd64/linux-binary-7.3-cloud-amd64_7.3~rc7-1~exp1_amd64.deb
Size: 13885624
SHA256: f607118da820d8ba7f06826bff27e84a30b95dbd4a9bdb646f38d8481b1e4268

Package: qemu-system-x86
Version: 1:10.0.13+ds-0+deb13u1
Architecture: amd64
SHA256: 0000000000000000000000000000000000000000000000000000000000000000
";

    #[test]
    fn packages_are_read_with_their_checksums_and_file_names() {
        let packages = packages(SHOWN).unwrap();
        let files: Vec<_> = packages.iter().map(Package::file).collect();
        assert_eq!(
            files,
            [
                "linux-binary-7.3-cloud-amd64_7.3~rc7-1~exp1_amd64.deb",
                "qemu-system-x86_1%3a10.0.13+ds-0+deb13u1_amd64.deb"
            ]
        );
        assert!(packages[0].sha256.starts_with("f607118d"));
        assert_eq!(packages[0].room, 13_885_624 + 13_876 * 1024);
        let error = super::packages("Package: foo\nVersion: 1\n").unwrap_err().to_string();
        assert_eq!(error, "failed to read apt's description of Package: foo: no Architecture");
    }

    #[test]
    fn a_file_that_is_not_what_the_list_says_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let mut package = packages(SHOWN).unwrap().remove(0);
        let file = folder.path().join(package.file());
        fs::write(&file, "hello\n").unwrap();
        let error = verified(&package, folder.path()).unwrap_err();
        assert_eq!(
            error.to_string(),
            "failed to verify linux-binary-7.3-cloud-amd64=7.3~rc7-1~exp1: its SHA-256 is \
             5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03, the registry's list says \
             f607118da820d8ba7f06826bff27e84a30b95dbd4a9bdb646f38d8481b1e4268"
        );
        package.sha256 = "5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03".into();
        assert_eq!(verified(&package, folder.path()).unwrap(), file);
    }
}
