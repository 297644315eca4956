// SPDX-License-Identifier: MIT OR Apache-2.0
//! Finds the first error in make's log. Pure, except for reading the log.

use std::{
    fmt,
    fs::File,
    io::{self, Read},
    path::Path,
};
use tramplab_model::text::plain;

/// The origin of an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Compiler,
    Assembler,
    Linker,
    Modpost,
    Objtool,
    Btf,
    Kconfig,
    /// A Makefile or a program that it runs.
    Make,
    /// The compiler crashed.
    Crash,
    /// Killed from outside. The kernel does that when memory runs out.
    Killed,
    DiskFull,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FirstError {
    pub kind: Kind,
    /// Relative to the sources, if it is inside them.
    pub file: Option<String>,
    pub line: Option<u32>,
    pub message: String,
    /// Lines of the log around the error.
    pub context: Vec<String>,
}

impl FirstError {
    /// True if a tool named a place in the sources and the error is in their text. A missing file
    /// does not count, because this host may lack it.
    pub fn is_in_a_source(&self) -> bool {
        let of_sources = matches!(
            self.kind,
            Kind::Compiler
                | Kind::Assembler
                | Kind::Linker
                | Kind::Modpost
                | Kind::Objtool
                | Kind::Kconfig
        );
        // The texts of gcc and clang.
        let is_missing = ["No such file or directory", "file not found"]
            .iter()
            .any(|end| self.message.ends_with(end));
        of_sources && self.file.is_some() && !is_missing
    }
}

impl fmt::Display for FirstError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.file, self.line) {
            (Some(file), Some(line)) => write!(f, "{file}:{line}: ")?,
            (Some(file), None) => write!(f, "{file}: ")?,
            _ => {}
        }
        f.write_str(&self.message)?;
        match self.kind {
            Kind::Crash => f.write_str(" (an error of the compiler, not of the source)")?,
            Kind::Killed => f.write_str(" (most likely memory ran out; free some)")?,
            Kind::DiskFull => {
                f.write_str(" (free some room, or set TRAMPLAB_CACHE to another disk)")?
            }
            _ => {}
        }
        self.context.iter().try_for_each(|line| write!(f, "\n    {line}"))
    }
}

/// Most bytes read of a log; enough for any build.
const READ: u64 = 64 << 20;
/// Most characters of a line. Some errors fill a page with one line.
const WIDTH: usize = 400;
const LINES_AFTER: usize = 8;
const LINES_BEFORE: usize = 4;

/// Reads a log. `source` is removed from the names of files.
pub fn read(log: &Path, source: &Path) -> io::Result<FirstError> {
    let mut bytes = Vec::new();
    File::open(log)?.take(READ).read_to_end(&mut bytes)?;
    Ok(find(&String::from_utf8_lossy(&bytes), source))
}

pub fn find(log: &str, source: &Path) -> FirstError {
    let root = format!("{}/", source.display());
    let lines: Vec<String> = log.lines().map(|line| clean(line, &root)).collect();
    let first = (0..lines.len()).find_map(|at| classify(&lines, at).map(|found| (at, found)));
    // If no tool reports an error: the target that make gave up.
    let gave_up = || (0..lines.len()).find_map(|at| given_up(&lines[at]).map(|found| (at, found)));
    let Some((at, Found { kind, place, message })) = first.or_else(gave_up) else {
        let last = lines.iter().rev().find(|line| !line.trim().is_empty());
        return FirstError {
            kind: Kind::Make,
            file: None,
            line: None,
            message: last.cloned().unwrap_or_else(|| "make said nothing".to_owned()),
            context: Vec::new(),
        };
    };
    let (file, line) = match place {
        Some((file, line)) => (Some(file), line),
        None => (None, None),
    };
    FirstError { kind, file, line, message, context: context(&lines, at, kind) }
}

struct Found {
    kind: Kind,
    place: Option<Place>,
    message: String,
}

type Place = (String, Option<u32>);

/// Cleans a line. The log comes from strangers: it must not move the cursor or fill the screen.
fn clean(line: &str, root: &str) -> String {
    plain(&line.replace(root, "")).chars().take(WIDTH).collect()
}

