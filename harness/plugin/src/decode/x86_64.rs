// SPDX-License-Identifier: GPL-2.0-or-later
//! x86-64, in 64-bit mode.

use crate::flow::Tail;
use iced_x86::{
    ConditionCode, Decoder, DecoderOptions, FlowControl, InstructionInfoFactory, Mnemonic, OpKind,
    Register,
};
use tramplab_protocol::{estimate::Event, trace::Kind};

pub fn tail(instruction: &[u8], address: u64) -> Tail {
    let decoded = Decoder::with_ip(64, instruction, address, DecoderOptions::NONE).decode();
    let target = decoded.near_branch_target();
    match decoded.flow_control() {
        FlowControl::ConditionalBranch => Tail::Cond { target },
        FlowControl::UnconditionalBranch => Tail::Direct { kind: Kind::Jump, target },
        FlowControl::IndirectBranch => Tail::Indirect { kind: Kind::IndJump },
        FlowControl::IndirectCall => Tail::Indirect { kind: Kind::IndCall },
        FlowControl::Call => match decoded.mnemonic() {
            Mnemonic::Call => Tail::Direct { kind: Kind::Call, target },
            Mnemonic::Syscall | Mnemonic::Sysenter => Tail::Indirect { kind: Kind::Syscall },
            // Hypervisor calls return behind themselves.
            _ => Tail::Next { may_fault: true },
        },
        FlowControl::Return => match decoded.mnemonic() {
            Mnemonic::Iret | Mnemonic::Iretd | Mnemonic::Iretq => {
                Tail::Indirect { kind: Kind::Iret }
            }
            Mnemonic::Sysret | Mnemonic::Sysretq | Mnemonic::Sysexit | Mnemonic::Sysexitq => {
                Tail::Indirect { kind: Kind::Sysret }
            }
            _ => Tail::Indirect { kind: Kind::Ret },
        },
        FlowControl::Interrupt => Tail::Indirect { kind: Kind::Int },
        FlowControl::Exception => Tail::Trap,
        FlowControl::Next | FlowControl::XbeginXabortXend => {
            let accesses_memory =
                !InstructionInfoFactory::new().info(&decoded).used_memory().is_empty();
            Tail::Next {
                may_fault: accesses_memory
                    || matches!(decoded.mnemonic(), Mnemonic::Div | Mnemonic::Idiv),
            }
        }
    }
}

/// Returns true if an instruction completes for any contents of registers and memory. With
/// `has_stack` the stack pointer may be assumed to point at present memory. Returns false for
/// unknown instructions.
pub fn surely_completes(instruction: &[u8], has_stack: bool) -> bool {
    let decoded = Decoder::new(64, instruction, DecoderOptions::NONE).decode();
    let is_on_stack = decoded.memory_base() == Register::RSP
        && decoded.memory_index() == Register::None
        && decoded.segment_prefix() == Register::None;
    // Segment and control registers are not general ones. The operand of a far jump has another
    // kind.
    let is_harmless = |index| match (decoded.op_kind(index), decoded.mnemonic()) {
        (OpKind::Register, _) => decoded.op_register(index).is_gpr(),
        (OpKind::Memory, Mnemonic::Lea | Mnemonic::Nop) => true,
        // `xchg` locks memory against other CPUs; the bit instructions can access any distance from
        // the address.
        (
            OpKind::Memory,
            Mnemonic::Xchg | Mnemonic::Bt | Mnemonic::Btc | Mnemonic::Btr | Mnemonic::Bts,
        ) => false,
        (OpKind::Memory, _) => has_stack && is_on_stack,
        (OpKind::FarBranch16 | OpKind::FarBranch32, _) => false,
        _ => true,
    };
    let is_known = decoded.condition_code() != ConditionCode::None
        || computes(decoded.mnemonic())
        || has_stack && uses_stack(decoded.mnemonic());
    is_known && !decoded.has_lock_prefix() && (0..decoded.op_count()).all(is_harmless)
}

