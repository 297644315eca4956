// SPDX-License-Identifier: MIT OR Apache-2.0
//! Parses the records of a perf event's ring buffer, as [`crate::sampling`] requests them.

use std::borrow::Cow;

const HEADER: usize = 8;
/// Values from here on are not addresses. They mark whose addresses follow.
const FIRST_CONTEXT: u64 = libbpf_sys::PERF_CONTEXT_MAX;

/// One record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    /// A thread and its kernel stack, innermost first. Empty in user space.
    Sample { thread: u32, stack: Vec<u64> },
    /// A thread's new name.
    Command { thread: u32, name: String },
    /// Number of records that the kernel dropped for lack of room.
    Lost(u64),
    /// Any other record.
    Other,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "a record of {length} bytes and type {kind} at {position} of the perf ring buffer is malformed"
)]
pub struct RingError {
    position: u64,
    kind: u32,
    length: usize,
}

/// The unread part of a ring buffer: its whole data area, and the positions of the oldest record
/// and of the end. Positions count bytes since the buffer was made.
#[derive(Clone, Copy, Debug)]
pub struct Ring<'a> {
    pub data: &'a [u8],
    pub tail: u64,
    pub head: u64,
}

impl<'a> Ring<'a> {
    /// Returns `length` bytes from a position. They may wrap to the buffer's start.
    fn bytes(&self, position: u64, length: usize) -> Cow<'a, [u8]> {
        let start = (position % self.data.len() as u64) as usize;
        match self.data.get(start..start + length) {
            Some(bytes) => Cow::Borrowed(bytes),
            None => {
                let (wrapped, first) = self.data.split_at(start);
                Cow::Owned([first, &wrapped[..length - first.len()]].concat())
            }
        }
    }
}

impl Iterator for Ring<'_> {
    type Item = Result<Record, RingError>;

    fn next(&mut self) -> Option<Self::Item> {
        let unread = self.head.checked_sub(self.tail).filter(|unread| *unread > 0)?;
        let position = self.tail;
        // After an error the rest cannot be parsed.
        self.tail = self.head;
        let error = |kind, length| Some(Err(RingError { position, kind, length }));
        if unread < HEADER as u64 || unread > self.data.len() as u64 {
            return error(0, 0);
        }
        let header = self.bytes(position, HEADER);
        let kind = u32_at(&header, 0)?;
        let length = usize::from(u16::from_ne_bytes([header[6], header[7]]));
        if length < HEADER || length as u64 > unread {
            return error(kind, length);
        }
        let record = self.bytes(position, length);
        match parse(kind, &record[HEADER..]) {
            Some(record) => {
                self.tail = position + length as u64;
                Some(Ok(record))
            }
            None => error(kind, length),
        }
    }
}

