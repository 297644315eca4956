// SPDX-License-Identifier: MIT OR Apache-2.0
//! Checks every stored run against KCIDB's own schema.

use super::*;
use crate::tests::{run as stored, series, two_architectures};
use tramplab_model::run::Built;
use tramplab_testdata::schema;

const SCHEMA: &str = include_str!("../testdata/kcidb-v5.3.schema.json");

fn errors(report: &serde_json::Value) -> Vec<String> {
    schema::errors(&serde_json::from_str(SCHEMA).unwrap(), report)
}

fn rendered(run: &Run, origin: &str) -> serde_json::Value {
    serde_json::from_slice(&render(run, &origin.parse().unwrap()).unwrap()).unwrap()
}

/// A run as in CI, where a kernel is a commit with a URL.
fn of_a_commit() -> Run {
    let mut run = series();
    let kernel = run.kernels.iter_mut().find(|kernel| kernel.name == "6.12-source").unwrap();
    kernel.source = "git https://example.org/linux.git v6.12 0123456789ab".to_owned();
    kernel.commit = Some("0123456789abcdef0123456789abcdef01234567".to_owned());
    run
}

#[test]
fn every_stored_run_follows_the_schema() {
    for run in [stored(), series(), two_architectures(), of_a_commit()] {
        let report = rendered(&run, "ci_7");
        assert_eq!(errors(&report), Vec::<String>::new(), "{}", run.id);
        let tests = report["tests"].as_array().unwrap();
        assert_eq!(
            tests.len(),
            run.cells.iter().filter(|cell| cell.id.test != Test::Build).count()
        );
        // References lead to existing objects, and ids are unique.
        for (kind, other, key) in
            [("tests", "builds", "build_id"), ("builds", "checkouts", "checkout_id")]
        {
            let ids: BTreeSet<&str> = report[other]
                .as_array()
                .unwrap()
                .iter()
                .map(|one| one["id"].as_str().unwrap())
                .collect();
            assert_eq!(ids.len(), report[other].as_array().unwrap().len());
            assert!(
                report[kind]
                    .as_array()
                    .unwrap()
                    .iter()
                    .all(|one| ids.contains(one[key].as_str().unwrap()))
            );
        }
        let ids: BTreeSet<&str> = tests.iter().map(|one| one["id"].as_str().unwrap()).collect();
        assert_eq!(ids.len(), tests.len());
        assert!(ids.iter().all(|id| id.starts_with("ci_7:")));
    }
}

/// The checker notices violations.
#[test]
fn rejects_what_breaks_a_rule_of_the_schema() {
    for (place, key, value) in [
        ("tests", "status", json!("SKIPPED")),
        ("tests", "path", json!("tramplab/lbr_waste")),
        ("tests", "id", json!("no-origin")),
        ("checkouts", "git_commit_hash", json!("0123456789ab")),
        ("checkouts", "start_time", json!("yesterday")),
        ("builds", "architecture", json!("x86-64")),
        ("builds", "toolchain", json!("gcc")),
    ] {
        let mut report = rendered(&stored(), "tramplab");
        report[place][0][key] = value;
        assert_eq!(errors(&report).len(), 1, "{place} {key}: {:?}", errors(&report));
    }
}

#[test]
fn kcidb_json() {
    // Keep one cell of each outcome.
    let mut run = stored();
    let mut seen = BTreeSet::new();
    run.cells.retain(|cell| seen.insert(cell.outcome.name()));
    run.kernels.retain(|kernel| kernel.name == "6.1");
    insta::assert_snapshot!(String::from_utf8(render(&run, &Origin::default()).unwrap()).unwrap());
}

#[test]
fn maps_outcomes_to_statuses() {
    let error = |kind| Outcome::Error { kind, message: String::new() };
    for (outcome, expected) in [
        (Outcome::Pass, Status::Pass),
        (Outcome::Fail { reasons: vec![] }, Status::Fail),
        (Outcome::Skip { reason: String::new() }, Status::Skip),
        (error(ErrorKind::Panic), Status::Error),
        (error(ErrorKind::Timeout), Status::Error),
        (error(ErrorKind::QemuStart), Status::Miss),
        (error(ErrorKind::Starved), Status::Miss),
        (error(ErrorKind::Harness), Status::Miss),
    ] {
        assert_eq!(status(&outcome), expected, "{outcome:?}");
    }
}

