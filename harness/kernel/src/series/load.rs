// SPDX-License-Identifier: MIT OR Apache-2.0
//! Loads a [`Series`] by the name that a user gives. `docs/series.md` lists the forms.

use super::{
    Patch, Series, Shipped,
    b4::{self, B4Error},
    diff::{self, DiffError},
    file::{self, FileError, Reader},
    mail::{self, MailError, Message},
    name,
    packed::{self, PackedError},
    printable, quilt,
    range::{Range, RangeError},
    shipped::{MANIFEST, is_shipped, names},
    thread::{self, MOST_PATCHES, Thread, ThreadError},
};
use crate::manifest::is_name;
use schemars::{JsonSchema, Schema, schema_for};
use serde::Deserialize;
use std::{
    io,
    path::{Path, PathBuf},
};
use tramplab_host::{
    config::{self, ConfigError, Spanned},
    regular::is_of_shell,
};
use tramplab_model::{
    kinds::Metric,
    name::short,
    published::{Published, Row, Unit},
    run::{Arch, PatchIds},
    text::line,
};

/// Lists of patches: quilt's, and that of SUSE and Armbian.
const LISTS: [&str; 2] = ["series", "series.conf"];
/// The name of standard input.
const STANDARD_INPUT: &str = "-";

#[derive(Debug, thiserror::Error)]
pub enum SeriesError {
    #[error(
        "failed to find the series `{}`: no such file or folder, and none is shipped of that name; \
         shipped: {}; or name commits as `BASE..HEAD`, or a message as `ID@HOST` or by its URL on \
         https://lore.kernel.org/",
        printable(.spec),
        if .known.is_empty() { "none".to_owned() } else { .known.join(", ") }
    )]
    Unknown { spec: String, known: Vec<String> },
    #[error(transparent)]
    File(#[from] FileError),
    #[error(transparent)]
    Manifest(#[from] ConfigError),
    #[error("failed to read {origin}: {source}")]
    Mail { origin: String, source: MailError },
    #[error("failed to read the series {origin}: {source}")]
    Thread { origin: String, source: ThreadError },
    #[error("failed to read {}: {source}", .path.display())]
    Quilt { path: PathBuf, source: quilt::NotQuilt },
    #[error(
        "failed to read a series from {}: it is empty; did the command that writes it fail?",
        .0.display()
    )]
    Empty(PathBuf),
    #[error("failed to read {}: it is not UTF-8 text", .path.display())]
    NotText { path: PathBuf },
    #[error(
        "failed to read {}: it lists no patch; guards leave out {left_out}",
        .path.display()
    )]
    EmptyList { path: PathBuf, left_out: usize },
    #[error(
        "failed to read {}: it lists {found} patches; expected at most {MOST_PATCHES}",
        .path.display()
    )]
    LongList { path: PathBuf, found: usize },
    /// The archive's own name replaces the folder that it was unpacked into.
    #[error("{}", within(.archive, .folder, &.source.to_string()))]
    Archive { archive: PathBuf, folder: PathBuf, source: Box<SeriesError> },
    #[error(
        "failed to add `{spec}` to both sides: it removes patches (`reverse: true`); expected \
         patches to apply"
    )]
    ReversedBase { spec: String },
    #[error(
        "failed to put patches under `{spec}`: it removes patches (`reverse: true`), and its base \
         is the tree without them"
    )]
    BaseOfReversed { spec: String },
    #[error(
        "failed to find a series in the folder {}: expected {MANIFEST}, a quilt `series` (or \
         series.conf), a maildir's `cur` and `new`, or files of `git format-patch` (*.patch, \
         *.eml, *.diff)",
        .0.display()
    )]
    EmptyFolder(PathBuf),
    #[error(
        "failed to read {}: it holds {found} patches; a quilt series has one patch per file",
        .path.display()
    )]
    NotOne { path: PathBuf, found: usize },
    #[error("failed to read {label} of {origin}: {source}")]
    Diff { label: String, origin: String, source: DiffError },
    #[error(transparent)]
    B4(#[from] B4Error),
    #[error(transparent)]
    Range(#[from] RangeError),
}

impl SeriesError {
    /// True if the user can fix it by asking for something else; false if the host or the network
    /// failed.
    pub fn is_usage(&self) -> bool {
        match self {
            SeriesError::File(FileError::Read { source, .. }) => {
                source.kind() == io::ErrorKind::NotFound
            }
            SeriesError::File(FileError::Folder { .. }) => false,
            SeriesError::File(FileError::Packed { source, .. }) => {
                !matches!(source, PackedError::Write { .. })
            }
            SeriesError::Archive { source, .. } => source.is_usage(),
            SeriesError::Diff { source, .. } => {
                !matches!(source, DiffError::NoGit | DiffError::Child(_) | DiffError::Io(_))
            }
            SeriesError::B4(error) => matches!(error, B4Error::Missing(_)),
            SeriesError::Range(error) => error.is_usage(),
            _ => true,
        }
    }
}

/// The format of `series.yaml`. `docs/series.md` documents its keys.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "tramplab series")]
struct File {
    title: String,
    /// One line: the improvement that the series should show.
    #[schemars(regex(pattern = r"^\s*[^\n]*\s*$"))]
    claim: Spanned<String>,
    /// Numbers of it that were published.
    #[serde(default)]
    published: Vec<Spanned<Published>>,
    /// The name of the manifest in `kernels/` that it applies to.
    #[schemars(regex(pattern = r"^[A-Za-z0-9_+-][A-Za-z0-9._+-]*$"))]
    kernel: Spanned<String>,
    /// The architectures on which it changes something. Default: every one.
    #[schemars(length(min = 1))]
    arch: Option<Spanned<Vec<Arch>>>,
    /// The tree has the patches. The base is made by removing them.
    #[serde(default)]
    reverse: bool,
    /// Patches that prepare the tree: the base has them.
    base: Option<Spanned<Vec<String>>>,
    /// Files below this folder, in order.
    #[schemars(length(min = 1))]
    patches: Spanned<Vec<String>>,
}

/// The JSON Schema of `series.yaml`.
pub fn schema() -> Schema {
    schema_for!(File)
}

/// Loads a series: a shipped one by name, a file, a folder, an archive, standard input, or the
/// thread of a message.
pub fn load(spec: &str, shipped: &Path) -> Result<Series, SeriesError> {
    let manifest = shipped.join(spec).join(MANIFEST);
    let path = Path::new(spec);
    if spec == STANDARD_INPUT {
        let mut reader = Reader::new();
        let bytes = reader.read_standard_input()?;
        from_bytes(bytes, Path::new("standard input"), None)
    } else if is_shipped(spec, shipped) {
        from_manifest(&manifest)
    } else if path.is_dir() {
        from_folder(path)
    } else if path.exists() {
        from_file(path)
    } else if let Some(id) = b4::message_id(spec) {
        from_message(id)
    } else {
        let (spec, known) = (spec.chars().take(200).collect(), names(shipped));
        Err(SeriesError::Unknown { spec, known })
    }
}

/// Loads the commits of a local repository. `kernel` is the kernel's name and the reference that it
/// is built from, if it has one.
pub fn from_range(
    range: &Range,
    repository: &Path,
    kernel: Option<(&str, &str)>,
) -> Result<Series, SeriesError> {
    let (thread, commits) = range.read(repository, kernel)?;
    let series = from_thread(thread, Some(short(commits.head()).to_owned()))?;
    commits.check_diffs(&series.patches)?;
    Ok(Series { commits: Some(commits), ..series })
}

fn from_file(path: &Path) -> Result<Series, SeriesError> {
    let folder =
        path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if path.file_name().is_some_and(|name| LISTS.iter().any(|list| name == *list)) {
        return from_quilt(path, folder);
    }
    if path.extension().is_some_and(|extension| extension == "yaml") {
        return from_manifest(path);
    }
    let name = (!is_of_shell(path)).then(|| name::from_path(path));
    from_bytes(Reader::new().read_typed(path)?, path, name)
}

/// Reads a tar archive, or the thread of one file.
fn from_bytes(bytes: Vec<u8>, path: &Path, name: Option<String>) -> Result<Series, SeriesError> {
    if bytes.trim_ascii().is_empty() {
        return Err(SeriesError::Empty(path.to_owned()));
    }
    if tramplab_archive::is_tar(&bytes) {
        return from_archive(&bytes, path, name);
    }
    from_thread(thread_of(bytes, path, &mut Reader::new(), Picked::Named)?, name)
}

/// Reads the folder that is in a tar archive.
fn from_archive(tar: &[u8], path: &Path, name: Option<String>) -> Result<Series, SeriesError> {
    let folder = file::extract(tar, path)?;
    let read = |path| move |source| FileError::Read { path, source };
    let top = packed::top(folder.path()).map_err(read(path.to_owned()))?;
    let mut series = from_folder(&top).map_err(|source| SeriesError::Archive {
        archive: path.to_owned(),
        folder: folder.path().to_owned(),
        source: Box::new(source),
    })?;
    let texts = series.patches.iter_mut().map(|patch| &mut patch.origin).chain(&mut series.notes);
    texts.for_each(|text| *text = within(path, folder.path(), text));
    series.name = name.unwrap_or_else(|| name::of(&series));
    Ok(series)
}

/// Names an archive in place of the folder that it was unpacked into: that is gone when the user
/// reads the text.
fn within(archive: &Path, folder: &Path, text: &str) -> String {
    text.replace(&*folder.to_string_lossy(), &archive.to_string_lossy())
}

/// Reads the thread of a file that a list names.
fn thread_in(path: &Path, reader: &mut Reader, picked: Picked) -> Result<Thread, SeriesError> {
    thread_of(reader.read(path)?, path, reader, picked)
}

/// Reads the thread of one file. A single message outside a mailbox was picked from its series on
/// purpose. `picked` decides whether the user gets a note about it.
fn thread_of(
    bytes: Vec<u8>,
    path: &Path,
    reader: &mut Reader,
    picked: Picked,
) -> Result<Thread, SeriesError> {
    let mut messages = messages_of(&bytes, path)?;
    let plain = name::without_packing(path);
    let mailbox = ["mbox", "mbx"].iter().any(|known| has_extension(&plain, known));
    let mut note = None;
    if let ([message], false) = (&mut *messages, mailbox)
        && let Some((number, total)) = message.subject.count.take_if(|_| message.diff.is_some())
        && total > 1
    {
        note = Some(format!("{} is patch {number} of {total}: taken alone", message.origin));
    }
    if let Some(cover) = cover_beside(path) {
        messages.extend(messages_in(&[cover], reader)?);
    }
    let mut thread = collect(messages, path)?;
    if picked == Picked::Named {
        thread.notes.extend(note);
    }
    Ok(thread)
}

fn has_extension(path: &Path, known: &str) -> bool {
    path.extension().is_some_and(|extension| extension == known)
}

/// Tells who selected a file.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Picked {
    /// The command line. The user may mean the whole series.
    Named,
    /// A list, which says what belongs together.
    Listed,
}

