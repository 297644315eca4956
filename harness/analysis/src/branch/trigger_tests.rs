// SPDX-License-Identifier: MIT OR Apache-2.0
//! Traces of real kernels, and counts made by hand in the disassembly and in the listings.
//!
//! The plugin recorded two hits each of the empty program on Debian's cloud kernels under QEMU
//! 10.0. The counts of arm64 are those of the analysis, which checks their sum.

use super::{
    Share, Split, Symbols, TriggerError,
    listing::{printed, trigger_lines},
    reached, split,
    tests::{read, shift},
    trigger_cost,
};
use serde::Deserialize;
use tramplab_model::run::TriggerCost;
use tramplab_protocol::{
    Point,
    message::{Symbol, TriggerReply, Triggered},
    trace::{Accesses, Kind, Record, Trace, VcpuTrace},
};

#[derive(Deserialize)]
struct Recorded {
    kernel: String,
    reply: TriggerReply,
    symbols: Vec<Symbol>,
    /// Oldest first; the last field counts instructions.
    records: Vec<(u64, u64, Kind, u32)>,
}

impl Recorded {
    fn read(name: &str) -> Recorded {
        read(name)
    }

    /// With a read and two writes before each branch.
    fn with_accesses(&self) -> Trace {
        let mut trace = self.trace();
        for record in &mut trace.vcpus[0].records {
            record.accesses = Some(Accesses { reads: 1, writes: 2 });
        }
        trace
    }

    fn trace(&self) -> Trace {
        let record = |&(from, to, kind, instructions): &(u64, u64, Kind, u32)| Record {
            from,
            to,
            kind,
            instructions,
            accesses: None,
        };
        let records: Vec<Record> = self.records.iter().map(record).collect();
        let total = records.len() as u64;
        Trace { discontinuities: false, vcpus: vec![VcpuTrace { index: 0, total, records }] }
    }

    fn measure(&self) -> Result<TriggerCost, TriggerError> {
        self.measured(&self.trace())
    }

    fn measured(&self, trace: &Trace) -> Result<TriggerCost, TriggerError> {
        let symbols: Symbols = self.symbols.iter().cloned().collect();
        trigger_cost(trace, &symbols, &self.reply, None)
    }

    /// Finds the records that enter `symbol`.
    fn entries(&self, symbol: &Symbol) -> Vec<usize> {
        (0..self.records.len()).filter(|&i| self.records[i].1 == symbol.start).collect()
    }
}

/// File; for each part its instructions and branches; interrupted hits; hits that agree.
type Counted = (&'static str, &'static [(Point, u32, u32)], u32, u32);
const COUNTED: &[Counted] = &[
    ("6.12-trigger-fentry", &[(Point::Entry, 129, 19)], 1, 1),
    ("6.12-trigger-fexit", &[(Point::Entry, 37, 7), (Point::Exit, 153, 23)], 0, 2),
    ("6.12-trigger-kprobe.multi", &[(Point::Entry, 260, 20)], 1, 1),
    ("6.12-trigger-kretprobe.multi", &[(Point::Entry, 207, 15), (Point::Exit, 326, 30)], 1, 1),
    ("6.12-trigger-tp_btf", &[(Point::Entry, 71, 9)], 0, 2),
    ("7.2-trigger-fentry", &[(Point::Entry, 107, 12)], 1, 1),
    ("7.2-trigger-fentry.multi", &[(Point::Entry, 107, 12)], 0, 2),
    ("7.2-trigger-fexit", &[(Point::Entry, 35, 7), (Point::Exit, 127, 16)], 0, 2),
    ("7.2-trigger-kprobe.multi", &[(Point::Entry, 247, 21)], 0, 2),
    // The interrupt came behind the return to the caller, outside of the hits.
    ("7.2-trigger-kretprobe.multi", &[(Point::Entry, 341, 20), (Point::Exit, 356, 29)], 0, 2),
    // The records between the hits are cut out.
    ("7.2-arm64-trigger-fentry", &[(Point::Entry, 151, 12)], 0, 2),
    ("7.2-arm64-trigger-kprobe", &[(Point::Entry, 749, 82)], 0, 2),
    // The breakpoint has 749 instructions, the call behind it 151.
    ("7.2-arm64-trigger-fentry+kprobe", &[(Point::Entry, 900, 94)], 0, 2),
];

