// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sites of histories of a recorded series whose three kernels are taken for commits.

use super::*;
use std::collections::BTreeSet;
use tramplab_analysis::history::{Query, ancestry::Between, of};
use tramplab_model::run::Run;
use tramplab_testdata::{commit, commit_id, commits};

fn site(runs: &[Run], told: &Told) -> Vec<File> {
    let titles = (0..runs.len()).map(|number| (commit_id(number), format!("bpf: Change {number}")));
    let ancestry = Ancestry::new(titles);
    let found = of(runs, Some(&ancestry), &Query::default());
    let content = Content { found: &found, told, ancestry: Some(&ancestry), runs: runs.len() };
    render(&content)
}

fn file<'a>(site: &'a [File], path: &str) -> &'a str {
    &site.iter().find(|file| file.path == path).unwrap_or_else(|| panic!("{path}")).html
}

const FEXIT: &str = "metrics/lbr_waste.fexit.any.html";

#[test]
fn front_page_shows_newest_steps_first() {
    // Worse at commit 2, better at 4.
    let site = site(&commits(&[2, 2, 1, 1, 2]), &Told::default());
    let index = file(&site, "index.html");
    let place = |text: &str| index.find(text).unwrap_or_else(|| panic!("{text} in {index}"));
    let [worse, better] = [2, 4].map(|number| {
        place(&format!("<code>{}</code> bpf: Change {number}", &commit_id(number)[..12]))
    });
    assert!(place("id=\"worse\"") < worse && worse < place("id=\"better\""));
    assert!(place("id=\"better\"") < better && better < place("id=\"metrics\""));
    // The newest commit is better, and nothing there is worse.
    assert!(index.contains("<strong>Better</strong>"), "{index}");
    let row = "<a href=\"metrics/lbr_waste.fexit.any.html\">lbr_waste.fexit.any</a> \
               <span class=\"quiet\">records</span></th>\
               <td class=\"n\">9</td><td class=\"n\">10</td><td class=\"n worse\">+1</td>\
               <td class=\"n\">9</td>";
    assert!(index.contains(row), "{index}");
    // As the terminal draws it.
    let course =
        "<span class=\"spark\" aria-hidden=\"true\">▁▁██▁</span> <b>9</b> linux (x86_64, tcg)<";
    assert!(index.contains(course), "{index}");

    let steady = self::site(&commits(&[2, 2]), &Told::default());
    let index = file(&steady, "index.html");
    assert!(index.contains("<strong>Steady</strong>") && index.contains("Nothing got worse."));
}

/// All runs are of one day, each an hour after the one before.
#[test]
fn front_page_shows_commits_and_kernels_of_one_day_in_order() {
    let mut runs = commits(&[2, 1, 2, 1, 2, 1]);
    for (hour, run) in runs.iter_mut().enumerate() {
        run.started = format!("2026-11-03T1{hour}:00:00Z");
    }
    for (kernel, hour) in [("6.12", 1), ("6.6", 3)] {
        for mut run in commits(&[2, 1]) {
            run.id += kernel;
            run.started = format!("2026-11-03T0{hour}:{}:00Z", &run.started[8..10]);
            run.kernels[0].name = kernel.to_owned();
            run.kernels[0].commit = None;
            run.kernels[0].source = format!("debian {kernel}");
            run.cells.iter_mut().for_each(|cell| cell.id.kernel = kernel.to_owned());
            runs.push(run);
        }
    }
    let site = site(&runs, &Told::default());
    let index = file(&site, "index.html");
    let worse = &index[index.find("id=\"worse\"").unwrap()..index.find("id=\"better\"").unwrap()];
    let place = |text: &str| worse.find(text).unwrap_or_else(|| panic!("{text} in {worse}"));
    let commit = |number: usize| place(&format!("<code>{}</code>", &commit_id(number)[..12]));
    assert!(commit(5) < commit(3) && commit(3) < commit(1), "{worse}");
    let kernel = |kernel: &str| place(&format!("; {kernel} (x86_64, tcg; suite fixture)"));
    assert!(kernel("6.6") < kernel("6.12"), "{worse}");
    assert!(index.contains("<dd>6.6 (x86_64, tcg), 6.12 (x86_64, tcg), linux (x86_64, tcg)</dd>"));
    // The picture tells the runs of a day apart.
    let page = file(&site, FEXIT);
    assert!(page.contains(">11-03 01:01:00</text>"), "{page}");
}

