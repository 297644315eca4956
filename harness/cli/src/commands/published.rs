// SPDX-License-Identifier: MIT OR Apache-2.0
//! `cargo xtask published`: writes `docs/published.md`, or the sections of some series in it.

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
use tramplab_report::published::{self as page, Page};
use tramplab_vm::accel;

const SUITE: &str = "published";
const FILE: &str = "docs/published.md";

#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    source: Source,
    /// Write a page of only these series to FILE [default: docs/published.md]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Measure only these series; docs/published.md keeps the others
    #[arg(value_name = "SERIES", conflicts_with = "runs")]
    series: Vec<String>,
}

pub fn published(args: &Args, command: CommandLine) -> Result<u8> {
    // A user's own series are no part of the page.
    let folder = place().data().join("kernels/patches");
    let mut publications: Vec<(String, Published)> = Vec::new();
    for name in series::names(&folder) {
        let shipped = series::load(&name, &folder)?.shipped;
        let of_series = shipped.into_iter().flat_map(|shipped| shipped.published);
        publications.extend(of_series.map(|published| (name.clone(), published)));
    }
    let all: Vec<String> = publications.iter().map(|(name, _)| name.clone()).collect();
    if let Some(unknown) = args.series.iter().find(|name| !all.contains(name)) {
        let message =
            format!("nothing was published of `{unknown}`, expected some of: {}", all.join(", "));
        return Err(Error::Usage(message));
    }
    let (output, mut page) = match &args.output {
        Some(path) => (path.clone(), Page::default()),
        None => {
            let root = place().checkout("published").context("the default output is in docs/")?;
            let path = root.join(FILE);
            let page = pages::older(&path)?.map(|text| Page::read(&text)).unwrap_or_default();
            (path, page)
        }
    };
    let mut runs = args.source.stored()?;
    if runs.is_empty() {
        let is_asked = |name: &String| args.series.is_empty() || args.series.contains(name);
        for (name, of) in publications.iter().filter(|(name, _)| is_asked(name)) {
            match measured(args, name, of, command.clone())? {
                Ok(run) => runs.push(run),
                Err(code) => return Ok(code),
            }
        }
    }
    page.update(Page::of(&runs));
    let mut gap = page::gap(&runs);
    if args.output.is_none() {
        page.keep(&all);
        let wanted = |name: &String| all.iter().filter(|one| *one == name).count();
        let absent = all.iter().find(|name| page.count(name) != wanted(name));
        let absent =
            absent.map(|name| format!("not all that was published of {name} was measured"));
        gap = gap.or(absent);
    }
    if let (None, Some(gap)) = (&args.output, &gap) {
        eprintln!("{FILE} stays as it was: {gap}; with --run and -o it is written all the same");
        return Ok(exit::NO_MEASUREMENT);
    }
    std::fs::write(&output, page.render())
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
