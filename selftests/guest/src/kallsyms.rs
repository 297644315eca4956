// SPDX-License-Identifier: MIT OR Apache-2.0
//! The kernel's symbol table: resolves addresses to names and names to addresses.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::ops::Range;
use std::rc::Rc;
use std::thread;
use std::time::Duration;
use tramplab_protocol::message::Symbol;

const PATH: &str = "/proc/kallsyms";
/// Compilers' marks before a function (padding, type hashes). They never name a function that
/// starts at their address.
const MARKS: [&str; 2] = ["__pfx_", "__cfi_"];
/// The name of data after a function that the table hides.
const HIDDEN: &str = "hidden";
/// The longest function, in bytes. It bounds a symbol before a gap.
const LONGEST: u64 = 1 << 20;

#[derive(Debug, thiserror::Error)]
pub enum KallsymsError {
    #[error("failed to read {PATH}: {0}")]
    Read(#[from] std::io::Error),
    #[error("line {line} of {PATH} is not `address type name [module]`: `{text}`")]
    Line { line: usize, text: String },
    #[error("{PATH} hides the addresses from the agent (all are 0)")]
    Hidden,
    #[error(
        "{PATH} differed in each of {READINGS} readings: programs or modules come and go all the \
         time"
    )]
    Unsettled,
}

/// One line. Names stay in the text, which has megabytes.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Entry {
    address: u64,
    /// `nm`'s letter. Upper case means global.
    kind: u8,
    name: Range<usize>,
    /// Empty for the kernel proper.
    module: Range<usize>,
}

impl Entry {
    fn is_text(&self) -> bool {
        matches!(self.kind, b't' | b'T' | b'w' | b'W')
    }
}

/// Consecutive lines.
#[derive(Debug, PartialEq, Eq)]
struct Lines {
    text: String,
    /// By address. Entries of one address start with the best name.
    entries: Vec<Entry>,
}

/// A snapshot of the table: programs and trampolines come and go.
#[derive(Debug)]
pub struct Kallsyms {
    /// The kernel's own symbols, which never change. All tables of a boot share them.
    own: Rc<Lines>,
    /// Offset of the last own lines, which identify the place in the file.
    last: usize,
    /// The following lines: of modules, programs, trampolines.
    rest: Lines,
}

/// Number of last lines. After the very last one, the file would already have looked up the first
/// symbol of a module and keep it.
const LAST: usize = 2;

/// How often the lines after the kernel's own are read until two readings agree.
const READINGS: u32 = 10;
/// The pause after two different readings. It doubles each time, five seconds in all.
const SHORTEST_PAUSE: Duration = Duration::from_millis(10);

/// The open file, positioned at the kernel's own last lines. Reading on gives the symbols of that
/// moment: the file keeps the number of the next record (fs/seq_file.c), not its contents.
#[derive(Debug)]
pub struct Rest(File);

impl Kallsyms {
    /// Reads the table. One of the symbols after the kernel's own may be missing, see [`settled`].
    pub fn read() -> Result<Kallsyms, KallsymsError> {
        Kallsyms::parse(std::fs::read_to_string(PATH)?)
    }

    /// Opens the file for reading a later moment's symbols. The kernel still formats all lines
    /// before them, which takes half a second under TCG.
    pub fn rest(&self) -> io::Result<Rest> {
        let mut file = File::open(PATH)?;
        file.seek(SeekFrom::Start(self.last as u64))?;
        Ok(Rest(file))
    }

    /// The table of this moment, from as many files as it takes.
    pub fn renewed(
        &self,
        mut next: impl FnMut() -> io::Result<Rest>,
    ) -> Result<Kallsyms, KallsymsError> {
        let read = || {
            let mut rest = String::new();
            next()?.0.read_to_string(&mut rest)?;
            Ok(rest)
        };
        let rest = settled(read, thread::sleep)?;
        match self.followed_by(&rest)? {
            Some(table) => Ok(table),
            None => Kallsyms::parse(settled(|| std::fs::read_to_string(PATH), thread::sleep)?),
        }
    }

