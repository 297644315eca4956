// SPDX-License-Identifier: GPL-2.0-or-later
//! QEMU's own log (`-d exec,nochain,in_asm,int`) of one vCPU, and the transfers it tells of.
//!
//! It names each block before it is executed, disassembles it when it is translated, and names the instruction at each
//! interrupt and exception: nothing has to be inferred, and neither the plugin interface nor the plugin's decoder
//! takes part.

mod arm64;
mod x86_64;

use crate::machine::Guest;
use std::{collections::HashMap, io::BufRead, rc::Rc};
use tramplab_protocol::trace::{Kind, Record};

/// What to log.
pub const ITEMS: &str = "exec,nochain,in_asm,int";

#[derive(Debug)]
pub struct Instruction {
    address: u64,
    length: u64,
    text: String,
    /// If it is a branch: of which kind, and where to if the instruction says so.
    branch: Option<(Kind, Option<u64>)>,
}

pub type Block = Rc<Vec<Instruction>>;

#[derive(Debug)]
pub enum Event {
    /// Is about to be executed.
    Block(Block),
    /// The block was left in its middle, to do an access to a device again.
    Rewound,
    Interrupt(Interrupt),
}

#[derive(Clone, Copy, Debug)]
pub struct Interrupt {
    cause: Cause,
    /// The instruction it is about: which failed, or is next, or, of a software interrupt, the instruction itself.
    at: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cause {
    Device,
    Instruction,
    /// The instruction at this address could not be done.
    Fault,
    /// A single step: after an instruction.
    Trap,
}

fn hex(text: &str) -> u64 {
    u64::from_str_radix(text.trim_start_matches("0x"), 16)
        .unwrap_or_else(|_| panic!("`{text}` is no address"))
}

/// An instruction's bytes and its text, from a line of the disassembly.
fn instruction(guest: Guest, rest: &str) -> (u64, &str) {
    match guest {
        Guest::X86_64 | Guest::X86_64Newer => x86_64::instruction(rest),
        Guest::Arm64 => arm64::instruction(rest),
    }
}

fn branch(guest: Guest, text: &str) -> Option<(Kind, Option<u64>)> {
    match guest {
        Guest::X86_64 | Guest::X86_64Newer => x86_64::branch(text),
        Guest::Arm64 => arm64::branch(text),
    }
}

/// Reads what is logged of interrupts and exceptions.
enum Interrupts {
    X86_64(x86_64::Interrupts),
    Arm64(arm64::Interrupts),
}

impl Interrupts {
    fn of(guest: Guest) -> Interrupts {
        match guest {
            Guest::X86_64 | Guest::X86_64Newer => Interrupts::X86_64(Default::default()),
            Guest::Arm64 => Interrupts::Arm64(Default::default()),
        }
    }

    fn block(&mut self) {
        match self {
            Interrupts::X86_64(interrupts) => interrupts.block(),
            Interrupts::Arm64(interrupts) => interrupts.block(),
        }
    }

    fn line(&mut self, line: &str) -> Option<Interrupt> {
        match self {
            Interrupts::X86_64(interrupts) => interrupts.line(line),
            Interrupts::Arm64(interrupts) => interrupts.line(line),
        }
    }
}

pub fn parse(guest: Guest, log: impl BufRead) -> Vec<Event> {
    let mut events = Vec::new();
    // By address in QEMU's memory: the same instructions can be translated in several ways.
    let mut translated: HashMap<String, Block> = HashMap::new();
    let mut latest: HashMap<u64, Vec<Instruction>> = HashMap::new();
    let mut reading: Vec<Instruction> = Vec::new();
    let mut interrupts = Interrupts::of(guest);
    for line in log.lines() {
        let line = line.unwrap();
        assert!(!line.starts_with("OBJD-T"), "QEMU was built without Capstone: its log has no disassembly");
        if let Some((address, rest)) = line.split_once(":  ").filter(|_| line.starts_with("0x")) {
            match (reading.last_mut(), instruction(guest, rest)) {
                (Some(Instruction { length: whole, .. }), (more, "")) => *whole += more,
                (_, (length, text)) => {
                    let (address, branch) = (hex(address), branch(guest, text));
                    reading.push(Instruction { address, length, text: text.to_owned(), branch });
                }
            }
            continue;
        }
        if let Some(first) = reading.first() {
            latest.insert(first.address, std::mem::take(&mut reading));
        }
        if let Some(rest) = line.strip_prefix("Trace ") {
            interrupts.block();
            // `0: 0x7f… [cs base/address/flags/cflags] symbol`
            let mut words = rest.split_whitespace();
            let host = words.nth(1).unwrap();
            let address = hex(words.next().unwrap().split('/').nth(1).unwrap());
            if let Some(block) = latest.remove(&address) {
                translated.insert(host.to_owned(), Rc::new(block));
            }
            // One that was translated before the log began is none of the window's.
            events.extend(translated.get(host).cloned().map(Event::Block));
        } else if line.starts_with("Stopped execution of TB chain before") {
            assert!(matches!(events.pop(), Some(Event::Block(_))), "{line}");
        } else if line.starts_with("cpu_io_recompile") {
            events.push(Event::Rewound);
        } else {
            events.extend(interrupts.line(&line).map(Event::Interrupt));
        }
    }
    events
}

/// From each block that starts at `armed` to the next that holds the instruction at `disarm`, both included.
pub fn windows(events: &[Event], armed: u64, disarm: u64) -> Vec<&[Event]> {
    let mut windows = Vec::new();
    let mut begin = None;
    for (index, event) in events.iter().enumerate() {
        let Event::Block(block) = event else { continue };
        match begin {
            None if block[0].address == armed => begin = Some(index),
            Some(first) if block.iter().any(|instruction| instruction.address == disarm) => {
                windows.push(&events[first..=index]);
                begin = None;
            }
            _ => {}
        }
    }
    windows
}

pub fn interrupts_of_devices(window: &[Event]) -> usize {
    let device = |event: &&Event| matches!(event, Event::Interrupt(Interrupt { cause: Cause::Device, .. }));
    window.iter().filter(device).count()
}

/// A transfer, and what can only be known with the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transfer {
    pub record: Record,
    /// Nothing was executed between the transfer before and this one.
    at_once: bool,
    /// Of an exception: the failed instruction is such a branch.
    failed_branch: Option<Kind>,
}