/// b4 saves the cover letter of NAME.mbx and of NAME.maildir as NAME.cover.
fn cover_beside(path: &Path) -> Option<PathBuf> {
    let b4 = has_extension(path, "mbx") || has_extension(path, "maildir");
    Some(path.with_extension("cover")).filter(|cover| b4 && cover.is_file())
}

fn from_folder(folder: &Path) -> Result<Series, SeriesError> {
    let manifest = folder.join(MANIFEST);
    if manifest.is_file() {
        return from_manifest(&manifest);
    }
    if let Some(list) = LISTS.map(|list| folder.join(list)).iter().find(|list| list.is_file()) {
        return from_quilt(list, folder);
    }
    let (mut reader, mut files) = (Reader::new(), maildir(folder)?);
    if files.is_empty() {
        let known = ["patch", "eml", "diff"];
        let wanted = |path: &Path| {
            let plain = name::without_packing(path);
            known.iter().any(|known| has_extension(&plain, known))
        };
        files = file::entries(folder, wanted)?;
    }
    if files.is_empty() {
        return Err(SeriesError::EmptyFolder(folder.to_owned()));
    }
    files.extend(cover_beside(folder));
    let messages = messages_in(&files, &mut reader)?;
    from_thread(collect(messages, folder)?, Some(name::from_path(folder)))
}