    /// Returns none if `rest` does not begin with the lines that identify the place.
    fn followed_by(&self, rest: &str) -> Result<Option<Kallsyms>, KallsymsError> {
        let Some(new) = rest.strip_prefix(&self.own.text[self.last..]) else { return Ok(None) };
        let rest = Lines::parse(new.to_owned(), || self.own.count())?;
        Ok(Some(Kallsyms { own: Rc::clone(&self.own), last: self.last, rest }))
    }

    /// Adds functions that the table hides. The end of each gets a line too: what follows, such as
    /// a trampoline, is hidden as well and must not get its name.
    pub fn with(self, functions: &[Symbol]) -> Result<Kallsyms, KallsymsError> {
        let Kallsyms { own, last, rest } = self;
        let mut text = rest.text;
        for Symbol { name, module, start, end } in functions {
            let module = module.as_deref().unwrap_or(HIDDEN);
            text += &format!("{start:x} t {name}\t[{module}]\n{end:x} d {HIDDEN}\t[{module}]\n");
        }
        let rest = Lines::parse(text, || own.count())?;
        Ok(Kallsyms { own, last, rest })
    }

    pub fn parse(mut text: String) -> Result<Kallsyms, KallsymsError> {
        // Only lines of modules have a tab.
        let line_of = |at: usize| text[..at].rfind('\n').map_or(0, |end| end + 1);
        let rest = text.split_off(text.find('\t').map_or(text.len(), line_of));
        let own = Lines::parse(text, || 0)?;
        let rest = Lines::parse(rest, || own.count())?;
        if own.entries.iter().chain(&rest.entries).all(|entry| entry.address == 0) {
            return Err(KallsymsError::Hidden);
        }
        let lines = own.text.rmatch_indices('\n').map(|(at, _)| at + 1);
        let last = lines.skip(1).nth(LAST - 1).unwrap_or(0);
        Ok(Kallsyms { own: Rc::new(own), last, rest })
    }

    fn entries(&self) -> impl Iterator<Item = (&Lines, &Entry)> {
        [&*self.own, &self.rest]
            .into_iter()
            .flat_map(|lines| lines.entries.iter().map(move |entry| (lines, entry)))
    }

    /// The function that holds an address.
    pub fn resolve(&self, address: u64) -> Option<Symbol> {
        let (mut best, mut next): (Option<(&Lines, &Entry)>, u64) = (None, u64::MAX);
        for lines in [&*self.own, &self.rest] {
            let after = lines.entries.partition_point(|e| e.address <= address);
            // Data is a neighbour too: it ends the function before it.
            next = next.min(lines.entries.get(after).map_or(u64::MAX, |e| e.address));
            let Some(newest) = lines.entries[..after].last() else { continue };
            let first =
                &lines.entries[lines.entries.partition_point(|e| e.address < newest.address)];
            let better = |(than, other): (&Lines, &Entry)| {
                other
                    .address
                    .cmp(&first.address)
                    .then_with(|| lines.key(first).cmp(&than.key(other)))
                    .is_lt()
            };
            if best.is_none_or(better) {
                best = Some((lines, first));
            }
        }
        let (lines, entry) = best?;
        let start = entry.address;
        let end = next.min(start.saturating_add(LONGEST));
        let module = lines.module(entry);
        (entry.is_text() && address < end).then(|| Symbol {
            name: lines.name(entry).to_owned(),
            module: (!module.is_empty()).then(|| module.to_owned()),
            start,
            end,
        })
    }

    /// The addresses of all text symbols whose name has one address.
    pub fn unique_addresses(&self) -> HashMap<&str, u64> {
        self.unique_addresses_of(self.own.entries.len(), |_| true)
    }

