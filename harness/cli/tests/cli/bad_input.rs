// SPDX-License-Identifier: MIT OR Apache-2.0
//! Input that a command rejects: the message names it, the exit code is 2, and no run is left.

use super::{SUITE, sources};
use crate::command::{stderr, tramplab};
use std::fs;

/// An architecture other than this machine's.
const FOREIGN: &str = if cfg!(target_arch = "x86_64") { "arm64" } else { "x86_64" };

struct Case {
    name: &'static str,
    /// The suite given with `--suite`; `None` where `arguments` are a whole command.
    suite: Option<String>,
    /// Further files; `{dir}` in the arguments names their folder.
    files: Vec<(&'static str, Vec<u8>)>,
    arguments: &'static [&'static str],
    /// The message contains all of these.
    words: &'static [&'static str],
}

fn with_suite(name: &'static str, suite: &str, words: &'static [&'static str]) -> Case {
    Case { name, suite: Some(suite.to_owned()), files: vec![], arguments: &[], words }
}

fn with_arguments(
    name: &'static str,
    arguments: &'static [&'static str],
    words: &'static [&'static str],
) -> Case {
    Case { name, suite: Some(SUITE.to_owned()), files: vec![], arguments, words }
}

fn with_file(
    file: (&'static str, &[u8]),
    arguments: &'static [&'static str],
    words: &'static [&'static str],
) -> Case {
    let suite = Some(SUITE.to_owned());
    Case { name: file.0, suite, files: vec![(file.0, file.1.to_vec())], arguments, words }
}

