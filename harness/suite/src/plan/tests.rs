// SPDX-License-Identifier: MIT OR Apache-2.0

mod cpus;

use super::*;
use crate::{
    Clocks, Needs, Suite, cell,
    kinds::{COMPARED_BOOTS, attach},
};
use std::collections::BTreeSet;
use tramplab_host::{
    config::{self, ConfigError},
    runs::RunDir,
};
use tramplab_kernel::{self as kernel, compile::TreeTests, kconfig::Kconfig, tree_tests::DenyList};
use tramplab_model::{
    run::{Attach, AttachBoot, Cell, Measurement, Outcome, Test},
    tree_tests::Name,
};
use tramplab_protocol::{Mechanism, message::Explain};
use tramplab_vm::branches::Source;

pub(super) fn suite(text: &str) -> Suite {
    config::parse(&format!("name: t\ndescription: d\nkernels: [a, b]\n{text}"), Path::new("t.yaml"))
        .unwrap()
}

pub(crate) fn image(name: &str, config: Option<&str>) -> kernel::Image {
    kernel::Image {
        name: name.to_owned(),
        arch: Arch::X86_64,
        image: "bzImage".into(),
        vmlinux: None,
        functions: None,
        config: config.map(|text| Kconfig::parse(text).unwrap()),
        config_file: None,
        modules: Vec::new(),
        loadable: Default::default(),
        source: String::new(),
        sha256: String::new(),
    }
}

fn cells(suite: &Suite, images: &[kernel::Image], accel: Accel) -> Vec<PlannedCell> {
    super::cells(suite, &guests(images, accel), false)
}

pub(crate) fn guests(images: &[kernel::Image], accel: Accel) -> Vec<Guest<'_>> {
    let backend = Backend::Qemu;
    let guest = |image| Guest {
        image,
        snapshots: None,
        roots: Default::default(),
        initrd: "initrd".into(),
        tree_tests: None,
        accel,
        accel_named: false,
        branches: if accel == Accel::Kvm {
            Source::None("no LBR here".to_owned())
        } else {
            Source::Virtual
        },
        backend,
        most_attached: u32::MAX,
        undeliverable: None,
        budgets_of: Some("a"),
        configuration: None,
    };
    images.iter().map(guest).collect()
}

fn names(cells: &[PlannedCell]) -> Vec<String> {
    cells.iter().map(|cell| cell.id().name()).collect()
}

#[test]
fn plans_each_cell_once() {
    let suite = suite(
        "tests:\n  - lbr_waste: { mechanisms: [fexit, fexit] }\n  \
         - attach: { mechanisms: [kprobe.multi], functions: [1, 10], rounds: 2 }\n",
    );
    let cells = cells(&suite, &[image("a", None), image("b", None)], Accel::Tcg);
    let of = |kernel: &str| {
        ["lbr_waste/fexit", "attach/kprobe.multi/1", "attach/kprobe.multi/10"]
            .map(|test| format!("x86_64/{kernel}/tcg/{test}"))
    };
    assert_eq!(names(&cells), [of("a"), of("b")].concat());
    assert!(cells.iter().all(|cell| cell.skip.is_none()));
}

#[test]
fn skips_cells_that_need_more_than_their_backend_has() {
    const EXACT: &str = "attach: { mechanisms: [fexit], functions: [1], rounds: 2, clock: both }";
    for (test, config, by_virtme_ng) in [
        ("attach: { mechanisms: [fexit], functions: [1], rounds: 2, clock: free }", None, None),
        ("survive: { storms: 1 }", None, None),
        (
            "survive: { storms: 1, clock: exact }",
            None,
            Some("virtme-ng has no exact clock: use --vm qemu"),
        ),
        (
            EXACT,
            None,
            Some(
                "the exact clock needs a guest that does not wait for the host, and virtme-ng's \
                 guests read the host's files while they measure; use --clock free, or --vm qemu",
            ),
        ),
        (
            EXACT,
            Some("CONFIG_FPROBE=y\nCONFIG_VIRTIO_FS=y\nCONFIG_VIRTIO_CONSOLE=y\n"),
            Some("virtme-ng's root is a virtiofs, and the kernel has not built in CONFIG_FUSE_FS"),
        ),
        (
            "lbr_waste: { mechanisms: [fexit], targets: [\"xfs:f\"] }",
            None,
            Some(
                "modules and commands are packed into the guest's root, and virtme-ng's is the \
                 host's; use --vm qemu",
            ),
        ),
        (
            "test_progs: { tests: [fentry_test] }",
            None,
            Some(
                "the tree's own tests are packed into the guest's root, and virtme-ng's is the \
                 host's; use --vm qemu",
            ),
        ),
    ] {
        let suite = suite(&format!("tests:\n  - {test}\n"));
        let images = [image("a", config)];
        let skip = |backend| {
            let mut guests = guests(&images, Accel::Tcg);
            guests[0].backend = backend;
            super::cells(&suite, &guests, false).remove(0).skip
        };
        assert_eq!(skip(Backend::VirtmeNg).as_deref(), by_virtme_ng, "{test}");
        let by_qemu = skip(Backend::Qemu).unwrap_or_default();
        assert!(!by_qemu.contains("virtme-ng"), "{by_qemu}");
    }
}

