// SPDX-License-Identifier: MIT OR Apache-2.0
//! The guests' root: the agent and what it needs, packed once for each agent and kernel.

use crate::{
    error::{InitramfsError, Result},
    run_dir::sha256,
};
use sha2::{Digest, Sha256};
use std::path::{Path, PathBuf};
use tramplab_host::Cache;
use tramplab_kernel::{Image, Module, compile::TreeTests};
use tramplab_model::name::hex;
use tramplab_vm as vm;

/// The guest's root for this agent and kernel.
pub fn initramfs(cache: &Cache, agent: &Path, image: &Image) -> Result<PathBuf> {
    let mut key = sha256(agent)?;
    for module in &image.modules {
        key = hex(&Sha256::digest(format!("{key} {}", sha256(module)?)));
    }
    let entry = cache.entry("initramfs", &key, |dir| {
        vm::initramfs::build(agent, &image.modules, &dir.join(INITRAMFS))
            .map_err(InitramfsError::Write)
    })?;
    Ok(entry.join(INITRAMFS))
}

/// The guest's root with modules for the agent to load, and perhaps with a busybox.
pub fn with_additions(
    cache: &Cache,
    initrd: &Path,
    modules: &[Module],
    busybox: Option<&Path>,
) -> Result<PathBuf> {
    let mut key = sha256(initrd)?;
    if let Some(busybox) = busybox {
        key = hex(&Sha256::digest(format!("{key} busybox {}", sha256(busybox)?)));
    }
    for Module { name, bytes } in modules {
        let digest = hex(&Sha256::digest(bytes));
        key = hex(&Sha256::digest(format!("{key} {name} {digest}")));
    }
    let entry = cache.entry("initramfs", &key, |dir| {
        let files = modules.iter().map(|Module { name, bytes }| (&**name, &**bytes));
        vm::initramfs::with_additions(initrd, files, busybox, &dir.join(INITRAMFS))
            .map_err(InitramfsError::Write)
    })?;
    Ok(entry.join(INITRAMFS))
}

/// The guest's root with the tests of its tree.
pub fn with_tree_tests(cache: &Cache, initrd: &Path, tree_tests: &TreeTests) -> Result<PathBuf> {
    let key = hex(&Sha256::digest(format!("{} {}", sha256(initrd)?, tree_tests.record.contents)));
    let entry = cache.entry("initramfs", &key, |dir| {
        vm::initramfs::with_folder(initrd, &tree_tests.root, &dir.join(INITRAMFS))
            .map_err(InitramfsError::Write)
    })?;
    Ok(entry.join(INITRAMFS))
}

const INITRAMFS: &str = "initramfs.cpio";

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        collections::{BTreeMap, BTreeSet},
        fs,
    };
    use tramplab_kernel::{compile::TreeTestsRecord, tree_tests::DenyList};

    /// The same order, made anew on another host or after a failure.
    #[test]
    fn a_root_has_the_tests_that_were_built_and_not_those_of_the_same_name() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::at(folder.path().join("cache"), true);
        let agent = folder.path().join("agent.cpio");
        fs::write(&agent, "agent").unwrap();
        let packed = |contents: &str| {
            let root = folder.path().join(contents);
            fs::create_dir_all(&root).unwrap();
            fs::write(root.join("program"), contents).unwrap();
            let record = TreeTestsRecord {
                key: "k".to_owned(),
                seconds: 1.0,
                tests: BTreeMap::new(),
                programs: BTreeSet::new(),
                broken: BTreeMap::new(),
                clang: None,
                contents: contents.to_owned(),
            };
            with_tree_tests(
                &cache,
                &agent,
                &TreeTests { root, record, denied: DenyList::default() },
            )
            .unwrap()
        };
        let (old, new) = (packed("libelf-1"), packed("libelf-2"));
        let holds = |path: &Path, text: &str| {
            String::from_utf8_lossy(&fs::read(path).unwrap()).contains(text)
        };
        assert!(holds(&old, "libelf-1") && holds(&new, "libelf-2") && !holds(&new, "libelf-1"));
        assert_eq!(packed("libelf-1"), old);
    }
}
