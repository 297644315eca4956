// SPDX-License-Identifier: GPL-2.0-or-later
//! Holds the model against naive ones.

use super::*;
use proptest::prelude::*;
use std::collections::HashMap;
use tramplab_protocol::estimate::Shape;

fn parts() -> Parts {
    let shape = |entries, ways| Shape { entries, ways };
    Parts {
        l1i: shape(4, 2),
        l1d: shape(4, 2),
        l2: shape(8, 2),
        l3: shape(12, 3),
        itlb: shape(2, 2),
        dtlb: shape(2, 2),
        l2_tlb: shape(4, 2),
        returns: 3,
        last_target: false,
        streams: false,
    }
}

/// The events since the last time.
fn events(model: &mut Model) -> Vec<(Event, u64)> {
    happened(&model.take()).into_iter().collect()
}

#[test]
fn a_line_comes_from_the_first_level_that_has_it() {
    let mut model = Model::new(&parts(), Pages::Small);
    let nowhere = || None;
    model.data(0x1000, 8, nowhere);
    assert_eq!(events(&mut model), [(Event::DataMemory, 1), (Event::DataWalk, 1)]);
    model.data(0x1038, 8, nowhere);
    assert_eq!(events(&mut model), []);
    // Two lines, one of them new.
    model.data(0x103c, 8, nowhere);
    assert_eq!(events(&mut model), [(Event::DataMemory, 1)]);
    // The code is in the second level already, which both share.
    model.code(0x1000, 0x1004);
    assert_eq!(events(&mut model), [(Event::CodeL2, 1), (Event::CodeTlb, 1)]);
    // Two lines of the first one's set: the first level loses it, the second does not.
    model.data(0x1080, 8, nowhere);
    model.data(0x1180, 8, nowhere);
    events(&mut model);
    model.data(0x1000, 8, nowhere);
    assert_eq!(events(&mut model), [(Event::DataL2, 1)]);
}

/// Each line of a page but the first two comes before it is asked for.
#[test]
fn a_walk_costs_the_start_of_its_stream() {
    for (streams, expected) in [(false, 64), (true, 2)] {
        let mut model = Model::new(&Parts { streams, ..parts() }, Pages::Small);
        (0..64).for_each(|line| model.data(0x1000 + line * LINE, 8, || None));
        assert_eq!(model.take()[Event::DataMemory as usize], expected);
    }
}

#[test]
fn large_pages_are_those_of_the_image_and_the_direct_map() {
    const DIRECT: u64 = 0xffff_8881_0000_0000;
    const MIB: u64 = 1 << 20;
    for (pages, start, physical, is_large) in [
        (Pages::X86, 0xffff_ffff_8100_0000, None, true),
        (Pages::X86, DIRECT, Some(0x4000_0000), true),
        (Pages::X86, DIRECT, Some(0x4000_1000), false),
        (Pages::X86, DIRECT, None, false),
        (Pages::X86, 0x7f00_0000_0000, Some(0), false),
        (Pages::Small, DIRECT, Some(0x4000_0000), false),
    ] {
        let mut model = Model::new(&parts(), pages);
        model.data(start, 8, || physical);
        events(&mut model);
        model.data(start + MIB, 8, || physical.map(|physical| physical + MIB));
        let walks = model.take()[Event::DataWalk as usize];
        assert_eq!(walks == 0, is_large, "{pages:?} {start:#x} {physical:x?}");
    }
}

/// The target pays.
#[test]
fn branches_that_are_predicted_cost_nothing() {
    let mut model = Model::new(&parts(), Pages::Small);
    let mut follow = |from, to, kind| model.branch(from, to, kind, from + 5);
    assert_eq!(follow(0x100, 0x200, Kind::Call), None);
    assert_eq!(follow(0x210, 0x105, Kind::Ret), None);
    assert_eq!(follow(0x210, 0x105, Kind::Ret), Some(Event::MispredictedReturn));
    // A call of the next instruction is none.
    assert_eq!(follow(0x100, 0x200, Kind::Call), None);
    assert_eq!(follow(0x200, 0x205, Kind::Call), None);
    assert_eq!(follow(0x210, 0x105, Kind::Ret), None);
    // The oldest of four calls is lost.
    for from in [0x100, 0x200, 0x300, 0x400] {
        follow(from, from + 0x100, Kind::Call);
    }
    for (to, expected) in [(0x405, None), (0x305, None), (0x205, None)] {
        assert_eq!(follow(0x500, to, Kind::Ret), expected);
    }
    assert_eq!(follow(0x500, 0x105, Kind::Ret), Some(Event::MispredictedReturn));
    assert_eq!(follow(0x600, 0x700, Kind::IndJump), Some(Event::MispredictedIndirect));
    assert_eq!(follow(0x600, 0x700, Kind::IndCall), None);
    assert_eq!(follow(0x600, 0x800, Kind::IndJump), Some(Event::MispredictedIndirect));
    assert_eq!(follow(0x900, 0xa00, Kind::Interrupt), Some(Event::Exception));
    assert_eq!(follow(0x900, 0xa00, Kind::Syscall), None);
}

