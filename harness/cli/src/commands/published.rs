// SPDX-License-Identifier: MIT OR Apache-2.0
//! `cargo xtask published`: writes `docs/published.md` anew.

use super::{complete, exit, link, look::Look, progress::Progress, vm_test};
use std::{collections::BTreeSet, path::PathBuf};
use tramplab_host::runs::RunDir;
use tramplab_kernel::series;
use tramplab_lab::{
    command::CommandLine,
    error::{Context, Error, Result},
    kernels::SeriesOptions,
    measure::{Measured, measure},
    nextest::cells::Selection,
    options::Options,
    place,
};
use tramplab_model::{
    published::Published,
    run::{Accel, Arch, Run},
};
use tramplab_protocol::message::Explain;
use tramplab_report::published as page;
use tramplab_vm::accel;

const SUITE: &str = "published";
const FILE: &str = "docs/published.md";

#[derive(clap::Args)]
pub struct Args {
    /// Install what is missing and fetch QEMU and Rust; then measure
    #[arg(long)]
    setup: bool,
    /// Write the page of these stored runs; measure nothing
    #[arg(
        long = "run",
        value_name = "RUN",
        conflicts_with = "setup",
        value_parser = complete::run(),
        add = complete::runs()
    )]
    runs: Vec<PathBuf>,
    /// Write the page to FILE [default: docs/published.md]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

pub fn published(args: &Args, command: CommandLine) -> Result<u8> {
    let output = match &args.output {
        Some(path) => path.clone(),
        None => place().checkout("published").context("the default output is in docs/")?.join(FILE),
    };
    let mut runs =
        args.runs.iter().map(|path| RunDir::load(path)).collect::<Result<Vec<_>, _>>()?;
    if args.runs.is_empty() {
        for name in place().series() {
            let series = series::load(&name, &place().series_with(&name))?;
            let Some(shipped) = series.shipped else { continue };
            let arches = match &shipped.arches[..] {
                [] => vec![Arch::X86_64],
                arches => arches.to_vec(),
            };
            for of in &shipped.published {
                match measured(args, &name, &arches, of, command.clone())? {
                    Ok(run) => runs.push(run),
                    Err(code) => return Ok(code),
                }
            }
        }
    }
    let text = page::render(&runs);
    std::fs::write(&output, text)
        .with_context(|| format!("failed to write {}", output.display()))?;
    link::tell("written:", &output);
    Ok(exit::PASS)
}

/// Measures the rows of one publication. `Err`: the exit code, if there is no run for a page.
fn measured(
    args: &Args,
    series: &str,
    arches: &[Arch],
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
        arches: arches.iter().copied().collect(),
        // Only TCG has exact counts.
        accel: accel::Request::Only(Accel::Tcg),
        setup: args.setup,
        explain: match of.model {
            Some(_) => [Explain::Exact, Explain::Estimated].into(),
            None => BTreeSet::new(),
        },
        models: of.model.iter().flat_map(|model| model.parse()).collect(),
        series: SeriesOptions {
            series: Some(series.to_owned()),
            axes: of.axes.iter().map(axis).collect::<Result<_>>()?,
            ..SeriesOptions::default()
        },
        selection: Selection { names: names.into_iter().collect(), ..Selection::default() },
        ..Options::default()
    };
    let progress = Progress::new();
    let measured = measure(&options, &|event| progress.show(event))?;
    drop(progress);
    Ok(match measured {
        Measured::Run { run, run_dir, .. } => {
            vm_test::finish(&run, &run_dir, &Look::plain())?;
            if run.interrupted { Err(exit::INTERRUPTED) } else { Ok(*run) }
        }
        Measured::NotBuilt(_) => Err(exit::NO_MEASUREMENT),
        Measured::Listed(_) | Measured::Built => Err(exit::PASS),
    })
}
