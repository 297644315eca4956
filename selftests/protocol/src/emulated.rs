// SPDX-License-Identifier: MIT OR Apache-2.0
//! The file with the registers of emulated branch records.

use std::path::{Path, PathBuf};

/// The plugin keeps the registers in it while QEMU runs. A snapshot of the guest has a copy.
pub fn registers(dir: &Path) -> PathBuf {
    dir.join("lbr-registers")
}
