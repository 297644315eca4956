// SPDX-License-Identifier: MIT OR Apache-2.0
//! The types behind `run.json`: one run's measurements. Every report is rendered from it.

// A stranger's run may have any number: saturate, or use floating point.
#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects, clippy::disallowed_methods))]

mod cell;
mod configuration;
mod join;
pub mod migrate;
pub mod options;

pub use crate::{
    arch::{Arch, UnknownArch},
    code::KernelLines,
    guest::{Accel, Backend, Clock},
    kinds::{
        Kind, Measurement, Place, Test, Tolerance, UnknownTest,
        attach::{Attach, AttachBoot},
        bench::{Bench, BenchBoot},
        lbr_waste::{
            BranchSource, CapturePoint, Delivered, LbrWaste, NamedRecord, UnknownRow, WasteCount,
            WasteRow,
        },
        survive::{Smallest, Splat, Survive},
        trigger::{Mispredicted, Predicted, Trigger, TriggerCost, TriggerPart, TriggerRecord},
    },
    outcome::{ErrorKind, Outcome},
    tree_tests::TreeTest,
};
pub use cell::{Allowed, CLOCKS_APART, Cell, CellId, select};
pub use configuration::{Configuration, Setting, option, with_words};
pub use join::{Apart, is_superseded, join, unlike};
pub use options::GivenOptions;

use crate::function::Among;
use crate::{
    code::{SourceLines, TextGrowth},
    published::Published,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::num::NonZeroU32;

/// Raise it when a field changes its type or meaning, or is removed. `migrate.rs` reads older
/// files.
pub const SCHEMA: u32 = 6;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "tramplab run")]
pub struct Run {
    /// The version of this format.
    #[schemars(extend("const" = SCHEMA))]
    pub schema: u32,
    /// `YYYYMMDD-HHMMSS-xxxxxxxx`, also the folder's name except after `merge --into`. Of a step of
    /// a bisection `bisect-YYYYMMDD-HHMMSS-xxxxxxxx-03-0123456789ab`.
    pub id: String,
    /// RFC 3339, UTC.
    pub started: String,
    /// RFC 3339, UTC. None while the run goes on, or if it was killed.
    pub finished: Option<String>,
    /// The version of tramplab.
    pub tramplab: String,
    /// The command line that repeats the run, with absolute paths.
    pub command: Vec<String>,
    /// The same as data: the values of each option by its long name, none for a flag; under `--`
    /// the words without an option. Absent in older files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub options: Option<GivenOptions>,
    pub host: Host,
    pub suite: SuiteRef,
    /// Guest machines, one for each architecture.
    pub machines: Vec<Machine>,
    pub tolerance: Tolerance,
    /// One entry for each kernel and architecture.
    pub kernels: Vec<Kernel>,
    /// The measured series, one entry for each architecture. Empty if the run compares nothing.
    pub series: Vec<Series>,
    pub cells: Vec<Cell>,
    /// True until the run ends, and if Ctrl-C or a signal ended it.
    pub interrupted: bool,
    /// Selected cells without a result. Empty if the run ended by itself.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub missing: Vec<CellId>,
    /// Set if the run measured one part of the cells.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shard: Option<Shard>,
    /// Notes for every report: messages of the series that were left out, a suite that is not the
    /// head's own.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// Id of the run whose results this one took over, and whose other cells it measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rest_of: Option<String>,
    /// Set if the run was joined from others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub joined: Option<Joined>,
    /// The user's programs that it measured.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub programs: Vec<crate::program::Program>,
    /// The user's executables and libraries whose functions it attached to.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub binaries: Vec<Binary>,
    /// Source lines, one entry for each kernel with debug information. Written when the run ends.
    /// Absent in older files.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lines: Vec<KernelLines>,
}

/// An executable or library. Attach tests name it behind `@`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Binary {
    pub name: Among,
    /// SHA-256 of the file.
    pub sha256: String,
}

/// One part of the selected cells. Other runs have the rest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Shard {
    /// Nextest's syntax: `slice:1/4`.
    pub partition: String,
    /// The cells of all parts, in the suite's order.
    pub cells: Vec<CellId>,
}

