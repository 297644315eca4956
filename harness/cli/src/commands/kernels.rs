// SPDX-License-Identifier: MIT OR Apache-2.0
//! The kernels of a run: fetched, or built from sources, alone or with a series on them.

use super::{Interrupted, UsageError, interrupt::Interrupt, lab::sha256, progress::Progress, repository};
use anyhow::{Context, Result};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};
use tramplab_host::{Cache, Purpose, runs::RunDir};
use tramplab_kernel as kernel;
use tramplab_kernel::{
    Image, KernelError, Manifest, Recipe, Source, Tree,
    compile::{self, BuildError, Builder, Confinement, Means, Order, Reason, Selftests},
    kconfig::{self, Uses},
    series::{self, Patch, Range, Series, placebo},
    source,
};
use tramplab_lab::setup;
use tramplab_model::{
    run::{self, Arch, Backend, Built, ErrorKind, Outcome, Step, Test},
    selftests::{self, Name},
};
use tramplab_suite::{Suite, plan};

#[derive(clap::Args, Default)]
pub struct SeriesArgs {
    /// Compare a kernel with and without these patches: an mbox, a maildir, a folder of patches, a quilt series, commits
    /// BASE..HEAD of the kernel's repository, a message-id (needs b4), or a name in kernels/patches/
    #[arg(long, value_name = "SERIES")]
    pub series: Option<String>,
    /// Measure after each patch of the series, not only after the last
    #[arg(long, requires = "series")]
    pub each_patch: bool,
    /// Build and measure also N kernels (at most 6) with code that is never called: what they change is layout, and no
    /// difference of the series is better or worse that is within it
    #[arg(long, value_name = "N", default_value_t = 0, requires = "series", value_parser = placebos)]
    pub placebos: usize,
    /// Build kernels without confinement: a series' build may then do all that you may
    #[arg(long)]
    pub unconfined: bool,
}

fn placebos(text: &str) -> Result<usize, String> {
    let number = text.parse().ok().filter(|number| *number <= placebo::MOST);
    number.ok_or_else(|| format!("expected a number from 0 to {}", placebo::MOST))
}

