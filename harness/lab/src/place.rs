// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where tramplab's own files come from: its repository, or the prefix of an installation. Both
//! have `configs/` and `kernels/` in one folder; only the repository can build.

use crate::error::{Error, Result};
use std::{
    env,
    path::{Path, PathBuf},
    sync::LazyLock,
};
use tramplab_kernel as kernel;
use tramplab_model::run::Arch;

/// The folder of shipped files below an installation's prefix, and that of programs.
pub const SHARE: &str = "share/tramplab";
pub const LIB: &str = "lib/tramplab";
pub const PLUGIN: &str = "libtramplab_plugin.so";
const SUITES: &str = "configs/suites";
const CPUS: &str = "configs/cpus";

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// The repository. cargo builds the plugin and the agents.
    Checkout(PathBuf),
    /// A prefix such as `/usr`, which has them built.
    Installed(PathBuf),
}

/// The facts from which the place follows.
struct Signs {
    /// The folder of the package that cargo runs or tests, if that is one of ours.
    package: Option<PathBuf>,
    program: Option<PathBuf>,
    /// The folder of this crate when it was compiled.
    compiled: PathBuf,
}

static PLACE: LazyLock<Place> = LazyLock::new(|| Place::decide(&Signs::read()));

/// The place of this process. `main` calls it before it removes cargo's variables.
pub fn place() -> &'static Place {
    &PLACE
}

/// The words that started this program: `cargo xtask`, a path as it was typed, or `tramplab`.
pub fn typed_name() -> String {
    const NAME: &str = "tramplab";
    let typed = env::args_os().next().and_then(|word| word.into_string().ok());
    match (Signs::read().package, typed) {
        (Some(_), _) => "cargo xtask".to_owned(),
        (None, Some(path)) if path.contains('/') => shell_words::quote(&path).into_owned(),
        (None, _) => NAME.to_owned(),
    }
}

impl Signs {
    fn read() -> Signs {
        // Another package's build may run us, too.
        let is_ours = env::var("CARGO_PKG_NAME").is_ok_and(|name| name.starts_with("tramplab"));
        let package = env::var_os("CARGO_MANIFEST_DIR").filter(|_| is_ours).map(PathBuf::from);
        Signs {
            package,
            program: env::current_exe().ok(),
            compiled: env!("CARGO_MANIFEST_DIR").into(),
        }
    }
}

impl Place {
    fn decide(signs: &Signs) -> Place {
        let root = |package: &Path| {
            let is_root = |folder: &&Path| folder.join("harness/lab/Cargo.toml").is_file();
            package.ancestors().find(is_root).map(Path::to_owned)
        };
        if let Some(root) = signs.package.as_deref().and_then(root) {
            return Place::Checkout(root);
        }
        let prefix = signs.program.as_deref().and_then(|program| program.ancestors().nth(2));
        // A program that cargo installs has its repository, and no prefix.
        match prefix {
            Some(prefix) if prefix.join(SHARE).is_dir() => Place::Installed(prefix.to_owned()),
            _ => match root(&signs.compiled) {
                Some(root) => Place::Checkout(root),
                None => Place::Installed(prefix.unwrap_or(Path::new("/usr")).to_owned()),
            },
        }
    }

    /// The folder with `configs/` and `kernels/`.
    pub fn data(&self) -> PathBuf {
        match self {
            Place::Checkout(root) => root.clone(),
            Place::Installed(prefix) => prefix.join(SHARE),
        }
    }

    /// The repository, for a command that works on its files.
    pub fn checkout(&self, command: &str) -> Result<&Path> {
        match self {
            Place::Checkout(root) => Ok(root),
            Place::Installed(_) => Err(Error::Usage(format!(
                "{command} needs tramplab's repository: run `cargo xtask {command}` in a clone of \
                 it"
            ))),
        }
    }

    pub fn is_installed(&self) -> bool {
        matches!(self, Place::Installed(_))
    }

    /// Kconfig fragments.
    pub fn fragments(&self) -> Result<PathBuf> {
        own(self.data().join("configs/kconfig"))
    }

    /// The folder of the files of toolchain roots.
    pub fn toolchains(&self) -> PathBuf {
        self.data().join("configs/toolchains")
    }

    /// The names of all toolchain roots.
    pub fn toolchain_names(&self) -> Vec<String> {
        named(&[self.toolchains()])
    }

    /// The configuration of nextest.
    pub fn nextest(&self) -> Result<PathBuf> {
        own(self.data().join("configs/nextest.toml"))
    }

