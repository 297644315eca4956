// SPDX-License-Identifier: MIT OR Apache-2.0
//! The argument of `--kernel`: a manifest's name, or a kernel without a manifest.

use super::{
    KernelError, image,
    manifest::{
        self, Manifest, Place, Recipe, Source, Toolchain, Tree, Variation, check_reference,
        is_name, is_source_package, is_version, load_manifest, names, repository_of,
    },
    packages, running, source,
};
use std::{
    os::unix::fs::FileTypeExt,
    path::{Path, PathBuf},
};
use tramplab_model::{
    name::{is_commit_id, is_name_char},
    run::Arch,
};

/// Longer names make cell names that do not fit a line of a report.
const NAME_LENGTH: usize = 60;

/// Finds a kernel. `name` is one of: a name in `folder`, the path of a manifest, an image, a
/// package, a tarball or a source tree, `running`, `git:REPOSITORY#REF`, `debian-source:SERIES`.
/// A manifest of the name `running` comes before the running kernel. Returns a manifest for
/// each architecture the kernel exists for.
pub fn find(name: &str, folder: &Path) -> Result<Vec<Manifest>, KernelError> {
    let path = Path::new(name);
    if path.extension().is_some_and(|extension| extension == "yaml") {
        return load_manifest(path);
    }
    let file = folder.join(format!("{name}.yaml"));
    if is_name(name) && file.is_file() {
        return load_manifest(&file);
    }
    if name == running::NAME {
        let manifest = running::installed().ok_or_else(|| KernelError::Argument {
            name: name.to_owned(),
            expected: "this machine is neither x86_64 nor arm64; name another kernel".to_owned(),
        })?;
        return Ok(vec![manifest]);
    }
    if let Some(place) = name.strip_prefix("git:") {
        return from_git(place);
    }
    if let Some(wanted) = name.strip_prefix("debian-source:") {
        return from_debian(wanted);
    }
    if name.starts_with("https://") || name.starts_with("http://") {
        let expected = "a URL needs its SHA-256: write a manifest with both (`url:`, `packages:` \
                        or `tarball:`), and name that file";
        return Err(KernelError::Argument { name: name.to_owned(), expected: expected.to_owned() });
    }
    if path.is_dir() {
        let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        source::check_tree(&path)?;
        let file = path.file_name().unwrap_or_default().to_string_lossy();
        return Ok(built(&file, Tree::Folder(path.clone())));
    }
    if path.is_file() && packages::is_package(path) {
        return Ok(vec![from_package(path)?]);
    }
    if path.is_file() {
        return match tarball_stem(path) {
            Some(stem) => {
                let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
                Ok(built(&stem, Tree::TarballFile(path)))
            }
            None => Ok(vec![from_image(path)?]),
        };
    }
    let other = match path.metadata() {
        Ok(facts) if facts.file_type().is_fifo() => Some("it is a FIFO"),
        Ok(_) => Some("it is a device or a socket"),
        Err(error) if error.raw_os_error() == Some(libc::ELOOP) => Some("its links lead in a loop"),
        Err(_) => None,
    };
    if let Some(what) = other {
        let expected = format!("{what}; expected a file or a folder of sources");
        return Err(KernelError::Argument { name: name.to_owned(), expected });
    }
    Err(KernelError::Unknown {
        name: name.to_owned(),
        folder: folder.to_owned(),
        known: names(folder),
    })
}

fn from_git(place: &str) -> Result<Vec<Manifest>, KernelError> {
    let error = |expected: &str| KernelError::Argument {
        name: format!("git:{place}"),
        expected: expected.to_owned(),
    };
    let (repository, reference) = place
        .rsplit_once('#')
        .ok_or_else(|| error("expected git:REPOSITORY#REF, such as git:../linux#v6.12"))?;
    check_reference(reference).map_err(error)?;
    let here = std::env::current_dir().unwrap_or_default();
    let repository = repository_of(repository, &here).map_err(|message| error(&message))?;
    let last = repository.trim_end_matches('/').rsplit('/').next().unwrap_or_default();
    let last = last.strip_suffix(".git").filter(|rest| !rest.is_empty()).unwrap_or(last);
    let short = if is_commit_id(reference) { &reference[..12] } else { reference };
    let name = format!("{last}-{short}");
    Ok(built(&name, Tree::Git { repository, reference: reference.to_owned() }))
}