/// A change to a tree, made before its kernel is built.
#[derive(Clone, Copy)]
enum Change<'a> {
    None,
    Series(&'a Series),
    Placebo(&'a Patch),
}

/// What cells run on.
#[derive(Default)]
pub struct Prepared {
    /// Tests of `test_progs` that the series adds or changes.
    pub tests: BTreeSet<Name>,
    pub kernels: Vec<Ready>,
    /// One for each architecture.
    pub series: Vec<run::Series>,
}

impl Prepared {
    /// Names in the suite that no tree has. None is known to be wrong while a kernel does not build: its tree may have it.
    pub fn unknown_tests(&self, suite: &Suite) -> Vec<Test> {
        if self.kernels.iter().any(|kernel| kernel.facts.image_sha256.is_none()) {
            return Vec::new();
        }
        let trees: Vec<&Selftests> =
            self.kernels.iter().filter_map(|kernel| kernel.selftests.as_ref()).collect();
        plan::unknown_tests(suite, &trees)
    }
}

#[derive(Clone)]
pub struct Ready {
    pub facts: run::Kernel,
    /// None of one that could not be built.
    pub image: Option<Image>,
    /// The tests of its tree, where the suite runs some.
    pub selftests: Option<Selftests>,
    /// The kernel's name without the series; none of a placebo, whose numbers are judged by nothing.
    pub budgets_of: Option<String>,
    pub build: Option<BuildCell>,
}

/// How a build went, as a cell tells it.
#[derive(Clone)]
pub struct BuildCell {
    pub outcome: Outcome,
    pub taken: Duration,
    pub means: Means,
}

/// What was asked for, read and understood: nothing has been fetched or built yet.
pub struct Wanted {
    /// One for each kernel and architecture.
    manifests: Vec<Manifest>,
    series: Option<Series>,
    /// What of the trees' own tests is built with them.
    selftests: Option<selftests::Wanted>,
}

impl Wanted {
    /// `named` replaces the suite's own kernels, `arches` the host's own architecture.
    pub fn new(named: &[String], arches: &[Arch], args: &SeriesArgs, suite: &Suite) -> Result<Wanted> {
        let Some(spec) = &args.series else {
            let names = if named.is_empty() { &suite.kernels } else { named };
            let manifests = names.iter().map(|name| find(name, arches)).collect::<Result<Vec<_>>>()?;
            let selftests = suite.selftests(&BTreeSet::new());
            return Ok(Wanted { manifests: manifests.concat(), series: None, selftests });
        };
        let folder = repository().join("kernels/patches");
        let range = Range::parse(spec, &folder);
        let series = if range.is_none() { Some(series::load(spec, &folder)?) } else { None };
        let shipped = series.as_ref().and_then(|series| Some(series.shipped.as_ref()?.kernel.clone()));
        let name = match (named, &shipped, &suite.kernels[..]) {
            ([name], ..) | ([], Some(name), _) | ([], None, [name]) => name,
            _ => {
                let message = "a series is compared on one kernel: name it with one --kernel";
                return Err(UsageError(message.to_owned()).into());
            }
        };
        let mut manifests = find(name, arches)?;
        if !manifests.iter().all(is_built) {
            let message = format!(
                "kernel {name} is prebuilt, and a series needs one that is built from sources: give --kernel \
                 6.12-source, a folder of sources, or git:REPOSITORY#REF"
            );
            return Err(UsageError(message).into());
        }
        let series = match (series, range) {
            (None, Some(range)) => of_range(&range, name, &mut manifests)?,
            (series, _) => series.expect("what is no range was read"),
        };
        let selftests = suite.selftests(&files_of_tests(&series));
        Ok(Wanted { manifests, series: Some(series), selftests })
    }

    /// The kernel that a series is put onto, on the first architecture that was asked for.
    pub fn of_series(&self) -> Option<(&Manifest, &Series)> {
        Some((self.manifests.first()?, self.series.as_ref()?))
    }

    /// What the host must have for it.
    pub fn of_the_host(&self, purpose: Purpose) -> setup::Wanted {
        let toolchains = self.manifests.iter().filter_map(|manifest| match &manifest.source {
            Source::Built(recipe) => Some((recipe.toolchain.clone(), manifest.arch)),
            _ => None,
        });
        let emulators = self.arches().into_iter().map(|arch| (arch, purpose)).collect();
        setup::Wanted {
            toolchains: toolchains.collect(),
            arches: self.arches(),
            emulators,
            backend: Backend::Qemu,
            selftests: self.selftests.clone(),
        }
    }

    /// Each once.
    pub fn arches(&self) -> Vec<Arch> {
        self.manifests.iter().map(|manifest| manifest.arch).collect::<BTreeSet<_>>().into_iter().collect()
    }
}

/// Commits of the repository that the kernel `name` is built from. A folder has no commit of its
/// own: it is built from the range's base, whatever is checked out there.
fn of_range(range: &Range, name: &str, manifests: &mut [Manifest]) -> Result<Series> {
    let mut read: Option<Series> = None;
    for manifest in manifests {
        let Source::Built(recipe) = &mut manifest.source else {
            unreachable!("a series is put onto what is built")
        };
        let series = match &mut recipe.tree {
            Tree::Git { repository, reference } if !source::is_url(repository) => {
                range.read(Path::new(repository), Some((name, reference)))?
            }
            Tree::Folder(path) => {
                let series = range.read(path, None)?;
                let repository = path.to_str().map(str::to_owned);
                let (Some(repository), Some(reference)) = (repository, series.base_commit.clone()) else {
                    let message =
                        format!("{} is no path in UTF-8: it cannot be named in a report", path.display());
                    return Err(UsageError(message).into());
                };
                recipe.tree = Tree::Git { repository, reference };
                series
            }
            _ => {
                let message = format!(
                    "{range} are commits, and kernel {name} comes from no git repository on this machine: expected \
                     --kernel git:REPOSITORY#BASE"
                );
                return Err(UsageError(message).into());
            }
        };
        read = Some(series);
    }
    Ok(read.expect("a kernel is for one architecture at least"))
}

fn is_built(manifest: &Manifest) -> bool {
    matches!(manifest.source, Source::Built(_))
}

/// Where kernels come from, and where what making them says goes.
pub struct Preparing<'a> {
    pub suite: &'a Suite,
    /// Whether a kernel is made after each patch of a series, and not only after the last.
    pub each_patch: bool,
    /// How many placebos are made of a series' tree.
    pub placebos: usize,
    pub unconfined: bool,
    /// Its guests take some options of the kernel.
    pub backend: Backend,
    pub cache: &'a Cache,
    pub run_dir: &'a RunDir,
    pub progress: &'a Progress,
    pub interrupt: &'a Interrupt,
}

