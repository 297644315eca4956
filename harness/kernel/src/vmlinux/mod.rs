// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reads a kernel's `vmlinux`: functions, their sizes and instructions, and source lines.
//!
//! A patch series can put anything into the file: every reader checks what it takes from it. The
//! debug information is read in a process of its own ([`crate::isolated`]): a few bytes of it may
//! take all memory.

mod disassembly;
mod keep;
mod lines;
mod names;
mod sizes;
#[cfg(test)]
mod tests;

use crate::isolated::IsolatedError;
use addr2line::gimli;
pub use disassembly::Parts;
use object::{Object, ObjectSymbol, SymbolKind};
use std::{
    fs, io,
    path::{Path, PathBuf},
};
use tramplab_host::{ChildError, cache::CacheError};

#[derive(Debug, thiserror::Error)]
pub enum VmlinuxError {
    #[error("failed to {action} {path}: {source}")]
    Io { action: &'static str, path: PathBuf, source: io::Error },
    #[error("failed to read {path}: expected an ELF file: {source}")]
    Elf { path: PathBuf, source: object::Error },
    #[error("failed to read the debug information of {path}: {source}")]
    Dwarf { path: PathBuf, source: gimli::Error },
    #[error("failed to read the debug information of {path}: {source}")]
    Isolated { path: PathBuf, source: IsolatedError },
    /// An error of the other process.
    #[error("{0}")]
    Told(String),
    #[error(
        "failed to find {triplet}-objdump: install the package binutils-{package}",
        package = .triplet.replace('_', "-")
    )]
    NoObjdump { triplet: &'static str },
    #[error(transparent)]
    Child(#[from] ChildError),
    #[error(transparent)]
    Cache(#[from] CacheError),
}

impl VmlinuxError {
    /// True if the user can fix it by installing a tool.
    pub fn is_usage(&self) -> bool {
        matches!(self, VmlinuxError::NoObjdump { .. })
    }
}

/// The file in memory.
pub struct Vmlinux {
    path: PathBuf,
    bytes: Vec<u8>,
}

/// Bytes of a `vmlinux`. It is read whole.
const MOST: u64 = 4 << 30;

/// A function's symbol.
struct Function<'a> {
    name: &'a str,
    address: u64,
    size: u64,
    is_global: bool,
    section: Option<object::SectionIndex>,
}

impl Vmlinux {
    pub fn read(path: &Path) -> Result<Vmlinux, VmlinuxError> {
        let size = fs::metadata(path).map_err(io_error("read", path))?.len();
        if size > MOST {
            let most = MOST >> 30;
            let why = format!("it has more than {most} GiB; expected a kernel's vmlinux");
            return Err(io_error("read", path)(io::Error::new(io::ErrorKind::InvalidInput, why)));
        }
        let bytes = fs::read(path).map_err(io_error("read", path))?;
        Ok(Vmlinux { path: path.to_owned(), bytes })
    }

    fn elf(&self) -> Result<object::File<'_>, VmlinuxError> {
        let error = |source| VmlinuxError::Elf { path: self.path.clone(), source };
        object::File::parse(&*self.bytes).map_err(error)
    }
}

/// Bytes of the longest name (K `include/linux/kallsyms.h`, `KSYM_NAME_LEN`).
const LONGEST_NAME: usize = 512;

/// Symbols that are read, at most. Real kernels have a quarter of a million.
const MOST_SYMBOLS: usize = 1 << 22;

/// The symbols of these kinds with their names. `__pfx_NAME` is the padding before a function. Ends
/// early if all names together are longer than the file: a hostile symbol table could name its
/// strings again and again.
fn named<'a>(
    elf: &'a object::File<'_>,
    length: usize,
    is_wanted: fn(SymbolKind) -> bool,
) -> impl Iterator<Item = (&'a str, object::Symbol<'a, 'a>)> {
    let mut left = length;
    let named = move |symbol: object::Symbol<'a, 'a>| {
        let name = symbol.name().ok()?;
        left = left.checked_sub(name.len())?;
        Some((name, symbol))
    };
    let is_name = |name: &str| name.len() <= LONGEST_NAME && !name.starts_with("__pfx_");
    let wanted = elf.symbols().take(MOST_SYMBOLS).filter(move |symbol| is_wanted(symbol.kind()));
    wanted.map_while(named).filter(move |(name, _)| is_name(name))
}

fn functions<'a>(elf: &'a object::File<'_>, length: usize) -> impl Iterator<Item = Function<'a>> {
    named(elf, length, |kind| kind == SymbolKind::Text).map(|(name, symbol)| Function {
        name,
        address: symbol.address(),
        size: symbol.size(),
        is_global: symbol.is_global(),
        section: symbol.section_index(),
    })
}

/// `foo.constprop.0.cold` becomes `foo.constprop.cold`: another build numbers differently.
fn without_numbers(name: &str) -> String {
    let mut parts = name.split('.');
    let first = parts.next().unwrap_or_default().to_owned();
    let is_number = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
    parts.filter(|part| !is_number(part)).fold(first, |name, part| name + "." + part)
}

pub(crate) fn io_error(
    action: &'static str,
    path: &Path,
) -> impl FnOnce(io::Error) -> VmlinuxError {
    move |source| VmlinuxError::Io { action, path: path.to_owned(), source }
}
