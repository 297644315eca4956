// SPDX-License-Identifier: MIT OR Apache-2.0
//! Frames on the virtio-serial byte stream: `len: u32 LE | crc32 of payload: u32 LE | payload
//! (JSON)`.

use serde::{Serialize, de::DeserializeOwned};
use std::io::{self, Read, Write};

/// Bytes. A larger length means that the stream is corrupt.
pub const MAX_PAYLOAD: usize = 16 << 20;
const HEADER: usize = 8;

#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    #[error("the stream ended inside a frame")]
    Truncated,
    #[error("a frame announces {0} bytes, more than the {MAX_PAYLOAD} allowed")]
    TooLarge(usize),
    #[error("a frame's checksum is wrong (expected {expected:08x}, found {found:08x})")]
    Checksum { expected: u32, found: u32 },
    #[error("a frame holds no valid message: {0}")]
    Message(#[from] serde_json::Error),
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Encodes a message as one frame.
pub fn encode<T: Serialize>(message: &T) -> Result<Vec<u8>, FrameError> {
    let mut frame = vec![0; HEADER];
    serde_json::to_writer(&mut frame, message)?;
    let length = frame.len() - HEADER;
    if length > MAX_PAYLOAD {
        return Err(FrameError::TooLarge(length));
    }
    let crc = crc32fast::hash(&frame[HEADER..]);
    frame[..4].copy_from_slice(&(length as u32).to_le_bytes());
    frame[4..HEADER].copy_from_slice(&crc.to_le_bytes());
    Ok(frame)
}

/// Writes a message as one frame with one call of `write`.
pub fn write<T: Serialize>(out: &mut impl Write, message: &T) -> Result<(), FrameError> {
    out.write_all(&encode(message)?)?;
    Ok(out.flush()?)
}

/// Reads one frame. Returns `None` if the stream ended between frames.
pub fn read<T: DeserializeOwned>(input: &mut impl Read) -> Result<Option<T>, FrameError> {
    Ok(payload(input)?.map(|payload| serde_json::from_slice(&payload)).transpose()?)
}

/// Reads the payload of one frame without parsing it.
pub fn payload(input: &mut impl Read) -> Result<Option<Vec<u8>>, FrameError> {
    let mut header = [0; HEADER];
    match fill(input, &mut header)? {
        0 => return Ok(None),
        HEADER => {}
        _ => return Err(FrameError::Truncated),
    }
    let (length, crc) = header.split_at(4);
    let length = u32::from_le_bytes(length.try_into().expect("four bytes")) as usize;
    let expected = u32::from_le_bytes(crc.try_into().expect("four bytes"));
    if length > MAX_PAYLOAD {
        return Err(FrameError::TooLarge(length));
    }
    let mut payload = vec![0; length];
    if fill(input, &mut payload)? != length {
        return Err(FrameError::Truncated);
    }
    let found = crc32fast::hash(&payload);
    if found != expected {
        return Err(FrameError::Checksum { expected, found });
    }
    Ok(Some(payload))
}

/// Like `read_exact`, but returns how many bytes there were.
fn fill(input: &mut impl Read, buffer: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match input.read(&mut buffer[filled..]) {
            Ok(0) => break,
            Ok(n) => filled += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(filled)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_all(bytes: &[u8]) -> Result<Option<String>, FrameError> {
        read(&mut &bytes[..])
    }

    #[test]
    fn reads_consecutive_frames() {
        let mut stream = encode(&"one").unwrap();
        stream.extend(encode(&"two").unwrap());
        let mut input = &stream[..];
        assert_eq!(read::<String>(&mut input).unwrap().as_deref(), Some("one"));
        assert_eq!(read::<String>(&mut input).unwrap().as_deref(), Some("two"));
        assert!(read::<String>(&mut input).unwrap().is_none());
    }

    #[test]
    fn names_the_damage_of_a_frame() {
        let good = encode(&"message").unwrap();
        for cut in 1..good.len() {
            assert!(matches!(read_all(&good[..cut]), Err(FrameError::Truncated)), "cut at {cut}");
        }
        let mut flipped = good.clone();
        flipped[10] ^= 1;
        assert!(matches!(read_all(&flipped), Err(FrameError::Checksum { .. })));
        let mut long = good.clone();
        long[3] = 0xff;
        assert!(matches!(read_all(&long), Err(FrameError::TooLarge(_))));
        let other_type = encode(&7).unwrap();
        assert!(matches!(read_all(&other_type), Err(FrameError::Message(_))));
    }
}
