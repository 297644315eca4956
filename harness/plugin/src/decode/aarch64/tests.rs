// SPDX-License-Identifier: GPL-2.0-or-later

use super::*;
use std::{collections::BTreeMap, fs, process::Command};

/// The address of the instructions.
const BASE: u64 = 0xffff_8000_8000_0000;

const NEXT: Tail = Tail::Next { may_fault: false };
const FAULTS: Tail = Tail::Next { may_fault: true };

fn indirect(kind: Kind) -> Tail {
    Tail::Indirect { kind }
}

fn decoded(word: u32) -> Tail {
    tail(&word.to_le_bytes(), BASE)
}

#[test]
fn knows_what_costs_by_itself() {
    use Event::{
        Atomic, ExceptionReturn, Fence, Invalidation, Serializing, SystemCall, SystemRegister,
    };
    let cases: &[(&str, u32, Option<Event>)] = &[
        ("ldadd x1, x2, [x3]", 0xf821_0062, Some(Atomic)),
        ("ldaddal w1, w2, [x3]", 0xb8e1_0062, Some(Atomic)),
        ("swp x1, x2, [x3]", 0xf821_8062, Some(Atomic)),
        ("cas x1, x2, [x3]", 0xc8a1_7c62, Some(Atomic)),
        ("casal w1, w2, [x3]", 0x88e1_fc62, Some(Atomic)),
        ("casp x0, x1, x2, x3, [x4]", 0x4820_7c82, Some(Atomic)),
        ("caspal x0, x1, x2, x3, [x4]", 0x4860_fc82, Some(Atomic)),
        ("caspal w0, w1, w2, w3, [x4]", 0x0860_fc82, Some(Atomic)),
        ("stadd x1, [x3]", 0xf821_007f, Some(Atomic)),
        ("ldxp x1, x2, [x3]", 0xc87f_0861, None),
        ("stxr w1, x2, [x3]", 0xc801_7c62, Some(Atomic)),
        ("stlxr w1, w2, [x3]", 0x8801_fc62, Some(Atomic)),
        ("stxp w1, x2, x4, [x3]", 0xc821_1062, Some(Atomic)),
        ("ldxr x1, [x2]", 0xc85f_7c41, None),
        ("ldaxr x1, [x2]", 0xc85f_fc41, None),
        ("ldar x1, [x2]", 0xc8df_fc41, None),
        ("stlr x1, [x2]", 0xc89f_fc41, None),
        ("ldapr x1, [x2]", 0xf8bf_c041, None),
        ("ldr x1, [x2]", 0xf940_0041, None),
        ("ldr x1, [x2, x3]", 0xf863_6841, None),
        ("str x1, [x2, #8]", 0xf900_0441, None),
        ("ldp x1, x2, [x3]", 0xa940_0861, None),
        ("isb", 0xd503_3fdf, Some(Serializing)),
        ("sb", 0xd503_30ff, Some(Serializing)),
        ("dsb ish", 0xd503_3b9f, Some(Fence)),
        ("dmb ish", 0xd503_3bbf, Some(Fence)),
        ("clrex", 0xd503_3f5f, None),
        ("nop", 0xd503_201f, None),
        ("tlbi vmalle1is", 0xd508_831f, Some(Invalidation)),
        ("tlbi vaae1is, x1", 0xd508_8361, Some(Invalidation)),
        ("dc civac, x1", 0xd50b_7e21, None),
        ("ic ialluis", 0xd508_711f, None),
        ("at s1e1r, x1", 0xd508_7801, None),
        ("msr ttbr0_el1, x1", 0xd518_2001, Some(SystemRegister)),
        ("msr sctlr_el1, x1", 0xd518_1001, Some(SystemRegister)),
        ("msr tcr_el1, x1", 0xd518_2041, Some(SystemRegister)),
        ("msr vbar_el1, x1", 0xd518_c001, Some(SystemRegister)),
        ("msr sp_el0, x1", 0xd518_4101, None),
        ("msr elr_el1, x1", 0xd518_4021, None),
        ("msr tpidr_el1, x1", 0xd518_d081, None),
        ("msr icc_pmr_el1, x1", 0xd518_4601, None),
        ("msr daif, x1", 0xd51b_4221, None),
        ("msr daifset, #2", 0xd503_42df, None),
        ("mrs x1, ttbr0_el1", 0xd538_2001, None),
        ("eret", 0xd69f_03e0, Some(ExceptionReturn)),
        ("eretaa", 0xd69f_0bff, Some(ExceptionReturn)),
        ("ret", 0xd65f_03c0, None),
        ("svc #0", 0xd400_0001, Some(SystemCall)),
        ("brk #4", 0xd420_0080, None),
    ];
    for &(name, word, expected) in cases {
        assert_eq!(costly(&word.to_le_bytes()), expected, "{name}");
    }
}

