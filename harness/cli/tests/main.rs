// SPDX-License-Identifier: MIT OR Apache-2.0
//! The program from outside, and real guests. One binary, so that tests of different files share the
//! processors: many wait for a guest. Apart are `faults/`, a table of its own, and `liar.rs`, which
//! looks at its own memory.

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
