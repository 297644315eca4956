// SPDX-License-Identifier: MIT OR Apache-2.0

use super::{entry::MARKER, *};
use std::sync::atomic::{AtomicUsize, Ordering};

#[derive(Debug, thiserror::Error)]
enum FillError {
    #[error("failed to get it: {0}")]
    Io(#[from] io::Error),
    #[error("`tar` failed (exit status: 2):\n{0}")]
    Child(&'static str),
    #[error(transparent)]
    Cache(#[from] CacheError),
}

/// Every name below a folder except locks.
fn names(folder: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name().into_string().unwrap();
        if entry.path().is_dir() {
            found.extend(names(&entry.path()).into_iter().map(|below| format!("{name}/{below}")));
            found.push(name);
        } else if !name.ends_with(LOCK) {
            found.push(name);
        }
    }
    found.sort();
    found
}

fn cache() -> (tempfile::TempDir, Cache) {
    let folder = tempfile::tempdir().unwrap();
    let cache = Cache::at(folder.path().join("cache"), true);
    (folder, cache)
}

fn fill(text: &str) -> impl Fn(&Path) -> Result<(), FillError> {
    move |folder| Ok(fs::write(folder.join("file"), text)?)
}

#[test]
fn runs_alone_only_without_other_users_and_never_waits() {
    let root = tempfile::tempdir().unwrap();
    let open = || {
        let mut cache = Cache::at(root.path(), true);
        let users = lock_file(&root.path().join(USERS)).unwrap();
        let lock = cache.acquire(users, root.path(), FlockArg::LockSharedNonblock, Duration::ZERO);
        cache.users = lock.ok().map(|lock| Arc::new(Mutex::new(lock)));
        cache
    };
    let (one, other) = (open(), open());
    assert_eq!(one.alone(|| 1), None);
    drop(one);
    // It was refused and is still a user.
    assert_eq!(other.alone(|| open().users.is_some()), Some(false));
    let one = open();
    assert_eq!((one.alone(|| 1), other.alone(|| 1)), (None, None));
    drop(other);
    assert_eq!(one.clone().alone(|| 1), Some(1));
}

#[test]
fn makes_no_optional_entry_that_another_run_is_making() {
    let root = tempfile::tempdir().unwrap();
    let cache = Cache::at(root.path(), true);
    let lock = cache.lock_in(&root.path().join("kind"), "key", Duration::ZERO).unwrap();
    let make = || {
        cache.entry_in_passing::<io::Error>("kind", "key", |folder| fs::write(folder.join("a"), ""))
    };
    assert!(!make().unwrap());
    drop(lock);
    assert!(make().unwrap());
    assert!(!make().unwrap());
    let failing = cache.entry_in_passing("kind", "other", |_| Err(io::Error::other("no")));
    assert_eq!(failing.unwrap_err().to_string(), "no");
    assert!(cache.get("kind", "key").is_some() && cache.get("kind", "other").is_none());
}

#[test]
fn makes_an_entry_again_that_was_truncated_or_lost_a_file() {
    let (_folder, cache) = cache();
    let fill = || {
        cache.entry::<FillError>("kind", "key", |folder| {
            Ok(fs::write(folder.join("a file"), "whole")?)
        })
    };
    let file = fill().unwrap().join("a file");
    for damage in [|file: &Path| fs::write(file, "wh"), |file: &Path| fs::remove_file(file)] {
        damage(&file).unwrap();
        assert!(cache.get("kind", "key").is_none());
        assert_eq!(fs::read_to_string(fill().unwrap().join("a file")).unwrap(), "whole");
        assert!(cache.get("kind", "key").is_some());
    }
}

#[test]
fn fills_an_entry_once_for_concurrent_runs() {
    let (_folder, cache) = cache();
    let fills = AtomicUsize::new(0);
    thread::scope(|scope| {
        for _ in 0..8 {
            // Each thread has its own object, like another process.
            let cache = Cache::at(cache.root(), true);
            let fills = &fills;
            scope.spawn(move || {
                let fill = |folder: &Path| -> Result<(), FillError> {
                    fills.fetch_add(1, Ordering::SeqCst);
                    fs::write(folder.join("file"), "a")?;
                    thread::sleep(Duration::from_millis(50));
                    Ok(fs::write(folder.join("other"), "b")?)
                };
                let entry = cache.entry("kind", "key:1", fill).unwrap();
                assert_eq!(names(&entry), [MARKER, "file", "other"]);
            });
        }
    });
    assert_eq!(fills.into_inner(), 1);
    assert_eq!(cache.list("kind"), [cache.root().join("kind/key_1")]);
    assert_eq!(cache.get("kind", "key:1"), Some(cache.root().join("kind/key_1")));
    assert_eq!(cache.get("kind", "key:2"), None);
}

#[test]
fn keeps_nothing_of_a_failed_fill_and_retries() {
    let (_folder, cache) = cache();
    let fails = |folder: &Path| -> Result<(), FillError> {
        fs::write(folder.join("half"), "h")?;
        Err(FillError::Child("E: Failed to fetch"))
    };
    let error = cache.entry("kind", "key", fails).unwrap_err();
    assert!(matches!(error, FillError::Child(_)), "{error}");
    assert_eq!(names(cache.root()), ["kind"]);

    let panics = |folder: &Path| -> Result<(), FillError> {
        fs::write(folder.join("half"), "h")?;
        panic!("a bug")
    };
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        cache.entry("kind", "key", panics)
    }));
    assert!(caught.is_err());
    assert_eq!(names(cache.root()), ["kind"]);

    cache.entry("kind", "key", fill("whole")).unwrap();
    assert_eq!(names(cache.root()), ["kind", "kind/key", "kind/key/.complete", "kind/key/file"]);
}