/// Returns the messages of a maildir. Empty if the folder is not one.
fn maildir(folder: &Path) -> Result<Vec<PathBuf>, FileError> {
    let visible =
        |path: &Path| !path.file_name().is_some_and(|name| name.to_string_lossy().starts_with('.'));
    let mut files = Vec::new();
    for part in ["cur", "new"].map(|part| folder.join(part)) {
        if part.is_dir() {
            files.extend(file::entries(&part, visible)?);
        }
    }
    Ok(files)
}

fn from_message(id: &str) -> Result<Series, SeriesError> {
    let folder =
        tempfile::Builder::new().prefix("tramplab-b4-").tempdir().map_err(B4Error::Folder)?;
    let output = b4::fetch(id, folder.path())?;
    let mut messages = saved_by_b4(folder.path())?;
    if messages.is_empty() {
        return Err(B4Error::Nothing { id: id.to_owned(), output: printable(output.trim()) }.into());
    }
    for message in &mut messages {
        // The temporary folder is gone when the user reads this.
        message.origin = format!("the thread of {id}");
    }
    from_thread(collect(messages, Path::new(id))?, None)
}

/// Reads the thread that b4 saved into a folder.
pub(super) fn saved_by_b4(folder: &Path) -> Result<Vec<Message>, SeriesError> {
    let mut files = Vec::new();
    for saved in file::entries(folder, |path| path.extension().is_some_and(|end| end == "maildir"))?
    {
        files.extend(maildir(&saved)?);
        files.extend(cover_beside(&saved));
    }
    messages_in(&files, &mut Reader::new())
}

