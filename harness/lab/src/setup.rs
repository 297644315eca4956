// SPDX-License-Identifier: MIT OR Apache-2.0
//! The host's prerequisites for building and running tramplab, and installing them.

use crate::{error::SetupError, place::place};
use std::{collections::BTreeSet, env, ffi::OsStr, path::Path, process::Command, time::Duration};
use tramplab_host::{
    cache::Cache,
    child, debian, packages,
    program::in_path,
    qemu::{Purpose, Qemu},
    rust::{Rustc, cross_compiler},
    virtme::{self, VirtmeNg},
};
use tramplab_kernel::{Toolchain, compile::toolchain};
use tramplab_model::{
    run::{Arch, Backend},
    tree_tests,
};

const INSTALL_LIMIT: Duration = Duration::from_secs(30 * 60);
const QUERY_LIMIT: Duration = Duration::from_secs(20);

/// The oldest clang that compiles the BPF programs, and the newest that is tried as `clang-NN`.
const CLANG_VERSIONS: std::ops::RangeInclusive<u32> = 14..=30;

/// A prerequisite.
pub struct Requirement {
    pub name: &'static str,
    /// Its purpose.
    pub why: &'static str,
    /// Debian's packages with it; [`packages`] has other distributions' names.
    pub packages: &'static [&'static str],
    pub need: Need,
    detect: Detect,
}

/// The work that needs a requirement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// Every measurement, where the guest agent is built: in the repository.
    Agent,
    /// Fetching packages of Debian.
    Debian,
    /// Building kernels from sources.
    Kernels,
    /// Building them with this host's programs.
    HostKernels,
    /// Guests by virtme-ng.
    Virtme,
    /// Guests of this architecture, where the host's is another.
    Foreign(Arch),
    /// Some of this repository's tests.
    Tests,
}

/// The planned work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prerequisites {
    /// The toolchains of kernels that are built, with the kernels' architectures.
    pub toolchains: Vec<(Toolchain, Arch)>,
    /// The guests' architectures.
    pub arches: Vec<Arch>,
    /// The QEMUs that run them.
    pub emulators: Vec<(Arch, Purpose)>,
    /// The program that starts the guests.
    pub backend: Backend,
    /// The kernel tree's own tests that are built with each toolchain.
    pub tree_tests: Option<tree_tests::WantedTests>,
    /// The programs that only tests need.
    pub tests: bool,
}

impl Prerequisites {
    fn needs(&self, requirement: &Requirement) -> bool {
        match requirement.need {
            Need::Agent => requirement.applies(),
            // Fetching fails with its own words.
            Need::Debian => false,
            Need::Kernels => !self.toolchains.is_empty(),
            Need::HostKernels => self.of_host().next().is_some(),
            Need::Virtme => self.backend == Backend::VirtmeNg && !virtme::has_system_vng(),
            Need::Foreign(arch) => requirement.applies() && self.arches.contains(&arch),
            Need::Tests => requirement.applies() && self.tests,
        }
    }

    /// The toolchains of this host. The others come with all that they need.
    fn of_host(&self) -> impl Iterator<Item = &(Toolchain, Arch)> {
        self.toolchains.iter().filter(|(toolchain, _)| toolchain.root.is_none())
    }

    /// The missing prerequisites.
    fn missing(&self) -> Vec<Missing> {
        let needed = REQUIREMENTS.iter().filter(|requirement| self.needs(requirement));
        let requirements = needed.filter_map(|requirement| {
            let why = requirement.check().err()?;
            let packages = requirement.packages.iter().map(|&package| package.to_owned()).collect();
            Some(Missing { what: format!("{}: {why}", requirement.name), packages })
        });
        let toolchains = self.of_host().filter_map(|(toolchain, arch)| {
            let what = format!("{toolchain} for {arch} kernels");
            Missing::of(&what, &toolchain::missing(toolchain, *arch))
        });
        let of_tests = self.of_host().filter_map(|(toolchain, arch)| {
            let test_progs = self.tree_tests.as_ref().filter(|wanted| wanted.bpf())?.test_progs();
            let what = format!("the tree's own tests for {arch} kernels");
            Missing::of(&what, &toolchain::missing_bpf(toolchain, *arch, test_progs))
        });
        let is_of_host = self.of_host().next().is_some();
        let path = env::var_os("PATH").unwrap_or_default();
        let scripts = is_of_host.then(|| self.missing_for_scripts(&path)).flatten();
        requirements.chain(toolchains).chain(of_tests).chain(scripts).collect()
    }

