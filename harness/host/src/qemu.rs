// SPDX-License-Identifier: MIT OR Apache-2.0
//! Finds a QEMU whose plugins tramplab can use: one named in the environment, the system's, or a
//! private copy.
//!
//! The private copy is Debian trixie's (see `private.rs`). Its plugins cannot write to the
//! guest; where they must, the copy is that of Debian's next release.

use super::{
    cache::Cache,
    child::{self, ChildError},
    private::{self, Layout, PrivateError, Recipe, WRAPPER, Wrapper},
    program::in_path,
};
use semver::Version;
use serde::{Deserialize, Serialize};
use std::{
    env,
    ffi::OsString,
    fmt,
    fs::File,
    io::{self, Read},
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};
use tramplab_archive::sha256;
use tramplab_model::{called::called, run::Arch};

/// The plugin is built for the plugin interface of these versions. Later ones are untested.
static OLDEST: Version = Version::new(9, 2, 0);
const TOO_NEW: Version = Version::new(11, 2, 0);
/// The first version whose plugins can write to the guest.
static WRITING: Version = Version::new(10, 1, 0);
/// The first version whose plugins can skip an instruction.
static SKIPPING: Version = Version::new(11, 0, 0);

/// Why a command runs guests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Measurements. The documentation's numbers come from this QEMU.
    Measuring,
    /// An experiment: the plugin hands branch records to the guest.
    Delivering,
    /// The plugin plays the registers of a CPU's branch records.
    Emulating,
}

impl Purpose {
    /// The QEMU of a run's guests. Only cells of x86-64 take snapshots of played records.
    pub fn on(self, arch: Arch) -> Purpose {
        match self {
            Purpose::Emulating if arch != Arch::X86_64 => Purpose::Measuring,
            other => other,
        }
    }

    fn oldest(self) -> &'static Version {
        match self {
            Purpose::Measuring => &OLDEST,
            Purpose::Delivering => &WRITING,
            Purpose::Emulating => &SKIPPING,
        }
    }

    /// The Debian suite of a private copy.
    fn suite(self) -> &'static str {
        match self {
            Purpose::Measuring => private::SUITE,
            Purpose::Delivering | Purpose::Emulating => "forky",
        }
    }

    /// The cache's kind of the private copies.
    fn kind(self) -> &'static str {
        match self {
            Purpose::Measuring => "qemu",
            Purpose::Delivering | Purpose::Emulating => "qemu-writing",
        }
    }

    /// The option that makes `--setup` fetch it.
    fn option(self) -> &'static str {
        match self {
            Purpose::Measuring => "",
            Purpose::Delivering => " --experiment deliver-records",
            Purpose::Emulating => " --branches emulated",
        }
    }
}

const LIMIT: Duration = Duration::from_secs(20);

#[derive(Debug, thiserror::Error)]
pub enum QemuError {
    #[error(
        "failed to find a QEMU for {arch} guests: {why}, and the cache has no private copy \
         (--no-cache ignores it); run `{called} vm-test --setup --arch {arch}{option}`, or name \
         one in {variable}",
        called = called(),
        option = .purpose.option(),
        variable = .arch.platform().qemu.variable
    )]
    NotFound { arch: Arch, purpose: Purpose, why: String },
    #[error(
        "failed to use {program} ({variable}): {why}",
        variable = .arch.platform().qemu.variable
    )]
    Unfit { arch: Arch, program: PathBuf, why: Unfit },
    #[error("failed to use the private QEMU in {entry}: {why}")]
    PrivateUnfit { entry: PathBuf, why: Unfit },
    #[error("failed to fetch a private QEMU: {0}; {INSTALL}")]
    Private(#[from] PrivateError),
}

/// The advice for a host without the private QEMU.
pub const INSTALL: &str = "install a QEMU with TCG plugins (9.2 to 11.1), or name one in \
                           TRAMPLAB_QEMU_X86_64 and _ARM64";

/// Why a QEMU cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Unfit {
    #[error(
        "it is QEMU {found}, expected at least {needed}, whose plugins can write to the guest \
         (10.1) and skip instructions (11.0)"
    )]
    Older { found: Version, needed: &'static Version },
    #[error(
        "it is QEMU {0}, expected at least {OLDEST} and below {TOO_NEW}: its plugin interface \
         differs"
    )]
    Version(Version),
    #[error("it was built without TCG plugins (it has no option -plugin)")]
    NoPlugins,
    #[error("it uses the C library musl, and its plugin would be of glibc")]
    Musl,
    #[error("it runs no {arch} guests (it has no machine {machine})")]
    Guests { arch: Arch, machine: &'static str },
    #[error("expected QEMU, it answers `{0}`")]
    NotQemu(String),
    #[error(transparent)]
    Child(#[from] ChildError),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Named in the environment.
    Named,
    /// In `PATH`.
    System,
    /// In the cache.
    Private,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Origin::Named => "named in the environment",
            Origin::System => "the system's",
            Origin::Private => "private copy",
        })
    }
}

