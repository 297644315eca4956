// SPDX-License-Identifier: MIT OR Apache-2.0
//! A bisection from its question to its answer: the kernel of each commit.

use super::{
    History, Identity, configs,
    options::{BisectOptions, Range, Repository},
    setting::{Setting, quoted},
    state::Sources,
    walk::{Answer, Bisection},
};
use crate::{
    error::{Error, Result},
    event::{Event, Tell},
    kernels::{self, SeriesOptions, WantedKernels},
    scratch::Scratch,
};
use std::fs;
use tramplab_kernel::{Source, source};
use tramplab_model::run::Arch;

pub fn bisect(options: &BisectOptions, tell: Tell) -> Result<Answer> {
    match &options.range {
        Range::Repository(range) => of_tree(options, range, tell),
        Range::Series { series, kernel } => of_series(options, series, kernel.as_deref(), tell),
        Range::Configs(range) => configs::bisect(options, range, tell),
    }
}

fn of_tree(options: &BisectOptions, range: &Repository, tell: Tell) -> Result<Answer> {
    let Repository { tree, good, bad, by_hand } = range;
    let setting = Setting::new(options, tell)?;
    let arch = options.arch.or(Arch::host()).unwrap_or(Arch::X86_64);
    let tree = fs::canonicalize(tree).map_err(|error| {
        Error::Usage(format!("failed to find the tree {}: {error}", tree.display()))
    })?;
    let kernel = |commit: &str| format!("git:{}#{commit}", tree.display());
    let manifest =
        |commit: &str| Ok::<_, Error>(kernels::find(&kernel(commit), &[arch])?.remove(0));
    let resolve = |reference: &str| -> Result<String> {
        let manifest = manifest(reference)?;
        let Source::Built(recipe) = &manifest.source else {
            unreachable!("what git: names is built")
        };
        let sources = source::resolve(&recipe.tree, &setting.cache, &mut |_| ())?;
        Ok(sources.commit().expect("of git").to_owned())
    };
    let asked = Identity {
        question: options.metric.to_string(),
        sources: Sources::Repository(tree.clone()),
        good: resolve(good)?,
        bad: resolve(bad)?,
        arch,
        accel: setting.accel.clone(),
        by_hand: *by_hand,
        model: setting.model.clone(),
    };
    // `git bisect --no-checkout` leaves HEAD alone and moves BISECT_HEAD.
    let chosen =
        by_hand.then(|| resolve("BISECT_HEAD").or_else(|_| resolve("HEAD"))).transpose()?;
    let suite =
        options.metric.suite([&asked.good, &asked.bad].map(|commit| kernel(commit)).to_vec());
    let (lab, place, lock) = setting.open(&asked, suite, options, &[arch])?;
    let history = History::of_repository(&tree, &place.folder.path().join("git"))?;
    let preparing = setting.preparing(&lab, &place);
    let mut make = |commit: &str| {
        let mut manifest = manifest(commit)?;
        if let Source::Built(recipe) = &mut manifest.source {
            // The user names it as good; no candidate is built on another one.
            recipe.variation.starts_from = Some(asked.good.clone());
        }
        preparing.tried(&manifest)
    };
    let reproduce = |before: &str, after: &str| {
        format!("--kernel {} --kernel {}", quoted(&kernel(before)), quoted(&kernel(after)))
    };
    let bisection =
        Bisection::new(&setting, &lab, place.clone(), lock, history, &reproduce, &mut make)?;
    match chosen {
        Some(commit) => bisection.answer_for(&commit),
        None => bisection.search(),
    }
}

fn of_series(
    options: &BisectOptions,
    spec: &str,
    kernel: Option<&str>,
    tell: Tell,
) -> Result<Answer> {
    let setting = Setting::new(options, tell)?;
    let arches: Vec<Arch> = options.arch.into_iter().collect();
    let named: Vec<String> = kernel.map(str::to_owned).into_iter().collect();
    let series_options = SeriesOptions {
        series: Some(spec.to_owned()),
        unconfined: options.unconfined,
        ..SeriesOptions::default()
    };
    // The question's suite names no kernel: the command line or the series does.
    let wanted = WantedKernels::new(
        &named,
        &arches,
        &series_options,
        setting.model.as_slice(),
        &options.metric.suite(Vec::new()),
    )?;
    let (manifest, series) = wanted.of_series().expect("just read");
    let Source::Built(recipe) = &manifest.source else {
        unreachable!("a series is put onto what is built")
    };
    let sources =
        source::resolve(&recipe.tree, &setting.cache, &mut |text| tell(Event::Step(text)))?;
    let kernel = kernel.map_or_else(|| manifest.name.clone(), str::to_owned);
    let subjects: Vec<String> = series.patches.iter().map(|patch| patch.subject.clone()).collect();
    // Known only from its history: the same series always has the same.
    let commits = {
        let scratch = Scratch::new()?;
        History::of_series(&series.name, &subjects, scratch.path())?.1
    };
    let asked = Identity {
        question: options.metric.to_string(),
        sources: Sources::Series {
            name: series.name.clone(),
            sha256: series.sha256(),
            kernel: kernel.clone(),
            digest: sources.digest,
        },
        good: commits[0].clone(),
        bad: commits[commits.len() - 1].clone(),
        arch: manifest.arch,
        accel: setting.accel.clone(),
        by_hand: false,
        model: setting.model.clone(),
    };
    let (lab, place, lock) = setting.open(
        &asked,
        options.metric.suite(vec![kernel.clone()]),
        options,
        &[manifest.arch],
    )?;
    let (history, _) =
        History::of_series(&series.name, &subjects, &place.folder.path().join("git"))?;
    let preparing = setting.preparing(&lab, &place);
    let reproduce = |_: &str, _: &str| {
        format!("--kernel {} --series {} --each-patch", quoted(&kernel), quoted(spec))
    };
    preparing.with_patches(manifest, series, |with| {
        let mut make = |commit: &str| {
            let patches = commits.iter().position(|known| known == commit).expect("of the series");
            with(patches)
        };
        Bisection::new(&setting, &lab, place.clone(), lock, history, &reproduce, &mut make)?
            .search()
    })
}
