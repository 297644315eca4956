// SPDX-License-Identifier: MIT OR Apache-2.0
//! Toolchain roots: a Debian release's packages, by version and hash, unpacked into a folder of the
//! cache. A confined build sees that folder as its system, so it is the same build on every host.
//!
//! `configs/toolchains/NAME.yaml` lists the packages. `tramplab kernels --pin NAME` writes it.

use super::{ToolchainError, needs};
use crate::{Compiler, Toolchain};
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeMap,
    env, fs, io,
    os::unix::fs::{PermissionsExt, symlink},
    path::{Path, PathBuf},
};
use tramplab_host::{
    cache::{Cache, write_whole},
    config::{self, ConfigError},
    debian::{self, ArchiveError, Debian, DebianError, Package, Pin, pinned_package},
};
use tramplab_model::run::Arch;
use walkdir::WalkDir;

/// The cache's kind.
const KIND: &str = "toolchain";
/// Raised when the same packages would give another root.
const RECIPE: &str = "1";

/// The packages of a build besides those of compilers.
const PROGRAMS: [&str; 34] = [
    "base-files",
    "bash",
    "bc",
    "bison",
    "ccache",
    "coreutils",
    "cpio",
    "dash",
    "diffutils",
    "dwarves",
    "findutils",
    "flex",
    "gawk",
    "grep",
    "gzip",
    "hostname",
    "kmod",
    "libc6-dev",
    "libelf-dev",
    "libssl-dev",
    "lz4",
    "m4",
    "make",
    "openssl",
    "patch",
    "perl",
    "pkg-config",
    "python3",
    "rsync",
    "sed",
    "tar",
    "util-linux",
    "xz-utils",
    "zlib1g-dev",
];

/// The programs of the confinement and of the tree's own tests.
const OTHERS: [&str; 7] = ["bash", "ccache", "ld.lld", "llvm-strip", "prlimit", "rsync", "setpriv"];

/// Libraries of the tree's own tests, for guests of the other architecture.
const LIBRARIES: [&str; 3] = ["libelf-dev", "libssl-dev", "zlib1g-dev"];

/// Links of a merged `/usr`, which all releases here have.
const MERGED: [&str; 4] = ["bin", "lib", "lib64", "sbin"];
/// Links that maintainer scripts would make, which do not run.
const LINKS: [(&str, &str); 3] =
    [("usr/bin/awk", "gawk"), ("usr/bin/cc", "gcc"), ("usr/bin/sh", "dash")];

/// No build reads it.
const DOCUMENTATION: [&str; 5] =
    ["usr/share/doc", "usr/share/info", "usr/share/locale", "usr/share/man", "usr/share/lintian"];

/// An unpacked root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Root {
    /// `debian-12`
    pub name: String,
    pub folder: PathBuf,
    /// Of its packages, and of how they were unpacked.
    digest: String,
}

/// The packages of a root.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Packages {
    /// The Debian release's suite.
    suite: Suite,
    /// By the architecture of the host that builds.
    hosts: BTreeMap<Arch, Pin>,
}

/// The suites that have toolchains.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, strum::IntoStaticStr)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
enum Suite {
    Bookworm,
    Trixie,
}

/// The file of a root.
pub fn file(name: &str, folder: &Path) -> PathBuf {
    folder.join(format!("{name}.yaml"))
}

fn read(name: &str, folder: &Path) -> Result<Packages, ToolchainError> {
    let path = file(name, folder);
    if !path.is_file() {
        let known = crate::manifest::names(folder);
        return Err(ToolchainError::NoRoot { name: name.to_owned(), known });
    }
    let packages: Packages = config::load(&path)?;
    let files = packages.hosts.values().flat_map(|pin| &pin.files);
    match files.into_iter().find(|file| pinned_package(file).is_none()) {
        None => Ok(packages),
        Some(bad) => Err(ConfigError::Invalid {
            path,
            line: 1,
            column: 1,
            message: format!("{} is no package of Debian by its name, size and SHA-256", bad.path),
            snippet: String::new(),
        }
        .into()),
    }
}

