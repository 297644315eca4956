// SPDX-License-Identifier: MIT OR Apache-2.0
//! `cargo xtask report RUN`: renders a stored run again.

use super::{
    baseline, code_of_run, complete, exit,
    look::{Format, Look, render, tell_missing_lines},
    output::{print, style},
    rerun,
};
use std::{
    io::{self, Read},
    path::{Path, PathBuf},
};
use tramplab_analysis::verdict::verdict;
use tramplab_host::{
    Cache,
    runs::{RunDir, running},
};
use tramplab_kernel::series;
use tramplab_lab::{
    cpus, disassembly,
    error::{Context, Error, Result},
    history::load::{Loaded, load},
    place::place,
    run_dir::sha256,
};
use tramplab_model::{run::Run, text};
use tramplab_report as report;
use tramplab_report::terminal::Style;

#[derive(clap::Args)]
pub struct Args {
    /// Render this run: its folder or run.json, e.g. runs/latest
    #[arg(value_name = "RUN", value_parser = complete::run(), add = complete::runs())]
    run: PathBuf,
    #[command(flatten)]
    look: Look,
    /// Also count the records that a snapshot earlier on the way to the program would waste
    #[arg(long, group = "filtered")]
    what_if: bool,
    /// Write to a file instead of standard output
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Look for the series of this mail, or of `-`, standard input, in RUN and in all runs below
    /// it; print its checks as JSON for `b4 review` instead of a report
    #[arg(
        long,
        value_name = "MAIL",
        conflicts_with_all = [
            "disassemble", "update_budgets", "format", "filtered", "lines", "models",
        ]
    )]
    mail: Option<PathBuf>,
    /// Print FUNCTION's instructions on the base of a series beside those on the head, instead of a
    /// report
    #[arg(
        long,
        value_name = "FUNCTION",
        conflicts_with_all = ["update_budgets", "format", "listing", "what_if", "lines", "models"]
    )]
    disassemble: Option<String>,
    /// Write the run's values as budgets into its suite's file, or into SUITE, and print the diff
    /// instead of a report
    #[arg(
        long,
        value_name = "SUITE",
        num_args = 0..=1,
        require_equals = true,
        conflicts_with_all = ["output", "format", "listing", "models"]
    )]
    update_budgets: Option<Option<PathBuf>>,
}

pub fn report(args: &Args) -> Result<u8> {
    if let Some(mail) = &args.mail {
        return review(&args.run, mail, args.output.as_deref());
    }
    args.look.format.check_takes("--what-if", args.what_if)?;
    args.look.format.check_takes("--lines", args.look.lines)?;
    let run = RunDir::load(&args.run)?;
    if running::is_going_on(&RunDir::at(&args.run)) {
        eprintln!("the run {} still goes on: this is what it has so far", run.id);
    }
    if let Some(suite) = &args.update_budgets {
        return update_budgets(&run, suite.as_deref());
    }
    if let Some(function) = &args.disassemble {
        return disassemble(&run, function, args.output.as_deref());
    }
    let style = if args.output.is_none() { style() } else { Style::default() };
    let model = cpus::of_report(&args.look.models, &[&run])?;
    let look = Look { what_if: args.what_if, ..args.look.clone() };
    let bytes = render(&run, &RunDir::at(&args.run), &look, &model, style)?;
    write(&bytes, args.output.as_deref())?;
    tell_missing_lines(&run, &args.look);
    if args.look.format == Format::Terminal {
        // A stranger may have made the run: nobody is to copy its options for this machine unread.
        rerun::tell(&run, &RunDir::at(&args.run), Vec::new());
    }
    let code = code_of_run(verdict(&run));
    // The terminal report explains the exit code; files and formats for programs do not.
    if code != exit::PASS && (args.output.is_some() || args.look.format != Format::Terminal) {
        eprintln!("exit code {code}: {}", report::why(&run));
    }
    Ok(code)
}

fn write(bytes: &[u8], output: Option<&Path>) -> Result<()> {
    match output {
        Some(path) => std::fs::write(path, bytes)
            .with_context(|| format!("failed to write {}", path.display())),
        None => print(bytes),
    }
}

fn review(runs: &Path, mail: &Path, output: Option<&Path>) -> Result<u8> {
    let bytes = match mail.to_str() {
        Some("-") => {
            let mut bytes = Vec::new();
            io::stdin().read_to_end(&mut bytes).map(|_| bytes)
        }
        _ => std::fs::read(mail),
    };
    let bytes = bytes.map_err(|error| {
        let path = mail.display();
        Error::Usage(format!(
            "failed to read the mail {path}: {error}; expected a file, or `-` for standard input"
        ))
    })?;
    let ids = series::ids(&bytes, &mail.display().to_string())?;
    let Loaded { runs, left_out } = load(&[runs.to_owned()])?;
    left_out.iter().for_each(|why| eprintln!("left out: {why}"));
    write(report::review::render(&runs, &ids).as_bytes(), output)?;
    Ok(exit::PASS)
}

fn disassemble(run: &Run, function: &str, output: Option<&Path>) -> Result<u8> {
    let all = disassembly::disassemble(run, &Cache::located(true)?, function)?;
    let texts = all.iter().map(|one| {
        let [base, head] = &one.kernels;
        report::disassembly::render(&one.name, [base, head], &one.rows, &one.mispredicted)
    });
    write(texts.collect::<Vec<_>>().join("\n").as_bytes(), output)?;
    Ok(exit::PASS)
}

fn update_budgets(run: &Run, named: Option<&Path>) -> Result<u8> {
    // A stored run may be a stranger's, and so may be the file that it names.
    let is_named = place().suite(&run.suite.name).is_ok_and(|file| file == *run.suite.file);
    let suite = match named {
        Some(suite) => suite,
        None if is_named => Path::new(&run.suite.file),
        None => {
            return Err(Error::Usage(format!(
                "run {} was made with the suite {}; name the file to write: --update-budgets=SUITE",
                text::line(&run.id),
                text::line(&run.suite.file)
            )));
        }
    };
    if sha256(suite).is_ok_and(|now| now != run.suite.sha256) {
        let path = suite.display();
        eprintln!(
            "warning: {path} changed after {} ran, and may measure something else now",
            run.id
        );
    }
    baseline::update(run, suite)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_no_file_that_only_a_stored_run_names() {
        let folder = tempfile::tempdir().unwrap();
        let (file, mut run) = (folder.path().join("mine.yaml"), tramplab_testdata::stored());
        std::fs::write(&file, "mine").unwrap();
        run.suite.file = file.display().to_string();
        let error = update_budgets(&run, None).unwrap_err();
        assert!(matches!(&error, Error::Usage(why) if why.contains("--update-budgets=SUITE")));
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "mine");
    }
}
