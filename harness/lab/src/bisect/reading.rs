// SPDX-License-Identifier: MIT OR Apache-2.0
//! The reading of one kernel, and the end that it belongs to. Pure.

use super::{Question, state::Verdict};
use serde::{Deserialize, Serialize};
use std::fmt;
use tramplab_analysis::{
    branch::Model,
    compare::{self, Ratio, Value},
    spread::median,
};
use tramplab_model::run::{Cell, ErrorKind, Outcome};

/// The answer of one kernel to the question.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Reading {
    /// `number` is `None` if no record touches the traced function, which is worse than any number.
    Exact {
        number: Option<u64>,
        /// The number of attached functions, if kernels may differ in it.
        functions: Option<u32>,
    },
    /// Boot by boot, in milliseconds.
    Times(Vec<f64>),
    Ending(Ending),
}

/// The outcome of a cell without its reasons, for comparing two.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Ending {
    Pass,
    Fail,
    Skip,
    Error(ErrorKind),
}

/// A kernel without an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unread {
    /// The kernel is at fault: skip the commit.
    Skip(String),
    /// This machine or tramplab is at fault: the commit stays unknown.
    Infrastructure(String),
}

impl Reading {
    /// The cell's answer to the question. Waste is counted on `model`.
    pub fn of(question: &Question, cell: &Cell, model: Model) -> Result<Reading, Unread> {
        let ending = match &cell.outcome {
            Outcome::Pass => Ending::Pass,
            Outcome::Fail { .. } => Ending::Fail,
            Outcome::Skip { .. } => Ending::Skip,
            Outcome::Error {
                kind: kind @ (ErrorKind::Harness | ErrorKind::QemuStart | ErrorKind::Starved),
                message,
            } => {
                return Err(Unread::Infrastructure(format!("{kind}: {message}")));
            }
            Outcome::Error { kind, .. } => Ending::Error(*kind),
        };
        let Question::Number(wanted) = question else { return Ok(Reading::Ending(ending)) };
        match &cell.outcome {
            Outcome::Error { kind, message } => {
                return Err(Unread::Skip(format!("{kind}: {message}")));
            }
            Outcome::Skip { reason } => return Err(Unread::Skip(reason.clone())),
            Outcome::Pass | Outcome::Fail { .. } => {}
        }
        let Some(value) = compare::value(cell, *wanted, model) else {
            return Err(Unread::Skip(format!("the cell measured no {wanted}")));
        };
        let exact = |number: u64| Reading::Exact { number: Some(number), functions: None };
        match value {
            Value::Records(records) => {
                Ok(Reading::Exact { number: records.map(u64::from), functions: None })
            }
            Value::Count(count) => Ok(exact(count.into())),
            Value::ExactTime(ns) => Ok(exact(ns)),
            Value::Waiting(waiting) => Ok(exact(waiting.median)),
            Value::InPhase { repeats: false, .. } => {
                Err(Unread::Skip("its instructions were counted under the host's clock".to_owned()))
            }
            Value::InPhase { count, functions, repeats: true } => {
                Ok(Reading::Exact { number: Some(count), functions: Some(functions) })
            }
            Value::Times(times) => Ok(Reading::Times(times)),
            Value::PerHit(_) => Err(Unread::Skip("it is of one boot".to_owned())),
            // No question asks for them.
            Value::Rates(..) | Value::Ended(_) => {
                Err(Unread::Skip(format!("{wanted} is no number to part commits by")))
            }
            stopped @ Value::Stopped(_) => {
                Err(Unread::Skip(format!("a time budget ended it: {stopped}")))
            }
        }
    }
}

impl fmt::Display for Reading {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reading::Exact { number: Some(number), .. } => f.pad(&number.to_string()),
            Reading::Exact { number: None, .. } => f.pad("-"),
            Reading::Times(times) => f.pad(&format!("{:.3} (n={})", median(times), times.len())),
            Reading::Ending(ending) => ending.fmt(f),
        }
    }
}

impl fmt::Display for Ending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Ending::Pass => f.pad("pass"),
            Ending::Fail => f.pad("fail"),
            Ending::Skip => f.pad("skip"),
            Ending::Error(kind) => f.pad(&format!("error: {kind}")),
        }
    }
}

/// The readings of both ends. They differ, and so divide the commits between them.
#[derive(Clone, Debug, PartialEq)]
pub struct Ends {
    good: Reading,
    bad: Reading,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoDifference {
    #[error("both ends give the same ({0}): there is nothing to find between them")]
    Same(String),
    #[error(
        "the ends were attached to other functions, {good} and {bad}: their numbers cannot be laid \
         beside each other"
    )]
    OtherFunctions { good: u32, bad: u32 },
}

