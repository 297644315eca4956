// SPDX-License-Identifier: GPL-2.0-or-later
//! Compares the plugin's records with independent sources.

mod bare_metal;
mod exec_log;
mod machine;
