// SPDX-License-Identifier: MIT OR Apache-2.0
//! A run as KCIDB objects (schema 5.3) for KernelCI: a checkout for each kernel's sources, a build
//! for each of its architectures, a test for each cell. `docs/kcidb.md` describes the mapping.

// A stranger's run may have any number: saturate, or use floating point.
#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects, clippy::disallowed_methods))]

use serde::Serialize;
use serde_json::{Map, json};
use std::{collections::BTreeSet, fmt, num::NonZeroU32, str::FromStr};
use tramplab_analysis::{
    branch::{Model, driver},
    compare::{self, Metric, Value},
};
use tramplab_model::{
    run::{Arch, Cell, ErrorKind, Kernel, Outcome, Run, Test},
    text::{self, plain},
};

/// Characters that the schema allows for an excerpt.
const EXCERPT: usize = 16384;

/// The submitter's name, as agreed with KernelCI.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin(String);

impl Default for Origin {
    fn default() -> Origin {
        Origin("tramplab".to_owned())
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not an origin: expected lower-case letters, digits and `_`")]
pub struct NotAnOrigin(String);

impl FromStr for Origin {
    type Err = NotAnOrigin;

    fn from_str(name: &str) -> Result<Origin, NotAnOrigin> {
        let is_fit = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
        match !name.is_empty() && name.chars().all(is_fit) {
            true => Ok(Origin(name.to_owned())),
            false => Err(NotAnOrigin(name.to_owned())),
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

#[derive(Serialize)]
struct Report {
    version: Version,
    checkouts: Vec<Checkout>,
    builds: Vec<Build>,
    tests: Vec<TestRun>,
}

#[derive(Serialize)]
struct Version {
    major: u32,
    minor: u32,
}

#[derive(Serialize)]
struct Checkout {
    id: String,
    origin: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    git_repository_url: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    git_commit_hash: Option<String>,
    /// Empty without patches; `None` with patches, as the run does not have their hash.
    #[serde(skip_serializing_if = "Option::is_none")]
    patchset_hash: Option<String>,
    comment: String,
    start_time: String,
    valid: bool,
    misc: serde_json::Value,
}

#[derive(Serialize)]
struct Build {
    id: String,
    checkout_id: String,
    origin: String,
    comment: String,
    architecture: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    compiler: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    duration: Option<f64>,
    /// `None` if the kernel was built elsewhere.
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<Status>,
    #[serde(skip_serializing_if = "Option::is_none")]
    log_excerpt: Option<String>,
    misc: serde_json::Value,
}

#[derive(Serialize)]
struct TestRun {
    id: String,
    build_id: String,
    origin: String,
    environment: Environment,
    path: String,
    status: Status,
    duration: f64,
    #[serde(skip_serializing_if = "String::is_empty")]
    comment: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    log_excerpt: Option<String>,
    misc: serde_json::Value,
}

#[derive(Serialize)]
struct Environment {
    comment: String,
    misc: serde_json::Value,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "UPPERCASE")]
enum Status {
    Fail,
    Error,
    Miss,
    Pass,
    Skip,
}

pub fn render(run: &Run, origin: &Origin) -> serde_json::Result<Vec<u8>> {
    let mut seen = BTreeSet::new();
    let checkouts =
        run.kernels.iter().filter(|kernel| seen.insert(checkout_id(run, kernel, origin)));
    let is_test = |cell: &&Cell| cell.id.test != Test::Build;
    let missing = run.missing_cells();
    let report = Report {
        version: Version { major: 5, minor: 3 },
        checkouts: checkouts.map(|kernel| checkout(run, kernel, origin)).collect(),
        builds: run.kernels.iter().map(|kernel| build(run, kernel, origin)).collect(),
        tests: run
            .cells
            .iter()
            .chain(&missing)
            .filter(is_test)
            .map(|cell| test(run, cell, origin))
            .collect(),
    };
    let mut bytes = text::json(&serde_json::to_vec_pretty(&report)?).into_owned();
    bytes.push(b'\n');
    Ok(bytes)
}

/// Returns one id for all architectures that have the same sources. Another package is another
/// checkout.
fn checkout_id(run: &Run, kernel: &Kernel, origin: &Origin) -> String {
    let Kernel { name, arch, .. } = kernel;
    let sources = |kernel: &Kernel| (kernel.source.clone(), kernel.commit.clone());
    let mut namesakes = run.kernels.iter().filter(|other| other.name == *name);
    match namesakes.all(|other| sources(other) == sources(kernel)) {
        true => format!("{origin}:{}/{name}", run.id),
        false => format!("{origin}:{}/{name}/{arch}", run.id),
    }
}

fn build_id(run: &Run, kernel: &str, arch: Arch, origin: &Origin) -> String {
    format!("{origin}:{}/{kernel}/{arch}", run.id)
}

fn checkout(run: &Run, kernel: &Kernel, origin: &Origin) -> Checkout {
    // A patched kernel is not a commit, but its base is.
    let on = run
        .kernels
        .iter()
        .find(|other| patches(run, other) == Some(0) && is_of_one_series(run, kernel, other));
    let patched = patches(run, kernel).is_some_and(|patches| patches > 0);
    let base = if patched { on } else { Some(kernel) };
    let url = |base: &Kernel| {
        let url = base.source.strip_prefix("git ")?.split(' ').next()?;
        url.starts_with("https://").then(|| url.to_owned())
    };
    Checkout {
        id: checkout_id(run, kernel, origin),
        origin: origin.to_string(),
        git_repository_url: base.and_then(url),
        git_commit_hash: base.and_then(|base| base.commit.clone()),
        patchset_hash: (!patched).then(String::new),
        comment: kernel.source.clone(),
        start_time: run.started.clone(),
        valid: true,
        misc: json!({"tramplab": {"run": run.id, "kernel": kernel.name, "source": kernel.source}}),
    }
}

/// Counts the patches added to, or removed from, the sources for a kernel of a series.
fn patches(run: &Run, kernel: &Kernel) -> Option<usize> {
    let (series, step) = run.step_of(kernel.arch, &kernel.name)?;
    let all = series.head().patches;
    let changed = if series.reverse { all.saturating_sub(step.patches) } else { step.patches };
    Some(series.base.map_or(0, NonZeroU32::get).saturating_add(changed) as usize)
}

fn is_of_one_series(run: &Run, a: &Kernel, b: &Kernel) -> bool {
    let series = |kernel: &Kernel| Some(run.step_of(kernel.arch, &kernel.name)?.0);
    series(a).zip(series(b)).is_some_and(|(a, b)| std::ptr::eq(a, b))
}

fn build(run: &Run, kernel: &Kernel, origin: &Origin) -> Build {
    let cell = run.cells_of(kernel.arch, &kernel.name).find(|cell| cell.id.test == Test::Build);
    let outcome = cell.map(|cell| match &cell.outcome {
        // Sources that do not compile are a finding about the sources.
        Outcome::Error { kind: ErrorKind::Build, message } => {
            (Status::Fail, Some(excerpt(message)))
        }
        outcome => (status(outcome), None),
    });
    let key = kernel.build.as_ref().map(|build| &build.key);
    let comment = if kernel.build.is_some() || cell.is_some() {
        "built by tramplab"
    } else {
        "built elsewhere"
    };
    Build {
        id: build_id(run, &kernel.name, kernel.arch, origin),
        checkout_id: checkout_id(run, kernel, origin),
        origin: origin.to_string(),
        comment: comment.to_owned(),
        architecture: kernel.arch.name(),
        compiler: kernel.build.as_ref().map(|build| build.toolchain.clone()),
        duration: cell.map(|cell| cell.duration_ms as f64 / 1e3),
        status: outcome.as_ref().map(|(status, _)| *status),
        log_excerpt: outcome.and_then(|(_, excerpt)| excerpt),
        misc: json!({"tramplab": {
            "image_sha256": kernel.image_sha256,
            "config_sha256": kernel.config_sha256,
            "key": key,
        }}),
    }
}

fn status(outcome: &Outcome) -> Status {
    match outcome {
        Outcome::Pass => Status::Pass,
        Outcome::Fail { .. } => Status::Fail,
        Outcome::Skip { .. } => Status::Skip,
        // The test did not run, because of the harness or the host.
        Outcome::Error {
            kind: ErrorKind::Harness | ErrorKind::QemuStart | ErrorKind::Starved,
            ..
        } => Status::Miss,
        Outcome::Error { .. } => Status::Error,
    }
}

fn test(run: &Run, cell: &Cell, origin: &Origin) -> TestRun {
    let id = &cell.id;
    let kernel = run.kernel(id.arch, &id.kernel);
    let of_kernel = |kernel| Model::of_kernel(None, run, kernel);
    let model = kernel.map_or_else(|| Model::choose(None, id.arch), of_kernel);
    // The environment names the CPU of a driver's records.
    let model = driver::whose(cell.branch_source(), model);
    let console = (!cell.console_tail.is_empty()).then(|| excerpt(&cell.console_tail.join("\n")));
    TestRun {
        id: format!("{origin}:{}/{}", run.id, id.name()),
        build_id: build_id(run, &id.kernel, id.arch, origin),
        origin: origin.to_string(),
        environment: environment(run, cell),
        path: path(&id.test),
        status: status(&cell.outcome),
        duration: cell.duration_ms as f64 / 1e3,
        comment: cell.outcome.reason().unwrap_or_default(),
        log_excerpt: console,
        misc: json!({"tramplab": {
            "run": run.id,
            "suite": run.suite.name,
            "cell": id.name(),
            "model": model,
            "metrics": metrics(cell),
        }}),
    }
}

/// Returns each number with its unit, by the metric's name.
fn metrics(cell: &Cell) -> Map<String, serde_json::Value> {
    let named = |(metric, value): (Metric, Value)| {
        let number = value.number()?;
        // Write whole numbers as integers, so that readers need no floating point.
        let number = if number.fract() == 0.0 { json!(number as i64) } else { json!(number) };
        Some((metric.to_string(), json!({"value": number, "unit": metric.unit()})))
    };
    compare::values(cell, Model::choose(None, cell.id.arch)).into_iter().filter_map(named).collect()
}

fn environment(run: &Run, cell: &Cell) -> Environment {
    let machine = run.machine(cell.id.arch);
    let qemu = machine.map_or("QEMU", |machine| &machine.qemu);
    Environment {
        comment: format!("a guest of {qemu}, {}, on {}", cell.id.accel.name(), run.host.cpu),
        misc: json!({"tramplab": {
            "version": run.tramplab,
            "accel": cell.id.accel,
            "machine": machine,
            "host": run.host,
            "release": cell.guest.as_ref().map(|guest| &guest.release),
        }}),
    }
}

/// Returns a path such as `tramplab.lbr_waste.kprobe_multi`. The parts between dots may have
/// letters, digits, `_` and `-`.
fn path(test: &Test) -> String {
    let part = |part: &str| -> String {
        part.chars().map(|c| if c.is_ascii_alphanumeric() || c == '_' { c } else { '-' }).collect()
    };
    let name = test.name().replace('.', "_");
    let parts = ["tramplab"].into_iter().chain(name.split('/'));
    parts.map(part).collect::<Vec<_>>().join(".")
}

/// Returns the end of a text, as many characters as the schema allows.
fn excerpt(text: &str) -> String {
    let text = plain(text);
    let skipped = text.chars().count().saturating_sub(EXCERPT);
    text.chars().skip(skipped).collect()
}

#[cfg(test)]
mod tests;
