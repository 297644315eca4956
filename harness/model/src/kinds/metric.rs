// SPDX-License-Identifier: MIT OR Apache-2.0
//! Metrics: the names of the numbers that cells measure.

use super::{Kind, Test, attach, bench, kselftest, lbr_waste, plain, survive, test_progs, trigger};
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, de::Error};
use std::{fmt, str::FromStr};
use strum::VariantArray;

/// How much worse the head may be than its base.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Tolerance {
    /// Additional wasted branch records.
    pub wasted: u32,
    /// Additional instructions, taken branches, reads, writes or mispredicted branches of a hit.
    pub trigger: u32,
    /// Per cent by which a time may be longer, with its whole confidence interval.
    #[serde(deserialize_with = "per_cent")]
    #[schemars(range(min = 0))]
    pub time_percent: f64,
    /// Per cent by which attach times of the exact clock, and instructions of attaching, may grow.
    #[serde(deserialize_with = "per_cent")]
    #[schemars(range(min = 0))]
    pub exact_percent: f64,
}

impl Tolerance {
    /// For callers that look for any difference.
    pub const NONE: Tolerance =
        Tolerance { wasted: 0, trigger: 0, time_percent: 0.0, exact_percent: 0.0 };
}

/// A negative tolerance would make equal numbers worse.
fn per_cent<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    let number = f64::deserialize(deserializer)?;
    if number >= 0.0 && number.is_finite() {
        Ok(number)
    } else {
        Err(D::Error::custom("expected 0 or more per cent"))
    }
}

impl Default for Tolerance {
    fn default() -> Tolerance {
        // Waste and the cost of a hit are exact. Under TCG code layout alone moves a time by some
        // per cent. 64 added functions that nobody calls move the instructions of attaching by a
        // third of a per cent.
        Tolerance { wasted: 0, trigger: 0, time_percent: 5.0, exact_percent: 0.5 }
    }
}

/// The facts that every metric has.
#[derive(Clone, Copy, Debug)]
pub struct Definition {
    pub unit: &'static str,
    pub repeats: Repeats,
    pub more_is_better: bool,
}

impl Definition {
    pub(super) const fn less_is_better(unit: &'static str, repeats: Repeats) -> Definition {
        Definition { unit, repeats, more_is_better: false }
    }
}

/// The agreement of two runs on one kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Repeats {
    /// They measure the same number. A suite may give it a budget.
    Always,
    /// No clock of the host moves it, but other threads or the kernel's layout may.
    Nearly,
    /// A time or a rate by the host's clock, measured in several boots.
    InManyBoots,
    /// A time of one boot by the host's clock. It is not judged.
    InOneBoot,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Metric {
    LbrWaste(lbr_waste::Metric),
    Attach(attach::Metric),
    Trigger(trigger::Metric),
    /// Hits per second.
    Bench(bench::Test),
    /// How the test ended.
    TestProgs(test_progs::Test),
    /// How the program ended.
    Kselftest(kselftest::Test),
    /// The kernel's survival of a storm.
    Survive(survive::Test),
}

impl Metric {
    /// The test that measures it.
    pub fn test(&self) -> Test {
        match *self {
            Metric::LbrWaste(metric) => Test::LbrWaste(metric.test()),
            Metric::Attach(metric) => Test::Attach(metric.test),
            Metric::Trigger(metric) => Test::Trigger(metric.test),
            Metric::Bench(test) => Test::Bench(test),
            Metric::TestProgs(test) => Test::TestProgs(test),
            Metric::Kselftest(test) => Test::Kselftest(test),
            Metric::Survive(test) => Test::Survive(test),
        }
    }

    pub fn definition(&self) -> Definition {
        match self {
            Metric::LbrWaste(_) => Definition::less_is_better("records", Repeats::Always),
            Metric::Attach(metric) => metric.definition(),
            Metric::Trigger(metric) => metric.cost.definition().metric,
            Metric::Bench(_) => {
                Definition { unit: "M/s", repeats: Repeats::InManyBoots, more_is_better: true }
            }
            Metric::TestProgs(_) | Metric::Kselftest(_) | Metric::Survive(_) => {
                Definition::less_is_better("result", Repeats::Nearly)
            }
        }
    }

