// SPDX-License-Identifier: MIT OR Apache-2.0
//! Counts the instructions of a hit between the traced function and the program, and back.
//! `docs/hit-cost.md` has the rules.

use super::{
    Symbols,
    hit::{self, enters, is_behind, is_in},
    predict, symbolic,
    symbols::is_kernel,
};
use std::ops::{Range, RangeInclusive};
use tramplab_model::{
    cpu::Returns,
    run::{TriggerCost, TriggerPart, TriggerRecord},
};
use tramplab_protocol::{
    Point,
    message::{Symbol, TriggerReply},
    trace::{Accesses, Kind, Record, Trace, VcpuTrace},
};

/// How often the records are looked through for the returns of hits, at most. Hits of a function
/// that recurs lie in each other; a guest that lies could nest a million.
const DEEPEST: usize = 16;
/// Bytes at the start of a function among which is the site that tracers patch.
const SITE: u64 = 16;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TriggerError {
    #[error("the guest asked for no hits or names no point at which the program runs")]
    Empty,
    #[error(
        "{program} at {start:#x} was entered {found} times in the trace, expected {expected} \
         ({hits} hits x {points} points){hint}"
    )]
    Runs {
        program: String,
        start: u64,
        found: usize,
        expected: u64,
        hits: u32,
        points: usize,
        hint: &'static str,
    },
    #[error(
        "the program ran on vCPU {first} and on vCPU {second}: the guest's trigger is not bound to \
         one CPU"
    )]
    Vcpus { first: u32, second: u32 },
    #[error("{function} was called {found} times in the trace, expected {hits}")]
    Calls { function: String, found: usize, hits: u32 },
    #[error("the program did not run at every call of {function}: its hits cannot be told apart")]
    Reentered { function: String },
    #[error(
        "hit {hit}: {function} did not return to its caller while hits were recorded: it goes on \
         with another task"
    )]
    Away { hit: usize, function: String },
    #[error("hit {hit}: {what}")]
    Shape { hit: usize, what: &'static str },
    #[error("hit {hit}: the program was entered {found} times at {point}, expected {expected}")]
    Misplaced { hit: usize, point: Point, found: usize, expected: usize },
    #[error(
        "hit {hit}: {total} instructions from the function's call to its return, {inside} of them \
         in the function, but {cost} between it and the program"
    )]
    Unaccounted { hit: usize, total: u32, inside: u32, cost: u32 },
    #[error("{}", hit::all_interrupted(*hits))]
    Interrupted { hits: u32 },
}

impl TriggerError {
    /// True if it is due to the function, which tracers call, which calls itself or which switches
    /// tasks: other traces have it too.
    pub fn is_of_function(&self) -> bool {
        matches!(self, TriggerError::Reentered { .. } | TriggerError::Away { .. })
    }
}

