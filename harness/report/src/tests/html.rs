// SPDX-License-Identifier: MIT OR Apache-2.0
//! The page: its structure, its numbers, its bounds, and hostile texts in it.

use super::{
    hostile::{ATTACKS, assert_seen, runs},
    *,
};
use crate::html;
use quick_xml::events::{BytesStart, Event};
use std::collections::{BTreeMap, BTreeSet};
use tramplab_analysis::branch::Filter;
use tramplab_model::{
    run::{Allowed, Arch},
    text,
};

const CSS: &str = include_str!("../../templates/report.css");
const JS: &str = include_str!("../../templates/report.js");

/// An element with its whole text.
#[derive(Clone, Debug)]
pub struct Element {
    name: String,
    attributes: BTreeMap<String, String>,
    pub text: String,
    pub children: Vec<Element>,
}

impl Element {
    pub fn all(&self) -> Vec<&Element> {
        std::iter::once(self).chain(self.children.iter().flat_map(Element::all)).collect()
    }

    pub fn find(&self, name: &str, class: &str) -> Vec<&Element> {
        let has = |element: &&Element| {
            let classes = element.attributes.get("class").map_or("", String::as_str);
            element.name == name && (class.is_empty() || classes.split(' ').any(|c| c == class))
        };
        self.all().into_iter().filter(has).collect()
    }

    pub fn attribute(&self, name: &str) -> &str {
        self.attributes.get(name).map_or("", String::as_str)
    }
}

/// Reads the page as XML, which is stricter than HTML.
fn parse_page(page: &str) -> Element {
    let body = page.strip_prefix("<!DOCTYPE html>\n").expect("a doctype");
    assert!(body.matches(CSS).count() == 1 && body.matches(JS).count() == 1);
    let body = body.replace(CSS, "").replace(JS, "");
    let mut reader = quick_xml::Reader::from_str(&body);
    let mut open: Vec<Element> = Vec::new();
    let add = |open: &mut Vec<Element>, element: Element| match open.last_mut() {
        Some(parent) => {
            parent.text += &element.text;
            parent.children.push(element);
            None
        }
        None => Some(element),
    };
    loop {
        match reader.read_event().expect("well-formed") {
            Event::Start(start) => open.push(element(&start)),
            Event::Empty(start) => drop(add(&mut open, element(&start))),
            Event::End(_) => {
                let ended = open.pop().unwrap();
                if let Some(root) = add(&mut open, ended) {
                    return root;
                }
            }
            Event::Text(text) => open.last_mut().unwrap().text += &text.xml10_content(),
            Event::GeneralRef(of) => {
                let c = of.resolve_char_ref().unwrap().expect("a character by its number");
                open.last_mut().unwrap().text.push(c);
            }
            other => panic!("{other:?}"),
        }
    }
}

fn element(start: &BytesStart) -> Element {
    let attribute = |attribute: Result<quick_xml::events::attributes::Attribute, _>| {
        let attribute = attribute.unwrap();
        let value = attribute.normalized_value(quick_xml::XmlVersion::Implicit1_0).unwrap();
        (attribute.key.as_ref().to_owned(), value.into_owned())
    };
    Element {
        name: start.name().as_ref().to_owned(),
        attributes: start.attributes().map(attribute).collect(),
        text: String::new(),
        children: Vec::new(),
    }
}

pub fn page(run: &Run) -> Element {
    parse_page(&html::render(run, None, &[]))
}

#[test]
fn chapters_come_in_order_and_the_navigation_names_them() {
    let page = page(&run());
    let sections: Vec<&str> =
        page.find("section", "").iter().map(|section| section.attribute("id")).collect();
    assert_eq!(sections, ["rings", "endings", "records", "hits", "attach", "about"]);
    let links: Vec<&str> =
        page.find("nav", "")[0].find("a", "").iter().map(|link| link.attribute("href")).collect();
    assert_eq!(links, sections.iter().map(|id| format!("#{id}")).collect::<Vec<_>>());
    let series = parse_page(&html::render(&series(), None, &[]));
    let sections = series.find("section", "");
    assert_eq!([0, 1].map(|at| sections[at].attribute("id")), ["rings", "changes"]);
}

