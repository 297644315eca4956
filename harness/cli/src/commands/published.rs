// SPDX-License-Identifier: MIT OR Apache-2.0
//! `cargo xtask published`: writes `docs/published.md` anew.

use super::{
    exit, link,
    pages::{self, Source},
};
use std::{collections::BTreeSet, path::PathBuf};
use tramplab_kernel::series;
use tramplab_lab::{
    command::CommandLine,
    cpus::AskedCpu,
    error::{Context, Error, Result},
    kernels::SeriesOptions,
    nextest::cells::Selection,
    options::Options,
    place,
};
use tramplab_model::{
    published::Published,
    run::{Accel, Run},
};
use tramplab_protocol::message::Explain;
use tramplab_report::published as page;
use tramplab_vm::accel;

const SUITE: &str = "published";
const FILE: &str = "docs/published.md";

#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    source: Source,
    /// Write the page to FILE [default: docs/published.md]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

pub fn published(args: &Args, command: CommandLine) -> Result<u8> {
    let usual = || {
        let root = place().checkout("published").context("the default output is in docs/")?;
        Ok::<_, Error>(root.join(FILE))
    };
    let output = args.output.clone().map_or_else(usual, Ok)?;
    let mut runs = args.source.stored()?;
    if runs.is_empty() {
        // A user's own series are no part of the page.
        let folder = place().data().join("kernels/patches");
        for name in series::names(&folder) {
            let Some(shipped) = series::load(&name, &folder)?.shipped else { continue };
            for of in &shipped.published {
                match measured(args, &name, of, command.clone())? {
                    Ok(run) => runs.push(run),
                    Err(code) => return Ok(code),
                }
            }
        }
    }
    let gap = page::gap(&runs);
    if let (None, Some(gap)) = (&args.output, &gap) {
        eprintln!("{FILE} stays as it was: {gap}; with --run and -o it is written all the same");
        return Ok(exit::NO_MEASUREMENT);
    }
    let text = page::render(&runs);
    std::fs::write(&output, text)
        .with_context(|| format!("failed to write {}", output.display()))?;
    link::tell("written:", &output);
    Ok(if gap.is_some() { exit::NO_MEASUREMENT } else { exit::PASS })
}

/// Measures the rows of one publication. `Err`: the exit code, if there is no run for a page.
fn measured(
    args: &Args,
    series: &str,
    of: &Published,
    command: CommandLine,
) -> Result<Result<Run, u8>> {
    let axis = |(axis, value): (&String, &String)| {
        let axis = format!("{axis}={value}").parse();
        axis.map_err(|error| Error::Usage(format!("the series {series}: {error}")))
    };
    let tests = of.rows.iter().flat_map(|row| row.metrics().into_iter().take(1));
    let names: BTreeSet<String> = tests.map(|metric| metric.test().name()).collect();
    let options = Options {
        suite: SUITE.to_owned(),
        command,
        arches: [of.arch].into(),
        // Only TCG has exact counts.
        accel: accel::Request::Only(Accel::Tcg),
        setup: args.source.setup,
        explain: match of.model {
            Some(_) => [Explain::Exact, Explain::Estimated].into(),
            None => BTreeSet::new(),
        },
        models: of.model.iter().map(|model| AskedCpu::Cpu(model.clone())).collect(),
        series: SeriesOptions {
            series: Some(series.to_owned()),
            axes: of.axes.iter().map(axis).collect::<Result<_>>()?,
            ..SeriesOptions::default()
        },
        selection: Selection { names: names.into_iter().collect(), ..Selection::default() },
        ..Options::default()
    };
    pages::measured(&options)
}