#[test]
fn fixes_the_place_of_modules_on_arm64() {
    let suite =
        suite("tests:\n  - lbr_waste: { mechanisms: [fexit], targets: [vfs_read, \"xfs:f\"] }\n");
    for (arch, expected) in [(Arch::X86_64, [false, false]), (Arch::Arm64, [false, true])] {
        let image = kernel::Image { arch, ..image("a", None) };
        let cells = cells(&suite, &[image], Accel::Tcg);
        let fixed: Vec<bool> =
            cells.iter().map(|cell| cell.append.contains(&"nokaslr".to_owned())).collect();
        assert_eq!(fixed, expected, "{arch}");
    }
}

#[test]
fn delivers_records_if_asked_and_supported() {
    const TESTS: &str =
        "tests:\n  - lbr_waste: { mechanisms: [fexit] }\n  - trigger: { mechanisms: [fexit] }\n";
    let images = [image("a", None)];
    for (experiments, too_old, expected) in [
        ("", true, [(false, None), (false, None)]),
        ("experiments: [deliver_records]\n", false, [(true, None), (false, None)]),
        ("experiments: [deliver_records]\n", true, [(true, Some("too old")), (false, None)]),
    ] {
        let mut guests = guests(&images, Accel::Tcg);
        guests[0].undeliverable = too_old.then(|| "too old".to_owned());
        let cells = super::cells(&suite(&format!("{experiments}{TESTS}")), &guests, false);
        let found: Vec<_> = cells.iter().map(|cell| (cell.deliver, cell.skip.as_deref())).collect();
        assert_eq!(found, expected, "{experiments:?} {too_old}");
    }
    // One of the tree's own tests asks for records, so it needs the plugin and TCG.
    const OWN: &str = "experiments: [deliver_records]\ntests:\n  - test_progs: { tests: \
                       [get_branch_snapshot, fentry_test] }\n";
    let tests = with_tests(&["get_branch_snapshot", "fentry_test"]);
    for (experiment, too_old, expected) in [
        (OWN, false, (true, Accel::Tcg, None)),
        (OWN, true, (true, Accel::Tcg, Some("too old"))),
        (&OWN[OWN.find('\n').unwrap() + 1..], true, (false, Accel::Kvm, None)),
    ] {
        let mut guests = guests(&images, Accel::Kvm);
        guests[0].undeliverable = too_old.then(|| "too old".to_owned());
        guests[0].tree_tests = Some((&tests, "with".into()));
        let [asks, other] = &super::cells(&suite(experiment), &guests, false)[..] else { panic!() };
        assert_eq!((asks.deliver, asks.accel, asks.skip.as_deref()), expected);
        assert_eq!((other.deliver, other.accel, &other.skip), (false, Accel::Kvm, &None));
    }
}

#[test]
fn finds_tests_with_two_sets_of_parameters() {
    let attach = |more: &str| {
        let group = format!("  - attach: {{ mechanisms: [fentry], functions: [1], {more} }}\n");
        suite(&format!(
            "tests:\n  - attach: {{ mechanisms: [fentry], functions: [1, 1], rounds: 2 }}\n{group}"
        ))
    };
    assert_eq!(contradiction(&attach("rounds: 2")), None);
    for more in ["rounds: 3", "rounds: 2, clock: exact", "rounds: 2, seconds: 9"] {
        assert_eq!(contradiction(&attach(more)).as_deref(), Some("attach/fentry/1"), "{more}");
    }
}

#[test]
fn a_storm_of_a_file_takes_nothing_from_seeds() {
    let beside =
        |key: &str| misfit(&suite(&format!("tests:\n  - survive: {{ storm: s.json{key} }}\n")));
    assert_eq!(beside(", module: overlay, clock: exact"), None);
    for key in ["mechanisms: [fentry]", "storms: 2", "seed: 7", "threads: 2", "steps: 9"] {
        let why = beside(&format!(", {key}")).unwrap_or_else(|| panic!("{key}"));
        let (name, _) = key.split_once(':').unwrap();
        assert!(why.contains(&format!("take `{name}` out")), "{why}");
    }
    for module in ["\"\"", "../x"] {
        let suite = suite(&format!("tests:\n  - survive: {{ module: {module} }}\n"));
        assert!(misfit(&suite).is_some(), "{module}");
    }
}

/// As a failed cell's folder has it, with one word changed.
#[test]
fn an_error_of_a_storms_file_has_the_place_of_the_step() {
    let steps: Vec<String> =
        (0..4).map(|round| step(round, "{ \"hit\": { \"times\": 1 } }")).collect();
    let good = format!("{{\n  \"seed\": 7,\n  \"steps\": [\n{}\n  ]\n}}\n", steps.join(",\n"));
    let folder = tempfile::tempdir().unwrap();
    let (file, storm) = (folder.path().join("t.yaml"), folder.path().join("storm.json"));
    let text =
        "name: t\ndescription: d\nkernels: [a]\ntests:\n  - survive: { storm: storm.json }\n";
    std::fs::write(&file, text).unwrap();
    let load = |text: &str| {
        std::fs::write(&storm, text).unwrap();
        crate::load(&file, &|_| None).map_err(|error| match error {
            ConfigError::Invalid { path, line, message, .. } => (path, line, message),
            other => panic!("{other}"),
        })
    };
    assert!(load(&good).is_ok());
    for (was, is, expected, words) in [
        ("2, \"thread\": 0", "2, \"thread\": 99", 6, "a thread below 16"),
        ("2, \"thread\": 0", "0, \"thread\": 0", 6, "in the order of rounds"),
        ("2, \"thread\": 0", "2, \"thraed\": 0", 6, "thraed"),
        (&steps[1], &step(1, "{ \"detach\": { \"slot\": 4 } }"), 5, "a slot below 4"),
        (&steps.join(",\n"), "", 3, "1 to 20000 steps"),
    ] {
        let (path, line, message) = load(&good.replacen(was, is, 1)).unwrap_err();
        assert_eq!((path, line), (storm.clone(), expected), "{message}");
        assert!(message.contains(words), "{message}");
    }
}

