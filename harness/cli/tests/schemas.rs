// SPDX-License-Identifier: MIT OR Apache-2.0
//! The published JSON Schemas: each is that of the present types, accepts what is shipped and
//! recorded, rejects mistakes, and agrees with the parsers.

use crate::command::{repository, said, tramplab};
use serde_json::{Value, json};
use std::{
    fs,
    path::{Path, PathBuf},
    str::FromStr,
};
use tramplab_host::config;
use tramplab_kernel::{Toolchain, parse_manifest};
use tramplab_model::{
    filter::Filter,
    function::{Among, FunctionName},
    kinds::lbr_waste::WasteRow,
    program::ProgramName,
    run::{Run, SCHEMA},
    tree_tests::{Name, Program},
};
use tramplab_protocol::{Beside, Functions, Mechanism, pattern::Pattern};
use tramplab_suite::Suite;
use tramplab_testdata::schema::errors;

const NAMES: [&str; 12] = [
    "axes",
    "bisection",
    "cache",
    "comparison",
    "cpu",
    "defaults",
    "events",
    "kernel",
    "mechanisms",
    "run",
    "series",
    "suite",
];

fn text(path: impl AsRef<Path>) -> String {
    let path = repository().join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn schema(name: &str) -> Value {
    serde_json::from_str(&text(format!("docs/{name}.schema.json"))).unwrap()
}

fn yaml(text: &str) -> Value {
    config::parse(text, Path::new("a.yaml")).unwrap_or_else(|error| panic!("{text}: {error}"))
}

/// The files of a folder whose names end so.
fn files(folder: &str, end: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(repository().join(folder)).unwrap();
    let paths = entries.map(|entry| entry.unwrap().path());
    let found: Vec<_> = paths.filter(|path| path.to_str().unwrap().ends_with(end)).collect();
    assert!(!found.is_empty(), "{folder}");
    found
}

#[test]
fn docs_have_the_schemas_of_the_types() {
    for name in NAMES {
        let output = tramplab().args(["schema", name]).output().unwrap();
        assert!(output.status.success(), "{}", said(&output));
        let made = String::from_utf8(output.stdout).unwrap();
        let is_same = made == text(format!("docs/{name}.schema.json"));
        assert!(is_same, "docs/{name}.schema.json is stale: run `cargo xtask schema`");
    }
    assert_eq!(files("docs", ".schema.json").len(), NAMES.len());
    let output = tramplab().args(["schema", "suites"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(said(&output).contains("axes, bisection, cache"), "{}", said(&output));
}

/// Checks a file by the schema that its second line names for editors.
fn check_shipped(path: &Path, name: &str) {
    let text = text(path);
    let named =
        text.lines().nth(1).and_then(|line| line.strip_prefix("# yaml-language-server: $schema="));
    let named = named.unwrap_or_else(|| panic!("{} names no schema", path.display()));
    let found = path.parent().unwrap().join(named).canonicalize().unwrap();
    assert_eq!(
        found,
        repository().join(format!("docs/{name}.schema.json")).canonicalize().unwrap()
    );
    assert_eq!(errors(&schema(name), &yaml(&text)), [""; 0], "{}", path.display());
}

#[test]
fn shipped_files_follow_their_schemas() {
    for (folder, name) in [
        ("configs/suites", "suite"),
        ("harness/testdata", "suite"),
        ("configs", "axes"),
        ("configs/cpus", "cpu"),
        ("kernels", "kernel"),
    ] {
        files(folder, ".yaml").iter().for_each(|path| check_shipped(path, name));
    }
    let series: Vec<PathBuf> = files("kernels/patches", "")
        .into_iter()
        .map(|folder| folder.join("series.yaml"))
        .filter(|path| path.is_file())
        .collect();
    assert!(series.len() >= 6, "{series:?}");
    series.iter().for_each(|path| check_shipped(path, "series"));
}

/// The text of the first block of code of a kind in a page.
fn example(page: &str, kind: &str) -> Value {
    let text = text(page);
    let (_, rest) = text.split_once(&format!("```{kind}\n")).unwrap();
    yaml(rest.split_once("```").unwrap().0)
}

#[test]
fn examples_in_the_docs_follow_their_schemas() {
    for (page, kind, name) in [
        ("docs/install.md", "yaml", "defaults"),
        ("docs/suites.md", "yaml", "suite"),
        ("docs/series.md", "yaml", "series"),
        ("docs/run-json.md", "json", "run"),
    ] {
        assert_eq!(errors(&schema(name), &example(page, kind)), [""; 0], "{page}");
    }
}

#[test]
fn recorded_runs_follow_the_schema() {
    let schema = schema("run");
    let recorded = files("harness/testdata", ".json");
    for path in recorded.iter().chain(&files("harness/host/src/runs/testdata", ".json")) {
        let run: Value = serde_json::from_str(&text(path)).unwrap();
        let errors = errors(&schema, &run);
        match run["schema"] == SCHEMA {
            true => assert_eq!(errors, [""; 0], "{}", path.display()),
            // `report --format json` writes it in the present schema.
            false => assert!(errors.contains(&format!("/schema: const: {SCHEMA}")), "{errors:?}"),
        }
    }
    // All that the present version writes.
    for run in [tramplab_testdata::series(), tramplab_testdata::stored()] {
        assert_eq!(errors(&schema, &serde_json::to_value(&run).unwrap()), [""; 0], "{}", run.id);
    }
}

/// A run with a mistake: neither schema nor parser accepts it.
#[test]
fn rejects_mistakes_in_runs() {
    let (schema, whole) =
        (schema("run"), serde_json::to_value(tramplab_testdata::stored()).unwrap());
    let wrong: [(&str, Value, &str); 9] = [
        ("/cells", json!({}), "/cells: type"),
        ("/cells/0/id/arch", json!("riscv"), "/cells/0/id/arch: enum"),
        (
            "/cells/0/id/test",
            json!({"lbr_waste": {"mechanism": "fentri"}}),
            "/cells/0/id/test: oneOf",
        ),
        ("/cells/0/id/test", json!({"lbr": {}}), "/cells/0/id/test: oneOf"),
        ("/cells/0/outcome", json!("passed"), "/cells/0/outcome: oneOf"),
        ("/cells/0/duration_ms", json!(-1), "/cells/0/duration_ms: minimum"),
        ("/interrupted", json!(null), "/interrupted: type"),
        ("/kernels/0", json!({"name": "a"}), "/kernels/0: required"),
        ("/tolerance/wasted", json!(1.5), "/tolerance/wasted: type"),
    ];
    for (place, value, words) in wrong {
        let mut run = whole.clone();
        *run.pointer_mut(place).unwrap_or_else(|| panic!("no {place}")) = value;
        let errors = errors(&schema, &run);
        assert!(errors.iter().any(|error| error.starts_with(words)), "{place}: {errors:?}");
        assert!(serde_json::from_value::<Run>(run).is_err(), "{place}");
    }
    let mut run = whole;
    run["cels"] = json!([]);
    assert_eq!(errors(&schema, &run), ["/cels: false"]);
    assert!(serde_json::from_value::<Run>(run).is_err());
}

/// A part of a schema, as a schema.
fn part(name: &str, part: &str) -> Value {
    let root = schema(name);
    assert!(root["$defs"][part].is_object(), "no {part} in {name}");
    json!({ "$ref": format!("#/$defs/{part}"), "$defs": root["$defs"] })
}

/// Names with one character left out, put in or replaced.
fn neighbours(name: &str) -> Vec<String> {
    let characters: Vec<char> = name.chars().collect();
    let mut all = vec![name.to_owned(), String::new(), name.repeat(40)];
    for at in 0..=characters.len() {
        let (before, after) = characters.split_at(at);
        let with =
            |middle: &[char], after: &[char]| [before, middle, after].concat().iter().collect();
        all.extend((!after.is_empty()).then(|| with(&[], &after[1..])));
        for other in "aZx017_.:/+-=@|*?[ \n\té".chars() {
            all.push(with(&[other], after));
            all.extend((!after.is_empty()).then(|| with(&[other], &after[1..])));
        }
    }
    all
}

/// Requires that parser and schema accept the same names near these, and some of either answer.
fn agree(names: &[&str], parses: impl Fn(&str) -> bool, errors: impl Fn(&str) -> Vec<String>) {
    let (mut good, mut bad) = (0, 0);
    for name in names.iter().flat_map(|name| neighbours(name)) {
        let (parses, errors) = (parses(&name), errors(&name));
        assert_eq!(parses, errors.is_empty(), "{name:?}: {errors:?}");
        *(if parses { &mut good } else { &mut bad }) += 1;
    }
    assert!(good >= names.len() && bad > good, "{names:?}: {good} good, {bad} bad");
}

fn is<T: FromStr>(name: &str) -> bool {
    name.parse::<T>().is_ok()
}

#[test]
fn names_are_those_that_the_parsers_accept() {
    let by = |file: &str, definition: &str| {
        let schema = part(file, definition);
        move |name: &str| errors(&schema, &name.into())
    };
    let functions = ["vfs_read", "xfs:xfs_file_read_iter", "kvm-amd:x", "f.part.0", "_a"];
    agree(&functions, is::<FunctionName>, by("suite", "FunctionName"));
    agree(&["on_connect", "_x1"], is::<ProgramName>, by("run", "ProgramName"));
    agree(&["trig-kprobe-multi", "8021q"], is::<Name>, by("suite", "TreeTestName"));
    let programs = ["perf_events/remove_on_exec", "net/af_unix/scm_rights", "bpf/x", "bpfa/x"];
    agree(&programs, is::<Program>, by("suite", "TreeProgram"));
    agree(&["gcc", "gcc-13", "clang-19"], is::<Toolchain>, by("kernel", "Toolchain"));
    let mechanisms = Mechanism::ALL.map(Mechanism::name);
    agree(&mechanisms, is::<Mechanism>, by("suite", "Mechanism"));
    let beside = [
        "fentry",
        "7xfentry",
        "255xkprobe.multi",
        "fentry:1000",
        "fentry:1x7",
        "kprobe.multi:12x1000",
        "fentry.multi:all",
        "function_tracer",
        "function_tracer:10",
        "function_tracer_elsewhere",
        "livepatch",
    ];
    agree(&beside, is::<Beside>, by("suite", "Beside"));
    let functions = |text: &str| serde_json::from_value::<Functions>(text.into()).is_ok();
    agree(&["all", "12x1000", "2x1"], functions, by("suite", "Functions"));
}

#[test]
fn rows_and_filters_are_those_that_the_parsers_accept() {
    let budget = part("suite", "Budget");
    let row = |row: &str| errors(&budget, &json!({ "wasted": { row: {} } }));
    let rows = ["fexit", "kprobe.session/exit", "kprobe_multi=on_x@xfs:a.b", "fmod_ret@__sys_bpf"];
    agree(&rows, is::<WasteRow>, row);
    let filter = |filter: &str| errors(&budget, &json!({ "wasted": { "fexit": { filter: 1 } } }));
    agree(&["any", "any_call | cond", "any_return|cond|call"], is::<Filter>, filter);
}

/// The schema accepts more than the parser here, and never less.
#[test]
fn accepts_every_pattern_and_metric_that_the_parsers_accept() {
    let pattern = part("suite", "Pattern");
    for name in ["tcp_*", "x*:*", "[!a-z]x?", "kvm-amd:svm_*"].into_iter().flat_map(neighbours) {
        let fits = errors(&pattern, &name.as_str().into()).is_empty();
        assert!(fits || !is::<Pattern>(&name), "{name:?}");
        assert!(fits || !is::<Among>(&name), "{name:?}");
    }
    let budget = part("suite", "Budget");
    for (metric, fits) in [
        ("trigger.fentry+7xfentry+kprobe_multi:1000.instructions", true),
        ("trigger.fexit=p@f.part.0.writes", true),
        ("attach.kprobe.multi.12x1000@tcp_*.detach.instructions", true),
        ("attach.fentry.10.attach", false),
        ("lbr_waste.fexit.any", false),
        ("trigger.fentry.time", false),
        ("bench.trig-fentry.rate", false),
    ] {
        let by_schema = errors(&budget, &json!({ "most": { metric: 1 } })).is_empty();
        assert_eq!(
            (by_schema, is::<tramplab_suite::budget::Bounded>(metric)),
            (fits, fits),
            "{metric}"
        );
    }
}

const SUITE: &str = "name: t\ndescription: d\nkernels: [a]\ntests:\n";

/// Suites that both reject, and the same without the mistake.
#[test]
fn rejects_the_mistakes_in_suites_that_the_parser_rejects() {
    let schema = schema("suite");
    let accepted = |text: &str| {
        let parsed = config::parse::<Suite>(text, Path::new("a.yaml"));
        let errors = errors(&schema, &yaml(text));
        assert_eq!(parsed.is_ok(), errors.is_empty(), "{text}: {errors:?} {:?}", parsed.err());
        errors.is_empty()
    };
    for (good, bad) in [
        ("lbr_waste: { mechanisms: all }", "lbr_waste: { mechanisms: most }"),
        ("lbr_waste: { mechanisms: [fexit] }", "lbr_waste: { mechanisms: [] }"),
        (
            "lbr_waste: { mechanisms: [fexit], hits: 1 }",
            "lbr_waste: { mechanisms: [fexit], hits: 0 }",
        ),
        ("lbr_waste: { mechanisms: user }", "lbr_waste: {}"),
        ("trigger: { mechanisms: all }", "triger: { mechanisms: all }"),
        (
            "trigger: { mechanisms: all, throughput: false }",
            "trigger: { mechanisms: all, throughput: no }",
        ),
        (
            "trigger: { mechanisms: all, beside: [fexit] }",
            "trigger: { mechanisms: all, beside: fexit }",
        ),
        ("boot: {}", "boot: { kernels: 1 }"),
        ("boot: {}\n    # one key", "boot: {}\n    bench: { triggers: [a] }"),
        ("fault: { faults: [panic] }", "fault: { faults: [pani] }"),
        (
            "attach: { mechanisms: all, functions: [1, 2x3, all], rounds: 1 }",
            "attach: { mechanisms: all, functions: [0], rounds: 1 }",
        ),
        (
            "attach: { mechanisms: all, functions: [1], rounds: 1, clock: both }",
            "attach: { mechanisms: all, functions: [1], rounds: 1, clock: fast }",
        ),
        (
            "attach: { mechanisms: all, functions: [1], rounds: 1, targets: [{name: a, of: [b]}] }",
            "attach: { mechanisms: all, functions: [1], rounds: 1, targets: [{name: a, of: []}] }",
        ),
        ("boot: {}\nmachine: { memory_mib: 128 }", "boot: {}\nmachine: { memory_mib: 127 }"),
        ("boot: {}\ntolerance: { time_percent: 1.5 }", "boot: {}\ntolerance: { time: 1 }"),
        (
            "boot: {}\nallow: [{ warning: a, reason: b, until: 2027-01-31 }]",
            "boot: {}\nallow: [{ warning: a, reason: ' ', until: 2027-01-31 }]",
        ),
        ("boot: {}\nexperiments: [deliver_records]", "boot: {}\nexperiments: [deliver]"),
        (
            "boot: {}\nbudgets: [{ wasted: { fexit: { any: 1 } } }]",
            "boot: {}\nbudgets: [{ wasted: { fexit: { all: 1 } } }]",
        ),
    ] {
        assert!(accepted(&format!("{SUITE}  - {good}\n")), "{good}");
        assert!(!accepted(&format!("{SUITE}  - {bad}\n")), "{bad}");
    }
    assert!(!accepted("name: t\ndescription: d\nkernels: []\ntests: [boot: {}]\n"));
    assert!(!accepted("name: t\nkernels: [a]\ntests: [boot: {}]\n"));
}

#[test]
fn rejects_the_mistakes_in_manifests_that_the_parser_rejects() {
    let (schema, digest) = (schema("kernel"), "0".repeat(64));
    let url = |place: &str| format!("url: {{ image: '{place}', sha256: '{digest}' }}");
    for (good, bad) in [
        ("debian: { series: '6.12', flavour: cloud }", "debian: { series: '6', flavour: cloud }"),
        ("debian: { series: newest, flavour: cloud }", "debian: { series: newest }"),
        (
            "debian: { package: linux-image-6.12.1-amd64, version: '1' }",
            "debian: { package: linux-image-amd64 }",
        ),
        (
            "debian: { package: linux-binary-unsigned-7.2-amd64 }",
            "debian: { package: linux-binary-7.2-amd64, series: '7.2' }",
        ),
        ("debian-source: { package: linux-source }", "debian-source: { package: linux-sources }"),
        (
            "debian-source: { package: linux-source-6.12, version: 6.12.1-1 }",
            "debian-source: { package: linux-source-6.12, version: v6 }",
        ),
        ("path: { image: a, vmlinux: b }", "path: { source: a, vmlinux: b }"),
        ("path: { source: a }\ntoolchain: clang-19", "path: { source: a }\ntoolchain: icc"),
        ("git: { repository: a, ref: v1 }", "git: { repository: a, ref: -v1 }"),
        (
            "git: { repository: a, ref: v1 }\nconfig: [a]",
            "git: { repository: a, ref: v1 }\nconfig: a",
        ),
        ("git: { repository: a, ref: v1 }", "git: { repository: a, ref: v1 }\npath: { source: a }"),
        ("git: { repository: a, ref: v1 }", "config: [a]"),
        ("tarball: { path: a }", "tarball: { url: 'https://a' }"),
        (&url("https://a"), &url("ftp://a")),
    ] {
        for (text, fits) in [(good, true), (bad, false)] {
            let text = format!("arch: x86_64\n{text}\n");
            let parsed = parse_manifest(&text, Path::new("a.yaml"));
            let errors = errors(&schema, &yaml(&text));
            assert_eq!((parsed.is_ok(), errors.is_empty()), (fits, fits), "{text}: {errors:?}");
        }
    }
    for (arch, fits) in [
        ("arm64", true),
        ("[arm64, x86_64]", true),
        ("[]", false),
        ("[arm64, arm64]", false),
        ("riscv", false),
    ] {
        let text = format!("arch: {arch}\npath: {{ source: a }}\n");
        let parsed = parse_manifest(&text, Path::new("a.yaml")).is_ok();
        assert_eq!((parsed, errors(&schema, &yaml(&text)).is_empty()), (fits, fits), "{text}");
    }
}
