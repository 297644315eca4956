// SPDX-License-Identifier: MIT OR Apache-2.0
//! Names for the guest's kernel addresses.

use tramplab_model::run::{NamedRecord, Place};
use tramplab_protocol::{
    message::Symbol,
    trace::{Record, Trace},
};

/// Both x86-64 and arm64 keep the kernel in the upper half.
pub fn is_kernel(address: u64) -> bool {
    address >> 63 == 1
}

/// Prefix of the kernel's names for JITed programs.
pub const PROGRAM: &str = "bpf_prog_";
/// End of the names of the agent's empty program, which is attached beside others.
pub(super) const BESIDE: &str = "_tramplab_empty";
/// Prefix of the kernel's names for BPF trampolines.
pub(super) const TRAMPOLINE: &str = "bpf_trampoline_";

/// Matches JITed programs. Module `bpf` also has trampolines and dispatchers, which call programs
/// but not the snapshot.
pub fn is_program(symbol: &Symbol) -> bool {
    symbol.module.as_deref() == Some("bpf") && symbol.name.starts_with(PROGRAM)
}

/// Returns the kernel addresses of the trace, for the agent to resolve: ascending, each once.
pub fn addresses(trace: &Trace) -> Vec<u64> {
    trace.addresses().into_iter().filter(|&address| is_kernel(address)).collect()
}

/// Functions of one guest, by address.
#[derive(Clone, Debug, Default)]
pub struct Symbols(Vec<Symbol>);

impl FromIterator<Symbol> for Symbols {
    fn from_iter<I: IntoIterator<Item = Symbol>>(symbols: I) -> Symbols {
        let mut sorted = Vec::from_iter(symbols);
        sorted.sort_by_key(|symbol| symbol.start);
        // The later of two symbols at one address wins.
        sorted.dedup_by(|later, kept| {
            let is_same = later.start == kept.start;
            if is_same {
                std::mem::swap(later, kept);
            }
            is_same
        });
        Symbols(sorted)
    }
}

impl Symbols {
    /// Adds a symbol, which wins over one at its address.
    pub fn with(self, symbol: Symbol) -> Symbols {
        self.0.into_iter().chain([symbol]).collect()
    }

    pub fn find(&self, address: u64) -> Option<&Symbol> {
        let behind = self.0.partition_point(|symbol| symbol.start <= address);
        self.0[..behind].last().filter(|symbol| address < symbol.end)
    }

    /// The first function that begins behind an address.
    pub fn behind(&self, address: u64) -> Option<&Symbol> {
        self.0.get(self.0.partition_point(|symbol| symbol.start <= address))
    }

    /// Returns the start addresses of the matching functions, ascending.
    pub fn starts(&self, matches: impl Fn(&Symbol) -> bool) -> Vec<u64> {
        self.0.iter().filter(|symbol| matches(symbol)).map(|symbol| symbol.start).collect()
    }

    /// Names both ends of a record.
    pub fn named(&self, record: &Record) -> NamedRecord {
        let Record { from, to, kind, .. } = *record;
        NamedRecord { from: self.place(from), to: self.place(to), kind, modelled: false }
    }

    pub fn place(&self, address: u64) -> Place {
        match self.find(address) {
            Some(symbol) => Place {
                address,
                symbol: Some(symbol.name.clone()),
                module: symbol.module.clone(),
                offset: address - symbol.start,
            },
            None => Place { address, symbol: None, module: None, offset: 0 },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tramplab_protocol::trace::{Kind, VcpuTrace};

    const BASE: u64 = 0xffff_ffff_8100_0000;

    fn symbol(name: &str, start: u64, end: u64) -> Symbol {
        Symbol { name: name.to_owned(), module: None, start, end }
    }

    #[test]
    fn finds_the_symbol_around_an_address() {
        let symbols: Symbols = [
            symbol("old", BASE, BASE + 8),
            symbol("b", BASE + 0x40, BASE + 0x50),
            symbol("a", BASE, BASE + 0x20),
        ]
        .into_iter()
        .collect();
        let table = [
            (BASE - 1, None, 0),
            (BASE, Some("a"), 0),
            (BASE + 0x1f, Some("a"), 0x1f),
            (BASE + 0x20, None, 0),
            (BASE + 0x41, Some("b"), 1),
            (BASE + 0x50, None, 0),
            (0x40_1000, None, 0),
        ];
        for (address, name, offset) in table {
            let place = symbols.place(address);
            assert_eq!((place.symbol.as_deref(), place.offset), (name, offset), "{address:#x}");
            assert_eq!(place.address, address);
        }
    }

    #[test]
    fn lists_each_kernel_address_once() {
        let record =
            |from, to| Record { from, to, kind: Kind::Jump, instructions: 1, accesses: None };
        let vcpu = |records| VcpuTrace { index: 0, total: 2, records };
        let trace = Trace {
            discontinuities: false,
            vcpus: vec![
                vcpu(vec![record(BASE + 8, BASE), record(0x40_1000, BASE)]),
                vcpu(vec![record(BASE, BASE + 4)]),
            ],
        };
        assert_eq!(addresses(&trace), [BASE, BASE + 4, BASE + 8]);
    }
}
