// SPDX-License-Identifier: MIT OR Apache-2.0
//! Folders of sources: checks, hashes and synchronizes them.

use super::{KernelError, SourceError, io_error};
use crate::git::{self, Repository};
use sha2::{Digest, Sha256};
use std::{
    collections::BTreeMap,
    fs::{self, File, Metadata},
    io::{
        self, BufRead, BufReader,
        ErrorKind::{NotADirectory, NotFound},
        Read,
    },
    os::unix::{
        ffi::OsStrExt,
        fs::{MetadataExt, PermissionsExt, symlink},
    },
    path::{Component, Path, PathBuf},
};
use tramplab_model::name::hex;
use walkdir::WalkDir;

/// Traces of a build. `make` itself looks for them before it builds elsewhere (`outputmakefile` in
/// the kernel's Makefile).
const BUILT: [&str; 4] =
    [".config", "include/config", "arch/x86/include/generated", "arch/arm64/include/generated"];

/// The Makefile's version must be within this many lines.
const HEAD: usize = 50;

#[derive(Clone, Debug, PartialEq, Eq)]
enum Entry {
    Folder,
    File { executable: bool, size: u64 },
    Link(PathBuf),
}

impl Entry {
    /// True if one can become the other without being removed first.
    fn is_like(&self, other: &Entry) -> bool {
        std::mem::discriminant(self) == std::mem::discriminant(other)
    }
}

/// Checks that a folder holds a kernel's sources.
pub fn check_tree(path: &Path) -> Result<(), KernelError> {
    let lacks = |lacks| SourceError::NotATree { place: path.display().to_string(), lacks }.into();
    for file in ["Kbuild", "Kconfig", "Makefile"] {
        if !path.join(file).is_file() {
            return Err(lacks(file));
        }
    }
    let makefile = path.join("Makefile");
    let file = File::open(&makefile).map_err(io_error("read", &makefile))?;
    let mut lines = BufReader::new(file.take(64 * 1024)).lines().take(HEAD).map_while(Result::ok);
    if lines.any(|line| line.starts_with("VERSION =")) {
        Ok(())
    } else {
        Err(lacks("version in its Makefile"))
    }
}

/// Checks that a folder can be taken as sources. Build products can be told from sources only in a
/// work tree of git.
pub fn check_usable(path: &Path) -> Result<(), KernelError> {
    let Some(names) = listed(path)? else { return check_clean(path) };
    let entry = PathBuf::from("Makefile");
    if names.contains(&entry) {
        return Ok(());
    }
    let why = format!(
        "is ignored by git, as `git -C {} check-ignore -v Makefile` shows; add the sources to git",
        path.display()
    );
    Err(SourceError::Entry { path: path.to_owned(), entry, why }.into())
}

/// Checks that nothing was built in a folder of sources.
pub fn check_clean(path: &Path) -> Result<(), KernelError> {
    match BUILT.into_iter().find(|there| path.join(there).exists()) {
        Some(there) => Err(SourceError::Built { path: path.to_owned(), there }.into()),
        None => Ok(()),
    }
}

/// Hashes all names, contents, links and executable bits of [`entries`].
pub fn digest(root: &Path) -> Result<String, KernelError> {
    let mut hash = Sha256::new();
    let mut buffer = vec![0; 128 * 1024];
    for (name, entry) in entries(root)? {
        // Each text is preceded by its length, so that no two trees hash the same input.
        let text = |hash: &mut Sha256, text: &[u8]| {
            hash.update((text.len() as u64).to_le_bytes());
            hash.update(text);
        };
        text(&mut hash, name.as_os_str().as_bytes());
        match entry {
            Entry::Folder => hash.update(b"d"),
            Entry::Link(target) => {
                hash.update(b"l");
                text(&mut hash, target.as_os_str().as_bytes());
            }
            Entry::File { executable, .. } => {
                hash.update(if executable { b"x" } else { b"f" });
                let path = root.join(&name);
                let mut file = File::open(&path).map_err(io_error("read", &path))?;
                let mut size = 0u64;
                loop {
                    let read = file.read(&mut buffer).map_err(io_error("read", &path))?;
                    if read == 0 {
                        break;
                    }
                    size += read as u64;
                    hash.update(&buffer[..read]);
                }
                hash.update(size.to_le_bytes());
            }
        }
    }
    Ok(hex(&hash.finalize()))
}

