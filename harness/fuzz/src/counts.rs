// SPDX-License-Identifier: MIT OR Apache-2.0
//! Fuzz the reader of the plugin's exact counts and the profile made of them.

use super::{bytes::Table, perf};
use serde_json::json;
use tramplab_analysis::{
    branch::Symbols,
    profile::{Of, Phase, count, estimate},
};
use tramplab_model::cpu::Cycles;
use tramplab_protocol::counts::Counts;

const KERNEL: Table = Table {
    base: 0xffff_ffff_8100_0000,
    each: 0x100,
    names: &[
        ("vfs_read", None),
        ("asm_sysvec_apic_timer_interrupt", None),
        ("asm_exc_page_fault", None),
        ("irq_entries_start", None),
        ("bpf_prog_6deef7357e7b4530_empty", Some("bpf")),
        ("vectors", None),
    ],
};

pub fn run(data: &[u8]) -> bool {
    let _ = Counts::decode(data);
    let Ok(counts) = perf::decode_counts(data) else { return false };
    let again = counts.encode().expect("what was read can be written");
    assert_eq!(Counts::decode(&again).as_ref(), Ok(&counts));
    let _ = counts.fault();
    assert!(count::addresses(&counts).is_sorted());
    let symbols: Symbols = KERNEL.symbols().collect();
    let profile = count::of_counts("cell", Phase::Attach, &counts, &symbols);
    let blocks = counts.vcpus.iter().flat_map(|vcpu| &vcpu.blocks);
    let counted = blocks.fold(0_u64, |sum, block| sum.saturating_add(block.instructions));
    if profile.check().is_ok() {
        let own: u64 = profile.nodes.iter().map(|node| node.own).sum();
        assert_eq!(own, counted, "instructions are lost, or counted twice");
    }
    let (estimated, estimate) = estimate::weigh(profile.clone(), "cpu", &cycles());
    let _ = estimate::terms(&estimate);
    let _ = estimate::by_function(std::slice::from_ref(&estimated), Of::All);
    perf::look_at(&[profile]);
    perf::look_at(&[estimated]);
    true
}

/// A CPU whose every event costs as much as can be.
fn cycles() -> Cycles {
    let most = u32::MAX;
    let (cache, tlb) = (json!({"kib": 32, "ways": 8}), json!({"entries": 64, "ways": 4}));
    serde_json::from_value(json!({
        "pipeline": {"width": 6, "mispredicted": most, "taken": most, "source": ""},
        "caches": {
            "l1i": cache, "l1d": cache, "l2": cache, "l3": cache,
            "l2_cycles": most, "l3_cycles": most, "memory_cycles": most,
            "prefetch": "streams", "source": "",
        },
        "tlbs": {
            "code": tlb, "data": tlb, "l2": tlb,
            "l2_cycles": most, "walk_cycles": most, "source": "",
        },
        "instructions": {
            "atomic": most, "fence": most, "serializing": most, "system_register": most,
            "invalidation": most, "exception": most, "exception_return": most,
            "system_call": most, "system_call_return": most, "source": "",
        },
    }))
    .expect("it is a CPU's cycles")
}