impl Ends {
    /// Times are compared by [`differ`] before.
    pub fn new(good: Reading, bad: Reading) -> Result<Ends, NoDifference> {
        let of = |reading: &Reading| match reading {
            Reading::Exact { functions, .. } => *functions,
            _ => None,
        };
        if of(&good) != of(&bad) {
            let [good, bad] = [good, bad].map(|reading| of(&reading).unwrap_or(0));
            return Err(NoDifference::OtherFunctions { good, bad });
        }
        if good == bad { Err(NoDifference::Same(good.to_string())) } else { Ok(Ends { good, bad }) }
    }

    /// The end that the reading belongs to, or why it belongs to neither. A number belongs to the
    /// nearer end; one in the middle is `Bad`, since it has left the good end.
    pub fn side(&self, reading: &Reading) -> Verdict {
        match (&self.good, &self.bad, reading) {
            (
                &Reading::Exact { number: good, functions: expected },
                &Reading::Exact { number: bad, .. },
                &Reading::Exact { number, functions },
            ) => {
                if functions != expected {
                    let [expected, functions] =
                        [expected, functions].map(|number| number.unwrap_or(0));
                    return Verdict::Skip(format!(
                        "it was attached to {functions} functions, the ends to {expected}"
                    ));
                }
                nearer(good, bad, number)
            }
            (Reading::Ending(good), Reading::Ending(bad), Reading::Ending(ending)) => {
                match ending {
                    ending if ending == good => Verdict::Good,
                    ending if ending == bad => Verdict::Bad,
                    other => Verdict::Skip(format!(
                        "it ends neither as the good end nor as the bad: {other}"
                    )),
                }
            }
            _ => Verdict::Skip("it was not measured as the ends were".to_owned()),
        }
    }

    /// The side of a commit that was timed beside both ends. The ends' own times, which proved that
    /// they differ, say which direction is worse: the few times of this look may be turned around.
    pub fn side_beside(&self, times: &Interleaved) -> Option<Verdict> {
        let (Reading::Times(good), Reading::Times(bad)) = (&self.good, &self.bad) else {
            return None;
        };
        let ends = Interleaved { good: good.clone(), bad: bad.clone(), candidate: Vec::new() };
        let rises = ends.differ()?.mean > 1.0;
        let candidate = times.beside_the_middle()?;
        match (candidate.low > 1.0, candidate.high < 1.0) {
            (true, _) => Some(if rises { Verdict::Bad } else { Verdict::Good }),
            (_, true) => Some(if rises { Verdict::Good } else { Verdict::Bad }),
            _ => None,
        }
    }

    /// A line such as `8 is good, 11 is bad, from 10 on`.
    pub fn threshold(&self) -> String {
        match (&self.good, &self.bad) {
            (
                &Reading::Exact { number: Some(good), .. },
                &Reading::Exact { number: Some(bad), .. },
            ) if good < bad => {
                format!(
                    "{good} is good, {bad} is bad, and so is all from {} on",
                    good + (bad - good).div_ceil(2)
                )
            }
            (
                &Reading::Exact { number: Some(good), .. },
                &Reading::Exact { number: Some(bad), .. },
            ) => {
                format!(
                    "{good} is good, {bad} is bad, and so is all up to {}",
                    bad + (good - bad) / 2
                )
            }
            (Reading::Times(good), Reading::Times(bad)) => format!(
                "{:.3} is good, {:.3} is bad; a commit is what lies on one side of the middle for \
                 sure",
                median(good),
                median(bad)
            ),
            (good, bad) => format!("{good} is good, {bad} is bad"),
        }
    }
}

/// `None` is above every number.
fn nearer(good: Option<u64>, bad: Option<u64>, number: Option<u64>) -> Verdict {
    match (good, bad, number) {
        (Some(good), Some(bad), Some(number)) => {
            // A number beyond an end counts as that end.
            let number = number.clamp(good.min(bad), good.max(bad));
            if number.abs_diff(good) < number.abs_diff(bad) { Verdict::Good } else { Verdict::Bad }
        }
        (Some(good), Some(bad), None) => {
            if bad > good {
                Verdict::Bad
            } else {
                Verdict::Good
            }
        }
        (good, _, number) => {
            if number.is_none() == good.is_none() {
                Verdict::Good
            } else {
                Verdict::Bad
            }
        }
    }
}

