// SPDX-License-Identifier: MIT OR Apache-2.0
//! QEMU's monitor (QMP): saves and restores guests.

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

/// For the answer to one command: QEMU answers at once, or hangs.
const ANSWER: Duration = Duration::from_secs(20);
/// For the transfer of a guest's memory to or from a slow disk.
const TRANSFER: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(2);

#[derive(Debug, thiserror::Error)]
pub enum MonitorError {
    #[error("QEMU's monitor: {0}")]
    Link(#[from] io::Error),
    #[error("QEMU refused {command}: {source}")]
    Refused { command: &'static str, source: ExecuteError },
    #[error("QEMU failed to {what}: {why}")]
    Failed { what: &'static str, why: String },
    #[error("failed to keep a guest's memory at {0:?}: QEMU needs a path in UTF-8")]
    Path(std::path::PathBuf),
}

/// Sends each command in one write. Otherwise QEMU would wake for each word.
pub struct Monitor(Qmp<Stream<BufReader<UnixStream>, BufWriter<UnixStream>>>);

impl Monitor {
    /// Reads QEMU's greeting and enables `mapped-ram`. This may happen long after QEMU's start:
    /// only the greeting waits for it.
    pub fn open(stream: UnixStream) -> Result<Monitor, MonitorError> {
        stream.set_read_timeout(Some(ANSWER))?;
        stream.set_write_timeout(Some(ANSWER))?;
        let mut input = BufReader::new(stream.try_clone()?);
        // The library would panic if QEMU has ended.
        if input.fill_buf()?.is_empty() {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
        }
        let mut monitor = Monitor(Qmp::new(Stream::new(input, BufWriter::new(stream))));
        monitor
            .0
            .handshake()
            .map_err(|source| MonitorError::Refused { command: "qmp_capabilities", source })?;
        // Each page has its place in the file, and an empty page takes no space.
        let mapped =
            MigrationCapabilityStatus { capability: MigrationCapability::mapped_ram, state: true };
        monitor.ask(&migrate_set_capabilities { capabilities: vec![mapped] })?;
        Ok(monitor)
    }

    /// Pauses the guest and writes its state.
    pub fn save(&mut self, file: &Path) -> Result<(), MonitorError> {
        let uri = Some(uri(file)?);
        self.ask(&stop {})?;
        self.ask(&migrate { uri, channels: None, detach: None, resume: None })?;
        self.transferred("save the guest")
    }

    /// Restores the state into a QEMU with `-incoming defer`, and resumes the guest.
    pub fn restore(&mut self, file: &Path) -> Result<(), MonitorError> {
        let uri = Some(uri(file)?);
        self.ask(&migrate_incoming { uri, channels: None, exit_on_error: None })?;
        self.transferred("restore the guest")?;
        // The guest is paused, as it was when saved.
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
