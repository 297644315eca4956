// SPDX-License-Identifier: MIT OR Apache-2.0
//! Images inside other files, which QEMU does not boot: compressed by gzip, EFI zboot images
//! (both arm64), and unified kernel images. All may be a stranger's.

use super::image::ImageError;
use object::{Object, ObjectSection, ReadCache, read::pe::PeFile64};
use std::{
    fs::File,
    io::{self, BufReader, Read, Seek, SeekFrom},
    path::Path,
};
use tramplab_archive::{Compression, Streams};
use tramplab_host::regular;

/// Bytes of an image, and of a file with one. Debian's arm64 Image has 38 MB.
const MOST: u64 = 1 << 30;
/// Enough bytes to tell the formats apart.
const HEAD: u64 = 0x210;
/// A unified image may hold a zboot image.
const DEEPEST: usize = 3;

/// Where an image lies inside a file.
#[derive(Debug)]
struct Inner {
    offset: u64,
    size: u64,
    compression: Option<Compression>,
}

/// Opens an image, or the image inside a file.
pub fn open(path: &Path) -> Result<File, ImageError> {
    let mut file = regular::open_typed(path)?;
    if let Some(bare) = bare(&mut file)? {
        file = bare;
    }
    file.rewind()?;
    Ok(file)
}

/// Returns the image inside a file. None if the file is not such a one.
pub fn bare(file: &mut File) -> Result<Option<File>, ImageError> {
    bare_up_to(MOST, file)
}

fn bare_up_to(most: u64, file: &mut File) -> Result<Option<File>, ImageError> {
    let Some(inner) = find(most, file)? else { return Ok(None) };
    let mut image = unpack(most, file, &inner)?;
    for _ in 0..DEEPEST {
        match find(most, &mut image)? {
            Some(inner) => image = unpack(most, &mut image, &inner)?,
            None => return Ok(Some(image)),
        }
    }
    Err(ImageError::Packed("it has images in images".to_owned()))
}

fn find(most: u64, file: &mut File) -> Result<Option<Inner>, ImageError> {
    let length = file.metadata()?.len();
    file.rewind()?;
    let mut head = Vec::new();
    (&mut *file).take(HEAD).read_to_end(&mut head)?;
    let word = |offset: usize| {
        let bytes = head.get(offset..offset + 4)?;
        Some(u64::from(u32::from_le_bytes(bytes.try_into().ok()?)))
    };
    let is = |offset: usize, magic: &[u8]| head.get(offset..offset + magic.len()) == Some(magic);
    // These have the header of a PE file, too.
    if is(0x202, b"HdrS") || is(0x38, b"ARM\x64") {
        return Ok(None);
    }
    let inner = if is(0, b"\x1f\x8b") {
        Inner { offset: 0, size: length, compression: Some(Compression::Gzip) }
    } else if is(0, b"MZ") && is(4, b"zimg") {
        // drivers/firmware/efi/libstub/zboot-header.S.
        let (offset, size) = (word(8).unwrap_or(u64::MAX), word(12).unwrap_or(0));
        let mut start = Vec::new();
        file.seek(SeekFrom::Start(offset.min(length)))?;
        (&mut *file).take(8).read_to_end(&mut start)?;
        let compression = Compression::of(&start).ok_or_else(|| {
            let name = head.get(0x18..0x38).unwrap_or_default();
            let name = name.split(|&byte| byte == 0).next().unwrap_or_default();
            ImageError::Packed(format!(
                "it is an EFI zboot image, compressed by {}: expected gzip, zstd or xz; pass \
                 arch/arm64/boot/Image",
                String::from_utf8_lossy(name).escape_default()
            ))
        })?;
        Inner { offset, size, compression: Some(compression) }
    } else if is(0, b"MZ") {
        if length > most {
            return Err(too_big(most));
        }
        let Some((offset, size)) = section(file) else { return Ok(None) };
        Inner { offset, size, compression: None }
    } else {
        return Ok(None);
    };
    let expected = inner.offset.saturating_add(inner.size);
    if length < expected {
        return Err(ImageError::Truncated { length, expected });
    }
    Ok(Some(inner))
}

/// The kernel of a unified kernel image:
/// <https://uapi-group.org/specifications/specs/unified_kernel_image/>.
fn section(file: &File) -> Option<(u64, u64)> {
    let cache = ReadCache::new(file);
    let pe = PeFile64::parse(&cache).ok()?;
    pe.section_by_name(".linux")?.file_range()
}

fn unpack(most: u64, file: &mut File, inner: &Inner) -> Result<File, ImageError> {
    file.seek(SeekFrom::Start(inner.offset))?;
    let bytes = BufReader::with_capacity(128 << 10, file.take(inner.size));
    let bytes: Box<dyn Read> = match inner.compression {
        Some(compression) => compression.decoder(bytes, Streams::First).map_err(damaged)?,
        None => Box::new(bytes),
    };
    let mut image = tempfile::tempfile()?;
    let copied = io::copy(&mut bytes.take(most + 1), &mut image).map_err(damaged)?;
    if copied > most { Err(too_big(most)) } else { Ok(image) }
}

