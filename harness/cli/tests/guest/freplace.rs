// SPDX-License-Identifier: MIT OR Apache-2.0
//! Programs of users with extensions in place of their functions (`bpf/freplace.bpf.c`).

use super::{
    LIMIT,
    programs::{Guest, Objects},
};
use tramplab_model::run::Arch;
use tramplab_protocol::{
    Mechanism::{self, Fentry, Fexit, FmodRet, Kprobe, KprobeMulti, RawTp, TpBtf},
    message::{By, GuestError},
};

on_each_arch!(
    measures_extensions,
    ignore = "full: one mechanism; the cost of a hit runs in every change"
);

fn measures_extensions(arch: Arch) {
    let objects = Objects::compile();
    let mut guest = Guest::boot(arch);
    let name = |mechanism: Mechanism| format!("asks_{}", mechanism.name().replace('.', "_"));
    let program = |given: &str| objects.read(&format!("freplace.bpf.o:{given}"));
    for mechanism in [Kprobe, KprobeMulti, RawTp, TpBtf, FmodRet] {
        let asks = name(mechanism);
        let mut counts = |given: String| guest.counts(mechanism, Some(&program(&given)));
        let own = counts(asks.clone());
        let [same, longer] = ["same", "longer"].map(|by| counts(format!("{asks},policy={by}")));
        // A jump takes the place of a no-op where the function begins. The extension begins like
        // it: `endbr64` and a no-op; `bti`, a move and a no-op.
        let beginning = match arch {
            Arch::X86_64 => 2,
            Arch::Arm64 => 3,
        };
        assert_eq!(same, (own.0 + beginning, own.1 + 1), "{mechanism}");
        assert_eq!(longer, (same.0 + 7, same.1), "{mechanism}");
        // Each load had its own.
        assert_eq!(counts(asks), own, "{mechanism}");
    }
    let reply = guest.attach(&program("asks_kprobe,policy=same"), 3).unwrap();
    assert_eq!((reply.programs, reply.links), (1, 3));

    for mechanism in [Fentry, Fexit] {
        match guest.cost(mechanism, Some(&program(&format!("{},policy=same", name(mechanism))))) {
            Err(GuestError::Unsupported(why)) => {
                assert!(why.contains("replace the function policy by same"), "{why}");
                assert!(why.contains("Cannot extend fentry/fexit"), "{why}");
            }
            other => panic!("{mechanism}: {other:?}"),
        }
    }
    for (given, words) in [
        ("asks_kprobe,policy=of_another_type", "of_another_type"),
        ("asks_kprobe,unused=longer", "Subprog unused doesn't exist"),
    ] {
        let Err(GuestError::Rejected { reason, by: By::Verifier, .. }) =
            guest.cost(Kprobe, Some(&program(given)))
        else {
            panic!("{given}");
        };
        assert!(reason.contains(words), "{given}: {reason}");
    }
    guest.vm.power_off(LIMIT).unwrap();
}
