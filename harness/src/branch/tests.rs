// SPDX-License-Identifier: MIT OR Apache-2.0
//! Traces of real kernels (Debian's cloud images under QEMU 10.0, two hits each, armed by the agent), and what was
//! counted by hand in their listings. If nothing else is said they were recorded by a throw-away recorder that shares
//! nothing with the plugin; those of arm64 by the plugin.
//! `__softirqentry_text_end` in 6.12's is the retpoline thunk, by a name that stands at the same address.

use super::{CaptureError, Filter, Model, Symbols, lbr_waste, listing};
use crate::run::{Arch, LbrWaste};
use serde::Deserialize;
use tramplab_protocol::{
    message::{LbrWasteReply, Symbol},
    trace::{Kind, Record, Trace, VcpuTrace},
};

#[derive(Deserialize)]
struct Recorded {
    #[serde(skip, default = "x86_64")]
    arch: Arch,
    kernel: String,
    reply: LbrWasteReply,
    symbols: Vec<Symbol>,
    /// Oldest first.
    records: Vec<(u64, u64, Kind)>,
}

fn x86_64() -> Arch {
    Arch::X86_64
}

impl Recorded {
    fn read(name: &str) -> Recorded {
        let path = format!("{}/src/branch/testdata/{name}.json", env!("CARGO_MANIFEST_DIR"));
        let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{path}: {e}"));
        let recorded: Recorded = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{path}: {e}"));
        Recorded { arch: arch(name), ..recorded }
    }

    fn measure(&self) -> Result<LbrWaste, CaptureError> {
        let records =
            self.records.iter().map(|&(from, to, kind)| Record { from, to, kind, instructions: 1 }).collect();
        let total = self.records.len() as u64;
        let trace = Trace { discontinuities: false, vcpus: vec![VcpuTrace { index: 0, total, records }] };
        let symbols: Symbols = self.symbols.iter().cloned().collect();
        lbr_waste(self.arch, &trace, &symbols, &self.reply)
    }
}

