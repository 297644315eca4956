// SPDX-License-Identifier: GPL-2.0-or-later
//! Flows of random blocks: no instruction is lost or counted twice.

use super::*;
use proptest::prelude::*;
use tramplab_protocol::counts::Counts;

/// How a block is left, and where the flow continues.
#[derive(Clone, Copy, Debug)]
enum Way {
    /// After its last instruction, to any other block.
    End,
    /// After this instruction (of four), at the next.
    After(usize),
    /// At this instruction, which is repeated.
    Again(usize),
    /// At this instruction, by an exception.
    Raised(usize),
}

/// A switch from one thread to another.
type Switched = Option<(u32, u32)>;

/// Blocks of four instructions with every end, in the kernel, in its entry text and in user space,
/// with the way each is left. The next block is inside it or the next on the list.
fn ways() -> impl Strategy<Value = Vec<(u64, Tail, Way, Switched)>> {
    let tail = prop_oneof![
        Just(NEXT),
        Just(Tail::Cond { target: K + 0x200 }),
        Just(call(0x200)),
        Just(Tail::Direct { kind: Kind::Jump, target: K + 0x300 }),
        Just(RET),
        Just(IRET),
        Just(Tail::Indirect { kind: Kind::Syscall }),
        Just(Tail::Indirect { kind: Kind::Sysret }),
        Just(Tail::Indirect { kind: Kind::IndJump }),
        Just(Tail::Trap),
    ];
    let way = prop_oneof![
        6 => Just(Way::End),
        1 => (0..3_usize).prop_map(Way::After),
        1 => (0..3_usize).prop_map(Way::Again),
        1 => (0..3_usize).prop_map(Way::Raised),
    ];
    let start = prop_oneof![
        4 => (1..8_u64).prop_map(|n| K + 0x100 * n),
        2 => (0..4_u64).prop_map(|n| K + ENTRY + 0x100 * n),
        1 => (1..4_u64).prop_map(|n| 0x100 * n),
    ];
    let switch = prop::option::weighted(0.1, (0..4_u32, 0..4_u32));
    prop::collection::vec((start, tail, way, switch), 1..200)
}

proptest! {
    #[test]
    fn counts_every_instruction_once(ways in ways()) {
        let mut blocks: Vec<(Block, u64, Switched)> = Vec::new();
        let mut expected = 0;
        for (start, tail, way, switch) in ways {
            // A block that starts where the one before was left inside would continue it.
            let inside = |(before, begun, _): &(Block, u64, _)| {
                *begun != before.last && (before.start..before.end()).contains(&start)
                    || matches!(before.tail(), Tail::Next { .. }) && start == before.last
            };
            if blocks.last().is_some_and(inside) {
                continue;
            }
            let whole = block(start, start + 12, tail);
            let instruction = |index| start + 4 * index as u64;
            let rest = |first| block(first, start + 12, tail);
            match way {
                Way::End => {
                    expected += 4;
                    blocks.push((whole, start + 12, switch));
                }
                Way::After(index) => {
                    expected += 4;
                    blocks.push((whole, instruction(index), switch));
                    blocks.push((rest(instruction(index + 1)), start + 12, None));
                }
                Way::Again(index) => {
                    expected += 4;
                    blocks.push((whole, instruction(index), switch));
                    blocks.push((rest(instruction(index)), start + 12, None));
                }
                Way::Raised(index) => {
                    expected += index as u64 + 1;
                    blocks.push((whole, instruction(index), switch));
                }
            }
        }
        let mut profiler = Profiler::new(setup(), true);
        let mut parked = Parking::default();
        let mut last = 0;
        for (block, begun, switch) in &blocks {
            profiler.block(block, last);
            last = *begun;
            if let Some((previous, next)) = switch {
                profiler.switch(&task(*previous), &task(*next), &mut parked);
            }
        }
        let counts = profiler.finish(0, last);
        let counted: u64 = counts.blocks.iter().map(|block| block.instructions).sum();
        prop_assert_eq!(counted, expected);
        let vcpus = vec![counts];
        let counts = Counts { discontinuities: false, setup: true, lost_switches: 0, vcpus };
        prop_assert_eq!(Counts::decode(&counts.encode().unwrap()).unwrap(), counts);
    }
}