/// The runs that were joined.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Joined {
    /// Their ids.
    pub runs: Vec<String>,
    /// Number of runs that there should be.
    pub expected: usize,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Host {
    /// Its name and version.
    pub os: String,
    /// The CPU's name.
    pub cpu: String,
    pub cpus: usize,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SuiteRef {
    pub name: String,
    /// As the command line named it.
    pub file: String,
    /// SHA-256 of the file.
    pub sha256: String,
}

/// The machine whose kernels were measured, and the programs that measured in it: guests, or the
/// host itself. Exact metrics may differ on another one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Machine {
    pub arch: Arch,
    /// The program that started the guests: QEMU in older files, which lack the field.
    #[serde(default)]
    pub vm: Backend,
    /// Version of virtme-ng, if it starts the guests.
    #[serde(default, rename = "virtme_ng")]
    pub backend_version: Option<String>,
    /// First line of QEMU's `--version`. None without guests.
    pub qemu: Option<String>,
    /// QEMU's `-cpu`; without guests the name of the host's CPU.
    pub cpu: String,
    pub cpus: u32,
    pub memory_mib: u32,
    /// Added to the kernel's command line.
    pub append: Vec<String>,
    /// SHA-256 of the agent in the guest.
    pub agent_sha256: String,
    /// None if the records come from hardware.
    pub plugin_sha256: Option<String>,
}

impl Machine {
    /// The programs that ran its guests.
    pub fn programs(&self) -> String {
        match (&self.backend_version, &self.qemu) {
            (Some(version), Some(qemu)) => format!("{} {version}, {qemu}", self.vm.name()),
            (None, Some(qemu)) => qemu.clone(),
            (_, None) => "none".to_owned(),
        }
    }
}

impl Run {
    /// The machine of cells under an accelerator: this machine itself, or that of the guests.
    pub fn machine(&self, arch: Arch, accel: Accel) -> Option<&Machine> {
        let fits = |machine: &&Machine| (machine.vm == Backend::None) == (accel == Accel::Native);
        let mut of_arch = self.machines.iter().filter(|machine| machine.arch == arch);
        of_arch.clone().find(fits).or_else(|| of_arch.next())
    }

    pub fn kernel(&self, arch: Arch, name: &str) -> Option<&Kernel> {
        self.kernels.iter().find(|kernel| kernel.arch == arch && kernel.name == name)
    }

    /// A kernel's cells, on one architecture.
    pub fn cells_of(&self, arch: Arch, kernel: &str) -> impl Iterator<Item = &Cell> {
        self.cells.iter().filter(move |cell| cell.id.arch == arch && cell.id.kernel == kernel)
    }

    /// Those that were measured, or failed to be. A run of some cells knows all of its suite.
    pub fn kernels_with_cells(&self) -> impl Iterator<Item = &Kernel> {
        let has_cells =
            |kernel: &&Kernel| self.cells_of(kernel.arch, &kernel.name).next().is_some();
        self.kernels.iter().filter(has_cells)
    }

    /// The first series that has a kernel, and its step.
    pub fn step_of(&self, arch: Arch, kernel: &str) -> Option<(&Series, &SeriesStep)> {
        self.series.iter().filter(|series| series.arch == arch).find_map(|series| {
            let step = series.steps.iter().find(|step| step.kernel == kernel)?;
            Some((series, step))
        })
    }

    /// The known source lines of a kernel's places.
    pub fn lines_of(&self, arch: Arch, kernel: &str) -> Option<&SourceLines> {
        let found = self.lines.iter().find(|of| (of.arch, of.kernel.as_str()) == (arch, kernel));
        found.map(|of| &of.places)
    }

    /// Describes a run that was interrupted or has not ended: its missing cells did not pass. None
    /// for other runs.
    pub fn interruption(&self) -> Option<String> {
        let missing = self.missing.len();
        let measured = self.cells.iter().filter(|cell| cell.id.test != Test::Build).count();
        let selected = missing.saturating_add(measured);
        let how = self.how_it_ended();
        self.interrupted.then(|| match missing {
            // Interrupted between two cells, before the first or after the last. Or the file is
            // older than `missing`.
            0 => format!("The run {how}."),
            _ => format!(
                "The run {how}: {missing} of {selected} cells left no result: {}.",
                self.some_missing()
            ),
        })
    }

