// SPDX-License-Identifier: MIT OR Apache-2.0
//! Resolves a toolchain such as `gcc-13` to make's variables and exact versions. Its programs are
//! the host's, or those of a [`Root`].

mod root;

pub use root::{Pinned, Root, file as root_file, raise as raise_root};

use super::{Confinement, confine::View};
use crate::{Compiler, Toolchain};
use std::{
    collections::BTreeSet,
    env,
    ffi::{OsStr, OsString},
    fs, io,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};
use tramplab_host::{
    cache::CacheError, child, config::ConfigError, debian::DebianError, packages::install_line,
    program::find_program,
};
use tramplab_model::{arch::Platform, run::Arch};

/// `--version` is instant, except for a compiler on a network disk.
const LIMIT: Duration = Duration::from_secs(60);

/// A program or header that a build needs, and the package of Debian that has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Need {
    pub name: String,
    pub package: String,
}

/// The needs of a build; pure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Needs {
    /// Variables for make, without the wrapper.
    variables: Vec<(&'static str, String)>,
    programs: Vec<Need>,
    /// The programs whose versions affect the result.
    identity: Vec<String>,
    host_compiler: String,
}

/// An installed toolchain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tools {
    /// Arguments for make: `ARCH=x86_64`, `CC=ccache gcc-13`.
    pub variables: Vec<String>,
    /// First lines of `--version`: compiler, linker, assembler, pahole, make.
    pub identity: Vec<String>,
    /// The canonical paths of all programs, for the confinement.
    pub programs: Vec<PathBuf>,
    /// The system that a build sees instead of the host's.
    pub root: Option<Root>,
    /// True if compilations go through ccache.
    pub ccache: bool,
}

/// The system whose programs build.
#[derive(Clone, Copy, Debug)]
pub enum System<'a> {
    Host,
    /// Only a confined build sees it.
    Root(&'a Root, &'a Confinement),
}

impl System<'_> {
    /// The folders of its programs, as `PATH`.
    fn path(self) -> OsString {
        match self {
            System::Host => env::var_os("PATH").unwrap_or_default(),
            System::Root(root, _) => root.programs().into(),
        }
    }

    /// The root of its files.
    pub fn folder(&self) -> &Path {
        match self {
            System::Host => Path::new("/"),
            System::Root(root, _) => &root.folder,
        }
    }

    fn root(self) -> Option<Root> {
        match self {
            System::Host => None,
            System::Root(root, _) => Some(root.clone()),
        }
    }

    /// The first line of `--version`, behind the program's name.
    fn version(self, program: &str) -> Result<String, ToolchainError> {
        let error = |reason| ToolchainError::Version { program: program.to_owned(), reason };
        let output = match self {
            System::Host => child::run(Command::new(program).arg("--version"), LIMIT),
            System::Root(root, confinement) => {
                let view = View::of_root(&root.folder);
                let launch = confinement.command(&view, Path::new("/"), program.as_ref());
                let mut launch = launch.map_err(|source| error(source.to_string()))?;
                child::run(launch.command.arg("--version"), LIMIT)
            }
        };
        let output = output.map_err(|source| error(source.to_string()))?;
        let first = output.stdout.lines().next().unwrap_or_default().trim();
        if first.is_empty() {
            return Err(error("it printed nothing".to_owned()));
        }
        // pahole prints only `v1.24`.
        Ok(format!("{program}: {first}"))
    }
}

