// SPDX-License-Identifier: GPL-2.0-or-later

use super::{Lbr, ring::Ring};
use crate::{
    decode::Guest,
    flow::Block,
    recorder::{Noted, Recorder},
};

/// A block runs, seen by the ring and by a recorder of all branches.
pub(super) fn run<'b>(ring: &mut Ring<'b>, recorder: Option<&mut Recorder<'b>>, block: &'b Block) {
    ring.block(block, Noted::default);
    if let Some(recorder) = recorder {
        recorder.block(block, Noted::default);
    }
}

/// An interrupt comes, seen by both.
pub(super) fn interrupt(ring: &mut Ring, recorder: Option<&mut Recorder>, from: u64, to: u64) {
    ring.discontinuity(from, to);
    if let Some(recorder) = recorder {
        recorder.discontinuity(from, to);
    }
}

#[test]
fn reads_the_argument() {
    for (name, guest) in [
        ("amd-lbrv2:16", Guest::X86_64),
        ("intel-lbr:32", Guest::X86_64),
        ("arch-lbr:8", Guest::X86_64),
        ("brbe:8", Guest::Aarch64),
        ("brbe:64", Guest::Aarch64),
    ] {
        let lbr: Lbr = name.parse().unwrap();
        assert_eq!((lbr.to_string().as_str(), lbr.guest()), (name, guest));
    }
    for name in ["amd-lbrv2", "brbe:12", "brbe:128", "arch-lbr:64", "arch-lbr:0", "arch-lbr:x"] {
        assert!(name.parse::<Lbr>().is_err(), "{name}");
    }
}
