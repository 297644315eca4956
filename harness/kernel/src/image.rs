// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reads an image's header: is the file a bootable kernel, and is it complete?

use super::envelope;
use memchr::memmem;
use std::{
    fs::File,
    io::{self, Read, Seek, SeekFrom},
    path::Path,
};
use tramplab_model::run::Arch;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    pub arch: Arch,
    /// As `uname -r` prints it: `6.12.107+deb13-cloud-amd64`. None for an arm64 Image: see
    /// [`banner`].
    pub release: Option<String>,
    /// As `uname -v` prints it: `#1 SMP PREEMPT_DYNAMIC Debian 6.12.107-1 (2026-11-02)`.
    pub version: Option<String>,
}

#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    #[error("failed to read it: {0}")]
    Read(#[from] io::Error),
    #[error("it is not a kernel image: expected an x86-64 bzImage or an arm64 Image, found {0}")]
    NotAnImage(&'static str),
    #[error("it is truncated: {length} bytes long; its header says at least {expected}")]
    Truncated { length: u64, expected: u64 },
    #[error("it is a kernel for {}; expected one for {}", found.name(), expected.name())]
    WrongArch { found: Arch, expected: Arch },
    #[error("it is of {found}; expected {expected}, as its path says")]
    OtherRelease { found: String, expected: String },
    /// An image inside another file cannot be unpacked.
    #[error("{0}")]
    Packed(String),
}

/// Enough bytes for both headers and for the section table of an arm64 Image.
const HEAD: u64 = 4096;
/// Bytes of the text with the release and the version.
const LONGEST: u64 = 1024;
/// Bytes of an image that are searched. Debian's arm64 Image has 38 MB.
const MOST: u64 = 512 << 20;
const BANNER: &[u8] = b"Linux version ";

pub fn check(path: &Path, expected: Arch) -> Result<Header, ImageError> {
    let header = read(path)?;
    let found = header.arch;
    if found == expected { Ok(header) } else { Err(ImageError::WrongArch { found, expected }) }
}

/// Reads the header of an image, also of one inside another file.
pub fn read(path: &Path) -> Result<Header, ImageError> {
    let mut file = envelope::open(path)?;
    let length = file.metadata()?.len();
    let mut head = Vec::new();
    (&mut file).take(HEAD).read_to_end(&mut head)?;
    let (header, expected) = if at(&head, 0x202) == Some(*b"HdrS") {
        x86(&head, &mut file)?
    } else if at(&head, 0x38) == Some(*b"ARM\x64") {
        (Header { arch: Arch::Arm64, release: None, version: None }, pe_end(&head).unwrap_or(HEAD))
    } else {
        return Err(ImageError::NotAnImage(what(&head)));
    };
    if length < expected { Err(ImageError::Truncated { length, expected }) } else { Ok(header) }
}

/// See Documentation/arch/x86/boot.rst of the kernel.
fn x86(head: &[u8], file: &mut File) -> Result<(Header, u64), ImageError> {
    let paragraphs = u64::from(u32::from_le_bytes(at(head, 0x1f4).unwrap_or_default()));
    // The offset is relative to 0x200. The text may lie beyond `head`.
    let offset = u64::from(u16::from_le_bytes(at(head, 0x20e).unwrap_or_default()));
    let mut text = Vec::new();
    if offset != 0 {
        file.seek(SeekFrom::Start(0x200 + offset))?;
        file.take(LONGEST).read_to_end(&mut text)?;
    }
    let (release, version) = build_of(&text);
    let size = setup_size(head) + paragraphs * 16;
    Ok((Header { arch: Arch::X86_64, release, version }, size))
}

/// Bytes in front of the part of a bzImage that runs in protected mode.
pub fn setup_size(head: &[u8]) -> u64 {
    // 0 means 4, for backward compatibility.
    let sectors = match head.get(0x1f1).copied().unwrap_or(0) {
        0 => 4,
        sectors => sectors,
    };
    (u64::from(sectors) + 1) * 512
}

/// Splits `6.1-a (user@host) #1 SMP date` into the release and the version. The text ends at a zero
/// byte or at a line's end; without an end its version is not known.
fn build_of(text: &[u8]) -> (Option<String>, Option<String>) {
    let end = text.iter().position(|&byte| byte == 0 || byte == b'\n');
    let text = String::from_utf8_lossy(&text[..end.unwrap_or(text.len())]);
    let release = text.split(' ').next().filter(|release| !release.is_empty());
    let version = end.and(text.split_once(" #")).map(|(_, version)| format!("#{}", version.trim()));
    (release.map(str::to_owned), version)
}

/// The release and the version in the text that a kernel prints first. None if an image lacks it,
/// or has it compressed, as on x86-64.
pub fn banner(path: &Path) -> Result<Option<(String, String)>, ImageError> {
    let mut image = Vec::new();
    envelope::open(path)?.take(MOST).read_to_end(&mut image)?;
    let texts = memmem::find_iter(&image, BANNER).map(|at| {
        let text = &image[at + BANNER.len()..];
        build_of(&text[..text.len().min(LONGEST as usize)])
    });
    Ok(texts.into_iter().find_map(|(release, version)| release.zip(version)))
}

/// Returns the end of the last PE section of an arm64 Image. The header's `image_size` is no use:
/// it counts the BSS.
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

/// Names the file types that users often pass by mistake.
fn what(head: &[u8]) -> &'static str {
    match head {
        [] => "an empty file",
        [0x7f, b'E', b'L', b'F', ..] => {
            "an ELF file (a vmlinux does not boot: pass arch/x86/boot/bzImage or \
             arch/arm64/boot/Image)"
        }
        [b'!', b'<', b'a', b'r', b'c', b'h', ..] => "a Debian package (its name must end in .deb)",
        [0xed, 0xab, 0xee, 0xdb, ..] => "an RPM package (its name must end in .rpm)",
        [b'M', b'Z', ..] => "an EFI program without a kernel inside",
        [b'<', ..] => "what looks like a web page",
        _ => "something else",
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use std::io::Write;

    /// The smallest whole image of a release.
    pub fn bz_image_of(release: &str) -> Vec<u8> {
        let mut image = vec![0; 2048];
        image[0x1f1] = 1;
        image[0x202..0x206].copy_from_slice(b"HdrS");
        image[0x20e..0x210].copy_from_slice(&0x100u16.to_le_bytes());
        image[0x300..0x300 + release.len()].copy_from_slice(release.as_bytes());
        image
    }

    /// Fills in only the fields that are read. The values are those of Debian's unsigned 6.12.107,
    /// a file of 11,706,880 bytes.
    fn bz_image() -> Vec<u8> {
        let mut head = vec![0; 20 * 1024];
        head[0x1f1] = 39;
        head[0x1f4..0x1f8].copy_from_slice(&730_400u32.to_le_bytes());
        head[0x202..0x206].copy_from_slice(b"HdrS");
        head[0x20e..0x210].copy_from_slice(&0x4300u16.to_le_bytes());
        let text = b"6.12.107+deb13-cloud-amd64 (debian-kernel@lists.debian.org) #1 SMP\0";
        head[0x4500..0x4500 + text.len()].copy_from_slice(text);
        head
    }

    /// A made-up arm64 Image with two sections. The last ends at 0x30000.
    pub fn arm64() -> Vec<u8> {
        let mut head = vec![0; 4096];
        head[..2].copy_from_slice(b"MZ");
        head[0x38..0x3c].copy_from_slice(b"ARM\x64");
        head[0x3c..0x40].copy_from_slice(&0x40u32.to_le_bytes());
        head[0x40..0x44].copy_from_slice(b"PE\0\0");
        head[0x46..0x48].copy_from_slice(&2u16.to_le_bytes());
        head[0x54..0x56].copy_from_slice(&0xa0u16.to_le_bytes());
        let table = 0x40 + 24 + 0xa0;
        for (index, size, at) in [(0, 0x10000u32, 0x10000u32), (1, 0x10000, 0x20000)] {
            let section = table + index * 40;
            head[section + 16..section + 20].copy_from_slice(&size.to_le_bytes());
            head[section + 20..section + 24].copy_from_slice(&at.to_le_bytes());
        }
        head
    }

    fn file(head: &[u8], length: u64) -> tempfile::NamedTempFile {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(head).unwrap();
        file.as_file().set_len(length).unwrap();
        file
    }

    #[test]
    fn rejects_truncated_images_and_other_files() {
        const X86: u64 = 11_706_880;
        let is_no = |what: &str| {
            format!(
                "it is not a kernel image: expected an x86-64 bzImage or an arm64 Image, found \
                 {what}"
            )
        };
        for (name, head, length, expected) in [
            ("whole", bz_image(), X86, Ok((Arch::X86_64, Some("6.12.107+deb13-cloud-amd64")))),
            (
                "signed, so longer",
                bz_image(),
                X86 + 1500,
                Ok((Arch::X86_64, Some("6.12.107+deb13-cloud-amd64"))),
            ),
            (
                "truncated",
                bz_image(),
                X86 - 1,
                Err("it is truncated: 11706879 bytes long; its header says at least 11706880"
                    .to_owned()),
            ),
            (
                "only its first sectors",
                bz_image(),
                1024,
                Err("it is truncated: 1024 bytes long; its header says at least 11706880"
                    .to_owned()),
            ),
            ("arm64", arm64(), 0x30000, Ok((Arch::Arm64, None))),
            (
                "arm64 truncated",
                arm64(),
                0x2ffff,
                Err("it is truncated: 196607 bytes long; its header says at least 196608"
                    .to_owned()),
            ),
            ("empty", vec![], 0, Err(is_no("an empty file"))),
            (
                "vmlinux",
                b"\x7fELF\x02".to_vec(),
                9000,
                Err(is_no(
                    "an ELF file (a vmlinux does not boot: pass arch/x86/boot/bzImage or \
                     arch/arm64/boot/Image)",
                )),
            ),
            ("page", b"<!doctype html>".to_vec(), 300, Err(is_no("what looks like a web page"))),
            (
                "package",
                b"!<arch>\n".to_vec(),
                300,
                Err(is_no("a Debian package (its name must end in .deb)")),
            ),
            ("zeros", vec![0; 2048], 2048, Err(is_no("something else"))),
        ] {
            let file = file(&head, length);
            let result = read(file.path()).map_err(|error| error.to_string());
            let expected = expected.map(|(arch, release)| Header {
                arch,
                release: release.map(str::to_owned),
                version: release.map(|_| "#1 SMP".to_owned()),
            });
            assert_eq!(result, expected, "{name}");
        }
        let wrong = check(file(&arm64(), 0x30000).path(), Arch::X86_64).unwrap_err().to_string();
        assert_eq!(wrong, "it is a kernel for arm64; expected one for x86_64");
    }

    proptest::proptest! {
        /// Any header gives a result without a panic.
        #[test]
        fn no_header_panics_the_reader(mut head: Vec<u8>, arm in proptest::bool::ANY) {
            let magic: (usize, &[u8]) = if arm { (0x38, b"ARM\x64") } else { (0x202, b"HdrS") };
            if head.len() >= magic.0 + 4 {
                head[magic.0..magic.0 + 4].copy_from_slice(magic.1);
            }
            let length = head.len() as u64;
            let _ = read(file(&head, length).path());
        }
    }
}
