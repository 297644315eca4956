// SPDX-License-Identifier: MIT OR Apache-2.0
//! One run's measurements: the types behind `run.json`, which every report is rendered from.

mod join;
pub mod migrate;
mod outcome;

pub use crate::{
    kinds::{
        Kind, Measurement, Place, Test, UnknownTest,
        attach::{Attach, AttachBoot},
        bench::{Bench, BenchBoot},
        lbr_waste::{
            BranchSource, CapturePoint, Delivered, LbrWaste, NamedRecord, Row, UnknownRow,
            WasteCount,
        },
        trigger::{Trigger, TriggerCost, TriggerPart, TriggerRecord},
    },
    selftests::TreeTest,
};
pub use join::{Apart, join, superseded, unlike};
pub use outcome::{ErrorKind, Outcome};

use serde::{Deserialize, Serialize};
use strum::{Display, EnumString, IntoStaticStr};
use tramplab_protocol::message;

/// Raised when a field changes its type or meaning, or goes. Older files are read: `migrate.rs`.
pub const SCHEMA: u32 = 4;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Run {
    pub schema: u32,
    /// `YYYYMMDD-HHMMSS-xxxx`, also the folder's name.
    pub id: String,
    /// RFC 3339, UTC.
    pub started: String,
    pub finished: Option<String>,
    pub tramplab: String,
    /// The command line, to run it again.
    pub command: Vec<String>,
    pub host: Host,
    pub suite: SuiteRef,
    /// The guests', one for each architecture.
    pub machines: Vec<Machine>,
    pub tolerance: Tolerance,
    /// One for each architecture that it was measured on.
    pub kernels: Vec<Kernel>,
    /// The series whose base and head were measured, once for each architecture; none of a run that
    /// compares nothing.
    pub series: Vec<Series>,
    pub cells: Vec<Cell>,
    /// Not ended yet, or ended by Ctrl-C or a signal.
    pub interrupted: bool,
    /// The cells that were selected and left no result; none of a run that has ended by itself.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub missing: Vec<CellId>,
    /// Of a run of one part of the cells.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shard: Option<Shard>,
    /// For the reader of every report: messages of the series that were left out, a suite that is
    /// not the head's own.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// The id of the interrupted run of which this measured what was missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rest_of: Option<String>,
    /// Of one that was put together from others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub joined: Option<Joined>,
}

/// One part of the selected cells: others have the rest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Shard {
    /// As nextest takes it: `slice:1/4`.
    pub partition: String,
    /// The cells of all parts, in the suite's order.
    pub cells: Vec<CellId>,
}

/// Which runs it was put together from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Joined {
    pub runs: Vec<String>,
    /// How many there were to be.
    pub expected: usize,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Host {
    pub os: String,
    pub cpu: String,
    pub cpus: usize,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SuiteRef {
    pub name: String,
    pub file: String,
    pub sha256: String,
}

/// The guests' machine, and what measured in it: with another, exact metrics need not agree.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Machine {
    pub arch: Arch,
    #[serde(default)]
    pub vm: Backend,
    /// The version, where it starts the guests.
    #[serde(default)]
    pub virtme_ng: Option<String>,
    /// First line of QEMU's `--version`.
    pub qemu: String,
    /// QEMU's `-cpu`.
    pub cpu: String,
    pub cpus: u32,
    pub memory_mib: u32,
    /// Added to the kernel's command line.
    pub append: Vec<String>,
    pub agent_sha256: String,
    /// None where the records come from hardware.
    pub plugin_sha256: Option<String>,
}

impl Machine {
    /// What ran its guests.
    pub fn programs(&self) -> String {
        match &self.virtme_ng {
            Some(version) => format!("virtme-ng {version}, {}", self.qemu),
            None => self.qemu.clone(),
        }
    }
}

impl Run {
    pub fn machine(&self, arch: Arch) -> Option<&Machine> {
        self.machines.iter().find(|machine| machine.arch == arch)
    }

    /// A kernel's cells, on one architecture.
    pub fn cells_of(&self, arch: Arch, kernel: &str) -> impl Iterator<Item = &Cell> {
        self.cells.iter().filter(move |cell| cell.id.arch == arch && cell.id.kernel == kernel)
    }

    /// What a reader must know of one that was interrupted, or has not ended: what it does not have
    /// is no pass.
    pub fn interruption(&self) -> Option<String> {
        let missing = self.missing.len();
        let selected =
            missing + self.cells.iter().filter(|cell| cell.id.test != Test::Build).count();
        let how = self.how_it_ended();
        self.interrupted.then(|| match missing {
            // Between two cells, while it was begun or ended; or in a file of before there was
            // `missing`.
            0 => format!("The run {how}."),
            _ => format!(
                "The run {how}: {missing} of {selected} cells left no result: {}.",
                self.some_missing()
            ),
        })
    }