    pub fn unit(&self) -> &'static str {
        self.definition().unit
    }

    /// True for a time or a rate of several boots. Statistics judge it.
    pub fn is_time(&self) -> bool {
        self.definition().repeats == Repeats::InManyBoots
    }

    /// True if the number depends on the host's speed.
    pub fn is_by_hosts_clock(&self) -> bool {
        matches!(self.definition().repeats, Repeats::InManyBoots | Repeats::InOneBoot)
    }

    /// True if two runs on one kernel measure the same number.
    pub fn repeats(&self) -> bool {
        self.definition().repeats == Repeats::Always
    }

    /// True for estimated cycles.
    pub fn is_estimate(&self) -> bool {
        match self {
            Metric::Attach(of) => matches!(of.number, attach::Number::EstimatedCycles(_)),
            Metric::Trigger(of) => of.cost == trigger::Cost::EstimatedCycles,
            _ => false,
        }
    }

    /// The number of functions that the test asks for. None if it asks for all.
    pub fn asked_for(&self) -> Option<u32> {
        match self {
            Metric::Attach(metric) => metric.asked_for(),
            _ => None,
        }
    }

    /// Parses the rest of a name, after the kind and a dot.
    fn parse(kind: Kind, rest: &str) -> Option<Metric> {
        Some(match kind {
            Kind::LbrWaste => Metric::LbrWaste(lbr_waste::Metric::parse(rest)?),
            Kind::Attach => Metric::Attach(attach::Metric::parse(rest)?),
            Kind::Trigger => Metric::Trigger(trigger::Metric::parse(rest)?),
            Kind::Bench => Metric::Bench(bench::Test::parse(rest.strip_suffix(".rate")?)?),
            Kind::TestProgs => {
                Metric::TestProgs(test_progs::Test::parse(rest.strip_suffix(".result")?)?)
            }
            Kind::Kselftest => {
                Metric::Kselftest(kselftest::Test::parse(rest.strip_suffix(".result")?)?)
            }
            Kind::Survive => Metric::Survive(survive::Test::parse(rest.strip_suffix(".result")?)?),
            Kind::Build | Kind::Boot | Kind::Fault => return None,
        })
    }
}

impl Kind {
    /// The syntax of its metrics' names. None if it measures no number.
    fn metric_syntax(self) -> Option<&'static str> {
        match self {
            Kind::LbrWaste => Some(lbr_waste::METRIC_SYNTAX),
            Kind::Attach => Some(attach::METRIC_SYNTAX),
            Kind::Trigger => Some(trigger::METRIC_SYNTAX),
            Kind::Bench => Some(bench::METRIC_SYNTAX),
            Kind::TestProgs => Some(test_progs::METRIC_SYNTAX),
            Kind::Kselftest => Some(kselftest::METRIC_SYNTAX),
            Kind::Survive => Some(survive::METRIC_SYNTAX),
            Kind::Build | Kind::Boot | Kind::Fault => None,
        }
    }
}

/// `lbr_waste.kretprobe_multi.any`, `attach.fentry.1000.detach`.
impl fmt::Display for Metric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = self.test().kind().name();
        let name = match self {
            Metric::LbrWaste(metric) => format!("{kind}.{metric}"),
            Metric::Attach(metric) => format!("{kind}.{metric}"),
            Metric::Trigger(metric) => format!("{kind}.{metric}"),
            Metric::Bench(test) => format!("{kind}.{test}.rate"),
            Metric::TestProgs(test) => format!("{kind}.{test}.result"),
            Metric::Kselftest(test) => format!("{kind}.{test}.result"),
            Metric::Survive(test) => format!("{kind}.{test}.result"),
        };
        f.pad(&name)
    }
}

/// Parses the names that comparisons print. Also accepts the names in suites (`kprobe.multi`,
/// `kprobe.session/exit`).
impl FromStr for Metric {
    type Err = UnknownMetric;

    fn from_str(name: &str) -> Result<Metric, UnknownMetric> {
        let found =
            name.split_once('.').and_then(|(kind, rest)| Metric::parse(kind.parse().ok()?, rest));
        found.ok_or_else(|| UnknownMetric { name: name.to_owned(), near: nearest(name) })
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "unknown metric `{name}`{}; expected one of: {}; \
     e.g. lbr_waste.kretprobe_multi.any, attach.fentry.1000.attach.instructions, \
     trigger.fentry.branches",
    near.as_ref().map_or_else(String::new, |near| format!(", did you mean `{near}`?")),
    metric_syntax()
)]
pub struct UnknownMetric {
    name: String,
    near: Option<String>,
}

fn metric_syntax() -> String {
    let all: Vec<&str> = Kind::VARIANTS.iter().filter_map(|kind| kind.metric_syntax()).collect();
    all.join(", ")
}

