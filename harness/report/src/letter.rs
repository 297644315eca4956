// SPDX-License-Identifier: MIT OR Apache-2.0
//! Holds the cover letter of "Inline two LBR-related helpers" (bpf-next, March 2024) beside the
//! recorded run of the series `letter-2024`, row by row, and both against the tables of
//! `docs/shipped-series.md`.

use crate::docs::{SHIPPED, function, only, table, waste_of};
use tramplab_analysis::branch::{Branch, Filter, Model, listing, waste};
use tramplab_protocol::Mechanism;
use tramplab_testdata::letter;

const KERNELS: [&str; 2] = ["letter-2024+letter-2024.0", "letter-2024+letter-2024"];

/// From, to.
type Record = (&'static str, &'static str);

/// One listing of the letter, before and after its series. Rows are oldest first, as printed.
struct Listing {
    mechanism: Mechanism,
    traced: &'static str,
    branch: Branch,
    rows: [&'static [Record]; 2],
    /// The oldest rows that retsnoop keeps beside those that it counts.
    kept: usize,
    /// Rows that only the kernel built here has. The page explains each from the code.
    ours: &'static [Record],
}

const TRACED: &str = "traced";
const SNAPSHOT: &str = "snapshot";

const FEXIT: Listing = Listing {
    mechanism: Mechanism::Fexit,
    traced: "__x64_sys_bpf",
    branch: Branch::Any,
    rows: [
        &[
            ("__sys_bpf", "__x64_sys_bpf"),
            ("__x64_sys_bpf", "trampoline"),
            ("trampoline", "__bpf_prog_enter_recur"),
            ("__bpf_prog_enter_recur", "migrate_disable"),
            ("migrate_disable", "__bpf_prog_enter_recur"),
            ("__bpf_prog_enter_recur", "trampoline"),
            ("trampoline", "program"),
            ("program", "bpf_get_smp_processor_id"),
            ("bpf_get_smp_processor_id", "program"),
            ("program", "bpf_get_branch_snapshot"),
            ("bpf_get_branch_snapshot", "intel_pmu_snapshot_branch_stack"),
        ],
        &[
            ("__sys_bpf", "__x64_sys_bpf"),
            ("__x64_sys_bpf", "trampoline"),
            ("trampoline", "__bpf_prog_enter_recur"),
            ("__bpf_prog_enter_recur", "migrate_disable"),
            ("migrate_disable", "__bpf_prog_enter_recur"),
            ("__bpf_prog_enter_recur", "trampoline"),
            ("trampoline", "program"),
            ("program", "intel_pmu_snapshot_branch_stack"),
        ],
    ],
    kept: 1,
    ours: &[],
};

const FEXIT_RETURNS: Listing = Listing {
    mechanism: Mechanism::Fexit,
    traced: "__x64_sys_bpf",
    branch: Branch::AnyReturn,
    rows: [
        &[
            ("__sys_bpf", "__x64_sys_bpf"),
            ("__x64_sys_bpf", "trampoline"),
            ("migrate_disable", "__bpf_prog_enter_recur"),
            ("__bpf_prog_enter_recur", "trampoline"),
            ("bpf_get_smp_processor_id", "program"),
        ],
        &[
            ("__sys_bpf", "__x64_sys_bpf"),
            ("__x64_sys_bpf", "trampoline"),
            ("migrate_disable", "__bpf_prog_enter_recur"),
            ("__bpf_prog_enter_recur", "trampoline"),
        ],
    ],
    kept: 1,
    ours: &[],
};

const KRETPROBE_MULTI: Listing = Listing {
    mechanism: Mechanism::KretprobeMulti,
    traced: "__sys_bpf",
    branch: Branch::Any,
    rows: [
        &[
            ("__sys_bpf", "arch_rethook_trampoline"),
            ("arch_rethook_trampoline", "arch_rethook_trampoline_callback"),
            ("arch_rethook_trampoline_callback", "rethook_trampoline_handler"),
            ("rethook_trampoline_handler", "fprobe_exit_handler"),
            ("fprobe_exit_handler", "rcu_is_watching"),
            ("rcu_is_watching", "fprobe_exit_handler"),
            ("fprobe_exit_handler", "kprobe_multi_link_exit_handler"),
            ("kprobe_multi_link_exit_handler", "kprobe_multi_link_prog_run"),
            ("kprobe_multi_link_prog_run", "migrate_disable"),
            ("migrate_disable", "kprobe_multi_link_prog_run"),
            ("kprobe_multi_link_prog_run", "program"),
            ("program", "bpf_get_smp_processor_id"),
            ("bpf_get_smp_processor_id", "program"),
            ("program", "bpf_get_branch_snapshot"),
            ("bpf_get_branch_snapshot", "intel_pmu_snapshot_branch_stack"),
        ],
        &[
            ("__sys_bpf", "arch_rethook_trampoline"),
            ("arch_rethook_trampoline", "arch_rethook_trampoline_callback"),
            ("arch_rethook_trampoline_callback", "rethook_trampoline_handler"),
            ("rethook_trampoline_handler", "fprobe_exit_handler"),
            ("fprobe_exit_handler", "rcu_is_watching"),
            ("rcu_is_watching", "fprobe_exit_handler"),
            ("fprobe_exit_handler", "kprobe_multi_link_exit_handler"),
            ("kprobe_multi_link_exit_handler", "migrate_disable"),
            ("migrate_disable", "kprobe_multi_link_exit_handler"),
            ("kprobe_multi_link_exit_handler", "program"),
            ("program", "intel_pmu_snapshot_branch_stack"),
        ],
    ],
    kept: 0,
    ours: &[
        ("rethook_trampoline_handler", "rethook_trampoline_handler"),
        ("rethook_trampoline_handler", "rethook_trampoline_handler"),
        ("rethook_trampoline_handler", "rethook_trampoline_handler"),
        ("fprobe_exit_handler", "fprobe_exit_handler"),
    ],
};

const KRETPROBE_MULTI_RETURNS: Listing = Listing {
    mechanism: Mechanism::KretprobeMulti,
    traced: "__sys_bpf",
    branch: Branch::AnyReturn,
    rows: [
        &[
            ("__sys_bpf", "arch_rethook_trampoline"),
            ("rcu_is_watching", "fprobe_exit_handler"),
            ("migrate_disable", "kprobe_multi_link_prog_run"),
            ("bpf_get_smp_processor_id", "program"),
        ],
        &[
            ("__sys_bpf", "arch_rethook_trampoline"),
            ("rcu_is_watching", "fprobe_exit_handler"),
            ("migrate_disable", "kprobe_multi_link_exit_handler"),
        ],
    ],
    kept: 0,
    ours: &[],
};

const LETTER: [Listing; 4] = [FEXIT, FEXIT_RETURNS, KRETPROBE_MULTI, KRETPROBE_MULTI_RETURNS];

/// A numbered row, oldest first; the index is the newest's distance.
type Rows = Vec<(usize, [String; 2])>;

fn numbered(records: impl DoubleEndedIterator<Item = [String; 2]>) -> Rows {
    let mut rows: Rows = records.rev().enumerate().collect();
    rows.reverse();
    rows
}

impl Listing {
    fn filter(&self) -> Filter {
        Filter::of(self.branch)
    }

