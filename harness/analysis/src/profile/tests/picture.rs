// SPDX-License-Identifier: MIT OR Apache-2.0
//! Flame graphs, and whether they agree with the table of changes.

use super::*;
use std::cmp::Ordering;

/// The text of a flame graph's frames, `name (900 instructions, 100.00%)`, with their colours.
fn frames_of(svg: &[u8]) -> String {
    let svg = std::str::from_utf8(svg).unwrap();
    let between = |text: &str, from: &str, to: &str| {
        text.split_once(from)
            .and_then(|(_, rest)| rest.split_once(to))
            .map(|(found, _)| found.to_owned())
    };
    let caption =
        |id: &str| between(svg, &format!("<text id=\"{id}\""), "</text>").unwrap_or_default();
    let mut lines = vec![caption("title"), caption("subtitle")];
    for frame in svg.split("<g>").skip(1) {
        let (Some(title), Some(fill)) =
            (between(frame, "<title>", "</title>"), between(frame, "fill=\"", "\""))
        else {
            continue;
        };
        lines.push(format!("{title} {fill}"));
    }
    lines.join("\n")
}

#[test]
fn flame_graph() {
    let mut svg = Vec::new();
    flame::render(&Subject::new(&[base()], Of::All), &tree(&[base()], Of::All), &mut svg).unwrap();
    insta::assert_snapshot!(frames_of(&svg));
}

#[test]
fn differential_flame_graph() {
    for (name, unit) in [("exact", Unit::Instructions), ("sampled", Unit::Samples)] {
        let ([base, head], tree) = pair(unit);
        let mut svg = Vec::new();
        flame::render_difference(&base, &head, &tree, true, &mut svg).unwrap();
        insta::assert_snapshot!(format!("differential_flame_graph_{name}"), frames_of(&svg));
    }
}

/// `old_caller` became `new_caller`, so no path below it matches. Of the functions it calls, one
/// got cheaper, one dearer, one is unchanged, one is gone and one is new.
const OTHER_CALLER: [[Line; 7]; 2] = [
    [
        (0, AGENT, "do_syscall_64", 1),
        (1, AGENT, "old_caller", 2),
        (2, AGENT, "cheaper", 600),
        (3, AGENT, "gone", 50),
        (2, AGENT, "dearer", 200),
        (3, AGENT, "same", 100),
        (2, AGENT, "bpf_trampoline_6442508829", 47),
    ],
    [
        (0, AGENT, "do_syscall_64", 1),
        (1, AGENT, "new_caller", 2),
        (2, AGENT, "cheaper", 400),
        (2, AGENT, "dearer", 300),
        (3, AGENT, "same", 100),
        (3, AGENT, "added", 50),
        (2, AGENT, "bpf_trampoline_6442500000", 47),
    ],
];

fn laid_over(sides: &[Profile; 2], of: Of) -> ([Subject; 2], Tree<2>) {
    let mut tree = Tree::new(Names::Stable);
    (0..2).for_each(|side| tree.add(&sides[side], of, side));
    (sides.each_ref().map(|side| Subject::new(std::slice::from_ref(side), of)), tree)
}

