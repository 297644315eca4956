// SPDX-License-Identifier: MIT OR Apache-2.0
//! Rust for guest agents of another architecture than the host's. The host's own rustc serves if it
//! has that target's standard library (from rustup). Otherwise this fetches a private copy of
//! Debian's rustc with the library: a standard library works only with the rustc that built it.

use super::{
    cache::Cache,
    child,
    debian::{ArchiveError, Debian, DebianError, Package},
    private::{Layout, PrivateError, Recipe, SUITE, WRAPPER, Wrapper},
};
use std::{
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};
use tramplab_model::{called::called, run::Arch};

const KIND: &str = "rust";
/// Debian's rustc for building browsers: newer than the release's own rustc.
const RUSTC: &str = "rustc-web";
const STD: &str = "libstd-rust-web-dev";
const LIMIT: Duration = Duration::from_secs(20);

#[derive(Debug, thiserror::Error)]
pub enum RustError {
    #[error(
        "failed to find Rust for {arch} guests: rustc has no target {target}, and the cache has no \
         private copy (--no-cache ignores it); run `{} vm-test --setup --arch {arch}`, or \
         `rustup target add {target}`",
        called()
    )]
    NotFound { arch: Arch, target: String },
    #[error(
        "failed to fetch Rust for {arch} guests: {source}; or run `rustup target add {}`",
        target(*.arch)
    )]
    Private { arch: Arch, source: PrivateError },
    #[error(
        "failed to use the private Rust in {entry} for {arch} guests: {why}; remove that folder \
         and run with --setup"
    )]
    Unfit { arch: Arch, entry: PathBuf, why: String },
}

/// A rustc that compiles for an architecture's guests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rustc {
    /// The host's own, found as cargo finds it.
    Host,
    /// The program to name in `RUSTC`.
    Private(PathBuf),
}

/// rustc's name of the target. The agent is static and uses no file of the guest.
pub fn target(arch: Arch) -> String {
    format!("{}-unknown-linux-gnu", arch.platform().machine)
}

/// Debian's name of the C compiler and linker for another architecture than the host's.
pub fn cross_compiler(arch: Arch) -> String {
    format!("{}-gcc", arch.platform().triplet)
}

impl Rustc {
    /// Finds a rustc. Fetches nothing.
    pub fn find(cache: &Cache, arch: Arch) -> Result<Rustc, RustError> {
        if Arch::host() == Some(arch) || has_target(&of_cargo(), arch) {
            return Ok(Rustc::Host);
        }
        match recipe(arch).newest(cache) {
            Some(entry) => examined(&entry, arch),
            None => Err(RustError::NotFound { arch, target: target(arch) }),
        }
    }

    /// Finds a rustc, or fetches a private copy.
    pub fn provision(
        cache: &Cache,
        arch: Arch,
        progress: &mut dyn FnMut(&str),
    ) -> Result<Rustc, RustError> {
        match Rustc::find(cache, arch) {
            Err(RustError::NotFound { .. }) => {
                let fetched = fetch(cache, arch, progress);
                examined(&fetched.map_err(|source| RustError::Private { arch, source })?, arch)
            }
            result => result,
        }
    }
}

fn recipe(arch: Arch) -> Recipe {
    Recipe {
        kind: KIND,
        name: arch.name(),
        package: STD,
        suite: SUITE,
        wrapper: Some(Wrapper {
            program: "usr/bin/rustc".to_owned(),
            environment: "",
            arguments: "--sysroot \"$here/usr\"".to_owned(),
        }),
    }
}

/// The rustc that cargo uses.
fn of_cargo() -> PathBuf {
    std::env::var_os("RUSTC")
        .filter(|rustc| !rustc.is_empty())
        .map_or_else(|| "rustc".into(), PathBuf::from)
}

/// rustc prints the folder even if it does not exist.
fn has_target(rustc: &Path, arch: Arch) -> bool {
    let mut command = Command::new(rustc);
    command.args(["--print", "target-libdir", "--target", &target(arch)]);
    child::run(&mut command, LIMIT).is_ok_and(|output| Path::new(output.stdout.trim()).is_dir())
}

