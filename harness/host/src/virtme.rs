// SPDX-License-Identifier: MIT OR Apache-2.0
//! Finds virtme-ng and the virtiofsd it needs: the system's, or private copies. The copy of
//! virtme-ng comes from PyPI: the host's Python runs it, and Debian's package lacks the init that
//! boots fast. The copy of virtiofsd comes from Debian trixie, see `private.rs`.

use super::{
    cache::{Cache, CacheError},
    child::{self, ChildError},
    private::{PrivateError, Recipe, SUITE, WRAPPER, Wrapper, write_script},
    program::in_path,
};

use serde::{Deserialize, Serialize};
use std::{
    env, fs, io,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};
use tramplab_model::called::called;

/// The version of a private copy, which the tests run.
const PINNED: &str = "1.42";
/// It, and all that it needs, with hashes.
const REQUIREMENTS: &str = include_str!("virtme-requirements.txt");
/// Before it, the guest's init waits for the host's udev to name the ports, longer than a boot may
/// take, and may run no program at all.
const OLDEST: (u32, u32) = (1, 41);
const TOO_NEW: (u32, u32) = (2, 0);

const VNG: &str = "virtme-ng";
const VIRTIOFSD: &str = "virtiofsd";
/// Where distributions put it, outside PATH.
const VIRTIOFSD_PLACES: [&str; 4] = [
    "/usr/libexec/virtiofsd",
    "/usr/lib/virtiofsd/virtiofsd",
    "/usr/lib/virtiofsd",
    "/usr/lib/qemu/virtiofsd",
];

const LIMIT: Duration = Duration::from_secs(60);
const INSTALL_LIMIT: Duration = Duration::from_secs(10 * 60);