#[test]
fn agrees_with_counts_made_by_hand() {
    for &(name, parts, interrupted, agreeing) in COUNTED {
        let cost = Recorded::read(name).measure().unwrap_or_else(|e| panic!("{name}: {e}"));
        let found: Vec<_> =
            cost.parts.iter().map(|p| (p.point, p.instructions, p.branches)).collect();
        assert_eq!(found, parts, "{name}");
        assert_eq!((cost.interrupted_hits, cost.agreeing_hits), (interrupted, agreeing), "{name}");
        assert_eq!(cost.instructions(), parts.iter().map(|part| part.1).sum::<u32>());
        for part in &cost.parts {
            assert_eq!(
                part.records.iter().map(|r| r.instructions).sum::<u32>(),
                part.instructions,
                "{name}"
            );
        }
    }
}

/// The empty program runs at each point, and calls nothing.
#[test]
fn splits_add_up_to_the_hit() {
    for &(name, parts, ..) in COUNTED {
        let recorded = Recorded::read(name);
        let cost = recorded.measure().unwrap();
        let Split { mechanism, program, helpers } = split(&cost, &recorded.reply.program);
        assert_eq!(helpers, Share::default(), "{name}");
        assert_eq!(mechanism.instructions + program.instructions, cost.instructions(), "{name}");
        assert_eq!(mechanism.branches + program.branches, cost.branches(), "{name}");
        assert_eq!(program.branches as usize, recorded.reply.points.len(), "{name}");
        assert!((2..=20).contains(&program.instructions), "{name}: {program:?} {parts:?}");
        assert!(reached(&cost, &recorded.reply.program) > Some(50), "{name}");
    }
}

#[test]
fn counts_the_accesses_of_the_counted_instructions() {
    for &(name, ..) in COUNTED {
        let recorded = Recorded::read(name);
        let without = recorded.measure().unwrap();
        assert_eq!((without.reads(), without.writes()), (None, None), "{name}");
        let cost = recorded.measured(&recorded.with_accesses()).unwrap();
        assert_eq!((&cost.digest, cost.agreeing_hits), (&without.digest, without.agreeing_hits));
        for part in &cost.parts {
            // Before its first branch runs the function, but what stands at its site is the
            // tracer's.
            let is_own = part.point == Point::Exit || recorded.reply.mechanism.is_tracepoint();
            let reads = part.records.len() as u32 - u32::from(is_own);
            assert_eq!((part.reads, part.writes), (Some(reads), Some(2 * reads)), "{name}");
        }
    }
}

/// Hits with the same instructions and other accesses are of another form: a `rep` that goes on.
#[test]
fn tells_hits_of_other_accesses_apart() {
    let recorded = Recorded::read("7.2-trigger-fexit");
    let mut trace = recorded.with_accesses();
    let run = recorded.entries(&recorded.reply.program)[0];
    let accesses = trace.vcpus[0].records[run].accesses.as_mut().unwrap();
    accesses.writes += 1;
    let cost = recorded.measured(&trace).unwrap();
    assert_eq!((cost.hits, cost.agreeing_hits), (2, 1));
}

#[test]
fn prints_the_listings_counted_by_hand() {
    let mut text = String::new();
    for (name, ..) in COUNTED {
        let recorded = Recorded::read(name);
        for part in &recorded.measure().unwrap().parts {
            text += &format!(
                "{name} ({}), {}\n{}\n",
                recorded.kernel,
                part.point,
                printed(&trigger_lines(part, None), None)
            );
        }
    }
    insta::assert_snapshot!(text);
}