/// Counts the instructions and branches per hit of one armed window of a guest, and predicts
/// branches as a CPU with this return stack does.
pub fn trigger_cost(
    trace: &Trace,
    symbols: &Symbols,
    reply: &TriggerReply,
    returns: Option<&Returns>,
) -> Result<TriggerCost, TriggerError> {
    let is_user = reply.mechanism.is_user();
    // The agent resolves only the kernel's addresses.
    let with_function = || symbols.clone().with(reply.function.clone());
    let symbols = &if is_user { with_function() } else { symbols.clone() };
    let (records, hits) = &vcpu_records(trace, symbols, reply)?;
    let windows = match reply.mechanism.is_tracepoint() {
        true => tracepoint_hits(records, reply)?,
        false => function_hits(records, symbols, reply, *hits)?,
    };
    // Check the whole hit: a handler may hide the branches that give the hit its shape.
    let interrupts = |r: &Record| match is_user {
        true => hit::is_asynchronous_interrupt(r, symbols),
        false => hit::is_interrupt(r, symbols),
    };
    let interrupted =
        |window: &RangeInclusive<usize>| records[window.clone()].iter().any(interrupts);
    // The recorder stops counting at 32 bits. No real hit runs a millionth of that.
    for (hit, window) in windows.iter().enumerate() {
        let run = records[window.clone()]
            .iter()
            .fold(0_u64, |sum, record| sum + u64::from(record.instructions));
        if run >= u64::from(u32::MAX) {
            return Err(TriggerError::Shape {
                hit,
                what: "it ran more instructions than are counted",
            });
        }
    }
    let mut clean: Vec<Vec<TriggerPart>> = Vec::new();
    for (number, window) in windows.iter().enumerate().filter(|(_, window)| !interrupted(window)) {
        let parts = match reply.mechanism.is_tracepoint() {
            true => vec![Part {
                point: Point::Entry,
                records: window.clone(),
                again: None,
                at_site: false,
            }],
            false => function_parts(records, symbols, reply, number, window)?,
        };
        clean.push(parts.iter().map(|part| named(part, records, symbols)).collect());
    }
    // The iterations of a `rep` are accesses and no instructions.
    let form = |parts: &Vec<TriggerPart>| {
        let accesses = parts.iter().map(|part| (part.reads, part.writes));
        (digest(parts), accesses.collect::<Vec<_>>())
    };
    let agreeing = hit::most_frequent(&clean.iter().collect::<Vec<_>>(), form);
    let parts = *agreeing.first().ok_or(TriggerError::Interrupted { hits: *hits })?;
    Ok(TriggerCost {
        hits: *hits,
        interrupted_hits: (windows.len() - clean.len()) as u32,
        agreeing_hits: agreeing.len() as u32,
        digest: digest(parts),
        parts: parts.clone(),
        predicted: {
            // A trigger that hits several times is one round of the workload.
            let hits = reply.trigger.as_ref().map_or(1, |trigger| trigger.hits.max(1));
            let starts = windows.iter().map(|window| *window.start());
            let starts: Vec<usize> = starts.step_by(hits as usize).collect();
            predict::predicted(records, symbols, &starts, interrupts, returns)
        },
        estimate: None,
    })
}

struct Part {
    point: Point,
    /// From the record that leaves the function to the one that comes back.
    records: RangeInclusive<usize>,
    /// A record between them that leaves the function again, after an earlier tracer came back.
    again: Option<usize>,
    /// True if the first record is the branch at the function's entry site.
    at_site: bool,
}

impl Part {
    fn instructions(&self, records: &[Record]) -> u32 {
        self.records.clone().map(|index| self.before(index, records)).sum()
    }

    /// Counts the instructions since the record before `index`. The function's own, before a
    /// record that leaves it, do not count.
    fn before(&self, index: usize, records: &[Record]) -> u32 {
        let own = index == *self.records.start() || Some(index) == self.again;
        if own { 0 } else { records[index].instructions }
    }

    /// Counts the data accesses of these instructions, and those up to the function's entry site,
    /// where a call stands instead of a no-op and stores its return address. None if they were not
    /// counted.
    fn accesses(&self, records: &[Record]) -> Option<Accesses> {
        let mut counted = records[self.records.clone()].iter().skip(usize::from(!self.at_site));
        let add = |sum, record: &Record| Some(sum + record.accesses?);
        counted.try_fold(Accesses::default(), add)
    }
}