/// A root as its file describes it, for this host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pinned {
    name: String,
    host: Arch,
    pin: Pin,
}

impl Pinned {
    /// `folder` has the files of roots.
    pub fn read(name: &str, folder: &Path) -> Result<Pinned, ToolchainError> {
        let packages = read(name, folder)?;
        let of_host = |host| Some((host, packages.hosts.get(&host)?.clone()));
        let Some((host, pin)) = Arch::host().and_then(of_host) else {
            let (root, machine) = (name.to_owned(), env::consts::ARCH);
            return Err(ToolchainError::Machine { root, machine });
        };
        Ok(Pinned { name: name.to_owned(), host, pin })
    }

    /// MiB to fetch.
    pub fn mib(&self) -> u64 {
        self.pin.files.iter().map(|file| file.size).sum::<u64>() >> 20
    }

    pub fn packages(&self) -> usize {
        self.pin.files.len()
    }

    pub fn is_cached(&self, cache: &Cache) -> bool {
        cache.get(KIND, &self.key()).is_some()
    }

    /// Asks Debian's mirrors, then its snapshot archive, for all packages.
    pub fn availability(
        &self,
        cache: &Cache,
    ) -> Result<[Result<(), ArchiveError>; 2], ToolchainError> {
        let debian = Debian::pinned(cache, self.host.platform().debian, &self.pin)?;
        Ok(debian.availability().expect("of a pin"))
    }

    fn key(&self) -> String {
        format!("{}-{}-{}", self.name, self.host, self.digest())
    }

    fn digest(&self) -> String {
        format!("{}-{RECIPE}", &self.pin.digest()[..12])
    }
}

impl Root {
    /// The root for this host, from the cache if it is there.
    pub fn provision(
        pinned: &Pinned,
        cache: &Cache,
        progress: &mut dyn FnMut(&str),
    ) -> Result<Root, ToolchainError> {
        let root = |folder: &Path| Root {
            name: pinned.name.clone(),
            folder: folder.to_owned(),
            digest: pinned.digest(),
        };
        // Its name has the hashes of all packages, so it is never out of date. A second copy would
        // take the first from under another run's build.
        let cache = &Cache::at(cache.root(), true);
        let folder = cache.entry(KIND, &pinned.key(), |folder| {
            progress(&format!("fetching the toolchain {}: {} MiB", pinned.name, pinned.mib()));
            root(folder).fill(&pinned.pin, pinned.host, cache, progress)
        })?;
        Ok(root(&folder))
    }

    /// Where its programs are.
    pub fn programs(&self) -> PathBuf {
        self.folder.join("usr/bin")
    }

    /// For the identity of a build.
    pub fn identity(&self) -> String {
        format!("{}: {}", self.name, self.digest)
    }

    fn fill(
        &self,
        pin: &Pin,
        host: Arch,
        cache: &Cache,
        progress: &mut dyn FnMut(&str),
    ) -> Result<(), ToolchainError> {
        let own = host.platform().debian;
        let debian = Debian::pinned(cache, own, pin)?;
        let packages: Vec<Package> = pin.packages().collect();
        for name in MERGED {
            let target = self.folder.join("usr").join(name);
            fs::create_dir_all(&target).map_err(io_error("make", &target))?;
            let link = self.folder.join(name);
            symlink(Path::new("usr").join(name), &link).map_err(io_error("link", &link))?;
        }
        let wanted = |package: &Package, path: &Path| {
            let is_own = package.architecture == own || package.architecture == "all";
            !DOCUMENTATION.iter().any(|folder| path.starts_with(folder))
                && (is_own || is_of_library(path))
        };
        debian.unpack(&packages, &self.folder, &wanted, progress)?;
        for (link, target) in LINKS {
            let link = self.folder.join(link);
            if fs::symlink_metadata(&link).is_err() {
                symlink(target, &link).map_err(io_error("link", &link))?;
            }
        }
        self.open_to_all()?;
        self.require_programs()
    }

