// SPDX-License-Identifier: MIT OR Apache-2.0
//! Data of the kernel that does not change while it runs. It is read at first use, or before a
//! snapshot is taken, so that restored guests need not.

use crate::capture::Capture;
use crate::functions::{self, Choice};
use crate::kallsyms::{Kallsyms, Rest};
use crate::kernel_btf::KernelBtf;
use crate::loaded;
use crate::modules::Modules;
use crate::target::Target;
use crate::test_functions;
use std::cell::{OnceCell, RefCell};
use std::collections::HashMap;
use tramplab_protocol::message::{GuestError, Symbol};

#[derive(Default)]
pub struct Known {
    /// The modules of the user's functions.
    pub modules: Modules,
    btf: OnceCell<KernelBtf>,
    symbols: OnceCell<Kallsyms>,
    /// Files from which to read the names of a later moment, as far as they are unused.
    rests: RefCell<Vec<Rest>>,
    plain: OnceCell<Vec<Target>>,
    /// The existing test functions by name. Finding each means a pass over all symbols.
    references: OnceCell<HashMap<String, Symbol>>,
    capture: OnceCell<Capture>,
}

impl Known {
    pub fn of(modules: Modules) -> Known {
        Known { modules, ..Known::default() }
    }

    /// Reads everything, which takes seconds under TCG.
    pub fn prepare(&self) -> Result<(), GuestError> {
        let symbols = self.symbols()?;
        // Two files are enough if nothing changes meanwhile.
        let rests = [
            symbols.rest().map_err(GuestError::failed)?,
            symbols.rest().map_err(GuestError::failed)?,
        ];
        self.rests.replace(rests.into());
        self.references()?;
        self.capture()?;
        // Last, because it fails on a kernel without ftrace.
        self.plain()?;
        Ok(())
    }

    pub fn btf(&self) -> Result<&KernelBtf, GuestError> {
        at_first(&self.btf, || {
            KernelBtf::read().map_err(|error| GuestError::Unsupported(error.to_string()))
        })
    }

    /// The kernel's symbols. Those that come and go are as of some moment.
    pub fn symbols(&self) -> Result<&Kallsyms, GuestError> {
        at_first(&self.symbols, || Kallsyms::read().map_err(GuestError::failed))
    }

    /// A test function. None if it does not exist or is not unique.
    pub fn reference(&self, name: &str) -> Result<Option<&Symbol>, GuestError> {
        Ok(self.references()?.get(name))
    }

    fn references(&self) -> Result<&HashMap<String, Symbol>, GuestError> {
        at_first(&self.references, || Ok(self.symbols()?.functions(&test_functions::FUNCTIONS)))
    }

    /// The capturing programs.
    pub fn capture(&self) -> Result<&Capture, GuestError> {
        at_first(&self.capture, Capture::prepare)
    }

    /// All symbols of this moment, with the programs that kallsyms hides.
    pub fn names(&self) -> Result<Kallsyms, GuestError> {
        let symbols = self.symbols()?;
        let next = || self.rests.borrow_mut().pop().map_or_else(|| symbols.rest(), Ok);
        let names = symbols.renewed(next).map_err(GuestError::failed)?;
        match loaded::are_hidden() {
            true => names.with(&loaded::functions()?).map_err(GuestError::failed),
            false => Ok(names),
        }
    }

    /// The functions that every mechanism but fmod_ret may attach to.
    pub fn plain(&self) -> Result<&[Target], GuestError> {
        let plain = at_first(&self.plain, || {
            let (available, btf) = (functions::available()?, self.btf()?);
            let btf_id = |name: &str| btf.plain_function(name);
            Ok(functions::candidates(&available, Choice::Safe, btf_id, self.symbols()?))
        });
        plain.map(Vec::as_slice)
    }
}

fn at_first<T>(
    cell: &OnceCell<T>,
    read: impl FnOnce() -> Result<T, GuestError>,
) -> Result<&T, GuestError> {
    match cell.get() {
        Some(known) => Ok(known),
        None => read().map(|new| cell.get_or_init(|| new)),
    }
}
