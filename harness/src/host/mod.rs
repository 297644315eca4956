// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the host has and what it lacks: the cache, Debian's registry without root, QEMU, and their check-up.

pub mod apt;
pub mod busybox;
pub mod cache;
pub mod child;
pub mod doctor;
pub mod fuzzer;
mod kvm;
pub mod lbr;
mod private;
pub mod prune;
pub mod qemu;
pub mod rust;
pub mod setup;
pub mod virtme;

pub use cache::{Cache, CacheError};
pub use child::ChildError;
pub use qemu::{Purpose, Qemu, QemuError};
pub use rust::Rustc;
pub use setup::{SetupError, Wanted, setup};
pub use virtme::{VirtmeError, VirtmeNg};
