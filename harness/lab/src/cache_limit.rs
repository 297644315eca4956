// SPDX-License-Identifier: MIT OR Apache-2.0
//! The size limit of the cache, and pruning to it.

use crate::{
    error::{Context, Error, Result},
    event::{Event, Tell},
};
use bytesize::ByteSize;
use std::{collections::BTreeSet, env};
use tramplab_host::{
    Cache,
    prune::{self, Item},
};

const LIMIT: ByteSize = ByteSize::gib(30);
const LIMIT_ENV: &str = "TRAMPLAB_CACHE_LIMIT";

/// Prunes after a run that added to the cache, unless another run uses it. Errors do not fail the
/// run.
pub fn keep_within(cache: &Cache, tell: Tell) {
    if !cache.has_grown() {
        return;
    }
    let pruned = limit().and_then(|limit| {
        let gone = cache.alone(|| prune_to(cache, limit, None)).transpose()?.unwrap_or_default();
        Ok((limit, gone.iter().map(|item| item.bytes).sum::<u64>()))
    });
    match pruned {
        Ok((_, 0)) => {}
        Ok((limit, bytes)) => {
            let removed = ByteSize::b(bytes).display().iec();
            let line = format!(
                "the cache was larger than {limit}: removed {removed}, least recently used first"
            );
            tell(Event::Line(&line));
        }
        Err(error) => tell(Event::Line(&format!("warning: {}", error.told()))),
    }
}

/// The limit: `TRAMPLAB_CACHE_LIMIT`, or 30 GiB.
pub fn limit() -> Result<ByteSize> {
    match env::var(LIMIT_ENV) {
        Err(env::VarError::NotPresent) => Ok(LIMIT),
        Err(error) => Err(Error::Usage(format!("{LIMIT_ENV}: {error}"))),
        Ok(text) => size(&text)
            .map_err(|expected| Error::Usage(format!("{LIMIT_ENV}={text:?}: {expected}"))),
    }
}

/// A size with its unit: nobody means 30 bytes by "30".
pub fn size(text: &str) -> Result<ByteSize, String> {
    let has_unit = text.ends_with(|last: char| last.is_ascii_alphabetic()) || text == "0";
    text.parse()
        .ok()
        .filter(|_| has_unit)
        .ok_or_else(|| "expected a size such as 20GiB or 500MiB, or 0".to_owned())
}

/// Removes the least recently used entries, of one kind or of all, until the rest is within the
/// limit.
pub fn prune_to(cache: &Cache, limit: ByteSize, kind: Option<&str>) -> Result<Vec<Item>> {
    let mut items = prune::inventory(cache);
    let kinds: BTreeSet<String> = items.iter().map(|item| item.kind.clone()).collect();
    items.retain(|item| kind.is_none_or(|kind| item.kind == kind));
    if let (Some(kind), true) = (kind, items.is_empty()) {
        let kinds = kinds.into_iter().collect::<Vec<_>>().join(", ");
        return Err(Error::Usage(format!(
            "the cache has nothing of kind {kind:?}; it has: {kinds}"
        )));
    }
    let gone = prune::excess(&items, limit.as_u64()).to_vec();
    for item in &gone {
        prune::remove(item).with_context(|| format!("failed to remove {}", item.path.display()))?;
    }
    Ok(gone)
}