fn from_manifest(path: &Path) -> Result<Series, SeriesError> {
    let mut reader = Reader::new();
    let folder =
        path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let File { title, claim, published, kernel, arch, reverse, base, patches } =
        config::parse(&text(path, &mut reader)?, path)?;
    if patches.value.is_empty() {
        return Err(config::invalid(
            path,
            &patches,
            "`patches` names no file; expected at least one",
        )
        .into());
    }
    if let Some(arch) = arch.as_ref().filter(|arch| arch.value.is_empty()) {
        let message = "`arch` names no architecture; expected at least one, or no `arch`";
        return Err(config::invalid(path, arch, message).into());
    }
    if claim.value.trim().contains('\n') {
        return Err(config::invalid(path, &claim, "`claim` has several lines; expected one").into());
    }
    for one in &published {
        if let Some(why) = unusable(&one.value) {
            return Err(config::invalid(path, one, &why).into());
        }
    }
    if let (true, Some(base)) = (reverse, &base) {
        let message = "`base` has patches to add; expected no `base` with `reverse: true`";
        return Err(config::invalid(path, base, message).into());
    }
    if !is_name(&kernel.value) {
        // A stranger's archive must not choose what is fetched or read.
        let message = "`kernel` is no name of a manifest; expected one, such as 6.12-source";
        return Err(config::invalid(path, &kernel, message).into());
    }
    let kernel = kernel.value;
    let base = base.map_or_else(Vec::new, |base| base.value);
    let mut whole = Thread {
        title: Some(title.clone()),
        base_commit: None,
        cover: None,
        patches: Vec::new(),
        prerequisites: Vec::new(),
        notes: Vec::new(),
    };
    let mut of_base = 0;
    for (index, entry) in base.iter().chain(&patches.value).enumerate() {
        let file = file::inside(folder, entry, path)?;
        let thread = thread_in(&file, &mut reader, Picked::Listed)?;
        whole.base_commit = whole.base_commit.or(thread.base_commit);
        whole.cover = whole.cover.or(thread.cover);
        whole.notes.extend(thread.notes);
        whole.prerequisites.extend(thread.prerequisites);
        if index < base.len() {
            of_base += thread.patches.len();
        }
        whole.patches.extend(thread.patches);
    }
    let arches = arch.map(|arch| arch.value).unwrap_or_default();
    let (claim, published) = (claim.value.trim().to_owned(), published.into_iter());
    let published = published.map(|one| one.value).collect();
    let shipped = Shipped { title, claim, published, kernel, arches };
    let series = from_thread(whole, Some(name::from_path(folder)))?;
    Ok(Series { reverse, base: of_base, shipped: Some(shipped), ..series })
}

/// Why published numbers cannot be held against measured ones.
fn unusable(of: &Published) -> Option<String> {
    let Published { source, machine, rows, model, axes, unit, .. } = of;
    // It chooses no file.
    if let Some(model) = model.as_ref().filter(|model| !is_name(model)) {
        return Some(format!(
            "`model: {}` is no name of a CPU; expected one, such as zen4",
            line(model)
        ));
    }
    if let Some((axis, value)) = axes.iter().find(|(axis, value)| !is_name(axis) || !is_name(value))
    {
        let axis = line(&format!("{axis}={value}"));
        return Some(format!(
            "`{axis}` is no axis with a value; expected such as mitigations: off"
        ));
    }
    for (name, text) in [("source", source), ("machine", machine)] {
        if text.trim().is_empty() || text.contains('\n') || text.len() > LONGEST {
            return Some(format!("`{name}`: expected a line of at most {LONGEST} bytes"));
        }
    }
    if rows.is_empty() {
        return Some("`rows` has no row; expected at least one".to_owned());
    }
    let twice = |(at, row): &(usize, &Row)| rows[..*at].iter().any(|other| other.of == row.of);
    if let Some((_, row)) = rows.iter().enumerate().find(twice) {
        return Some(format!("`{}` has two rows; expected one", line(&row.of)));
    }
    rows.iter().find_map(|row| unusable_row(row, *unit))
}

