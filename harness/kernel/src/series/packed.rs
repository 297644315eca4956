// SPDX-License-Identifier: MIT OR Apache-2.0
//! Unpacks files as archives offer them: lore.kernel.org has `.mbox.gz`, distributions have
//! tarballs of patches. All are a stranger's, so sizes, names and kinds of entries are checked.

use std::{
    fs,
    io::{self, ErrorKind, Read},
    path::{Component, Path, PathBuf},
};
use tar::{Archive, EntryType};
use tramplab_archive::{Compression, Streams};

/// Most KiB that a decoder of xz may use. `xz -9` needs 65 MiB.
const XZ_MEMORY: u32 = 128 << 10;
/// Most folders in one another. An archive of patches has two or three; long names would fill the
/// disk with folders.
const DEEPEST: usize = 16;

/// The first bytes of formats that are not read.
const UNREAD: [(&[u8], &str); 2] = [(b"BZh", "bzip2"), (b"PK\x03\x04", "zip")];

#[derive(Debug, thiserror::Error)]
pub enum PackedError {
    #[error("it unpacks to more than {} MiB; expected only patches", .most >> 20)]
    TooBig { most: u64 },
    #[error("it is {0}, which is not read; unpack it first (gzip, xz, zstd and tar are read)")]
    Unread(&'static str),
    #[error("it is {format}, and damaged or not complete: {source}")]
    Damaged { format: Compression, source: io::Error },
    #[error("it is a tar archive, and damaged or not complete: {0}")]
    Tar(io::Error),
    #[error("it is a tar archive with more than {0} entries; expected only patches")]
    TooMany(usize),
    #[error("its entry `{}` {why}; expected only files and folders inside it", .entry.display())]
    Entry { entry: PathBuf, why: &'static str },
    #[error("failed to unpack it into {}: {source}", .folder.display())]
    Write { folder: PathBuf, source: io::Error },
}

/// Undoes a compression. Other bytes stay as they are.
pub fn unpack(bytes: Vec<u8>, most: u64) -> Result<Vec<u8>, PackedError> {
    if let Some((_, format)) = UNREAD.iter().find(|(magic, _)| bytes.starts_with(magic)) {
        return Err(PackedError::Unread(format));
    }
    let Some(format) = Compression::of(&bytes) else { return Ok(bytes) };
    let damaged = |source| PackedError::Damaged { format, source };
    let decoder = format.decoder_within(&*bytes, Streams::All, XZ_MEMORY).map_err(damaged)?;
    let mut whole = Vec::new();
    decoder.take(most + 1).read_to_end(&mut whole).map_err(damaged)?;
    if whole.len() as u64 > most { Err(PackedError::TooBig { most }) } else { Ok(whole) }
}

/// Writes the files of a tar archive below an empty folder. Their sizes together are limited.
pub fn extract(
    tar: &[u8],
    folder: &Path,
    most_bytes: u64,
    most_entries: usize,
) -> Result<(), PackedError> {
    let mut left = most_bytes;
    let mut archive = Archive::new(tar);
    for (count, entry) in archive.entries().map_err(PackedError::Tar)?.enumerate() {
        let mut entry = entry.map_err(PackedError::Tar)?;
        if count == most_entries {
            return Err(PackedError::TooMany(most_entries));
        }
        let name = entry.path().map_err(PackedError::Tar)?.into_owned();
        let refused = |why| PackedError::Entry { entry: name.clone(), why };
        let failed = |source: io::Error| match source.kind() {
            ErrorKind::InvalidFilename => refused("has too long a name"),
            ErrorKind::AlreadyExists | ErrorKind::NotADirectory | ErrorKind::IsADirectory => {
                refused("is there twice")
            }
            _ => PackedError::Write { folder: folder.to_owned(), source },
        };
        let is_file = match entry.header().entry_type() {
            EntryType::Regular | EntryType::Continuous => true,
            EntryType::Directory => false,
            // git writes the commit's id there.
            EntryType::XGlobalHeader => continue,
            EntryType::Link | EntryType::Symlink => return Err(refused("is a link")),
            _ => return Err(refused("is no ordinary file")),
        };
        let plain = |part| matches!(part, Component::Normal(_) | Component::CurDir);
        if !name.components().all(plain) {
            return Err(refused("leads out of the archive"));
        }
        if name.components().count() > DEEPEST {
            return Err(refused("is too many folders deep"));
        }
        let path = folder.join(&name);
        if !is_file {
            fs::create_dir_all(&path).map_err(failed)?;
            continue;
        }
        let mut bytes = Vec::new();
        entry.by_ref().take(left + 1).read_to_end(&mut bytes).map_err(PackedError::Tar)?;
        left =
            left.checked_sub(bytes.len() as u64).ok_or(PackedError::TooBig { most: most_bytes })?;
        fs::create_dir_all(path.parent().unwrap_or(folder)).map_err(failed)?;
        let mut file = fs::File::create_new(&path).map_err(failed)?;
        io::copy(&mut &*bytes, &mut file).map_err(failed)?;
    }
    Ok(())
}

/// Follows folders that have nothing but one folder: most archives have one at the top.
pub fn top(folder: &Path) -> io::Result<PathBuf> {
    let mut top = folder.to_owned();
    loop {
        let mut entries = fs::read_dir(&top)?;
        match (entries.next().transpose()?, entries.next()) {
            (Some(only), None) if only.file_type()?.is_dir() => top = only.path(),
            _ => return Ok(top),
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use std::io::Write;

    const MOST: u64 = 1 << 20;

    pub fn packed(format: Compression, bytes: &[u8]) -> Vec<u8> {
        match format {
            Compression::Gzip => {
                let mut writer = flate2::write::GzEncoder::new(Vec::new(), Default::default());
                writer.write_all(bytes).unwrap();
                writer.finish().unwrap()
            }
            Compression::Xz => {
                let options = lzma_rust2::XzOptions::with_preset(1);
                let mut writer = lzma_rust2::XzWriter::new(Vec::new(), options).unwrap();
                writer.write_all(bytes).unwrap();
                writer.finish().unwrap()
            }
            Compression::Zstd => zstd::encode_all(bytes, 1).unwrap(),
        }
    }

    #[test]
    fn unpacks_each_format_and_stops_bombs() {
        // A thousandth of it, packed.
        let bomb = vec![b'\n'; 8 << 20];
        for format in [Compression::Gzip, Compression::Xz, Compression::Zstd] {
            let file = packed(format, b"From a\n");
            // Several files can be packed one after the other.
            let twice = [&file[..], &file].concat();
            assert_eq!(unpack(twice, MOST).unwrap(), b"From a\nFrom a\n", "{format}");
            let half = file[..file.len() - 6].to_vec();
            let error = unpack(half, MOST).unwrap_err();
            assert!(matches!(error, PackedError::Damaged { format: of, .. } if of == format));
            let small = packed(format, &bomb);
            assert!(small.len() < bomb.len() / 500, "{format}: {}", small.len());
            let error = unpack(small, MOST).unwrap_err();
            assert!(matches!(error, PackedError::TooBig { most: MOST }), "{format}: {error}");
        }
        for (bytes, format) in [(&b"BZh91AY"[..], "bzip2"), (b"PK\x03\x04", "zip")] {
            let error = unpack(bytes.to_vec(), MOST).unwrap_err();
            assert!(matches!(error, PackedError::Unread(of) if of == format), "{error}");
        }
        assert_eq!(unpack(b"From a\n".to_vec(), 0).unwrap(), b"From a\n");
    }

    /// A few bytes may ask for much memory.
    #[test]
    fn limits_the_memory_that_a_file_asks_for() {
        let mut file = packed(Compression::Xz, b"From a\n");
        // The block's header behind that of the stream: the size of the dictionary, and a checksum.
        for (size, is_read) in [(28, true), (31, false)] {
            file[16] = size;
            let mut sum = flate2::Crc::new();
            sum.update(&file[12..20]);
            file[20..24].copy_from_slice(&sum.sum().to_le_bytes());
            match unpack(file.clone(), MOST) {
                Ok(text) => assert!(is_read && text == b"From a\n", "{size}"),
                Err(error) => assert!(!is_read, "{size}: {error}"),
            }
        }
    }

    /// An archive of entries, whose names are not checked.
    fn archive(entries: &[(&str, EntryType, &str)]) -> Vec<u8> {
        let mut builder = tar::Builder::new(Vec::new());
        for (name, kind, content) in entries {
            let mut header = tar::Header::new_gnu();
            header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
            header.set_entry_type(*kind);
            header.set_size(content.len() as u64);
            header.set_mode(0o644);
            if kind.is_symlink() || kind.is_hard_link() {
                header.set_link_name("/etc/passwd").unwrap();
            }
            header.set_cksum();
            builder.append(&header, content.as_bytes()).unwrap();
        }
        builder.into_inner().unwrap()
    }

    #[test]
    fn extracts_only_files_inside_the_folder() {
        use EntryType::*;
        let extracted = |entries: &[(&str, EntryType, &str)], bytes, count| {
            let outer = tempfile::tempdir().unwrap();
            let folder = outer.path().join("in");
            fs::create_dir(&folder).unwrap();
            let tar = archive(entries);
            assert!(tramplab_archive::is_tar(&tar));
            let done = extract(&tar, &folder, bytes, count);
            assert_eq!(fs::read_dir(outer.path()).unwrap().count(), 1, "{entries:?}");
            (done, outer)
        };
        let good = [
            ("pax", XGlobalHeader, ""),
            ("p/", Directory, ""),
            ("p/series", Regular, "a\n"),
            ("./p/q/a", Regular, "diff"),
        ];
        let (done, outer) = extracted(&good, MOST, 4);
        done.unwrap();
        let top = top(&outer.path().join("in")).unwrap();
        assert_eq!(top, outer.path().join("in/p"));
        assert_eq!(fs::read(top.join("q/a")).unwrap(), b"diff");
        assert!(matches!(extracted(&good, MOST, 3).0, Err(PackedError::TooMany(3))));
        assert!(matches!(extracted(&good, 5, 4).0, Err(PackedError::TooBig { most: 5 })));
        for (name, kind, wrong) in [
            ("../a", Regular, "leads out of the archive"),
            ("p/../../a", Regular, "leads out of the archive"),
            ("/tmp/tramplab-a", Regular, "leads out of the archive"),
            ("../folder", Directory, "leads out of the archive"),
            ("1/2/3/4/5/6/7/8/9/10/11/12/13/14/15/16/a", Regular, "is too many folders deep"),
            ("a", Symlink, "is a link"),
            ("a", Link, "is a link"),
            ("a", Fifo, "is no ordinary file"),
            ("a", Block, "is no ordinary file"),
            ("p/series", Regular, "is there twice"),
            ("p/series/b", Regular, "is there twice"),
            ("p", Regular, "is there twice"),
        ] {
            let entries = [("p/series", Regular, "a\n"), (name, kind, "")];
            match extracted(&entries, MOST, 9).0 {
                Err(PackedError::Entry { entry, why }) => {
                    assert_eq!((entry.as_path(), why), (Path::new(name), wrong));
                }
                other => panic!("{name}: {other:?}"),
            }
        }
        let cut = &archive(&good)[..1500];
        let folder = tempfile::tempdir().unwrap();
        assert!(matches!(extract(cut, folder.path(), MOST, 9), Err(PackedError::Tar(_))));
    }
}
