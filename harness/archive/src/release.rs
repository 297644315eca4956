// SPDX-License-Identifier: MIT OR Apache-2.0
//! A suite's `InRelease`: a clear-signed text with the hashes of the suite's indexes.

use time::{OffsetDateTime, PrimitiveDateTime, macros::format_description};

/// A message as RFC 9580, section 7, frames it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ClearSigned {
    /// The lines that the signature covers, as it covers them: without escapes and blanks at ends.
    pub text: String,
    /// In armour.
    pub signature: String,
}

const SIGNATURE: &str = "-----BEGIN PGP SIGNATURE-----";

impl ClearSigned {
    /// Rejects a message with anything before, between or after its parts: nobody signed that.
    pub fn parse(message: &str) -> Option<ClearSigned> {
        let body = message.strip_prefix("-----BEGIN PGP SIGNED MESSAGE-----")?;
        let mut lines = body.lines().map(str::trim_end);
        if !lines.next()?.is_empty() {
            return None;
        }
        while let Some(header) = Some(lines.next()?).filter(|line| !line.is_empty()) {
            header.strip_prefix("Hash: ")?;
        }
        let mut text = Vec::new();
        loop {
            match lines.next()? {
                SIGNATURE => break,
                // Some verifiers take it for the end of a line, which would hide a field.
                line if line.contains('\r') => return None,
                line if line.starts_with('-') => text.push(line.strip_prefix("- ")?),
                line => text.push(line),
            }
        }
        let signature: Vec<&str> = lines.collect();
        let (last, inner) = signature.split_last()?;
        if *last != "-----END PGP SIGNATURE-----" || inner.iter().any(|line| line.starts_with('-'))
        {
            return None;
        }
        let signature = format!("{SIGNATURE}\n{}\n", signature.join("\n"));
        Some(ClearSigned { text: text.join("\n"), signature })
    }
}

/// A release's facts about one architecture's packages of `main`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Release {
    /// Its codename and its role: `trixie`, `stable`.
    pub names: Vec<String>,
    pub date: OffsetDateTime,
    pub valid_until: Option<OffsetDateTime>,
    pub by_hash: bool,
    pub packages: File,
}

/// A file of the archive, as a signed text or a pin describes it.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct File {
    /// Below the mirror, or below the suite's folder.
    pub path: String,
    pub size: u64,
    pub sha256: String,
}

impl File {
    /// The last part of its path.
    pub fn name(&self) -> &str {
        self.path.rsplit('/').next().unwrap_or(&self.path)
    }
}

impl Release {
    /// Fails with the name of the field that is missing or wrong.
    pub fn parse(text: &str, architecture: &str) -> Result<Release, &'static str> {
        let field = |name: &str| {
            text.lines().find_map(|line| Some(line.strip_prefix(name)?.strip_prefix(':')?.trim()))
        };
        let path = format!("main/binary-{architecture}/Packages.xz");
        let hashes = text.lines().skip_while(|line| *line != "SHA256:").skip(1);
        let packages = hashes.take_while(|line| line.starts_with(' ')).find_map(|line| {
            let mut words = line.split_whitespace();
            let (sha256, size) = (words.next()?.to_owned(), words.next()?.parse().ok()?);
            let is_ours = words.next()? == path && crate::is_sha256(&sha256);
            is_ours.then(|| File { path: path.clone(), size, sha256 })
        });
        Ok(Release {
            names: ["Codename", "Suite"]
                .iter()
                .filter_map(|name| field(name))
                .map(Into::into)
                .collect(),
            date: field("Date").and_then(date).ok_or("Date")?,
            valid_until: match field("Valid-Until") {
                Some(text) => Some(date(text).ok_or("Valid-Until")?),
                None => None,
            },
            by_hash: field("Acquire-By-Hash") == Some("yes"),
            packages: packages.ok_or("SHA256 of Packages.xz")?,
        })
    }
}

/// `Sat, 21 Nov 2026 09:15:44 UTC`
fn date(text: &str) -> Option<OffsetDateTime> {
    let format = format_description!(
        "[day padding:none] [month repr:short] [year] [hour]:[minute]:[second] UTC"
    );
    let (_, text) = text.split_once(", ")?;
    Some(PrimitiveDateTime::parse(text, format).ok()?.assume_utc())
}

#[cfg(test)]
mod tests {
    use super::*;

    const MESSAGE: &str = "\
-----BEGIN PGP SIGNED MESSAGE-----
Hash: SHA256

A: 1\x20\x20
- -B
-----BEGIN PGP SIGNATURE-----

abcd
=ef
-----END PGP SIGNATURE-----
";

    #[test]
    fn separates_the_signed_lines_from_the_signature() {
        let parsed = ClearSigned::parse(MESSAGE).unwrap();
        assert_eq!(parsed.text, "A: 1\n-B");
        assert_eq!(
            parsed.signature,
            "-----BEGIN PGP SIGNATURE-----\n\nabcd\n=ef\n-----END PGP SIGNATURE-----\n"
        );
    }

    #[test]
    fn rejects_text_outside_of_the_signed_part() {
        let end = "-----END PGP SIGNATURE-----\n";
        for (what, message) in [
            ("a line before", format!("X: 1\n{MESSAGE}")),
            ("a line after", format!("{MESSAGE}X: 1\n")),
            ("another message", format!("{MESSAGE}{MESSAGE}")),
            ("a field among the headers", MESSAGE.replace("Hash: SHA256", "X: 1")),
            ("no blank line", MESSAGE.replace("\n\nA", "\nA")),
            ("a line that is joined", MESSAGE.replace("\n- -B", "\rB: 2\n- -B")),
            ("no escape", MESSAGE.replace("- -B", "-B")),
            ("no end", MESSAGE.replace(end, "")),
            ("no signature", MESSAGE.split_once("-----BEGIN PGP SIGNATURE").unwrap().0.to_owned()),
            ("nothing signed", "A: 1\n".to_owned()),
        ] {
            assert_eq!(ClearSigned::parse(&message), None, "{what}");
        }
    }

    #[test]
    fn reads_the_fields_of_a_release() {
        let hash = "0a".repeat(32);
        let text = format!(
            "Suite: stable\nCodename: trixie\nDate: Sat, 21 Nov 2026 09:15:44 UTC\n\
             Acquire-By-Hash: yes\nMD5Sum:\n 00 7 main/binary-amd64/Packages.xz\nSHA256:\n \
             {hash}     9679304 main/binary-amd64/Packages.xz\nOther: 1\n"
        );
        let release = Release::parse(&text, "amd64").unwrap();
        assert_eq!(release.names, ["trixie", "stable"]);
        assert_eq!(release.date.unix_timestamp(), 1_795_252_544);
        assert_eq!((release.valid_until, release.by_hash), (None, true));
        assert_eq!((release.packages.size, release.packages.sha256), (9_679_304, hash));
        for (from, to, missing) in [
            ("Date: Sat, ", "Date: ", "Date"),
            ("Acquire", "Valid-Until: never\nAcquire", "Valid-Until"),
            ("SHA256:", "SHA512:", "SHA256 of Packages.xz"),
            ("\n 0a", "\n ../", "SHA256 of Packages.xz"),
        ] {
            assert_eq!(Release::parse(&text.replace(from, to), "amd64"), Err(missing));
        }
    }
}
