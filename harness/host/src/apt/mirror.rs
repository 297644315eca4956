// SPDX-License-Identifier: MIT OR Apache-2.0
//! The Debian mirror that the host itself uses.

use std::{fs, path::Path};

/// The URL of the mirror, without a trailing slash; None on other systems than Debian.
pub(super) fn host_mirror() -> Option<String> {
    let os_release = fs::read_to_string("/etc/os-release").ok()?;
    let etc = Path::new("/etc/apt");
    let mut files = vec![etc.join("sources.list")];
    let parts = fs::read_dir(etc.join("sources.list.d")).into_iter().flatten().flatten();
    files.extend(parts.map(|entry| entry.path()));
    files.sort();
    let texts = files
        .iter()
        .filter_map(|path| Some((path.extension()?.to_str()?, fs::read_to_string(path).ok()?)));
    let texts: Vec<_> = texts.collect();
    let texts: Vec<_> = texts.iter().map(|(extension, text)| (*extension, text.as_str())).collect();
    mirror(&os_release, &texts)
}

/// The first http(s) source for `main` of the host's own release. `texts` holds pairs of file
/// extension and content.
fn mirror(os_release: &str, texts: &[(&str, &str)]) -> Option<String> {
    let value = |key: &str| {
        let value =
            os_release.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='))?;
        Some(value.trim_matches('"').to_owned())
    };
    if value("ID")? != "debian" {
        return None;
    }
    let codename = value("VERSION_CODENAME")?;
    let fits = |uri: &str, suites: &[&str], components: &[&str]| {
        let http = uri.starts_with("http://") || uri.starts_with("https://");
        // A snapshot's release files have expired.
        http && !uri.contains("snapshot.debian.org")
            && suites.contains(&codename.as_str())
            && components.contains(&"main")
    };
    for (extension, text) in texts {
        let found = match *extension {
            "sources" => text.split("\n\n").find_map(|stanza| deb822_uri(stanza, fits)),
            "list" => text.lines().find_map(|line| one_line_uri(line, fits)),
            _ => None,
        };
        if let Some(uri) = found {
            return Some(uri.trim_end_matches('/').to_owned());
        }
    }
    None
}

fn deb822_uri(stanza: &str, fits: impl Fn(&str, &[&str], &[&str]) -> bool) -> Option<String> {
    let words = |field: &str| -> Vec<&str> {
        let value = stanza.lines().find_map(|line| {
            let (name, value) = line.split_once(':')?;
            name.eq_ignore_ascii_case(field).then_some(value)
        });
        value.unwrap_or_default().split_whitespace().collect()
    };
    if !words("Types").contains(&"deb") || words("Enabled").contains(&"no") {
        return None;
    }
    let (suites, components) = (words("Suites"), words("Components"));
    words("URIs").into_iter().find(|uri| fits(uri, &suites, &components)).map(str::to_owned)
}

fn one_line_uri(line: &str, fits: impl Fn(&str, &[&str], &[&str]) -> bool) -> Option<String> {
    let rest = line.trim().strip_prefix("deb ")?.trim_start();
    let rest = match rest.strip_prefix('[') {
        Some(options) => options.split_once(']')?.1,
        None => rest,
    };
    let words: Vec<_> = rest.split_whitespace().take_while(|word| !word.starts_with('#')).collect();
    let (uri, rest) = words.split_first()?;
    let (suite, components) = rest.split_first()?;
    fits(uri, &[suite], components).then(|| (*uri).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOOKWORM: &str =
        "PRETTY_NAME=\"Debian GNU/Linux 12 (bookworm)\"\nVERSION_CODENAME=bookworm\nID=debian\n";
    const UBUNTU: &str = "VERSION_CODENAME=noble\nID=ubuntu\nID_LIKE=debian\n";

    #[test]
    fn finds_the_mirror_of_the_hosts_own_release() {
        let security = "Types: deb\nURIs: http://deb.debian.org/debian-security\n\
                        Suites: bookworm-security\nComponents: main\n";
        let own = "Types: deb\n# a comment: here\nURIs: https://ftp.example.org/debian/\n\
                   Suites: bookworm bookworm-updates\nComponents: main contrib\n";
        let list = "# deb http://old.example.org/debian bookworm main\n\
                    deb-src http://src.example.org/debian bookworm main\n\
                    deb [arch=amd64 signed-by=/k.gpg] http://list.example.org/debian bookworm \
                    main # ours\n";
        let both = format!("{security}\n{own}");
        let disabled = format!("Enabled: no\n{own}");
        let snapshot = own.replace(
            "ftp.example.org/debian",
            "snapshot.debian.org/archive/debian/20250520T000000Z",
        );
        let other_component = own.replace("main contrib", "contrib");
        let file = own.replace("https://ftp.example.org", "file:/srv");
        for (os_release, sources, expected) in [
            (BOOKWORM, vec![("sources", both.as_str())], Some("https://ftp.example.org/debian")),
            (BOOKWORM, vec![("list", list)], Some("http://list.example.org/debian")),
            (
                BOOKWORM,
                vec![("list", ""), ("sources", own)],
                Some("https://ftp.example.org/debian"),
            ),
            (BOOKWORM, vec![("disabled", list)], None),
            (BOOKWORM, vec![("sources", security)], None),
            (BOOKWORM, vec![("sources", disabled.as_str())], None),
            (BOOKWORM, vec![("sources", snapshot.as_str())], None),
            (BOOKWORM, vec![("sources", other_component.as_str())], None),
            (BOOKWORM, vec![("sources", file.as_str())], None),
            (BOOKWORM, vec![("list", "deb [unclosed http://x/debian bookworm main\ndeb\n")], None),
            (BOOKWORM, vec![], None),
            (UBUNTU, vec![("list", "deb http://archive.ubuntu.com/ubuntu noble main")], None),
        ] {
            assert_eq!(mirror(os_release, &sources).as_deref(), expected, "{sources:?}");
        }
    }
}