    /// A build of root's runs as another user, who must read it whatever root's umask was.
    fn open_to_all(&self) -> Result<(), ToolchainError> {
        for entry in WalkDir::new(&self.folder) {
            let entry = entry.map_err(|error| io_error("list", &self.folder)(error.into()))?;
            if entry.path_is_symlink() {
                continue;
            }
            let path = entry.path();
            let metadata =
                entry.metadata().map_err(|error| io_error("read", path)(error.into()))?;
            let mode = metadata.permissions().mode();
            let runs = entry.file_type().is_dir() || mode & 0o100 != 0;
            let open = mode | if runs { 0o755 } else { 0o644 };
            if open != mode {
                fs::set_permissions(path, fs::Permissions::from_mode(open))
                    .map_err(io_error("write", path))?;
            }
        }
        Ok(())
    }

    fn require_programs(&self) -> Result<(), ToolchainError> {
        for compiler in [Compiler::Gcc, Compiler::Clang] {
            for arch in Arch::ALL {
                super::find_in(self, &compiler.into(), arch)?;
            }
        }
        self.require(&Toolchain::default(), OTHERS.into_iter())
    }

    /// Fails if one of the programs is missing.
    pub(super) fn require<'a>(
        &self,
        toolchain: &Toolchain,
        programs: impl Iterator<Item = &'a str>,
    ) -> Result<(), ToolchainError> {
        let path = self.programs().into_os_string();
        let missing = programs.filter(|name| super::which(name, &path).is_none());
        let missing: Vec<String> = missing.map(str::to_owned).collect();
        if missing.is_empty() {
            return Ok(());
        }
        let toolchain = Toolchain { root: None, ..toolchain.clone() }.to_string();
        Err(ToolchainError::Absent { root: self.name.clone(), toolchain, missing })
    }
}

/// Programs of another architecture would replace the host's own.
fn is_of_library(path: &Path) -> bool {
    ["usr/include", "usr/lib", "lib"].iter().any(|folder| path.starts_with(folder))
}

/// Writes the newest packages of its suite into the file of a root. Returns their number.
pub fn raise(
    path: &Path,
    cache: &Cache,
    progress: &mut dyn FnMut(&str),
) -> Result<usize, ToolchainError> {
    let text = config::text(path)?;
    let Packages { suite, .. } = config::parse(&text, path)?;
    let mut hosts = BTreeMap::new();
    for host in Arch::ALL {
        hosts.insert(host, newest(suite, host, cache, progress)?);
    }
    let count = hosts.values().map(|pin: &Pin| pin.files.len()).sum();
    let comments: String = text
        .lines()
        .take_while(|line| line.starts_with('#'))
        .map(|line| format!("{line}\n"))
        .collect();
    let packages = config::write(&Packages { suite, hosts });
    write_whole(path, (comments + &packages).as_bytes()).map_err(io_error("write", path))?;
    Ok(count)
}

/// The packages for a host, each with all that it needs.
fn newest(
    suite: Suite,
    host: Arch,
    cache: &Cache,
    progress: &mut dyn FnMut(&str),
) -> Result<Pin, ToolchainError> {
    let mut whole: Option<Pin> = None;
    for arch in Arch::ALL {
        let names = if arch == host { programs(host) } else { LIBRARIES.map(str::to_owned).into() };
        let debian = Debian::of_suite(cache, arch.platform().debian, suite.into(), progress)?;
        let pin = debian::attempt(
            &[&debian],
            progress,
            |error: &ToolchainError| match error {
                ToolchainError::Debian(error) => Some(error),
                _ => None,
            },
            |_| {
                let closures = names.iter().map(|name| debian.closure(name));
                let mut all = closures.collect::<Result<Vec<_>, DebianError>>()?.concat();
                all.sort_by(|a, b| (&a.name, &a.sha256).cmp(&(&b.name, &b.sha256)));
                all.dedup();
                // The host's own packages have those of every architecture.
                all.retain(|package| arch == host || package.architecture != "all");
                Ok(debian.pin(&all)?)
            },
        )?;
        match &mut whole {
            None => whole = Some(pin),
            Some(whole) => {
                whole.files.extend(pin.files);
                whole.snapshot = std::mem::take(&mut whole.snapshot).max(pin.snapshot);
            }
        }
    }
    Ok(whole.expect("of each architecture"))
}