/// The event of an instruction that costs by itself.
pub fn costly(instruction: &[u8]) -> Option<Event> {
    use Mnemonic::{
        Cpuid, Invlpg, Invpcid, Iret, Iretd, Iretq, Lfence, Mfence, Mov, Serialize, Syscall,
        Sysenter, Sysexit, Sysexitq, Sysret, Sysretq, Wrmsr, Xchg,
    };
    let decoded = Decoder::new(64, instruction, DecoderOptions::NONE).decode();
    let is_memory = |index| decoded.op_kind(index) == OpKind::Memory;
    match decoded.mnemonic() {
        // It locks without a prefix.
        Xchg if (0..decoded.op_count()).any(is_memory) => Some(Event::Atomic),
        _ if decoded.has_lock_prefix() || is_unlocked(instruction) => Some(Event::Atomic),
        Lfence | Mfence => Some(Event::Fence),
        Cpuid | Serialize => Some(Event::Serializing),
        Wrmsr => Some(Event::SystemRegister),
        Mov if decoded.op0_register().is_cr() || decoded.op0_register().is_dr() => {
            Some(Event::SystemRegister)
        }
        Invlpg | Invpcid => Some(Event::Invalidation),
        Iret | Iretd | Iretq => Some(Event::ExceptionReturn),
        Syscall | Sysenter => Some(Event::SystemCall),
        Sysret | Sysretq | Sysexit | Sysexitq => Some(Event::SystemCallReturn),
        // An `int` counts as the exception that it is.
        _ => None,
    }
}

/// True for an instruction that locks on a machine with several CPUs. A kernel of one CPU has put
/// another prefix in the lock's place (K `arch/x86/kernel/alternative.c`,
/// `alternatives_smp_unlock`).
fn is_unlocked(instruction: &[u8]) -> bool {
    const LOCK: u8 = 0xf0;
    const UNLOCKED: u8 = 0x3e;
    let [UNLOCKED, rest @ ..] = instruction else { return false };
    let locked = [&[LOCK], rest].concat();
    // A lock before an instruction that cannot lock makes it invalid.
    Decoder::new(64, &locked, DecoderOptions::NONE).decode().has_lock_prefix()
}

fn uses_stack(mnemonic: Mnemonic) -> bool {
    use Mnemonic::{Call, Leave, Pop, Push, Pushfq, Ret};
    matches!(mnemonic, Call | Leave | Pop | Push | Pushfq | Ret)
}

