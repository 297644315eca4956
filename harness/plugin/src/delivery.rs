// SPDX-License-Identifier: GPL-2.0-or-later
//! Branch records as the guest's kernel would get them from a CPU and its driver. Pure: independent
//! of QEMU.
//!
//! A program that asks for a snapshot calls the kernel's static call. Without a driver it leads to
//! a stand-in that returns 0. The plugin writes the records when the stand-in is about to return,
//! as if it were the driver.

use crate::decode::Guest;
use tramplab_protocol::{
    delivery::Cpu,
    trace::{Kind, Record},
};

/// The longest distance from the stand-in's entry to its `ret`: it returns at once.
const STAND_IN_BYTES: u64 = 16;
/// Bytes of a `struct perf_branch_entry`: `from`, `to` and flags. The flags are 0: neither class
/// nor prediction is known.
const ENTRY_BYTES: usize = 24;
/// More records than any CPU keeps.
const MOST: usize = 1024;

/// The records to deliver, and their place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delivery {
    /// Address of the pointer to the stand-in.
    pub stand_in_at: u64,
    /// Address of the function that the kernel calls for a snapshot; none until it could be read.
    pub stand_in: Option<u64>,
    /// Start and end of the kernel's text.
    pub text: [u64; 2],
    pub cpu: Cpu,
    /// Address of settings that replace `cpu`; 0: there are none.
    pub cpu_at: u64,
}

/// The arguments of a call of the stand-in: room for `count` entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asked {
    pub entries: u64,
    pub count: u32,
}

impl Delivery {
    /// Returns true if an instruction at the end of a block is the stand-in's return.
    pub fn is_left_at(&self, address: u64) -> bool {
        let offset = self.stand_in.and_then(|stand_in| address.checked_sub(stand_in));
        offset.is_some_and(|offset| offset < STAND_IN_BYTES)
    }

    /// Returns true if a program called the stand-in, which begins now. An interrupt may have come
    /// between the call and its target.
    pub fn is_asked(&self, mut newest_first: impl Iterator<Item = Record>) -> bool {
        let Some(stand_in) = self.stand_in else { return false };
        while let Some(record) = newest_first.next() {
            let returns = record.kind == Kind::Iret && record.to == stand_in;
            if !returns {
                return record.to == stand_in && self.is_call_of_program(record);
            }
            newest_first.find(|record| record.kind == Kind::Interrupt && record.from == stand_in);
        }
        false
    }

    /// The kernel itself calls the stand-in for other purposes.
    fn is_call_of_program(&self, record: Record) -> bool {
        let [start, end] = self.text;
        matches!(record.kind, Kind::Call | Kind::IndCall)
            && is_kernel(record.from)
            && !(start..end).contains(&record.from)
    }

    /// The entries: `count`, or as many as the CPU's ring has. Zeros at the end stand for records
    /// that the driver drops and for those not yet recorded.
    pub fn entries(
        &self,
        guest: Guest,
        count: u32,
        newest_first: impl Iterator<Item = Record>,
    ) -> Vec<[u8; ENTRY_BYTES]> {
        let Cpu { depth, ring, kept } = self.cpu;
        let slots = newest_first
            .filter(|record| is_of_kernel(guest, record) && ring.contains(record.kind))
            .take(depth as usize);
        let handed_over = slots
            .filter(|record| kept.contains(record.kind) && !is_classless(guest, record))
            .map(|record| {
                let [from, to] = shown(guest, &record);
                let mut entry = [0; ENTRY_BYTES];
                entry[..8].copy_from_slice(&from.to_le_bytes());
                entry[8..16].copy_from_slice(&to.to_le_bytes());
                entry
            });
        let length = MOST.min(count.min(depth) as usize);
        let mut entries: Vec<_> = handed_over.take(length).collect();
        entries.resize(length, [0; ENTRY_BYTES]);
        entries
    }
}

fn is_kernel(address: u64) -> bool {
    address >> 63 == 1
}

/// perf asks for the kernel's branches: on x86-64 those into the kernel, on arm64 those into or out
/// of it.
fn is_of_kernel(guest: Guest, record: &Record) -> bool {
    is_kernel(record.to) || guest == Guest::Aarch64 && is_kernel(record.from)
}

/// On x86-64 the driver decodes the instruction at `from`. An interrupted kernel instruction is no
/// branch.
fn is_classless(guest: Guest, record: &Record) -> bool {
    guest == Guest::X86_64 && record.kind == Kind::Interrupt && is_kernel(record.from)
}

