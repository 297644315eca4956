// SPDX-License-Identifier: MIT OR Apache-2.0
//! The repository that tramplab runs from, with `kernels/`, `configs/` and all sources.

use std::{path::PathBuf, sync::LazyLock};

/// The repository's root.
pub fn repository() -> PathBuf {
    static REPOSITORY: LazyLock<PathBuf> = LazyLock::new(|| {
        // `cargo xtask` sets the variable. A binary started by hand falls back to the path of its
        // build.
        let manifest = std::env::var_os("CARGO_MANIFEST_DIR")
            .map_or_else(|| env!("CARGO_MANIFEST_DIR").into(), PathBuf::from);
        manifest.ancestors().nth(2).expect("the crate is in harness/").to_owned()
    });
    REPOSITORY.clone()
}