fn section<'a>(page: &'a Element, id: &str) -> &'a Element {
    let sections = page.find("section", "");
    sections.into_iter().find(|section| section.attribute("id") == id).expect(id)
}

#[test]
fn titles_name_kernels_suite_and_series_and_the_sentence_says_what_was_run() {
    let head = |run: &Run| {
        let page = page(run);
        let (title, heading) = (&page.find("title", "")[0].text, &page.find("h1", "")[0].text);
        assert!(title.ends_with(&format!(": {heading}")), "{title}");
        let about = section(&page, "about").find("div", "")[0].text.clone();
        assert_eq!(about, format!("run{}", run.id));
        (heading.clone(), page.find("header", "")[0].find("p", "")[0].text.clone())
    };
    let mut run = run();
    let (title, sentence) = head(&run);
    assert_eq!(title, "6.1, 6.12, 7.2: stored");
    assert_eq!(
        sentence,
        "tramplab boots these kernels in guests, counts the branch records that a tracing \
         program's snapshot wastes, counts the instructions of a hit and times attaching and \
         detaching."
    );
    // A CPU is no further kernel.
    boot_as_zen4(&mut run);
    assert_eq!(head(&run).0, "6.1, 6.12, 7.2: stored");
    for name in ["6.6", "6.7"] {
        let kernel = Kernel { name: name.to_owned(), ..run.kernels[0].clone() };
        run.kernels.push(kernel);
    }
    assert_eq!(head(&run).0, "6.1, 6.12, 7.2 and 2 more: stored");
    run.cells.clear();
    assert_eq!(head(&run).1, "tramplab boots these kernels in guests.");
    let (title, sentence) = head(&series());
    assert_eq!(title, "6.12-source + lbr-helpers: fixture (x86-64)");
    assert!(sentence.starts_with("tramplab boots a kernel without and with a series of patches"));
    let [alone, ..] = &tramplab_testdata::each_alone()[..] else { panic!() };
    assert_eq!(head(alone).0, "7.2-source + single-direct-ops: single-direct-ops (x86-64)");
}

/// Bars and numbers of every mechanism, by each choice of the reader.
#[test]
fn rings_have_the_records_of_the_analysis() {
    let mut run = run();
    // The driver's records are known and not 0.
    run.kernels.iter_mut().for_each(|kernel| kernel.paravirt_xxl = Some(true));
    let page = page(&run);
    let named = |name: &str| {
        let cells = run.cells.iter().filter_map(|cell| match (&cell.measurement, &cell.id.test) {
            (Some(Measurement::LbrWaste(waste)), Test::LbrWaste(test)) => Some((cell, waste, test)),
            _ => None,
        });
        let points = cells.flat_map(|(cell, waste, test)| {
            waste.points.iter().map(move |point| (cell, waste, point, test.row(point.point)))
        });
        let named = points.filter(|(.., row)| row.to_string() == name);
        named.map(|(cell, waste, point, _)| (cell, waste, point)).collect::<Vec<_>>()
    };
    let end = |ring: &Element, part: &str| {
        let path = ring.find("path", part)[0].attribute("d");
        path.trim_start_matches("M0,0H").trim_end_matches("v1H0").parse::<u32>().unwrap()
    };
    let figures = section(&page, "rings").find("figure", "rings");
    let mut checked = 0;
    for model in Model::of(Arch::X86_64) {
        for filter in Filter::measured() {
            let is_it = |figure: &&&Element| {
                let models = figure.attribute("data-model");
                (models.is_empty() || models.split(' ').any(|name| name == model.name()))
                    && figure.attribute("data-filter") == filter.to_string()
            };
            let [figure] = figures.iter().filter(is_it).collect::<Vec<_>>()[..] else {
                panic!("{model} {filter}")
            };
            for subject in figure.find("tbody", "") {
                let mut left = named(&subject.find("th", "")[0].text);
                for row in subject.find("tr", "") {
                    let [side, ring, wasted, taken, useful] = row.find("td", "")[..] else {
                        panic!("{row:?}")
                    };
                    let is_here = |cell: &Cell| {
                        side.text == "all"
                            || side.text == "both"
                            || side.text.split(", ").any(|kernel| kernel == cell.id.kernel)
                    };
                    let (here, others): (Vec<_>, Vec<_>) =
                        left.into_iter().partition(|(cell, ..)| is_here(cell));
                    left = others;
                    assert!(!here.is_empty(), "{row:?}");
                    for (cell, waste, point) in here {
                        let count = waste::counted(model, filter, point, &waste.function).wasted;
                        let driver = crate::useful::driver(&run, cell, waste, &point.records);
                        assert_eq!(taken.text, driver.takes(model, filter).to_string());
                        let Some(count) = count else {
                            assert_eq!(
                                (&*wasted.text, ring.find("path", "wasted").len()),
                                ("-", 0)
                            );
                            continue;
                        };
                        assert_eq!(wasted.text, count.to_string());
                        for shown in useful.find("span", "") {
                            let depth: u32 = shown.attribute("data-depth").parse().unwrap();
                            let useful = driver.useful(model, filter, depth, count);
                            assert_eq!(shown.text, useful.to_string());
                            let is_shown = depth == 32;
                            assert_eq!(shown.attributes.contains_key("hidden"), !is_shown);
                        }
                        let driver = driver.takes(model, filter).least;
                        let ends = ["wasted", "driver", "useful"].map(|part| end(ring, part));
                        assert_eq!(ends, [count.min(32), (count + driver).min(32), 32]);
                        checked += 1;
                    }
                }
                assert!(left.is_empty());
            }
        }
    }
    assert!(checked > 50, "{checked}");
}

