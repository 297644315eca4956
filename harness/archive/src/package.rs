// SPDX-License-Identifier: MIT OR Apache-2.0
//! Unpacks the files of a package: `.deb`, `.rpm`, or pacman's `.pkg.tar.*`. Runs none of its
//! scripts.

use crate::{
    ArchiveError,
    compression::{Compression, Streams},
    deb, io_error, rpm, tarball,
    unpacking::{BUFFER, Unpacking},
};
use std::{
    fs,
    io::{self, BufRead, BufReader, Read},
    path::Path,
};

/// Bytes of all files. A package with a kernel's debug information has 3 GB.
pub const MOST: u64 = 16 << 30;
/// Bytes of a tar archive's first header.
const BLOCK: u64 = 512;

/// Unpacks those files of a package whose paths are wanted. The package's first bytes tell its
/// format. Nothing leads out of the folder: absolute links become links within it. After several
/// packages, call [`check_links`](crate::check_links). Fails if the files have more than `most`
/// bytes.
pub fn unpack(
    package: &Path,
    folder: &Path,
    most: u64,
    wanted: impl Fn(&Path) -> bool,
) -> Result<(), ArchiveError> {
    let name = package.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let file = fs::File::open(package).map_err(io_error("read", package))?;
    let mut file = BufReader::with_capacity(BUFFER, file);
    let start = file.fill_buf().map_err(io_error("read", package))?;
    let (is_deb, is_rpm) = (start.starts_with(deb::MAGIC), start.starts_with(rpm::MAGIC));
    let compression = Compression::of(start);
    let mut unpacking = Unpacking::new(&name, folder, most, &wanted)?;
    let done = if is_deb {
        deb::unpack(file, &mut unpacking)
    } else if is_rpm {
        rpm::unpack(file, &mut unpacking)
    } else {
        of_pacman(file, compression, &mut unpacking)
    };
    unpacking.check_links().and(done)
}

fn of_pacman(
    file: impl BufRead,
    compression: Option<Compression>,
    unpacking: &mut Unpacking,
) -> Result<(), ArchiveError> {
    let mut data: Box<dyn Read> = match compression {
        None => Box::new(file),
        Some(compression) => {
            compression.decoder(file, Streams::All).map_err(|why| unpacking.broken(why))?
        }
    };
    let mut block = Vec::new();
    let read = (&mut data).take(BLOCK).read_to_end(&mut block);
    read.map_err(|why| unpacking.broken(why))?;
    if !tarball::is_tar(&block) {
        let why = "expected a .deb, an .rpm, or a .pkg.tar.zst, .pkg.tar.xz or .pkg.tar.gz";
        return Err(unpacking.broken(io::Error::other(why)));
    }
    tarball::unpack((&*block).chain(data), unpacking)
}
