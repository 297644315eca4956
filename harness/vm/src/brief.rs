// SPDX-License-Identifier: MIT OR Apache-2.0
//! Cuts what a guest says to a bounded size.

use std::fmt;

/// The most bytes of a guest's text that a message keeps. Every report holds the messages.
const BRIEF: usize = 8 << 10;
/// The most bytes of an unexpected value that a message shows.
const SHOWN: usize = 200;

/// The first bytes of a value's `Debug` output. The rest is never formatted: it may have megabytes.
pub fn shown(message: &impl fmt::Debug) -> String {
    struct Beginning(String);
    impl fmt::Write for Beginning {
        fn write_str(&mut self, text: &str) -> fmt::Result {
            let room = SHOWN.saturating_sub(self.0.len());
            self.0.push_str(&text[..text.floor_char_boundary(room)]);
            if text.len() < room { Ok(()) } else { Err(fmt::Error) }
        }
    }
    let mut beginning = Beginning(String::new());
    // An error means that the text is full.
    let _ = fmt::write(&mut beginning, format_args!("{message:?}"));
    beginning.0
}

/// Cuts a text to 8 KiB.
pub fn brief(mut text: String) -> String {
    if text.len() > BRIEF {
        text.truncate(text.floor_char_boundary(BRIEF));
        text.push('…');
    }
    text
}