    fn how_it_ended(&self) -> &'static str {
        // One that was killed looks like one that goes on.
        if self.finished.is_some() { "was interrupted" } else { "has not ended" }
    }

    /// As many as are named; all are in formats that have a place for each.
    fn some_missing(&self) -> String {
        const MOST: usize = 10;
        let mut names: Vec<String> = self.missing.iter().take(MOST).map(CellId::name).collect();
        let more = self.missing.len().saturating_sub(MOST);
        names.extend((more > 0).then(|| format!("{more} more")));
        names.join(", ")
    }

    /// The same of one that was put together from fewer runs than there were to be.
    pub fn shortage(&self) -> Option<String> {
        let joined = self.joined.as_ref().filter(|joined| joined.runs.len() < joined.expected)?;
        Some(format!("Only {} of {} runs are here.", joined.runs.len(), joined.expected))
    }

    /// What is missing as cells, for formats that have nothing else.
    pub fn missing_cells(&self) -> Vec<Cell> {
        let message = format!("not run to its end: the run {}", self.how_it_ended());
        let error = || Outcome::Error { kind: ErrorKind::Harness, message: message.clone() };
        self.missing.iter().map(|id| Cell::without_result(id.clone(), error())).collect()
    }
}

/// How much worse than its base a head may be.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Tolerance {
    /// Wasted branch records more than the base's.
    pub wasted: u32,
    /// Instructions, and taken branches, per hit more than the base's.
    pub trigger: u32,
    /// Per cent by which a time, its whole confidence interval, may be longer.
    pub time_percent: f64,
    /// Per cent by which what attaching takes by the exact clock, and its instructions, may be
    /// more.
    pub exact_percent: f64,
}

impl Default for Tolerance {
    fn default() -> Tolerance {
        // Waste and the cost of a hit are exact. A time under TCG moves by some per cent with the
        // layout of the code alone. What attaching executes moves by a third of a per cent where 64
        // functions are added that nobody calls.
        Tolerance { wasted: 0, trigger: 0, time_percent: 5.0, exact_percent: 0.5 }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Kernel {
    /// The manifest's name, which cells refer to.
    pub name: String,
    pub arch: Arch,
    /// Where it came from, e.g. `debian linux-image-6.12.107+deb13-cloud-amd64 6.12.107-1`.
    pub source: String,
    /// The commit that was built; none where the sources are no repository's, or patches were put
    /// on them. Files of older versions do not have it.
    #[serde(default)]
    pub commit: Option<String>,
    /// None of a kernel that could not be built.
    pub image_sha256: Option<String>,
    /// Of its configuration, where that is known; the file itself is `kernels/ARCH/NAME.config` in
    /// the run's folder.
    pub config_sha256: Option<String>,
    /// Whether its configuration has PARAVIRT_XXL, where that is known: drivers then read and write
    /// MSRs by calls. Files of older versions do not have it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paravirt_xxl: Option<bool>,
    pub build: Option<Build>,
}

/// How a kernel was built here.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Build {
    /// Compiler, linker and pahole, as they name themselves.
    pub toolchain: String,
    /// Hash of all that went into it; the same kernel is not built twice.
    pub key: String,
    /// Without network, and nothing but its folder writable.
    pub confined: bool,
}

/// A series and the kernels it makes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Series {
    pub arch: Arch,
    pub name: String,
    pub title: Option<String>,
    /// Of a shipped example: what it is to show.
    pub claim: Option<String>,
    /// The tree has the patches: the base is made by taking them out.
    pub reverse: bool,
    /// In the order of the patches; the first is the base, the last the head.
    pub steps: Vec<Step>,
    /// Kernels that are the base with code that nobody calls: how far they differ from it is
    /// layout.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub placebos: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Step {
    /// One of the run's kernels.
    pub kernel: String,
    /// How many of the patches are in.
    pub patches: u32,
    /// The subject of the last of them; none of the base.
    pub subject: Option<String>,
    pub built: Built,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Built {
    Yes,
    /// The compiler's first error, or what else stopped the build.
    Failed {
        message: String,
    },
    /// An earlier patch did not build.
    NotReached,
}

impl Series {
    pub fn base(&self) -> &Step {
        self.steps.first().expect("a series has a base")
    }

    pub fn head(&self) -> &Step {
        self.steps.last().expect("a series has a head")
    }
}

/// What a guest's clock counts.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "snake_case")]
pub enum Clock {
    /// The host's time.
    #[default]
    Free,
    /// The guest's own instructions (QEMU's `-icount`): the same at every boot.
    Exact,
}

#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Serialize,
    Deserialize,
    Display,
    EnumString,
    IntoStaticStr,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case", parse_err_ty = UnknownArch, parse_err_fn = UnknownArch::new)]
pub enum Arch {
    X86_64,
    Arm64,
}

impl Arch {
    pub const ALL: [Arch; 2] = [Arch::X86_64, Arch::Arm64];

    /// This machine's own, if guests can have it.
    pub fn host() -> Option<Arch> {
        match std::env::consts::ARCH {
            "x86_64" => Some(Arch::X86_64),
            "aarch64" => Some(Arch::Arm64),
            _ => None,
        }
    }