#[test]
fn classifies_instructions() {
    let to = |offset: i64| BASE.wrapping_add_signed(offset);
    let jump = |offset| Tail::Direct { kind: Kind::Jump, target: to(offset) };
    let call = |offset| Tail::Direct { kind: Kind::Call, target: to(offset) };
    let cond = |offset| Tail::Cond { target: to(offset) };
    let cases: &[(&str, u32, Tail)] = &[
        ("b +0x100", 0x1400_0040, jump(0x100)),
        ("b -4", 0x17ff_ffff, jump(-4)),
        ("b, farthest", 0x15ff_ffff, jump(0x7ff_fffc)),
        ("bl, farthest back", 0x9600_0000, call(-0x800_0000)),
        ("bl +4", 0x9400_0001, call(4)),
        ("b.ne", 0x5400_0041, cond(8)),
        ("b.al, farthest back", 0x5480_000e, cond(-0x10_0000)),
        ("bc.eq, farthest", 0x547f_fff0, cond(0xf_fffc)),
        ("cbz w3", 0x3400_0083, cond(16)),
        ("cbnz x30", 0xb5ff_ff9e, cond(-16)),
        ("cbz x1, farthest back", 0xb480_0001, cond(-0x10_0000)),
        ("tbz w0, #0, farthest", 0x3603_ffe0, cond(0x7ffc)),
        ("tbnz x9, #63, farthest back", 0xb7fc_0009, cond(-0x8000)),
        // Encoded by the manual: binutils 2.40 does not know it.
        ("cbgt x1, x2, farthest", 0xf402_1fe1, cond(0x3fc)),
        ("cbhi w1, #5, farthest back", 0x7542_a001, cond(-0x400)),
        ("cbbeq w1, w2", 0x74c2_8041, cond(8)),
        ("cbhne w1, w2", 0x74e2_c041, cond(8)),
        ("br x0", 0xd61f_0000, indirect(Kind::IndJump)),
        ("br x30", 0xd61f_03c0, indirect(Kind::IndJump)),
        ("braa x9, x10", 0xd71f_092a, indirect(Kind::IndJump)),
        ("braa x9, sp", 0xd71f_093f, indirect(Kind::IndJump)),
        ("brab x0, x1", 0xd71f_0c01, indirect(Kind::IndJump)),
        ("braaz x3", 0xd61f_087f, indirect(Kind::IndJump)),
        ("brabz x30", 0xd61f_0fdf, indirect(Kind::IndJump)),
        ("blr x16", 0xd63f_0200, indirect(Kind::IndCall)),
        ("blraa x1, x2", 0xd73f_0822, indirect(Kind::IndCall)),
        ("blrab x1, sp", 0xd73f_0c3f, indirect(Kind::IndCall)),
        ("blraaz x17", 0xd63f_0a3f, indirect(Kind::IndCall)),
        ("blrabz x1", 0xd63f_0c3f, indirect(Kind::IndCall)),
        ("ret", 0xd65f_03c0, indirect(Kind::Ret)),
        ("ret x9", 0xd65f_0120, indirect(Kind::Ret)),
        ("retaa", 0xd65f_0bff, indirect(Kind::Ret)),
        ("retab", 0xd65f_0fff, indirect(Kind::Ret)),
        ("eret", 0xd69f_03e0, indirect(Kind::Iret)),
        ("eretaa", 0xd69f_0bff, indirect(Kind::Iret)),
        ("eretab", 0xd69f_0fff, indirect(Kind::Iret)),
        ("svc #0", 0xd400_0001, indirect(Kind::Syscall)),
        ("svc #0xffff", 0xd41f_ffe1, indirect(Kind::Syscall)),
        ("hvc #0", 0xd400_0002, FAULTS),
        ("smc #1", 0xd400_0023, FAULTS),
        ("brk #0x800", 0xd421_0000, indirect(Kind::Int)),
        ("hlt #0xf000", 0xd45e_0000, Tail::Trap),
        ("dcps1", 0xd4a0_0001, Tail::Trap),
        ("drps", 0xd6bf_03e0, Tail::Trap),
        ("udf #0", 0x0000_0000, Tail::Trap),
        ("udf #0xffff", 0x0000_ffff, Tail::Trap),
        ("bti c", 0xd503_245f, NEXT),
        ("paciasp", 0xd503_233f, NEXT),
        ("autiasp", 0xd503_23bf, NEXT),
        ("nop", 0xd503_201f, NEXT),
        ("wfi", 0xd503_207f, NEXT),
        ("isb", 0xd503_3fdf, NEXT),
        ("msr daifclr, #2", 0xd503_42ff, NEXT),
        ("mrs x0, ctr_el0", 0xd53b_0020, NEXT),
        ("msr sctlr_el1, x0", 0xd518_1000, NEXT),
        ("add x0, x1, x2", 0x8b02_0020, NEXT),
        ("mov xzr, #0x7b41", 0xd28f_683f, NEXT),
        ("madd x0, x1, x2, x3", 0x9b02_0c20, NEXT),
        ("fadd d0, d1, d2", 0x1e62_2820, NEXT),
        ("add z0.b, z1.b, z2.b", 0x0422_0020, NEXT),
        ("ptrue p0.b", 0x2518_e3e0, NEXT),
        ("ldr x0, [x1]", 0xf940_0020, FAULTS),
        ("stp x29, x30, [sp, #-16]!", 0xa9bf_7bfd, FAULTS),
        ("ldr x0, +8", 0x5800_0040, FAULTS),
        ("ldraa x0, [x1]", 0xf820_0420, FAULTS),
        ("ldxr x0, [x1]", 0xc85f_7c20, FAULTS),
        ("stlxr w0, x1, [x2]", 0xc800_fc41, FAULTS),
        ("ldadd x0, x1, [x2]", 0xf820_0041, FAULTS),
        ("casp x0, x1, x2, x3, [x4]", 0x4820_7c82, FAULTS),
        ("ld1 {v0.16b}, [x0]", 0x4c40_7000, FAULTS),
        ("cpyfp [x0]!, [x1]!, x2!", 0x1901_0440, FAULTS),
        ("sete [x0]!, x1!, x2", 0x19c2_8420, FAULTS),
        ("ld1b {z0.b-z1.b}, pn8/z, [x0]", 0xa040_0000, FAULTS),
        ("str za[w12, 0], [x0]", 0xe120_0000, FAULTS),
        ("umopa za0.s, p0/m, p0/m, z0.b, z0.b", 0xa1a0_0000, NEXT),
        ("dc zva, x0", 0xd50b_7420, FAULTS),
        ("ic ivau, x0", 0xd50b_7520, FAULTS),
        ("ld1b {z0.b}, p0/z, [x1]", 0xa400_a020, FAULTS),
        ("ldr z3, [x0]", 0x8580_4003, FAULTS),
        ("st1d {z0.d}, p0, [x1]", 0xe5e0_e020, FAULTS),
    ];
    for &(name, word, expected) in cases {
        assert_eq!(decoded(word), expected, "{name}");
    }
    // An instruction at an unaligned address cannot be read and raises an exception.
    assert_eq!(tail(&[0x1f, 0x20], BASE + 1), Tail::Trap);
}

