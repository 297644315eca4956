// SPDX-License-Identifier: MIT OR Apache-2.0
//! Rust for the guest agent of another architecture than the host's: the host's own rustc where it has that target's standard
//! library (rustup's target), else a private copy of Debian's rustc with it. A standard library goes with the rustc it was
//! built by, and with no other: so both come from there.

use super::apt::debian_architecture;
use super::{
    apt::{Apt, AptError},
    cache::{Cache, CacheError},
    child,
    private::{self, Layout, PrivateError, SUITE, WRAPPER},
};
use std::{
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};
use tramplab_model::run::Arch;

const KIND: &str = "rust";
/// Debian's rustc for building browsers: newer than a release's own.
const RUSTC: &str = "rustc-web";
const STD: &str = "libstd-rust-web-dev";
const LIMIT: Duration = Duration::from_secs(20);

#[derive(Debug, thiserror::Error)]
pub enum RustError {
    #[error(
        "failed to find Rust for {arch} guests: rustc has no target {target}, and no private copy is in the cache, where --no-cache does not look; run \
         `cargo xtask vm-test --setup --arch {arch}`, or `rustup target add {target}`"
    )]
    NotFound { arch: Arch, target: String },
    #[error("failed to make a private Rust for {arch} guests: {source}; `rustup target add {}` does as well", target(*.arch))]
    Private { arch: Arch, source: PrivateError },
    #[error(
        "failed to make a private Rust for {arch} guests: Debian's {RUSTC} is {rustc}, its {STD} for {arch} {std}; `rustup target \
         add {}` does as well",
        target(*.arch)
    )]
    Apart { arch: Arch, rustc: String, std: String },
    #[error(transparent)]
    Cache(#[from] CacheError),
    #[error(
        "failed to use the private Rust in {entry} for {arch} guests: {why}; remove that folder and run with --setup"
    )]
    Unfit { arch: Arch, entry: PathBuf, why: String },
}

/// A rustc that compiles for an architecture's guests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rustc {
    /// The host's own, as cargo finds it.
    Host,
    /// One program, for `RUSTC`.
    Private(PathBuf),
}

/// As rustc calls it; the agent is static, and needs nothing of the guest's.
pub fn target(arch: Arch) -> String {
    format!("{}-unknown-linux-gnu", machine(arch))
}

/// The linker, and C compiler, of another architecture than the host's, as Debian calls it.
pub fn cross_compiler(arch: Arch) -> String {
    format!("{}-linux-gnu-gcc", machine(arch))
}

fn machine(arch: Arch) -> &'static str {
    match arch {
        Arch::X86_64 => "x86_64",
        Arch::Arm64 => "aarch64",
    }
}

impl Rustc {
    /// Nothing is fetched.
    pub fn find(cache: &Cache, arch: Arch) -> Result<Rustc, RustError> {
        if Arch::host() == Some(arch) || has_target(&of_cargo(), arch) {
            return Ok(Rustc::Host);
        }
        match private::newest(cache, KIND, &format!("{arch}=")) {
            Some(entry) => examined(&entry, arch),
            None => Err(RustError::NotFound { arch, target: target(arch) }),
        }
    }

    /// A private copy is fetched if there is nothing else.
    pub fn provision(cache: &Cache, arch: Arch, progress: &mut dyn FnMut(&str)) -> Result<Rustc, RustError> {
        match Rustc::find(cache, arch) {
            Err(RustError::NotFound { .. }) => examined(&fetch(cache, arch, progress)?, arch),
            result => result,
        }
    }
}

/// The one that cargo takes.
fn of_cargo() -> PathBuf {
    std::env::var_os("RUSTC").filter(|rustc| !rustc.is_empty()).map_or_else(|| "rustc".into(), PathBuf::from)
}

/// rustc names the folder whether it is there or not.
fn has_target(rustc: &Path, arch: Arch) -> bool {
    let mut command = Command::new(rustc);
    command.args(["--print", "target-libdir", "--target", &target(arch)]);
    child::run(&mut command, LIMIT).is_ok_and(|output| Path::new(output.stdout.trim()).is_dir())
}

fn examined(entry: &Path, arch: Arch) -> Result<Rustc, RustError> {
    let wrapper = entry.join(WRAPPER);
    let unfit = |why: String| RustError::Unfit { arch, entry: entry.to_owned(), why };
    child::run(Command::new(&wrapper).arg("--version"), LIMIT).map_err(|error| unfit(error.to_string()))?;
    if !has_target(&wrapper, arch) {
        return Err(unfit(format!("it has no target {}", target(arch))));
    }
    Ok(Rustc::Private(wrapper))
}

fn fetch(cache: &Cache, arch: Arch, progress: &mut dyn FnMut(&str)) -> Result<PathBuf, RustError> {
    let private = |source: PrivateError| RustError::Private { arch, source };
    let registry = |error: AptError| private(error.into());
    let layout = Layout::of_host().map_err(private)?;
    let own = Apt::open(cache, layout.architecture, progress).map_err(registry)?;
    let other = Apt::open(cache, debian_architecture(arch), progress).map_err(registry)?;
    let attempt = |progress: &mut dyn FnMut(&str)| -> Result<PathBuf, RustError> {
        // Without what rustc would link with: the host has that.
        let mut packages = own.closure(SUITE, STD).map_err(registry)?;
        let std = packages.iter().find(|package| package.name == STD).expect("in its own closure").clone();
        packages.push(own.exactly(RUSTC, &std.version).map_err(registry)?);
        let others = other.closure(SUITE, STD).map_err(registry)?;
        let others: Vec<_> = others.into_iter().filter(|package| package.name == STD).collect();
        if others[0].version != std.version {
            let [rustc, std] = [std.version, others[0].version.clone()];
            return Err(RustError::Apart { arch, rustc, std });
        }
        let all = [&packages[..], &others].concat();
        let key = format!("{}={}-{}", arch.name(), std.version, private::digest(&all));
        let fill = |folder: &Path| -> Result<(), RustError> {
            progress(&format!("fetching {RUSTC} {} with its standard library for {arch}", std.version));
            private::unpack(&other, &others, folder).map_err(private)?;
            private::unpack(&own, &packages, folder).map_err(private)?;
            private::write_wrapper(folder, &layout, "usr/bin/rustc", &[], "--sysroot \"$here/usr\"")
                .map_err(private)?;
            // A copy that does not run is none.
            examined(folder, arch).map(|_| ())
        };
        cache.entry(KIND, &key, fill)
    };
    match attempt(progress) {
        // What old lists name may be gone from the registry.
        Err(
            RustError::Private {
                source: PrivateError::Apt(AptError::NotFound { .. } | AptError::Child(_)),
                ..
            }
            | RustError::Apart { .. },
        ) if !(own.is_fresh() && other.is_fresh()) => {
            own.refresh(progress).map_err(registry)?;
            other.refresh(progress).map_err(registry)?;
            attempt(progress)
        }
        result => result,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn a_private_copy_is_one_for_the_architecture_that_runs_and_has_the_target() {
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
            "of another architecture"
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
