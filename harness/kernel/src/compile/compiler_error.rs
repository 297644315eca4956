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
            Kind::Compiler | Kind::Assembler | Kind::Linker | Kind::Modpost | Kind::Objtool | Kind::Kconfig
        );
        // The texts of gcc and clang.
        let is_missing =
            ["No such file or directory", "file not found"].iter().any(|end| self.message.ends_with(end));
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
            Kind::DiskFull => f.write_str(" (free some room, or set TRAMPLAB_CACHE to another disk)")?,
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
    let found = |kind, place, message: &str| Some(Found { kind, place, message: message.to_owned() });
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
        let stack = lines[at..].iter().take(8).filter_map(|line| line.split_once(". ")).map(|(_, rest)| rest);
        let place = stack.filter_map(|rest| placed(rest.trim_start())).map(|(place, _)| place).next();
        return found(Kind::Crash, place, "the compiler crashed");
    }
    let located = placed(line);
    if let Some((place, rest)) = &located {
        let after = |words: &[&str]| words.iter().find_map(|word| rest.strip_prefix(word));
        if let Some(message) = after(&["internal compiler error: "]) {
            return found(Kind::Crash, Some(place.clone()), &format!("internal compiler error: {message}"));
        }
        if let Some(message) = after(&["error: objtool: "]) {
            return found(Kind::Objtool, Some(place.clone()), message);
        }
        if let Some(message) = after(&["error: ", "fatal error: "]) {
            return found(Kind::Compiler, Some(place.clone()), message);
        }
        if let Some(message) = after(&["Error: ", "Fatal error: "]) {
            return found(Kind::Assembler, Some(place.clone()), message);
        }
        if has(&["undefined reference to", "multiple definition of"]) {
            return found(Kind::Linker, Some(place.clone()), rest);
        }
        if let Some(message) = after(&["*** "]) {
            let message = message.trim_end_matches("Stop.").trim_end();
            return found(Kind::Make, Some(place.clone()), message);
        }
        let in_kconfig = place.0.rsplit('/').next().is_some_and(|name| name.starts_with("Kconfig"));
        if in_kconfig && place.1.is_some() && !rest.starts_with("warning") {
            return found(Kind::Kconfig, Some(place.clone()), rest);
        }
    }
    if has(&["internal compiler error: ", "LLVM ERROR: ", "fatal error: error in backend"]) {
        return found(Kind::Crash, None, line);
    }
    if has(&["undefined reference to", "multiple definition of"]) {
        // `a.c:(.text+0x11): undefined reference to ...`
        let (file, message) = line.split_once(":(").map_or((None, line), |(file, rest)| {
            (Some((file.to_owned(), None)), rest.split_once("): ").map_or(line, |(_, rest)| rest))
        });
        return found(Kind::Linker, file, message);
    }
    if let Some((_, message)) =
        line.split_once("ld.lld: error: ").or(line.split_once("ld.lld: fatal error: "))
    {
        // `>>> referenced by a.c:4 (/src/a.c:4)`
        let below = lines[at + 1..].iter().take(2).find_map(|line| {
            let rest = line.strip_prefix(">>> referenced by ").or(line.strip_prefix(">>> defined at "))?;
            let word = rest.split(' ').next()?;
            let (file, number) = word.rsplit_once(':').unwrap_or((word, ""));
            Some((file.to_owned(), number.parse().ok()))
        });
        return found(Kind::Linker, below, message);
    }
    if let Some(message) = of_ld(line) {
        return found(Kind::Linker, None, message);
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
        let message = line.split_once("*** ").map_or(line, |(_, rest)| rest.trim_end_matches("  Stop."));
        return found(Kind::Make, target, message);
    }
    if line.ends_with(": not found") && has(&["/bin/sh: "])
        || is_make(line) && line.ends_with(": No such file or directory")
    {
        return found(Kind::Make, None, line);
    }
    // Without a line: `clang: error: no such option`, `cc1: error: bad value`.
    let tool = |name: &str| ["gcc", "cc1", "clang", "ccache", "as"].iter().any(|tool| name.ends_with(tool));
    match line.split_once(": error: ").or(line.split_once(": fatal error: ")) {
        Some((name, message)) if tool(name) => found(Kind::Compiler, None, message),
        _ => None,
    }
}

