// SPDX-License-Identifier: MIT OR Apache-2.0
//! Series as other people keep and send them.

use super::*;
use crate::series::{
    diff::DiffError,
    load::{SeriesError, onto},
    packed::tests::packed,
};
use std::{collections::BTreeSet, io::Write, os::fd::AsRawFd};
use tramplab_archive::Compression;
use tramplab_model::run::Arch;

fn write(folder: &TempDir, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
    let path = folder.path().join(name);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(&path, bytes).unwrap();
    path
}

fn subjects(series: &Series) -> Vec<&str> {
    series.patches.iter().map(|patch| patch.subject.as_str()).collect()
}

fn error(path: &Path) -> SeriesError {
    let error = load(path.to_str().unwrap(), Path::new("/none")).unwrap_err();
    assert!(error.is_usage(), "{error}");
    error
}

/// A tar archive of a folder of the test data, below a folder as most archives have it.
fn archive(name: &str) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    builder.append_dir_all(format!("patches-6.12/{name}"), data(name)).unwrap();
    builder.into_inner().unwrap()
}

#[test]
fn reads_packed_files_and_archives() {
    let folder = tempfile::tempdir().unwrap();
    let lore = fs::read(data("lore.mbox")).unwrap();
    let expected = loaded("lore.mbox");
    for (name, format) in [
        ("lore.mbox.gz", Compression::Gzip),
        ("lore.mbox.xz", Compression::Xz),
        ("lore.mbox.zst", Compression::Zstd),
        // The bytes decide, not the name.
        ("lore.mbox", Compression::Gzip),
    ] {
        let series = try_load(&write(&folder, name, packed(format, &lore))).unwrap();
        assert_eq!(series.name, "lore", "{name}");
        assert_eq!(series.sha256(), expected.sha256(), "{name}");
        assert_eq!((series.title, series.cover), (expected.title.clone(), expected.cover.clone()));
    }
    for (name, from, format) in [
        ("p.tar.gz", "format-patch", Some(Compression::Gzip)),
        ("p.tar.xz", "quilt", Some(Compression::Xz)),
        ("p.tar", "quilt", None),
    ] {
        let tar = archive(from);
        let bytes = format.map_or(tar.clone(), |format| packed(format, &tar));
        let path = write(&folder, name, bytes);
        let series = try_load(&path).unwrap();
        assert_eq!((&*series.name, series.sha256()), ("p", loaded(from).sha256()), "{name}");
        let origin = &series.patches[0].origin;
        assert!(
            origin.starts_with(&format!("{}/patches-6.12/{from}/", path.display())),
            "{origin}"
        );
        assert!(!Path::new(origin).exists());
    }
    // A folder of packed patches.
    let single = fs::read(data("single.patch")).unwrap();
    write(&folder, "many/1.patch.gz", packed(Compression::Gzip, &single));
    assert_eq!(
        try_load(&folder.path().join("many")).unwrap().sha256(),
        loaded("single.patch").sha256()
    );
}

#[test]
fn stops_bombs_and_names_the_archive_in_errors() {
    let folder = tempfile::tempdir().unwrap();
    let bomb = packed(Compression::Zstd, &vec![b'x'; (64 << 20) + 1]);
    let path = write(&folder, "bomb.mbox.zst", &bomb);
    let text = error(&path).to_string();
    assert!(text.ends_with("bomb.mbox.zst: it unpacks to more than 64 MiB; expected only patches"));
    // Two halves of a bomb.
    let half = packed(Compression::Zstd, &vec![b'x'; 40 << 20]);
    for name in ["two/1.patch", "two/2.patch"] {
        write(&folder, name, &half);
    }
    let text = error(&folder.path().join("two")).to_string();
    assert!(text.contains("2.patch: with it the series exceeds 64 MiB"), "{text}");
    let mut builder = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_gnu();
    header.set_size(9);
    builder.append_data(&mut header, "p/series", &b"../a +x\n\n"[..]).unwrap();
    let path =
        write(&folder, "odd.tar.gz", packed(Compression::Gzip, &builder.into_inner().unwrap()));
    let text = error(&path).to_string();
    assert!(text.starts_with(&format!("failed to read {}/p/series: line 1: `+x`", path.display())));
}