#[test]
fn equal_rings_of_base_and_head_share_a_row() {
    let sides = |run: &Run| -> BTreeSet<String> {
        let page = page(run);
        let rows = section(&page, "rings").find("tr", "");
        let sides = rows.iter().filter_map(|row| Some(row.find("td", "").first()?.text.clone()));
        sides.collect()
    };
    assert_eq!(sides(&series()), ["base", "both", "head"].map(str::to_owned).into());
    let mut equal = series();
    let steps = equal.series[0].steps.clone();
    let of = |run: &Run, step: usize| -> Vec<Cell> {
        run.cells_of(Arch::X86_64, &steps[step].kernel).cloned().collect()
    };
    let (base, last) = (of(&equal, 0), steps.last().unwrap().kernel.clone());
    equal.cells.retain(|cell| cell.id.kernel != last);
    equal.cells.extend(base.into_iter().map(|mut cell| {
        cell.id.kernel.clone_from(&last);
        cell
    }));
    assert_eq!(sides(&equal), ["both".to_owned()].into());
    equal.cells.retain(|cell| cell.id.kernel != last);
    assert_eq!(sides(&equal), ["base".to_owned()].into());
}

#[test]
fn findings_come_before_the_numbers_which_are_folded() {
    let is_open =
        |changes: &Element| changes.find("details", "part")[0].attributes.contains_key("open");
    let run = series();
    let page = page(&run);
    let changes = section(&page, "changes");
    let texts = |of: &Element| of.find("li", "").iter().map(|li| li.text.clone()).collect();
    let shown: Vec<(String, Vec<String>)> = changes
        .find("article", "finding")
        .iter()
        .map(|one| (one.find("p", "")[0].text.trim().to_owned(), texts(one)))
        .collect();
    let told = Document::new(&run, &View::default()).series.remove(0).whole.findings;
    let expected = told.iter().map(|told| {
        let patch = told.patch.clone().unwrap_or_default();
        let head = format!("{} {patch}", told.verdict).trim().to_owned();
        (head, told.causes.iter().chain(&told.moved).cloned().collect())
    });
    let expected: Vec<(String, Vec<String>)> = expected.collect();
    // Models that judge the same share them, so there may be more.
    assert!(!expected.is_empty() && shown.starts_with(&expected), "{shown:?} {expected:?}");
    assert!(!is_open(changes) && changes.find("details", "")[0].find("td", "").len() > 50);
    let mut still = series();
    still.cells.retain(|cell| cell.id.kernel == still.series[0].base().kernel);
    let page = self::page(&still);
    let changes = section(&page, "changes");
    assert!(changes.find("article", "").is_empty() && is_open(changes));
}

