// SPDX-License-Identifier: GPL-2.0-or-later
//! One vCPU's branch records: what its registers hold, and what enters the ring. Pure.

use super::{
    aarch64::brbe,
    family::{Family, Filter, MOST_DEPTH, MOST_KEPT, Part, Register, Shown},
};
use crate::{
    flow::{Block, Stretch},
    recorder::{Noted, Recorder, Selected, Selection},
};
use std::{cell::Cell, iter};
use tramplab_protocol::trace::{Kind, Record};

/// Records that a recorder keeps beyond the ring: it may void as many as it has open interrupts.
const SPARE: usize = 128;

/// The registers, as a file keeps them between QEMUs. Those of a ring that is on are as old as its
/// last read, or as the moment when it was turned on.
#[derive(Clone, Debug)]
#[repr(C)]
pub struct Registers {
    kept: [u64; MOST_KEPT],
    /// Newest first.
    ring: [Entry; MOST_DEPTH],
    /// The slot of the newest entry.
    top: u64,
}

/// An entry of the ring. Any bytes are valid: they come from a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
struct Entry {
    from: u64,
    to: u64,
    /// The kind's number and one; 0 for an entry that was never written.
    kind: u64,
    /// The family's third register, where the kind does not tell it.
    info: u64,
}

impl Entry {
    fn kind(self) -> Option<Kind> {
        Kind::from_byte(u8::try_from(self.kind.checked_sub(1)?).ok()?)
    }

    fn shown(self) -> Shown {
        let Entry { from, to, info, .. } = self;
        Shown { from, to, kind: self.kind(), info }
    }
}

/// A filter, and the entries that are left: in call-stack mode a ring that was full has fewer.
struct Selecting {
    filter: Filter,
    depth: usize,
    live: Cell<usize>,
}

impl Selection for Selecting {
    #[inline]
    fn of(&self, from: u64, to: u64, stretch: Stretch) -> Selected {
        let selected = self.filter.of(from, to, stretch);
        match selected {
            Selected::Kept => self.live.set(self.depth.min(self.live.get() + 1)),
            Selected::Dropped => {}
            Selected::Pops => self.live.set(self.live.get().saturating_sub(1)),
        }
        selected
    }

    #[inline]
    fn kept(&self, from: u64, to: u64, stretch: Stretch) -> (u64, u64, Stretch) {
        self.filter.kept(from, to, stretch)
    }
}

/// The ring and registers of a vCPU.
pub struct Ring<'b> {
    family: Family,
    depth: usize,
    registers: &'b mut Registers,
    /// None while the ring is off.
    recording: Option<Recording<'b>>,
}

struct Recording<'b> {
    recorder: Recorder<'b, Selecting>,
    /// Entries that the recorder began with.
    loaded: u64,
    /// The top at that time.
    top: u64,
    /// True if QEMU reported an interrupt or exception since the last block started.
    was_interrupted: bool,
}