    fn how_it_ended(&self) -> &'static str {
        // A killed run looks like one that still runs.
        if self.finished.is_some() { "was interrupted" } else { "has not ended" }
    }

    /// Names of the first missing cells. Formats with a place for each cell list all of them.
    fn some_missing(&self) -> String {
        const MOST: usize = 10;
        let mut names: Vec<String> = self.missing.iter().take(MOST).map(CellId::name).collect();
        let more = self.missing.len().saturating_sub(MOST);
        names.extend((more > 0).then(|| format!("{more} more")));
        names.join(", ")
    }

    /// Describes a joined run that lacks some of its expected runs. None for other runs.
    pub fn shortage(&self) -> Option<String> {
        let joined = self.joined.as_ref().filter(|joined| joined.runs.len() < joined.expected)?;
        Some(format!("Only {} of {} runs are here.", joined.runs.len(), joined.expected))
    }

    /// The missing cells as errors, for formats that have only cells.
    pub fn missing_cells(&self) -> Vec<Cell> {
        let message = format!("not run to its end: the run {}", self.how_it_ended());
        let error = || Outcome::Error { kind: ErrorKind::Harness, message: message.clone() };
        self.missing.iter().map(|id| Cell::without_result(id.clone(), error())).collect()
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Kernel {
    /// The manifest's name, which cells refer to.
    pub name: String,
    pub arch: Arch,
    /// Its origin, e.g. `debian linux-image-6.12.107+deb13-cloud-amd64 6.12.107-1`.
    pub source: String,
    /// The commit that was built. None if the sources are not in a repository, or if patches were
    /// applied. Older files lack it.
    #[serde(default)]
    pub commit: Option<String>,
    /// None if the kernel could not be built.
    pub image_sha256: Option<String>,
    /// SHA-256 of its configuration, if known. The file itself is `kernels/ARCH/NAME.config` in the
    /// run's folder.
    pub config_sha256: Option<String>,
    /// True if its configuration has PARAVIRT_XXL; none if unknown. Drivers of such a kernel read
    /// and write MSRs by calls. Older files lack it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paravirt_xxl: Option<bool>,
    /// None unless it was built here.
    pub build: Option<Build>,
    /// Set if it is one point of `--config-axis`, or boots as a CPU (`--model`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub configuration: Option<Configuration>,
}

/// How a kernel was built here.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Build {
    /// Compiler, linker and pahole, by their own version lines.
    pub toolchain: String,
    /// Hash of all inputs. The same kernel is not built twice.
    pub key: String,
    /// True if it was built without network and with only its folder writable.
    pub confined: bool,
}

/// A series and its kernels.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Series {
    pub arch: Arch,
    pub name: String,
    pub title: Option<String>,
    /// The improvement that a shipped example should show.
    pub claim: Option<String>,
    /// Numbers of it that were published. Older files lack it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub published: Vec<Published>,
    /// The tree already has the patches. The base is made by removing them.
    pub reverse: bool,
    /// Number of patches that only prepare the tree, beside those of the steps. None if there are
    /// none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base: Option<NonZeroU32>,
    /// In patch order. The first is the base, the last the head.
    pub steps: Vec<SeriesStep>,
    /// The message-id of the cover letter. None if the series was no thread of mails.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cover: Option<String>,
    /// The series' own patches, in patch order. Older files lack it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ids: Vec<PatchIds>,
    /// Kernels made from the tree plus code that nobody calls. They show how far layout alone moves
    /// numbers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub placebos: Vec<String>,
    /// How the head's code differs from the base's. None if a kernel was not built, or if its build
    /// left no symbols. Older files lack it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<TextGrowth>,
}

/// The names by which a patch is known elsewhere.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PatchIds {
    /// Without angle brackets. None if the patch was no mail.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message_id: Option<String>,
    /// As `git patch-id --stable` prints it: the same for the same diff at other lines.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub patch_id: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SeriesStep {
    /// One of the run's kernels.
    pub kernel: String,
    /// Number of the series' own patches that are in.
    pub patches: u32,
    /// Subject of the last applied patch. None for the base.
    pub subject: Option<String>,
    pub built: Built,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Built {
    Yes,
    /// The compiler's first error, or another reason that stopped the build.
    Failed {
        message: String,
    },
    /// An earlier patch did not build.
    NotReached,
}

impl Series {
    pub fn base(&self) -> &SeriesStep {
        self.steps.first().expect("a series has a base")
    }

    pub fn head(&self) -> &SeriesStep {
        self.steps.last().expect("a series has a head")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trips_recorded_runs() {
        for text in [
            include_str!("../../../testdata/run.json"),
            include_str!("../../../testdata/two-architectures.json"),
            include_str!("../../../testdata/lbr-helpers.json"),
        ] {
            let stored: serde_json::Value = serde_json::from_str(text).unwrap();
            let run: Run = serde_json::from_value(stored.clone()).unwrap();
            // Compare cells only: writing adds run fields that are newer than the file.
            assert!(serde_json::to_value(&run).unwrap()["cells"] == stored["cells"], "{}", run.id);
            for cell in &run.cells {
                let name = cell.id.test.name();
                assert_eq!(name.parse::<Test>().as_ref(), Ok(&cell.id.test), "{name}");
            }
        }
    }
}
