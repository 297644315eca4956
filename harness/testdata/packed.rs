// SPDX-License-Identifier: MIT OR Apache-2.0
//! Files as distributions pack kernels, made from their specifications.

/// The first bytes of an RPM.
pub const LEAD: [u8; 96] = {
    let mut lead = [0; 96];
    lead[0] = 0xed;
    lead[1] = 0xab;
    lead[2] = 0xee;
    lead[3] = 0xdb;
    lead
};

/// The start of an RPM's header, which claims `entries` of 16 bytes and so many bytes of data.
pub fn rpm_header(entries: u32, bytes: u32) -> Vec<u8> {
    let mut header = vec![0x8e, 0xad, 0xe8, 1, 0, 0, 0, 0];
    header.extend(entries.to_be_bytes());
    header.extend(bytes.to_be_bytes());
    header
}

/// An RPM whose files are `payload`, a compressed cpio archive.
pub fn rpm(payload: &[u8]) -> Vec<u8> {
    // 21 bytes, and three until the next multiple of 8.
    [&LEAD[..], &rpm_header(1, 5), &[0; 24], &rpm_header(2, 3), &[0; 35], payload].concat()
}

/// An RPM whose header says that its payload has this digest, in hexadecimal.
pub fn rpm_of_digest(digest: &str, payload: &[u8]) -> Vec<u8> {
    let text = [digest.as_bytes(), &[0]].concat();
    // RPMTAG_PAYLOADSHA256, an array of one text, at the start of the data.
    let entry = [5092u32, 8, 0, 1].map(u32::to_be_bytes).concat();
    let header = rpm_header(1, text.len() as u32);
    [&LEAD[..], &rpm_header(1, 5), &[0; 24], &header, &entry, &text, payload].concat()
}

/// The smallest EFI program with sections, as a unified kernel image is one.
pub fn efi(sections: &[(&[u8], &[u8])]) -> Vec<u8> {
    let mut file = vec![0; 0x400];
    let mut put = |at: usize, bytes: &[u8]| file[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, b"MZ");
    put(0x3c, &0x40u32.to_le_bytes());
    put(0x40, b"PE\0\0");
    put(0x44, &0x8664u16.to_le_bytes());
    put(0x46, &(sections.len() as u16).to_le_bytes());
    // The optional header's size and magic, and its number of directories.
    put(0x54, &240u16.to_le_bytes());
    put(0x58, &0x20bu16.to_le_bytes());
    put(0x58 + 108, &16u32.to_le_bytes());
    let mut at = 0x400;
    for (index, (name, data)) in sections.iter().enumerate() {
        let entry = 0x58 + 240 + index * 40;
        put(entry, name);
        put(entry + 8, &(data.len() as u32).to_le_bytes());
        put(entry + 16, &(data.len().next_multiple_of(512) as u32).to_le_bytes());
        put(entry + 20, &(at as u32).to_le_bytes());
        at += data.len().next_multiple_of(512);
    }
    for (_, data) in sections {
        file.extend(*data);
        file.resize(file.len().next_multiple_of(512), 0);
    }
    file
}
