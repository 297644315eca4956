// SPDX-License-Identifier: MIT OR Apache-2.0
//! Parses QEMU's own log (`-d exec,nochain,in_asm,int`) of one vCPU into transfers.
//!
//! The log names each block before it runs, disassembles it at its translation, and names the
//! instruction at each interrupt and exception. Nothing needs to be inferred, and neither the
//! plugin interface nor the plugin's decoder is involved.

mod arm64;
mod x86_64;

use std::{collections::HashMap, io::BufRead, rc::Rc};
use tramplab_model::run::Arch;
use tramplab_protocol::trace::{Kind, Record};

/// The items to log.
pub const ITEMS: &str = "exec,nochain,in_asm,int";

#[derive(Debug)]
pub struct Instruction {
    address: u64,
    length: u64,
    text: String,
    /// The kind of a branch, with its target if the instruction gives it. None for other
    /// instructions.
    branch: Option<(Kind, Option<u64>)>,
}

pub type Block = Rc<Vec<Instruction>>;

#[derive(Debug)]
pub enum Event {
    /// The block is about to run.
    Block(Block),
    /// The same, of a block that was translated before the log began.
    Unknown,
    /// The block was left in its middle, to repeat an access to a device.
    Rewound,
    Interrupt(Interrupt),
}

#[derive(Clone, Copy, Debug)]
pub struct Interrupt {
    cause: Cause,
    /// The instruction that failed or comes next. For a software interrupt, the instruction itself.
    at: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cause {
    Device,
    Instruction,
    /// The instruction at this address failed.
    Fault,
    /// A single step, after an instruction.
    Trap,
}

fn hex(text: &str) -> u64 {
    u64::from_str_radix(text.trim_start_matches("0x"), 16)
        .unwrap_or_else(|_| panic!("expected an address, found `{text}`"))
}

/// Splits a line of the disassembly into the instruction's bytes and its text.
fn instruction(arch: Arch, rest: &str) -> (u64, &str) {
    match arch {
        Arch::X86_64 => x86_64::instruction(rest),
        Arch::Arm64 => arm64::instruction(rest),
    }
}

fn branch(arch: Arch, text: &str) -> Option<(Kind, Option<u64>)> {
    match arch {
        Arch::X86_64 => x86_64::branch(text),
        Arch::Arm64 => arm64::branch(text),
    }
}

/// A reader of the log's lines about interrupts and exceptions.
enum Interrupts {
    X86_64(x86_64::Interrupts),
    Arm64(arm64::Interrupts),
}

impl Interrupts {
    fn of(arch: Arch) -> Interrupts {
        match arch {
            Arch::X86_64 => Interrupts::X86_64(Default::default()),
            Arch::Arm64 => Interrupts::Arm64(Default::default()),
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

/// A reader of one log, or of several that follow each other: QEMU disassembles a block once.
pub struct Reader {
    arch: Arch,
    /// Keyed by address in QEMU's memory: the same instructions may be translated in several ways.
    translated: HashMap<String, Block>,
}

pub fn parse(arch: Arch, log: impl BufRead) -> Vec<Event> {
    Reader::new(arch).read(log)
}

impl Reader {
    pub fn new(arch: Arch) -> Reader {
        Reader { arch, translated: HashMap::new() }
    }

    pub fn read(&mut self, log: impl BufRead) -> Vec<Event> {
        let mut events = Vec::new();
        let mut latest: HashMap<u64, Vec<Instruction>> = HashMap::new();
        let mut reading: Vec<Instruction> = Vec::new();
        let mut interrupts = Interrupts::of(self.arch);
        for line in log.lines() {
            let line = line.unwrap();
            assert!(
                !line.starts_with("OBJD-T"),
                "this QEMU has no Capstone: its log lacks the disassembly"
            );
            if let Some((address, rest)) = line.split_once(":  ").filter(|_| line.starts_with("0x"))
            {
                match (reading.last_mut(), instruction(self.arch, rest)) {
                    (Some(Instruction { length: whole, .. }), (more, "")) => *whole += more,
                    (_, (length, text)) => {
                        let (address, branch) = (hex(address), branch(self.arch, text));
                        let text = text.to_owned();
                        reading.push(Instruction { address, length, text, branch });
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
                    self.translated.insert(host.to_owned(), Rc::new(block));
                }
                let block = self.translated.get(host).cloned();
                events.push(block.map_or(Event::Unknown, Event::Block));
            } else if line.starts_with("Stopped execution of TB chain before") {
                // The log may begin behind the block's line.
                let stopped = events.pop();
                assert!(matches!(stopped, None | Some(Event::Block(_) | Event::Unknown)), "{line}");
            } else if line.starts_with("cpu_io_recompile") {
                events.push(Event::Rewound);
            } else {
                events.extend(interrupts.line(&line).map(Event::Interrupt));
            }
        }
        events
    }
}

/// The windows, each from a block at `armed` to the next block with the instruction at `disarm`,
/// both included.
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
    let device =
        |event: &&Event| matches!(event, Event::Interrupt(Interrupt { cause: Cause::Device, .. }));
    window.iter().filter(device).count()
}

/// A transfer, with facts that only the log gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transfer {
    pub record: Record,
    /// True if no instruction ran since the transfer before.
    at_once: bool,
    /// For an exception: the kind of the failed instruction, if it is a branch.
    failed_branch: Option<Kind>,
}

pub fn transfers(window: &[Event]) -> Vec<Transfer> {
    transfers_and_rest(window).0
}

/// The number of instructions that began. A window ends with a whole block.
pub fn instructions(window: &[Event]) -> u64 {
    let (transfers, rest) = transfers_and_rest(window);
    transfers.iter().map(|transfer| u64::from(transfer.record.instructions)).sum::<u64>()
        + u64::from(rest)
}

/// The transfers of a log that began in a running guest: those between two gaps are together.
pub fn parts(log: &[Event]) -> Vec<Vec<Transfer>> {
    let mut parts = Vec::new();
    for known in log.split(|event| matches!(event, Event::Unknown)) {
        let first = known.iter().position(|event| matches!(event, Event::Block(_)));
        let mut rest = first.map(|first| &known[first..]);
        while let Some(window) = rest {
            let (transfers, _, gap) = follow(window);
            parts.push(transfers);
            rest = gap.map(|gap| gap.rest);
        }
    }
    parts
}

/// The transfers, and the number of instructions that began after the last one.
fn transfers_and_rest(window: &[Event]) -> (Vec<Transfer>, u32) {
    let (transfers, instructions, gap) = follow(window);
    if let Some(gap) = gap {
        panic!("nothing in the log leads {}", gap.place);
    }
    (transfers, instructions)
}

/// A block to which nothing in the log leads from the one before.
struct Gap<'a> {
    place: String,
    /// From this block on.
    rest: &'a [Event],
}

/// The transfers up to a gap, and the number of instructions that began after the last one.
fn follow(window: &[Event]) -> (Vec<Transfer>, u32, Option<Gap<'_>>) {
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
        let branched = match tail(block, cause, continued) {
            _ if rewound => None,
            Ok(branched) => branched,
            Err(place) => return (transfers, instructions, Some(Gap { place, rest })),
        };
        instructions += begun(block, branched.is_some(), !interrupts.is_empty(), continued);
        transfers.extend(branched.map(|record| {
            let record = Record { instructions: std::mem::take(&mut instructions), ..record };
            Transfer { record, at_once: false, failed_branch: None }
        }));
        let last = block.last().unwrap();
        for (index, interrupt) in interrupts.iter().enumerate() {
            let kind =
                if interrupt.cause == Cause::Instruction { Kind::Int } else { Kind::Interrupt };
            let to = interrupts.get(index + 1).map_or(to, |next| next.at);
            let failed = interrupt.cause == Cause::Fault && interrupt.at == last.address;
            transfers.push(Transfer {
                record: Record {
                    from: interrupt.at,
                    to,
                    kind,
                    instructions: std::mem::take(&mut instructions),
                    accesses: None,
                },
                at_once: index > 0 || branched.is_some(),
                failed_branch: last.branch.filter(|_| failed).map(|(kind, _)| kind),
            });
        }
    }
    (transfers, instructions, None)
}

/// The number of the block's instructions that began, without those that the next block repeats
/// without an interrupt between. `to` is the address where the flow continued or was to continue.
fn begun(block: &Block, branched: bool, interrupted: bool, to: u64) -> u32 {
    let before = block.iter().take_while(|instruction| instruction.address != to).count();
    let begun = match (branched, interrupted) {
        (true, _) => block.len(),
        // The failed instruction, or the interrupted `rep`, began.
        (false, true) => (before + 1).min(block.len()),
        (false, false) => before,
    };
    begun as u32
}

/// The transfer of the block's last instruction, if it completed. `Err`: it leads elsewhere.
fn tail(block: &Block, cause: Option<Cause>, to: u64) -> Result<Option<Record>, String> {
    let last = block.last().unwrap();
    let within = block.iter().any(|instruction| instruction.address == to);
    if within && matches!(cause, Some(Cause::Fault | Cause::Instruction)) {
        return Ok(None);
    }
    let end = last.address + last.length;
    let record =
        |kind| Some(Record { from: last.address, to, kind, instructions: 0, accesses: None });
    Ok(match last.branch {
        Some((kind @ (Kind::Jump | Kind::Call), Some(target))) if to == target => record(kind),
        Some((Kind::Cond, _)) if to == end => None,
        Some((Kind::Cond, Some(target))) if to == target => record(Kind::Cond),
        Some((kind, None)) => record(kind),
        None if to == end => None,
        // Left in its middle, or repeated: the block changed its own code, or a `rep` continues.
        _ if within => None,
        _ => return Err(format!("from {:#x} `{}` to {to:#x}", last.address, last.text)),
    })
}

/// The records as far as a QEMU that does not report interrupts (before 10.2) allows: exactly the
/// limits in `docs/branch-records.md`.
pub fn without_being_told(transfers: &[Transfer]) -> Vec<Record> {
    let indirect = |kind| {
        use Kind::{IndCall, IndJump, Iret, Ret, Syscall, Sysret};
        matches!(kind, IndJump | IndCall | Ret | Syscall | Sysret | Iret)
    };
    let mut records: Vec<Record> = Vec::new();
    for transfer in transfers {
        let Record { from, to, instructions, .. } = transfer.record;
        match (records.last_mut(), transfer.failed_branch) {
            // An interrupt right after an indirect branch is taken for its target.
            (Some(last), _) if transfer.at_once && indirect(last.kind) => last.to = to,
            // A failed indirect branch is taken for a branch to the handler.
            (_, Some(kind)) if indirect(kind) => {
                records.push(Record { from, to, kind, instructions, accesses: None })
            }
            _ => records.push(transfer.record),
        }
    }
    records
}
