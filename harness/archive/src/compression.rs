// SPDX-License-Identifier: MIT OR Apache-2.0
//! The compressions of packages and of kernel images, decoded with limited memory.

use lzma_rust2::XzReader;
use std::io::{self, BufRead, Read};

/// For xz, in KiB. The best compression takes 64 MiB.
const MEMORY: u32 = 512 << 10;

#[derive(Clone, Copy, Debug, strum::Display, PartialEq, Eq)]
#[strum(serialize_all = "lowercase")]
pub enum Compression {
    Gzip,
    Xz,
    Zstd,
}

/// Files may be several compressed streams, one behind the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Streams {
    All,
    /// Kernel images have other bytes behind the first.
    First,
}

impl Compression {
    /// Recognises a compression by a file's first bytes.
    pub fn of(start: &[u8]) -> Option<Compression> {
        let known: [(&[u8], Compression); 3] = [
            (b"\x1f\x8b", Compression::Gzip),
            (b"\xfd7zXZ\0", Compression::Xz),
            (b"\x28\xb5\x2f\xfd", Compression::Zstd),
        ];
        known.iter().find(|(magic, _)| start.starts_with(magic)).map(|(_, found)| *found)
    }

    pub fn decoder<'a>(
        self,
        from: impl BufRead + 'a,
        streams: Streams,
    ) -> io::Result<Box<dyn Read + 'a>> {
        self.decoder_within(from, streams, MEMORY)
    }

    /// A decoder that takes at most so many KiB for xz.
    pub fn decoder_within<'a>(
        self,
        from: impl BufRead + 'a,
        streams: Streams,
        memory: u32,
    ) -> io::Result<Box<dyn Read + 'a>> {
        Ok(match (self, streams) {
            (Compression::Gzip, Streams::All) => {
                Box::new(flate2::bufread::MultiGzDecoder::new(from))
            }
            (Compression::Gzip, Streams::First) => Box::new(flate2::bufread::GzDecoder::new(from)),
            (Compression::Xz, _) => {
                Box::new(XzReader::new_mem_limit(from, streams == Streams::All, memory))
            }
            (Compression::Zstd, Streams::All) => Box::new(zstd::Decoder::with_buffer(from)?),
            (Compression::Zstd, Streams::First) => {
                Box::new(zstd::Decoder::with_buffer(from)?.single_frame())
            }
        })
    }
}