/// arm64 zeroes the half in user space.
fn shown(guest: Guest, record: &Record) -> [u64; 2] {
    [record.from, record.to].map(|address| match guest {
        Guest::Aarch64 if !is_kernel(address) => 0,
        _ => address,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use tramplab_protocol::delivery::Kinds;

    const KERNEL: u64 = 0xffff_ffff_8100_0000;
    const STAND_IN: u64 = KERNEL + 0x1000;
    const PROGRAM: u64 = 0xffff_ffff_c000_0000;
    const USER: u64 = 0x40_0000;
    const HANDLER: u64 = KERNEL + 0x3000;

    fn delivery(depth: u32) -> Delivery {
        let ring = Kinds::of(&[Kind::Call, Kind::Ret, Kind::Syscall, Kind::Interrupt, Kind::Iret]);
        let kept = Kinds::of(&[Kind::Call, Kind::Ret, Kind::Interrupt, Kind::Iret]);
        let text = [KERNEL, KERNEL + 0x100_0000];
        let cpu = Cpu { depth, ring, kept };
        Delivery { stand_in_at: 0, stand_in: Some(STAND_IN), text, cpu, cpu_at: 0 }
    }

    fn record(from: u64, to: u64, kind: Kind) -> Record {
        Record { from, to, kind, instructions: 1, accesses: None }
    }

    fn delivered(guest: Guest, depth: u32, count: u32, newest_first: &[Record]) -> Vec<(u64, u64)> {
        let entries = delivery(depth).entries(guest, count, newest_first.iter().copied());
        let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().unwrap());
        assert!(entries.iter().all(|entry| word(&entry[16..]) == 0), "{entries:?}");
        entries.iter().map(|entry| (word(&entry[..8]), word(&entry[8..16]))).collect()
    }

    #[test]
    fn delivers_only_to_programs() {
        for (from, to, kind, asked) in [
            (PROGRAM, STAND_IN, Kind::Call, true),
            (PROGRAM, STAND_IN, Kind::IndCall, true),
            (KERNEL + 0x2000, STAND_IN, Kind::Call, false),
            (PROGRAM, STAND_IN + 4, Kind::Call, false),
            (PROGRAM, STAND_IN, Kind::Iret, false),
            (USER, STAND_IN, Kind::Call, false),
        ] {
            let record = record(from, to, kind);
            assert_eq!(delivery(32).is_asked([record].into_iter()), asked, "{record:x?}");
            // Two interrupts before the stand-in's first instruction, one more within the first
            // handler.
            let interrupt = [
                self::record(HANDLER + 4, STAND_IN, Kind::Iret),
                self::record(HANDLER + 4, HANDLER, Kind::Iret),
                self::record(HANDLER, HANDLER, Kind::Interrupt),
                self::record(STAND_IN, HANDLER, Kind::Interrupt),
            ];
            let newest_first = [&interrupt[..], &interrupt, &[record]].concat();
            assert_eq!(delivery(32).is_asked(newest_first.into_iter()), asked, "{record:x?}");
            // The ring is too short to decide.
            assert!(!delivery(32).is_asked(interrupt[..3].iter().copied()));
        }
        assert!(!delivery(32).is_asked(std::iter::empty()));
        let unknown = Delivery { stand_in: None, ..delivery(32) };
        assert!(!unknown.is_asked([record(PROGRAM, STAND_IN, Kind::Call)].into_iter()));
        assert!(!unknown.is_left_at(STAND_IN));
        for (offset, leaves) in [(0, true), (15, true), (16, false), (u64::MAX, false)] {
            assert_eq!(
                delivery(32).is_left_at(STAND_IN.wrapping_add(offset)),
                leaves,
                "{offset:#x}"
            );
        }
    }

    #[test]
    fn fills_the_ring_before_the_driver_filters_and_pads_with_zeros() {
        let call = |n| record(KERNEL + n, KERNEL + n + 8, Kind::Call);
        let shown = |n| (KERNEL + n, KERNEL + n + 8);
        let other = record(KERNEL, KERNEL, Kind::Cond);
        let system_call = record(USER, KERNEL, Kind::Syscall);
        let newest_first = [call(1), other, system_call, call(2), call(3), call(4)];
        let x86 = |depth, count| delivered(Guest::X86_64, depth, count, &newest_first);
        // A system call takes a slot; the conditional branch does not.
        assert_eq!(x86(4, 64), [shown(1), shown(2), shown(3), (0, 0)]);
        assert_eq!(x86(4, 3), [shown(1), shown(2), shown(3)]);
        assert_eq!(x86(4, 2), [shown(1), shown(2)]);
        assert_eq!(x86(8, 64).len(), 8);
        assert_eq!(x86(u32::MAX, u32::MAX).len(), MOST);
        assert!(x86(4, 0).is_empty());
    }

    #[test]
    fn selects_the_kernels_branches_by_architecture() {
        let enters = record(USER, KERNEL, Kind::Interrupt);
        let leaves = record(KERNEL, USER, Kind::Iret);
        let within = record(KERNEL + 8, KERNEL, Kind::Interrupt);
        let outside = record(USER, USER + 8, Kind::Call);
        let newest_first = [within, leaves, outside, enters];
        assert_eq!(
            delivered(Guest::X86_64, 3, 64, &newest_first),
            [(USER, KERNEL), (0, 0), (0, 0)]
        );
        assert_eq!(
            delivered(Guest::Aarch64, 4, 64, &newest_first),
            [(KERNEL + 8, KERNEL), (KERNEL, 0), (0, KERNEL), (0, 0)]
        );
    }
}
