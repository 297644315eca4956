// SPDX-License-Identifier: MIT OR Apache-2.0
//! The loadable modules of a kernel: finds modules by name, with all that they depend on.

use super::{KernelError, io_error};
use object::{Object, ObjectSection};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, File},
    io::{self, BufReader, Read},
    path::{Path, PathBuf},
};
use tramplab_archive::{Compression, Streams};
use walkdir::WalkDir;

/// Bytes of an uncompressed module. The largest of Debian (amdgpu) has about 30 MB.
const LARGEST: u64 = 256 << 20;
/// Bytes of all modules of a guest, which has to hold them in its memory.
const MOST: usize = 512 << 20;
/// Modules that depend on each other, one behind the other. Debian's have up to ten.
const DEEPEST: usize = 100;
/// Modules that a guest needs to talk to the host.
const GUEST: [&str; 2] = ["virtio_pci", "virtio_console"];
/// A file that kbuild writes beside the modules: paths of those that are built in.
pub(super) const BUILT_IN: &str = "modules.builtin";

/// A module and the name by which the kernel knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Module {
    pub name: String,
    /// Uncompressed.
    pub bytes: Vec<u8>,
}

/// Why a module cannot be loaded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoModule {
    #[error("the kernel has the module {0} built in: name its functions without `{0}:`")]
    BuiltIn(String),
    #[error("the kernel has no module {0}")]
    Absent(String),
    #[error("the kernel has no module {needed}, which {by} depends on")]
    Needed { needed: String, by: String },
    #[error("the module {0} depends on more modules, one behind the other, than any of Linux")]
    TooDeep(String),
    #[error("{0} and the modules that it depends on are larger than a guest's memory")]
    TooLarge(String),
}

/// All modules of a kernel.
#[derive(Debug)]
pub struct Modules {
    /// By the kernel's name.
    files: BTreeMap<String, PathBuf>,
    built_in: BTreeSet<String>,
}

/// The name by which the kernel knows a module's file: `kvm-amd.ko.xz` is `kvm_amd`. None for
/// another file.
pub(super) fn name_of(path: &Path) -> Option<String> {
    let file = path.file_name()?.to_str()?;
    let (name, packed) = file.split_once(".ko")?;
    matches!(packed, "" | ".xz" | ".zst" | ".gz").then(|| name.replace('-', "_"))
}

/// The modules that were written for a guest, in load order.
pub(super) fn written_for_guest(folder: &Path) -> Result<Vec<PathBuf>, KernelError> {
    let entries = fs::read_dir(folder).map_err(io_error("list", folder))?;
    let paths = entries.map(|entry| Ok(entry?.path()));
    let mut paths = paths.collect::<io::Result<Vec<_>>>().map_err(io_error("list", folder))?;
    paths.retain(|path| name_of(path).is_some());
    paths.sort();
    Ok(paths)
}

impl Modules {
    /// Finds the modules in a folder.
    pub(super) fn of(folder: &Path) -> Result<Modules, KernelError> {
        Modules::of_all(&[folder])
    }

    /// Finds the modules in several folders.
    pub(super) fn of_all(folders: &[impl AsRef<Path>]) -> Result<Modules, KernelError> {
        let (mut files, mut built_in) = (BTreeMap::new(), BTreeSet::new());
        for folder in folders.iter().map(AsRef::as_ref) {
            for entry in WalkDir::new(folder).sort_by_file_name() {
                let entry = entry.map_err(|error| io_error("list", folder)(error.into()))?;
                if let Some(name) = name_of(entry.path()).filter(|_| entry.file_type().is_file()) {
                    files.insert(name, entry.into_path());
                }
            }
            let path = folder.join(BUILT_IN);
            match fs::read_to_string(&path) {
                Ok(text) => {
                    built_in.extend(text.lines().filter_map(|line| name_of(Path::new(line))));
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(io_error("read", &path)(error)),
            }
        }
        Ok(Modules { files, built_in })
    }

    /// True if a module that a guest needs to talk to the host is there.
    pub(super) fn has_for_guest(&self) -> bool {
        GUEST.iter().any(|name| self.files.contains_key(*name))
    }

    /// Writes the modules that a guest needs to talk to the host, and those that they depend on.
    /// Those that are built in need no module. Returns the files' names in load order, which is
    /// also their alphabetical order.
    pub(super) fn write_for_guest(&self, folder: &Path) -> Result<Vec<String>, KernelError> {
        let mut order = Order { all: self, begun: BTreeMap::new(), modules: Vec::new(), bytes: 0 };
        for name in GUEST {
            match order.add(name, None, 0)? {
                Ok(()) | Err(NoModule::BuiltIn(_) | NoModule::Absent(_)) => {}
                Err(why) => return Err(KernelError::GuestModule(why)),
            }
        }
        let mut names = Vec::new();
        for (index, module) in order.modules.iter().enumerate() {
            let name = format!("{index:02}-{}.ko", module.name);
            let path = folder.join(&name);
            fs::write(&path, &module.bytes).map_err(io_error("write", &path))?;
            names.push(name);
        }
        Ok(names)
    }

    /// The modules of these names and those that they depend on, in load order.
    pub fn with_dependencies(
        &self,
        names: &BTreeSet<String>,
    ) -> Result<Result<Vec<Module>, NoModule>, KernelError> {
        let mut order = Order { all: self, begun: BTreeMap::new(), modules: Vec::new(), bytes: 0 };
        for name in names {
            if let Err(why) = order.add(name, None, 0)? {
                return Ok(Err(why));
            }
        }
        Ok(Ok(order.modules))
    }
}

/// Modules in load order, as far as they are known.
struct Order<'a> {
    all: &'a Modules,
    /// Those that were asked for, and why some of them cannot be loaded.
    begun: BTreeMap<String, Result<(), NoModule>>,
    modules: Vec<Module>,
    /// The size of all modules.
    bytes: usize,
}

