// SPDX-License-Identifier: MIT OR Apache-2.0
//! The report as one HTML file, which needs no network and opens from disk.
//!
//! [`fill`] puts the content of the other reports into a [`page`]; [`records`] makes the listings
//! that the reader switches, and [`rings`] their picture; [`figures`] and [`plot`] the other ones.
//! Templates escape every text.
//! [`room`] bounds the page, and [`style`] forbids every script but the page's own.

mod figures;
mod fill;
mod page;
mod plot;
mod records;
mod rings;
mod room;
pub mod site;
mod style;
mod switch;
mod title;

use askama::Template;
use tramplab_analysis::{branch::Model, profile::Profile};
use tramplab_model::run::Run;

/// Renders the page. `model` is the CPU that it shows first; `profiles`, which the run keeps in
/// files of their own, become flame graphs.
pub fn render(run: &Run, model: Option<Model>, profiles: &[Profile]) -> String {
    fill::page(run, model, profiles).render().expect("a template writes into memory")
}
