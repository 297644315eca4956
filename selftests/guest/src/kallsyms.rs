// SPDX-License-Identifier: MIT OR Apache-2.0
//! The kernel's symbol table: names for addresses, addresses for names.

use std::cmp::Ordering;
use std::collections::HashMap;
use std::fs;
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

#[derive(Clone, Debug, PartialEq, Eq)]
struct Entry {
    address: u64,
    /// `nm`'s letter; upper case is global.
    kind: u8,
    name: String,
    module: Option<String>,
}

impl Entry {
    fn is_text(&self) -> bool {
        matches!(self.kind, b't' | b'T' | b'w' | b'W')
    }

    /// Which of several names of one address is the better one: no mark, then global, then the fewest underscores
    /// in front, then the shortest, then the alphabet. So an address has the same name in every run.
    fn preference(&self, other: &Entry) -> Ordering {
        let key = |e: &Entry| {
            (
                MARKS.iter().any(|mark| e.name.starts_with(mark)),
                e.kind.is_ascii_lowercase(),
                e.name.bytes().take_while(|b| *b == b'_').count(),
                e.name.len(),
            )
        };
        key(self).cmp(&key(other)).then_with(|| self.name.cmp(&other.name))
    }
}

/// A snapshot of the table: programs and trampolines come and go.
#[derive(Debug)]
pub struct Kallsyms {
    /// Text symbols with their ends, by address, one name each.
    functions: Vec<Symbol>,
    /// Addresses by name; several for a static function's namesakes.
    by_name: HashMap<String, Vec<u64>>,
}

impl Kallsyms {
    pub fn read() -> Result<Kallsyms, KallsymsError> {
        Kallsyms::parse(&fs::read_to_string(PATH)?)
    }

    pub fn parse(text: &str) -> Result<Kallsyms, KallsymsError> {
        let mut entries = Vec::with_capacity(text.len() / 40);
        for (index, line) in text.lines().enumerate() {
            let entry = parse_line(line)
                .ok_or_else(|| KallsymsError::Line { line: index + 1, text: line.to_owned() })?;
            entries.push(entry);
        }
        if entries.iter().all(|e| e.address == 0) {
            return Err(KallsymsError::Hidden);
        }
        entries.sort_by(|a, b| a.address.cmp(&b.address).then_with(|| a.preference(b)));
        let mut by_name: HashMap<String, Vec<u64>> = HashMap::new();
        for entry in entries.iter().filter(|e| e.is_text()) {
            by_name.entry(entry.name.clone()).or_default().push(entry.address);
        }
        let mut functions: Vec<Symbol> = Vec::new();
        // From the highest down: `next` is the start of what follows, data included.
        let mut next = u64::MAX;
        for group in entries.chunk_by(|a, b| a.address == b.address).rev() {
            let start = group[0].address;
            if let Some(best) = group.iter().find(|e| e.is_text()) {
                functions.push(Symbol {
                    name: best.name.clone(),
                    module: best.module.clone(),
                    start,
                    end: next.min(start.saturating_add(LONGEST)),
                });
            }
            next = start;
        }
        functions.reverse();
        Ok(Kallsyms { functions, by_name })
    }

    /// The function that holds an address.
    pub fn resolve(&self, address: u64) -> Option<&Symbol> {
        let after = self.functions.partition_point(|s| s.start <= address);
        self.functions[..after].last().filter(|s| address < s.end)
    }

    /// The only address of a text symbol; none when there is no such symbol or there are several.
    pub fn unique(&self, name: &str) -> Option<u64> {
        match self.by_name.get(name)?.as_slice() {
            [address] => Some(*address),
            _ => None,
        }
    }

    /// A function by name, under that name even where its address has a better one.
    pub fn function(&self, name: &str) -> Option<Symbol> {
        let symbol = self.resolve(self.unique(name)?)?;
        Some(Symbol { name: name.to_owned(), ..symbol.clone() })
    }
}

/// `ffffffff81000000 T _text` or `ffffffffc0200000 t bpf_prog_6deef7357e7b4530_capture<TAB>[bpf]`.
fn parse_line(line: &str) -> Option<Entry> {
    let (address, rest) = line.split_once(' ')?;
    let (kind, rest) = rest.split_once(' ')?;
    let &[kind] = kind.as_bytes() else { return None };
    let (name, module) = match rest.split_once('\t') {
        Some((name, module)) => (name, Some(module.strip_prefix('[')?.strip_suffix(']')?.to_owned())),
        None => (rest, None),
    };
    if name.is_empty() {
        return None;
    }
    Some(Entry { address: u64::from_str_radix(address, 16).ok()?, kind, name: name.to_owned(), module })
}
