// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tells if the verdicts on a series agree in several configurations.

use super::{Comparison, Verdict, whole};
use crate::branch::Model;
use std::collections::BTreeSet;
use tramplab_model::run::{Arch, Configuration, Run, Series};

/// The direction of a comparison's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    Better,
    Worse,
    /// Some numbers better, some worse.
    Mixed,
    Same,
    /// Nothing was measured on both sides.
    Nothing,
}

impl Direction {
    pub fn of(comparison: &Comparison) -> Direction {
        let lost = comparison.unmatched.iter().any(|unmatched| unmatched.lost);
        let any = |wanted: Verdict| comparison.metrics.iter().any(|one| one.verdict == wanted);
        match (any(Verdict::Better), lost || any(Verdict::Worse)) {
            _ if comparison.is_empty() && !lost => Direction::Nothing,
            (true, true) => Direction::Mixed,
            (true, false) => Direction::Better,
            (false, true) => Direction::Worse,
            (false, false) => Direction::Same,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Direction::Better => "better",
            Direction::Worse => "worse",
            Direction::Mixed => "better and worse",
            Direction::Same => "same",
            Direction::Nothing => "not compared",
        }
    }
}

/// The verdicts of a series on one architecture, in each configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Agreement {
    pub series: String,
    pub arch: Arch,
    /// Directions in the order of their first configuration, with what they hold for.
    pub directions: Vec<(Direction, Vec<String>)>,
    /// Metrics that are better in one configuration and worse in another, by name.
    pub turned: Vec<String>,
}

/// Metrics that a sentence names.
const NAMED: usize = 3;

impl Agreement {
    /// True if some number is worse in some configuration.
    pub fn is_worse(&self) -> bool {
        let is_worse = |of: Direction| matches!(of, Direction::Worse | Direction::Mixed);
        self.directions.iter().any(|(direction, _)| is_worse(*direction))
    }

    /// `better as usual; worse as zen4; better in one, worse in another: lbr_waste.fexit.any`.
    pub fn sentence(&self) -> String {
        let one = |(direction, points): &(Direction, Vec<String>)| {
            format!("{} {}", direction.name(), points.join(", "))
        };
        let mut parts: Vec<String> = self.directions.iter().map(one).collect();
        let (named, rest) = self.turned.split_at(self.turned.len().min(NAMED));
        let more = (!rest.is_empty()).then(|| format!(" and {} more", rest.len()));
        let named = (!named.is_empty())
            .then(|| format!("better in one, worse in another: {}", named.join(", ")));
        parts.extend(named.map(|named| named + &more.unwrap_or_default()));
        parts.join("; ")
    }
}

/// Returns the verdicts of each series that was compared in several configurations.
pub fn agreements(run: &Run, asked: Option<Model>) -> Vec<Agreement> {
    let mut together: Vec<Vec<&Series>> = Vec::new();
    for series in &run.series {
        let is_its = |of: &&mut Vec<&Series>| {
            of.first().is_some_and(|one| (&one.name, one.arch) == (&series.name, series.arch))
        };
        match together.iter_mut().find(is_its) {
            Some(of) => of.push(series),
            None => together.push(vec![series]),
        }
    }
    together.retain(|of| of.len() > 1);
    together.iter().filter_map(|of| agreement(run, of, asked)).collect()
}

fn agreement(run: &Run, all: &[&Series], asked: Option<Model>) -> Option<Agreement> {
    let first = all.first()?;
    let mut directions: Vec<(Direction, Vec<String>)> = Vec::new();
    let (mut better, mut worse) = (BTreeSet::new(), BTreeSet::new());
    for series in all {
        let comparison = whole(run, series, asked);
        for compared in &comparison.metrics {
            match compared.verdict {
                Verdict::Better => better.insert(compared.metric.to_string()),
                Verdict::Worse => worse.insert(compared.metric.to_string()),
                _ => false,
            };
        }
        let direction = Direction::of(&comparison);
        let point = label(run, series);
        match directions.iter_mut().find(|(other, _)| *other == direction) {
            Some((_, points)) => points.push(point),
            None => directions.push((direction, vec![point])),
        }
    }
    let turned = better.intersection(&worse).cloned().collect();
    Some(Agreement { series: first.name.clone(), arch: first.arch, directions, turned })
}

/// `as usual`, `as zen4`, `with mitigations=srso`, `as zen4 with mitigations=off`.
pub fn label(run: &Run, series: &Series) -> String {
    let base = run.kernel(series.arch, &series.base().kernel);
    let point = base.and_then(|kernel| kernel.configuration.as_ref());
    let Some(Configuration { model, settings, .. }) = point else { return "as usual".to_owned() };
    let model = model.iter().map(|cpu| format!("as {}", cpu.name));
    let settings: Vec<String> = settings.iter().map(ToString::to_string).collect();
    let settings = (!settings.is_empty()).then(|| format!("with {}", settings.join(", ")));
    model.chain(settings).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use tramplab_model::run::{Kernel, Measurement, Setting};
    use tramplab_testdata::series as recorded;

    /// The recorded series, and the same once more in another configuration, changed by `change`
    /// on its head.
    fn twice(change: impl Fn(&mut u32)) -> Run {
        let mut run = recorded();
        let mut other = run.series[0].clone();
        let again = |name: &str| format!("again.{name}");
        let mut kernels: Vec<Kernel> = run.kernels.clone();
        for kernel in &mut kernels {
            kernel.name = again(&kernel.name);
            kernel.configuration = Some(Configuration {
                of: "k".to_owned(),
                settings: vec![Setting { axis: "mitigations".into(), value: "srso".into() }],
                ..Configuration::default()
            });
        }
        let head = other.head().kernel.clone();
        let mut cells = run.cells.clone();
        for cell in &mut cells {
            if let Some(Measurement::LbrWaste(waste)) = &mut cell.measurement
                && cell.id.kernel == head
            {
                let counts = waste.points.iter_mut().flat_map(|point| point.wasted.values_mut());
                let counts = counts.flat_map(|filters| filters.values_mut());
                counts.filter_map(|count| count.wasted.as_mut()).for_each(&change);
            }
            cell.id.kernel = again(&cell.id.kernel);
        }
        other.steps.iter_mut().for_each(|step| step.kernel = again(&step.kernel));
        run.kernels.extend(kernels);
        run.cells.extend(cells);
        run.series.push(other);
        run
    }

    #[test]
    fn names_the_configuration_in_which_a_series_is_worse() {
        let told =
            |run: &Run| agreements(run, None).iter().map(Agreement::sentence).collect::<Vec<_>>();
        assert!(agreements(&recorded(), None).is_empty(), "one configuration");
        let same = twice(|_| ());
        let [agreement] = &agreements(&same, None)[..] else { panic!() };
        assert_eq!(told(&same), ["better as usual, with mitigations=srso"]);
        let worse = twice(|wasted| *wasted += 20);
        let sentence = "better as usual; better and worse with mitigations=srso; better in one, \
                        worse in another: lbr_waste.fexit.any, lbr_waste.fexit.any_call, \
                        lbr_waste.fexit.any_return and 5 more";
        assert_eq!(told(&worse), [sentence]);
        assert!(agreements(&worse, None)[0].is_worse() && !agreement.is_worse());
        let mut unknown = worse;
        unknown.cells.retain(|cell| !cell.id.kernel.starts_with("again."));
        assert_eq!(told(&unknown), ["better as usual; not compared with mitigations=srso"]);
    }
}