    /// Where runs are kept, unless an option says otherwise.
    pub fn runs(&self) -> Result<PathBuf> {
        match self {
            Place::Checkout(root) => Ok(root.join("runs")),
            Place::Installed(_) => match xdg("XDG_STATE_HOME", ".local/state") {
                Some(folder) => Ok(folder.join("runs")),
                None => Err(Error::usage(
                    "failed to find a folder for runs: set XDG_STATE_HOME or HOME, or give --runs",
                )),
            },
        }
    }

    /// The suite of this name: the user's own, else a shipped one.
    pub fn suite(&self, name: &str) -> Result<PathBuf> {
        self.file("suite", name, "suites", SUITES)
    }

    /// The modelled CPU of this name: the user's own, else a shipped one.
    pub fn cpu(&self, name: &str) -> Result<PathBuf> {
        self.file("CPU", name, "cpus", CPUS)
    }

    fn file(&self, what: &str, name: &str, users: &str, shipped: &str) -> Result<PathBuf> {
        let folders = self.folders(users, shipped);
        let file = |folder: &PathBuf| folder.join(format!("{name}.yaml"));
        match folders.iter().map(file).find(|file| file.exists()) {
            Some(file) => Ok(file),
            None => {
                own(self.data().join(shipped))?;
                let names = named(&folders).join(", ");
                Err(Error::Usage(format!("no {what} `{name}`; there are: {names}")))
            }
        }
    }

    /// Fails if a file is missing that guests of `arch` need.
    pub fn check(&self, arch: Arch) -> Result<()> {
        own(self.data().join(SUITES))?;
        self.nextest()?;
        if let Place::Installed(prefix) = self {
            installed(prefix, PLUGIN)?;
            installed(prefix, &agent_name(arch))?;
        }
        Ok(())
    }

    /// The names of all suites.
    pub fn suites(&self) -> Vec<String> {
        named(&self.folders("suites", SUITES))
    }

    /// The names of all modelled CPUs.
    pub fn cpus(&self) -> Vec<String> {
        named(&self.folders("cpus", CPUS))
    }

    /// The names of all kernels with a manifest.
    pub fn kernels(&self) -> Vec<String> {
        named(&self.kernel_folders())
    }

    /// The folders of kernels' manifests; the first one that has a name counts. Each has `patches/`
    /// with series.
    pub fn kernel_folders(&self) -> Vec<PathBuf> {
        self.folders("kernels", "kernels")
    }

    /// The folder of the manifest `name`, or that of the shipped ones.
    pub fn kernels_with(&self, name: &str) -> PathBuf {
        with(&self.kernel_folders(), Path::new(&format!("{name}.yaml")))
    }

    /// The folder of the series `name`, or that of the shipped ones.
    pub fn series_with(&self, name: &str) -> PathBuf {
        let folders = self.folders("kernels/patches", "kernels/patches");
        with(&folders, &Path::new(name).join("series.yaml"))
    }

    /// The names of all series.
    pub fn series(&self) -> Vec<String> {
        let folders = self.folders("kernels/patches", "kernels/patches");
        folders.iter().flat_map(|folder| kernel::series::names(folder)).collect()
    }

    /// The user's folder, then the shipped one.
    fn folders(&self, own: &str, shipped: &str) -> Vec<PathBuf> {
        let own = own_folder().map(|folder| folder.join(own));
        own.into_iter().chain([self.data().join(shipped)]).collect()
    }
}

/// The folder with the user's own suites, kernels and defaults.
pub fn own_folder() -> Option<PathBuf> {
    xdg("XDG_CONFIG_HOME", ".config")
}

/// The plugin or an agent below an installation's prefix.
pub fn installed(prefix: &Path, name: &str) -> Result<PathBuf> {
    own(prefix.join(LIB).join(name))
}

/// A file of tramplab's own. The error names the one that is missing.
fn own(path: PathBuf) -> Result<PathBuf> {
    if path.exists() {
        return Ok(path);
    }
    Err(Error::Usage(format!(
        "failed to find {}, which belongs to tramplab: install its package or unpack its tarball \
         again (`cargo install` brings only the program)",
        path.display()
    )))
}

pub fn agent_name(arch: Arch) -> String {
    format!("tramplab-agent-{}", arch.name())
}

/// The first folder that has the file, else the last one.
fn with(folders: &[PathBuf], file: &Path) -> PathBuf {
    let found = folders.iter().find(|folder| folder.join(file).is_file());
    found.or(folders.last()).expect("the shipped folder is there").clone()
}

