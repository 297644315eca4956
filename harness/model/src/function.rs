// SPDX-License-Identifier: MIT OR Apache-2.0
//! Names of traced functions, in suites and in the names of cells and metrics.

use arrayvec::ArrayString;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr};
use tramplab_protocol::{
    Mechanism,
    mechanism::{SYSCALL_PREFIXES, USER_SPACE},
    message::Symbol,
    pattern::{self, NotAPattern, Pattern},
};

/// A function as kallsyms names it: `__sys_bpf`, of a module `xfs:xfs_file_read_iter`. It fits into
/// one file name, with the mechanism before it.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(try_from = "String", into = "String")]
#[schemars(extend("pattern" = format!("^{PATTERN}$"), "maxLength" = LONGEST))]
pub struct FunctionName(ArrayString<LONGEST>);

const LONGEST: usize = 128;
/// A regular expression of the names that it parses, but for their length.
pub(crate) const PATTERN: &str = "([A-Za-z0-9_-]+:)?[A-Za-z_][A-Za-z0-9_.]*";
/// Stands before the function in names of cells and metrics. No symbol of C has it.
pub(crate) const AT: char = '@';

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotAFunction {
    #[error(
        "`{0}` is a pattern, which only attach tests take; lbr_waste and trigger tests have cells \
         for each function: name them (a file with a name per line also does)"
    )]
    Pattern(String),
    #[error(
        "`{0}` is no name of a function: expected up to {LONGEST} letters, digits, `_` and `.`, as \
         in __sys_bpf, or MODULE:NAME"
    )]
    Malformed(String),
}

impl FunctionName {
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The module. None: the kernel image.
    pub fn module(&self) -> Option<&str> {
        pattern::split(&self.0).0
    }

    /// True if it names this symbol.
    pub fn is(&self, symbol: &Symbol) -> bool {
        // Users name functions of the agent's binary without it.
        let module = symbol.module.as_deref().filter(|module| *module != USER_SPACE);
        pattern::split(&self.0) == (module, &symbol.name)
    }

    /// True if it names this symbol to a mechanism: system calls and LSM hooks have the kernel's
    /// prefix.
    pub fn is_for(&self, mechanism: Mechanism, symbol: &Symbol) -> bool {
        let is = |prefix| mechanism.kernel_name(self.as_str(), prefix) == symbol.name;
        self.is(symbol) || (symbol.module.is_none() && SYSCALL_PREFIXES.into_iter().any(is))
    }
}

impl FromStr for FunctionName {
    type Err = NotAFunction;

    fn from_str(text: &str) -> Result<FunctionName, NotAFunction> {
        let shown = || text.chars().take(80).collect();
        if text.contains(['*', '?', '[']) {
            return Err(NotAFunction::Pattern(shown()));
        }
        // The kernel's name of a module has no dash, its file may have.
        let renamed = text
            .split_once(':')
            .map(|(module, name)| pattern::joined(Some(&module.replace('-', "_")), name));
        let text = renamed.as_deref().unwrap_or(text);
        let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let (module, name) = pattern::split(text);
        let plain = name.chars().all(|c| is_word(c) || c == '.')
            && name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
            && module.is_none_or(|module| !module.is_empty() && module.chars().all(is_word));
        match ArrayString::from(text) {
            Ok(name) if plain => Ok(FunctionName(name)),
            _ => Err(NotAFunction::Malformed(shown())),
        }
    }
}

impl fmt::Display for FunctionName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

tramplab_protocol::by_text!(FunctionName, NotAFunction);

/// The functions that an attach test chooses from: a pattern, or the name of a list of patterns. It
/// has the characters of a pattern.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(try_from = "String", into = "String")]
#[schemars(with = "Pattern")]
pub struct Among(ArrayString<{ pattern::LONGEST }>);

impl FromStr for Among {
    type Err = NotAPattern;

    fn from_str(text: &str) -> Result<Among, NotAPattern> {
        text.parse::<Pattern>()?;
        Ok(Among(ArrayString::from(text).expect("a pattern is short enough")))
    }
}

impl fmt::Display for Among {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

tramplab_protocol::by_text!(Among, NotAPattern);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tells_names_from_patterns() {
        for (name, module) in [
            ("__sys_bpf", None),
            ("do_open.constprop.0", None),
            ("_x", None),
            ("xfs:xfs_fs_free", Some("xfs")),
            ("8021q:vlan_ioctl_handler", Some("8021q")),
            ("kvm-amd:svm_init", Some("kvm_amd")),
        ] {
            let parsed = name.parse::<FunctionName>().unwrap();
            assert_eq!((parsed.as_str(), parsed.module()), (&*name.replace('-', "_"), module));
        }
        let error = |text: &str| text.parse::<FunctionName>().unwrap_err();
        for text in ["tcp_*", "vfs_rea?", "[ab]", "xfs:*", "x*:xfs_fs_free"] {
            assert_eq!(error(text), NotAFunction::Pattern(text.to_owned()));
        }
        let long = "a".repeat(LONGEST + 1);
        for text in
            ["", "9p", "a b", "a/b", "a@b", "..", "a\n", ":a", "m:", "m.n:a", "m:n:a", &long]
        {
            assert!(matches!(error(text), NotAFunction::Malformed(_)), "{text}");
        }
    }

    /// A module may have a function of the same name as the image.
    #[test]
    fn names_a_symbol_of_one_module() {
        let symbol = |module: Option<&str>| Symbol {
            name: "t_show".to_owned(),
            module: module.map(str::to_owned),
            start: 1,
            end: 2,
        };
        for (name, of_image, of_module) in
            [("t_show", true, false), ("xfs:t_show", false, true), ("xfs:other", false, false)]
        {
            let name: FunctionName = name.parse().unwrap();
            assert_eq!(
                (name.is(&symbol(None)), name.is(&symbol(Some("xfs")))),
                (of_image, of_module)
            );
            assert!(!name.is(&symbol(Some("btrfs"))));
        }
        let call = |name: &str| Symbol { name: name.to_owned(), ..symbol(None) };
        let name: FunctionName = "getppid".parse().unwrap();
        for (mechanism, symbol, expected) in [
            (Mechanism::Ksyscall, "__x64_sys_getppid", true),
            (Mechanism::Kretsyscall, "__arm64_sys_getppid", true),
            (Mechanism::Ksyscall, "getppid", true),
            (Mechanism::Ksyscall, "__x64_sys_getpid", false),
            (Mechanism::Lsm, "bpf_lsm_getppid", true),
            (Mechanism::Fentry, "bpf_lsm_getppid", false),
            (Mechanism::Kprobe, "__x64_sys_getppid", false),
        ] {
            assert_eq!(name.is_for(mechanism, &call(symbol)), expected, "{mechanism} {symbol}");
        }
    }
}
