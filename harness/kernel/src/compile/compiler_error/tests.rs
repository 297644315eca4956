// SPDX-License-Identifier: MIT OR Apache-2.0
//! Recorded logs with the error that each holds.

use super::{
    Kind::{Assembler, Btf, Compiler, Crash, DiskFull, Kconfig, Killed, Linker, Make, Modpost},
    *,
};
use std::fs;

/// Name, kind, place, part of the message. All logs were recorded by breaking sources, killing
/// compilers and writing to `/dev/full`.
type Case = (&'static str, Kind, &'static str, &'static str);

const LOGS: [Case; 26] = [
    (
        "gcc-member",
        Compiler,
        "kernel/trace/bpf_trace.c:3513",
        "has no member named ‘no_such_member’",
    ),
    (
        "gcc-header",
        Compiler,
        "kernel/trace/bpf_trace.c:5",
        "linux/no_such_header.h: No such file or directory",
    ),
    ("gcc-unterminated", Compiler, "kernel/trace/bpf_trace.c:3511", "unterminated #ifdef"),
    ("clang-member", Compiler, "c.c:4", "no member named 'b' in 'struct s'"),
    ("clang-header", Compiler, "d.c:1", "'linux/no_such.h' file not found"),
    ("assembler", Assembler, "arch/x86/lib/memset_64.S:119", "no such instruction"),
    ("ld-undefined", Linker, "/tmp/h3/m/a.c:4", "undefined reference to `missing_function'"),
    ("ld-undefined-without-lines", Linker, "a.c", "undefined reference to `missing_function'"),
    ("ld-multiple", Linker, "a.c", "multiple definition of `caller'"),
    ("lld-undefined", Linker, "a.c:4", "undefined symbol: missing_function"),
    ("lld-duplicate", Linker, "a.c:3", "duplicate symbol: caller"),
    ("modpost", Modpost, "", "\"nope_fn\" [mod.ko] undefined!"),
    ("btf-none", Btf, "", "failed to find '.BTF' ELF section"),
    ("btf-ids", Btf, "", "FAILED unsupported prefix"),
    (
        "no-rule",
        Make,
        "kernel/trace/no_such_file.o",
        "No rule to make target 'kernel/trace/no_such_file.o', needed by",
    ),
    ("makefile", Make, "kernel/trace/Makefile:115", "missing separator."),
    ("no-program", Make, "", "no-such-program: No such file or directory"),
    ("kconfig", Kconfig, "kernel/trace/Kconfig:12", "syntax error"),
    ("crash-gcc", Crash, "big.c:30000", "internal compiler error: Segmentation fault"),
    ("crash-clang", Crash, "big.c:28837", "the compiler crashed"),
    ("killed-gcc", Killed, "", "Killed signal terminated program cc1"),
    ("killed-clang", Killed, "", "unable to execute command: Killed"),
    ("killed-ld", Killed, "", "vmlinux.o] Killed"),
    ("full-as", DiskFull, "", "No space left on device"),
    ("full-gcc", DiskFull, "", "No space left on device"),
    ("full-clang", DiskFull, "", "No space left on device"),
];

fn log(name: &str) -> String {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/compile/testdata");
    fs::read_to_string(format!("{folder}/{name}.log")).unwrap()
}

#[test]
fn finds_first_error_of_every_log() {
    for (name, kind, place, words) in LOGS {
        let error = find(&log(name), Path::new("/tmp/h3/src"));
        let line = error.line.map_or_else(String::new, |line| format!(":{line}"));
        let found = error.file.clone().unwrap_or_default() + &line;
        assert_eq!((error.kind, found.as_str()), (kind, place), "{name}: {error:?}");
        assert!(error.message.contains(words), "{name}: {error:?}");
        assert!(error.context.len() <= LINES_AFTER + 2, "{name}");
    }
}

/// The same errors in the middle of a build that continues: other jobs print, and fail later.
#[test]
fn finds_first_error_amid_other_output() {
    let noise = "  CC      mm/slub.o\nmm/slub.c:1:2: warning: unused error: variable [-Wunused]\n";
    for (name, kind, ..) in LOGS {
        let log = log(name);
        let alone = find(&log, Path::new("/tmp/h3/src"));
        let after = format!("{noise}{log}{noise}net/core/dev.c:3:1: error: expected identifier\n");
        let error = find(&after, Path::new("/tmp/h3/src"));
        assert_eq!(
            (error.kind, &error.file, error.line, &error.message),
            (kind, &alone.file, alone.line, &alone.message),
            "{name}"
        );
    }
}

#[test]
fn shows_error_with_excerpt() {
    let error = find(&log("gcc-member"), Path::new("/tmp/h3/src"));
    insta::assert_snapshot!(error, @r"
    kernel/trace/bpf_trace.c:3513: ‘struct bpf_prog’ has no member named ‘no_such_member’
        kernel/trace/bpf_trace.c: In function ‘tramplab_broken’:
         3513 |         return prog->no_such_member;
              |                    ^~
    ");
    let error = find(&log("ld-undefined"), Path::new("/tmp/h3/m"));
    insta::assert_snapshot!(error, @r"
    a.c:4: undefined reference to `missing_function'
        ld: a.o: in function `caller':
    ");
}

#[test]
fn ignores_warnings_and_names_failed_target() {
    let warning = include_str!("../testdata/objtool-warning.log");
    let log =
        format!("{warning}make[2]: *** [/s/scripts/Makefile.build:234: kernel/fork.o] Error 1\n");
    let error = find(&log, Path::new("/s"));
    assert_eq!(error.message, "make gave up kernel/fork.o: Error 1");
    assert_eq!(error.context, [warning.trim_end()]);
    assert_eq!(find("", Path::new("/s")).message, "make said nothing");
    assert_eq!(find("  CC  x.o\n\n", Path::new("/s")).message, "  CC  x.o");
}

/// objtool with CONFIG_OBJTOOL_WERROR (since 6.15).
#[test]
fn recognizes_objtool_errors() {
    let error = find(
        "vmlinux.o: error: objtool: f+0x1: return with modified stack frame\n",
        Path::new("/s"),
    );
    assert_eq!((error.kind, error.file.as_deref()), (Kind::Objtool, Some("vmlinux.o")));
}

#[test]
fn cleans_hostile_logs() {
    let log =
        format!("a.c:1:1: error: \x1b[2J\x07{}\n{}", "x".repeat(100_000), " y\n".repeat(100_000));
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

const WORDS: &str = "([a-z/.:0-9 *\\[\\]\n'(>]|error: |make\\[4\\]: |ld: |ld.lld: error: |\
                     PLEASE submit a bug report|\u{e4}){0,40}";

proptest::proptest! {
    #[test]
    fn no_log_panics_the_parser(log in WORDS) {
        let _ = find(&log, Path::new("/s")).to_string();
    }
}