/// The packages of programs that run on the host.
fn programs(host: Arch) -> Vec<String> {
    let mut names: Vec<String> = PROGRAMS.map(str::to_owned).into();
    for compiler in [Compiler::Gcc, Compiler::Clang] {
        for arch in Arch::ALL {
            let needs = needs(&compiler.into(), arch, host.platform().machine);
            names.extend(needs.programs.into_iter().map(|need| need.package));
            if arch != host {
                names.push(format!("libc6-dev-{}-cross", arch.platform().debian));
            }
        }
    }
    names.sort();
    names.dedup();
    names
}

fn io_error<'a>(
    action: &'static str,
    path: &'a Path,
) -> impl FnOnce(io::Error) -> ToolchainError + use<'a> {
    move |source| ToolchainError::Io { action, path: path.to_owned(), source }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::names;

    fn shipped() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../configs/toolchains")
    }

    /// Whoever changes the list of programs pins the roots anew.
    #[test]
    fn shipped_roots_have_all_programs_on_every_host() {
        let names = names(&shipped());
        assert_eq!(names, ["debian-12", "debian-13"]);
        for name in names {
            let Packages { hosts, .. } = read(&name, &shipped()).unwrap();
            assert_eq!(Vec::from_iter(hosts.keys().copied()), Arch::ALL, "{name}");
            for (host, pin) in hosts {
                let has = |wanted: &str, arch: Arch| {
                    let mut packages = pin.packages();
                    packages.any(|package| {
                        package.name == wanted
                            && [arch.platform().debian, "all"].contains(&&*package.architecture)
                    })
                };
                let lacks = |wanted: &String| !has(wanted, host);
                let lacking: Vec<String> = programs(host).into_iter().filter(lacks).collect();
                assert!(lacking.is_empty(), "{name} on {host}: {lacking:?}");
                for arch in Arch::ALL {
                    assert!(LIBRARIES.iter().all(|library| has(library, arch)), "{name}: {arch}");
                }
            }
        }
    }

    #[test]
    fn rejects_files_that_name_no_package_of_debian() {
        let folder = tempfile::tempdir().unwrap();
        let sha256 = "0123456789abcdef".repeat(4);
        let write = |path: &str| {
            let pin =
                format!("{{snapshot: x, files: [{{path: {path}, size: 7, sha256: {sha256}}}]}}");
            let hosts = format!("{{x86_64: {pin}, arm64: {pin}}}");
            let text = format!("suite: trixie\nhosts: {hosts}\n");
            fs::write(file("debian-99", folder.path()), text).unwrap();
            Pinned::read("debian-99", folder.path())
        };
        assert_eq!(write("pool/main/g/gcc_1_amd64.deb").unwrap().packages(), 1);
        for path in ["../gcc_1_amd64.deb", "pool/../gcc_1_amd64.deb", "pool/gcc"] {
            let error = write(path).unwrap_err();
            assert!(matches!(error, ToolchainError::File(_)), "{path}: {error}");
        }
        let error = Pinned::read("debian-98", folder.path()).unwrap_err();
        let ToolchainError::NoRoot { known, .. } = error else { panic!("{error}") };
        assert_eq!(known, ["debian-99"]);
    }

    /// A foreign library must not replace a program of the host.
    #[test]
    fn takes_libraries_and_headers_of_the_other_architecture() {
        for (path, expected) in [
            ("usr/lib/aarch64-linux-gnu/libelf.so", true),
            ("lib/ld-linux-aarch64.so.1", true),
            ("usr/include/libelf.h", true),
            ("usr/bin/gencat", false),
            ("bin/sh", false),
            ("etc/ld.so.conf", false),
        ] {
            assert_eq!(is_of_library(Path::new(path)), expected, "{path}");
        }
    }
}