impl Preparing<'_> {
    /// Brings every kernel of the run to this host.
    pub fn prepare(&self, wanted: &Wanted) -> Result<Prepared> {
        let series = wanted.series.as_ref();
        series.into_iter().flat_map(|series| &series.notes).for_each(|note| self.progress.line(note));
        let mut prepared = Prepared::default();
        for manifest in &wanted.manifests {
            match (&manifest.source, series) {
                (Source::Built(recipe), Some(series)) => {
                    let walk = |building: &mut Building| building.walk(series, self.each_patch);
                    let (mut kernels, mut series) =
                        self.build(manifest, recipe, Change::Series(series), walk)?;
                    if kernels.iter().all(|kernel| kernel.image.is_some()) {
                        let placebos = self.placebos(manifest, recipe)?;
                        series.placebos = placebos.iter().map(|ready| ready.facts.name.clone()).collect();
                        put_before_the_head(&mut kernels, placebos);
                    } else if self.placebos > 0 {
                        self.progress.line("no placebos are built, as not every patch builds");
                    }
                    prepared.kernels.extend(kernels);
                    prepared.series.push(series);
                }
                (Source::Built(recipe), None) => prepared.kernels.push(self.built(manifest, recipe)?),
                _ => prepared.kernels.push(self.fetched(manifest)?),
            }
        }
        let files = series.map(files_of_tests).unwrap_or_default();
        let built = prepared.kernels.iter().filter_map(|kernel| kernel.selftests.as_ref());
        let tests = built.flat_map(|selftests| &selftests.record.tests);
        prepared.tests = tests.filter(|(_, file)| files.contains(*file)).map(|(test, _)| *test).collect();
        Ok(prepared)
    }

    /// Builds the placebos of a tree without the series' patches.
    fn placebos(&self, manifest: &Manifest, recipe: &Recipe) -> Result<Vec<Ready>> {
        let one = |number: usize| {
            let name = placebo_name(manifest, number);
            self.build(manifest, recipe, Change::Placebo(&placebo::patch(number)), |building| {
                let tried = building.step(1, &name)?.required()?;
                Ok(Ready { budgets_of: None, ..building.ready(tried, &name)? })
            })
        };
        (1..=self.placebos).map(one).collect()
    }

    /// The kernels' names, for a list of cells: prebuilt ones are fetched, none is built.
    pub fn named(&self, wanted: &Wanted) -> Result<Prepared> {
        let mut prepared = Prepared::default();
        for manifest in &wanted.manifests {
            if is_built(manifest) {
                let names = names(&manifest.name, wanted.series.as_ref(), self.each_patch);
                let mut kernels: Vec<Ready> = names.into_iter().map(|name| unbuilt(manifest, name)).collect();
                let placebos = (1..=self.placebos).map(|number| Ready {
                    budgets_of: None,
                    ..unbuilt(manifest, placebo_name(manifest, number))
                });
                put_before_the_head(&mut kernels, placebos);
                prepared.kernels.extend(kernels);
            } else {
                prepared.kernels.push(self.fetched(manifest)?);
            }
        }
        let files = wanted.series.as_ref().map(files_of_tests).unwrap_or_default();
        if self.suite.selftests(&files).is_some_and(|wanted| !wanted.files.is_empty()) && !files.is_empty() {
            self.progress.line("tests that the series adds are known once it is built: they are not named");
        }
        Ok(prepared)
    }

    fn fetched(&self, manifest: &Manifest) -> Result<Ready> {
        let image = kernel::fetch(manifest, self.cache, &mut |step| self.progress.step(step))?;
        check(&image)?;
        let facts = facts(&image, None)?;
        let budgets_of = Some(image.name.clone());
        Ok(Ready { facts, budgets_of, image: Some(image), selftests: None, build: None })
    }

    /// One kernel from sources, without patches.
    fn built(&self, manifest: &Manifest, recipe: &Recipe) -> Result<Ready> {
        self.build(manifest, recipe, Change::None, |building| {
            let tried = building.step(0, &manifest.name)?.required()?;
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

    /// Kernels of a series, made by `run` in the order it likes: each has so many of the patches in.
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
        let step = |text: &str| self.progress.step(text);
        let sources = source::resolve(&recipe.tree, self.cache, &mut |text| step(text))?;
        let commits = series.and_then(|series| series.commits.as_ref());
        if let Some(wanted) = series.and_then(|series| series.base_commit.as_deref())
            && let Some(commit) = sources.commit()
            && commit != wanted
        {
            if commits.is_some() {
                // A branch that was moved meanwhile.
                let message = format!("the series goes onto {wanted}, and {} is {commit} now", manifest.name);
                return Err(UsageError(message).into());
            }
            let line = format!("warning: the series says it goes onto {wanted}; this is {commit}");
            self.progress.line(&line);
        }
        let configs = repository().join("configs/kconfig");
        let mechanisms = self.suite.mechanisms();
        let files = series.map(files_of_tests).unwrap_or_default();
        let wanted = self.suite.selftests(&files);
        let uses = Uses { selftests: wanted.is_some(), virtme_ng: self.backend == Backend::VirtmeNg };
        if !files.is_empty() && wanted.as_ref().is_none_or(|wanted| wanted.files.is_empty()) {
            let files = files.into_iter().collect::<Vec<_>>().join(", ");
            self.progress.line(&format!(
                "warning: the series changes tests of test_progs ({files}), and no test_progs group of the suite runs them"
            ));
        }
        let config = kconfig::fragments(&configs, manifest.arch, &mechanisms, uses, &recipe.config)
            .map_err(KernelError::from)?;
        config.conflicts.iter().for_each(|conflict| self.progress.line(&conflict.to_string()));
        let order = Order {
            name: manifest.name.clone(),
            arch: manifest.arch,
            digest: sources.digest.clone(),
            description: sources.described.clone(),
            lineage: format!("{}{}", sources.lineage, uses.suffix()),
            toolchain: recipe.toolchain.clone(),
            config,
            patches: match change {
                Change::None => Vec::new(),
                Change::Series(series) => series.ordered().into_iter().cloned().collect(),
                Change::Placebo(placebo) => vec![placebo.clone()],
            },
            reverse: series.is_some_and(|series| series.reverse),
            confinement: self.confinement(),
        };
        let checkout = |into: &Path| sources.checkout(into, self.cache, &mut |text| step(text));
        let apply = |patch: &Patch, tree: &Path| -> Result<(), Reason> {
            if let Change::Placebo(_) = change {
                return Ok(placebo::apply(patch, tree)?);
            }
            series::apply(patch, tree, order.reverse)?;
            Ok(commits.map_or(Ok(()), |commits| commits.check(patch, tree))?)
        };
        let builder = Builder::new(&order, self.cache, &checkout as Checkout, &apply as Apply)?;
        run(&mut Building {
            with: self,
            order: &order,
            commit: sources.commit(),
            builder,
            // A placebo runs no test of the tree.
            selftests: wanted.as_ref().filter(|_| !matches!(change, Change::Placebo(_))),
        })
    }

    /// Whatever is built is confined where that is to be had.
    fn confinement(&self) -> Option<Confinement> {
        if self.unconfined {
            return None;
        }
        let probed = Confinement::probe();
        if let Err(reason) = &probed {
            self.progress.line(&format!(
                "warning: kernels are built UNCONFINED: what a patch puts into a Makefile runs with your rights ({reason})"
            ));
        }
        probed.ok()
    }
}

/// A kernel on the architectures that are asked for, else on the host's own, or on what it is to be had for.
pub fn find(name: &str, arches: &[Arch]) -> Result<Vec<Manifest>> {
    let found = kernel::find(name, &repository().join("kernels"))?;
    let on = |arch: Arch| found.iter().find(|manifest| manifest.arch == arch).cloned();
    if arches.is_empty() {
        let own = Arch::host().and_then(on);
        return Ok(own.or_else(|| found.first().cloned()).into_iter().collect());
    }
    let asked = arches.iter().map(|&arch| {
        let has = || found.iter().map(|manifest| manifest.arch.name()).collect::<Vec<_>>().join(", ");
        on(arch)
            .ok_or_else(|| UsageError(format!("kernel {name} is not for {arch}, but for: {}", has())).into())
    });
    asked.collect()
}

type Checkout<'a> = &'a dyn Fn(&Path) -> Result<(), KernelError>;
type Apply<'a> = &'a dyn Fn(&Patch, &Path) -> Result<(), Reason>;

/// The kernels of one tree, built one after the other.
struct Building<'a> {
    with: &'a Preparing<'a>,
    order: &'a Order,
    /// Of the sources without patches.
    commit: Option<&'a str>,
    builder: Builder<'a, Checkout<'a>, Apply<'a>>,
    /// What of the tree's own tests is built with each.
    selftests: Option<&'a selftests::Wanted>,
}

