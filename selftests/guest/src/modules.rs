// SPDX-License-Identifier: MIT OR Apache-2.0
//! The modules whose functions the user names: the host packs them into the guest's root, and the
//! agent loads them before anything is measured.

use crate::bpf::{self, BpfError};
use crate::kernel_btf::Described;
use nix::errno::Errno;
use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::ffi::{CStr, CString};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};
use tramplab_protocol::message::GuestError;

/// The tag of functions that BPF programs may call.
const KFUNC: &CStr = c"bpf_kfunc";

/// The modules of this boot.
#[derive(Debug, Default)]
pub struct Modules {
    /// Those that the kernel refused to load.
    refused: HashMap<String, Errno>,
    /// Those whose BTF was read.
    read: RefCell<HashMap<String, ModuleBtf>>,
}

/// The functions in a module's BTF.
#[derive(Debug)]
struct ModuleBtf {
    /// The kernel's BTF object.
    object: OwnedFd,
    functions: Functions,
}

#[derive(Debug, Default)]
struct Functions {
    /// By name. None: several have it.
    ids: HashMap<String, Option<u32>>,
    /// Those that BPF programs may call.
    kfuncs: HashSet<u32>,
}

impl Modules {
    /// `loaded` has the files of the modules, with the kernel's refusals.
    pub fn new(loaded: Vec<(PathBuf, nix::Result<()>)>) -> Modules {
        let refused = |(path, result): (PathBuf, nix::Result<()>)| {
            result.err().map(|errno| (name_of(&path), errno))
        };
        Modules {
            refused: loaded.into_iter().filter_map(refused).collect(),
            read: RefCell::default(),
        }
    }

    /// Tells why a module's functions cannot be traced, if it is not loaded.
    pub fn require(&self, module: &str) -> Result<(), GuestError> {
        if let Some(errno) = self.refused.get(module) {
            let reason = format!("it refuses to load the module {module}: {errno}");
            return Err(GuestError::Unsupported(reason));
        }
        match Path::new("/sys/module").join(module).join("initstate").exists() {
            true => Ok(()),
            false => {
                let reason = format!("the module {module} is not loaded in this guest");
                Err(GuestError::Unsupported(reason))
            }
        }
    }

    /// Tells why programs that attach by BTF cannot trace a module's functions, if they cannot.
    pub fn require_btf(&self, module: &str) -> Result<(), GuestError> {
        if !self.read.borrow().contains_key(module) {
            self.require(module)?;
            let btf = ModuleBtf::read(module)?;
            self.read.borrow_mut().insert(module.to_owned(), btf);
        }
        Ok(())
    }

    /// The descriptor of a module's BTF and the id of a function in it, for tracing programs.
    pub fn function(&self, module: &str, name: &str) -> Result<Option<(RawFd, u32)>, GuestError> {
        self.require_btf(module)?;
        let read = self.read.borrow();
        let ModuleBtf { object, functions } = &read[module];
        let id = functions.ids.get(name).copied().flatten();
        Ok(id.map(|id| (object.as_raw_fd(), id)))
    }

    /// The entry of a name in a module's BTF. A module without BTF describes nothing.
    pub fn described(&self, module: &str, name: &str) -> Described {
        if self.require_btf(module).is_err() {
            return Described::Absent;
        }
        let functions = &self.read.borrow()[module].functions;
        match functions.ids.get(name) {
            None => Described::Absent,
            Some(None) => Described::Several,
            Some(Some(id)) if functions.kfuncs.contains(id) => Described::Kfunc,
            Some(Some(_)) => Described::One,
        }
    }

