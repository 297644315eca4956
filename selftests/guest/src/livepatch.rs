// SPDX-License-Identifier: MIT OR Apache-2.0
//! The tree's sample of a live patch. The guest loads it before anything is measured, and its
//! function replaces the kernel's in every task (K `Documentation/livepatch/livepatch.rst`).

use crate::known::Known;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};
use tramplab_protocol::message::{GuestError, Symbol};
use tramplab_protocol::{LIVEPATCH_MODULE, pattern};

const PATCHES: &str = "/sys/kernel/livepatch";
/// The prefix of the sample's functions.
const PREFIX: &str = "livepatch_";
/// The kernel asks tasks once a second whether they run no function of the patch, and wakes those
/// that sleep after fifteen seconds (K `kernel/livepatch/transition.c`, `SIGNALS_TIMEOUT`).
const LONGEST: Duration = Duration::from_secs(60);

/// The function that runs in the place of the named one, in every task.
pub fn replacement(name: &str, known: &Known) -> Result<Symbol, GuestError> {
    known.modules.require(LIVEPATCH_MODULE)?;
    let patch = Path::new(PATCHES).join(LIVEPATCH_MODULE);
    let unpatched = || {
        GuestError::Unsupported(format!(
            "the live patch {LIVEPATCH_MODULE} does not replace {name}, only cmdline_proc_show: \
             name that in `targets`"
        ))
    };
    let (None, function) = pattern::split(name) else { return Err(unpatched()) };
    // Functions of one name are numbered.
    if !patch.join("vmlinux").join(format!("{function},1")).exists() {
        return Err(unpatched());
    }
    wait(&patch.join("transition"))?;
    let replacement = known.symbols()?.function_of(LIVEPATCH_MODULE, &format!("{PREFIX}{name}"));
    replacement.ok_or_else(|| {
        GuestError::Unsupported(format!("{LIVEPATCH_MODULE} has no function {PREFIX}{name}"))
    })
}

/// Waits until no task runs the former function.
fn wait(transition: &Path) -> Result<(), GuestError> {
    let began = Instant::now();
    loop {
        let text = fs::read_to_string(transition)
            .map_err(|error| GuestError::Failed(format!("{}: {error}", transition.display())))?;
        if text.trim_end() == "0" {
            return Ok(());
        }
        if began.elapsed() > LONGEST {
            return Err(GuestError::Failed(format!(
                "the live patch {LIVEPATCH_MODULE} did not reach all tasks in {} seconds of the \
                 guest",
                LONGEST.as_secs()
            )));
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}
