// SPDX-License-Identifier: MIT OR Apache-2.0
//! Functions by their arguments: a trampoline saves and restores them, the other mechanisms do not.

use super::{LIMIT, commands, functions::Guest};
use tramplab_model::run::{Arch, TriggerCost};
use tramplab_protocol::{
    Mechanism::{self, Fentry, Fexit, KprobeMulti, KretprobeMulti},
    message::GuestError,
};

/// Reads, writes and instructions of a hit. On arm64 the instructions are 0: code that loads an
/// address may have one more or less.
fn counts(arch: Arch, cost: &TriggerCost) -> [u32; 3] {
    let instructions = match arch {
        Arch::X86_64 => cost.instructions(),
        Arch::Arm64 => 0,
    };
    [cost.reads().unwrap(), cost.writes().unwrap(), instructions]
}

fn cost(guest: &mut Guest, arch: Arch, mechanism: Mechanism, function: &str) -> [u32; 3] {
    let cost = guest.cost(mechanism, function);
    counts(arch, &cost.unwrap_or_else(|why| panic!("{mechanism} on {function}: {why}")))
}

#[test]
#[ignore = "full: one fact of a kernel; the cost of a hit runs in every change"]
fn a_trampoline_saves_each_argument_on_x86_64() {
    // `__sys_bpf(int, bpfptr_t, unsigned int)` of 6.12: a struct of 16 bytes takes two registers.
    a_trampoline_saves_each_argument(Arch::X86_64, ("__sys_bpf", 4), (6, 3));
}

#[test]
#[ignore = "full: one fact of a kernel; the cost of a hit runs in every change"]
fn a_trampoline_saves_each_argument_on_arm64() {
    // From 7.2 on it has two structs and five arguments.
    a_trampoline_saves_each_argument(Arch::Arm64, ("__sys_bpf", 7), (8, 1));
}

/// `structs`: a function and the registers that its arguments take. `mapped`: how many of the nine
/// arguments of `do_mmap` are in registers, and how many on the stack.
fn a_trampoline_saves_each_argument(arch: Arch, structs: (&str, u32), mapped: (u32, u32)) {
    let mut guest = commands::boot(arch);
    // A register is stored for the program, and loaded for the function.
    let of_registers = |first: [u32; 3], registers: u32| match arch {
        Arch::X86_64 => {
            [first[0] + registers - 1, first[1] + registers - 1, first[2] + 2 * (registers - 1)]
        }
        Arch::Arm64 => [first[0] + registers - 1, first[1] + registers - 1, 0],
    };
    // A copy of an argument on the stack is a load and a store. `fexit` calls the function with
    // copies of its own.
    let of_stack = |before: [u32; 3], copies: u32| match arch {
        Arch::X86_64 => [before[0] + copies, before[1] + copies, before[2] + 2 * copies],
        Arch::Arm64 => [before[0] + copies, before[1] + copies, 0],
    };
    for mechanism in [Fentry, Fexit] {
        let first = cost(&mut guest, arch, mechanism, "bpf_fentry_test1");
        for arguments in [2, 3, 6] {
            let name = format!("bpf_fentry_test{arguments}");
            let found = cost(&mut guest, arch, mechanism, &name);
            assert_eq!(found, of_registers(first, arguments), "{mechanism} on {name}");
        }
        let (name, registers) = structs;
        let found = cost(&mut guest, arch, mechanism, name);
        assert_eq!(found, of_registers(first, registers), "{mechanism} on {name}");
        guest.command = Some("true".to_owned());
        let found = cost(&mut guest, arch, mechanism, "do_mmap");
        guest.command = None;
        let (registers, on_stack) = mapped;
        let copies = if mechanism == Fexit { 2 * on_stack } else { on_stack };
        let expected = of_stack(of_registers(first, registers), copies);
        assert_eq!(found, expected, "{mechanism} on do_mmap");
    }
    // Others hand over registers, whatever the function takes. The first test function has an
    // `endbr64`, for which kprobe.multi looks.
    for mechanism in [KprobeMulti, KretprobeMulti] {
        let [second, sixth] =
            [2, 6].map(|n| cost(&mut guest, arch, mechanism, &format!("bpf_fentry_test{n}")));
        assert_eq!(second, sixth, "{mechanism}");
    }
    refuses_what_a_trampoline_cannot_save(&mut guest);
    guest.vm.power_off(LIMIT).unwrap();
}

/// The kernel's reason is in the skip. A mechanism without a trampoline takes the same function.
fn refuses_what_a_trampoline_cannot_save(guest: &mut Guest) {
    for (function, words, is_hit) in [
        ("current_time", "return type STRUCT is unsupported", true),
        ("rtc_tm_to_ktime", "arg0 type STRUCT is unsupported", false),
    ] {
        for mechanism in [Fentry, Fexit] {
            match guest.waste(mechanism, function) {
                Err(GuestError::Unsupported(reason)) => {
                    assert!(reason.contains(words), "{mechanism} on {function}: {reason}");
                }
                other => panic!("{mechanism} on {function}: {:?}", other.map(|w| w.function)),
            }
        }
        assert_eq!(guest.waste(KprobeMulti, function).is_ok(), is_hit, "{function}");
    }
}