/// One build that was tried.
struct Tried {
    applied: usize,
    built: Result<(compile::Built, Option<Selftests>), BuildError>,
    taken: Duration,
}

impl Tried {
    /// Of a kernel without which there is nothing to do.
    fn required(self) -> Result<Tried> {
        match self.built {
            Err(error) => Err(error.into()),
            Ok(_) => Ok(self),
        }
    }
}

impl Building<'_> {
    /// Builds with that many patches applied, as `name`. Only what is wrong with the patched sources is a result: all else is
    /// an error of the run.
    fn step(&mut self, applied: usize, name: &str) -> Result<Tried> {
        let log = self.with.run_dir.build_log(self.order.arch, name);
        fs::create_dir_all(log.parent().expect("in the run's folder"))
            .with_context(|| format!("failed to write {}", log.display()))?;
        let started = Instant::now();
        let (progress, interrupt) = (self.with.progress, self.with.interrupt);
        let mut events = |event| {
            match event {
                compile::Event::Stage(text) => progress.step(&format!("{name}: {text}")),
                compile::Event::Progress { done, total } => progress.build(name, done, total),
                compile::Event::Waiting => {}
            }
            interrupt.flow()
        };
        let built = self.builder.build(applied, &log, &mut events).and_then(|built| {
            let tests = self.selftests.map(|wanted| {
                self.builder.build_selftests(
                    applied,
                    wanted,
                    &log.with_extension("selftests.log"),
                    &mut events,
                )
            });
            Ok((built, tests.transpose()?))
        });
        progress.end_of_build();
        match built {
            // Whatever failed then: the signal reached its children as well.
            Err(_) if interrupt.came() => Err(Interrupted.into()),
            Err(error) if !error.is_of_sources() => Err(error.into()),
            built => {
                let built = built.map_err(|error| error.of_kernel(name));
                Ok(Tried { applied, built, taken: started.elapsed() })
            }
        }
    }

    fn image(&self, built: &compile::Built, name: &str, applied: usize) -> Result<Image> {
        let image = Image { source: self.source(applied), ..Image::built(name, self.order, built)? };
        check(&image)?;
        Ok(image)
    }

    /// For the report: the sources, and what was done to them.
    fn source(&self, applied: usize) -> String {
        let Order { description, patches, reverse, .. } = self.order;
        let done = if *reverse { "taken out" } else { "applied" };
        match applied {
            0 => description.clone(),
            _ => format!("{description}, {applied} of {} patches {done}", patches.len()),
        }
    }

    /// A kernel that cells can run on, or that failed to be.
    fn ready(&self, tried: Tried, name: &str) -> Result<Ready> {
        let arch = self.order.arch;
        let commit = self.commit.filter(|_| tried.applied == 0).map(str::to_owned);
        let (facts, image, selftests, outcome) = match tried.built {
            Ok((built, selftests)) => {
                let image = self.image(&built, name, tried.applied)?;
                let build = run::Build {
                    toolchain: built.record.toolchain.join("; "),
                    key: built.record.key.clone(),
                    confined: built.record.confined,
                };
                let facts = run::Kernel { commit, ..facts(&image, Some(build))? };
                (facts, Some(image), selftests, Outcome::Pass)
            }
            Err(error) => {
                let facts = run::Kernel {
                    name: name.to_owned(),
                    arch,
                    source: self.source(tried.applied),
                    commit,
                    image_sha256: None,
                    config_sha256: None,
                    paravirt_xxl: None,
                    build: None,
                };
                let message = match tried.applied.checked_sub(1) {
                    Some(last) => {
                        let action = if self.order.reverse { "without" } else { "with" };
                        format!(
                            "{action} {}: {error}",
                            self.builder.patch(last).map_or_else(String::new, Patch::label)
                        )
                    }
                    None => error.to_string(),
                };
                (facts, None, None, Outcome::Error { kind: ErrorKind::Build, message })
            }
        };
        let build = BuildCell { outcome, taken: tried.taken, means: self.builder.means() };
        Ok(Ready { facts, image, selftests, budgets_of: Some(self.order.name.clone()), build: Some(build) })
    }

    /// Base, head, and with `each` what is between. The first that does not build ends it.
    fn walk(&mut self, series: &Series, each: bool) -> Result<(Vec<Ready>, run::Series)> {
        let all = series.patches.len();
        self.try_patches()?;
        let names: Vec<String> = (0..=all).map(|applied| name(&self.order.name, series, applied)).collect();
        let applied: Vec<usize> = if each { (0..=all).collect() } else { vec![0, all] };
        let mut made: BTreeMap<usize, Ready> = BTreeMap::new();
        for &applied in &applied {
            let mut tried = self.step(applied, &names[applied])?;
            if applied == 0 {
                tried = tried.required()?;
            }
            let failed = tried.built.is_err();
            if failed && !each {
                tried = self.first_that_fails(tried, all, &names)?;
            }
            made.insert(applied, self.ready(tried, &names[applied])?);
            if failed {
                break;
            }
        }
        if !each && made.values().any(|ready| ready.image.is_none()) {
            // There is nothing to compare: the base alone answers no question.
            made.values_mut().for_each(|ready| ready.image = None);
        }
        let mut steps: Vec<Step> =
            applied.iter().map(|&applied| step(series, applied, &names, &made)).collect();
        steps.sort_by_key(|step| step.patches);
        let mut kernels: Vec<Ready> = made.into_values().collect();
        kernels.sort_by_key(|ready| steps.iter().position(|step| step.kernel == ready.facts.name));
        let shipped = series.shipped.as_ref();
        let series = run::Series {
            arch: self.order.arch,
            name: series.name.clone(),
            title: series.title.clone(),
            claim: shipped.map(|shipped| shipped.claim.clone()),
            reverse: series.reverse,
            steps,
            placebos: Vec::new(),
        };
        Ok((kernels, series))
    }

    /// Whether the patches fit is known before anything is built.
    fn try_patches(&mut self) -> Result<()> {
        let (progress, interrupt) = (self.with.progress, self.with.interrupt);
        progress.step("trying the patches on the sources");
        let tried = self.builder.try_patches(&mut |event| {
            if let compile::Event::Stage(text) = event {
                progress.step(&text);
            }
            interrupt.flow()
        });
        if interrupt.came() {
            return Err(Interrupted.into());
        }
        Ok(tried?)
    }

    /// All patches together do not build: which is the first that breaks it?
    fn first_that_fails(&mut self, together: Tried, all: usize, names: &[String]) -> Result<Tried> {
        if all > 1 {
            let line =
                format!("{} does not build; building patch by patch to name the one at fault", names[all]);
            self.with.progress.line(&line);
        }
        for (applied, name) in names.iter().enumerate().take(all).skip(1) {
            let tried = self.step(applied, name)?;
            if tried.built.is_err() {
                return Ok(tried);
            }
        }
        Ok(together)
    }
}

