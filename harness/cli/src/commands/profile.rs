// SPDX-License-Identifier: MIT OR Apache-2.0
//! `cargo xtask profile RUN`: where the time of an attach cell went, alone or against another.

use super::{UsageError, compare::doubts, exit, report::StandardOutput};
use anyhow::{Context, Result};
use std::{
    fs::File,
    io::{BufWriter, Write},
    path::{Path, PathBuf},
};
use tramplab_analysis::profile::{
    self, Names, Of, Phase, Profile, Subject, Summary, Tree, Unit, diff, flame, folded, text,
};
use tramplab_host::runs::RunDir;
use tramplab_model::run::{self, Cell, Kernel, Measurement, Run};
use tramplab_protocol::message::Explain;
use tramplab_report::{markdown, terminal};

#[derive(clap::Args)]
pub struct Args {
    /// A run's folder or run.json, e.g. runs/latest
    #[arg(value_name = "RUN")]
    run: PathBuf,
    /// Parts of a cell's name, all of which it has, e.g. 6.12 fentry/100 [default: the only cell with a profile]
    #[arg(value_name = "CELL")]
    cell: Vec<String>,
    /// One phase, or both added up
    #[arg(long, value_enum, default_value_t = Phases::Attach)]
    phase: Phases,
    /// What is counted: instructions, samples, or time off the CPU [default: the first that there is]
    #[arg(long, value_enum)]
    how: Option<How>,
    /// Whose work
    #[arg(long, value_enum, default_value_t = Whose::Task)]
    of: Whose,
    /// Text: as `perf report` prints it; of two profiles, the functions that changed most
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
    /// Compare with the same test of this kernel
    #[arg(long, value_name = "KERNEL")]
    base: Option<String>,
    /// Compare with the same test in this run
    #[arg(long, value_name = "RUN")]
    against: Option<PathBuf>,
    /// Compare although the runs are not comparable; the reasons stand in the table
    #[arg(long)]
    anyway: bool,
    /// Per cent of the whole below which functions and call chains are left out of text
    #[arg(long, value_name = "PERCENT", default_value_t = 0.5, value_parser = percent)]
    percent_limit: f64,
    /// Write to a file instead of standard output
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Phases {
    Attach,
    Detach,
    Both,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum How {
    Exact,
    Sampled,
    Waiting,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Whose {
    /// The attaching thread's, without interrupts
    Task,
    Interrupts,
    /// Other threads', without interrupts
    Others,
    All,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Format {
    Text,
    Markdown,
    /// `command;outermost;…;innermost count`; of two profiles with both counts, the base's first
    Folded,
    /// A flame graph; of two profiles a differential one
    Svg,
}

impl From<How> for profile::How {
    fn from(how: How) -> profile::How {
        match how {
            How::Exact => profile::How::Exact,
            How::Sampled => profile::How::Sampled,
            How::Waiting => profile::How::Waiting,
        }
    }
}

impl From<Whose> for Of {
    fn from(whose: Whose) -> Of {
        match whose {
            Whose::Task => Of::Task,
            Whose::Interrupts => Of::Interrupts,
            Whose::Others => Of::Others,
            Whose::All => Of::All,
        }
    }
}

fn percent(text: &str) -> Result<f64, String> {
    let number: f64 = text.parse().map_err(|_| "expected a number, e.g. 0.5".to_owned())?;
    if (0.0..=100.0).contains(&number) { Ok(number) } else { Err("expected 0 to 100".to_owned()) }
}

pub fn profile(args: &Args) -> Result<u8> {
    let run = RunDir::load(&args.run)?;
    let cell = choose(&run, &args.cell, args.base.as_deref().filter(|_| args.against.is_none()))?;
    let chosen = profiles(&RunDir::at(&args.run), cell, args.phase, args.how)?;
    if args.base.is_none() && args.against.is_none() {
        one(&chosen, beside(cell, &chosen), args)?;
        return Ok(exit::PASS);
    }
    let path = args.against.as_ref().unwrap_or(&args.run);
    let base_run = RunDir::load(path)?;
    let base = same_test(&base_run, cell, args.base.as_deref())?;
    let reasons = doubts(
        (&base_run, kernel(&base_run, base)?, path),
        (&run, kernel(&run, cell)?, &args.run),
        args.anyway,
    )?;
    for reason in &reasons {
        eprintln!("compared although {reason}");
    }
    // What the head was chosen to be, the base is as well: else an unasked `--how` could be two things.
    let how = args.how.unwrap_or(match chosen[0].unit {
        Unit::Instructions => How::Exact,
        Unit::Samples => How::Sampled,
        Unit::Nanoseconds => How::Waiting,
    });
    let base_profiles = profiles(&RunDir::at(path), base, args.phase, Some(how))?;
    two(&base_profiles, (&chosen, beside(cell, &chosen)), &reasons, args)?;
    Ok(exit::PASS)
}

fn one(profiles: &[Profile], beside: Option<profile::How>, args: &Args) -> Result<()> {
    let of = args.of.into();
    let subject = Subject { beside, ..Subject::new(profiles, of) };
    let mut tree: Tree<1> = Tree::new(Names::AsTheyWere);
    profiles.iter().for_each(|profile| tree.add(profile, of, 0));
    match args.format {
        Format::Text => write(args, |out| Ok(text::render(&subject, &tree, args.percent_limit, out)?)),
        Format::Markdown => write(args, |out| {
            let mut body = Vec::new();
            text::render(&subject, &tree, args.percent_limit, &mut body)?;
            Ok(out.write_all(markdown::fenced(&String::from_utf8_lossy(&body)).as_bytes())?)
        }),
        Format::Folded => write(args, |out| Ok(folded::write(&tree, out)?)),
        Format::Svg => {
            let mut svg = Vec::new();
            flame::render(&subject, &tree, &mut svg).map_err(|e| UsageError(e.to_string()))?;
            write(args, |out| Ok(out.write_all(&svg)?))
        }
    }
}

fn two(
    base: &[Profile],
    (head, beside): (&[Profile], Option<profile::How>),
    doubts: &[String],
    args: &Args,
) -> Result<()> {
    let of = args.of.into();
    let subjects = [Subject::new(base, of), Subject { beside, ..Subject::new(head, of) }];
    let phases = subjects.each_ref().map(Subject::phases);
    if phases[0] != phases[1] {
        let message =
            format!("the base has profiles of {}, the head of {}: choose with --phase", phases[0], phases[1]);
        return Err(UsageError(message).into());
    }
    let mut tree: Tree<2> = Tree::new(Names::Stable);
    base.iter().for_each(|profile| tree.add(profile, of, 0));
    head.iter().for_each(|profile| tree.add(profile, of, 1));
    let [base, head] = &subjects;
    let table = || {
        let mut table = diff::table(base, head, &tree);
        table.notes.extend(doubts.iter().map(|reason| format!("compared although {reason}")));
        table
    };
    match args.format {
        Format::Text => write(args, |out| Ok(out.write_all(terminal::table(&table()).as_bytes())?)),
        Format::Markdown => write(args, |out| Ok(out.write_all(markdown::table(&table()).as_bytes())?)),
        Format::Folded => write(args, |out| Ok(folded::write(&tree, out)?)),
        Format::Svg => {
            let mut svg = Vec::new();
            flame::render_difference(base, head, &tree, doubts.is_empty(), &mut svg)
                .map_err(|e| UsageError(e.to_string()))?;
            write(args, |out| Ok(out.write_all(&svg)?))
        }
    }
}

/// The functions that changed most between two exact profiles.
pub fn changes(base: (&RunDir, &Cell), head: (&RunDir, &Cell), phase: Phase) -> Result<String> {
    let phases = match phase {
        Phase::Attach => Phases::Attach,
        Phase::Detach => Phases::Detach,
    };
    let load = |(dir, cell): (&RunDir, &Cell)| profiles(dir, cell, phases, Some(How::Exact));
    let (base, head) = (load(base)?, load(head)?);
    let mut tree: Tree<2> = Tree::new(Names::Stable);
    base.iter().for_each(|profile| tree.add(profile, Of::Task, 0));
    head.iter().for_each(|profile| tree.add(profile, Of::Task, 1));
    let [base, head] = [base, head].map(|profiles| Subject::new(&profiles, Of::Task));
    Ok(terminal::table(&diff::table(&base, &head, &tree)))
}

/// Streams: folded stacks can be many times what they are made of.
fn write(args: &Args, render: impl FnOnce(&mut BufWriter<Box<dyn Write>>) -> Result<()>) -> Result<()> {
    let out: Box<dyn Write> = match &args.output {
        None => Box::new(StandardOutput),
        Some(path) => {
            Box::new(File::create(path).with_context(|| format!("failed to write {}", path.display()))?)
        }
    };
    let mut out = BufWriter::new(out);
    render(&mut out)?;
    Ok(out.flush()?)
}

fn summaries(cell: &Cell) -> &[Summary] {
    match &cell.measurement {
        Some(Measurement::Attach(attach)) => &attach.explained,
        _ => &[],
    }
}

fn with_profiles(run: &Run) -> Result<Vec<&Cell>> {
    let cells: Vec<&Cell> = run.cells.iter().filter(|cell| !summaries(cell).is_empty()).collect();
    if cells.is_empty() {
        let message = format!(
            "run {} has no profiles: measure attach tests with `vm-test --explain exact` (or sampled), or \
             with `explain: [exact]` in the suite",
            run.id
        );
        return Err(UsageError(message).into());
    }
    Ok(cells)
}

/// The cell that is meant; the base's kernel is not it.
fn choose<'a>(run: &'a Run, parts: &[String], not: Option<&str>) -> Result<&'a Cell> {
    let all = with_profiles(run)?;
    let mut cells = all.clone();
    for part in parts {
        cells = run::select(cells, |cell| cell.id.name(), part);
    }
    cells.retain(|cell| not != Some(&cell.id.kernel));
    // Of a series the head is what somebody wants to know of.
    let one_test = cells.iter().all(|cell| {
        (cell.id.arch, cell.id.accel, &cell.id.test)
            == (cells[0].id.arch, cells[0].id.accel, &cells[0].id.test)
    });
    let arch = cells.first().map(|cell| cell.id.arch);
    let series = run.series.iter().find(|series| Some(series.arch) == arch);
    if let Some(series) = series.filter(|_| one_test && cells.len() > 1) {
        cells.retain(|cell| cell.id.kernel == series.head().kernel);
    }
    let (what, listed) = match &cells[..] {
        [only] => return Ok(only),
        [] => ("no cell with a profile is meant", &all),
        _ => ("several cells could be meant", &cells),
    };
    let names: String = listed.iter().map(|cell| format!("\n  {}", cell.id.name())).collect();
    let message = format!("{what}: name parts of one of run {}:{names}", run.id);
    Err(UsageError(message).into())
}

/// The base's cell: the same test, of the kernel that is named, else of the same, else of the only one.
fn same_test<'a>(run: &'a Run, head: &Cell, kernel: Option<&str>) -> Result<&'a Cell> {
    let same = |cell: &&Cell| {
        (cell.id.arch, cell.id.accel, &cell.id.test) == (head.id.arch, head.id.accel, &head.id.test)
    };
    let cells: Vec<&Cell> = with_profiles(run)?.into_iter().filter(same).collect();
    let wanted = kernel.unwrap_or(&head.id.kernel);
    if let Some(found) = cells.iter().find(|cell| cell.id.kernel == wanted) {
        return Ok(found);
    }
    match (&cells[..], kernel) {
        ([only], None) => Ok(only),
        _ => {
            let kernels: Vec<&str> = cells.iter().map(|cell| cell.id.kernel.as_str()).collect();
            let message = format!(
                "run {} has no profile of {} on {wanted}: choose with --base a kernel that has one: {}",
                run.id,
                head.id.test.name(),
                if kernels.is_empty() { "none has".to_owned() } else { kernels.join(", ") }
            );
            Err(UsageError(message).into())
        }
    }
}

