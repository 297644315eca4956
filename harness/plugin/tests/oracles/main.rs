// SPDX-License-Identifier: GPL-2.0-or-later
//! What the plugin records, against what is known from elsewhere.

mod bare_metal;
mod compare;
mod exec_log;
mod machine;
mod qemu_log;
