// SPDX-License-Identifier: MIT OR Apache-2.0
//! Prints a profile as `perf report --stdio` does.
//!
//! The first table has functions with everything they called, as with `--children`. The second has
//! functions by the amount spent in themselves and, below each, its callers, as with
//! `--no-children`. Both are sorted, the largest amount first.

use super::{
    Frame, Function, How, Of, Space, Spent, Subject, Tree,
    estimate::{Happened, Term},
};
use std::{
    cmp::Reverse,
    collections::HashMap,
    io::{self, Write},
};
use tramplab_model::{
    code::{self, SourceLines},
    text::line,
};
use tramplab_protocol::message::Places;

/// A place of the tree, and its amount of a row.
type Part = (u32, u64);

struct Row {
    frame: u32,
    own: u64,
    parts: Vec<Part>,
}

/// Prints a profile without functions and ways below `limit` percent. The last line counts the
/// functions left out.
pub fn render(
    subject: &Subject,
    tree: &Tree<1>,
    limit: f64,
    out: &mut impl Write,
) -> io::Result<()> {
    let total = tree.total(0);
    heading(subject, out)?;
    let least = total as f64 * limit / 100.0;
    inclusive(tree, total, least, &subject.lines, out)?;
    let rows = rows(tree);
    let (shown, hidden): (Vec<&Row>, Vec<&Row>) =
        rows.iter().partition(|row| row.own as f64 >= least);
    let frames = shown.iter().map(|row| &tree.frames[row.frame as usize]);
    let columns = Columns::new(frames, &subject.lines);
    columns.header(&["Overhead"], out)?;
    for row in &shown {
        columns.row(&[percent(row.own, total)], &tree.frames[row.frame as usize], out)?;
        ways(tree, row, total, least, out)?;
        writeln!(out)?;
    }
    if total == 0 {
        writeln!(out, "# Nothing was counted.")?;
    }
    if !hidden.is_empty() {
        let own = hidden.iter().fold(0_u64, |sum, row| sum.saturating_add(row.own));
        writeln!(
            out,
            "# {} more below {limit} %, {:.2}% together: --percent-limit 0 shows them.",
            hidden.len(),
            percent(own, total)
        )?;
    }
    Ok(())
}

fn heading(subject: &Subject, out: &mut impl Write) -> io::Result<()> {
    let Subject { cell, counted, totals, of, beside, cpu, places, .. } = subject;
    let mut lines = vec![("Cell", cell.clone()), ("Phase", subject.phases())];
    lines.extend(cpu.iter().map(|cpu| ("CPU", format!("{cpu}, modelled"))));
    lines.extend(places.iter().map(|places| ("Place", place(places))));
    lines.push(("Shown", format!("{}: {} {}", of.name(), subject.total(), counted)));
    let others = [Of::Task, Of::Interrupts, Of::Others].into_iter().filter(|other| other != of);
    let hidden: Vec<String> =
        others.map(|other| format!("{}: {}", other.name(), other.part(*totals))).collect();
    if *of != Of::All {
        lines.push(("Not shown", hidden.join(", ")));
    }
    lines.extend(subject.sampling.iter().map(|sampling| {
        let text = format!(
            "every {} of event '{}', {} lost",
            sampling.period, sampling.event, sampling.lost
        );
        ("Sampled", text)
    }));
    if let Some(beside) = beside {
        lines.push(("See also", format!("--how {}", beside.name())));
        lines.extend(
            [How::Exact, How::Sampled].map(|how| ("Believe", how.believed_for().to_owned())),
        );
    }
    let width = lines.iter().map(|(name, _)| name.len()).max().unwrap_or(0) + 1;
    for (name, text) in lines {
        writeln!(out, "# {:width$} {}", format!("{name}:"), line(&text))?;
    }
    writeln!(out, "#")
}

/// `behind 20258 of ftrace's 40313 records`
pub fn place(places: &Places) -> String {
    let Places { first, last, records } = *places;
    let behind = if first == last { first.to_string() } else { format!("{first} to {last}") };
    format!("behind {behind} of ftrace's {records} records")
}