fn computes(mnemonic: Mnemonic) -> bool {
    use Mnemonic::{
        Adc, Add, And, Bsf, Bsr, Bswap, Bt, Btc, Btr, Bts, Cbw, Cdq, Cdqe, Cmp, Cqo, Cwde, Dec,
        Endbr64, Imul, Inc, Jmp, Lea, Mov, Movsx, Movsxd, Movzx, Mul, Neg, Nop, Not, Or, Rcl, Rcr,
        Rol, Ror, Sar, Sbb, Shl, Shld, Shr, Shrd, Sub, Test, Xchg, Xor,
    };
    matches!(
        mnemonic,
        Adc | Add
            | And
            | Bsf
            | Bsr
            | Bswap
            | Bt
            | Btc
            | Btr
            | Bts
            | Cbw
            | Cdq
            | Cdqe
            | Cmp
            | Cqo
            | Cwde
            | Dec
            | Endbr64
            | Imul
            | Inc
            | Jmp
            | Lea
            | Mov
            | Movsx
            | Movsxd
            | Movzx
            | Mul
            | Neg
            | Nop
            | Not
            | Or
            | Rcl
            | Rcr
            | Rol
            | Ror
            | Sar
            | Sbb
            | Shl
            | Shld
            | Shr
            | Shrd
            | Sub
            | Test
            | Xchg
            | Xor
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classifies_instructions() {
        let indirect = |kind| Tail::Indirect { kind };
        let cases: &[(&str, &[u8], Tail)] = &[
            ("jne +0x10", &[0x75, 0x10], Tail::Cond { target: 0x1012 }),
            ("jne near", &[0x0f, 0x85, 0xfa, 0xff, 0xff, 0xff], Tail::Cond { target: 0x1000 }),
            ("loop -2", &[0xe2, 0xfe], Tail::Cond { target: 0x1000 }),
            ("jrcxz", &[0xe3, 0x02], Tail::Cond { target: 0x1004 }),
            ("jmp short", &[0xeb, 0x7f], Tail::Direct { kind: Kind::Jump, target: 0x1081 }),
            ("jmp near", &[0xe9, 0, 1, 0, 0], Tail::Direct { kind: Kind::Jump, target: 0x1105 }),
            ("call near", &[0xe8, 0, 1, 0, 0], Tail::Direct { kind: Kind::Call, target: 0x1105 }),
            ("jmp *%rax", &[0xff, 0xe0], indirect(Kind::IndJump)),
            ("notrack jmp *%rax", &[0x3e, 0xff, 0xe0], indirect(Kind::IndJump)),
            ("call *%rax", &[0xff, 0xd0], indirect(Kind::IndCall)),
            ("call *(%rip)", &[0xff, 0x15, 0, 0, 0, 0], indirect(Kind::IndCall)),
            ("ret", &[0xc3], indirect(Kind::Ret)),
            ("ret 8", &[0xc2, 8, 0], indirect(Kind::Ret)),
            ("repz ret", &[0xf3, 0xc3], indirect(Kind::Ret)),
            ("lretq", &[0x48, 0xcb], indirect(Kind::Ret)),
            ("iretq", &[0x48, 0xcf], indirect(Kind::Iret)),
            ("sysretq", &[0x48, 0x0f, 0x07], indirect(Kind::Sysret)),
            ("syscall", &[0x0f, 0x05], indirect(Kind::Syscall)),
            ("int3", &[0xcc], indirect(Kind::Int)),
            ("int $0x80", &[0xcd, 0x80], indirect(Kind::Int)),
            ("ud2", &[0x0f, 0x0b], Tail::Trap),
            ("nop", &[0x90], Tail::Next { may_fault: false }),
            ("hlt", &[0xf4], Tail::Next { may_fault: false }),
            ("mov (%rax),%rax", &[0x48, 0x8b, 0x00], Tail::Next { may_fault: true }),
            ("rep movsb", &[0xf3, 0xa4], Tail::Next { may_fault: true }),
            ("div %ecx", &[0xf7, 0xf1], Tail::Next { may_fault: true }),
            ("vmcall", &[0x0f, 0x01, 0xc1], Tail::Next { may_fault: true }),
        ];
        for &(name, bytes, expected) in cases {
            assert_eq!(tail(bytes, 0x1000), expected, "{name}");
        }
    }

    #[test]
    fn knows_what_costs_by_itself() {
        let cases: &[(&str, &[u8], Option<Event>)] = &[
            ("lock incl (%rax)", &[0xf0, 0xff, 0x00], Some(Event::Atomic)),
            ("lock cmpxchg %rcx,(%rdx)", &[0xf0, 0x48, 0x0f, 0xb1, 0x0a], Some(Event::Atomic)),
            ("the same, unlocked", &[0x3e, 0x48, 0x0f, 0xb1, 0x0a], Some(Event::Atomic)),
            ("cmpxchg %rcx,(%rdx)", &[0x48, 0x0f, 0xb1, 0x0a], None),
            ("ds mov %rax,(%rdx)", &[0x3e, 0x48, 0x89, 0x02], None),
            ("notrack jmp *%rax", &[0x3e, 0xff, 0xe0], None),
            ("xchg %rax,(%rsp)", &[0x48, 0x87, 0x04, 0x24], Some(Event::Atomic)),
            ("xchg %rax,%rbx", &[0x48, 0x93], None),
            ("lfence", &[0x0f, 0xae, 0xe8], Some(Event::Fence)),
            ("mfence", &[0x0f, 0xae, 0xf0], Some(Event::Fence)),
            ("cpuid", &[0x0f, 0xa2], Some(Event::Serializing)),
            ("wrmsr", &[0x0f, 0x30], Some(Event::SystemRegister)),
            ("mov %rax,%cr3", &[0x0f, 0x22, 0xd8], Some(Event::SystemRegister)),
            ("mov %cr3,%rax", &[0x0f, 0x20, 0xd8], None),
            ("invlpg (%rax)", &[0x0f, 0x01, 0x38], Some(Event::Invalidation)),
            ("iretq", &[0x48, 0xcf], Some(Event::ExceptionReturn)),
            ("syscall", &[0x0f, 0x05], Some(Event::SystemCall)),
            ("sysretq", &[0x48, 0x0f, 0x07], Some(Event::SystemCallReturn)),
            ("int3", &[0xcc], None),
            ("add %rax,(%rdx)", &[0x48, 0x01, 0x02], None),
        ];
        for &(name, bytes, expected) in cases {
            assert_eq!(costly(bytes), expected, "{name}");
        }
    }

    #[test]
    fn knows_the_instructions_that_surely_complete() {
        /// Without a valid stack, and with one.
        const ALWAYS: [bool; 2] = [true, true];
        const WITH_STACK: [bool; 2] = [false, true];
        const NEVER: [bool; 2] = [false, false];
        let cases: &[(&str, &[u8], [bool; 2])] = &[
            ("nop", &[0x90], ALWAYS),
            ("nopl 0(%rax)", &[0x0f, 0x1f, 0x40, 0], ALWAYS),
            ("endbr64", &[0xf3, 0x0f, 0x1e, 0xfa], ALWAYS),
            ("mov %rsp,%rbp", &[0x48, 0x89, 0xe5], ALWAYS),
            ("mov $1,%eax", &[0xb8, 1, 0, 0, 0], ALWAYS),
            ("lea 8(%rax),%rdx", &[0x48, 0x8d, 0x50, 8], ALWAYS),
            ("shl %cl,%eax", &[0xd3, 0xe0], ALWAYS),
            ("sete %al", &[0x0f, 0x94, 0xc0], ALWAYS),
            ("cmovne %rax,%rdx", &[0x48, 0x0f, 0x45, 0xd0], ALWAYS),
            ("jne", &[0x75, 0x10], ALWAYS),
            ("jmp", &[0xeb, 0x10], ALWAYS),
            ("push %rax", &[0x50], WITH_STACK),
            ("push $1", &[0x6a, 1], WITH_STACK),
            ("push 8(%rsp)", &[0xff, 0x74, 0x24, 8], WITH_STACK),
            ("pushfq", &[0x9c], WITH_STACK),
            ("pop %rax", &[0x58], WITH_STACK),
            ("leave", &[0xc9], WITH_STACK),
            ("call", &[0xe8, 0, 1, 0, 0], WITH_STACK),
            ("call *%rax", &[0xff, 0xd0], WITH_STACK),
            ("ret", &[0xc3], WITH_STACK),
            ("mov %rax,8(%rsp)", &[0x48, 0x89, 0x44, 0x24, 8], WITH_STACK),
            ("addq $1,8(%rsp)", &[0x48, 0x83, 0x44, 0x24, 8, 1], WITH_STACK),
            ("mov (%rsp,%rax),%rax", &[0x48, 0x8b, 0x04, 0x04], NEVER),
            ("mov %gs:(%rsp),%rax", &[0x65, 0x48, 0x8b, 0x04, 0x24], NEVER),
            ("lock addq $1,8(%rsp)", &[0xf0, 0x48, 0x83, 0x44, 0x24, 8, 1], NEVER),
            ("xchg %rax,(%rsp)", &[0x48, 0x87, 0x04, 0x24], NEVER),
            ("bt %rax,(%rsp)", &[0x48, 0x0f, 0xa3, 0x04, 0x24], NEVER),
            ("push (%rax)", &[0xff, 0x30], NEVER),
            ("pop %fs", &[0x0f, 0xa1], NEVER),
            ("popfq", &[0x9d], NEVER),
            ("lretq", &[0x48, 0xcb], NEVER),
            ("iretq", &[0x48, 0xcf], NEVER),
            ("call *(%rip)", &[0xff, 0x15, 0, 0, 0, 0], NEVER),
            ("mov -8(%rbp),%rax", &[0x48, 0x8b, 0x45, 0xf8], NEVER),
            ("mov (%rax),%rax", &[0x48, 0x8b, 0x00], NEVER),
            ("add %eax,(%rdx)", &[0x01, 0x02], NEVER),
            ("cmovne (%rax),%rdx", &[0x48, 0x0f, 0x45, 0x10], NEVER),
            ("jmp *(%rax)", &[0xff, 0x20], NEVER),
            ("div %ecx", &[0xf7, 0xf1], NEVER),
            ("mov %cr3,%rax", &[0x0f, 0x20, 0xd8], NEVER),
            ("mov %eax,%ds", &[0x8e, 0xd8], NEVER),
            ("pause", &[0xf3, 0x90], NEVER),
            ("rdtsc", &[0x0f, 0x31], NEVER),
            ("rdmsr", &[0x0f, 0x32], NEVER),
            ("cli", &[0xfa], NEVER),
            ("rep movsb", &[0xf3, 0xa4], NEVER),
            ("lock xchg is a fault", &[0xf0, 0x90], NEVER),
            ("paddd %xmm0,%xmm1", &[0x66, 0x0f, 0xfe, 0xc8], NEVER),
            ("movaps (%rsp),%xmm0", &[0x0f, 0x28, 0x04, 0x24], NEVER),
            ("fld1", &[0xd9, 0xe8], NEVER),
            ("ud2", &[0x0f, 0x0b], NEVER),
            ("nothing that is known", &[0x06], NEVER),
        ];
        for &(name, bytes, expected) in cases {
            assert_eq!(
                [false, true].map(|has_stack| surely_completes(bytes, has_stack)),
                expected,
                "{name}"
            );
        }
    }
}
