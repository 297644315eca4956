// SPDX-License-Identifier: MIT OR Apache-2.0
//! One cell: its name, and how it ended.

use super::{Accel, Arch, BranchSource, Measurement, Outcome, Test};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tramplab_protocol::message;

/// One point of kernel × arch × accelerator × test × parameters.
#[derive(
    Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(deny_unknown_fields)]
pub struct CellId {
    /// The name of one of the run's kernels.
    pub kernel: String,
    pub arch: Arch,
    pub accel: Accel,
    pub test: Test,
}

impl CellId {
    /// `x86_64/6.12/tcg/lbr_waste/fexit`: nextest's name of the test, and the cell's folder under
    /// `cells/`.
    pub fn name(&self) -> String {
        format!("{}/{}/{}/{}", self.arch.name(), self.kernel, self.accel.name(), self.test.name())
    }
}

/// Selects items by a part of their cell's name. If the part is whole path components of some
/// names, selects only these: `fentry/10` selects `attach/fentry/10` and not `attach/fentry/100`.
/// Otherwise those that it is without program, tracers beside and function: `fexit` selects
/// `fexit@vfs_read` and not `fexit.multi@vfs_read`.
pub fn select<T>(mut all: Vec<T>, name: impl Fn(&T) -> String, part: &str) -> Vec<T> {
    let bare = part.trim_matches('/');
    for ends in [&['/'][..], &['=', '+', '@']] {
        let is_whole = |item: &T| {
            let name = format!("/{}/", name(item));
            ends.iter().any(|end| name.contains(&format!("/{bare}{end}")))
        };
        if all.iter().any(is_whole) {
            all.retain(is_whole);
            return all;
        }
    }
    all.retain(|item| name(item).contains(part));
    all
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Cell {
    pub id: CellId,
    /// How the cell ended.
    pub outcome: Outcome,
    /// The time when its job started, RFC 3339, UTC. None for builds, in `cell.json`, and in older
    /// files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started: Option<String>,
    /// Wall time on the host in milliseconds, boot included.
    pub duration_ms: u64,
    /// Milliseconds from starting QEMU to the agent's ready message. None if it never came.
    pub boot_ms: Option<u64>,
    /// True if `boot_ms` is the time to restore a snapshot, not the time to boot the kernel.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub restored: bool,
    /// Milliseconds for which its guests could have run and the host let them wait. None without a
    /// guest, on hosts that cannot tell, and in older files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub starved_ms: Option<u64>,
    /// The error of a first attempt that a starved host made doubtful. The cell was then repeated
    /// alone. None for other cells, and in older files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repeated: Option<String>,
    /// The guest's own facts. None if it never came up.
    pub guest: Option<message::Facts>,
    /// An object with one key, or `"boot"`. None if nothing was measured.
    pub measurement: Option<Measurement>,
    /// The last lines of the console, if the cell did not pass. Raw, with escape sequences.
    pub console_tail: Vec<String>,
    /// Warnings of its guests that the suite allows, each once.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub allowed: Vec<Allowed>,
    /// Facts about the measurement that its numbers do not show, each once.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub remarks: Vec<message::Remark>,
}

/// A warning of the kernel that did not end the measurement.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Allowed {
    /// The kernel's line.
    pub warning: String,
    /// The suite's reason.
    pub reason: String,
}

impl Cell {
    /// A cell with only its outcome.
    pub fn without_result(id: CellId, outcome: Outcome) -> Cell {
        Cell {
            id,
            outcome,
            started: None,
            duration_ms: 0,
            boot_ms: None,
            restored: false,
            starved_ms: None,
            repeated: None,
            guest: None,
            measurement: None,
            console_tail: Vec::new(),
            allowed: Vec::new(),
            remarks: Vec::new(),
        }
    }

    /// The clock source of its guests. Different names are joined by commas.
    pub fn clock_source(&self) -> Option<&str> {
        self.guest.as_ref().map(|guest| settled(&guest.clocksource))
    }

    /// Adds the clock source of another guest, or one that a guest switched to.
    pub fn add_clock_source(&mut self, name: &str) {
        let Some(guest) = &mut self.guest else { return };
        let mut names: Vec<&str> = guest.clocksource.split(CLOCKS_APART).map(settled).collect();
        if !names.contains(&settled(name)) {
            names.push(settled(name));
        }
        names.sort_unstable();
        guest.clocksource = names.join(CLOCKS_APART);
    }

    /// What hit its function, if the user named the function.
    pub fn workload(&self) -> Option<&str> {
        let triggered = match self.measurement.as_ref()? {
            Measurement::LbrWaste(waste) => waste.trigger.as_ref(),
            Measurement::Trigger(trigger) => trigger.trigger.as_ref(),
            _ => None,
        };
        triggered.map(|triggered| &*triggered.workload)
    }

    /// The source of the records that it counted. None if it counted none.
    pub fn branch_source(&self) -> Option<BranchSource> {
        match &self.measurement {
            Some(Measurement::LbrWaste(waste)) => Some(waste.source),
            _ => None,
        }
    }
}

/// Separates the names of several clock sources.
pub const CLOCKS_APART: &str = ", ";

/// Maps `tsc-early` to `tsc`. It is the same counter, before the kernel has measured its speed a
/// second time.
fn settled(clock_source: &str) -> &str {
    clock_source.strip_suffix("-early").unwrap_or(clock_source)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefers_whole_path_components() {
        let all = ["a/fentry/10", "a/fentry/100", "a/fentry.multi/10", "t/fexit"];
        for (part, expected) in [
            ("fentry/10", &all[..1]),
            ("fentry", &all[..2]),
            ("a/", &all[..3]),
            ("multi", &all[2..3]),
            ("/10", &[all[0], all[2]]),
            ("100", &all[1..2]),
            ("1", &all[..3]),
            ("kprobe", &[]),
        ] {
            assert_eq!(select(all.to_vec(), |name| name.to_string(), part), expected, "{part}");
        }
        let named = ["t/fexit.multi@f", "t/fexit@f", "t/fexit=p+x", "t/fexit+x@f", "t/kexit@fexit"];
        for (part, expected) in [
            ("fexit", &named[1..4]),
            ("fexit.multi", &named[..1]),
            ("fexit=p", &named[2..3]),
            ("t/kexit", &named[4..]),
            ("fexit@f", &named[1..2]),
            ("@f", &[named[0], named[1], named[3], named[4]]),
        ] {
            assert_eq!(select(named.to_vec(), |name| name.to_string(), part), expected, "{part}");
        }
    }
}
