// SPDX-License-Identifier: MIT OR Apache-2.0
//! A profile as `perf report --stdio --no-children` prints one: functions by what was spent in themselves, and below each
//! the ways it was called, callee first.

use super::{Of, Space, Subject, Tree};
use crate::text::line;
use std::{
    cmp::Reverse,
    collections::HashMap,
    io::{self, Write},
};

/// What one place of the tree, and what is above it, has of a row.
type Part = (u32, u64);

struct Row {
    frame: u32,
    own: u64,
    parts: Vec<Part>,
}

/// Functions and ways below `limit` per cent are left out; how many functions, the last line says.
pub fn render(subject: &Subject, tree: &Tree<1>, limit: f64, out: &mut impl Write) -> io::Result<()> {
    let total = tree.total(0);
    heading(subject, out)?;
    let rows = rows(tree);
    let least = total as f64 * limit / 100.0;
    let (shown, hidden): (Vec<&Row>, Vec<&Row>) = rows.iter().partition(|row| row.own as f64 >= least);
    let frame = |row: &Row| &tree.frames[row.frame as usize];
    let symbol = |row: &Row| {
        let mark = if frame(row).function.space == Space::User { "." } else { "k" };
        format!("[{mark}] {}", frame(row).label())
    };
    let objects: Vec<String> = shown.iter().map(|row| object(&frame(row).function.space)).collect();
    let longest = |title: &str, of: &mut dyn Iterator<Item = usize>| of.max().unwrap_or(0).max(title.len());
    let command = longest("Command", &mut shown.iter().map(|row| frame(row).command.chars().count()));
    let space = longest("Shared Object", &mut objects.iter().map(|object| object.chars().count()));
    let name = longest("Symbol", &mut shown.iter().map(|row| symbol(row).chars().count()));
    writeln!(out, "# Overhead  {:command$}  {:space$}  Symbol", "Command", "Shared Object")?;
    let dots = |n: usize| ".".repeat(n);
    writeln!(out, "# {}  {}  {}  {}\n#", dots(8), dots(command), dots(space), dots(name))?;
    for (row, object) in shown.iter().zip(&objects) {
        let share = format!("{:.2}%", percent(row.own, total));
        writeln!(out, "{share:>10}  {:command$}  {object:space$}  {}", frame(row).command, symbol(row))?;
        ways(tree, row, total, least, out)?;
        writeln!(out)?;
    }
    if total == 0 {
        writeln!(out, "# Nothing was spent.")?;
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
    let Subject { cell, unit, totals, of, .. } = subject;
    let mut lines = vec![("Cell", cell.clone()), ("Phase", subject.phases())];
    lines.push(("Shown", format!("{}: {} {}", of.name(), subject.total(), unit.name())));
    let others = [Of::Task, Of::Interrupts, Of::Others].into_iter().filter(|other| other != of);
    let hidden: Vec<String> =
        others.map(|other| format!("{}: {}", other.name(), other.part(*totals))).collect();
    if *of != Of::All {
        lines.push(("Not shown", hidden.join(", ")));
    }
    lines.extend(subject.sampling.iter().map(|sampling| {
        let text = format!("every {} of event '{}', {} lost", sampling.period, sampling.event, sampling.lost);
        ("Sampled", text)
    }));
    let width = lines.iter().map(|(name, _)| name.len()).max().unwrap_or(0) + 1;
    for (name, text) in lines {
        writeln!(out, "# {:width$} {}", format!("{name}:"), line(&text))?;
    }
    writeln!(out, "#")
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

/// Functions in which something was spent, most first, then by name.
fn rows(tree: &Tree<1>) -> Vec<Row> {
    let mut rows: HashMap<u32, Row> = HashMap::new();
    for (place, at) in (0..).zip(&tree.places) {
        let [own] = at.own;
        if own > 0 {
            let row = rows.entry(at.frame).or_insert(Row { frame: at.frame, own: 0, parts: Vec::new() });
            row.own = row.own.saturating_add(own);
            row.parts.push((place, own));
        }
    }
    let mut rows: Vec<Row> = rows.into_values().collect();
    rows.sort_unstable_by_key(|row| (Reverse(row.own), &tree.frames[row.frame as usize]));
    rows
}

/// A caller, and all that came through it.
struct Way {
    frame: u32,
    weight: u64,
    parts: Vec<Part>,
}

/// A way still to be printed, and where.
struct Branch {
    way: Way,
    indent: String,
    last: bool,
}

/// The ways to a row's function. Where all of it came from one caller, that is on the next line; else there is a branch
/// for each.
fn ways(tree: &Tree<1>, row: &Row, total: u64, least: f64, out: &mut impl Write) -> io::Result<()> {
    let name = |frame: u32| tree.frames[frame as usize].label();
    writeln!(out, "{:12}|\n{:12}---{}", "", "", name(row.frame))?;
    // Not recursion: how deep a stack is, the file says.
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

/// Prints callers up to where the way branches, or begins.
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

/// Heaviest first, then by name.
fn callers(tree: &Tree<1>, way: &Way) -> Vec<Way> {
    let parent = |&(place, weight): &Part| Some((tree.places[place as usize].parent?, weight));
    let mut parents: Vec<Part> = way.parts.iter().filter_map(parent).collect();
    let frame = |place: u32| tree.places[place as usize].frame;
    parents.sort_unstable_by_key(|&(place, _)| (frame(place), place));
    // Further up, ways meet.
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
