// SPDX-License-Identifier: GPL-2.0-or-later
//! A prefetcher of streams: after two neighbouring lines, one after the other, the next one of the
//! same page comes in time. Pure: independent of QEMU.

/// Pages that are watched, by the lower bits of their numbers.
const WATCHED: usize = 32;
/// Lines of a page of 4 KiB.
const LINES: u64 = 64;

pub struct Streams {
    /// The latest line of each page.
    latest: [u64; WATCHED],
}

impl Default for Streams {
    fn default() -> Streams {
        Streams { latest: [u64::MAX - 1; WATCHED] }
    }
}

impl Streams {
    /// The line that an access brings besides its own.
    #[inline]
    pub fn ahead(&mut self, line: u64) -> Option<u64> {
        let latest = &mut self.latest[(line / LINES) as usize % WATCHED];
        let before = std::mem::replace(latest, line);
        let next = match line {
            _ if line == before.wrapping_add(1) => line.wrapping_add(1),
            _ if line.wrapping_add(1) == before => line.wrapping_sub(1),
            _ => return None,
        };
        (next / LINES == line / LINES).then_some(next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn follows_streams_of_both_directions_to_the_end_of_their_page() {
        let mut streams = Streams::default();
        let mut ahead = |lines: &[u64]| -> Vec<Option<u64>> {
            lines.iter().map(|&line| streams.ahead(line)).collect()
        };
        assert_eq!(ahead(&[60, 61, 61, 62, 63, 64]), [None, Some(62), None, Some(63), None, None]);
        assert_eq!(ahead(&[130, 129, 128, 127]), [None, Some(128), None, None]);
        // Streams of other pages do not disturb each other, and jumps are none.
        assert_eq!(ahead(&[640, 1280, 641, 1281, 643]), [None, None, Some(642), Some(1282), None]);
        assert_eq!(ahead(&[0, u64::MAX]), [None, None]);
    }
}
