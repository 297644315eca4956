// SPDX-License-Identifier: MIT OR Apache-2.0
//! Downloads one file by URL and SHA-256.

use super::{KernelError, manifest::Download};
use sha2::{Digest, Sha256};
use std::{
    fs::File,
    io::{self, Read, Write},
    path::Path,
    time::Duration,
};
use tramplab_model::name::hex;

const CONNECT_LIMIT: Duration = Duration::from_secs(30);
const LIMIT: Duration = Duration::from_secs(30 * 60);
/// Bytes of an image or a tarball; 6.12's tarball has 140 MiB.
const MOST: u64 = 4 << 30;

pub fn fetch(download: &Download, to: &Path) -> Result<(), KernelError> {
    fetch_up_to(MOST, download, to)
}

fn fetch_up_to(most: u64, download: &Download, to: &Path) -> Result<(), KernelError> {
    let failed = |source: ureq::Error| KernelError::Download {
        url: download.url.clone(),
        source: Box::new(source),
    };
    let agent: ureq::Agent = ureq::Agent::config_builder()
        .timeout_connect(Some(CONNECT_LIMIT))
        .timeout_global(Some(LIMIT))
        .build()
        .into();
    let response = agent.get(&download.url).call().map_err(failed)?;
    let mut body = response.into_body().into_reader();
    let write_error = |source| KernelError::Io { action: "write", path: to.to_owned(), source };
    let mut file = File::create(to).map_err(write_error)?;
    let mut hash = Sha256::new();
    let mut buffer = vec![0; 64 * 1024];
    let mut left = most;
    loop {
        let read = match body.read(&mut buffer) {
            Ok(0) => break,
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(failed(error.into())),
        };
        left = left
            .checked_sub(read as u64)
            .ok_or_else(|| KernelError::TooLong { url: download.url.clone(), most: most >> 20 })?;
        hash.update(&buffer[..read]);
        file.write_all(&buffer[..read]).map_err(write_error)?;
    }
    let found = hex(&hash.finalize());
    if found == download.sha256 {
        Ok(())
    } else {
        let (url, expected) = (download.url.clone(), download.sha256.clone());
        Err(KernelError::Checksum { url, expected, found })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        io::{BufRead, BufReader},
        net::TcpListener,
        thread,
    };

    /// Answers one request with `answer`. Returns the URL to request.
    fn serve(answer: &'static [u8]) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/bzImage", listener.local_addr().unwrap());
        thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
            while lines.next().is_some_and(|line| line.is_ok_and(|line| !line.is_empty())) {}
            stream.write_all(answer).unwrap();
        });
        url
    }

    const HELLO: &str = "5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03";

    #[test]
    fn rejects_wrong_missing_and_truncated_files() {
        let folder = tempfile::tempdir().unwrap();
        let to = folder.path().join("image");
        let ask = |answer: &'static [u8]| {
            let download = Download { url: serve(answer), sha256: HELLO.into() };
            fetch(&download, &to).map_err(|error| error.to_string().replace(&download.url, "URL"))
        };
        ask(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nhello\n").unwrap();
        assert_eq!(std::fs::read(&to).unwrap(), b"hello\n");

        let other = ask(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nbye\n").unwrap_err();
        assert_eq!(
            other,
            format!(
                "failed to verify URL: its SHA-256 is \
                 abc6fd595fc079d3114d4b71a4d84b1d1d0f79df1e70f8813212f2a65d8916df; the manifest \
                 says {HELLO}"
            )
        );
        let gone = ask(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n").unwrap_err();
        assert!(gone.starts_with("failed to download URL: ") && gone.contains("404"), "{gone}");
        let cut = ask(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nhel").unwrap_err();
        assert!(cut.starts_with("failed to download URL: "), "{cut}");
    }

    /// A server may send without end.
    #[test]
    fn rejects_files_that_are_too_long() {
        let folder = tempfile::tempdir().unwrap();
        let url = serve(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nhello\n");
        let download = Download { url, sha256: HELLO.into() };
        let error = fetch_up_to(5, &download, &folder.path().join("image")).unwrap_err();
        assert!(matches!(error, KernelError::TooLong { .. }), "{error}");
    }

    #[test]
    fn names_url_when_host_does_not_answer() {
        // Nothing listens on a port that was just freed.
        let url =
            format!("http://{}/", TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap());
        let error =
            fetch(&Download { url: url.clone(), sha256: HELLO.into() }, Path::new("/dev/null"))
                .unwrap_err();
        assert!(error.to_string().contains(&url), "{error}");
    }
}
