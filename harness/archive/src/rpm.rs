// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reads an `.rpm`: two headers, which are skipped, and a compressed cpio archive with the files.
//! The crate `rpm` would allocate as many bytes as a name claims to have.

use crate::{
    ArchiveError,
    compression::{Compression, Streams},
    is_sha256,
    unpacking::{BUFFER, Kind, Unpacking},
};
use cpio::newc;
use sha2::{Digest, Sha256};
use std::{
    collections::HashMap,
    ffi::OsString,
    io::{self, BufRead, BufReader, Read},
    os::unix::ffi::OsStringExt,
    path::{Path, PathBuf},
};
use tramplab_model::name::hex;

/// Begins the lead, which says nothing that the headers do not.
pub const MAGIC: &[u8] = &[0xed, 0xab, 0xee, 0xdb];
const LEAD: u64 = 96;
const HEADER: [u8; 4] = [0x8e, 0xad, 0xe8, 1];
/// The tag RPMTAG_PAYLOADSHA256 (5092) and its type, texts: include/rpm/rpmtag.h of RPM.
const PAYLOAD_DIGEST: [u8; 8] = [0, 0, 0x13, 0xe4, 0, 0, 0, 8];
/// Bytes of an entry's header, and the place of its name's length there.
const ENTRY: usize = 110;
const NAME_LENGTH: std::ops::Range<usize> = 94..102;
/// cpio with the sizes in the package's header, for files of 4 GiB and more.
const STRIPPED: &[u8] = b"07070X";
/// Linux's PATH_MAX.
const LONGEST: u32 = 4096;

pub fn unpack(mut file: impl BufRead, unpacking: &mut Unpacking) -> Result<(), ArchiveError> {
    let expected = skip_headers(&mut file).map_err(|why| unpacking.broken(why))?;
    let mut payload = Hashing { inner: file, hash: Sha256::new() };
    files(&mut payload, unpacking)?;
    let found = payload.digest().map_err(|why| unpacking.broken(why))?;
    match expected {
        Some(expected) if expected != found => {
            let why = format!("the SHA-256 of its payload is {found}; its header says {expected}");
            Err(unpacking.broken(io::Error::other(why)))
        }
        _ => Ok(()),
    }
}

/// Unpacks the files of a payload.
fn files(payload: &mut impl BufRead, unpacking: &mut Unpacking) -> Result<(), ArchiveError> {
    let data = decoder(payload).map_err(|why| unpacking.broken(why))?;
    let mut data = BufReader::with_capacity(BUFFER, data);
    // Of files with several names only the last has the content.
    let mut empty: HashMap<(u32, u32, u32), Vec<PathBuf>> = HashMap::new();
    loop {
        let header = header(&mut data).map_err(|why| unpacking.broken(why))?;
        let reader = newc::Reader::new((&header[..]).chain(&mut data));
        let mut reader = reader.map_err(|why| unpacking.broken(why))?;
        let entry = reader.entry().clone();
        if entry.is_trailer() {
            return Ok(());
        }
        let named = Path::new(entry.name());
        let kind = kind(&entry, &mut reader).map_err(|why| unpacking.broken(why))?;
        let is_linked = matches!(kind, Kind::File { .. }) && entry.nlink() > 1;
        let file = (entry.dev_major(), entry.dev_minor(), entry.ino());
        let is_taken = unpacking.entry(named, kind, &mut reader)?;
        if is_linked && entry.file_size() == 0 {
            if is_taken {
                empty.entry(file).or_default().push(named.to_owned());
            }
        } else if is_linked {
            let mut others = empty.remove(&file).unwrap_or_default().into_iter();
            let first = if is_taken { Some(named.to_owned()) } else { others.next() };
            if let Some(first) = first {
                if !is_taken {
                    let kind = Kind::File { mode: entry.mode() };
                    unpacking.entry(&first, kind, &mut reader)?;
                }
                for other in others {
                    unpacking.entry(&other, Kind::HardLink(first.clone()), io::empty())?;
                }
            }
        }
        reader.finish().map_err(|why| unpacking.broken(why))?;
    }
}

/// Skips all in front of the payload. Returns the SHA-256 of the payload, if a header has it.
fn skip_headers(file: &mut impl BufRead) -> io::Result<Option<String>> {
    skip(file, LEAD)?;
    let (signatures, _) = skip_header(file)?;
    skip(file, signatures.next_multiple_of(8) - signatures)?;
    Ok(skip_header(file)?.1)
}