    /// The same for one of many: no kfunc, and none of a module without BTF.
    pub fn one_of_many(
        &self,
        module: &str,
        name: &str,
    ) -> Result<Option<(RawFd, u32)>, GuestError> {
        match self.function(module, name) {
            Ok(found) => {
                let read = self.read.borrow();
                let kfuncs = &read[module].functions.kfuncs;
                Ok(found.filter(|(_, id)| !kfuncs.contains(id)))
            }
            Err(GuestError::Unsupported(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// `/wanted/03-kvm-amd.ko` is `kvm_amd`.
pub fn name_of(path: &Path) -> String {
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    let name = stem.split_once('-').map_or(&*stem, |(_, name)| name);
    name.replace('-', "_")
}

impl ModuleBtf {
    fn read(module: &str) -> Result<ModuleBtf, GuestError> {
        let object = bpf::btf_object(module).map_err(|error: BpfError| {
            GuestError::Unsupported(format!(
                "the module {module} has no BTF (requires the option DEBUG_INFO_BTF_MODULES, and a \
                 module of this very kernel): {error}"
            ))
        })?;
        let base = Btf::new("the kernel's BTF", || {
            // SAFETY: takes nothing.
            unsafe { libbpf_sys::btf__load_vmlinux_btf() }
        })?;
        let path = CString::new(format!("/sys/kernel/btf/{module}")).map_err(GuestError::failed)?;
        let split = Btf::new("a module's BTF", || {
            // SAFETY: path and base outlive the call, and the base outlives the result.
            unsafe { libbpf_sys::btf__parse_split(path.as_ptr(), base.0) }
        })?;
        Ok(ModuleBtf { object, functions: split.functions(base.types()) })
    }
}

/// libbpf's handle of a BTF.
struct Btf(*mut libbpf_sys::btf);

impl Btf {
    fn new(what: &str, open: impl FnOnce() -> *mut libbpf_sys::btf) -> Result<Btf, GuestError> {
        let handle = open();
        match handle.is_null() {
            false => Ok(Btf(handle)),
            true => {
                let error = std::io::Error::last_os_error();
                Err(GuestError::Failed(format!("failed to read {what}: {error}")))
            }
        }
    }

    /// Types, those of its base included. Ids end before this number.
    fn types(&self) -> u32 {
        // SAFETY: the handle is valid.
        unsafe { libbpf_sys::btf__type_cnt(self.0) }
    }

    /// The functions with ids from `first` on.
    fn functions(&self, first: u32) -> Functions {
        let mut found = Functions::default();
        for id in first..self.types() {
            // SAFETY: the handle is valid, and so is the id.
            let Some(entry) = (unsafe { libbpf_sys::btf__type_by_id(self.0, id).as_ref() }) else {
                continue;
            };
            // SAFETY: libbpf has checked the offset. The text lives as long as the handle.
            let name =
                unsafe { CStr::from_ptr(libbpf_sys::btf__name_by_offset(self.0, entry.name_off)) };
            match entry.info >> 24 & 0x1f {
                libbpf_sys::BTF_KIND_FUNC => {
                    let name = name.to_string_lossy().into_owned();
                    found.ids.entry(name).and_modify(|id| *id = None).or_insert(Some(id));
                }
                libbpf_sys::BTF_KIND_DECL_TAG if name == KFUNC => {
                    // SAFETY: this kind has the id of the tagged type.
                    found.kfuncs.insert(unsafe { entry.__bindgen_anon_1.type_ });
                }
                _ => {}
            }
        }
        found
    }
}

impl Drop for Btf {
    fn drop(&mut self) {
        // SAFETY: freed once.
        unsafe { libbpf_sys::btf__free(self.0) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// BTF of a module, as pahole writes it: on top of the kernel's.
    #[test]
    fn reads_the_functions_of_a_split_btf() {
        let add = |btf: &Btf, name: &CStr| -> u32 {
            // SAFETY: the handle is valid; libbpf copies the name.
            unsafe {
                let prototype = libbpf_sys::btf__add_func_proto(btf.0, 0);
                libbpf_sys::btf__add_func(
                    btf.0,
                    name.as_ptr(),
                    libbpf_sys::BTF_FUNC_STATIC,
                    prototype,
                ) as u32
            }
        };
        // SAFETY: takes nothing.
        let base = Btf::new("base", || unsafe { libbpf_sys::btf__new_empty() }).unwrap();
        add(&base, c"vfs_read");
        // SAFETY: the base outlives the split one.
        let split =
            Btf::new("split", || unsafe { libbpf_sys::btf__new_empty_split(base.0) }).unwrap();
        let own = add(&split, c"xfs_fs_free");
        add(&split, c"twin");
        add(&split, c"twin");
        let kfunc = add(&split, c"bpf_xfs_kfunc");
        // SAFETY: the handle is valid; libbpf copies the name.
        let tag =
            unsafe { libbpf_sys::btf__add_decl_tag(split.0, KFUNC.as_ptr(), kfunc as i32, -1) };
        assert!(tag > 0);
        let functions = split.functions(base.types());
        assert_eq!(functions.ids.len(), 3, "{functions:?}");
        let ids = [("xfs_fs_free", Some(own)), ("twin", None), ("bpf_xfs_kfunc", Some(kfunc))];
        for (name, id) in ids {
            assert_eq!(functions.ids[name], id, "{name}");
        }
        assert_eq!(functions.kfuncs, HashSet::from([kfunc]));
    }

    #[test]
    fn tells_why_a_module_is_not_there() {
        let refused = Err(Errno::EOPNOTSUPP);
        let loaded =
            vec![("/wanted/00-kvm.ko".into(), Ok(())), ("/wanted/01-kvm-amd.ko".into(), refused)];
        let modules = Modules::new(loaded);
        let reason = |module| match modules.require(module) {
            Err(GuestError::Unsupported(reason)) => reason,
            other => panic!("{other:?}"),
        };
        assert!(reason("kvm_amd").contains("refuses to load the module kvm_amd: EOPNOTSUPP"));
        assert!(reason("no_such_module").contains("is not loaded"));
    }
}
