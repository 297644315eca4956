// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reads the configuration of the host's apt: mirror, proxies and passwords. Runs no apt.

use base64::{Engine, prelude::BASE64_STANDARD};
use percent_encoding::percent_decode_str;
use std::{
    collections::HashMap,
    env, fs,
    path::{Path, PathBuf},
    sync::{Arc, LazyLock, atomic::AtomicBool},
};
use ureq::http::Uri;

const DEFAULT_MIRROR: &str = "http://deb.debian.org/debian";
const DEFAULT_SNAPSHOT: &str = "https://snapshot.debian.org/archive/debian";
/// Files below the root: of Debian, Arch, Alpine and NixOS; of Fedora; of openSUSE.
const AUTHORITIES: [&str; 3] = [
    "etc/ssl/certs/ca-certificates.crt",
    "etc/pki/tls/certs/ca-bundle.crt",
    "etc/ssl/ca-bundle.pem",
];

/// How to reach Debian's archive.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// In the order in which they are asked; without a trailing slash.
    pub(crate) mirrors: Vec<String>,
    /// The archive of Debian's older versions; without a trailing slash and a time.
    pub(crate) snapshot: String,
    /// apt's names in small letters: `acquire::http::proxy`.
    apt: HashMap<String, String>,
    /// `http_proxy`, `https_proxy`, `no_proxy`.
    environment: HashMap<&'static str, String>,
    logins: Vec<Login>,
    /// Ends fetches, which keep what they have.
    pub(crate) stopped: Arc<AtomicBool>,
    /// The file of the certificates that sign those of servers. It need not exist.
    pub(crate) authorities: PathBuf,
}

/// A line of apt_auth.conf(5).
#[derive(Clone, Debug, PartialEq, Eq)]
struct Login {
    machine: String,
    login: String,
    password: String,
}

/// Set to end all fetches of this process.
pub static STOPPED: LazyLock<Arc<AtomicBool>> = LazyLock::new(Arc::default);

impl Settings {
    pub fn of_host() -> Settings {
        let variable = |name: &str| env::var(name).ok().filter(|value| !value.is_empty());
        Settings { stopped: STOPPED.clone(), ..Settings::of(Path::new("/"), variable) }
    }

    fn of(root: &Path, variable: impl Fn(&str) -> Option<String>) -> Settings {
        let etc = root.join("etc/apt");
        let read = |path: PathBuf| fs::read_to_string(path).unwrap_or_default();
        let url = |name| Some(variable(name)?.trim_end_matches('/').to_owned());
        let own = url("TRAMPLAB_MIRROR");
        let mut snapshot = url("TRAMPLAB_SNAPSHOT").unwrap_or_else(|| DEFAULT_SNAPSHOT.to_owned());
        let mut mirrors: Vec<String> = own.or_else(|| host_mirror(root)).into_iter().collect();
        if mirrors.first().is_none_or(|mirror| mirror != DEFAULT_MIRROR) {
            mirrors.push(DEFAULT_MIRROR.to_owned());
        }
        // Servers are printed: their passwords are kept apart.
        let mut of_urls = Vec::new();
        for server in mirrors.iter_mut().chain([&mut snapshot]) {
            if let Some((plain, login)) = split_login(server) {
                *server = plain;
                of_urls.push(login);
            }
        }
        let mut apt = variable("APT_CONFIG").map(|path| read(path.into())).unwrap_or_default();
        for path in parts(&etc.join("apt.conf.d")).into_iter().chain([etc.join("apt.conf")]) {
            apt += &format!("\n{}", read(path));
        }
        let logins = [etc.join("auth.conf")].into_iter().chain(parts(&etc.join("auth.conf.d")));
        let environment =
            ["http_proxy", "https_proxy", "no_proxy"].into_iter().filter_map(|name| {
                let value = variable(name).or_else(|| variable(&name.to_ascii_uppercase()))?;
                Some((name, value))
            });
        let apt = configuration(&apt);
        let authorities = apt.get("acquire::https::cainfo").cloned();
        let authorities = authorities.or_else(|| variable("SSL_CERT_FILE")).map(PathBuf::from);
        let of_system =
            || AUTHORITIES.map(|file| root.join(file)).into_iter().find(|f| f.is_file());
        let of_files = logins.flat_map(|path| self::logins(&read(path)));
        Settings {
            mirrors,
            snapshot,
            apt,
            stopped: Arc::default(),
            environment: environment.collect(),
            // A URL's own login comes before that of a file.
            logins: of_urls.into_iter().chain(of_files).collect(),
            authorities: authorities.or_else(of_system).unwrap_or_default(),
        }
    }

