// SPDX-License-Identifier: MIT OR Apache-2.0
//! `lbr_waste`: counts the branch records that are newer than those of the traced function.

use super::{Place, attached, plain, programmed};
use crate::{
    filter::Filter,
    function::{AT, FunctionName, PATTERN as FUNCTION},
    name::{Marked, split},
    program::{OF, ProgramName},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, fmt, str::FromStr};
use strum::IntoStaticStr;
use tramplab_protocol::{Mechanism, Point, message, trace};

pub const TEST_SYNTAX: &str = "lbr_waste/MECHANISM[=PROGRAM][@FUNCTION]";
pub const METRIC_SYNTAX: &str = "lbr_waste.ROW[=PROGRAM][@FUNCTION].FILTER";

/// `fexit`, `fexit@__sys_bpf`, `fexit=on_bpf@__sys_bpf`.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "LbrWasteTest")]
pub struct Test {
    pub mechanism: Mechanism,
    /// The user's program. None: the capturing one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub program: Option<ProgramName>,
    /// The traced function. None: the kernel's own test function.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub function: Option<FunctionName>,
}

impl Test {
    pub fn parse(name: &str) -> Option<Test> {
        let (name, function) = split(name, AT)?;
        let (mechanism, program) = programmed(name)?;
        Some(Test { mechanism, program, function })
    }

    /// The row of one of its points.
    pub fn row(self, point: Point) -> WasteRow {
        let Test { mechanism, program, function } = self;
        WasteRow { mechanism, point, program, function }
    }
}

impl fmt::Display for Test {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{}{}", attached(self.mechanism, self.program), Marked(AT, self.function)))
    }
}

/// Wasted records. `fexit.any`, `kprobe_session_exit@__sys_bpf.any_call|cond`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Metric {
    pub row: WasteRow,
    pub filter: Filter,
}

impl Metric {
    /// All metrics of the kernel's own test functions.
    pub fn all() -> impl Iterator<Item = Metric> {
        WasteRow::all().flat_map(|row| Filter::measured().map(move |filter| Metric { row, filter }))
    }

    pub fn parse(name: &str) -> Option<Metric> {
        let (row, filter) = name.rsplit_once('.')?;
        Some(Metric { row: row.parse().ok()?, filter: filter.parse().ok()? })
    }

    pub fn test(&self) -> Test {
        self.row.test()
    }
}

impl fmt::Display for Metric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let WasteRow { function, .. } = self.row;
        write!(f, "{}{}.{}", plain(&self.row.side()), Marked(AT, function), self.filter)
    }
}

/// A row of the waste table: a mechanism, with the point if the mechanism runs at two, the program
/// if it is the user's, and the function if one is named. `fexit`, `kprobe.session/exit`,
/// `kprobe.session/exit=on_bpf@__sys_bpf`.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(try_from = "String", into = "String")]
#[schemars(extend("pattern" = WasteRow::pattern()))]
pub struct WasteRow {
    pub mechanism: Mechanism,
    pub point: Point,
    pub program: Option<ProgramName>,
    pub function: Option<FunctionName>,
}

impl WasteRow {
    /// All rows of the kernel's own test functions.
    pub fn all() -> impl Iterator<Item = WasteRow> {
        Mechanism::KERNEL.into_iter().flat_map(|mechanism| {
            let row = move |&point| WasteRow { mechanism, point, program: None, function: None };
            mechanism.points().iter().map(row)
        })
    }

    /// A regular expression of the names that it parses. Overlong names of functions fit too.
    fn pattern() -> String {
        // The parser takes `.`, `/` and `_` for the same.
        let name = |row: WasteRow| plain(&row.side()).replace('_', "[_./]");
        let names = WasteRow::all().map(name).collect::<Vec<_>>().join("|");
        let program = "=[A-Za-z_][A-Za-z0-9_]{0,63}";
        format!("^({names})({program})?(@{FUNCTION})?$")
    }

    pub fn test(self) -> Test {
        let WasteRow { mechanism, point: _, program, function } = self;
        Test { mechanism, program, function }
    }

    /// The name without the function.
    pub fn side(self) -> String {
        let program = Marked(OF, self.program);
        match self.mechanism.points() {
            [_] => format!("{}{program}", self.mechanism),
            _ => format!("{}/{}{program}", self.mechanism, self.point),
        }
    }
}

impl fmt::Display for WasteRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{}{}", self.side(), Marked(AT, self.function)))
    }
}

