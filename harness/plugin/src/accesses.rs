// SPDX-License-Identifier: GPL-2.0-or-later
//! Data accesses, counted in one word: reads in the lower half, writes in the upper half. Generated
//! code adds to it. Pure: independent of QEMU.
//!
//! The word grows as long as QEMU runs. A carry out of the lower half is no error: the difference
//! of two words has both numbers, as long as each is below 2³².

use tramplab_protocol::trace::Accesses;

/// One read, and one write.
pub const READ: u64 = 1;
pub const WRITE: u64 = 1 << 32;

pub fn unpacked(word: u64) -> Accesses {
    Accesses { reads: word as u32, writes: (word >> 32) as u32 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_survive_a_carry() {
        let before = WRITE * 7 + READ * u64::from(u32::MAX);
        let after = before.wrapping_add(READ * 3 + WRITE * 2);
        assert_eq!(unpacked(after.wrapping_sub(before)), Accesses { reads: 3, writes: 2 });
        let last = u64::MAX;
        let wrapped = last.wrapping_add(READ);
        assert_eq!(unpacked(wrapped.wrapping_sub(last)), Accesses { reads: 1, writes: 0 });
    }
}
