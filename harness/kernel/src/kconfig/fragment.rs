// SPDX-License-Identifier: MIT OR Apache-2.0
//! Configuration fragments: the options of a kernel that is built here.

use super::{prerequisites, required_base};
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    io::{self, Read},
    path::{Path, PathBuf},
};
use tramplab_host::regular;
use tramplab_model::run::Arch;
use tramplab_protocol::Mechanism;

/// Most bytes of a fragment. No handwritten one is larger, nor a whole `.config`.
const LIMIT: u64 = 1 << 20;
/// make writes this line into each `.config`.
const GENERATED: &str = "# Automatically generated file; DO NOT EDIT.";
/// A file with as many options is a whole `.config`, too. Fedora's have no such line.
const WHOLE: usize = 2000;

#[derive(Debug, thiserror::Error)]
pub enum FragmentError {
    #[error("failed to read the configuration {path}: {source}")]
    Read { path: PathBuf, source: io::Error },
    #[error(
        "failed to read the configuration {path}: it is larger than 1 MiB; expected lines such as \
         CONFIG_FPROBE=y"
    )]
    Large { path: PathBuf },
    #[error("{path} ends within a line: it is not complete")]
    Cut { path: PathBuf },
    #[error(
        "{} and {} are both a whole .config: give one of them",
        .paths[0].display(), .paths[1].display()
    )]
    Whole { paths: [PathBuf; 2] },
    #[error("{path}:{line}: expected {expected}, got `{text}`")]
    Line { path: PathBuf, line: usize, expected: &'static str, text: String },
}

/// An option, its wanted value, and who wants it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WantedOption {
    /// Without `CONFIG_`.
    pub option: String,
    /// As written: `y`, `m`, a number, a text with its quotes. `n` for an option that must not be
    /// set.
    pub value: String,
    /// The fragment, or another name with `line` 0.
    pub path: PathBuf,
    pub line: usize,
    pub demand: Demand,
}

/// When a missing option is an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Demand {
    /// Never: it is of another tree or tool, or up to the compiler.
    Never,
    /// Only if the tree asks for the option. Options without a prompt follow from others.
    WherePrompted,
    /// Only if the tree offers the option to the architecture.
    WhereOffered,
    Always,
}

impl WantedOption {
    /// `configs/kconfig/base.config:57`.
    pub fn place(&self) -> String {
        match self.line {
            0 => self.path.display().to_string(),
            line => format!("{}:{line}", self.path.display()),
        }
    }

    fn is(&self, option: &str, value: &str) -> bool {
        self.option == option && self.value == value
    }

    /// The value without quotes, as in [`super::Kconfig`].
    pub fn plain(&self) -> &str {
        self.value.trim_matches('"')
    }
}

impl fmt::Display for WantedOption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CONFIG_{}={}", self.option, self.value)
    }
}

/// Two fragments want different values. The later one wins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conflict {
    pub earlier: WantedOption,
    pub later: WantedOption,
}

impl fmt::Display for Conflict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Conflict { earlier, later } = self;
        write!(f, "{}: {later} replaces {earlier} of {}", later.place(), earlier.place())
    }
}

/// Reads fragments.
pub struct Fragment;

impl Fragment {
    pub fn parse(text: &str, path: &Path) -> Result<Vec<WantedOption>, FragmentError> {
        let mut wanted = Vec::new();
        for (index, whole) in text.lines().enumerate() {
            let line = whole.trim();
            let error = |expected| FragmentError::Line {
                path: path.to_owned(),
                line: index + 1,
                expected,
                text: line.chars().take(80).collect(),
            };
            let unset =
                line.strip_prefix("# CONFIG_").and_then(|rest| rest.strip_suffix(" is not set"));
            let (option, value) = match (unset, line.strip_prefix("CONFIG_")) {
                (Some(option), _) if is_option(option) => (option, "n"),
                (_, Some(rest)) => rest
                    .split_once('=')
                    .ok_or_else(|| error("CONFIG_NAME=value or `# CONFIG_NAME is not set`"))?,
                _ if line.is_empty() || line.starts_with('#') => continue,
                _ => {
                    return Err(error(
                        "CONFIG_NAME=value, `# CONFIG_NAME is not set` or a comment",
                    ));
                }
            };
            if !is_option(option) {
                return Err(error("letters, digits and `_` in an option's name"));
            }
            if !is_value(value) {
                return Err(error(
                    "y, m, n, a number or a \"text\" as the value, and nothing after it",
                ));
            }
            wanted.push(WantedOption {
                option: option.to_owned(),
                value: value.to_owned(),
                path: path.to_owned(),
                line: index + 1,
                demand: Demand::Always,
            });
        }
        Ok(wanted)
    }

