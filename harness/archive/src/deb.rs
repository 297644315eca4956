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

pub fn unpack(file: impl BufRead, unpacking: &mut Unpacking) -> Result<(), ArchiveError> {
    let mut archive = ar::Archive::new(file);
    while let Some(member) = archive.next_entry() {
        let member = member.map_err(|why| unpacking.broken(why))?;
        let packed = match member.header().identifier().strip_prefix(b"data.tar") {
            Some(packed) => str::from_utf8(packed).unwrap_or_default().to_owned(),
            None => continue,
        };
        let compression = match packed.as_str() {
            "" => None,
            ".gz" => Some(Compression::Gzip),
            ".xz" => Some(Compression::Xz),
            ".zst" => Some(Compression::Zstd),
            other => return Err(unpacking.broken(io::Error::other(format!("packed as {other}")))),
        };
        let member = BufReader::new(member);
        let data: Box<dyn Read> = match compression {
            None => Box::new(member),
            Some(compression) => {
                compression.decoder(member, Streams::All).map_err(|why| unpacking.broken(why))?
            }
        };
        return tarball::unpack(data, unpacking);
    }
    Err(unpacking.broken(io::Error::other("it has no data.tar")))
}