/// A kernel without the patches is the kernel; with some of them it is named after them.
fn name(kernel: &str, series: &Series, applied: usize) -> String {
    let (series_name, all) = (&series.name, series.patches.len());
    match (applied, patches_in(series, applied)) {
        (0, _) => kernel.to_owned(),
        (_, patches) if patches == all => format!("{kernel}+{series_name}"),
        (_, patches) => format!("{kernel}+{series_name}.{patches}"),
    }
}

/// The kernels that are made of one, in the order of the patches.
fn names(kernel: &str, series: Option<&Series>, each: bool) -> Vec<String> {
    let Some(series) = series else { return vec![kernel.to_owned()] };
    let all = series.patches.len();
    let mut applied: Vec<usize> = if each { (0..=all).collect() } else { vec![0, all] };
    applied.sort_by_key(|&applied| patches_in(series, applied));
    applied.into_iter().map(|applied| name(kernel, series, applied)).collect()
}

/// Jobs are named after the first kernel and the last.
fn put_before_the_head(kernels: &mut Vec<Ready>, placebos: impl IntoIterator<Item = Ready>) {
    let head = kernels.len() - 1;
    kernels.splice(head..head, placebos);
}

fn placebo_name(manifest: &Manifest, number: usize) -> String {
    format!("{}+placebo.{number}", manifest.name)
}