fn damaged(error: io::Error) -> ImageError {
    ImageError::Packed(format!("the image in it is damaged: {error}"))
}

fn too_big(most: u64) -> ImageError {
    ImageError::Packed(format!("it has more than {} MiB", most >> 20))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::image::{self, tests::*};
    use flate2::{Compression as Level, write::GzEncoder};
    use std::{fs, io::Write};
    use tramplab_model::run::Arch;
    use tramplab_testdata::packed::efi;

    fn gz(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Level::fast());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    /// As zboot-header.S has it, with bytes behind the payload.
    fn zboot(compression: &[u8], payload: &[u8]) -> Vec<u8> {
        let mut image = vec![0; 0x1000];
        image[..2].copy_from_slice(b"MZ");
        image[4..8].copy_from_slice(b"zimg");
        image[8..12].copy_from_slice(&0x1000u32.to_le_bytes());
        image[12..16].copy_from_slice(&(payload.len() as u32).to_le_bytes());
        image[0x18..0x18 + compression.len()].copy_from_slice(compression);
        image.extend(payload);
        image.extend([0; 64]);
        image
    }

    fn uki(kernel: &[u8]) -> Vec<u8> {
        efi(&[(b".uname", b"6.1-a"), (b".linux", kernel), (b".initrd", b"initrd")])
    }

    fn read(bytes: &[u8]) -> Result<(Arch, Option<String>), String> {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(&file, bytes).unwrap();
        let header = image::read(file.path()).map_err(|error| error.to_string())?;
        Ok((header.arch, header.release))
    }

    fn whole_arm64() -> Vec<u8> {
        let mut arm = arm64();
        arm.resize(0x30000, 0);
        arm
    }

    #[test]
    fn finds_images_in_other_files() {
        let (arm, x86) = (whole_arm64(), bz_image_of("6.1-a"));
        let zst = zstd::encode_all(&*arm, 1).unwrap();
        let (in_arm, in_x86) = (Ok((Arch::Arm64, None)), Ok((Arch::X86_64, Some("6.1-a".into()))));
        for (name, bytes, expected) in [
            ("gzip", gz(&arm), &in_arm),
            ("gzip of x86", gz(&x86), &in_x86),
            ("zboot, gzip", zboot(b"gzip", &gz(&arm)), &in_arm),
            ("zboot, zstd", zboot(b"zstd", &zst), &in_arm),
            ("unified", uki(&x86), &in_x86),
            ("unified zboot", uki(&zboot(b"zstd", &zst)), &in_arm),
        ] {
            assert_eq!(&read(&bytes), expected, "{name}");
        }
    }

    #[test]
    fn rejects_damaged_and_strange_files() {
        let arm = whole_arm64();
        let mut outside = zboot(b"gzip", &gz(&arm));
        outside[8..12].copy_from_slice(&u32::MAX.to_le_bytes());
        let unified = uki(&bz_image_of("6.1-a"));
        let four = gz(&gz(&gz(&gz(&arm))));
        let packed = gz(&arm);
        for (name, bytes, expected) in [
            ("half a gzip", packed[..packed.len() / 2].to_vec(), "is damaged"),
            ("half a zboot", zboot(b"gzip", &packed)[..0x1010].to_vec(), "it is truncated"),
            ("a zboot of lz4", zboot(b"lz4", b"\x02\x21\x4c\x18abcd"), "compressed by lz4"),
            ("a payload outside", outside, "compressed by gzip"),
            ("half a unified image", unified[..0x700].to_vec(), "it is truncated"),
            ("no kernel", efi(&[(b".text", b"a")]), "an EFI program without a kernel inside"),
            ("text in it", uki(b"text"), "not a kernel image"),
            ("many layers", four, "images in images"),
            ("a truncated image", gz(&arm[..0x20000]), "it is truncated"),
        ] {
            let error = read(&bytes).unwrap_err();
            assert!(error.contains(expected), "{name}: {error}");
        }
    }

    /// A kilobyte may stand for a terabyte.
    #[test]
    fn rejects_bombs() {
        let bomb = zstd::encode_all(&*vec![0; 2 << 20], 1).unwrap();
        assert!(bomb.len() < 1024);
        for file in [zboot(b"zstd", &bomb), uki(&vec![0; 2 << 20])] {
            let mut opened = tempfile::tempfile().unwrap();
            opened.write_all(&file).unwrap();
            let error = bare_up_to(1 << 20, &mut opened).unwrap_err().to_string();
            assert_eq!(error, "it has more than 1 MiB");
        }
    }

    proptest::proptest! {
        /// Any file gives a result without a panic.
        #[test]
        fn no_file_panics_the_reader(bytes: Vec<u8>, at in 0..0x420_usize, kind in 0..3) {
            let x86 = bz_image_of("6.1-a");
            let mut file = match kind {
                0 => uki(&x86),
                1 => zboot(b"gzip", &gz(&x86)),
                _ => gz(&x86),
            };
            let end = (at + bytes.len()).min(file.len());
            if at < end {
                file[at..end].copy_from_slice(&bytes[..end - at]);
            }
            let _ = read(&file);
        }
    }
}
