// SPDX-License-Identifier: MIT OR Apache-2.0
//! The kernel's symbol table: names for addresses, addresses for names.

use std::cmp::Ordering;
use std::collections::HashMap;
use std::fs;
use std::ops::Range;
use tramplab_protocol::message::Symbol;

const PATH: &str = "/proc/kallsyms";
/// Compilers' marks before a function (padding, type hashes): never the name of what starts at their address.
const MARKS: [&str; 2] = ["__pfx_", "__cfi_"];
/// No function is longer; bounds a symbol after which nothing is known.
const LONGEST: u64 = 1 << 20;

#[derive(Debug, thiserror::Error)]
pub enum KallsymsError {
    #[error("failed to read {PATH}: {0}")]
    Read(#[from] std::io::Error),
    #[error("line {line} of {PATH} is not `address type name [module]`: `{text}`")]
    Line { line: usize, text: String },
    #[error("{PATH} hides the addresses from the agent (all are 0)")]
    Hidden,
}

/// One line; names stay in the text, of which there are megabytes.
#[derive(Clone, Debug)]
struct Entry {
    address: u64,
    /// `nm`'s letter; upper case is global.
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

/// A snapshot of the table: programs and trampolines come and go.
#[derive(Debug)]
pub struct Kallsyms {
    text: String,
    /// By address; of one address the best name first.
    entries: Vec<Entry>,
}

impl Kallsyms {
    pub fn read() -> Result<Kallsyms, KallsymsError> {
        Kallsyms::parse(fs::read_to_string(PATH)?)
    }

    pub fn parse(text: String) -> Result<Kallsyms, KallsymsError> {
        let mut entries = Vec::with_capacity(text.len() / 40);
        let mut start = 0;
        for (index, line) in text.split_terminator('\n').enumerate() {
            let entry = parse_line(line, start);
            entries
                .push(entry.ok_or_else(|| KallsymsError::Line { line: index + 1, text: line.to_owned() })?);
            start += line.len() + 1;
        }
        if entries.iter().all(|e: &Entry| e.address == 0) {
            return Err(KallsymsError::Hidden);
        }
        let mut table = Kallsyms { text, entries: Vec::new() };
        entries.sort_by(|a, b| a.address.cmp(&b.address).then_with(|| table.prefer(a, b)));
        table.entries = entries;
        Ok(table)
    }

    /// Which of two names of one address is the better one: text, no mark, then global, then the fewest underscores
    /// in front, then the shortest, then the alphabet. So an address has the same name in every run.
    fn prefer(&self, a: &Entry, b: &Entry) -> Ordering {
        let key = |e: &Entry| {
            let name = &self.text[e.name.clone()];
            (
                !e.is_text(),
                MARKS.iter().any(|mark| name.starts_with(mark)),
                e.kind.is_ascii_lowercase(),
                name.bytes().take_while(|b| *b == b'_').count(),
                name.len(),
            )
        };
        key(a).cmp(&key(b)).then_with(|| self.text[a.name.clone()].cmp(&self.text[b.name.clone()]))
    }

    /// The function that holds an address.
    pub fn resolve(&self, address: u64) -> Option<Symbol> {
        let after = self.entries.partition_point(|e| e.address <= address);
        let start = self.entries[..after].last()?.address;
        let first = self.entries.partition_point(|e| e.address < start);
        let entry = &self.entries[first];
        // Data is a neighbour too: it ends the function before it.
        let next = self.entries.get(after).map_or(u64::MAX, |e| e.address);
        let end = next.min(start.saturating_add(LONGEST));
        (entry.is_text() && address < end).then(|| Symbol {
            name: self.text[entry.name.clone()].to_owned(),
            module: (!entry.module.is_empty()).then(|| self.text[entry.module.clone()].to_owned()),
            start,
            end,
        })
    }

