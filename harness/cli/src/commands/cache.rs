// SPDX-License-Identifier: MIT OR Apache-2.0
//! `cargo xtask cache`: what is kept between runs, and less of it.

use super::{exit, output, values::Form};
use bytesize::ByteSize;
use schemars::JsonSchema;
use serde::Serialize;
use std::{
    collections::BTreeMap,
    path::PathBuf,
    time::{Duration, SystemTime},
};
use time::{OffsetDateTime, format_description::well_known::Rfc3339};
use tramplab_host::{
    Cache,
    prune::{self, Item},
};
use tramplab_lab::{
    cache_limit,
    error::{Error, Result},
};

#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(clap::Subcommand)]
enum Action {
    /// List the cache by kind, with its size on disk and its last use
    Ls {
        /// List each entry
        #[arg(long)]
        all: bool,
        /// `json` has each entry
        #[arg(long, value_enum, default_value_t = Form::Terminal)]
        format: Form,
    },
    /// Remove the least recently used entries above the limit: 30 GiB, or TRAMPLAB_CACHE_LIMIT
    Prune {
        /// Prune to this size instead: 10GiB, 500MiB, 0
        #[arg(long, value_name = "SIZE", value_parser = cache_limit::size)]
        to: Option<ByteSize>,
        /// Prune only this kind, as `ls` names it; the limit applies to it
        #[arg(long, value_name = "KIND")]
        kind: Option<String>,
    },
}

/// The output of `cache ls --format json`.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "tramplab cache")]
pub struct Document {
    /// The version of this format.
    #[schemars(extend("const" = SCHEMA))]
    schema: u32,
    folder: PathBuf,
    /// In bytes; runs remove what exceeds it.
    limit: u64,
    /// The size of all entries on disk.
    bytes: u64,
    /// Most recently used first.
    entries: Vec<Entry>,
}

const SCHEMA: u32 = 1;

#[derive(Serialize, JsonSchema)]
#[schemars(inline)]
struct Entry {
    kind: String,
    /// Empty if the kind has one entry.
    name: String,
    path: PathBuf,
    /// Size on disk.
    bytes: u64,
    /// RFC 3339, UTC.
    used: String,
}

fn document(cache: &Cache, limit: ByteSize) -> Result<Document> {
    let items = prune::inventory(cache);
    let bytes = total(&items);
    let entry = |item: Item| {
        let used = OffsetDateTime::from(item.used).format(&Rfc3339);
        let used = used.map_err(|error| Error::failed(error.to_string()))?;
        let Item { kind, name, path, bytes, .. } = item;
        Ok(Entry { kind, name, path, bytes, used })
    };
    let entries = items.into_iter().rev().map(entry).collect::<Result<_>>()?;
    let (folder, limit) = (cache.root().to_owned(), limit.as_u64());
    Ok(Document { schema: SCHEMA, folder, limit, bytes, entries })
}

pub fn cache(args: &Args) -> Result<u8> {
    match &args.action {
        Action::Ls { all, format } => {
            let (cache, limit) = (Cache::located(true)?, cache_limit::limit()?);
            let text = match format {
                Form::Terminal => ls(&cache, *all, limit),
                Form::Json => tramplab_report::json::written(&document(&cache, limit)?)?,
            };
            output::print(text.as_bytes())?;
        }
        Action::Prune { to, kind } => {
            let limit = to.map_or_else(cache_limit::limit, Ok)?;
            // Where there is none, none is made.
            let root = Cache::located(true)?.root().to_owned();
            if !root.exists() {
                output::print(format!("there is no cache at {}\n", root.display()).as_bytes())?;
                return Ok(exit::PASS);
            }
            let cache = Cache::open(true)?;
            let gone = cache.alone(|| cache_limit::prune_to(&cache, limit, kind.as_deref()));
            let gone = gone.ok_or_else(|| {
                Error::failed(format!(
                    "{} is in use by another run, or cannot be written; try again later",
                    cache.root().display()
                ))
            })??;
            let mut text = String::new();
            for item in &gone {
                text += &format!("removed {:>9}  {}\n", shown(item.bytes), title(item));
            }
            let left = shown(total(&prune::inventory(&cache)));
            text += &format!(
                "{} removed, {left} left in {}\n",
                shown(total(&gone)),
                cache.root().display()
            );
            output::print(text.as_bytes())?;
        }
    }
    Ok(exit::PASS)
}

fn ls(cache: &Cache, all: bool, limit: ByteSize) -> String {
    let items = prune::inventory(cache);
    let mut text = format!("{}\n\n", cache.root().display());
    if all {
        text += &format!("{:>12}  {:<16}name\n", "size", "last used");
        for item in items.iter().rev() {
            text += &format!("{:>12}  {:<16}{}\n", shown(item.bytes), ago(item.used), title(item));
        }
    } else {
        text += &format!("{:>12}  {:<16}{:>7}  kind\n", "size", "last used", "entries");
        for (kind, items) in by_kind(&items) {
            let used = items.iter().map(|item| item.used).max().expect("a kind has an item");
            let bytes = items.iter().map(|item| item.bytes).sum();
            text += &format!("{:>12}  {:<16}{:>7}  {kind}\n", shown(bytes), ago(used), items.len());
        }
    }
    text + &format!("{:>12}  all; limit {limit}\n", shown(total(&items)))
}

fn by_kind(items: &[Item]) -> BTreeMap<String, Vec<&Item>> {
    let mut kinds: BTreeMap<String, Vec<&Item>> = BTreeMap::new();
    for item in items {
        kinds.entry(item.kind.clone()).or_default().push(item);
    }
    kinds
}

fn total(items: &[Item]) -> u64 {
    items.iter().map(|item| item.bytes).sum()
}

fn title(item: &Item) -> String {
    if item.name.is_empty() { item.kind.clone() } else { format!("{}/{}", item.kind, item.name) }
}

fn shown(bytes: u64) -> String {
    ByteSize::b(bytes).display().iec().to_string()
}

fn ago(then: SystemTime) -> String {
    let hours = SystemTime::now().duration_since(then).unwrap_or(Duration::ZERO).as_secs() / 3600;
    match hours {
        0 => "within the hour".to_owned(),
        1..48 => format!("{hours} h ago"),
        _ => format!("{} days ago", hours / 24),
    }
}
