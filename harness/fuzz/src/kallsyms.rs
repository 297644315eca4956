// SPDX-License-Identifier: MIT OR Apache-2.0
//! Fuzz the agent's reader of `/proc/kallsyms` against a slow one.

#[path = "../../../selftests/guest/src/kallsyms.rs"]
#[allow(dead_code, reason = "the agent uses the rest")]
mod table;

use table::Kallsyms;

pub fn run(data: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(data) else { return false };
    let Ok(table) = Kallsyms::parse(text.to_owned()) else { return false };
    let slow: Vec<Line> = text
        .split_terminator('\n')
        .map(|line| Line::read(line).expect("it was accepted"))
        .collect();
    let reversed: Vec<&str> = text.split_terminator('\n').rev().collect();
    let reversed =
        Kallsyms::parse(reversed.join("\n")).expect("the order of lines does not matter");
    for line in slow.iter().take(64) {
        for address in
            [line.address.saturating_sub(1), line.address, line.address.saturating_add(1)]
        {
            let found = table.resolve(address);
            assert_eq!(found, reversed.resolve(address), "{address:x}");
            let start =
                slow.iter().map(|line| line.address).filter(|&start| start <= address).max();
            let Some(found) = found else {
                // Data, or too far behind the last symbol.
                let is_here = |line: &&Line| Some(line.address) == start && address == line.address;
                let mut here = slow.iter().filter(is_here).peekable();
                assert!(here.peek().is_none() || !here.all(Line::is_text), "{address:x} is text");
                continue;
            };
            assert_eq!(Some(found.start), start);
            assert!((found.start..found.end).contains(&address));
            assert!(
                slow.iter().all(|line| line.address <= found.start || line.address >= found.end)
            );
            let is_it = |line: &Line| {
                line.address == found.start && line.name == found.name && line.is_text()
            };
            assert!(slow.iter().any(is_it), "{found:?}");
        }
        let of_name = || slow.iter().filter(|other| other.is_text() && other.name == line.name);
        let unique = (of_name().count() == 1).then(|| of_name().next().expect("one").address);
        assert_eq!(table.unique(line.name), unique, "{}", line.name);
        assert_eq!(table.unique_addresses().get(line.name).copied(), unique);
        assert!(table.function(line.name).is_none_or(|function| function.name == line.name));
    }
    true
}

struct Line<'a> {
    address: u64,
    kind: &'a str,
    name: &'a str,
}

impl<'a> Line<'a> {
    fn read(line: &'a str) -> Option<Line<'a>> {
        let mut words = line.splitn(3, ' ');
        let (address, kind, rest) = (words.next()?, words.next()?, words.next()?);
        let address = u64::from_str_radix(address, 16).ok()?;
        Some(Line { address, kind, name: rest.split('\t').next()? })
    }

    fn is_text(&self) -> bool {
        "tTwW".contains(self.kind)
    }
}
