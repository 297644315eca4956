// SPDX-License-Identifier: MIT OR Apache-2.0
//! The program as a package installs it: below a prefix, without repository and cargo.

use crate::command::{repository, said, stderr};
use std::{
    env, fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::{Command, Output},
};
use tempfile::TempDir;
use tramplab_host::{Cache, qemu, runs::RunDir};
use tramplab_kernel::OWN_KERNEL;
use tramplab_lab::place::{LIB, PLUGIN, SHARE, agent_name};
use tramplab_model::run::{Arch, Outcome};

/// A suite of the user's own, of one cell.
const SUITE: &str = "name: mine\ndescription: d\nkernels: [\"6.12\"]\ntests:\n  \
                     - lbr_waste: { mechanisms: [fentry] }\n";

/// The program below a prefix.
pub struct Installation {
    folder: TempDir,
}

impl Installation {
    pub fn new() -> Installation {
        let installation = Installation { folder: tempfile::tempdir().unwrap() };
        let prefix = installation.prefix();
        let lib = prefix.join(LIB);
        for folder in [prefix.join("bin"), lib.clone(), prefix.join(SHARE)] {
            fs::create_dir_all(folder).unwrap();
        }
        fs::copy(env!("CARGO_BIN_EXE_tramplab"), prefix.join("bin/tramplab")).unwrap();
        fs::copy(variable("TRAMPLAB_PLUGIN"), lib.join(PLUGIN)).unwrap();
        fs::copy(variable("TRAMPLAB_AGENT_X86_64"), lib.join(agent_name(Arch::X86_64))).unwrap();
        for shipped in ["configs", "kernels"] {
            let copied = Command::new("cp")
                .arg("-r")
                .args([repository().join(shipped), prefix.join(SHARE)])
                .status();
            assert!(copied.unwrap().success());
        }
        let suites = installation.at("config/tramplab/suites");
        fs::create_dir_all(&suites).unwrap();
        fs::write(suites.join("mine.yaml"), SUITE).unwrap();
        fs::create_dir(installation.at("elsewhere")).unwrap();
        installation
    }

    pub fn at(&self, path: &str) -> PathBuf {
        self.folder.path().join(path)
    }

    fn prefix(&self) -> PathBuf {
        self.at("usr")
    }

    pub fn program(&self) -> PathBuf {
        self.prefix().join("bin/tramplab")
    }

    /// Runs a program where there is neither this repository nor cargo.
    fn run(&self, program: impl AsRef<Path>, words: &[&str]) -> Output {
        self.command(program, words).output().unwrap()
    }

    fn command(&self, program: impl AsRef<Path>, words: &[&str]) -> Command {
        let hidden = repository();
        let mut command = Command::new("/usr/bin/bwrap");
        command
            .args(["--dev-bind", "/", "/", "--die-with-parent", "--tmpfs"])
            .arg(hidden)
            .arg("--chdir")
            .arg(self.at("elsewhere"))
            .arg(program.as_ref())
            .args(words)
            .env_clear()
            .env("PATH", "/usr/bin:/bin")
            .env("HOME", self.at("home"))
            .env("XDG_CONFIG_HOME", self.at("config"))
            .env("XDG_STATE_HOME", self.at("state"))
            .env("TRAMPLAB_CACHE", Cache::located(true).unwrap().root())
            .env("TRAMPLAB_QEMU_X86_64", variable("TRAMPLAB_QEMU_X86_64"));
        command
    }

    fn tramplab(&self, words: &[&str]) -> Output {
        self.run(self.program(), words)
    }
}

fn variable(name: &str) -> String {
    env::var(name).unwrap_or_else(|_| panic!("{name} is not set: run `cargo xtask test`"))
}