    /// Names a function of either side by its part in the listing. Where no PMU driver is, a
    /// stand-in is called for Intel's snapshot.
    fn part(&self, name: &str) -> String {
        match name {
            name if name == self.traced => TRACED,
            "intel_pmu_snapshot_branch_stack"
            | "perf_snapshot_branch_stack"
            | "__static_call_return0" => SNAPSHOT,
            "bpf_trampoline" => "trampoline",
            name => name,
        }
        .to_owned()
    }

    fn theirs(&self, state: usize) -> Rows {
        numbered(self.rows[state].iter().map(|(from, to)| [from, to].map(|name| self.part(name))))
    }

    fn here(&self, state: usize) -> Rows {
        let measured = waste_of(&letter(), KERNELS[state], self.mechanism);
        let (point, traced) = only(&measured);
        let mut lines = listing::lines(point, traced, Model::IntelLbr, self.filter());
        lines.reverse();
        numbered(lines.iter().map(|line| {
            [&line.from, &line.to].map(|place| match function(place) {
                name if name == traced.name => TRACED.to_owned(),
                name => self.part(name),
            })
        }))
    }

    fn wasted(&self, state: usize) -> u32 {
        let measured = waste_of(&letter(), KERNELS[state], self.mechanism);
        let (point, traced) = only(&measured);
        waste::count_at(Model::IntelLbr, self.filter(), point, traced).wasted.unwrap()
    }

    fn heading(&self) -> String {
        format!("\n{}, `{}`:\n", self.mechanism.name(), self.filter())
    }
}

fn records(rows: &Rows) -> Vec<[String; 2]> {
    rows.iter().map(|(_, record)| record.clone()).collect()
}

#[test]
fn the_recorded_run_has_the_letters_rows() {
    for listing in LETTER {
        for (state, kernel) in KERNELS.iter().enumerate() {
            let mut here = records(&listing.here(state));
            for (from, to) in listing.ours {
                let extra = here.iter().position(|[a, b]| a == from && b == to);
                here.remove(extra.unwrap_or_else(|| panic!("{from} -> {to}: {here:?}")));
            }
            let theirs = records(&listing.theirs(state));
            assert_eq!(here, theirs[listing.kept..], "{}{kernel}", listing.heading());
        }
    }
}

#[test]
fn the_recorded_run_wastes_what_the_letter_wastes_and_the_explained_rows() {
    for (listing, expected) in LETTER.iter().zip([[9, 6], [3, 2], [14, 10], [3, 2]]) {
        for (state, wasted) in expected.into_iter().enumerate() {
            // The newest row of the letter that touches the traced function.
            let theirs = listing.theirs(state);
            let newest = theirs.iter().rev().find(|(_, ends)| ends.iter().any(|end| end == TRACED));
            assert_eq!(newest.unwrap().0, wasted, "{}", listing.heading());
            let here = wasted + listing.ours.len();
            assert_eq!(listing.wasted(state) as usize, here, "{}", listing.heading());
        }
    }
}

/// Columns: the record, then its number in the letter before, here before, in the letter after,
/// here after. The page quotes functions, and not the words for parts. It has the listings of
/// `any`.
#[test]
fn the_page_has_the_rows_of_the_letter_and_of_the_recorded_run() {
    for listing in [FEXIT, KRETPROBE_MULTI] {
        let stated = table(SHIPPED, &listing.heading());
        let measured = [0, 1].map(|state| [listing.theirs(state), listing.here(state)]);
        for (column, rows) in measured.iter().flatten().enumerate() {
            let of_column: Rows = stated
                .iter()
                .filter(|row| !row[1 + column].is_empty())
                .map(|row| {
                    let (from, to) = row[0].split_once(" → ").unwrap();
                    let index = row[1 + column].strip_prefix('#').unwrap().parse().unwrap();
                    (index, [from, to].map(|name| name.trim_matches('`').to_owned()))
                })
                .collect();
            assert_eq!(&of_column, rows, "{}, column {column}", listing.heading());
        }
    }
}