/// How to run QEMU. A private copy runs through its own loader, not through a script: the process
/// is QEMU itself and dies when killed. Empty where no guest runs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct QemuProgram {
    pub program: PathBuf,
    /// Come before all other arguments.
    pub arguments: Vec<OsString>,
    pub environment: Vec<(OsString, OsString)>,
}

/// A QEMU that answered with its version, its plugins and its machines.
#[derive(Clone, Debug)]
pub struct Qemu {
    pub program: QemuProgram,
    pub number: Version,
    /// The first line of `--version`.
    pub version: String,
    pub origin: Origin,
    /// The same QEMU as one program.
    wrapper: PathBuf,
}

impl Qemu {
    /// Identifies QEMU by its contents, not by its path: its version, and the checksums of its
    /// program and of a private copy's loader.
    pub fn digest(&self) -> io::Result<String> {
        let program = std::iter::once(&self.program.program);
        let files = self.program.arguments.iter().map(Path::new).filter(|file| file.is_file());
        let mut digest = self.version.clone();
        for file in program.map(PathBuf::as_path).chain(files) {
            digest.push(' ');
            digest.push_str(&sha256(file)?);
        }
        Ok(digest)
    }

    /// Finds the QEMU to use. Fetches nothing. One named in the environment serves every purpose
    /// that it can.
    pub fn find(cache: &Cache, arch: Arch, purpose: Purpose) -> Result<Qemu, QemuError> {
        if let Some(program) =
            env::var_os(arch.platform().qemu.variable).filter(|program| !program.is_empty())
        {
            let program = PathBuf::from(program);
            // Cells that need delivered records are skipped; without registers nothing is measured.
            let fits = |qemu: Qemu| match purpose {
                Purpose::Emulating => qemu.fit_for(purpose),
                Purpose::Measuring | Purpose::Delivering => Ok(qemu),
            };
            return plain(arch, program.clone(), Origin::Named)
                .and_then(fits)
                .map_err(|why| QemuError::Unfit { arch, program, why });
        }
        let name = arch.platform().qemu.program;
        let system = |program| plain(arch, program, Origin::System)?.fit_for(purpose);
        let why = match in_path(name) {
            None => format!("{name} is not in PATH"),
            Some(program) => match system(program.clone()) {
                Ok(qemu) => return Ok(qemu),
                Err(why) => format!("the system's {} cannot be used ({why})", program.display()),
            },
        };
        match recipe(arch, purpose).newest(cache) {
            Some(entry) => found(&entry, arch),
            None => Err(QemuError::NotFound { arch, purpose, why }),
        }
    }

    /// Finds the QEMU to use, or fetches a private copy.
    pub fn provision(
        cache: &Cache,
        arch: Arch,
        purpose: Purpose,
        progress: &mut dyn FnMut(&str),
    ) -> Result<Qemu, QemuError> {
        match Qemu::find(cache, arch, purpose) {
            Err(QemuError::NotFound { .. }) => {
                let check = |folder: &Path| {
                    found(folder, arch).map(drop).map_err(|error| error.to_string())
                };
                found(&recipe(arch, purpose).fetch(cache, progress, &check)?, arch)
            }
            result => result,
        }
    }

    fn fit_for(self, purpose: Purpose) -> Result<Qemu, Unfit> {
        match purpose.oldest() {
            needed if self.number < *needed => Err(Unfit::Older { found: self.number, needed }),
            _ => Ok(self),
        }
    }

    /// Why it cannot hand branch records to its guests, if it cannot.
    pub fn undeliverable(&self) -> Option<String> {
        (self.number < WRITING).then(|| {
            format!(
                "a plugin can hand branch records to a guest from QEMU {WRITING} on; this is {}",
                self.number
            )
        })
    }

    /// One path that runs this QEMU, for the environment. A script execs, so it too dies when
    /// killed.
    pub fn single_program(&self) -> &Path {
        &self.wrapper
    }

