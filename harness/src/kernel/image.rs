// SPDX-License-Identifier: MIT OR Apache-2.0
//! Whether a file is a kernel that can be booted, and all of it: read from its header.

use crate::run::Arch;
use std::{
    fs::File,
    io::{self, Read, Seek, SeekFrom},
    path::Path,
};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    pub arch: Arch,
    /// `6.12.107+deb13-cloud-amd64`; an arm64 Image has none.
    pub release: Option<String>,
}

#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    #[error("failed to read it: {0}")]
    Read(#[from] io::Error),
    #[error("it is no kernel image: expected an x86-64 bzImage or an arm64 Image, found {0}")]
    NotAnImage(&'static str),
    #[error("it is truncated: {length} bytes long, its header says at least {expected}")]
    Truncated { length: u64, expected: u64 },
    #[error("it is a kernel for {}, expected one for {}", found.name(), expected.name())]
    WrongArch { found: Arch, expected: Arch },
}

/// Enough for both headers, and for the section table of an arm64 Image.
const HEAD: u64 = 4096;

pub fn check(path: &Path, expected: Arch) -> Result<Header, ImageError> {
    let header = read(path)?;
    let found = header.arch;
    if found == expected { Ok(header) } else { Err(ImageError::WrongArch { found, expected }) }
}

pub fn read(path: &Path) -> Result<Header, ImageError> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    let mut head = Vec::new();
    (&mut file).take(HEAD).read_to_end(&mut head)?;
    let (header, expected) = if at(&head, 0x202) == Some(*b"HdrS") {
        x86(&head, &mut file)?
    } else if at(&head, 0x38) == Some(*b"ARM\x64") {
        (Header { arch: Arch::Arm64, release: None }, pe_end(&head).unwrap_or(HEAD))
    } else {
        return Err(ImageError::NotAnImage(what(&head)));
    };
    if length < expected { Err(ImageError::Truncated { length, expected }) } else { Ok(header) }
}

/// Documentation/arch/x86/boot.rst of the kernel.
fn x86(head: &[u8], file: &mut File) -> Result<(Header, u64), ImageError> {
    let byte = |offset: usize| u64::from(head.get(offset).copied().unwrap_or(0));
    // 0 stands for 4, of old.
    let setup_sectors = match byte(0x1f1) {
        0 => 4,
        sectors => sectors,
    };
    let paragraphs = u64::from(u32::from_le_bytes(at(head, 0x1f4).unwrap_or_default()));
    // Relative to 0x200; the text may lie beyond what was read.
    let offset = u64::from(u16::from_le_bytes(at(head, 0x20e).unwrap_or_default()));
    let mut text = [0; 128];
    let mut release = None;
    if offset != 0 {
        file.seek(SeekFrom::Start(0x200 + offset))?;
        let mut read = 0;
        while read < text.len() {
            match file.read(&mut text[read..])? {
                0 => break,
                more => read += more,
            }
        }
        let end = text.iter().position(|&byte| byte == 0 || byte == b' ').unwrap_or(text.len());
        release = std::str::from_utf8(&text[..end]).ok().filter(|text| !text.is_empty()).map(str::to_owned);
    }
    Ok((Header { arch: Arch::X86_64, release }, (setup_sectors + 1) * 512 + paragraphs * 16))
}

/// Where the last section of the PE file that an arm64 Image is ends. Its own `image_size` counts the BSS.
fn pe_end(head: &[u8]) -> Option<u64> {
    let word = |offset: usize| Some(u32::from_le_bytes(at(head, offset)?));
    let half = |offset: usize| Some(usize::from(u16::from_le_bytes(at(head, offset)?)));
    let pe = word(0x3c)? as usize;
    if at(head, pe)? != *b"PE\0\0" {
        return None;
    }
    let sections = half(pe + 6)?;
    let table = pe + 24 + half(pe + 20)?;
    let ends = (0..sections).map(|index| {
        let section = table + index * 40;
        Some(u64::from(word(section + 16)?) + u64::from(word(section + 20)?))
    });
    ends.collect::<Option<Vec<_>>>()?.into_iter().max()
}

fn at<const N: usize>(bytes: &[u8], offset: usize) -> Option<[u8; N]> {
    bytes.get(offset..offset.checked_add(N)?)?.try_into().ok()
}

/// A name for the usual mistakes.
fn what(head: &[u8]) -> &'static str {
    match head {
        [] => "an empty file",
        [0x7f, b'E', b'L', b'F', ..] => {
            "an ELF file (a vmlinux is not what boots: give arch/x86/boot/bzImage)"
        }
        [0x1f, 0x8b, ..] => "a gzip file (unpack it first)",
        [b'!', b'<', b'a', b'r', b'c', b'h', ..] => "a Debian package (unpack it with dpkg-deb -x)",
        [b'M', b'Z', _, _, b'z', b'i', b'm', b'g', ..] => {
            "a compressed EFI image (give the uncompressed Image)"
        }
        [b'<', ..] => "what looks like a web page",
        _ => "something else",
    }
}