/// Returns the records of the one vCPU that ran the program, if it ran as often as expected, and
/// the number of hits. Other code may also hit a function that the user names.
fn vcpu_records(
    trace: &Trace,
    symbols: &Symbols,
    reply: &TriggerReply,
) -> Result<(Vec<Record>, u32), TriggerError> {
    let points = reply.points.len();
    let expected = u64::from(reply.hits) * points as u64;
    if expected == 0 {
        return Err(TriggerError::Empty);
    }
    let runs = |records: &[Record]| records.iter().filter(|r| enters(&reply.program, r)).count();
    let all = trace.vcpus.iter().map(|vcpu| (vcpu, hit::with_targets(&vcpu.records, symbols)));
    let mut with: Vec<(&VcpuTrace, Vec<Record>)> =
        all.filter(|(_, records)| runs(records) > 0).collect();
    if let [(first, _), (second, _), ..] = with[..] {
        return Err(TriggerError::Vcpus { first: first.index, second: second.index });
    }
    let (has_dropped, records) = match with.pop() {
        Some((vcpu, records)) => (vcpu.has_dropped(), records),
        None => (trace.vcpus.iter().any(VcpuTrace::has_dropped), Vec::new()),
    };
    let found = runs(&records);
    // Without the oldest records, the hits that are left may be those of other code.
    let more = reply.trigger.is_some()
        && found as u64 > expected
        && found.is_multiple_of(points)
        && !has_dropped;
    if found as u64 != expected && !more {
        let hint = match has_dropped {
            true => hit::hint(has_dropped),
            false => hit::hint_of_session(points, found as u64, expected),
        };
        let (program, start) = (reply.program.name.clone(), reply.program.start);
        return Err(TriggerError::Runs {
            program,
            start,
            found,
            expected,
            hits: reply.hits,
            points,
            hint,
        });
    }
    Ok((records, (found / points) as u32))
}

/// Finds the entries of the function, one for each hit.
///
/// Only users name functions that tracers call, that call themselves, or that switch tasks.
fn entries(
    records: &[Record],
    reply: &TriggerReply,
    hits: u32,
) -> Result<Vec<usize>, TriggerError> {
    let function = &reply.function;
    let entries: Vec<usize> =
        (0..records.len()).filter(|&i| enters(function, &records[i])).collect();
    let found = entries.len();
    if found == hits as usize {
        return Ok(entries);
    }
    let calls_itself = || records.iter().any(|r| r.to == function.start && is_in(function, r.from));
    let function = function.name.clone();
    Err(match reply.trigger.is_some() && (found > hits as usize || calls_itself()) {
        true => TriggerError::Reentered { function },
        false => TriggerError::Calls { function, found, hits },
    })
}

/// Finds the hits: from each call of the function to its return.
fn function_hits(
    records: &[Record],
    symbols: &Symbols,
    reply: &TriggerReply,
    hits: u32,
) -> Result<Vec<RangeInclusive<usize>>, TriggerError> {
    let mut windows: Vec<RangeInclusive<usize>> = Vec::new();
    // Calls that are open behind the hit before.
    let mut open = Vec::new();
    let mut looked_at = 0;
    for (hit, call) in entries(records, reply, hits)?.into_iter().enumerate() {
        let shape = |what| TriggerError::Shape { hit, what };
        let since = windows.last().map_or(0, |before| before.end() + 1);
        for (at, record) in records.iter().enumerate().take(call + 1).skip(since) {
            follow(&mut open, at, Step::of(record, symbols));
        }
        // If another function's end jumps to this one, it returns to the call of that function. A
        // retpoline enters it by the return of a call of its own.
        let caller = match records[call].kind {
            Kind::Call | Kind::IndCall => Some(call),
            _ if call < since => None,
            _ => open.last().copied(),
        };
        let caller = caller
            .ok_or_else(|| shape("the function was not called: no call leads to the jump to it"))?;
        let back = records[call + 1..].iter().position(|r| is_behind(records[caller].from, r.to));
        let switches = || records[call..].iter().any(|r| hit::switches_tasks(r, symbols));
        let back = back.ok_or_else(|| match reply.trigger.is_some() && switches() {
            true => TriggerError::Away { hit, function: reply.function.name.clone() },
            false => shape("the function did not return to its caller"),
        })?;
        let back = call + 1 + back;
        let window = call..=behind_step(records, symbols, &reply.function, back);
        looked_at += window.end() - call;
        if looked_at > DEEPEST * records.len() {
            return Err(shape("hits lie in each other, deeper than in any kernel"));
        }
        // A hit leaves the calls before its caller open, unless another lies in it, or it switches
        // tasks.
        let is_whole = call >= since
            && !records[window.clone()].iter().any(|r| matches!(Step::of(r, symbols), Step::Lost));
        open.truncate(if is_whole { open.partition_point(|&call| call < caller) } else { 0 });
        windows.push(window);
    }
    Ok(windows)
}

