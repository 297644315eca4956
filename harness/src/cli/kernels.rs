// SPDX-License-Identifier: MIT OR Apache-2.0
//! The kernels of a run: fetched, or built from sources, alone or with a series on them.

use super::{UsageError, interrupt::Interrupt, progress::Progress, repository, vm_test::sha256};
use anyhow::{Context, Result};
use std::{
    ops::ControlFlow,
    path::{Path, PathBuf},
    time::Duration,
};
use tramplab::{
    host::Cache,
    kernel::{
        self, Image, Manifest, Recipe, Source,
        build::{self, BuildError, Builder, Confinement, Order},
        kconfig, source,
    },
    run::{self, Built, ErrorKind, Outcome, RunDir, Step},
    series::{self, Series},
    suite::Suite,
};

#[derive(clap::Args)]
pub struct SeriesArgs {
    /// Compare a kernel with and without these patches: an mbox, a maildir, a folder of patches, a quilt series, a
    /// message-id (needs b4), or a name in kernels/patches/
    #[arg(long, value_name = "SERIES")]
    series: Option<String>,
    /// Measure after each patch of the series, not only after the last
    #[arg(long, requires = "series")]
    each_patch: bool,
    /// Build kernels without confinement: a series' build may then do all that you may
    #[arg(long)]
    unconfined: bool,
}

/// What cells run on.
#[derive(Default)]
pub struct Prepared {
    pub kernels: Vec<Ready>,
    pub series: Option<run::Series>,
}

pub struct Ready {
    pub facts: run::Kernel,
    /// None of one that could not be built.
    pub image: Option<Image>,
    /// The kernel's name without the series.
    pub budgets_of: String,
    pub build: Option<BuildCell>,
}

/// How a build went, as a cell tells it.
pub struct BuildCell {
    pub outcome: Outcome,
    pub taken: Duration,
}

/// Where kernels come from, and where what making them says goes.
pub struct Preparing<'a> {
    pub suite: &'a Suite,
    pub args: &'a SeriesArgs,
    pub cache: &'a Cache,
    pub run_dir: &'a RunDir,
    pub progress: &'a Progress,
}

impl Preparing<'_> {
    /// Brings every kernel of the run to this host. `named` replaces the suite's own.
    pub fn prepare(&self, named: &[String]) -> Result<Prepared> {
        if let Some(spec) = &self.args.series {
            return self.with_series(spec, named);
        }
        let names = if named.is_empty() { &self.suite.kernels } else { named };
        let mut prepared = Prepared::default();
        for name in names {
            let manifest = find(name)?;
            prepared.kernels.push(match &manifest.source {
                Source::Built(recipe) => self.built(&manifest, recipe)?,
                _ => self.fetched(&manifest)?,
            });
        }
        if prepared.kernels.is_empty() {
            return Err(UsageError("the suite names no kernel".to_owned()).into());
        }
        Ok(prepared)
    }

    fn fetched(&self, manifest: &Manifest) -> Result<Ready> {
        let image = kernel::fetch(manifest, self.cache, &mut |step| self.progress.step(step))?;
        check(&image)?;
        let facts = facts(&image, None)?;
        Ok(Ready { facts, budgets_of: image.name.clone(), image: Some(image), build: None })
    }

    /// One kernel from sources, without patches.
    fn built(&self, manifest: &Manifest, recipe: &Recipe) -> Result<Ready> {
        let mut building = Building::start(self, manifest, recipe, None)?;
        let built = building.step(0, &manifest.name)?;
        let image = building.image(&built, &manifest.name, &building.order.description)?;
        check(&image)?;
        building.ready(&built, image)
    }

    fn with_series(&self, spec: &str, named: &[String]) -> Result<Prepared> {
        let series = series::load(spec, &repository().join("kernels/patches"))?;
        series.notes.iter().for_each(|note| self.progress.line(note));
        let manifest = self.kernel_of(&series, named)?;
        let Source::Built(recipe) = &manifest.source else {
            let message = format!("kernel {} is prebuilt: a series needs one built from sources", manifest.name);
            return Err(UsageError(message).into());
        };
        let mut building = Building::start(self, &manifest, recipe, Some(&series))?;
        if let (Some(wanted), false) = (&series.base_commit, series.base_commit.is_none())
            && source::is_commit_id(&building.order.digest)
            && !building.order.digest.starts_with(wanted.as_str())
        {
            let have = &building.order.digest[..12];
            self.progress.line(&format!("warning: the series says it is for {wanted}; it goes onto {have}"));
        }
        building.try_patches()?;
        building.walk(&series, self.args.each_patch)
    }

    fn kernel_of(&self, series: &Series, named: &[String]) -> Result<Manifest> {
        let shipped = series.shipped.as_ref().map(|shipped| &shipped.kernel);
        match (named, shipped, &self.suite.kernels[..]) {
            ([name], ..) => find(name),
            ([], Some(name), _) | ([], None, [name]) => find(name),
            _ => Err(UsageError("a series is compared on one kernel: name it with --kernel".to_owned()).into()),
        }
    }
}

fn find(name: &str) -> Result<Manifest> {
    Ok(kernel::find(name, &repository().join("kernels"))?)
}

/// The kernels of one tree, built one after the other.
struct Building<'a> {
    with: &'a Preparing<'a>,
    order: &'a Order,
    builder: Builder<'a>,
}
