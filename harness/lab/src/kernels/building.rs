// SPDX-License-Identifier: MIT OR Apache-2.0
//! Building the kernels of one tree, one after the other.

use super::{
    BuildCell, Preparing, Ready, check, facts,
    names::{name, stages, step},
};
use crate::{
    error::{Context, Error, Result},
    event::Event,
};
use std::{
    collections::BTreeMap,
    fs,
    num::NonZeroU32,
    path::PathBuf,
    time::{Duration, Instant},
};
use tramplab_analysis::compare;
use tramplab_kernel::{
    Image,
    compile::{self, BuildError, Builder, Configured, Order, TreeTests},
    series::{Patch, Series},
    vmlinux::Vmlinux,
};
use tramplab_model::{
    code::{FunctionSizes, TextGrowth},
    run::{self, Configuration, ErrorKind, Outcome, SeriesStep},
    tree_tests,
};

/// The kernels of one tree, built one after the other.
pub(super) struct Building<'a> {
    pub(super) with: &'a Preparing<'a>,
    pub(super) order: &'a Order,
    /// The point of axes that all its kernels are at.
    pub(super) configuration: Option<&'a Configuration>,
    /// The commit of the sources without patches.
    pub(super) commit: Option<&'a str>,
    pub(super) builder: Builder<'a>,
    /// The tree's own tests that are built with each kernel.
    pub(super) tree_tests: Option<&'a tree_tests::WantedTests>,
}

/// One build that was tried.
pub(super) struct Tried {
    applied: usize,
    built: Result<(compile::Built, Option<TreeTests>), BuildError>,
    taken: Duration,
}

impl Tried {
    /// Fails if the kernel's configuration cannot be made.
    pub(super) fn require_configuration(self) -> Result<Tried> {
        match self.built {
            Err(error @ BuildError::Config { .. }) => Err(error.into()),
            _ => Ok(self),
        }
    }

    /// Fails if the kernel does not build: without it nothing can be measured.
    pub(super) fn required(self) -> Result<Tried> {
        match self.built {
            Err(error) => Err(error.into()),
            Ok(_) => Ok(self),
        }
    }
}

