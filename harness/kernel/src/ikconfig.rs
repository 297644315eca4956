// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reads the configuration that a kernel has inside (`CONFIG_IKCONFIG`), as
//! `scripts/extract-ikconfig` of the kernel does. Arch and openSUSE set the option.

use super::{KernelError, envelope, image, io_error};
use flate2::read::GzDecoder;
use memchr::memmem;
use std::{
    fs::{self, File},
    io::{self, BufReader, Read, Seek, SeekFrom},
    path::{Path, PathBuf},
};
use tramplab_archive::{Compression, Streams};
use tramplab_host::cache::Cache;

const KIND: &str = "kernel-config";
/// Bytes of an unpacked kernel. Debian's has 60 MB.
const MOST: u64 = 512 << 20;
/// Bytes of a configuration. Debian's has 300 KiB.
pub const MOST_CONFIG: u64 = 16 << 20;
/// Before the configuration, which is compressed by gzip.
const MAGIC: &[u8] = b"IKCFG_ST";

/// Returns the configuration in the cache. None if the image has none, or is compressed in a way
/// that is not read.
pub fn cached(image: &Path, sha256: &str, cache: &Cache) -> Result<Option<PathBuf>, KernelError> {
    let entry = cache.entry(KIND, sha256, |folder| {
        let Some(text) = read(image).map_err(io_error("read", image))? else { return Ok(()) };
        let path = folder.join("config");
        fs::write(&path, text).map_err(io_error("write", &path))
    })?;
    let config = entry.join("config");
    Ok(config.is_file().then_some(config))
}

fn read(image: &Path) -> io::Result<Option<Vec<u8>>> {
    let mut file = envelope::open(image).or_else(|_| File::open(image))?;
    let mut kernel = Vec::new();
    let mut bytes = payload(&mut file)?.take(MOST);
    // Bytes before damage may have the configuration.
    let _ = bytes.read_to_end(&mut kernel);
    let Some(at) = memmem::find(&kernel, MAGIC) else { return Ok(None) };
    let mut text = Vec::new();
    let packed = &kernel[at + MAGIC.len()..];
    let is_read = GzDecoder::new(packed).take(MOST_CONFIG).read_to_end(&mut text).is_ok();
    Ok(is_read.then_some(text))
}

/// The kernel that a bzImage unpacks (Documentation/arch/x86/boot.rst), or a whole arm64 Image.
fn payload(file: &mut File) -> io::Result<Box<dyn Read + '_>> {
    let mut head = Vec::new();
    file.by_ref().take(0x250).read_to_end(&mut head)?;
    file.rewind()?;
    if head.len() < 0x250 || head[0x202..0x206] != *b"HdrS" {
        return Ok(Box::new(file));
    }
    let word = |at: usize| u64::from(u32::from_le_bytes(head[at..at + 4].try_into().expect("4")));
    let (offset, length) = (word(0x248), word(0x24c));
    file.seek(SeekFrom::Start(image::setup_size(&head) + offset))?;
    let mut start = Vec::new();
    file.by_ref().take(8).read_to_end(&mut start)?;
    let Some(compression) = Compression::of(&start) else { return Ok(Box::new(io::empty())) };
    let packed = io::Cursor::new(start).chain(file).take(length);
    compression.decoder(BufReader::new(packed), Streams::First)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::tests::{arm64, bz_image_of};
    use flate2::{Compression as Level, write::GzEncoder};
    use std::io::Write;

    /// The end of a kernel as kernel/configs.c has it.
    fn kernel(config: &str) -> Vec<u8> {
        [&[0; 5000], MAGIC, &gz(config.as_bytes()), b"IKCFG_ED", &[0; 99]].concat()
    }

    /// A bzImage with this payload, and the payload's length behind it.
    fn bz_image(payload: &[u8]) -> Vec<u8> {
        let mut image = bz_image_of("6.1-a");
        image[0x248..0x24c].copy_from_slice(&1024u32.to_le_bytes());
        image[0x24c..0x250].copy_from_slice(&(payload.len() as u32 + 4).to_le_bytes());
        image.extend(payload);
        image.extend([1, 2, 3, 4]);
        image
    }

    fn gz(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Level::fast());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    /// Such as one of another user.
    #[test]
    fn a_cache_that_cannot_be_written_breaks_no_image() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("bzImage");
        fs::write(&path, bz_image_of("6.1-a")).unwrap();
        fs::write(folder.path().join(KIND), "no folder").unwrap();
        let cache = Cache::at(folder.path(), true);
        assert!(matches!(cached(&path, "0", &cache), Err(KernelError::Cache(_))));
        let source = crate::Source::Path { image: path.clone(), vmlinux: None, config: None };
        let arch = tramplab_model::run::Arch::X86_64;
        let manifest = crate::Manifest { name: "a".into(), arch, source, configuration: None };
        let mut said = String::new();
        let image = crate::fetch(&manifest, &cache, &mut |line| said.push_str(line)).unwrap();
        assert_eq!((image.image, image.config_file), (path, None));
        assert!(said.starts_with("no configuration of "), "{said}");
    }

    #[test]
    fn reads_configurations_inside_images() {
        let kernel = kernel("CONFIG_A=y\n");
        let zst = zstd::encode_all(&*kernel, 1).unwrap();
        let mut xz =
            lzma_rust2::XzWriter::new(Vec::new(), lzma_rust2::XzOptions::with_preset(1)).unwrap();
        xz.write_all(&kernel).unwrap();
        for (name, image, has) in [
            ("zstd", bz_image(&zst), true),
            ("xz", bz_image(&xz.finish().unwrap()), true),
            ("arm64", [arm64(), kernel.clone()].concat(), true),
            ("gzip around arm64", gz(&[arm64(), kernel.clone()].concat()), true),
            ("lz4", bz_image(b"\x02\x21\x4c\x18abcd"), false),
            ("none", bz_image(&zstd::encode_all(&b"vmlinux"[..], 1).unwrap()), false),
            ("damaged", bz_image(&zst[..zst.len() / 2]), false),
            ("half a configuration", [arm64(), kernel[..5020].to_vec()].concat(), false),
            ("short", b"HdrS".to_vec(), false),
        ] {
            let file = tempfile::NamedTempFile::new().unwrap();
            fs::write(&file, image).unwrap();
            let config = read(file.path()).unwrap();
            let expected = has.then(|| b"CONFIG_A=y\n".to_vec());
            assert_eq!(config, expected, "{name}");
        }
    }
}
