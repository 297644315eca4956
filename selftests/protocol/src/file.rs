// SPDX-License-Identifier: MIT OR Apache-2.0
//! The files that the plugin hands to the host: a magic, a value in postcard's encoding, and a
//! CRC-32 (little endian) of everything before it.

use serde::{Serialize, de::DeserializeOwned};

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum FileError {
    #[error("not the plugin's file of this kind (wrong magic)")]
    Magic,
    #[error("the file's checksum is wrong")]
    Checksum,
    #[error("the file cannot be decoded: {0}")]
    Format(#[from] postcard::Error),
    #[error("{0} bytes follow the file's content")]
    Trailing(usize),
}

pub fn encode<T: Serialize>(magic: &[u8; 8], value: &T) -> Result<Vec<u8>, FileError> {
    let mut out = postcard::to_extend(value, magic.to_vec())?;
    out.extend(crc32fast::hash(&out).to_le_bytes());
    Ok(out)
}

pub fn decode<T: DeserializeOwned>(magic: &[u8; 8], bytes: &[u8]) -> Result<T, FileError> {
    let (body, checksum) = bytes.split_last_chunk::<4>().ok_or(FileError::Magic)?;
    let content = body.strip_prefix(magic).ok_or(FileError::Magic)?;
    if crc32fast::hash(body) != u32::from_le_bytes(*checksum) {
        return Err(FileError::Checksum);
    }
    let (value, rest) = postcard::take_from_bytes(content)?;
    if rest.is_empty() { Ok(value) } else { Err(FileError::Trailing(rest.len())) }
}
