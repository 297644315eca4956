// SPDX-License-Identifier: MIT OR Apache-2.0
//! Mechanisms of user space: the tests and targets that they fit.

use super::{misfit, tests::suite};
use tramplab_protocol::Mechanism;

/// `all` keeps its meaning, so that no shipped suite grows.
#[test]
fn names_user_space_mechanisms_by_a_word_of_their_own() {
    let tests = |mechanisms: &str, more: &str| {
        let suite = suite(&format!("tests:\n  - trigger: {{ mechanisms: {mechanisms}{more} }}\n"));
        assert_eq!(misfit(&suite), None, "{mechanisms}{more}");
        suite.work(false).map(|work| work.test().name()).collect::<Vec<_>>()
    };
    assert_eq!(tests("all", "").len(), Mechanism::KERNEL.len());
    let user = Mechanism::USER.map(|mechanism| format!("trigger/{mechanism}"));
    assert_eq!(tests("user", ""), user);
    // Functions of user space are for these mechanisms, all others for those of the kernel.
    assert_eq!(
        tests("[fentry, uprobe, usdt]", ", targets: [vfs_read, user_nop]"),
        ["trigger/fentry@vfs_read", "trigger/uprobe@user_nop", "trigger/usdt@user_nop"]
    );
}

#[test]
fn rejects_user_space_mechanisms_where_only_the_kernels_fit() {
    for (tests, words) in [
        ("lbr_waste: { mechanisms: [fexit, uprobe] }", "uprobe attaches to user-space code"),
        ("trigger: { mechanisms: user, targets: [vfs_read] }", "such as vfs_read"),
        ("trigger: { mechanisms: all, targets: [user_nop] }", "such as user_nop"),
        ("trigger: { mechanisms: user, targets: [user_nope] }", "have user_frame, user_nop, "),
        ("trigger: { mechanisms: [uprobe], beside: [fentry] }", "fentry cannot be attached to"),
        ("trigger: { mechanisms: [uprobe], beside: [function_tracer] }", "function_tracer cannot"),
        (
            "trigger: { mechanisms: user, targets: [user_nop], trigger: 'true' }",
            "the agent calls user_nop itself",
        ),
        (
            "attach: { mechanisms: user, functions: [1], rounds: 1, targets: ['tcp_*'] }",
            "such as tcp_*",
        ),
    ] {
        let found = misfit(&suite(&format!("tests:\n  - {tests}\n")));
        assert!(found.as_ref().is_some_and(|found| found.contains(words)), "{tests}: {found:?}");
    }
}