    /// The same for about `count` names that `wanted` accepts.
    fn unique_addresses_of(
        &self,
        count: usize,
        wanted: impl Fn(&str) -> bool,
    ) -> HashMap<&str, u64> {
        let mut addresses: HashMap<&str, Option<u64>> = HashMap::with_capacity(count);
        let text = self.entries().filter(|(_, entry)| entry.is_text());
        let names = text.map(|(lines, entry)| (lines.name(entry), entry.address));
        for (name, address) in names.filter(|(name, _)| wanted(name)) {
            addresses.entry(name).and_modify(|address| *address = None).or_insert(Some(address));
        }
        addresses.into_iter().filter_map(|(name, address)| Some((name, address?))).collect()
    }

    /// The address of a text symbol. None if the symbol does not exist or is not unique.
    pub fn unique(&self, name: &str) -> Option<u64> {
        self.only(|lines, entry| entry.is_text() && lines.name(entry) == name)
    }

    /// The address of a unique symbol of the kernel proper. It may be data, which kernels without
    /// CONFIG_KALLSYMS_ALL do not list.
    pub fn of_kernel(&self, name: &str) -> Option<u64> {
        self.only(|lines, entry| entry.module.is_empty() && lines.name(entry) == name)
    }

    fn only(&self, is_meant: impl Fn(&Lines, &Entry) -> bool) -> Option<u64> {
        let mut found = self.entries().filter(|(lines, entry)| is_meant(lines, entry));
        let (_, entry) = found.next()?;
        found.next().is_none().then_some(entry.address)
    }

    /// The names of all functions at an address, best first.
    pub fn names_at(&self, address: u64) -> Vec<&str> {
        let mut names = Vec::new();
        for lines in [&*self.own, &self.rest] {
            let first = lines.entries.partition_point(|entry| entry.address < address);
            let at = lines.entries[first..].iter().take_while(|entry| entry.address == address);
            names.extend(at.filter(|entry| entry.is_text()).map(|entry| lines.name(entry)));
        }
        names
    }

    /// The addresses of the code that the kernel frees when it is up.
    pub fn init(&self) -> Range<u64> {
        let bound = |name| self.of_kernel(name);
        bound("_sinittext").zip(bound("_einittext")).map_or(0..0, |(start, end)| start..end)
    }

    /// The symbols whose names begin with one of some bytes, for look-ups of such names. Sorting
    /// all takes seconds under TCG.
    pub fn by_name(&self, initials: &[u8]) -> ByName<'_> {
        let is_meant = |name: &str| name.as_bytes().first().is_some_and(|b| initials.contains(b));
        let mut all: Vec<(&str, Named<'_>)> = self
            .entries()
            .filter(|(lines, entry)| is_meant(lines.name(entry)))
            .map(|(lines, entry)| {
                let module = Some(lines.module(entry)).filter(|module| !module.is_empty());
                let (address, is_text) = (entry.address, entry.is_text());
                (lines.name(entry), Named { address, is_text, module })
            })
            .collect();
        all.sort_unstable();
        ByName(all)
    }

    /// A function by name. It keeps that name even if its address has a better one.
    pub fn function(&self, name: &str) -> Option<Symbol> {
        self.functions(&[name]).remove(name)
    }

    /// A function of a module, unique there.
    pub fn function_of(&self, module: &str, name: &str) -> Option<Symbol> {
        let is_meant = |lines: &Lines, entry: &Entry| {
            entry.is_text() && lines.module(entry) == module && lines.name(entry) == name
        };
        let address = self.only(is_meant)?;
        Some(Symbol { name: name.to_owned(), ..self.resolve(address)? })
    }

    /// The functions among these that exist and are unique.
    pub fn functions(&self, names: &[&str]) -> HashMap<String, Symbol> {
        let addresses = self.unique_addresses_of(names.len(), |name| names.contains(&name));
        let symbol = |(name, address): (&str, u64)| {
            let name = name.to_owned();
            Some((name.clone(), Symbol { name, ..self.resolve(address)? }))
        };
        addresses.into_iter().filter_map(symbol).collect()
    }
}

/// A symbol of some name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Named<'a> {
    pub address: u64,
    pub is_text: bool,
    /// None: the kernel proper.
    pub module: Option<&'a str>,
}

