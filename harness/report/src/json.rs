// SPDX-License-Identifier: MIT OR Apache-2.0
//! JSON for programs.

use serde::Serialize;
use tramplab_model::text;

/// Writes plain data indented, with cleaned strings and a line end.
pub fn printed(value: &impl Serialize) -> String {
    let text = serde_json::to_string_pretty(value).expect("plain data has a form in JSON") + "\n";
    String::from_utf8_lossy(&text::json(text.as_bytes())).into_owned()
}
