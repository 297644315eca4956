// SPDX-License-Identifier: MIT OR Apache-2.0
//! Input that a command rejects: the message names it, the exit code is 2, and no run is left.

use super::{SUITE, sources};
use crate::command::{stderr, tramplab};
use std::fs;

/// An architecture other than this machine's.
const FOREIGN: &str = if cfg!(target_arch = "x86_64") { "arm64" } else { "x86_64" };

struct Case {
    name: String,
    /// The suite given with `--suite`; `None` where `arguments` are a whole command.
    suite: Option<String>,
    /// Further files; `{dir}` in the arguments names their folder.
    files: Vec<(&'static str, Vec<u8>)>,
    arguments: Vec<&'static str>,
    /// The message contains all of these.
    words: Vec<&'static str>,
}

/// `words` are separated by a bar.
fn command(arguments: &[&'static str], words: &'static str) -> Case {
    let (name, words) = (arguments.join(" "), words.split('|').collect());
    Case { name, suite: None, files: vec![], arguments: arguments.to_vec(), words }
}

fn with_arguments(arguments: &[&'static str], words: &'static str) -> Case {
    Case { suite: Some(SUITE.to_owned()), ..command(arguments, words) }
}

/// `from` is replaced in the suite; nothing: `to` is a line behind it.
fn with_suite(from: &str, to: &str, words: &'static str) -> Case {
    let suite = if from.is_empty() { format!("{SUITE}{to}\n") } else { SUITE.replace(from, to) };
    Case { name: to.to_owned(), suite: Some(suite), ..command(&[], words) }
}

fn with_file(file: (&'static str, &[u8]), arguments: &[&'static str], words: &'static str) -> Case {
    Case { files: vec![(file.0, file.1.to_vec())], ..with_arguments(arguments, words) }
}

fn with_run(json: Option<&str>, words: &'static str) -> Case {
    let files = json.map(|json| ("run.json", json.as_bytes().to_vec())).into_iter().collect();
    Case { files, ..command(&["report", "{dir}"], words) }
}

fn check(cases: impl IntoIterator<Item = Case>) {
    for case in cases {
        let dir = tempfile::tempdir().unwrap();
        let runs = dir.path().join("runs");
        for (name, bytes) in &case.files {
            fs::write(dir.path().join(name), bytes).unwrap();
        }
        let mut command = tramplab();
        if let Some(suite) = &case.suite {
            fs::write(dir.path().join("suite.yaml"), suite).unwrap();
            command.args(["vm-test", "--accel", "tcg", "--runs"]).arg(&runs);
            if !case.arguments.contains(&"--suite") {
                command.arg("--suite").arg(dir.path().join("suite.yaml"));
            }
        }
        let sources = sources(dir.path());
        let fill = |argument: &&str| {
            argument.replace("{dir}", dir.path().to_str().unwrap()).replace("{sources}", &sources)
        };
        command.args(case.arguments.iter().map(fill));
        let output = command.output().unwrap();
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{}: {said}", case.name);
        for word in &case.words {
            assert!(said.contains(word), "{}: {word:?} is missing in: {said}", case.name);
        }
        assert!(!said.contains("'-- --"), "{}: {said}", case.name);
        let left = fs::read_dir(&runs)
            .into_iter()
            .flatten()
            .flatten()
            .filter(|e| e.path().is_dir())
            .count();
        assert_eq!(left, 0, "{}: a run was left behind", case.name);
    }
}

#[test]
fn names_bad_suite_and_exits_2() {
    const WASTE: &str = "lbr_waste: { mechanisms: [fentry]";
    let cases = [
        ("tests:", "tets:", "suite.yaml:4:1|tets|tests"),
        ("[fentry]", "[fentri]", "suite.yaml:5:|fentri|kprobe.multi"),
        ("[fentry]", "[fentry], programs: [no.bpf.o]", "suite.yaml:5:|failed to read|/no.bpf.o"),
        (
            "",
            "budgets:\n  - wasted: { fexit2: { any: 3 } }",
            "suite.yaml:7:|fexit2|kprobe.session/exit",
        ),
        ("", "budgets:\n  - wasted: { fexit: { all: 3 } }", "suite.yaml:7:|all|any_return"),
        ("[\"6.12\"]", "[]", "suite.yaml:3:|at least one"),
        ("[fentry]", "[]", "suite.yaml:5:|at least one"),
        ("[fentry]", "[fentry], hits: 0", "suite.yaml:5:|from 1 on"),
        ("[fentry]", "[fentry], hits: -5", "suite.yaml:5:|expected a whole number"),
        // Nothing could be measured.
        (
            "",
            "machine: { append: [sysctl.kernel.kptr_restrict=2] }",
            "suite.yaml:6:|`sysctl.kernel.kptr_restrict=2` hides the addresses",
        ),
        (
            "",
            "machine: { append: [tramplab.cgroup=1] }",
            "suite.yaml:6:|`tramplab.cgroup=1` is no switch|tramplab.cgroup_program=0 or 1",
        ),
        ("", "machine: { memory_mib: 127 }", "suite.yaml:6:|127 MiB|128 or more"),
        (SUITE, "tests: [\n", "suite.yaml:"),
        (
            WASTE,
            "trigger: { mechanisms: [fentry], beside: [nonsense]",
            "suite.yaml:5:|nonsense|function_tracer",
        ),
        (
            WASTE,
            "trigger: { mechanisms: [fentry], beside: [0xfentry]",
            "suite.yaml:5:|`0xfentry`|from 1 to 255|7xfentry",
        ),
        (
            WASTE,
            "trigger: { mechanisms: [fentry], beside: [\"kprobe.multi:many\"]",
            "suite.yaml:5:|`kprobe.multi:many`|kprobe.multi:1000",
        ),
        (
            WASTE,
            "attach: { rounds: 1, functions: [2x10], mechanisms: [fentry]",
            "fentry has a link for each function: 2x10|multi mechanisms",
        ),
        ("", "experiments: [deliver_recrods]", "suite.yaml:|deliver_recrods|deliver_records"),
        (
            "tests:\n  - lbr_waste",
            "experiments: [deliver_records]\ntests:\n  - trigger",
            "deliver-records needs lbr_waste tests",
        ),
        ("[fentry]", "[fentry], trigger: sync", "suite.yaml|or a program's section names: add one"),
        (
            "[fentry]",
            "[fentry], targets: [vfs_read], trigger: ' '",
            "suite.yaml|`trigger` must be a line for the guest's shell",
        ),
        ("", "tolerance: { time_percent: -5 }", "suite.yaml:6:|0 or more per cent"),
        (
            WASTE,
            "trigger: { mechanisms: [fentry], estimated: true, throughput: true",
            "suite.yaml:5:|exact clock|remove `throughput: true`",
        ),
    ];
    check(cases.map(|(from, to, words)| with_suite(from, to, words)));
}

#[test]
fn names_bad_kernel_and_exits_2() {
    let image =
        fs::read(std::env::var("TRAMPLAB_TEST_KERNEL_X86_64").expect("run `cargo xtask test`"))
            .unwrap();
    // Debian's configuration of 6.12, cut down to the options that matter, less one option.
    let config = include_str!("../../../kernel/src/testdata/6.12.config");
    let without_btf =
        config.replace("CONFIG_DEBUG_INFO_BTF=y", "# CONFIG_DEBUG_INFO_BTF is not set");
    assert_ne!(config, without_btf);
    let truncated = &image[..image.len() / 2];
    let misspelt = b"arch: x86_64\npath: { imag: x }\n";
    let of_arm64 = b"arch: arm64\npath: { image: x }\n";
    let cases = || {
        [
            with_arguments(&["--kernel", "9.99"], "9.99|6.12"),
            with_file(("k.yaml", misspelt), &["--kernel", "{dir}/k.yaml"], "k.yaml:2:|imag"),
            with_file(("cut", truncated), &["--kernel", "{dir}/cut"], "cut|bytes"),
            with_file(("text", b"not a kernel"), &["--kernel", "{dir}/text"], "text"),
            with_file(
                ("bzImage", &image),
                &["--kernel", "{dir}/bzImage", "--arch", "arm64"],
                "is not for arm64, but for: x86_64",
            ),
            with_file(
                ("k.yaml", of_arm64),
                &["--kernel", "{dir}/k.yaml", "--arch", "arm64,x86_64"],
                "is not for x86_64, but for: arm64",
            ),
            Case {
                files: vec![
                    ("vmlinuz-mine", image.clone()),
                    ("config-mine", without_btf.clone().into_bytes()),
                ],
                ..with_arguments(&["--kernel", "{dir}/vmlinuz-mine"], "CONFIG_DEBUG_INFO_BTF")
            },
            Case {
                files: vec![("vmlinuz-mine", image.clone()), ("config-mine", b"\xff".to_vec())],
                ..with_arguments(&["--kernel", "{dir}/vmlinuz-mine"], "config-mine: line 1 is no")
            },
            Case {
                files: vec![("k.yaml", of_arm64.to_vec()), ("x", image.clone())],
                ..with_arguments(
                    &["--kernel", "{dir}/k.yaml"],
                    "/x as a kernel: it is a kernel for x86",
                )
            },
            with_file(
                ("k.yaml", b"arch: x86_64\npath: { source: gone }\n"),
                &["--kernel", "{dir}/k.yaml"],
                "failed to find|/gone",
            ),
        ]
    };
    check(cases());
    // A list says so, too.
    check(cases().map(|mut case| {
        case.arguments.push("--list");
        case
    }));
}

#[test]
fn names_bad_argument_and_exits_2() {
    check([
        command(&["cache", "prune", "--to", "30"], "--to|expected a size such as 20GiB"),
        command(
            &["shell", "--timeout", "18446744073709551615", "--", "true"],
            "--timeout|18446744073709551615 is not in 1..=31536000",
        ),
        command(
            &["shell", "--append", "tramplab.cgroup_program=1", "--", "true"],
            "--append: `tramplab.cgroup_program=1` is for the agent",
        ),
        with_file(
            ("text.bpf.o", b"no object"),
            &["--program", "{dir}/text.bpf.o"],
            "--program|text.bpf.o|no BPF object",
        ),
    ]);
    let cases: [(&[&str], &str); _] = [
        (&["--program", "/no/such.bpf.o:on_hit"], "--program|failed to read /no/such.bpf.o"),
        (&["--vm", "virtme-ng", "--arch", FOREIGN], "virtme-ng|--vm qemu|this machine's own files"),
        (&["--trigger", "sync"], "--function"),
        (
            &["--function", "vfs_read", "--trigger", ""],
            "`trigger` must be a line for the guest's shell",
        ),
        (&["--suite", "nosuch"], "nosuch|quick"),
        (&["--suite", "uprobes", "--function", "user_nope"], "user_nope|user_frame, user_nop,"),
        (&["--suite", "{dir}/none.yaml"], "none.yaml|No such file"),
        (&["--arch", "mips"], "mips|x86_64, arm64"),
        (&["-E", "test("], "test("),
        // The kernel would fail to build, with another exit code.
        (&["--kernel", "{sources}", "-E", "test("], "the filterset `test(` is wrong"),
        (&[""], "a value is required|CELL"),
        (&["--mechanism", "fexit"], "--mechanism|parts of their names"),
        (&["--series", "lbr-helpers", "--kernel", "6.12"], "6.12 is prebuilt|6.12-source"),
        (&["nosuchcell"], "no cell is named `nosuchcell`"),
        (&["fentry", "fexitt"], "no cell is named `fexitt`"),
        (
            &["fentry", "-E", "test(/fexit$/)"],
            "no cell is selected by the filterset `test(/fexit$/)` and `fentry`",
        ),
        (&["--filter", "everything"], "everything|any_return"),
    ];
    check(cases.map(|(arguments, words)| with_arguments(arguments, words)));
}

/// An option that was meant for a guest, or no answer, attaches nothing on this machine.
#[test]
fn refuses_to_attach_on_this_machine_and_exits_2() {
    let none = |options: &[&'static str], words| {
        command(&[&["vm-test", "--suite", "waste", "--vm", "none"], options].concat(), words)
    };
    check([
        none(&[], "asks before it starts|--list|--yes"),
        none(&["--yes", "--kernel", "6.12"], "--vm none|remove --kernel"),
        none(&["--yes", "--arch", FOREIGN], "remove --arch"),
        none(&["--yes", "--accel", "tcg"], "remove --accel"),
        none(&["--yes", "--branches", "virtual"], "remove --branches"),
        none(&["--yes", "--branches", "hardware"], "remove --branches"),
        none(&["--yes", "--jobs", "2"], "remove --jobs"),
        none(&["--yes", "--model", "zen4"], "remove --model"),
        none(&["--yes", "--trigger", "true"], "remove --trigger"),
        none(&["--yes", "--config-axis", "preempt=none,full"], "remove --config"),
        none(&["--yes", "--confined"], "remove --confined"),
        none(&["--yes", "--unconfined"], "remove --unconfined"),
        none(&["--yes", "--no-cache"], "remove --no-cache"),
        none(&["--yes", "--update-budgets"], "budgets are of guests"),
        command(&["vm-test", "--suite", "waste", "--yes"], "--yes answers the question"),
    ]);
}

#[test]
fn names_bad_run_and_exits_2() {
    let stored = include_str!("../../../testdata/two-architectures.json");
    check([
        Case {
            arguments: vec!["profile", "{dir}"],
            ..with_run(Some(stored), "vm-test --explain exact")
        },
        with_run(None, "run.json"),
        with_run(Some("{}"), "run.json|schema"),
        with_run(Some("{\"schema\": 999}"), "schema 999|schemas 1 to "),
    ]);
}
