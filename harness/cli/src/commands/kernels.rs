// SPDX-License-Identifier: MIT OR Apache-2.0
//! `cargo xtask kernels`: checks that servers have Debian's kernels and toolchains, and pins newer
//! ones.

use super::{complete, exit, output};
use std::path::PathBuf;
use tramplab_host::Cache;
use tramplab_kernel::{
    self as kernel,
    compile::{BuildError, PinnedRoot, toolchain},
    pins,
    pins::Availability,
};
use tramplab_lab::{
    error::{Error, Result},
    place,
};
use tramplab_model::run::Arch;

const HEAD: [&str; 6] = ["name", "arch", "version", "cached", "suites", "snapshot"];

#[derive(clap::Args)]
pub struct Args {
    /// Look only at these: names of manifests, or files, or toolchains of a Debian release such as
    /// debian-12 [default: all]
    #[arg(value_name = "KERNEL", add = complete::kernels())]
    names: Vec<String>,
    /// Write the newest version that Debian's suites have into these files, by name, size and
    /// SHA-256. The files then stand for that version until the next `--pin`
    #[arg(long, requires = "names")]
    pin: bool,
}

pub fn kernels(args: &Args) -> Result<u8> {
    let cache = Cache::open(true)?;
    if args.pin {
        args.names.iter().try_for_each(|name| pin(name, &cache))?;
        return Ok(exit::PASS);
    }
    let roots = place().toolchain_names();
    let mut names = if args.names.is_empty() { place().kernels() } else { args.names.clone() };
    names.retain(|name| !roots.contains(name));
    let mut rows = vec![HEAD.map(str::to_owned)];
    let mut notes: Vec<String> = Vec::new();
    let mut code = exit::PASS;
    for name in &names {
        let manifests = match kernel::find(name, &place().kernels_with(name)) {
            Ok(manifests) => manifests,
            Err(error) => {
                // The others are looked at all the same.
                notes.push(format!("{name}: {error}"));
                code = code.max(exit::USAGE);
                continue;
            }
        };
        for manifest in manifests {
            let name = &manifest.name;
            let Some(found) = pins::availability(&manifest, &cache, &mut progress)? else {
                notes.push(format!("{name}: not a kernel of Debian, so it was not looked at"));
                continue;
            };
            if !found.is_there() {
                code = exit::NO_MEASUREMENT;
                notes.push(format!("{name} for {} cannot be had", manifest.arch));
            }
            for note in told(&found).map(|note| format!("{name}: {note}")) {
                if !notes.contains(&note) {
                    notes.push(note);
                }
            }
            let row = row(&manifest, &found);
            match rows.last_mut() {
                Some(last) if last[0] == row[0] && last[2..] == row[2..] => {
                    last[1] += &format!(", {}", row[1]);
                }
                _ => rows.push(row),
            }
        }
    }
    let is_asked = |root: &&String| args.names.is_empty() || args.names.contains(root);
    for name in roots.iter().filter(is_asked) {
        let (row, had) = row_of_root(name, &cache)?;
        rows.push(row);
        if !had {
            code = exit::NO_MEASUREMENT;
            notes.push(format!("the toolchain {name} cannot be had"));
        }
    }
    let notes: String = notes.iter().map(|note| format!("\n{note}")).collect();
    output::print((aligned(&rows) + &notes).trim_end().as_bytes())?;
    output::print(b"\n")?;
    Ok(code)
}

fn pin(name: &str, cache: &Cache) -> Result<()> {
    let root = toolchain::root_file(name, &place().toolchains());
    if root.is_file() {
        let count = toolchain::raise_root(&root, cache, &mut progress).map_err(BuildError::from)?;
        let line = format!("{}: pinned to {count} packages\n", root.display());
        return output::print(line.as_bytes());
    }
    let path = match name.ends_with(".yaml") {
        true => PathBuf::from(name),
        false => place().kernels_with(name).join(format!("{name}.yaml")),
    };
    if !path.is_file() {
        let path = path.display();
        return Err(Error::usage(format!("no manifest {path}: --pin writes into manifests")));
    }
    let pin = pins::raise(&path, cache, &mut progress)?.ok_or_else(|| {
        Error::usage(format!("{}: only Debian's kernels can be pinned", path.display()))
    })?;
    let mut lines = format!("{}: pinned to\n", path.display());
    pin.files.iter().for_each(|file| lines += &format!("  {}\n", file.name()));
    output::print(lines.as_bytes())
}

fn progress(line: &str) {
    eprintln!("{line}");
}

fn row(manifest: &kernel::Manifest, found: &Availability) -> [String; 6] {
    let version = found.version.as_deref().unwrap_or("-");
    let (version, suites, snapshot) = match &found.pin {
        Some(pin) => {
            let (suites, snapshot) = (word(pin.mirrors.is_ok()), word(pin.snapshot.is_ok()));
            (format!("{version} (pinned)"), suites, snapshot)
        }
        None => (version.to_owned(), word(found.version.is_ok()), "-".to_owned()),
    };
    let (name, arch) = (manifest.name.clone(), manifest.arch.to_string());
    [name, arch, version, word(found.is_cached), suites, snapshot]
}

/// A toolchain root for this host, and whether a build can have it.
fn row_of_root(name: &str, cache: &Cache) -> Result<([String; 6], bool)> {
    let root = PinnedRoot::read(name, &place().toolchains()).map_err(BuildError::from)?;
    let servers = root.availability(cache).map_err(BuildError::from)?;
    let is_cached = root.is_cached(cache);
    let had = is_cached || servers.iter().any(|server| server.is_ok());
    let [suites, snapshot] = servers.map(|server| word(server.is_ok()));
    let arch = Arch::host().map_or_else(String::new, |arch| arch.to_string());
    let version = format!("{} packages, {} MiB (pinned)", root.packages(), root.mib());
    Ok(([name.to_owned(), arch, version, word(is_cached), suites, snapshot], had))
}

fn word(is_there: bool) -> String {
    if is_there { "yes" } else { "no" }.to_owned()
}

/// The reasons why servers lack it, and that there is a newer one.
fn told(found: &Availability) -> impl Iterator<Item = String> {
    let version = found.version.as_ref().err().map(ToString::to_string);
    let pin = found.pin.as_ref();
    let mirrors = pin.and_then(|pin| pin.mirrors.as_ref().err()).map(ToString::to_string);
    let snapshot = pin.and_then(|pin| pin.snapshot.as_ref().err()).map(ToString::to_string);
    let newer = pin.and_then(|pin| match &pin.newer {
        Ok(newer) => newer.as_ref().map(|newer| format!("the suites have {newer}: --pin takes it")),
        Err(error) => Some(format!("newer versions are unknown: {error}")),
    });
    [version, mirrors, snapshot, newer].into_iter().flatten()
}

fn aligned(rows: &[[String; 6]]) -> String {
    let width = |column: usize| rows.iter().map(|row| row[column].len()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..6).map(width).collect();
    let line = |row: &[String; 6]| {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned() + "\n"
    };
    rows.iter().map(line).collect()
}