/// Classes of encodings: the fixed bits, their values, and how many words to try.
const CLASSES: &[(u32, u32, usize)] = &[
    (0xfc00_0000, 0x1400_0000, 300),
    (0xfc00_0000, 0x9400_0000, 300),
    (0xfe00_0000, 0x5400_0000, 600),
    (0x7e00_0000, 0x3400_0000, 600),
    (0x7e00_0000, 0x3600_0000, 600),
    // Branches to a register. Few random words among them are allocated.
    (0xfe00_0000, 0xd600_0000, 600),
    (0xfe1f_fc00, 0xd61f_0000, 600),
    (0xfe1f_f800, 0xd61f_0800, 900),
    (0xfe1f_f81f, 0xd61f_081f, 600),
    (0xfe1f_ffff, 0xd61f_03e0, 100),
    (0xfe1f_fbff, 0xd61f_0bff, 100),
    // Exceptions and other system instructions.
    (0xff00_0000, 0xd400_0000, 1000),
    (0xff1f_fff0, 0xd400_0000, 200),
    (0xffff_0000, 0x0000_0000, 100),
    (0xff00_0000, 0xd500_0000, 2000),
    (0xffff_f01f, 0xd503_201f, 300),
    (0xfff8_0000, 0xd508_0000, 600),
    // All others.
    (0x1c00_0000, 0x1400_0000, 1000),
    (0x0000_0000, 0x0000_0000, 16000),
];