/// Hashes names, modes, sizes, inodes and times, without reading a file. An equal stamp means that
/// nobody has written to the folder.
pub fn stamp(root: &Path) -> Result<String, KernelError> {
    let mut hash = Sha256::new();
    for entry in WalkDir::new(root).sort_by_file_name() {
        let entry = entry.map_err(|error| walk_error(root, error))?;
        let metadata = entry.metadata().map_err(|error| walk_error(root, error))?;
        hash.update((entry.path().as_os_str().len() as u64).to_le_bytes());
        hash.update(entry.path().as_os_str().as_bytes());
        for number in [
            i64::from(metadata.mode()),
            metadata.size() as i64,
            metadata.ino() as i64,
            metadata.mtime(),
            metadata.mtime_nsec(),
            metadata.ctime(),
            metadata.ctime_nsec(),
        ] {
            hash.update(number.to_le_bytes());
        }
    }
    Ok(hex(&hash.finalize()))
}

/// Makes `into` equal to `from`. Unchanged files keep their time, so `make` does not rebuild them.
pub fn sync(from: &Path, into: &Path) -> Result<(), KernelError> {
    bring(from, into, |from, to| fs::copy(from, to).map(drop))
}

/// Like [`sync`], but moves the files out of `from`.
pub fn sync_moving(from: &Path, into: &Path) -> Result<(), KernelError> {
    bring(from, into, |from, to| fs::rename(from, to))
}

fn bring(
    from: &Path,
    into: &Path,
    put: impl Fn(&Path, &Path) -> io::Result<()>,
) -> Result<(), KernelError> {
    let wanted = entries(from)?;
    let stays = |name: &Path, entry: Option<&Entry>| {
        wanted.get(name).is_some_and(|wanted| entry.is_some_and(|entry| wanted.is_like(entry)))
    };
    let mut present = BTreeMap::new();
    // Visits a folder's contents before the folder itself.
    for entry in WalkDir::new(into).min_depth(1).contents_first(true) {
        let entry = entry.map_err(|error| walk_error(into, error))?;
        let name = relative(entry.path(), into);
        let metadata = entry.metadata().map_err(|error| walk_error(into, error))?;
        let found = self::entry(entry.path(), &metadata);
        if stays(&name, found.as_ref()) {
            present.extend(found.map(|found| (name, found)));
        } else if entry.file_type().is_dir() {
            fs::remove_dir(entry.path()).map_err(io_error("remove", entry.path()))?;
        } else {
            fs::remove_file(entry.path()).map_err(io_error("remove", entry.path()))?;
        }
    }
    for (name, entry) in wanted {
        let (source, to) = (from.join(&name), into.join(&name));
        match (&entry, present.get(&name)) {
            (Entry::Folder, Some(_)) => {}
            (Entry::Folder, None) => fs::create_dir(&to).map_err(io_error("make", &to))?,
            (_, Some(there)) if *there == entry && same(&entry, &source, &to)? => {}
            (Entry::Link(target), there) => {
                if there.is_some() {
                    fs::remove_file(&to).map_err(io_error("remove", &to))?;
                }
                symlink(target, &to).map_err(io_error("make", &to))?;
            }
            (Entry::File { executable, .. }, there) => {
                // Replaced, not overwritten: the file may have other hard links.
                if there.is_some() {
                    fs::remove_file(&to).map_err(io_error("remove", &to))?;
                }
                put(&source, &to).map_err(io_error("write", &to))?;
                let mode = fs::Permissions::from_mode(if *executable { 0o755 } else { 0o644 });
                fs::set_permissions(&to, mode).map_err(io_error("write", &to))?;
                // A file that was changed back would have an old time, and `make` would miss the
                // change.
                let now = File::options().append(true).open(&to);
                now.and_then(|file| file.set_modified(std::time::SystemTime::now()))
                    .map_err(io_error("write", &to))?;
            }
        }
    }
    Ok(())
}

/// True if two entries of the same kind and size have the same content.
fn same(entry: &Entry, a: &Path, b: &Path) -> Result<bool, KernelError> {
    if !matches!(entry, Entry::File { .. }) {
        return Ok(true);
    }
    let open = |path: &Path| {
        Ok::<_, KernelError>(BufReader::with_capacity(
            64 * 1024,
            File::open(path).map_err(io_error("read", path))?,
        ))
    };
    let (mut first, mut second) = (open(a)?, open(b)?);
    loop {
        let (x, y) = (
            first.fill_buf().map_err(io_error("read", a))?,
            second.fill_buf().map_err(io_error("read", b))?,
        );
        let length = x.len().min(y.len());
        if x[..length] != y[..length] || (length == 0 && x.len() != y.len()) {
            return Ok(false);
        }
        if length == 0 {
            return Ok(true);
        }
        first.consume(length);
        second.consume(length);
    }
}

/// Returns what a folder has of sources: in a work tree of git, all files but ignored ones; else
/// everything. Sorted: a folder comes before its contents.
fn entries(root: &Path) -> Result<BTreeMap<PathBuf, Entry>, KernelError> {
    match listed(root)? {
        Some(names) => of_work_tree(root, names),
        None => walked(root),
    }
}