/// The names of the YAML files in these folders, each once.
fn named(folders: &[PathBuf]) -> Vec<String> {
    let mut names: Vec<String> = folders.iter().flat_map(|folder| kernel::names(folder)).collect();
    names.sort();
    names.dedup();
    names
}

/// tramplab's folder in one of the user's base folders: the variable's, else that below HOME.
fn xdg(variable: &str, below_home: &str) -> Option<PathBuf> {
    let folder = |name| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    // A relative path is to be ignored: XDG Base Directory Specification.
    let base = folder(variable).filter(|path| path.is_absolute());
    Some(base.or_else(|| Some(folder("HOME")?.join(below_home)))?.join("tramplab"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn finds_its_files_in_the_repository_or_below_the_prefix() {
        let folder = tempfile::tempdir().unwrap();
        let at = |path: &str| folder.path().join(path);
        for path in
            ["clone/harness/lab", "clone/harness/cli", "usr/share/tramplab", "usr/bin", "home/bin"]
        {
            fs::create_dir_all(at(path)).unwrap();
        }
        fs::write(at("clone/harness/lab/Cargo.toml"), "").unwrap();
        let checkout = Place::Checkout(at("clone"));
        for (package, program, compiled, expected) in [
            (Some("clone/harness/cli"), "clone/target/debug/tramplab", "gone", &checkout),
            // By hand.
            (None, "clone/target/debug/tramplab", "clone/harness/lab", &checkout),
            // cargo runs the program of a package, somewhere else.
            (Some("clone/harness/cli"), "usr/bin/tramplab", "gone", &checkout),
            // An installation does not look where it was compiled.
            (None, "usr/bin/tramplab", "clone/harness/lab", &Place::Installed(at("usr"))),
            // `cargo install`, and then without the clone.
            (None, "home/bin/tramplab", "clone/harness/lab", &checkout),
            (None, "home/bin/tramplab", "gone", &Place::Installed(at("home"))),
        ] {
            let signs = Signs {
                package: package.map(at),
                program: Some(at(program)),
                compiled: at(compiled),
            };
            assert_eq!(Place::decide(&signs), *expected, "{package:?} {program} {compiled}");
        }
    }

    #[test]
    fn names_the_file_that_an_installation_lacks() {
        let prefix = tempfile::tempdir().unwrap();
        let place = Place::Installed(prefix.path().to_owned());
        let plugin = prefix.path().join(LIB).join(PLUGIN);
        let Err(Error::Usage(text)) = installed(prefix.path(), PLUGIN) else { panic!() };
        assert!(text.contains(&plugin.display().to_string()), "{text}");
        fs::create_dir_all(plugin.parent().unwrap()).unwrap();
        fs::write(&plugin, "").unwrap();
        assert_eq!(installed(prefix.path(), PLUGIN).unwrap(), plugin);
        // `cargo install`, without its clone: the suite is not unknown, all of them are missing.
        let suites = place.data().join(SUITES);
        let Err(Error::Usage(text)) = place.suite("quick") else { panic!() };
        assert!(text.contains(&suites.display().to_string()), "{text}");
        fs::create_dir_all(suites).unwrap();
        fs::write(place.data().join("configs/nextest.toml"), "").unwrap();
        let agent = prefix.path().join(LIB).join(agent_name(Arch::Arm64));
        let Err(Error::Usage(text)) = place.check(Arch::Arm64) else { panic!() };
        assert!(text.contains(&agent.display().to_string()), "{text}");
        fs::write(agent, "").unwrap();
        place.check(Arch::Arm64).unwrap();
        assert!(matches!(place.checkout("test"), Err(Error::Usage(_))));
    }

    #[test]
    fn a_users_own_file_comes_before_a_shipped_one() {
        let folder = tempfile::tempdir().unwrap();
        let (own, shipped) = (folder.path().join("own"), folder.path().join("shipped"));
        for (folder, names) in [(&own, ["a", "b"]), (&shipped, ["b", "c"])] {
            fs::create_dir(folder).unwrap();
            for name in names {
                fs::write(folder.join(format!("{name}.yaml")), "").unwrap();
            }
        }
        let folders = [own.clone(), shipped.clone()];
        assert_eq!(named(&folders), ["a", "b", "c"]);
        for (name, expected) in [("a", &own), ("b", &own), ("c", &shipped), ("d", &shipped)] {
            assert_eq!(with(&folders, Path::new(&format!("{name}.yaml"))), *expected);
        }
    }
}