/// Symbols, sorted by name.
#[derive(Debug)]
pub struct ByName<'a>(Vec<(&'a str, Named<'a>)>);

impl<'a> ByName<'a> {
    /// The symbols whose name begins with a text.
    fn beginning(&self, text: &str) -> impl Iterator<Item = &(&'a str, Named<'a>)> {
        let first = self.0.partition_point(|&(name, _)| name < text);
        self.0[first..].iter().take_while(move |(name, _)| name.starts_with(text))
    }

    /// All symbols of a name: of a module, or of the kernel and all modules.
    pub fn named(&self, module: Option<&str>, name: &str) -> Vec<Named<'a>> {
        let same = self.beginning(name).take_while(|&&(other, _)| other == name);
        let all = same.map(|&(_, symbol)| symbol);
        all.filter(|symbol| module.is_none() || symbol.module == module).collect()
    }

    /// The functions that a compiler made of one: `NAME.isra.0`, but no `NAME.cold`.
    pub fn variants(&self, module: Option<&str>, name: &str) -> Vec<&'a str> {
        let mark = format!("{name}.");
        let is_cold = |variant: &str| variant[mark.len()..].starts_with("cold");
        let is_meant = |symbol: &Named<'_>| symbol.is_text && symbol.module == module;
        let all = self.beginning(&mark).filter(|(variant, of)| is_meant(of) && !is_cold(variant));
        let mut names: Vec<&str> = all.map(|(variant, _)| *variant).collect();
        names.dedup();
        names
    }

    /// The function whose name is most like a mistyped one, if one is. The first letter counts as
    /// right: comparing with every name would take seconds under TCG.
    pub fn nearest(&self, module: Option<&str>, mistyped: &str) -> Option<&'a str> {
        let first = mistyped.get(..1)?;
        let all = self.beginning(first).filter(|(name, symbol)| {
            let is_meant = symbol.is_text && symbol.module == module;
            is_meant && name.len().abs_diff(mistyped.len()) <= MOST_TYPOS
        });
        nearest(mistyped, all.map(|(name, _)| *name))
    }
}

/// Letters that are put in, left out, replaced or swapped in a mistyped name.
const MOST_TYPOS: usize = 2;

/// The known name that is most like a mistyped one, if one is.
pub fn nearest<'a>(mistyped: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let distances = known.map(|name| (strsim::osa_distance(mistyped, name), name));
    distances.filter(|&(distance, _)| distance <= MOST_TYPOS).min().map(|(_, name)| name)
}

/// Reads until two consecutive readings agree. The kernel finds its place among programs and
/// trampolines by counting from the first (`bpf_get_kallsym`, kernel/bpf/core.c): if one goes
/// meanwhile, the reading misses another. Trampolines go late, when RCU allows, so the pauses grow.
fn settled(
    mut read: impl FnMut() -> io::Result<String>,
    pause: impl Fn(Duration),
) -> Result<String, KallsymsError> {
    let mut last = read()?;
    for earlier in 0..READINGS - 1 {
        let text = read()?;
        if text == last {
            return Ok(text);
        }
        last = text;
        pause(SHORTEST_PAUSE * (1 << earlier));
    }
    Err(KallsymsError::Unsettled)
}

impl Lines {
    /// `before` returns the number of lines in the file before these, for errors.
    fn parse(text: String, before: impl Fn() -> usize) -> Result<Lines, KallsymsError> {
        let mut entries = Vec::with_capacity(text.len() / 40);
        let mut start = 0;
        for line in text.split_terminator('\n') {
            let number = || before() + text[..start].matches('\n').count() + 1;
            let bad = || KallsymsError::Line { line: number(), text: line.to_owned() };
            entries.push(parse_line(line, start).ok_or_else(bad)?);
            start += line.len() + 1;
        }
        let mut lines = Lines { text, entries: Vec::new() };
        entries.sort_by(|a, b| {
            a.address.cmp(&b.address).then_with(|| lines.key(a).cmp(&lines.key(b)))
        });
        lines.entries = entries;
        Ok(lines)
    }

