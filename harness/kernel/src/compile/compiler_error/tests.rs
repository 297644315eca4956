// SPDX-License-Identifier: MIT OR Apache-2.0
//! Recorded logs with the error that each holds.

use super::*;

/// All logs were recorded by breaking sources, killing compilers and writing to `/dev/full`.
type Case = (&'static str, &'static str, Kind, Option<&'static str>, Option<u32>, &'static str);

const LOGS: &[Case] = &[
    (
        "gcc-member",
        include_str!("../testdata/gcc-member.log"),
        Kind::Compiler,
        Some("kernel/trace/bpf_trace.c"),
        Some(3513),
        "has no member named ‘no_such_member’",
    ),
    (
        "gcc-header",
        include_str!("../testdata/gcc-header.log"),
        Kind::Compiler,
        Some("kernel/trace/bpf_trace.c"),
        Some(5),
        "linux/no_such_header.h: No such file or directory",
    ),
    (
        "gcc-unterminated",
        include_str!("../testdata/gcc-unterminated.log"),
        Kind::Compiler,
        Some("kernel/trace/bpf_trace.c"),
        Some(3511),
        "unterminated #ifdef",
    ),
    (
        "clang-member",
        include_str!("../testdata/clang-member.log"),
        Kind::Compiler,
        Some("c.c"),
        Some(4),
        "no member named 'b' in 'struct s'",
    ),
    (
        "clang-header",
        include_str!("../testdata/clang-header.log"),
        Kind::Compiler,
        Some("d.c"),
        Some(1),
        "'linux/no_such.h' file not found",
    ),
    (
        "assembler",
        include_str!("../testdata/assembler.log"),
        Kind::Assembler,
        Some("arch/x86/lib/memset_64.S"),
        Some(119),
        "no such instruction",
    ),
    (
        "ld-undefined",
        include_str!("../testdata/ld-undefined.log"),
        Kind::Linker,
        Some("/tmp/h3/m/a.c"),
        Some(4),
        "undefined reference to `missing_function'",
    ),
    (
        "ld-undefined-without-lines",
        include_str!("../testdata/ld-undefined-without-lines.log"),
        Kind::Linker,
        Some("a.c"),
        None,
        "undefined reference to `missing_function'",
    ),
    (
        "ld-multiple",
        include_str!("../testdata/ld-multiple.log"),
        Kind::Linker,
        Some("a.c"),
        None,
        "multiple definition of `caller'",
    ),
    (
        "lld-undefined",
        include_str!("../testdata/lld-undefined.log"),
        Kind::Linker,
        Some("a.c"),
        Some(4),
        "undefined symbol: missing_function",
    ),
    (
        "lld-duplicate",
        include_str!("../testdata/lld-duplicate.log"),
        Kind::Linker,
        Some("a.c"),
        Some(3),
        "duplicate symbol: caller",
    ),
    (
        "modpost",
        include_str!("../testdata/modpost.log"),
        Kind::Modpost,
        None,
        None,
        "\"nope_fn\" [mod.ko] undefined!",
    ),
    (
        "btf-none",
        include_str!("../testdata/btf-none.log"),
        Kind::Btf,
        None,
        None,
        "failed to find '.BTF' ELF section",
    ),
    (
        "btf-ids",
        include_str!("../testdata/btf-ids.log"),
        Kind::Btf,
        None,
        None,
        "FAILED unsupported prefix",
    ),
    (
        "no-rule",
        include_str!("../testdata/no-rule.log"),
        Kind::Make,
        Some("kernel/trace/no_such_file.o"),
        None,
        "No rule to make target 'kernel/trace/no_such_file.o', needed by",
    ),
    (
        "makefile",
        include_str!("../testdata/makefile.log"),
        Kind::Make,
        Some("kernel/trace/Makefile"),
        Some(115),
        "missing separator.",
    ),
    (
        "no-program",
        include_str!("../testdata/no-program.log"),
        Kind::Make,
        None,
        None,
        "no-such-program: No such file or directory",
    ),
    (
        "kconfig",
        include_str!("../testdata/kconfig.log"),
        Kind::Kconfig,
        Some("kernel/trace/Kconfig"),
        Some(12),
        "syntax error",
    ),
    (
        "crash-gcc",
        include_str!("../testdata/crash-gcc.log"),
        Kind::Crash,
        Some("big.c"),
        Some(30000),
        "internal compiler error: Segmentation fault",
    ),
    (
        "crash-clang",
        include_str!("../testdata/crash-clang.log"),
        Kind::Crash,
        Some("big.c"),
        Some(28837),
        "the compiler crashed",
    ),
    (
        "killed-gcc",
        include_str!("../testdata/killed-gcc.log"),
        Kind::Killed,
        None,
        None,
        "Killed signal terminated program cc1",
    ),
    (
        "killed-clang",
        include_str!("../testdata/killed-clang.log"),
        Kind::Killed,
        None,
        None,
        "unable to execute command: Killed",
    ),
    (
        "killed-ld",
        include_str!("../testdata/killed-ld.log"),
        Kind::Killed,
        None,
        None,
        "vmlinux.o] Killed",
    ),
    (
        "full-as",
        include_str!("../testdata/full-as.log"),
        Kind::DiskFull,
        None,
        None,
        "No space left on device",
    ),
    (
        "full-gcc",
        include_str!("../testdata/full-gcc.log"),
        Kind::DiskFull,
        None,
        None,
        "No space left on device",
    ),
    (
        "full-clang",
        include_str!("../testdata/full-clang.log"),
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
