// SPDX-License-Identifier: MIT OR Apache-2.0
//! One of the tree's own tests after it ran, with the kept part of its output.

use sha2::{Digest, Sha256};
use tramplab_model::{
    name::hex,
    run::{Cell, Measurement},
    tree_tests::{End, LeftOut, Subtest},
};

/// A test that ran to its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ran {
    pub end: End,
    /// The first subtests, in the order in which they ended.
    pub subtests: Vec<Subtest>,
    pub left_out: LeftOut,
    /// The test's first messages about its failures.
    pub failures: Vec<String>,
}

/// Most subtests to keep of one test. The tree's own tests have a few thousand at most.
const SUBTESTS: usize = 10_000;
/// Most failure messages to keep of one test.
pub(super) const FAILURES: usize = 20;
/// Most characters of a subtest's name.
const WIDTH: usize = 200;

/// The kept subtests, while the output is read: 4 MiB of output can name hundreds of thousands.
#[derive(Debug, Default)]
pub(super) struct Kept {
    pub subtests: Vec<Subtest>,
    pub left_out: LeftOut,
}

/// Shortens a name to the limit. A hash replaces the rest, so that different names stay different.
fn shortened(name: &str) -> String {
    if name.chars().count() <= WIDTH {
        return name.to_owned();
    }
    let mark = hex(&Sha256::digest(name)[..8]);
    let begin: String = name.chars().take(WIDTH - 1 - mark.len()).collect();
    format!("{begin}~{mark}")
}

impl Kept {
    pub fn add(&mut self, name: &str, end: End) {
        if self.subtests.len() < SUBTESTS {
            self.subtests.push(Subtest { name: shortened(name), end });
            return;
        }
        *match end {
            End::Ok => &mut self.left_out.ok,
            End::Skip => &mut self.left_out.skip,
            End::Fail => &mut self.left_out.fail,
        } += 1;
    }

    pub fn count(&self, end: End) -> usize {
        self.subtests.iter().filter(|subtest| subtest.end == end).count()
            + self.left_out.of(end) as usize
    }

    pub fn len(&self) -> usize {
        self.subtests.len() + self.left_out.sum() as usize
    }
}

/// Most subtests that a reason names.
const NAMED: usize = 20;

/// The reasons why one of the tree's own tests fails: it judges itself.
pub fn failures(who: &str, cell: &Cell) -> Vec<String> {
    let Some(Measurement::TestProgs(test) | Measurement::Kselftest(test)) = &cell.measurement
    else {
        return Vec::new();
    };
    if test.end != End::Fail {
        return Vec::new();
    }
    let failed = test.subtests.iter().filter(|subtest| subtest.end == End::Fail);
    let mut names: Vec<&str> = failed.map(|subtest| subtest.name.as_str()).collect();
    let more = names.len().saturating_sub(NAMED) + test.left_out.fail as usize;
    names.truncate(NAMED);
    let which = match (&names[..], more) {
        ([], 0) => format!("{who} says that it fails"),
        ([], _) => format!("{who} says that it fails, with {more} of its subtests"),
        (_, 0) => format!("{who} says that it fails, of its subtests {}", names.join(", ")),
        _ => format!(
            "{who} says that it fails, of its subtests {} and {more} more",
            names.join(", ")
        ),
    };
    std::iter::once(which).chain(test.failures.first().cloned()).collect()
}
