// SPDX-License-Identifier: MIT OR Apache-2.0
//! `cargo xtask profile` from outside, on a stored run of a series with profiles added to it.

use crate::command::{stderr, tramplab};
use std::{fs, path::PathBuf, process::Output};
use tempfile::TempDir;
use tramplab_analysis::profile::{
    Function, How, Node, Phase, Profile, SCHEMA, Space, Summary, Thread, Totals, Unit,
};
use tramplab_host::runs::RunDir;
use tramplab_model::run::{Attach, Clock, Measurement, Run};
use tramplab_protocol::{estimate::Events, message::Explain};

const RUN: &str = include_str!("../../testdata/lbr-helpers.json");

/// Two functions, one calls the other; the inner one has `own`.
fn a_profile(cell: &str, phase: Phase, unit: Unit, own: u64) -> Profile {
    let function = |name: &str| Function { name: name.to_owned(), space: Space::Kernel };
    let node = |parent, function, own| Node {
        parent,
        thread: 0,
        function,
        interrupt: false,
        own,
        calls: 1,
        events: Events::new(),
    };
    Profile {
        schema: SCHEMA,
        cell: cell.to_owned(),
        phase,
        unit,
        sampling: None,
        cpu: None,
        threads: vec![Thread { command: "tramplab-agent".to_owned(), pid: 1, measured: true }],
        functions: vec![function("outer"), function(&format!("{}_{}", phase.name(), "work"))],
        nodes: vec![node(None, 0, 100), node(Some(0), 1, own)],
    }
}

/// The stored run of a series. Each kernel has an attach cell with 10 functions and one with 100.
fn stored() -> Run {
    let mut run: serde_json::Value = serde_json::from_str(RUN).unwrap();
    let cells = run["cells"].as_array_mut().unwrap();
    cells.retain(|cell| !cell["id"]["test"]["attach"].is_null());
    for cell in cells.iter_mut() {
        // The profiles of its own summaries are not stored.
        cell["measurement"]["attach"]["explained"] = serde_json::json!([]);
    }
    let mut more = cells.clone();
    more.iter_mut().for_each(|cell| cell["id"]["test"]["attach"]["functions"] = 100.into());
    cells.extend(more);
    serde_json::from_value(run).unwrap()
}

/// Stores the run in its own folder. Each cell has exact and sampled profiles of both phases, and
/// the waits of detaching. All kernels but the base do `more` instructions more.
fn run_with_profiles(more: u64) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    let mut run = stored();
    let run_dir = RunDir::new(dir.path());
    let base = run.series[0].base().kernel.clone();
    for cell in &mut run.cells {
        let name = cell.id.name();
        let folder = run_dir.cell(&cell.id);
        let Some(Measurement::Attach(Attach { explained, .. })) = &mut cell.measurement else {
            continue;
        };
        fs::create_dir_all(&folder).unwrap();
        let own = if cell.id.kernel == base { 900 } else { 900 + more };
        let save = |file: &str, profile: &Profile| {
            fs::write(folder.join(file), serde_json::to_string(profile).unwrap()).unwrap();
        };
        for phase in Phase::ALL {
            for (explain, how, unit) in [
                (Explain::Exact, How::Exact, Unit::Instructions),
                (Explain::Sampled, How::Sampled, Unit::Samples),
            ] {
                save(&how.file(phase), &a_profile(&name, phase, unit, own));
                let waits = (explain == Explain::Sampled && phase == Phase::Detach).then(|| {
                    save(
                        &How::Waiting.file(phase),
                        &a_profile(&name, phase, Unit::Nanoseconds, 77),
                    );
                    tramplab_analysis::profile::Waited {
                        stack: vec!["outer".to_owned()],
                        ns: 77,
                        count: 1,
                    }
                });
                explained.push(Summary {
                    phase,
                    how: explain,
                    clock: Clock::Free,
                    rounds: 1,
                    attached: 1,
                    wall_ns: 1,
                    cpu_ns: 1,
                    unit,
                    totals: Totals { task: own + 100, ..Totals::default() },
                    cpus: Vec::new(),
                    functions: Vec::new(),
                    waits: waits.into_iter().collect(),
                    waited_ns: 0,
                    grace_periods: None,
                    counters: Vec::new(),
                    places: None,
                    estimate: None,
                    file: how.file(phase),
                });
            }
        }
    }
    run_dir.save(&run).unwrap();
    dir
}

