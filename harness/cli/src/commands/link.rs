// SPDX-License-Identifier: MIT OR Apache-2.0
//! Paths on standard error, as links where the terminal has them (OSC 8).

use std::{
    io::{self, Write},
    path::{Path, absolute},
};
use supports_hyperlinks::Stream;
use tramplab_model::text;

/// Prints words and a path on a line.
pub fn tell(words: &str, path: &Path) {
    let shown = text::line(&path.display().to_string());
    let url = if supports_hyperlinks::on(Stream::Stderr) { url(path) } else { None };
    let line = match url {
        Some(url) => {
            let link = anstyle_hyperlink::Hyperlink::with_url(url);
            format!("{words} {link}{shown}{link:#}")
        }
        None => format!("{words} {shown}"),
    };
    let _ = writeln!(io::stderr(), "{line}");
}

fn url(path: &Path) -> Option<String> {
    anstyle_hyperlink::path_to_url(&absolute(path).ok()?)
}
