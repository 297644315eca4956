// SPDX-License-Identifier: MIT OR Apache-2.0
//! Compares two lists record by record.

/// Returns the first difference, with its neighbours.
pub fn difference<T: PartialEq + std::fmt::Debug>(expected: &[T], found: &[T]) -> Option<String> {
    let at = expected.iter().zip(found).position(|(e, f)| e != f);
    let at =
        at.or_else(|| (expected.len() != found.len()).then(|| expected.len().min(found.len())))?;
    let around = |list: &[T]| {
        let shown = at.saturating_sub(2).min(list.len())..list.len().min(at + 3);
        let lines = list[shown.clone()].iter().zip(shown);
        lines.map(|(record, index)| format!("\n  {index}: {record:x?}")).collect::<String>()
    };
    Some(format!(
        "record {at} of {} expected and {} found differs\nexpected: {}\nfound: {}",
        expected.len(),
        found.len(),
        around(expected),
        around(found)
    ))
}

#[test]
fn finds_dropped_invented_and_changed_records() {
    let good = [1, 2, 3, 4];
    assert_eq!(difference(&good, &good), None);
    for (bad, at) in [
        (&[1, 2, 4][..], 2),
        (&[1, 2, 3], 3),
        (&[1, 9, 2, 3, 4], 1),
        (&[1, 2, 3, 4, 5], 4),
        (&[1, 2, 7, 4], 2),
    ] {
        assert!(difference(&good, bad).unwrap().starts_with(&format!("record {at} of")), "{bad:?}");
    }
}