fn step(round: u32, action: &str) -> String {
    format!("    {{ \"round\": {round}, \"thread\": 0, \"action\": {action} }}")
}

#[test]
fn names_mechanisms_that_cannot_be_attached_beside() {
    let beside = |name: &str| {
        misfit(&suite(&format!(
            "tests:\n  - trigger: {{ mechanisms: [kprobe.multi, fentry], beside: [{name}] }}\n"
        )))
    };
    assert_eq!(beside("function_tracer"), None);
    assert!(
        beside("tp_btf")
            .unwrap()
            .starts_with("tp_btf cannot be attached to what kprobe.multi is measured on")
    );
    assert_eq!(beside("\"tp_btf:10\", \"fmod_ret:all\""), None);
    // The programs beside must fit all mechanisms of a group.
    assert!(
        misfit(&suite("tests:\n  - trigger: { mechanisms: all, beside: [fentry] }\n")).is_some()
    );
}

#[test]
fn attach_tests_take_only_tracers_of_other_functions() {
    let attach = |mechanisms: &str, rest: &str| {
        misfit(&suite(&format!(
            "tests:\n  - attach: {{ mechanisms: [{mechanisms}], functions: [1], rounds: 1, \
             {rest} }}\n"
        )))
    };
    assert_eq!(attach("fentry, tp_btf", "beside: [\"kprobe.multi:10\", \"tp_btf:1\"]"), None);
    assert_eq!(attach("fentry", "beside: [\"function_tracer:1\"]"), None);
    for (mechanisms, beside) in [
        ("kprobe.multi, fentry", "fentry"),
        ("fentry", "7xfentry"),
        ("fentry", "function_tracer"),
        ("tp_btf", "\"function_tracer:1\""),
        ("uprobe", "\"kprobe.multi:10\""),
    ] {
        let reason = attach(mechanisms, &format!("beside: [{beside}]")).unwrap();
        assert!(reason.contains("cannot be attached beside the functions of"), "{reason}");
    }
    assert_eq!(attach("fentry", "explain: [exact], system_calls: true"), None);
    let reason = attach("fentry", "explain: [sampled], system_calls: true").unwrap();
    assert!(reason.contains("needs `explain: [exact]`"), "{reason}");
}

#[test]
fn runs_compared_cells_in_one_process() {
    let suite = suite(
        "tests:\n  - lbr_waste: { mechanisms: [fexit] }\n  \
         - attach: { mechanisms: [kprobe.multi], functions: [1, 10], rounds: 2 }\n  \
         - attach: { mechanisms: [fentry], functions: [1], rounds: 2, boots: 9 }\n",
    );
    let images = [image("a", None), image("a+s", None)];
    let jobs = jobs(super::cells(&suite, &guests(&images, Accel::Tcg), true), true, true);
    let shape = |job: &Job| {
        let boots = job.cells.iter().map(|cell| match &cell.work {
            Work::Attach(attach) => attach.boots,
            _ => 1,
        });
        (job.name.clone(), boots.collect::<Vec<_>>())
    };
    let expected = [
        ("x86_64/a..a+s/tcg/lbr_waste/fexit", vec![1, 1]),
        ("x86_64/a..a+s/tcg/attach/kprobe.multi/1", vec![6, 6]),
        ("x86_64/a..a+s/tcg/attach/kprobe.multi/10", vec![6, 6]),
        ("x86_64/a..a+s/tcg/attach/fentry/1", vec![9, 9]),
    ];
    assert_eq!(
        jobs.iter().map(shape).collect::<Vec<_>>(),
        expected.map(|(name, boots)| (name.to_owned(), boots))
    );
    // Nothing is compared, so each cell is a job of the same name.
    let cells = cells(&suite, &images, Accel::Tcg);
    let alone = super::jobs(cells.clone(), false, false);
    assert_eq!(alone.iter().map(|job| job.name.clone()).collect::<Vec<_>>(), names(&cells));
}

#[test]
fn goes_on_only_with_cells_that_have_booted_equally_often() {
    let suite =
        suite("tests:\n  - attach: { mechanisms: [kprobe.multi], functions: [1], rounds: 2 }\n");
    let images = [image("a", None), image("a+s", None)];
    let jobs = jobs(super::cells(&suite, &guests(&images, Accel::Tcg), true), true, true);
    let [job] = &jobs[..] else { panic!("{jobs:?}") };
    let of_boots = |planned: &PlannedCell, boots: usize| {
        let boot = AttachBoot {
            functions: 1,
            list_sha256: String::new(),
            refused: Vec::new(),
            programs: 1,
            links: 1,
            others: Vec::new(),
            rounds: Vec::new(),
            stopped: None,
        };
        let attach = Attach {
            boots: vec![boot; boots],
            exact: None,
            explained: Vec::new(),
            unexplained: Vec::new(),
            system_calls: None,
        };
        let measurement = Some(Measurement::Attach(attach));
        Cell { measurement, ..Cell::without_result(planned.id(), Outcome::Pass) }
    };
    for (boots, expected) in [
        ([Some(5), Some(5)], Some(5)),
        // The last boot of one cell had ended.
        ([Some(5), Some(4)], None),
        ([Some(5), None], None),
        ([None, None], None),
        ([Some(0), Some(0)], None),
        ([Some(6), Some(6)], None),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let run_dir = RunDir::new(folder.path());
        for (planned, boots) in job.cells.iter().zip(boots) {
            if let Some(boots) = boots {
                run_dir.save_partial(&of_boots(planned, boots)).unwrap();
            }
        }
        let begun = cell::begun(&run_dir, job).map(|(done, _)| done);
        assert_eq!(begun, expected, "{boots:?}");
    }
    // Another cell's boots, in a file that somebody edited.
    let folder = tempfile::tempdir().unwrap();
    let run_dir = RunDir::new(folder.path());
    for planned in &job.cells {
        let other = of_boots(&job.cells[0], 5);
        run_dir.save_partial(&other).unwrap();
        let path = run_dir.partial(&planned.id());
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, serde_json::to_vec(&other).unwrap()).unwrap();
    }
    assert!(cell::begun(&run_dir, job).is_none());
}

