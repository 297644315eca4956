// SPDX-License-Identifier: MIT OR Apache-2.0
//! tramplab, the host side: from a suite and kernels to measurements and reports.
//!
//! Data flows one way: [`kernel`] manifest → image → [`vm`] → cell ([`suite`]) → [`run`] (JSON, the one source of
//! truth) → [`report`]. What a number means stands in `docs/definitions.md`.

pub mod bisect;
pub mod branch;
pub mod compare;
pub mod config;
pub mod history;
pub mod host;
pub mod kernel;
pub mod profile;
pub mod report;
pub mod run;
pub mod selftests;
pub mod series;
pub mod spread;
pub mod suite;
pub mod text;
pub mod vm;