#[derive(Debug, thiserror::Error)]
pub enum VirtmeError {
    #[error(
        "failed to find {what}: {why}, and the cache has no private copy (--no-cache ignores it); \
         run `{} vm-test --setup --vm virtme-ng`",
        called()
    )]
    NotFound { what: &'static str, why: String },
    #[error("failed to use the private {what} in {}: {why}", .entry.display())]
    PrivateUnfit { what: &'static str, entry: PathBuf, why: Unfit },
    #[error("failed to install virtme-ng {PINNED} from PyPI (needs python3 with pip): {0}")]
    Install(#[from] ChildError),
    #[error("failed to {action} {path}: {source}")]
    Io { action: &'static str, path: PathBuf, source: io::Error },
    #[error(transparent)]
    Private(#[from] PrivateError),
    #[error(transparent)]
    Cache(#[from] CacheError),
}

/// How to run virtme-ng.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Vng {
    /// `virtme-run` is beside it.
    pub program: PathBuf,
    pub virtiofsd: PathBuf,
}

impl Vng {
    /// Runs virtme-ng with its own home: the user's defaults do not apply to our guests.
    pub fn command(&self, home: &Path) -> Command {
        let mut command = Command::new(&self.program);
        let beside = self.program.parent().map(Path::to_owned);
        let path = env::var_os("PATH").unwrap_or_default();
        let folders = [home.join("bin")].into_iter().chain(beside).chain(env::split_paths(&path));
        command.env("PATH", env::join_paths(folders).unwrap_or(path));
        // Python must still find the packages that this user installed.
        if let (None, Some(user)) = (env::var_os("PYTHONUSERBASE"), env::var_os("HOME")) {
            command.env("PYTHONUSERBASE", Path::new(&user).join(".local"));
        }
        command.env("HOME", home).env("PYTHONDONTWRITEBYTECODE", "1");
        command
    }
}

/// Why a program that was found cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Unfit {
    #[error(
        "it is virtme-ng {}.{}, expected at least {}.{} and below {}.{}",
        .0.0, .0.1, OLDEST.0, OLDEST.1, TOO_NEW.0, TOO_NEW.1
    )]
    Version((u32, u32)),
    #[error("expected {expected}, it answers `{said}`")]
    Other { expected: &'static str, said: String },
    #[error(transparent)]
    Child(#[from] ChildError),
}

/// Both programs. Each has answered with its version.
#[derive(Clone, Debug)]
pub struct VirtmeNg {
    pub vng: Vng,
    /// virtme-ng's version.
    pub version: String,
}

impl VirtmeNg {
    /// Finds both programs. Fetches nothing.
    pub fn find(cache: &Cache) -> Result<VirtmeNg, VirtmeError> {
        let virtiofsd = match system_virtiofsd() {
            Ok(program) => program,
            Err(why) => match virtiofsd_recipe().newest(cache) {
                Some(entry) => private_virtiofsd(&entry)?,
                None => return Err(VirtmeError::NotFound { what: VIRTIOFSD, why }),
            },
        };
        let (program, version) = match system_vng() {
            Ok(found) => found,
            Err(why) => match cache.get(VNG, PINNED) {
                Some(entry) => private_vng(&entry)?,
                None => return Err(VirtmeError::NotFound { what: VNG, why }),
            },
        };
        Ok(VirtmeNg { vng: Vng { program, virtiofsd }, version })
    }

    /// Finds both programs, and fetches private copies of those that are missing.
    pub fn provision(
        cache: &Cache,
        progress: &mut dyn FnMut(&str),
    ) -> Result<VirtmeNg, VirtmeError> {
        let recipe = virtiofsd_recipe();
        if system_virtiofsd().is_err() && recipe.newest(cache).is_none() {
            let check = |folder: &Path| {
                private_virtiofsd(folder).map(drop).map_err(|error| error.to_string())
            };
            recipe.fetch(cache, progress, &check)?;
        }
        if system_vng().is_err() {
            install_vng(cache, progress)?;
        }
        VirtmeNg::find(cache)
    }
}

pub fn has_system_vng() -> bool {
    system_vng().is_ok()
}

fn system_vng() -> Result<(PathBuf, String), String> {
    let program = in_path("vng").ok_or("vng is not in PATH")?;
    let version = vng_version(&program)
        .map_err(|why| format!("the system's {} cannot be used ({why})", program.display()))?;
    Ok((program, version))
}

fn vng_version(program: &Path) -> Result<String, Unfit> {
    let line = first_line(program)?;
    let other = || Unfit::Other { expected: VNG, said: line.clone() };
    let version = line.strip_prefix("virtme-ng ").ok_or_else(other)?.trim();
    let number = parse_version(version).ok_or_else(other)?;
    if number < OLDEST || number >= TOO_NEW {
        return Err(Unfit::Version(number));
    }
    Ok(version.to_owned())
}

/// The first two numbers of `1.42`, `1.41.1` or `1.42+3.gabcdef`.
fn parse_version(version: &str) -> Option<(u32, u32)> {
    let mut numbers = version.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

fn system_virtiofsd() -> Result<PathBuf, String> {
    let places = VIRTIOFSD_PLACES.map(PathBuf::from).into_iter().filter(|place| place.is_file());
    let mut why = "the system has none".to_owned();
    for program in in_path(VIRTIOFSD).into_iter().chain(places) {
        match is_virtiofsd(&program) {
            Ok(()) => return Ok(program),
            Err(unfit) => {
                why = format!("the system's {} cannot be used ({unfit})", program.display())
            }
        }
    }
    Err(why)
}

/// Accepts the virtiofsd in Rust. QEMU's old one in C needs root and prints `virtiofsd version`.
fn is_virtiofsd(program: &Path) -> Result<(), Unfit> {
    let said = first_line(program)?;
    let number = said.strip_prefix("virtiofsd ").and_then(parse_version);
    number.map(drop).ok_or(Unfit::Other { expected: VIRTIOFSD, said })
}

fn first_line(program: &Path) -> Result<String, Unfit> {
    let output = child::run(Command::new(program).arg("--version"), LIMIT)?;
    Ok(output.stdout.lines().next().unwrap_or_default().to_owned())
}

fn private_vng(entry: &Path) -> Result<(PathBuf, String), VirtmeError> {
    let program = entry.join("bin/vng");
    let version = vng_version(&program).map_err(unfit(VNG, entry))?;
    Ok((program, version))
}

fn private_virtiofsd(entry: &Path) -> Result<PathBuf, VirtmeError> {
    let program = entry.join(WRAPPER);
    is_virtiofsd(&program).map_err(unfit(VIRTIOFSD, entry))?;
    Ok(program)
}

fn unfit(what: &'static str, entry: &Path) -> impl FnOnce(Unfit) -> VirtmeError {
    move |why| VirtmeError::PrivateUnfit { what, entry: entry.to_owned(), why }
}

fn virtiofsd_recipe() -> Recipe {
    Recipe {
        kind: VIRTIOFSD,
        name: VIRTIOFSD,
        package: VIRTIOFSD,
        suite: SUITE,
        wrapper: Some(Wrapper {
            program: "usr/libexec/virtiofsd".to_owned(),
            environment: "",
            arguments: String::new(),
        }),
    }
}

/// virtme-ng's programs that run a guest, each with its module.
const ENTRY_POINTS: [(&str, &str); 2] =
    [("vng", "virtme_ng.run"), ("virtme-run", "virtme.commands.run")];

/// Installs virtme-ng into its own folder, isolated from other Python packages.
fn install_vng(cache: &Cache, progress: &mut dyn FnMut(&str)) -> Result<(), VirtmeError> {
    cache.entry(VNG, PINNED, |folder| {
        progress(&format!("installing virtme-ng {PINNED} from PyPI"));
        let io = |action, path: &Path| {
            let path = path.to_owned();
            move |source| VirtmeError::Io { action, path, source }
        };
        let mut pip = Command::new("python3");
        pip.args([
            "-m",
            "pip",
            "install",
            "--quiet",
            "--no-input",
            "--disable-pip-version-check",
            "--require-hashes",
            // A source package runs its setup.py.
            "--only-binary=:all:",
            "--target",
        ]);
        let requirements = folder.join("requirements.txt");
        fs::write(&requirements, REQUIREMENTS).map_err(io("write", &requirements))?;
        pip.arg(folder.join("python")).arg("--requirement").arg(&requirements);
        child::run(&mut pip, INSTALL_LIMIT)?;
        let python = python()?;
        let bin = folder.join("bin");
        fs::create_dir(&bin).map_err(io("make", &bin))?;
        for (name, module) in ENTRY_POINTS {
            let path = bin.join(name);
            // Like pip's script, but finds its modules beside itself: the cache renames the folder.
            let script = format!(
                "#!/bin/sh\n\
                 here=$(cd \"$(dirname \"$(readlink -f \"$0\")\")/..\" && pwd) || exit 127\n\
                 export PYTHONPATH=\"$here/python\"\n\
                 exec {} -c 'import sys; from {module} import main; sys.exit(main())' \"$@\"\n",
                shell_words::quote(&python)
            );
            write_script(&path, &script).map_err(io("write", &path))?;
        }
        private_vng(folder).map(drop)
    })?;
    Ok(())
}

/// The interpreter behind a `python3` shim: compiled packages work only with this one.
fn python() -> Result<String, ChildError> {
    let mut ask = Command::new("python3");
    let output = child::run(ask.args(["-c", "import sys; print(sys.executable)"]), LIMIT)?;
    Ok(output.stdout.trim_end().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A changed hash, or one that is missing, is an error of pip.
    #[test]
    fn installs_only_wheels_of_known_hashes() {
        assert!(REQUIREMENTS.contains(&format!("\n{VNG}=={PINNED} \\\n    --hash=sha256:")));
        let names = REQUIREMENTS.lines().filter(|line| line.contains("=="));
        let hashes = REQUIREMENTS.lines().filter(|line| line.contains("--hash=sha256:"));
        assert_eq!(names.count(), hashes.count());
    }

    /// A program that prints the line.
    fn answering(folder: &Path, line: &str) -> PathBuf {
        let path = folder.join("program");
        write_script(&path, &format!("#!/bin/sh\necho '{line}'\n")).unwrap();
        path
    }

    #[test]
    fn accepts_only_a_virtme_ng_in_range() {
        let folder = tempfile::tempdir().unwrap();
        for (line, expected) in [
            ("virtme-ng 1.42", Ok("1.42")),
            ("virtme-ng 1.41", Ok("1.41")),
            ("virtme-ng 1.42+7.g0123abc", Ok("1.42+7.g0123abc")),
            ("virtme-ng 1.40", Err("it is virtme-ng 1.40, expected at least 1.41 and below 2.0")),
            ("virtme-ng 2.0", Err("it is virtme-ng 2.0, expected at least 1.41 and below 2.0")),
            ("virtme-ng unknown", Err("expected virtme-ng, it answers `virtme-ng unknown`")),
            ("vng, the game", Err("expected virtme-ng, it answers `vng, the game`")),
            ("", Err("expected virtme-ng, it answers ``")),
        ] {
            let found = vng_version(&answering(folder.path(), line)).map_err(|why| why.to_string());
            assert_eq!(found.as_deref().map_err(String::as_str), expected, "{line}");
        }
    }

    #[test]
    fn rejects_the_virtiofsd_of_old_qemus() {
        let folder = tempfile::tempdir().unwrap();
        for (line, expected) in [
            ("virtiofsd 1.13.2", true),
            ("virtiofsd version 7.2.22 (Debian 1:7.2+dfsg-7+deb12u18)", false),
        ] {
            assert_eq!(is_virtiofsd(&answering(folder.path(), line)).is_ok(), expected, "{line}");
        }
    }
}
