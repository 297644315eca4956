// SPDX-License-Identifier: MIT OR Apache-2.0
//! The records of one kernel return. With return thunks a return is more than one record.

use super::symbols::is_kernel;
use tramplab_model::{
    cpu,
    run::{NamedRecord, Place},
};
use tramplab_protocol::trace::Kind;

/// The kinds of a return's records, oldest first.
pub type Form = Vec<Kind>;

/// Without a thunk.
const PLAIN: &[Kind] = &[Kind::Ret];
/// `jmp retbleed_return_thunk` and the like, whose first branch is the `ret`.
const THUNK: &[Kind] = &[Kind::Jump, Kind::Ret];
/// SRSO: `jmp srso_return_thunk`, its call of `srso_safe_ret`, and the `ret` there.
const SAFE_RET: &[Kind] = &[Kind::Jump, Kind::Call, Kind::Ret];

/// The longest form, where one thunk jumps to another. Call depth tracking sometimes refills the
/// return stack buffer on the way: such a return is longer and shows nothing about the others.
const LONGEST: usize = 4;

/// Code that jumps by a `ret`, which some mitigations leave as it is, unlike returns
/// (K `arch/x86/lib/retpoline.S`, `arch/x86/kernel/ftrace_64.S`).
const RAW: [&str; 2] = ["__x86_indirect_", "return_to_handler"];

/// Returns the forms that a return of the kernel may have: one, if it is known. `records` are those
/// of a trace, newest first. `mitigations` are the guest's lines, such as `retbleed: Vulnerable`.
pub fn forms(records: &[NamedRecord], mitigations: &[String]) -> Vec<Form> {
    let mut forms = recorded(records);
    if forms.is_empty() {
        forms = by_mitigations(mitigations);
    }
    // ITS: only a return in the lower half of a cache line needs the thunk (`cpu_wants_rethunk_at`
    // in K `arch/x86/kernel/alternative.c`). Other returns do not show where the driver's are.
    let is_its = records.iter().any(|record| symbol(&record.to) == "its_return_thunk")
        || says(mitigations, "indirect_target_selection", "aligned");
    if is_its {
        [PLAIN, THUNK].into_iter().for_each(|form| add(&mut forms, form.to_vec()));
    }
    forms
}

fn recorded(records: &[NamedRecord]) -> Vec<Form> {
    let mut forms = Vec::new();
    for (index, record) in records.iter().enumerate() {
        let is_raw = RAW.iter().any(|name| symbol(&record.from).starts_with(name));
        if record.kind != Kind::Ret || !is_kernel(record.from.address) || is_raw {
            continue;
        }
        let older = records.get(index..).unwrap_or_default();
        form(older).into_iter().for_each(|form| add(&mut forms, form));
    }
    forms
}

/// Reads the return that ends with the first record. None if the trace begins within it.
fn form(records: &[NamedRecord]) -> Option<Form> {
    let within = records.iter().take(LONGEST).take_while(|record| is_thunk(&record.from)).count();
    let whole = records.get(..=within).filter(|whole| whole.len() <= LONGEST)?;
    let [newer @ .., oldest] = whole else { return None };
    let is_whole = newer.is_empty() || is_thunk(&oldest.to);
    is_whole.then(|| whole.iter().rev().map(|record| record.kind).collect())
}

/// Reads the lines of `/sys/devices/system/cpu/vulnerabilities`. A kernel that lacks a line lacks
/// the mitigation too. Without any line, each form is possible.
fn by_mitigations(mitigations: &[String]) -> Vec<Form> {
    let says = |name, words| says(mitigations, name, words);
    let forms: &[&[Kind]] = if mitigations.is_empty() {
        &[PLAIN, THUNK, SAFE_RET]
    } else if cpu::state(mitigations, "spec_rstack_overflow").is_some_and(cpu::returns_safely) {
        &[SAFE_RET]
    } else if says("retbleed", "untrained return thunk")
        || says("retbleed", "stuffing")
        || says("indirect_target_selection", "stuffing")
    {
        &[THUNK]
    } else {
        &[PLAIN]
    };
    forms.iter().map(|form| form.to_vec()).collect()
}

fn says(mitigations: &[String], name: &str, words: &str) -> bool {
    cpu::state(mitigations, name).is_some_and(|state| cpu::says(state, words))
}

fn add(forms: &mut Vec<Form>, form: Form) {
    if !forms.contains(&form) {
        forms.push(form);
    }
}

pub(super) fn is_thunk(place: &Place) -> bool {
    let symbol = symbol(place);
    symbol.ends_with("return_thunk") || symbol.ends_with("safe_ret")
}

