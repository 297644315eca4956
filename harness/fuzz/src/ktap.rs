// SPDX-License-Identifier: MIT OR Apache-2.0
//! What programs and kernels of a guest print: KTAP, `test_progs`, `bench`, deny lists, consoles; and that all of it is fit to print.

use tramplab_kernel::selftests::DenyList;
use tramplab_model::{
    run::ErrorKind,
    selftests::End,
    text::{cdata, plain},
};
use tramplab_suite::selftests::{Ran, bench, ktap, test_progs};
use tramplab_vm::death;

pub fn run(data: &[u8]) {
    let text = &*String::from_utf8_lossy(data);
    for code in [0, 1, 4] {
        if let Ok(ran) = ktap::read(text, code) {
            agrees(&ran, code);
            let gave_up = format!("{text}\nBail out! x");
            assert!(ktap::read(&gave_up, code).is_err(), "it gave up, and passes");
            let failed = format!("{text}\nnot ok x");
            assert!(ktap::read(&failed, code).is_err(), "a test more than was planned");
        }
    }
    let _ = ktap::skipped(text);
    let test = text.lines().next().unwrap_or_default().trim();
    for test in [test, "fentry_test"] {
        for code in [0, 1] {
            if let Ok(ran) = test_progs::read(text, test, code) {
                agrees(&ran, code);
                let mut names: Vec<&str> = ran.subtests.iter().map(|subtest| subtest.name.as_str()).collect();
                names.sort_unstable();
                assert!(names.windows(2).all(|pair| pair[0] != pair[1]), "a subtest stands twice");
            }
        }
    }
    if let Ok(measured) = bench::read(text, 1, 3) {
        assert!(
            measured.hits.len() >= 3 && measured.hits.iter().all(|rate| rate.is_finite() && *rate >= 0.0)
        );
    }
    let _ = bench::is_unknown(text);
    let list = DenyList::parse(text, "DENYLIST");
    if let Ok(name) = "fentry_test".parse() {
        list.denies(&name);
        list.of_subtests(&name);
    }
    let dead = text.lines().find_map(death::detect);
    assert!(dead.is_none_or(|death| death.kind != ErrorKind::Protocol));
    let shown = plain(text);
    assert!(!shown.chars().any(|c| c.is_control() && c != '\n'), "{shown:?}");
    assert_eq!(plain(&shown), shown);
    let section = cdata(text);
    let (end, begin) = ("]]>", "<![CDATA[");
    let goes_on = section.match_indices(end).all(|(at, _)| section[at + end.len()..].starts_with(begin));
    assert!(goes_on, "it ends its section: {section:?}");
    assert_eq!(section.replace(&format!("{end}{begin}"), ""), shown);
}

fn agrees(ran: &Ran, code: i32) {
    let fails = ran.subtests.iter().any(|subtest| subtest.end == End::Fail);
    assert!(ran.end != End::Ok || code == 0 && !fails, "a false pass: {ran:?}");
    assert!(ran.failures.len() <= 20 && ran.failures.iter().all(|line| line.chars().count() <= 300));
}