/// One kernel on two architectures, with separate budgets, accelerators and jobs.
#[test]
fn keeps_architectures_apart() {
    let suite = suite(
        "tests:\n  - lbr_waste: { mechanisms: [fexit] }\n\
         budgets:\n  - { arch: [arm64], wasted: { fexit: { any: 5 } } }\n  \
         - { wasted: { fexit: { any_return: 3 } } }\n",
    );
    let on = |name: &str, arch| kernel::Image { arch, ..image(name, None) };
    let images = [
        on("a", Arch::X86_64),
        on("a", Arch::Arm64),
        on("a+s", Arch::X86_64),
        on("a+s", Arch::Arm64),
    ];
    let mut guests = guests(&images, Accel::Kvm);
    guests
        .iter_mut()
        .filter(|guest| guest.image.arch == Arch::Arm64)
        .for_each(|g| g.accel = Accel::Tcg);
    let cells = super::cells(&suite, &guests, true);
    let budgets: Vec<usize> = cells.iter().map(|cell| cell.budgets.len()).collect();
    assert_eq!(budgets, [1, 2, 1, 2]);
    let jobs: Vec<String> = jobs(cells, true, true).into_iter().map(|job| job.name).collect();
    assert_eq!(jobs, ["x86_64/a..a+s/kvm/lbr_waste/fexit", "arm64/a..a+s/tcg/lbr_waste/fexit"]);
}

#[test]
fn skips_unsupported_cells_with_the_reason() {
    let suite = suite(
        "tests:\n  - lbr_waste: { mechanisms: [kprobe.multi, raw_tp] }\n  \
         - attach: { mechanisms: [kprobe.multi], functions: [1], rounds: 1 }\n  \
         - trigger: { mechanisms: [kprobe.multi, raw_tp] }\n",
    );
    let kernels = [image("a", Some("CONFIG_TRACEPOINTS=y\nCONFIG_FUNCTION_TRACER=y\n"))];
    let reasons = |accel| -> Vec<Option<String>> {
        cells(&suite, &kernels, accel).into_iter().map(|cell| cell.skip).collect()
    };
    let fprobe = Some("the kernel is built without CONFIG_FPROBE".to_owned());
    assert_eq!(reasons(Accel::Tcg), [fprobe.clone(), None, fprobe.clone(), fprobe.clone(), None]);
    let [waste, raw_tp, attach, trigger, timed] = &reasons(Accel::Kvm)[..] else { panic!() };
    assert_eq!(waste, &fprobe);
    assert!(raw_tp.as_ref().is_some_and(|reason| reason.contains("LBR")));
    assert_eq!((attach, trigger), (&fprobe, &fprobe));
    // Under KVM hits can still be timed.
    assert_eq!(*timed, None);
}

#[test]
fn runs_waste_under_the_accelerator_of_its_records() {
    let suite = suite(
        "tests:\n  - lbr_waste: { mechanisms: [fentry] }\n  - attach: { mechanisms: [fentry], \
         functions: [1], rounds: 1 }\n\
         budgets:\n  - { wasted: { fentry: { any: 5 } } }\n",
    );
    let images = [image("a", None)];
    let with = |branches: Source| {
        let guests = vec![Guest { branches, ..guests(&images, Accel::Kvm).remove(0) }];
        let [waste, attach]: [PlannedCell; 2] =
            super::cells(&suite, &guests, false).try_into().unwrap();
        assert_eq!(
            (attach.accel, attach.of_driver().is_some(), attach.skip),
            (Accel::Kvm, false, None)
        );
        let judged = waste.budgets.iter().any(|budget| !budget.wasted.is_empty());
        (waste.accel, waste.of_driver().is_some(), judged, waste.skip)
    };
    let format = serde_json::from_str("5").unwrap();
    // Virtual records need TCG, whatever accelerator the rest uses.
    assert_eq!(with(Source::Virtual), (Accel::Tcg, false, true, None));
    // Budgets are of virtual records, so they do not judge hardware records.
    assert_eq!(with(Source::Hardware(format)), (Accel::Kvm, true, false, None));
    let (accel, _, _, skip) = with(Source::None("no LBR".to_owned()));
    assert_eq!((accel, skip.as_deref()), (Accel::Kvm, Some("no LBR")));
}