/// The direction in which each function changed: in the table, and in its frames in the picture.
fn ways(
    sides: &[Profile; 2],
    of: Of,
) -> (BTreeMap<String, Ordering>, BTreeMap<String, BTreeSet<Ordering>>) {
    let ([base, head], tree) = laid_over(sides, of);
    let mut table = diff::table(&base, &head, &tree);
    table.rows.pop();
    let in_table = table.rows.into_iter().map(|row| {
        let change: i128 = row[3].parse().unwrap();
        // The picture marks interrupts by a word, as inferno drops `_[i]`.
        (row[0].replace("_[i]", " [i]"), change.cmp(&0))
    });
    let mut svg = Vec::new();
    flame::render_difference(&base, &head, &tree, true, &mut svg).unwrap();
    let mut in_picture: BTreeMap<String, BTreeSet<Ordering>> = BTreeMap::new();
    // Skip title and subtitle, and frames that are no functions.
    for frame in frames_of(&svg).lines().skip(2) {
        let (label, rest) = frame.split_once(" (").unwrap();
        if label == "all" || tree.frames.iter().any(|frame| frame.command == label) {
            continue;
        }
        let name =
            label.strip_suffix(" %").map_or(label, |label| label.rsplit_once(' ').unwrap().0);
        let colour = rest.rsplit_once("rgb(").unwrap().1.trim_end_matches(')');
        let [red, _, blue]: [u8; 3] =
            Vec::from_iter(colour.split(',').map(|part| part.parse().unwrap())).try_into().unwrap();
        in_picture.entry(name.to_owned()).or_default().insert(red.cmp(&blue));
    }
    (in_table.collect(), in_picture)
}

#[test]
fn picture_and_table_agree_where_one_caller_changed() {
    for unit in [Unit::Instructions, Unit::Samples] {
        let sides = OTHER_CALLER.map(|lines| profile(&lines, Phase::Attach, unit));
        let (_, tree) = laid_over(&sides, Of::Task);
        let [base, head] = diff::unmatched(&tree);
        assert!(
            (base - 99.9).abs() < 1e-9 && (head - 100.0 * 899.0 / 900.0).abs() < 1e-9,
            "{base} {head}"
        );
        let (in_table, in_picture) = ways(&sides, Of::Task);
        // Scaling turns unchanged counts into more.
        if unit == Unit::Instructions {
            assert_eq!(in_table["cheaper"], Ordering::Less);
            assert_eq!(in_picture["same"], BTreeSet::from([Ordering::Equal]));
        }
        for function in
            ["cheaper", "dearer", "same", "added", "new_caller", "bpf_trampoline_* [bpf]"]
        {
            let expected = in_table.get(function).copied().unwrap_or(Ordering::Equal);
            assert_eq!(in_picture[function], BTreeSet::from([expected]), "{function}");
        }
        assert!(!in_picture.contains_key("gone") && !in_picture.contains_key("old_caller"));
    }
}

/// `f2` would sort between `f` and `f;g`, and `f` would be drawn twice.
#[test]
fn a_flame_graph_draws_each_frame_once() {
    let lines =
        [(0, AGENT, "f", 5), (1, AGENT, "g", 5), (0, AGENT, "f2", 5), (0, AGENT, "f.part.0", 5)];
    let profiles = [profile(&lines, Phase::Attach, Unit::Instructions)];
    let mut svg = Vec::new();
    flame::render(&Subject::new(&profiles, Of::Task), &tree(&profiles, Of::Task), &mut svg)
        .unwrap();
    let frames = frames_of(&svg);
    assert_eq!(frames.matches("\nf (10 instructions, 50.00%)").count(), 1, "{frames}");
    assert_eq!(frames.matches("\nf ").count(), 1, "{frames}");
}

/// inferno's script cuts names again in a browser, by default at their front.
#[test]
fn a_flame_graph_keeps_the_front_of_names() {
    let mut svg = Vec::new();
    flame::render(&Subject::new(&[base()], Of::Task), &tree(&[base()], Of::Task), &mut svg)
        .unwrap();
    assert!(String::from_utf8(svg).unwrap().contains("var truncate_text_right = true;"));
}

proptest! {
    #[test]
    fn picture_and_table_agree(base in any_profile(), head in any_profile()) {
        let sides = [base, head];
        for of in [Of::Task, Of::All] {
            let ([_, head], _) = laid_over(&sides, of);
            if head.total() == 0 {
                continue;
            }
            let (in_table, in_picture) = ways(&sides, of);
            for (function, ways) in in_picture {
                let expected = in_table.get(&function).copied().unwrap_or(Ordering::Equal);
                prop_assert_eq!(ways, BTreeSet::from([expected]), "{}", function);
            }
        }
    }
}
