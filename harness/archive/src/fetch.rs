// SPDX-License-Identifier: MIT OR Apache-2.0
//! Fetches files over http and https: resumes them, limits them, verifies them as a whole.

mod forward;
mod resolver;

use crate::{ArchiveError, host::Settings, io_error, release::File, sha256};
use resolver::Once;
use std::{
    collections::HashMap,
    fs,
    io::{self, Read, Write},
    path::Path,
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};
use ureq::{
    Agent, Body, Proxy, ProxyProtocol,
    http::{Response, StatusCode, Uri, header},
    tls::{PemItem, RootCerts, TlsConfig, parse_pem},
    unversioned::transport::DefaultConnector,
};

const CONNECT_LIMIT: Duration = Duration::from_secs(30);
const SILENCE_LIMIT: Duration = Duration::from_secs(60);
const LIMIT: Duration = Duration::from_secs(30 * 60);
/// For a file of unknown hash: those are small.
const SHORT_LIMIT: Duration = Duration::from_secs(2 * 60);
const REDIRECTS: usize = 5;
/// Tries that bring little, before a fetch fails.
const TRIES: usize = 3;
/// Bytes. A server that sends less each time does not keep a fetch alive.
const LITTLE: u64 = 1 << 14;

#[derive(Debug)]
pub(crate) struct Client {
    settings: Settings,
    /// By proxy, and whether it gets whole requests.
    agents: Mutex<HashMap<(Option<String>, bool), Agent>>,
}

impl Client {
    pub fn new(settings: Settings) -> Client {
        Client { settings, agents: Mutex::default() }
    }

    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// A file of at most so many bytes, whose hash nobody knows.
    pub fn bytes(&self, url: &str, most: u64) -> Result<Vec<u8>, ArchiveError> {
        let start = Instant::now();
        let attempt = || {
            let mut bytes = Vec::new();
            let limit = SHORT_LIMIT.saturating_sub(start.elapsed());
            let body = self.get(url, 0, limit)?.into_body().into_reader();
            body.take(most + 1).read_to_end(&mut bytes).map_err(|error| broken(url, error))?;
            if bytes.len() as u64 > most {
                return Err(ArchiveError::TooLong { url: url.to_owned(), most });
            }
            Ok(bytes)
        };
        let mut result = attempt();
        for _ in 1..TRIES {
            // A server that does not answer at all is not asked again.
            let is_early = start.elapsed() < CONNECT_LIMIT;
            match result {
                Err(error) if is_early && error.may_be_transient() => result = attempt(),
                result => return result,
            }
        }
        result
    }

    /// Asks whether a server has a file of that size. Its content is verified when it is fetched.
    pub fn has(&self, url: &str, file: &File) -> Result<(), ArchiveError> {
        let response = self.get(url, 0, SHORT_LIMIT)?;
        match response.body().content_length() {
            Some(found) if found != file.size => {
                Err(ArchiveError::Size { url: url.to_owned(), expected: file.size, found })
            }
            _ => Ok(()),
        }
    }

    /// Fetches a file. Goes on where an earlier fetch was interrupted. Adds to `count` what comes.
    pub fn file(
        &self,
        url: &str,
        file: &File,
        to: &Path,
        count: &AtomicU64,
    ) -> Result<(), ArchiveError> {
        let length = || fs::metadata(to).map_or(0, |metadata| metadata.len());
        let start = Instant::now();
        let mut is_resumed = length() > 0;
        let mut is_restarted = false;
        let mut idle = 0;
        loop {
            let before = length();
            if before < file.size
                && let Err(error) = self.append(url, file, to, before, count)
            {
                idle = if length() >= before + LITTLE { 0 } else { idle + 1 };
                if error.may_be_transient() && idle < TRIES && start.elapsed() < LIMIT {
                    is_resumed = true;
                    continue;
                }
                // A client without a network resumes later, and so does one that was stopped.
                if !matches!(error, ArchiveError::Fetch { .. } | ArchiveError::Stopped { .. }) {
                    let _ = fs::remove_file(to);
                }
                return Err(error);
            }
            let found = sha256(to).map_err(io_error("read", to))?;
            if found == file.sha256 {
                return Ok(());
            }
            fs::remove_file(to).map_err(io_error("remove", to))?;
            if !is_resumed || is_restarted {
                let expected = file.sha256.clone();
                return Err(ArchiveError::Checksum { url: url.to_owned(), expected, found });
            }
            // The first part may be of another time.
            is_restarted = true;
        }
    }