fn classify(lines: &[String], at: usize) -> Option<Found> {
    let line = lines[at].as_str();
    let found =
        |kind, place, message: &str| Some(Found { kind, place, message: message.to_owned() });
    let has = |words: &[&str]| words.iter().any(|word| line.contains(word));

    if has(&["No space left on device", "Disk quota exceeded"]) {
        return found(Kind::DiskFull, None, line);
    }
    if has(&[
        "Killed signal terminated program",
        "unable to execute command: Killed",
        "signal 9 [Killed]",
        "Cannot allocate memory",
        "virtual memory exhausted",
        "out of memory allocating",
    ]) || is_make(line) && line.ends_with("] Killed")
    {
        return found(Kind::Killed, None, line);
    }
    if line.starts_with("PLEASE submit a bug report") {
        // clang prints the place below: `1. big.c:28837:19: current parser token '{'`.
        let stack = lines[at..]
            .iter()
            .take(8)
            .filter_map(|line| line.split_once(". "))
            .map(|(_, rest)| rest);
        let place =
            stack.filter_map(|rest| placed(rest.trim_start())).map(|(place, _)| place).next();
        return found(Kind::Crash, place, "the compiler crashed");
    }
    if let Some(found) = placed(line).and_then(|(place, rest)| classify_placed(place, rest)) {
        return Some(found);
    }
    if has(&["internal compiler error: ", "LLVM ERROR: ", "fatal error: error in backend"]) {
        return found(Kind::Crash, None, line);
    }
    if let Some((place, message)) = linker_error(lines, at) {
        return found(Kind::Linker, place, message);
    }
    if let Some(message) = line.strip_prefix("ERROR: modpost: ") {
        return found(Kind::Modpost, None, message);
    }
    if let Some((file, message)) = line.split_once(": error: objtool: ") {
        return found(Kind::Objtool, Some((file.to_owned(), None)), message);
    }
    let btf = ["FAILED", "Failed to generate BTF", "libbpf: failed", "BTF: "];
    if btf.iter().any(|word| line.starts_with(word)) && !line.ends_with(':') {
        return found(Kind::Btf, None, line);
    }
    if is_make(line) && line.contains("*** No rule to make target ") {
        let target = line.split('\'').nth(1).map(|target| (target.to_owned(), None));
        let message =
            line.split_once("*** ").map_or(line, |(_, rest)| rest.trim_end_matches("  Stop."));
        return found(Kind::Make, target, message);
    }
    if line.ends_with(": not found") && has(&["/bin/sh: "])
        || is_make(line) && line.ends_with(": No such file or directory")
    {
        return found(Kind::Make, None, line);
    }
    // Without a line: `clang: error: no such option`, `cc1: error: bad value`.
    let tool = |name: &str| {
        ["gcc", "cc1", "clang", "ccache", "as"].iter().any(|tool| name.ends_with(tool))
    };
    match line.split_once(": error: ").or(line.split_once(": fatal error: ")) {
        Some((name, message)) if tool(name) => found(Kind::Compiler, None, message),
        _ => None,
    }
}

/// Classifies the `rest` of a line that begins with a place.
fn classify_placed(place: Place, rest: &str) -> Option<Found> {
    let after = |words: &[&str]| words.iter().find_map(|word| rest.strip_prefix(word));
    let (kind, message) = if rest.starts_with("internal compiler error: ") {
        (Kind::Crash, rest)
    } else if let Some(message) = after(&["error: objtool: "]) {
        (Kind::Objtool, message)
    } else if let Some(message) = after(&["error: ", "fatal error: "]) {
        (Kind::Compiler, message)
    } else if let Some(message) = after(&["Error: ", "Fatal error: "]) {
        (Kind::Assembler, message)
    } else if is_link_error(rest) {
        (Kind::Linker, rest)
    } else if let Some(message) = after(&["*** "]) {
        (Kind::Make, message.trim_end_matches("Stop.").trim_end())
    } else {
        let name = place.0.rsplit('/').next().unwrap_or_default();
        let in_kconfig = name.starts_with("Kconfig") && place.1.is_some();
        if !in_kconfig || rest.starts_with("warning") {
            return None;
        }
        (Kind::Kconfig, rest)
    };
    Some(Found { kind, place: Some(place), message: message.to_owned() })
}

fn is_link_error(text: &str) -> bool {
    text.contains("undefined reference to") || text.contains("multiple definition of")
}

