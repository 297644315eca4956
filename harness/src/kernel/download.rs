// SPDX-License-Identifier: MIT OR Apache-2.0
//! Fetching one file by URL and SHA-256.

use super::{KernelError, manifest::Download};
use crate::host::apt::hex;
use sha2::{Digest, Sha256};
use std::{
    fs::File,
    io::{self, Read, Write},
    path::Path,
    time::Duration,
};

const CONNECT_LIMIT: Duration = Duration::from_secs(30);
const LIMIT: Duration = Duration::from_secs(30 * 60);

pub fn fetch(download: &Download, to: &Path) -> Result<(), KernelError> {
    let failed =
        |source: ureq::Error| KernelError::Download { url: download.url.clone(), source: Box::new(source) };
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
    loop {
        let read = match body.read(&mut buffer) {
            Ok(0) => break,
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(failed(error.into())),
        };
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