/// Bytes of a publication's texts.
const LONGEST: usize = 300;
/// No published number is larger.
const MOST: f64 = 1e9;

fn unusable_row(row: &Row, unit: Unit) -> Option<String> {
    let of = line(&row.of);
    let Some(metric) = row.metrics().first().copied() else {
        return Some(format!(
            "`{of}` names no metric; expected one, such as lbr_waste.fexit.any, or a hit, such as \
             trigger.fexit"
        ));
    };
    let is_waste = matches!(metric, Metric::LbrWaste(_));
    if is_waste != (unit == Unit::Records) {
        let expected = if is_waste { "records" } else { "M/s, s or ns" };
        return Some(format!("`{of}` in {}: expected {expected}", unit.name()));
    }
    let is_wrong = |number: &f64| match unit {
        Unit::Records => !(0.0..MOST).contains(number) || number.fract() != 0.0,
        _ => !(f64::MIN_POSITIVE..MOST).contains(number),
    };
    let number = [row.before, row.after].into_iter().find(is_wrong)?;
    let expected = if is_waste { "a whole number, 0 or more" } else { "more than 0" };
    Some(format!("`{number:e}` of {of}: expected {expected}, and less than {MOST:e}"))
}

fn from_quilt(list: &Path, folder: &Path) -> Result<Series, SeriesError> {
    let mut reader = Reader::new();
    let entries = quilt::parse(&text(list, &mut reader)?)
        .map_err(|source| SeriesError::Quilt { path: list.to_owned(), source })?;
    let (left_out, entries): (Vec<_>, Vec<_>) =
        entries.into_iter().partition(|entry| entry.left_out.is_some());
    if entries.is_empty() {
        return Err(SeriesError::EmptyList { path: list.to_owned(), left_out: left_out.len() });
    }
    if entries.len() > MOST_PATCHES {
        return Err(SeriesError::LongList { path: list.to_owned(), found: entries.len() });
    }
    let mut whole = Thread {
        title: None,
        base_commit: None,
        cover: None,
        patches: Vec::new(),
        prerequisites: Vec::new(),
        notes: Vec::new(),
    };
    for entry in entries {
        let path = file::inside(folder, &entry.file, list)?;
        // The list decides the order. The subject's count belongs to another series.
        let mut messages = messages_in(std::slice::from_ref(&path), &mut reader)?;
        messages.iter_mut().for_each(|message| message.subject.count = None);
        let thread = collect(messages, &path)?;
        let [patch] = <[Patch; 1]>::try_from(thread.patches)
            .map_err(|patches| SeriesError::NotOne { path, found: patches.len() })?;
        let strip = entry.strip.unwrap_or(patch.strip);
        whole.patches.push(Patch { strip, reversed: entry.reversed, ..patch });
    }
    whole.notes.extend(note_of_guards(list, &left_out));
    from_thread(whole, Some(name::from_path(folder)))
}

