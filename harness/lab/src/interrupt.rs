// SPDX-License-Identifier: MIT OR Apache-2.0
//! Ctrl-C while a kernel is built: stops the build and cleans up after it.
//! While cells run, nextest handles signals.

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
use tramplab_host::debian;

/// The exit code of a program that a signal stopped, by convention 128 and SIGINT's number.
pub const INTERRUPTED: u8 = 130;

/// Notes signals while it lives.
pub struct Interrupt {
    came: Arc<AtomicBool>,
    handlers: Vec<SigId>,
}

const SIGNALS: [i32; 3] = [SIGINT, SIGTERM, SIGHUP];

impl Interrupt {
    /// The second one ends the program where it is: what it waits for may never come.
    pub fn watch() -> io::Result<Interrupt> {
        let mut interrupt = Interrupt { came: Arc::default(), handlers: Vec::new() };
        for signal in SIGNALS {
            let came = Arc::clone(&interrupt.came);
            let ends = flag::register_conditional_shutdown(signal, INTERRUPTED.into(), came)?;
            interrupt.handlers.push(ends);
        }
        for signal in SIGNALS {
            interrupt.handlers.push(flag::register(signal, Arc::clone(&interrupt.came))?);
            interrupt.handlers.push(flag::register(signal, debian::STOPPED.clone())?);
        }
        Ok(interrupt)
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