    fn count(&self) -> usize {
        self.entries.len()
    }

    fn name(&self, entry: &Entry) -> &str {
        &self.text[entry.name.clone()]
    }

    fn module(&self, entry: &Entry) -> &str {
        &self.text[entry.module.clone()]
    }

    /// The better of two names of one address has the smaller key: text, no mark, no bound of a
    /// section, then global, then the fewest leading underscores, then the shortest, then
    /// alphabetically, names of modules last. So an address has the same name in every run.
    fn key(&self, entry: &Entry) -> impl Ord {
        let name = self.name(entry);
        (
            !entry.is_text(),
            MARKS.iter().any(|mark| name.starts_with(mark)),
            is_bound(name),
            entry.kind.is_ascii_lowercase(),
            name.bytes().take_while(|b| *b == b'_').count(),
            name.len(),
            name,
            self.module(entry),
        )
    }
}

/// Returns true if a name looks like a section's bound from a linker script (`_stext`,
/// `__softirqentry_text_end`). A function that starts there has a name of its own.
fn is_bound(name: &str) -> bool {
    name.starts_with('_')
        && ["_start", "_end", "_begin", "text"].iter().any(|end| name.ends_with(end))
}

/// Parses `ffffffff81000000 T _text`, or a module's line such as `ffffffffc0200000 t
/// bpf_prog_6deef7357e7b4530_capture<TAB>[bpf]`. It begins at `start` of the text.
fn parse_line(line: &str, start: usize) -> Option<Entry> {
    let (address, rest) = line.split_once(' ')?;
    let (kind, rest) = rest.split_once(' ')?;
    let &[kind] = kind.as_bytes() else { return None };
    let (name, module) = rest.split_once('\t').unwrap_or((rest, ""));
    let bracketed = module.starts_with('[') && module.ends_with(']');
    if name.is_empty() || !(module.is_empty() || bracketed) {
        return None;
    }
    let name_start = start + line.len() - rest.len();
    let end = start + line.len();
    let module = if module.is_empty() { end..end } else { end - module.len() + 1..end - 1 };
    let address = u64::from_str_radix(address, 16).ok()?;
    Some(Entry { address, kind, name: name_start..name_start + name.len(), module })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lines of a 7.2.13 (Debian cloud, amd64) with a capturing program on `bpf_fentry_test1`, by
    /// fexit.
    const RECORDED: &str = include_str!("../tests/kallsyms.txt");

    fn recorded() -> Kallsyms {
        Kallsyms::parse(RECORDED.to_owned()).unwrap()
    }

    #[test]
    fn resolves_addresses_to_the_best_name_up_to_the_next_symbol() {
        let kallsyms = recorded();
        for (address, name, module, start, end) in [
            (
                0xffff_ffff_937f_fd90,
                "bpf_fentry_test1",
                None,
                0xffff_ffff_937f_fd90,
                0xffff_ffff_937f_fdb0_u64,
            ),
            (
                0xffff_ffff_937f_fdaf,
                "bpf_fentry_test1",
                None,
                0xffff_ffff_937f_fd90,
                0xffff_ffff_937f_fdb0,
            ),
            // Padding belongs to no other symbol.
            (
                0xffff_ffff_937f_fd8f,
                "__pfx_bpf_fentry_test1",
                None,
                0xffff_ffff_937f_fd80,
                0xffff_ffff_937f_fd90,
            ),
            // The shorter global name wins over a local and a longer global one.
            (
                0xffff_ffff_92b7_66a1,
                "__x64_sys_fork",
                None,
                0xffff_ffff_92b7_66a0,
                0xffff_ffff_92b7_6730,
            ),
            // The linker's marker starts at a function's address.
            (
                0xffff_ffff_9280_1850,
                "swapgs_restore_regs_and_return_to_usermode",
                None,
                0xffff_ffff_9280_1850,
                0xffff_ffff_9280_1921,
            ),
            (
                0xffff_ffff_c019_57f0,
                "bpf_prog_2d687556c2b65982_capture_fexit",
                Some("bpf"),
                0xffff_ffff_c019_57cc,
                0xffff_ffff_c019_5880,
            ),
            // 2 MiB without a symbol follow: no trampoline is that long.
            (
                0xffff_ffff_c019_5881,
                "bpf_trampoline_6442516024",
                Some("bpf"),
                0xffff_ffff_c019_5880,
                0xffff_ffff_c029_5880,
            ),
            (
                0xffff_ffff_c040_0010,
                "ftrace_trampoline",
                Some("__builtin__ftrace"),
                0xffff_ffff_c040_0000,
                0xffff_ffff_c050_0000,
            ),
        ] {
            let expected =
                Symbol { name: name.to_owned(), module: module.map(str::to_owned), start, end };
            assert_eq!(kallsyms.resolve(address), Some(expected), "{address:x}");
        }
        for nobody in
            [0, 0xffff_ffff_927f_ffff, 0xffff_ffff_93c0_0000, 0xffff_ffff_c030_0000, u64::MAX]
        {
            assert_eq!(kallsyms.resolve(nobody), None, "{nobody:x}");
        }
    }

    /// Lines of a 6.12 of x86-64 and a 7.2 of arm64 (Debian's cloud kernels).
    #[test]
    fn does_not_name_functions_after_bounds_of_sections() {
        let table = "ffffffffa0200000 T _stext\nffffffffa0200000 T _text\n\
                     ffffffffa0ecba40 T __x86_indirect_thunk_array\n\
                     ffffffffa0ecba40 T __x86_indirect_thunk_rax\n\
                     ffffffffa0ecba40 T __softirqentry_text_end\n\
                     ffffffffa1001830 t common_interrupt_return\n\
                     ffffffffa1001830 T __irqentry_text_end\n\
                     ffffffffab298000 t enter_vhe\nffffffffab298000 T __idmap_text_start\n";
        let kallsyms = Kallsyms::parse(table.to_owned()).unwrap();
        for (address, name) in [
            (0xffff_ffff_a020_0000_u64, "_text"),
            (0xffff_ffff_a0ec_ba41, "__x86_indirect_thunk_rax"),
            (0xffff_ffff_a100_1830, "common_interrupt_return"),
            (0xffff_ffff_ab29_8000, "enter_vhe"),
        ] {
            assert_eq!(kallsyms.resolve(address).unwrap().name, name);
        }
    }

    /// All thunks of a 7.2.13 (Debian's cloud kernel, amd64) that share their address.
    #[test]
    fn names_thunks_after_their_register_or_cpu() {
        let table = "ffffffff83600000 T srso_alias_untrain_ret\nffffffff83600000 T _stext\n\
                     ffffffff83600000 T _text\nffffffff83600000 T __pi__text\n\
                     ffffffff84853f00 T __pi___x86_indirect_thunk_rax\n\
                     ffffffff84853f00 T __x86_indirect_thunk_array\n\
                     ffffffff84853f00 T __x86_indirect_thunk_rax\n\
                     ffffffff84853f20 T __pi___x86_indirect_thunk_rcx\n\
                     ffffffff84853f20 T __x86_indirect_thunk_rcx\n\
                     ffffffff84854100 T __x86_indirect_call_thunk_array\n\
                     ffffffff84854100 T __x86_indirect_call_thunk_rax\n\
                     ffffffff84854300 T __x86_indirect_jump_thunk_array\n\
                     ffffffff84854300 T __x86_indirect_jump_thunk_rax\n\
                     ffffffff84854520 T __x86_indirect_its_thunk_array\n\
                     ffffffff84854520 T __x86_indirect_its_thunk_rax\n\
                     ffffffff84854b30 T __pi___x86_return_thunk\n\
                     ffffffff84854b30 T __x86_return_thunk\nffffffff84854b40 T behind\n";
        let kallsyms = Kallsyms::parse(table.to_owned()).unwrap();
        for (address, name) in [
            (0xffff_ffff_8360_0000_u64, "srso_alias_untrain_ret"),
            (0xffff_ffff_8485_3f00, "__x86_indirect_thunk_rax"),
            (0xffff_ffff_8485_3f20, "__x86_indirect_thunk_rcx"),
            (0xffff_ffff_8485_4100, "__x86_indirect_call_thunk_rax"),
            (0xffff_ffff_8485_4300, "__x86_indirect_jump_thunk_rax"),
            (0xffff_ffff_8485_4520, "__x86_indirect_its_thunk_rax"),
            (0xffff_ffff_8485_4b30, "__x86_return_thunk"),
        ] {
            assert_eq!(kallsyms.resolve(address).unwrap().name, name);
        }
    }

    #[test]
    fn ignores_the_order_of_lines() {
        let reversed: Vec<&str> = RECORDED.lines().rev().collect();
        let reversed = Kallsyms::parse(reversed.join("\n")).unwrap();
        for (_, entry) in recorded().entries() {
            assert_eq!(reversed.resolve(entry.address), recorded().resolve(entry.address));
        }
    }

    #[test]
    fn rereads_symbols_that_come_and_go() {
        let whole = recorded();
        let first = RECORDED.lines().position(|line| line.contains('\t')).unwrap();
        let lines: Vec<&str> = RECORDED.lines().collect();
        let text =
            |lines: &[&str]| lines.iter().map(|line| format!("{line}\n")).collect::<String>();
        let own = Kallsyms::parse(text(&lines[..first])).unwrap();
        // From nothing and back; also with lines that come later in the file and earlier in memory.
        let mut turned: Vec<&str> = lines[first..].to_vec();
        turned.reverse();
        let rest = |behind: &[&str]| text(&[&lines[first - LAST..first], behind].concat());
        for (before, behind) in
            [(&own, &lines[first..]), (&whole, &lines[first..]), (&whole, &turned), (&whole, &[])]
        {
            let renewed = before.followed_by(&rest(behind)).unwrap().unwrap();
            let expected = Kallsyms::parse(text(&[&lines[..first], behind].concat())).unwrap();
            assert_eq!(
                (renewed.own, renewed.last, renewed.rest),
                (expected.own, expected.last, expected.rest)
            );
        }
        // Another place of the file.
        for other in [text(&lines[first - 1..]), text(&lines[first..]), String::new()] {
            assert!(whole.followed_by(&other).unwrap().is_none());
        }
        let bad = whole.followed_by(&(rest(&lines[first..first + 3]) + "T _text\n"));
        assert!(matches!(bad, Err(KallsymsError::Line { line, .. }) if line == first + 4));
    }

    /// With `bpf_jit_harden` the table lists neither programs nor trampolines.
    #[test]
    fn adds_functions_that_are_hidden() {
        let is_hidden = |line: &&str| !line.ends_with("[bpf]");
        let listed = RECORDED.lines().filter(is_hidden).collect::<Vec<_>>().join("\n") + "\n";
        let program = recorded().resolve(0xffff_ffff_c019_57cc).unwrap();
        let program = Symbol { end: program.start + 0x80, ..program };
        assert!(program.name.ends_with("_capture_fexit"));
        let hardened = Kallsyms::parse(listed).unwrap();
        assert_eq!(hardened.resolve(program.start).filter(|found| *found == program), None);
        let merged = hardened.with(std::slice::from_ref(&program)).unwrap();
        for (address, expected) in [
            (program.start, Some(&program)),
            (program.end - 1, Some(&program)),
            // The trampoline.
            (program.end, None),
            (0xffff_ffff_c019_5881, None),
        ] {
            assert_eq!(merged.resolve(address).as_ref(), expected, "{address:x}");
        }
        let kernels = 0xffff_ffff_937f_fd90;
        assert_eq!(merged.resolve(kernels), recorded().resolve(kernels));
    }

    #[test]
    fn accepts_a_reading_that_the_next_confirms() {
        // The probe's trampoline goes while the second reading is at the program, so the
        // measurement's is missing.
        let (all, lacking, left) =
            ("probe\nprogram\ntrampoline\n", "probe\nprogram\n", "program\ntrampoline\n");
        for (readings, expected) in [
            (&[all, all][..], Some(all)),
            (&[lacking, left, left], Some(left)),
            (&[all, lacking, left, left], Some(left)),
            (&[all, left].repeat(READINGS as usize / 2), None),
        ] {
            let mut next = readings.iter();
            let read = || Ok(next.next().expect("no more readings are needed").to_string());
            let settled = settled(read, |_| ());
            assert_eq!(settled.ok().as_deref(), expected, "{readings:?}");
            assert_eq!(next.len(), 0, "{readings:?}");
        }
    }

    #[test]
    fn gives_no_address_for_ambiguous_names() {
        let kallsyms = recorded();
        assert_eq!(kallsyms.unique("t_show"), None);
        assert_eq!(kallsyms.unique("no_such_function"), None);
        assert_eq!(kallsyms.unique("__set_task_comm"), Some(0xffff_ffff_9301_81a0));
        assert_eq!(kallsyms.of_kernel("__start_rodata"), Some(0xffff_ffff_93c0_0000));
        assert_eq!(kallsyms.of_kernel("bpf_trampoline_6442516024"), None);
        assert_eq!((kallsyms.of_kernel("t_show"), kallsyms.unique("__start_rodata")), (None, None));
        let all = kallsyms.unique_addresses();
        assert_eq!(all.get("t_show"), None);
        assert_eq!(all.get("__set_task_comm"), Some(&0xffff_ffff_9301_81a0));
        assert_eq!(kallsyms.function("__do_sys_fork").unwrap().name, "__do_sys_fork");
    }

    /// Lines of xfs on a 7.2.13 (Debian's cloud kernel, amd64), but for the namesakes.
    #[test]
    fn finds_functions_of_a_module() {
        let table = "ffffffff93000000 t t_show\nffffffff93000010 t end\n\
                     ffffffffc0301000 t xfs_fs_free\t[xfs]\n\
                     ffffffffc0301020 t t_show\t[xfs]\nffffffffc0301040 t twin\t[xfs]\n\
                     ffffffffc0301060 t twin\t[xfs]\nffffffffc0301080 d xfs_globals\t[xfs]\n\
                     ffffffffc0302000 t t_show\t[other]\n";
        let kallsyms = Kallsyms::parse(table.to_owned()).unwrap();
        let start = |module: &str, name: &str| {
            let found = kallsyms.function_of(module, name)?;
            assert_eq!((&*found.name, found.module.as_deref()), (name, Some(module)));
            Some(found.start)
        };
        assert_eq!(start("xfs", "xfs_fs_free"), Some(0xffff_ffff_c030_1000));
        assert_eq!(start("xfs", "t_show"), Some(0xffff_ffff_c030_1020));
        assert_eq!(start("other", "t_show"), Some(0xffff_ffff_c030_2000));
        for (module, name) in
            [("xfs", "twin"), ("xfs", "xfs_globals"), ("other", "xfs_fs_free"), ("no", "t_show")]
        {
            assert_eq!(start(module, name), None, "{module}:{name}");
        }
    }

    #[test]
    fn rejects_hidden_addresses_and_malformed_lines() {
        let hidden = "0000000000000000 T _text\n0000000000000000 T _stext\n";
        assert!(matches!(Kallsyms::parse(hidden.to_owned()), Err(KallsymsError::Hidden)));
        for bad in [
            "ffffffff81000000 T",
            "T _text",
            "ffffffff81000000 TT _text",
            "xyz T _text",
            "1 t a\tbpf",
            "1 t \t[bpf]",
        ] {
            let text = format!("{RECORDED}{bad}\n");
            let line = RECORDED.lines().count() + 1;
            let Err(KallsymsError::Line { line: named, .. }) = Kallsyms::parse(text) else {
                panic!("{bad:?} accepted")
            };
            assert_eq!(named, line, "{bad:?}");
        }
    }
}
