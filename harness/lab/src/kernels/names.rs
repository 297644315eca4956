// SPDX-License-Identifier: MIT OR Apache-2.0
//! Names of the kernels of a series, and their steps.

use super::Ready;
use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
};
use tramplab_kernel::{Image, Manifest, series::Series};
use tramplab_model::{
    run::{self, Built, Outcome, SeriesStep},
    tree_tests,
};

/// A kernel without the patches is the kernel; with some of them it is named after them. A base
/// that patches prepare has none of the series' own: `k+series.0`.
pub(super) fn name(kernel: &str, series: &Series, applied: usize) -> String {
    let (series_name, all) = (&series.name, series.patches.len() - series.base);
    match (applied, patches_in(series, applied)) {
        (0, _) => kernel.to_owned(),
        (_, patches) if patches == all => format!("{kernel}+{series_name}"),
        (_, patches) => format!("{kernel}+{series_name}.{patches}"),
    }
}

/// The kernels that are made of one, in the order of the patches.
pub(super) fn names(kernel: &str, series: Option<&Series>, each: bool) -> Vec<String> {
    let Some(series) = series else { return vec![kernel.to_owned()] };
    let mut applied = stages(series, each);
    applied.sort_by_key(|&applied| patches_in(series, applied));
    applied.into_iter().map(|applied| name(kernel, series, applied)).collect()
}

/// Jobs are named after the first kernel and the last.
pub(super) fn put_before_the_head(
    kernels: &mut Vec<Ready>,
    placebos: impl IntoIterator<Item = Ready>,
) {
    let head = kernels.len() - 1;
    kernels.splice(head..head, placebos);
}

pub(super) fn placebo_name(manifest: &Manifest, number: usize) -> String {
    format!("{}+placebo.{number}", manifest.name)
}

/// The same kernels and series for guests that boot otherwise. The first has the builds' cells.
pub(super) fn booted_otherwise(
    from: &Manifest,
    to: &Manifest,
    kernels: &[Ready],
    series: &run::Series,
) -> (Vec<Ready>, run::Series) {
    let renamed = |name: &String| match name.strip_prefix(&from.name) {
        Some(rest) => format!("{}{rest}", to.name),
        None => name.clone(),
    };
    let kernel = |ready: &Ready| {
        let name = renamed(&ready.facts.name);
        let facts = run::Kernel {
            name: name.clone(),
            configuration: to.configuration.clone(),
            ..ready.facts.clone()
        };
        Ready {
            facts,
            image: ready.image.clone().map(|image| Image { name, ..image }),
            tree_tests: ready.tree_tests.clone(),
            budgets_of: ready.budgets_of.as_ref().map(renamed),
            build: None,
        }
    };
    let step = |step: &SeriesStep| SeriesStep { kernel: renamed(&step.kernel), ..step.clone() };
    let series = run::Series {
        steps: series.steps.iter().map(step).collect(),
        placebos: series.placebos.iter().map(renamed).collect(),
        ..series.clone()
    };
    (kernels.iter().map(kernel).collect(), series)
}

/// A kernel of which nothing but the name is known.
pub(super) fn unbuilt(manifest: &Manifest, name: String) -> Ready {
    let facts = run::Kernel {
        name: name.clone(),
        arch: manifest.arch,
        source: String::new(),
        commit: None,
        image_sha256: None,
        config_sha256: None,
        build: None,
        paravirt_xxl: None,
        configuration: manifest.configuration.clone(),
    };
    let image = Image {
        name,
        arch: manifest.arch,
        image: PathBuf::new(),
        vmlinux: None,
        functions: None,
        config: None,
        config_file: None,
        modules: Vec::new(),
        loadable: Default::default(),
        source: String::new(),
        sha256: String::new(),
    };
    Ready {
        facts,
        image: Some(image),
        tree_tests: None,
        budgets_of: Some(manifest.name.clone()),
        build: None,
    }
}

/// The files of tests of `test_progs` that a series adds or changes.
pub(super) fn files_of_tests(series: &Series) -> BTreeSet<String> {
    let folder = Path::new(tree_tests::FOLDER).join("prog_tests");
    let touched = series.patches.iter().flat_map(|patch| &patch.touched);
    let file = |path: &PathBuf| {
        let file = path.strip_prefix(&folder).ok()?.to_str()?;
        (file.ends_with(".c") && !file.contains('/')).then(|| file.to_owned())
    };
    touched.filter_map(file).collect()
}

/// How many patches are applied, or taken out, for the base, the head, and with `each` what is
/// between.
pub(super) fn stages(series: &Series, each: bool) -> Vec<usize> {
    let (base, all) = (series.base, series.patches.len());
    if each { (base..=all).collect() } else { vec![base, all] }
}

/// How many of the series' own patches are in when so many have been applied, or taken out.
pub(super) fn patches_in(series: &Series, applied: usize) -> usize {
    match series.reverse {
        true => series.patches.len() - applied,
        false => applied.saturating_sub(series.base),
    }
}

pub(super) fn step(
    series: &Series,
    applied: usize,
    names: &[String],
    made: &BTreeMap<usize, Ready>,
) -> SeriesStep {
    let patches = patches_in(series, applied);
    let last = patches.checked_sub(1).map(|last| series.base + last);
    let subject = last.map(|last| series.patches[last].subject.clone());
    let built =
        match made.get(&applied).and_then(|ready| ready.build.as_ref()).map(|build| &build.outcome)
        {
            Some(Outcome::Error { message, .. }) => Built::Failed { message: message.clone() },
            Some(_) => Built::Yes,
            None => Built::NotReached,
        };
    SeriesStep { kernel: names[applied].clone(), patches: patches as u32, subject, built }
}
