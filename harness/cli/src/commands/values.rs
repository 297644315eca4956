// SPDX-License-Identifier: MIT OR Apache-2.0
//! Option values that are one of a few words.

use clap::builder::{PossibleValuesParser, TypedValueParser};
use tramplab_model::run::{Accel, Backend};
use tramplab_vm::accel;

/// The forms of a document that a command prints.
#[derive(Clone, Copy, clap::ValueEnum)]
pub enum Form {
    Terminal,
    Json,
}

/// Parses one of these words. clap lists them in the help and in errors.
pub fn one_of<T: Clone + Send + Sync + 'static>(
    words: &'static [(&'static str, T)],
) -> impl TypedValueParser<Value = T> {
    let names = PossibleValuesParser::new(words.iter().map(|(name, _)| *name));
    names.map(|name| {
        let (_, value) = words.iter().find(|(word, _)| *word == name).expect("clap checked it");
        value.clone()
    })
}

/// Those that start guests.
pub const BACKENDS: &[(&str, Backend)] =
    &[("qemu", Backend::Qemu), ("virtme-ng", Backend::VirtmeNg)];

pub const ACCELS: &[(&str, accel::Request)] = &[
    ("auto", accel::Request::Auto),
    ("kvm", accel::Request::Only(Accel::Kvm)),
    ("tcg", accel::Request::Only(Accel::Tcg)),
];
