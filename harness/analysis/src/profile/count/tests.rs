// SPDX-License-Identifier: MIT OR Apache-2.0
//! Counts and stacks that are small enough to follow by hand.

use super::*;
use std::iter;
use tramplab_protocol::{
    counts::{self, BlockCount},
    message::Sample,
};

/// Added to the tests' short addresses, to make them kernel addresses.
const K: u64 = 1 << 63;

/// Functions of 0x100 bytes.
fn symbols() -> Symbols {
    let functions = [
        ("entry_SYSCALL_64", None, 0x100),
        ("__x64_sys_bpf", None, 0x200),
        ("__sys_bpf", None, 0x300),
        ("ktime_get", None, 0x400),
        ("asm_sysvec_apic_timer_interrupt", None, 0x500),
        ("asm_exc_page_fault", None, 0x600),
        ("bpf_prog_6deef7357e7b4530_capture", Some("bpf"), 0x700),
        ("vfs_read", None, 0x800),
        // Its last instruction is a call that does not return.
        ("do_exit", None, 0x900),
    ];
    let symbol = |(name, module, start): (&str, Option<&str>, u64)| Symbol {
        name: name.to_owned(),
        module: module.map(str::to_owned),
        start: K + start,
        end: K + start + 0x100,
    };
    functions.into_iter().map(symbol).collect()
}

fn thread(command: &str, pid: u32, measured: bool) -> counts::Thread {
    counts::Thread { command: command.to_owned(), pid, measured }
}

/// The path that stands for a thread.
fn root(thread: u32) -> CallPath {
    CallPath { parent: None, thread, from: 0, to: 0, kind: Entered::Call, calls: 0 }
}

/// `100` is a kernel address, `0` none.
fn address(text: &str) -> u64 {
    match u64::from_str_radix(text, 16).unwrap() {
        0 => 0,
        short => K + short,
    }
}

/// Reads `PARENT KIND FROM>TO*CALLS; …`, which are the paths from 1 on. Path 0 is the thread's.
fn paths(text: &str) -> Vec<CallPath> {
    let path = |text: &str| {
        let words: Vec<&str> = text.trim().split([' ', '>', '*']).collect();
        let [parent, kind, from, to, calls] = words[..] else { panic!("{text}") };
        let kind = match kind {
            "call" => Entered::Call,
            "interrupt" => Entered::Interrupt,
            "syscall" => Entered::Syscall,
            _ => panic!("{text}"),
        };
        let (from, to) = (address(from), address(to));
        let parent = Some(parent.parse().unwrap());
        CallPath { parent, thread: 0, from, to, kind, calls: calls.parse().unwrap() }
    };
    iter::once(root(0)).chain(text.split(';').map(path)).collect()
}

/// Reads `PATH START*TIMES=INSTRUCTIONS; …`.
fn blocks(text: &str) -> Vec<BlockCount> {
    let block = |text: &str| {
        let words: Vec<&str> = text.trim().split([' ', '*', '=']).collect();
        let [path, start, times, instructions] = words[..] else { panic!("{text}") };
        let [times, instructions] = [times, instructions].map(|count| count.parse().unwrap());
        BlockCount { path: path.parse().unwrap(), start: address(start), times, instructions }
    };
    text.split(';').map(block).collect()
}

fn vcpu(
    index: u32,
    threads: Vec<counts::Thread>,
    paths: Vec<CallPath>,
    blocks: Vec<BlockCount>,
) -> VcpuCounts {
    VcpuCounts { index, threads, paths, blocks, events: Vec::new(), cut: 0 }
}

/// A line per node: command, functions from the outermost (`!` marks an interrupt's), own, calls.
fn shown(profile: &Profile) -> Vec<String> {
    let mut stacks: Vec<String> = Vec::new();
    let mut lines = Vec::new();
    for node in &profile.nodes {
        let Function { name, space } = &profile.functions[node.function as usize];
        let space = match space {
            Space::Module(module) => format!("[{module}]"),
            Space::Kernel | Space::User => String::new(),
        };
        let above = match node.parent {
            Some(parent) => stacks[parent as usize].clone(),
            None => profile.threads[node.thread as usize].command.clone(),
        };
        let mark = if node.interrupt { "!" } else { "" };
        let stack = format!("{above};{mark}{name}{space}");
        lines.push(format!("{stack} {} *{}", node.own, node.calls));
        stacks.push(stack);
    }
    lines.sort();
    lines
}