/// `b4 am -o - ID | … --series -`, and the same with `<(…)`.
#[test]
fn reads_pipe_that_the_shell_opened() {
    let (from, to) = nix::unistd::pipe().unwrap();
    let lore = packed(Compression::Gzip, &fs::read(data("lore.mbox")).unwrap());
    let writer = std::thread::spawn(move || fs::File::from(to).write_all(&lore).unwrap());
    let series = try_load(Path::new(&format!("/proc/self/fd/{}", from.as_raw_fd()))).unwrap();
    writer.join().unwrap();
    assert_eq!(series.name, "bpf-Tidy-the-trampoline");
    assert_eq!(series.sha256(), loaded("lore.mbox").sha256());
}

fn mail(subject: &str, id: &str, answers: &str, body: &str) -> String {
    let answers = match answers {
        "" => String::new(),
        _ => format!("In-Reply-To: <{answers}@x>\n"),
    };
    format!(
        "From mboxrd@z Thu Jan  1 00:00:00 1970\nSubject: {subject}\nMessage-ID: <{id}@x>\n\
         {answers}\n{body}\n"
    )
}

/// The diff of a version of a patch.
fn diff_of(version: &str) -> String {
    format!("log\n---\n--- a/f\n+++ b/f\n@@ -1 +1 @@\n-a\n+{version}\n")
}

