// SPDX-License-Identifier: MIT OR Apache-2.0
//! Every place that prints useful records, of every recorded run: each number is what is printed as
//! wasted, and what the driver takes, less than the depth.

use super::{html, *};
use serde_json::Value;
use std::collections::BTreeMap;
use tramplab_analysis::branch::{Branch, Filter};
use tramplab_model::run::{Arch, LbrWaste};

/// A printed number.
#[derive(Debug)]
struct Number {
    place: String,
    model: String,
    filter: String,
    depth: u32,
    wasted: u32,
    /// `24` or `≤ 24`.
    useful: String,
}

/// The facts by which the test counts the driver's records.
#[derive(Clone, Copy, Debug)]
struct Facts {
    paravirt_xxl: Option<bool>,
    hardware: bool,
    /// The records of a return: at least and at most.
    returns: [&'static str; 2],
}

const PLAIN: [&str; 2] = ["ret", "ret"];
const SAFE: [&str; 2] = ["jump call ret", "jump call ret"];
const ANY_FORM: [&str; 2] = ["ret", "jump call ret"];

impl Facts {
    /// The least and most records of the driver, from the kinds that `docs/branch-records.md` has.
    fn taken(&self, model: &str, filter: &str) -> [i64; 2] {
        if self.hardware {
            return [0, 0];
        }
        let code = match model {
            "intel-lbr" | "amd-lbrv2" => "call RET call RET call",
            "arch-lbr" => "call RET call",
            "brbe" => return [0, i64::MAX],
            other => panic!("no model {other}"),
        };
        let is_taken = |kind: &str| {
            filter.split('|').any(|branch| match branch {
                "any" => true,
                "any_call" | "call" => kind == "call",
                "any_return" => kind == "ret",
                "ind_call" | "ind_jump" | "cond" => false,
                other => panic!("no filter {other}"),
            })
        };
        let count = |form: &str| {
            let code = code.replace("RET", form);
            code.split(' ').filter(|kind| is_taken(kind)).count() as i64
        };
        let with = self.returns.map(count);
        match self.paravirt_xxl {
            Some(true) => with,
            Some(false) => [0, 0],
            None => [0, with[1]],
        }
    }

