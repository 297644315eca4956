// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reads a `.deb`: an `ar` archive whose member `data.tar.*` has the files.

use crate::{
    ArchiveError,
    compression::{Compression, Streams},
    tarball,
    unpacking::Unpacking,
};
use std::io::{self, BufRead, BufReader, Read};

pub const MAGIC: &[u8] = b"!<arch>\n";
/// Bytes of a member's header. The crate `ar` would allocate as many as a table of names claims.
const HEADER: usize = 60;
const NAME: std::ops::Range<usize> = 0..16;
const SIZE: std::ops::Range<usize> = 48..58;
/// Ends a header.
const END: &[u8] = b"`\n";

pub fn unpack(mut file: impl BufRead, unpacking: &mut Unpacking) -> Result<(), ArchiveError> {
    let (compression, size) = data(&mut file).map_err(|why| unpacking.broken(why))?;
    let member = BufReader::new(file.take(size));
    let data: Box<dyn Read> = match compression {
        None => Box::new(member),
        Some(compression) => {
            compression.decoder(member, Streams::All).map_err(|why| unpacking.broken(why))?
        }
    };
    tarball::unpack(data, unpacking)
}

/// Skips what is before the files. Returns the compression and the size of their member.
fn data(file: &mut impl Read) -> io::Result<(Option<Compression>, u64)> {
    let mut magic = [0; MAGIC.len()];
    file.read_exact(&mut magic)?;
    loop {
        let mut header = [0; HEADER];
        file.read_exact(&mut header).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => io::Error::other("it has no data.tar"),
            _ => error,
        })?;
        let size = str::from_utf8(&header[SIZE]).ok().and_then(|size| size.trim().parse().ok());
        let size: u64 = match size {
            Some(size) if header.ends_with(END) => size,
            _ => return Err(io::Error::other("expected the header of a member")),
        };
        // GNU's ar ends names with a slash.
        let name = header[NAME].trim_ascii_end();
        let name = name.strip_suffix(b"/").unwrap_or(name);
        if let Some(packed) = name.strip_prefix(b"data.tar") {
            let compression = match packed {
                b"" => None,
                b".gz" => Some(Compression::Gzip),
                b".xz" => Some(Compression::Xz),
                b".zst" => Some(Compression::Zstd),
                other => {
                    let other = String::from_utf8_lossy(other);
                    return Err(io::Error::other(format!("packed as {other}")));
                }
            };
            return Ok((compression, size));
        }
        // Members begin at even places.
        let end = size.saturating_add(size % 2);
        io::copy(&mut file.take(end), &mut io::sink())?;
    }
}
