// SPDX-License-Identifier: MIT OR Apache-2.0
//! kmemleak: memory to which nothing points any more.

use crate::changes;
use std::thread;
use std::time::Duration;
use std::{fs, io};

const FILE: &str = "/sys/kernel/debug/kmemleak";
/// kmemleak reports no object that is younger (`MSECS_MIN_AGE` in mm/kmemleak.c: 5 s).
const AGE: Duration = Duration::from_millis(5500);
/// Reports that are told, and lines of each.
const MOST: usize = 8;
const LINES: usize = 24;

/// Makes later scans leave out what leaked before.
pub fn forget() -> io::Result<()> {
    match is_there() {
        true => scan().and_then(|()| changes::write(FILE, "clear")),
        false => Ok(()),
    }
}

/// The leaks. None if the kernel has no kmemleak.
pub fn found() -> io::Result<Option<Vec<String>>> {
    if !is_there() {
        return Ok(None);
    }
    scan()?;
    Ok(Some(reports(&fs::read_to_string(FILE)?)))
}

fn is_there() -> bool {
    fs::metadata(FILE).is_ok()
}

/// Fails if kmemleak has disabled itself.
fn scan() -> io::Result<()> {
    thread::sleep(AGE);
    // An object counts as leaked only if its checksum stayed the same between two scans.
    (0..2).try_for_each(|_| changes::write(FILE, "scan"))
}

/// The first reports.
fn reports(text: &str) -> Vec<String> {
    let mut all: Vec<Vec<&str>> = Vec::new();
    for line in text.lines() {
        if line.starts_with("unreferenced object") {
            all.push(Vec::new());
        }
        if let Some(report) = all.last_mut().filter(|report| report.len() < LINES) {
            report.push(line.trim_end());
        }
    }
    all.truncate(MOST);
    all.into_iter().map(|lines| lines.join("\n")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn separates_reports() {
        let text = "unreferenced object 0xffff888004f1b000 (size 192):\n  comm \"init\", pid 88, \
                    jiffies 4294938410\n  backtrace (crc 5d9d9b4f):\n    bpf_prog_load+0x1/0x2\n\
                    unreferenced object 0xffff888004f1b100 (size 64):\n  comm \"init\"\n";
        let found = reports(text);
        assert_eq!(found.len(), 2);
        assert!(found[0].ends_with("bpf_prog_load+0x1/0x2"), "{found:?}");
        assert!(reports("").is_empty());
        assert_eq!(reports(&text.repeat(20)).len(), MOST);
    }
}