    fn check(&self, number: &Number) {
        let [least, most] = self.taken(&number.model, &number.filter);
        let left = (i64::from(number.depth) - i64::from(number.wasted) - least).max(0);
        let expected = match left {
            1.. if least < most => format!("≤ {left}"),
            _ => left.to_string(),
        };
        assert_eq!(number.useful, expected, "{}: {number:?} {self:?}", number.place);
    }
}

/// A caption and the rows below it.
type Printed = (String, Vec<Vec<String>>);

/// Reads the tables of terminal and Markdown.
fn of_text(text: &str) -> Vec<Printed> {
    let mut tables: Vec<Printed> = Vec::new();
    let mut caption = String::new();
    for line in text.lines() {
        let title = line.trim_start_matches("### ").replace('\\', "");
        if title.starts_with("Wasted") || title.starts_with("Useful") {
            tables.push((title.clone(), Vec::new()));
            caption = title;
        } else if line.is_empty() && tables.last().is_some_and(|(_, rows)| !rows.is_empty()) {
            caption.clear();
        } else if !caption.is_empty() && line.contains('|') {
            let cells = line.trim_matches('|').split('|');
            let cells = cells.map(|cell| cell.trim().replace('\\', "")).collect();
            tables.last_mut().unwrap().1.push(cells);
        }
    }
    tables
}

fn of_page(page: &html::Element) -> Vec<Printed> {
    let figures = page.find("figure", "table").into_iter();
    let table = |figure: &html::Element| {
        let caption = figure.find("figcaption", "")[0].text.clone();
        let cells =
            |row: &html::Element| row.children.iter().map(|cell| cell.text.clone()).collect();
        let rows = figure.find("tr", "").into_iter().map(cells);
        (caption, rows.collect())
    };
    figures
        .map(table)
        .filter(|(caption, _): &Printed| {
            caption.starts_with("Wasted") || caption.starts_with("Useful")
        })
        .collect()
}

/// `16 / 32` of `Useful branch records of 16 / 32 (intel-lbr)`.
fn depths(caption: &str) -> Vec<u32> {
    let of = caption.split_once(" of ").expect("depths").1;
    let end = of.find([',', '(', 'i']).expect("an end");
    of[..end].trim().split(" / ").map(|depth| depth.parse().unwrap()).collect()
}

/// The models and the filter in the brackets of a caption.
fn brackets(caption: &str) -> (String, Option<String>) {
    let within = caption.rsplit_once('(').expect("brackets").1.trim_end_matches(')');
    match within.split_once(", ") {
        Some((model, filter)) => (model.to_owned(), Some(filter.to_owned())),
        None => (within.to_owned(), None),
    }
}

/// Adds a number for each depth of a cell.
fn add(numbers: &mut Vec<Number>, caption: &str, filter: &str, wasted: &str, useful: &str) {
    let Ok(wasted) = wasted.parse() else {
        assert_eq!(wasted, useful, "{caption}");
        return;
    };
    let (model, _) = brackets(caption);
    let (depths, useful): (_, Vec<&str>) = (depths(caption), useful.split(" / ").collect());
    assert_eq!(depths.len(), useful.len(), "{caption}: {useful:?}");
    for (depth, useful) in depths.into_iter().zip(useful) {
        numbers.push(Number {
            place: caption.to_owned(),
            model: model.clone(),
            filter: filter.to_owned(),
            depth,
            wasted,
            useful: useful.to_owned(),
        });
    }
}

/// Reads the tables: wasted and useful in two of them, or in one cell.
fn of_tables(tables: &[Printed]) -> Vec<Number> {
    let mut numbers = Vec::new();
    let is_row = |row: &&Vec<String>| row[0] != "mechanism" && !row[0].starts_with("---");
    let rows = |rows: &[Vec<String>]| rows.iter().filter(is_row).cloned().collect::<Vec<_>>();
    let mut before: BTreeMap<String, Vec<Vec<String>>> = BTreeMap::new();
    for (caption, printed) in tables {
        let printed = rows(printed);
        let end = caption[caption.find(" if ").or(caption.rfind(" (")).unwrap()..].to_owned();
        if caption.contains("by unions of filters") {
            for row in &printed {
                for (filter, cell) in Filter::UNIONS.iter().zip(&row[1..]) {
                    let (wasted, useful) = cell.split_once(", ").unwrap_or((cell, cell));
                    add(&mut numbers, caption, &filter.to_string(), wasted, useful);
                }
            }
        } else if caption.starts_with("Wasted") {
            before.insert(end, printed);
        } else {
            let wasted = before.remove(&end).expect(caption);
            let (_, filter) = brackets(caption);
            for (row, wasted) in printed.iter().zip(&wasted) {
                assert_eq!(row[0], wasted[0], "{caption}");
                for column in 1..row.len() {
                    let branch = || Branch::ALL[column - 1].name().to_owned();
                    let filter = filter.clone().unwrap_or_else(branch);
                    add(&mut numbers, caption, &filter, &wasted[column], &row[column]);
                }
            }
        }
    }
    numbers
}

/// Reads the counts over the page's listings, hidden ones included.
fn of_listings(page: &html::Element, run: &Run, facts: Facts) -> Vec<Number> {
    let mut numbers = Vec::new();
    for listed in page.find("details", "listed") {
        let heading = listed.find("h3", "")[0].text.clone();
        if listed.find("span", "counts").is_empty() {
            continue;
        }
        let arch = Arch::ALL.into_iter().find(|arch| heading.contains(arch.name()));
        let arch = arch.unwrap_or_else(|| panic!("no architecture in {heading}"));
        for counts in listed.find("span", "counts") {
            let chosen: Vec<Model> = match counts.attribute("data-model") {
                "" => Model::ALL.to_vec(),
                names => names.split(' ').map(|name| name.parse().unwrap()).collect(),
            };
            // A model of another architecture shows the default of this one.
            let models = chosen.into_iter().map(|model| Model::choose(Some(model), arch));
            let models: Vec<Model> = match run.kernels.iter().any(|kernel| kernel.arch != arch) {
                true => models.collect(),
                false => models.filter(|model| model.arch() == arch).collect(),
            };
            for side in counts.find("span", "side") {
                let Some((wasted, rest)) = side.text.split_once(" wasted") else {
                    assert!(side.text.contains("no such record"), "{}", side.text);
                    continue;
                };
                let wasted = wasted.rsplit(' ').next().unwrap().parse().unwrap();
                for model in &models {
                    let driver = match facts.taken(model.name(), counts.attribute("data-filter")) {
                        [0, 0] => ", ".to_owned(),
                        [_, i64::MAX] => ", driver unknown, ".to_owned(),
                        [least, most] if least == most => format!(", driver {least}, "),
                        [least, most] => format!(", driver {least} to {most}, "),
                    };
                    let number =
                        rest.strip_prefix(&driver).map(|rest| rest.trim_start_matches("≤ "));
                    let is_split = number.is_some_and(|rest| rest.starts_with(char::is_numeric));
                    assert!(is_split, "{model}: {}, expected {driver}", side.text);
                }
                assert!(!side.children.is_empty(), "{}", side.text);
                for left in &side.children {
                    let text = left.text.trim_start_matches(", ").trim_end_matches(" useful");
                    let (useful, depth) = text.split_once(" of ").expect("a depth");
                    assert!(["", depth].contains(&left.attribute("data-depth")), "{}", left.text);
                    numbers.extend(models.iter().map(|model| Number {
                        place: format!("{heading}: {}", side.text),
                        model: model.name().to_owned(),
                        filter: counts.attribute("data-filter").to_owned(),
                        depth: depth.parse().unwrap(),
                        wasted,
                        useful: useful.to_owned(),
                    }));
                }
            }
        }
    }
    numbers
}

/// Reads the data for programs, where a bound has a field of its own.
fn of_data(run: &Run, facts: Facts) -> Vec<Number> {
    let text = crate::mechanisms::data::data(run).text().unwrap();
    let data: Value = serde_json::from_slice(&text).unwrap();
    let mut numbers = Vec::new();
    for row in data["waste"].as_array().unwrap() {
        let field = |name: &str| row[name].as_str().unwrap().to_owned();
        let [least, most] = facts.taken(&field("model"), &field("filter"));
        assert_eq!(row["driver"].as_i64(), (least == most).then_some(least), "{row}");
        let Some(wasted) = row["wasted"].as_u64() else {
            assert!(row["useful"].is_null() && row["useful_at_most"].is_null(), "{row}");
            continue;
        };
        let mut seen: Vec<u32> = Vec::new();
        for (name, sign) in [("useful", ""), ("useful_at_most", "≤ ")] {
            for (depth, count) in row[name].as_object().into_iter().flatten() {
                seen.push(depth.parse().unwrap());
                numbers.push(Number {
                    place: row.to_string(),
                    model: field("model"),
                    filter: field("filter"),
                    depth: depth.parse().unwrap(),
                    wasted: wasted.try_into().unwrap(),
                    useful: format!("{sign}{count}"),
                });
            }
        }
        seen.sort_unstable();
        assert_eq!(seen, field("model").parse::<Model>().unwrap().depths(), "{row}");
    }
    numbers
}

fn wastes(run: &mut Run) -> impl Iterator<Item = &mut LbrWaste> {
    run.cells.iter_mut().filter_map(|cell| match &mut cell.measurement {
        Some(Measurement::LbrWaste(waste)) => Some(waste),
        _ => None,
    })
}

/// The run of a kernel with another option, whose counts stay.
fn with(mut run: Run, paravirt_xxl: Option<bool>) -> Run {
    run.kernels.iter_mut().for_each(|kernel| kernel.paravirt_xxl = paravirt_xxl);
    run
}

/// The run of a kernel whose every return is three records: the thunk, its call, the `ret`.
fn with_safe_returns(mut run: Run) -> Run {
    let safe = |record: &NamedRecord| {
        let place = |name: &str| {
            let mut place = record.from.clone();
            place.symbol = Some(name.to_owned());
            // Far from the traced function.
            place.address = u64::MAX - 64;
            place
        };
        let thunk = || place("srso_alias_return_thunk");
        let of = |from, kind, to| NamedRecord { from, to, kind, modelled: false };
        match record.kind {
            trace::Kind::Ret => vec![
                of(place("srso_alias_safe_ret"), trace::Kind::Ret, record.to.clone()),
                of(thunk(), trace::Kind::Call, place("srso_alias_safe_ret")),
                of(record.from.clone(), trace::Kind::Jump, thunk()),
            ],
            _ => vec![record.clone()],
        }
    };
    for point in wastes(&mut run).flat_map(|waste| &mut waste.points) {
        point.wasted.clear();
        point.records = point.records.iter().flat_map(safe).collect();
    }
    with(run, Some(true))
}

/// The run of a guest that shows nothing about returns.
fn without_returns(mut run: Run) -> Run {
    for point in wastes(&mut run).flat_map(|waste| &mut waste.points) {
        point.wasted.clear();
        point.records.retain(|record| record.kind != trace::Kind::Ret);
    }
    let guests = run.cells.iter_mut().filter_map(|cell| cell.guest.as_mut());
    guests.for_each(|guest| guest.mitigations.clear());
    with(run, Some(true))
}

#[test]
fn every_place_subtracts_what_is_wasted_and_what_the_driver_takes() {
    let recorded = [run(), two_architectures(), series(), tramplab_testdata::letter()];
    let known = |run: &Run| run.kernels[0].paravirt_xxl;
    let facts = |paravirt_xxl, returns| Facts { paravirt_xxl, hardware: false, returns };
    let mut runs: Vec<(Run, Facts)> = Vec::new();
    for run in recorded {
        assert!(run.kernels.iter().all(|kernel| kernel.paravirt_xxl == known(&run)));
        runs.extend(
            [Some(true), Some(false), None].map(|xxl| (with(run.clone(), xxl), facts(xxl, PLAIN))),
        );
        runs.push((with_safe_returns(run.clone()), facts(Some(true), SAFE)));
        runs.push((without_returns(run.clone()), facts(Some(true), ANY_FORM)));
        runs.push((run.clone(), facts(known(&run), PLAIN)));
    }
    let of_cpu = Facts { paravirt_xxl: Some(true), hardware: true, returns: PLAIN };
    runs.push((with(hardware(), Some(true)), of_cpu));
    for (run, facts) in runs {
        let page = html::page(&run);
        let mut places = vec![
            ("page", of_tables(&of_page(&page))),
            ("listings", of_listings(&page, &run, facts)),
            ("data", of_data(&run, facts)),
        ];
        for model in Model::ALL {
            let what_if = ["any", "any_return", "any_call|cond"];
            let what_if = what_if.map(|filter| filter.parse().unwrap()).to_vec();
            let view = View { model: Some(model), what_if, ..View::default() };
            let text = terminal::render(&run, &view, terminal::Style::default());
            let of_terminal = of_tables(&of_text(&text));
            let of_markdown = of_tables(&of_text(&markdown::render(&run, &view)));
            assert_eq!(of_terminal.len(), of_markdown.len(), "{model}");
            places.push(("terminal", of_terminal));
            places.push(("markdown", of_markdown));
        }
        let tables = ["Useful branch records", "by unions", "if the snapshot"];
        for (place, numbers) in places {
            // A page has no what-if, and hardware records have none.
            let kinds = match place {
                "terminal" | "markdown" if !facts.hardware => &tables[..],
                "terminal" | "markdown" | "page" => &tables[..2],
                _ => &[""],
            };
            for kind in kinds {
                let is_one = |number: &Number| number.place.contains(kind);
                assert!(numbers.iter().any(is_one), "{place}: no {kind}");
            }
            numbers.iter().for_each(|number| facts.check(number));
        }
    }
}