/// Prints how often the events of a modelled CPU happened in the functions themselves.
pub fn events(functions: &[Happened], limit: f64, out: &mut impl Write) -> io::Result<()> {
    let total = functions.iter().fold(0_u64, |sum, one| sum.saturating_add(one.own));
    let shown: Vec<&Happened> =
        functions.iter().filter(|one| percent(one.own, total) >= limit).collect();
    let happens = |term: &Term| shown.iter().any(|one| one.times.iter().any(|(of, _)| of == term));
    let terms: Vec<Term> = Term::ALL.into_iter().filter(happens).collect();
    writeln!(out, "# Events in each function itself, mispredictions at the branch's target:\n#")?;
    for (number, term) in (1..).zip(&terms) {
        writeln!(out, "# {number}: {}", term.name())?;
    }
    let titles: String = (1..=terms.len()).map(|number| format!("{number:>10}")).collect();
    writeln!(out, "#\n# Overhead  {titles}  Symbol\n#")?;
    for one in shown {
        let times = |term: &Term| {
            let found = one.times.iter().find(|(of, _)| of == term);
            format!("{:>10}", found.map_or(0, |(_, count)| *count))
        };
        let times: String = terms.iter().map(times).collect();
        let share = format!("{:.2}%", percent(one.own, total));
        writeln!(out, "  {share:>8}  {times}  {}", line(&one.function.name))?;
    }
    writeln!(out, "#")
}

/// Prints functions with everything they called: the largest amount first, then by frame.
fn inclusive(
    tree: &Tree<1>,
    total: u64,
    least: f64,
    lines: &SourceLines,
    out: &mut impl Write,
) -> io::Result<()> {
    let spent = tree.frames.iter().zip(tree.spent());
    let mut shown: Vec<(&Frame, Spent)> =
        spent.filter(|(_, spent)| spent.total > 0 && spent.total as f64 >= least).collect();
    if shown.is_empty() {
        return Ok(());
    }
    shown.sort_unstable_by_key(|&(frame, spent)| (Reverse(spent.total), frame));
    let columns = Columns::new(shown.iter().map(|&(frame, _)| frame), lines);
    columns.header(&["Children", "Self"], out)?;
    for (frame, spent) in shown {
        columns.row(&[percent(spent.total, total), percent(spent.own, total)], frame, out)?;
    }
    writeln!(out, "\n#")
}

/// The widths of the columns that identify a function.
struct Columns<'a> {
    command: usize,
    object: usize,
    symbol: usize,
    lines: &'a SourceLines,
}

impl<'a> Columns<'a> {
    fn new<'f>(
        frames: impl Iterator<Item = &'f Frame> + Clone,
        lines: &'a SourceLines,
    ) -> Columns<'a> {
        let longest = |title: &str, of: &dyn Fn(&Frame) -> String| {
            let lengths = frames.clone().map(|frame| of(frame).chars().count());
            lengths.max().unwrap_or(0).max(title.len())
        };
        Columns {
            command: longest("Command", &|frame| frame.command.clone()),
            object: longest("Shared Object", &|frame| object(&frame.function.space)),
            symbol: longest("Symbol", &symbol),
            lines,
        }
    }

    /// Prints the header; `shares` name the columns of percentages.
    fn header(&self, shares: &[&str], out: &mut impl Write) -> io::Result<()> {
        let &Columns { command, object, symbol, .. } = self;
        let titles: String = shares.iter().map(|title| format!("{title:>8}  ")).collect();
        writeln!(out, "# {titles}{:command$}  {:object$}  Symbol", "Command", "Shared Object")?;
        let dots = |n: usize| ".".repeat(n);
        let above: String = shares.iter().map(|_| dots(8) + "  ").collect();
        writeln!(out, "# {above}{}  {}  {}\n#", dots(command), dots(object), dots(symbol))
    }

    fn row(&self, shares: &[f64], frame: &Frame, out: &mut impl Write) -> io::Result<()> {
        let &Columns { command, object: width, symbol: symbols, lines } = self;
        let shares: String =
            shares.iter().map(|share| format!("{:>8}  ", format!("{share:.2}%"))).collect();
        let object = object(&frame.function.space);
        let symbol = match source(frame, lines) {
            Some(source) => format!("{:symbols$}  {source}", symbol(frame)),
            None => symbol(frame),
        };
        writeln!(out, "  {shares}{:command$}  {object:width$}  {symbol}", frame.command)
    }
}

fn symbol(frame: &Frame) -> String {
    let mark = if frame.function.space == Space::User { "." } else { "k" };
    format!("[{mark}] {}", frame.label())
}

/// The line where a function of the kernel begins.
fn source(frame: &Frame, lines: &SourceLines) -> Option<String> {
    let Function { name, space: Space::Kernel } = &frame.function else { return None };
    let own = lines.get(&code::place(name, 0))?.last()?;
    Some(line(&format!("({}:{})", own.file, own.line)))
}

