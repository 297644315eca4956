// SPDX-License-Identifier: MIT OR Apache-2.0
//! From addresses to source lines, by the debug information.

use super::{LONGEST_NAME, Vmlinux, VmlinuxError, functions};
use crate::isolated;
use addr2line::{
    Context,
    gimli::{self, EndianSlice, LittleEndian},
};
use object::{Object, ObjectSection};
use std::collections::HashMap;
use tramplab_model::code::SourceLine;

type Slice<'a> = EndianSlice<'a, LittleEndian>;

/// Inlined functions of one address that are kept. Real kernels have a dozen at most.
const DEEPEST: usize = 64;

/// Finds source lines in one `vmlinux`.
pub(super) struct Lines<'a> {
    context: Context<Slice<'a>>,
    /// The addresses of functions by name. None for a name of several static functions.
    symbols: HashMap<String, Option<u64>>,
    /// Paths in the debug information begin with one of these: the sources, the build folder.
    roots: Vec<String>,
}

/// A place in the code: a symbol and an offset.
pub type Wanted<'a> = (&'a str, u64);

impl Vmlinux {
    /// Returns the source lines of each place, as [`Lines::find`] does.
    pub fn lines_of(&self, wanted: &[Wanted]) -> Result<Vec<Vec<SourceLine>>, VmlinuxError> {
        let find = || {
            let Some(lines) = self.lines()? else { return Ok(vec![Vec::new(); wanted.len()]) };
            let find = |&(symbol, offset): &Wanted| {
                let start = lines.address(symbol);
                start.map_or_else(Vec::new, |start| lines.find(start.wrapping_add(offset)))
            };
            Ok(wanted.iter().map(find).collect())
        };
        // Errors cross as text.
        let found = isolated::run(|| find().map_err(|error: VmlinuxError| error.to_string()));
        let died = |source| VmlinuxError::Isolated { path: self.path.clone(), source };
        found.map_err(died)?.map_err(VmlinuxError::Told)
    }

    /// Returns None if the file has no debug information.
    pub(super) fn lines(&self) -> Result<Option<Lines<'_>>, VmlinuxError> {
        let elf = self.elf()?;
        if elf.section_by_name(".debug_info").is_none_or(|section| section.size() == 0) {
            return Ok(None);
        }
        let error = |source| VmlinuxError::Dwarf { path: self.path.clone(), source };
        // Compressed sections are empty here, which gives no lines.
        let section = |id: gimli::SectionId| -> Result<Slice<'_>, gimli::Error> {
            let bytes = elf.section_by_name(id.name()).and_then(|section| section.data().ok());
            Ok(EndianSlice::new(bytes.unwrap_or_default(), LittleEndian))
        };
        let dwarf = gimli::Dwarf::load(section).map_err(error)?;
        let roots = roots(&dwarf);
        let mut symbols: HashMap<String, Option<u64>> = HashMap::new();
        for function in functions(&elf, self.bytes.len()) {
            let only = Some(function.address);
            let known = symbols.entry(function.name.to_owned()).or_insert(only);
            if *known != only {
                *known = None;
            }
        }
        Ok(Some(Lines { context: Context::from_dwarf(dwarf).map_err(error)?, symbols, roots }))
    }
}

impl Lines<'_> {
    /// Returns the only address of a symbol. None if there is no such symbol, or if several
    /// functions have the name.
    pub(super) fn address(&self, symbol: &str) -> Option<u64> {
        *self.symbols.get(symbol)?
    }

    /// Returns the lines of an address, the innermost inlined function first. Empty if the debug
    /// information is silent or broken there.
    pub(super) fn find(&self, address: u64) -> Vec<SourceLine> {
        let Ok(mut frames) = self.context.find_frames(address).skip_all_loads() else {
            return Vec::new();
        };
        let mut lines = Vec::new();
        while lines.len() < DEEPEST
            && let Ok(Some(frame)) = frames.next()
        {
            let name = frame.function.as_ref().and_then(|function| function.raw_name().ok());
            let place = frame.location.and_then(|location| Some((location.file?, location.line)));
            let (Some(function), Some((file, line))) = (name, place) else { continue };
            let (function, file) = (bounded(&function), bounded(self.relative(file)));
            lines.push(SourceLine { function, file, line: line.unwrap_or(0) });
        }
        lines
    }

    /// Shortens a path to one below the sources. Where they were does not matter, and names a user.
    fn relative<'f>(&self, file: &'f str) -> &'f str {
        let below = self.roots.iter().find_map(|root| file.strip_prefix(root.as_str()));
        below.unwrap_or(file).trim_start_matches("./")
    }
}

fn bounded(text: &str) -> String {
    text.chars().take(LONGEST_NAME).collect()
}

/// Finds the folders of the sources and of the build, as the compiler was told them. Every kernel
/// has `init/main.c`.
fn roots(dwarf: &gimli::Dwarf<Slice<'_>>) -> Vec<String> {
    let mut units = dwarf.units();
    while let Ok(Some(header)) = units.next() {
        let Ok(unit) = dwarf.unit(header) else { continue };
        let text = |slice: Option<Slice<'_>>| {
            String::from_utf8_lossy(slice.map_or(&[], |slice| slice.slice())).into_owned()
        };
        let name = text(unit.name);
        let Some(sources) = name.strip_suffix("init/main.c") else { continue };
        let roots = [sources.to_owned(), text(unit.comp_dir) + "/"];
        return roots.into_iter().filter(|root| root.len() > 1).collect();
    }
    Vec::new()
}