    /// A program of the tree may be a script, which only its sources tell.
    fn missing_for_scripts(&self, path: &OsStr) -> Option<Missing> {
        self.tree_tests.as_ref().filter(|wanted| !wanted.programs.is_empty())?;
        Missing::of("scripts of a kernel's tree", &toolchain::missing_for_scripts(path))
    }
}

/// A missing prerequisite.
struct Missing {
    what: String,
    packages: Vec<String>,
}

impl Missing {
    /// `None` if nothing is missing.
    fn of(what: &str, needs: &[toolchain::Need]) -> Option<Missing> {
        let packages = needs.iter().map(|need| need.package.clone()).collect();
        let what = format!("{what}: no {}", toolchain::Need::names(needs));
        (!needs.is_empty()).then_some(Missing { what, packages })
    }
}

fn list(missing: &[Missing]) -> String {
    let mut names: Vec<_> = missing.iter().map(|missing| missing.what.as_str()).collect();
    // A kernel on several CPUs.
    names.dedup();
    names.join("; ")
}

enum Detect {
    /// All of these programs.
    Programs(&'static [&'static str]),
    /// The headers that a kernel's build includes.
    Headers,
    Clang,
    /// A program that checks signatures by OpenPGP.
    Verifier,
    /// Python's installer of packages.
    Pip,
    /// The C library that the agent is linked with, which may come in a package of its own.
    StaticLibrary,
    /// With that library.
    CrossCompiler(Arch),
}

pub const REQUIREMENTS: [Requirement; 17] = [
    Requirement {
        name: "C compiler",
        why: "links Rust programs, builds libbpf for the guest agent",
        packages: &["gcc", "make"],
        need: Need::Agent,
        detect: Detect::Programs(&["cc", "gcc", "make"]),
    },
    Requirement {
        name: "static C library",
        why: "is linked into the guest agent",
        packages: &["libc6-dev"],
        need: Need::Agent,
        detect: Detect::StaticLibrary,
    },
    Requirement {
        name: "clang",
        why: "compiles the BPF programs",
        packages: &["clang"],
        need: Need::Agent,
        detect: Detect::Clang,
    },
    Requirement {
        name: "autotools",
        why: "configure the libelf in the guest agent",
        packages: &["autoconf", "automake", "autopoint", "gettext"],
        need: Need::Agent,
        detect: Detect::Programs(&["autoreconf", "aclocal", "autopoint", "msgfmt"]),
    },
    Requirement {
        name: "generators",
        why: "build the libelf in the guest agent",
        packages: &["flex", "bison", "gawk", "pkg-config"],
        need: Need::Agent,
        detect: Detect::Programs(&["flex", "bison", "gawk", "pkg-config"]),
    },
    Requirement {
        name: "signatures",
        why: "checks the signatures of Debian's kernels and QEMU",
        packages: &["gpgv"],
        need: Need::Debian,
        detect: Detect::Verifier,
    },
    Requirement {
        name: "sources",
        why: "unpack the sources of kernels",
        packages: &["git", "xz-utils", "zstd", "tar"],
        need: Need::Kernels,
        detect: Detect::Programs(&["git", "xz", "zstd", "tar"]),
    },
    Requirement {
        name: "kernel build",
        why: "builds kernels with this host's compiler; pahole makes their BTF",
        packages: &["bc", "flex", "bison", "dwarves"],
        need: Need::HostKernels,
        detect: Detect::Programs(&["bc", "flex", "bison", "pahole"]),
    },
    Requirement {
        name: "headers",
        why: "objtool and the kernel's signing tools are built with them",
        packages: &["libc6-dev", "libelf-dev", "libssl-dev"],
        need: Need::HostKernels,
        detect: Detect::Headers,
    },
    Requirement {
        name: "confinement",
        why: "confines the build of a stranger's series",
        packages: &["bubblewrap", "util-linux"],
        need: Need::Kernels,
        detect: Detect::Programs(&["bwrap", "prlimit", "setpriv"]),
    },
    Requirement {
        name: "Python and pip",
        why: "fetch virtme-ng and run it, for `--vm virtme-ng`",
        packages: &["python3", "python3-pip"],
        need: Need::Virtme,
        detect: Detect::Pip,
    },
    Requirement {
        name: "arm64 compiler",
        why: "links the guest agent for arm64, and builds arm64 kernels",
        packages: &["gcc-aarch64-linux-gnu", "libc6-dev-arm64-cross"],
        need: Need::Foreign(Arch::Arm64),
        detect: Detect::CrossCompiler(Arch::Arm64),
    },
    Requirement {
        name: "x86-64 compiler",
        why: "links the guest agent for x86-64, and builds x86-64 kernels",
        packages: &["gcc-x86-64-linux-gnu", "libc6-dev-amd64-cross"],
        need: Need::Foreign(Arch::X86_64),
        detect: Detect::CrossCompiler(Arch::X86_64),
    },
    Requirement {
        name: "browser",
        why: "opens report.html in tests",
        packages: &["chromium", "chromium-driver"],
        need: Need::Tests,
        // Starts the browser of its own version; Debian's depends on it.
        detect: Detect::Programs(&["chromedriver"]),
    },
    Requirement {
        name: "Slurm",
        why: "runs shards on several nodes in tests",
        packages: &["slurmctld", "slurmd", "slurm-client", "munge"],
        need: Need::Tests,
        detect: Detect::Programs(&["slurmctld", "slurmd", "sbatch", "munged"]),
    },
    Requirement {
        name: "faketime",
        why: "moves the wall clock of runs in tests",
        packages: &["faketime"],
        need: Need::Tests,
        detect: Detect::Programs(&["faketime"]),
    },
    Requirement {
        name: "valgrind",
        why: "counts cache misses in tests",
        packages: &["valgrind"],
        need: Need::Tests,
        detect: Detect::Programs(&["valgrind"]),
    },
];