#[test]
fn the_banner_has_the_verdict_of_the_exit_code() {
    let mut run = run();
    let word = |run: &Run| page(run).find("p", "verdict")[0].find("strong", "")[0].text.clone();
    assert_eq!(word(&run), "Failed");
    run.interrupted = true;
    assert_eq!(word(&run), "Interrupted");
    run.interrupted = false;
    run.cells.retain(|cell| matches!(cell.outcome, Outcome::Pass));
    assert_eq!(word(&run), "Passed");
    run.cells.clear();
    assert_eq!(word(&run), "Not measured");
}

#[test]
fn every_ending_has_its_cells_its_reason_and_its_console() {
    let mut run = run();
    let allowed = Allowed { warning: "a warning".to_owned(), reason: "known".to_owned() };
    run.cells[0].allowed = vec![allowed];
    let page = page(&run);
    let endings = section(&page, "endings");
    let text = |class: &str| endings.find("details", class)[0].text.clone();
    let fault = run.cells.iter().find(|cell| matches!(cell.outcome, Outcome::Error { .. }));
    let console = endings.find("pre", "")[0].text.clone();
    assert_eq!(console.lines().count(), fault.unwrap().console_tail.len());
    assert!(text("console").contains(&console));
    let warned = text("allowed");
    assert!(warned.contains("a warning (known)") && warned.contains(&run.cells[0].id.name()));
    for cell in run.cells.iter().filter(|cell| !matches!(cell.outcome, Outcome::Pass)) {
        let named = endings.find("code", "").iter().any(|code| code.text == cell.id.name());
        assert!(named, "{}", cell.id.name());
    }
}

/// Captions and cells of every table.
fn tables(of: &Element) -> Vec<(String, Vec<Vec<String>>)> {
    let rows = |figure: &Element| {
        let cells = |row: &&Element| row.children.iter().map(|cell| cell.text.clone()).collect();
        figure.find("tr", "").iter().map(cells).collect::<Vec<Vec<String>>>()
    };
    let of_figure =
        |figure: &&Element| (figure.find("figcaption", "")[0].text.clone(), rows(figure));
    of.find("figure", "table").iter().map(of_figure).collect()
}

#[test]
fn the_page_has_every_table_of_the_other_reports() {
    for run in [run(), series(), two_architectures(), hardware()] {
        let found = tables(&page(&run));
        let document = Document::new(&run, &View::default());
        let of_series = document.series.into_iter();
        let expected = of_series
            .flat_map(|series| series.whole.tables.into_iter().chain(series.walk))
            .chain(document.comparison)
            .chain(document.sections.into_iter().flat_map(|section| section.tables));
        for Table { caption, header, rows, .. } in expected {
            let rows: Vec<Vec<String>> =
                std::iter::once(header).chain(rows).filter(|row| !row.is_empty()).collect();
            assert!(found.contains(&(caption.clone(), rows)), "{caption}");
        }
    }
}

/// The visible number of wasted records of a listing, by filter and model.
#[test]
fn every_choice_has_the_counts_of_the_analysis() {
    let run = run();
    let page = page(&run);
    let listed = page.find("details", "records");
    let mut checked = 0;
    for cell in run.cells.iter().filter(|cell| cell.id.kernel == "6.12") {
        let Some(Measurement::LbrWaste(measured)) = &cell.measurement else { continue };
        let [point] = &measured.points[..] else { continue };
        let name = format!("{} of {}", measured.mechanism, measured.function.name);
        // 6.1 comes first, and has the same mechanisms.
        let details = listed.iter().rfind(|details| details.find("code", "")[0].text == name);
        let details = details.expect("its listing");
        for model in Model::of(cell.id.arch) {
            for filter in Filter::measured() {
                let count = waste::count_at(model, filter, point, &measured.function).wasted;
                let is_it = |part: &&&Element| {
                    let models = part.attribute("data-model");
                    let of_model = models.split(' ').any(|name| name == model.name());
                    (models.is_empty() || of_model)
                        && part.attribute("data-filter") == filter.to_string()
                };
                let counts = details.find("span", "counts");
                let [shown] = counts.iter().filter(is_it).collect::<Vec<_>>()[..] else {
                    panic!("{name} {model} {filter}")
                };
                let tables = details.find("div", "scroll");
                let [table] = tables.iter().filter(is_it).collect::<Vec<_>>()[..] else {
                    panic!("{name} {model} {filter}")
                };
                let rows = table.find("td", "").iter().filter(|td| td.text.contains('→')).count();
                match count {
                    Some(count) => {
                        assert!(shown.text.trim().starts_with(&format!("{count} wasted")));
                        // The record that touches the function is listed too.
                        assert_eq!(rows, count as usize + 1, "{name} {model} {filter}");
                        checked += 1;
                    }
                    None => assert!(shown.text.contains("no such record"), "{}", shown.text),
                }
            }
        }
    }
    assert!(checked > 20, "{checked}");
}