/// Generates the same words each time, with Marsaglia's xorshift.
fn words() -> Vec<u32> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u32
    };
    let classes = CLASSES.iter().flat_map(|&class| std::iter::repeat_n(class, class.2));
    classes.map(|(given, bits, _)| random() & !given | bits).collect()
}

/// The transfer that a disassembler's text describes. None if it does not know the instruction.
fn told(text: &str) -> Option<Tail> {
    let text = text.split("//").next().unwrap().trim();
    let (name, operands) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
    let target = || {
        let operand = operands.rsplit(',').next().unwrap().trim();
        u64::from_str_radix(operand.trim_start_matches("0x"), 16)
            .unwrap_or_else(|_| panic!("`{text}` has no target"))
    };
    let first = name.split('.').next().unwrap();
    Some(match first {
        ".inst" | "" => return None,
        "b" if name == "b" => Tail::Direct { kind: Kind::Jump, target: target() },
        "bl" => Tail::Direct { kind: Kind::Call, target: target() },
        "b" | "bc" | "cbz" | "cbnz" | "tbz" | "tbnz" => Tail::Cond { target: target() },
        "br" | "braa" | "brab" | "braaz" | "brabz" => indirect(Kind::IndJump),
        "blr" | "blraa" | "blrab" | "blraaz" | "blrabz" => indirect(Kind::IndCall),
        "ret" | "retaa" | "retab" => indirect(Kind::Ret),
        "eret" | "eretaa" | "eretab" => indirect(Kind::Iret),
        "svc" => indirect(Kind::Syscall),
        "brk" => indirect(Kind::Int),
        "hlt" | "udf" | "drps" | "dcps1" | "dcps2" | "dcps3" | "tcancel" => Tail::Trap,
        "hvc" | "smc" => FAULTS,
        // Cache maintenance by address, and everything else spelled `sys`.
        "dc" | "ic" | "at" | "tlbi" | "sys" | "cfp" | "cpp" | "dvp" | "brb" => FAULTS,
        _ if ["ld", "st", "cas", "swp", "cpy", "setp", "setm", "sete", "setg", "prf"]
            .iter()
            .any(|start| first.starts_with(start)) =>
        {
            FAULTS
        }
        _ => NEXT,
    })
}

#[test]
fn agrees_with_binutils() {
    let words = words();
    let dir = tempfile::tempdir().unwrap();
    let code = dir.path().join("code");
    fs::write(&code, words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>())
        .unwrap();
    let output = Command::new("aarch64-linux-gnu-objdump")
        .args(["-D", "-z", "-b", "binary", "-m", "aarch64"])
        .arg(format!("--adjust-vma={BASE:#x}"))
        .arg(&code)
        .output()
        .expect("aarch64-linux-gnu-objdump, of Debian's binutils-aarch64-linux-gnu");
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    // Columns: `address:`, the word, the text.
    let lines: Vec<&str> = text.lines().filter_map(|line| line.splitn(3, '\t').nth(2)).collect();
    assert_eq!(lines.len(), words.len());
    let mut compared = 0;
    let mut differences = BTreeMap::new();
    for (index, (&word, line)) in words.iter().zip(&lines).enumerate() {
        let Some(expected) = told(line) else { continue };
        let address = BASE + 4 * index as u64;
        let found = tail(&word.to_le_bytes(), address);
        compared += 1;
        if found != expected {
            differences.insert(*line, format!("{word:#010x}: {found:x?}, not {expected:x?}"));
        }
    }
    assert!(differences.is_empty(), "of {compared}: {differences:#?}");
    assert!(compared > 10_000, "{compared}");
}