/// The probability, over all looks, of putting a commit on the wrong side, or of seeing a
/// difference between equal ends.
const ALPHA: f64 = 0.01;
/// Measurements of a commit before it is called unsure.
pub const LOOKS: u32 = 4;

/// Times of kernels that took turns. Equal indices were measured side by side.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Interleaved {
    pub good: Vec<f64>,
    pub bad: Vec<f64>,
    /// Empty while only the ends are measured.
    pub candidate: Vec<f64>,
}

impl Interleaved {
    /// Bad over good, if its confidence interval excludes 1.
    pub fn differ(&self) -> Option<Ratio> {
        let ratio = interval(&self.good, &self.bad, |good, bad| (bad / good).ln())?;
        (ratio.low > 1.0 || ratio.high < 1.0).then_some(ratio)
    }

    /// The candidate over the middle between the ends, boot by boot.
    fn beside_the_middle(&self) -> Option<Ratio> {
        let middle: Vec<f64> =
            self.good.iter().zip(&self.bad).map(|(good, bad)| (good * bad).sqrt()).collect();
        interval(&middle, &self.candidate, |middle, time| (time / middle).ln())
    }
}

fn interval(a: &[f64], b: &[f64], log: fn(f64, f64) -> f64) -> Option<Ratio> {
    if a.len() != b.len() || a.iter().chain(b).any(|&time| !time.is_finite() || time <= 0.0) {
        return None;
    }
    let logs: Vec<f64> = a.iter().zip(b).map(|(&a, &b)| log(a, b)).collect();
    Ratio::of_logs(&logs, ALPHA / f64::from(LOOKS))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bisect::Mark;
    use tramplab_model::run::{Measurement, Run};
    use tramplab_testdata::series as recorded;

    fn exact(number: impl Into<Option<u64>>) -> Reading {
        Reading::Exact { number: number.into(), functions: None }
    }

    #[test]
    fn a_number_belongs_to_the_end_that_it_is_nearer_to() {
        use Verdict::{Bad, Good};
        for (good, bad, numbers) in [
            (
                Some(8),
                Some(11),
                vec![(Some(8), Good), (Some(9), Good), (Some(10), Bad), (Some(11), Bad)],
            ),
            // Beyond the ends, the middle, and what lost the function.
            (
                Some(8),
                Some(10),
                vec![(Some(3), Good), (Some(9), Bad), (Some(40), Bad), (None, Bad)],
            ),
            // A search for an improvement works the same way.
            (
                Some(11),
                Some(8),
                vec![
                    (Some(12), Good),
                    (Some(10), Good),
                    (Some(9), Bad),
                    (Some(1), Bad),
                    (None, Good),
                ],
            ),
            (Some(8), None, vec![(Some(8), Good), (Some(4000), Good), (None, Bad)]),
            (None, Some(8), vec![(None, Good), (Some(9), Bad)]),
            (Some(0), Some(u64::MAX), vec![(Some(1), Good), (Some(u64::MAX - 1), Bad)]),
        ] {
            let ends = Ends::new(exact(good), exact(bad)).unwrap();
            for (number, side) in numbers {
                assert_eq!(ends.side(&exact(number)), side, "{good:?} {bad:?} {number:?}");
            }
        }
    }

    #[test]
    fn the_threshold_is_told() {
        let told = |good: u64, bad: u64| Ends::new(exact(good), exact(bad)).unwrap().threshold();
        assert_eq!(told(8, 11), "8 is good, 11 is bad, and so is all from 10 on");
        assert_eq!(told(8, 10), "8 is good, 10 is bad, and so is all from 9 on");
        assert_eq!(told(11, 8), "11 is good, 8 is bad, and so is all up to 9");
        assert_eq!(told(10, 8), "10 is good, 8 is bad, and so is all up to 9");
        // It is the rule itself.
        for (good, bad) in [(8u64, 11u64), (8, 10), (11, 8), (10, 8), (8, 9), (9, 8), (100, 3)] {
            let ends = Ends::new(exact(good), exact(bad)).unwrap();
            let last: u64 = ends
                .threshold()
                .split_whitespace()
                .filter_map(|word| word.parse().ok())
                .next_back()
                .unwrap();
            let before = if good < bad { last - 1 } else { last + 1 };
            assert_eq!(ends.side(&exact(last)), Verdict::Bad, "{good} {bad}");
            assert_eq!(ends.side(&exact(before)), Verdict::Good, "{good} {bad}");
        }
    }

    #[test]
    fn ends_that_do_not_differ_are_refused() {
        let pass = || Reading::Ending(Ending::Pass);
        assert_eq!(
            Ends::new(exact(8), exact(8)).unwrap_err().to_string(),
            "both ends give the same (8): there is nothing to find between them"
        );
        assert!(Ends::new(pass(), pass()).is_err());
        assert!(Ends::new(exact(None), exact(None)).is_err());
        let of =
            |number, functions| Reading::Exact { number: Some(number), functions: Some(functions) };
        assert!(Ends::new(of(100, 10), of(200, 20)).is_err());
        let ends = Ends::new(of(100, 10), of(200, 10)).unwrap();
        assert_eq!(ends.side(&of(190, 10)), Verdict::Bad);
        let Verdict::Skip(why) = ends.side(&of(190, 9)) else { panic!("it has a side") };
        assert!(why.contains("9 functions"), "{why}");
    }

    #[test]
    fn an_ending_is_the_good_ends_or_the_bad_ends_or_neither() {
        let ending = |ending| Reading::Ending(ending);
        let ends =
            Ends::new(ending(Ending::Pass), ending(Ending::Error(ErrorKind::Panic))).unwrap();
        for (given, mark) in [
            (Ending::Pass, Mark::Good),
            (Ending::Error(ErrorKind::Panic), Mark::Bad),
            (Ending::Error(ErrorKind::Build), Mark::Skip),
            (Ending::Error(ErrorKind::Oops), Mark::Skip),
            (Ending::Error(ErrorKind::BootTimeout), Mark::Skip),
            (Ending::Skip, Mark::Skip),
            (Ending::Fail, Mark::Skip),
        ] {
            assert_eq!(ends.side(&ending(given)).mark(), mark, "{given}");
        }
        // A number is no ending.
        assert_eq!(ends.side(&exact(8)).mark(), Mark::Skip);
    }

    /// A cell of a recorded run, and what is made of it.
    #[test]
    fn what_a_cell_says() {
        let run: Run = recorded();
        let cell = run
            .cells
            .iter()
            .find(|cell| matches!(cell.measurement, Some(Measurement::LbrWaste(_))))
            .unwrap();
        let name = cell.id.test.name().replace("lbr_waste/", "").replace('.', "_");
        let question: Question = format!("lbr_waste.{name}.any").parse().unwrap();
        let model = Model::choose(None, cell.id.arch);
        let Ok(Reading::Exact { number: Some(number), functions: None }) =
            Reading::of(&question, cell, model)
        else {
            panic!("{:?}", Reading::of(&question, cell, model))
        };
        assert!((1..40).contains(&number));
        // A union has at least as many records as each of its parts, also one that no table shows.
        let waste = |filter: &str| {
            let question: Question = format!("lbr_waste.{name}.{filter}").parse().unwrap();
            match Reading::of(&question, cell, model) {
                Ok(Reading::Exact { number: Some(number), functions: None }) => number,
                other => panic!("{filter}: {other:?}"),
            }
        };
        for union in ["any_call|cond", "any_call|ind_jump"] {
            assert!((waste("any_call")..=number).contains(&waste(union)), "{union}");
        }
        let ended = |outcome| Cell { outcome, measurement: None, ..cell.clone() };
        let error = |kind| ended(Outcome::Error { kind, message: "m".to_owned() });
        let skip = ended(Outcome::Skip { reason: "no FPROBE".to_owned() });
        let of = |question: &Question, cell: &Cell| Reading::of(question, cell, model);
        // A kernel that dies or cannot has no number, and is skipped; what is ours is never the
        // commit's.
        assert_eq!(
            of(&question, &error(ErrorKind::Panic)),
            Err(Unread::Skip("panic: m".to_owned()))
        );
        assert_eq!(of(&question, &skip), Err(Unread::Skip("no FPROBE".to_owned())));
        assert_eq!(
            of(&question, &ended(Outcome::Pass)),
            Err(Unread::Skip(format!("the cell measured no {question}")))
        );
        let ending: Question = cell.id.test.name().parse().unwrap();
        for question in [&question, &ending] {
            for kind in [ErrorKind::Harness, ErrorKind::QemuStart, ErrorKind::Starved] {
                assert!(
                    matches!(of(question, &error(kind)), Err(Unread::Infrastructure(_))),
                    "{kind}"
                );
            }
        }
        for (cell, expected) in [
            (cell.clone(), Ending::Pass),
            (error(ErrorKind::Panic), Ending::Error(ErrorKind::Panic)),
            (skip, Ending::Skip),
        ] {
            assert_eq!(
                of(
                    &ending,
                    &Cell {
                        outcome: match expected {
                            Ending::Pass => Outcome::Pass,
                            _ => cell.outcome.clone(),
                        },
                        ..cell
                    }
                ),
                Ok(Reading::Ending(expected))
            );
        }
    }

    #[test]
    fn a_time_is_on_the_side_of_the_middle_where_its_whole_interval_is() {
        use Verdict::{Bad, Good};
        let noise = [1.01, 0.99, 1.02, 0.98, 1.0, 1.003];
        let drift = [1.0, 1.3, 0.8, 1.1, 2.0, 1.0];
        // A slower host slows all three down, boot by boot.
        let times = |factor: f64, turn: usize| -> Vec<f64> {
            (0..6).map(|i| 10.0 * factor * drift[i] * noise[(i + turn) % 6]).collect()
        };
        for (good, bad, candidate, side) in [
            (1.0, 1.3, 1.0, Some(Good)),
            (1.0, 1.3, 1.3, Some(Bad)),
            (1.0, 1.3, 0.7, Some(Good)),
            (1.0, 1.3, 2.0, Some(Bad)),
            // Faster is what is asked for.
            (1.3, 1.0, 1.3, Some(Good)),
            (1.3, 1.0, 1.0, Some(Bad)),
            // In the middle, and ends as near to each other as the noise.
            (1.0, 1.3, 1.14, None),
            (1.0, 1.02, 1.02, None),
        ] {
            let measured = Interleaved {
                good: times(good, 0),
                bad: times(bad, 1),
                candidate: times(candidate, 2),
            };
            let ends = timed(&measured.good, &measured.bad);
            assert_eq!(ends.side_beside(&measured), side, "{good} {bad} {candidate}");
            let differ = measured.differ().map(|ratio| ratio.mean > 1.0);
            let expected = (f64::abs(good - bad) > 0.1).then_some(bad > good);
            assert_eq!(differ, expected, "{good} {bad}");
        }
        // More of the same noise parts what little of it could not.
        let [good, bad, candidate] =
            [(1.0, 0), (1.06, 1), (1.06, 2)].map(|(factor, turn)| times(factor, turn));
        let once = Interleaved { good, bad, candidate };
        let again = |times: &[f64]| times.repeat(4);
        let four = Interleaved {
            good: again(&once.good),
            bad: again(&once.bad),
            candidate: again(&once.candidate),
        };
        let ends = timed(&four.good, &four.bad);
        assert_eq!((ends.side_beside(&once), ends.side_beside(&four)), (None, Some(Bad)));
    }

    fn timed(good: &[f64], bad: &[f64]) -> Ends {
        Ends::new(Reading::Times(good.to_vec()), Reading::Times(bad.to_vec())).unwrap()
    }

    /// More boots have proved that the ends differ; their order in one look proves nothing.
    #[test]
    fn ends_that_change_places_do_not_turn_a_commit_around() {
        let ends =
            timed(&[10.0, 10.1, 9.9, 10.0, 10.1, 10.0], &[10.3, 10.4, 10.4, 10.3, 10.5, 10.4]);
        let look = |candidate: f64| Interleaved {
            good: vec![10.0, 10.4, 9.8, 10.2, 10.1, 10.0],
            bad: vec![10.1, 9.9, 9.9, 10.0, 10.0, 10.1],
            candidate: vec![candidate; 6],
        };
        for (candidate, side) in [(20.0, Verdict::Bad), (5.0, Verdict::Good)] {
            assert_eq!(ends.side_beside(&look(candidate)), Some(side), "{candidate}");
        }
    }

    #[test]
    fn times_that_prove_nothing_are_on_no_side() {
        let ends = timed(&[1.0; 6], &[9.0; 6]);
        let short = Interleaved { good: vec![1.0; 3], bad: vec![9.0; 3], candidate: vec![9.0; 3] };
        assert_eq!((ends.side_beside(&short), short.differ()), (None, None));
        let lost = Interleaved { good: vec![1.0; 6], bad: vec![9.0; 6], candidate: vec![9.0; 5] };
        assert_eq!(ends.side_beside(&lost), None);
        let negative =
            Interleaved { good: vec![1.0; 6], bad: vec![9.0; 6], candidate: vec![-9.0; 6] };
        assert_eq!(ends.side_beside(&negative), None);
    }
}
