// SPDX-License-Identifier: MIT OR Apache-2.0
//! `cargo xtask mechanisms`: writes `docs/mechanisms.md` and `docs/mechanisms.json` anew.

use super::{
    code_of_run, exit, link,
    pages::{self, Source},
};
use std::path::{Path, PathBuf};
use tramplab_analysis::verdict::verdict;
use tramplab_lab::{
    command::CommandLine,
    error::{Context, Error, Result},
    nextest::cells::Selection,
    options::Options,
    place,
};
use tramplab_model::run::{self, Accel, Arch, Run};
use tramplab_report::mechanisms as page;
use tramplab_vm::accel;

const SUITE: &str = "mechanisms";
/// The files that a run of the whole suite writes.
const FILES: [&str; 2] = ["docs/mechanisms.md", "docs/mechanisms.json"];

#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    source: Source,
    /// Write the numbers to FILE.json, or the page to any other FILE; repeatable [default:
    /// docs/mechanisms.md and docs/mechanisms.json, if all cells were measured]
    #[arg(short, long, value_name = "FILE")]
    output: Vec<PathBuf>,
    /// Measure only cells with one of these in their name, as `vm-test` does; needs --output
    #[arg(
        value_name = "CELL",
        requires = "output",
        conflicts_with = "runs",
        value_parser = clap::builder::NonEmptyStringValueParser::new()
    )]
    names: Vec<String>,
}

pub fn mechanisms(args: &Args, command: CommandLine) -> Result<u8> {
    // Before hours of measuring.
    let usual = match &args.output[..] {
        [] => {
            let root = place().checkout("mechanisms").context("the default output is in docs/")?;
            FILES.map(|path| root.join(path)).to_vec()
        }
        _ => Vec::new(),
    };
    let stored = args.source.stored()?;
    if let Some(run) = stored.iter().find(|run| run.suite.name != SUITE) {
        let message =
            format!("{} is a run of the suite {}: the page is of {SUITE}", run.id, run.suite.name);
        return Err(Error::Usage(message));
    }
    let parts = stored.len();
    let run = match run::join(stored, parts).map_err(|apart| Error::Usage(apart.to_string()))? {
        Some(run) => run,
        None => match measured(args, command)? {
            Ok(run) => run,
            Err(code) => return Ok(code),
        },
    };
    let paths = match (&args.output[..], page::gap(&run)) {
        ([], Some(gap)) => {
            eprintln!(
                "{} stay as they were: {gap}; with --run and -o they are written all the same",
                FILES.join(" and ")
            );
            return Ok(exit::NO_MEASUREMENT);
        }
        ([], None) => usual,
        (paths, _) => paths.to_vec(),
    };
    for path in paths {
        write(&run, &path)?;
        link::tell("written:", &path);
    }
    Ok(code_of_run(verdict(&run)))
}

fn write(run: &Run, path: &Path) -> Result<()> {
    let failed = || format!("failed to write {}", path.display());
    let text = match path.extension().is_some_and(|extension| extension == "json") {
        true => page::data::render(run).with_context(failed)?,
        false => page::render(run).into_bytes(),
    };
    std::fs::write(path, text).with_context(failed)
}

/// Measures the suite, or the selected cells of it, on all architectures. `Err`: the exit code, if
/// there is no run for a page.
fn measured(args: &Args, command: CommandLine) -> Result<Result<Run, u8>> {
    let options = Options {
        suite: SUITE.to_owned(),
        command,
        arches: Arch::ALL.into(),
        // Only TCG has exact counts.
        accel: accel::Request::Only(Accel::Tcg),
        setup: args.source.setup,
        selection: Selection { names: args.names.clone(), ..Selection::default() },
        ..Options::default()
    };
    pages::measured(&options)
}
