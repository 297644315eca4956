// SPDX-License-Identifier: MIT OR Apache-2.0
//! Kernels in packages of any distribution. Several packages may have one kernel: Fedora's modules
//! are in kernel-modules-core, Ubuntu's in linux-modules-RELEASE.

use super::{
    KernelError, argument, download,
    image::{self, ImageError},
    installed, io_error,
    manifest::Place,
    modules::{BUILT_IN, Modules, name_of, written_for_guest},
};
use sha2::{Digest, Sha256};
use std::{
    ffi::OsStr,
    fs, io,
    path::{Path, PathBuf},
};
use tramplab_host::{cache::Cache, debian::ArchiveError, sha256};
use tramplab_model::name::hex;

const KIND: &str = "kernel-packages";
/// Bytes of the wanted files of one package. Debian's modules of 6.12 have 500 MB.
const MOST: u64 = 4 << 30;
/// Bytes of a package's images and configurations. Debian's arm64 Image has 38 MB.
const MOST_OF_IMAGES: u64 = 256 << 20;
/// Endings of packages; pacman's end in that of a compression.
const ENDINGS: [&str; 2] = [".deb", ".rpm"];
const PACMAN: &str = ".pkg.tar";

/// True for the name of a package's file.
pub fn is_package(file: &Path) -> bool {
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    ENDINGS.iter().any(|ending| name.ends_with(ending)) || name.contains(PACMAN)
}

/// A kernel's files in the cache.
pub struct Files {
    pub image: PathBuf,
    pub config: Option<PathBuf>,
    /// Those that a guest needs, in load order.
    pub guest: Vec<PathBuf>,
    pub modules: PathBuf,
    pub source: String,
}

pub fn fetch(
    packages: &[Place],
    cache: &Cache,
    progress: &mut dyn FnMut(&str),
) -> Result<Files, KernelError> {
    let mut digests = Vec::new();
    for package in packages {
        digests.push(match package {
            // A FIFO would be waited for.
            Place::File(path) if path.exists() && !path.is_file() => {
                return Err(KernelError::Argument {
                    name: path.display().to_string(),
                    expected: "a package is a regular file".to_owned(),
                });
            }
            Place::File(path) => sha256(path).map_err(io_error("read", path))?,
            Place::Url(download) => download.sha256.clone(),
        });
    }
    let key = match &digests[..] {
        [only] => only.clone(),
        _ => hex(&Sha256::digest(digests.concat())),
    };
    let names = packages.iter().map(name).collect::<Vec<_>>().join(" ");
    let entry = cache.entry(KIND, &key, |folder| fill(packages, folder, progress))?;
    let config = entry.join("config");
    Ok(Files {
        image: entry.join("vmlinuz"),
        config: config.is_file().then_some(config),
        guest: written_for_guest(&entry.join("guest"))?,
        modules: entry.join("modules"),
        source: format!("package {names}"),
    })
}

fn name(package: &Place) -> String {
    match package {
        Place::File(path) => path.file_name().unwrap_or_default().to_string_lossy().into_owned(),
        Place::Url(download) => download.url.clone(),
    }
}

/// The kernel's release and the header of its image.
pub fn header(package: &Path) -> Result<(String, image::Header), KernelError> {
    let folder = tempfile::tempdir().map_err(io_error("make", Path::new("a temporary folder")))?;
    let is_wanted = |path: &Path| is_wanted(path) && name_of(path).is_none();
    tramplab_archive::unpack(package, folder.path(), MOST_OF_IMAGES, is_wanted)?;
    installed::without_links(folder.path())?;
    let release = only_release(folder.path(), &package.display().to_string())?;
    require_one_image(folder.path(), &release, &package.display().to_string())?;
    let (_, header) = image(folder.path(), &release)
        .map_err(|source| KernelError::Image { path: package.into(), source })?;
    Ok((release, header))
}

/// Distributions have copies of an image, but no two images of one release.
fn require_one_image(unpacked: &Path, release: &str, packages: &str) -> Result<(), KernelError> {
    let mut known: Option<(String, String)> = None;
    for place in installed::images(release) {
        let path = unpacked.join(&place);
        if !path.is_file() {
            continue;
        }
        let digest = sha256(&path).map_err(io_error("read", &path))?;
        match &known {
            Some((one, other)) if *other != digest => {
                let (packages, one) = (packages.to_owned(), one.clone());
                return Err(KernelError::Several { packages, one, other: place });
            }
            _ => known = Some((place, digest)),
        }
    }
    Ok(())
}