fn kernel<'a>(run: &'a Run, cell: &Cell) -> Result<&'a Kernel> {
    let is_it = |kernel: &&Kernel| (&kernel.name, kernel.arch) == (&cell.id.kernel, cell.id.arch);
    run.kernels.iter().find(is_it).ok_or_else(|| {
        UsageError(format!("run {} does not say what its kernel {} is", run.id, cell.id.kernel)).into()
    })
}

/// Of an exact profile the sampled one, and the other way round, where there is one of the same phases.
fn beside(cell: &Cell, profiles: &[Profile]) -> Option<profile::How> {
    let (other, how) = match profiles[0].unit {
        Unit::Instructions => (Explain::Sampled, profile::How::Sampled),
        Unit::Samples => (Explain::Exact, profile::How::Exact),
        Unit::Nanoseconds => return None,
    };
    let has = |phase| summaries(cell).iter().any(|summary| (summary.phase, summary.how) == (phase, other));
    profiles.iter().all(|profile| has(profile.phase)).then_some(how)
}

fn profiles(dir: &RunDir, cell: &Cell, phases: Phases, how: Option<How>) -> Result<Vec<Profile>> {
    let phases = match phases {
        Phases::Attach => &[Phase::Attach][..],
        Phases::Detach => &[Phase::Detach],
        Phases::Both => &Phase::ALL,
    };
    let folder = dir.cell(&cell.id);
    let hows = how.map_or_else(|| vec![How::Exact, How::Sampled, How::Waiting], |how| vec![how]);
    for &how in &hows {
        let files: Vec<(Phase, PathBuf)> = phases
            .iter()
            .filter_map(|&phase| Some((phase, file(&folder, summaries(cell), phase, how)?)))
            .collect();
        if !files.is_empty() {
            return files.iter().map(|(phase, file)| load(file, cell, *phase, how)).collect();
        }
    }
    let there: String = Phase::ALL
        .into_iter()
        .flat_map(|phase| [How::Exact, How::Sampled, How::Waiting].map(|how| (phase, how)))
        .filter_map(|(phase, how)| {
            file(&folder, summaries(cell), phase, how)?;
            Some(format!("\n  --phase {} --how {}", phase.name(), profile::How::from(how).name()))
        })
        .collect();
    let message = format!("{} has no such profile; it has:{there}", cell.id.name());
    Err(UsageError(message).into())
}