impl<'b> Ring<'b> {
    /// `depth` is at most [`MOST_DEPTH`]. The ring may be on already.
    pub fn new(family: Family, depth: usize, registers: &'b mut Registers) -> Ring<'b> {
        // A file may hold anything.
        registers.top %= depth as u64;
        let mut ring = Ring { family, depth, registers, recording: None };
        ring.turn();
        ring
    }

    pub fn is_on(&self) -> bool {
        self.recording.is_some()
    }

    /// Reads a register. None if the plugin does not play it.
    pub fn read(&mut self, number: u32) -> Option<u64> {
        Some(match self.family.register(number, self.depth)? {
            Register::Kept(place) => self.registers.kept[place],
            Register::Fixed(value) => value,
            Register::Top => {
                self.settle();
                self.registers.top
            }
            Register::Entry { slot, part } => {
                self.settle();
                let slot = slot + self.family.bank(&self.registers.kept);
                match slot < self.depth {
                    true => self.family.shown(part, self.entry(slot).shown()),
                    false => 0,
                }
            }
            Register::Empties | Register::Injects => return None,
        })
    }

    /// Writes a register, if the plugin plays it.
    pub fn write(&mut self, number: u32, value: u64) {
        match self.family.register(number, self.depth) {
            None | Some(Register::Fixed(_)) => return,
            Some(Register::Kept(place)) => {
                self.registers.kept[place] = value;
                if self.family.resets(number) {
                    self.empty();
                }
            }
            Some(Register::Empties) => self.empty(),
            Some(Register::Injects) => {
                self.stop();
                let Shown { from, to, kind, info } = self.family.injected(&self.registers.kept);
                let ring = &mut self.registers.ring[..self.depth];
                ring.rotate_right(1);
                ring[0] = Entry { from, to, kind: kind.map_or(0, |kind| kind as u64 + 1), info };
            }
            Some(Register::Top) => {
                self.stop();
                // Slots keep their entries.
                let top = value as usize % self.depth;
                let by = (top + self.depth - self.registers.top as usize) % self.depth;
                self.registers.ring[..self.depth].rotate_right(by);
                self.registers.top = top as u64;
            }
            Some(Register::Entry { slot, part }) => {
                self.stop();
                let family = self.family;
                let entry = self.entry(slot);
                match part {
                    Part::From => entry.from = value,
                    Part::To => entry.to = value,
                    Part::Info => {}
                }
                // Drivers clear entries, try if they exist, and restore those of a thread.
                let written = family.written(part, value).or(entry.kind()).unwrap_or(Kind::Jump);
                let is_clear = (entry.from, entry.to) == (0, 0);
                entry.kind = if is_clear { 0 } else { written as u64 + 1 };
            }
        }
        self.turn();
    }

    fn empty(&mut self) {
        self.recording = None;
        self.registers.ring = [Entry::default(); MOST_DEPTH];
    }

    fn entry(&mut self, slot: usize) -> &mut Entry {
        let age = match self.family.has_top() {
            true => (self.registers.top as usize + self.depth - slot) % self.depth,
            false => slot,
        };
        &mut self.registers.ring[age]
    }

    /// Starts or stops recording, as the registers say.
    fn turn(&mut self) {
        let kept = &self.registers.kept;
        let (is_on, filter) = (self.family.is_on(kept), self.family.filter(kept));
        let goes_on = |recording: &Recording| recording.recorder.selection().filter == filter;
        if is_on && self.recording.as_ref().is_some_and(goes_on) {
            return;
        }
        self.stop();
        if is_on {
            let valid = self.registers.ring.iter().rev().filter_map(|e| Some((e, e.kind()?)));
            let live = Cell::new(valid.clone().count());
            let (loaded, top) = (live.get() as u64, self.registers.top);
            let selecting = Selecting { filter, depth: self.depth, live };
            let mut recorder = Recorder::selecting(selecting, self.depth + SPARE, 0);
            for (entry, kind) in valid {
                let packed = self.family.packed(entry.info);
                recorder.keep(entry.from, entry.to, Stretch::new(Some(kind), packed));
            }
            self.recording = Some(Recording { recorder, loaded, top, was_interrupted: false });
        }
    }

    fn stop(&mut self) {
        self.settle();
        self.recording = None;
    }

    /// Brings the registers up to date.
    fn settle(&mut self) {
        let Some(Recording { recorder, loaded, top, .. }) = &self.recording else { return };
        let entry = |Record { from, to, kind, instructions, .. }| Entry {
            from,
            to,
            kind: kind as u64 + 1,
            info: self.family.unpacked(instructions),
        };
        let live = recorder.selection().live.get();
        let newest = recorder.newest_first().take(live).map(entry);
        let padded = newest.chain(iter::repeat(Entry::default()));
        for (to, entry) in self.registers.ring.iter_mut().zip(padded) {
            *to = entry;
        }
        let moved = recorder.recorded().wrapping_sub(*loaded) as i64;
        self.registers.top = (*top as i64 + moved).rem_euclid(self.depth as i64) as u64;
    }

    /// A block starts while the ring is on.
    pub fn block(&mut self, block: &'b Block, noted: impl Fn() -> Noted) {
        if let Some(Recording { recorder, was_interrupted, .. }) = &mut self.recording {
            *was_interrupted = false;
            recorder.block(block, noted);
        }
    }

    /// The filter of BRBE, and if an interrupt or exception leads to the next block. None while the
    /// ring is off.
    pub fn brbe(&self) -> Option<(&brbe::Filter, bool)> {
        let Recording { recorder, was_interrupted, .. } = self.recording.as_ref()?;
        match &recorder.selection().filter {
            Filter::Brbe(filter) => Some((filter, *was_interrupted)),
            Filter::X86(_) => None,
        }
    }

    /// QEMU reported an interrupt or exception.
    pub fn discontinuity(&mut self, from: u64, to: u64) {
        if let Some(Recording { recorder, was_interrupted, .. }) = &mut self.recording {
            *was_interrupted = true;
            recorder.discontinuity(from, to);
        }
    }

    /// Replaces the blocks that it still needs.
    pub fn move_blocks(&mut self, moved: impl Fn(&Block) -> &'b Block) {
        if let Some(Recording { recorder, .. }) = &mut self.recording {
            recorder.move_blocks(moved);
        }
    }
}
