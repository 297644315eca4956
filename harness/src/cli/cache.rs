// SPDX-License-Identifier: MIT OR Apache-2.0
//! `cargo xtask cache`: what is kept between runs, and less of it.

use super::{UsageError, exit};
use anyhow::{Context, Result};
use bytesize::ByteSize;
use std::{
    collections::BTreeMap,
    env,
    time::{Duration, SystemTime},
};
use tramplab::host::{
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
        #[arg(long, value_name = "SIZE")]
        to: Option<ByteSize>,
        /// Of this kind only, as `ls` names it, which the limit then is for
        #[arg(long, value_name = "KIND")]
        kind: Option<String>,
    },
}

pub fn cache(args: &Args) -> Result<u8> {
    let cache = Cache::open(true)?;
    match &args.action {
        Action::Ls { all } => ls(&cache, *all),
        Action::Prune { to, kind } => {
            let limit = to.map_or_else(limit, Ok)?;
            let gone = cache.alone(|| prune_to(&cache, limit, kind.as_deref()));
            let gone = gone.with_context(|| {
                format!(
                    "{} is in use by another run, or cannot be written: try again when it has ended",
                    cache.root().display()
                )
            })??;
            for item in &gone {
                println!("removed {:>9}  {}", shown(item.bytes), title(item));
            }
            let left: u64 = prune::inventory(&cache).iter().map(|item| item.bytes).sum();
            println!("{} removed, {} left in {}", shown(total(&gone)), shown(left), cache.root().display());
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
        Err(_) => Ok(LIMIT),
        Ok(text) => text.parse().map_err(|_| {
            UsageError(format!("{LIMIT_ENV}={text:?}: expected a size such as 20GiB or 500MiB")).into()
        }),
    }
}

fn prune_to(cache: &Cache, limit: ByteSize, kind: Option<&str>) -> Result<Vec<Item>> {
    let items = match kind {
        None => prune::inventory(cache),
        Some(kind) => prune::of_kind(cache, kind),
    };
    if let (Some(kind), true) = (kind, items.is_empty()) {
        let kinds: Vec<String> = by_kind(&prune::inventory(cache)).into_keys().collect();
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

fn ls(cache: &Cache, all: bool) {
    let items = prune::inventory(cache);
    println!("{}\n", cache.root().display());
    println!(
        "{:<24}{:>8}{:>12}  last used",
        if all { "" } else { "kind" },
        if all { "" } else { "entries" },
        "size"
    );
    if all {
        for item in items.iter().rev() {
            println!("{:>44}  {}  {}", shown(item.bytes), ago(item.used), title(item));
        }
    } else {
        for (kind, items) in by_kind(&items) {
            let used = items.iter().map(|item| item.used).max().expect("a kind has an item");
            let bytes = items.iter().map(|item| item.bytes).sum();
            println!("{kind:<24}{:>8}{:>12}  {}", items.len(), shown(bytes), ago(used));
        }
    }
    println!("\n{:<32}{:>12}", "all", shown(total(&items)));
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