fn profile(arguments: &[&str]) -> Output {
    tramplab().arg("profile").args(arguments).output().unwrap()
}

/// Returns stdout; fails the test if the command fails.
fn shown(arguments: &[&str]) -> String {
    let output = profile(arguments);
    assert_eq!(output.status.code(), Some(0), "{arguments:?}: {}", stderr(&output));
    String::from_utf8(output.stdout).unwrap()
}

/// Selects one test; also the beginning of another test's name.
const TEST: &str = "kprobe.multi/10";

struct Names {
    base: String,
    head: String,
}

fn names() -> Names {
    let series = stored().series.remove(0);
    Names { base: series.base().kernel.clone(), head: series.head().kernel.clone() }
}

#[test]
fn renders_a_profile_in_every_format() {
    let dir = run_with_profiles(50);
    let run = dir.path().to_str().unwrap();
    let Names { base, head } = names();

    // The defaults are the series' head, exact, attach alone: nobody measured the sum of both
    // phases.
    let text = shown(&[run, TEST]);
    assert!(text.contains(&format!("/{head}/")), "{text}");
    assert!(text.contains("# Phase:     attach\n"), "{text}");
    assert!(text.contains("# Shown:     the attaching thread: 1050 instructions\n"), "{text}");
    assert!(
        text.contains("    90.48%  tramplab-agent  [kernel.kallsyms]  [k] attach_work\n"),
        "{text}"
    );
    // Both phases, on request.
    let text = shown(&[run, TEST, "--phase", "both"]);
    assert!(text.contains("# Phase:     attach and detach\n"), "{text}");
    assert!(text.contains("# Shown:     the attaching thread: 2100 instructions\n"), "{text}");
    assert!(
        text.contains("    45.24%  tramplab-agent  [kernel.kallsyms]  [k] attach_work\n"),
        "{text}"
    );

    // A run's file works like its folder. A kernel's name selects it; so do the options.
    let json = dir.path().join("run.json");
    let text =
        shown(&[json.to_str().unwrap(), TEST, &base, "--phase", "detach", "--how", "sampled"]);
    assert!(text.contains(&format!("/{base}/")) && text.contains(": 1000 samples\n"), "{text}");
    assert!(!text.contains("attach_work") && text.contains("[k] detach_work\n"), "{text}");

    let waiting =
        shown(&[run, TEST, "--phase", "detach", "--how", "waiting", "--format", "folded"]);
    assert_eq!(waiting, "tramplab-agent;outer 100\ntramplab-agent;outer;detach_work 77\n");

    let rest = shown(&[run, TEST, "--percent-limit", "50"]);
    assert!(rest.contains("# 1 more below 50 %, 9.52% together"), "{rest}");
    assert!(shown(&[run, TEST, "--format", "markdown"]).starts_with("```\n# Cell:"));

    let svg = dir.path().join("flame.svg");
    let both = [run, TEST, "--phase", "both", "--format", "svg", "-o", svg.to_str().unwrap()];
    assert_eq!(shown(&both), "");
    let svg = fs::read_to_string(svg).unwrap();
    assert!(svg.contains("detach_work (950 instructions, 45.24%)"), "{svg}");
}

#[test]
fn compares_base_and_head_within_and_between_runs() {
    let [dir, same, more] = [50, 50, 80].map(run_with_profiles);
    let [run, same, more] = [&dir, &same, &more].map(|dir| dir.path().to_str().unwrap());
    let Names { base, head } = names();

    let table = shown(&[run, TEST, "--phase", "both", "--base", &base]);
    assert!(
        table.contains(&format!("/{base}/")) && table.contains(&format!("/{head}/")),
        "{table}"
    );
    for row in [
        "attach_work |  900 |  950 |    +50 | +2.50 %",
        "all         | 2000 | 2100 |   +100 | +5.00 %",
    ] {
        assert!(table.contains(row), "{row} is missing in:\n{table}");
    }
    let folded = shown(&[run, TEST, "--base", &base, "--phase", "attach", "--format", "folded"]);
    assert_eq!(folded, "tramplab-agent;outer 100 100\ntramplab-agent;outer;attach_work 900 950\n");
    // The flame graph agrees with the table.
    let svg = shown(&[run, TEST, "--phase", "both", "--base", &base, "--format", "svg"]);
    assert!(svg.contains("attach_work +2.50 % (950 instructions, 45.24%)"), "{svg}");

    // The same kernel in another run, then another kernel of that run.
    let same = shown(&[run, TEST, "--phase", "both", "--against", same]);
    assert!(same.contains(" all      | 2100 | 2100 |     +0 | +0.00 %\n"), "{same}");
    let table = shown(&[more, TEST, "--against", run, "--format", "markdown"]);
    assert!(
        table.contains("| attach\\_work | 950 | 980 | +30 |")
            || table.contains("| attach_work | 950 | 980 | +30 |"),
        "{table}"
    );
    let table = shown(&[more, TEST, "--against", run, "--base", &base]);
    assert!(table.contains("attach_work |  900 |  980 |    +80"), "{table}");
}