#[derive(Clone, Debug, thiserror::Error)]
#[error(
    "unknown row `{0}`, expected one of these, perhaps with =PROGRAM and @FUNCTION: {names}",
    names = WasteRow::all().map(|r| r.to_string()).collect::<Vec<_>>().join(", ")
)]
pub struct UnknownRow(pub String);

impl FromStr for WasteRow {
    type Err = UnknownRow;

    fn from_str(name: &str) -> Result<WasteRow, UnknownRow> {
        let found = split(name, AT).and_then(|(side, function)| {
            let (side, program) = split(side, OF)?;
            let row = WasteRow::all().find(|row| plain(&row.side()) == plain(side))?;
            Some(WasteRow { program, function, ..row })
        });
        found.ok_or_else(|| UnknownRow(name.to_owned()))
    }
}

tramplab_protocol::by_text!(WasteRow, UnknownRow);

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LbrWaste {
    pub source: BranchSource,
    /// The family of the played CPU (`amd-lbrv2`), whose records they are. Only emulated ones have
    /// one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub family: Option<String>,
    pub mechanism: Mechanism,
    /// The traced function.
    pub function: message::Symbol,
    /// The way in which the function was hit, if the test names one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trigger: Option<message::Triggered>,
    /// Return value of the in-guest helper: bytes, or a negative errno (-2 without a PMU driver).
    pub snapshot_result: i64,
    /// The records that the program got at its last run, if the suite asks for that experiment. The
    /// cell is an error if they differ from the trace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delivered: Option<Delivered>,
    /// Recorded hits.
    pub hits: u32,
    /// Hits with an interrupt, which are left out. None if interrupts cannot be seen: a driver
    /// drops their records.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interrupted_hits: Option<u32>,
    /// Other hits with the reported records since the function's entry. If a driver handed them
    /// over, the lowest number of any filter that has records of the function.
    pub agreeing_hits: u32,
    /// Number of records that the CPU keeps. None for virtual records.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub depth: Option<u32>,
    /// One for each point at which the program runs.
    pub points: Vec<CapturePoint>,
}

/// Branch records that a program in the guest got, as if from this CPU and its driver.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Delivered {
    pub model: String,
    pub filter: String,
    /// Entries that the CPU keeps.
    pub depth: u32,
    /// Number of entries that are records. There are `depth` entries.
    pub records: u32,
}

/// The records up to one capture point.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CapturePoint {
    pub point: Point,
    /// Newest first; `[0]` is the transfer into the snapshot. Virtual records are unfiltered: every
    /// filter, model and depth is computed from them. A driver's records are those of the filter
    /// `any`, as it returned them.
    pub records: Vec<NamedRecord>,
    /// A driver's records under each other filter. Each filter has its own hits. Empty for virtual
    /// records.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub by_filter: BTreeMap<String, Vec<NamedRecord>>,
    /// The virtual counts of the same guest by filter, beside emulated records: `wasted` without
    /// the driver's own records.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub traced: BTreeMap<String, WasteCount>,
    /// SHA-256 of the records in symbolic form, which KASLR does not change.
    pub digest: String,
    /// Wasted records by modelled CPU and by filter, in perf's names.
    pub wasted: BTreeMap<String, BTreeMap<String, WasteCount>>,
}

/// `None` means that no recorded record of this filter touches the traced function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WasteCount {
    /// Records newer than the newest one whose `from` or `to` is in the function.
    pub wasted: Option<u32>,
    /// By the kernel selftest's stricter rule: `from` and `to` inside the function.
    pub wasted_selftest: Option<u32>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NamedRecord {
    pub from: Place,
    pub to: Place,
    pub kind: trace::Kind,
    /// Added by rule, not observed. A kernel without a PMU driver patches this static call out.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub modelled: bool,
}

/// The source of branch records.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Serialize,
    Deserialize,
    JsonSchema,
    IntoStaticStr,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum BranchSource {
    /// The TCG plugin.
    Virtual,
    /// The CPU's LBR, passed through: the guest's own `bpf_get_branch_snapshot` returned the
    /// records. They are not comparable with virtual records: they include the driver's own
    /// branches, and they end with the ring.
    Hardware,
    /// The TCG plugin plays the registers of a CPU's branch records, and the guest's own driver
    /// reads them. As with hardware, the driver's own branches count.
    Emulated,
}

impl BranchSource {
    pub fn name(self) -> &'static str {
        self.into()
    }

    /// True if the guest's driver handed the records over, with its own among them.
    pub fn is_of_driver(self) -> bool {
        self != BranchSource::Virtual
    }
}