/// A profile that is what the run says of it, and not another's.
fn load(file: &Path, cell: &Cell, phase: Phase, how: How) -> Result<Profile> {
    let profile = Profile::load(file)?;
    let (unit, explain) = match how {
        How::Exact => (Unit::Instructions, Some(Explain::Exact)),
        How::Sampled => (Unit::Samples, Some(Explain::Sampled)),
        How::Waiting => (Unit::Nanoseconds, None),
    };
    let summary = summaries(cell).iter().find(|one| one.phase == phase && Some(one.how) == explain);
    let is_it = (profile.cell.as_str(), profile.phase, profile.unit) == (&cell.id.name(), phase, unit)
        && summary.is_none_or(|summary| summary.totals == profile.totals());
    if !is_it {
        let message = format!(
            "{} is not the profile that the run has made of {}, {}, {}: it was replaced or changed",
            file.display(),
            cell.id.name(),
            phase.name(),
            profile::How::from(how).name()
        );
        return Err(UsageError(message).into());
    }
    Ok(profile)
}

/// The waiting profile is made beside the sampled one, whose summary holds the waits.
fn file(folder: &Path, summaries: &[Summary], phase: Phase, how: How) -> Option<PathBuf> {
    let of = |explain| summaries.iter().find(|summary| (summary.phase, summary.how) == (phase, explain));
    match how {
        How::Exact => of(Explain::Exact).map(|summary| folder.join(&summary.file)),
        How::Sampled => of(Explain::Sampled).map(|summary| folder.join(&summary.file)),
        How::Waiting => {
            of(Explain::Sampled).or(of(Explain::Exact)).filter(|summary| !summary.waits.is_empty())?;
            Some(folder.join(profile::How::from(how).file(phase)))
        }
    }
}
