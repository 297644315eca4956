// SPDX-License-Identifier: MIT OR Apache-2.0
//! Opens `report.html` and the site of a history in a real browser. Screenshots are kept in
//! `target/tmp/report-html/`.

mod driver;
mod site;

use crate::command::{said, tramplab};
use driver::Browser;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::{
    fs,
    path::{Path, PathBuf},
};
use tempfile::TempDir;
use tramplab_analysis::profile::Profile;
use tramplab_host::runs::RunDir;
use tramplab_model::{
    name::hex,
    run::{ErrorKind, Measurement, Outcome, Run},
};
use tramplab_protocol::message::Explain;

/// Writes a run's page as a user does.
fn page(dir: &TempDir, name: &str, run: &Run) -> PathBuf {
    let folder = dir.path().join(name);
    fs::create_dir(&folder).unwrap();
    fs::write(folder.join("run.json"), serde_json::to_vec(run).unwrap()).unwrap();
    rendered(&folder)
}

fn rendered(folder: &Path) -> PathBuf {
    let page = folder.join("report.html");
    let mut command = tramplab();
    command.arg("report").arg(folder).args(["--format", "html", "--output"]).arg(&page);
    let output = command.output().unwrap();
    assert!(page.is_file(), "{}", said(&output));
    page
}

/// Runs with every part of a page.
fn recorded() -> Vec<(&'static str, Run)> {
    let mut runs = vec![
        ("stored", tramplab_testdata::stored()),
        ("series", tramplab_testdata::series()),
        ("letter", tramplab_testdata::letter()),
        ("two-architectures", tramplab_testdata::two_architectures()),
        ("hostile", hostile()),
    ];
    let names = ["single-direct-ops", "ftrace-direct-lookups", "tracing-multi-hash"];
    runs.extend(names.into_iter().zip(tramplab_testdata::each_alone()));
    runs
}

/// The end of each text of the hostile run.
const ATTACK: &str = "</script></style></title><img src=x onerror='window.hacked=1'>\
     <script>window.hacked=1</script>\" autofocus onfocus=\"window.hacked=1";

/// A run whose every symbol, message and name is an attack.
fn hostile() -> Run {
    let mut run = tramplab_testdata::series();
    for (cell, message) in run.cells.iter_mut().zip(["first", "second"]) {
        let message = format!("{message}{ATTACK}");
        cell.outcome = Outcome::Error { kind: ErrorKind::Panic, message };
        cell.console_tail = vec![ATTACK.to_owned()];
    }
    let mut value = serde_json::to_value(&run).unwrap();
    poison(&mut value);
    serde_json::from_value(value).unwrap()
}

/// Kernels' names stay equal to themselves, so the series still has its cells.
fn poison(value: &mut Value) {
    match value {
        Value::Array(values) => values.iter_mut().for_each(poison),
        Value::Object(entries) => {
            for (key, value) in entries {
                match value {
                    Value::String(text)
                        if ["symbol", "name", "kernel", "title", "subject", "cpu"]
                            .contains(&key.as_str()) =>
                    {
                        text.push_str(ATTACK);
                    }
                    _ => poison(value),
                }
            }
        }
        _ => {}
    }
}

/// The parts that the page is too narrow for. Wide tables and pictures scroll by themselves.
const BEYOND: &str = "return [...document.querySelectorAll('body *')].filter((part) => \
     !part.parentElement.closest('.scroll, pre, .skip') && \
     part.getBoundingClientRect().right > \
     document.documentElement.clientWidth).map((part) => part.outerHTML.slice(0, 99))";

