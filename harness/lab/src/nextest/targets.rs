// SPDX-License-Identifier: MIT OR Apache-2.0
//! The tests to build, as `PACKAGE[/TARGET]`, and cargo's options for them.

use crate::error::{Error, Result};
use guppy::graph::{BuildTargetId, PackageGraph};
use std::str::FromStr;

/// The guest agent has flags and a target folder of its own.
pub const AGENT: &str = "tramplab-agent";
const PROGRAM: &str = "tramplab";
/// The library of a package, and its programs.
const LIB: &str = "lib";
const BIN: &str = "bin";

/// The tests of a package, or of one of its targets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    package: String,
    target: Option<String>,
}

impl FromStr for Target {
    type Err = String;

    fn from_str(text: &str) -> Result<Target, String> {
        let (package, target) = match text.split_once('/') {
            None => (text, None),
            Some((package, target)) => (package, Some(target)),
        };
        if package.is_empty() || target.is_some_and(str::is_empty) {
            return Err("expected PACKAGE or PACKAGE/TARGET, such as tramplab/all".to_owned());
        }
        Ok(Target { package: package.to_owned(), target: target.map(str::to_owned) })
    }
}

/// One call of cargo.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Build {
    /// The options that choose what is built.
    pub options: Vec<String>,
    /// The package whose tests run; `None`: all that are built.
    pub package: Option<String>,
    pub is_agent: bool,
    /// Their guests need the plugin and the agents.
    pub has_guests: bool,
}

/// Cargo's calls for these targets; without any, for all.
pub fn builds(graph: &PackageGraph, targets: &[Target]) -> Result<Vec<Build>> {
    let words = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect();
    if targets.is_empty() {
        let rest = words(&["--workspace", "--exclude", AGENT]);
        let agent = words(&["--package", AGENT]);
        return Ok(vec![
            Build { options: rest, package: None, is_agent: false, has_guests: true },
            Build { options: agent, package: None, is_agent: true, has_guests: false },
        ]);
    }
    let mut builds = Vec::new();
    for target in targets {
        let build = build(graph, target)?;
        if !builds.contains(&build) {
            builds.push(build);
        }
    }
    Ok(builds)
}

fn build(graph: &PackageGraph, wanted: &Target) -> Result<Build> {
    let workspace = graph.workspace();
    let package = workspace.member_by_name(&wanted.package).map_err(|_| {
        let names: Vec<&str> = workspace.iter_by_name().map(|(name, _)| name).collect();
        Error::Usage(format!("no package `{}`; there are: {}", wanted.package, names.join(", ")))
    })?;
    let (mut lib, mut bins, mut tests) = (false, false, Vec::new());
    for target in package.build_targets() {
        match target.id() {
            BuildTargetId::Library => lib = true,
            BuildTargetId::Binary(_) => bins = true,
            BuildTargetId::Test(name) => tests.push(name),
            _ => {}
        }
    }
    let lib = lib.then_some(LIB).into_iter();
    let all: Vec<&str> = lib.chain(bins.then_some(BIN)).chain(tests.iter().copied()).collect();
    let chosen = match wanted.target.as_deref() {
        None => all,
        Some(name) if all.contains(&name) => vec![name],
        Some(name) => {
            let (package, all) = (&wanted.package, all.join(", "));
            return Err(Error::Usage(format!("no target `{name}` in {package}; there are: {all}")));
        }
    };
    let mut options = vec!["--package".to_owned(), wanted.package.clone()];
    if ![AGENT, PROGRAM].contains(&&*wanted.package) {
        // Beside the program all packages have the features that they have in it: without it, cargo
        // would compile their dependencies again.
        options.extend(["--package".to_owned(), PROGRAM.to_owned()]);
    }
    for &name in &chosen {
        match name {
            LIB => options.push("--lib".to_owned()),
            BIN => options.push("--bins".to_owned()),
            test => options.extend(["--test".to_owned(), test.to_owned()]),
        }
    }
    // All guests are booted by integration tests.
    let has_guests = chosen.iter().any(|name| tests.contains(name));
    let package = Some(wanted.package.clone());
    Ok(Build { options, package, is_agent: wanted.package == AGENT, has_guests })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn builds_what_is_named_and_names_what_there_is() {
        let graph = guppy::MetadataCommand::new()
            .manifest_path(concat!(env!("CARGO_MANIFEST_DIR"), "/../../Cargo.toml"))
            .build_graph()
            .unwrap();
        let built = |words: &[&str]| {
            let targets: Vec<Target> = words.iter().map(|word| word.parse().unwrap()).collect();
            builds(&graph, &targets)
        };
        let one = |word: &str| built(&[word]).unwrap().remove(0);
        assert_eq!(
            one("tramplab-model").options.join(" "),
            "--package tramplab-model --package tramplab --lib"
        );
        assert!(!one("tramplab-model").has_guests && one("tramplab-plugin").has_guests);
        assert!(one("tramplab").has_guests && !one("tramplab/bin").has_guests);
        assert_eq!(one("tramplab/liar").options[2..], ["--test", "liar"]);
        assert!(one("tramplab-agent").is_agent);
        assert_eq!(one("tramplab-agent").options[2], "--bins");
        assert_eq!(built(&[]).unwrap().len(), 2);
        assert_eq!(built(&["tramplab/liar", "tramplab/liar"]).unwrap().len(), 1);
        assert_eq!(built(&["tramplab-model", "tramplab-plugin/lib"]).unwrap().len(), 2);
        let Err(Error::Usage(text)) = built(&["model"]) else { panic!() };
        assert!(text.contains("tramplab-model, "), "{text}");
        let Err(Error::Usage(text)) = built(&["tramplab/guest"]) else { panic!() };
        assert!(text.ends_with("bin, all, faults, liar"), "{text}");
        for text in ["", "/all", "tramplab/"] {
            text.parse::<Target>().unwrap_err();
        }
    }
}