fn of(vcpus: Vec<VcpuCounts>) -> Profile {
    of_counts(
        "cell",
        Phase::Attach,
        &Counts { discontinuities: false, setup: true, lost_switches: 0, vcpus },
        &symbols(),
    )
}

/// Name, paths, blocks, and the profile's nodes.
const CASES: [(&str, &str, &str, &[&str]); 6] = [
    (
        "blocks of a function are one, paths of two calls of one function are one",
        "0 syscall 0>100*2; 1 call 110>200*2; 1 call 120>200*3",
        "0 0*1=7; 1 100*2=10; 1 140*2=4; 2 200*2=20; 3 200*3=30",
        &["a;[user] 7 *0", "a;entry_SYSCALL_64 14 *2", "a;entry_SYSCALL_64;__x64_sys_bpf 50 *5"],
    ),
    (
        "a function entered by a jump is called by the one that jumps, and calls from there",
        "0 syscall 0>200*3; 1 call 310>400*6",
        "1 200*3=9; 1 300*3=12; 1 340*6=24; 2 400*6=60",
        &[
            "a;__x64_sys_bpf 9 *3",
            "a;__x64_sys_bpf;__sys_bpf 36 *3",
            "a;__x64_sys_bpf;__sys_bpf;ktime_get 60 *6",
        ],
    ),
    (
        "code without a known caller was not called",
        "0 call 310>400*1",
        "0 340*1=5; 1 400*1=6",
        &["a;__sys_bpf 5 *0", "a;__sys_bpf;ktime_get 6 *1"],
    ),
    // The last interrupt came over the exception.
    (
        "an interrupt and all it calls is not the thread's work, an exception is",
        "0 syscall 0>200*1; 1 interrupt 210>500*2; 2 call 510>400*2; 1 interrupt 220>600*1; \
         4 call 610>400*1; 5 interrupt 410>500*1",
        "1 200*1=1; 2 500*2=2; 3 400*2=4; 4 600*1=8; 5 400*1=16; 6 500*1=32",
        &[
            "a;__x64_sys_bpf 1 *1",
            "a;__x64_sys_bpf;!asm_sysvec_apic_timer_interrupt 2 *2",
            "a;__x64_sys_bpf;!asm_sysvec_apic_timer_interrupt;!ktime_get 4 *2",
            "a;__x64_sys_bpf;asm_exc_page_fault 8 *1",
            "a;__x64_sys_bpf;asm_exc_page_fault;ktime_get 16 *1",
            "a;__x64_sys_bpf;asm_exc_page_fault;ktime_get;!asm_sysvec_apic_timer_interrupt 32 *1",
        ],
    ),
    (
        "an interrupt behind a transfer is below its source; from user space, at the bottom",
        "0 interrupt 0>500*1; 0 syscall 0>200*1; 2 interrupt 0>500*1",
        "1 500*1=1; 2 200*1=2; 3 500*1=4",
        &[
            "a;!asm_sysvec_apic_timer_interrupt 1 *1",
            "a;__x64_sys_bpf 2 *1",
            "a;__x64_sys_bpf;!asm_sysvec_apic_timer_interrupt 4 *1",
        ],
    ),
    (
        "programs have their module; code without a name has its address",
        "0 syscall 0>200*1; 1 call 210>700*1; 2 call 710>f00*1",
        "2 700*1=3; 3 f00*1=4",
        &[
            "a;__x64_sys_bpf 0 *1",
            "a;__x64_sys_bpf;bpf_prog_6deef7357e7b4530_capture[bpf] 3 *1",
            "a;__x64_sys_bpf;bpf_prog_6deef7357e7b4530_capture[bpf];0x8000000000000f00 4 *1",
        ],
    ),
];

#[test]
fn turns_counts_into_functions() {
    for (name, entered, counted, expected) in CASES {
        let blocks = blocks(counted);
        let total: u64 = blocks.iter().map(|block| block.instructions).sum();
        let profile = of(vec![vcpu(0, vec![thread("a", 1, true)], paths(entered), blocks)]);
        assert_eq!(shown(&profile), expected, "{name}");
        assert_eq!(profile.nodes.iter().map(|node| node.own).sum::<u64>(), total, "{name}");
    }
}

