// SPDX-License-Identifier: MIT OR Apache-2.0
//! The reader's choices: CPU model, filter, depth.

use std::collections::BTreeSet;
use tramplab_analysis::branch::{Filter, Model};
use tramplab_model::run::{Arch, Cell, Measurement, Run};

/// The choices that a reader has. The first of `models` and `filters` is shown first.
pub struct Choices {
    /// Those of the run's architectures.
    pub models: Vec<Model>,
    pub filters: Vec<Filter>,
    /// In ascending order.
    pub depths: Vec<u32>,
    /// The depth that is shown first.
    pub depth: u32,
}

impl Choices {
    /// `asked` is the model that the reader named on the command line. Without one, the first CPU
    /// as which guests booted is shown first.
    pub fn new(run: &Run, asked: Option<Model>) -> Choices {
        let arches: BTreeSet<Arch> = run.cells.iter().map(|cell| cell.id.arch).collect();
        let arches = if arches.is_empty() { BTreeSet::from([Arch::X86_64]) } else { arches };
        let mut models: Vec<Model> = arches.iter().flat_map(|&arch| Model::of(arch)).collect();
        let booted = run.kernels.iter().find_map(|kernel| {
            let branches = &kernel.cpu()?.cpu.branches;
            Some((Model::of_branches(branches)?, branches.depth?))
        });
        let first = asked.or(booted.map(|(model, _)| model));
        if let Some(at) = models.iter().position(|model| Some(*model) == first) {
            models[..=at].rotate_right(1);
        }
        let mut depths: BTreeSet<u32> =
            models.iter().flat_map(|model| model.depths()).copied().collect();
        let of_cpu = booted.filter(|(model, _)| *model == models[0]).map(|(_, depth)| depth);
        let depth = ring(run).or(of_cpu).unwrap_or(models[0].depth());
        depths.insert(depth);
        Choices {
            depth,
            depths: depths.into_iter().collect(),
            models,
            filters: Filter::measured().collect(),
        }
    }

    /// The model that is shown first.
    pub fn model(&self) -> Model {
        self.models[0]
    }
}

/// The depth of the CPU that kept the records, if it was a real one.
fn ring(run: &Run) -> Option<u32> {
    run.cells.iter().find_map(|cell: &Cell| match &cell.measurement {
        Some(Measurement::LbrWaste(waste)) => waste.depth,
        _ => None,
    })
}

/// Makes something for each model. Models with the same share one; if all have the same, it names
/// none.
pub fn by_model<T: PartialEq>(choices: &Choices, of: impl Fn(Model) -> T) -> Vec<(Vec<Model>, T)> {
    let mut all: Vec<(Vec<Model>, T)> = Vec::new();
    for &model in &choices.models {
        let made = of(model);
        match all.iter_mut().find(|(_, known)| *known == made) {
            Some((models, _)) => models.push(model),
            None => all.push((vec![model], made)),
        }
    }
    if let [(models, _)] = &mut all[..] {
        models.clear();
    }
    all
}

/// Names, separated by spaces.
pub fn names(models: &[Model]) -> String {
    models.iter().map(|model| model.name()).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{run, two_architectures};

    #[test]
    fn offers_the_models_of_the_runs_architectures() {
        let choices = Choices::new(&run(), None);
        assert_eq!(choices.models, [Model::IntelLbr, Model::ArchLbr, Model::AmdLbrV2]);
        assert_eq!((choices.depth, &choices.depths[..]), (32, &[8, 16, 32][..]));
        let both = Choices::new(&two_architectures(), None);
        assert_eq!((both.models.len(), both.model()), (4, Model::IntelLbr));
        let asked = Choices::new(&run(), Some(Model::AmdLbrV2));
        assert_eq!(asked.models, [Model::AmdLbrV2, Model::IntelLbr, Model::ArchLbr]);
        assert_eq!(asked.depth, 16);
        let other = Choices::new(&run(), Some(Model::Brbe));
        assert_eq!(other.model(), Model::IntelLbr);
        // As the guests booted.
        let mut booted = run();
        crate::tests::boot_as_zen4(&mut booted);
        let choices = Choices::new(&booted, None);
        assert_eq!((choices.model(), choices.depth), (Model::AmdLbrV2, 16));
        assert_eq!(Choices::new(&booted, Some(Model::ArchLbr)).depth, 32);
    }

    #[test]
    fn models_that_show_the_same_share_it() {
        let choices = Choices::new(&run(), None);
        let is_amd = by_model(&choices, |model| model == Model::AmdLbrV2);
        assert_eq!(
            is_amd,
            [(vec![Model::IntelLbr, Model::ArchLbr], false), (vec![Model::AmdLbrV2], true)]
        );
        assert_eq!(by_model(&choices, |_| 1), [(vec![], 1)]);
        assert_eq!(names(&is_amd[0].0), "intel-lbr arch-lbr");
    }
}
