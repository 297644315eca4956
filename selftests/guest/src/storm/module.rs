// SPDX-License-Identifier: MIT OR Apache-2.0
//! The module that a storm loads and unloads.

use crate::changes;
use std::ffi::{CStr, CString};
use std::fs::{self, File};
use std::path::PathBuf;
use tramplab_protocol::message::{GuestError, WANTED_MODULES};

pub struct Module {
    pub name: String,
    c_name: CString,
    file: PathBuf,
}

impl Module {
    /// A module whose file the host packed into the root. It is loaded.
    pub fn find(name: &str) -> Result<Module, GuestError> {
        let entries = fs::read_dir(WANTED_MODULES).map_err(GuestError::failed)?;
        let found = entries
            .flatten()
            .map(|entry| entry.path())
            .find(|path| crate::modules::name_of(path) == name);
        let file = found
            .ok_or_else(|| GuestError::Failed(format!("the guest's root has no module {name}")))?;
        let c_name = CString::new(name).map_err(GuestError::failed)?;
        Ok(Module { name: name.to_owned(), c_name, file })
    }

    /// Returns false if it was loaded before.
    pub fn load(&self) -> nix::Result<bool> {
        let file = File::open(&self.file).map_err(|_| nix::errno::Errno::ENOENT)?;
        match changes::load_module(&file) {
            Ok(()) => Ok(true),
            Err(nix::errno::Errno::EEXIST | nix::errno::Errno::EBUSY) => Ok(false),
            Err(errno) => Err(errno),
        }
    }

    /// Returns false if it is in use, or not loaded.
    pub fn unload(&self) -> bool {
        changes::remove_module(&self.c_name).is_ok()
    }

    pub fn c_name(&self) -> &CStr {
        &self.c_name
    }
}