/// Applies `change` to a stored run.
fn change(dir: &TempDir, change: impl FnOnce(&mut Run)) {
    let mut run = RunDir::load(dir.path()).unwrap();
    change(&mut run);
    RunDir::new(dir.path()).save(&run).unwrap();
}

/// `profile` rejects the same runs and kernels as `compare`, for the same reasons.
#[test]
fn refuses_what_compare_refuses() {
    let Names { base, head } = names();
    let one = run_with_profiles(50);
    change(&one, |run| {
        let kernel = run.kernels.iter_mut().find(|kernel| kernel.name == base).unwrap();
        kernel.config_sha256 = Some("0".repeat(64));
    });
    let other = run_with_profiles(50);
    change(&other, |run| {
        run.id = "20990101-000000-0000".to_owned();
        run.machines[0].qemu = Some("QEMU 99".to_owned());
    });
    let interrupted = run_with_profiles(50);
    change(&interrupted, |run| {
        run.interrupted = true;
    });
    // A changed copy keeps its id.
    let copy = run_with_profiles(50);
    change(&copy, |run| run.machines[0].cpus += 1);
    let good = run_with_profiles(50);
    let [one, other, interrupted, copy, good] =
        [&one, &other, &interrupted, &copy, &good].map(|dir| dir.path().to_str().unwrap());
    let table: [([&str; 2], [&str; 2], Option<&str>); 6] = [
        ([good, good], [&base, &head], None),
        ([one, one], [&base, &head], Some("different configurations")),
        ([other, good], [&head, &head], Some("different QEMUs")),
        ([good, other], [&base, &head], Some("different QEMUs")),
        ([interrupted, good], [&head, &head], Some("did not come to its end")),
        ([copy, good], [&head, &head], Some("different machines")),
    ];
    for ([base_run, head_run], [base, head], reason) in table {
        let asked = [head_run, TEST, head, "--against", base_run, "--base", base];
        // Within one run, `--base` alone names the base.
        let asked = if base_run == head_run {
            vec![head_run, TEST, "--base", base]
        } else {
            asked.to_vec()
        };
        let profiled = profile(&asked);
        let compared = tramplab()
            .args(["compare", base_run, head_run, "--base-kernel", base, "--head-kernel", head])
            .output()
            .unwrap();
        let reasons = |output: &Output| -> Vec<String> {
            stderr(output)
                .lines()
                .filter(|line| line.starts_with("  "))
                .map(str::to_owned)
                .collect()
        };
        let Some(reason) = reason else {
            assert_eq!(profiled.status.code(), Some(0), "{}", stderr(&profiled));
            assert_ne!(compared.status.code(), Some(2), "{}", stderr(&compared));
            continue;
        };
        assert_eq!([profiled.status.code(), compared.status.code()], [Some(2); 2], "{asked:?}");
        assert!(profiled.stdout.is_empty() && stderr(&profiled).contains("--anyway"), "{asked:?}");
        assert_eq!(reasons(&profiled), reasons(&compared), "{asked:?}");
        assert!(reasons(&profiled).iter().any(|line| line.contains(reason)), "{asked:?}");

        let anyway = |more: &[&str]| profile(&[&asked[..], &["--anyway"], more].concat());
        let shown = anyway(&[]);
        let text = String::from_utf8_lossy(&shown.stdout);
        assert_eq!(shown.status.code(), Some(0), "{asked:?}");
        assert!(text.contains(reason) && stderr(&shown).contains(reason), "{asked:?}: {text}");
        let svg = anyway(&["--format", "svg"]);
        assert!(String::from_utf8_lossy(&svg.stdout).contains("NOT COMPARABLE"), "{asked:?}");
    }
}