pub fn transfers(window: &[Event]) -> Vec<Transfer> {
    transfers_and_rest(window).0
}

/// How many instructions were begun; a window ends with a whole block.
pub fn instructions(window: &[Event]) -> u64 {
    let (transfers, rest) = transfers_and_rest(window);
    transfers.iter().map(|transfer| u64::from(transfer.record.instructions)).sum::<u64>() + u64::from(rest)
}

/// The transfers, and how many instructions were begun behind the last one.
fn transfers_and_rest(window: &[Event]) -> (Vec<Transfer>, u32) {
    let mut transfers = Vec::new();
    let mut instructions = 0;
    let mut rest = window;
    while let [Event::Block(block), after @ ..] = rest {
        let next = after.iter().position(|event| matches!(event, Event::Block(_)));
        let Some(next) = next else {
            instructions += block.len() as u32;
            break;
        };
        let (between, from_next) = after.split_at(next);
        let Event::Block(next) = &from_next[0] else { unreachable!() };
        rest = from_next;
        let to = next[0].address;
        let interrupts: Vec<Interrupt> = between
            .iter()
            .filter_map(|event| match event {
                Event::Interrupt(interrupt) => Some(*interrupt),
                _ => None,
            })
            .collect();
        let rewound = between.iter().any(|event| matches!(event, Event::Rewound));
        let continued = interrupts.first().map_or(to, |interrupt| interrupt.at);
        let cause = interrupts.first().map(|interrupt| interrupt.cause);
        let branched = if rewound { None } else { tail(block, cause, continued) };
        instructions += begun(block, branched.is_some(), !interrupts.is_empty(), continued);
        transfers.extend(branched.map(|record| {
            let record = Record { instructions: std::mem::take(&mut instructions), ..record };
            Transfer { record, at_once: false, failed_branch: None }
        }));
        let last = block.last().unwrap();
        for (index, interrupt) in interrupts.iter().enumerate() {
            let kind = if interrupt.cause == Cause::Instruction { Kind::Int } else { Kind::Interrupt };
            let to = interrupts.get(index + 1).map_or(to, |next| next.at);
            let failed = interrupt.cause == Cause::Fault && interrupt.at == last.address;
            transfers.push(Transfer {
                record: Record {
                    from: interrupt.at,
                    to,
                    kind,
                    instructions: std::mem::take(&mut instructions),
                },
                at_once: index > 0 || branched.is_some(),
                failed_branch: last.branch.filter(|_| failed).map(|(kind, _)| kind),
            });
        }
    }
    (transfers, instructions)
}

/// How many of the block's instructions were begun, those left out that the next block begins again without an
/// interrupt between; `to` is where the flow went on, or was to.
fn begun(block: &Block, branched: bool, interrupted: bool, to: u64) -> u32 {
    let before = block.iter().take_while(|instruction| instruction.address != to).count();
    let begun = match (branched, interrupted) {
        (true, _) => block.len(),
        // The one that failed, or the `rep` that was interrupted, was begun.
        (false, true) => (before + 1).min(block.len()),
        (false, false) => before,
    };
    begun as u32
}

/// What the block's last instruction did, if it was done.
fn tail(block: &Block, cause: Option<Cause>, to: u64) -> Option<Record> {
    let last = block.last().unwrap();
    let within = block.iter().any(|instruction| instruction.address == to);
    if within && matches!(cause, Some(Cause::Fault | Cause::Instruction)) {
        return None;
    }
    let end = last.address + last.length;
    let record = |kind| Some(Record { from: last.address, to, kind, instructions: 0 });
    match last.branch {
        Some((kind @ (Kind::Jump | Kind::Call), Some(target))) if to == target => record(kind),
        Some((Kind::Cond, _)) if to == end => None,
        Some((Kind::Cond, Some(target))) if to == target => record(Kind::Cond),
        Some((kind, None)) => record(kind),
        None if to == end => None,
        // Left in its middle, or repeated: the block changed its own code, or goes on with a `rep`.
        _ if within => None,
        _ => panic!("nothing in the log leads from {:#x} `{}` to {to:#x}", last.address, last.text),
    }
}

/// The same as far as it is to be known where QEMU does not tell of interrupts (before 10.2): the limits documented in
/// `docs/branch-records.md`, and nothing else.
pub fn without_being_told(transfers: &[Transfer]) -> Vec<Record> {
    let indirect = |kind| {
        use Kind::{IndCall, IndJump, Iret, Ret, Syscall, Sysret};
        matches!(kind, IndJump | IndCall | Ret | Syscall | Sysret | Iret)
    };
    let mut records: Vec<Record> = Vec::new();
    for transfer in transfers {
        let Record { from, to, instructions, .. } = transfer.record;
        match (records.last_mut(), transfer.failed_branch) {
            // An interrupt right behind an indirect branch is taken for its target.
            (Some(last), _) if transfer.at_once && indirect(last.kind) => last.to = to,
            // An indirect branch that fails is taken for one to the handler.
            (_, Some(kind)) if indirect(kind) => records.push(Record { from, to, kind, instructions }),
            _ => records.push(transfer.record),
        }
    }
    records
}
