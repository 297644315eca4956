// SPDX-License-Identifier: MIT OR Apache-2.0
//! Checks the data of stored runs, and the shipped file, against the schema and the page.

use super::*;
use crate::tests::{run as stored, two_architectures};
use tramplab_model::run::{ErrorKind, Outcome, Predicted};
use tramplab_testdata::schema::errors;

const SHIPPED: &str = include_str!("../../../../../docs/mechanisms.json");
const SHIPPED_SCHEMA: &str = include_str!("../../../../../docs/mechanisms.schema.json");
const PAGE: &str = include_str!("../../../../../docs/mechanisms.md");

fn rendered(run: &Run) -> String {
    String::from_utf8(data(run).text().unwrap()).unwrap()
}

fn parsed(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

#[test]
fn shipped_data_follow_the_shipped_schema() {
    let data: Data = serde_json::from_str(SHIPPED).unwrap();
    assert!(!data.waste.is_empty() && !data.missing.is_empty());
    assert_eq!(errors(&parsed(SHIPPED_SCHEMA), &parsed(SHIPPED)), Vec::<String>::new());
    // The present code writes the same text.
    assert!(SHIPPED == one_row_a_line(&data).unwrap(), "another version wrote it");
}

#[test]
fn shipped_useful_records_are_what_waste_and_driver_leave() {
    let data: Data = serde_json::from_str(SHIPPED).unwrap();
    for row in &data.waste {
        let numbers = |of: &Option<BTreeMap<u32, u32>>| of.clone().unwrap_or_default();
        let (exact, at_most) = (numbers(&row.useful), numbers(&row.useful_at_most));
        assert!(at_most.is_empty() || row.driver.is_none(), "{row:?}");
        let left = |depth: u32, wasted: u32| {
            depth.saturating_sub(wasted).saturating_sub(row.driver.unwrap_or_default())
        };
        for (&depth, &count) in exact.iter().chain(&at_most) {
            assert_eq!(Some(count), row.wasted.map(|wasted| left(depth, wasted)), "{row:?}");
        }
        let depths = exact.len() + at_most.len();
        let expected = row.model.parse::<Model>().unwrap().depths().len();
        assert_eq!(depths, if row.wasted.is_some() { expected } else { 0 }, "{row:?}");
    }
}

#[test]
fn data_of_stored_runs_follow_the_schema() {
    for run in [stored(), two_architectures()] {
        let text = rendered(&run);
        assert_eq!(errors(schema().as_value(), &parsed(&text)), Vec::<String>::new(), "{}", run.id);
        assert_eq!(serde_json::from_str::<Data>(&text).unwrap(), data(&run));
    }
    // All tables have rows.
    let data = data(&stored());
    assert!(!data.hits.is_empty() && !data.attach.is_empty() && !data.missing.is_empty());
    assert!(!data.whole_hits.is_empty());
}

#[test]
fn a_whole_hit_has_its_mispredicted_returns() {
    let mut run = stored();
    let mut costs = run.cells.iter_mut().filter_map(|cell| match &mut cell.measurement {
        Some(Measurement::Trigger(trigger)) => trigger.cost.as_mut(),
        _ => None,
    });
    costs.next().unwrap().predicted = Some(Predicted {
        depth: 16,
        hits: 8,
        returns: 9,
        mispredicted_returns: 7,
        indirect: 1,
        mispredicted_indirect: 0,
        mispredicted: Vec::new(),
    });
    let first = &data(&run).whole_hits[0];
    assert_eq!((first.mispredicted_returns, first.mispredicted_indirect), (Some(7), Some(0)));
    assert_eq!(first.estimated_cycles, None);
}

#[test]
fn schema_rejects_wrong_values() {
    let mut run = stored();
    run.kernels.iter_mut().for_each(|kernel| kernel.paravirt_xxl = Some(true));
    let whole = parsed(&rendered(&run));
    let wrong: [(&str, Value, &str); 13] = [
        ("/waste/0/wasted", "9".into(), "/waste/0/wasted: type"),
        ("/waste/0/wasted", (-1).into(), "/waste/0/wasted: minimum"),
        ("/waste/0/wasted", (1u64 << 32).into(), "/waste/0/wasted: format"),
        ("/waste/0/wasted", 1.5.into(), "/waste/0/wasted: type"),
        ("/waste/0/mechanism", "fentri".into(), "/waste/0/mechanism: enum"),
        ("/waste/0/filter", "all".into(), "/waste/0/filter: enum"),
        ("/waste/0/model", "lbr".into(), "/waste/0/model: enum"),
        ("/waste/0/useful", serde_json::json!({"33": 1}), "/waste/0/useful/33: false"),
        (
            "/waste/0/useful_at_most",
            serde_json::json!({}),
            "/waste/0/useful_at_most: minProperties",
        ),
        ("/hits/0", serde_json::json!({}), "/hits/0: required"),
        ("/attach/0/attach_ns", Value::Null, "/attach/0/attach_ns: type"),
        ("/missing/0/outcome", "pass".into(), "/missing/0/outcome: enum"),
        ("/version", 1.into(), "/version: const"),
    ];
    for (place, value, words) in wrong {
        let mut data = whole.clone();
        *data.pointer_mut(place).unwrap_or_else(|| panic!("no {place}")) = value;
        let errors = errors(schema().as_value(), &data);
        assert!(errors.iter().any(|error| error.starts_with(words)), "{place}: {errors:?}");
    }
    let mut data = whole;
    data["waste"][0]["skip"] = 1.into();
    assert_eq!(errors(schema().as_value(), &data), ["/waste/0/skip: false"]);
}

#[test]
fn a_row_tells_the_records_to_skip() {
    let mut run = two_architectures();
    for kernel in &mut run.kernels {
        kernel.paravirt_xxl = Some(true);
    }
    let text = rendered(&run);
    let fexit = |arch, model, rest| {
        format!(
            "{{\"kernel\": \"7.2\", \"arch\": \"{arch}\", \"mechanism\": \"fexit\", \"point\": \
             \"exit\", \"model\": \"{model}\", {rest}}}"
        )
    };
    for row in [
        fexit(
            "x86_64",
            "intel-lbr",
            concat!(
                r#""filter": "any", "wasted": 6, "driver": 5, "#,
                r#""useful": {"16": 5, "32": 21}, "useful_at_most": null"#,
            ),
        ),
        fexit(
            "x86_64",
            "amd-lbrv2",
            concat!(
                r#""filter": "ind_call", "wasted": null, "driver": 0, "#,
                r#""useful": null, "useful_at_most": null"#,
            ),
        ),
        fexit(
            "arm64",
            "brbe",
            &format!(
                r#""filter": "any", "wasted": 5, {}, "useful_at_most": {{{}}}"#,
                r#""driver": null, "useful": null"#, r#""8": 3, "16": 11, "32": 27, "64": 59"#,
            ),
        ),
        format!(
            r#"{{"kernel": "7.2", "arch": "arm64", "mechanism": "fexit.multi", {}, {}}}"#,
            r#""of": "waste", "outcome": "skip""#,
            r#""reason": "the kernel is built without CONFIG_HAVE_SINGLE_FTRACE_DIRECT_OPS""#,
        ),
    ] {
        let lines = text.lines().filter(|line| line.trim().trim_end_matches(',') == row);
        assert_eq!(lines.count(), 1, "{row} in {text}");
    }
}

#[test]
fn a_cell_that_failed_is_no_skip() {
    let mut run = two_architectures();
    let cell = &mut run.cells[0];
    cell.measurement = None;
    let message = "BUG: \u{1b}[31m\nmore".to_owned();
    cell.outcome = Outcome::Error { kind: ErrorKind::Oops, message };
    let data = data(&run);
    let [error, _skip] = &data.missing[..] else { panic!("{:?}", data.missing) };
    assert_eq!((error.outcome, &*error.reason), (Lost::Error, "oops: BUG:"));
    assert!(data.incomplete.unwrap().ends_with("and 1 test could not be measured"));
}

#[test]
fn shipped_page_shows_the_shipped_data() {
    let data = Data::read(SHIPPED).unwrap().unwrap();
    assert!(super::super::render(&data) == PAGE, "`cargo xtask mechanisms` writes another page");
}
