// SPDX-License-Identifier: GPL-2.0-or-later
//! A cache or TLB: sets of tags that replace their least recently used. Pure: independent of QEMU.

use tramplab_protocol::estimate::Shape;

/// A tag of no line.
const EMPTY: u64 = u64::MAX;

pub struct Sets {
    ways: usize,
    count: u64,
    /// The tags of one set after the other, each set's newest first.
    tags: Vec<u64>,
}

impl Sets {
    pub fn new(shape: Shape) -> Sets {
        let (entries, ways) = (shape.entries as usize, shape.ways as usize);
        Sets { ways, count: (entries / ways) as u64, tags: vec![EMPTY; entries] }
    }

    /// Returns true if the tag was there. It is now.
    #[inline]
    pub fn touch(&mut self, tag: u64) -> bool {
        let index = match self.count.is_power_of_two() {
            true => tag & (self.count - 1),
            false => tag % self.count,
        };
        let start = index as usize * self.ways;
        let set = &mut self.tags[start..start + self.ways];
        if set[0] == tag {
            return true;
        }
        let found = set.iter().position(|&other| other == tag);
        let last = found.unwrap_or(self.ways - 1);
        set.copy_within(0..last, 1);
        set[0] = tag;
        found.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// A list of all tags by their last use.
        #[test]
        fn holds_what_a_naive_model_holds(
            (sets, ways) in (1..9_u32, 1..5_u32),
            tags in prop::collection::vec(0..40_u64, 0..300),
        ) {
            let mut found = Sets::new(Shape { entries: sets * ways, ways });
            let mut naive: Vec<u64> = Vec::new();
            for tag in tags {
                let of_set = |other: &&u64| **other % u64::from(sets) == tag % u64::from(sets);
                let newest = naive.iter().rev().filter(of_set).take(ways as usize);
                let expected = newest.into_iter().any(|&other| other == tag);
                prop_assert_eq!(found.touch(tag), expected);
                naive.retain(|&other| other != tag);
                naive.push(tag);
            }
        }
    }
}