/// The end of a probed return that x86-64's kernel has stepped in a page of its own: the step's
/// trap comes at the place where it returned to. Any other return ends there.
fn behind_step(records: &[Record], symbols: &Symbols, function: &Symbol, ret: usize) -> usize {
    let Record { from, to, kind, .. } = records[ret];
    let is_debug = |symbol: &Symbol| symbol.name == "asm_exc_debug";
    let traps = |trap: &Record| trap.from == to && symbols.find(trap.to).is_some_and(is_debug);
    let is_elsewhere = kind == Kind::Ret && !is_kernel(from) && !is_in(function, from);
    if !is_elsewhere || !records.get(ret + 1).is_some_and(traps) {
        return ret;
    }
    (ret + 1..records.len()).find(|&i| records[i].to == to).unwrap_or(ret)
}

/// Splits a hit of a function whose probed instruction is its return, which the kernel executes in
/// the function's place. None if the function goes on.
fn returned_parts(
    records: &[Record],
    symbols: &Symbols,
    function: &Symbol,
    site: usize,
    back: usize,
) -> Option<Result<Vec<Part>, &'static str>> {
    let inside = |address| is_in(function, address);
    let mut after = site + 1..=back;
    let goes_on = after.clone().any(|i| inside(records[i].from) || inside(records[i].to));
    if goes_on || is_kernel(function.start) {
        return None;
    }
    let stepped =
        after.clone().find(|&i| records[i].kind == Kind::Ret && !is_kernel(records[i].from));
    let end = match stepped {
        Some(ret) => match behind_step(&records[..=back], symbols, function, ret) {
            end if end == ret => return Some(Err("no trap came behind the stepped return")),
            end => end,
        },
        // arm64's kernels compute the place to return to.
        None => after.find(|&i| !is_kernel(records[i].to))?,
    };
    let entry = Part { point: Point::Entry, records: site..=end, again: None, at_site: true };
    // Its first record leads to the return's probe.
    let exit = Part { point: Point::Exit, records: end..=back, again: None, at_site: false };
    Some(Ok(if end < back { vec![entry, exit] } else { vec![entry] }))
}

/// Keeps the stack of open calls.
fn follow(open: &mut Vec<usize>, index: usize, step: Step) {
    match step {
        Step::Call => open.push(index),
        Step::Return => {
            open.pop();
        }
        Step::Lost => open.clear(),
        Step::Within => {}
    }
}

/// The return that ends a function which is left for the last time at `last`. If the function ends
/// with a jump to another one, it is the return of that one: the first without a call. Looks at the
/// records up to `back`.
fn end(records: &[Record], symbols: &Symbols, last: usize, back: usize) -> Option<usize> {
    if records[last].kind == Kind::Ret {
        return Some(last);
    }
    // Thunks call without a return: to drop the frame, or to fill the return stack.
    let (mut called, mut in_thunk) = (0, is_to_thunk(&records[last], symbols));
    for (index, record) in records.iter().enumerate().take(back + 1).skip(last + 1) {
        in_thunk = (in_thunk || is_to_thunk(record, symbols)) && record.kind != Kind::Ret;
        if in_thunk {
            continue;
        }
        match Step::of(record, symbols) {
            Step::Call => called += 1,
            Step::Return if called > 0 => called -= 1,
            Step::Return => return Some(index),
            Step::Lost => return None,
            Step::Within => {}
        }
    }
    None
}

/// True for a jump to the thunk by which a function returns.
fn is_to_thunk(record: &Record, symbols: &Symbols) -> bool {
    let is_thunk = |symbol: &Symbol| symbol.name.ends_with("return_thunk");
    symbols.find(record.to).is_some_and(is_thunk)
}

/// The effect of a record on the stack of calls.
enum Step {
    Call,
    Return,
    Within,
    /// The stack becomes another one.
    Lost,
}

