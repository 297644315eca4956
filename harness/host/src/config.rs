// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reads YAML. Only this module knows the YAML library.
//!
//! Every type read here denies unknown fields.

use crate::regular;
use miette::{GraphicalReportHandler, GraphicalTheme};
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::DeserializeOwned};
use std::{
    borrow::Cow,
    fs,
    io::{self, Read},
    path::{Path, PathBuf},
};

/// A value with its place in the file.
#[derive(Clone, Debug, Default)]
pub struct Spanned<T> {
    pub value: T,
    /// Line and column.
    place: (u64, u64),
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Spanned<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Spanned<T>, D::Error> {
        let at = serde_yaml::Spanned::<T>::deserialize(deserializer)?;
        Ok(Spanned { value: at.value, place: (at.referenced.line(), at.referenced.column()) })
    }
}

impl<T> Spanned<T> {
    /// Another value of the same place.
    pub fn map<U>(self, made: impl FnOnce(T) -> U) -> Spanned<U> {
        Spanned { value: made(self.value), place: self.place }
    }
}

impl<T: Serialize> Serialize for Spanned<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.value.serialize(serializer)
    }
}

/// That of the value.
impl<T: JsonSchema> JsonSchema for Spanned<T> {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        T::schema_name()
    }

    fn schema_id() -> Cow<'static, str> {
        T::schema_id()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        generator.subschema_for::<T>()
    }
}

#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("failed to read {path}: {source}")]
    Read { path: PathBuf, source: io::Error },
    #[error("{path} is no regular file")]
    NotAFile { path: PathBuf },
    #[error(
        "{0} has more than {mib} MiB; expected a file that somebody wrote",
        mib = MOST_BYTES >> 20
    )]
    TooLong(PathBuf),
    #[error("{path}:{line}:{column}: {message}{snippet}")]
    Invalid {
        path: PathBuf,
        line: u64,
        column: u64,
        message: String,
        /// The lines around the place, each behind a newline; may be empty.
        snippet: String,
    },
}

/// Most bytes of a file.
const MOST_BYTES: u64 = 8 << 20;

/// The longest line of a file that an error shows.
const LONGEST_SHOWN: usize = 200;

/// Reads a YAML file that no command line names.
pub fn load_regular<T: DeserializeOwned>(path: &Path) -> Result<T, ConfigError> {
    parse(&text_of_regular(path)?, path)
}

/// The text of such a file. It may not be a FIFO, which would be waited for.
pub fn text_of_regular(path: &Path) -> Result<String, ConfigError> {
    let metadata = fs::metadata(path);
    if metadata.is_ok_and(|metadata| !metadata.is_file()) {
        return Err(ConfigError::NotAFile { path: path.to_owned() });
    }
    text(path)
}

/// Reads a YAML file.
pub fn load<T: DeserializeOwned>(path: &Path) -> Result<T, ConfigError> {
    parse(&text(path)?, path)
}

/// The text of a file that [`parse`] takes.
pub fn text(path: &Path) -> Result<String, ConfigError> {
    let mut text = String::new();
    let file = regular::open_typed(path);
    let read = file.and_then(|file| file.take(MOST_BYTES + 1).read_to_string(&mut text));
    match read {
        Ok(bytes) if bytes as u64 > MOST_BYTES => Err(ConfigError::TooLong(path.to_owned())),
        Ok(_) => Ok(text),
        Err(source) => Err(ConfigError::Read { path: path.to_owned(), source }),
    }
}

/// Parses YAML text. Errors name `path`.
pub fn parse<T: DeserializeOwned>(text: &str, path: &Path) -> Result<T, ConfigError> {
    // Only `true` and `false` are booleans: a kernel or key named `no` or `on` stays a string.
    let options = serde_yaml::options! { strict_booleans: true, with_snippet: false };
    serde_yaml::from_str_with_options(text, options).map_err(|error| {
        let formatter = serde_yaml::UserMessageFormatter;
        let (line, column) = error.location().map_or((1, 1), |at| (at.line(), at.column()));
        let report = serde_yaml::miette::to_miette_report_with_formatter(
            &error,
            text,
            &path.display().to_string(),
            &formatter,
        );
        let told = report.to_string();
        let message = expected(&told).unwrap_or_else(|| told.clone());
        let mut snippet = String::new();
        GraphicalReportHandler::new_themed(GraphicalTheme::unicode_nocolor())
            .render_report(&mut snippet, report.as_ref())
            .expect("writing to a string does not fail");
        // `message` already holds the headline.
        let source_lines = snippet.find('╭').map_or("", |start| &snippet[start..]);
        // JSON may be a single line. The neighbours are shown, too.
        let mut shown = text.lines().skip(line.saturating_sub(2) as usize).take(3);
        let snippet = match shown.any(|line| line.len() > LONGEST_SHOWN) {
            true => String::new(),
            false => format!("\n   {}", source_lines.replace(&told, &message).trim_end()),
        };
        ConfigError::Invalid { path: path.to_owned(), line, column, snippet, message }
    })
}