#[test]
fn installed_program_measures_without_repository_and_cargo() {
    let installation = Installation::new();
    let kernel = variable("TRAMPLAB_TEST_KERNEL_X86_64");
    let output =
        installation.tramplab(&["vm-test", "--suite", "mine", "--kernel", &kernel, "fentry"]);
    assert!(output.status.success(), "{}", said(&output));
    let runs = installation.at("state/tramplab/runs");
    let run = RunDir::load(&runs.join("latest")).unwrap();
    let [cell] = &run.cells[..] else { panic!("{:?}", run.cells) };
    assert!(matches!(cell.outcome, Outcome::Pass), "{:?}", cell.outcome);
    let own = installation.at("config/tramplab/suites/mine.yaml");
    assert_eq!(Path::new(&run.suite.file), own);
    // A run has a name, from any folder.
    let output = installation.tramplab(&["report", "latest"]);
    assert!(output.status.success() && said(&output).contains("1 pass"), "{}", said(&output));

    // The shell asks the program: suites of the user, and cells of the run.
    let completed = |words: &str, count: usize| {
        let program = installation.program();
        let script = format!(
            "PATH=$PATH:{}; source <(TRAMPLAB_COMPLETE=bash tramplab); COMP_WORDS=(tramplab \
             {words}); COMP_CWORD={count}; COMP_TYPE=9; _clap_complete_tramplab tramplab \
             \"${{COMP_WORDS[COMP_CWORD]}}\"; printf '%s\\n' \"${{COMPREPLY[@]}}\"",
            program.parent().unwrap().display()
        );
        let output = installation.run("/bin/bash", &["-c", &script]);
        String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(completed("vm-test --suite mi", 3), ["mine"]);
    assert_eq!(completed("vm-test lbr", 2), ["lbr_waste/fentry"]);
    assert_eq!(completed("report late", 2), ["latest"]);

    // The newest run may be in another folder.
    let into = installation.at("merged").display().to_string();
    let output = installation.tramplab(&["merge", "latest", "--into", &into]);
    assert!(output.status.success(), "{}", said(&output));
    fs::remove_file(runs.join("latest")).unwrap();
    let output = installation.tramplab(&["report", "latest"]);
    assert!(output.status.success() && said(&output).contains("1 pass"), "{}", said(&output));
}

#[test]
fn installed_program_names_what_it_lacks() {
    let installation = Installation::new();
    let kernel = variable("TRAMPLAB_TEST_KERNEL_X86_64");
    let lib = installation.prefix().join(LIB);
    for (file, words) in [
        (agent_name(Arch::X86_64), ["vm-test", "--kernel", &kernel]),
        (PLUGIN.to_owned(), ["vm-test", "--kernel", &kernel]),
    ] {
        let file = lib.join(file);
        fs::remove_file(&file).unwrap();
        let output = installation.tramplab(&words);
        assert_eq!(output.status.code(), Some(2), "{}", said(&output));
        assert!(stderr(&output).contains(file.to_str().unwrap()), "{}", said(&output));
    }
    // Its suites are those of the prefix; a command of the repository says where it runs.
    let output = installation.tramplab(&["vm-test", "--suite", "absent"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("mine, published"), "{}", said(&output));
    let output = installation.tramplab(&["test"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("`cargo xtask test`"), "{}", said(&output));
    let help = said(&installation.tramplab(&["--help"]));
    assert!(!help.contains("cargo xtask") && !help.contains("\n  test "), "{help}");
    assert!(help.contains(&format!("Usage: {}", installation.program().display())), "{help}");
}

/// A system with other packages than Debian's, which has nothing but what the test's QEMU needs.
#[test]
fn machine_without_apt_measures_its_own_kernel() {
    let installation = Installation::new();
    let kernel = variable("TRAMPLAB_TEST_KERNEL_X86_64");
    let bin = installation.at("bin");
    fs::create_dir(&bin).unwrap();
    for name in ["readlink", "dirname"] {
        symlink(Path::new("/usr/bin").join(name), bin.join(name)).unwrap();
    }
    let tramplab = |words: &[&str]| {
        let mut command = installation.command(installation.program(), words);
        command.env("TRAMPLAB_CACHE", installation.at("cache")).env_remove("TRAMPLAB_QEMU_X86_64");
        command.env("PATH", &bin).output().unwrap()
    };
    let run = |words: &[&str]| {
        tramplab(&[&["vm-test", "--suite", "mine", "--jobs", "1"], words].concat())
    };
    for setup in [&[][..], &["--setup"]] {
        let output = run(&[setup, &["--kernel", &kernel]].concat());
        assert_eq!(output.status.code(), Some(2), "{}", said(&output));
        assert!(stderr(&output).contains(qemu::INSTALL), "{}", said(&output));
    }
    // The distribution's QEMU is new enough.
    symlink(variable("TRAMPLAB_QEMU_X86_64"), bin.join("qemu-system-x86_64")).unwrap();
    // Its name is of no pin, so signatures must be checked.
    let output = run(&["--setup", "--kernel", "newest"]);
    assert_eq!(output.status.code(), Some(2), "{}", said(&output));
    assert!(stderr(&output).contains(OWN_KERNEL), "{}", said(&output));
    let output = run(&["--setup", "--kernel", &kernel]);
    assert!(output.status.success(), "{}", said(&output));
    let checks = said(&tramplab(&["doctor"]));
    assert!(checks.contains("(the system's)\nok        its TCG plugins"), "{checks}");
}