/// A kernel of which nothing but the name is known.
fn unbuilt(manifest: &Manifest, name: String) -> Ready {
    let facts = run::Kernel {
        name: name.clone(),
        arch: manifest.arch,
        source: String::new(),
        commit: None,
        image_sha256: None,
        config_sha256: None,
        build: None,
        paravirt_xxl: None,
    };
    let image = Image {
        name,
        arch: manifest.arch,
        image: PathBuf::new(),
        vmlinux: None,
        config: None,
        config_file: None,
        modules: Vec::new(),
        source: String::new(),
        sha256: String::new(),
    };
    Ready { facts, image: Some(image), selftests: None, budgets_of: Some(manifest.name.clone()), build: None }
}

/// The files of tests of `test_progs` that a series adds or changes.
fn files_of_tests(series: &Series) -> BTreeSet<String> {
    let folder = Path::new(selftests::FOLDER).join("prog_tests");
    let touched = series.patches.iter().flat_map(Patch::files);
    let file = |path: std::path::PathBuf| {
        let file = path.strip_prefix(&folder).ok()?.to_str()?;
        (file.ends_with(".c") && !file.contains('/')).then(|| file.to_owned())
    };
    touched.filter_map(file).collect()
}

/// How many patches are in when so many have been applied, or taken out.
fn patches_in(series: &Series, applied: usize) -> usize {
    if series.reverse { series.patches.len() - applied } else { applied }
}

