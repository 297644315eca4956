// SPDX-License-Identifier: MIT OR Apache-2.0
//! Requests for http through a proxy: `GET http://host/path`.
//!
//! ureq asks every proxy to CONNECT. Proxies commonly refuse that for other ports than 443.

use super::resolver::Once;
use base64::{Engine, prelude::BASE64_STANDARD};
use ureq::{
    Agent, Error, Proxy,
    config::Config,
    unversioned::transport::{
        Buffers, ConnectionDetails, Connector, NextTimeout, TcpConnector, Transport,
    },
};

/// An agent that sends all requests to a proxy.
pub fn agent(config: Config, proxy: &str) -> Result<Agent, Error> {
    let proxy = Proxy::new(proxy)?;
    let login = proxy.username().map(|user| {
        let login = format!("{user}:{}", proxy.password().unwrap_or_default());
        format!("Proxy-Authorization: Basic {}\r\n", BASE64_STANDARD.encode(login))
    });
    let connector = TcpConnector::default().chain(WholeUrls { login: login.unwrap_or_default() });
    Ok(Agent::with_parts(config, connector, Once::of(Some(proxy.uri().clone()))))
}

#[derive(Debug)]
struct WholeUrls {
    login: String,
}

impl<In: Transport> Connector<In> for WholeUrls {
    type Out = Forwarding<In>;

    fn connect(
        &self,
        details: &ConnectionDetails,
        chained: Option<In>,
    ) -> Result<Option<Forwarding<In>>, Error> {
        let authority = details.uri.authority().map_or("", |authority| authority.as_str());
        Ok(chained.map(|inner| Forwarding {
            inner,
            authority: format!("http://{authority}"),
            login: self.login.clone(),
        }))
    }
}

#[derive(Debug)]
struct Forwarding<T> {
    inner: T,
    authority: String,
    login: String,
}

impl<T: Transport> Transport for Forwarding<T> {
    fn buffers(&mut self) -> &mut dyn Buffers {
        self.inner.buffers()
    }

    /// Completes the first line of a request. A GET has no body, so each output is a request.
    fn transmit_output(&mut self, amount: usize, timeout: NextTimeout) -> Result<(), Error> {
        const GET: &[u8] = b"GET ";
        let output = self.inner.buffers().output();
        let Some(rest) = output[..amount].strip_prefix(GET) else {
            return self.inner.transmit_output(amount, timeout);
        };
        let end = rest.windows(2).position(|pair| pair == b"\r\n").map_or(rest.len(), |at| at + 2);
        let (line, rest) = rest.split_at(end);
        let whole = [GET, self.authority.as_bytes(), line, self.login.as_bytes(), rest].concat();
        if whole.len() > output.len() {
            return Err(Error::LargeResponseHeader(whole.len(), output.len()));
        }
        output[..whole.len()].copy_from_slice(&whole);
        self.inner.transmit_output(whole.len(), timeout)
    }

    fn await_input(&mut self, timeout: NextTimeout) -> Result<bool, Error> {
        self.inner.await_input(timeout)
    }

    fn is_open(&mut self) -> bool {
        self.inner.is_open()
    }
}