fn walked(root: &Path) -> Result<BTreeMap<PathBuf, Entry>, KernelError> {
    let mut entries = BTreeMap::new();
    let walk = WalkDir::new(root).min_depth(1).into_iter();
    for found in walk.filter_entry(|entry| entry.file_name() != ".git") {
        let found = found.map_err(|error| walk_error(root, error))?;
        let metadata = found.metadata().map_err(|error| walk_error(root, error))?;
        let name = relative(found.path(), root);
        let entry = usable(root, &name, &metadata)?;
        entries.insert(name, entry);
    }
    Ok(entries)
}

fn of_work_tree(root: &Path, names: Vec<PathBuf>) -> Result<BTreeMap<PathBuf, Entry>, KernelError> {
    let mut entries = BTreeMap::new();
    for name in names {
        let refused = |why: &str| -> KernelError {
            let (path, entry) = (root.to_owned(), name.clone());
            SourceError::Entry { path, entry, why: why.to_owned() }.into()
        };
        if !name.components().all(|part| matches!(part, Component::Normal(_))) {
            return Err(refused("is no name in a work tree"));
        }
        // A link in place of a folder may lead outside.
        let folders = || name.ancestors().skip(1).filter(|folder| !folder.as_os_str().is_empty());
        let is_folder = |folder: &Path| {
            matches!(entries.get(folder), Some(Entry::Folder))
                || fs::symlink_metadata(root.join(folder)).is_ok_and(|data| data.is_dir())
        };
        let metadata = match fs::symlink_metadata(root.join(&name)) {
            Ok(metadata) if folders().all(is_folder) => metadata,
            Err(_) if name.to_string_lossy().contains(char::REPLACEMENT_CHARACTER) => {
                return Err(refused("has a name that is not UTF-8; rename it"));
            }
            // Tracked, but deleted in the work tree.
            Ok(_) => continue,
            Err(error) if matches!(error.kind(), NotFound | NotADirectory) => continue,
            Err(error) => return Err(io_error("read", &root.join(&name))(error)),
        };
        entries.extend(folders().map(|folder| (folder.to_owned(), Entry::Folder)));
        if metadata.is_dir() {
            // A repository of its own, such as a driver's.
            let within = self::entries(&root.join(&name))?;
            entries.extend(within.into_iter().map(|(inner, entry)| (name.join(inner), entry)));
        }
        let entry = usable(root, &name, &metadata)?;
        entries.insert(name, entry);
    }
    Ok(entries)
}

/// The files of a work tree. None if the folder is none, or git is not installed.
fn listed(root: &Path) -> Result<Option<Vec<PathBuf>>, KernelError> {
    if !root.join(".git").exists() {
        return Ok(None);
    }
    match Repository::open(root).and_then(|repository| git::files(&repository)) {
        Ok(files) => Ok(Some(files)),
        Err(error) if error.is_missing() => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// An entry that can be copied.
fn usable(root: &Path, name: &Path, metadata: &Metadata) -> Result<Entry, KernelError> {
    let refused =
        |why: String| SourceError::Entry { path: root.to_owned(), entry: name.to_owned(), why };
    let entry = entry(&root.join(name), metadata)
        .ok_or_else(|| refused("is not a file, folder or link".to_owned()))?;
    match &entry {
        Entry::Link(target) if leads_outside(name, target) => {
            let why =
                format!("is a link that leads outside, to {}; put a copy there", target.display());
            Err(refused(why).into())
        }
        _ => Ok(entry),
    }
}

/// Returns None for a pipe, a socket or a device.
fn entry(path: &Path, metadata: &Metadata) -> Option<Entry> {
    let kind = metadata.file_type();
    if kind.is_dir() {
        Some(Entry::Folder)
    } else if kind.is_file() {
        Some(Entry::File { executable: metadata.mode() & 0o100 != 0, size: metadata.len() })
    } else if kind.is_symlink() {
        // If the link is gone by now, the comparison will show it.
        fs::read_link(path).ok().map(Entry::Link)
    } else {
        None
    }
}

fn leads_outside(name: &Path, target: &Path) -> bool {
    let mut depth = name.components().count() - 1;
    for part in target.components() {
        match part {
            Component::RootDir | Component::Prefix(_) => return true,
            Component::CurDir => {}
            Component::Normal(_) => depth += 1,
            Component::ParentDir => match depth.checked_sub(1) {
                Some(less) => depth = less,
                None => return true,
            },
        }
    }
    false
}

fn relative(path: &Path, root: &Path) -> PathBuf {
    path.strip_prefix(root).expect("found below it").to_owned()
}

fn walk_error(root: &Path, error: walkdir::Error) -> KernelError {
    let path = error.path().unwrap_or(root).to_owned();
    let source = error.into_io_error().unwrap_or_else(|| io::Error::other("a loop of links"));
    KernelError::Io { action: "read", path, source }
}