/// Explains a word of YAML or a Rust type that the library's message names.
fn expected(message: &str) -> Option<String> {
    let whole = |most: u64| Some(format!("expected a whole number from 0 to {most}"));
    let own = match message {
        "expected sequence start" => Some("expected a list: [a, b]"),
        "expected mapping start" => Some("expected keys with values: `key: value`"),
        "expected string scalar" => Some("expected a word"),
        _ if message.contains("expected a nonzero ") => Some("expected a whole number from 1 on"),
        _ => None,
    };
    if let Some(own) = own {
        return Some(own.to_owned());
    }
    match message.strip_prefix("invalid ")? {
        "u8" => whole(u8::MAX.into()),
        "u16" => whole(u16::MAX.into()),
        "u32" => whole(u32::MAX.into()),
        "u64" | "usize" => whole(u64::MAX),
        "i8" | "i16" | "i32" | "i64" | "isize" => Some("expected a whole number".to_owned()),
        "f32" | "f64" | "floating point" => Some("expected a number".to_owned()),
        "bool" | "boolean" => Some("expected true or false".to_owned()),
        _ => None,
    }
}

/// Writes YAML that [`parse`] reads back as the same value.
pub fn write<T: Serialize>(value: &T) -> String {
    // The library's compact form writes an empty list in a place where readers reject it.
    let options = serde_yaml::ser_options! { compact_list_indent: false };
    serde_yaml::to_string_with_options(value, options).expect("plain data has a form in YAML")
}

/// Line and column of a value.
pub fn place<T>(at: &Spanned<T>) -> (u64, u64) {
    at.place
}

/// An error at the place of a value that parsed but is not valid.
pub fn invalid<T>(path: &Path, at: &Spanned<T>, message: impl Into<String>) -> ConfigError {
    let (line, column) = place(at);
    ConfigError::Invalid {
        path: path.to_owned(),
        line,
        column,
        message: message.into(),
        snippet: String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    #[expect(dead_code)]
    struct Sample {
        name: String,
        count: u32,
    }

    fn error(text: &str) -> String {
        parse::<Sample>(text, Path::new("sample.yaml")).unwrap_err().to_string()
    }

    #[test]
    fn names_file_line_column_and_expected_keys() {
        for (text, position, words) in [
            (
                "name: a\ncuont: 3\n",
                "sample.yaml:2:1",
                vec!["cuont", "expected one of name, count"],
            ),
            ("name: a\ncount: many\n", "sample.yaml:2:8", vec!["count: many"]),
            ("name: a\n", "sample.yaml:1:1", vec!["count"]),
            ("name: [\n", "sample.yaml:", vec![]),
            (
                "name: a\ncount: -5\n",
                "sample.yaml:2:8",
                vec!["expected a whole number from 0 to 4294967295"],
            ),
            ("name: a\nname: b\ncount: 1\n", "sample.yaml:2:1", vec!["name"]),
            ("name: [a]\ncount: 1\n", "sample.yaml:1:7", vec!["expected a word"]),
            ("- name\n", "sample.yaml:1:1", vec!["expected keys with values"]),
        ] {
            let error = error(text);
            assert!(error.starts_with(position), "{text:?} gave {error}");
            for word in words {
                assert!(error.contains(word), "{text:?} gave {error}, without {word}");
            }
            assert!(!error.contains("u32"), "{text:?} gave {error}");
        }
        let long = error(&format!("{{ name: {}, count: many }}", "a".repeat(1000)));
        assert!(long.starts_with("sample.yaml:1:") && long.len() < 100, "{long}");
    }

    #[test]
    fn reads_no_more_than_somebody_wrote() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("sample.yaml");
        fs::File::create(&path).unwrap().set_len(4 << 30).unwrap();
        let error = load::<Sample>(&path).unwrap_err();
        assert!(matches!(error, ConfigError::TooLong(_)), "{error}");
        let error = load::<Sample>(Path::new("/dev/zero")).unwrap_err();
        assert!(matches!(error, ConfigError::TooLong(_)), "{error}");
    }

    #[test]
    fn waits_for_no_fifo_that_a_file_names() {
        let folder = tempfile::tempdir().unwrap();
        let fifo = folder.path().join("sample.yaml");
        nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
        for path in [fifo.as_path(), folder.path()] {
            let error = load_regular::<Sample>(path).unwrap_err();
            assert!(matches!(error, ConfigError::NotAFile { .. }), "{error}");
        }
    }
}