impl Requirement {
    /// Every measurement needs it.
    pub fn is_of_all(&self) -> bool {
        matches!(self.need, Need::Agent)
    }

    /// False for an installed tramplab, if only a repository needs it, for a cross compiler to the
    /// host's own architecture, and where apt has no such package.
    pub fn applies(&self) -> bool {
        let has_sources = !place().is_installed();
        match self.need {
            Need::Agent => has_sources,
            Need::Foreign(arch) => has_sources && Arch::host() != Some(arch),
            // Ubuntu's chromium is a snap, which cannot read the files of a test.
            Need::Tests if self.packages.contains(&"chromium") => {
                has_sources && (in_path("chromedriver").is_some() || !is_ubuntu())
            }
            Need::Tests => has_sources,
            Need::Debian | Need::Kernels | Need::HostKernels | Need::Virtme => true,
        }
    }

    /// The finding, or the lack.
    pub fn check(&self) -> Result<String, String> {
        match self.detect {
            Detect::Programs(programs) => {
                let missing: Vec<_> =
                    programs.iter().copied().filter(|name| in_path(name).is_none()).collect();
                if missing.is_empty() {
                    Ok(programs.join(", "))
                } else {
                    Err(format!("no {}", missing.join(", ")))
                }
            }
            Detect::Headers => match &toolchain::missing_headers("cc")[..] {
                [] => Ok("of libc, libelf and openssl".to_owned()),
                missing => Err(format!("no {}", toolchain::Need::names(missing))),
            },
            Detect::Clang => clang(),
            Detect::Verifier => debian::verifier().map_err(|_| "no sqv, no gpgv".to_owned()),
            Detect::Pip => {
                let output = child::run(
                    Command::new("python3").args(["-m", "pip", "--version"]),
                    QUERY_LIMIT,
                );
                let output = output.map_err(|_| "no python3 with pip".to_owned())?;
                Ok(output.stdout.lines().next().unwrap_or_default().to_owned())
            }
            Detect::StaticLibrary => compiler_with_libc("cc"),
            Detect::CrossCompiler(arch) => compiler_with_libc(&cross_compiler(arch)),
        }
    }

    /// The line that installs it.
    pub fn mend(&self) -> String {
        packages::install_line(self.packages)
    }
}

/// Installs missing packages, or returns the install command; fetches QEMU and Rust if the host's
/// do not suffice.
pub fn setup(
    cache: &Cache,
    wanted: &Prerequisites,
    progress: &mut dyn FnMut(&str),
) -> Result<(), SetupError> {
    let missing = wanted.missing();
    if !missing.is_empty() {
        install(&missing, progress)?;
        let still = wanted.missing();
        if !still.is_empty() {
            return Err(SetupError::StillMissing { missing: list(&still) });
        }
    }
    for &(arch, purpose) in &wanted.emulators {
        Qemu::provision(cache, arch, purpose, progress)?;
    }
    if !place().is_installed() {
        for &arch in &wanted.arches {
            Rustc::provision(cache, arch, progress)?;
        }
    }
    if wanted.backend == Backend::VirtmeNg {
        VirtmeNg::provision(cache, progress)?;
    }
    Ok(())
}

