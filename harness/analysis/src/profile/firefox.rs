// SPDX-License-Identifier: MIT OR Apache-2.0
//! Firefox Profiler's processed profile format.
//!
//! The format is made for samples in time. Here each stack is a sample whose weight is its amount.
//! Stacks follow each other in the order of their names, and take up time by their amounts.

use super::{Frame, Place, Space, Subject, Tree, Unit};
use fxprof_processed_profile as fx;
use std::{
    collections::HashMap,
    io::{self, Write},
    time::Duration,
};

/// The most of one stack: hours of instructions. A stranger's file may say more, and would take
/// all memory.
const MOST: u64 = 1000 * i32::MAX as u64;

/// Writes a process for each side, with a thread for each command.
pub fn write<const SIDES: usize>(
    subjects: [&Subject; SIDES],
    tree: &Tree<SIDES>,
    out: &mut impl Write,
) -> io::Result<()> {
    let began = fx::ReferenceTimestamp::from_duration_since_unix_epoch(Duration::ZERO);
    let interval = fx::SamplingInterval::from_millis(1);
    let mut profile = fx::Profile::new("tramplab", began, interval);
    // All names are known.
    profile.set_symbolicated(true);
    let categories = Categories::new(&mut profile);
    for (side, subject) in subjects.into_iter().enumerate() {
        let name = format!("{}, {}: {}", subject.cell, subject.phases(), subject.counted);
        let id = u32::try_from(side).expect("two sides at most") + 1;
        let process = profile.add_process(&name, id, at(0));
        let mut writer = Writer {
            profile: &mut profile,
            categories: &categories,
            process,
            width: width(subject.unit),
            threads: HashMap::new(),
        };
        writer.stacks(tree, side);
    }
    serde_json::to_writer(&mut *out, &profile)?;
    writeln!(out)
}

/// The time of one, in nanoseconds. An instruction takes as long as by the exact clock.
fn width(unit: Unit) -> u64 {
    match unit {
        Unit::Instructions | Unit::Nanoseconds | Unit::EstimatedCycles => 1,
        Unit::Samples => 1_000_000,
    }
}

fn at(nanoseconds: u64) -> fx::Timestamp {
    fx::Timestamp::from_nanos_since_reference(nanoseconds)
}

struct Categories {
    kernel: fx::CategoryHandle,
    bpf: fx::CategoryHandle,
    module: fx::CategoryHandle,
    user: fx::CategoryHandle,
    interrupt: fx::CategoryHandle,
}

impl Categories {
    fn new(profile: &mut fx::Profile) -> Categories {
        let mut category = |name, colour| profile.add_category(name, colour);
        Categories {
            kernel: category("Kernel", fx::CategoryColor::Orange),
            bpf: category("BPF", fx::CategoryColor::Green),
            module: category("Module", fx::CategoryColor::Purple),
            user: category("User", fx::CategoryColor::Yellow),
            interrupt: category("Interrupt", fx::CategoryColor::LightBlue),
        }
    }

    fn of(&self, frame: &Frame) -> fx::CategoryHandle {
        match &frame.function.space {
            _ if frame.interrupt => self.interrupt,
            Space::Kernel => self.kernel,
            Space::Module(name) if name == "bpf" => self.bpf,
            Space::Module(_) => self.module,
            Space::User => self.user,
        }
    }
}

struct Writer<'a> {
    profile: &'a mut fx::Profile,
    categories: &'a Categories,
    process: fx::ProcessHandle,
    width: u64,
    threads: HashMap<String, Thread>,
}

/// A thread, and the end of its last stack in nanoseconds.
struct Thread {
    handle: fx::ThreadHandle,
    end: u64,
}

impl Writer<'_> {
    fn stacks<const SIDES: usize>(&mut self, tree: &Tree<SIDES>, side: usize) {
        // The stack that leads to the place.
        let mut above: Vec<fx::StackHandle> = Vec::new();
        for (depth, place) in tree.walk() {
            let Place { frame, own, .. } = tree.places[place as usize];
            let frame = &tree.frames[frame as usize];
            above.truncate(depth);
            let thread = self.thread(&frame.command);
            let info = fx::FrameInfo {
                frame: fx::Frame::Label(self.profile.intern_string(&frame.label())),
                category_pair: self.categories.of(frame).into(),
                flags: fx::FrameFlags::empty(),
            };
            let info = self.profile.intern_frame(thread, info);
            above.push(self.profile.intern_stack(thread, above.last().copied(), info));
            self.samples(&frame.command, above[depth], own[side]);
        }
    }

    /// Adds samples for an amount. The weight of one has 31 bits.
    fn samples(&mut self, command: &str, stack: fx::StackHandle, own: u64) {
        let thread = self.threads.get_mut(command).expect("its stack was made");
        let mut left = own.min(MOST);
        while left > 0 {
            let weight = i32::try_from(left).unwrap_or(i32::MAX);
            let part = u64::from(weight.unsigned_abs());
            let begin = thread.end;
            thread.end = begin.saturating_add(part.saturating_mul(self.width));
            // Without CPU time the profiler's graph of a thread would be empty. It has whole
            // microseconds.
            let busy = fx::CpuDelta::from_micros(thread.end / 1000 - begin / 1000);
            self.profile.add_sample(thread.handle, at(thread.end), Some(stack), busy, weight);
            left -= part;
        }
    }

    fn thread(&mut self, command: &str) -> fx::ThreadHandle {
        if let Some(thread) = self.threads.get(command) {
            return thread.handle;
        }
        let id = u32::try_from(self.threads.len()).expect("few threads") + 1;
        let handle = self.profile.add_thread(self.process, id, at(0), false);
        self.profile.set_thread_name(handle, command);
        self.threads.insert(command.to_owned(), Thread { handle, end: 0 });
        handle
    }
}