    pub fn read(path: &Path) -> Result<Vec<WantedOption>, FragmentError> {
        Fragment::parse(&Fragment::text(path)?, path)
    }

    /// Reads a fragment, or a whole `.config`; true for the latter.
    pub fn read_any(path: &Path) -> Result<(Vec<WantedOption>, bool), FragmentError> {
        let text = Fragment::text(path)?;
        let mut wanted = Fragment::parse(&text, path)?;
        let is_whole = text.contains(GENERATED) || wanted.len() >= WHOLE;
        if is_whole && !text.ends_with('\n') {
            return Err(FragmentError::Cut { path: path.to_owned() });
        }
        if is_whole {
            for wanted in &mut wanted {
                // Options that guests need may select an unset one.
                let is_set = wanted.value != "n";
                wanted.demand = if is_set { Demand::WherePrompted } else { Demand::Never };
            }
        }
        Ok((wanted, is_whole))
    }

    fn text(path: &Path) -> Result<String, FragmentError> {
        let error = |source| FragmentError::Read { path: path.to_owned(), source };
        let mut text = String::new();
        let file = regular::open_typed(path).map_err(error)?;
        file.take(LIMIT + 1).read_to_string(&mut text).map_err(error)?;
        if text.len() as u64 > LIMIT {
            return Err(FragmentError::Large { path: path.to_owned() });
        }
        Ok(text)
    }
}

fn is_option(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

fn is_value(text: &str) -> bool {
    let digits = |text: &str, is_digit: fn(&char) -> bool| {
        !text.is_empty() && text.chars().all(|c| is_digit(&c))
    };
    match text {
        "y" | "m" | "n" => true,
        _ if text.starts_with('"') => {
            // A quote inside a text must be escaped.
            let inner = text[1..].strip_suffix('"');
            inner.is_some_and(|inner| {
                !inner.replace("\\\\", "").replace("\\\"", "").contains(['"', '\\'])
            })
        }
        _ => match text.strip_prefix("0x") {
            Some(hex) => digits(hex, char::is_ascii_hexdigit),
            None => digits(text.strip_prefix('-').unwrap_or(text), char::is_ascii_digit),
        },
    }
}

/// All wanted options of a kernel, each once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fragments {
    pub wanted: Vec<WantedOption>,
    pub conflicts: Vec<Conflict>,
}

impl Fragments {
    /// The whole `.config` among them.
    pub fn whole(&self) -> Option<&Path> {
        let of_whole = |wanted: &&WantedOption| wanted.demand == Demand::WherePrompted;
        Some(&self.wanted.iter().find(of_whole)?.path)
    }

    /// Merges options in order. A later one wins.
    pub fn merge(all: impl IntoIterator<Item = WantedOption>) -> Fragments {
        let mut merged = Fragments::default();
        let mut places = BTreeMap::new();
        for wanted in all {
            match places.get(&wanted.option) {
                None => {
                    places.insert(wanted.option.clone(), merged.wanted.len());
                    merged.wanted.push(wanted);
                }
                // Names the first fragment that wants the value, unless a later one demands more.
                Some(&place) if merged.wanted[place].value == wanted.value => {
                    if merged.wanted[place].demand < wanted.demand {
                        merged.wanted[place] = wanted;
                    }
                }
                Some(&place) => {
                    let earlier = std::mem::replace(&mut merged.wanted[place], wanted.clone());
                    merged.conflicts.push(Conflict { earlier, later: wanted });
                }
            }
        }
        merged
    }

    /// Formats the options as a `.config` for `make allnoconfig` to complete.
    pub fn text(&self) -> String {
        text(&self.wanted)
    }
}

/// Formats options as a `.config`.
pub fn text(wanted: &[WantedOption]) -> String {
    let line = |wanted: &WantedOption| match wanted.value.as_str() {
        "n" => format!("# CONFIG_{} is not set\n", wanted.option),
        _ => format!("{wanted}\n"),
    };
    wanted.iter().map(line).collect()
}

/// Additional uses of a kernel built here. Each adds options, so it is another kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Uses {
    /// The tree's own tests run on it.
    pub tree_tests: bool,
    /// The fragment of the backend that starts its guests, without `.config`.
    pub backend: Option<&'static str>,
}

impl Uses {
    /// Suffix of the build folder. Kernels for other uses need another folder, or each would undo
    /// the other's build.
    pub fn suffix(self) -> String {
        let tree_tests = self.tree_tests.then_some("selftests");
        tree_tests.into_iter().chain(self.backend).map(|name| format!("-{name}")).collect()
    }
}