/// Names the patches that guards leave out.
fn note_of_guards(list: &Path, left_out: &[quilt::Entry]) -> Option<String> {
    const NAMED: usize = 6;
    let named = |entry: &quilt::Entry| {
        let guards = entry.left_out.as_deref().unwrap_or_default();
        format!("`{} {}`", line(guards), line(&entry.file))
    };
    let names: Vec<String> = left_out.iter().take(NAMED).map(named).collect();
    let more = match left_out.len().saturating_sub(NAMED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    (!names.is_empty()).then(|| {
        format!(
            "left out of {}, where no name of a guard is defined: {}{more}",
            list.display(),
            names.join(", ")
        )
    })
}

fn text(path: &Path, reader: &mut Reader) -> Result<String, SeriesError> {
    String::from_utf8(reader.read(path)?)
        .map_err(|_| SeriesError::NotText { path: path.to_owned() })
}

fn messages_in(files: &[PathBuf], reader: &mut Reader) -> Result<Vec<Message>, SeriesError> {
    let mut messages = Vec::new();
    for path in files {
        messages.extend(messages_of(&reader.read(path)?, path)?);
    }
    Ok(messages)
}

fn messages_of(bytes: &[u8], path: &Path) -> Result<Vec<Message>, SeriesError> {
    let mut messages = mail::messages(bytes, &path.display().to_string())
        .map_err(|(origin, source)| SeriesError::Mail { origin, source })?;
    for message in &mut messages {
        if message.subject.title.is_empty() {
            // A bare diff is named after its file. A pipe has another number in each shell.
            let plain = name::without_packing(path);
            let stem = plain.file_stem().unwrap_or_default().to_string_lossy();
            message.subject.title =
                if is_of_shell(path) { "pipe".to_owned() } else { stem.into_owned() };
        }
    }
    Ok(messages)
}

fn collect(messages: Vec<Message>, origin: &Path) -> Result<Thread, SeriesError> {
    thread::collect(messages)
        .map_err(|source| SeriesError::Thread { origin: origin.display().to_string(), source })
}

/// Numbers the patches and makes git check each.
fn from_thread(thread: Thread, name: Option<String>) -> Result<Series, SeriesError> {
    let Thread { title, base_commit, cover, mut patches, prerequisites, notes } = thread;
    for (index, patch) in patches.iter_mut().enumerate() {
        patch.number = index + 1;
        let read = diff::to_file(&patch.diff).map_err(DiffError::from).and_then(|file| {
            let touched = diff::touched(&patch.diff, patch.strip, file.path())?;
            Ok((touched, diff::patch_id(file.path())?))
        });
        (patch.touched, patch.ids.patch_id) = read.map_err(|source| SeriesError::Diff {
            label: patch.label(),
            origin: patch.origin.clone(),
            source,
        })?;
    }
    let (reverse, base, shipped, commits) = (false, 0, None, None);
    let mut series = Series {
        name: String::new(),
        title,
        base_commit,
        reverse,
        base,
        patches,
        cover,
        prerequisites,
        shipped,
        commits,
        notes,
    };
    series.name = name.unwrap_or_else(|| name::of(&series));
    Ok(series)
}

/// Puts patches under a series, for both sides of the comparison. Each has the name that the user
/// gave. Afterwards the notes name the prerequisites that no patch is.
pub fn onto(
    mut series: Series,
    spec: &str,
    below: Vec<(String, Series)>,
) -> Result<Series, SeriesError> {
    if series.reverse && !below.is_empty() {
        return Err(SeriesError::BaseOfReversed { spec: spec.to_owned() });
    }
    let mut patches = Vec::new();
    let mut notes = Vec::new();
    for (spec, below) in below {
        if below.reverse {
            return Err(SeriesError::ReversedBase { spec });
        }
        patches.extend(below.patches);
        notes.extend(below.notes);
    }
    series.base += patches.len();
    patches.append(&mut series.patches);
    patches.iter_mut().enumerate().for_each(|(index, patch)| patch.number = index + 1);
    series.patches = patches;
    notes.append(&mut series.notes);
    series.notes = notes;
    let is_there =
        |id: &String| series.patches.iter().any(|patch| patch.ids.patch_id.as_ref() == Some(id));
    series.prerequisites.retain(|id| !is_there(id));
    if let [first, more @ ..] = &series.prerequisites[..] {
        let more =
            if more.is_empty() { String::new() } else { format!(" and {} more", more.len()) };
        series.notes.push(format!(
            "the series names patches that its tree must have (prerequisite-patch-id {}{more}); if \
             the tree lacks them, give them with --base-patches",
            short(first)
        ));
    }
    Ok(series)
}

/// Reads what a mail, or a diff, is known by. Of a cover letter that is its message-id alone.
pub fn ids(mail: &[u8], origin: &str) -> Result<PatchIds, SeriesError> {
    let messages = mail::messages(mail, origin)
        .map_err(|(origin, source)| SeriesError::Mail { origin, source })?;
    let Some(message) = messages.into_iter().next() else { return Ok(PatchIds::default()) };
    let patch_id = |diff: Vec<u8>| diff::patch_id(diff::to_file(&diff)?.path());
    let patch_id = message.diff.map(patch_id).transpose().map_err(|source| SeriesError::Diff {
        label: "the patch".to_owned(),
        origin: origin.to_owned(),
        source,
    })?;
    Ok(PatchIds { message_id: message.id, patch_id: patch_id.flatten() })
}