impl Order<'_> {
    fn add(
        &mut self,
        name: &str,
        by: Option<&str>,
        depth: usize,
    ) -> Result<Result<(), NoModule>, KernelError> {
        match self.begun.get(name) {
            Some(Ok(())) => return Ok(Ok(())),
            // Another module may need what one only wished for: a module that exists is read once.
            Some(Err(known)) if self.all.files.contains_key(name) => return Ok(Err(known.clone())),
            _ => {}
        }
        // Modules that depend on each other are loaded as far as they can be.
        self.begun.insert(name.to_owned(), Ok(()));
        let added = self.add_new(name, by, depth)?;
        self.begun.insert(name.to_owned(), added.clone());
        Ok(added)
    }

    fn add_new(
        &mut self,
        name: &str,
        by: Option<&str>,
        depth: usize,
    ) -> Result<Result<(), NoModule>, KernelError> {
        if depth > DEEPEST {
            return Ok(Err(NoModule::TooDeep(name.to_owned())));
        }
        if self.all.built_in.contains(name) {
            // A module's dependencies may be built in.
            return Ok(by.map(|_| ()).ok_or_else(|| NoModule::BuiltIn(name.to_owned())));
        }
        let Some(path) = self.all.files.get(name) else {
            let needed = name.to_owned();
            return Ok(Err(match by {
                None => NoModule::Absent(needed),
                Some(by) => NoModule::Needed { needed, by: by.to_owned() },
            }));
        };
        let bytes = uncompressed(path)?;
        self.bytes += bytes.len();
        if self.bytes > MOST {
            self.bytes -= bytes.len();
            return Ok(Err(NoModule::TooLarge(name.to_owned())));
        }
        let Needs { modules, wished } = Needs::of(&bytes).map_err(io_error("read", path))?;
        for needed in modules {
            if let Err(why) = self.add(&needed, Some(name), depth + 1)? {
                return Ok(Err(why));
            }
        }
        for wished in &wished {
            // It works without those that do not exist.
            let _ = self.add(wished, Some(name), depth + 1)?;
        }
        self.modules.push(Module { name: name.to_owned(), bytes });
        Ok(Ok(()))
    }
}

/// A module's statements about others (section `.modinfo`).
#[derive(Debug, Default, PartialEq, Eq)]
struct Needs {
    modules: Vec<String>,
    /// To load before it, if they exist.
    wished: Vec<String>,
}

impl Needs {
    fn of(module: &[u8]) -> io::Result<Needs> {
        let bad = |error: object::Error| io::Error::other(format!("it is no module: {error}"));
        let file = object::File::parse(module).map_err(bad)?;
        let section = file.section_by_name(".modinfo");
        let section = section.ok_or_else(|| io::Error::other("it is no module: no .modinfo"))?;
        Ok(Needs::read(&section.uncompressed_data().map_err(bad)?))
    }

