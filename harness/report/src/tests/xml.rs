// SPDX-License-Identifier: MIT OR Apache-2.0
//! JUnit XML, with any text that a guest may send.

use super::run;
use crate::{junit, markdown, terminal, view::View};
use proptest::prelude::*;
use quick_xml::events::Event;
use tramplab_model::run::{Accel, ErrorKind, Outcome};

/// Returns element names and the text in them, in order. Panics if the XML is not well-formed.
pub fn parse(xml: &[u8]) -> Vec<(String, String)> {
    let mut reader = quick_xml::Reader::from_reader(xml);
    let mut elements: Vec<(String, String)> = Vec::new();
    let mut depth = 0;
    loop {
        match reader.read_event().expect("well-formed XML") {
            Event::Eof => break,
            Event::Start(start) | Event::Empty(start) => {
                for attribute in start.attributes() {
                    let value = attribute.expect("an attribute");
                    value.normalized_value(quick_xml::XmlVersion::Implicit1_0).expect("its value");
                }
                elements.push((start.name().as_ref().to_owned(), String::new()));
                depth += 1;
            }
            Event::CData(data) => elements.last_mut().unwrap().1 += &*data,
            _ => {}
        }
    }
    assert!(depth > 0);
    elements
}

fn texts(xml: &[u8], element: &str) -> Vec<String> {
    parse(xml).into_iter().filter(|(name, _)| name == element).map(|(_, text)| text).collect()
}

/// Texts seen in consoles, and worse.
#[test]
fn a_hostile_console_stays_well_formed_xml() {
    let table = [
        ("\x1b[1;31mBUG\x1b[0m", "BUG"),
        ("]]>", "]]>"),
        ("a]]]]>>b", "a]]]]>>b"),
        ("<testcase/>&amp;&#0;", "<testcase/>&amp;&#0;"),
        ("nul\0 bell\x07 back\x08 del\x7f csi\u{9b}31m", "nul bell back del csi31m"),
        ("fffe\u{fffe} ffff\u{ffff} bad\u{fffd}", "fffe\u{fffd} ffff\u{fffd} bad\u{fffd}"),
        ("]]\u{0}>", "]]>"),
    ];
    for (hostile, shown) in table {
        let mut run = run();
        run.cells.truncate(1);
        run.cells[0].console_tail = vec!["first".to_owned(), hostile.to_owned()];
        run.cells[0].outcome = Outcome::Fail { reasons: vec![hostile.to_owned()] };
        let xml = junit::render(&run).unwrap();
        assert_eq!(texts(&xml, "system-out"), [format!("first\n{shown}")], "{hostile:?}");
        assert_eq!(texts(&xml, "failure"), [shown], "{hostile:?}");
        assert!(!xml.contains(&0x1b));
    }
}

#[test]
fn junit_xml() {
    insta::assert_snapshot!(String::from_utf8(junit::render(&run()).unwrap()).unwrap());
}

#[test]
fn junit_distinguishes_outcomes() {
    let xml = junit::render(&run()).unwrap();
    let count = |element| texts(&xml, element).len();
    assert_eq!(
        (count("testcase"), count("failure"), count("error"), count("skipped")),
        (21, 1, 1, 3)
    );
}

#[test]
fn junit_names_differ_by_accelerator() {
    let mut run = run();
    let mut again = run.cells.clone();
    again.iter_mut().for_each(|cell| cell.id.accel = Accel::Kvm);
    run.cells.extend(again);
    let xml = String::from_utf8(junit::render(&run).unwrap()).unwrap();
    let key = |line: &str| {
        let attribute = |name: &str| {
            line.split(&format!(" {name}=\"")).nth(1).unwrap().split('"').next().unwrap().to_owned()
        };
        (attribute("classname"), attribute("name"))
    };
    let mut keys: Vec<_> = xml.split("<testcase").skip(1).map(key).collect();
    let all = keys.len();
    keys.sort();
    keys.dedup();
    assert_eq!((all, keys.len()), (42, 42));
}

#[test]
fn rejects_a_start_that_is_not_a_time() {
    let mut run = run();
    run.started = "yesterday".to_owned();
    assert!(junit::render(&run).unwrap_err().to_string().contains("`yesterday`"));
}

proptest! {
    #[test]
    fn any_text_of_a_guest_stays_xml_and_prints_no_control_characters(
        text in any::<String>(), more in "[\\x00-\\xff\u{fffe}>\\]`]{0,40}",
    ) {
        let mut run = run();
        run.cells.truncate(2);
        run.cells[0].console_tail = vec![more.clone(), text.clone()];
        run.cells[0].outcome = Outcome::Error { kind: ErrorKind::Oops, message: more.clone() };
        run.cells[1].outcome = Outcome::Skip { reason: text };
        run.cells[1].measurement = None;
        parse(&junit::render(&run).unwrap());
        for text in [
            terminal::render(&run, &View::default(), terminal::Style::default()),
            markdown::render(&run, &View::default()),
        ] {
            prop_assert!(!text.chars().any(|c| c.is_control() && c != '\n'), "{text:?}");
        }
    }
}