/// The number of levels that lack a tag. Each keeps its tags by their last use.
fn missed(levels: &mut [(&mut Vec<u64>, Shape)], tag: u64) -> usize {
    for (number, (tags, shape)) in levels.iter_mut().enumerate() {
        let sets = u64::from(shape.entries / shape.ways);
        let of_set = tags.iter().rev().filter(|&&other| other % sets == tag % sets);
        let is_there = of_set.take(shape.ways as usize).any(|&other| other == tag);
        tags.retain(|&other| other != tag);
        tags.push(tag);
        if is_there {
            return number;
        }
    }
    levels.len()
}

proptest! {
    /// Lines in three levels and pages in two. The first one is that of code or of data.
    #[test]
    fn misses_as_naive_levels_do(
        accesses in prop::collection::vec(
            (any::<bool>(), any::<bool>(), 0..8_u64, 0..8_u64),
            0..200,
        ),
    ) {
        let parts = parts();
        let mut model = Model::new(&parts, Pages::X86);
        let (mut lines, mut pages) = ([(); 4].map(|()| Vec::new()), [(); 3].map(|()| Vec::new()));
        for (is_code, is_image, page, line) in accesses {
            let (start, bytes) = if is_image { (IMAGE.start, 1 << LARGE) } else { (0, 1 << SMALL) };
            let address = start + page * bytes + line * LINE;
            match is_code {
                true => model.code(address, address + 4),
                false => model.data(address, 8, || None),
            }
            let counts = model.take();
            let happened =
                |events: &[Event]| events.iter().position(|&event| counts[event as usize] == 1);

            let [code, data, second, third] = &mut lines;
            let first = if is_code { (code, parts.l1i) } else { (data, parts.l1d) };
            let levels = &mut [first, (second, parts.l2), (third, parts.l3)];
            let expected = missed(levels, address / LINE).checked_sub(1);
            prop_assert_eq!(happened(&match is_code {
                true => [Event::CodeL2, Event::CodeL3, Event::CodeMemory],
                false => [Event::DataL2, Event::DataL3, Event::DataMemory],
            }), expected);

            let [code, data, second] = &mut pages;
            let first = if is_code { (code, parts.itlb) } else { (data, parts.dtlb) };
            // Large pages have the numbers behind those of all small ones.
            let tag = address / bytes + if is_image { IS_LARGE } else { 0 };
            let expected = missed(&mut [first, (second, parts.l2_tlb)], tag).checked_sub(1);
            prop_assert_eq!(happened(&match is_code {
                true => [Event::CodeTlb, Event::CodeWalk],
                false => [Event::DataTlb, Event::DataWalk],
            }), expected);
        }
    }

    /// Two-bit counters, by the branch's address and the outcomes before.
    #[test]
    fn outcomes_are_predicted_as_by_a_list_of_all_outcomes(
        outcomes in prop::collection::vec((0..6_u64, any::<bool>()), 0..400),
    ) {
        let mut model = Model::new(&parts(), Pages::Small);
        let mut seen = Vec::new();
        let mut counters = HashMap::new();
        for (site, is_taken) in outcomes {
            let from = 0x8001_4000 + site * 0x4002;
            let latest = seen.iter().rev().take(14).rev();
            let history = latest.fold(0, |bits, &is_taken| bits * 2 + u64::from(is_taken));
            let index = ((from / 2) ^ (from / 0x4000) ^ history) % 0x4000;
            let counter = counters.entry(index).or_insert(1);
            let is_predicted = model.conditional(from, is_taken).is_none();
            prop_assert_eq!(is_predicted, (*counter > 1) == is_taken);
            *counter = (*counter + if is_taken { 1 } else { -1 }).clamp(0, 3);
            seen.push(is_taken);
        }
    }

    /// A call is predicted if no more than three were open above it when it was made, or since.
    #[test]
    fn returns_are_predicted_as_by_a_list_of_all_calls(
        branches in prop::collection::vec((any::<bool>(), 0..4_u64), 0..80),
    ) {
        let mut model = Model::new(&parts(), Pages::Small);
        // Where each open call returns to, and whether the stack still has it.
        let mut open: Vec<(u64, bool)> = Vec::new();
        for (is_call, site) in branches {
            let from = 0x1000 * (site + 1);
            if is_call {
                model.branch(from, 0x100, Kind::Call, from + 5);
                let mut kept = open.iter_mut().filter(|(_, is_kept)| *is_kept);
                if kept.by_ref().count() == 3 {
                    open.iter_mut().find(|(_, is_kept)| *is_kept).unwrap().1 = false;
                }
                open.push((from + 5, true));
                continue;
            }
            let expected = match open.last() {
                Some(&(after, true)) => {
                    open.pop();
                    after == from + 5
                }
                _ => false,
            };
            let event = model.branch(0x10, from + 5, Kind::Ret, 0x15);
            prop_assert_eq!(event.is_none(), expected);
        }
    }

    /// A loop of any short period is learned.
    #[test]
    fn repeated_outcomes_are_predicted(outcomes in prop::collection::vec(any::<bool>(), 1..6)) {
        let mut model = Model::new(&parts(), Pages::Small);
        let mut wrong = Vec::new();
        for _ in 0..200 {
            let is_wrong = |taken: &&bool| model.conditional(0x40, **taken).is_some();
            wrong.push(outcomes.iter().filter(is_wrong).count());
        }
        prop_assert!(wrong[190..].iter().all(|&count| count == 0), "{:?}", wrong);
    }
}