    fn read(modinfo: &[u8]) -> Needs {
        let mut needs = Needs::default();
        for field in modinfo.split(|&byte| byte == 0) {
            let field = String::from_utf8_lossy(field);
            let names = |text: &str, by: char| -> Vec<String> {
                text.split(by)
                    .filter(|name| !name.is_empty())
                    .map(|name| name.replace('-', "_"))
                    .collect()
            };
            if let Some(text) = field.strip_prefix("depends=") {
                needs.modules.extend(names(text, ','));
            } else if let Some(text) = field.strip_prefix("softdep=") {
                // `pre: a b post: c`.
                let before = text.split_once("pre:").map_or("", |(_, before)| before);
                let before = before.split_once("post:").map_or(before, |(before, _)| before);
                needs.wished.extend(names(before, ' '));
            }
        }
        needs
    }
}

fn uncompressed(path: &Path) -> Result<Vec<u8>, KernelError> {
    uncompressed_up_to(LARGEST, path).map_err(io_error("read", path))
}

fn uncompressed_up_to(most: u64, path: &Path) -> io::Result<Vec<u8>> {
    let file = BufReader::new(File::open(path)?);
    let compression = match path.extension().and_then(|extension| extension.to_str()) {
        Some("xz") => Some(Compression::Xz),
        Some("zst") => Some(Compression::Zstd),
        Some("gz") => Some(Compression::Gzip),
        _ => None,
    };
    let from: Box<dyn Read> = match compression {
        Some(compression) => compression.decoder(file, Streams::All)?,
        None => Box::new(file),
    };
    let mut bytes = Vec::new();
    from.take(most + 1).read_to_end(&mut bytes)?;
    match bytes.len() as u64 > most {
        false => Ok(bytes),
        true => Err(io::Error::other("it is larger than any module")),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use std::io::Write;

    /// The smallest ELF file with this `.modinfo`.
    pub fn module(modinfo: &str) -> Vec<u8> {
        const NAMES: &[u8] = b"\0.modinfo\0.shstrtab\0";
        let (header, section) = (64usize, 64usize);
        let (info_at, names_at) = (header, header + modinfo.len());
        let table = (names_at + NAMES.len()).next_multiple_of(8);
        let mut elf = vec![0u8; table + 3 * section];
        let mut put = |at: usize, bytes: &[u8]| elf[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, b"\x7fELF\x02\x01\x01");
        // ET_REL, EM_X86_64, EV_CURRENT.
        put(16, &[1, 0, 62, 0, 1, 0, 0, 0]);
        put(40, &(table as u64).to_le_bytes());
        // Sizes of the header, of program headers and of section headers.
        for (at, value) in [(52, 64u16), (58, 64), (60, 3), (62, 2)] {
            put(at, &value.to_le_bytes());
        }
        put(info_at, modinfo.as_bytes());
        put(names_at, NAMES);
        // Name, SHT_PROGBITS or SHT_STRTAB, place, size.
        for (index, name, kind, at, size) in
            [(1, 1u32, 1u32, info_at, modinfo.len()), (2, 10, 3, names_at, NAMES.len())]
        {
            let entry = table + index * section;
            put(entry, &name.to_le_bytes());
            put(entry + 4, &kind.to_le_bytes());
            put(entry + 24, &(at as u64).to_le_bytes());
            put(entry + 32, &(size as u64).to_le_bytes());
        }
        elf
    }

    fn names(modules: &[Module]) -> Vec<&str> {
        modules.iter().map(|module| &*module.name).collect()
    }

    #[test]
    fn orders_modules_behind_those_that_they_need() {
        let folder = tempfile::tempdir().unwrap();
        let write = |path: &str, modinfo: &str| {
            let path = folder.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, module(modinfo)).unwrap();
            path
        };
        write(
            "kernel/fs/xfs/xfs.ko",
            "license=GPL\0depends=exportfs,lib-crc\0softdep=pre: crc32c none zfs\0",
        );
        write("kernel/fs/exportfs.ko", "depends=\0");
        write("kernel/crypto/crc32c.ko", "depends=lib_crc\0softdep=post: other\0");
        let lib_crc = write("kernel/lib/lib-crc.ko", "name=lib_crc\0depends=printk\0");
        fs::write(lib_crc.with_extension("ko.xz"), xz(&fs::read(&lib_crc).unwrap())).unwrap();
        fs::remove_file(lib_crc).unwrap();
        write("kernel/broken.ko", "depends=gone\0");
        write("kernel/zfs.ko", "depends=gone\0");
        write("kernel/circle-a.ko", "depends=circle_b\0");
        write("kernel/circle-b.ko", "depends=circle_a\0");
        fs::write(folder.path().join("kernel/bad.ko"), "no ELF").unwrap();
        write("kernel/wishes.ko", "softdep=pre: bad\0");
        for number in 0..300 {
            write(&format!("deep/m{number}.ko"), &format!("depends=m{}\0", number + 1));
        }
        // Of an earlier configuration.
        write("kernel/fs/ext4.ko", "depends=\0");
        fs::write(folder.path().join(BUILT_IN), "kernel/printk.ko\nkernel/fs/ext4/ext4.ko\n")
            .unwrap();
        let modules = Modules::of(folder.path()).unwrap();
        let with = |wanted: &[&str]| {
            let wanted = wanted.iter().map(|name| (*name).to_owned()).collect();
            modules.with_dependencies(&wanted)
        };
        let loaded = with(&["xfs"]).unwrap().unwrap();
        assert_eq!(names(&loaded), ["exportfs", "lib_crc", "crc32c", "xfs"]);
        assert!(loaded.iter().all(|module| module.bytes.starts_with(b"\x7fELF")));
        // Each once.
        let both = with(&["crc32c", "xfs"]).unwrap().unwrap();
        assert_eq!(names(&both), ["lib_crc", "crc32c", "exportfs", "xfs"]);
        assert_eq!(names(&with(&["circle_a"]).unwrap().unwrap()), ["circle_b", "circle_a"]);
        for (name, expected) in [
            ("ext4", NoModule::BuiltIn("ext4".to_owned())),
            ("no_such", NoModule::Absent("no_such".to_owned())),
            ("broken", NoModule::Needed { needed: "gone".to_owned(), by: "broken".to_owned() }),
        ] {
            assert_eq!(with(&[name]).unwrap().unwrap_err(), expected);
        }
        // Also after a module that only wished for it.
        assert!(with(&["xfs", "zfs"]).unwrap().is_err());
        assert!(matches!(with(&["m0"]), Ok(Err(NoModule::TooDeep(_)))));
        assert!(matches!(with(&["m290"]), Ok(Err(NoModule::Needed { .. }))));
        // One that exists and cannot be read is missing for no reason of the kernel's.
        for name in ["bad", "wishes"] {
            let error = with(&[name]).unwrap_err().to_string();
            assert!(error.contains("bad.ko") && error.contains("it is no module"), "{error}");
        }
    }

    fn xz(bytes: &[u8]) -> Vec<u8> {
        let options = lzma_rust2::XzOptions::with_preset(1);
        let mut writer = lzma_rust2::XzWriter::new(Vec::new(), options).unwrap();
        writer.write_all(bytes).unwrap();
        writer.finish().unwrap()
    }

    #[test]
    fn unpacks_modules_in_process_and_no_bombs() {
        const MOST: u64 = 1 << 20;
        let folder = tempfile::tempdir().unwrap();
        let gz = |bytes: &[u8]| {
            let mut encoder = flate2::write::GzEncoder::new(Vec::new(), Default::default());
            encoder.write_all(bytes).unwrap();
            encoder.finish().unwrap()
        };
        let zst = |bytes: &[u8]| zstd::encode_all(bytes, 1).unwrap();
        type Packer<'a> = &'a dyn Fn(&[u8]) -> Vec<u8>;
        let packers: [(&str, Packer); 4] =
            [("ko", &<[u8]>::to_vec), ("ko.gz", &gz), ("ko.xz", &xz), ("ko.zst", &zst)];
        for (ending, packed) in packers {
            let path = folder.path().join(format!("a.{ending}"));
            let unpacked = |bytes: &[u8]| {
                fs::write(&path, packed(bytes)).unwrap();
                uncompressed_up_to(MOST, &path).map_err(|error| error.to_string())
            };
            assert_eq!(unpacked(b"module"), Ok(b"module".to_vec()), "{ending}");
            assert_eq!(unpacked(&[0; MOST as usize]).map(|bytes| bytes.len()), Ok(MOST as usize));
            let bomb = unpacked(&vec![0; 64 << 20]).unwrap_err();
            assert_eq!(bomb, "it is larger than any module", "{ending}");
            if ending != "ko" {
                fs::write(&path, b"module").unwrap();
                assert!(uncompressed_up_to(MOST, &path).is_err(), "{ending}");
            }
        }
    }

    #[test]
    fn finds_the_kernels_name_of_a_file() {
        for (file, name) in [
            ("a/kvm-amd.ko.xz", Some("kvm_amd")),
            ("xfs.ko", Some("xfs")),
            ("xfs.ko.zst", Some("xfs")),
            ("xfs.ko.cmd", None),
            ("xfs.kobject", None),
            ("modules.order", None),
        ] {
            assert_eq!(name_of(Path::new(file)).as_deref(), name, "{file}");
        }
    }
}