impl Building<'_> {
    /// Builds with that many patches applied, as `name`. Only what is wrong with the patched
    /// sources is a result: all else is an error of the run.
    pub(super) fn step(&mut self, applied: usize, name: &str) -> Result<Tried> {
        let log = self.with.run_dir.build_log(self.order.arch, name);
        fs::create_dir_all(log.parent().expect("in the run's folder"))
            .with_context(|| format!("failed to write {}", log.display()))?;
        let started = Instant::now();
        let (with, interrupt) = (self.with, self.with.interrupt);
        let mut events = |event| {
            match event {
                compile::Event::Stage(text) => with.step(&format!("{name}: {text}")),
                compile::Event::Progress { done, total } => {
                    (with.tell)(Event::Build { kernel: name, done, total })
                }
                compile::Event::Waiting => {}
            }
            interrupt.flow()
        };
        let built = self.builder.build(applied, &log, &mut events).and_then(|built| {
            let tests = self.tree_tests.map(|wanted| {
                self.builder.build_tree_tests(
                    applied,
                    wanted,
                    &log.with_extension("selftests.log"),
                    &mut events,
                )
            });
            Ok((built, tests.transpose()?))
        });
        (with.tell)(Event::BuildEnded);
        match built {
            // Whatever failed then: the signal reached its children as well.
            Err(_) if interrupt.came() => Err(Error::Interrupted),
            Err(error) if !error.is_of_sources() => Err(error.into()),
            built => {
                let built = built.map_err(|error| error.of_kernel(name));
                Ok(Tried { applied, built, taken: started.elapsed() })
            }
        }
    }

    /// Makes the base's configuration and nothing else.
    pub(super) fn configure(&mut self) -> Result<(String, PathBuf)> {
        let (with, interrupt) = (self.with, self.with.interrupt);
        let log = with.run_dir.build_log(self.order.arch, &self.order.name);
        fs::create_dir_all(log.parent().expect("in the run's folder"))
            .with_context(|| format!("failed to write {}", log.display()))?;
        let made = self.builder.configure(&log, &mut |event| {
            if let compile::Event::Stage(text) = event {
                with.step(&text);
            }
            interrupt.flow()
        });
        if interrupt.came() {
            return Err(Error::Interrupted);
        }
        Ok(made?)
    }

    fn image(&self, built: &compile::Built, name: &str, applied: usize) -> Result<Image> {
        let image =
            Image { source: self.source(applied), ..Image::built(name, self.order, built)? };
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
    pub(super) fn ready(&self, tried: Tried, name: &str) -> Result<Ready> {
        let arch = self.order.arch;
        let commit = self.commit.filter(|_| tried.applied == 0).map(str::to_owned);
        let notes = match &tried.built {
            Ok((built, _)) => notes(&built.record.configured, name),
            Err(_) => Vec::new(),
        };
        notes.iter().for_each(|note| self.with.line(note));
        let (facts, image, tree_tests, outcome) = match tried.built {
            Ok((built, tree_tests)) => {
                let image = self.image(&built, name, tried.applied)?;
                let build = run::Build {
                    toolchain: built.record.toolchain.join("; "),
                    key: built.record.key.clone(),
                    confined: built.record.confined,
                };
                let configuration = self.configuration.cloned();
                let facts = run::Kernel { commit, configuration, ..facts(&image, Some(build))? };
                (facts, Some(image), tree_tests, Outcome::Pass)
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
                    configuration: self.configuration.cloned(),
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
        let build = BuildCell { outcome, taken: tried.taken, means: self.builder.means(), notes };
        Ok(Ready {
            facts,
            image,
            tree_tests,
            budgets_of: Some(self.order.name.clone()),
            build: Some(build),
        })
    }

    /// Base, head, and with `each` what is between. The first that does not build ends it.
    pub(super) fn walk(
        &mut self,
        series: &Series,
        each: bool,
    ) -> Result<(Vec<Ready>, run::Series)> {
        let all = series.patches.len();
        self.try_patches()?;
        let names: Vec<String> =
            (0..=all).map(|applied| name(&self.order.name, series, applied)).collect();
        let applied = stages(series, each);
        let mut made: BTreeMap<usize, Ready> = BTreeMap::new();
        for &applied in &applied {
            let mut tried = self.step(applied, &names[applied])?;
            if applied == series.base {
                tried = tried.required()?;
            }
            let failed = tried.built.is_err();
            if failed && !each {
                tried = self.first_that_fails(tried, series.base, &names)?;
            }
            made.insert(applied, self.ready(tried, &names[applied])?);
            if failed {
                break;
            }
        }
        // A head's build can find the source lines of a base that was in the cache without them.
        for ready in made.values_mut() {
            if let (Some(image), Some(build)) = (&mut ready.image, &ready.facts.build) {
                image.vmlinux = self.builder.vmlinux(&build.key);
            }
        }
        if !each && made.values().any(|ready| ready.image.is_none()) {
            // There is nothing to compare: the base alone answers no question.
            made.values_mut().for_each(|ready| ready.image = None);
        }
        let mut steps: Vec<SeriesStep> =
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
            published: shipped.map(|shipped| shipped.published.clone()).unwrap_or_default(),
            reverse: series.reverse,
            base: NonZeroU32::new(series.base as u32),
            placebos: Vec::new(),
            text: self.text_growth(&kernels, &steps),
            cover: series.cover.clone(),
            ids: series.patches.iter().skip(series.base).map(|patch| patch.ids.clone()).collect(),
            steps,
        };
        Ok((kernels, series))
    }

    /// Compares the sizes of the functions of base and head. Both are kernels of the series.
    fn text_growth(&self, kernels: &[Ready], steps: &[SeriesStep]) -> Option<TextGrowth> {
        let sizes = |step: &SeriesStep| -> Option<FunctionSizes> {
            let kernel = kernels.iter().find(|ready| ready.facts.name == step.kernel)?;
            let sizes = function_sizes(kernel.image.as_ref()?);
            if sizes.is_none() {
                self.with.line(&format!(
                    "no sizes of functions: the cache has none of {}; --lines builds it again",
                    step.kernel
                ));
            }
            sizes
        };
        Some(compare::growth(&sizes(steps.first()?)?, &sizes(steps.last()?)?))
    }

    /// Tries all patches before anything is built.
    pub(super) fn try_patches(&mut self) -> Result<()> {
        let (with, interrupt) = (self.with, self.with.interrupt);
        with.step("trying the patches on the sources");
        let tried = self.builder.try_patches(&mut |event| {
            if let compile::Event::Stage(text) = event {
                with.step(&text);
            }
            interrupt.flow()
        });
        if interrupt.came() {
            return Err(Error::Interrupted);
        }
        Ok(tried?)
    }

    /// All patches together do not build: which is the first that breaks it?
    fn first_that_fails(
        &mut self,
        together: Tried,
        base: usize,
        names: &[String],
    ) -> Result<Tried> {
        let all = names.len() - 1;
        if all - base > 1 {
            let line = format!(
                "{} does not build; building patch by patch to name the one at fault",
                names[all]
            );
            self.with.line(&line);
        }
        for (applied, name) in names.iter().enumerate().take(all).skip(base + 1) {
            let tried = self.step(applied, name)?;
            if tried.built.is_err() {
                return Ok(tried);
            }
        }
        Ok(together)
    }
}

/// Tells how a configuration differs from the wanted one.
fn notes(configured: &Configured, kernel: &str) -> Vec<String> {
    let mut notes = Vec::new();
    if configured.completion.defaults {
        notes.push(
            "options that no file sets have the defaults of Kconfig, as after `make \
             olddefconfig`: without them some wanted options do not survive"
                .to_owned(),
        );
    }
    if !configured.replaced.is_empty() {
        notes.push(format!(
            "a later option of the same choice replaces {}",
            configured.replaced.join(", ")
        ));
    }
    if !configured.left_out.is_empty() {
        let options = configured.left_out.join(", ");
        notes.push(format!("{kernel} is built without {options}: only the series has it"));
    }
    notes
}

/// The sizes of a kernel's functions. None if nothing that its build left tells them.
fn function_sizes(image: &Image) -> Option<FunctionSizes> {
    let kept = |path: &PathBuf| serde_json::from_slice(&fs::read(path).ok()?).ok();
    let read = |path: &PathBuf| Vmlinux::read(path).ok()?.function_sizes().ok();
    image.functions.as_ref().and_then(kept).or_else(|| image.vmlinux.as_ref().and_then(read))
}
