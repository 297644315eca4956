// SPDX-License-Identifier: MIT OR Apache-2.0
//! Keeps what a build's `vmlinux` tells about the kernel: the sizes of functions beside the image,
//! code and source lines in a cache entry of their own.
//!
//! That entry is large, and only reports with source lines need it. So the kernel stays cached
//! without it, and is built again only if an order asks for source lines.

use super::{
    BuildError, BuildRecord, Builder, Events,
    error::io_error,
    output::{KIND, image_path, read_record, require_own},
};
use crate::vmlinux::{self, Vmlinux, VmlinuxError};
use sha2::{Digest, Sha256};
use std::{
    fs,
    path::{Path, PathBuf},
};
use tramplab_host::cache::{Cache, CacheError};
use tramplab_model::name::hex;

const KIND_DEBUG: &str = "kernel-debug";

const VMLINUX: &str = "vmlinux";

const FUNCTIONS: &str = "functions.json";

/// The sizes of the functions of the kernel in this entry.
pub(super) fn functions(entry: &Path) -> Option<PathBuf> {
    Some(entry.join(FUNCTIONS)).filter(|path| path.is_file())
}

/// The code and source lines of the kernel with this key, if they are in the cache.
pub fn cached_vmlinux(cache: &Cache, key: &str) -> Option<PathBuf> {
    let entry = cache.get(KIND_DEBUG, key)?;
    Some(vmlinux_in(&entry)).filter(|path| path.is_file())
}

/// Keeps what `fill` puts at [`vmlinux_in`] of a folder. Returns its place in the cache.
pub(crate) fn keep_vmlinux<E: From<CacheError> + std::error::Error + Send + Sync + 'static>(
    cache: &Cache,
    key: &str,
    fill: impl FnOnce(&Path) -> Result<(), E>,
) -> Result<PathBuf, E> {
    cache.entry(KIND_DEBUG, key, fill).map(|entry| vmlinux_in(&entry))
}

pub(crate) fn vmlinux_in(folder: &Path) -> PathBuf {
    folder.join(VMLINUX)
}

impl Builder<'_> {
    pub fn vmlinux(&self, key: &str) -> Option<PathBuf> {
        cached_vmlinux(self.cache, key)
    }

    /// Keeps the sizes of the functions in the entry's folder, and code and source lines in an
    /// entry of their own.
    pub(super) fn keep_code(
        &self,
        build: &Path,
        key: &str,
        folder: &Path,
    ) -> Result<(), VmlinuxError> {
        let Some(from) = own_vmlinux(build) else { return Ok(()) };
        let vmlinux = Vmlinux::read(&from)?;
        let sizes = vmlinux.function_sizes()?;
        let to = folder.join(FUNCTIONS);
        let json = serde_json::to_vec(&sizes).expect("plain data");
        fs::write(&to, json).map_err(vmlinux::io_error("write", &to))?;
        self.keep_lines(&vmlinux, key)
    }

    fn keep_lines(&self, vmlinux: &Vmlinux, key: &str) -> Result<(), VmlinuxError> {
        keep_vmlinux(self.cache, key, |folder| vmlinux.keep(&vmlinux_in(folder))).map(drop)
    }

    /// Keeps the source lines of the base if only its kernel is in the cache: an older version
    /// built it, or its source lines were pruned. The copy that series start from has them.
    pub(super) fn keep_lines_of_base(&mut self) {
        let key = self.key(0);
        let workspace = &self.opened().workspace;
        if workspace.base_state().is_none_or(|state| state.key != key) {
            return;
        }
        let build = workspace.base();
        if let (None, Some(entry)) = (self.vmlinux(&key), self.cache.get(KIND, &key)) {
            // Nobody asked for them.
            let _ = self.keep_lines_like(&entry, &build, &key);
        }
    }

    /// Builds a cached kernel again if the order asks for source lines that are not in the cache.
    pub(super) fn require_lines(
        &mut self,
        count: usize,
        entry: &Path,
        log: &Path,
        events: &mut Events,
    ) -> Result<(), BuildError> {
        let key = self.key(count);
        if !self.order.lines || self.vmlinux(&key).is_some() {
            return Ok(());
        }
        fs::write(log, "").map_err(io_error("write", log))?;
        self.open(events)?;
        self.order.stage(events, "building again, for source lines")?;
        let again = self.lines_again(count, &key, entry, log, events);
        again.inspect_err(|error| self.give_back(error))
    }

    fn lines_again(
        &mut self,
        count: usize,
        key: &str,
        entry: &Path,
        log: &Path,
        events: &mut Events,
    ) -> Result<(), BuildError> {
        let workspace = &self.opened().workspace;
        if count > 0 {
            self.require_base(log, events)?;
            self.keep_lines_of_base();
            self.with_patches(count, log, events)?;
        } else if workspace.base_state().is_some_and(|state| state.key == key) {
            let base = workspace.base();
            return self.keep_lines_like(entry, &base, key);
        } else {
            self.base(log, events)?;
        }
        let build = self.opened().workspace.build();
        self.keep_lines_like(entry, &build, key)
    }

    /// Keeps the source lines in a build folder that holds the same image as the entry.
    fn keep_lines_like(&self, entry: &Path, build: &Path, key: &str) -> Result<(), BuildError> {
        let error = |reason: String| BuildError::Lines { name: self.order.name.clone(), reason };
        let record: BuildRecord = read_record(entry)?;
        let image = image_path(build, self.order.arch);
        require_own(&image, build)?;
        let bytes = fs::read(&image).map_err(io_error("read", &image))?;
        if hex(&Sha256::digest(&bytes)) != record.sha256 {
            return Err(error("the kernel was built again and is not the same".to_owned()));
        }
        let Some(vmlinux) = own_vmlinux(build) else {
            return Err(error(format!("{} has no vmlinux", build.display())));
        };
        Vmlinux::read(&vmlinux)
            .and_then(|vmlinux| self.keep_lines(&vmlinux, key))
            .map_err(|cause| error(cause.to_string()))
    }
}

/// The `vmlinux` of a build. A link or a device would lead out of the build.
fn own_vmlinux(build: &Path) -> Option<PathBuf> {
    let path = build.join(VMLINUX);
    (path.exists() && require_own(&path, build).is_ok()).then_some(path)
}
