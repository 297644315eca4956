// SPDX-License-Identifier: MIT OR Apache-2.0
//! Whole series: some written by real tools (`testdata/make.sh`), some hostile.

mod apply;
mod forms;

use super::{load::saved_by_b4, *};
use crate::compile::Journal;
use proptest::prelude::*;
use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::{PermissionsExt, symlink},
    path::Path,
};
use tempfile::TempDir;
use tramplab_testdata::git;

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src/series/testdata").join(name)
}

fn try_load(spec: &Path) -> Result<Series, String> {
    load(spec.to_str().unwrap(), Path::new("/none")).map_err(|error| error.to_string())
}

fn loaded(name: &str) -> Series {
    try_load(&data(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// The tree that `make.sh` starts from.
fn tree() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let lines: String = (1..=40).map(|number| format!("int line_{number};\n")).collect();
    for (name, content) in [
        ("kernel/bpf/trampoline.c", format!("// trampoline\n{lines}").as_bytes()),
        ("include/bpf.h", b"#define A 1\n#define B 2\n#define C 3\n"),
        ("kernel/bpf/Makefile", b"obj-y += trampoline.o\n"),
        ("kernel/bpf/old.c", b"old\nfile\nto\nmove\nwith\nenough\nlines\n"),
        ("kernel/bpf/latin1.txt", b"caf\xe9\nline\n"),
        ("kernel/bpf/dos.txt", b"one\r\ntwo\r\n"),
        ("kernel/bpf/blob.bin", b"\0\x01\x02\x03blob"),
    ] {
        let path = folder.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }
    folder
}

/// Returns everything in a tree: contents, executable bits, links, empty folders.
fn snapshot(tree: &Path) -> BTreeMap<PathBuf, String> {
    let mut all = BTreeMap::new();
    let mut folders = vec![tree.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let data = fs::symlink_metadata(&path).unwrap();
            let name = path.strip_prefix(tree).unwrap().to_owned();
            let what = if data.is_symlink() {
                format!("-> {}", fs::read_link(&path).unwrap().display())
            } else if data.is_dir() {
                folders.push(path);
                "folder".to_owned()
            } else {
                format!(
                    "{:o} {}",
                    data.permissions().mode() & 0o100,
                    fs::read(&path).unwrap().escape_ascii()
                )
            };
            all.insert(name, what);
        }
    }
    all
}

/// Applies a patch as a build does: a journal restores the tree after a failure.
fn apply(patch: &Patch, tree: &Path, reverse: bool) -> Result<(), ApplyError> {
    let kept = tempfile::tempdir().unwrap();
    let journal = Journal::new(kept.path().join("journal"), tree.to_owned());
    // The journal rejects paths through links out of the tree. `apply` must do so, too.
    let saved = journal.save(&patch.touched.iter().cloned().collect());
    super::apply(patch, tree, reverse).inspect_err(|_| {
        if saved.is_ok() {
            journal.restore().unwrap();
        }
    })
}

fn apply_all(series: &Series, tree: &Path) {
    for patch in series.ordered() {
        apply(patch, tree, series.reverse).unwrap_or_else(|error| panic!("{error}"));
    }
}

/// A mail that a reviewer pipes in is found again by either id.
#[test]
fn knows_mails_by_message_id_and_diff() {
    let series = loaded("lore.mbox");
    assert_eq!(series.cover.as_deref(), Some("20260302-tidy-v2-0-0123456789ab@example.com"));
    let first = &series.patches[0].ids;
    let id = "20260302-tidy-v2-1-0123456789ab@example.com";
    assert_eq!(first.message_id.as_deref(), Some(id));
    // Printed by `git patch-id --stable`.
    assert_eq!(first.patch_id.as_deref(), Some("cd9c1ab66f1f03c5d356dc04658cd40585d46e6a"));
    let mbox = fs::read(data("lore.mbox")).unwrap();
    let messages = mail::messages(&mbox, "lore.mbox").unwrap();
    assert_eq!(messages.iter().filter(|message| message.id.is_some()).count(), messages.len());
    let text = String::from_utf8_lossy(&mbox);
    for mail in text.split("From mboxrd@z Thu Jan  1 00:00:00 1970\n").skip(1) {
        let found = ids(mail.as_bytes(), "-").unwrap();
        let is_known = series.patches.iter().any(|patch| patch.ids == found);
        assert_eq!(is_known, found.patch_id.is_some(), "{found:?}");
        let is_cover = found.message_id == series.cover;
        assert!(!is_cover || found.patch_id.is_none());
    }
    assert_eq!(ids(b"no mail", "-").unwrap(), PatchIds::default());
}

/// Makes a patch without the checks of `load`.
fn patch(diff: &str) -> Patch {
    let file = diff::to_file(diff.as_bytes()).unwrap();
    Patch {
        number: 2,
        ids: Default::default(),
        subject: "bpf: Harm".to_owned(),
        origin: "test".to_owned(),
        diff: diff.as_bytes().to_vec(),
        strip: 1,
        reversed: false,
        touched: diff::touched(diff.as_bytes(), 1, file.path()).unwrap_or_default(),
    }
}

const TITLES: [&str; 4] = [
    "bpf: Name two lines in full",
    "bpf: Move the old file",
    "bpf: Überzeugend: add one, remove one and make one executable, with a long subject",
    "bpf: Change what is not plain text",
];

#[test]
fn reads_same_series_from_every_form() {
    let expected = loaded("format-patch");
    let base = expected.base_commit.clone().unwrap();
    assert_eq!(base.len(), 40);
    let changed = {
        let tree = tree();
        apply_all(&expected, tree.path());
        snapshot(tree.path())
    };
    assert!(changed.contains_key(Path::new("kernel/bpf/new.c")));
    assert!(!changed.contains_key(Path::new("include/bpf.h")));
    assert!(changed[Path::new("kernel/bpf/Makefile")].starts_with("100 "));
    assert_eq!(changed[Path::new("kernel/bpf/blob.bin")], r"0 \x00\x04\x05\x06blob");

    let b4 = "b4/v2_20260302_joerg_bpf_tidy_the_trampoline";
    for (spec, name, notes) in [
        ("format-patch", "format-patch", 0),
        ("stdout.mbox", "stdout", 0),
        // One note covers its replies.
        ("lore.mbox", "lore", 1),
        ("versions.mbox", "versions", 6),
        (&*format!("{b4}.mbx"), "v2_20260302_joerg_bpf_tidy_the", 0),
        (&*format!("{b4}.maildir"), "v2_20260302_joerg_bpf_tidy_the", 0),
    ] {
        let series = loaded(spec);
        assert_eq!(series.name, name, "{spec}");
        assert_eq!(series.title.as_deref(), Some("bpf: Tidy the trampoline"), "{spec}");
        assert_eq!(series.base_commit.as_deref(), Some(&*base), "{spec}");
        assert_eq!(series.notes.len(), notes, "{spec}: {:?}", series.notes);
        assert!(!series.reverse && series.shipped.is_none(), "{spec}");
        let subjects: Vec<_> = series.patches.iter().map(|patch| patch.subject.as_str()).collect();
        assert_eq!(subjects, TITLES, "{spec}");
        let tree = tree();
        apply_all(&series, tree.path());
        assert_eq!(snapshot(tree.path()), changed, "{spec}");
    }
    let notes = loaded("lore.mbox").notes;
    assert!(notes[0].starts_with("left out 2 replies"), "{notes:?}");
    let notes = loaded("versions.mbox").notes;
    assert!(
        notes[1].ends_with("message 1 (bpf: Tidy the trampoline): version 2 is there too"),
        "{notes:?}"
    );

    // The files that b4 saves for a message-id.
    let thread = thread::collect(saved_by_b4(&data("b4")).unwrap()).unwrap();
    assert_eq!(thread.patches.len(), 4);
    assert_eq!(thread.title.as_deref(), Some("bpf: Tidy the trampoline"));
    assert_eq!(thread.base_commit, Some(base));
}

#[test]
fn decodes_same_diff_from_every_mail_encoding() {
    let plain = loaded("single.patch");
    let tree = tree();
    apply_all(&plain, tree.path());
    let expected = snapshot(tree.path());
    for name in [
        "attached.patch",
        "inline.patch",
        "quoted-printable.eml",
        "base64.eml",
        "base64-crlf.eml",
        "dos.patch",
        "flowed.eml",
        "bare.diff",
    ] {
        let series = loaded(name);
        let [patch] = &*series.patches else { panic!("{name}: {series:?}") };
        let subject = if name == "bare.diff" { "bare" } else { TITLES[0] };
        assert_eq!(patch.subject, subject, "{name}");
        assert_eq!(series.title.as_deref(), Some(subject), "{name}");
        assert_eq!(patch.touched, [Path::new("kernel/bpf/trampoline.c")], "{name}");
        let tree = self::tree();
        apply_all(&series, tree.path());
        assert_eq!(snapshot(tree.path()), expected, "{name}");
    }
}

/// `git format-patch` numbers its files. One of them alone is a series, so a manifest may list it.
#[test]
fn accepts_single_patch_of_a_series() {
    let name = "v2-0002-bpf-Move-the-old-file.patch";
    let series = loaded(&format!("format-patch/{name}"));
    assert_eq!(series.patches.len(), 1);
    assert_eq!(series.patches[0].subject, TITLES[1]);
    let notes = series.notes.join("\n");
    assert!(notes.ends_with(&format!("{name} is patch 2 of 4: taken alone")), "{notes}");

    let shipped = shipped(&MANIFEST.replace("sub/all.mbox", name));
    fs::copy(data("format-patch").join(name), shipped.path().join("tidy").join(name)).unwrap();
    let subjects = load("tidy", shipped.path()).unwrap().patches;
    let subjects: Vec<_> =
        subjects.into_iter().map(|patch| (patch.number, patch.subject)).collect();
    assert_eq!(subjects, [(1, TITLES[0].to_owned()), (2, TITLES[1].to_owned())]);
}

#[test]
fn applies_diff_that_diffy_cannot_parse() {
    let diff = "diff --git a/include/bpf.h b/include/bpf.h\n--- a/include/bpf.h\n\
                +++ b/include/bpf.h\n\
                @@ -1,3 +1,3 @@\n-#define A 1\n+#define A 6\n #define B 2\n #define C 3\n\
                --- a/kernel/bpf/Makefile\n+++ b/kernel/bpf/Makefile\n@@ -1 +0,0 @@\n\
                -obj-y += trampoline.o\n\
                \\ No newline at end of file\n-- \n2.47.3\n";
    let tree = tree();
    fs::write(tree.path().join("kernel/bpf/Makefile"), "obj-y += trampoline.o").unwrap();
    let before = snapshot(tree.path());
    let patch = patch(diff);
    assert_eq!(patch.touched, [Path::new("include/bpf.h"), Path::new("kernel/bpf/Makefile")]);
    apply(&patch, tree.path(), false).unwrap();
    assert_eq!(fs::read(tree.path().join("kernel/bpf/Makefile")).unwrap(), b"");
    assert!(fs::read(tree.path().join("include/bpf.h")).unwrap().starts_with(b"#define A 6"));
    apply(&patch, tree.path(), true).unwrap();
    assert_eq!(snapshot(tree.path()), before);
}

/// Bytes that are not UTF-8 and DOS line ends belong to the files, not to the mail.
#[test]
fn keeps_bytes_of_latin1_and_dos_files() {
    let tree = tree();
    apply_all(&loaded("raw.patch"), tree.path());
    assert_eq!(fs::read(tree.path().join("kernel/bpf/latin1.txt")).unwrap(), b"th\xe9\nline\n");
    assert_eq!(fs::read(tree.path().join("kernel/bpf/dos.txt")).unwrap(), b"one\r\nzwei\r\n");
}

#[test]
fn reads_quilt_order_strip_and_direction() {
    for spec in ["quilt", "quilt/series"] {
        let series = loaded(spec);
        assert_eq!(series.name, "quilt");
        let patches = series.patches.iter();
        let patches: Vec<_> =
            patches.map(|patch| (&*patch.subject, patch.strip, patch.reversed)).collect();
        let expected = [("trampoline", 1, false), ("makefile", 0, false), ("Take A down", 1, true)];
        assert_eq!(patches, expected);
        let tree = tree();
        let before = snapshot(tree.path());
        apply_all(&series, tree.path());
        let file = |name| fs::read_to_string(tree.path().join(name)).unwrap();
        assert!(file("kernel/bpf/trampoline.c").contains("line_thirty"));
        assert_eq!(file("kernel/bpf/Makefile"), "obj-m += trampoline.o\n");
        assert!(file("include/bpf.h").starts_with("#define A 0\n"));
        apply_all(&Series { reverse: true, ..series }, tree.path());
        assert_eq!(snapshot(tree.path()), before);
    }
}

const MANIFEST: &str = "title: Tidy\nclaim: Names are in full\nkernel: '6.12'\nreverse: true\n\
                        patches:\n- v2-0001.patch\n- sub/all.mbox\n";

/// `shipped/tidy/` with its `series.yaml`.
fn shipped(manifest: &str) -> TempDir {
    let shipped = tempfile::tempdir().unwrap();
    let folder = shipped.path().join("tidy");
    fs::create_dir_all(folder.join("sub")).unwrap();
    fs::write(folder.join("series.yaml"), manifest).unwrap();
    fs::copy(data("single.patch"), folder.join("v2-0001.patch")).unwrap();
    fs::copy(data("raw.patch"), folder.join("sub/all.mbox")).unwrap();
    fs::write(shipped.path().join("secret.patch"), "secret").unwrap();
    symlink("../secret.patch", folder.join("link.patch")).unwrap();
    shipped
}

#[test]
fn loads_shipped_series_by_name() {
    let shipped = shipped(MANIFEST);
    let folder = shipped.path().join("tidy");
    let by_name = load("tidy", shipped.path()).unwrap();
    for spec in [folder.clone(), folder.join("series.yaml")] {
        assert_eq!(try_load(&spec).unwrap(), by_name);
    }
    assert_eq!(by_name.name, "tidy");
    assert!(by_name.reverse);
    let says = Shipped {
        title: "Tidy".to_owned(),
        claim: "Names are in full".to_owned(),
        published: Vec::new(),
        kernel: "6.12".to_owned(),
        arches: Vec::new(),
    };
    assert_eq!(by_name.shipped, Some(says));
    let numbers: Vec<_> = by_name.ordered().iter().map(|patch| patch.number).collect();
    assert_eq!(numbers, [2, 1]);
    assert_eq!(names(shipped.path()), ["tidy"]);

    // Applied, it can be reverted.
    let tree = tree();
    let before = snapshot(tree.path());
    apply_all(&Series { reverse: false, ..by_name.clone() }, tree.path());
    assert_ne!(snapshot(tree.path()), before);
    apply_all(&by_name, tree.path());
    assert_eq!(snapshot(tree.path()), before);
}

#[test]
fn prepares_the_base_of_a_shipped_series() {
    let text =
        MANIFEST.replace("reverse: true", "base: [v2-0001.patch]").replace("- v2-0001.patch\n", "");
    let shipped = shipped(&text);
    let series = load("tidy", shipped.path()).unwrap();
    assert_eq!((series.base, series.patches.len()), (1, 2));
    let applied: Vec<_> =
        series.ordered().iter().map(|patch| (patch.number, patch.subject.as_str())).collect();
    let expected =
        [(1, "bpf: Name two lines in full"), (2, "bpf: Change a Latin-1 file and a DOS file")];
    assert_eq!(applied, expected);
}

#[test]
fn published_numbers_must_fit_what_stands_for_them() {
    for (head, rows, words) in [
        ("unit: M/s", "{ of: trigger.fexti, before: 1, after: 2 }", "names no metric"),
        ("unit: ns", "{ of: trigger.fexit, before: .nan, after: 2 }", "`NaN` of trigger.fexit"),
        ("unit: ns", "{ of: trigger.fexit, before: 0, after: 2 }", "expected more than 0"),
        ("unit: ns", "{ of: trigger.fexit, before: 1, after: 1e300 }", "`1e300` of"),
        ("unit: records", "{ of: trigger.fexit, before: 1, after: 2 }", "expected M/s, s or ns"),
        ("unit: s", "{ of: lbr_waste.fexit.any, before: 1, after: 2 }", "expected records"),
        ("unit: records", "{ of: lbr_waste.fexit.any, before: 9.5, after: 2 }", "a whole number"),
        ("unit: records", "", "`rows` has no row"),
        ("unit: ns, model: ../zen4", "{ of: trigger.tp, before: 1, after: 2 }", "no name of a CPU"),
        ("unit: ns, axes: { a: b c }", "{ of: trigger.tp, before: 1, after: 2 }", "is no axis"),
        (
            "unit: ns",
            "{ of: trigger.tp, before: 1, after: 2 }, { of: trigger.tp, before: 2, after: 1 }",
            "has two rows",
        ),
    ] {
        let text =
            format!("published:\n- {{ source: s, machine: m, {head}, rows: [{rows}] }}\nkernel:");
        let shipped = shipped(&MANIFEST.replace("kernel:", &text));
        let error = load("tidy", shipped.path()).unwrap_err().to_string();
        assert!(error.contains(":4:3: ") && error.contains(words), "{error}");
    }
    let long = "x".repeat(301);
    for source in ["''", "' '", "\"a\\nb\"", &long] {
        let row = "{ of: trigger.tp, before: 1, after: 2 }";
        let text = format!(
            "published:\n- {{ source: {source}, machine: m, unit: ns, rows: [{row}] }}\nkernel:"
        );
        let shipped = shipped(&MANIFEST.replace("kernel:", &text));
        let error = load("tidy", shipped.path()).unwrap_err().to_string();
        assert!(error.contains("`source`: expected a line"), "{error}");
    }
}

#[test]
fn names_errors_in_manifest() {
    for (from, to, words) in [
        ("patches:", "base: [raw.patch]\npatches:", ":5:7: `base` has patches to add"),
        ("reverse: true", "reversed: true", ":4:1: unknown field `reversed`"),
        ("kernel: '6.12'\n", "", "missing field `kernel`"),
        ("Names", "|\n  Names\n ", "`claim` has several lines"),
        (
            "patches:\n- v2-0001.patch\n- sub/all.mbox\n",
            "patches: []\n",
            ":5:10: `patches` names no file",
        ),
        ("sub/all.mbox", "../secret.patch", "which {list} names: it is not inside"),
        (
            "sub/all.mbox",
            "link.patch",
            "failed to read `link.patch`, which {list} names: it is not inside",
        ),
        ("sub/all.mbox", "/etc/passwd", "failed to read `/etc/passwd`"),
        ("sub/all.mbox", "none.patch", "/tidy/none.patch: No such file"),
        ("sub/all.mbox", "sub", "/tidy/sub: it is not an ordinary file"),
    ] {
        let text = MANIFEST.replace(from, to);
        assert_ne!(text, MANIFEST);
        let shipped = shipped(&text);
        let error = load("tidy", shipped.path()).unwrap_err();
        let list = shipped.path().join("tidy/series.yaml");
        let words = words.replace("{list}", &list.display().to_string());
        assert!(error.to_string().contains(&words), "{to}: {error}");
        assert!(error.is_usage(), "{to}: {error}");
    }
}

/// An mbox of messages (subject, body).
fn mbox(messages: &[(&str, &str)]) -> String {
    let message = |(subject, body): &(&str, &str)| {
        format!(
            "From git@z Thu Jan  1 00:00:00 1970\nFrom: A <a@b.c>\nSubject: {subject}\n\n{body}\n"
        )
    };
    messages.iter().map(message).collect()
}

const DIFF: &str = "log\n---\n--- a/f\n+++ b/f\n@@ -1 +1 @@\n-a\n+b\n";
const OTHER: &str = "log\n---\n--- a/f\n+++ b/f\n@@ -1 +1 @@\n-b\n+c\n";

#[test]
fn names_errors_in_mbox() {
    let cut = DIFF.replace("+b\n", "");
    let half = OTHER.trim_end();
    let binary =
        "diff --git a/x.bin b/x.bin\nindex 1..2 100644\nBinary files a/x.bin and b/x.bin differ\n";
    let attached =
        "Content-Type: multipart/mixed; boundary=x\n\n--x\n\nD--x\n\nD--x--\n".replace('D', DIFF);
    for (messages, words) in [
        (
            &[("[PATCH 2/3] b", DIFF), ("[PATCH 0/3] c", "cover"), ("Re: [PATCH 1/3] a", DIFF)][..],
            "patches 1, 3 of 3 are missing; get the whole thread",
        ),
        (&[("[PATCH v2 1/2] a", DIFF)], "patch 2 of 2 is missing in version 2"),
        (
            &[("[PATCH 1/2] a", DIFF), ("[PATCH 2/2] b", OTHER), ("[PATCH 1/2] a", OTHER)],
            "patch 1 appears twice with different diffs: ",
        ),
        (
            &[("[PATCH 1/2] a", DIFF), ("[PATCH 2/2] b", "no diff")],
            "message 2 (b) is a patch of the series by its subject",
        ),
        (&[("[PATCH 1/1] a", DIFF), ("[PATCH 1/2] b", OTHER)], "two series in one"),
        (&[("[PATCH 3/2] a", DIFF)], "is numbered patch 3 of 2"),
        (
            &[("Re: [PATCH] a", DIFF), ("hello", "world")],
            "none of its 2 messages is a patch (replies: 1)",
        ),
        (&[("[PATCH 0/0] a", "cover")], "none of its 1 messages is a patch"),
        (&[("[PATCH] a", &cut)], "patch 1 (a) of "),
        (&[("[PATCH] a", &cut)], "git cannot read it: "),
        (&[("[PATCH] a", binary)], "no new content for `x.bin`"),
        (&[("[PATCH 1/2] a", DIFF), ("[PATCH 2/2] b", half)], ""),
        (&[("[PATCH] a", &attached)], ""),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("x.mbox");
        let mut text = mbox(messages);
        let words = match words {
            "" if messages.len() == 2 => {
                text.truncate(text.trim_end().len());
                "patch 2 (b) of "
            }
            "" => {
                text = text.replace("\n\nContent-Type", "\nContent-Type");
                "2 of its parts have a diff"
            }
            words => words,
        };
        fs::write(&file, &text).unwrap();
        let error = load(file.to_str().unwrap(), Path::new("/none")).unwrap_err();
        assert!(error.to_string().contains(words), "{text}\ngave: {error}\nexpected: {words}");
        assert!(error.is_usage(), "{error}");
    }
}

#[test]
fn skips_duplicates_and_unrelated_messages() {
    let messages = [
        ("[PATCH 2/2] b", OTHER),
        ("[PATCH 1/2] a", DIFF),
        ("[PATCH RESEND 1/2] a", DIFF),
        ("[PATCH] a fixup of somebody", DIFF),
        ("hello", DIFF),
    ];
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("x.mbox");
    fs::write(&file, mbox(&messages)).unwrap();
    let series = try_load(&file).unwrap();
    let subjects: Vec<_> =
        series.patches.iter().map(|patch| (patch.number, &*patch.subject)).collect();
    assert_eq!(subjects, [(1, "a"), (2, "b")]);
    let notes = series.notes.join("\n");
    assert!(notes.contains("message 5 (hello): its subject has no [PATCH]"), "{notes}");
    assert!(notes.contains("message 4 (a fixup of somebody): the others are counted"), "{notes}");
}

#[test]
fn rejects_files_and_folders_that_are_no_series() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    fs::create_dir(path("empty")).unwrap();
    fs::write(path("empty.mbox"), "").unwrap();
    fs::write(path("only.mbox"), "From ").unwrap();
    nix::unistd::mkfifo(&path("fifo.mbox"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    // A sparse file uses no disk space.
    fs::File::create(path("huge.mbox")).unwrap().set_len((64 << 20) + 1).unwrap();
    fs::create_dir(path("quilted")).unwrap();
    fs::write(path("quilted/series"), "# none\n").unwrap();
    fs::create_dir(path("two")).unwrap();
    fs::write(path("two/series"), "two.patch\n").unwrap();
    fs::write(path("two/two.patch"), mbox(&[("[PATCH 1/2] a", DIFF), ("[PATCH 2/2] b", OTHER)]))
        .unwrap();
    fs::create_dir(path("out")).unwrap();
    fs::write(path("out/series"), "../empty.mbox\n").unwrap();
    fs::create_dir(path("odd")).unwrap();
    fs::write(path("odd/series"), "a.patch --exec=sh\n").unwrap();
    for (name, words) in [
        ("none", "failed to find the series `"),
        ("empty", "failed to find a series in the folder"),
        ("empty.mbox", "it is empty; did the command"),
        ("only.mbox", "none of its 1 messages is a patch"),
        ("fifo.mbox", "not an ordinary file"),
        ("huge.mbox", "exceeds 64 MiB"),
        ("quilted", "it lists no patch"),
        ("two", "it holds 2 patches"),
        ("out", "which"),
        ("odd", "line 1: `--exec=sh` is not an option"),
    ] {
        let error = try_load(&path(name)).unwrap_err();
        assert!(error.contains(words), "{name} gave {error}");
    }
    let error = load("no\u{1b}[31mne", &path("")).unwrap_err().to_string();
    assert!(error.contains("`no\u{fffd}[31mne`") && error.contains("shipped: none"), "{error}");
}

#[test]
fn lists_touched_files() {
    let series = loaded("format-patch");
    let expected: [&[&str]; 4] = [
        &["kernel/bpf/trampoline.c"],
        &["kernel/bpf/Makefile", "kernel/bpf/new.c", "kernel/bpf/old.c"],
        &["include/bpf.h", "kernel/bpf/Makefile", "kernel/bpf/added.c"],
        &["kernel/bpf/blob.bin"],
    ];
    for (patch, files) in series.patches.iter().zip(expected) {
        assert_eq!(patch.touched, files.iter().map(PathBuf::from).collect::<Vec<_>>());
    }
}

#[test]
fn hash_depends_on_direction() {
    let forward = loaded("single.patch");
    let backward = Series { reverse: true, ..forward.clone() };
    assert_ne!(forward.sha256(), backward.sha256());
    assert_eq!(forward.sha256(), loaded("single.patch").sha256());
}

proptest! {
    #[test]
    fn no_bytes_panic_the_reader(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        let _ = mail::messages(&bytes, "x");
        diff::parse(&bytes, 1);
    }

    /// Damaged real messages reach deeper code than random bytes.
    #[test]
    fn no_damaged_mail_panics_the_reader(
        which in 0..6_usize,
        damage in proptest::collection::vec(
            (any::<prop::sample::Index>(), any::<u8>(), 0..40_usize),
            1..6,
        ),
    ) {
        let names = [
            "lore.mbox",
            "attached.patch",
            "base64.eml",
            "quoted-printable.eml",
            "flowed.eml",
            "bare.diff",
        ];
        let mut bytes = fs::read(data(names[which])).unwrap();
        for (at, byte, left_out) in damage {
            let at = at.index(bytes.len());
            bytes[at] = byte;
            bytes.drain(at..(at + left_out).min(bytes.len() - 1).max(at));
        }
        if let Ok(messages) = mail::messages(&bytes, "x") {
            for message in &messages {
                let diff = message.diff.clone().unwrap_or_default();
                for change in diff::parse(&diff, 1) {
                    change.hunks();
                }
            }
            let _ = thread::collect(messages);
        }
    }

    /// Extended headers, quoted names and hunks in any order.
    #[test]
    fn no_odd_diff_panics_the_reader(lines in proptest::collection::vec(prop_oneof![
        "diff --git (a/|b/|\")?[a-z\\\\\"/. ]{0,8} (b/)?[a-z\\\\\"/.]{0,8}",
        "(---|\\+\\+\\+|rename from|rename to|copy from) [ab\"/.\\\\0-9]{0,9}",
        "(old|new|deleted file|new file) mode [0-9]{0,6}",
        "@@ -[0-9]{1,20}(,[0-9]{1,20})? \\+[0-9]{1,3}(,[0-9])? @@",
        "(GIT binary patch|literal [0-9]{1,12}|delta 3|zcmV[a-zA-Z0-9]{0,9})",
        "[ +\\\\-].{0,4}",
    ], 0..12)) {
        let diff = lines.join("\n") + "\n";
        for change in diff::parse(diff.as_bytes(), 1) {
            change.hunks();
        }
        let _ = mail::messages(diff.as_bytes(), "x");
    }
}
