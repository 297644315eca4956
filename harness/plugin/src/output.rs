// SPDX-License-Identifier: GPL-2.0-or-later
//! The trace file: written beside and renamed, so that a reader sees all of it or nothing.

use std::{fs, io, path::Path};
use tramplab_protocol::trace::{self, Trace};

pub fn write(dir: &Path, number: u64, trace: &Trace) -> io::Result<()> {
    let name = trace::file_name(dir, number);
    let unfinished = name.with_extension("part");
    let result = fs::write(&unfinished, trace.encode()).and_then(|()| fs::rename(&unfinished, &name));
    if result.is_err() {
        let _ = fs::remove_file(&unfinished);
    }
    result
}
