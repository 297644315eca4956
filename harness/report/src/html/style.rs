// SPDX-License-Identifier: MIT OR Apache-2.0
//! The pages' style sheet and scripts, and the policy that allows no others.

use base64::{Engine, engine::general_purpose::STANDARD};
use sha2::{Digest, Sha256};

pub const CSS: &str = include_str!("../../templates/report.css");
pub const JS: &str =
    concat!(include_str!("../../templates/report.js"), include_str!("../../templates/print.js"));
/// The script of the pages of a site.
pub const SITE_JS: &str =
    concat!(include_str!("../../templates/site.js"), include_str!("../../templates/print.js"));

/// The title of a page, and its parts that are the same on many.
pub struct Frame {
    pub title: String,
    pub policy: String,
    pub css: &'static str,
    pub js: &'static str,
}

impl Frame {
    pub fn new(title: String, js: &'static str) -> Frame {
        Frame { title, policy: policy(js), css: CSS, js }
    }
}

/// A Content-Security-Policy: nothing is fetched, and only this very style sheet and script count,
/// by their digests. An injected script would not run.
fn policy(js: &str) -> String {
    let digest = |text: &str| format!("'sha256-{}'", STANDARD.encode(Sha256::digest(text)));
    format!(
        "default-src 'none'; style-src {}; script-src {}; base-uri 'none'; form-action 'none'",
        digest(CSS),
        digest(js)
    )
}