/// Splits `kernel/fork.c:12:3: rest` or `kernel/fork.c:12: rest`, and the assembler's `/tmp/x.s:
/// Fatal error`.
fn placed(line: &str) -> Option<(Place, &str)> {
    // ld prefixes its own name: `ld: a.c:4: undefined reference`.
    let line = line
        .split_once("ld: ")
        .filter(|(before, _)| !before.contains(' '))
        .map_or(line, |(_, rest)| rest);
    let (file, rest) = line.split_once(':')?;
    let is_file = !file.is_empty() && !file.contains(['[', ' ', '\'', '(']);
    if !is_file {
        return None;
    }
    let digits = rest.find(|c: char| !c.is_ascii_digit())?;
    let number = rest[..digits].parse().ok();
    let Some(number) = number else {
        let message = rest.strip_prefix(' ')?;
        return message.starts_with("Fatal error: ").then(|| ((file.to_owned(), None), message));
    };
    let rest = rest[digits..].strip_prefix(':')?;
    // Skip the column.
    let column = rest.find(|c: char| !c.is_ascii_digit())?;
    let rest = if column > 0 { rest[column..].strip_prefix(':').unwrap_or(rest) } else { rest };
    Some(((file.to_owned(), Some(number)), rest.trim_start()))
}

/// Returns the place and message of a linker's error.
fn linker_error(lines: &[String], at: usize) -> Option<(Option<Place>, &str)> {
    let line = lines[at].as_str();
    if is_link_error(line) {
        // `a.c:(.text+0x11): undefined reference to ...`
        let Some((file, rest)) = line.split_once(":(") else { return Some((None, line)) };
        let message = rest.split_once("): ").map_or(line, |(_, rest)| rest);
        return Some((Some((file.to_owned(), None)), message));
    }
    let lld = line.split_once("ld.lld: error: ").or(line.split_once("ld.lld: fatal error: "));
    if let Some((_, message)) = lld {
        // `>>> referenced by a.c:4 (/src/a.c:4)`
        let below = lines[at + 1..].iter().take(2).find_map(|line| {
            let rest =
                line.strip_prefix(">>> referenced by ").or(line.strip_prefix(">>> defined at "))?;
            let word = rest.split(' ').next()?;
            let (file, number) = word.rsplit_once(':').unwrap_or((word, ""));
            Some((file.to_owned(), number.parse().ok()))
        });
        return Some((below, message));
    }
    gnu_ld_error(line).map(|message| (None, message))
}

/// Returns a message of GNU ld without a place. Skips warnings and the announcement of a function.
fn gnu_ld_error(line: &str) -> Option<&str> {
    let (name, message) = line.split_once(": ")?;
    let is_ld = name.ends_with("ld") || name.ends_with("ld.bfd");
    let harmless = message.contains("warning: ")
        || message.contains("in function `")
        || message.contains("NOTE: ");
    (is_ld && !name.contains(' ') && !harmless).then_some(message)
}

fn is_make(line: &str) -> bool {
    line.starts_with("make[") || line.starts_with("make: ")
}

/// `make[4]: *** [scripts/Makefile.build:234: kernel/fork.o] Error 1`
fn given_up(line: &str) -> Option<Found> {
    if !is_make(line) {
        return None;
    }
    let (_, rest) = line.split_once("*** [")?;
    let (target, outcome) = rest.rsplit_once("] ")?;
    let target = target.rsplit(": ").next().unwrap_or(target);
    let message = format!("make gave up {target}: {outcome}");
    Some(Found { kind: Kind::Make, place: None, message })
}

/// Returns the lines that belong to an error: the source excerpt below it and the function above
/// it. For an error of make: the output before it.
fn context(lines: &[String], at: usize, kind: Kind) -> Vec<String> {
    let is_boundary = |line: &str| is_make(line) || is_step(line);
    let mut context = Vec::new();
    if kind == Kind::Make {
        let before = lines[..at].iter().rev().take(LINES_BEFORE).take_while(|line| !is_make(line));
        context.extend(before.filter(|line| !line.trim().is_empty()).cloned());
        context.reverse();
        return context;
    }
    let above = at.checked_sub(1).map(|above| lines[above].as_str());
    if let Some(above) = above.filter(|line| !is_boundary(line) && line.contains("unction ")) {
        context.push(above.to_owned());
    }
    for line in lines[at + 1..].iter().take(LINES_AFTER) {
        let is_next = placed(line).is_some_and(|(_, rest)| rest.contains("error: "));
        if is_boundary(line) || is_next || line.trim().is_empty() {
            break;
        }
        context.push(line.clone());
    }
    context
}

fn is_step(line: &str) -> bool {
    let word = line.strip_prefix("  ").and_then(|rest| rest.split_once(' ')).map(|(word, _)| word);
    word.is_some_and(|word| !word.is_empty() && word.chars().all(|c| c.is_ascii_uppercase()))
}

#[cfg(test)]
mod tests;
