// SPDX-License-Identifier: MIT OR Apache-2.0
//! Words of the command line that are needed even if clap rejects it: its errors have colours too,
//! and another exit code under `git bisect run`.

use std::{env, ffi::OsString};

/// The value of `--color`. It may stand anywhere, even before the command.
pub fn color() -> Option<clap::ColorChoice> {
    clap::ValueEnum::from_str(&split(env::args_os()).1?, false).ok()
}

/// True for this command, right or wrong.
pub fn is_command(name: &str) -> bool {
    split(env::args_os()).0.get(1).is_some_and(|command| command == name)
}

/// True if one of the words is this flag.
pub fn has_flag(flag: &str) -> bool {
    env::args_os().any(|word| word == flag)
}

/// Takes `--color` out of the words.
fn split(words: impl Iterator<Item = OsString>) -> (Vec<String>, Option<String>) {
    let mut words = words.map(|word| word.to_string_lossy().into_owned());
    let (mut others, mut color) = (Vec::new(), None);
    while let Some(word) = words.next() {
        if word == "--" {
            break;
        } else if word == "--color" {
            color = words.next();
        } else if let Some(value) = word.strip_prefix("--color=") {
            color = Some(value.to_owned());
        } else {
            others.push(word);
        }
    }
    (others, color)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn splits_colours_off() {
        for (typed, words, color) in [
            ("x --color never vm-test -E a", "x vm-test -E a", Some("never")),
            ("x vm-test --color=always fexit", "x vm-test fexit", Some("always")),
            ("x test -- --color never", "x test", None),
        ] {
            let (others, found) = split(typed.split(' ').map(OsString::from));
            assert_eq!((others.join(" ").as_str(), found.as_deref()), (words, color));
        }
    }
}