/// The cells that decide, and are off a phone's screen: those of the columns that a selector's
/// tables have under these heads.
fn off_screen(browser: &Browser, tables: &str, heads: &str) -> Value {
    browser.resize(400, 900);
    browser.run(&format!(
        "const heads = {heads}; let seen = 0; \
         const off = [...document.querySelectorAll('{tables}')].flatMap((table) => \
         [...table.querySelectorAll('thead th')].flatMap((head, column) => \
         heads.includes(head.innerText.trim()) ? [...table.querySelectorAll('tr')].map((row) => \
         row.children[row.children.length - table.querySelectorAll('thead th').length + column]) \
         : [])).filter((cell) => cell?.checkVisibility()).filter((cell) => {{ seen += 1; \
         const at = cell.getBoundingClientRect(); return at.left < 0 || \
         at.right > document.documentElement.clientWidth; }}).map((cell) => cell.outerHTML); \
         return {{ off, seen: seen > 3 }}"
    ))
}

/// A package that has axe-core 4.12.1.
const AXE: &str = "axe-playwright-python==0.1.8";
/// SHA-256 of `axe.min.js` in npm's package of that version.
const AXE_SHA256: &str = "66a8aaa95a8b044a7fd74a5435873bf04ff65a1ca75567c921b7509742085a14";

/// axe-core, which looks for barriers: contrast, names of controls, order of headings and more.
struct Axe(String);

impl Axe {
    fn new() -> Axe {
        let file = crate::pip::installed(&[AXE]).join("axe_playwright_python/axe.min.js");
        let code = fs::read_to_string(file).unwrap().trim_end().to_owned();
        assert_eq!(hex(&Sha256::digest(&code)), AXE_SHA256);
        Axe(code)
    }

    /// The rules that the open page breaks, each with the first element that does, in both colour
    /// schemes.
    fn barriers(&self, browser: &Browser, page: &Path) -> Vec<Value> {
        let of_scheme = |scheme: &str| {
            let scheme = json!({ "name": "prefers-color-scheme", "value": scheme });
            browser.devtools("Emulation.setEmulatedMedia", &json!({ "features": [scheme] }));
            browser.open(page);
            browser
                .run("document.querySelectorAll('details').forEach((one) => { one.open = true; })");
            self.broken(browser)
        };
        ["light", "dark"].into_iter().flat_map(of_scheme).collect()
    }

    fn broken(&self, browser: &Browser) -> Vec<Value> {
        let found = browser.run_async(&format!(
            "{}; axe.run().then((found) => done(found.violations.map((broken) => \
             [broken.id, broken.nodes[0].html])), (error) => done([String(error)]))",
            self.0
        ));
        found.as_array().unwrap().clone()
    }
}

#[test]
fn pages_have_no_barrier_that_axe_finds() {
    let dir = tempfile::tempdir().unwrap();
    let (axe, browser) = (Axe::new(), Browser::start());
    browser.resize(400, 900);
    let mut runs = recorded();
    runs.retain(|(name, _)| ["stored", "letter"].contains(name));
    for (name, run) in runs {
        assert_eq!(axe.barriers(&browser, &page(&dir, name, &run)), [Value::Null; 0], "{name}");
    }
    // It would find one.
    browser.run("document.documentElement.removeAttribute('lang')");
    let broken = axe.broken(&browser);
    assert!(broken.len() == 1 && broken[0][0] == "html-has-lang", "{broken:?}");
}

/// The folder of the screenshots.
fn pictures() -> PathBuf {
    let pictures = Path::new(env!("CARGO_TARGET_TMPDIR")).join("report-html");
    fs::create_dir_all(&pictures).unwrap();
    pictures
}

#[test]
fn pages_open_without_errors_and_fit_every_width() {
    let dir = tempfile::tempdir().unwrap();
    let pictures = pictures();
    let browser = Browser::start();
    for (name, run) in recorded() {
        let page = page(&dir, name, &run);
        for width in [360, 768, 1280] {
            browser.resize(width, 900);
            browser.open(&page);
            assert_eq!(browser.console(), [""; 0], "{name}");
            let beyond = browser.run(BEYOND);
            assert_eq!(beyond, json!([]), "{name}, {width}");
            if ["stored", "series"].contains(&name) {
                let height = browser.run("return document.documentElement.scrollHeight");
                browser.resize(width, height.as_u64().unwrap() as u32);
                browser.screenshot(&pictures.join(format!("{name}-{width}.png")));
            }
        }
        let shown = browser.run("return document.querySelectorAll('main section').length");
        assert!(shown.as_u64() > Some(2), "{name}: {shown}");
    }
}