    /// Asks QEMU for its version, its plugins and its machines.
    fn examined(
        arch: Arch,
        program: QemuProgram,
        origin: Origin,
        wrapper: PathBuf,
    ) -> Result<Qemu, Unfit> {
        let ask = |arguments: &[&str]| -> Result<String, ChildError> {
            let mut command = Command::new(&program.program);
            command
                .args(&program.arguments)
                .args(arguments)
                .envs(program.environment.iter().cloned());
            Ok(child::run(&mut command, LIMIT)?.stdout)
        };
        let version = ask(&["--version"])?.lines().next().unwrap_or_default().to_owned();
        let number = parse_version(&version).ok_or_else(|| Unfit::NotQemu(version.clone()))?;
        // A private copy's suite may move on. Try its QEMU: it rejects a plugin of another
        // interface.
        if number < OLDEST || number >= TOO_NEW && origin != Origin::Private {
            return Err(Unfit::Version(number));
        }
        if !has_plugins(&ask(&["-help"])?) {
            return Err(Unfit::NoPlugins);
        }
        let machine = arch.platform().qemu.machine;
        if !ask(&["-machine", "help"])?.lines().any(|line| line.split(' ').next() == Some(machine))
        {
            return Err(Unfit::Guests { arch, machine });
        }
        Ok(Qemu { program, number, version, origin, wrapper })
    }
}

fn plain(arch: Arch, program: PathBuf, origin: Origin) -> Result<Qemu, Unfit> {
    if is_of_musl(&program) {
        return Err(Unfit::Musl);
    }
    let wrapper = program.clone();
    Qemu::examined(
        arch,
        QemuProgram { program, arguments: Vec::new(), environment: Vec::new() },
        origin,
        wrapper,
    )
}

fn found(entry: &Path, arch: Arch) -> Result<Qemu, QemuError> {
    let layout = Layout::of_host()?;
    let libraries = layout.libraries(entry);
    let name = arch.platform().qemu.program;
    let mut arguments: Vec<OsString> = vec!["--library-path".into(), libraries.clone().into()];
    arguments.extend(["--argv0".into(), name.into(), entry.join("usr/bin").join(name).into()]);
    for data in DATA {
        arguments.extend(["-L".into(), entry.join(data).into()]);
    }
    let program = QemuProgram {
        program: layout.loader(entry),
        arguments,
        environment: vec![("QEMU_MODULE_DIR".into(), libraries.join("qemu").into())],
    };
    Qemu::examined(arch, program, Origin::Private, entry.join(WRAPPER))
        .map_err(|why| QemuError::PrivateUnfit { entry: entry.to_owned(), why })
}

fn recipe(arch: Arch, purpose: Purpose) -> Recipe {
    let package = arch.platform().qemu.package;
    let data: Vec<String> = DATA.iter().map(|data| format!("-L \"$here/{data}\"")).collect();
    Recipe {
        kind: purpose.kind(),
        name: package,
        package,
        suite: purpose.suite(),
        wrapper: Some(Wrapper {
            program: format!("usr/bin/{}", arch.platform().qemu.program),
            environment: "export QEMU_MODULE_DIR=\"$lib/qemu\"\n",
            arguments: data.join(" "),
        }),
    }
}

/// Folders of firmware, in the order of QEMU's search.
const DATA: [&str; 3] = ["usr/share/qemu", "usr/share/seabios", "usr/lib/ipxe/qemu"];

/// Reads 10.0.13 from `QEMU emulator version 10.0.13 (Debian 1:10.0.13+ds-0+deb13u1)`.
fn parse_version(line: &str) -> Option<Version> {
    let version = line.strip_prefix("QEMU emulator version ")?.split_whitespace().next()?;
    Version::parse(version).ok()
}

/// The name of a program's loader is in its first page.
fn is_of_musl(program: &Path) -> bool {
    const MUSL: &[u8] = b"/ld-musl-";
    let mut start = Vec::new();
    let read = File::open(program).and_then(|file| file.take(4096).read_to_end(&mut start));
    read.is_ok() && start.windows(MUSL.len()).any(|bytes| bytes == MUSL)
}

