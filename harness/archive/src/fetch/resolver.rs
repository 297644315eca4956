// SPDX-License-Identifier: MIT OR Apache-2.0
//! Asks for the addresses of a host once. ureq asks before each request, even if the connection is
//! open; a name server that loses one of a hundred questions costs five seconds each time.

use std::{
    collections::HashMap,
    net::SocketAddr,
    sync::Mutex,
    time::{Duration, Instant},
};
use ureq::{
    Error,
    config::Config,
    http::Uri,
    unversioned::{
        resolver::{DefaultResolver, ResolvedSocketAddrs, Resolver},
        transport::NextTimeout,
    },
};

/// How long a failure is kept, for those who wait for the same answer.
const FAILURE: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub struct Once {
    /// The proxy that gets all requests.
    proxy: Option<Uri>,
    /// No addresses: it failed at that time.
    known: Mutex<HashMap<String, (Vec<SocketAddr>, Instant)>>,
}

impl Once {
    pub fn of(proxy: Option<Uri>) -> Once {
        Once { proxy, known: Mutex::default() }
    }
}

impl Resolver for Once {
    fn resolve(
        &self,
        uri: &Uri,
        config: &Config,
        timeout: NextTimeout,
    ) -> Result<ResolvedSocketAddrs, Error> {
        let uri = self.proxy.as_ref().unwrap_or(uri);
        let authority = uri.authority().map_or("", |authority| authority.as_str());
        let key = format!("{}://{authority}", uri.scheme_str().unwrap_or_default());
        // Held while it asks: the others wait for the same answer.
        let mut known = self.known.lock().expect("not poisoned: no panic while it is held");
        match known.get(&key) {
            Some((addresses, at)) if addresses.is_empty() && at.elapsed() < FAILURE => {
                return Err(Error::HostNotFound);
            }
            Some((addresses, _)) if !addresses.is_empty() => {
                let mut found = self.empty();
                addresses.iter().for_each(|address| found.push(*address));
                return Ok(found);
            }
            _ => {}
        }
        let found = DefaultResolver::default().resolve(uri, config, timeout);
        let addresses = found.as_ref().map_or(Vec::new(), |found| found.to_vec());
        known.insert(key, (addresses, Instant::now()));
        found
    }
}
