// SPDX-License-Identifier: MIT OR Apache-2.0
//! `cargo xtask doctor`: what is there, what is missing, and the line that mends it.

use super::{exit, output};
use tramplab_host::Cache;
use tramplab_lab::{Result, doctor};

#[derive(clap::Args)]
pub struct Args {
    /// Print JSON for a bug report, with all facts that decide on this machine's branch records
    #[arg(long)]
    json: bool,
}

pub fn doctor(args: &Args) -> Result<u8> {
    let checkup = doctor::checkup(&Cache::open(true)?);
    let text = match args.json {
        true => serde_json::to_string_pretty(&checkup)? + "\n",
        false => doctor::render(&checkup.checks),
    };
    output::print(text.as_bytes())?;
    Ok(if doctor::all_required(&checkup.checks) { exit::PASS } else { exit::USAGE })
}
