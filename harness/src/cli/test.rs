// SPDX-License-Identifier: MIT OR Apache-2.0
//! `cargo xtask test`: every test of the repository, those with real guests included.

use super::{artifacts, exit, progress::Progress, repository};
use anyhow::Result;
use tramplab::{
    host::{self, Cache, Qemu},
    kernel,
    run::Arch,
};
use xshell::{Shell, cmd};

/// The kernel that tests with a guest boot.
const TEST_KERNEL: &str = "6.12";

#[derive(clap::Args)]
pub struct Args {
    /// Install or name what is missing, fetch QEMU, then test
    #[arg(long)]
    setup: bool,
    /// Handed to `cargo test` after `--`
    #[arg(last = true)]
    rest: Vec<String>,
}

pub fn test(args: &Args) -> Result<u8> {
    let cache = Cache::open(true)?;
    let progress = Progress::steps();
    if args.setup {
        host::setup(&cache, true, &mut |step| progress.step(step))?;
    }
    let qemu = Qemu::find(&cache, Arch::X86_64)?;
    let manifest = kernel::find(TEST_KERNEL, &repository().join("kernels"))?;
    let image = kernel::fetch(&manifest, &cache, &mut |step| progress.step(step))?;
    progress.step("building the plugin and the guest agent");
    let built = artifacts::build()?;
    drop(progress);

    let sh = Shell::new()?;
    sh.change_dir(repository());
    sh.set_var("TRAMPLAB_QEMU", qemu.single_program());
    sh.set_var("TRAMPLAB_AGENT", built.agent);
    sh.set_var("TRAMPLAB_PLUGIN", built.plugin);
    sh.set_var("TRAMPLAB_TEST_KERNEL", image.image);
    let cargo = artifacts::cargo();
    let rest = &args.rest;
    let workspace =
        cmd!(sh, "{cargo} test --workspace --exclude tramplab-agent --no-fail-fast -- {rest...}").run();
    // The agent's tests, with the agent's flags: nothing is built twice.
    let agent = {
        let _flags = sh.push_env("RUSTFLAGS", artifacts::GUEST_RUSTFLAGS);
        let (target, folder) = (artifacts::guest_target(), artifacts::GUEST_TARGET);
        cmd!(sh, "{cargo} test --release --package tramplab-agent --target {target} --target-dir {folder} -- {rest...}").run()
    };
    Ok(if workspace.is_ok() && agent.is_ok() { exit::PASS } else { exit::FAIL })
}