#[test]
fn knows_the_instructions_that_surely_complete() {
    /// Without a valid stack, and with one.
    const ALWAYS: [bool; 2] = [true, true];
    const WITH_STACK: [bool; 2] = [false, true];
    const NEVER: [bool; 2] = [false, false];
    let cases: &[(&str, u32, [bool; 2])] = &[
        ("nop", 0xd503_201f, ALWAYS),
        ("mov x29, sp", 0x9100_03fd, ALWAYS),
        ("movz x9, #1", 0xd280_0029, ALWAYS),
        ("adrp x0, 0", 0x9000_0000, ALWAYS),
        ("add x0, x1, x2", 0x8b02_0020, ALWAYS),
        ("csel x0, x1, x2, eq", 0x9a82_0020, ALWAYS),
        ("udiv x0, x1, x2", 0x9ac2_0820, ALWAYS),
        ("clz x0, x1", 0xdac0_1020, ALWAYS),
        ("b", 0x1400_0040, ALWAYS),
        ("bl", 0x9400_0001, ALWAYS),
        ("cbz w3", 0x3400_0083, ALWAYS),
        ("autia x0, x1", 0xdac1_1020, NEVER),
        ("autiasp", 0xd503_23bf, NEVER),
        ("ldr x0, [x1]", 0xf940_0020, NEVER),
        ("stp x29, x30, [sp, #-16]!", 0xa9bf_7bfd, WITH_STACK),
        ("ldp x29, x30, [sp], #16", 0xa8c1_7bfd, WITH_STACK),
        ("ldp w0, w1, [sp, #8]", 0x2941_07e0, WITH_STACK),
        ("str x0, [sp, #8]", 0xf900_07e0, WITH_STACK),
        ("ldrb w0, [sp, #8]", 0x3940_23e0, WITH_STACK),
        ("ldur x0, [sp, #1]", 0xf840_13e0, WITH_STACK),
        ("str x0, [sp, #-16]!", 0xf81f_0fe0, WITH_STACK),
        ("ldtr x0, [sp]", 0xf840_0be0, NEVER),
        ("ldr x0, [sp, x1]", 0xf861_6be0, NEVER),
        ("ldp q0, q1, [sp]", 0xad40_07e0, NEVER),
        ("ldr d0, [sp]", 0xfd40_03e0, NEVER),
        ("stgp x0, x1, [sp]", 0x6900_07e0, NEVER),
        ("swp x0, x1, [sp]", 0xf820_83e1, NEVER),
        ("ldar x0, [sp]", 0xc8df_ffe0, NEVER),
        ("stp x29, x30, [x0]", 0xa900_7c1d, NEVER),
        ("cpyfp", 0x1902_0420, NEVER),
        ("br x0", 0xd61f_0000, NEVER),
        ("ret", 0xd65f_03c0, WITH_STACK),
        ("retaa", 0xd65f_0bff, NEVER),
        ("mrs x0, sp_el0", 0xd538_4100, NEVER),
        ("msr daifset, #2", 0xd503_42df, NEVER),
        ("fmov d0, #1.0", 0x1e6e_1000, NEVER),
        ("svc #0", 0xd400_0001, NEVER),
        ("brk", 0xd420_0000, NEVER),
        ("udf", 0, NEVER),
    ];
    for &(name, word, expected) in cases {
        let found = [false, true].map(|has_stack| surely_completes(&word.to_le_bytes(), has_stack));
        assert_eq!(found, expected, "{name}");
    }
}