#[derive(Debug, thiserror::Error)]
pub enum ToolchainError {
    #[error(
        "failed to find the tools to build with {toolchain}: no {}; install them:\n  {}",
        Need::names(.missing),
        Need::install_line(.missing)
    )]
    Missing { toolchain: String, missing: Vec<Need> },
    #[error("failed to learn the version of `{program}`: {reason}")]
    Version { program: String, reason: String },
    #[error(
        "failed to build with {root}/{toolchain}: {root} has no {}; {root}/gcc and {root}/clang \
         are its usual ones",
        .missing.join(", ")
    )]
    Absent { root: String, toolchain: String, missing: Vec<String> },
    #[error(
        "failed to find the toolchain root {name}: expected one of {}",
        if .known.is_empty() { "none".to_owned() } else { .known.join(", ") }
    )]
    NoRoot { name: String, known: Vec<String> },
    #[error(
        "failed to build with {root}: it has no programs for hosts of architecture {machine}; name \
         a toolchain of this host, such as gcc"
    )]
    Machine { root: String, machine: &'static str },
    #[error("failed to fetch a toolchain: {0}; a manifest with `toolchain: gcc` takes this host's")]
    Debian(#[from] DebianError),
    #[error(transparent)]
    File(#[from] ConfigError),
    #[error(transparent)]
    Cache(#[from] CacheError),
    #[error("failed to {action} {path}: {source}")]
    Io { action: &'static str, path: PathBuf, source: io::Error },
}

impl Need {
    pub fn names(needs: &[Need]) -> String {
        needs.iter().map(|need| need.name.as_str()).collect::<Vec<_>>().join(", ")
    }

    /// The command for a person.
    pub fn install_line(needs: &[Need]) -> String {
        // Each once.
        let packages: BTreeSet<_> = needs.iter().map(|need| need.package.as_str()).collect();
        install_line(&Vec::from_iter(packages))
    }
}

/// Returns the needs of a toolchain that builds for `arch` on a machine of the architecture `host`
/// (as Rust names it).
pub fn needs(toolchain: &Toolchain, arch: Arch, host: &str) -> Needs {
    let suffix =
        toolchain.version.as_ref().map(|version| format!("-{version}")).unwrap_or_default();
    let Platform { machine, triplet, tree, .. } = arch.platform();
    let native = host == *machine;
    let need = |name: String, package: String| Need { name, package };
    let own = |name: &str| need(name.to_owned(), name.to_owned());
    let mut variables = vec![("ARCH", tree.arch.to_owned())];
    let mut programs = Vec::new();
    let mut identity = Vec::new();
    let host_compiler;
    match toolchain.compiler {
        Compiler::Gcc => {
            let prefix = if native { String::new() } else { format!("{triplet}-") };
            // Debian has `gcc-aarch64-linux-gnu` and `gcc-13-aarch64-linux-gnu`. Package names
            // spell x86-64 with a hyphen.
            let target = triplet.replace('_', "-");
            let of = |package: String| if native { package } else { format!("{package}-{target}") };
            let compiler = format!("{prefix}gcc{suffix}");
            // When cross-compiling, the host's own compiler builds tools that run here.
            host_compiler = if native { compiler.clone() } else { "gcc".to_owned() };
            if !native {
                variables.push(("CROSS_COMPILE", prefix.clone()));
            }
            variables.push(("CC", compiler.clone()));
            variables.push(("HOSTCC", host_compiler.clone()));
            programs.push(need(compiler.clone(), of(format!("gcc{suffix}"))));
            let binutils =
                if native { "binutils".to_owned() } else { format!("binutils-{target}") };
            for tool in ["ld", "as", "ar", "nm", "objcopy", "objdump", "readelf", "strip"] {
                programs.push(need(format!("{prefix}{tool}"), binutils.clone()));
            }
            if !native {
                programs.push(own("gcc"));
            }
            identity.extend([compiler, format!("{prefix}ld"), format!("{prefix}as")]);
        }
        Compiler::Clang => {
            let compiler = format!("clang{suffix}");
            host_compiler = compiler.clone();
            variables
                .push(("LLVM", if suffix.is_empty() { "1".to_owned() } else { suffix.clone() }));
            variables.push(("CC", compiler.clone()));
            variables.push(("HOSTCC", compiler.clone()));
            programs.push(own(&compiler));
            programs.push(need(format!("ld.lld{suffix}"), format!("lld{suffix}")));
            for tool in ["ar", "nm", "objcopy", "objdump", "readelf", "strip"] {
                programs.push(need(format!("llvm-{tool}{suffix}"), format!("llvm{suffix}")));
            }
            // clang has its own assembler.
            identity.extend([compiler, format!("ld.lld{suffix}")]);
        }
    }
    for (program, package) in [
        ("make", "make"),
        ("flex", "flex"),
        ("bison", "bison"),
        ("bc", "bc"),
        ("perl", "perl"),
        ("gzip", "gzip"),
        ("pahole", "dwarves"),
    ] {
        programs.push(need(program.to_owned(), package.to_owned()));
    }
    identity.extend(["pahole".to_owned(), "make".to_owned()]);
    Needs { variables, programs, identity, host_compiler }
}

impl Needs {
    /// Returns make's arguments. Compilers run through `wrapper` (ccache) if there is one.
    fn arguments(&self, wrapper: Option<&str>) -> Vec<String> {
        let value = |name: &str, value: &str| match wrapper {
            Some(wrapper) if matches!(name, "CC" | "HOSTCC") => format!("{wrapper} {value}"),
            _ => value.to_owned(),
        };
        self.variables.iter().map(|(name, text)| format!("{name}={}", value(name, text))).collect()
    }
}

/// Returns the needs of a kernel build that this host lacks.
pub fn missing(toolchain: &Toolchain, arch: Arch) -> Vec<Need> {
    let path = env::var_os("PATH").unwrap_or_default();
    let needs = needs(toolchain, arch, env::consts::ARCH);
    let mut missing = needs.programs;
    missing.retain(|need| which(&need.name, &path).is_none());
    if which(&needs.host_compiler, &path).is_some() {
        missing.extend(missing_headers(&needs.host_compiler));
    }
    missing
}

/// Returns the headers that a compiler of host tools does not find. The build links objtool and
/// others to their libraries.
pub fn missing_headers(compiler: &str) -> Vec<Need> {
    let headers =
        [("stdio.h", "libc6-dev"), ("gelf.h", "libelf-dev"), ("openssl/opensslv.h", "libssl-dev")];
    let is_missing = |header: &str| {
        let mut command = Command::new(compiler);
        command.args(["-E", "-include", header, "-x", "c", "-o", "/dev/null", "/dev/null"]);
        child::run(&mut command, LIMIT).is_err()
    };
    let missing = headers.into_iter().filter(|(header, _)| is_missing(header));
    let need = |(header, package): (_, &str)| Need {
        name: format!("<{header}>"),
        package: package.to_owned(),
    };
    missing.map(need).collect()
}

/// Finds the toolchain's programs.
pub fn find(toolchain: &Toolchain, arch: Arch, system: System) -> Result<Tools, ToolchainError> {
    let needs = match system {
        System::Host => {
            let missing = missing(toolchain, arch);
            if !missing.is_empty() {
                return Err(ToolchainError::Missing { toolchain: toolchain.to_string(), missing });
            }
            needs(toolchain, arch, env::consts::ARCH)
        }
        System::Root(root, _) => find_in(root, toolchain, arch)?,
    };
    let path = system.path();
    let ccache = which("ccache", &path);
    let identity = needs.identity.iter().map(|program| system.version(program));
    let mut identity = identity.collect::<Result<Vec<_>, _>>()?;
    identity.extend(system.root().map(|root| root.identity()));
    let variables = needs.arguments(ccache.is_some().then_some("ccache"));
    let programs = needs.programs.iter().filter_map(|need| which(&need.name, &path));
    let programs = programs.chain(ccache.clone()).collect();
    Ok(Tools { variables, identity, programs, root: system.root(), ccache: ccache.is_some() })
}

/// The needs of a toolchain, all of which the root has.
fn find_in(root: &Root, toolchain: &Toolchain, arch: Arch) -> Result<Needs, ToolchainError> {
    let needs = needs(toolchain, arch, env::consts::ARCH);
    root.require(toolchain, needs.programs.iter().map(|need| need.name.as_str()))?;
    Ok(needs)
}

/// The tools that compile the BPF programs of the tree's own tests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BpfTools {
    /// `clang-19`.
    pub name: String,
    pub strip: String,
    pub version: String,
    pub programs: Vec<PathBuf>,
}

/// The newest `clang-NN` to look for.
const NEWEST_CLANG: u32 = 40;
/// The oldest clang that compiled some kernel's tests here.
const OLDEST_CLANG: u32 = 14;

/// Returns the requested clang, else the newest on the path, because trees require newer ones every
/// year.
fn bpf_clang(toolchain: &Toolchain, path: &OsStr) -> String {
    if toolchain.compiler == Compiler::Clang {
        return format!(
            "clang{}",
            toolchain.version.as_ref().map(|v| format!("-{v}")).unwrap_or_default()
        );
    }
    let versioned = (OLDEST_CLANG..=NEWEST_CLANG).rev().map(|version| format!("clang-{version}"));
    let mut found = versioned.filter(|name| which(name, path).is_some());
    found.next().unwrap_or_else(|| "clang".to_owned())
}

/// Returns what is missing on `path` to install the tree's scripts: `make install` runs it.
pub fn missing_for_scripts(path: &OsStr) -> Vec<Need> {
    let rsync = Need { name: "rsync".to_owned(), package: "rsync".to_owned() };
    Vec::from_iter(which(&rsync.name, path).is_none().then_some(rsync))
}

/// Returns the needs of `bench`, or of `test_progs` as well, that this host lacks.
pub fn missing_bpf(toolchain: &Toolchain, arch: Arch, test_progs: bool) -> Vec<Need> {
    let path = env::var_os("PATH").unwrap_or_default();
    let clang = bpf_clang(toolchain, &path);
    let suffix = clang.strip_prefix("clang").unwrap_or_default();
    let need = |name: String, package: String| Need { name, package };
    let mut programs = vec![
        need(clang.clone(), clang.clone()),
        need(format!("llvm-strip{suffix}"), format!("llvm{suffix}")),
    ];
    if test_progs {
        // test_progs links with lld and copies its files as scripts are installed.
        programs.push(need(format!("ld.lld{suffix}"), format!("lld{suffix}")));
        programs.extend(missing_for_scripts(&path));
    }
    programs.retain(|need| which(&need.name, &path).is_none());
    // The tests run in the guest, so they need libraries of its architecture.
    let native = needs(toolchain, arch, env::consts::ARCH);
    let compiler =
        native.variables.iter().find(|(name, _)| *name == "CC").map(|(_, value)| value.clone());
    let is_own = arch.platform().machine == env::consts::ARCH;
    let of = |package: &str| match is_own {
        true => package.to_owned(),
        false => format!("{package}:{}", arch.platform().debian),
    };
    if let Some(compiler) = compiler.and_then(|name| which(&name, &path)) {
        let crypto = test_progs.then_some(("openssl/opensslv.h", "-lcrypto", "libssl-dev"));
        let always = [("libelf.h", "-lelf", "libelf-dev"), ("zlib.h", "-lz", "zlib1g-dev")];
        for (header, library, package) in always.into_iter().chain(crypto) {
            let mut command = Command::new(&compiler);
            let words = ["-shared", "-include", header, "-x", "c", "-o", "/dev/null", "/dev/null"];
            command.args(words).arg(library);
            if child::run(&mut command, LIMIT).is_err() {
                programs.push(need(format!("<{header}>, {library}"), of(package)));
            }
        }
    }
    programs
}

/// Finds the tools for the tests.
pub fn find_bpf(
    toolchain: &Toolchain,
    arch: Arch,
    test_progs: bool,
    system: System,
) -> Result<BpfTools, ToolchainError> {
    // A root has them all.
    if let System::Host = system {
        let missing = missing_bpf(toolchain, arch, test_progs);
        if !missing.is_empty() {
            let toolchain = "clang and the libraries of the tree's own tests".to_owned();
            return Err(ToolchainError::Missing { toolchain, missing });
        }
    }
    let path = system.path();
    let name = bpf_clang(toolchain, &path);
    let suffix = name.strip_prefix("clang").unwrap_or_default();
    let strip = format!("llvm-strip{suffix}");
    let lld = format!("ld.lld{suffix}");
    let programs = [name.as_str(), &strip, &lld, "rsync"];
    let programs = programs.into_iter().filter_map(|name| which(name, &path)).collect();
    let version = system.version(&name)?;
    Ok(BpfTools { strip, version, programs, name })
}

/// Finds a program on the path and resolves symbolic links.
fn which(name: &str, path: &OsStr) -> Option<PathBuf> {
    let found = find_program(name, path)?;
    Some(fs::canonicalize(&found).unwrap_or(found))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;
    use tramplab_host::packages::is_listed;

    fn toolchain(compiler: Compiler, version: Option<&str>) -> Toolchain {
        Toolchain { version: version.map(str::to_owned), ..compiler.into() }
    }

    #[test]
    fn maps_toolchains_to_variables_and_packages() {
        for row in [
            "gcc of x86_64 on x86_64: ARCH=x86_64 CC=ccache gcc HOSTCC=ccache gcc | gcc binutils",
            "gcc-13 of x86_64 on x86_64: ARCH=x86_64 CC=ccache gcc-13 HOSTCC=ccache gcc-13 \
             | gcc-13 binutils",
            "gcc-13 of arm64 on x86_64: ARCH=arm64 CROSS_COMPILE=aarch64-linux-gnu- \
             CC=ccache aarch64-linux-gnu-gcc-13 HOSTCC=ccache gcc \
             | gcc-13-aarch64-linux-gnu binutils-aarch64-linux-gnu gcc",
            "gcc of arm64 on aarch64: ARCH=arm64 CC=ccache gcc HOSTCC=ccache gcc | gcc binutils",
            "gcc of x86_64 on aarch64: ARCH=x86_64 CROSS_COMPILE=x86_64-linux-gnu- \
             CC=ccache x86_64-linux-gnu-gcc HOSTCC=ccache gcc \
             | gcc-x86-64-linux-gnu binutils-x86-64-linux-gnu gcc",
            "clang of arm64 on x86_64: ARCH=arm64 LLVM=1 CC=ccache clang HOSTCC=ccache clang \
             | clang lld llvm",
            "clang-19 of x86_64 on x86_64: ARCH=x86_64 LLVM=-19 CC=ccache clang-19 \
             HOSTCC=ccache clang-19 | clang-19 lld-19 llvm-19",
        ] {
            let (subject, expected) = row.split_once(": ").unwrap();
            let (variables, packages) = expected.split_once(" | ").unwrap();
            let words: Vec<&str> = subject.split(' ').collect();
            let [compiler, "of", arch, "on", host] = words[..] else { panic!("{subject}") };
            let (toolchain, arch) = (compiler.parse().unwrap(), arch.parse().unwrap());
            let needs = needs(&toolchain, arch, host);
            assert_eq!(needs.arguments(Some("ccache")).join(" "), variables);
            assert_eq!(needs.arguments(None).join(" "), variables.replace("ccache ", ""));
            let common = " make flex bison bc perl gzip dwarves";
            let mut found: Vec<_> =
                needs.programs.iter().map(|need| need.package.as_str()).collect();
            found.dedup();
            for package in found.iter().filter(|name| !name.contains(char::is_numeric)) {
                assert!(is_listed(package), "{package}");
            }
            assert_eq!(found.join(" "), format!("{packages}{common}"));
        }
    }

    #[test]
    fn names_missing_programs_and_packages() {
        let error = find(&toolchain(Compiler::Gcc, Some("99")), Arch::X86_64, System::Host)
            .unwrap_err()
            .to_string();
        assert!(error.starts_with("failed to find the tools to build with gcc-99: no "), "{error}");
        assert!(error.contains("gcc-99") && error.contains("install them:\n  "), "{error}");
    }

    #[test]
    fn finds_only_executable_programs_on_path() {
        let folder = tempfile::tempdir().unwrap();
        let (first, second) = (folder.path().join("a"), folder.path().join("b"));
        for folder in [&first, &second] {
            fs::create_dir(folder).unwrap();
            fs::write(folder.join("cc"), "").unwrap();
        }
        let path = env::join_paths([&first, &second]).unwrap();
        assert_eq!(which("cc", &path), None);
        fs::set_permissions(second.join("cc"), fs::Permissions::from_mode(0o755)).unwrap();
        assert_eq!(which("cc", &path), Some(fs::canonicalize(second.join("cc")).unwrap()));
    }
}
