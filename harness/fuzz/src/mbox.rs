// SPDX-License-Identifier: MIT OR Apache-2.0
//! Fuzz the readers of patch series: mboxes, mails, bare diffs and quilt's lists. git applies the
//! diffs in another process and is not fuzzed.

use std::path::{Component, Path};
use tramplab_kernel::series::{diff, mail, name, quilt, subject, thread};

pub fn run(data: &[u8]) -> bool {
    let text = String::from_utf8_lossy(data);
    let listed = quilt::parse(&text).is_ok_and(|patches| !patches.is_empty());
    let told = subject::parse(&text);
    let fit = name::fit(&told.title);
    let mut parts = Path::new(&fit).components();
    assert!(matches!((parts.next(), parts.next()), (Some(Component::Normal(_)), None)), "{fit}");
    let Ok(messages) = mail::messages(data, "input") else { return listed };
    assert!(messages.len() <= data.len().max(1));
    let Ok(thread) = thread::collect(messages) else { return listed };
    assert!((1..=thread::MOST_PATCHES).contains(&thread.patches.len()));
    let total = thread.patches.len();
    let mut mbox = Vec::new();
    for (index, patch) in thread.patches.iter().enumerate() {
        assert_eq!(patch.number, index + 1);
        for strip in 0..=2 {
            look_at(&diff::parse(&patch.diff, strip));
        }
        let head = format!(
            "From 0000 Mon Sep 17 00:00:00 2001\nSubject: [PATCH {}/{total}] x\n\n---\n\n",
            index + 1
        );
        mbox.extend(head.as_bytes());
        mbox.extend(&patch.diff);
        mbox.extend(b"\n");
    }
    // Patches written as `git format-patch` does are read back, unless a line of one ends a mail.
    let ends_mail = |diff: &[u8]| diff.windows(6).any(|bytes| bytes == b"\nFrom ");
    if total > 9999 || thread.patches.iter().any(|patch| ends_mail(&patch.diff)) {
        return true;
    }
    let again = mail::messages(&mbox, "again").expect("it is a mailbox");
    let again = thread::collect(again).expect("it is a series");
    assert_eq!(again.patches.len(), total);
    for (patch, again) in thread.patches.iter().zip(&again.patches) {
        assert_eq!(again.diff.strip_suffix(b"\n"), Some(&patch.diff[..]));
    }
    true
}

fn look_at(changes: &[diff::Change<'_>]) {
    for change in changes {
        for turned in [false, true] {
            let _ = change.before(turned);
        }
        for hunk in change.hunks() {
            let _ = format!("{} {}", hunk.old_range(), hunk.new_range());
        }
    }
}
