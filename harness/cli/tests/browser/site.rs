// SPDX-License-Identifier: MIT OR Apache-2.0
//! The site of `history --site`.

use super::*;
use tramplab_testdata::git::run as git;

/// A site in `dir/site`.
struct Site(PathBuf);

impl Site {
    /// Writes the site of runs as a user does.
    fn new(dir: &TempDir, runs: &[Run], tree: Option<&Path>) -> Site {
        for run in runs {
            let folder = dir.path().join("runs").join(&run.id);
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join("run.json"), serde_json::to_vec(run).unwrap()).unwrap();
        }
        let site = dir.path().join("site");
        let mut command = tramplab();
        command.args(["history", "--runs"]).arg(dir.path().join("runs")).arg("--site").arg(&site);
        command.args(tree.map(|tree| format!("--tree={}", tree.display())));
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", said(&output));
        Site(site)
    }

    fn index(&self) -> PathBuf {
        self.0.join("index.html")
    }

    fn metric(&self, metric: &str) -> PathBuf {
        self.0.join(format!("metrics/{metric}.html"))
    }
}

/// The recorded kernels as commits of 14 nights, with rises and falls, and two nights of another
/// kernel on two architectures. From the eighth night on, attaching takes longer.
fn nights() -> Vec<Run> {
    let mut runs = tramplab_testdata::commits(&[2, 2, 1, 1, 1, 2, 2, 0, 0, 2, 1, 1, 1, 2]);
    for (number, run) in runs.iter_mut().enumerate() {
        for cell in &mut run.cells {
            let Some(Measurement::Attach(attach)) = &mut cell.measurement else { continue };
            let rounds = attach.boots.iter_mut().flat_map(|boot| &mut boot.rounds);
            let per_cent = (number as u64 * 7) % 5 + if number < 7 { 0 } else { 30 };
            rounds.for_each(|round| round.attach_ns = 4_000_000 / 100 * (100 + per_cent));
        }
    }
    for number in [3, 9] {
        let mut run = tramplab_testdata::two_architectures();
        run.id = format!("other-{number}");
        run.started = format!("2026-11-{:02}T10:00:00Z", number + 1);
        runs.push(run);
    }
    runs
}

#[test]
fn pages_open_without_errors_and_fit_every_width() {
    let dir = tempfile::tempdir().unwrap();
    let site = Site::new(&dir, &nights(), None);
    let browser = Browser::start();
    let attach = site.metric("attach.kprobe_multi.10.attach");
    let pages = [
        ("site", site.index()),
        ("site-waste", site.metric("lbr_waste.fexit.any")),
        ("site-attach", attach),
    ];
    for scheme in ["light", "dark"] {
        let features = json!({ "features": [{ "name": "prefers-color-scheme", "value": scheme }] });
        browser.devtools("Emulation.setEmulatedMedia", &features);
        for (name, page) in &pages {
            for width in [360, 768, 1280] {
                browser.resize(width, 900);
                browser.open(page);
                assert_eq!(browser.console(), [""; 0], "{name}");
                assert_eq!(browser.run(BEYOND), json!([]), "{name}, {width}");
                let height = browser.run("return document.documentElement.scrollHeight");
                browser.resize(width, height.as_u64().unwrap() as u32);
                browser.screenshot(&pictures().join(format!("{name}-{width}-{scheme}.png")));
            }
        }
    }
}

#[test]
fn pages_have_no_barrier_that_axe_finds() {
    let dir = tempfile::tempdir().unwrap();
    let site = Site::new(&dir, &nights(), None);
    let (axe, browser) = (Axe::new(), Browser::start());
    browser.resize(400, 900);
    let [waste, attach] = ["lbr_waste.fexit.any", "attach.kprobe_multi.10.attach"];
    for page in [site.index(), site.metric(waste), site.metric(attach)] {
        assert_eq!(axe.barriers(&browser, &page), [Value::Null; 0], "{}", page.display());
    }
}

#[test]
fn phones_show_steps_and_changes_without_scrolling() {
    let dir = tempfile::tempdir().unwrap();
    let site = Site::new(&dir, &nights(), None);
    let browser = Browser::start();
    let fits = json!({ "off": [], "seen": true });
    let attach = site.metric("attach.kprobe_multi.10.attach");
    let pages = [
        (site.index(), "['before', 'after', 'change', 'now']"),
        (site.index(), "['worse', 'better', 'last step', 'course and newest number']"),
        (site.metric("lbr_waste.fexit.any"), "['records', 'change', 'step']"),
        (attach, "['ms', 'change', 'step', 'steps']"),
    ];
    for (page, heads) in pages {
        browser.open(&page);
        browser.run("document.querySelectorAll('details').forEach((one) => { one.open = true; })");
        assert_eq!(off_screen(&browser, "table", heads), fits, "{}, {heads}", page.display());
    }
}