#[test]
fn puts_mechanisms_beside_into_name_and_requirements() {
    let suite = suite(
        "tests:\n  - trigger: { mechanisms: [raw_tp] }\n  \
         - trigger: { mechanisms: [raw_tp], beside: [function_tracer] }\n  \
         - trigger: { mechanisms: [raw_tp], beside: [function_tracer, kprobe.multi] }\n",
    );
    assert_eq!(contradiction(&suite), None);
    assert_eq!(suite.mechanisms(), [Mechanism::KprobeMulti, Mechanism::RawTp]);
    let kernels = [image("a", Some("CONFIG_TRACEPOINTS=y\nCONFIG_FUNCTION_TRACER=y\n"))];
    let cells = cells(&suite, &kernels, Accel::Tcg);
    let expected = [
        ("trigger/raw_tp", None),
        ("trigger/raw_tp+function_tracer", None),
        (
            "trigger/raw_tp+kprobe.multi+function_tracer",
            Some("the kernel is built without CONFIG_FPROBE"),
        ),
    ];
    let found: Vec<_> =
        cells.iter().map(|cell| (cell.work.test().name(), cell.skip.as_deref())).collect();
    assert_eq!(found, expected.map(|(name, skip)| (name.to_owned(), skip)));
}

fn attach_of(cell: &PlannedCell) -> &attach::Work {
    let Work::Attach(attach) = &cell.work else { panic!("{:?}", cell.work) };
    attach
}

#[test]
fn adds_one_guest_for_the_exact_clock() {
    use Clock::{Exact, Free};
    let images = [image("a", None), image("a+s", None)];
    for (clock, alone, compared) in [
        ("", vec![Free], vec![Free; 6]),
        (", clock: free, boots: 2", vec![Free; 2], vec![Free; 4]),
        (", clock: exact, boots: 2", vec![Exact], vec![Exact]),
        (", clock: both", vec![Free, Exact], [vec![Free; 6], vec![Exact]].concat()),
        (
            ", clock: both, boots: 5",
            [vec![Free; 5], vec![Exact]].concat(),
            [vec![Free; 5], vec![Exact]].concat(),
        ),
    ] {
        let suite = suite(&format!(
            "tests:\n  - attach: {{ mechanisms: [fentry], functions: [1], rounds: 2{clock} }}\n"
        ));
        for (is_compared, clocks) in [(false, alone), (true, compared)] {
            for cell in super::cells(&suite, &guests(&images, Accel::Tcg), is_compared) {
                assert_eq!(cell.clocks(), clocks, "{clock} {is_compared}");
                assert_eq!(cell.boots() as usize, clocks.len(), "{clock} {is_compared}");
            }
        }
    }
}

#[test]
fn passes_attach_parameters_to_every_cell() {
    let suite = suite(
        "tests:\n  - attach: { mechanisms: [fentry, kprobe.multi], functions: [10, all], rounds: \
         3, seed: 7, seconds: 20, clock: exact, explain: [sampled, exact] }\n  \
         - attach: { mechanisms: [fexit], functions: [all], rounds: 1 }\n",
    );
    let planned = cells(&suite, &[image("a", None)], Accel::Tcg);
    let expected = ["fentry/10", "fentry/all", "kprobe.multi/10", "kprobe.multi/all", "fexit/all"];
    assert_eq!(names(&planned), expected.map(|test| format!("x86_64/a/tcg/attach/{test}")));
    let shape = |cell| {
        let attach::Work { rounds, seed, seconds, clock, explain, .. } = attach_of(cell);
        (*rounds, *seed, *seconds, *clock, explain.iter().copied().collect::<Vec<_>>())
    };
    let both = vec![Explain::Exact, Explain::Sampled];
    for cell in &planned[..4] {
        assert_eq!(shape(cell), (3, 7, Some(20), Clocks::Exact, both.clone()));
    }
    assert_eq!(shape(&planned[4]), (1, 0, None, Clocks::Free, vec![]));

    // The command line overrides the suite for every group. Unset options change nothing.
    let sampled = BTreeSet::from([Explain::Sampled]);
    let told = cells(
        &suite.clone().with(Some(Clocks::Both), Some(&sampled)),
        &[image("a", None)],
        Accel::Tcg,
    );
    for cell in &told {
        assert_eq!((attach_of(cell).clock, &attach_of(cell).explain), (Clocks::Both, &sampled));
    }
    let untold = cells(&suite.with(None, None), &[image("a", None)], Accel::Tcg);
    assert_eq!(
        untold.iter().map(shape).collect::<Vec<_>>(),
        planned.iter().map(shape).collect::<Vec<_>>()
    );
}

#[test]
fn counts_untimed_hits_under_the_exact_clock() {
    for (more, cpus, clock) in [
        (", throughput: false", 1, Clock::Exact),
        (", throughput: false", 2, Clock::Free),
        (", estimated: true", 1, Clock::Exact),
        ("", 1, Clock::Free),
    ] {
        let text = format!(
            "machine: {{ cpus: {cpus} }}\ntests:\n  - trigger: {{ mechanisms: [fentry]{more} }}\n"
        );
        let cells = cells(&suite(&text), &[image("a", None)], Accel::Tcg);
        assert_eq!(cells[0].clocks(), [clock], "{text}");
    }
}

