// SPDX-License-Identifier: MIT OR Apache-2.0
//! The program from outside, and real guests. One binary, so that tests of different files share the
//! processors: many wait for a guest. Apart are `faults/`, a table of its own, and `liar.rs`, which
//! looks at its own memory.

/// Makes a test of each architecture: `NAME::on_x86_64` and `NAME::on_arm64`. `full` is the reason
/// why both are slow tests; `ignored on arm64` makes only that one slow.
macro_rules! on_each_arch {
    ($check:ident) => {
        on_each_arch!($check, [] []);
    };
    ($check:ident, ignore = $why:literal) => {
        on_each_arch!($check, [#[ignore = $why]] [#[ignore = $why]]);
    };
    ($check:ident, ignored on arm64) => {
        on_each_arch!($check, [] [#[ignore = "full: the twin on x86-64 runs in every change"]]);
    };
    ($check:ident, [$(#[$x86_64:meta])*] [$(#[$arm64:meta])*]) => {
        mod $check {
            use tramplab_model::run::Arch;

            #[test]
            $(#[$x86_64])*
            fn on_x86_64() {
                super::$check(Arch::X86_64);
            }

            #[test]
            $(#[$arm64])*
            fn on_arm64() {
                super::$check(Arch::Arm64);
            }
        }
    };
}

mod bisect;
mod browser;
mod cli;
mod command;
mod corpora;
mod counts;
mod cpus;
mod dependencies;
mod exec;
mod formats;
mod github;
mod guest;
mod hardware;
mod history;
mod hostile_build;
mod installed;
mod kernel_config;
mod kernel_debian;
mod kernel_packages;
mod kvm;
mod machine;
mod nested;
mod own_tests;
mod pip;
mod profile;
mod run;
mod schemas;
mod series;
mod shell;
mod slurm;
mod survive;
mod toolchains;
mod tree_tests;
mod virtme;
mod vm_replay;