    /// The addresses of all text symbols whose name stands for one address only.
    pub fn unique_addresses(&self) -> HashMap<&str, u64> {
        let mut addresses: HashMap<&str, Option<u64>> = HashMap::with_capacity(self.entries.len());
        for entry in self.entries.iter().filter(|e| e.is_text()) {
            let seen = addresses.entry(&self.text[entry.name.clone()]);
            seen.and_modify(|address| *address = None).or_insert(Some(entry.address));
        }
        addresses.into_iter().filter_map(|(name, address)| Some((name, address?))).collect()
    }

    /// The only address of a text symbol; none when there is no such symbol or there are several.
    pub fn unique(&self, name: &str) -> Option<u64> {
        let mut found = self.entries.iter().filter(|e| e.is_text() && self.text[e.name.clone()] == *name);
        let address = found.next()?.address;
        found.next().is_none().then_some(address)
    }

    /// The only address of a symbol of the kernel proper, be it data: which kernels without CONFIG_KALLSYMS_ALL do not name.
    pub fn of_kernel(&self, name: &str) -> Option<u64> {
        let is_meant = |e: &&Entry| e.module.is_empty() && self.text[e.name.clone()] == *name;
        let mut found = self.entries.iter().filter(is_meant);
        let address = found.next()?.address;
        found.next().is_none().then_some(address)
    }

    /// A function by name, under that name even where its address has a better one.
    pub fn function(&self, name: &str) -> Option<Symbol> {
        Some(Symbol { name: name.to_owned(), ..self.resolve(self.unique(name)?)? })
    }
}

/// `ffffffff81000000 T _text` or `ffffffffc0200000 t bpf_prog_6deef7357e7b4530_capture<TAB>[bpf]`, at `start` of the text.
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

    /// Lines of a 7.2.13 (Debian cloud, amd64) with a capturing program on `bpf_fentry_test1`, by fexit.
    const RECORDED: &str = include_str!("../tests/kallsyms.txt");

    fn recorded() -> Kallsyms {
        Kallsyms::parse(RECORDED.to_owned()).unwrap()
    }

    #[test]
    fn addresses_get_the_best_name_and_the_next_start_as_end() {
        let kallsyms = recorded();
        for (address, name, module, start, end) in [
            (
                0xffff_ffff_937f_fd90,
                "bpf_fentry_test1",
                None,
                0xffff_ffff_937f_fd90,
                0xffff_ffff_937f_fdb0_u64,
            ),
            (0xffff_ffff_937f_fdaf, "bpf_fentry_test1", None, 0xffff_ffff_937f_fd90, 0xffff_ffff_937f_fdb0),
            // Padding is nobody's but its own.
            (
                0xffff_ffff_937f_fd8f,
                "__pfx_bpf_fentry_test1",
                None,
                0xffff_ffff_937f_fd80,
                0xffff_ffff_937f_fd90,
            ),
            // Of a local and two global names the shorter global one.
            (0xffff_ffff_92b7_66a1, "__x64_sys_fork", None, 0xffff_ffff_92b7_66a0, 0xffff_ffff_92b7_6730),
            // A marker of the linker's starts where a function does.
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
            let expected = Symbol { name: name.to_owned(), module: module.map(str::to_owned), start, end };
            assert_eq!(kallsyms.resolve(address), Some(expected), "{address:x}");
        }
        for nobody in [0, 0xffff_ffff_927f_ffff, 0xffff_ffff_93c0_0000, 0xffff_ffff_c030_0000, u64::MAX] {
            assert_eq!(kallsyms.resolve(nobody), None, "{nobody:x}");
        }
    }

    #[test]
    fn the_order_of_the_lines_does_not_matter() {
        let reversed: Vec<&str> = RECORDED.lines().rev().collect();
        let reversed = Kallsyms::parse(reversed.join("\n")).unwrap();
        for entry in &recorded().entries {
            assert_eq!(reversed.resolve(entry.address), recorded().resolve(entry.address));
        }
    }

    #[test]
    fn names_of_several_functions_have_no_address() {
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

    #[test]
    fn a_table_that_hides_or_is_none_is_refused() {
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
            assert!(
                matches!(Kallsyms::parse(text), Err(KallsymsError::Line { line: l, .. }) if l == line),
                "{bad:?} accepted"
            );
        }
    }
}