fn object(space: &Space) -> String {
    match space {
        Space::Kernel => "[kernel.kallsyms]".to_owned(),
        Space::Module(module) => format!("[{module}]"),
        Space::User => "[user]".to_owned(),
    }
}

fn percent(part: u64, total: u64) -> f64 {
    if total == 0 { 0.0 } else { part as f64 * 100.0 / total as f64 }
}

/// Returns functions with an amount of their own: the largest first, then by name.
fn rows(tree: &Tree<1>) -> Vec<Row> {
    let mut rows: HashMap<u32, Row> = HashMap::new();
    for (place, at) in (0..).zip(&tree.places) {
        let [own] = at.own;
        if own > 0 {
            let row =
                rows.entry(at.frame).or_insert(Row { frame: at.frame, own: 0, parts: Vec::new() });
            row.own = row.own.saturating_add(own);
            row.parts.push((place, own));
        }
    }
    let mut rows: Vec<Row> = rows.into_values().collect();
    rows.sort_unstable_by_key(|row| (Reverse(row.own), &tree.frames[row.frame as usize]));
    rows
}

/// A caller, and the amount that came through it.
struct Way {
    frame: u32,
    weight: u64,
    parts: Vec<Part>,
}

/// A way still to be printed, and its place.
struct Branch {
    way: Way,
    indent: String,
    last: bool,
}

/// Prints the ways to a row's function. A single caller is on the next line; several callers have a
/// branch each.
fn ways(tree: &Tree<1>, row: &Row, total: u64, least: f64, out: &mut impl Write) -> io::Result<()> {
    let name = |frame: u32| tree.frames[frame as usize].label();
    writeln!(out, "{:12}|\n{:12}---{}", "", "", name(row.frame))?;
    // No recursion, because the file sets the depth of a stack.
    let mut to_do: Vec<Branch> = Vec::new();
    let start = Way { frame: row.frame, weight: row.own, parts: row.parts.clone() };
    follow(tree, start, " ".repeat(15), least, &mut to_do, out)?;
    while let Some(Branch { way, indent, last }) = to_do.pop() {
        writeln!(out, "{indent}|")?;
        let line = if last { " " } else { "|" };
        writeln!(out, "{indent}{line}--{:.2}%--{}", percent(way.weight, total), name(way.frame))?;
        follow(tree, way, format!("{indent}{line}{:10}", ""), least, &mut to_do, out)?;
    }
    Ok(())
}

/// Prints callers until the way branches or begins.
fn follow(
    tree: &Tree<1>,
    mut way: Way,
    indent: String,
    least: f64,
    to_do: &mut Vec<Branch>,
    out: &mut impl Write,
) -> io::Result<()> {
    loop {
        let mut callers = callers(tree, &way);
        callers.retain(|caller| caller.weight as f64 >= least);
        match &callers[..] {
            [only] if only.weight == way.weight => {
                way = callers.remove(0);
                writeln!(out, "{indent}{}", tree.frames[way.frame as usize].label())?;
            }
            _ => {
                let branches = callers.into_iter().rev().enumerate();
                to_do.extend(branches.map(|(from_end, way)| Branch {
                    way,
                    indent: indent.clone(),
                    last: from_end == 0,
                }));
                return Ok(());
            }
        }
    }
}

/// Returns the callers of a way: the largest amount first, then by name.
fn callers(tree: &Tree<1>, way: &Way) -> Vec<Way> {
    let parent = |&(place, weight): &Part| Some((tree.places[place as usize].parent?, weight));
    let mut parents: Vec<Part> = way.parts.iter().filter_map(parent).collect();
    let frame = |place: u32| tree.places[place as usize].frame;
    parents.sort_unstable_by_key(|&(place, _)| (frame(place), place));
    // Ways meet further up.
    parents.dedup_by(|later, earlier| {
        let same = later.0 == earlier.0;
        if same {
            earlier.1 = earlier.1.saturating_add(later.1);
        }
        same
    });
    let mut callers: Vec<Way> = parents
        .chunk_by(|a, b| frame(a.0) == frame(b.0))
        .map(|parts| Way {
            frame: frame(parts[0].0),
            weight: parts.iter().fold(0, |sum, part| sum.saturating_add(part.1)),
            parts: parts.to_vec(),
        })
        .collect();
    callers.sort_unstable_by_key(|way| (Reverse(way.weight), &tree.frames[way.frame as usize]));
    callers
}
