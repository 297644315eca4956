// SPDX-License-Identifier: MIT OR Apache-2.0

use super::*;
use tramplab_analysis::branch::{Model, driver};
use tramplab_model::run::Configuration;

#[test]
fn a_configuration_sets_the_number_of_cpus() {
    let suite = suite(
        "tests:\n  - attach: { mechanisms: [fentry], functions: [1], rounds: 1, clock: exact }\n  \
         - trigger: { mechanisms: [fentry], throughput: false }\n",
    );
    let images = [image("a", None)];
    let configuration =
        Configuration { of: "a".to_owned(), cpus: Some(2), ..Configuration::default() };
    let guest =
        Guest { configuration: Some(&configuration), ..guests(&images, Accel::Tcg).remove(0) };
    let cells = crate::plan::cells(&suite, &[guest], false);
    let [attach, trigger] = &cells[..] else { panic!("{cells:?}") };
    assert_eq!((attach.cpus, trigger.cpus), (2, 2));
    assert!(attach.skip.as_ref().is_some_and(|why| why.contains("2 CPUs on one thread")));
    assert_eq!((&trigger.skip, trigger.clocks()), (&None, vec![Clock::Free]));
}

/// A Zen 4, or a CPU of the same kind without branch records.
fn booted(kernel: &str, branches: serde_json::Value) -> Configuration {
    let cpu = serde_json::json!({
        "about": "a test's", "arch": "x86_64",
        "qemu": { "cpu": "EPYC-Genoa", "source": "s" },
        "mitigations": { "append": ["mitigations=auto", "spectre_v2=off"], "source": "s" },
        "branches": branches,
    });
    let cpu = serde_json::from_value(cpu).unwrap();
    tramplab_kernel::axis::booted(kernel, &tramplab_model::cpu::Named { name: "c".into(), cpu })
}

/// Under TCG, whatever the rest runs under, and only for a CPU that the plugin can play.
#[test]
fn plays_branch_records_of_x86_cpus() {
    let suite = suite(
        "tests:\n  - lbr_waste: { mechanisms: [fentry] }\n\
         budgets:\n  - { wasted: { fentry: { any: 5 } } }\n",
    );
    let records = serde_json::json!({ "family": "amd-lbrv2", "depth": 16, "source": "s" });
    let none = serde_json::json!({ "none": "it samples", "source": "s" });
    let [with, without] = [records, none].map(|branches| booted("a", branches));
    for (arch, configuration, expected) in [
        (Arch::X86_64, Some(&with), Ok(Model::AmdLbrV2)),
        (Arch::X86_64, Some(&without), Err("it samples")),
        (Arch::X86_64, None, Err("--model zen4")),
        (Arch::Arm64, None, Err("BRBE")),
    ] {
        let images = [kernel::Image { arch, ..image("a", None) }];
        let guest = Guest {
            branches: Source::Emulated,
            configuration,
            ..guests(&images, Accel::Kvm).remove(0)
        };
        let cell = crate::plan::cells(&suite, &[guest], false).remove(0);
        assert_eq!(cell.accel, Accel::Tcg, "{arch}");
        match expected {
            Ok(model) => {
                assert_eq!(cell.of_driver(), Some(driver::Cpu::Played(model)));
                assert!(cell.budgets.iter().all(|budget| budget.wasted.is_empty()));
                assert_eq!(cell.skip, None);
            }
            Err(words) => assert!(cell.skip.as_ref().unwrap().contains(words), "{:?}", cell.skip),
        }
    }
}

/// A guest that boots as no CPU, or as one without cycles, measures all but estimates.
#[test]
fn only_cpus_with_cycles_are_estimated() {
    let suite = suite(
        "tests:\n  - attach: { mechanisms: [fentry], functions: [1], rounds: 1, clock: exact, \
         explain: [exact, estimated] }\n  - trigger: { mechanisms: [fentry], estimated: true }\n\
         budgets:\n  - { most: { attach.fentry.1.attach.estimated_cycles: 9, \
         trigger.fentry.estimated_cycles: 9, trigger.fentry.instructions: 9 } }\n",
    );
    let mut with = booted("a", serde_json::json!({ "none": "it samples", "source": "s" }));
    let without = with.clone();
    let (cache, tlb) = (
        serde_json::json!({ "kib": 32, "ways": 8 }),
        serde_json::json!({ "entries": 64, "ways": 64 }),
    );
    let cycles = serde_json::json!({
        "pipeline": { "width": 6, "mispredicted": 13, "taken": 0, "source": "s" },
        "caches": {
            "l1i": cache, "l1d": cache, "l2": cache, "l3": cache, "l2_cycles": 1,
            "l3_cycles": 1, "memory_cycles": 1, "prefetch": "nothing", "source": "s",
        },
        "tlbs": {
            "code": tlb, "data": tlb, "l2": tlb, "l2_cycles": 1, "walk_cycles": 1, "source": "s",
        },
        "instructions": {
            "atomic": 1, "fence": 1, "serializing": 1, "system_register": 1, "invalidation": 1,
            "exception": 1, "exception_return": 1, "system_call": 1, "system_call_return": 1,
            "source": "s",
        },
    });
    with.model.as_mut().unwrap().cpu.cycles = Some(serde_json::from_value(cycles).unwrap());
    for (configuration, has_estimate) in
        [(Some(&with), true), (Some(&without), false), (None, false)]
    {
        let images = [image("a", None)];
        let guest = Guest { configuration, ..guests(&images, Accel::Tcg).remove(0) };
        let cells = crate::plan::cells(&suite, &[guest], false);
        for cell in &cells {
            assert_eq!(cell.work.kind().estimates(), has_estimate, "{cell:?}");
            assert_eq!((cell.modelled().is_some(), &cell.skip), (has_estimate, &None));
        }
        let [Work::Attach(attach), Work::Trigger(hit)] = [&cells[0].work, &cells[1].work] else {
            panic!("{cells:?}")
        };
        assert!(attach.explain.contains(&Explain::Exact));
        for why in [&attach.unestimated, &hit.unestimated] {
            assert_eq!(why.is_none(), has_estimate, "{why:?}");
        }
        // A budget of what is not measured would fail.
        let bounds = cells.iter().flat_map(|cell| &cell.budgets).flat_map(|one| one.most.keys());
        let is_estimate = |bounded: &crate::budget::Bounded| bounded.metric().is_estimate();
        let is_usual = configuration.is_none();
        assert_eq!(bounds.clone().count() > 0, is_usual);
        assert!(!bounds.clone().any(is_estimate));
        let idle = crate::plan::idle_budgets(&suite, &cells);
        assert_eq!(idle.len(), 2, "{idle:#?}");
        assert!(
            idle.iter().all(|one| one.contains("estimated_cycles") && one.contains("--model")),
            "{idle:#?}"
        );
    }
}

