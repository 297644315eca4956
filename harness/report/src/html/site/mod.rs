// SPDX-License-Identifier: MIT OR Apache-2.0
//! Many stored runs as a static site: a front page, and a page for each metric.
//!
//! Every page is a file of its own, with style and script inside: it opens from disk and needs no
//! network. [`index`] fills the front page, [`metric`] the others. Templates escape every text.

mod index;
mod metric;
#[cfg(test)]
mod tests;

use super::{fill, room::first};
use crate::history::Told;
use askama::Template;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use tramplab_analysis::{
    compare::Metric,
    history::{Ancestry, Found, History, MetricRow},
};
use tramplab_model::{kinds::Kind, name::hex};

/// All that the pages show.
pub struct Content<'a> {
    pub found: &'a Found,
    pub told: &'a Told,
    /// The order of commits, if the tree is known.
    pub ancestry: Option<&'a Ancestry>,
    pub runs: usize,
}

/// One file of the site.
pub struct File {
    /// Relative to the site's folder.
    pub path: String,
    pub html: String,
}

/// Metrics that get a page.
const PAGES: usize = 5000;

/// Renders every page of the site.
pub fn render(content: &Content) -> Vec<File> {
    let mut by_metric: BTreeMap<Metric, Vec<&History>> = BTreeMap::new();
    for history in &content.found.histories {
        by_metric.entry(history.metric).or_default().push(history);
    }
    let (metrics, more) = first(by_metric.into_iter().collect::<Vec<_>>(), PAGES);
    let index = index::page(content, &metrics, more);
    let index = File { path: "index.html".to_owned(), html: rendered(&index) };
    let pages = metrics.iter().map(|(metric, histories)| File {
        path: path(metric),
        html: rendered(&metric::page(content, *metric, histories, &metrics)),
    });
    std::iter::once(index).chain(pages).collect()
}

fn rendered(page: &impl Template) -> String {
    page.render().expect("a template writes into memory")
}

/// Characters of a file's name.
const NAME: usize = 100;

/// The path of a metric's page. Only letters, digits and `.-_` are left, which every file system,
/// URL and artifact takes. Names that lost something get a digest, so that two metrics never share
/// a file, even where case does not count.
fn path(metric: &Metric) -> String {
    format!("metrics/{}", file_name(&metric.to_string()))
}

fn file_name(name: &str) -> String {
    let is_safe = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || ".-_".contains(c);
    let safe = name.chars().map(|c| if is_safe(c) { c } else { '_' });
    let safe: String = safe.take(NAME).collect();
    match safe == name {
        true => format!("{safe}.html"),
        false => {
            format!("{safe}-{}.html", hex(&Sha256::digest(name)[..6]))
        }
    }
}

/// Steps to the worse and to the better.
fn steps(histories: &[&History]) -> (usize, usize) {
    let steps = histories.iter().flat_map(|history| &history.rows);
    let (worse, better): (Vec<bool>, Vec<bool>) =
        steps.filter_map(|row| Some(row.step.as_ref()?.worse)).partition(|worse| *worse);
    (worse.len(), better.len())
}

/// The banner of a page: its class, a word, and a sentence.
pub struct Verdict {
    pub class: &'static str,
    pub word: &'static str,
    pub sentence: String,
}

/// Counts the steps that the newest rows revealed, as `--fail-on-step` does.
fn verdict(histories: &[&History]) -> Verdict {
    let newest = histories.iter().filter_map(|history| history.newest_step());
    let worse = newest.clone().filter(|step| step.worse).count();
    let better = newest.count() - worse;
    let all = counted(histories.len());
    let is_new = histories.iter().all(|history| history.rows.len() < 2);
    let (class, word) = match (worse, better) {
        (0, 0) if is_new => ("pass", "New"),
        (0, 0) => ("pass", "Steady"),
        (0, _) => ("pass", "Better"),
        _ => ("fail", "Worse"),
    };
    let sentence = match (worse, better) {
        (0, 0) if is_new => {
            format!("{all} with one row each: runs of one kernel share it if they agree.")
        }
        (0, 0) => format!("The newest rows of {all} reveal no step."),
        _ => format!("Of {all}, {worse} got worse and {better} got better at the newest row."),
    };
    Verdict { class, word, sentence }
}

fn counted(count: usize) -> String {
    if count == 1 { "1 history".to_owned() } else { format!("{count} histories") }
}

fn chapter(kind: Kind) -> &'static str {
    fill::named(kind).map_or("Other", |(_, title)| title)
}

/// Orders `6.6` before `6.12`.
fn natural(name: &str) -> Vec<(u64, String)> {
    let all: Vec<char> = name.chars().collect();
    let parts = all.chunk_by(|a, b| a.is_ascii_digit() == b.is_ascii_digit());
    let parts = parts.map(|part| part.iter().collect::<String>());
    // Words come after numbers.
    parts.map(|part| (part.parse().unwrap_or(u64::MAX), part)).collect()
}

/// The day of a time such as `2026-11-03T10:00:00Z`.
fn day(started: &str) -> &str {
    started.get(..10).unwrap_or(started)
}

/// Where a row stands among all: by commit, then by time.
fn key<'a>(row: &'a MetricRow, ancestry: Option<&Ancestry>) -> (Option<usize>, &'a str) {
    let place = || ancestry?.position(row.kernel.commit.as_deref()?);
    (place(), &row.started)
}
