// SPDX-License-Identifier: MIT OR Apache-2.0
//! `cargo xtask cache`: what is kept between runs, and less of it.

use super::{UsageError, exit, report};
use anyhow::{Context, Result};
use bytesize::ByteSize;
use std::{
    collections::BTreeMap,
    env,
    time::{Duration, SystemTime},
};
use tramplab_host::{
    Cache,
    prune::{self, Item},
};

/// What the cache may take, where nothing else is said.
const LIMIT: ByteSize = ByteSize::gib(30);
const LIMIT_ENV: &str = "TRAMPLAB_CACHE_LIMIT";

#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(clap::Subcommand)]
enum Action {
    /// List what is there by kind, with what it takes on the disk and when it was last used
    Ls {
        /// Each thing by itself
        #[arg(long)]
        all: bool,
    },
    /// Remove the least recently used until no more is left than the limit: 30 GiB, or TRAMPLAB_CACHE_LIMIT
    Prune {
        /// The limit, instead: 10GiB, 500MiB, 0
        #[arg(long, value_name = "SIZE", value_parser = size)]
        to: Option<ByteSize>,
        /// Of this kind only, as `ls` names it, which the limit then is for
        #[arg(long, value_name = "KIND")]
        kind: Option<String>,
    },
}

pub fn cache(args: &Args) -> Result<u8> {
    match &args.action {
        Action::Ls { all } => report::print(ls(&Cache::located(true)?, *all).as_bytes())?,
        Action::Prune { to, kind } => {
            let limit = to.map_or_else(limit, Ok)?;
            // Where there is none, none is made.
            let root = Cache::located(true)?.root().to_owned();
            if !root.exists() {
                report::print(format!("there is no cache at {}\n", root.display()).as_bytes())?;
                return Ok(exit::PASS);
            }
            let cache = Cache::open(true)?;
            let gone = cache.alone(|| prune_to(&cache, limit, kind.as_deref()));
            let gone = gone.with_context(|| {
                format!(
                    "{} is in use by another run, or cannot be written: try again when it has ended",
                    cache.root().display()
                )
            })??;
            let mut text = String::new();
            for item in &gone {
                text += &format!("removed {:>9}  {}\n", shown(item.bytes), title(item));
            }
            let left = shown(total(&prune::inventory(&cache)));
            text += &format!("{} removed, {left} left in {}\n", shown(total(&gone)), cache.root().display());
            report::print(text.as_bytes())?;
        }
    }
    Ok(exit::PASS)
}

/// After a run that added something: no more than the limit, unless others use it. The run has its verdict whatever becomes of this.
pub fn keep_within_limit(cache: &Cache) {
    if !cache.has_grown() {
        return;
    }
    let pruned = limit().and_then(|limit| {
        let gone = cache.alone(|| prune_to(cache, limit, None)).transpose()?.unwrap_or_default();
        Ok((limit, total(&gone)))
    });
    match pruned {
        Ok((_, 0)) => {}
        Ok((limit, bytes)) => {
            eprintln!(
                "the cache was larger than {limit}: removed {} that had not been used for longest",
                shown(bytes)
            );
        }
        Err(error) => eprintln!("warning: {error:#}"),
    }
}

pub fn limit() -> Result<ByteSize> {
    match env::var(LIMIT_ENV) {
        Err(env::VarError::NotPresent) => Ok(LIMIT),
        Err(error) => Err(UsageError(format!("{LIMIT_ENV}: {error}")).into()),
        Ok(text) => {
            size(&text).map_err(|expected| UsageError(format!("{LIMIT_ENV}={text:?}: {expected}")).into())
        }
    }
}

/// Of 30 nobody means 30 bytes.
fn size(text: &str) -> Result<ByteSize, String> {
    let has_unit = text.ends_with(|last: char| last.is_ascii_alphabetic()) || text == "0";
    text.parse()
        .ok()
        .filter(|_| has_unit)
        .ok_or_else(|| "expected a size such as 20GiB or 500MiB, or 0".to_owned())
}

fn prune_to(cache: &Cache, limit: ByteSize, kind: Option<&str>) -> Result<Vec<Item>> {
    let mut items = prune::inventory(cache);
    let kinds: Vec<String> = by_kind(&items).into_keys().collect();
    items.retain(|item| kind.is_none_or(|kind| item.kind == kind));
    if let (Some(kind), true) = (kind, items.is_empty()) {
        let message =
            format!("there is nothing of the kind {kind:?} in the cache; there is: {}", kinds.join(", "));
        return Err(UsageError(message).into());
    }
    let gone = prune::excess(&items, limit.as_u64()).to_vec();
    for item in &gone {
        prune::remove(item).with_context(|| format!("failed to remove {}", item.path.display()))?;
    }
    Ok(gone)
}

fn ls(cache: &Cache, all: bool) -> String {
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
    text + &format!("{:>12}  all\n", shown(total(&items)))
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
