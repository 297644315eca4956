// SPDX-License-Identifier: MIT OR Apache-2.0
//! `cargo xtask package`: a Debian package, a tarball and a Python wheel of the program, for
//! machines without Rust.
//!
//! ```text
//! bin/tramplab               static: needs no library of the machine
//! lib/tramplab/              the plugin, and the agents of both architectures
//! share/tramplab/            configs/ and kernels/, as in the repository
//! share/man, share/bash-completion, …
//! ```

use super::{complete, exit, link, progress::Progress};
use clap::Command;
use clap_complete::env::Shells;
use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};
use tramplab_host::{Cache, rust::target, sha256};
use tramplab_lab::{
    artifacts,
    error::{Context, Error, Result},
    place::{self, place},
};
use tramplab_model::run::Arch;
use xshell::{Shell, cmd};

const NAME: &str = "tramplab";
const VERSION: &str = env!("CARGO_PKG_VERSION");
/// The folder of the packages and of what they are made from.
const FOLDER: &str = "target/package";
/// The system's: another Python in PATH lacks Debian's python3-wheel.
const PYTHON: &str = "/usr/bin/python3";
const SUMMARY: &str = "measure what BPF tracing costs a Linux kernel";
/// Checks signatures in process: an installed program needs no gpgv.
const FEATURES: &str = "openpgp";
/// Static, at a fixed address as `build.rs` asks.
const RUSTFLAGS: &str = "-C\u{1f}target-feature=+crt-static\u{1f}-C\u{1f}relocation-model=static";
/// Shells, with the places of their completions in a package.
const COMPLETIONS: [(&str, &str); 3] = [
    ("bash", "share/bash-completion/completions/tramplab"),
    ("zsh", "share/zsh/vendor-completions/_tramplab"),
    ("fish", "share/fish/vendor_completions.d/tramplab.fish"),
];

