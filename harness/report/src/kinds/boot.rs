// SPDX-License-Identifier: MIT OR Apache-2.0
//! `boot`: how long the kernel took to boot.

use super::Report;
use tramplab_model::run::Cell;

pub struct Boot;

impl Report for Boot {
    fn line(&self, cell: &Cell) -> String {
        cell.boot_ms.map_or_else(String::new, |ms| format!("boots in {:.1} s", ms as f64 / 1e3))
    }
}