impl Step {
    fn of(record: &Record, symbols: &Symbols) -> Step {
        let leads_to = |is: fn(&Symbol) -> bool| symbols.find(record.to).is_some_and(is);
        match record.kind {
            // The return thunks for SRSO drop the frame of this call.
            Kind::Call if leads_to(|symbol| symbol.name.ends_with("safe_ret")) => Step::Within,
            _ if hit::switches_tasks(record, symbols) => Step::Lost,
            Kind::Call | Kind::IndCall => Step::Call,
            Kind::Ret => Step::Return,
            Kind::Syscall => Step::Lost,
            _ => Step::Within,
        }
    }
}

/// The code that a call of the function runs.
struct Bodies<'a> {
    function: &'a Symbol,
    replacement: Option<&'a Symbol>,
}

impl Bodies<'_> {
    fn contain(&self, address: u64) -> bool {
        is_in(self.function, address) || self.replacement.is_some_and(|body| is_in(body, address))
    }

    fn is_replacement(&self, address: u64) -> bool {
        self.replacement.is_some_and(|body| body.start == address)
    }
}

/// Splits a hit into its entry and its exit, and checks that the program ran only where expected.
fn function_parts(
    records: &[Record],
    symbols: &Symbols,
    reply: &TriggerReply,
    hit: usize,
    window: &RangeInclusive<usize>,
) -> Result<Vec<Part>, TriggerError> {
    let (call, back) = (*window.start(), *window.end());
    let function = &reply.function;
    let shape = |what| TriggerError::Shape { hit, what };
    // A live patch goes on in another function than the called one.
    let bodies = &Bodies { function, replacement: reply.replacement.as_ref() };
    let inside = |address| bodies.contain(address);
    let site = call + 1;
    let leaves = |r: &Record| inside(r.from) && !inside(r.to);
    if !leaves(&records[site])
        || !is_in(function, records[site].from)
        || records[site].from - function.start >= SITE
    {
        return Err(shape("the function's first branch is not that of its entry site"));
    }
    if let Some(parts) = returned_parts(records, symbols, function, site, back) {
        let parts = parts.map_err(shape)?;
        require_points(records, reply, hit, &parts)?;
        if parts.len() > 1 && !reply.points.contains(&Point::Exit) {
            return Err(shape("it returned to no caller, and no probe of returns is there"));
        }
        account(records, bodies, hit, window.clone(), 0..0, &parts)?;
        return Ok(parts);
    }
    let comes_back = |site: usize| {
        (site + 1..back)
            .find(|&i| inside(records[i].to))
            .filter(|&body| {
                let to = records[body].to;
                is_behind(records[site].from, to) || bodies.is_replacement(to)
            })
            .ok_or_else(|| shape("the tracer did not come back behind the function's entry site"))
    };
    let first = comes_back(site)?;
    // On arm64 a kprobe's breakpoint may stand before ftrace's site, some instructions apart. If
    // the function has both, both belong to the entry.
    let next = &records[first + 1];
    let is_second = records[site].kind == Kind::Int
        && next.kind == Kind::Call
        && leaves(next)
        && is_in(function, next.from)
        && next.from - function.start < SITE;
    let again = is_second.then_some(first + 1);
    let body = again.map_or(Ok(first), comes_back)?;
    if bodies.replacement.is_some() && !bodies.is_replacement(records[body].to) {
        return Err(shape("the live patch did not lead to its own function"));
    }
    let mut parts = vec![Part { point: Point::Entry, records: site..=body, again, at_site: true }];

    let last = (body + 1..=back)
        .rfind(|&i| inside(records[i].from))
        .ok_or_else(|| shape("nothing leaves the function's body"))?;
    // Untraced, it returns through the same thunk.
    let ret = end(records, symbols, last, back).ok_or_else(|| {
        shape("the function ends with a jump to another one, which did not return to the caller")
    })?;
    if ret < back {
        let records = ret..=back;
        parts.push(Part { point: Point::Exit, records, again: None, at_site: false });
    }
    require_points(records, reply, hit, &parts)?;
    // Addresses do not tell the function's own calls from the tracer. A leaf function makes none:
    // only its return leaves it.
    let returns = ret == last || is_to_thunk(&records[last], symbols);
    let is_leaf = returns && (body + 1..=back).find(|&i| leaves(&records[i])) == Some(last);
    if is_leaf {
        account(records, bodies, hit, window.clone(), last..ret, &parts)?;
    }
    Ok(parts)
}