#[test]
fn one_variant_is_shown_before_the_reader_chooses() {
    for run in [run(), series(), two_architectures(), hardware()] {
        for model in [None, Some(Model::AmdLbrV2)] {
            let page = parse_page(&html::render(&run, model, &[]));
            let listings = page
                .find("section", "")
                .into_iter()
                .find(|section| section.attribute("id") == "records");
            let of = |figure: &&Element| {
                figure.find("figcaption", "")[0].text.split(": ").next().unwrap().to_owned()
            };
            let rings = section(&page, "rings").find("figure", "rings");
            let shown = rings.iter().filter(|figure| !figure.attributes.contains_key("hidden"));
            let shown: Vec<String> = shown.map(of).collect();
            let all: BTreeSet<String> = rings.iter().map(of).collect();
            assert_eq!((shown.len(), shown.into_iter().collect()), (all.len(), all));
            for details in listings.unwrap().find("details", "records") {
                let shown = |name, class| {
                    let all = details.find(name, class).into_iter();
                    all.filter(|part| !part.attributes.contains_key("hidden")).count()
                };
                assert_eq!((shown("div", "scroll"), shown("span", "counts")), (1, 1));
            }
            // The select elements show what the page shows.
            let chosen: Vec<&str> = page
                .find("option", "")
                .into_iter()
                .filter(|option| option.attributes.contains_key("selected"))
                .map(|option| option.attribute("value"))
                .collect();
            let first = model.filter(|_| run.cells[0].id.accel == Accel::Tcg);
            if let Some(model) = first {
                assert_eq!(chosen, [model.name(), "any", "16"]);
            } else {
                assert_eq!(chosen.len(), 3);
            }
        }
    }
}

#[test]
fn records_that_came_and_went_have_signs_and_words() {
    let page = page(&series());
    let count = |word: &str| {
        let rows = page.find("tr", word);
        for row in &rows {
            assert!(row.find("td", "mark")[0].text.ends_with(word), "{row:?}");
        }
        rows.len()
    };
    assert!(count("went") > 0 && count("moved") > 0);
    let mut run = series();
    run.series[0].steps.reverse();
    run.series[0].steps.iter_mut().enumerate().for_each(|(at, step)| step.patches = at as u32);
    assert_eq!(parse_page(&html::render(&run, None, &[])).find("tr", "came").len(), count("went"));
}

#[test]
fn pictures_have_the_numbers_of_the_tables() {
    let page = page(&run());
    let plots = page.find("figure", "plot");
    let [bars, times, ..] = &plots[..] else { panic!("{} plots", plots.len()) };
    let run = run();
    let measured = |cell: &&tramplab_model::run::Cell| match &cell.measurement {
        Some(Measurement::Trigger(trigger)) => {
            trigger.cost.as_ref().map(|cost| cost.instructions())
        }
        _ => None,
    };
    let mut totals: Vec<String> =
        run.cells.iter().filter_map(|cell| Some(measured(&cell)?.to_string())).collect();
    let mut shown: Vec<String> =
        bars.find("text", "value").iter().map(|text| text.text.clone()).collect();
    totals.sort();
    shown.sort();
    assert!(totals.len() >= 3);
    // The parts of a bar add up to its instructions.
    assert_eq!(shown, totals);
    let table = tables(&page).into_iter().flat_map(|(_, rows)| rows).flatten();
    let cells: BTreeSet<String> = table.collect();
    for value in times.find("text", "value") {
        // Tables leave out the median of rounds that jump.
        let range = value.text.split_once(" (").map(|(_, range)| range.trim_end_matches(')'));
        let is_there = cells.contains(&value.text) || range.is_some_and(|it| cells.contains(it));
        assert!(is_there, "{}", value.text);
    }
    assert!(times.find("text", "value").len() > 10);
}