    #[cfg(test)]
    pub(crate) fn with_environment(variables: &[(&'static str, &str)]) -> Settings {
        let environment = variables.iter().map(|(name, value)| (*name, (*value).to_owned()));
        Settings { environment: environment.collect(), ..Settings::default() }
    }

    /// Frozen mirrors need this to be false.
    pub(crate) fn checks_dates(&self) -> bool {
        let said = self.apt.get("acquire::check-valid-until");
        !said.is_some_and(|said| ["false", "no", "off", "0"].contains(&said.as_str()))
    }

    /// The proxy for a request. apt's settings come before the environment, as with apt.
    pub(crate) fn proxy(&self, uri: &Uri) -> Option<String> {
        let (scheme, host) = (uri.scheme_str()?, uri.host()?.to_ascii_lowercase());
        let apt = |scheme: &str, of_host: &str| {
            self.apt.get(&format!("acquire::{scheme}::proxy{of_host}")).map(String::as_str)
        };
        let own = apt(scheme, &format!("::{host}"));
        let is_excepted = own.is_none()
            && self.environment.get("no_proxy").is_some_and(|list| is_listed(&host, list));
        if is_excepted {
            return None;
        }
        let given = own.or_else(|| apt(scheme, "")).or_else(|| apt("http", "")).or_else(|| {
            self.environment.get(format!("{scheme}_proxy").as_str()).map(String::as_str)
        });
        given.filter(|proxy| !proxy.is_empty() && *proxy != "DIRECT").map(str::to_owned)
    }

    /// The header for a server with a password. apt sends none over http unless the line says so.
    pub(crate) fn login(&self, uri: &Uri) -> Option<String> {
        let place = format!("{}{}", uri.authority()?, uri.path());
        let is_for = |login: &&Login| {
            let (scheme, machine) =
                login.machine.split_once("://").unwrap_or(("https", &login.machine));
            uri.scheme_str() == Some(scheme)
                && place.strip_prefix(machine).is_some_and(|rest| {
                    rest.starts_with(['/', ':']) || machine.ends_with('/') || rest.is_empty()
                })
        };
        let Login { login, password, .. } = self.logins.iter().find(is_for)?;
        Some(format!("Basic {}", BASE64_STANDARD.encode(format!("{login}:{password}"))))
    }
}

/// Separates the URL and the login of `https://user:password@host/debian`.
fn split_login(url: &str) -> Option<(String, Login)> {
    let (scheme, rest) = url.split_once("://")?;
    let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let (login, host) = authority.rsplit_once('@')?;
    let (login, password) = login.split_once(':').unwrap_or((login, ""));
    let decoded = |text: &str| percent_decode_str(text).decode_utf8_lossy().into_owned();
    let plain = format!("{scheme}://{host}{path}");
    let (machine, login, password) = (plain.clone(), decoded(login), decoded(password));
    Some((plain, Login { machine, login, password }))
}

/// The files of a folder as apt reads them.
fn parts(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut paths: Vec<PathBuf> = entries
        .filter(|path| path.extension().is_none_or(|extension| extension == "conf"))
        .collect();
    paths.sort();
    paths
}

/// True if `no_proxy` has the host, or a domain that it is in.
fn is_listed(host: &str, list: &str) -> bool {
    list.split([',', ' ']).map(str::trim).filter(|entry| !entry.is_empty()).any(|entry| {
        let domain = entry.trim_start_matches('*').trim_start_matches('.').to_ascii_lowercase();
        domain.is_empty()
            || host.strip_suffix(&domain).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
    })
}

/// Reads apt.conf(5): `Acquire::http::Proxy "URL";` and `Acquire { http { Proxy "URL"; }; };`.
fn configuration(text: &str) -> HashMap<String, String> {
    let mut found = HashMap::new();
    let mut scopes: Vec<String> = Vec::new();
    let mut words: Vec<String> = Vec::new();
    for token in tokens(text) {
        let name = |word: &str| {
            let path = scopes.iter().map(String::as_str).chain([word]);
            path.collect::<Vec<_>>().join("::").to_ascii_lowercase()
        };
        match token.as_str() {
            "{" => scopes.push(words.drain(..).next_back().unwrap_or_default()),
            "}" => {
                scopes.pop();
            }
            ";" => {
                if let [word, value] = words.as_slice() {
                    found.insert(name(word), value.clone());
                }
                words.clear();
            }
            _ => words.push(token),
        }
    }
    found
}

fn tokens(text: &str) -> Vec<String> {
    let mut tokens = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.trim_start().chars().next() {
        rest = rest.trim_start();
        let (token, after) = if rest.starts_with("//") || first == '#' {
            (None, rest.find('\n').unwrap_or(rest.len()))
        } else if rest.starts_with("/*") {
            (None, rest.find("*/").map_or(rest.len(), |at| at + 2))
        } else if let Some(quoted) = rest.strip_prefix('"') {
            let end = quoted.find('"').unwrap_or(quoted.len());
            (Some(&quoted[..end]), (end + 2).min(rest.len()))
        } else if "{};".contains(first) {
            (Some(&rest[..1]), 1)
        } else {
            let is_end = |c: char| c.is_whitespace() || "{};\"".contains(c);
            let end = rest.find(is_end).unwrap_or(rest.len());
            (Some(&rest[..end]), end)
        };
        tokens.extend(token.map(str::to_owned));
        rest = &rest[after..];
    }
    tokens
}

/// Reads `machine NAME login NAME password WORD`, in one line or several.
fn logins(text: &str) -> Vec<Login> {
    let lines = text.lines().filter(|line| !line.trim_start().starts_with('#'));
    let mut words = lines.flat_map(str::split_whitespace).map(str::to_owned);
    let mut logins: Vec<Login> = Vec::new();
    while let (Some(key), Some(value)) = (words.next(), words.next()) {
        match (key.as_str(), logins.last_mut()) {
            ("machine", _) => {
                let (login, password) = Default::default();
                logins.push(Login { machine: value, login, password });
            }
            ("login", Some(last)) => last.login = value,
            ("password", Some(last)) => last.password = value,
            _ => {}
        }
    }
    logins
}

/// The URL of the mirror, without a trailing slash; None on other systems than Debian.
fn host_mirror(root: &Path) -> Option<String> {
    let os_release = fs::read_to_string(root.join("etc/os-release")).ok()?;
    let etc = root.join("etc/apt");
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

    const APT: &str = "// Acquire::http::Proxy \"http://comment\";\n\
        # Acquire::http::Proxy \"http://comment\";\n/* Acquire { */\n\
        Acquire { http { Proxy \"http://apt:3142/\"; Proxy::Direct.example \"DIRECT\"; };\n\
        Check-Valid-Until \"false\"; };\nAPT::Architectures { \"amd64\"; };\n\
        Acquire::https::Proxy \"http://apt:3143\";";

    fn proxied(apt: &str, environment: &[(&'static str, &str)], url: &str) -> Option<String> {
        let environment = environment.iter().map(|(name, value)| (*name, (*value).to_owned()));
        let (apt, environment) = (configuration(apt), environment.collect());
        Settings { apt, environment, ..Settings::default() }.proxy(&url.parse().unwrap())
    }

    #[test]
    fn reads_the_files_of_the_host_and_the_environment() {
        let root = tempfile::tempdir().unwrap();
        let put = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        let none = |_: &str| None;
        assert_eq!(Settings::of(root.path(), none).mirrors, [DEFAULT_MIRROR]);
        put("etc/os-release", BOOKWORM);
        put("etc/apt/sources.list.d/a.list", "deb https://corp/debian/ bookworm main\n");
        put("etc/apt/apt.conf.d/20proxy", "Acquire::http::Proxy \"http://old:1\";");
        put("etc/apt/apt.conf", "Acquire::http::Proxy \"http://new:1\";");
        put("etc/apt/apt.conf.d/30other.dpkg-old", "Acquire::http::Proxy \"http://none:1\";");
        put("etc/apt/auth.conf.d/corp.conf", "machine corp login u password p");
        let settings = Settings::of(root.path(), none);
        assert_eq!(settings.mirrors, ["https://corp/debian", DEFAULT_MIRROR]);
        assert_eq!(settings.proxy(&"http://a/".parse().unwrap()).unwrap(), "http://new:1");
        assert!(settings.login(&"https://corp/debian/x".parse().unwrap()).is_some());

        put("etc/apt/auth.conf", "machine http://own/ login file password file");
        let variables = [("TRAMPLAB_MIRROR", "http://w:r@own/x/"), ("NO_PROXY", "a")];
        let settings = Settings::of(root.path(), |name| {
            let found = variables.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).to_owned())
        });
        assert_eq!(settings.mirrors, ["http://own/x", DEFAULT_MIRROR]);
        let login = |url: &str| settings.login(&url.parse().unwrap());
        assert_eq!(login("http://own/x/dists"), Some("Basic dzpy".into()));
        assert_eq!(login("http://own/y"), Some("Basic ZmlsZTpmaWxl".into()));
        assert_eq!(settings.proxy(&"http://a/".parse().unwrap()), None);
    }

    #[test]
    fn separates_a_mirror_from_its_login() {
        for (url, expected) in [
            ("https://u:p@corp/debian", Some(("https://corp/debian", "u", "p"))),
            ("https://u%40corp:p%2F%3a@corp", Some(("https://corp", "u@corp", "p/:"))),
            ("https://token@corp:8080/", Some(("https://corp:8080/", "token", ""))),
            ("https://nexus.corp/repo/@debian", None),
            ("https://corp/debian", None),
        ] {
            let expected = expected.map(|(plain, login, password)| {
                let [machine, login, password] = [plain, login, password].map(str::to_owned);
                (plain.to_owned(), Login { machine, login, password })
            });
            assert_eq!(split_login(url), expected, "{url}");
        }
    }

    #[test]
    fn finds_the_certificates_of_apt_the_environment_or_the_system() {
        let root = tempfile::tempdir().unwrap();
        let authorities = |variables: &[&str]| {
            let is_set = |name: &str| variables.contains(&name).then(|| "/env.pem".to_owned());
            Settings::of(root.path(), is_set).authorities
        };
        assert_eq!(authorities(&[]), Path::new(""));
        for file in AUTHORITIES.iter().rev().map(|file| root.path().join(file)) {
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(&file, "").unwrap();
            assert_eq!(authorities(&[]), file);
        }
        assert_eq!(authorities(&["SSL_CERT_FILE"]), Path::new("/env.pem"));
        let etc = root.path().join("etc/apt");
        fs::create_dir_all(&etc).unwrap();
        fs::write(etc.join("apt.conf"), "Acquire::https::CAInfo \"/apt.pem\";").unwrap();
        assert_eq!(authorities(&["SSL_CERT_FILE"]), Path::new("/apt.pem"));
    }

    #[test]
    fn finds_the_proxy_of_apt_or_of_the_environment() {
        let environment =
            [("http_proxy", "http://env:1"), ("no_proxy", "localhost, .example.org,corp")];
        for (apt, url, expected) in [
            (APT, "http://a/x", Some("http://apt:3142/")),
            (APT, "https://a/x", Some("http://apt:3143")),
            (APT, "http://direct.example/x", None),
            (APT, "http://b.example.org/x", None),
            ("", "http://a/x", Some("http://env:1")),
            ("", "https://a/x", None),
            ("", "http://localhost/x", None),
            ("", "http://deep.corp:80/x", None),
            ("", "http://notcorp/x", Some("http://env:1")),
            ("Acquire::http::Proxy \"DIRECT\";", "http://a/x", None),
        ] {
            assert_eq!(proxied(apt, &environment, url).as_deref(), expected, "{apt} {url}");
        }
        assert_eq!(proxied("", &[("http_proxy", "x"), ("no_proxy", "*")], "http://a/"), None);
    }

    #[test]
    fn keeps_apts_word_on_old_releases() {
        let checks =
            |apt: &str| Settings { apt: configuration(apt), ..Settings::default() }.checks_dates();
        assert!(checks("") && checks("Acquire::Check-Valid-Until true;"));
        assert!(!checks(APT) && !checks("acquire::check-valid-until \"no\";"));
    }

    #[test]
    fn sends_passwords_only_where_they_are_for() {
        let text = "# machine c login x password y\nmachine a login u password p\n\
                    machine http://b:8080/debian\n login v\n password q\n";
        let settings = Settings { logins: logins(text), ..Settings::default() };
        for (url, expected) in [
            ("https://a/x", Some("u:p")),
            ("http://a/x", None),
            ("https://ab/x", None),
            ("https://c/x", None),
            ("http://b:8080/debian/x", Some("v:q")),
            ("http://b:8080/other", None),
        ] {
            let expected = expected.map(|login| format!("Basic {}", BASE64_STANDARD.encode(login)));
            assert_eq!(settings.login(&url.parse().unwrap()), expected, "{url}");
        }
    }
}