    fn append(
        &self,
        url: &str,
        file: &File,
        to: &Path,
        kept: u64,
        count: &AtomicU64,
    ) -> Result<(), ArchiveError> {
        let response = self.get(url, kept, LIMIT)?;
        let kept = if response.status() == StatusCode::PARTIAL_CONTENT { kept } else { 0 };
        let size = |found: u64| {
            let (url, expected) = (url.to_owned(), file.size);
            ArchiveError::Size { url, expected, found }
        };
        let write = io_error("write", to);
        if let Some(announced) = response.body().content_length()
            && kept + announced != file.size
        {
            return Err(size(kept + announced));
        }
        let mut out = fs::OpenOptions::new().create(true).append(true).open(to).map_err(&write)?;
        out.set_len(kept).map_err(&write)?;
        let mut body = response.into_body().into_reader();
        let mut buffer = vec![0; 1 << 16];
        let mut length = kept;
        loop {
            if self.settings.stopped.load(Ordering::Relaxed) {
                return Err(ArchiveError::Stopped { url: url.to_owned() });
            }
            let read = match body.read(&mut buffer) {
                Ok(0) if length < file.size => {
                    let (url, expected) = (url.to_owned(), file.size);
                    return Err(ArchiveError::Truncated { url, expected, found: length });
                }
                Ok(0) => return Ok(()),
                Ok(read) => read,
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                    let (url, expected) = (url.to_owned(), file.size);
                    return Err(ArchiveError::Truncated { url, expected, found: length });
                }
                Err(error) => return Err(broken(url, error)),
            };
            length += read as u64;
            if length > file.size {
                return Err(ArchiveError::TooLong { url: url.to_owned(), most: file.size });
            }
            out.write_all(&buffer[..read]).map_err(&write)?;
            count.fetch_add(read as u64, Ordering::Relaxed);
        }
    }

    /// Follows redirects within a host only: another one was not asked.
    fn get(&self, url: &str, from: u64, limit: Duration) -> Result<Response<Body>, ArchiveError> {
        let start = Instant::now();
        let failed = |source: ureq::Error| {
            let source = Box::new(source);
            ArchiveError::Fetch { url: url.to_owned(), source }
        };
        let mut place: Uri = url.parse().map_err(|_| failed(ureq::Error::BadUri(url.into())))?;
        for _ in 0..=REDIRECTS {
            let limit = limit.saturating_sub(start.elapsed());
            let request = self.agent(&place).map_err(failed)?.get(&place).config();
            let mut request = request.timeout_global(Some(limit)).build();
            request = request.header(header::ACCEPT_ENCODING, "identity");
            if from > 0 {
                request = request.header(header::RANGE, format!("bytes={from}-"));
            }
            if let Some(login) = self.settings.login(&place) {
                request = request.header(header::AUTHORIZATION, login);
            }
            let response = request.call().map_err(failed)?;
            let header = |name| response.headers().get(name).and_then(|value| value.to_str().ok());
            match response.status() {
                StatusCode::OK => return Ok(response),
                StatusCode::PARTIAL_CONTENT
                    if header(header::CONTENT_RANGE)
                        .is_some_and(|range| range.starts_with(&format!("bytes {from}-"))) =>
                {
                    return Ok(response);
                }
                status if status.is_redirection() => {
                    let to = header(header::LOCATION).unwrap_or_default().to_owned();
                    match absolute(&place, &to).parse::<Uri>() {
                        Ok(to) if may_redirect(&place, &to) => place = to,
                        _ => return Err(ArchiveError::Redirect { url: url.to_owned(), to }),
                    }
                }
                status => {
                    return Err(ArchiveError::Status {
                        url: url.to_owned(),
                        status: status.as_u16(),
                    });
                }
            }
        }
        Err(failed(ureq::Error::TooManyRedirects))
    }

    fn agent(&self, uri: &Uri) -> Result<Agent, ureq::Error> {
        let proxy = self.settings.proxy(uri);
        let is_plain = uri.scheme_str() == Some("http");
        let forward = proxy.clone().filter(|proxy| {
            let is_http = |proxy: Proxy| proxy.protocol() == ProxyProtocol::Http;
            is_plain && Proxy::new(proxy).is_ok_and(is_http)
        });
        let mut agents = self.agents.lock().expect("not poisoned: no panic while it is held");
        let key = (proxy, forward.is_some());
        if let Some(agent) = agents.get(&key) {
            return Ok(agent.clone());
        }
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .user_agent("tramplab")
            .timeout_connect(Some(CONNECT_LIMIT))
            .timeout_per_read(Some(SILENCE_LIMIT))
            .tls_config(TlsConfig::builder().root_certs(roots(&self.settings.authorities)).build());
        let agent = match (&key.0, forward) {
            (_, Some(forward)) => forward::agent(config.proxy(None).build(), &forward)?,
            (proxy, None) => {
                let proxy = proxy.as_deref().map(Proxy::new).transpose()?;
                let (config, connector) =
                    (config.proxy(proxy).build(), DefaultConnector::default());
                Agent::with_parts(config, connector, Once::of(None))
            }
        };
        agents.insert(key, agent.clone());
        Ok(agent)
    }
}