#[test]
fn no_text_of_a_run_is_markup() {
    let more = [
        "</script><script>alert(1)</script>",
        "</style></title></textarea></template><svg onload=alert(1)>",
        "\" onfocus=\"alert(1)\" autofocus x='' y=`",
        "{{ 7 * 7 }}{% raw %}<!--",
    ];
    let elements: BTreeSet<String> = [run(), series(), hardware(), two_architectures()]
        .iter()
        .flat_map(|run| {
            page(run).all().into_iter().map(|found| found.name.clone()).collect::<Vec<_>>()
        })
        .collect();
    let attributes = |element: &Element| {
        element.attributes.keys().map(|key| format!("{} {key}", element.name)).collect::<Vec<_>>()
    };
    let known: BTreeSet<String> = [run(), series(), hardware(), two_architectures()]
        .iter()
        .flat_map(|run| page(run).all().into_iter().flat_map(attributes).collect::<Vec<_>>())
        .collect();
    for attack in ATTACKS.iter().chain(&more) {
        for run in runs(attack) {
            let rendered = html::render(&run, None, &[]);
            assert_seen("HTML", &rendered);
            let page = parse_page(&rendered);
            for element in page.all() {
                assert!(elements.contains(&element.name), "<{}>", element.name);
                for attribute in attributes(element) {
                    assert!(known.contains(&attribute), "{attribute}");
                }
                let link = element.attribute("href");
                assert!(link.is_empty() || link.starts_with('#'), "{link}");
            }
            let name = text::line(&run.cells[0].id.kernel);
            let seen = page.text.contains(name.chars().take(100).collect::<String>().trim());
            assert!(seen, "{attack} is not on the page");
        }
    }
}

#[test]
fn the_policy_allows_only_the_pages_own_script_and_style() {
    use base64::{Engine, engine::general_purpose::STANDARD};
    use sha2::{Digest, Sha256};
    let rendered = html::render(&run(), None, &[]);
    let page = parse_page(&rendered);
    let policy = page.find("meta", "").into_iter().find_map(|meta| {
        (meta.attribute("http-equiv") == "Content-Security-Policy")
            .then(|| meta.attribute("content"))
    });
    let policy = policy.expect("a policy");
    for (element, directive) in [("script", "script-src"), ("style", "style-src")] {
        let (_, rest) = rendered.split_once(&format!("<{element}>")).unwrap();
        let (inside, _) = rest.split_once(&format!("</{element}>")).unwrap();
        let digest = STANDARD.encode(Sha256::digest(inside));
        assert!(policy.contains(&format!("{directive} 'sha256-{digest}'")), "{policy}");
    }
    assert!(policy.starts_with("default-src 'none'") && !policy.contains("unsafe"));
    let own = page.all().into_iter().flat_map(|element| element.attributes.keys());
    let handlers: Vec<&String> =
        own.filter(|name| name.starts_with("on") || *name == "style" || *name == "src").collect();
    assert!(handlers.is_empty(), "{handlers:?}");
}

#[test]
fn huge_values_make_no_huge_page() {
    let huge = "<&\"'>".repeat(4000);
    for mut run in [run(), series()] {
        run.notes = vec![huge.clone(); 1000];
        for cell in &mut run.cells {
            cell.console_tail = vec![huge.clone(); 300];
            if let Some(Measurement::LbrWaste(waste)) = &mut cell.measurement {
                waste.function.name = huge.clone();
                for point in &mut waste.points {
                    let record = point.records[0].clone();
                    point.records.resize(300, record);
                    point.records.iter_mut().for_each(|record| {
                        record.from.symbol = Some("<".repeat(1000));
                    });
                }
            }
        }
        let cells = run.cells.clone();
        for number in 0..150 {
            run.cells.extend(cells.iter().cloned().map(|mut cell| {
                cell.id.kernel = format!("{number}{}", &huge[..1000]);
                cell.measurement = None;
                cell.console_tail.truncate(1);
                cell.outcome = Outcome::Error {
                    kind: ErrorKind::Guest,
                    message: format!("{number} {}", &huge[..1000]),
                };
                cell
            }));
        }
        let page = html::render(&run, None, &[]);
        assert!(page.len() < 6 << 20, "{} bytes", page.len());
        let left_out = parse_page(&page).text.contains("This page is full");
        assert!(left_out);
    }
}

