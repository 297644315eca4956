// SPDX-License-Identifier: GPL-2.0-or-later
//! x86-64, in 64-bit mode.

use crate::flow::Tail;
use iced_x86::{Decoder, DecoderOptions, FlowControl, InstructionInfoFactory, Mnemonic};
use tramplab_protocol::trace::Kind;

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
            // Calls of a hypervisor come back behind themselves.
            _ => Tail::Next { may_fault: true },
        },
        FlowControl::Return => match decoded.mnemonic() {
            Mnemonic::Iret | Mnemonic::Iretd | Mnemonic::Iretq => Tail::Indirect { kind: Kind::Iret },
            Mnemonic::Sysret | Mnemonic::Sysretq | Mnemonic::Sysexit | Mnemonic::Sysexitq => {
                Tail::Indirect { kind: Kind::Sysret }
            }
            _ => Tail::Indirect { kind: Kind::Ret },
        },
        FlowControl::Interrupt => Tail::Indirect { kind: Kind::Int },
        FlowControl::Exception => Tail::Trap,
        FlowControl::Next | FlowControl::XbeginXabortXend => {
            let accesses_memory = !InstructionInfoFactory::new().info(&decoded).used_memory().is_empty();
            Tail::Next {
                may_fault: accesses_memory || matches!(decoded.mnemonic(), Mnemonic::Div | Mnemonic::Idiv),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instruction_classes() {
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
}