#[test]
fn completes_partial_rerolls() {
    const NO_ID: &str = "saved without its id";
    let v3 = ["[PATCH v3 0/3] c", "[PATCH v3 1/3] a", "[PATCH v3 2/3] b", "[PATCH v3 3/3] d"];
    // Subject and the message that it answers; then the versions of the patches, or the missing.
    type Case = (&'static [(&'static str, &'static str)], Result<&'static str, &'static [usize]>);
    let cases: &[Case] = &[
        (&[("[PATCH v4 2/3] b", "v3.2")], Ok("3 4 3")),
        // An answer in between.
        (&[("Re: [PATCH v3 2/3] b", "v3.2"), ("[PATCH v4 2/3] B", "new.0")], Ok("3 4 3")),
        (&[("[PATCH v4 1/3] a", "v3.1"), ("[PATCH v4 3/3] d", "v3.3")], Ok("4 3 4")),
        (&[("[PATCH v4 0/3] c", "v3.0"), ("[PATCH v4 3/3] d", "v3.3")], Ok("3 3 4")),
        (&[("[PATCH v4 2/3] b", "v3.2"), ("[PATCH v5 3/3] d", "v3.3")], Ok("3 4 5")),
        (&[("[PATCH v3.1 2/3] b", ""), ("[PATCH v3.2 3/3] d", "")], Ok("3 3.1 3.2")),
        (&[("[PATCH v3.1] b", "v3.2")], Ok("3 3.1 3")),
        // Saved without ids.
        (&[("[PATCH v4 2/3] b", NO_ID)], Ok("3 4 3")),
        (&[("[PATCH v4 2/3] other", NO_ID)], Err(&[1, 3])),
        // A new thread, of which messages are missing.
        (&[("[PATCH v4 2/3] b", "")], Err(&[1, 3])),
        // A new version of which messages are missing.
        (&[("[PATCH v4 2/3] b", "v3.0")], Err(&[1, 3])),
        (&[("[PATCH v4 0/3] c", ""), ("[PATCH v4 2/3] b", "new.0")], Err(&[1, 3])),
        (&[("[PATCH v4 2/4] b", "v3.2")], Err(&[1, 3, 4])),
        (&[("[PATCH v5 2/3] b", "new.1"), ("[PATCH v4 1/2] z", "")], Err(&[1, 3])),
    ];
    for (new, expected) in cases {
        let folder = tempfile::tempdir().unwrap();
        let body = |subject: &str| match crate::series::subject::parse(subject) {
            subject if subject.count.is_some_and(|(number, _)| number == 0) => "cover".to_owned(),
            subject => diff_of(&subject.version.to_string()),
        };
        let old = v3.iter().enumerate().map(|(at, subject)| {
            mail(subject, &format!("v3.{at}"), if at > 0 { "v3.0" } else { "" }, &body(subject))
        });
        let new_mails = new.iter().enumerate().map(|(at, (subject, answers))| {
            let id = format!("new.{at}");
            match *answers {
                NO_ID => mail(subject, &id, "", &body(subject))
                    .replace(&format!("Message-ID: <{id}@x>\n"), ""),
                answers => mail(subject, &id, answers, &body(subject)),
            }
        });
        let path = write(&folder, "t.mbox", old.chain(new_mails).collect::<String>());
        match (load(path.to_str().unwrap(), Path::new("/none")), expected) {
            (Ok(series), Ok(versions)) => {
                let version = |patch: &Patch| {
                    let text = String::from_utf8_lossy(&patch.diff).into_owned();
                    text.trim_end().rsplit('+').next().unwrap().to_owned()
                };
                let found: Vec<String> = series.patches.iter().map(version).collect();
                assert_eq!(found.join(" "), *versions, "{new:?}");
                assert_eq!(series.title.as_deref(), Some("c"), "{new:?}");
                let newest = versions.split(' ').max().unwrap();
                let told = series.notes.iter().filter(|note| note.contains("is a partial reroll"));
                let older = versions.split(' ').filter(|version| *version != newest).count();
                assert_eq!(told.count(), older, "{new:?}: {:?}", series.notes);
            }
            (Err(SeriesError::Thread { source, .. }), Err(numbers)) => match source {
                thread::ThreadError::Missing { missing, older: Some(_), .. } => {
                    assert_eq!(missing, *numbers, "{new:?}");
                }
                other => panic!("{new:?}: {other}"),
            },
            (other, _) => panic!("{new:?}: {other:?}"),
        }
    }
}

#[test]
fn guards_leave_patches_out() {
    let folder = tempfile::tempdir().unwrap();
    let list =
        "# Kernel patches\n\tpatches.suse/a\n+needs_update\tpatches.suse/b\n-\tpatches.suse/c\n";
    for name in ["a", "b", "c"] {
        write(&folder, &format!("patches.suse/{name}"), diff_of(name));
    }
    let path = write(&folder, "series.conf", list);
    for path in [path.as_path(), folder.path()] {
        let series = try_load(path).unwrap();
        assert_eq!(subjects(&series), ["a"]);
        let [note] = &series.notes[..] else { panic!("{:?}", series.notes) };
        assert!(note.ends_with("`+needs_update patches.suse/b`, `- patches.suse/c`"), "{note}");
    }
    fs::write(&path, "-\tpatches.suse/c\n").unwrap();
    assert!(matches!(error(&path), SeriesError::EmptyList { left_out: 1, .. }));
    fs::write(&path, "patches.suse/a\n".repeat(1001)).unwrap();
    assert!(matches!(error(&path), SeriesError::LongList { found: 1001, .. }));
}

#[test]
fn applies_diffs_without_prefix() {
    let folder = tempfile::tempdir().unwrap();
    let hunk = "@@ -1,3 +1,3 @@\n-#define A 1\n+#define A 6\n #define B 2\n #define C 3\n";
    let git = "diff --git include/bpf.h include/bpf.h\nindex 1..2 100644\n";
    let plain = "--- include/bpf.h\n+++ include/bpf.h\n";
    let rename = "diff --git a/kernel/bpf/old.c b/kernel/bpf/moved.c\nsimilarity index 100%\n\
                  rename from kernel/bpf/old.c\nrename to kernel/bpf/moved.c\n";
    let bare_rename = rename.replace("a/kernel", "kernel").replace("b/kernel", "kernel");
    // A removed line of a hunk looks like a name.
    let removed = "--- a/f\n+++ b/f\n@@ -1,2 +1 @@\n--- kernel/x\n a\n";
    let created = "--- /dev/null\n+++ kernel/new.c\n@@ -0,0 +1 @@\n+x\n";
    for (diff, strip, changed) in [
        (format!("{git}{plain}{hunk}"), 0, Some("include/bpf.h")),
        (format!("{plain}{hunk}"), 0, Some("include/bpf.h")),
        (
            format!("--- linux/include/bpf.h\n+++ linux/include/bpf.h\n{hunk}"),
            1,
            Some("include/bpf.h"),
        ),
        (format!("--- i/include/bpf.h\n+++ w/include/bpf.h\n{hunk}"), 1, Some("include/bpf.h")),
        (rename.to_owned(), 1, Some("kernel/bpf/moved.c")),
        (bare_rename, 0, Some("kernel/bpf/moved.c")),
        (removed.to_owned(), 1, None),
        (created.to_owned(), 0, Some("kernel/new.c")),
    ] {
        let series = try_load(&write(&folder, "a.diff", &diff)).unwrap();
        assert_eq!(series.patches[0].strip, strip, "{diff}");
        let Some(changed) = changed else { continue };
        let tree = tree();
        let before = fs::read(tree.path().join(changed)).ok();
        apply_all(&series, tree.path());
        let after = fs::read(tree.path().join(changed)).ok();
        assert!(after.is_some() && after != before, "{diff}");
    }
    // A list that names the strip level knows better.
    write(&folder, "series", "a.diff -p0\n");
    write(&folder, "a.diff", format!("--- linux/f\n+++ linux/f\n{hunk}"));
    assert_eq!(try_load(folder.path()).unwrap().patches[0].strip, 0);
}

#[test]
fn names_damage_of_mail_programs() {
    let folder = tempfile::tempdir().unwrap();
    let read = |diff: &str| match error(&write(&folder, "a.patch", diff)) {
        SeriesError::Diff { source, .. } => source,
        other => panic!("{other}"),
    };
    let head = "--- a/include/bpf.h\n+++ b/include/bpf.h\n";
    let wrapped = "@@ -1,3 +1,3 @@\n-#define A 1\n+#define A 6 /* a long\nline */\n #define B 2\n";
    match read(&format!("{head}{wrapped} #define C 3\n")) {
        DiffError::Wrapped { line: 6, text } => assert_eq!(text, "line */"),
        other => panic!("{other}"),
    }
    let spaces = "@@ -1,3 +1,3 @@\n-#define A 1\n+#define A 6\n\u{a0}#define B 2\n #define C 3\n";
    assert!(matches!(read(&format!("{head}{spaces}")), DiffError::NonBreaking { line: 6 }));
    // A hunk that was cut off has another cause.
    let cut = "@@ -1,3 +1,3 @@\n-#define A 1\n";
    assert!(matches!(read(&format!("{head}{cut}{head}")), DiffError::Git(_)));

    for (context, is_respaced) in [
        ("#define\u{a0}B 2", true),
        ("#define\tB 2", true),
        ("#define B 2\r", true),
        ("#define B 3", false),
    ] {
        let hunk = "@@ -1,3 +1,3 @@\n-#define A 1\n+#define A 6\n CONTEXT\n #define C 3\n";
        let diff = format!("{head}{}", hunk.replace("CONTEXT", context));
        let series = try_load(&write(&folder, "a.patch", diff)).unwrap();
        match apply(&series.patches[0], tree().path(), false).unwrap_err().reason {
            ApplyReason::Conflicts { conflicts, .. } => {
                assert_eq!(conflicts[0].is_respaced, is_respaced, "{context:?}");
                let text = conflicts[0].to_string();
                assert_eq!(text.contains("only in white space"), is_respaced, "{text}");
            }
            other => panic!("{context:?}: {other}"),
        }
    }
}

#[test]
fn puts_patches_under_a_series_and_names_prerequisites() {
    let prepared = loaded("single.patch");
    let id = prepared.patches[0].ids.patch_id.clone().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let other = "1".repeat(40);
    let text = format!("{}\nbase-commit: {other}\nprerequisite-patch-id: {id}\n", diff_of("b"));
    let path = write(&folder, "a.diff", format!("{text}prerequisite-patch-id: {other}\n"));
    let series = try_load(&path).unwrap();
    assert_eq!(series.prerequisites, [other.clone(), id.clone()]);
    let told = |series: &Series| -> Vec<String> {
        series.notes.iter().filter(|note| note.contains("--base-patches")).cloned().collect()
    };
    let alone = onto(series.clone(), "s", Vec::new()).unwrap();
    assert_eq!((alone.base, alone.patches.len(), told(&alone).len()), (0, 1, 1));
    assert!(
        told(&alone)[0].contains("(prerequisite-patch-id 111111111111 and 1 more)"),
        "{alone:?}"
    );
    let both = onto(series.clone(), "s", vec![("p".to_owned(), prepared.clone())]).unwrap();
    let numbers: Vec<usize> = both.patches.iter().map(|patch| patch.number).collect();
    assert_eq!((both.base, numbers, both.name), (1, vec![1, 2], series.name.clone()));
    assert_eq!(both.prerequisites, [other]);
    // Nothing to tell when all are there.
    let series = Series { prerequisites: vec![id], ..series };
    let both = onto(series.clone(), "s", vec![("p".to_owned(), prepared.clone())]).unwrap();
    assert_eq!(told(&both), [""; 0]);

    let reversed = |series: &Series| Series { reverse: true, ..series.clone() };
    let below = |series| vec![("p".to_owned(), series)];
    let error = onto(reversed(&series), "s", below(prepared.clone())).unwrap_err();
    assert!(matches!(error, SeriesError::BaseOfReversed { .. }));
    let error = onto(series, "s", below(reversed(&prepared))).unwrap_err();
    assert!(matches!(error, SeriesError::ReversedBase { spec } if spec == "p"));
}

#[test]
fn finds_options_that_a_series_changes() {
    let folder = tempfile::tempdir().unwrap();
    let kconfig = "--- a/kernel/trace/Kconfig\n+++ b/kernel/trace/Kconfig\n@@ -1,4 +1,5 @@\n\
                   -config OLD\n+config QUICK\n+\tbool \"config no\"\n \tbool\n \n config KEPT\n";
    let config = "--- a/tools/testing/selftests/bpf/FILE\n+++ b/tools/testing/selftests/bpf/FILE\n\
                  @@ -1,3 +1,4 @@\n CONFIG_A=y\n-CONFIG_B=y\n+CONFIG_B=m\n+CONFIG_QUICK=y\n \n";
    let other = "--- a/a.c\n+++ b/a.c\n@@ -1 +1 @@\n-config C\n+CONFIG_D=y\n";
    let of = |file: &str| kconfig.to_owned() + &config.replace("FILE", file) + other;
    let names = |options: &BTreeSet<String>| options.iter().cloned().collect::<Vec<_>>().join(" ");
    for (file, x86_64, arm64) in [
        ("config", "CONFIG_B=m CONFIG_QUICK=y", "CONFIG_B=m CONFIG_QUICK=y"),
        ("config.x86_64", "CONFIG_B=m CONFIG_QUICK=y", ""),
        ("config.aarch64", "", "CONFIG_B=m CONFIG_QUICK=y"),
        ("config.vm", "", ""),
    ] {
        let series = try_load(&write(&folder, "a.diff", of(file))).unwrap();
        assert_eq!(names(&series.introduced()), "OLD QUICK");
        for (arch, expected) in [(Arch::X86_64, x86_64), (Arch::Arm64, arm64)] {
            let wanted = series.of_tree_tests(arch);
            let shown: Vec<_> = wanted.iter().map(ToString::to_string).collect();
            assert_eq!(shown.join(" "), expected, "{file} {arch}");
        }
        // A series that is taken out adds no options.
        let reversed = Series { reverse: true, ..series };
        assert_eq!(reversed.of_tree_tests(Arch::X86_64).len(), usize::from(!x86_64.is_empty()));
    }
}