/// Splits `kernel/fork.c:12:3: rest` or `kernel/fork.c:12: rest`, and the assembler's `/tmp/x.s:
/// Fatal error`.
fn placed(line: &str) -> Option<(Place, &str)> {
    // ld prefixes its own name: `ld: a.c:4: undefined reference`.
    let line =
        line.split_once("ld: ").filter(|(before, _)| !before.contains(' ')).map_or(line, |(_, rest)| rest);
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

/// Returns a message of GNU ld without a place. Skips warnings and the announcement of a function.
fn of_ld(line: &str) -> Option<&str> {
    let (name, message) = line.split_once(": ")?;
    let is_ld = name.ends_with("ld") || name.ends_with("ld.bfd");
    let harmless =
        message.contains("warning: ") || message.contains("in function `") || message.contains("NOTE: ");
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
mod tests {
    use super::*;

    /// All logs were recorded by breaking sources, killing compilers and writing to `/dev/full`.
    type Case = (&'static str, &'static str, Kind, Option<&'static str>, Option<u32>, &'static str);

    const LOGS: &[Case] = &[
        (
            "gcc-member",
            include_str!("testdata/gcc-member.log"),
            Kind::Compiler,
            Some("kernel/trace/bpf_trace.c"),
            Some(3513),
            "has no member named ‘no_such_member’",
        ),
        (
            "gcc-header",
            include_str!("testdata/gcc-header.log"),
            Kind::Compiler,
            Some("kernel/trace/bpf_trace.c"),
            Some(5),
            "linux/no_such_header.h: No such file or directory",
        ),
        (
            "gcc-unterminated",
            include_str!("testdata/gcc-unterminated.log"),
            Kind::Compiler,
            Some("kernel/trace/bpf_trace.c"),
            Some(3511),
            "unterminated #ifdef",
        ),
        (
            "clang-member",
            include_str!("testdata/clang-member.log"),
            Kind::Compiler,
            Some("c.c"),
            Some(4),
            "no member named 'b' in 'struct s'",
        ),
        (
            "clang-header",
            include_str!("testdata/clang-header.log"),
            Kind::Compiler,
            Some("d.c"),
            Some(1),
            "'linux/no_such.h' file not found",
        ),
        (
            "assembler",
            include_str!("testdata/assembler.log"),
            Kind::Assembler,
            Some("arch/x86/lib/memset_64.S"),
            Some(119),
            "no such instruction",
        ),
        (
            "ld-undefined",
            include_str!("testdata/ld-undefined.log"),
            Kind::Linker,
            Some("/tmp/h3/m/a.c"),
            Some(4),
            "undefined reference to `missing_function'",
        ),
        (
            "ld-undefined-without-lines",
            include_str!("testdata/ld-undefined-without-lines.log"),
            Kind::Linker,
            Some("a.c"),
            None,
            "undefined reference to `missing_function'",
        ),
        (
            "ld-multiple",
            include_str!("testdata/ld-multiple.log"),
            Kind::Linker,
            Some("a.c"),
            None,
            "multiple definition of `caller'",
        ),
        (
            "lld-undefined",
            include_str!("testdata/lld-undefined.log"),
            Kind::Linker,
            Some("a.c"),
            Some(4),
            "undefined symbol: missing_function",
        ),
        (
            "lld-duplicate",
            include_str!("testdata/lld-duplicate.log"),
            Kind::Linker,
            Some("a.c"),
            Some(3),
            "duplicate symbol: caller",
        ),
        (
            "modpost",
            include_str!("testdata/modpost.log"),
            Kind::Modpost,
            None,
            None,
            "\"nope_fn\" [mod.ko] undefined!",
        ),
        (
            "btf-none",
            include_str!("testdata/btf-none.log"),
            Kind::Btf,
            None,
            None,
            "failed to find '.BTF' ELF section",
        ),
        ("btf-ids", include_str!("testdata/btf-ids.log"), Kind::Btf, None, None, "FAILED unsupported prefix"),
        (
            "no-rule",
            include_str!("testdata/no-rule.log"),
            Kind::Make,
            Some("kernel/trace/no_such_file.o"),
            None,
            "No rule to make target 'kernel/trace/no_such_file.o', needed by",
        ),
        (
            "makefile",
            include_str!("testdata/makefile.log"),
            Kind::Make,
            Some("kernel/trace/Makefile"),
            Some(115),
            "missing separator.",
        ),
        (
            "no-program",
            include_str!("testdata/no-program.log"),
            Kind::Make,
            None,
            None,
            "no-such-program: No such file or directory",
        ),
        (
            "kconfig",
            include_str!("testdata/kconfig.log"),
            Kind::Kconfig,
            Some("kernel/trace/Kconfig"),
            Some(12),
            "syntax error",
        ),
        (
            "crash-gcc",
            include_str!("testdata/crash-gcc.log"),
            Kind::Crash,
            Some("big.c"),
            Some(30000),
            "internal compiler error: Segmentation fault",
        ),
        (
            "crash-clang",
            include_str!("testdata/crash-clang.log"),
            Kind::Crash,
            Some("big.c"),
            Some(28837),
            "the compiler crashed",
        ),
        (
            "killed-gcc",
            include_str!("testdata/killed-gcc.log"),
            Kind::Killed,
            None,
            None,
            "Killed signal terminated program cc1",
        ),
        (
            "killed-clang",
            include_str!("testdata/killed-clang.log"),
            Kind::Killed,
            None,
            None,
            "unable to execute command: Killed",
        ),
        ("killed-ld", include_str!("testdata/killed-ld.log"), Kind::Killed, None, None, "vmlinux.o] Killed"),
        (
            "full-as",
            include_str!("testdata/full-as.log"),
            Kind::DiskFull,
            None,
            None,
            "No space left on device",
        ),
        (
            "full-gcc",
            include_str!("testdata/full-gcc.log"),
            Kind::DiskFull,
            None,
            None,
            "No space left on device",
        ),
        (
            "full-clang",
            include_str!("testdata/full-clang.log"),
            Kind::DiskFull,
            None,
            None,
            "No space left on device",
        ),
    ];

    #[test]
    fn finds_first_error_of_every_log() {
        for (name, log, kind, file, line, words) in LOGS {
            let error = find(log, Path::new("/tmp/h3/src"));
            assert_eq!(
                (error.kind, error.file.as_deref(), error.line),
                (*kind, *file, *line),
                "{name}: {error:?}"
            );
            assert!(error.message.contains(words), "{name}: {error:?}");
            assert!(error.context.len() <= LINES_AFTER + 2, "{name}");
        }
    }

    /// The same errors in the middle of a build that continues: other jobs print, and fail later.
    #[test]
    fn finds_first_error_amid_other_output() {
        let noise = "  CC      mm/slub.o\nmm/slub.c:1:2: warning: unused error: variable [-Wunused]\n";
        for (name, log, kind, ..) in LOGS {
            let alone = find(log, Path::new("/tmp/h3/src"));
            let after = format!("{noise}{log}{noise}net/core/dev.c:3:1: error: expected identifier\n");
            let error = find(&after, Path::new("/tmp/h3/src"));
            assert_eq!(
                (error.kind, &error.file, error.line, &error.message),
                (*kind, &alone.file, alone.line, &alone.message),
                "{name}"
            );
        }
    }

    #[test]
    fn shows_error_with_excerpt() {
        let error = find(LOGS[0].1, Path::new("/tmp/h3/src"));
        insta::assert_snapshot!(error, @r"
        kernel/trace/bpf_trace.c:3513: ‘struct bpf_prog’ has no member named ‘no_such_member’
            kernel/trace/bpf_trace.c: In function ‘tramplab_broken’:
             3513 |         return prog->no_such_member;
                  |                    ^~
        ");
        let error = find(LOGS[6].1, Path::new("/tmp/h3/m"));
        insta::assert_snapshot!(error, @r"
        a.c:4: undefined reference to `missing_function'
            ld: a.o: in function `caller':
        ");
    }

    #[test]
    fn ignores_warnings_and_names_failed_target() {
        let warning = include_str!("testdata/objtool-warning.log");
        let log = format!("{warning}make[2]: *** [/s/scripts/Makefile.build:234: kernel/fork.o] Error 1\n");
        let error = find(&log, Path::new("/s"));
        assert_eq!(error.message, "make gave up kernel/fork.o: Error 1");
        assert_eq!(error.context, [warning.trim_end()]);
        assert_eq!(find("", Path::new("/s")).message, "make said nothing");
        assert_eq!(find("  CC  x.o\n\n", Path::new("/s")).message, "  CC  x.o");
    }

    /// objtool with CONFIG_OBJTOOL_WERROR (since 6.15).
    #[test]
    fn recognizes_objtool_errors() {
        let error =
            find("vmlinux.o: error: objtool: f+0x1: return with modified stack frame\n", Path::new("/s"));
        assert_eq!((error.kind, error.file.as_deref()), (Kind::Objtool, Some("vmlinux.o")));
    }

    #[test]
    fn cleans_hostile_logs() {
        let log = format!("a.c:1:1: error: \x1b[2J\x07{}\n{}", "x".repeat(100_000), " y\n".repeat(100_000));
        let error = find(&log, Path::new("/s"));
        let text = error.to_string();
        assert!(!text.contains(['\x1b', '\x07']) && text.len() < 10_000, "{}", text.len());
        for text in [
            "make: *** [",
            "*** [] Error",
            ":::",
            "ld: ",
            "make[4]: *** No rule to make target ",
            "x:1:",
            "\u{e4}:1:\u{e4}",
        ] {
            let _ = find(text, Path::new("/s")).to_string();
        }
    }

    proptest::proptest! {
        #[test]
        fn no_log_panics_the_parser(log in "([a-z/.:0-9 *\\[\\]\n'(>]|error: |make\\[4\\]: |ld: |ld.lld: error: |PLEASE submit a bug report|\u{e4}){0,40}") {
            let _ = find(&log, Path::new("/s")).to_string();
        }
    }
}
