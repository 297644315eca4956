// SPDX-License-Identifier: MIT OR Apache-2.0
//! Functions to attach to, as the user names them.

use serde::{Deserialize, Serialize};
use std::{collections::HashSet, fmt, str::FromStr};

/// `vfs_read`, `tcp_*`, `ext4:ext4_*`: names with `*`, `?`, `[a-z]` and `[!a-z]`, as ftrace's
/// filters take them. Without a module it matches functions of the kernel image only.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(try_from = "String", into = "String")]
#[cfg_attr(
    feature = "schema",
    schemars(extend("pattern" = crate::schema::pattern(), "maxLength" = LONGEST))
)]
pub struct Pattern {
    module: Option<glob::Pattern>,
    name: glob::Pattern,
}

/// Bytes of module and name.
pub const LONGEST: usize = 128;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is no name or pattern of functions: expected up to {LONGEST} letters, digits, `_`, `.`, \
     `*`, `?` and `[a-z]`, as in tcp_*, or MODULE:PATTERN"
)]
pub struct NotAPattern(String);

impl Pattern {
    /// True if the function's name and module (none: the kernel image) match.
    pub fn matches(&self, name: &str, module: Option<&str>) -> bool {
        let of_module = match (&self.module, module) {
            (None, None) => true,
            (Some(wanted), Some(module)) => wanted.matches(module),
            (None, Some(_)) | (Some(_), None) => false,
        };
        of_module && self.name.matches(name)
    }

    /// The name, if it is one of the kernel image and no pattern.
    pub fn as_name(&self) -> Option<&str> {
        let name = self.name.as_str();
        (self.module.is_none() && is_plain(name)).then_some(name)
    }

    /// The name, with its module's if it has one, if it is no pattern.
    pub fn exact(&self) -> Option<String> {
        let text = self.to_string();
        is_plain(&text).then_some(text)
    }

    /// The module, if it asks for functions of one module and names it.
    pub fn module(&self) -> Option<&str> {
        self.module.as_ref().map(glob::Pattern::as_str).filter(|module| is_plain(module))
    }
}

/// Splits a function's name as users write it: `vfs_read`, `xfs:xfs_file_read_iter`.
pub fn split(name: &str) -> (Option<&str>, &str) {
    match name.split_once(':') {
        Some((module, name)) => (Some(module), name),
        None => (None, name),
    }
}

/// A function's name; of a module as kprobes take it.
pub fn joined(module: Option<&str>, name: &str) -> String {
    match module {
        Some(module) => format!("{module}:{name}"),
        None => name.to_owned(),
    }
}

fn is_plain(part: &str) -> bool {
    !part.contains(['*', '?', '['])
}

/// Several patterns. A list may have thousands of names, which are looked up.
#[derive(Debug)]
pub struct Patterns<'a> {
    names: HashSet<&'a str>,
    others: Vec<&'a Pattern>,
}

impl<'a> Patterns<'a> {
    pub fn new(all: &'a [Pattern]) -> Patterns<'a> {
        Patterns {
            names: all.iter().filter_map(Pattern::as_name).collect(),
            others: all.iter().filter(|one| one.as_name().is_none()).collect(),
        }
    }

    /// True if one of them matches.
    pub fn matches(&self, name: &str, module: Option<&str>) -> bool {
        (module.is_none() && self.names.contains(name))
            || self.others.iter().any(|one| one.matches(name, module))
    }
}

impl FromStr for Pattern {
    type Err = NotAPattern;

    fn from_str(text: &str) -> Result<Pattern, NotAPattern> {
        let wrong = || NotAPattern(text.chars().take(80).collect());
        let part = |part: &str| {
            let known = |c: char| c.is_ascii_alphanumeric() || "_.*?[]!-".contains(c);
            let plain = !part.is_empty() && !part.starts_with('.') && part.chars().all(known);
            plain.then(|| glob::Pattern::new(part).ok()).flatten().ok_or_else(wrong)
        };
        if text.len() > LONGEST {
            return Err(wrong());
        }
        let (module, name) = split(text);
        // The kernel's name of a module has no dash, its file may have.
        let module = module.map(|module| match is_plain(module) {
            true => module.replace('-', "_"),
            false => module.to_owned(),
        });
        let module = module.map(|module| part(&module)).transpose()?;
        Ok(Pattern { module, name: part(name)? })
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let module = self.module.as_ref().map(glob::Pattern::as_str);
        f.write_str(&joined(module, self.name.as_str()))
    }
}

crate::by_text!(Pattern, NotAPattern);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn matches_as_ftraces_filters_do() {
        for (pattern, name, module, expected) in [
            ("vfs_read", "vfs_read", None, true),
            ("vfs_read", "vfs_readv", None, false),
            ("tcp_*", "tcp_v4_connect", None, true),
            ("tcp_*", "mptcp_connect", None, false),
            ("*_read?", "vfs_readv", None, true),
            ("tcp_v[46]_*", "tcp_v6_connect", None, true),
            ("tcp_v[!4]_*", "tcp_v4_connect", None, false),
            ("a.constprop.*", "a.constprop.0", None, true),
            // A pattern without a module means the image, one with a module only modules.
            ("ext4_*", "ext4_read", Some("ext4"), false),
            ("ext4:ext4_*", "ext4_read", Some("ext4"), true),
            ("ext*:*", "ext4_read", Some("ext4"), true),
            ("ext4:*", "ext4_read", None, false),
        ] {
            let parsed: Pattern = pattern.parse().unwrap();
            assert_eq!(parsed.matches(name, module), expected, "{pattern} {name}");
            let several =
                ["no_such".parse().unwrap(), parsed.clone(), "no_such_*".parse().unwrap()];
            let several = Patterns::new(&several);
            assert_eq!(several.matches(name, module), expected, "{pattern} {name}, among others");
            assert_eq!(parsed.to_string(), pattern);
        }
    }

    #[test]
    fn names_the_module_that_it_is_of() {
        for (pattern, module, shown) in [
            ("vfs_*", None, "vfs_*"),
            ("xfs:xfs_*", Some("xfs"), "xfs:xfs_*"),
            ("kvm-amd:svm_*", Some("kvm_amd"), "kvm_amd:svm_*"),
            // Several modules, perhaps none.
            ("xf?:*", None, "xf?:*"),
            ("x[a-z]s:*", None, "x[a-z]s:*"),
        ] {
            let parsed: Pattern = pattern.parse().unwrap();
            assert_eq!((parsed.module(), &*parsed.to_string()), (module, shown));
        }
    }

    #[test]
    fn rejects_what_no_function_is_named_like() {
        let long = "a".repeat(LONGEST + 1);
        for text in ["", ":", "ext4:", ":x", "a b", "a/b", "tcp_[", "a**b", "a@b", ".x", "ü", &long]
        {
            assert!(text.parse::<Pattern>().is_err(), "{text}");
        }
    }
}