/// Collects the options of a kernel built here: `base.config` and the architecture's fragment in
/// the folder `configs`; `offered.config` and the mechanisms' options if the tree offers them, and
/// `mitigations.config` where tree and compiler have it;
/// `selftests.config` and that of the backend for its uses; those `of_series` that it changes; the
/// manifest's fragments; and `more`. If a mechanism is not available, the kernel is built anyway
/// and its cells are skipped. The tree is not read, so the result is known without it.
///
/// A whole `.config` among the manifest's replaces all but what guests and uses need.
pub fn fragments(
    configs: &Path,
    arch: Arch,
    mechanisms: &[Mechanism],
    uses: Uses,
    of_series: &[WantedOption],
    extra: &[PathBuf],
    more: &[WantedOption],
) -> Result<Fragments, FragmentError> {
    let read = |name: &str| Fragment::read(&configs.join(name));
    let where_offered = |wanted| WantedOption { demand: Demand::WhereOffered, ..wanted };
    let mut all = read("base.config")?;
    all.extend(read(&format!("{}.config", arch.name()))?);
    let of_backend = match uses.backend {
        Some(name) => read(&format!("{name}.config"))?,
        None => Vec::new(),
    };
    let of_tree_tests = if uses.tree_tests { read("selftests.config")? } else { Vec::new() };
    all.extend_from_slice(&of_backend);
    all.extend(read("offered.config")?.into_iter().map(where_offered));
    let where_possible = |wanted| WantedOption { demand: Demand::Never, ..wanted };
    all.extend(read("mitigations.config")?.into_iter().map(where_possible));
    for mechanism in mechanisms {
        let place = format!("the mechanism {mechanism}");
        all.extend(needed(&place, mechanism.options()).map(where_offered));
    }
    all.extend(of_tree_tests.iter().cloned().map(where_offered));
    // A series adds options for its tests. It takes none away, and none of ours.
    let ours: BTreeSet<String> = all.iter().map(|wanted| wanted.option.clone()).collect();
    let is_added = |wanted: &&WantedOption| wanted.value != "n" && !ours.contains(&wanted.option);
    all.extend(of_series.iter().filter(is_added).cloned());
    let (mut whole, mut own) = (Vec::new(), Vec::new());
    for path in extra {
        match Fragment::read_any(path)? {
            (fragment, false) => own.extend(fragment),
            (all, true) if whole.is_empty() => whole = all,
            (all, true) => {
                let paths = [&whole, &all].map(|all: &Vec<WantedOption>| all[0].path.clone());
                return Err(FragmentError::Whole { paths });
            }
        }
    }
    if !whole.is_empty() {
        let lacks_debug_info = whole.iter().any(|wanted| wanted.is("DEBUG_INFO_NONE", "y"));
        // Ours only fill in what it does not mention.
        let known: BTreeSet<&str> = whole.iter().map(|wanted| wanted.option.as_str()).collect();
        all.retain(|wanted| !known.contains(wanted.option.as_str()));
        all.iter_mut().for_each(|wanted| wanted.demand = Demand::Never);
        all.splice(0..0, whole);
        all.extend(over_a_whole(arch, lacks_debug_info));
        all.extend(of_backend);
        all.extend(of_tree_tests.into_iter().map(where_offered));
    }
    all.extend(own);
    all.extend_from_slice(more);
    Ok(Fragments::merge(all))
}

/// Options that guests need, whatever a whole `.config` says.
fn over_a_whole(arch: Arch, lacks_debug_info: bool) -> Vec<WantedOption> {
    let place = "what every guest needs";
    let mut all: Vec<WantedOption> = needed(place, &required_base(arch)).collect();
    all.extend(needed(place, &prerequisites(arch)));
    // BTF needs their absence.
    let mut unset = vec!["DEBUG_INFO_REDUCED", "DEBUG_INFO_SPLIT"];
    if lacks_debug_info {
        unset.push("DEBUG_INFO_NONE");
        all.extend(needed(place, &["DEBUG_INFO_DWARF5"]));
    }
    let no = |wanted| WantedOption { value: "n".to_owned(), ..wanted };
    all.extend(needed(place, &unset).map(no));
    all
}

/// Options set to `y`, wanted by `place`.
pub fn needed(place: &str, options: &[&str]) -> impl Iterator<Item = WantedOption> {
    options.iter().map(move |option| WantedOption {
        option: (*option).to_owned(),
        value: "y".to_owned(),
        path: place.into(),
        line: 0,
        demand: Demand::Always,
    })
}