#[test]
fn requires_tcg_to_count_and_one_cpu_for_the_exact_clock() {
    use Accel::{Kvm, Tcg};
    // TCG, KVM by default, KVM by name: the cell's accelerator, or the reason to skip it.
    const COUNTED: [Result<Accel, &str>; 3] = [Ok(Tcg), Ok(Tcg), Err("only TCG")];
    const ANYWHERE: [Result<Accel, &str>; 3] = [Ok(Tcg), Ok(Kvm), Ok(Kvm)];
    const NOWHERE: [Result<Accel, &str>; 3] =
        [Err("on one thread"), Err("on one thread"), Err("only TCG")];
    let attach = |keys: &str| {
        format!("attach: {{ mechanisms: [fentry], functions: [1], rounds: 1, {keys} }}")
    };
    let trigger = |keys: &str| format!("trigger: {{ mechanisms: [fentry], {keys} }}");
    for (test, cpus, expected) in [
        (attach(""), 1, ANYWHERE),
        (attach("explain: [sampled]"), 1, ANYWHERE),
        (attach("explain: [exact]"), 1, COUNTED),
        (attach("clock: exact"), 1, COUNTED),
        (attach("clock: both"), 1, COUNTED),
        (attach("clock: free, explain: [exact]"), 2, COUNTED),
        (attach("clock: exact"), 2, NOWHERE),
        (attach("clock: both"), 4, NOWHERE),
        (trigger("throughput: true"), 1, ANYWHERE),
        (trigger("throughput: false"), 1, COUNTED),
        (trigger("throughput: false"), 2, COUNTED),
        (trigger("estimated: true"), 1, COUNTED),
        (trigger("estimated: true"), 2, NOWHERE),
    ] {
        let suite = suite(&format!("machine: {{ cpus: {cpus} }}\ntests:\n  - {test}\n"));
        let images = [image("a", None)];
        for ((accel, accel_named), expected) in
            [(Tcg, false), (Kvm, false), (Kvm, true)].iter().zip(expected)
        {
            let guest = Guest { accel_named: *accel_named, ..guests(&images, *accel).remove(0) };
            let cell = &super::cells(&suite, &[guest], false)[0];
            let what =
                format!("{test} {cpus} {accel:?} {accel_named}: {:?} {:?}", cell.accel, cell.skip);
            match expected {
                Ok(under) => assert!(cell.skip.is_none() && cell.accel == under, "{what}"),
                Err(words) => {
                    assert!(cell.skip.as_ref().is_some_and(|why| why.contains(words)), "{what}")
                }
            }
        }
    }
}

#[test]
fn runs_the_ci_suite_exactly_and_judges_only_named_kernels() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../configs/suites/ci.yaml");
    let suite = crate::load(&path, &|_| None).unwrap();
    let shipped: Vec<kernel::Image> = suite.kernels.names().map(|name| image(name, None)).collect();
    let own = [image("tree", None)];
    for accel in [Accel::Tcg, Accel::Kvm] {
        let cells = |images| {
            let mut guests = guests(images, accel);
            for guest in &mut guests {
                guest.branches = Source::Virtual;
                guest.budgets_of = Some(&guest.image.name);
            }
            super::cells(&suite, &guests, false)
        };
        for cell in cells(&shipped) {
            let name = cell.id().name();
            assert_eq!((cell.accel, cell.skip.as_deref()), (Accel::Tcg, None), "{name}");
            let is_waste = matches!(cell.work.test(), Test::LbrWaste(_));
            assert!(is_waste || cell.clocks() == [Clock::Exact], "{name}");
        }
        let judged: BTreeSet<String> = cells(&shipped)
            .iter()
            .filter(|cell| {
                cell.budgets.iter().any(|budget| match cell.work.test() {
                    Test::LbrWaste(test) => budget.wasted.keys().any(|row| row.test() == test),
                    _ => budget
                        .most
                        .keys()
                        .any(|bounded| bounded.metric().test() == cell.work.test()),
                })
            })
            .map(|cell| format!("{}/{}", cell.kernel, cell.work.test().name()))
            .collect();
        for kernel in suite.kernels.names() {
            for test in ["lbr_waste/fexit", "trigger/fentry", "attach/fentry/10"] {
                assert!(judged.contains(&format!("{kernel}/{test}")), "{kernel} {test}");
            }
        }
        assert!(cells(&own).iter().all(|cell| cell.budgets.is_empty()));
        for images in [&shipped[..], &own] {
            assert_eq!(idle_budgets(&suite, &cells(images)), Vec::<String>::new());
        }
    }
}

#[test]
fn rejects_invalid_values_with_their_line() {
    let whole = |key: &str, value: &str| {
        let mut keys = vec![("mechanisms", "[fentry]"), ("functions", "[1]"), ("rounds", "1")];
        keys.retain(|(known, _)| *known != key);
        keys.push((key, value));
        let keys: String =
            keys.into_iter().map(|(key, value)| format!("      {key}: {value}\n")).collect();
        format!("name: t\ndescription: d\nkernels: [a]\ntests:\n  - attach:\n{keys}")
    };
    for (key, value, line, words) in [
        ("seconds", "0", 9, "from 1 on"),
        ("seconds", "-1", 9, "-1"),
        ("clock", "fast", 9, "free, exact, both"),
        ("explain", "[perf]", 9, "exact, sampled"),
        ("explain", "exact", 9, "a list"),
        ("functions", "[0]", 8, "above 0"),
        ("functions", "[most]", 8, "`all`"),
        ("functions", "[]", 8, "at least one"),
        ("functions", "all", 8, "a list"),
        ("budget_seconds", "5", 9, "seconds"),
    ] {
        let error = config::parse::<Suite>(&whole(key, value), Path::new("t.yaml"))
            .unwrap_err()
            .to_string();
        assert!(error.starts_with(&format!("t.yaml:{line}:")), "{key}: {value}: {error}");
        assert!(error.contains(words), "{key}: {value}: {error}");
    }
}