/// Finds the image of a release. Its own text, if it has one, must say the same.
fn image(unpacked: &Path, release: &str) -> Result<(PathBuf, image::Header), ImageError> {
    let image = first(unpacked, &installed::images(release));
    let path = image.expect("a release has an image");
    let header = image::read(&path)?;
    match &header.release {
        Some(found) if found != release => {
            Err(ImageError::OtherRelease { found: found.clone(), expected: release.to_owned() })
        }
        _ => Ok((path, header)),
    }
}

/// Unpacks all packages into one folder and keeps the files of their kernel.
fn fill(
    packages: &[Place],
    folder: &Path,
    progress: &mut dyn FnMut(&str),
) -> Result<(), KernelError> {
    let unpacked = folder.join("unpacked");
    for package in packages {
        let fetched;
        let file = match package {
            Place::File(path) => path,
            Place::Url(download) => {
                progress(&format!("fetching {}", download.url));
                // Errors name the file.
                let last = download.url.rsplit('/').next().unwrap_or_default();
                fetched = folder.join(argument::fit(&format!("package-{last}")));
                download::fetch(download, &fetched)?;
                &fetched
            }
        };
        progress(&format!("unpacking {}", name(package)));
        tramplab_archive::unpack(file, &unpacked, MOST, is_wanted)?;
        if matches!(package, Place::Url(_)) {
            fs::remove_file(file).map_err(io_error("remove", file))?;
        }
    }
    tramplab_archive::check_links(&unpacked)?;
    let names = packages.iter().map(name).collect::<Vec<_>>().join(", ");
    for config in installed::without_links(&unpacked)? {
        progress(&format!("{names}: {} is a link to no file of the package", config.display()));
    }
    let release = only_release(&unpacked, &names)?;
    let mut of_modules = installed::releases_of_modules(&unpacked).into_iter();
    if let Some(other) = of_modules.find(|other| *other != release) {
        return Err(KernelError::Several { packages: names, one: release, other });
    }
    require_one_image(&unpacked, &release, &names)?;
    let (image, _) = image(&unpacked, &release)
        .map_err(|source| KernelError::Image { path: (&names).into(), source })?;
    let take = |from: Option<PathBuf>, to: &Path| {
        let Some(from) = from else { return Ok(()) };
        fs::rename(&from, to).map_err(io_error("move", &from))
    };
    take(Some(image), &folder.join("vmlinuz"))?;
    take(first(&unpacked, &installed::configs_of_packages(&release)), &folder.join("config"))?;
    let modules = folder.join("modules");
    make(&modules)?;
    let trees = installed::folders(&release);
    take(
        first(&unpacked, &trees.clone().map(|tree| format!("{tree}/{BUILT_IN}"))),
        &modules.join(BUILT_IN),
    )?;
    for (index, tree) in trees.iter().enumerate() {
        let tree = unpacked.join(tree);
        take(tree.is_dir().then_some(tree), &modules.join(index.to_string()))?;
    }
    let guest = folder.join("guest");
    make(&guest)?;
    let written = Modules::of(&modules)?.write_for_guest(&guest);
    written.map_err(|error| of_package(error, &names))?;
    fs::remove_dir_all(&unpacked).map_err(io_error("remove", &unpacked))
}

/// A damaged module is the package's fault. Its path is gone when the error is read.
fn of_package(error: KernelError, package: &str) -> KernelError {
    match error {
        KernelError::Io { path, source, .. } if source.raw_os_error().is_none() => {
            let file = path.file_name().unwrap_or_default().to_string_lossy();
            let why = io::Error::other(format!("{file}: {source}"));
            ArchiveError::Broken { package: package.to_owned(), why }.into()
        }
        error => error,
    }
}

fn make(folder: &Path) -> Result<(), KernelError> {
    fs::create_dir(folder).map_err(io_error("make", folder))
}

fn first(root: &Path, places: &[String]) -> Option<PathBuf> {
    places.iter().map(|place| root.join(place)).find(|path| path.is_file())
}