#[test]
fn phones_show_verdicts_and_changes_without_scrolling() {
    let dir = tempfile::tempdir().unwrap();
    let browser = Browser::start();
    let fits = json!({ "off": [], "seen": true });
    let mut runs = recorded();
    runs.retain(|(name, _)| *name != "hostile");
    let mut long = tramplab_testdata::stored();
    let names = long.kernels.iter_mut().map(|kernel| &mut kernel.name);
    let names = names.chain(long.cells.iter_mut().map(|cell| &mut cell.id.kernel));
    names.for_each(|name| *name += "-source+preempt-full");
    runs.push(("long", long));
    for (name, run) in runs {
        browser.open(&page(&dir, name, &run));
        browser.run("document.querySelectorAll('details').forEach((one) => { one.open = true; })");
        let ring = "['mechanism', 'wasted', 'driver\\'s', 'useful of 32', 'useful of 16']";
        let rings = browser.run("return document.getElementById('rings') !== null");
        if rings == json!(true) {
            assert_eq!(off_screen(&browser, ".rings table", ring), fits, "{name}");
        }
        if !run.series.is_empty() {
            let judged = "['head', 'change', 'verdict']";
            assert_eq!(off_screen(&browser, "#changes table", judged), fits, "{name}");
        }
        let beyond = browser.run(
            "return [...document.querySelectorAll('.verdict, .judged, .finding')].filter((part) => \
             part.getBoundingClientRect().right > document.documentElement.clientWidth).length",
        );
        assert_eq!(beyond, json!(0), "{name}");
    }
}

/// The visible counts of each listing.
const COUNTS: &str = "return [...document.querySelectorAll('.counts')].filter((counts) => \
     !counts.hidden).map((counts) => counts.innerText.trim())";

/// The visible listings: filter, records, records that the ring has lost.
const LISTED: &str = "return [...document.querySelectorAll('#records .records .scroll')]\
     .filter((table) => !table.hidden).map((table) => [table.dataset.filter, \
     table.querySelectorAll('td[data-index]').length, table.querySelectorAll('.lost').length])";

/// The first row of the visible picture.
const RING: &str = "return [...[...document.querySelectorAll('.rings tbody tr')].find((row) => \
     row.checkVisibility()).children].map((cell) => cell.innerText.trim())";

/// The key that selects the first choice, in the protocol's encoding.
const HOME: &str = "\u{e011}";

#[test]
fn readers_switch_model_filter_and_depth_with_the_keyboard() {
    let dir = tempfile::tempdir().unwrap();
    let browser = Browser::start();
    browser.open(&page(&dir, "letter", &tramplab_testdata::letter()));
    let counts = || browser.run(COUNTS);
    let [any, any_return] = ["base 9 wasted, 23 of 32 useful", "base 3 wasted, 29 of 32 useful"];
    let first = |counts: &Value| counts[0].as_str().unwrap().to_owned();
    let ring = || browser.run(RING);
    assert_eq!(ring(), json!(["fexit", "base", "", "9", "0", "23"]));
    assert!(first(&counts()).starts_with(any), "{}", counts());
    browser.type_into("select[data-choice=filter]", "any_return");
    assert!(first(&counts()).starts_with(any_return), "{}", counts());
    assert_eq!(ring(), json!(["fexit", "base", "", "3", "0", "29"]));
    let listed = browser.run(LISTED);
    let filters = listed.as_array().unwrap().iter().map(|listed| &listed[0]);
    assert!(filters.clone().all(|filter| filter == "any_return") && filters.count() == 2);
    browser.type_into("select[data-choice=filter]", HOME);
    let lost = |listed: Value| -> u64 {
        listed.as_array().unwrap().iter().map(|listed| listed[2].as_u64().unwrap()).sum()
    };
    assert_eq!(lost(browser.run(LISTED)), 0);
    browser.type_into("select[data-choice=depth]", "8");
    assert!(first(&counts()).starts_with("base 9 wasted, 0 of 8 useful"), "{}", counts());
    assert_eq!(ring(), json!(["fexit", "base", "", "9", "0", "0"]));
    assert!(lost(browser.run(LISTED)) > 0);
    browser.type_into("select[data-choice=model]", "amd-lbrv2");
    let chosen = browser.run(
        "return [...document.querySelectorAll('[data-model]')].every((part) => \
         part.hidden || part.dataset.model.split(' ').includes('amd-lbrv2'))",
    );
    assert_eq!(chosen, json!(true));
    browser.run("document.querySelector('#changes details').open = true");
    let tables = browser.run(
        "return [...document.querySelectorAll('figcaption')].filter((caption) => \
         caption.checkVisibility() && caption.innerText.includes('(amd-lbrv2)')).length",
    );
    assert!(tables.as_u64() > Some(0), "{tables}");
    assert_eq!(browser.console(), [""; 0]);
}