fn from_debian(wanted: &str) -> Result<Vec<Manifest>, KernelError> {
    let (series, version) = match wanted.split_once('=') {
        Some((series, version)) => (series, Some(version)),
        None => (wanted, None),
    };
    let package = match series {
        "newest" => manifest::NEWEST_SOURCE.to_owned(),
        _ => format!("linux-source-{}", series.strip_prefix("linux-source-").unwrap_or(series)),
    };
    if !is_source_package(&package) || !version.is_none_or(is_version) {
        let expected = "expected debian-source:SERIES or debian-source:SERIES=VERSION, such as \
                        debian-source:6.12=6.12.107-1 or debian-source:newest";
        return Err(KernelError::Argument {
            name: format!("debian-source:{wanted}"),
            expected: expected.to_owned(),
        });
    }
    let name = format!("debian-source-{wanted}");
    let version = version.map(str::to_owned);
    Ok(built(&name, Tree::DebianSource { package, version, pin: None }))
}

/// Returns `linux-6.12` for `linux-6.12.tar.xz`.
fn tarball_stem(path: &Path) -> Option<String> {
    let file = path.file_name()?.to_str()?;
    let stem = source::TARBALLS.iter().find_map(|ending| file.strip_suffix(ending))?;
    Some(stem.to_owned())
}

/// A kernel built with the default toolchain and configuration.
fn built(name: &str, tree: Tree) -> Vec<Manifest> {
    let recipe = Recipe {
        tree,
        toolchain: Toolchain::default(),
        config: Vec::new(),
        variation: Variation::default(),
    };
    let manifest = |arch| Manifest {
        name: fit(name),
        arch,
        source: Source::Built(recipe.clone()),
        configuration: None,
    };
    Arch::ALL.map(manifest).to_vec()
}

/// Replaces characters that a cell's name cannot have.
pub(super) fn fit(name: &str) -> String {
    let name: String =
        name.chars().take(NAME_LENGTH).map(|c| if is_name_char(c) { c } else { '_' }).collect();
    if manifest::is_name(&name) { name } else { format!("kernel{name}") }
}

/// Makes up the manifest of an image file.
fn from_image(path: &Path) -> Result<Manifest, KernelError> {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let header =
        image::read(&path).map_err(|source| KernelError::Image { path: path.clone(), source })?;
    let file = path.file_name().unwrap_or_default().to_string_lossy();
    let name: String = header.release.unwrap_or_else(|| file.into_owned());
    let (config, vmlinux) = beside(&path);
    Ok(Manifest {
        name: fit(&name),
        arch: header.arch,
        source: Source::Path { image: path, vmlinux, config },
        configuration: None,
    })
}

/// Makes up the manifest of a package, as if it alone had the kernel.
fn from_package(path: &Path) -> Result<Manifest, KernelError> {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let (release, header) = packages::header(&path)?;
    Ok(Manifest {
        name: fit(&release),
        arch: header.arch,
        source: Source::Packages(vec![Place::File(path)]),
        configuration: None,
    })
}