fn install(missing: &[Missing], progress: &mut dyn FnMut(&str)) -> Result<(), SetupError> {
    // Each once: several things need the same.
    let packages: BTreeSet<&str> =
        missing.iter().flat_map(|missing| &missing.packages).map(String::as_str).collect();
    let packages: Vec<&str> = packages.into_iter().collect();
    let prefix: &[&str] = if !packages::is_apt() {
        return Err(by_hand(missing, &packages));
    } else if nix::unistd::geteuid().is_root() {
        &[]
    } else if may_sudo() {
        // `-n`: a run must not wait for a password.
        &["sudo", "-n"]
    } else {
        return Err(by_hand(missing, &packages));
    };
    progress(&format!("installing {}", packages.join(" ")));
    // Continue if the lists of a third party cannot be fetched.
    let update = child::run(&mut apt_get(prefix, &["update"]), INSTALL_LIMIT);
    let mut arguments = vec!["install", "--yes", "--no-install-recommends"];
    arguments.extend(&packages);
    if let Err(error) = child::run(&mut apt_get(prefix, &arguments), INSTALL_LIMIT) {
        if let Err(update) = update {
            progress(&format!("apt's lists could not be fetched: {update}"));
        }
        return Err(error.into());
    }
    Ok(())
}

fn by_hand(missing: &[Missing], packages: &[&str]) -> SetupError {
    SetupError::ByHand { missing: list(missing), line: packages::install_line(packages) }
}

fn apt_get(prefix: &[&str], arguments: &[&str]) -> Command {
    let words: Vec<&str> = prefix
        .iter()
        .copied()
        .chain([
            "env",
            "DEBIAN_FRONTEND=noninteractive",
            "apt-get",
            "--quiet=2",
            "-o",
            "DPkg::Lock::Timeout=300",
        ])
        .chain(arguments.iter().copied())
        .collect();
    let mut command = Command::new(words[0]);
    command.args(&words[1..]);
    command
}

fn may_sudo() -> bool {
    in_path("sudo").is_some()
        && child::run(Command::new("sudo").args(["-n", "true"]), QUERY_LIMIT).is_ok()
}

fn compiler_with_libc(compiler: &str) -> Result<String, String> {
    if in_path(compiler).is_none() {
        return Err(format!("no {compiler}"));
    }
    // A file that it does not find it names as it was asked.
    let mut command = Command::new(compiler);
    command.arg("-print-file-name=libc.a");
    let found = child::run(&mut command, QUERY_LIMIT).map_err(|error| error.to_string())?.stdout;
    match Path::new(found.trim()).is_file() {
        true => Ok(compiler.to_owned()),
        false => Err(format!("{compiler} has no C library to link with")),
    }
}

fn is_ubuntu() -> bool {
    let release = std::fs::read_to_string("/etc/os-release").unwrap_or_default();
    release.lines().any(|line| line == "ID=ubuntu")
}

/// The first clang that is new enough and compiles for BPF: `CLANG`, `clang`, `clang-NN`, newest
/// first.
fn clang() -> Result<String, String> {
    if let Some(named) = env::var("CLANG").ok().filter(|name| !name.is_empty()) {
        return clang_fits(&named).map_err(|why| format!("{why} (CLANG)"));
    }
    let numbered = CLANG_VERSIONS.rev().map(|version| format!("clang-{version}"));
    let mut refused = None;
    for name in
        std::iter::once("clang".to_owned()).chain(numbered).filter(|name| in_path(name).is_some())
    {
        match clang_fits(&name) {
            Ok(detail) => return Ok(detail),
            Err(why) => refused = refused.or(Some(why)),
        }
    }
    Err(refused.unwrap_or_else(|| "no clang".to_owned()))
}

fn clang_fits(name: &str) -> Result<String, String> {
    let ask = |argument| {
        child::run(Command::new(name).arg(argument), QUERY_LIMIT)
            .map(|output| output.stdout)
            .map_err(|error| error.to_string())
    };
    let version = ask("--version")?;
    let line = version.lines().next().unwrap_or_default();
    let oldest = CLANG_VERSIONS.start();
    match clang_version(&version) {
        None => return Err(format!("{name} does not answer like clang: `{line}`")),
        Some(major) if major < *oldest => {
            return Err(format!("{name} is {major}, expected {oldest} or newer"));
        }
        Some(_) => {}
    }
    if !targets_bpf(&ask("--print-targets")?) {
        return Err(format!("{name} does not compile for BPF (--print-targets lists no bpf)"));
    }
    Ok(format!("{name}: {line}"))
}