#[test]
fn readers_search_listings() {
    let dir = tempfile::tempdir().unwrap();
    let browser = Browser::start();
    browser.open(&page(&dir, "letter", &tramplab_testdata::letter()));
    let shown = || {
        browser.run(
            "return [...document.querySelectorAll('.records')].filter((listing) => \
             !listing.hidden).map((listing) => listing.querySelector('code').innerText)",
        )
    };
    assert_eq!(shown().as_array().unwrap().len(), 2);
    browser.type_into("#search", "rethook");
    assert_eq!(shown(), json!(["kretprobe.multi of bpf_fentry_test1"]));
    let found = browser.run("return document.getElementById('found').value");
    assert_eq!(found, json!("1 of 2 listings"));
    browser.type_into("#search", "no such function");
    assert_eq!(shown(), json!([]));
}

/// A run's folder with a profile of 900 instructions.
fn profiled(dir: &TempDir) -> PathBuf {
    let mut run = tramplab_testdata::stored();
    let folder = RunDir::at(dir.path());
    let profile = include_str!("../../../report/src/testdata/profile-base.json");
    let mut profile: Profile = serde_json::from_str(profile).unwrap();
    profile.functions[2].name += ATTACK;
    let mut explained = run.cells.iter_mut().filter_map(|cell| match &mut cell.measurement {
        Some(Measurement::Attach(attach)) => {
            let mut summaries = attach.explained.iter_mut();
            Some((&cell.id, summaries.find(|summary| summary.how == Explain::Exact)?))
        }
        _ => None,
    });
    let (id, summary) = explained.next().unwrap();
    (profile.cell, profile.phase) = (id.name(), summary.phase);
    summary.totals = profile.totals();
    fs::create_dir_all(folder.cell(id)).unwrap();
    let file = folder.cell(id).join(&summary.file);
    fs::write(file, serde_json::to_vec(&profile).unwrap()).unwrap();
    folder.save(&run).unwrap();
    rendered(dir.path())
}