/// Checks that the program ran once at each of its points, and nowhere else.
fn require_points(
    records: &[Record],
    reply: &TriggerReply,
    hit: usize,
    parts: &[Part],
) -> Result<(), TriggerError> {
    for point in [Point::Entry, Point::Exit] {
        let window = parts.iter().find(|part| part.point == point).map(|part| part.records.clone());
        let runs =
            window.map_or(0, |w| records[w].iter().filter(|r| enters(&reply.program, r)).count());
        let expected = usize::from(reply.points.contains(&point));
        if runs != expected {
            return Err(TriggerError::Misplaced { hit, point, found: runs, expected });
        }
    }
    Ok(())
}

/// Checks that every instruction from the call to the return is in the function, in the thunk of
/// its return, or counted.
fn account(
    records: &[Record],
    bodies: &Bodies,
    hit: usize,
    whole: RangeInclusive<usize>,
    thunk: Range<usize>,
    parts: &[Part],
) -> Result<(), TriggerError> {
    let (mut total, mut inside) = (0, 0);
    for index in *whole.start()..*whole.end() {
        let more = records[index + 1].instructions;
        total += more;
        if bodies.contain(records[index].to) || thunk.contains(&index) {
            inside += more;
        }
    }
    let cost: u32 = parts.iter().map(|part| part.instructions(records)).sum();
    match total - inside == cost {
        true => Ok(()),
        false => Err(TriggerError::Unaccounted { hit, total, inside, cost }),
    }
}

/// Finds the hits around each run of the program: from the tracepoint's function and back into it.
fn tracepoint_hits(
    records: &[Record],
    reply: &TriggerReply,
) -> Result<Vec<RangeInclusive<usize>>, TriggerError> {
    let inside = |address| is_in(&reply.function, address);
    let runs = (0..records.len()).filter(|&i| enters(&reply.program, &records[i]));
    let window = |(hit, run): (usize, usize)| {
        let shape = |what| TriggerError::Shape { hit, what };
        let from = (0..run)
            .rfind(|&i| inside(records[i].from) && !inside(records[i].to))
            .ok_or_else(|| shape("nothing leaves the tracepoint's function before the program"))?;
        let to = (run..records.len())
            .find(|&i| inside(records[i].to))
            .ok_or_else(|| shape("nothing comes back to the tracepoint's function"))?;
        let whole = from..=to;
        let ran = records[whole.clone()].iter().filter(|r| enters(&reply.program, r)).count();
        if ran != 1 {
            return Err(TriggerError::Misplaced {
                hit,
                point: Point::Entry,
                found: ran,
                expected: 1,
            });
        }
        Ok(whole)
    };
    runs.enumerate().map(window).collect()
}

fn named(part: &Part, records: &[Record], symbols: &Symbols) -> TriggerPart {
    let window = &records[part.records.clone()];
    let record = |(index, record): (usize, &Record)| TriggerRecord {
        from: symbols.place(record.from),
        to: symbols.place(record.to),
        kind: record.kind,
        instructions: part.before(index, records),
    };
    // The entry's first branch replaces a no-op of the function. The exit's is its own `ret`.
    let own = usize::from(part.point == Point::Exit);
    let accesses = part.accesses(records);
    TriggerPart {
        point: part.point,
        instructions: part.instructions(records),
        branches: (window.len() - own) as u32,
        reads: accesses.map(|of| of.reads),
        writes: accesses.map(|of| of.writes),
        records: part.records.clone().zip(window).map(record).collect(),
    }
}

fn digest(parts: &[TriggerPart]) -> String {
    let lines = parts.iter().flat_map(|part| {
        part.records.iter().map(|record| {
            let line = symbolic::line(record.kind, &record.from, &record.to);
            format!("{} {line} {}", part.point, record.instructions)
        })
    });
    symbolic::digest_lines(lines)
}