#[test]
fn merges_threads_of_all_cpus() {
    let mut paths = paths("0 syscall 0>200*1");
    paths.push(root(1));
    let blocks = blocks("1 200*1=3; 2 400*1=5");
    let of_cpu =
        |index, first, second| vcpu(index, vec![first, second], paths.clone(), blocks.clone());
    let profile = of(vec![
        of_cpu(0, thread("agent", 1, true), thread("kworker/0:1", 8, false)),
        of_cpu(1, thread("", 0, false), thread("kworker/0:1", 8, false)),
    ]);
    assert_eq!(
        shown(&profile),
        ["agent;__x64_sys_bpf 3 *1", "kworker/0:1;ktime_get 10 *2", "unknown;__x64_sys_bpf 3 *1",]
    );
    assert_eq!(
        profile.threads.iter().map(|thread| thread.measured).collect::<Vec<_>>(),
        [true, false, false]
    );
}

#[test]
fn names_the_attaching_thread_without_a_switch() {
    let blocks = blocks("0 400*1=1");
    let profile = of(vec![vcpu(0, vec![thread("", 0, true)], vec![root(0)], blocks)]);
    assert_eq!(profile.threads, [Thread::agent()]);
}

#[test]
fn lists_each_kernel_address_once() {
    let paths = paths("0 syscall 0>200*1; 1 call 210>400*1");
    let blocks = blocks("0 0*1=1; 2 400*1=1; 2 420*1=1");
    let counts = Counts {
        discontinuities: true,
        setup: true,
        lost_switches: 0,
        vcpus: vec![vcpu(0, vec![thread("a", 1, true)], paths, blocks)],
    };
    assert_eq!(addresses(&counts), [0x200, 0x210, 0x400, 0x420].map(|address| K + address));
}

#[test]
fn turns_stacks_into_functions() {
    // The outer call of each is the last instruction of its function: it returns behind it.
    let stack =
        |addresses: &[u64]| addresses.iter().map(|address| K + address).collect::<Vec<u64>>();
    let within_exit = stack(&[0x400, 0xa00]);
    assert_eq!(stack_addresses([&within_exit].into_iter()), [K + 0x400, K + 0x9ff]);

    let sample = |command: &str, measured, stack: Vec<u64>, count| {
        let pid = if measured { 1 } else { 8 };
        Sample { command: command.to_owned(), pid, measured, stack, count }
    };
    let stacks = vec![
        sample("agent", true, within_exit.clone(), 3),
        sample("agent", true, stack(&[0x410, 0xa00]), 4),
        sample("agent", true, vec![], 5),
        sample("agent", true, stack(&[0x400, 0x510, 0x810]), 6),
        sample("other", false, within_exit.clone(), 7),
    ];
    let samples = Samples { event: "cpu-clock".to_owned(), period: 9, lost: 1, stacks };
    let profile = of_samples("cell", Phase::Detach, &samples, &symbols());
    assert_eq!(
        shown(&profile),
        [
            "agent;[user] 5 *0",
            "agent;do_exit 0 *0",
            "agent;do_exit;ktime_get 7 *0",
            "agent;vfs_read 0 *0",
            "agent;vfs_read;!asm_sysvec_apic_timer_interrupt 0 *0",
            "agent;vfs_read;!asm_sysvec_apic_timer_interrupt;!ktime_get 6 *0",
            "other;do_exit 0 *0",
            "other;do_exit;ktime_get 7 *0",
        ]
    );
    assert_eq!(
        profile.sampling,
        Some(Sampling { event: "cpu-clock".to_owned(), period: 9, lost: 1 })
    );

    let wait = |stack, ns, count| Wait { stack, ns, count };
    let waits = [
        wait(within_exit.clone(), 30, 1),
        wait(stack(&[0x310, 0x810]), 50, 2),
        wait(stack(&[0x480, 0x950]), 40, 4),
        wait(vec![], 8, 8),
    ];
    let agent = Thread { command: "agent".to_owned(), pid: 1, measured: true };
    assert_eq!(
        shown(&of_waits("cell", Phase::Attach, &waits, agent, &symbols())),
        [
            "agent;[user] 8 *0",
            "agent;do_exit 0 *0",
            "agent;do_exit;ktime_get 70 *0",
            "agent;vfs_read 0 *0",
            "agent;vfs_read;__sys_bpf 50 *0",
        ]
    );
    let waited: Vec<(String, u64, u64)> = waited(&waits, &symbols())
        .into_iter()
        .map(|w| (w.stack.join(";"), w.ns, w.count))
        .collect();
    let expected = [("ktime_get;do_exit", 70, 5), ("__sys_bpf;vfs_read", 50, 2), ("", 8, 8)];
    assert_eq!(waited, expected.map(|(stack, ns, count)| (stack.to_owned(), ns, count)));
}
