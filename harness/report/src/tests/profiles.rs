// SPDX-License-Identifier: MIT OR Apache-2.0
//! The table of what changed between two profiles that can be added up by hand.

use crate::{markdown, terminal};
use tramplab_analysis::profile::{Names, Of, Profile, Subject, Tree, Unit, diff};

pub fn base() -> Profile {
    serde_json::from_str(include_str!("../testdata/profile-base.json")).expect("a profile")
}

fn head() -> Profile {
    serde_json::from_str(include_str!("../testdata/profile-head.json")).expect("a profile")
}

fn pair(unit: Unit) -> ([Subject; 2], Tree<2>) {
    let sides = [base(), head()].map(|side| Profile { unit, ..side });
    let mut tree = Tree::new(Names::Stable);
    (0..2).for_each(|side| tree.add(&sides[side], Of::Task, side));
    let mut subjects = sides.map(|side| Subject::new(&[side], Of::Task));
    subjects[1].cell = "x86_64/6.12+series/tcg/attach/fentry/100".to_owned();
    (subjects, tree)
}

#[test]
fn table_of_changes() {
    let ([base, head], tree) = pair(Unit::Instructions);
    let table = diff::table(&base, &head, &tree);
    insta::assert_snapshot!(format!("{}\n{}", terminal::table(&table), markdown::table(&table)));
}

/// 900 samples against 520: the base's are scaled, so that only changes of shares remain.
#[test]
fn table_of_changes_in_samples() {
    let ([base, head], tree) = pair(Unit::Samples);
    insta::assert_snapshot!(terminal::table(&diff::table(&base, &head, &tree)));
}
