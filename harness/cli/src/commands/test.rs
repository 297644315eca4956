// SPDX-License-Identifier: MIT OR Apache-2.0
//! `cargo xtask test`: every test of the repository, real guests included.

use super::{exit, progress::Progress};
use std::path::Path;
use tramplab_host::{Cache, Purpose, Qemu, rust::target};
use tramplab_kernel as kernel;
use tramplab_kernel::{Compiler, Toolchain};
use tramplab_lab::{Result, artifacts, kernels, place, setup};
use tramplab_model::{
    run::{Arch, Backend},
    selftests,
};
use xshell::{Shell, cmd};

/// The toolchains with which tests build or configure kernels.
const TOOLCHAINS: [(Compiler, Arch); 3] =
    [(Compiler::Gcc, Arch::X86_64), (Compiler::Gcc, Arch::Arm64), (Compiler::Clang, Arch::Arm64)];

/// The kernels that tests boot: those with the most mechanisms.
const TEST_KERNELS: [(Arch, &str); 2] = [(Arch::X86_64, "6.12"), (Arch::Arm64, "7.2")];

/// The QEMUs of the tests' guests, with the names of their variables.
const EMULATORS: [(&str, Arch, Purpose); 4] = [
    ("QEMU", Arch::X86_64, Purpose::Measuring),
    ("QEMU", Arch::Arm64, Purpose::Measuring),
    ("QEMU_DELIVERING", Arch::X86_64, Purpose::Delivering),
    ("QEMU_DELIVERING", Arch::Arm64, Purpose::Delivering),
];

#[derive(clap::Args)]
pub struct Args {
    /// Install what is missing and fetch QEMU, or print the install commands; then test
    #[arg(long)]
    setup: bool,
    /// Pass these words to `cargo test` after `--`
    #[arg(last = true)]
    rest: Vec<String>,
}

pub fn test(args: &Args) -> Result<u8> {
    let root = place().checkout("test")?;
    let sh = prepared(root, args.setup)?;
    let cargo = artifacts::cargo();
    let rest = &args.rest;
    let workspace =
        cmd!(sh, "{cargo} test --workspace --exclude tramplab-agent --no-fail-fast -- {rest...}")
            .run();
    // The agent's tests, with the agent's flags: nothing is built twice.
    let agent = {
        let _flags = sh.push_env(artifacts::GUEST_RUSTFLAGS.0, artifacts::GUEST_RUSTFLAGS.1);
        let (target, folder) =
            (target(Arch::host().unwrap_or(Arch::X86_64)), artifacts::GUEST_TARGET);
        let options = ["--release", "--package", "tramplab-agent", "--target", &target];
        cmd!(sh, "{cargo} test {options...} --target-dir {folder} -- {rest...}").run()
    };
    Ok(if workspace.is_ok() && agent.is_ok() { exit::PASS } else { exit::FAIL })
}

/// A shell whose environment names the programs and files that tests with guests need.
fn prepared(root: &Path, setup: bool) -> Result<Shell> {
    let cache = Cache::open(true)?;
    let progress = Progress::new();
    if setup {
        let toolchains =
            TOOLCHAINS.map(|(compiler, arch)| (Toolchain { compiler, version: None }, arch));
        // Both backends are tested; QEMU alone needs nothing that virtme-ng does not.
        let wanted = setup::Wanted {
            toolchains: toolchains.to_vec(),
            arches: Arch::ALL.to_vec(),
            emulators: EMULATORS.map(|(_, arch, purpose)| (arch, purpose)).to_vec(),
            backend: Backend::VirtmeNg,
            selftests: None,
            tests: true,
        };
        setup::setup(&cache, &wanted, &mut |step| progress.step(step))?;
        // The trees' own tests are built only for this host's architecture: others need foreign
        // libraries.
        let own = setup::Wanted {
            toolchains: vec![(
                Toolchain { compiler: Compiler::Gcc, version: None },
                Arch::host().unwrap_or(Arch::X86_64),
            )],
            arches: Vec::new(),
            emulators: Vec::new(),
            backend: Backend::Qemu,
            selftests: Some(selftests::Wanted {
                bench: true,
                tests: [selftests::SNAPSHOT_TEST.parse().expect("a name")].into(),
                ..selftests::Wanted::default()
            }),
            tests: false,
        };
        setup::setup(&cache, &own, &mut |step| progress.step(step))?;
    }
    let sh = Shell::new()?;
    sh.change_dir(root);
    let set = |what: &str, arch: Arch, path: &Path| {
        sh.set_var(format!("TRAMPLAB_{what}_{}", arch.name().to_uppercase()), path);
    };
    for (what, arch, purpose) in EMULATORS {
        set(what, arch, Qemu::find(&cache, arch, purpose)?.single_program());
    }
    for (arch, name) in TEST_KERNELS {
        let manifest = kernels::find(name, &[arch])?.remove(0);
        let image = kernel::fetch(&manifest, &cache, &mut |step| progress.step(step))?;
        set("TEST_KERNEL", arch, &image.image);
    }
    progress.step("building the plugin and the guest agents");
    let built = artifacts::build(root, &cache, &Arch::ALL, &|event| progress.show(event))?;
    sh.set_var("TRAMPLAB_PLUGIN", built.plugin);
    built.agents.iter().for_each(|(&arch, agent)| set("AGENT", arch, agent));
    Ok(sh)
}
