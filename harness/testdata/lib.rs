// SPDX-License-Identifier: MIT OR Apache-2.0
//! Recorded runs for the tests of several crates. `store.py` shortened them. Packed kernels are
//! made anew.

pub mod compare;
pub mod git;
pub mod packed;
pub mod qemu_log;
pub mod schema;

use tramplab_model::run::Run;

/// The shipped series `lbr-helpers` on 6.12, patch by patch; `fixture.yaml` tells how it was
/// recorded.
pub fn series() -> Run {
    read(include_str!("lbr-helpers.json"))
}

/// The shipped series `letter-2024`, its base and head, recorded by
/// `cargo xtask vm-test --suite waste --series letter-2024 lbr_waste/fexit
/// lbr_waste/kretprobe.multi`.
pub fn letter() -> Run {
    read(include_str!("letter-2024.json"))
}

/// A run of the suite `stored.yaml`.
pub fn stored() -> Run {
    read(include_str!("run.json"))
}

/// Kernel 7.2 on two architectures, with the waste of fexit, fexit.multi and kprobe.multi.
pub fn two_architectures() -> Run {
    read(include_str!("two-architectures.json"))
}

/// Each shipped series on 7.2 alone: attaching on its base and on its head, by the exact clock.
/// `docs/attach.md` has the commands.
pub fn each_alone() -> [Run; 3] {
    [
        include_str!("single-direct-ops.json"),
        include_str!("ftrace-direct-lookups.json"),
        include_str!("tracing-multi-hash.json"),
    ]
    .map(read)
}

/// The shipped series `call-ops` on arm64, recorded by `cargo xtask vm-test --suite call-ops
/// --series call-ops --arch arm64`: kprobe.multi alone, and with fentry beside a tracer of another
/// function.
pub fn call_ops() -> Run {
    read(include_str!("call-ops.json"))
}

/// Attaching on 60 boots of Debian's 6.12, on a machine that built kernels meanwhile: fentry on ten
/// functions, and fexit on one (`rounds: 3, boots: 60`).
pub fn same_kernel() -> Run {
    read(include_str!("same-kernel.json"))
}

fn read(text: &str) -> Run {
    serde_json::from_str(text).expect("a recorded run")
}

/// The kernels of [`series`], from the base to the head.
const KERNELS: [&str; 3] =
    ["6.12-source+lbr-helpers.0", "6.12-source+lbr-helpers.1", "6.12-source"];

/// The id of commit `number`.
pub fn commit_id(number: usize) -> String {
    format!("{number:08x}{:032x}", 0xc0ffee)
}

/// The run of commit `number`, whose kernel is kernel `state` of [`series`].
pub fn commit(number: usize, state: usize) -> Run {
    let mut run = series();
    run.series.clear();
    run.id = format!("run-{number}");
    run.started = format!("2026-11-{:02}T10:00:00Z", number + 1);
    run.kernels.retain(|kernel| kernel.name == KERNELS[state]);
    run.cells.retain(|cell| cell.id.kernel == KERNELS[state]);
    let commit = commit_id(number);
    let name = format!("linux-{}", &commit[..12]);
    run.kernels[0].source = format!("git /src/linux {commit}");
    run.kernels[0].commit = Some(commit);
    run.kernels[0].name.clone_from(&name);
    run.cells.iter_mut().for_each(|cell| cell.id.kernel.clone_from(&name));
    run
}

/// The runs of one commit after the other.
pub fn commits(states: &[usize]) -> Vec<Run> {
    states.iter().enumerate().map(|(number, &state)| commit(number, state)).collect()
}
