// SPDX-License-Identifier: MIT OR Apache-2.0
//! Copies a `vmlinux` without the parts that nothing here reads.

use super::{Vmlinux, VmlinuxError, io_error};
use object::{Object, ObjectSection, SectionFlags, elf};
use std::{fs::File, ops::Range, os::unix::fs::FileExt, path::Path};

/// The debug sections that source lines need.
const LINES: [&str; 10] = [
    ".debug_abbrev",
    ".debug_addr",
    ".debug_aranges",
    ".debug_info",
    ".debug_line",
    ".debug_line_str",
    ".debug_ranges",
    ".debug_rnglists",
    ".debug_str",
    ".debug_str_offsets",
];

impl Vmlinux {
    /// Copies code, symbols and source lines. All else, like the kernel's data, becomes a hole, so
    /// that the offsets in the file stay valid.
    pub fn keep(&self, to: &Path) -> Result<(), VmlinuxError> {
        let bytes = &self.bytes;
        let unread = unread(&self.elf()?);
        let copy = File::create_new(to).map_err(io_error("write", to))?;
        copy.set_len(bytes.len() as u64).map_err(io_error("write", to))?;
        for range in between(unread, bytes.len() as u64) {
            let piece = &bytes[range.start as usize..range.end as usize];
            copy.write_all_at(piece, range.start).map_err(io_error("write", to))?;
        }
        Ok(())
    }
}

/// The sections that nothing reads.
fn unread(elf: &object::File<'_>) -> Vec<Range<u64>> {
    let is_read = |section: &object::Section<'_, '_>| {
        let name = section.name().unwrap_or_default();
        let SectionFlags::Elf { sh_flags } = section.flags() else { return true };
        let has = |flag: u32| sh_flags & u64::from(flag) != 0;
        match name.starts_with(".debug_") {
            true => LINES.contains(&name),
            false => has(elf::SHF_EXECINSTR) || !has(elf::SHF_ALLOC),
        }
    };
    let range = |(offset, size): (u64, u64)| offset..offset.saturating_add(size);
    elf.sections()
        .filter(|section| !is_read(section))
        .filter_map(|section| section.file_range().map(range))
        .collect()
}

/// The parts of a file of this length between these ranges. No byte is in two of them, however the
/// ranges overlap.
fn between(mut ranges: Vec<Range<u64>>, length: u64) -> Vec<Range<u64>> {
    ranges.sort_unstable_by_key(|range| range.start);
    ranges.push(length..length);
    let mut between = Vec::new();
    let mut at = 0;
    for range in ranges {
        let end = range.start.min(length);
        if at < end {
            between.push(at..end);
        }
        at = at.max(range.end);
    }
    between
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_each_byte_between_ranges_once() {
        for (ranges, expected) in [
            (vec![], vec![(0, 10)]),
            (vec![(4, 6), (2, 3)], vec![(0, 2), (3, 4), (6, 10)]),
            (vec![(2, 8), (3, 4), (5, 9)], vec![(0, 2), (9, 10)]),
            (vec![(5, u64::MAX), (2, 3)], vec![(0, 2), (3, 5)]),
            (vec![(0, 10), (20, 30)], vec![]),
        ] {
            let all = ranges.iter().map(|&(start, end)| start..end).collect();
            let found: Vec<_> = between(all, 10).iter().map(|one| (one.start, one.end)).collect();
            assert_eq!(found, expected, "{ranges:?}");
        }
    }
}
