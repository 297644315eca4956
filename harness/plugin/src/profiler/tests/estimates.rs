// SPDX-License-Identifier: GPL-2.0-or-later
//! Where the events of a modelled CPU are counted.

use super::*;
use crate::estimate::Pages;
use tramplab_protocol::estimate::Events;

const PARTS: &str = "512x8:512x8:16384x8:524288x16:64x64:64x64:2048x8:32:wrong:streams";

/// The events of the block at an address.
fn of(counts: &VcpuCounts, start: u64) -> Events {
    let all = counts.blocks.iter().zip(&counts.events);
    all.filter(|(block, _)| block.start == K + start)
        .flat_map(|(_, events)| events.clone())
        .collect()
}

fn only(events: &Events, event: Event) -> u64 {
    events.get(&event).copied().unwrap_or(0)
}

#[test]
fn a_misprediction_is_paid_at_the_branchs_target() {
    let model = Model::new(&PARTS.parse().unwrap(), Pages::Small);
    let mut profiler = Profiler::new(Setup::default(), true).with_model(Some(Box::new(model)));
    let [caller, callee, back, wrong] =
        [at(0x100, call(0x200)), at(0x200, RET), at(0x10c, RET), at(0x300, NEXT)];
    profiler.block(&caller, 0);
    profiler.block(&callee, caller.last);
    profiler.model().unwrap().data(K + 0x8000, 8, || None);
    // To the call.
    profiler.block(&back, callee.last);
    // To no call.
    profiler.block(&wrong, back.last);
    let counts = profiler.finish(0, wrong.last);
    assert_eq!(counts.blocks.len(), counts.events.len());
    let mispredicted = |start| only(&of(&counts, start), Event::MispredictedReturn);
    assert_eq!([0x100, 0x200, 0x10c, 0x300].map(mispredicted), [0, 0, 0, 1]);
    let taken = |start| only(&of(&counts, start), Event::TakenBranch);
    assert_eq!([0x100, 0x200, 0x10c, 0x300].map(taken), [1, 1, 1, 0]);
    let missed = |start| only(&of(&counts, start), Event::DataMemory);
    assert_eq!([0x100, 0x200, 0x10c, 0x300].map(missed), [0, 1, 0, 0]);
    // The model keeps its lines for the next time.
    let mut model = profiler.into_model().unwrap();
    model.data(K + 0x8000, 8, || None);
    assert_eq!(model.take().iter().sum::<u64>(), 0);
}

/// An interrupt came at the second of three instructions.
#[test]
fn only_instructions_that_began_cost() {
    for (begun, expected) in [(0x100, 1), (0x104, 1), (0x108, 2)] {
        let model = Model::new(&PARTS.parse().unwrap(), Pages::Small);
        let mut profiler = Profiler::new(Setup::default(), true).with_model(Some(Box::new(model)));
        let costly = Box::new([(0, Event::Atomic), (2, Event::Atomic)]);
        let block = at(0x100, NEXT).with_costly(costly);
        profiler.block(&block, 0);
        let counts = profiler.finish(0, K + begun);
        assert_eq!(only(&of(&counts, 0x100), Event::Atomic), expected, "{begun:#x}");
    }
}

#[test]
fn an_interrupt_is_counted_in_its_handler() {
    let model = Model::new(&PARTS.parse().unwrap(), Pages::Small);
    let mut profiler = Profiler::new(Setup::default(), true).with_model(Some(Box::new(model)));
    let block = at(0x100, Tail::Direct { kind: Kind::Jump, target: K + 0x100 });
    let handler = at(0xe100, NEXT);
    profiler.block(&block, 0);
    profiler.discontinuity(K + 0x100, K + 0xe100);
    profiler.block(&handler, block.last);
    let counts = profiler.finish(0, handler.last);
    assert_eq!(only(&of(&counts, 0xe100), Event::Exception), 1);
    assert_eq!(only(&of(&counts, 0x100), Event::Exception), 0);
}