/// A kernel whose tree has the tests, and denies some on its architecture.
fn with_tests(tests: &[&str]) -> TreeTests {
    let file = |name: &&str| (name.parse().unwrap(), format!("{name}.c"));
    let broken = [("bench", "bench.c:3: error"), ("test_progs/added", "progs/added.c:3: error")];
    let told = |(name, reason)| (name, serde_json::json!({ "reason": reason, "lasts": true }));
    let broken: BTreeMap<_, _> =
        broken.into_iter().filter(|_| tests.contains(&"added")).map(told).collect();
    TreeTests {
        root: "root".into(),
        record: serde_json::from_value(serde_json::json!({
            "key": "k", "seconds": 1.0, "programs": ["perf_events/mmap"], "clang": "clang \
                19", "contents": "c",
            "broken": broken,
            "tests": tests.iter().map(file).collect::<BTreeMap<Name, String>>(),
        }))
        .unwrap(),
        denied: DenyList::parse(
            "module_attach # no \
                                 module\nfentry_test/many\n",
            "DENYLIST.aarch64",
        ),
    }
}

#[test]
fn runs_tree_tests_that_exist_and_are_not_denied() {
    let suite = suite(
        "tests:\n  - bench: { triggers: [trig-fentry], seconds: 3 }\n  - test_progs: { tests: \
         [fentry_test, module_attach, d_path], \
         deny: [\"fentry_test/few\", \"d_*\"] }\n  - kselftest: { programs: [perf_events/mmap, \
         other/none] }\n",
    )
    .with_tests(&["fentry_test", "added"].map(|name| name.parse().unwrap()).into());
    let images = [image("a", None), image("b", None), image("c", None)];
    let [old, new] = [
        with_tests(&["fentry_test", "module_attach", "d_path"]),
        with_tests(&["fentry_test", "added"]),
    ];
    let mut guests = guests(&images, Accel::Tcg);
    guests[0].tree_tests = Some((&old, "with-old".into()));
    guests[1].tree_tests = Some((&new, "with-new".into()));
    let cells = super::cells(&suite, &guests, false);
    let found: Vec<_> = cells
        .iter()
        .map(|cell| (cell.kernel.as_str(), cell.work.test().name(), cell.skip.as_deref()))
        .collect();
    let elsewhere =
        Some("the tree's own tests are built with a kernel, and this one was built elsewhere");
    let expected = [
        ("a", "bench/trig-fentry", None),
        ("a", "test_progs/fentry_test", None),
        (
            "a",
            "test_progs/module_attach",
            Some("denied by DENYLIST.aarch64:1 (`module_attach`: no module)"),
        ),
        ("a", "test_progs/d_path", Some("denied by the suite (`d_*`)")),
        ("a", "test_progs/added", Some("this kernel's tree has no test `added`")),
        ("a", "kselftest/perf_events/mmap", None),
        ("a", "kselftest/other/none", Some("this kernel's tree has no program `other/none`")),
        ("b", "bench/trig-fentry", None),
        ("b", "test_progs/fentry_test", None),
        ("b", "test_progs/module_attach", Some("this kernel's tree has no test `module_attach`")),
        ("b", "test_progs/d_path", Some("this kernel's tree has no test `d_path`")),
        ("b", "test_progs/added", None),
        ("b", "kselftest/perf_events/mmap", None),
        ("b", "kselftest/other/none", Some("this kernel's tree has no program `other/none`")),
        ("c", "bench/trig-fentry", elsewhere),
        ("c", "test_progs/fentry_test", elsewhere),
        ("c", "test_progs/module_attach", elsewhere),
        ("c", "test_progs/d_path", elsewhere),
        ("c", "test_progs/added", elsewhere),
        ("c", "kselftest/perf_events/mmap", elsewhere),
        ("c", "kselftest/other/none", elsewhere),
    ];
    assert_eq!(found, expected.map(|(kernel, test, skip)| (kernel, test.to_owned(), skip)));
    let Work::TestProgs(work) = &cells[1].work else { panic!("{:?}", cells[1].work) };
    assert_eq!(work.deny, ["fentry_test/many", "fentry_test/few"]);
    assert_eq!((&cells[1].initrd, cells[1].boots()), (&PathBuf::from("with-old"), 1));
    // A test that does not build fails only its own cell, if the tree has it.
    let unbuilt: Vec<_> =
        cells.iter().filter_map(|cell| Some((cell.id().name(), cell.error.clone()?))).collect();
    let expected =
        [("bench/trig-fentry", "bench.c:3: error"), ("test_progs/added", "progs/added.c:3: error")];
    let errors = |(test, error): (&str, &str)| {
        (format!("x86_64/b/tcg/{test}"), (ErrorKind::Build, error.to_owned()))
    };
    assert_eq!(unbuilt, expected.map(errors));
    guests[1].backend = Backend::VirtmeNg;
    let others = super::cells(&suite, &guests, false);
    let by_virtme = others.iter().filter(|cell| cell.kernel == "b");
    by_virtme.for_each(|cell| {
        assert!(cell.skip.as_ref().unwrap().contains("virtme-ng"), "{:?}", cell.skip)
    });
    guests[1].backend = Backend::Qemu;
    // Compared benchmarks take turns. Repeating a test does not change its verdict.
    let compared = super::cells(&suite, &guests, true);
    assert_eq!((compared[0].boots(), compared[1].boots()), (COMPARED_BOOTS, 1));
    assert_eq!(unknown_tests(&suite, &[&old, &new]), ["kselftest/other/none".parse().unwrap()]);
    let wrong = suite.with_tests(&["fentry_tset".parse().unwrap()].into());
    let [first, _] = &unknown_tests(&wrong, &[&old, &new])[..] else { panic!("{wrong:?}") };
    assert_eq!(first.name(), "test_progs/fentry_tset");
}