    pub fn name(self) -> &'static str {
        self.into()
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown architecture `{0}`, expected one of: \
         {names}", names = Arch::ALL.map(Arch::name).join(", "))]
pub struct UnknownArch(String);

impl UnknownArch {
    fn new(name: &str) -> UnknownArch {
        UnknownArch(name.to_owned())
    }
}

#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, IntoStaticStr,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum Accel {
    Kvm,
    Tcg,
}

impl Accel {
    pub fn name(self) -> &'static str {
        self.into()
    }
}

/// What starts the guests and gives them a root.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Serialize,
    Deserialize,
    IntoStaticStr,
)]
#[serde(rename_all = "kebab-case")]
#[strum(serialize_all = "kebab-case")]
pub enum Backend {
    /// QEMU, with the agent as the only program of an initramfs.
    #[default]
    Qemu,
    /// virtme-ng, with the host's own files.
    VirtmeNg,
}

impl Backend {
    pub fn name(self) -> &'static str {
        self.into()
    }
}

/// One point of kernel × arch × accelerator × test × parameters.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CellId {
    pub kernel: String,
    pub arch: Arch,
    pub accel: Accel,
    pub test: Test,
}

impl CellId {
    /// `x86_64/6.12/tcg/lbr_waste/fexit`: the test's name for nextest, and the cell's folder under
    /// `cells/`.
    pub fn name(&self) -> String {
        format!("{}/{}/{}/{}", self.arch.name(), self.kernel, self.accel.name(), self.test.name())
    }
}

/// Selects by a part of a cell's name. Names that have it whole, between slashes, are meant alone:
/// `fentry/10` selects `attach/fentry/10` and not `attach/fentry/100`.
pub fn select<T>(all: Vec<T>, name: impl Fn(&T) -> String, part: &str) -> Vec<T> {
    let whole = format!("/{}/", part.trim_matches('/'));
    let (exact, mut other): (Vec<T>, Vec<T>) =
        all.into_iter().partition(|item| format!("/{}/", name(item)).contains(&whole));
    if !exact.is_empty() {
        return exact;
    }
    other.retain(|item| name(item).contains(part));
    other
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cell {
    pub id: CellId,
    pub outcome: Outcome,
    /// Wall time on the host, boot included (milliseconds).
    pub duration_ms: u64,
    /// From starting QEMU to the agent's ready message (milliseconds); none if it never came.
    pub boot_ms: Option<u64>,
    /// That was from a snapshot of a guest of the kind, and not through the kernel's boot.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub restored: bool,
    pub guest: Option<message::Facts>,
    pub measurement: Option<Measurement>,
    /// The last lines of the console, when the cell did not pass.
    pub console_tail: Vec<String>,
}

impl Cell {
    /// With no more than how it ended.
    pub fn without_result(id: CellId, outcome: Outcome) -> Cell {
        Cell {
            id,
            outcome,
            duration_ms: 0,
            boot_ms: None,
            restored: false,
            guest: None,
            measurement: None,
            console_tail: Vec::new(),
        }
    }

    /// The clock source of its guests: several names, with commas, where they had different ones.
    pub fn clock_source(&self) -> Option<&str> {
        self.guest.as_ref().map(|guest| settled(&guest.clocksource))
    }

    /// Adds the clock source of another of its guests, or one that its guest changed to.
    pub fn add_clock_source(&mut self, name: &str) {
        let Some(guest) = &mut self.guest else { return };
        let mut names: Vec<&str> = guest.clocksource.split(CLOCKS_APART).map(settled).collect();
        if !names.contains(&settled(name)) {
            names.push(settled(name));
        }
        names.sort_unstable();
        guest.clocksource = names.join(CLOCKS_APART);
    }

    /// Where the records come from that it counted, if it did.
    pub fn branch_source(&self) -> Option<BranchSource> {
        match &self.measurement {
            Some(Measurement::LbrWaste(waste)) => Some(waste.source),
            _ => None,
        }
    }
}

/// Between the names of several clock sources.
pub const CLOCKS_APART: &str = ", ";

/// A clock source by its last name: `tsc-early` is `tsc` before the kernel has measured its speed a
/// second time.
fn settled(clock_source: &str) -> &str {
    clock_source.strip_suffix("-early").unwrap_or(clock_source)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_whole_part_of_a_name_selects_it_alone() {
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
    }

    #[test]
    fn writes_recorded_runs_as_it_read_them() {
        for text in [
            include_str!("../../../testdata/run.json"),
            include_str!("../../../testdata/two-architectures.json"),
            include_str!("../../../testdata/lbr-helpers.json"),
        ] {
            let stored: serde_json::Value = serde_json::from_str(text).unwrap();
            let run: Run = serde_json::from_value(stored.clone()).unwrap();
            // Fields of the whole run that are younger than the file are written as well.
            assert!(serde_json::to_value(&run).unwrap()["cells"] == stored["cells"], "{}", run.id);
            for cell in &run.cells {
                let name = cell.id.test.name();
                assert_eq!(name.parse::<Test>().as_ref(), Ok(&cell.id.test), "{name}");
            }
        }
    }
}