#[derive(clap::Args)]
pub struct Args {
    /// Make only these [default: all]
    #[arg(value_enum)]
    kinds: Vec<Kind>,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Kind {
    /// A package for Debian and Ubuntu
    Deb,
    /// A tarball for any Linux
    Tarball,
    /// A Python wheel, for pipx
    Wheel,
}

/// `command` has the commands as an installed program shows them.
pub fn package(args: &Args, command: Command) -> Result<u8> {
    let root = place().checkout("package")?;
    let arch = Arch::host().ok_or_else(|| Error::usage("packages are for x86-64 and arm64"))?;
    let progress = Progress::new();
    let sh = Shell::new()?;
    sh.change_dir(root);
    let is_wanted = |kind| args.kinds.is_empty() || args.kinds.contains(&kind);
    if is_wanted(Kind::Wheel) {
        // Fail before the long build.
        cmd!(sh, "{PYTHON} -m wheel version").quiet().ignore_stdout().run().map_err(|_| {
            Error::usage("a wheel needs Python's wheel: apt-get install python3-wheel")
        })?;
    }
    let folder = root.join(FOLDER);
    let stage = folder.join("stage");
    progress.step("building the program");
    let program = program(&sh, arch)?;
    let cache = Cache::open(true)?;
    let built = artifacts::build(root, &cache, &Arch::ALL, &|event| progress.show(event))?;
    progress.step("packing");
    if stage.exists() {
        fs::remove_dir_all(&stage)?;
    }
    install(&root.join(program), &stage.join("bin").join(NAME), 0o755)?;
    let lib = stage.join(place::LIB);
    install(&built.plugin, &lib.join(place::PLUGIN), 0o644)?;
    for (&arch, agent) in &built.agents {
        install(agent, &lib.join(place::agent_name(arch)), 0o755)?;
    }
    let plugin = lib.join(place::PLUGIN);
    cmd!(sh, "strip --strip-unneeded {plugin}").quiet().run()?;
    tracked(&sh, &["configs", "kernels"], &stage.join(place::SHARE))?;
    documents(&sh, root, &stage.join("share/doc").join(NAME))?;
    manuals(&stage.join("share/man/man1"), command)?;
    completions(&stage)?;
    // Whatever umask this user has.
    cmd!(sh, "chmod -R u=rwX,go=rX {stage}").quiet().run()?;
    drop(progress);
    let mut made = Vec::new();
    if is_wanted(Kind::Deb) {
        made.push(deb(&sh, &folder, &stage, arch)?);
    }
    if is_wanted(Kind::Tarball) {
        made.push(tarball(&sh, &folder, &stage, arch)?);
    }
    if is_wanted(Kind::Wheel) {
        made.push(wheel(&sh, &folder, &stage, arch)?);
    }
    checksums(&folder, &made)?;
    made.iter().for_each(|file| link::tell("written:", file));
    Ok(exit::PASS)
}

/// Builds the program. Returns its path in the repository.
fn program(sh: &Shell, arch: Arch) -> Result<PathBuf> {
    let (cargo, target) = (artifacts::cargo(), target(arch));
    let _flags = sh.push_env("CARGO_ENCODED_RUSTFLAGS", RUSTFLAGS);
    let _strip = sh.push_env("CARGO_PROFILE_RELEASE_STRIP", "true");
    cmd!(
        sh,
        "{cargo} build --release --locked --package {NAME} --features {FEATURES}
         --target {target} --target-dir {FOLDER}"
    )
    .quiet()
    .run()
    .context("failed to build the program")?;
    Ok(Path::new(FOLDER).join(target).join("release").join(NAME))
}

fn install(from: &Path, to: &Path, mode: u32) -> Result<()> {
    let failed = || format!("failed to copy {} to {}", from.display(), to.display());
    fs::create_dir_all(to.parent().expect("a file in a folder")).with_context(failed)?;
    fs::copy(from, to).with_context(failed)?;
    fs::set_permissions(to, fs::Permissions::from_mode(mode)).with_context(failed)
}

/// Installs the files of these folders that git tracks. Scripts stay executable.
fn tracked(sh: &Shell, folders: &[&str], to: &Path) -> Result<()> {
    let files = cmd!(sh, "git ls-files -z -- {folders...}").quiet().read();
    let files = files.context("failed to list the repository's files")?;
    for file in files.split_terminator('\0') {
        let from = sh.current_dir().join(file);
        let executable = fs::metadata(&from)?.permissions().mode() & 0o111 != 0;
        install(&from, &to.join(file), if executable { 0o755 } else { 0o644 })?;
    }
    Ok(())
}

/// The licences, those of the crates in the program, and the news.
fn documents(sh: &Shell, root: &Path, folder: &Path) -> Result<()> {
    install(&root.join("LICENSE.md"), &folder.join("copyright"), 0o644)?;
    tracked(sh, &["LICENSES"], folder)?;
    install(&root.join("CHANGELOG.md"), &folder.join("CHANGELOG.md"), 0o644)?;
    let cargo = artifacts::cargo();
    let crates = cmd!(
        sh,
        "{cargo} tree --locked --features {NAME}/{FEATURES} --package {NAME}
         --package tramplab-plugin --package tramplab-agent
         --edges normal --prefix none --no-dedupe --format '{p}: {l}'"
    );
    let crates = crates.quiet().read().context("failed to list the licences of crates")?;
    let mut lines: Vec<&str> = crates.lines().filter(|line| !line.contains("(/")).collect();
    lines.sort_unstable();
    lines.dedup();
    Ok(fs::write(folder.join("crates.txt"), lines.join("\n") + "\n")?)
}

fn manuals(folder: &Path, command: Command) -> Result<()> {
    fs::create_dir_all(folder)?;
    clap_mangen::generate_to(command, folder).context("failed to write the man pages")
}

/// Scripts by which shells ask the installed program.
fn completions(stage: &Path) -> Result<()> {
    for (shell, path) in COMPLETIONS {
        let path = stage.join(path);
        fs::create_dir_all(path.parent().expect("a file in a folder"))?;
        let mut script = Vec::new();
        let shells = Shells::builtins();
        let shell = shells.completer(shell).expect("clap knows it");
        shell.write_registration(complete::VARIABLE, NAME, NAME, NAME, &mut script)?;
        fs::write(&path, script)?;
    }
    Ok(())
}

fn tarball(sh: &Shell, folder: &Path, stage: &Path, arch: Arch) -> Result<PathBuf> {
    let name = format!("{NAME}-{VERSION}-{}-linux", arch.name());
    let file = folder.join(format!("{name}.tar.xz"));
    let rename = format!("s,^\\.,{name},");
    // Nothing in it depends on the machine or on the day.
    cmd!(
        sh,
        "tar --create --xz --sort=name --owner=0 --group=0 --numeric-owner --mtime=@0
         --transform {rename} --directory {stage} --file {file} ."
    )
    .quiet()
    .run()?;
    Ok(file)
}

fn deb(sh: &Shell, folder: &Path, stage: &Path, arch: Arch) -> Result<PathBuf> {
    let arch = arch.platform().debian;
    let root = folder.join("deb");
    if root.exists() {
        fs::remove_dir_all(&root)?;
    }
    fs::create_dir_all(root.join("DEBIAN"))?;
    let usr = root.join("usr");
    cmd!(sh, "cp --archive {stage} {usr}").quiet().run()?;
    let pages = fs::read_dir(usr.join("share/man/man1"))?;
    let pages: Vec<PathBuf> = pages.map(|page| Ok(page?.path())).collect::<Result<_>>()?;
    let news = usr.join("share/doc").join(NAME).join("CHANGELOG.md");
    cmd!(sh, "gzip --best --no-name {pages...} {news}").quiet().run()?;
    let size = cmd!(sh, "du --summarize --block-size=1K --apparent-size {usr}").quiet().read()?;
    let size = size.split_whitespace().next().unwrap_or_default();
    let control = format!(
        "Package: {NAME}\n\
         Version: {VERSION}\n\
         Architecture: {arch}\n\
         Maintainer: the tramplab authors <maintainers@users.noreply.a-seed-8822e2fb.example>\n\
         Installed-Size: {size}\n\
         Section: devel\n\
         Priority: optional\n\
         Depends: ca-certificates\n\
         Recommends: {BUILDS_KERNELS}\n\
         Description: {SUMMARY}\n \
         Boots kernels in QEMU and counts the branch records, instructions and time\n \
         that each attach mechanism of BPF takes, for a kernel or a patch series.\n"
    );
    fs::write(root.join("DEBIAN/control"), control)?;
    let file = folder.join(format!("{NAME}_{VERSION}_{arch}.deb"));
    cmd!(sh, "chmod -R u=rwX,go=rX {root}").quiet().run()?;
    cmd!(sh, "dpkg-deb --root-owner-group -Zxz --build {root} {file}").quiet().read()?;
    Ok(file)
}

/// pip puts `scripts` into the environment's `bin`, and `data` below its prefix.
fn wheel(sh: &Shell, folder: &Path, stage: &Path, arch: Arch) -> Result<PathBuf> {
    let root = folder.join("wheel");
    if root.exists() {
        fs::remove_dir_all(&root)?;
    }
    let (data, info) = (format!("{NAME}-{VERSION}.data"), format!("{NAME}-{VERSION}.dist-info"));
    let (data, info) = (root.join(data), root.join(info));
    fs::create_dir_all(&data)?;
    fs::create_dir(&info)?;
    let prefix = data.join("data");
    cmd!(sh, "cp --archive {stage} {prefix}").quiet().run()?;
    fs::rename(prefix.join("bin"), data.join("scripts"))?;
    let metadata = format!(
        "Metadata-Version: 2.1\nName: {NAME}\nVersion: {VERSION}\nSummary: {SUMMARY}\n\
         License: MIT OR Apache-2.0\n"
    );
    fs::write(info.join("METADATA"), metadata)?;
    // The plugin's C library.
    let tag =
        format!("py3-none-manylinux_2_34_{}", target(arch).split('-').next().expect("a word"));
    let format =
        format!("Wheel-Version: 1.0\nGenerator: {NAME}\nRoot-Is-Purelib: false\nTag: {tag}\n");
    fs::write(info.join("WHEEL"), format)?;
    cmd!(sh, "{PYTHON} -m wheel pack --dest-dir {folder} {root}")
        .env("SOURCE_DATE_EPOCH", "0")
        .quiet()
        .read()?;
    Ok(folder.join(format!("{NAME}-{VERSION}-{tag}.whl")))
}

/// The packages that build a user's own tree. Shipped kernels need a few of them.
const BUILDS_KERNELS: &str = "gcc, libc6-dev, make, bc, flex, bison, dwarves, git, xz-utils, \
                              zstd, libelf-dev, libssl-dev, bubblewrap, util-linux";

fn checksums(folder: &Path, files: &[PathBuf]) -> Result<()> {
    let mut text = String::new();
    for file in files {
        let name = file.file_name().expect("a file").to_string_lossy();
        text += &format!("{}  {name}\n", sha256(file)?);
    }
    Ok(fs::write(folder.join("SHA256SUMS"), text)?)
}