/// A package's release stays when the package is measured again.
#[test]
fn front_page_separates_days_of_one_release() {
    let mut runs = commits(&[2, 1, 2, 1]);
    for run in &mut runs {
        run.kernels[0].name = "newest".to_owned();
        run.kernels[0].commit = None;
        run.kernels[0].source = "debian newest".to_owned();
        run.cells.iter_mut().for_each(|cell| cell.id.kernel = "newest".to_owned());
    }
    let site = site(&runs, &Told::default());
    let index = file(&site, "index.html");
    let worse = &index[index.find("id=\"worse\"").unwrap()..index.find("id=\"better\"").unwrap()];
    let day = |day: u32| {
        let about = format!("newest (x86_64, tcg; suite fixture), 2026-11-0{day}</span>");
        worse.find(&about).unwrap_or_else(|| panic!("{about} in {worse}"))
    };
    assert!(day(4) < day(2));
    assert_eq!(worse.matches("<details").count(), 2);
}

#[test]
fn links_lead_to_pages_and_every_page_is_linked() {
    let site = site(&commits(&[2, 1]), &Told::default());
    let paths: BTreeSet<&str> = site.iter().map(|file| file.path.as_str()).collect();
    assert_eq!(paths.len(), site.len());
    assert!(site.len() > 20, "{}", site.len());
    let links = |html: &str| -> Vec<String> {
        let rest = html.split("href=\"").skip(1);
        rest.map(|rest| rest.split('"').next().unwrap().to_owned()).collect()
    };
    let index: BTreeSet<String> = links(file(&site, "index.html")).into_iter().collect();
    for File { path, html } in &site {
        assert!(path == "index.html" || index.contains(path), "{path} is not linked");
        for link in links(html) {
            let found = match link.strip_prefix('#') {
                Some(id) => html.contains(&format!("id=\"{id}\"")),
                None if path == "index.html" => paths.contains(link.as_str()),
                None => {
                    link == "../index.html" || paths.contains(format!("metrics/{link}").as_str())
                }
            };
            assert!(found, "{link} of {path}");
        }
    }
}

#[test]
fn a_page_has_plot_steps_bisection_and_newest_rows_first() {
    let between = [((commit_id(1), commit_id(2)), Between { older: 0, newer: 3 })].into();
    let told = Told { tree: Some("../linux".to_owned()), between };
    let site = site(&commits(&[2, 2, 1]), &told);
    let page = file(&site, FEXIT);
    let command = format!(
        "cargo xtask bisect --tree ../linux --good {} --bad {} --arch x86_64 --metric \
         lbr_waste.fexit.any</pre>",
        commit_id(1),
        commit_id(2)
    );
    for text in [
        "<title>Worse: lbr_waste.fexit.any</title>",
        "class=\"course c0 d0\"",
        "<text x=\"628\" y=\"17\" text-anchor=\"middle\">▲1</text>",
        &format!("worse at {}: 9 -&#62; 10; 3 commits since", &commit_id(2)[..12]),
        &command,
        "<b aria-current=\"page\">lbr_waste.fexit.any</b>",
        "<a href=\"lbr_waste.fexit.any_call.html\">lbr_waste.fexit.any_call</a>",
    ] {
        assert!(page.contains(text), "{text} is missing in {page}");
    }
    let cause = "<li><code>+ bpf_prog_* -&#62; bpf_get_branch_snapshot</code></li>";
    assert!(page.contains(cause) && file(&site, "index.html").contains(cause), "{page}");
    // A phone shows the first columns.
    let head = "<th scope=\"col\">commit</th><th scope=\"col\" class=\"n\">records</th>\
                <th scope=\"col\" class=\"n\">change</th><th scope=\"col\">step</th>";
    assert!(page.contains(head), "{page}");
    assert!(page.contains("program&#39;s snapshot wastes. Unit: records.</p>"), "{page}");
    let rows = &page[page.find("id=\"histories\"").unwrap()..];
    let row = |number| rows.find(&format!(">{}<", &commit_id(number)[..12])).unwrap();
    assert!(row(2) < row(1) && row(1) < row(0), "{rows}");
}