#[test]
fn removes_unfinished_entries_of_dead_runs_only() {
    let (_folder, cache) = cache();
    let kind = cache.root().join("kind");
    for key in ["dead", "live", "key"] {
        fs::create_dir_all(kind.join(format!(".{key}{UNFINISHED}"))).unwrap();
        fs::write(kind.join(format!(".{key}{UNFINISHED}/half")), "h").unwrap();
        fs::write(kind.join(format!(".{key}{LOCK}")), "4194305").unwrap();
    }
    // A folder without a marker is not an entry.
    fs::create_dir_all(kind.join("key")).unwrap();
    let _live = cache.lock_in(&kind, "live", LOCK_LIMIT).unwrap();
    cache.entry("kind", "key", fill("whole")).unwrap();
    assert_eq!(
        names(&kind),
        [".live.unfinished", ".live.unfinished/half", "key", "key/.complete", "key/file"]
    );
}

/// `/dev/full` returns ENOSPC. A child's error is known only from its output.
#[test]
fn names_a_full_disk_and_keeps_nothing() {
    type Fill = fn(&Path) -> Result<(), FillError>;
    let fills: [Fill; 2] = [
        |folder| {
            fs::write(folder.join("half"), "h")?;
            Ok(fs::write("/dev/full", "x")?)
        },
        |_| Err(FillError::Child("tar: write error: No space left on device")),
    ];
    for fill in fills {
        let (_folder, cache) = cache();
        let error = cache.entry("kind", "key", fill).unwrap_err();
        assert!(matches!(error, FillError::Cache(CacheError::Full { .. })), "{error:?}");
        let text = error.to_string();
        assert!(
            text.contains(&cache.root().display().to_string()) && text.contains("TRAMPLAB_CACHE"),
            "{text}"
        );
        assert_eq!(names(cache.root()), ["kind"]);
    }
}

#[test]
fn rejects_a_download_larger_than_the_disk() {
    let folder = tempfile::tempdir().unwrap();
    require_room(folder.path(), 1).unwrap();
    let error = require_room(folder.path(), u64::MAX).unwrap_err().to_string();
    assert!(
        error.contains("it takes about 17592186044416 MiB") && error.contains("TRAMPLAB_CACHE"),
        "{error}"
    );
}

/// A place where even root cannot make a folder, and one where a file is in the way.
#[test]
fn names_a_cache_that_is_not_writable() {
    let file = tempfile::NamedTempFile::new().unwrap();
    for root in [Path::new("/proc/tramplab-cache").to_owned(), file.path().join("cache")] {
        let cache = Cache::at(&root, true);
        let error = cache.entry("kind", "key", fill("x")).unwrap_err();
        assert!(matches!(error, FillError::Cache(CacheError::NotWritable { .. })), "{error:?}");
        let text = error.to_string();
        assert!(
            text.contains(&root.display().to_string()) && text.contains("TRAMPLAB_CACHE"),
            "{text}"
        );
    }
}

#[test]
fn replaces_an_entry_once_without_reuse() {
    let (_folder, cache) = cache();
    let entry = cache.entry("kind", "key", fill("old")).unwrap();
    let anew = Cache::at(cache.root(), false);
    assert_eq!(anew.get("kind", "key"), None);
    // The old entry stays if making it again fails.
    anew.entry("kind", "key", |_| Err(FillError::Child("no network"))).unwrap_err();
    assert_eq!(fs::read_to_string(entry.join("file")).unwrap(), "old");
    for text in ["new", "never written"] {
        assert_eq!(anew.entry("kind", "key", fill(text)).unwrap(), entry);
        assert_eq!(fs::read_to_string(entry.join("file")).unwrap(), "new");
    }
    assert_eq!(names(cache.root()), ["kind", "kind/key", "kind/key/.complete", "kind/key/file"]);
}
