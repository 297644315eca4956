// SPDX-License-Identifier: MIT OR Apache-2.0
//! JSON for programs.

use serde::Serialize;
use tramplab_model::text;

/// Writes data indented, with cleaned strings and a line end. Not all paths have a form in JSON.
pub fn written(value: &impl Serialize) -> serde_json::Result<String> {
    let text = serde_json::to_string_pretty(value)? + "\n";
    Ok(String::from_utf8_lossy(&text::json(text.as_bytes())).into_owned())
}

/// As [`written`], for plain data.
pub fn printed(value: &impl Serialize) -> String {
    written(value).expect("plain data has a form in JSON")
}
