// SPDX-License-Identifier: MIT OR Apache-2.0
//! Splits of hits that are made by hand.

use super::{Share, Split, reached, split};
use tramplab_model::run::{Place, TriggerCost, TriggerPart, TriggerRecord};
use tramplab_protocol::{
    Point,
    message::Symbol,
    trace::Kind::{self, Call, Cond, IndCall, IndJump, Jump, Ret},
};

/// A record: two places, and the instructions before it. A place is a function and an offset.
type Line = (&'static str, u64, Kind, &'static str, u64, u32);

/// The functions of the hits, 4 KiB apart. Short names are those of programs.
const FUNCTIONS: &[(&str, &str)] = &[
    ("traced", "traced"),
    ("trampoline", "bpf_trampoline_6442508829"),
    ("enter", "__bpf_prog_enter_sleepable_recur"),
    ("main", "bpf_prog_6deef7357e7b4530_on_connect"),
    ("sub", "bpf_prog_3b185187f1855c4c_add"),
    ("step", "bpf_prog_0123456789abcdef_step"),
    ("next", "bpf_prog_fedcba9876543210_next"),
    ("empty", "bpf_prog_a04f5eef06a7f555_tramplab_empty"),
    ("lookup", "__htab_map_lookup_elem"),
    ("loop", "bpf_loop"),
    ("inner", "memcmp"),
    ("thunk", "__x86_indirect_thunk_array"),
    ("return_thunk", "srso_alias_return_thunk"),
    ("safe_ret", "srso_alias_safe_ret"),
];

fn place(function: &str, offset: u64) -> Place {
    let index = FUNCTIONS.iter().position(|(short, _)| *short == function).unwrap();
    let name = FUNCTIONS[index].1;
    Place {
        address: 0xffff_ffff_c000_0000 + 0x1000 * index as u64 + offset,
        symbol: Some(name.to_owned()),
        module: name.starts_with("bpf_prog_").then(|| "bpf".to_owned()),
        offset,
    }
}

fn program() -> Symbol {
    let start = place("main", 0).address;
    Symbol {
        name: "bpf_prog_6deef7357e7b4530_on_connect".into(),
        module: None,
        start,
        end: start + 100,
    }
}

fn part(point: Point, lines: &[Line]) -> TriggerPart {
    let records: Vec<TriggerRecord> = lines
        .iter()
        .map(|&(from, at, kind, to, offset, instructions)| TriggerRecord {
            from: place(from, at),
            to: place(to, offset),
            kind,
            instructions,
        })
        .collect();
    TriggerPart {
        point,
        instructions: records.iter().map(|record| record.instructions).sum(),
        branches: records.len() as u32 - u32::from(point == Point::Exit),
        reads: None,
        writes: None,
        records,
    }
}

fn cost(parts: Vec<TriggerPart>) -> TriggerCost {
    TriggerCost {
        hits: 1,
        interrupted_hits: 0,
        agreeing_hits: 1,
        digest: String::new(),
        parts,
        predicted: None,
        estimate: None,
    }
}

/// A hit whose program does `body`, which begins and ends in `main`. The mechanism's share is 35
/// instructions and 5 branches; the program's last branch comes after 2 more.
fn hit(body: &[Line]) -> TriggerCost {
    let way: &[Line] = &[
        ("traced", 4, Call, "trampoline", 0, 0),
        ("trampoline", 20, Call, "enter", 0, 10),
        ("enter", 30, Ret, "trampoline", 25, 10),
        ("trampoline", 40, Call, "main", 0, 5),
    ];
    let back: &[Line] =
        &[("main", 98, Ret, "trampoline", 45, 2), ("trampoline", 60, Ret, "traced", 9, 10)];
    cost(vec![part(Point::Entry, &[way, body, back].concat())])
}

fn share(instructions: u32, branches: u32) -> Share {
    Share { instructions, branches }
}