/// Every link of every page leads to a file and to a part of it.
#[test]
fn links_resolve() {
    let dir = tempfile::tempdir().unwrap();
    let site = Site::new(&dir, &nights(), None);
    let browser = Browser::start();
    let links = "return [...document.querySelectorAll('a[href]')].map((a) => a.href)";
    browser.open(&site.index());
    let mut pages: Vec<String> = Vec::new();
    for link in browser.run(links).as_array().unwrap() {
        let link = link.as_str().unwrap().split('#').next().unwrap().to_owned();
        if !pages.contains(&link) {
            pages.push(link);
        }
    }
    let files = fs::read_dir(site.0.join("metrics")).unwrap().count();
    assert_eq!(pages.len(), files + 1);
    for page in &pages {
        let file = PathBuf::from(page.strip_prefix("file://").unwrap());
        browser.open(&file);
        assert_eq!(browser.console(), [""; 0], "{page}");
        let missing = browser.run(
            "return [...document.querySelectorAll('a[href^=\"#\"]')].filter((a) => \
             !document.querySelector(a.getAttribute('href'))).map((a) => a.href)",
        );
        assert_eq!(missing, json!([]), "{page}");
        for link in browser.run(links).as_array().unwrap() {
            let link = link.as_str().unwrap().split('#').next().unwrap();
            assert!(pages.iter().any(|page| page == link), "{link} of {page}");
        }
    }
}

#[test]
fn readers_filter_metrics() {
    let dir = tempfile::tempdir().unwrap();
    let site = Site::new(&dir, &nights(), None);
    let browser = Browser::start();
    browser.open(&site.index());
    let shown = || {
        let shown = browser.run(
            "return [...document.querySelectorAll('tr[data-metric]')].filter((row) => \
             row.checkVisibility()).map((row) => row.querySelector('a').innerText)",
        );
        shown.as_array().unwrap().iter().map(|name| name.as_str().unwrap().to_owned()).collect()
    };
    let all: Vec<String> = shown();
    browser.type_into("#find input", "FEXIT call arm64");
    let found: Vec<String> = shown();
    let expected: Vec<&String> =
        all.iter().filter(|name| name.contains("fexit") && name.contains("call")).collect();
    assert!(!found.is_empty() && found.len() < all.len());
    assert!(found.iter().all(|name| expected.contains(&name)), "{found:?}");
    let said = browser.run("return document.querySelector('#find output').value");
    assert_eq!(said, json!(format!("{} of {} metrics", found.len(), all.len())));
    let chapters = browser.run(
        "return [...document.querySelectorAll('section[data-metrics]')].filter((one) => \
         one.checkVisibility()).length",
    );
    assert_eq!(chapters, json!(1));
    browser.type_into("#find input", " no-such-word");
    assert_eq!(shown(), Vec::<String>::new());
    // Without scripts the list is whole and there is no filter.
    browser.devtools("Emulation.setScriptExecutionDisabled", &json!({ "value": true }));
    browser.open(&site.index());
    assert_eq!(shown(), all);
    let form = browser.run("return document.getElementById('find').checkVisibility()");
    assert_eq!(form, json!(false));
    assert_eq!(browser.console(), [""; 0]);
}

/// Names, releases and subjects of commits are an attack.
#[test]
fn hostile_names_stay_text() {
    let dir = tempfile::tempdir().unwrap();
    let tree = dir.path().join("linux<img src=x onerror='window.hacked=1'>");
    fs::create_dir(&tree).unwrap();
    git(&tree, &["init", "--quiet"]);
    let mut runs = tramplab_testdata::commits(&[2, 1, 2]);
    for run in &mut runs {
        git(&tree, &["commit", "--quiet", "--allow-empty", "--message", ATTACK]);
        let commit = git(&tree, &["rev-parse", "HEAD"]);
        run.kernels[0].commit = Some(commit);
        let mut value = serde_json::to_value(&run).unwrap();
        poison(&mut value);
        *run = serde_json::from_value(value).unwrap();
    }
    let site = Site::new(&dir, &runs, Some(&tree));
    let browser = Browser::start();
    for page in [site.index(), site.metric("lbr_waste.fexit.any")] {
        browser.open(&page);
        let of = |script: &str| browser.run(script);
        assert_eq!(of("return window.hacked === undefined"), json!(true));
        assert_eq!(of("return document.querySelectorAll('img').length"), json!(0));
        assert_eq!(of("return document.querySelectorAll('script, style').length"), json!(2));
        assert_eq!(of("return document.querySelectorAll('[onfocus]').length"), json!(0));
        let shown = of("return document.body.textContent.split('<img src=x').length");
        assert!(shown.as_u64() > Some(5), "{shown}");
        assert_eq!(browser.console(), [""; 0]);
        // If a text became markup all the same, the page's policy would stop it.
        of("document.body.insertAdjacentHTML('beforeend', \
            '<img src=x onerror=\"window.hacked=1\">')");
        assert_eq!(of("return window.hacked === undefined"), json!(true));
        let refused = browser.console();
        assert!(refused.iter().any(|entry| entry.contains("Content Security")), "{refused:?}");
    }
}
