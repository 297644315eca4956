// SPDX-License-Identifier: MIT OR Apache-2.0
//! QEMU's monitor (QMP), for what cannot be said on its command line: saving a guest and restoring it.

use qapi::{
    Command, ExecuteError, Qmp, Stream,
    qmp::{
        self, MigrationCapability, MigrationCapabilityStatus, MigrationStatus, cont, migrate,
        migrate_incoming, migrate_set_capabilities, query_migrate, stop,
    },
};
use std::{
    io::{self, BufRead, BufReader, BufWriter},
    os::unix::net::UnixStream,
    path::Path,
    thread,
    time::{Duration, Instant},
};

/// For one command: QEMU answers at once, or hangs.
const ANSWER: Duration = Duration::from_secs(20);
/// For a guest's memory on a slow disk.
const TRANSFER: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(2);

#[derive(Debug, thiserror::Error)]
pub enum MonitorError {
    #[error("QEMU's monitor: {0}")]
    Link(#[from] io::Error),
    #[error("QEMU refused {command}: {source}")]
    Refused { command: &'static str, source: ExecuteError },
    #[error("QEMU could not {what}: {why}")]
    Failed { what: &'static str, why: String },
    #[error("a guest's memory cannot be at {0:?}: QEMU takes paths of text only")]
    Path(std::path::PathBuf),
}

/// A command is sent at once: else word by word, at each of which QEMU wakes.
pub struct Monitor(Qmp<Stream<BufReader<UnixStream>, BufWriter<UnixStream>>>);

impl Monitor {
    /// Whoever opens it holds up QEMU's first answer only, so it can be done when the guest has long been running.
    pub fn open(stream: UnixStream) -> Result<Monitor, MonitorError> {
        stream.set_read_timeout(Some(ANSWER))?;
        stream.set_write_timeout(Some(ANSWER))?;
        let mut input = BufReader::new(stream.try_clone()?);
        // Of a QEMU that has ended the library would make a panic.
        if input.fill_buf()?.is_empty() {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
        }
        let mut monitor = Monitor(Qmp::new(Stream::new(input, BufWriter::new(stream))));
        monitor
            .0
            .handshake()
            .map_err(|source| MonitorError::Refused { command: "qmp_capabilities", source })?;
        // Each page of memory has its place in the file, and one that is empty takes none.
        let mapped = MigrationCapabilityStatus { capability: MigrationCapability::mapped_ram, state: true };
        monitor.ask(&migrate_set_capabilities { capabilities: vec![mapped] })?;
        Ok(monitor)
    }

    /// Writes the guest, which stands still from then on.
    pub fn save(&mut self, file: &Path) -> Result<(), MonitorError> {
        let uri = Some(uri(file)?);
        self.ask(&stop {})?;
        self.ask(&migrate { uri, channels: None, detach: None, resume: None })?;
        self.transferred("save the guest")
    }

    /// Fills the machine, which was started with `-incoming defer`; the guest then goes on.
    pub fn restore(&mut self, file: &Path) -> Result<(), MonitorError> {
        let uri = Some(uri(file)?);
        self.ask(&migrate_incoming { uri, channels: None, exit_on_error: None })?;
        self.transferred("restore the guest")?;
        // It stands still, as it did when it was saved.
        self.ask(&cont {}).map(drop)
    }

    fn transferred(&mut self, what: &'static str) -> Result<(), MonitorError> {
        let end = Instant::now() + TRANSFER;
        loop {
            let info = self.ask(&query_migrate {})?;
            match info.status {
                Some(MigrationStatus::completed) => return Ok(()),
                Some(MigrationStatus::failed | MigrationStatus::cancelled) => {
                    let why = info.error_desc.unwrap_or_else(|| "it does not say why".to_owned());
                    return Err(MonitorError::Failed { what, why });
                }
                _ if Instant::now() > end => {
                    let why = format!("it took more than {} s", TRANSFER.as_secs());
                    return Err(MonitorError::Failed { what, why });
                }
                _ => thread::sleep(POLL),
            }
        }
    }

    fn ask<C: qmp::QmpCommand>(&mut self, command: &C) -> Result<<C as Command>::Ok, MonitorError> {
        self.0.execute(command).map_err(|source| MonitorError::Refused { command: C::NAME, source })
    }
}

fn uri(file: &Path) -> Result<String, MonitorError> {
    let path = file.to_str().ok_or_else(|| MonitorError::Path(file.to_owned()))?;
    Ok(format!("file:{path}"))
}
