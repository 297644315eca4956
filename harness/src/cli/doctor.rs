// SPDX-License-Identifier: MIT OR Apache-2.0
//! `cargo xtask doctor`: what is there, what is missing, and the line that mends it.

use super::{exit, report::print};
use anyhow::Result;
use tramplab::host::{Cache, doctor};

pub fn doctor() -> Result<u8> {
    let checks = doctor::checks(&Cache::open(true)?);
    print(doctor::render(&checks).as_bytes())?;
    Ok(if doctor::all_required(&checks) { exit::PASS } else { exit::USAGE })
}
