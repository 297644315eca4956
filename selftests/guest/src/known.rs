// SPDX-License-Identifier: MIT OR Apache-2.0
//! What of a kernel stays as it is while it runs, each read at its first use; or before the guest is kept, so that those restored need not.

use crate::capture::Capture;
use crate::functions;
use crate::kallsyms::{Kallsyms, Rest};
use crate::kernel_btf::KernelBtf;
use crate::method::Target;
use crate::trigger;
use std::cell::{OnceCell, RefCell};
use std::collections::HashMap;
use tramplab_protocol::message::{GuestError, Symbol};

#[derive(Default)]
pub struct Known {
    btf: OnceCell<KernelBtf>,
    symbols: OnceCell<Kallsyms>,
    /// Where to read on for the names of a later moment, as far as they are not used yet.
    rests: RefCell<Vec<Rest>>,
    plain: OnceCell<Vec<Target>>,
    /// By their names, those of `trigger::FUNCTIONS` that it has: for each all symbols would be gone through.
    references: OnceCell<HashMap<String, Symbol>>,
    capture: OnceCell<Capture>,
}

impl Known {
    /// Reads everything. It takes seconds under TCG.
    pub fn prepare(&self) -> Result<(), GuestError> {
        let symbols = self.symbols()?;
        // As many as are read where nothing goes meanwhile.
        let rests =
            [symbols.rest().map_err(GuestError::failed)?, symbols.rest().map_err(GuestError::failed)?];
        self.rests.replace(rests.into());
        self.references()?;
        self.capture()?;
        // Last: of a kernel without ftrace there is none.
        self.plain()?;
        Ok(())
    }

    pub fn btf(&self) -> Result<&KernelBtf, GuestError> {
        at_first(&self.btf, || KernelBtf::read().map_err(|error| GuestError::Unsupported(error.to_string())))
    }

    /// The kernel's symbols, and of those that come and go the ones of some moment.
    pub fn symbols(&self) -> Result<&Kallsyms, GuestError> {
        at_first(&self.symbols, || Kallsyms::read().map_err(GuestError::failed))
    }

    /// A function of `trigger::FUNCTIONS`; none where it is not there or not the only one of its name.
    pub fn reference(&self, name: &str) -> Result<Option<&Symbol>, GuestError> {
        Ok(self.references()?.get(name))
    }

    fn references(&self) -> Result<&HashMap<String, Symbol>, GuestError> {
        at_first(&self.references, || Ok(self.symbols()?.functions(&trigger::FUNCTIONS)))
    }

    /// The capturing programs.
    pub fn capture(&self) -> Result<&Capture, GuestError> {
        at_first(&self.capture, Capture::prepare)
    }

    /// All symbols of this moment.
    pub fn names(&self) -> Result<Kallsyms, GuestError> {
        let symbols = self.symbols()?;
        let next = || self.rests.borrow_mut().pop().map_or_else(|| symbols.rest(), Ok);
        symbols.renewed(next).map_err(GuestError::failed)
    }

    /// The functions that every mechanism may attach to but fmod_ret.
    pub fn plain(&self) -> Result<&[Target], GuestError> {
        let plain = at_first(&self.plain, || {
            let (available, btf) = (functions::available().map_err(GuestError::failed)?, self.btf()?);
            Ok(functions::candidates(&available, |name| btf.plain_function(name), self.symbols()?))
        });
        plain.map(Vec::as_slice)
    }
}

fn at_first<T>(cell: &OnceCell<T>, read: impl FnOnce() -> Result<T, GuestError>) -> Result<&T, GuestError> {
    match cell.get() {
        Some(known) => Ok(known),
        None => read().map(|new| cell.get_or_init(|| new)),
    }
}
