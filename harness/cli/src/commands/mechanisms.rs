// SPDX-License-Identifier: MIT OR Apache-2.0
//! `cargo xtask mechanisms`: writes `docs/mechanisms.md` and `docs/mechanisms.json`, or the
//! numbers of some cells in them.

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
use tramplab_model::run::{Accel, Arch, Run};
use tramplab_report::mechanisms::{self as page, data::Data};
use tramplab_vm::accel;

const SUITE: &str = "mechanisms";
/// The files that a run of the whole suite writes.
const FILES: [&str; 2] = ["docs/mechanisms.md", "docs/mechanisms.json"];

#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    source: Source,
    /// Write the numbers to FILE.json, or the page to any other FILE; repeatable [default:
    /// docs/mechanisms.md and docs/mechanisms.json, if no number is missing]
    #[arg(short, long, value_name = "FILE")]
    output: Vec<PathBuf>,
    /// Measure only cells with one of these in their name, as `vm-test` does; docs/ keeps the
    /// others
    #[arg(
        value_name = "CELL",
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
            let paths = FILES.map(|path| root.join(path));
            Some((older(&paths[1])?, paths))
        }
        _ => None,
    };
    let mut runs = args.source.stored()?;
    if let Some(run) = runs.iter().find(|run| run.suite.name != SUITE) {
        let message =
            format!("{} is a run of the suite {}: the page is of {SUITE}", run.id, run.suite.name);
        return Err(Error::Usage(message));
    }
    if runs.is_empty() {
        match measured(args, command)? {
            Ok(run) => runs.push(run),
            Err(code) => return Ok(code),
        }
    }
    runs.sort_by(|a, b| a.started.cmp(&b.started));
    let whole = |change| {
        Error::Usage(format!(
            "{change}: a page is of one kernel of a name; measure the whole suite"
        ))
    };
    let all = runs.iter().map(|run| Ok(page::data::data(run)));
    let data = all.reduce(|older, newer| older?.update(newer?).map_err(whole));
    let mut data = data.expect("a run")?;
    let mut paths = args.output.clone();
    if let Some((older, usual)) = usual {
        if let (Some(older), Some(_)) = (older, data.incomplete()) {
            data = older.update(data).map_err(whole)?;
        }
        if let Some(gap) = data.incomplete() {
            let files = FILES.join(" and ");
            eprintln!("{files} stay as they were: {gap}; with -o they are written all the same");
            return Ok(exit::NO_MEASUREMENT);
        }
        paths = usual.to_vec();
    }
    for path in paths {
        write(&data, &path)?;
        link::tell("written:", &path);
    }
    Ok(runs.iter().map(|run| code_of_run(verdict(run))).max().unwrap_or(exit::PASS))
}

/// The numbers that a part of the suite leaves as they are.
fn older(path: &Path) -> Result<Option<Data>> {
    let Some(text) = pages::older(path)? else { return Ok(None) };
    Data::read(&text).with_context(|| format!("failed to parse {}", path.display()))
}

fn write(data: &Data, path: &Path) -> Result<()> {
    let failed = || format!("failed to write {}", path.display());
    let text = match path.extension().is_some_and(|extension| extension == "json") {
        true => data.text().with_context(failed)?,
        false => page::render(data).into_bytes(),
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
