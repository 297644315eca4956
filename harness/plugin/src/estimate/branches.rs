// SPDX-License-Identifier: GPL-2.0-or-later
//! Predictors of returns, indirect and conditional branches. Pure: independent of QEMU.

use rustc_hash::FxHashMap;
use std::collections::VecDeque;

/// Branches whose last target is kept. A kernel that attaches has a thousand.
const MOST_TARGETS: usize = 1 << 16;
/// Two-bit counters of conditional branches, and the outcomes that choose one (S. McFarling,
/// "Combining Branch Predictors", gshare).
const HISTORY: u32 = 14;

pub struct Branches {
    /// The addresses behind calls that have not returned, the newest last.
    returns: VecDeque<u64>,
    depth: usize,
    last_target: bool,
    /// The last target of each return and indirect branch, by its address.
    targets: FxHashMap<u64, u64>,
    counters: Vec<u8>,
    history: u64,
}

impl Branches {
    pub fn new(depth: u32, last_target: bool) -> Branches {
        Branches {
            returns: VecDeque::new(),
            depth: depth as usize,
            last_target,
            targets: FxHashMap::default(),
            // Weakly not taken.
            counters: vec![1; 1 << HISTORY],
            history: 0,
        }
    }

    /// A call to `to` that returns to `after`. CPUs know a call of the next instruction as a way to
    /// read the program counter (H. Wong, "Microbenchmarking Return Address Branch Prediction").
    pub fn call(&mut self, to: u64, after: u64) {
        if to == after {
            return;
        }
        // A full stack overwrites its oldest entry.
        if self.returns.len() == self.depth {
            self.returns.pop_front();
        }
        self.returns.push_back(after);
    }

    /// Returns true if the return was predicted.
    pub fn ret(&mut self, from: u64, to: u64) -> bool {
        let is_last = self.is_last(from, to);
        match self.returns.pop_back() {
            Some(after) => after == to,
            None => self.last_target && is_last,
        }
    }

    /// Returns true if the branch went to `to` the last time, as predictors of indirect branches
    /// expect.
    pub fn is_last(&mut self, from: u64, to: u64) -> bool {
        // A hostile guest has as many branches as it likes.
        if self.targets.len() >= MOST_TARGETS && !self.targets.contains_key(&from) {
            self.targets.clear();
        }
        self.targets.insert(from, to) == Some(to)
    }

    /// Returns true if the outcome was predicted.
    #[inline]
    pub fn conditional(&mut self, from: u64, is_taken: bool) -> bool {
        const MASK: u64 = (1 << HISTORY) - 1;
        let counter =
            &mut self.counters[((from >> 1 ^ from >> HISTORY ^ self.history) & MASK) as usize];
        let predicted = *counter >= 2;
        *counter = if is_taken { (*counter + 1).min(3) } else { counter.saturating_sub(1) };
        self.history = (self.history << 1 | u64::from(is_taken)) & MASK;
        predicted == is_taken
    }
}