#[test]
fn readers_zoom_into_flame_graphs_and_search_them() {
    let dir = tempfile::tempdir().unwrap();
    let browser = Browser::start();
    browser.open(&profiled(&dir));
    let of = |script: &str| browser.run(script);
    assert_eq!(of("return document.querySelectorAll('.flame').length"), json!(1));
    of("document.querySelector('.flame').open = true");
    let shown = || {
        of("return [...document.querySelectorAll('.frame')].filter((frame) => \
            frame.style.display !== 'none').map((frame) => [frame.querySelector('title')\
            .textContent.split(':')[0].slice(0, 19), Number(frame.querySelector('rect')\
            .getAttribute('width'))])")
    };
    let width = |name: &str| {
        let shown = shown();
        let found = shown.as_array().unwrap().iter().find(|frame| frame[0] == name);
        found.map(|frame| frame[1].as_f64().unwrap())
    };
    let replace = "ftrace_replace_code";
    let all = shown().as_array().unwrap().len();
    // 500 of 900 instructions.
    assert!((width(replace).unwrap() - 860.0 * 500.0 / 900.0).abs() < 0.2, "{}", shown());
    browser.type_into(".frame:nth-of-type(4)", "\n");
    let zoomed = shown();
    assert!(zoomed.as_array().unwrap().len() < all, "{zoomed}");
    browser.type_into(".flame .root", "\n");
    assert_eq!(shown().as_array().unwrap().len(), all);
    browser.type_into(".seek input", "text_poke");
    let hits = of("return [...document.querySelectorAll('.hit')].length");
    assert_eq!(hits, json!(3));
    assert_eq!(of("return document.querySelector('.seek output').value"), json!("3 frames"));
    // A hostile name is drawn as text; profiles have no spaces in names.
    let name = of("return [...document.querySelectorAll('.frame text')].map((text) => \
                   text.dataset.name).find((name) => name.startsWith('ftrace_replace_code'))");
    assert_eq!(name, json!(format!("{replace}{}", ATTACK.replace(' ', "_"))));
    assert_eq!(of("return window.hacked === undefined"), json!(true));
    assert_eq!(browser.console(), [""; 0]);
}

#[test]
fn hostile_names_stay_text() {
    let dir = tempfile::tempdir().unwrap();
    let browser = Browser::start();
    browser.open(&page(&dir, "hostile", &hostile()));
    let of = |script: &str| browser.run(script);
    assert_eq!(of("return window.hacked === undefined"), json!(true));
    assert_eq!(of("return document.querySelectorAll('img').length"), json!(0));
    assert_eq!(of("return document.querySelectorAll('script, style').length"), json!(2));
    assert_eq!(of("return document.querySelectorAll('[onfocus], [autofocus]').length"), json!(0));
    let shown = of("return document.body.innerText.split(\"onerror='window.hacked=1'\").length");
    assert!(shown.as_u64() > Some(20), "{shown}");
    let console = of("return document.querySelector('.console pre').textContent");
    assert_eq!(console, json!(format!("{ATTACK}\n")));
    // If a text became markup all the same, the page's policy would stop it.
    of(
        "document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=\"window.hacked=1\">'); \
        const script = document.createElement('script'); script.textContent = 'window.hacked=1'; \
        document.body.append(script)",
    );
    assert_eq!(of("return window.hacked === undefined"), json!(true));
    let refused = browser.console();
    assert!(refused.iter().any(|entry| entry.contains("Content Security Policy")), "{refused:?}");
}

#[test]
fn pages_are_readable_without_scripts_and_in_the_dark() {
    let dir = tempfile::tempdir().unwrap();
    let browser = Browser::start();
    let page = page(&dir, "series", &tramplab_testdata::series());
    browser.devtools("Emulation.setScriptExecutionDisabled", &json!({ "value": true }));
    let dark = json!({ "features": [{ "name": "prefers-color-scheme", "value": "dark" }] });
    browser.devtools("Emulation.setEmulatedMedia", &dark);
    browser.open(&page);
    let of = |script: &str| browser.run(script);
    assert_eq!(of("return document.getElementById('switches').checkVisibility()"), json!(false));
    let rows = "return [...document.querySelectorAll('.rings td, .finding li')].filter((cell) => \
                cell.checkVisibility()).length";
    assert!(of(rows).as_u64() > Some(20), "{}", of(rows));
    let records = of("return [...document.querySelectorAll('td[data-index]')].filter((cell) => \
                      cell.checkVisibility()).length");
    assert!(records.as_u64() > Some(20), "{records}");
    let background = of("return getComputedStyle(document.body).backgroundColor");
    assert_eq!(background, json!("rgb(20, 23, 28)"));
    browser.resize(1280, 3000);
    browser.screenshot(&pictures().join("series-dark.png"));
}