fn examined(entry: &Path, arch: Arch) -> Result<Rustc, RustError> {
    let wrapper = entry.join(WRAPPER);
    let unfit = |why: String| RustError::Unfit { arch, entry: entry.to_owned(), why };
    child::run(Command::new(&wrapper).arg("--version"), LIMIT)
        .map_err(|error| unfit(error.to_string()))?;
    if !has_target(&wrapper, arch) {
        return Err(unfit(format!("it has no target {}", target(arch))));
    }
    Ok(Rustc::Private(wrapper))
}

fn fetch(
    cache: &Cache,
    arch: Arch,
    progress: &mut dyn FnMut(&str),
) -> Result<PathBuf, PrivateError> {
    let own = Debian::of_suite(cache, Layout::of_host()?.architecture, SUITE, progress)?;
    let other = Debian::of_suite(cache, arch.platform().debian, SUITE, progress)?;
    let plan = || {
        // The host has the linker: fetch the dependencies of the library, not those of rustc.
        let mut packages = own.closure(STD)?;
        let version = version(&own, &packages)?;
        packages.push(own.exactly(RUSTC, &version)?);
        let mut others = other.closure(STD)?;
        others.retain(|package| package.name == STD);
        let std = self::version(&other, &others)?;
        if std != version {
            let packages = format!("{RUSTC} and {STD} for {arch}");
            let versions = format!("{version} and {std}");
            return Err(ArchiveError::Apart { packages, versions }.into());
        }
        Ok(vec![others, packages])
    };
    let check = |folder: &Path| examined(folder, arch).map(drop).map_err(|error| error.to_string());
    recipe(arch).fetch_planned(cache, &[&other, &own], progress, &check, &plan)
}

/// The version of the standard library among the packages.
fn version(debian: &Debian, packages: &[Package]) -> Result<String, DebianError> {
    let std = packages.iter().find(|package| package.name == STD);
    std.map(|package| package.version.clone()).ok_or_else(|| debian.not_found(STD))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn accepts_only_a_private_copy_that_runs_and_has_the_target() {
        let Some(host) = Arch::host() else { return };
        let other = Arch::ALL.into_iter().find(|&arch| arch != host).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::at(folder.path(), true);
        assert_eq!(Rustc::find(&cache, host).unwrap(), Rustc::Host);
        if has_target(&of_cargo(), other) {
            return;
        }
        let error = Rustc::find(&cache, other).unwrap_err().to_string();
        assert!(
            error.contains(&format!("--setup --arch {other}")) && error.contains(&target(other)),
            "{error}"
        );

        let made = |key: &str, script: &str| {
            cache.entry(KIND, key, |folder| {
                fs::write(folder.join(WRAPPER), format!("#!/bin/sh\n{script}\n"))?;
                let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
                fs::set_permissions(folder.join(WRAPPER), mode)
            })
        };
        made(&format!("{host}=1-a"), "echo /").unwrap();
        assert!(
            matches!(Rustc::find(&cache, other), Err(RustError::NotFound { .. })),
            "it is for another architecture"
        );
        made(&format!("{other}=1-a"), "exit 1").unwrap();
        let error = Rustc::find(&cache, other).unwrap_err().to_string();
        assert!(error.contains("failed to use the private Rust"), "{error}");
        fs::remove_dir_all(cache.path(KIND, &format!("{other}=1-a"))).unwrap();
        made(&format!("{other}=2-b"), "echo /no/such/folder").unwrap();
        let error = Rustc::find(&cache, other).unwrap_err().to_string();
        assert!(error.contains("it has no target"), "{error}");
        fs::remove_dir_all(cache.path(KIND, &format!("{other}=2-b"))).unwrap();
        let entry = made(&format!("{other}=3-c"), "echo /").unwrap();
        assert_eq!(Rustc::find(&cache, other).unwrap(), Rustc::Private(entry.join(WRAPPER)));
    }
}
