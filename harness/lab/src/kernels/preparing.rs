// SPDX-License-Identifier: MIT OR Apache-2.0
//! Bringing kernels to this machine: fetching prebuilt ones, opening trees of the others.

use super::{
    Prepared, Ready, WantedKernels,
    building::Building,
    check, facts,
    names::{
        booted_otherwise, files_of_tests, name, patches_in, placebo_name, put_before_the_head,
    },
};
use crate::{
    error::{Error, Result},
    event::{Event, Tell},
    interrupt::Interrupt,
    place::place,
};
use std::path::{Path, PathBuf};
use tramplab_host::{Cache, runs::RunDir};
use tramplab_kernel::{
    self as kernel, KernelError, Manifest, Recipe, Source,
    compile::{BuildError, Builder, Confinement, Order, PinnedRoot, Reason, Root},
    kconfig::{self, Conflict, Uses},
    series::{self, Patch, Series, placebo},
    source,
};
use tramplab_model::run::{self, Backend};
use tramplab_suite::Suite;
use tramplab_vm::Features;

/// A change to a tree, made before its kernel is built.
#[derive(Clone, Copy)]
enum Change<'a> {
    None,
    Series(&'a Series),
    /// On the base of a series.
    Placebo(&'a Patch, &'a Series),
}

impl<'a> Change<'a> {
    /// The series that chooses options.
    fn series(self) -> Option<&'a Series> {
        match self {
            Change::None => None,
            Change::Series(series) | Change::Placebo(_, series) => Some(series),
        }
    }
}

/// Makes the kernels of a run.
pub struct Preparing<'a> {
    pub suite: &'a Suite,
    /// Make a kernel after each patch of a series, not only after the last.
    pub each_patch: bool,
    /// How many placebos are made of a series' tree.
    pub placebos: usize,
    pub unconfined: bool,
    /// Build kernels again whose source lines are not in the cache.
    pub lines: bool,
    /// A backend may need more options of a kernel.
    pub backend: Backend,
    pub cache: &'a Cache,
    pub run_dir: &'a RunDir,
    pub tell: Tell<'a>,
    pub interrupt: &'a Interrupt,
}