fn step(series: &Series, applied: usize, names: &[String], made: &BTreeMap<usize, Ready>) -> Step {
    let patches = patches_in(series, applied);
    let subject = patches.checked_sub(1).map(|last| series.patches[last].subject.clone());
    let built = match made.get(&applied).and_then(|ready| ready.build.as_ref()).map(|build| &build.outcome) {
        Some(Outcome::Error { message, .. }) => Built::Failed { message: message.clone() },
        Some(_) => Built::Yes,
        None => Built::NotReached,
    };
    Step { kernel: names[applied].clone(), patches: patches as u32, subject, built }
}

/// Refuses a kernel on which nothing could be measured.
fn check(image: &Image) -> Result<()> {
    let missing: Vec<String> = image.missing_base().iter().map(ToString::to_string).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let message = format!(
        "kernel {} for {} cannot be measured: it lacks {}",
        image.name,
        image.arch,
        missing.join(", ")
    );
    Err(UsageError(message).into())
}

fn facts(image: &Image, build: Option<run::Build>) -> Result<run::Kernel> {
    Ok(run::Kernel {
        name: image.name.clone(),
        arch: image.arch,
        source: image.source.clone(),
        commit: None,
        image_sha256: Some(image.sha256.clone()),
        config_sha256: image.config_file.as_deref().map(sha256).transpose()?,
        paravirt_xxl: image.config.as_ref().map(|config| config.get("PARAVIRT_XXL") == Some("y")),
        build,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use compile::SelftestsRecord;
    use tramplab_kernel::Kconfig;
    use tramplab_kernel::selftests::DenyList;

    fn ready(name: &str, tests: Option<&[&str]>) -> Ready {
        let digest = tests.map(|_| "0".to_owned());
        let facts = run::Kernel {
            name: name.to_owned(),
            arch: Arch::X86_64,
            source: "s".to_owned(),
            commit: None,
            config_sha256: digest.clone(),
            paravirt_xxl: None,
            image_sha256: digest,
            build: None,
        };
        let record = |tests: &[&str]| SelftestsRecord {
            key: "k".to_owned(),
            seconds: 1.0,
            tests: tests.iter().map(|name| (name.parse().unwrap(), format!("{name}.c"))).collect(),
            programs: BTreeSet::new(),
            broken: BTreeMap::new(),
            clang: None,
            contents: "c".to_owned(),
        };
        let selftests = tests.map(|tests| Selftests {
            root: PathBuf::new(),
            record: record(tests),
            denied: DenyList::default(),
        });
        Ready { facts, image: None, selftests, budgets_of: Some(name.to_owned()), build: None }
    }

    #[test]
    fn facts_say_whether_msrs_are_accessed_by_calls() {
        let of = |config: Option<&str>| {
            let image = Image {
                name: "k".to_owned(),
                arch: Arch::X86_64,
                image: PathBuf::new(),
                vmlinux: None,
                config: config.map(|text| Kconfig::parse(text).unwrap()),
                config_file: None,
                modules: Vec::new(),
                source: "s".to_owned(),
                sha256: String::new(),
            };
            facts(&image, None).unwrap().paravirt_xxl
        };
        let plain = "CONFIG_PARAVIRT=y\n# CONFIG_PARAVIRT_XXL is not set\n";
        let table = [
            (Some("CONFIG_PARAVIRT=y\nCONFIG_PARAVIRT_XXL=y\n"), Some(true)),
            (Some(plain), Some(false)),
            (None, None),
        ];
        for (config, expected) in table {
            assert_eq!(of(config), expected, "{config:?}");
        }
    }

    #[test]
    fn names_kernels_in_the_order_of_the_patches_without_building_them() {
        let folder = repository().join("kernels/patches");
        let mut series = series::load("lbr-helpers", &folder).unwrap();
        assert_eq!(names("k", None, false), ["k"]);
        series.reverse = false;
        assert_eq!(names("k", Some(&series), false), ["k", "k+lbr-helpers"]);
        series.reverse = true;
        assert_eq!(names("k", Some(&series), false), ["k+lbr-helpers.0", "k"]);
        assert_eq!(names("k", Some(&series), true), ["k+lbr-helpers.0", "k+lbr-helpers.1", "k"]);
    }

    #[test]
    fn a_test_that_a_kernel_may_have_that_does_not_build_is_no_wrong_name() {
        let text = "name: t\ndescription: d\nkernels: [a]\ntests:\n  - test_progs: { tests: [old, added] }\n";
        let suite: Suite = tramplab_host::config::parse(text, Path::new("t.yaml")).unwrap();
        let unknown = |head: Option<&[&str]>| -> Vec<String> {
            let kernels = vec![ready("a", Some(&["old"])), ready("a+s", head)];
            let prepared = Prepared { kernels, ..Prepared::default() };
            prepared.unknown_tests(&suite).iter().map(Test::name).collect()
        };
        assert_eq!(unknown(Some(&["old"])), ["test_progs/added"]);
        assert_eq!(unknown(Some(&["old", "added"])), [""; 0]);
        assert_eq!(unknown(None), [""; 0]);
    }
}