/// Finds the configuration and vmlinux that belong to an image, in a build tree
/// (`arch/x86/boot/bzImage`) or in `/boot` (`vmlinuz-V`).
fn beside(image: &Path) -> (Option<PathBuf>, Option<PathBuf>) {
    let there = |path: PathBuf| path.is_file().then_some(path);
    let file = image.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    if let Some(release) = file.strip_prefix("vmlinuz-") {
        return (there(image.with_file_name(format!("config-{release}"))), None);
    }
    match image.ancestors().nth(4) {
        Some(tree) if image.parent().is_some_and(|folder| folder.ends_with("boot")) => {
            (there(tree.join(".config")), there(tree.join("vmlinux")))
        }
        _ => (None, None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn finds_kernels_by_name_manifest_and_image() {
        let folder = tempfile::tempdir().unwrap();
        let kernels = folder.path().join("kernels");
        fs::create_dir(&kernels).unwrap();
        let manifest = kernels.join("mine.yaml");
        fs::write(&manifest, "arch: x86_64\npath: {image: bzImage}\n").unwrap();
        fs::write(kernels.join("notes.txt"), "").unwrap();

        let by_name = find("mine", &kernels).unwrap();
        assert_eq!(find(manifest.to_str().unwrap(), Path::new("/no/such")).unwrap(), by_name);
        let [Manifest { source: Source::Path { image, .. }, .. }] = &by_name[..] else {
            panic!("{by_name:?}")
        };
        assert_eq!(*image, kernels.join("bzImage"));

        let error = find("other", &kernels).unwrap_err().to_string();
        let file = kernels.join("other.yaml");
        let expected = format!(
            "failed to find the kernel `other`: no {}, and no such file; known: mine",
            file.display()
        );
        assert_eq!(error, expected);
        let error = find("../mine", &kernels.join("sub")).unwrap_err().to_string();
        assert!(error.contains("known: none"), "{error}");

        // A build tree: the image, its configuration and vmlinux.
        let boot = folder.path().join("linux/arch/x86/boot");
        fs::create_dir_all(&boot).unwrap();
        for file in [".config", "vmlinux"] {
            fs::write(folder.path().join("linux").join(file), "").unwrap();
        }
        let mut head = vec![0; 2048];
        head[0x1f1] = 1;
        head[0x202..0x206].copy_from_slice(b"HdrS");
        head[0x20e..0x210].copy_from_slice(&0x100u16.to_le_bytes());
        head[0x300..0x30e].copy_from_slice(b"7.3.4-g1/dirty");
        let image = boot.join("bzImage");
        fs::write(&image, &head).unwrap();
        let only = |path: &Path| {
            let [found] = &find(path.to_str().unwrap(), &kernels).unwrap()[..] else {
                panic!("{path:?}")
            };
            found.clone()
        };
        let found = only(&image);
        assert_eq!((found.name.as_str(), found.arch), ("7.3.4-g1_dirty", Arch::X86_64));
        let tree = folder.path().join("linux");
        let (vmlinux, config) = (Some(tree.join("vmlinux")), Some(tree.join(".config")));
        assert_eq!(found.source, Source::Path { image, vmlinux, config });

        // As distributions install it, first without a configuration.
        let installed = folder.path().join("vmlinuz-7.3.4");
        fs::write(&installed, &head).unwrap();
        let found = only(&installed);
        assert_eq!(
            found.source,
            Source::Path { image: installed.clone(), vmlinux: None, config: None }
        );
        let config = folder.path().join("config-7.3.4");
        fs::write(&config, "").unwrap();
        let found = only(&installed);
        assert_eq!(
            found.source,
            Source::Path { image: installed, vmlinux: None, config: Some(config) }
        );

        let running = find("running", &kernels).unwrap();
        assert_eq!((running.len(), &running[0].source), (1, &Source::Installed));
        // A manifest of that name comes first.
        fs::copy(&manifest, kernels.join("running.yaml")).unwrap();
        let by_file = find("running", &kernels).unwrap();
        assert!(matches!(by_file[0].source, Source::Path { .. }), "{by_file:?}");

        let text = folder.path().join("text");
        fs::write(&text, "hello").unwrap();
        let error = find(text.to_str().unwrap(), &kernels).unwrap_err().to_string();
        assert!(error.contains("not a kernel image"), "{error}");

        let [fifo, device, circle] =
            ["fifo", "device", "circle"].map(|name| folder.path().join(name));
        nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
        std::os::unix::fs::symlink("/dev/zero", &device).unwrap();
        std::os::unix::fs::symlink("circle", &circle).unwrap();
        for (path, what) in [(&fifo, "a FIFO"), (&device, "a device"), (&circle, "in a loop")] {
            let error = find(path.to_str().unwrap(), &kernels).unwrap_err().to_string();
            assert!(error.contains(what) && error.contains("expected a file"), "{error}");
        }
        // A manifest may name it: nobody waits for a writer.
        assert!(image::read(&fifo).unwrap_err().to_string().contains("is a FIFO"));
    }

    #[test]
    fn finds_sources_without_manifest() {
        let folder = tempfile::tempdir().unwrap();
        let place = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
        let tree = |name: &str| {
            let found = find(name, Path::new("/no/such")).map_err(|error| error.to_string())?;
            assert_eq!(
                found.iter().map(|manifest| manifest.arch).collect::<Vec<_>>(),
                Arch::ALL,
                "{name}"
            );
            let Source::Built(recipe) = found[0].source.clone() else { panic!("{name}") };
            assert_eq!((recipe.toolchain, recipe.config), (Toolchain::default(), vec![]));
            Ok::<_, String>((found[0].name.clone(), recipe.tree))
        };
        fs::create_dir(place("linux")).unwrap();
        let error = tree(&place("linux")).unwrap_err();
        assert!(error.contains("no Kbuild"), "{error}");
        for (file, text) in [("Kbuild", ""), ("Kconfig", ""), ("Makefile", "VERSION = 6\n")] {
            fs::write(folder.path().join("linux").join(file), text).unwrap();
        }
        for ending in source::TARBALLS {
            let path = place(&format!("linux-6.12{ending}"));
            fs::write(&path, "").unwrap();
            assert_eq!(tree(&path), Ok(("linux-6.12".into(), Tree::TarballFile(path.into()))));
        }
        assert_eq!(
            tree(&place("linux")),
            Ok(("linux".into(), Tree::Folder(place("linux").into())))
        );

        let git = |repository: &str, reference: &str| Tree::Git {
            repository: repository.into(),
            reference: reference.into(),
        };
        let id = "0123456789abcdef0123456789abcdef01234567";
        let debian = |version: Option<&str>| Tree::DebianSource {
            package: "linux-source-6.12".into(),
            version: version.map(str::to_owned),
            pin: None,
        };
        let newest = Tree::DebianSource {
            package: manifest::NEWEST_SOURCE.into(),
            version: None,
            pin: None,
        };
        for (argument, name, expected) in [
            ("git:/src/linux#v6.12", "linux-v6.12", git("/src/linux", "v6.12")),
            (
                "git:/src/linux.git#bpf/next~1",
                "linux-bpf_next_1",
                git("/src/linux.git", "bpf/next~1"),
            ),
            (
                &format!("git:https://x/bpf.git/#{id}"),
                "bpf-0123456789ab",
                git("https://x/bpf.git/", id),
            ),
            ("debian-source:6.12", "debian-source-6.12", debian(None)),
            ("debian-source:newest", "debian-source-newest", newest),
            (
                "debian-source:6.12=6.12.107-1",
                "debian-source-6.12_6.12.107-1",
                debian(Some("6.12.107-1")),
            ),
        ] {
            assert_eq!(tree(argument), Ok((name.into(), expected)), "{argument}");
        }
        for (argument, words) in [
            ("git:/src/linux", "expected git:REPOSITORY#REF"),
            ("git:/src/linux#--all", "expected a branch, a tag or a commit"),
            ("git:ext::sh://x#v1", "a URL that starts with one of https://"),
            ("git:#v1", "expected a folder, or a URL"),
            ("https://x/a.rpm", "a URL needs its SHA-256: write a manifest"),
            ("debian-source:6", "expected debian-source:SERIES"),
            ("debian-source:6.12=", "expected debian-source:SERIES"),
        ] {
            let error = tree(argument).unwrap_err();
            let start = format!("failed to understand the kernel `{argument}`: ");
            assert!(error.starts_with(&start) && error.contains(words), "{error}");
        }
    }

    #[test]
    fn makes_names_fit_for_cells() {
        for (text, name) in
            [("a b/c", "a_b_c"), (".git", "kernel.git"), ("", "kernel"), ("6.12+x", "6.12+x")]
        {
            assert_eq!(fit(text), name);
        }
        assert_eq!(fit(&"x".repeat(200)).len(), NAME_LENGTH);
    }
}
