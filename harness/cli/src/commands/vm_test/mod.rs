// SPDX-License-Identifier: MIT OR Apache-2.0
//! `cargo xtask vm-test`: the main job, from a suite to a report.

pub mod args;
mod this_machine;

use super::{
    baseline, code_of, code_of_run, defaults, exit, given, link,
    look::{self, Look},
    messages::Messages,
    output::{print, style},
    progress::Progress,
    rerun, shell,
};
use args::{Alone, Args, MessageFormat};
use clap::Parser;
use std::{
    io::{self, IsTerminal},
    path::Path,
};
use tramplab_analysis::verdict::verdict;
use tramplab_host::runs::RunDir;
use tramplab_lab::{
    Error, Result,
    command::VM_TEST,
    cpus,
    lab::NotBuilt,
    listing::Listed,
    measure::{Measured, measure},
    rerun::Earlier,
};
use tramplab_model::{
    run::{GivenOptions, Run},
    text,
};

pub fn vm_test(args: &Args, typed: GivenOptions) -> Result<u8> {
    let Some(path) = &args.call.rerun else { return run_with_defaults(args, typed) };
    // Its servers are for this run, too.
    defaults::servers()?;
    let earlier = Earlier::load(path)?;
    let options = rerun::options(&earlier, &typed)?;
    run(&parsed(&options), options, Some(earlier))
}

fn run_with_defaults(args: &Args, typed: GivenOptions) -> Result<u8> {
    let tree = args.options(given::kept(typed.clone()), None)?.tree();
    let series = args.series.series.as_deref();
    let options = defaults::added(typed.clone(), tree.as_deref(), series)?;
    if options == typed {
        return run(args, options, None);
    }
    run(&parsed(&options), options, None)
}

/// The arguments of options that were parsed one by one before. Exits if they conflict.
fn parsed(options: &GivenOptions) -> Args {
    Alone::parse_from([VM_TEST.to_owned()].into_iter().chain(options.words())).args
}

fn run(args: &Args, options: GivenOptions, earlier: Option<Earlier>) -> Result<u8> {
    if args.call.keep && !io::stdin().is_terminal() {
        return Err(Error::usage("--keep needs a terminal on stdin"));
    }
    cpus::of_new_run(&args.look.models)?;
    let options = this_machine::asking(args, args.options(given::kept(options), earlier)?)?;
    let messages = (args.call.message_format == Some(MessageFormat::Json)).then(Messages::default);
    let progress = Progress::new();
    let measured = measure(&options, &|event| {
        progress.show(event);
        messages.iter().for_each(|messages| messages.show(event));
    });
    drop(progress);
    let measured = measured.inspect_err(|error| {
        messages.iter().for_each(|one| one.fail(error.told(), code_of(error.fault())));
    })?;
    match measured {
        Measured::Run { run, run_dir } => {
            let code = match messages {
                Some(messages) => {
                    look::write_all(&run, &run_dir).inspect_err(|error| {
                        messages.fail(error.told(), code_of(error.fault()));
                    })?;
                    look::tell_missing_lines(&run, &args.look);
                    tell_folder(&run, &run_dir);
                    let code = code_of_run(verdict(&run));
                    messages.end(&run, run_dir.path(), code)?;
                    code
                }
                None => finish(&run, &run_dir, &args.look)?,
            };
            shell::look_into(&run, &run_dir, args.call.keep)?;
            // A budget that was exceeded is replaced.
            if args.call.update_budgets {
                baseline::update(&run, Path::new(&run.suite.file))
            } else {
                Ok(code)
            }
        }
        Measured::Listed(listed) => {
            print(listed.jobs.iter().map(|job| format!("{job}\n")).collect::<String>().as_bytes())?;
            eprintln!("{}", counted(&listed));
            Ok(exit::PASS)
        }
        Measured::Built => Ok(exit::PASS),
        Measured::NotBuilt(NotBuilt { logs, reasons }) => {
            reasons.iter().for_each(|reason| eprintln!("{}", text::marked(reason)));
            link::tell("a kernel does not build; make's output is in", &logs);
            Ok(exit::NO_MEASUREMENT)
        }
    }
}

/// Writes and prints the reports of a run.
pub fn finish(run: &Run, run_dir: &RunDir, look: &Look) -> Result<u8> {
    look::write_all(run, run_dir)?;
    let model = cpus::of_new_run(&look.models)?;
    print(&look::render(run, run_dir, look, &model, style())?)?;
    look::tell_missing_lines(run, look);
    tell_folder(run, run_dir);
    Ok(code_of_run(verdict(run)))
}

fn tell_folder(run: &Run, run_dir: &RunDir) {
    rerun::tell(run, run_dir, rerun::retyped(run));
    link::tell("run kept in", run_dir.path());
    link::tell("to see it:", &run_dir.path().join(look::PAGE));
}

/// Counts cells and builds as the report will. A line of the list is a job, which may have several
/// cells.
fn counted(Listed { jobs, cells, builds }: &Listed) -> String {
    let mut text = text::counted(*cells, "cell");
    if *cells != jobs.len() {
        text +=
            &format!(": {}, each on every kernel of the series", text::counted(jobs.len(), "test"));
    }
    if *builds > 0 {
        text +=
            &format!("; and {}, which the report counts as cells", text::counted(*builds, "build"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_listed_cells_as_the_report_does() {
        for (jobs, cells, builds, expected) in [
            (1, 1, 0, "1 cell"),
            (7, 7, 0, "7 cells"),
            (7, 7, 1, "7 cells; and 1 build, which the report counts as cells"),
            (
                20,
                40,
                2,
                "40 cells: 20 tests, each on every kernel of the series; and 2 builds, which the \
                 report counts as cells",
            ),
        ] {
            let listed = Listed { jobs: vec![String::new(); jobs], cells, builds };
            assert_eq!(counted(&listed), expected);
        }
    }
}