#[test]
fn reports_budgets_that_can_never_fail() {
    let suite = suite(
        "tests:\n  - lbr_waste: { mechanisms: [fexit] }\n\
         budgets:\n  - wasted: { fexit: { any: 9 } }\n  - kernels: [c]\n    wasted: { fexit: { \
         any: 8 } }\n",
    );
    let cells = cells(&suite, &[image("a", None)], Accel::Tcg);
    let idle = idle_budgets(&suite, &cells);
    assert!(idle.len() == 1 && idle[0].contains("`c`"), "{idle:?}");
    // The budget of another kernel does not hold for this one.
    assert_eq!(cells[0].budgets.len(), 1);
}

/// A kernel without the module is no error, a module that cannot be read is no skip.
#[test]
fn modules_that_cannot_be_read_make_an_error() {
    let text = "name: t\ndescription: d\nkernels: [a]\ntests:\n  - lbr_waste:\n      \
                mechanisms: [fexit]\n      targets: [vfs_read, 'xfs:a', 'gone:b']\n";
    let suite: Suite = config::parse(text, Path::new("t.yaml")).unwrap();
    let images = [image("a", None)];
    let mut guest = guests(&images, Accel::Tcg).remove(0);
    let needs = |module: &str| Needs { modules: [module.to_owned()].into(), shell: false };
    guest.roots = [
        (needs("xfs"), Err(Rootless::Error("xz: not found".to_owned()))),
        (needs("gone"), Err(Rootless::Skip("no module gone".to_owned()))),
    ]
    .into();
    let planned = super::cells(&suite, &[guest], false);
    let found: Vec<_> =
        planned.iter().map(|cell| (cell.error.clone(), cell.skip.as_deref())).collect();
    let error = (ErrorKind::Harness, "xz: not found".to_owned());
    assert_eq!(found, [(None, None), (Some(error), None), (None, Some("no module gone"))]);
}

/// A run's folder may be a stranger's.
#[test]
fn loads_only_regular_files() {
    let (folder, plan) = (tempfile::tempdir().unwrap(), |at: &Path| Plan::load(&Plan::path(at)));
    let pipe = |path: &Path| nix::unistd::mkfifo(path, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let empty = Plan {
        run_dir: folder.path().to_owned(),
        emulators: [].into(),
        here: None,
        jobs: Vec::new(),
    };
    empty.save().unwrap();
    assert!(plan(folder.path()).is_ok());
    let file = Plan::path(folder.path());
    let names = std::fs::read_to_string(&file).unwrap().replace("[]", "[\"one\"]");
    std::fs::write(&file, names).unwrap();
    pipe(&super::job_path(folder.path(), 0));
    assert_eq!(plan(folder.path()).unwrap_err().kind(), io::ErrorKind::InvalidInput);
    std::fs::remove_file(&file).unwrap();
    pipe(&file);
    assert_eq!(plan(folder.path()).unwrap_err().kind(), io::ErrorKind::InvalidInput);
    std::fs::remove_file(&file).unwrap();
    std::os::unix::fs::symlink("/dev/zero", &file).unwrap();
    assert_eq!(plan(folder.path()).unwrap_err().kind(), io::ErrorKind::InvalidInput);
}

/// Budgets, exact numbers and all that could harm a machine are of guests.
#[test]
fn keeps_only_harmless_times_on_this_machine() {
    const TIMED: &str = "trigger: { mechanisms: [fentry], throughput: false, estimated: true }";
    for (test, skipped) in [
        ("lbr_waste: { mechanisms: [fexit] }", None),
        ("lbr_waste: { mechanisms: [fexit], targets: [f], trigger: reboot }", Some("a command")),
        ("lbr_waste: { mechanisms: [fexit], targets: [\"xfs:f\"] }", Some("no module is loaded")),
        (TIMED, None),
        ("trigger: { mechanisms: [fentry], beside: [\"kprobe:100\"] }", None),
        ("trigger: { mechanisms: [fentry], beside: [\"kprobe:101\"] }", Some("at most 100")),
        ("attach: { mechanisms: [fexit], functions: [100], rounds: 1, clock: both }", None),
        ("attach: { mechanisms: [fexit], functions: [101], rounds: 1 }", Some("at most 100")),
        ("attach: { mechanisms: [fexit], functions: [all], rounds: 1 }", Some("at most 100")),
        ("survive: { storms: 1 }", Some("guests only")),
        ("test_progs: { tests: [fentry_test] }", Some("guests only")),
        ("boot: {}", Some("has booted")),
    ] {
        let budgets = "budgets:\n  - wasted: { fexit: { any: 3 } }\n";
        let budgets = if test.contains("lbr_waste") { budgets } else { "" };
        let suite = suite(&format!("tests:\n  - {test}\n{budgets}"));
        let images = [image("running", None)];
        let mut guests = guests(&images, Accel::Native);
        guests[0].backend = Backend::None;
        guests[0].most_attached = 100;
        guests[0].branches = Source::ThisMachine;
        guests[0].accel_named = true;
        let cell = super::cells(&suite, &guests, false).remove(0);
        match (&cell.skip, skipped) {
            (None, None) => assert_eq!(cell.clocks(), [Clock::Free], "{test}"),
            (Some(reason), Some(word)) => assert!(reason.contains(word), "{test}: {reason}"),
            (found, _) => panic!("{test}: {found:?}"),
        }
        assert_eq!(cell.budgets.len(), 0, "{test}");
        assert_eq!((cell.accel, cell.modelled()), (Accel::Native, None), "{test}");
        assert!(!test.contains("lbr_waste") || cell.of_driver().is_some(), "{test}");
    }
}
