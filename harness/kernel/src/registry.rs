// SPDX-License-Identifier: MIT OR Apache-2.0
//! Queries Debian's registry and caches its answers, so that a run needs no network and all runs of
//! a day use the same packages.

use super::KernelError;
use serde::{Serialize, de::DeserializeOwned};
use std::{
    cmp::Ordering,
    fs,
    time::{Duration, SystemTime},
};
use tramplab_host::{
    cache::Cache,
    debian::{self, Debian, DebianError, Package, Pin},
};

/// An answer for the newest version is reused for this long.
const ANSWER_HOLDS: Duration = Duration::from_secs(24 * 3600);

/// A query whose last answer is kept in the cache.
pub struct Question {
    /// Path of the answer below the cache's root.
    pub file: String,
    /// The query names one version, so its answer never expires.
    pub is_pinned: bool,
}

impl Question {
    /// Returns the cached answer if it is still valid and `here` finds its files. Otherwise asks
    /// the registry. If that fails, falls back to an expired answer.
    pub fn ask<T: Serialize + DeserializeOwned, R>(
        &self,
        cache: &Cache,
        progress: &mut dyn FnMut(&str),
        here: impl Fn(&T) -> Option<R>,
        described: impl Fn(&T) -> String,
        registry: impl FnOnce(&mut dyn FnMut(&str)) -> Result<(T, R), KernelError>,
    ) -> Result<R, KernelError> {
        let known = self.load::<T>(cache);
        if let Some((answer, age)) = &known
            && (*age < ANSWER_HOLDS || self.is_pinned)
            && let Some(found) = here(answer)
        {
            return Ok(found);
        }
        match registry(progress) {
            Ok((answer, found)) => {
                self.save(cache, &answer)?;
                Ok(found)
            }
            // An older kernel does not fix a full disk.
            Err(error @ (KernelError::Debian(DebianError::Cache(_)) | KernelError::Cache(_))) => {
                Err(error)
            }
            Err(KernelError::Debian(DebianError::Archive(error))) if error.forbids_older() => {
                Err(DebianError::Archive(error).into())
            }
            Err(error) => {
                let older = known.and_then(|(answer, age)| Some((here(&answer)?, answer, age)));
                let Some((found, answer, age)) = older else { return Err(error) };
                let hours = age.as_secs() / 3600;
                progress(&format!(
                    "using {}, the newest {hours} hours ago: {error}",
                    described(&answer)
                ));
                Ok(found)
            }
        }
    }

    fn load<T: DeserializeOwned>(&self, cache: &Cache) -> Option<(T, Duration)> {
        let path = cache.root().join(&self.file);
        let age = SystemTime::now().duration_since(fs::metadata(&path).ok()?.modified().ok()?);
        // An unreadable answer is requested again.
        let answer = serde_json::from_slice(&fs::read(&path).ok()?).ok()?;
        Some((answer, age.unwrap_or_default()))
    }

    pub fn save<T: Serialize>(&self, cache: &Cache, answer: &T) -> Result<(), KernelError> {
        Ok(cache.write(&self.file, &serde_json::to_vec_pretty(answer).expect("plain data"))?)
    }
}

/// Runs `attempt` on a pin, or on the registry's package lists. Refreshes those and retries once if
/// they are out of date.
pub fn search<R>(
    cache: &Cache,
    architecture: &str,
    pin: Option<&Pin>,
    progress: &mut dyn FnMut(&str),
    mut attempt: impl FnMut(&Debian, &mut dyn FnMut(&str)) -> Result<R, KernelError>,
) -> Result<R, KernelError> {
    let debian = match pin {
        Some(pin) => Debian::pinned(cache, architecture, pin)?,
        None => Debian::open(cache, architecture, progress)?,
    };
    debian::attempt(&[&debian], progress, KernelError::debian, |progress| {
        attempt(&debian, progress)
    })
}

/// Returns the item with the newest package, by Debian's version order. Of one version that exists
/// twice, prefers the signed package, whose name is shorter.
pub fn newest<T>(items: impl Iterator<Item = T>, package: impl Fn(&T) -> &Package) -> Option<T> {
    let mut newest: Option<T> = None;
    for item in items {
        let is_newer = match newest.as_ref().map(&package) {
            None => true,
            Some(best) => {
                let package = package(&item);
                let order = debian::compare_versions(&package.version, &best.version);
                order.then(best.name.len().cmp(&package.name.len())) == Ordering::Greater
            }
        };
        if is_newer {
            newest = Some(item);
        }
    }
    newest
}