/// The most similar name of a waste or trigger metric.
fn nearest(name: &str) -> Option<String> {
    let wasted = lbr_waste::Metric::all().map(Metric::LbrWaste);
    let costs = trigger::Metric::all_alone().map(Metric::Trigger);
    let name = plain(name);
    let distance = |known: &str| strsim::damerau_levenshtein(&name, &plain(known));
    let known = wasted.chain(costs).map(|metric| metric.to_string());
    // The user may name a mechanism with two rows as if it had one.
    let near = known
        .map(|known| (distance(&known).min(distance(&known.replace("_entry", ""))), known))
        .min()?;
    (near.0 <= SLIP).then_some(near.1)
}

/// Most letters that a typo changes.
const SLIP: usize = 2;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        filter::{Branch, Filter},
        profile,
    };
    use attach::{Number, Phase, Whose};
    use lbr_waste::WasteRow;
    use tramplab_protocol::{Beside, BesideSet, Functions, Mechanism};
    use trigger::Cost;

    fn attach_metric(functions: Functions, number: Number) -> Metric {
        let (mechanism, program, beside) = (Mechanism::KprobeMulti, None, BesideSet::default());
        let test = attach::Test { mechanism, program, beside, functions, among: None };
        Metric::Attach(attach::Metric { test, number })
    }

    fn count(count: u32) -> Functions {
        Functions::Count(count.try_into().unwrap())
    }

    #[test]
    fn parses_printed_names() {
        let mut metrics: Vec<Metric> = lbr_waste::Metric::all().map(Metric::LbrWaste).collect();
        for functions in [count(1000), Functions::All] {
            metrics.push(attach_metric(functions, Number::SystemCalls));
            metrics.extend(Phase::ALL.map(|phase| attach_metric(functions, Number::Time(phase))));
            metrics
                .extend(Phase::ALL.map(|phase| attach_metric(functions, Number::ExactTime(phase))));
            for phase in profile::Phase::ALL {
                let counted =
                    |whose| attach_metric(functions, Number::Instructions { phase, whose });
                metrics.extend(Whose::ALL.map(counted));
                metrics.push(attach_metric(functions, Number::GracePeriods(phase)));
            }
        }
        let beside = BesideSet::of([Beside::FunctionTracer]).unwrap();
        let function = Some("do_open.constprop.0".parse().unwrap());
        let program = Some("on_hit".parse().unwrap());
        let test = trigger::Test { mechanism: Mechanism::KprobeMulti, program, beside, function };
        metrics.extend(Cost::ALL.map(|cost| Metric::Trigger(trigger::Metric { test, cost })));
        for metric in metrics {
            assert_eq!(metric.to_string().parse(), Ok(metric), "{metric}");
            let Metric::Attach(mut metric) = metric else { continue };
            for among in ["tcp_*", "a.constprop.[01]", "ext4:ext4_*", "mine"] {
                metric.test.among = Some(among.parse().unwrap());
                let metric = Metric::Attach(metric);
                assert_eq!(metric.to_string().parse(), Ok(metric), "{metric}");
            }
        }
        for row in WasteRow::all().map(|row| WasteRow { program, function, ..row }) {
            let metric =
                Metric::LbrWaste(lbr_waste::Metric { row, filter: Filter::of(Branch::AnyCall) });
            assert_eq!(metric.to_string().parse(), Ok(metric), "{metric}");
            assert_eq!(row.to_string().parse::<WasteRow>().unwrap(), row);
        }
    }

    #[test]
    fn names_metrics() {
        let (phase, whose) = (profile::Phase::Attach, Whose::Thread);
        for (metric, name) in [
            (
                attach_metric(count(1000), Number::ExactTime(Phase::Detach)),
                "attach.kprobe_multi.1000.detach.exact",
            ),
            (
                attach_metric(Functions::All, Number::Instructions { phase, whose }),
                "attach.kprobe_multi.all.attach.instructions",
            ),
            (
                attach_metric(count(1000), Number::GracePeriods(phase)),
                "attach.kprobe_multi.1000.attach.grace_periods",
            ),
            (
                attach_metric(Functions::All, Number::SystemCalls),
                "attach.kprobe_multi.all.syscall_instructions",
            ),
            ("bench.trig-fentry.rate".parse().unwrap(), "bench.trig-fentry.rate"),
            ("kselftest.a/b.result".parse().unwrap(), "kselftest.a/b.result"),
        ] {
            assert_eq!(metric.to_string(), name);
        }
    }

    #[test]
    fn reads_other_spellings_and_suggests_the_nearest_name() {
        for (other, name) in [
            ("lbr_waste.kretprobe.multi.any", "lbr_waste.kretprobe_multi.any"),
            ("lbr_waste.kprobe.session/exit.any_call", "lbr_waste.kprobe_session_exit.any_call"),
            ("lbr_waste.fexit.cond|any_call", "lbr_waste.fexit.any_call|cond"),
            ("lbr_waste.fexit.call|ind_jump", "lbr_waste.fexit.ind_jump|call"),
            ("attach.fentry.1000.instructions", "attach.fentry.1000.attach.instructions"),
            ("attach.kprobe.multi.all.detach.exact", "attach.kprobe_multi.all.detach.exact"),
            (
                "attach.fentry+kprobe.multi:12x1000+function_tracer:1.9@a.b_*.attach",
                "attach.fentry+kprobe_multi:12x1000+function_tracer:1.9@a.b_*.attach",
            ),
            ("attach.kprobe.multi.9@a.b_*.attach", "attach.kprobe_multi.9@a.b_*.attach"),
            ("attach.fexit.all@a.instructions", "attach.fexit.all@a.attach.instructions"),
            ("trigger.fentry+kprobe.multi.branches", "trigger.fentry+kprobe_multi.branches"),
            (
                "trigger.fexit+kprobe.multi:12x1000+7xfentry.time",
                "trigger.fexit+7xfentry+kprobe_multi:12x1000.time",
            ),
            (
                "attach.kprobe.multi.12x1000.instructions",
                "attach.kprobe_multi.12x1000.attach.instructions",
            ),
            ("lbr_waste.kprobe.multi@a.isra.0.any", "lbr_waste.kprobe_multi@a.isra.0.any"),
            (
                "lbr_waste.kprobe.session/exit@__sys_bpf.any",
                "lbr_waste.kprobe_session_exit@__sys_bpf.any",
            ),
            ("trigger.fexit+kprobe.multi@f.time", "trigger.fexit+kprobe_multi@f.time"),
            ("trigger.kprobe.multi=p@f.time", "trigger.kprobe_multi=p@f.time"),
            (
                "attach.kprobe.multi=p.10.instructions",
                "attach.kprobe_multi=p.10.attach.instructions",
            ),
            ("lbr_waste.kprobe.session/exit=p.any", "lbr_waste.kprobe_session_exit=p.any"),
        ] {
            assert_eq!(other.parse::<Metric>().unwrap().to_string(), name);
        }
        for bad in [
            "",
            "lbr_waste",
            "lbr_waste.kretprobe_multi",
            "lbr_waste.kretprobe_multi.all",
            "lbr_waste.kfoo.any",
            "lbr_waste.fexit.any_call|",
            "lbr_waste.fexit.cond|call|return",
            "attach.fentry.0.attach",
            "attach.fentry.attach",
            "attach.fentry.10.load.instructions",
            "attach.fentry.10.attach.exact.instructions",
            "trigger.fentry+.branches",
            "trigger.fentry+0xfentry.branches",
            "attach.fentry.12x1000.attach",
            "attach.fentry+fentry.10.attach",
            "attach.fentry.10.attach.syscall_instructions",
            "attach.fentry.10+kprobe_multi:1000.attach",
            "trigger.fentry.records",
            "trigger.fentry@.branches",
            "trigger.fentry=.branches",
            "trigger.fentry+kprobe_multi=p.branches",
            "lbr_waste.fentry@tcp_*.any",
            "attach.fentry@f.10.attach",
            "attach.fentry.10@.attach",
            "attach.fentry.10@a/b.attach",
        ] {
            assert!(bad.parse::<Metric>().is_err(), "{bad}");
        }
        for (slip, meant) in [
            ("lbr_waste.fexitt.any", Some("lbr_waste.fexit.any")),
            ("lbr_waste.fexit.any_call|con", Some("lbr_waste.fexit.any_call|cond")),
            ("lbr_waste.fsession.any", Some("lbr_waste.fsession_entry.any")),
            ("trigger.fentry.branch", Some("trigger.fentry.branches")),
            ("lbr_waste.nothing.any", None),
        ] {
            let text = slip.parse::<Metric>().unwrap_err().to_string();
            match meant {
                Some(meant) => {
                    assert!(text.contains(&format!("did you mean `{meant}`?")), "{text}")
                }
                None => assert!(!text.contains("did you mean"), "{text}"),
            }
        }
    }
}
