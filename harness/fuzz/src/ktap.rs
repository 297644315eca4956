// SPDX-License-Identifier: MIT OR Apache-2.0
//! Fuzz the readers of printed output: KTAP, `test_progs`, `bench`, deny lists and consoles. No
//! control character reaches the user's terminal or a report.

use tramplab_kernel::tree_tests::DenyList;
use tramplab_model::{
    run::ErrorKind,
    text::{cdata, plain},
    tree_tests::End,
};
use tramplab_suite::tree_tests::{Ran, bench, ktap, test_progs};
use tramplab_vm::death;

pub fn run(data: &[u8]) -> bool {
    let text = &*String::from_utf8_lossy(data);
    let mut accepted = false;
    for code in [0, 1, 4] {
        if let Ok(ran) = ktap::read(text, code) {
            accepted = true;
            agrees(&ran, code);
            let gave_up = format!("{text}\nBail out! x");
            assert!(ktap::read(&gave_up, code).is_err(), "it gave up, and passes");
            let failed = format!("{text}\nnot ok x");
            assert!(ktap::read(&failed, code).is_err(), "a test more than was planned");
        }
    }
    let _ = ktap::skipped(text);
    let test = text.lines().next().unwrap_or_default().trim();
    for test in [test, "fentry_test", "kprobe_multi_test"] {
        for code in [0, 1] {
            if let Ok(ran) = test_progs::read(text, test, code) {
                accepted = true;
                agrees(&ran, code);
                let mut names: Vec<&str> =
                    ran.subtests.iter().map(|subtest| subtest.name.as_str()).collect();
                names.sort_unstable();
                assert!(names.windows(2).all(|pair| pair[0] != pair[1]), "a subtest stands twice");
            }
        }
    }
    if let Ok(measured) = bench::read(text, 1, 3) {
        accepted = true;
        assert!(
            measured.hits.len() >= 3
                && measured.hits.iter().all(|rate| rate.is_finite() && *rate >= 0.0)
        );
    }
    accepted |= bench::is_unknown(text);
    let list = DenyList::parse(text, "DENYLIST");
    for line in text.lines().take(64) {
        let Ok(name) = line.split(['/', '#']).next().unwrap_or_default().trim().parse() else {
            continue;
        };
        accepted |= list.denies(&name).is_some() || !list.of_subtests(&name).is_empty();
    }
    let dead = text.lines().find_map(death::detect);
    let flaw = text.lines().find_map(death::flaw);
    accepted |= dead.is_some() || flaw.is_some();
    assert!(dead.is_none_or(|death| death.kind != ErrorKind::Protocol));
    let shown = plain(text);
    assert!(!shown.chars().any(|c| c.is_control() && c != '\n'), "{shown:?}");
    assert_eq!(plain(&shown), shown);
    let section = cdata(text);
    let (end, begin) = ("]]>", "<![CDATA[");
    let goes_on =
        section.match_indices(end).all(|(at, _)| section[at + end.len()..].starts_with(begin));
    assert!(goes_on, "it ends its section: {section:?}");
    assert_eq!(section.replace(&format!("{end}{begin}"), ""), shown);
    accepted
}

fn agrees(ran: &Ran, code: i32) {
    let fails = ran.subtests.iter().any(|subtest| subtest.end == End::Fail);
    assert!(ran.end != End::Ok || code == 0 && !fails, "a false pass: {ran:?}");
    assert!(
        ran.failures.len() <= 20 && ran.failures.iter().all(|line| line.chars().count() <= 300)
    );
}