fn symbol(place: &Place) -> &str {
    place.symbol.as_deref().unwrap_or_default()
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::branch::model::tests::{KERNEL, record};

    /// `from kind to`, oldest first, as a person reads a trace; returned newest first.
    pub fn trace(lines: &[(&str, Kind, &str)]) -> Vec<NamedRecord> {
        let named = |&(from, kind, to): &(&str, Kind, &str)| {
            let mut record = record(KERNEL + 8, KERNEL, kind);
            record.from.symbol = Some(from.to_owned());
            record.to.symbol = Some(to.to_owned());
            record
        };
        lines.iter().rev().map(named).collect()
    }

    pub const SRSO: &[(&str, Kind, &str)] = &[
        ("f", Kind::Jump, "srso_alias_return_thunk"),
        ("srso_alias_return_thunk", Kind::Call, "srso_alias_safe_ret"),
        ("srso_alias_safe_ret", Kind::Ret, "caller"),
    ];
    pub const ITS: &[(&str, Kind, &str)] =
        &[("f", Kind::Jump, "its_return_thunk"), ("its_return_thunk", Kind::Ret, "caller")];

    fn lines(lines: &[&str]) -> Vec<String> {
        lines.iter().map(|&line| line.to_owned()).collect()
    }

    #[test]
    fn reads_the_form_of_a_recorded_return() {
        use Kind::{Call, Cond, Jump, Ret};
        type Lines<'a> = &'a [(&'a str, Kind, &'a str)];
        let zen2: Lines = &[
            ("f", Jump, "srso_return_thunk"),
            ("srso_return_thunk", Call, "srso_safe_ret"),
            ("srso_safe_ret", Ret, "caller"),
        ];
        let retbleed: Lines =
            &[("f", Jump, "retbleed_return_thunk"), ("retbleed_return_thunk", Ret, "caller")];
        let chained: Lines = &[
            ("f", Jump, "__x86_return_thunk"),
            ("__x86_return_thunk", Jump, "retbleed_return_thunk"),
            ("retbleed_return_thunk", Ret, "caller"),
        ];
        let plain: Lines = &[("f", Call, "g"), ("g", Ret, "f")];
        let table: [(Lines, &[&[Kind]]); 6] = [
            (plain, &[&[Ret]]),
            (SRSO, &[&[Jump, Call, Ret]]),
            (zen2, &[&[Jump, Call, Ret]]),
            (retbleed, &[&[Jump, Ret]]),
            (chained, &[&[Jump, Jump, Ret]]),
            (ITS, &[&[Jump, Ret], &[Ret]]),
        ];
        for (lines, expected) in table {
            // The trace wins over lines that say something else.
            for mitigations in [vec![], self::lines(&["retbleed: Vulnerable"])] {
                assert_eq!(forms(&trace(lines), &mitigations), expected, "{lines:?}");
            }
        }
        // A trace that begins within a return, one that refills, retpolines, user space.
        let refilled: Vec<_> = [("f", Jump, "call_depth_return_thunk")]
            .into_iter()
            .chain([("call_depth_return_thunk", Cond, "call_depth_return_thunk")])
            .chain([("call_depth_return_thunk", Call, "call_depth_return_thunk"); 16])
            .chain([("call_depth_return_thunk", Ret, "f")])
            .collect();
        let retpolines: Lines =
            &[("__x86_indirect_thunk_rax", Ret, "g"), ("__x86_indirect_call_thunk_rax", Ret, "g")];
        for lines in [&SRSO[1..], &SRSO[2..], &refilled, retpolines] {
            assert_eq!(recorded(&trace(lines)), Vec::<Form>::new(), "{lines:?}");
        }
        assert_eq!(recorded(&[record(0x1000, 0x2000, Ret)]), Vec::<Form>::new());
    }

    #[test]
    fn falls_back_to_the_guests_mitigations() {
        use Kind::{Call, Jump, Ret};
        let table: [(&[&str], &[&[Kind]]); 11] = [
            (&[], &[&[Ret], &[Jump, Ret], &[Jump, Call, Ret]]),
            (&["retbleed: Vulnerable", "spec_rstack_overflow: Vulnerable"], &[&[Ret]]),
            (&["spec_rstack_overflow: Mitigation: Safe RET"], &[&[Jump, Call, Ret]]),
            (&["spec_rstack_overflow: Vulnerable: Safe RET, no microcode"], &[&[Jump, Call, Ret]]),
            (&["spec_rstack_overflow: Mitigation: safe RET, no microcode"], &[&[Jump, Call, Ret]]),
            (&["spec_rstack_overflow: Vulnerable: Microcode, no safe RET"], &[&[Ret]]),
            (&["spec_rstack_overflow: Mitigation: IBPB on VMEXIT only"], &[&[Ret]]),
            (&["retbleed: Mitigation: untrained return thunk; SMT disabled"], &[&[Jump, Ret]]),
            (&["retbleed: Mitigation: Stuffing"], &[&[Jump, Ret]]),
            (&["indirect_target_selection: Mitigation: Retpolines, Stuffing RSB"], &[&[Jump, Ret]]),
            (
                &["indirect_target_selection: Mitigation: Aligned branch/return thunks"],
                &[&[Ret], &[Jump, Ret]],
            ),
        ];
        for (lines, expected) in table {
            assert_eq!(forms(&[], &self::lines(lines)), expected, "{lines:?}");
        }
        // SRSO's thunk replaces retbleed's.
        let both = lines(&[
            "retbleed: Mitigation: untrained return thunk; SMT disabled",
            "spec_rstack_overflow: Mitigation: Safe RET",
        ]);
        assert_eq!(forms(&[], &both), [[Jump, Call, Ret]]);
        // With ITS's thunks, plain returns of a trace show nothing about the driver's.
        let its = lines(&["indirect_target_selection: Mitigation: Aligned branch/return thunks"]);
        let plain = trace(&[("g", Ret, "f")]);
        assert_eq!(forms(&plain, &its), [vec![Ret], vec![Jump, Ret]]);
    }
}
