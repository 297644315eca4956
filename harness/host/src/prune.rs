// SPDX-License-Identifier: MIT OR Apache-2.0
//! Lists the cache's contents and selects what to remove. Everything in the cache can be made
//! again.

use super::cache::{self, Cache, MARKER};
use std::{
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    time::SystemTime,
};
use walkdir::WalkDir;

/// Kinds that are removed only as a whole.
const WHOLE: [&str; 2] = ["ccache", "debian"];

/// A part of the cache that can be removed by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    pub kind: String,
    pub name: String,
    pub path: PathBuf,
    /// Size on disk.
    pub bytes: u64,
    /// When it was last used, as far as known.
    pub used: SystemTime,
}

/// All items, least recently used first.
pub fn inventory(cache: &Cache) -> Vec<Item> {
    let kinds = folders(cache.root()).map(|(kind, _)| kind);
    let mut items: Vec<Item> = kinds.flat_map(|kind| of_kind(cache, &kind)).collect();
    sort(&mut items);
    items
}

/// The items of one kind, least recently used first.
pub fn of_kind(cache: &Cache, kind: &str) -> Vec<Item> {
    let folder = cache.root().join(kind);
    let item = |(name, path): (String, PathBuf)| {
        let (bytes, used) = (size(&path), used(&path));
        Item { kind: kind.to_owned(), name, bytes, used, path }
    };
    if WHOLE.contains(&kind) {
        return Some(folder)
            .filter(|folder| folder.is_dir())
            .map(|f| item((String::new(), f)))
            .into_iter()
            .collect();
    }
    let mut items: Vec<Item> = folders(&folder).map(item).collect();
    sort(&mut items);
    items
}

fn sort(items: &mut [Item]) {
    items.sort_by(|a, b| (a.used, &a.path).cmp(&(b.used, &b.path)));
}

/// The first of `items` that must be removed so that the rest takes at most `limit` bytes.
pub fn excess(items: &[Item], limit: u64) -> &[Item] {
    let mut rest: u64 = items.iter().map(|item| item.bytes).sum();
    let gone = items.iter().take_while(|item| {
        let goes = rest > limit;
        rest -= if goes { item.bytes } else { 0 };
        goes
    });
    &items[..gone.count()]
}

pub fn remove(item: &Item) -> std::io::Result<()> {
    cache::discard(&item.path)
}

/// The visible folders in a folder. Locks and unfinished entries are hidden.
fn folders(path: &Path) -> impl Iterator<Item = (String, PathBuf)> + use<> {
    fs::read_dir(path).into_iter().flatten().flatten().filter_map(|entry| {
        let name = entry.file_name().into_string().ok()?;
        let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
        (is_folder && !name.starts_with('.')).then(|| (name, entry.path()))
    })
}

/// The time of an entry's marker. Folders that change in place have none: take the newest of their
/// files.
fn used(path: &Path) -> SystemTime {
    let modified = |path: &Path| fs::symlink_metadata(path).and_then(|data| data.modified());
    let inside =
        fs::read_dir(path).into_iter().flatten().flatten().filter_map(|e| modified(&e.path()).ok());
    modified(&path.join(MARKER))
        .unwrap_or_else(|_| inside.chain(modified(path)).max().unwrap_or(SystemTime::UNIX_EPOCH))
}

/// Bytes of allocated blocks, like `du`: snapshots are sparse, and a hard-linked file counts once.
fn size(path: &Path) -> u64 {
    let mut seen = std::collections::HashSet::new();
    let files = WalkDir::new(path).into_iter().flatten().filter_map(|entry| entry.metadata().ok());
    files
        .filter(|data| data.nlink() == 1 || seen.insert((data.dev(), data.ino())))
        .map(|data| data.blocks() * 512)
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    /// Three entries, used an hour apart, and a folder that changes in place.
    fn filled() -> (tempfile::TempDir, Cache) {
        let root = tempfile::tempdir().unwrap();
        let cache = Cache::at(root.path(), true);
        for (hours, kind, name) in
            [(3, "kernel", "old"), (1, "kernel", "new"), (2, "snapshot", "one")]
        {
            let fill = |folder: &Path| fs::write(folder.join("file"), vec![1; 100_000]);
            cache.entry::<std::io::Error>(kind, name, fill).unwrap();
            let marker =
                fs::File::options().write(true).open(cache.path(kind, name).join(MARKER)).unwrap();
            marker.set_modified(SystemTime::now() - Duration::from_secs(hours * 3600)).unwrap();
        }
        fs::create_dir_all(root.path().join("kernel-build/tree/src")).unwrap();
        (root, cache)
    }

    fn names(items: &[Item]) -> Vec<String> {
        items.iter().map(|item| format!("{}/{}", item.kind, item.name)).collect()
    }

    #[test]
    fn removes_the_least_recently_used_first() {
        let (_root, cache) = filled();
        let items = inventory(&cache);
        assert_eq!(
            names(&items),
            ["kernel/old", "snapshot/one", "kernel/new", "kernel-build/tree"]
        );
        assert!(
            items.iter().take(3).all(|item| (100_000..200_000).contains(&item.bytes)),
            "{items:?}"
        );
        assert_eq!(names(excess(&items, 1 << 30)), [""; 0]);
        assert_eq!(names(excess(&items, 250_000)), ["kernel/old"]);
        assert_eq!(names(excess(&items, 0)), names(&items));
        // Using an entry makes it the newest.
        cache.get("kernel", "old").unwrap();
        assert_eq!(names(excess(&inventory(&cache), 250_000)), ["snapshot/one"]);
    }

    #[test]
    fn keeps_unfinished_entries_and_removed_ones_can_be_made_again() {
        let (root, cache) = filled();
        fs::create_dir(root.path().join("kernel/.next.unfinished")).unwrap();
        for item in inventory(&cache) {
            remove(&item).unwrap();
        }
        assert_eq!(names(&inventory(&cache)), [""; 0]);
        assert!(cache.get("kernel", "old").is_none());
        assert!(root.path().join("kernel/.next.unfinished").exists());
        cache.entry::<std::io::Error>("kernel", "old", |_| Ok(())).unwrap();
        assert!(cache.get("kernel", "old").is_some());
    }

    #[test]
    fn counts_no_holes() {
        let (_root, cache) = filled();
        let fill = |folder: &Path| fs::File::create(folder.join("state"))?.set_len(1 << 30);
        cache.entry::<std::io::Error>("snapshot", "two", fill).unwrap();
        let items = of_kind(&cache, "snapshot");
        assert!(items[1].bytes < 100_000, "{items:?}");
    }
}
