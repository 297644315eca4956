// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a guest needs from this repository, built by cargo: the plugin and the static agent.

use super::repository;
use anyhow::{Context, Result};
use std::{env::consts::ARCH, path::PathBuf};
use xshell::{Shell, cmd};

pub struct Artifacts {
    pub plugin: PathBuf,
    pub agent: PathBuf,
}

/// Where the agent is built: its own folder, since its flags differ from everything else's.
pub const GUEST_TARGET: &str = "target/guest";
/// `/init` has no loader and no libraries beside it.
pub const GUEST_RUSTFLAGS: &str = "-C target-feature=+crt-static";

pub fn build() -> Result<Artifacts> {
    let sh = Shell::new()?;
    let root = repository();
    sh.change_dir(&root);
    let cargo = cargo();
    cmd!(sh, "{cargo} build --quiet --release --package tramplab-plugin")
        .quiet()
        .run()
        .context("failed to build the TCG plugin")?;
    let target = guest_target();
    {
        let _flags = sh.push_env("RUSTFLAGS", GUEST_RUSTFLAGS);
        cmd!(sh, "{cargo} build --quiet --release --package tramplab-agent --target {target} --target-dir {GUEST_TARGET}")
            .quiet()
            .run()
            .context("failed to build the guest agent; `cargo xtask doctor` says what it needs")?;
    }
    Ok(Artifacts {
        plugin: root.join("target/release/libtramplab_plugin.so"),
        agent: root.join(GUEST_TARGET).join(target).join("release/tramplab-agent"),
    })
}

/// Named even where it is the host's own, so that the flags stay away from build scripts.
pub fn guest_target() -> String {
    format!("{ARCH}-unknown-linux-gnu")
}

/// The cargo that runs us, or the one in the path.
pub fn cargo() -> String {
    std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned())
}