fn only_release(unpacked: &Path, packages: &str) -> Result<String, KernelError> {
    let mut releases = installed::releases(unpacked).into_iter();
    match (releases.next(), releases.next()) {
        (Some(only), None) => Ok(only),
        (None, _) => Err(KernelError::NoKernel { packages: packages.to_owned() }),
        (Some(one), Some(other)) => {
            Err(KernelError::Several { packages: packages.to_owned(), one, other })
        }
    }
}

/// Leaves out debug information, headers and scripts.
fn is_wanted(path: &Path) -> bool {
    let name = path.file_name().and_then(OsStr::to_str).unwrap_or_default();
    let begins = |names: &[&str]| names.iter().any(|start| name.starts_with(start));
    if path.starts_with("boot") {
        return begins(&["vmlinuz", "Image"]) || installed::is_config(path);
    }
    installed::MODULES.iter().any(|tree| path.starts_with(tree))
        && (begins(&["vmlinuz", "Image"])
            || installed::is_config(path)
            || name == BUILT_IN
            || name_of(path).is_some())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Image, Manifest, Source, image::tests::*, modules::tests::module};
    use std::io::Write;
    use tar::{EntryType, Header};
    use tramplab_model::run::Arch;

    type Entry<'a> = (&'a str, EntryType, &'a [u8]);

    /// A package of pacman. The other formats are tramplab-archive's matter.
    fn package(folder: &Path, name: &str, entries: &[Entry]) -> PathBuf {
        let mut tar = tar::Builder::new(Vec::new());
        for (path, kind, content) in entries {
            let mut header = Header::new_gnu();
            // `set_path` refuses what a hostile package has.
            header.as_gnu_mut().unwrap().name[..path.len()].copy_from_slice(path.as_bytes());
            let content = match kind {
                EntryType::Symlink => {
                    header.set_link_name(str::from_utf8(content).unwrap()).unwrap();
                    &b""[..]
                }
                _ => content,
            };
            header.set_entry_type(*kind);
            header.set_mode(0o644);
            header.set_size(content.len() as u64);
            header.set_cksum();
            tar.append(&header, content).unwrap();
        }
        let path = folder.join(name);
        let packed = zstd::encode_all(&*tar.into_inner().unwrap(), 1).unwrap();
        fs::File::create(&path).unwrap().write_all(&packed).unwrap();
        path
    }

    fn fetched(packages: &[PathBuf], arch: Arch, cache: &Path) -> Result<Image, KernelError> {
        fetched_and_told(packages, arch, cache, &mut |_| ())
    }

    fn fetched_and_told(
        packages: &[PathBuf],
        arch: Arch,
        cache: &Path,
        progress: &mut dyn FnMut(&str),
    ) -> Result<Image, KernelError> {
        let source = Source::Packages(packages.iter().cloned().map(Place::File).collect());
        let manifest = Manifest { name: "a".into(), arch, source, configuration: None };
        let cache = Cache::at(cache, true);
        crate::fetch(&manifest, &cache, progress)
    }

    #[test]
    fn takes_kernels_as_distributions_pack_them() {
        let x86 = bz_image_of("6.1-a");
        let mut arm = arm64();
        arm.resize(0x30000, 0);
        let (console, virtio) = (module("depends=virtio\0"), module("depends=\0"));
        let file = |path: &'static str, bytes: &[u8]| (path, bytes.to_vec());
        let config = b"CONFIG_BPF=y\n";
        for (name, arch, packages, has_config, guest) in [
            (
                "Arch",
                Arch::X86_64,
                vec![vec![
                    file(".PKGINFO", b"pkgname = linux\n"),
                    file("usr/lib/modules/6.1-a/kernel/drivers/char/virtio_console.ko", &console),
                    file("usr/lib/modules/6.1-a/kernel/drivers/virtio/virtio.ko", &virtio),
                    file("usr/lib/modules/6.1-a/modules.builtin", b"kernel/virtio_pci.ko\n"),
                    file("usr/lib/modules/6.1-a/vmlinuz", &x86),
                ]],
                false,
                vec!["00-virtio.ko", "01-virtio_console.ko"],
            ),
            (
                "Fedora",
                Arch::X86_64,
                vec![
                    vec![
                        file("lib/modules/6.1-a/vmlinuz", &x86),
                        file("lib/modules/6.1-a/config", config),
                        file("lib/modules/6.1-a/modules.builtin", b"kernel/virtio.ko\n"),
                    ],
                    vec![file("usr/lib/modules/6.1-a/kernel/virtio_console.ko", &console)],
                ],
                true,
                vec!["00-virtio_console.ko"],
            ),
            (
                "Ubuntu",
                Arch::X86_64,
                vec![
                    vec![file("boot/vmlinuz-6.1-a", &x86)],
                    vec![
                        file("boot/config-6.1-a", config),
                        file("lib/modules/6.1-a/kernel/fs/xfs.ko", &virtio),
                    ],
                ],
                true,
                vec![],
            ),
            (
                "openSUSE",
                Arch::Arm64,
                vec![vec![
                    file("usr/lib/modules/6.1-a/Image", &arm),
                    file("usr/lib/modules/6.1-a/config", config),
                ]],
                true,
                vec![],
            ),
        ] {
            let folder = tempfile::tempdir().unwrap();
            let mut paths = Vec::new();
            for (index, files) in packages.iter().enumerate() {
                let files: Vec<_> = files
                    .iter()
                    .map(|(path, bytes)| (*path, EntryType::Regular, &**bytes))
                    .collect();
                paths.push(package(folder.path(), &format!("{index}.pkg.tar.zst"), &files));
            }
            let image = fetched(&paths, arch, &folder.path().join("cache")).unwrap();
            assert_eq!(image.config.is_some(), has_config, "{name}");
            let names: Vec<_> =
                image.modules.iter().map(|path| path.file_name().unwrap().to_owned()).collect();
            assert_eq!(names, guest, "{name}");
            let modules = image.loadable(&Cache::at(folder.path(), true), &mut |_| ());
            let modules = modules.unwrap().unwrap();
            let has = modules.with_dependencies(&["xfs".to_owned()].into()).unwrap().is_ok();
            assert_eq!(has, name == "Ubuntu");
            let (release, header) = header(&paths[0]).unwrap();
            assert_eq!((release.as_str(), header.arch), ("6.1-a", arch), "{name}");
        }
    }

    #[test]
    fn rejects_packages_without_one_kernel_and_hostile_ones() {
        use EntryType as Is;
        let (image, console) = (bz_image_of("6.1-a"), module("depends=virtio\0"));
        let vmlinuz = ("boot/vmlinuz-6.1-a", Is::Regular, &*image);
        let mut arm = arm64();
        arm.resize(0x30000, 0);
        let folder = tempfile::tempdir().unwrap();
        for (entries, expected) in [
            (vec![("usr/share/doc/a", Is::Regular, &b"a"[..])], "failed to find a kernel in"),
            (
                vec![vmlinuz, ("boot/vmlinuz-6.1-b", Is::Regular, &*image)],
                "6.1-a and 6.1-b; name packages of one kernel",
            ),
            (
                vec![vmlinuz, ("lib/modules/6.1-a/vmlinuz", Is::Regular, b"another")],
                "boot/vmlinuz-6.1-a and lib/modules/6.1-a/vmlinuz; name packages",
            ),
            (vec![("boot/vmlinuz-6.1-a", Is::Regular, b"text")], "not a kernel image"),
            (
                vec![
                    vmlinuz,
                    ("lib/modules/6.1-a/kernel/virtio_console.ko", Is::Regular, &*console),
                ],
                "the kernel has no module virtio, which virtio_console depends on",
            ),
            (
                vec![vmlinuz, ("lib/modules/6.1-a/virtio_console.ko.xz", Is::Regular, b"text")],
                "failed to unpack a.pkg.tar.zst: virtio_console.ko.xz: ",
            ),
            (
                vec![vmlinuz, ("boot/config-6.1-a", Is::Regular, b"CONFIG_A=y\n\xff\n")],
                "package a.pkg.tar.zst: line 2 is no kernel configuration",
            ),
            (
                vec![vmlinuz, ("boot/config-6.1-a", Is::Symlink, b"../../config")],
                "leads out of its folder",
            ),
            (
                vec![("boot/vmlinuz-6.1-a", Is::Regular, &arm)],
                "failed to use package a.pkg.tar.zst as a kernel: it is a kernel for arm64; ",
            ),
            (vec![vmlinuz, ("boot/../../out", Is::Regular, b"a")], "leads out of its folder"),
            (vec![vmlinuz, ("/boot/config-a", Is::Regular, b"a")], "leads out of its folder"),
            (vec![("boot/vmlinuz-6.1-a", Is::Block, b"")], "neither a file, a folder nor a link"),
            // Its link is no file.
            (vec![("boot/vmlinuz-6.1-a", Is::Symlink, b"vmlinuz")], "NoKernel"),
            // kernel-core of one build and kernel-modules-core of another.
            (vec![vmlinuz, ("lib/modules/6.1-b/kernel/virtio.ko.xz", Is::Regular, b"")], "Several"),
            (
                vec![("usr/lib/modules/6.1-b/vmlinuz", Is::Regular, &*image)],
                "it is of 6.1-a; expected 6.1-b",
            ),
        ] {
            let path = package(folder.path(), "a.pkg.tar.zst", &entries);
            let cache = folder.path().join("cache");
            let error = fetched(&[path], Arch::X86_64, &cache).unwrap_err();
            let told = format!("{error}\n{error:?}");
            assert!(told.contains(expected), "{expected}: {told}");
            assert!(error.is_usage(), "{told}");
            assert!(!folder.path().join("out").exists() && !cache.join("out").exists());
        }
    }

    /// openSUSE's in /boot is a link.
    #[test]
    fn follows_links_to_configurations_inside_the_package() {
        use EntryType as Is;
        let image = bz_image_of("6.1-a");
        let vmlinuz = ("lib/modules/6.1-a/vmlinuz", Is::Regular, &*image);
        let config = ("boot/config-b", Is::Regular, &b"CONFIG_A=y\n"[..]);
        let absolute = ("boot/config-c", Is::Symlink, &b"/boot/config-b"[..]);
        for (name, link, value, said) in [
            ("a link", &b"config-b"[..], Some("y"), ""),
            ("a link to a link", b"config-c", Some("y"), ""),
            ("a link to a file left out", b"../usr/config", None, "boot/config-6.1-a is a link to"),
            ("a link to itself", b"config-6.1-a", None, "no configuration of package "),
            ("a link to a folder", b"../lib", None, "boot/config-6.1-a is a link to no file"),
        ] {
            let folder = tempfile::tempdir().unwrap();
            let entries = [vmlinuz, config, absolute, ("boot/config-6.1-a", Is::Symlink, link)];
            let path = package(folder.path(), "a.pkg.tar.zst", &entries);
            let mut steps = String::new();
            let image = fetched_and_told(&[path], Arch::X86_64, folder.path(), &mut |step| {
                steps.push_str(step);
            })
            .unwrap();
            let found = image.config.as_ref().map(|config| config.get("A").unwrap());
            assert_eq!(found, value, "{name}: {steps}");
            assert!(steps.contains(said), "{name}: {steps}");
        }
    }

    /// The modules are not unpacked to find the kernel's name.
    #[test]
    fn reads_the_header_of_no_bomb() {
        use EntryType as Is;
        let (image, bomb) = (bz_image_of("6.1-a"), vec![0; (256 << 20) + 1]);
        let folder = tempfile::tempdir().unwrap();
        for (path, is_fine) in
            [("boot/config-6.1-a", false), ("lib/modules/6.1-a/kernel/a.ko", true)]
        {
            let entries =
                [("boot/vmlinuz-6.1-a", Is::Regular, &*image), (path, Is::Regular, &*bomb)];
            let found = header(&package(folder.path(), "a.pkg.tar.zst", &entries));
            assert_eq!(found.is_ok(), is_fine, "{found:?}");
        }
    }

    /// Nobody writes to the FIFO.
    #[test]
    fn waits_for_no_fifo() {
        let folder = tempfile::tempdir().unwrap();
        let fifo = folder.path().join("a.rpm");
        nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
        let error = fetched(&[fifo], Arch::X86_64, &folder.path().join("cache")).unwrap_err();
        assert!(matches!(error, KernelError::Argument { .. }), "{error}");
    }

    #[test]
    fn knows_packages_by_their_names() {
        for (name, expected) in [
            ("kernel-core-6.1.rpm", true),
            ("linux-image-6.1_amd64.deb", true),
            ("linux-6.1.arch1-1-x86_64.pkg.tar.zst", true),
            ("linux-6.1.tar.zst", false),
            ("vmlinuz", false),
        ] {
            assert_eq!(is_package(Path::new(name)), expected, "{name}");
        }
    }
}