type Counts = [(&'static str, Option<u32>); 4];

/// File, and per point what is wasted by filter.
const COUNTED: [(&str, &[Counts]); 12] = [
    ("6.1-fexit", &[[("any", Some(11)), ("any_call", Some(7)), ("any_return", Some(4)), ("cond", None)]]),
    ("6.12-fentry", &[[("any", Some(9)), ("any_call", Some(5)), ("any_return", None), ("cond", None)]]),
    ("6.12-fexit", &[[("any", Some(9)), ("any_call", Some(5)), ("any_return", Some(3)), ("ind_jump", None)]]),
    (
        "6.12-kprobe.multi",
        &[[("any", Some(16)), ("any_call", Some(9)), ("any_return", None), ("call", Some(9))]],
    ),
    (
        "6.12-kretprobe.multi",
        &[[("any", Some(22)), ("any_call", Some(15)), ("any_return", Some(5)), ("call", Some(15))]],
    ),
    // Without retpolines three of the calls are indirect ones, of one record each.
    (
        "6.12-mitigations-off-kretprobe.multi",
        &[[("any", Some(16)), ("any_call", Some(12)), ("any_return", Some(2)), ("call", Some(9))]],
    ),
    ("7.2-fexit", &[[("any", Some(6)), ("any_call", Some(4)), ("any_return", Some(2)), ("ind_call", None)]]),
    (
        "7.2-fsession",
        &[
            [("any", Some(11)), ("any_call", Some(6)), ("any_return", None), ("call", Some(6))],
            [("any", Some(6)), ("any_call", Some(4)), ("any_return", Some(2)), ("call", Some(4))],
        ],
    ),
    // Of arm64, recorded by the plugin; what ran between the hits is cut out. `ftrace_caller` is always on the way.
    (
        "7.2-arm64-fentry",
        &[[("any", Some(7)), ("any_call", Some(3)), ("any_return", None), ("call", Some(1))]],
    ),
    (
        "6.12-arm64-fexit",
        &[[("any", Some(6)), ("any_call", Some(5)), ("any_return", Some(2)), ("call", Some(2))]],
    ),
    // By a breakpoint, which is an exception and counts as one.
    (
        "7.2-arm64-kprobe",
        &[[("any", Some(27)), ("any_call", Some(12)), ("any_return", None), ("call", Some(9))]],
    ),
    // The helper is a function that returns at once on arm64. Not counted by hand: what the analysis says.
    (
        "6.1-arm64-kprobe",
        &[[("any", Some(34)), ("any_call", Some(17)), ("any_return", None), ("call", Some(11))]],
    ),
];

/// By the file's name.
fn arch(name: &str) -> Arch {
    if name.contains("-arm64-") { Arch::Arm64 } else { Arch::X86_64 }
}

#[test]
fn counts_are_those_made_by_hand() {
    for (name, points) in COUNTED {
        let waste = Recorded::read(name).measure().unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!((waste.interrupted_hits, waste.agreeing_hits), (0, 2), "{name}");
        assert_eq!(waste.points.len(), points.len(), "{name}");
        for (point, counts) in waste.points.iter().zip(points) {
            for model in Model::of(arch(name)) {
                for (filter, wasted) in counts {
                    let what = format!("{name} {} {model} {filter}", point.point);
                    let counted = point.wasted[model.name()][*filter];
                    assert_eq!(counted.wasted, *wasted, "{what}");
                    // bpf_fentry_test1 has no branch within itself.
                    assert_eq!(counted.wasted_selftest, None, "{what}");
                }
            }
        }
    }
}

#[test]
fn the_listings_that_were_counted() {
    let mut text = String::new();
    for (name, _) in COUNTED {
        let recorded = Recorded::read(name);
        let waste = recorded.measure().unwrap();
        for point in &waste.points {
            text += &format!("{name} ({}), {}\n", recorded.kernel, point.point);
            let model = Model::choose(None, recorded.arch);
            text += &listing(point, &waste.function, model, "any".parse::<Filter>().unwrap());
            text.push('\n');
        }
    }
    insta::assert_snapshot!(text);
}

/// Recorded by the plugin: the timer's interrupt fell into the second `prctl`, before the traced function.
#[test]
fn an_interrupted_hit_is_set_aside() {
    let mut recorded = Recorded::read("6.1-raw_tp-interrupted");
    let interrupted = |r: &Recorded| {
        let waste = r.measure().unwrap();
        (waste.interrupted_hits, waste.agreeing_hits, waste.points[0].wasted["intel-lbr"]["any"].wasted)
    };
    assert_eq!(interrupted(&recorded), (1, 1, Some(10)));
    // As a QEMU that reports no interrupts may make it look: known by where it leads.
    for record in &mut recorded.records {
        if record.2 == Kind::Interrupt {
            record.2 = Kind::Ret;
        }
    }
    assert_eq!(interrupted(&recorded), (1, 1, Some(10)));
}

/// 7.2 is 6.12 with other code between the function and the program; 6.12 with and without mitigations likewise.
#[test]
fn digests_differ_where_the_code_does() {
    let digest = |name: &str| Recorded::read(name).measure().unwrap().points[0].digest.clone();
    let mut digests: Vec<String> = COUNTED.map(|(name, _)| digest(name)).to_vec();
    digests.sort();
    digests.dedup();
    assert_eq!(digests.len(), COUNTED.len());
}

#[test]
fn a_lost_record_is_noticed() {
    for (name, _) in COUNTED {
        let mut recorded = Recorded::read(name);
        let is_call_of_program = |from: u64, to: u64, symbols: &[Symbol]| {
            let of = |address| symbols.iter().find(|s| (s.start..s.end).contains(&address));
            of(to).is_some_and(|s| s.name.starts_with("bpf_prog_") && s.start == to)
                && of(from).is_some_and(|s| !s.name.starts_with("bpf_prog_"))
        };
        let symbols = recorded.symbols.clone();
        let at = recorded.records.iter().position(|&(from, to, _)| is_call_of_program(from, to, &symbols));
        recorded.records.remove(at.expect("a call of the program"));
        let waste = recorded.measure().unwrap();
        assert_eq!(waste.agreeing_hits, 1, "{name}: the two hits no longer agree");

        let mut recorded = Recorded::read(name);
        recorded.records.truncate(recorded.records.len() / 2);
        assert!(matches!(recorded.measure(), Err(CaptureError::Count { .. })), "{name}");
    }
}

/// The same records somewhere else, as KASLR puts them at the next boot.
#[test]
fn a_moved_kernel_gives_the_same_digest() {
    for (name, _) in COUNTED {
        let recorded = Recorded::read(name);
        let mut moved = Recorded::read(name);
        let shift = |address: &mut u64| {
            if super::symbols::is_kernel(*address) {
                *address -= 0x40_0000;
            }
        };
        for symbol in moved.symbols.iter_mut().chain([&mut moved.reply.function]) {
            shift(&mut symbol.start);
            shift(&mut symbol.end);
        }
        for (from, to, _) in &mut moved.records {
            shift(from);
            shift(to);
        }
        let (here, there) = (recorded.measure().unwrap(), moved.measure().unwrap());
        for (a, b) in here.points.iter().zip(&there.points) {
            assert_ne!(a.records[1].from.address, b.records[1].from.address);
            assert_eq!((&a.digest, &a.wasted), (&b.digest, &b.wasted), "{name}");
        }
    }
}