#[test]
fn digests_depend_on_the_code_and_not_on_the_boot() {
    let mut digests = Vec::new();
    for (name, ..) in COUNTED {
        let here = Recorded::read(name).measure().unwrap();
        let mut moved = Recorded::read(name);

        let TriggerReply { function, program, .. } = &mut moved.reply;
        for symbol in moved.symbols.iter_mut().chain([function, program]) {
            shift(&mut symbol.start);
            shift(&mut symbol.end);
        }
        for (from, to, ..) in &mut moved.records {
            shift(from);
            shift(to);
        }
        let there = moved.measure().unwrap();
        assert_ne!(here.parts[0].records[0].from.address, there.parts[0].records[0].from.address);
        assert_eq!(here.digest, there.digest, "{name}");
        digests.push(here.digest);
    }
    digests.sort();
    digests.dedup();
    // On 7.2 a hit of fentry.multi runs the same code as one of fentry.
    assert_eq!(digests.len(), COUNTED.len() - 1);
}

/// A record or count that is lost, added or changed in one hit is an error, or the hits disagree.
#[test]
fn notices_damage_to_a_hit() {
    type Break = (&'static str, fn(&mut Recorded));
    let breaks: [Break; 6] = [
        ("an instruction more on the way to the program", |recorded| {
            let run = recorded.entries(&recorded.reply.program)[0];
            recorded.records[run].3 += 1;
        }),
        ("the entry into the program lost", |recorded| {
            let run = recorded.entries(&recorded.reply.program)[0];
            recorded.records.remove(run);
        }),
        ("the call of the function lost", |recorded| {
            let call = recorded.entries(&recorded.reply.function)[0];
            recorded.records.remove(call);
        }),
        ("the branch at the site lost", |recorded| {
            let call = recorded.entries(&recorded.reply.function)[0];
            recorded.records.remove(call + 1);
        }),
        ("a branch between lost", |recorded| {
            let run = recorded.entries(&recorded.reply.program)[0];
            recorded.records.remove(run + 1);
        }),
        ("the end lost", |recorded| {
            let call = recorded.entries(&recorded.reply.function)[1];
            recorded.records.truncate(call + 4);
        }),
    ];
    // Take the traces whose hits agree. A tracepoint's hit has no call of the function.
    for (name, ..) in
        COUNTED.iter().filter(|counted| counted.3 == 2 && !counted.0.ends_with("tp_btf"))
    {
        for (what, breaks) in breaks {
            let mut recorded = Recorded::read(name);
            breaks(&mut recorded);
            if let Ok(cost) = recorded.measure() {
                assert_eq!(cost.agreeing_hits, 1, "{name}: {what}");
            }
        }
    }
}

/// Puts a function between the caller and the traced one, which jumps to it or ends after it.
fn with_a_neighbour(
    name: &str,
    change: impl Fn(&mut Vec<(u64, u64, Kind, u32)>, usize, usize),
) -> Recorded {
    let mut recorded = Recorded::read(name);
    for hit in [1, 0] {
        let call = recorded.entries(&recorded.reply.function)[hit];
        let site = recorded.records[call].0;
        let is_back = |&i: &usize| (1..=15).contains(&recorded.records[i].1.wrapping_sub(site));
        let back = (call..recorded.records.len()).find(is_back).unwrap();
        change(&mut recorded.records, call, back);
    }
    recorded
}

const NEIGHBOUR: u64 = 0xffff_ffff_ff00_0000;

#[test]
fn follows_a_jump_to_the_function_back_to_the_call_before_it() {
    for (name, ..) in COUNTED.iter().filter(|counted| !counted.0.ends_with("tp_btf")) {
        let jumped = with_a_neighbour(name, |records, call, _| {
            let (site, function, kind, instructions) = records[call];
            records[call] = (NEIGHBOUR + 8, function, Kind::Jump, 3);
            // A call that has returned is not the one.
            records.insert(call, (NEIGHBOUR + 99, NEIGHBOUR + 5, Kind::Ret, 1));
            records.insert(call, (NEIGHBOUR + 1, NEIGHBOUR + 90, Kind::Call, 1));
            records.insert(call, (site, NEIGHBOUR, kind, instructions));
        });
        // The neighbour's return is predicted too.
        let cost =
            |recorded: &Recorded| TriggerCost { predicted: None, ..recorded.measure().unwrap() };
        assert_eq!(cost(&jumped), cost(&Recorded::read(name)), "{name}");
    }
}

/// `inet_csk_clear_xmit_timers` calls `sk_stop_timer` and ends with a jump to it.
#[test]
fn follows_a_jump_behind_a_call_of_the_same_function() {
    for (name, ..) in COUNTED.iter().filter(|counted| !counted.0.ends_with("tp_btf")) {
        let mut both = Recorded::read(name);
        let [first, second] = both.entries(&both.reply.function)[..] else { panic!("{name}") };
        let site = both.records[second].0;
        let mut called = both.records[first..second].to_vec();
        let is_back =
            |record: &(u64, u64, Kind, u32)| (1..=15).contains(&record.1.wrapping_sub(called[0].0));
        called.truncate(called.iter().position(is_back).unwrap() + 1);
        called[0].0 = NEIGHBOUR + 1;
        called.last_mut().unwrap().1 = NEIGHBOUR + 6;
        let mut jumped = both.records.split_off(second);
        jumped[0] = (NEIGHBOUR + 8, jumped[0].1, Kind::Jump, 3);
        both.records.truncate(first);
        both.records.push((site, NEIGHBOUR, Kind::Call, 1));
        // An interrupt sets the first hit aside.
        let handler = NEIGHBOUR + 0x800;
        called.insert(1, (called[0].1, handler, Kind::Interrupt, 0));
        called.insert(2, (handler + 8, called[0].1, Kind::Iret, 1));
        both.records.extend([called, jumped].concat());
        let (cost, whole) = (both.measure().unwrap(), Recorded::read(name).measure().unwrap());
        assert_eq!((cost.hits, cost.interrupted_hits, cost.agreeing_hits), (2, 1, 1), "{name}");
        assert_eq!(cost.instructions(), whole.instructions(), "{name}");
    }
}

fn replacement() -> Symbol {
    Symbol { start: NEIGHBOUR, end: NEIGHBOUR + 0x1000, ..neighbour("replacement") }
}

/// Has a live patch lead each hit to another function, which does what the traced one does.
fn live_patched(name: &str) -> Recorded {
    let function = Recorded::read(name).reply.function;
    let is_in = |address: u64| (function.start..function.end).contains(&address);
    let moved = |address: &mut u64| *address = *address - function.start + NEIGHBOUR;
    let mut patched = with_a_neighbour(name, |records, call, back| {
        // The function calls nothing, so the last tracer at its entry comes back last.
        let body = (call + 2..back).rfind(|&i| is_in(records[i].1)).unwrap();
        records[body].1 = NEIGHBOUR;
        for record in &mut records[body + 1..=back] {
            [&mut record.0, &mut record.1]
                .into_iter()
                .filter(|place| is_in(**place))
                .for_each(moved);
        }
    });
    patched.reply.replacement = Some(replacement());
    patched
}

#[test]
fn leaves_out_the_body_that_a_live_patch_leads_to() {
    for (name, ..) in COUNTED.iter().filter(|counted| !counted.0.ends_with("tp_btf")) {
        let cost = live_patched(name).measure().unwrap_or_else(|why| panic!("{name}: {why}"));
        let plain = Recorded::read(name).measure().unwrap();
        let counts = |cost: &TriggerCost| (cost.hits, cost.agreeing_hits, cost.instructions());
        assert_eq!(counts(&cost), counts(&plain), "{name}");
        let parts = |cost: &TriggerCost| -> Vec<_> {
            cost.parts.iter().map(|part| (part.point, part.instructions, part.branches)).collect()
        };
        assert_eq!(parts(&cost), parts(&plain), "{name}");
        assert_ne!(cost.digest, plain.digest, "{name}");

        let mut elsewhere = live_patched(name);
        elsewhere.reply.replacement = None;
        let mut unpatched = Recorded::read(name);
        unpatched.reply.replacement = Some(replacement());
        for recorded in [elsewhere, unpatched] {
            let error = recorded.measure().unwrap_err();
            assert!(matches!(error, TriggerError::Shape { .. }), "{name}: {error}");
        }
    }
}

/// Has the function end with a jump to another one, which calls a third. `middle` comes between.
fn ending_with_a_jump(name: &str, middle: &[(u64, u64, Kind, u32)]) -> Recorded {
    let function = Recorded::read(name).reply.function;
    with_a_neighbour(name, |records, call, back| {
        let inside = |i: &usize| (function.start..function.end).contains(&records[*i].0);
        let last = (call..=back).rfind(inside).unwrap();
        let (from, to, _, instructions) = records[last];
        let jump = (from, NEIGHBOUR, Kind::Jump, instructions);
        let ends = (NEIGHBOUR + 8, to, Kind::Ret, 3);
        records.splice(last..=last, [&[jump], middle, &[ends]].concat());
    })
}

const CALLS_ONE_MORE: [(u64, u64, Kind, u32); 2] =
    [(NEIGHBOUR + 1, NEIGHBOUR + 90, Kind::Call, 7), (NEIGHBOUR + 99, NEIGHBOUR + 5, Kind::Ret, 7)];

#[test]
fn leaves_out_the_work_of_a_function_that_is_jumped_to_at_the_end() {
    // A return thunk for SRSO drops the frame of its own call.
    let safe_ret = Symbol { start: NEIGHBOUR + 200, end: NEIGHBOUR + 209, ..neighbour("safe_ret") };
    let by_thunk = [
        (NEIGHBOUR + 1, NEIGHBOUR + 90, Kind::Call, 7),
        (NEIGHBOUR + 99, NEIGHBOUR + 190, Kind::Jump, 7),
        (NEIGHBOUR + 190, NEIGHBOUR + 200, Kind::Call, 1),
        (NEIGHBOUR + 208, NEIGHBOUR + 5, Kind::Ret, 2),
    ];
    for (name, parts, ..) in COUNTED.iter().filter(|counted| !counted.0.ends_with("tp_btf")) {
        for middle in [&CALLS_ONE_MORE[..], &by_thunk] {
            let mut jumps = ending_with_a_jump(name, middle);
            jumps.symbols.push(safe_ret.clone());
            let cost = jumps.measure().unwrap_or_else(|e| panic!("{name}: {e}"));
            let found: Vec<_> =
                cost.parts.iter().map(|p| (p.point, p.instructions, p.branches)).collect();
            assert_eq!(found, *parts, "{name}");
        }
    }
}

/// Untraced, the function returns through the thunk too.
#[test]
fn the_thunk_of_the_functions_own_return_is_no_cost() {
    let safe_ret = [(NEIGHBOUR + 1, NEIGHBOUR + 200, Kind::Call, 1)];
    let fills = [0, 5].map(|at| (NEIGHBOUR + at, NEIGHBOUR + at + 5, Kind::Call, 2));
    for (name, parts, ..) in COUNTED.iter().filter(|counted| !counted.0.ends_with("tp_btf")) {
        for (thunk, middle) in [
            ("srso_return_thunk", &safe_ret[..]),
            ("retbleed_return_thunk", &[]),
            ("call_depth_return_thunk", &fills),
        ] {
            let mut returns = ending_with_a_jump(name, middle);
            let [start, end] = [NEIGHBOUR, NEIGHBOUR + 100];
            returns.symbols.push(Symbol { start, end, ..neighbour(thunk) });
            let cost = returns.measure().unwrap_or_else(|e| panic!("{name}, {thunk}: {e}"));
            let found: Vec<_> =
                cost.parts.iter().map(|p| (p.point, p.instructions, p.branches)).collect();
            assert_eq!(found, *parts, "{name}, {thunk}");
        }
    }
}

#[test]
fn rejects_a_jump_at_the_end_that_does_not_come_back() {
    let (name, ..) = COUNTED[0];
    let calls = (NEIGHBOUR + 1, NEIGHBOUR + 90, Kind::Call, 7);
    let sleeps = [(NEIGHBOUR + 1, NEIGHBOUR + 300, Kind::Call, 7)];
    for middle in [vec![calls], [&sleeps[..], &CALLS_ONE_MORE[1..]].concat()] {
        let mut jumps = ending_with_a_jump(name, &middle);
        let end = NEIGHBOUR + 309;
        jumps.symbols.push(Symbol { start: end - 9, end, ..neighbour("__switch_to_asm") });
        assert!(matches!(jumps.measure(), Err(TriggerError::Shape { .. })), "{middle:?}");
    }
}

fn neighbour(name: &str) -> Symbol {
    Symbol { name: name.to_owned(), module: None, start: 0, end: 0 }
}

/// The agent counts on the hits that it makes; of a function that the user names there may be more.
#[test]
fn takes_the_hits_of_others_only_where_the_user_names_the_function() {
    let (name, ..) = COUNTED[3];
    let mut recorded = Recorded::read(name);
    recorded.reply.hits = 1;
    assert!(matches!(recorded.measure(), Err(TriggerError::Runs { .. })));
    recorded.reply.trigger = Some(Triggered { workload: "any".to_owned(), hits: 1 });
    let cost = recorded.measure().unwrap();
    assert_eq!((cost.hits, cost.interrupted_hits, cost.agreeing_hits), (2, 1, 1));
    // Without the oldest records, the agent's own hit may be missing.
    let mut cut = recorded.trace();
    cut.vcpus[0].total += 1;
    let symbols: Symbols = recorded.symbols.iter().cloned().collect();
    let result = trigger_cost(&cut, &symbols, &recorded.reply, None);
    assert!(matches!(result, Err(TriggerError::Runs { .. })));
    // Fewer than the agent made.
    recorded.reply.hits = 3;
    assert!(matches!(recorded.measure(), Err(TriggerError::Runs { .. })));
}

/// Tracers call some functions, some call themselves, and some go on with another task.
#[test]
fn tells_functions_whose_hits_cannot_be_told_apart() {
    let (name, ..) = COUNTED[1];
    let called_once_more = |recorded: &mut Recorded| {
        let call = recorded.entries(&recorded.reply.function)[0];
        recorded.records.insert(0, recorded.records[call]);
    };
    let called_by_itself = |recorded: &mut Recorded| {
        let call = recorded.entries(&recorded.reply.function)[0];
        recorded.records[call].0 = recorded.reply.function.end - 1;
    };
    let never_back = |recorded: &mut Recorded| {
        let call = recorded.entries(&recorded.reply.function)[1];
        let site = recorded.records[call].0;
        recorded.records.retain(|record| !(1..=15).contains(&record.1.wrapping_sub(site)));
    };
    let switched = |recorded: &mut Recorded| {
        never_back(recorded);
        let (start, end) = (NEIGHBOUR, NEIGHBOUR + 0x100);
        recorded.symbols.push(Symbol { start, end, ..neighbour("__switch_to_asm") });
        recorded.records.push((NEIGHBOUR - 8, NEIGHBOUR, Kind::Call, 1));
    };
    type Change<'a> = &'a dyn Fn(&mut Recorded);
    type Expected = fn(&TriggerError) -> bool;
    let own: Expected = |e| matches!(e, TriggerError::Calls { .. } | TriggerError::Shape { .. });
    let table: [(&str, Change, Expected); 4] = [
        ("once more", &called_once_more, |e| matches!(e, TriggerError::Reentered { .. })),
        ("by itself", &called_by_itself, |e| matches!(e, TriggerError::Reentered { .. })),
        ("switched", &switched, |e| matches!(e, TriggerError::Away { .. })),
        ("never back", &never_back, own),
    ];
    for (what, change, expected) in table {
        for (trigger, expected) in [(None, own), (Some("any"), expected)] {
            let mut recorded = Recorded::read(name);
            change(&mut recorded);
            recorded.reply.trigger =
                trigger.map(|workload| Triggered { workload: workload.to_owned(), hits: 1 });
            let error = recorded.measure().unwrap_err();
            assert!(expected(&error), "{what} {trigger:?}: {error:?}");
        }
    }
}

/// A jump to the function belongs to the newest call that is still open, if that can be known.
#[test]
fn takes_no_call_of_another_frame_for_the_caller() {
    let (name, ..) = COUNTED[0];
    let recorded = Recorded::read(name);
    let (function, program) = (&recorded.reply.function, &recorded.reply.program);
    let at = |offset| function.start + offset;
    const CALLER: u64 = NEIGHBOUR;
    const TRAMPOLINE: u64 = NEIGHBOUR - 0x1000;
    const SWITCH: u64 = NEIGHBOUR - 0x2000;
    // A hit up to the body, and from it.
    let enter = |from, kind| {
        vec![
            (from, at(0), kind, 3),
            (at(4), TRAMPOLINE, Kind::Call, 1),
            (TRAMPOLINE + 0x10, program.start, Kind::Call, 1),
            (program.start + 8, TRAMPOLINE + 0x15, Kind::Ret, 1),
            (TRAMPOLINE + 0x20, at(9), Kind::Ret, 1),
        ]
    };
    let leave = |to| vec![(at(0x20), to, Kind::Ret, 1)];
    let one = |from, kind, to| [enter(from, kind), leave(to)].concat();
    let call = |from, to| vec![(from, to, Kind::Call, 1)];
    let ret = |from, to| vec![(from, to, Kind::Ret, 1)];
    let switch = || call(CALLER + 0x60, SWITCH);
    let fill = || call(SWITCH + 1, SWITCH + 6);
    let jumped = |to| one(CALLER + 0x30, Kind::Jump, to);
    let (site, outer) = (CALLER + 0x2000, CALLER + 0x1000);
    type Traced = Vec<(u64, u64, Kind, u32)>;
    let table: [(&str, u32, Traced, bool); 8] = [
        ("called", 1, one(site, Kind::Call, site + 5), true),
        // In the function's body another one is called, which calls it, and then one that jumps to
        // it.
        (
            "nested",
            3,
            [
                enter(site, Kind::Call),
                call(at(0x10), outer),
                one(outer + 1, Kind::Call, outer + 6),
                call(outer + 0x10, CALLER),
                jumped(outer + 0x15),
                ret(outer + 0x20, at(0x15)),
                leave(site + 5),
            ]
            .concat(),
            true,
        ),
        // The call before a switch is one of another task.
        ("behind a switch", 1, [call(site, CALLER), switch(), jumped(site + 5)].concat(), false),
        (
            "behind a hit that switches",
            2,
            [
                call(site, CALLER),
                enter(outer, Kind::Call),
                switch(),
                leave(outer + 5),
                jumped(site + 5),
            ]
            .concat(),
            false,
        ),
        // A switch fills the return stack buffer with calls that do not return.
        (
            "behind a filled buffer",
            1,
            [switch(), fill(), jumped(site + 5), switch(), fill()].concat(),
            false,
        ),
        // The call before a hit is not the caller of one in it.
        (
            "in another",
            2,
            [
                call(site, CALLER),
                enter(outer, Kind::Call),
                call(at(0x10), CALLER),
                jumped(at(0x15)),
                leave(outer + 5),
                ret(CALLER + 0x40, site + 5),
            ]
            .concat(),
            false,
        ),
        (
            "behind one in another",
            3,
            [
                call(site, CALLER),
                enter(outer, Kind::Call),
                call(at(0x10), CALLER),
                one(CALLER + 1, Kind::Call, CALLER + 6),
                jumped(at(0x15)),
                leave(outer + 5),
                ret(CALLER + 0x40, site + 5),
            ]
            .concat(),
            false,
        ),
        // Each hit would be looked for up to the end.
        ("deep", 40, [enter(site, Kind::Call).repeat(40), leave(site + 5)].concat(), false),
    ];
    for (what, hits, records, is_measured) in table {
        let mut recorded = Recorded::read(name);
        recorded.symbols.push(Symbol {
            start: SWITCH,
            end: SWITCH + 0x100,
            ..neighbour("__switch_to_asm")
        });
        recorded.records = records;
        recorded.reply.function.end = at(0x40);
        recorded.reply.hits = hits;
        match recorded.measure() {
            Ok(cost) => assert!(is_measured && cost.agreeing_hits == hits, "{what}: {cost:?}"),
            Err(error @ TriggerError::Shape { .. }) => assert!(!is_measured, "{what}: {error}"),
            Err(error) => panic!("{what}: {error}"),
        }
    }
}

#[test]
fn skips_a_hit_with_an_interrupt_anywhere_in_it() {
    let (name, ..) = COUNTED[1];
    let handler = Symbol {
        name: "asm_sysvec_apic_timer_interrupt".to_owned(),
        module: None,
        start: 0xffff_ffff_ff00_0000,
        end: 0xffff_ffff_ff00_1000,
    };
    let call = Recorded::read(name).entries(&Recorded::read(name).reply.function)[0];
    let back = Recorded::read(name).records[call].0 + 5;
    let records = Recorded::read(name).records;
    let end = (call..records.len()).find(|&i| records[i].1 == back).unwrap();
    for at in call + 1..=end {
        let mut recorded = Recorded::read(name);
        let from = recorded.records[at].0;
        recorded.symbols.push(handler.clone());
        recorded.records.insert(at, (handler.start + 0x80, from, Kind::Iret, 9));
        recorded.records.insert(at, (from, handler.start, Kind::Interrupt, 0));
        let cost = recorded.measure().unwrap_or_else(|e| panic!("before record {at}: {e}"));
        assert_eq!((cost.interrupted_hits, cost.agreeing_hits), (1, 1), "before record {at}");
    }
}

#[test]
fn rejects_replies_that_do_not_fit_the_trace() {
    let (name, ..) = COUNTED[1];
    let measure = |change: fn(&mut Recorded)| {
        let mut recorded = Recorded::read(name);
        change(&mut recorded);
        recorded.measure().unwrap_err()
    };
    assert_eq!(measure(|r| r.reply.hits = 0), TriggerError::Empty);
    assert!(matches!(
        measure(|r| r.reply.hits = 3),
        TriggerError::Runs { found: 2, expected: 3, .. }
    ));
    // A session's program that asks for no exit.
    let error = measure(|r| r.reply.points = vec![Point::Entry, Point::Exit]);
    assert!(error.to_string().contains("expected 4"), "{error}");
    assert!(error.to_string().ends_with("returns 1 at the entry does not run at the exit"));
    assert!(matches!(
        measure(|r| r.reply.points = vec![Point::Entry]),
        TriggerError::Misplaced { hit: 0, point: Point::Entry, found: 0, expected: 1 }
    ));
    assert!(matches!(
        measure(|r| r.reply.function = r.reply.program.clone()),
        TriggerError::Shape { hit: 0, .. }
    ));
    // A transfer into the function without one that left it before.
    assert!(matches!(
        measure(|r| {
            let run = r.entries(&r.reply.program)[0];
            let site = r.reply.function.start + 9;
            r.records.insert(run + 1, (r.reply.program.start, site, Kind::Jump, 1));
        }),
        TriggerError::Unaccounted { .. }
            | TriggerError::Shape { .. }
            | TriggerError::Misplaced { .. }
    ));

    let recorded = Recorded::read(name);
    let symbols: Symbols = recorded.symbols.iter().cloned().collect();
    let mut both = recorded.trace();
    both.vcpus.push(VcpuTrace { index: 1, ..both.vcpus[0].clone() });
    let error = trigger_cost(&both, &symbols, &recorded.reply, None).unwrap_err();
    assert_eq!(error, TriggerError::Vcpus { first: 0, second: 1 });
}
