// SPDX-License-Identifier: MIT OR Apache-2.0
//! `cargo xtask profile RUN`: where the time of an attach cell went, alone or against another.

use super::{compare::doubts, complete, exit, output::StandardOutput, values::one_of};
use clap::builder::{PossibleValuesParser, TypedValueParser};
use std::{
    fs::File,
    io::{self, BufWriter, Write},
    path::{Path, PathBuf},
};
use tramplab_analysis::profile::{
    How, Names, Of, Phase, Profile, Subject, Tree, diff, estimate, firefox, flame, folded, text,
};
use tramplab_host::runs::RunDir;
use tramplab_lab::{
    error::{Context, Error, Result},
    profiles,
};
use tramplab_model::{
    code::SourceLines,
    run::{self, Cell, Kernel, Run, Series, Test},
};
use tramplab_protocol::estimate::Event;
use tramplab_report::{markdown, terminal};

#[derive(clap::Args)]
pub struct Args {
    /// A run's folder or run.json, e.g. runs/latest
    #[arg(value_name = "RUN", value_parser = complete::run(), add = complete::runs())]
    run: PathBuf,
    /// Show the cell whose name has all these parts, e.g. 6.12 fentry/100 [default: the only cell
    /// with a profile]
    #[arg(value_name = "CELL")]
    cell: Vec<String>,
    /// Show one phase, or the sum of both
    #[arg(long, value_parser = one_of(PHASES), default_value = "attach")]
    phase: &'static [Phase],
    /// Show instructions, samples, time off the CPU, or estimated cycles [default: the first that
    /// the run has]
    #[arg(long, value_parser = one_of(HOWS))]
    how: Option<How>,
    /// Show how often this event of an estimate happened, instead of its cycles
    #[arg(long, value_name = "EVENT", value_parser = event(), conflicts_with = "how")]
    event: Option<Event>,
    /// Show the work of the attaching thread (task), of interrupts, of other threads, or all
    #[arg(long, value_parser = one_of(WHOSE), default_value = "task")]
    of: Of,
    /// Print in this format; text looks like `perf report`, or for two profiles a table of changes
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
    /// Compare with the same test of this kernel
    #[arg(long, value_name = "KERNEL")]
    base: Option<String>,
    /// Compare with the same test in this run
    #[arg(long, value_name = "RUN", value_parser = complete::run(), add = complete::runs())]
    against: Option<PathBuf>,
    /// Compare despite incompatibilities, and list them
    #[arg(long)]
    anyway: bool,
    /// Leave functions and call chains below this percentage out of text
    #[arg(long, value_name = "PERCENT", default_value_t = 0.5, value_parser = percent)]
    percent_limit: f64,
    /// In text of one profile, also show where the dearest functions begin, if the run kept source
    /// lines
    #[arg(long)]
    lines: bool,
    /// Write to a file instead of standard output
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

const PHASES: &[(&str, &[Phase])] =
    &[("attach", &[Phase::Attach]), ("detach", &[Phase::Detach]), ("both", &Phase::ALL)];

const HOWS: &[(&str, How)] = &[
    ("exact", How::Exact),
    ("sampled", How::Sampled),
    ("waiting", How::Waiting),
    ("estimated", How::Estimated),
];

const WHOSE: &[(&str, Of)] =
    &[("task", Of::Task), ("interrupts", Of::Interrupts), ("others", Of::Others), ("all", Of::All)];

#[derive(Clone, Copy, clap::ValueEnum)]
enum Format {
    Text,
    Markdown,
    /// Collapsed stacks for speedscope and flamegraph.pl: `command;outermost;…;innermost count`; of
    /// two profiles with both counts, the base's first
    Folded,
    /// JSON for Firefox Profiler; of two profiles a process each
    Firefox,
    /// A flame graph; of two profiles a differential one
    Svg,
}

fn event() -> impl TypedValueParser<Value = Event> {
    PossibleValuesParser::new(Event::ALL.map(Event::name)).try_map(|name| name.parse())
}

fn percent(text: &str) -> Result<f64, String> {
    let number: f64 = text.parse().map_err(|_| "expected a number, e.g. 0.5".to_owned())?;
    if (0.0..=100.0).contains(&number) { Ok(number) } else { Err("expected 0 to 100".to_owned()) }
}

pub fn profile(args: &Args) -> Result<u8> {
    let run = RunDir::load(&args.run)?;
    let cell = choose(&run, &args.cell, args.base.as_deref().filter(|_| args.against.is_none()))?;
    let how = args.event.map_or(args.how, |_| Some(How::Estimated));
    let load = |run: &Path, cell: &Cell, how| -> Result<Vec<Profile>> {
        let profiles = profiles::profiles(&RunDir::at(run), cell, args.phase, how)?;
        let shown = |profile| match args.event {
            Some(event) => estimate::only(event, profile),
            None => profile,
        };
        Ok(profiles.into_iter().map(shown).collect())
    };
    let chosen = load(&args.run, cell, how)?;
    if args.base.is_none() && args.against.is_none() {
        let lines = run.lines_of(cell.id.arch, &cell.id.kernel).filter(|_| args.lines);
        one(&chosen, cell, lines, args)?;
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
    // Without --how, both sides show what the head has first.
    let how = how.unwrap_or_else(|| How::of(chosen[0].unit));
    let base_profiles = load(path, base, Some(how))?;
    two(&base_profiles, (&chosen, profiles::beside(cell, &chosen)), &reasons, args)?;
    Ok(exit::PASS)
}

fn subject(profiles: &[Profile], args: &Args) -> Subject {
    let subject = Subject::new(profiles, args.of);
    Subject { counted: args.event.map_or(subject.counted, Event::name), ..subject }
}

fn one(profiles: &[Profile], cell: &Cell, lines: Option<&SourceLines>, args: &Args) -> Result<()> {
    let of = args.of;
    let lines = lines.cloned().unwrap_or_default();
    let beside = profiles::beside(cell, profiles);
    let places = profiles::summaries(cell).iter().find_map(|summary| summary.places);
    let subject = Subject { beside, places, lines, ..subject(profiles, args) };
    let mut tree: Tree<1> = Tree::new(Names::AsTheyWere);
    profiles.iter().for_each(|profile| tree.add(profile, of, 0));
    match args.format {
        Format::Text => write(args, |out| Ok(print(&subject, &tree, profiles, args, out)?)),
        Format::Markdown => write(args, |out| {
            let mut body = Vec::new();
            print(&subject, &tree, profiles, args, &mut body)?;
            Ok(out.write_all(markdown::fenced(&String::from_utf8_lossy(&body)).as_bytes())?)
        }),
        Format::Folded => write(args, |out| Ok(folded::write(&tree, out)?)),
        Format::Firefox => write(args, |out| Ok(firefox::write([&subject], &tree, out)?)),
        Format::Svg => {
            let mut svg = Vec::new();
            flame::render(&subject, &tree, &mut svg).map_err(|e| Error::Usage(e.to_string()))?;
            write(args, |out| Ok(out.write_all(&svg)?))
        }
    }
}

/// Prints a profile as text. An estimate has its events by function below.
fn print(
    subject: &Subject,
    tree: &Tree<1>,
    profiles: &[Profile],
    args: &Args,
    out: &mut impl Write,
) -> io::Result<()> {
    text::render(subject, tree, args.percent_limit, out)?;
    match subject.cpu.as_ref().filter(|_| args.event.is_none()) {
        Some(_) => text::events(&estimate::by_function(profiles, args.of), args.percent_limit, out),
        None => Ok(()),
    }
}

fn two(
    base: &[Profile],
    (head, beside): (&[Profile], Option<How>),
    doubts: &[String],
    args: &Args,
) -> Result<()> {
    let of = args.of;
    let subjects = [subject(base, args), Subject { beside, ..subject(head, args) }];
    let phases = subjects.each_ref().map(Subject::phases);
    if phases[0] != phases[1] {
        let message = format!(
            "the base has profiles of {}, the head of {}: choose with --phase",
            phases[0], phases[1]
        );
        return Err(Error::Usage(message));
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
        Format::Markdown => {
            write(args, |out| Ok(out.write_all(markdown::table(&table()).as_bytes())?))
        }
        Format::Folded => write(args, |out| Ok(folded::write(&tree, out)?)),
        Format::Firefox => write(args, |out| Ok(firefox::write([base, head], &tree, out)?)),
        Format::Svg => {
            let mut svg = Vec::new();
            flame::render_difference(base, head, &tree, doubts.is_empty(), &mut svg)
                .map_err(|e| Error::Usage(e.to_string()))?;
            write(args, |out| Ok(out.write_all(&svg)?))
        }
    }
}

/// Streams: folded stacks can be many times what they are made of.
fn write(
    args: &Args,
    render: impl FnOnce(&mut BufWriter<Box<dyn Write>>) -> Result<()>,
) -> Result<()> {
    let out: Box<dyn Write> = match &args.output {
        None => Box::new(StandardOutput),
        Some(path) => Box::new(
            File::create(path).with_context(|| format!("failed to write {}", path.display()))?,
        ),
    };
    let mut out = BufWriter::new(out);
    render(&mut out)?;
    Ok(out.flush()?)
}

fn with_profiles(run: &Run) -> Result<Vec<&Cell>> {
    let cells: Vec<&Cell> =
        run.cells.iter().filter(|cell| !profiles::summaries(cell).is_empty()).collect();
    if cells.is_empty() {
        let message = format!(
            "run {} has no profiles: measure attach tests with `vm-test --explain exact` (or \
             sampled), or with `explain: [exact]` in the suite",
            run.id
        );
        return Err(Error::Usage(message));
    }
    Ok(cells)
}

/// The cell that is meant; the base's kernel is not it.
fn choose<'a>(run: &'a Run, parts: &[String], not: Option<&str>) -> Result<&'a Cell> {
    let named = |all: Vec<&'a Cell>| {
        let of_part = |all, part: &String| run::select(all, |cell: &&Cell| cell.id.name(), part);
        parts.iter().fold(all, of_part)
    };
    let all = with_profiles(run);
    let mut cells = all.as_ref().map(|all| named(all.clone())).unwrap_or_default();
    let hits = named(run.cells.iter().collect());
    let is_hit = |cell: &&Cell| matches!(cell.id.test, Test::Trigger(_));
    if cells.is_empty() && !hits.is_empty() && hits.iter().all(is_hit) {
        return Err(Error::usage(
            "only attach tests have profiles: the parts of a hit's estimated cycles are a table of \
             `report`",
        ));
    }
    let all = all?;
    cells.retain(|cell| not != Some(&cell.id.kernel));
    // In a series, prefer the head.
    let one_test = cells.iter().all(|cell| {
        (cell.id.arch, cell.id.accel, &cell.id.test)
            == (cells[0].id.arch, cells[0].id.accel, &cells[0].id.test)
    });
    let arch = cells.first().map(|cell| cell.id.arch);
    let is_of = |series: &&Series| {
        Some(series.arch) == arch && cells.iter().any(|cell| cell.id.kernel == series.head().kernel)
    };
    let mut of_cells = run.series.iter().filter(is_of);
    // The heads of several configurations are listed.
    let series = of_cells.next().filter(|_| of_cells.next().is_none());
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
    Err(Error::Usage(message))
}

/// The base's cell of the same test: on the named kernel, else on the same one, else on the only
/// one.
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
                "run {} has no profile of {} on {wanted}: choose with --base a kernel that has \
                 one: {}",
                run.id,
                head.id.test.name(),
                if kernels.is_empty() { "none has".to_owned() } else { kernels.join(", ") }
            );
            Err(Error::Usage(message))
        }
    }
}

fn kernel<'a>(run: &'a Run, cell: &Cell) -> Result<&'a Kernel> {
    let is_it = |kernel: &&Kernel| (&kernel.name, kernel.arch) == (&cell.id.kernel, cell.id.arch);
    run.kernels.iter().find(is_it).ok_or_else(|| {
        Error::Usage(format!("run {} does not say what its kernel {} is", run.id, cell.id.kernel))
    })
}
