// SPDX-License-Identifier: MIT OR Apache-2.0
//! Ctrl-C while a kernel is built: the build is stopped and what it left is put in order, instead of dying at once.
//! While cells run, nextest handles signals.

use super::exit;
use signal_hook::{
    SigId,
    consts::{SIGHUP, SIGINT, SIGTERM},
    flag, low_level,
};
use std::{
    io,
    ops::ControlFlow,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

/// Signals are noted as long as it lives.
pub struct Interrupt {
    came: Arc<AtomicBool>,
    handlers: Vec<SigId>,
}

impl Interrupt {
    pub fn watch() -> io::Result<Interrupt> {
        let came = Arc::new(AtomicBool::new(false));
        let mut handlers = Vec::new();
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            // The second one ends the program where it is: what it waits for may never come.
            handlers.push(flag::register_conditional_shutdown(
                signal,
                exit::INTERRUPTED.into(),
                Arc::clone(&came),
            )?);
            handlers.push(flag::register(signal, Arc::clone(&came))?);
        }
        Ok(Interrupt { came, handlers })
    }

    /// For what is to be stopped by it.
    pub fn flow(&self) -> ControlFlow<()> {
        if self.came() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    pub fn came(&self) -> bool {
        self.came.load(Ordering::Relaxed)
    }
}

impl Drop for Interrupt {
    fn drop(&mut self) {
        self.handlers.drain(..).for_each(|handler| {
            low_level::unregister(handler);
        });
    }
}