/// The counts of the program and its helpers, without the program's last branch.
#[test]
fn splits_hits_by_the_code_that_runs() {
    type Row<'a> = (&'a str, &'a [Line], (u32, u32), (u32, u32));
    let table: &[Row] = &[
        ("no call", &[("main", 10, Cond, "main", 90, 7)], (7, 1), (0, 0)),
        (
            "a helper that calls a function",
            &[
                ("main", 10, Call, "lookup", 0, 7),
                ("lookup", 10, Call, "inner", 0, 20),
                ("inner", 10, Ret, "lookup", 15, 300),
                ("lookup", 90, Ret, "main", 15, 4),
            ],
            (7, 1),
            (324, 3),
        ),
        (
            "a function of the program that calls a helper",
            &[
                ("main", 10, Call, "sub", 0, 7),
                ("sub", 10, Call, "lookup", 0, 20),
                ("lookup", 90, Ret, "sub", 15, 300),
                ("sub", 20, Ret, "main", 15, 4),
            ],
            (31, 3),
            (300, 1),
        ),
        (
            "callbacks",
            &[
                ("main", 10, Call, "loop", 0, 7),
                ("loop", 10, IndCall, "step", 0, 20),
                ("step", 10, Call, "lookup", 0, 3),
                ("lookup", 90, Ret, "step", 15, 300),
                ("step", 20, Ret, "loop", 12, 4),
                ("loop", 20, Cond, "loop", 5, 50),
                ("loop", 10, IndCall, "step", 0, 60),
                ("step", 20, Ret, "loop", 12, 5),
                ("loop", 90, Ret, "main", 15, 70),
            ],
            (7 + 3 + 4 + 5, 4),
            (20 + 300 + 50 + 60 + 70, 5),
        ),
        (
            "a program beside it, at a function of a helper",
            &[
                ("main", 10, Call, "lookup", 0, 7),
                ("lookup", 10, Call, "empty", 0, 20),
                ("empty", 10, Ret, "lookup", 15, 300),
                ("lookup", 90, Ret, "main", 15, 4),
            ],
            (7, 1),
            (324, 3),
        ),
        (
            "thunks",
            &[
                ("main", 10, Call, "thunk", 0, 7),
                // A retpoline overwrites its own return.
                ("thunk", 0, Call, "thunk", 12, 1),
                ("thunk", 16, Ret, "loop", 0, 2),
                ("loop", 10, Call, "thunk", 0, 20),
                ("thunk", 0, Call, "thunk", 12, 1),
                ("thunk", 16, Ret, "step", 0, 2),
                ("step", 20, Jump, "return_thunk", 0, 4),
                ("return_thunk", 0, Call, "safe_ret", 0, 1),
                ("safe_ret", 8, Ret, "loop", 15, 3),
                ("loop", 90, Jump, "return_thunk", 0, 70),
                ("return_thunk", 0, Call, "safe_ret", 0, 1),
                ("safe_ret", 8, Ret, "main", 15, 3),
            ],
            (10 + 8, 3 + 3),
            (23 + 74, 3 + 3),
        ),
        (
            "a return that a tracer leads elsewhere",
            &[
                ("main", 10, Call, "lookup", 0, 7),
                ("lookup", 90, Ret, "inner", 8, 20),
                ("inner", 10, IndJump, "main", 15, 300),
            ],
            (7, 1),
            (320, 2),
        ),
    ];
    for &(what, body, (instructions, branches), helpers) in table {
        let hit = hit(body);
        let expected = Split {
            mechanism: share(35, 5),
            program: share(instructions + 2, branches + 1),
            helpers: share(helpers.0, helpers.1),
        };
        assert_eq!(split(&hit, &program()), expected, "{what}");
        let Split { mechanism, program, helpers } = expected;
        let sum = |of: fn(&Share) -> u32| [mechanism, program, helpers].iter().map(of).sum::<u32>();
        assert_eq!(sum(|share| share.instructions), hit.instructions(), "{what}");
        assert_eq!(sum(|share| share.branches), hit.branches(), "{what}");
    }
}

#[test]
fn counts_a_tail_call_as_the_program() {
    let lines: &[Line] = &[
        ("traced", 4, Call, "trampoline", 0, 0),
        ("trampoline", 40, Call, "main", 0, 15),
        ("main", 10, IndJump, "next", 11, 7),
        ("next", 20, Call, "lookup", 0, 6),
        ("lookup", 90, Ret, "next", 25, 40),
        ("next", 30, Ret, "trampoline", 45, 2),
        ("trampoline", 60, Ret, "traced", 9, 10),
    ];
    let expected = Split { mechanism: share(25, 3), program: share(15, 3), helpers: share(40, 1) };
    assert_eq!(split(&cost(vec![part(Point::Entry, lines)]), &program()), expected);
}

/// The `ret` that begins an exit is the function's own.
#[test]
fn adds_the_runs_of_a_session() {
    let run: &[Line] = &[
        ("traced", 4, Call, "trampoline", 0, 0),
        ("trampoline", 10, Call, "empty", 0, 3),
        ("empty", 10, Ret, "trampoline", 15, 4),
        ("trampoline", 40, Call, "main", 0, 15),
        ("main", 98, Ret, "trampoline", 45, 6),
        ("trampoline", 60, Ret, "traced", 9, 10),
    ];
    let both = cost(vec![part(Point::Entry, run), part(Point::Exit, run)]);
    let expected = Split {
        mechanism: share(2 * 32, 5 + 4),
        program: share(2 * 6, 2),
        helpers: Share::default(),
    };
    assert_eq!(split(&both, &program()), expected);
}

#[test]
fn tells_how_much_of_a_program_ran() {
    // The main function has 100 bytes: all of it, and the first ten bytes and the last nine.
    assert_eq!(reached(&hit(&[]), &program()), Some(99));
    let early: &[Line] = &[("main", 9, Cond, "main", 90, 3)];
    assert_eq!(reached(&hit(early), &program()), Some(19));
    // A loop runs its bytes again.
    let again: &[Line] = &[("main", 49, Cond, "main", 10, 9), early[0]];
    assert_eq!(reached(&hit(again), &program()), Some(59));
    // So do the bytes of a call.
    let call: &[Line] = &[("main", 10, Call, "lookup", 0, 7), ("lookup", 90, Ret, "main", 15, 4)];
    assert_eq!(reached(&hit(call), &program()), Some(99));
    let none = Symbol { end: program().start, ..program() };
    assert_eq!(reached(&hit(&[]), &none), None);
}