/// 14 for `Debian clang version 14.0.6`.
fn clang_version(text: &str) -> Option<u32> {
    let (_, rest) = text.split_once("clang version ")?;
    rest.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

fn targets_bpf(text: &str) -> bool {
    text.lines().any(|line| line.split_whitespace().next() == Some("bpf"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clang_answers_are_read() {
        for (text, expected) in [
            ("Debian clang version 14.0.6\nTarget: x86_64-pc-linux-gnu\n", Some(14)),
            ("Ubuntu clang version 18.1.3 (1ubuntu1)\n", Some(18)),
            ("clang version 21.1.0 (https://github.com/llvm/llvm-project.git)\n", Some(21)),
            ("gcc (Debian 12.2.0-14+deb12u1) 12.2.0\n", None),
            ("", None),
        ] {
            assert_eq!(clang_version(text), expected, "{text}");
        }
        let with = "  Registered Targets:\n    bpf        - BPF (host endian)\n    bpfeb      - \
                    BPF (big endian)\n";
        let without = "  Registered Targets:\n    x86-64     - 64-bit X86: EM64T and AMD64\n";
        assert!(targets_bpf(with) && !targets_bpf(without));
    }

    /// A compiler of a version that never was: what is to be built decides what is looked for.
    #[test]
    fn a_manifests_toolchain_is_asked_for_by_its_own_packages() {
        let of = |toolchains: &[(&str, Arch)]| {
            let toolchains =
                toolchains.iter().map(|(name, arch)| (name.parse().unwrap(), *arch)).collect();
            let missing = Prerequisites {
                toolchains,
                arches: Vec::new(),
                emulators: Vec::new(),
                backend: Backend::Qemu,
                tree_tests: None,
                tests: false,
            }
            .missing();
            let packages: BTreeSet<_> =
                missing.iter().flat_map(|missing| missing.packages.clone()).collect();
            (list(&missing), packages)
        };
        let (text, packages) = of(&[("clang-999", Arch::Arm64), ("gcc-99", Arch::Arm64)]);
        assert!(
            text.contains("clang-999 for arm64 kernels: no clang-999, ld.lld-999, llvm-ar-999"),
            "{text}"
        );
        let compiler =
            if Arch::host() == Some(Arch::Arm64) { "gcc-99" } else { "gcc-99-aarch64-linux-gnu" };
        for package in ["clang-999", "lld-999", "llvm-999", compiler] {
            assert!(packages.contains(package), "{package}: {packages:?}");
        }
        let (text, _) = of(&[]);
        assert!(!text.contains("kernel"), "{text}");
    }

    #[test]
    fn scripts_of_a_tree_need_what_installs_them() {
        let packages = |programs: &[&str]| {
            let programs = programs.iter().map(|name| name.parse().unwrap()).collect();
            let wanted = Prerequisites {
                toolchains: Vec::new(),
                arches: Vec::new(),
                emulators: Vec::new(),
                backend: Backend::Qemu,
                tree_tests: Some(tree_tests::WantedTests { programs, ..Default::default() }),
                tests: false,
            };
            // Nothing is installed there.
            wanted.missing_for_scripts(OsStr::new("/nowhere")).map(|missing| missing.packages)
        };
        assert_eq!(packages(&["ftrace/ftracetest-ktap"]), Some(vec!["rsync".to_owned()]));
        assert_eq!(packages(&[]), None);
    }

    #[test]
    fn what_is_missing_is_named_with_the_packages_that_have_it() {
        let requirement = Requirement {
            name: "tool",
            why: "a test",
            packages: &["git", "make"],
            need: Need::Agent,
            detect: Detect::Programs(&["sh", "tramplab-no-such-tool"]),
        };
        assert_eq!(requirement.check(), Err("no tramplab-no-such-tool".to_owned()));
        assert!(requirement.mend().ends_with(" git make"), "{}", requirement.mend());
    }

    /// A row for each package, so that every distribution's line has it or says that it has not.
    #[test]
    fn every_required_package_is_listed() {
        let required = REQUIREMENTS.iter().flat_map(|requirement| requirement.packages);
        for package in required.chain(&["b4", "rsync", "zlib1g-dev"]) {
            assert!(packages::is_listed(package), "{package}");
        }
    }
}