#[test]
fn a_cpu_gives_its_guests_a_command_line_and_its_own_budgets() {
    let suite = suite(
        "machine: { append: [mitigations=off, quiet] }\ntests:\n  \
         - lbr_waste: { mechanisms: [fexit] }\n  - attach: { mechanisms: [fentry], functions: [1], \
         rounds: 1 }\nbudgets:\n  - wasted: { fexit: { any: 1 } }\n  \
         - { kernels: [a], wasted: { fexit: { any: 2 } } }\n  \
         - { kernels: [a+c], wasted: { fexit: { any: 3 } } }\n",
    );
    let images = [image("a", None), image("a+c", None)];
    let records = serde_json::json!({ "family": "amd-lbrv2", "depth": 16, "source": "s" });
    let none = serde_json::json!({ "none": "it samples", "source": "s" });
    let [with, without] = [records, none].map(|branches| booted("a", branches));
    let planned = |accel, configuration| {
        let mut guests = guests(&images, accel);
        guests[1].configuration = Some(configuration);
        guests[1].budgets_of = Some("a+c");
        crate::plan::cells(&suite, &guests, true)
    };
    let cells = planned(Accel::Tcg, &with);
    let [usual, attach, booted, ..] = &cells[..] else { panic!("{cells:?}") };
    assert_eq!(
        (&usual.append[..], &usual.cpu),
        (&["mitigations=off", "quiet"].map(str::to_owned)[..], &None)
    );
    let words = ["quiet", "mitigations=auto", "spectre_v2=off"].map(str::to_owned);
    assert_eq!((&booted.append[..], booted.cpu.as_deref()), (&words[..], Some("EPYC-Genoa")));
    let bounds = |cell: &PlannedCell| -> Vec<u32> {
        cell.budgets
            .iter()
            .flat_map(|one| one.wasted.values())
            .flat_map(|row| row.values())
            .copied()
            .collect()
    };
    // A budget without kernels is for those that boot as usual.
    assert_eq!((bounds(usual), bounds(booted)), (vec![1, 2], vec![3]));
    assert_eq!((&attach.skip, &booted.skip), (&None, &None));
    assert_eq!((usual.records(), booted.records()), ((Model::IntelLbr, 32), (Model::AmdLbrV2, 16)));
    // Cells that boot otherwise are in jobs of their own.
    assert_eq!(jobs(cells.clone(), true, true).len(), 4);

    let skips = |cells: Vec<PlannedCell>| -> Vec<Option<String>> {
        cells.into_iter().map(|cell| cell.skip).collect()
    };
    let [_, _, waste, attach] = &skips(planned(Accel::Tcg, &without))[..] else { panic!() };
    assert!(waste.as_ref().is_some_and(|why| why.contains("it samples")), "{waste:?}");
    assert_eq!(*attach, None);
    let [.., attach] = &skips(planned(Accel::Kvm, &with))[..] else { panic!() };
    assert!(attach.as_ref().is_some_and(|why| why.contains("this machine's CPU")), "{attach:?}");
}

#[test]
fn a_cpu_without_records_delivers_none() {
    let suite = suite(
        "experiments: [deliver_records]\ntests:\n  - test_progs: { tests: [get_branch_snapshot, \
         fentry_test] }\n",
    );
    let images = [image("a", None)];
    let tests = with_tests(&["get_branch_snapshot", "fentry_test"]);
    let configuration = booted("a", serde_json::json!({ "none": "it samples", "source": "s" }));
    let mut guests = guests(&images, Accel::Tcg);
    guests[0].tree_tests = Some((&tests, "with".into()));
    guests[0].configuration = Some(&configuration);
    let [asks, other] = &crate::plan::cells(&suite, &guests, false)[..] else { panic!() };
    assert!(asks.skip.as_ref().is_some_and(|why| why.contains("it samples")), "{asks:?}");
    assert_eq!(other.skip, None);
}
