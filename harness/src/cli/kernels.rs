// SPDX-License-Identifier: MIT OR Apache-2.0
//! The kernels of a run: fetched, or built from sources, alone or with a series on them.

use super::{UsageError, progress::Progress, repository};
use anyhow::Result;
use tramplab::{
    host::Cache,
    kernel,
    run::{self, Cell},
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
}

/// What cells run on.
pub struct Prepared {
    pub kernels: Vec<Ready>,
    pub series: Option<run::Series>,
    /// The builds, as cells that passed or did not.
    pub cells: Vec<Cell>,
}

pub struct Ready {
    pub facts: run::Kernel,
    /// None of one that could not be built.
    pub image: Option<kernel::Image>,
    /// The kernel's name without the series.
    pub budgets_of: String,
}

/// Brings every kernel of the run to this host. `named` replaces the suite's own.
pub fn prepare(
    named: &[String],
    series: &SeriesArgs,
    suite: &Suite,
    cache: &Cache,
    progress: &Progress,
) -> Result<Prepared> {
    let names = if named.is_empty() { &suite.kernels } else { named };
    let mut kernels = Vec::new();
    for name in names {
        let manifest = kernel::find(name, &repository().join("kernels"))?;
        let image = kernel::fetch(&manifest, cache, &mut |step| progress.step(step))?;
        check(&image)?;
        kernels.push(Ready { facts: facts(&image)?, budgets_of: image.name.clone(), image: Some(image) });
    }
    let _ = series;
    if kernels.is_empty() {
        return Err(UsageError("the suite names no kernel".to_owned()).into());
    }
    Ok(Prepared { kernels, series: None, cells: Vec::new() })
}

/// Refuses a kernel on which nothing could be measured.
fn check(image: &kernel::Image) -> Result<()> {
    let missing: Vec<String> = image.missing_base().iter().map(ToString::to_string).collect();
    if missing.is_empty() {
        return Ok(());
    }
    Err(UsageError(format!("kernel {} cannot be measured: it lacks {}", image.name, missing.join(", ")))
        .into())
}

fn facts(image: &kernel::Image) -> Result<run::Kernel> {
    Ok(run::Kernel {
        name: image.name.clone(),
        arch: image.arch,
        source: image.source.clone(),
        image_sha256: Some(image.sha256.clone()),
        config_sha256: image.config_file.as_deref().map(super::vm_test::sha256).transpose()?,
        build: None,
    })
}