/// The system's certificates: they include a company's own. Else those of ureq.
fn roots(authorities: &Path) -> RootCerts {
    let text = fs::read(authorities).unwrap_or_default();
    let certificates = parse_pem(&text).filter_map(|item| match item {
        Ok(PemItem::Certificate(certificate)) => Some(certificate),
        _ => None,
    });
    let certificates: Vec<_> = certificates.collect();
    if certificates.is_empty() { RootCerts::WebPki } else { certificates.into() }
}

fn broken(url: &str, error: io::Error) -> ArchiveError {
    ArchiveError::Fetch { url: url.to_owned(), source: Box::new(error.into()) }
}

fn absolute(from: &Uri, location: &str) -> String {
    if location.contains("://") {
        return location.to_owned();
    }
    let authority = from.authority().map_or("", |authority| authority.as_str());
    format!(
        "{}://{authority}/{}",
        from.scheme_str().unwrap_or("http"),
        location.trim_start_matches('/')
    )
}

/// Within one server, or from http to https of the same host.
fn may_redirect(from: &Uri, to: &Uri) -> bool {
    let is_upgrade = from.scheme_str() == Some("http")
        && to.scheme_str() == Some("https")
        && from.port_u16().is_none_or(|port| port == 80)
        && to.port_u16().is_none_or(|port| port == 443);
    let is_same = from.scheme_str() == to.scheme_str() && from.port_u16() == to.port_u16();
    from.host() == to.host() && (is_same || is_upgrade)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trusts_the_certificates_of_the_system_if_there_are_some() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.crt");
        let certificate = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        let key = "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n";
        assert!(matches!(roots(&path), RootCerts::WebPki));
        for (text, count) in [
            (String::new(), 0),
            (key.to_owned(), 0),
            (format!("a comment\n{certificate}{key}{certificate}"), 2),
        ] {
            fs::write(&path, &text).unwrap();
            match roots(&path) {
                RootCerts::Specific(found) => assert_eq!(found.len(), count, "{text}"),
                _ => assert_eq!(count, 0, "{text}"),
            }
        }
    }

    #[test]
    fn redirects_stay_on_one_host() {
        for (from, to, allowed) in [
            ("http://a/x", "/y", true),
            ("http://a/x", "http://a/y", true),
            ("http://a/x", "https://a/y", true),
            ("https://a/x", "http://a/y", false),
            ("http://a/x", "http://b/y", false),
            ("http://a/x", "https://b/y", false),
            ("http://a:80/x", "http://a:81/y", false),
            ("http://a:8080/x", "https://a/y", false),
            ("http://a/x", "ftp://a/y", false),
        ] {
            let from: Uri = from.parse().unwrap();
            let to: Uri = absolute(&from, to).parse().unwrap();
            assert_eq!(may_redirect(&from, &to), allowed, "{from} {to}");
        }
    }
}