/// The suite `quick` measures every mechanism. Each gets the longest listings of the stored run.
#[test]
fn a_page_of_every_mechanism_has_at_most_two_mebibytes() {
    let mut run = run();
    let is_long =
        |cell: &tramplab_model::run::Cell| cell.id.test.name() == "lbr_waste/kprobe.session";
    let cell = run.cells.iter().find(|cell| is_long(cell)).expect("a cell with two points").clone();
    run.cells.retain(|cell| !matches!(cell.id.test, Test::LbrWaste(_)));
    run.cells.extend(Mechanism::ALL.map(|mechanism| {
        let mut cell = cell.clone();
        cell.id.test = Test::LbrWaste(tramplab_model::kinds::lbr_waste::Test {
            mechanism,
            program: None,
            function: None,
        });
        if let Some(Measurement::LbrWaste(waste)) = &mut cell.measurement {
            waste.mechanism = mechanism;
        }
        cell
    }));
    let page = html::render(&run, None, &[]);
    assert!(page.len() < 2 << 20, "{} bytes", page.len());
    let listings = parse_page(&page).find("details", "records").len();
    assert!(listings >= 2 * Mechanism::ALL.len(), "{listings}");
}

/// Colours by name, of the light page and of the dark one.
fn colours() -> [BTreeMap<&'static str, [f64; 3]>; 2] {
    let read = |text: &'static str| -> BTreeMap<&'static str, [f64; 3]> {
        let colour = |part: &'static str| {
            let (name, value) = part.trim().strip_prefix("--")?.split_once(": #")?;
            let channel = |at: usize| {
                let value = f64::from(u8::from_str_radix(&value[at..at + 2], 16).unwrap()) / 255.0;
                if value <= 0.04045 { value / 12.92 } else { ((value + 0.055) / 1.055).powf(2.4) }
            };
            Some((name, [0, 2, 4].map(channel)))
        };
        text.split([';', '{', '}']).filter_map(colour).collect()
    };
    let (light, rest) = CSS.split_once("@media (prefers-color-scheme: dark)").unwrap();
    let (dark, _) = rest.split_once("* {").unwrap();
    let light = read(light);
    let dark = light.clone().into_iter().chain(read(dark)).collect();
    [light, dark]
}

/// WCAG 2's contrast ratio.
fn contrast(a: [f64; 3], b: [f64; 3]) -> f64 {
    let luminance = |[r, g, b]: [f64; 3]| 0.2126 * r + 0.7152 * g + 0.0722 * b;
    let (a, b) = (luminance(a), luminance(b));
    (a.max(b) + 0.05) / (a.min(b) + 0.05)
}

#[test]
fn colours_have_the_contrast_of_wcag_aa() {
    for colours in colours() {
        let ratio = |a: &str, b: &str| contrast(colours[a], colours[b]);
        for text in ["text", "quiet", "link", "better", "worse", "pass", "fail", "error"] {
            for page in ["page", "raised"] {
                assert!(ratio(text, page) >= 4.5, "{text} on {page}: {}", ratio(text, page));
            }
        }
        for row in ["went", "came", "moved"] {
            assert!(ratio("text", row) >= 4.5 && ratio("quiet", row) >= 4.5, "{row}");
        }
        // Numbers on the parts of bars: black, or the colour `on`.
        let black = [0.0; 3];
        for part in ["c1", "c2", "c3", "c4", "c5", "others"] {
            assert!(contrast(colours[part], black) >= 4.5, "{part}");
        }
        for part in ["c0", "c6"] {
            assert!(ratio(part, "on") >= 4.5, "{part}: {}", ratio(part, "on"));
        }
    }
    assert!((contrast([0.0; 3], [1.0; 3]) - 21.0).abs() < 1e-9);
}
