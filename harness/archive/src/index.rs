// SPDX-License-Identifier: MIT OR Apache-2.0
//! The compact index of a suite: what is needed of `Packages`, one line a package.

use crate::{Package, is_sha256, release::File};
use std::{
    fs,
    io::{self, BufRead, BufReader, BufWriter, Read, Write},
    path::Path,
};

/// Raise it when the lines change: indexes of another version are made again.
pub(crate) const FORMAT: &str = "1";
/// More than the 60 MB of Debian's largest, so that no index fills the memory.
const MOST: u64 = 512 << 20;
const FIELDS: [&str; 10] = [
    "Package",
    "Version",
    "Architecture",
    "SHA256",
    "Size",
    "Installed-Size",
    "Filename",
    "Depends",
    "Pre-Depends",
    "Provides",
];

/// A suite's packages, in memory.
pub(crate) struct Index {
    text: String,
}

/// One version of one package.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry<'a> {
    pub name: &'a str,
    pub version: &'a str,
    pub architecture: &'a str,
    pub sha256: &'a str,
    pub size: u64,
    /// KiB
    installed_size: u64,
    path: &'a str,
    pub depends: &'a str,
    pub pre_depends: &'a str,
    pub provides: &'a str,
}

impl<'a> Entry<'a> {
    fn parse(line: &'a str) -> Option<Entry<'a>> {
        let mut fields = line.split('\t');
        let mut next = || fields.next();
        Some(Entry {
            name: next()?,
            version: next()?,
            architecture: next()?,
            sha256: next()?,
            size: next()?.parse().ok()?,
            installed_size: next()?.parse().unwrap_or(0),
            path: next()?,
            depends: next()?,
            pre_depends: next()?,
            provides: next()?,
        })
    }

    pub fn package(&self) -> Package {
        Package {
            name: self.name.to_owned(),
            version: self.version.to_owned(),
            architecture: self.architecture.to_owned(),
            sha256: self.sha256.to_owned(),
            room: self.size + self.installed_size * 1024,
        }
    }

    pub fn file(&self) -> File {
        File { path: self.path.to_owned(), size: self.size, sha256: self.sha256.to_owned() }
    }
}

impl Index {
    pub fn read(path: &Path) -> io::Result<Index> {
        let mut text = String::new();
        zstd::Decoder::new(fs::File::open(path)?)?.take(MOST).read_to_string(&mut text)?;
        Ok(Index { text })
    }

    #[cfg(test)]
    pub fn of(text: String) -> Index {
        Index { text }
    }

    pub fn entries(&self) -> impl Iterator<Item = Entry<'_>> {
        self.text.lines().filter_map(Entry::parse)
    }

    /// The entries of packages whose names fit. Parses no others.
    pub fn named(&self, fits: impl Fn(&str) -> bool) -> impl Iterator<Item = Entry<'_>> {
        let is_named = move |line: &&str| line.split('\t').next().is_some_and(&fits);
        self.text.lines().filter(is_named).filter_map(Entry::parse)
    }
}

/// Writes the index of a packed `Packages`: those packages whose names begin with `prefix`.
pub(crate) fn write(packages: &Path, prefix: &str, to: &Path) -> io::Result<()> {
    let unpacked = lzma_rust2::XzReader::new(BufReader::new(fs::File::open(packages)?), true);
    let mut lines = BufReader::with_capacity(1 << 17, unpacked.take(MOST));
    let out = BufWriter::new(fs::File::create(to)?);
    let mut out = zstd::Encoder::new(out, 3)?;
    let mut fields: [String; FIELDS.len()] = Default::default();
    let mut line = Vec::new();
    loop {
        line.clear();
        let ended = lines.read_until(b'\n', &mut line)? == 0;
        let text = str::from_utf8(&line).unwrap_or_default().trim_end();
        if text.is_empty() {
            if fields[0].starts_with(prefix) && is_whole(&fields) {
                writeln!(out, "{}", fields.join("\t"))?;
            }
            fields.iter_mut().for_each(String::clear);
            if ended {
                break;
            }
        } else if let Some((name, value)) = text.split_once(':')
            && let Some(index) = FIELDS.iter().position(|field| *field == name)
        {
            fields[index].push_str(&value.trim().replace('\t', " "));
        }
    }
    out.finish()?.flush()
}

fn is_whole(fields: &[String; FIELDS.len()]) -> bool {
    let is_inside = |path: &str| path.split('/').all(|part| !part.is_empty() && part != "..");
    !fields[0].is_empty()
        && !fields[1].is_empty()
        && is_sha256(&fields[3])
        && fields[4].parse::<u64>().is_ok()
        && is_inside(&fields[6])
}