fn report(name: &'static str, json: Option<&str>, words: &'static [&'static str]) -> Case {
    let files = json.map(|json| ("run.json", json.as_bytes().to_vec())).into_iter().collect();
    Case { name, suite: None, files, arguments: &["report", "{dir}"], words }
}

fn check(cases: Vec<Case>) {
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
        for word in case.words {
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
    check(vec![
        with_suite(
            "unknown key",
            &SUITE.replace("tests:", "tets:"),
            &["suite.yaml:4:1", "tets", "tests"],
        ),
        with_suite(
            "unknown mechanism",
            &SUITE.replace("[fentry]", "[fentri]"),
            &["suite.yaml:5:", "fentri", "kprobe.multi"],
        ),
        with_suite(
            "absent program",
            &SUITE.replace("[fentry]", "[fentry], programs: [no.bpf.o]"),
            &["suite.yaml:5:", "failed to read", "/no.bpf.o"],
        ),
        with_suite(
            "unknown budget row",
            &format!("{SUITE}budgets:\n  - wasted: {{ fexit2: {{ any: 3 }} }}\n"),
            &["suite.yaml:7:", "fexit2", "kprobe.session/exit"],
        ),
        with_suite(
            "unknown budget filter",
            &format!("{SUITE}budgets:\n  - wasted: {{ fexit: {{ all: 3 }} }}\n"),
            &["suite.yaml:7:", "all", "any_return"],
        ),
        with_suite(
            "no kernels",
            &SUITE.replace("[\"6.12\"]", "[]"),
            &["suite.yaml:3:", "at least one"],
        ),
        with_suite(
            "no mechanisms",
            &SUITE.replace("[fentry]", "[]"),
            &["suite.yaml:5:", "at least one"],
        ),
        with_suite(
            "no hits",
            &SUITE.replace("[fentry]", "[fentry], hits: 0"),
            &["suite.yaml:5:", "from 1 on"],
        ),
        with_suite(
            "a sysctl with which nothing can be measured",
            &format!("{SUITE}machine: {{ append: [sysctl.kernel.kptr_restrict=2] }}\n"),
            &["suite.yaml:6:", "`sysctl.kernel.kptr_restrict=2` hides the addresses"],
        ),
        with_suite(
            "a switch that does not exist",
            &format!("{SUITE}machine: {{ append: [tramplab.cgroup=1] }}\n"),
            &[
                "suite.yaml:6:",
                "`tramplab.cgroup=1` is no switch",
                "tramplab.cgroup_program=0 or 1",
            ],
        ),
        with_suite(
            "too small a guest",
            &format!("{SUITE}machine: {{ memory_mib: 127 }}\n"),
            &["suite.yaml:6:", "127 MiB", "128 or more"],
        ),
        with_suite("no YAML", "tests: [\n", &["suite.yaml:"]),
        with_suite(
            "unknown tracer beside",
            &SUITE.replace(
                "lbr_waste: { mechanisms: [fentry]",
                "trigger: { mechanisms: [fentry], beside: [nonsense]",
            ),
            &["suite.yaml:5:", "nonsense", "function_tracer"],
        ),
        with_suite(
            "no programs beside",
            &SUITE.replace(
                "lbr_waste: { mechanisms: [fentry]",
                "trigger: { mechanisms: [fentry], beside: [0xfentry]",
            ),
            &["suite.yaml:5:", "`0xfentry`", "from 1 to 255", "7xfentry"],
        ),
        with_suite(
            "a word for other functions",
            &SUITE.replace(
                "lbr_waste: { mechanisms: [fentry]",
                "trigger: { mechanisms: [fentry], beside: [\"kprobe.multi:many\"]",
            ),
            &["suite.yaml:5:", "`kprobe.multi:many`", "kprobe.multi:1000"],
        ),
        with_suite(
            "several links of a mechanism with one for each function",
            &SUITE.replace(
                "lbr_waste: { mechanisms: [fentry]",
                "attach: { rounds: 1, functions: [2x10], mechanisms: [fentry]",
            ),
            &["fentry has a link for each function: 2x10", "multi mechanisms"],
        ),
        with_suite(
            "unknown experiment",
            &format!("{SUITE}experiments: [deliver_recrods]\n"),
            &["suite.yaml:", "deliver_recrods", "deliver_records"],
        ),
        with_suite(
            "an experiment without its tests",
            &SUITE
                .replace("lbr_waste", "trigger")
                .replace("tests:", "experiments: [deliver_records]\ntests:"),
            &["deliver-records needs lbr_waste tests"],
        ),
        with_suite(
            "a command without a function",
            &SUITE.replace("[fentry]", "[fentry], trigger: sync"),
            &["suite.yaml", "or a program's section names: add one"],
        ),
        with_suite(
            "an empty command",
            &SUITE.replace("[fentry]", "[fentry], targets: [vfs_read], trigger: ' '"),
            &["suite.yaml", "`trigger` must be a line for the guest's shell"],
        ),
        with_suite(
            "a tolerance that makes equal numbers worse",
            &format!("{SUITE}tolerance: {{ time_percent: -5 }}\n"),
            &["suite.yaml:6:", "0 or more per cent"],
        ),
        with_arguments("a command for no function", &["--trigger", "sync"], &["--function"]),
        with_arguments(
            "an empty command line",
            &["--function", "vfs_read", "--trigger", ""],
            &["`trigger` must be a line for the guest's shell"],
        ),
        with_suite(
            "a negative number of hits",
            &SUITE.replace("[fentry]", "[fentry], hits: -5"),
            &["suite.yaml:5:", "expected a whole number"],
        ),
    ]);
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
    check(vec![
        with_arguments("no such kernel", &["--kernel", "9.99"], &["9.99", "6.12"]),
        with_file(
            ("k.yaml", b"arch: x86_64\npath: { imag: x }\n"),
            &["--kernel", "{dir}/k.yaml"],
            &["k.yaml:2:", "imag"],
        ),
        with_file(
            ("truncated", &image[..image.len() / 2]),
            &["--kernel", "{dir}/truncated"],
            &["truncated", "bytes"],
        ),
        with_file(("text", b"not a kernel"), &["--kernel", "{dir}/text"], &["text"]),
        with_file(
            ("bzImage", &image),
            &["--kernel", "{dir}/bzImage", "--arch", "arm64"],
            &["is not for arm64, but for: x86_64"],
        ),
        with_file(
            ("k.yaml", b"arch: arm64\npath: { image: x }\n"),
            &["--kernel", "{dir}/k.yaml", "--arch", "arm64,x86_64"],
            &["is not for x86_64, but for: arm64"],
        ),
        Case {
            name: "kernel without BTF",
            suite: Some(SUITE.to_owned()),
            files: vec![("vmlinuz-mine", image.clone()), ("config-mine", without_btf.into_bytes())],
            arguments: &["--kernel", "{dir}/vmlinuz-mine"],
            words: &["CONFIG_DEBUG_INFO_BTF"],
        },
    ]);
}

#[test]
fn names_bad_argument_and_exits_2() {
    check(vec![
        with_arguments(
            "absent program",
            &["--program", "/no/such.bpf.o:on_hit"],
            &["--program", "failed to read /no/such.bpf.o"],
        ),
        with_file(
            ("text.bpf.o", b"no object"),
            &["--program", "{dir}/text.bpf.o"],
            &["--program", "text.bpf.o", "no BPF object"],
        ),
        with_arguments(
            "another architecture's guest with this machine's files",
            &["--vm", "virtme-ng", "--arch", FOREIGN],
            &["virtme-ng", "--vm qemu", "this machine's own files"],
        ),
        with_arguments("no such suite", &["--suite", "nosuch"], &["nosuch", "quick"]),
        Case {
            name: "a size without a unit",
            suite: None,
            files: vec![],
            arguments: &["cache", "prune", "--to", "30"],
            words: &["--to", "expected a size such as 20GiB"],
        },
        Case {
            name: "a time out of range",
            suite: None,
            files: vec![],
            arguments: &["shell", "--timeout", "18446744073709551615", "--", "true"],
            words: &["--timeout", "18446744073709551615 is not in 1..=31536000"],
        },
        Case {
            name: "a switch for the agent in a guest without one",
            suite: None,
            files: vec![],
            arguments: &["shell", "--append", "tramplab.cgroup_program=1", "--", "true"],
            words: &["--append: `tramplab.cgroup_program=1` is for the agent"],
        },
        with_arguments(
            "no such file",
            &["--suite", "{dir}/none.yaml"],
            &["none.yaml", "No such file"],
        ),
        with_arguments("no such architecture", &["--arch", "mips"], &["mips", "x86_64, arm64"]),
        with_arguments("bad filterset", &["-E", "test("], &["test("]),
        // The kernel would fail to build, with another exit code.
        with_arguments(
            "bad filterset before anything is built",
            &["--kernel", "{sources}", "-E", "test("],
            &["the filterset `test(` is wrong"],
        ),
        with_arguments("a cell without a name", &[""], &["a value is required", "CELL"]),
        with_arguments(
            "an option that does not exist",
            &["--mechanism", "fexit"],
            &["--mechanism", "parts of their names"],
        ),
        with_arguments(
            "a series on a prebuilt kernel",
            &["--series", "lbr-helpers", "--kernel", "6.12"],
            &["6.12 is prebuilt", "6.12-source"],
        ),
        with_arguments("no such cell", &["nosuchcell"], &["no cell is named `nosuchcell`"]),
        with_arguments(
            "one of several names is of no cell",
            &["fentry", "fexitt"],
            &["no cell is named `fexitt`"],
        ),
        with_arguments(
            "nothing selected",
            &["fentry", "-E", "test(/fexit$/)"],
            &["no cell is selected by the filterset `test(/fexit$/)` and `fentry`"],
        ),
        Case {
            name: "a part of the mechanisms without a file for it",
            suite: None,
            files: vec![],
            arguments: &["mechanisms", "lbr_waste"],
            words: &["--output <FILE>"],
        },
        with_arguments("bad filter", &["--filter", "everything"], &["everything", "any_return"]),
    ]);
}

#[test]
fn names_bad_run_and_exits_2() {
    check(vec![
        Case {
            name: "no profiles",
            suite: None,
            files: vec![(
                "run.json",
                include_bytes!("../../../testdata/two-architectures.json").to_vec(),
            )],
            arguments: &["profile", "{dir}"],
            words: &["vm-test --explain exact"],
        },
        report("no run", None, &["run.json"]),
        report("a run.json of another program", Some("{}"), &["run.json", "schema"]),
        report("another schema", Some("{\"schema\": 999}"), &["schema 999", "schemas 1 to "]),
    ]);
}