/// Returns none if the record is too short for its contents.
fn parse(kind: u32, body: &[u8]) -> Option<Record> {
    Some(match kind {
        libbpf_sys::PERF_RECORD_SAMPLE => {
            let thread = u32_at(body, 4)?;
            let depth = usize::try_from(u64_at(body, 8)?).ok()?;
            let stack = body.get(16..)?.get(..depth.checked_mul(8)?)?;
            let addresses = stack
                .chunks_exact(8)
                .map(|a| u64::from_ne_bytes(a.try_into().expect("eight bytes")));
            Record::Sample { thread, stack: addresses.filter(|a| *a < FIRST_CONTEXT).collect() }
        }
        libbpf_sys::PERF_RECORD_COMM => {
            let name = body.get(8..)?.split(|b| *b == 0).next()?;
            Record::Command {
                thread: u32_at(body, 4)?,
                name: String::from_utf8_lossy(name).into_owned(),
            }
        }
        libbpf_sys::PERF_RECORD_LOST => Record::Lost(u64_at(body, 8)?),
        _ => Record::Other,
    })
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const KERNEL: u64 = libbpf_sys::PERF_CONTEXT_KERNEL;

    fn record(kind: u32, body: &[&[u8]]) -> Vec<u8> {
        let body = body.concat();
        let length = (HEADER + body.len()) as u16;
        [&kind.to_ne_bytes()[..], &[1, 0], &length.to_ne_bytes(), &body].concat()
    }

    fn sample(thread: u32, depth: u64, stack: &[u64]) -> Vec<u8> {
        let stack: Vec<u8> = stack.iter().flat_map(|a| a.to_ne_bytes()).collect();
        let ids = [1u32.to_ne_bytes(), thread.to_ne_bytes()].concat();
        record(libbpf_sys::PERF_RECORD_SAMPLE, &[&ids, &depth.to_ne_bytes(), &stack])
    }

    fn stream() -> (Vec<u8>, Vec<Record>) {
        let ids = [7u32.to_ne_bytes(), 9u32.to_ne_bytes()].concat();
        let bytes = [
            sample(1, 3, &[KERNEL, 0xffff_ffff_8100_0010, 0xffff_ffff_8100_0020]),
            record(libbpf_sys::PERF_RECORD_COMM, &[&ids, b"kworker/0:1\0\0\0\0\0"]),
            record(libbpf_sys::PERF_RECORD_LOST, &[&3u64.to_ne_bytes(), &41u64.to_ne_bytes()]),
            // In user space perf leaves the chain empty.
            sample(9, 0, &[]),
            record(libbpf_sys::PERF_RECORD_EXIT, &[&[0; 24]]),
            sample(1, 1, &[0xffff_ffff_8100_0010]),
        ]
        .concat();
        let records = vec![
            Record::Sample { thread: 1, stack: vec![0xffff_ffff_8100_0010, 0xffff_ffff_8100_0020] },
            Record::Command { thread: 9, name: "kworker/0:1".to_owned() },
            Record::Lost(41),
            Record::Sample { thread: 9, stack: vec![] },
            Record::Other,
            Record::Sample { thread: 1, stack: vec![0xffff_ffff_8100_0010] },
        ];
        (bytes, records)
    }

    /// Puts the bytes into a buffer of a size, from a position on.
    fn lay(bytes: &[u8], size: usize, tail: u64) -> Vec<u8> {
        let mut data = vec![0xaa; size];
        for (index, byte) in bytes.iter().enumerate() {
            data[(tail as usize + index) % size] = *byte;
        }
        data
    }

    #[test]
    fn reads_records_across_the_wrap() {
        let (bytes, records) = stream();
        let size = 512;
        assert!(bytes.len() <= size);
        for tail in 0..2 * size as u64 {
            let data = lay(&bytes, size, tail);
            let ring = Ring { data: &data, tail, head: tail + bytes.len() as u64 };
            assert_eq!(ring.collect::<Result<Vec<_>, _>>().as_ref(), Ok(&records), "from {tail}");
        }
    }

    #[test]
    fn reads_a_full_and_an_empty_buffer() {
        let (bytes, records) = stream();
        let ring = Ring { data: &bytes, tail: 0, head: bytes.len() as u64 };
        assert_eq!(ring.count(), records.len());
        assert_eq!(Ring { data: &bytes, tail: 77, head: 77 }.count(), 0);
    }

    #[test]
    fn stops_at_a_malformed_record() {
        let lying = sample(1, u64::MAX, &[1]);
        let mut short = sample(1, 1, &[1]);
        short[6] = 7;
        let mut long = sample(1, 1, &[1]);
        long[6] = 255;
        for (what, bytes) in
            [("depth", lying), ("short", short), ("long", long), ("half", vec![0; 4])]
        {
            let mut ring = Ring { data: &bytes, tail: 0, head: bytes.len() as u64 };
            assert!(matches!(ring.next(), Some(Err(_))), "{what}");
            assert_eq!(ring.next(), None, "{what}");
        }
    }
}