#[test]
fn describes_a_patched_kernel_by_its_base() {
    let mut run = of_a_commit();
    let report = rendered(&run, "tramplab");
    let checkouts = report["checkouts"].as_array().unwrap();
    for checkout in checkouts {
        assert_eq!(checkout["git_commit_hash"], "0123456789abcdef0123456789abcdef01234567");
        assert_eq!(checkout["git_repository_url"], "https://example.org/linux.git");
        // With the patches removed it is not that commit.
        let is_plain = checkout["misc"]["tramplab"]["kernel"] == "6.12-source";
        assert_eq!(checkout.get("patchset_hash"), is_plain.then_some(&json!("")));
    }
    // Sources that do not compile fail the build.
    run.series[0].steps[0].built = Built::Failed { message: "no".to_owned() };
    let cell = run.cells.iter_mut().find(|cell| cell.id.test == Test::Build).unwrap();
    cell.outcome = Outcome::Error {
        kind: ErrorKind::Build,
        message: "a.c:1: error: no\u{1b}[0m\0".to_owned(),
    };
    let report = rendered(&run, "tramplab");
    assert_eq!(
        (&report["builds"][0]["status"], &report["builds"][1]["status"]),
        (&json!("FAIL"), &json!("PASS"))
    );
    assert_eq!(report["builds"][0]["log_excerpt"], "a.c:1: error: no");
    assert_eq!(errors(&report), Vec::<String>::new());
}

/// A Debian kernel of one name is another package on each architecture; a commit is the same.
#[test]
fn a_build_has_the_checkout_of_its_own_sources() {
    let mut run = two_architectures();
    for checkouts in [2, 1] {
        let report = rendered(&run, "tramplab");
        assert_eq!(report["checkouts"].as_array().unwrap().len(), checkouts);
        for (build, kernel) in report["builds"].as_array().unwrap().iter().zip(&run.kernels) {
            let mut of = report["checkouts"].as_array().unwrap().iter();
            let checkout = of.find(|checkout| checkout["id"] == build["checkout_id"]).unwrap();
            assert_eq!(checkout["comment"], kernel.source, "{build}");
        }
        for kernel in &mut run.kernels {
            kernel.source = "git https://example.org/linux.git v7.2 0123456789ab".to_owned();
        }
    }
}

#[test]
fn any_text_of_a_guest_fits_the_schema() {
    let mut run = stored();
    for cell in &mut run.cells {
        cell.console_tail = vec!["\0\u{1b}[1mü".repeat(9000), "the end".to_owned()];
        cell.outcome = Outcome::Skip { reason: "a\0b".to_owned() };
    }
    let report = rendered(&run, "tramplab");
    assert_eq!(errors(&report), Vec::<String>::new());
    let excerpt = report["tests"][0]["log_excerpt"].as_str().unwrap();
    assert!(excerpt.ends_with("the end") && excerpt.chars().count() <= EXCERPT);
}

#[test]
fn accepts_origins_that_the_schema_accepts() {
    for name in ["", "Me", "my-ci", "a b", "a:b"] {
        assert!(name.parse::<Origin>().is_err(), "{name}");
    }
    assert_eq!("my_ci2".parse::<Origin>().unwrap().to_string(), "my_ci2");
}

#[test]
fn numbers_of_patches_stay_in_their_range() {
    let mut run = series();
    run.series[0].base = NonZeroU32::new(u32::MAX);
    let of = |run: &Run, step: usize| {
        let name = &run.series[0].steps[step].kernel;
        patches(run, run.kernels.iter().find(|kernel| kernel.name == *name).unwrap())
    };
    run.series[0].reverse = false;
    assert_eq!(of(&run, 1), Some(u32::MAX as usize));
    // A step has more patches than the head.
    run.series[0].reverse = true;
    run.series[0].base = None;
    run.series[0].steps[1].patches = u32::MAX;
    assert_eq!(of(&run, 1), Some(0));
}
