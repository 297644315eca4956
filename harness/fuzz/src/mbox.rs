// SPDX-License-Identifier: MIT OR Apache-2.0
//! A series as strangers send it: mboxes, mails, bare diffs, quilt's lists. All but git's own reading of a diff, which is a program.

use std::path::{Component, Path};
use tramplab_kernel::series::{diff, mail, name, quilt, subject, thread};

pub fn run(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let _ = quilt::parse(&text);
    let told = subject::parse(&text);
    let fit = name::fit(&told.title);
    let mut parts = Path::new(&fit).components();
    assert!(matches!((parts.next(), parts.next()), (Some(Component::Normal(_)), None)), "{fit}");
    let Ok(messages) = mail::messages(data, "input") else { return };
    assert!(messages.len() <= data.len().max(1));
    let Ok(thread) = thread::collect(messages) else { return };
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
    // Written as git writes it, the same patches are read again; unless a line of theirs ends a mail.
    let ends_mail = |diff: &[u8]| diff.windows(6).any(|bytes| bytes == b"\nFrom ");
    if total > 9999 || thread.patches.iter().any(|patch| ends_mail(&patch.diff)) {
        return;
    }
    let again = mail::messages(&mbox, "again").expect("it is a mailbox");
    let again = thread::collect(again).expect("it is a series");
    assert_eq!(again.patches.len(), total);
    for (patch, again) in thread.patches.iter().zip(&again.patches) {
        assert_eq!(again.diff.strip_suffix(b"\n"), Some(&patch.diff[..]));
    }
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