/// A QEMU that was built without plugins does not list the option.
fn has_plugins(help: &str) -> bool {
    help.lines().any(|line| line.starts_with("-plugin "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn reads_versions_from_the_first_line() {
        for (line, expected) in [
            (
                "QEMU emulator version 10.0.13 (Debian 1:10.0.13+ds-0+deb13u1)",
                Some(Version::new(10, 0, 13)),
            ),
            (
                "QEMU emulator version 7.2.22 (Debian 1:7.2+dfsg-7+deb12u18)",
                Some(Version::new(7, 2, 22)),
            ),
            ("QEMU emulator version 11.0.91 (v11.1.0-rc1)", Some(Version::new(11, 0, 91))),
            ("QEMU emulator version 9.2.4", Some(Version::new(9, 2, 4))),
            ("qemu-img version 10.0.13", None),
            ("", None),
        ] {
            assert_eq!(parse_version(line), expected, "{line}");
        }
    }

    /// A program that answers `--version`, `-help` and `-machine help` like a QEMU.
    fn answering(version: &str, help: &str) -> QemuProgram {
        let script = format!(
            "case $1 in --version) echo '{version}';; -help) echo '{help}';; \
             -machine) echo 'q35   Standard PC';; esac"
        );
        let arguments = ["-c", &script, "qemu"].map(OsString::from).to_vec();
        QemuProgram { program: "/bin/sh".into(), arguments, environment: Vec::new() }
    }

    #[test]
    fn rejects_a_qemu_of_musl() {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("qemu");
        let script = |loader: &str| {
            private::write_script(&program, &format!("#!/bin/sh\n# {loader}\nexit 1\n")).unwrap();
            plain(Arch::X86_64, program.clone(), Origin::System).unwrap_err()
        };
        assert!(matches!(script("/lib/ld-musl-x86_64.so.1"), Unfit::Musl));
        assert!(matches!(script("/lib64/ld-linux-x86-64.so.2"), Unfit::Child(_)));
    }

    #[test]
    fn each_purpose_needs_its_version() {
        let all = [Purpose::Measuring, Purpose::Delivering, Purpose::Emulating];
        for (number, expected) in [
            ("9.2.0", [true, false, false]),
            ("10.0.13", [true, false, false]),
            ("10.1.0", [true, true, false]),
            ("11.0.0", [true, true, true]),
        ] {
            let qemu = Qemu {
                program: answering("", ""),
                number: number.parse().unwrap(),
                version: String::new(),
                origin: Origin::System,
                wrapper: PathBuf::new(),
            };
            let fits = all.map(|purpose| qemu.clone().fit_for(purpose).is_ok());
            assert_eq!(fits, expected, "{number}");
        }
    }

    #[test]
    fn accepts_only_a_qemu_in_range_with_plugins() {
        const PLUGINS: &str = "-enable-sync-profile\n\
             -plugin [file=]<file>[,<argname>=<argvalue>]\n                load a plugin\n";
        const NONE: &str = "-enable-sync-profile\n--run-with [async-teardown=on|off]\n";
        let first = |version: &str| format!("QEMU emulator version {version}");
        for (version, help, expected) in [
            (first("9.2.0"), PLUGINS, None),
            (first("11.1.3"), PLUGINS, None),
            (
                first("7.2.22"),
                PLUGINS,
                Some(
                    "it is QEMU 7.2.22, expected at least 9.2.0 and below 11.2.0: its plugin \
                     interface differs",
                ),
            ),
            (
                first("11.2.0"),
                PLUGINS,
                Some(
                    "it is QEMU 11.2.0, expected at least 9.2.0 and below 11.2.0: its plugin \
                     interface differs",
                ),
            ),
            (
                first("10.0.13"),
                NONE,
                Some("it was built without TCG plugins (it has no option -plugin)"),
            ),
            ("bochs 2.7".to_owned(), PLUGINS, Some("expected QEMU, it answers `bochs 2.7`")),
        ] {
            let result = Qemu::examined(
                Arch::X86_64,
                answering(&version, help),
                Origin::Named,
                PathBuf::new(),
            );
            assert_eq!(result.err().map(|why| why.to_string()).as_deref(), expected, "{version}");
        }
        let other = Qemu::examined(
            Arch::Arm64,
            answering(&first("10.0.13"), PLUGINS),
            Origin::Named,
            PathBuf::new(),
        );
        assert_eq!(
            other.unwrap_err().to_string(),
            "it runs no arm64 guests (it has no machine virt)"
        );
        let absent =
            plain(Arch::X86_64, PathBuf::from("/no/such/qemu"), Origin::Named).unwrap_err();
        assert!(matches!(absent, Unfit::Child(ChildError::Start { .. })), "{absent}");
    }

    #[test]
    fn takes_the_newest_private_copy_for_the_guest_and_purpose() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::at(folder.path(), true);
        for (age, kind, key) in [
            (200, "qemu", "qemu-system-x86=9.2.0-a"),
            (100, "qemu", "qemu-system-x86=10.0.13-b"),
            (1, "qemu", "qemu-system-arm=1-c"),
            (1, "qemu-writing", "qemu-system-x86=11.1.2-d"),
        ] {
            let entry =
                cache.entry(kind, key, |folder| fs::write(folder.join(WRAPPER), "")).unwrap();
            let file = fs::File::options().write(true).open(entry.join(WRAPPER)).unwrap();
            file.set_modified(std::time::SystemTime::now() - Duration::from_secs(age)).unwrap();
        }
        fs::create_dir_all(folder.path().join("qemu/qemu-system-x86=incomplete")).unwrap();
        for (purpose, kind, key) in [
            (Purpose::Measuring, "qemu", "qemu-system-x86=10.0.13-b"),
            (Purpose::Delivering, "qemu-writing", "qemu-system-x86=11.1.2-d"),
        ] {
            assert_eq!(recipe(Arch::X86_64, purpose).newest(&cache), Some(cache.path(kind, key)));
        }
    }
}