fn decoder<'a>(file: &'a mut (impl BufRead + 'a)) -> io::Result<Box<dyn Read + 'a>> {
    let start = file.fill_buf()?;
    match Compression::of(start) {
        Some(compression) => compression.decoder(file, Streams::All),
        None if start.starts_with(b"0707") => Ok(Box::new(file)),
        None => Err(io::Error::other("its files are packed neither by gzip nor by xz nor by zstd")),
    }
}

/// Returns the bytes of a header, and the payload's digest in it.
fn skip_header(file: &mut impl Read) -> io::Result<(u64, Option<String>)> {
    let mut start = [0; 16];
    file.read_exact(&mut start)?;
    let [a, b, c, d, _, _, _, _, counts @ ..] = start;
    if [a, b, c, d] != HEADER {
        return Err(io::Error::other("expected a header of version 1"));
    }
    let [e, f, g, h, i, j, k, l] = counts;
    let entries = u64::from(u32::from_be_bytes([e, f, g, h]));
    let store = u64::from(u32::from_be_bytes([i, j, k, l]));
    let mut at = None;
    for _ in 0..entries {
        let mut entry = [0; 16];
        file.read_exact(&mut entry)?;
        if entry.starts_with(&PAYLOAD_DIGEST) {
            let [.., a, b, c, d, _, _, _, _] = entry;
            at = Some(u64::from(u32::from_be_bytes([a, b, c, d])));
        }
    }
    let mut digest = None;
    let mut left = store;
    if let Some(at) = at.filter(|at| at + 65 <= store) {
        let mut text = [0; 65];
        skip(file, at)?;
        file.read_exact(&mut text)?;
        left -= at + 65;
        // A longer one is of another algorithm.
        let text = text.strip_suffix(&[0]).and_then(|text| str::from_utf8(text).ok());
        digest = text.filter(|text| is_sha256(text)).map(str::to_owned);
    }
    skip(file, left)?;
    Ok((entries * 16 + store, digest))
}

/// Hashes all that is read.
struct Hashing<R> {
    inner: R,
    hash: Sha256,
}

impl<R: BufRead> Hashing<R> {
    /// Reads the rest.
    fn digest(mut self) -> io::Result<String> {
        io::copy(&mut self, &mut io::sink())?;
        Ok(hex(&self.hash.finalize()))
    }
}

impl<R: BufRead> Read for Hashing<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let read = self.fill_buf()?.read(into)?;
        self.consume(read);
        Ok(read)
    }
}

impl<R: BufRead> BufRead for Hashing<R> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        self.inner.fill_buf()
    }

    fn consume(&mut self, count: usize) {
        // The bytes are still in the buffer.
        if let Ok(filled) = self.inner.fill_buf() {
            self.hash.update(&filled[..count.min(filled.len())]);
        }
        self.inner.consume(count);
    }
}

fn skip(file: &mut impl Read, bytes: u64) -> io::Result<()> {
    match io::copy(&mut file.take(bytes), &mut io::sink())? {
        skipped if skipped == bytes => Ok(()),
        _ => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

/// An entry's header, whose name has a length that a path can have.
fn header(data: &mut impl Read) -> io::Result<[u8; ENTRY]> {
    let mut header = [0; ENTRY];
    data.read_exact(&mut header)?;
    if header.starts_with(STRIPPED) {
        return Err(io::Error::other("its files are in a format for more than 4 GiB"));
    }
    let length = str::from_utf8(&header[NAME_LENGTH]).ok();
    match length.and_then(|length| u32::from_str_radix(length, 16).ok()) {
        Some(..=LONGEST) => Ok(header),
        _ => Err(io::Error::other("an entry's name is longer than any path")),
    }
}

fn kind(entry: &newc::Entry, data: &mut impl Read) -> io::Result<Kind> {
    Ok(match entry.mode() & stat::KIND {
        stat::FOLDER => Kind::Folder,
        stat::FILE => Kind::File { mode: entry.mode() },
        stat::LINK => {
            let mut target = Vec::new();
            data.take(u64::from(LONGEST)).read_to_end(&mut target)?;
            Kind::Link(OsString::from_vec(target).into())
        }
        _ => Kind::Other,
    })
}

/// The kinds of stat(2).
mod stat {
    pub const KIND: u32 = 0o170_000;
    pub const FOLDER: u32 = 0o040_000;
    pub const FILE: u32 = 0o100_000;
    pub const LINK: u32 = 0o120_000;
}