/// Names the mistake and the possible choices.
#[test]
fn names_missing_profiles_and_exits_2() {
    let dir = run_with_profiles(50);
    let run = dir.path().to_str().unwrap();
    let Names { base, head } = names();
    let cell = format!("x86_64/{head}/tcg/attach/{TEST}");
    let plain = tempfile::tempdir().unwrap();
    fs::write(plain.path().join("run.json"), serde_json::to_string(&stored()).unwrap()).unwrap();
    let plain = plain.path().to_str().unwrap();
    let broken = run_with_profiles(50);
    let file = |dir: &TempDir, how: How| -> PathBuf {
        dir.path().join("cells").join(&cell).join(how.file(Phase::Attach))
    };
    fs::write(file(&broken, How::Exact), "{\"schema\": 1}").unwrap();
    fs::remove_file(file(&broken, How::Sampled)).unwrap();
    let broken = broken.path().to_str().unwrap();
    let hits = concat!(env!("CARGO_MANIFEST_DIR"), "/../testdata/run.json");
    let table: [(&[&str], &[&str]); 15] = [
        (&["/nonexistent"], &["no run at /nonexistent"]),
        (&[plain], &["has no profiles"]),
        (
            &[hits, "6.12", "trigger/fexit", "--how", "estimated"],
            &["only attach tests have profiles", "of `report`"],
        ),
        (&[run], &["several cells could be meant", &cell]),
        (&[run, "nosuch"], &["no cell with a profile is meant", &cell]),
        (&[run, TEST, &base, "--base", &base], &["no cell with a profile is meant"]),
        (&[run, TEST, "--base", "9.9"], &["on 9.9", "--base", &base]),
        (
            &[run, TEST, "--how", "waiting", "--phase", "attach"],
            &["has no such profile", "--phase attach --how exact", "--phase detach --how waiting"],
        ),
        (&[run, TEST, "--event", "data_memory"], &["has no such profile", "--how exact"]),
        (&[run, TEST, "--event", "data_memory", "--how", "exact"], &["cannot be used with"]),
        (&[run, TEST, "--event", "misses"], &["data_memory", "mispredicted_return"]),
        (&[run, TEST, "--of", "others", "--format", "svg"], &["nothing to draw", "other threads"]),
        (&[run, TEST, "--percent-limit", "200"], &["0 to 100"]),
        (&[broken, TEST], &["profile-attach-exact.json", "missing field"]),
        (&[broken, TEST, "--how", "sampled"], &["no profile at", "profile-attach-sampled.json"]),
    ];
    for (arguments, words) in table {
        let output = profile(arguments);
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {said}");
        assert!(words.iter().all(|word| said.contains(word)), "{arguments:?}: {said}");
        assert!(output.stdout.is_empty(), "{arguments:?}");
    }
}

/// A replaced or edited file must not be shown as the run's measurement.
#[test]
fn rejects_profile_of_another_run() {
    let dir = run_with_profiles(50);
    let run_dir = RunDir::new(dir.path());
    let run = RunDir::load(dir.path()).unwrap();
    let head = names().head;
    let is_it = |cell: &&tramplab_model::run::Cell| {
        cell.id.kernel == head && matches!(cell.measurement, Some(Measurement::Attach(_)))
    };
    let folder = run_dir.cell(&run.cells.iter().find(is_it).unwrap().id);
    let attach = folder.join(How::Exact.file(Phase::Attach));
    let good = fs::read(&attach).unwrap();
    let refused = |what: &str| {
        let output = profile(&[dir.path().to_str().unwrap(), TEST, "--phase", "attach"]);
        assert_eq!(output.status.code(), Some(2), "{what}: {}", stderr(&output));
        assert!(stderr(&output).contains("is not the profile"), "{what}: {}", stderr(&output));
    };
    for other in [How::Exact.file(Phase::Detach), How::Sampled.file(Phase::Attach)] {
        fs::copy(folder.join(&other), &attach).unwrap();
        refused(&other);
    }
    let mut changed: Profile = serde_json::from_slice(&good).unwrap();
    changed.nodes.last_mut().unwrap().own += 1;
    fs::write(&attach, serde_json::to_vec(&changed).unwrap()).unwrap();
    refused("one more");
    fs::write(&attach, good).unwrap();
    shown(&[dir.path().to_str().unwrap(), TEST, "--phase", "attach"]);
}