/// One picture has the kernels of one kind of guest, and each its own line.
#[test]
fn kernels_of_equal_guests_share_a_picture() {
    let mut runs = commits(&[2, 1]);
    let mut others = commits(&[1, 1]);
    for run in &mut others {
        run.id += "-other";
        run.kernels[0].name = "6.1".to_owned();
        run.kernels[0].commit = None;
        run.kernels[0].source = "debian 6.1".to_owned();
        run.cells.iter_mut().for_each(|cell| cell.id.kernel = "6.1".to_owned());
    }
    runs.append(&mut others);
    let site = site(&runs, &Told::default());
    let page = file(&site, FEXIT);
    assert_eq!(page.matches("<figure class=\"plot\">").count(), 1);
    for line in ["class=\"course c0 d0\"", "class=\"course c1 d1\"", ">6.1</text>", ">linux</text>"]
    {
        assert!(page.contains(line), "{line} is missing in {page}");
    }
}

#[test]
fn one_row_is_no_picture_and_changed_histories_come_first() {
    let mut runs = commits(&[2, 1]);
    let mut still = commit(0, 2);
    still.id = "still".to_owned();
    still.suite.name = "another".to_owned();
    runs.push(still);
    let site = site(&runs, &Told::default());
    let page = file(&site, FEXIT);
    assert_eq!(page.matches("<figure class=\"plot\">").count(), 1);
    let place = |text: &str| page.find(text).unwrap_or_else(|| panic!("{text} in {page}"));
    let [changed, still] = ["fixture", "another"]
        .map(|suite| place(&format!("<h3>linux (x86_64, tcg; suite {suite})")));
    assert!(changed < still);
}

#[test]
fn hostile_text_is_escaped() {
    let attack = "<img src=x onerror=alert(1)>\"'&";
    let mut runs = vec![commit(0, 2), commit(1, 1)];
    for run in &mut runs {
        run.suite.name = attack.to_owned();
        run.kernels[0].name = attack.to_owned();
        run.kernels[0].commit = None;
        run.kernels[0].source = attack.to_owned();
        for cell in &mut run.cells {
            cell.id.kernel = attack.to_owned();
            cell.guest.iter_mut().for_each(|guest| guest.release = attack.to_owned());
        }
    }
    let site = site(&runs, &Told { tree: Some(attack.to_owned()), ..Told::default() });
    for File { path, html } in &site {
        assert!(!html.contains("<img"), "{path}");
        assert!(html.contains("&#60;img src=x onerror=alert(1)&#62;&#34;&#39;&#38;"), "{path}");
    }
}

#[test]
fn versions_are_in_the_order_of_their_numbers() {
    let mut names = ["newest", "6.12", "7.2", "6.6+zen4", "6.6", "6.12-source"];
    names.sort_by_key(|name| natural(name));
    assert_eq!(names, ["6.6", "6.6+zen4", "6.12", "6.12-source", "7.2", "newest"]);
}

#[test]
fn file_names_suit_every_file_system() {
    let is_plain = |name: &str| {
        name.len() < 130
            && name.ends_with(".html")
            && name
                .chars()
                .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || ".-_".contains(c))
    };
    assert_eq!(file_name("lbr_waste.fexit.any"), "lbr_waste.fexit.any.html");
    let long = "a".repeat(500);
    let names = [
        "lbr_waste.fexit.any_call|cond",
        "lbr_waste.fexit.any_call:cond",
        "trigger.fentry=A.time",
        "trigger.fentry=a.time",
        "x/../../etc",
        "<script>",
        &long,
        &format!("{long}b"),
    ];
    let files: BTreeSet<String> = names.iter().map(|name| file_name(name)).collect();
    assert_eq!(files.len(), names.len(), "{files:?}");
    assert!(files.iter().all(|name| is_plain(name)), "{files:?}");
}