impl Preparing<'_> {
    pub fn step(&self, text: &str) {
        (self.tell)(Event::Step(text));
    }

    pub fn line(&self, text: &str) {
        (self.tell)(Event::Line(text));
    }

    /// Brings every kernel of the run to this host.
    pub fn prepare(&self, wanted: &WantedKernels) -> Result<Prepared> {
        let series = wanted.series.as_ref();
        series.into_iter().flat_map(|series| &series.notes).for_each(|note| self.line(note));
        let mut prepared = Prepared::default();
        let mut made: Vec<(&Manifest, Vec<Ready>, run::Series)> = Vec::new();
        for manifest in &wanted.manifests {
            match (&manifest.source, series) {
                (Source::Built(recipe), Some(wanted)) => {
                    let earlier = made.iter().find(|(other, ..)| other.builds_as(manifest));
                    let (kernels, series) = match earlier {
                        Some((other, kernels, series)) => {
                            booted_otherwise(other, manifest, kernels, series)
                        }
                        None => self.of_series(manifest, recipe, wanted)?,
                    };
                    made.push((manifest, kernels.clone(), series.clone()));
                    prepared.kernels.extend(kernels);
                    prepared.series.push(series);
                }
                (Source::Built(recipe), None) => {
                    let is_only = wanted.manifests.len() == 1;
                    prepared.kernels.push(self.built(manifest, recipe, is_only)?)
                }
                _ => prepared.kernels.push(self.with_lines(self.fetched(manifest)?)?),
            }
        }
        if let Some(manifest) = &wanted.here {
            prepared.here = Some(self.with_lines(self.fetched(manifest)?)?);
        }
        let files = series.map(files_of_tests).unwrap_or_default();
        let built = prepared.kernels.iter().filter_map(|kernel| kernel.tree_tests.as_ref());
        let tests = built.flat_map(|tree_tests| &tree_tests.record.tests);
        prepared.tests =
            tests.filter(|(_, file)| files.contains(*file)).map(|(test, _)| *test).collect();
        Ok(prepared)
    }

    /// The kernels of a series on one base, with the placebos before the head.
    fn of_series(
        &self,
        manifest: &Manifest,
        recipe: &Recipe,
        wanted: &Series,
    ) -> Result<(Vec<Ready>, run::Series)> {
        let walk = |building: &mut Building| building.walk(wanted, self.each_patch);
        let (mut kernels, mut series) =
            self.build(manifest, recipe, Change::Series(wanted), walk)?;
        if kernels.iter().all(|kernel| kernel.image.is_some()) {
            let placebos = self.placebos(manifest, recipe, wanted)?;
            series.placebos = placebos.iter().map(|ready| ready.facts.name.clone()).collect();
            put_before_the_head(&mut kernels, placebos);
        } else if self.placebos > 0 {
            self.line("no placebos are built, as not every patch builds");
        }
        Ok((kernels, series))
    }

    /// Builds the placebos of a tree without the series' patches.
    fn placebos(
        &self,
        manifest: &Manifest,
        recipe: &Recipe,
        series: &Series,
    ) -> Result<Vec<Ready>> {
        let one = |number: usize| {
            let name = placebo_name(manifest, number);
            let patch = placebo::patch(number);
            self.build(manifest, recipe, Change::Placebo(&patch, series), |building| {
                let tried = building.step(1, &name)?.required()?;
                Ok(Ready { budgets_of: None, ..building.ready(tried, &name)? })
            })
        };
        (1..=self.placebos).map(one).collect()
    }

    fn fetched(&self, manifest: &Manifest) -> Result<Ready> {
        let image = kernel::fetch(manifest, self.cache, &mut |step| self.step(step))?;
        // Only a guest needs the drivers of one.
        if manifest.source != Source::Running {
            check(&image)?;
        }
        let configuration = manifest.configuration.clone();
        let facts = run::Kernel { configuration, ..facts(&image, None)? };
        let budgets_of = Some(image.name.clone());
        Ok(Ready { facts, budgets_of, image: Some(image), tree_tests: None, build: None })
    }

    /// Fetches the source lines of a prebuilt kernel if they are asked for. The numbers do not need
    /// them.
    fn with_lines(&self, mut ready: Ready) -> Result<Ready> {
        let Some(image) = ready.image.as_mut().filter(|_| self.lines) else { return Ok(ready) };
        let fetched = image.fetch_vmlinux(self.cache, &mut |step| self.step(step));
        if self.interrupt.came() {
            return Err(Error::Interrupted);
        }
        if let Err(error) = fetched {
            self.line(&format!("no source lines of {}: {error}", image.name));
        }
        Ok(ready)
    }

    /// One kernel from sources, without patches.
    fn built(&self, manifest: &Manifest, recipe: &Recipe, is_only: bool) -> Result<Ready> {
        self.build(manifest, recipe, Change::None, |building| {
            let tried = building.step(0, &manifest.name)?;
            let tried = match (manifest.configuration.is_some(), is_only) {
                (false, _) => tried.required()?,
                (true, true) => tried.require_configuration()?,
                // A point of an axis that does not build leaves the others to be measured.
                (true, false) => tried,
            };
            building.ready(tried, &manifest.name)
        })
    }

    /// One kernel from sources; that they do not build is a result.
    pub fn tried(&self, manifest: &Manifest) -> Result<Ready> {
        let Source::Built(recipe) = &manifest.source else { return self.fetched(manifest) };
        self.build(manifest, recipe, Change::None, |building| {
            let tried = building.step(0, &manifest.name)?;
            building.ready(tried, &manifest.name)
        })
    }

    /// The `.config` of a kernel, which is not built, and the folder of its sources.
    pub fn configured(&self, manifest: &Manifest) -> Result<(String, PathBuf)> {
        let Source::Built(recipe) = &manifest.source else {
            unreachable!("only what is built has a configuration to make")
        };
        self.build(manifest, recipe, Change::None, |building| building.configure())
    }

    /// Kernels of a series, made by `run` in the order it likes: each has so many of the patches
    /// in.
    pub fn with_patches<T>(
        &self,
        manifest: &Manifest,
        series: &Series,
        run: impl FnOnce(&mut dyn FnMut(usize) -> Result<Ready>) -> Result<T>,
    ) -> Result<T> {
        let Source::Built(recipe) = &manifest.source else {
            unreachable!("a series is read for a kernel that is built")
        };
        self.build(manifest, recipe, Change::Series(series), |building| {
            building.try_patches()?;
            run(&mut |patches| {
                let applied = patches_in(series, patches);
                let name = name(&building.order.name, series, applied);
                let tried = building.step(applied, &name)?;
                building.ready(tried, &name)
            })
        })
    }

    /// Opens a tree for building.
    fn build<T>(
        &self,
        manifest: &Manifest,
        recipe: &Recipe,
        change: Change,
        run: impl FnOnce(&mut Building) -> Result<T>,
    ) -> Result<T> {
        let series = if let Change::Series(series) = change { Some(series) } else { None };
        let step = |text: &str| self.step(text);
        let sources = source::resolve(&recipe.tree, self.cache, &mut |text| step(text))?;
        let commits = series.and_then(|series| series.commits.as_ref());
        self.check_base(manifest, series, sources.commit())?;
        let configs = place().fragments()?;
        let mechanisms = self.suite.mechanisms();
        let files = series.map(files_of_tests).unwrap_or_default();
        let wanted = self.suite.tree_tests(&files);
        let backend = Features::of(self.backend).fragment;
        let uses = Uses { tree_tests: wanted.is_some(), backend };
        if !files.is_empty() && wanted.as_ref().is_none_or(|wanted| wanted.files.is_empty()) {
            let files = files.into_iter().collect::<Vec<_>>().join(", ");
            self.line(&format!(
                "warning: the series changes tests of test_progs ({files}), and no test_progs \
                 group of the suite runs them"
            ));
        }
        let by = change.series();
        let of_tree_tests =
            by.map(|series| series.of_tree_tests(manifest.arch)).unwrap_or_default();
        let config = kconfig::fragments(
            &configs,
            manifest.arch,
            &mechanisms,
            uses,
            &of_tree_tests,
            &recipe.config,
            &recipe.variation.options,
        )
        .map_err(KernelError::from)?;
        // An axis is there to replace options. Its files are of the user. A placebo has the
        // configuration of its base.
        let is_told = |conflict: &&Conflict| {
            let later = &conflict.later;
            later.line > 0 || !recipe.variation.options.contains(later)
        };
        if !matches!(change, Change::Placebo(..)) {
            if let Some(whole) = config.whole() {
                self.line(&format!(
                    "{} is a whole .config: other options fill in what it does not mention",
                    whole.display()
                ));
            }
            let told = config.conflicts.iter().filter(is_told);
            told.for_each(|conflict| self.line(&conflict.to_string()));
        }
        let confinement = self.confinement();
        let root = self.root(manifest, recipe, confinement.is_some())?;
        let order = Order {
            name: manifest.name.clone(),
            arch: manifest.arch,
            digest: sources.digest.clone(),
            description: sources.described.clone(),
            lineage: format!("{}{}{}", sources.lineage, uses.suffix(), recipe.variation.folder),
            starts_from: sources
                .base()
                .map(|own| recipe.variation.starts_from.clone().unwrap_or_else(|| own.to_owned())),
            toolchain: recipe.toolchain.clone(),
            root,
            config,
            completes: recipe.variation.completes,
            introduced: by.map(Series::introduced).unwrap_or_default(),
            patches: match change {
                Change::None => Vec::new(),
                Change::Series(series) => series.ordered().into_iter().cloned().collect(),
                Change::Placebo(placebo, _) => vec![placebo.clone()],
            },
            reverse: series.is_some_and(|series| series.reverse),
            confinement,
            aside: recipe.variation.aside,
            lines: self.lines,
            modules: self.suite.needs_modules(),
        };
        let checkout = |into: &Path| -> Result<(), Reason> {
            Ok(sources.checkout(into, self.cache, &mut |text| step(text))?)
        };
        let apply = |patch: &Patch, tree: &Path| -> Result<(), Reason> {
            if let Change::Placebo(..) = change {
                return Ok(placebo::apply(patch, tree)?);
            }
            series::apply(patch, tree, order.reverse)?;
            Ok(commits.map_or(Ok(()), |commits| commits.check(patch, tree))?)
        };
        let builder = Builder::new(&order, self.cache, &checkout, &apply)?;
        run(&mut Building {
            with: self,
            order: &order,
            configuration: manifest.configuration.as_ref(),
            commit: sources.commit(),
            builder,
            // A placebo runs no test of the tree.
            tree_tests: wanted.as_ref().filter(|_| !matches!(change, Change::Placebo(..))),
        })
    }

    /// Compares the commit of the sources with the one that the series names as its base.
    fn check_base(
        &self,
        manifest: &Manifest,
        series: Option<&Series>,
        commit: Option<&str>,
    ) -> Result<()> {
        let Some((series, commit)) = series.zip(commit) else { return Ok(()) };
        let Some(wanted) = series.base_commit.as_deref().filter(|wanted| *wanted != commit) else {
            return Ok(());
        };
        if series.commits.is_some() {
            // A branch that was moved meanwhile.
            let message =
                format!("the series goes onto {wanted}, and {} is {commit} now", manifest.name);
            return Err(Error::Usage(message));
        }
        self.line(&format!("warning: the series says it goes onto {wanted}; this is {commit}"));
        Ok(())
    }

    /// The root of the kernel's toolchain. It replaces the system, which only a confinement can.
    fn root(
        &self,
        manifest: &Manifest,
        recipe: &Recipe,
        is_confined: bool,
    ) -> Result<Option<Root>> {
        let Some(name) = &recipe.toolchain.root else { return Ok(None) };
        if !is_confined {
            self.line(&format!(
                "warning: {} is built with this host's {}: only a confined build enters {name}",
                manifest.name, recipe.toolchain.compiler
            ));
            return Ok(None);
        }
        let root = PinnedRoot::read(name, &place().toolchains())
            .and_then(|root| Root::provision(&root, self.cache, &mut |text| self.step(text)));
        Ok(Some(root.map_err(BuildError::from)?))
    }

    /// Whatever is built is confined where that is to be had.
    fn confinement(&self) -> Option<Confinement> {
        if self.unconfined {
            return None;
        }
        let probed = Confinement::probe();
        if let Err(reason) = &probed {
            self.line(&format!(
                "warning: kernels are built UNCONFINED: commands that a patch adds to a Makefile \
                 run with your rights ({reason})"
            ));
        }
        probed.ok()
    }
}
