// SPDX-License-Identifier: GPL-2.0-or-later
//! A model of a CPU's caches, TLBs and branch predictors, for one vCPU. It counts what costs
//! cycles; the host knows how many. Pure: independent of QEMU.

mod branches;
#[cfg(test)]
mod oracle;
mod sets;
mod streams;
#[cfg(test)]
mod tests;

use branches::Branches;
use sets::Sets;
use streams::Streams;
use tramplab_protocol::{
    estimate::{Event, Events, LINE, Parts},
    trace::Kind,
};

/// Events by their number.
pub type Counts = [u64; Event::ALL.len()];

/// Those that happened.
pub fn happened(counts: &Counts) -> Events {
    let pairs = Event::ALL.into_iter().zip(counts.iter().copied());
    pairs.filter(|&(_, count)| count > 0).collect()
}

/// The part of the access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Of {
    Code,
    Data,
}

/// Pages are of 4 KiB or of 2 MiB.
const SMALL: u32 = 12;
const LARGE: u32 = 21;
/// Marks the tag of a large page.
const IS_LARGE: u64 = 1 << 63;
/// x86-64's text and data of the kernel (K `Documentation/arch/x86/x86_64/mm.rst`).
const IMAGE: std::ops::Range<u64> = 0xffff_ffff_8000_0000..0xffff_ffff_c000_0000;
const GIB: u32 = 30;

/// Where a guest's pages are large.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pages {
    /// In x86-64's image and direct map. The direct map begins at a GiB.
    X86,
    /// Nowhere.
    Small,
}

/// The tag of the page in a TLB.
#[inline]
fn tag(address: u64, is_large: bool) -> u64 {
    if is_large { address >> LARGE | IS_LARGE } else { address >> SMALL }
}

/// A GiB of addresses, and whether it is of the direct map.
#[derive(Clone, Copy)]
struct Region {
    number: u64,
    is_direct: bool,
}

/// Regions that are kept. A power of two; a kernel uses a handful.
const REGIONS: usize = 16;

pub struct Model {
    pages: Pages,
    l1i: Sets,
    l1d: Sets,
    l2: Sets,
    l3: Sets,
    itlb: Sets,
    dtlb: Sets,
    l2_tlb: Sets,
    branches: Branches,
    streams: Option<Streams>,
    /// The latest line and page of code, and page of data: mostly the next is the same.
    line: u64,
    code_page: u64,
    data_page: u64,
    regions: [Region; REGIONS],
    /// Since the last [`Model::take`].
    pending: Counts,
}

impl Model {
    pub fn new(parts: &Parts, pages: Pages) -> Model {
        Model {
            pages,
            l1i: Sets::new(parts.l1i),
            l1d: Sets::new(parts.l1d),
            l2: Sets::new(parts.l2),
            l3: Sets::new(parts.l3),
            itlb: Sets::new(parts.itlb),
            dtlb: Sets::new(parts.dtlb),
            l2_tlb: Sets::new(parts.l2_tlb),
            branches: Branches::new(parts.returns, parts.last_target),
            streams: parts.streams.then(Streams::default),
            line: u64::MAX,
            code_page: u64::MAX,
            data_page: u64::MAX,
            regions: [Region { number: u64::MAX, is_direct: false }; REGIONS],
            pending: [0; Event::ALL.len()],
        }
    }

    /// Returns what happened since the last time.
    #[inline]
    pub fn take(&mut self) -> Counts {
        std::mem::replace(&mut self.pending, [0; Event::ALL.len()])
    }

    #[inline]
    pub fn add(&mut self, event: Event) {
        self.pending[event as usize] += 1;
    }

    /// An access to `size` bytes of data. `physical` finds the address in the guest's memory.
    #[inline]
    pub fn data(&mut self, address: u64, size: u64, physical: impl Fn() -> Option<u64>) {
        let end = address.wrapping_add(size.max(1) - 1);
        self.data_page_of(address, &physical);
        let (first, last) = (address / LINE, end / LINE);
        self.data_line(first);
        if last != first {
            self.data_page_of(end, &physical);
            self.data_line(last);
        }
    }

    #[inline]
    fn data_page_of(&mut self, address: u64, physical: &impl Fn() -> Option<u64>) {
        let page = self.page(address, physical);
        if page != self.data_page {
            self.data_page = page;
            self.translate(page, Of::Data);
        }
    }

    #[inline]
    fn data_line(&mut self, line: u64) {
        if !self.l1d.touch(line) {
            self.behind(line, Of::Data);
        }
        let ahead = self.streams.as_mut().and_then(|streams| streams.ahead(line));
        if let Some(ahead) = ahead
            && !self.l1d.touch(ahead)
            && !self.l2.touch(ahead)
        {
            self.l3.touch(ahead);
        }
    }

    /// A block's code, all of it, when the block starts.
    #[inline]
    pub fn code(&mut self, start: u64, end: u64) {
        for line in start / LINE..=end.wrapping_sub(1).max(start) / LINE {
            if line == self.line {
                continue;
            }
            self.line = line;
            let address = line * LINE;
            let page = tag(address, self.pages == Pages::X86 && IMAGE.contains(&address));
            if page != self.code_page {
                self.code_page = page;
                self.translate(page, Of::Code);
            }
            if !self.l1i.touch(line) {
                self.behind(line, Of::Code);
            }
        }
    }

    /// A page that is not the latest one.
    #[inline]
    fn translate(&mut self, page: u64, of: Of) {
        let (first, known, walk) = match of {
            Of::Code => (&mut self.itlb, Event::CodeTlb, Event::CodeWalk),
            Of::Data => (&mut self.dtlb, Event::DataTlb, Event::DataWalk),
        };
        if !first.touch(page) {
            let is_known = self.l2_tlb.touch(page);
            self.add(if is_known { known } else { walk });
        }
    }

    /// A line that the first level lacks.
    fn behind(&mut self, line: u64, of: Of) {
        let level = [&mut self.l2, &mut self.l3].into_iter().position(|level| level.touch(line));
        self.add(match (of, level) {
            (Of::Code, Some(0)) => Event::CodeL2,
            (Of::Code, Some(_)) => Event::CodeL3,
            (Of::Code, None) => Event::CodeMemory,
            (Of::Data, Some(0)) => Event::DataL2,
            (Of::Data, Some(_)) => Event::DataL3,
            (Of::Data, None) => Event::DataMemory,
        });
    }

    /// The tag of a page of data.
    #[inline]
    fn page(&mut self, address: u64, physical: impl Fn() -> Option<u64>) -> u64 {
        let is_large = match self.pages {
            Pages::Small => false,
            Pages::X86 if address >> 63 == 0 => false,
            Pages::X86 => IMAGE.contains(&address) || self.is_direct(address, physical),
        };
        tag(address, is_large)
    }

    /// In the direct map addresses differ from physical ones by whole GiB.
    #[inline]
    fn is_direct(&mut self, address: u64, physical: impl Fn() -> Option<u64>) -> bool {
        let number = address >> GIB;
        // Regions of one use begin at round numbers.
        let hash = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (u64::BITS - REGIONS.ilog2());
        let region = &mut self.regions[hash as usize];
        if region.number != number {
            let is_whole = |physical: u64| address.wrapping_sub(physical).is_multiple_of(1 << GIB);
            *region = Region { number, is_direct: physical().is_some_and(is_whole) };
        }
        region.is_direct
    }

    /// A conditional branch.
    #[inline]
    pub fn conditional(&mut self, from: u64, is_taken: bool) -> Option<Event> {
        let predicted = self.branches.conditional(from, is_taken);
        (!predicted).then_some(Event::MispredictedConditional)
    }

    /// A taken branch that ends a block. `after` is the address behind it. Returns the event that
    /// happens at its target.
    pub fn branch(&mut self, from: u64, to: u64, kind: Kind, after: u64) -> Option<Event> {
        if matches!(kind, Kind::Interrupt | Kind::Int) {
            return Some(Event::Exception);
        }
        self.add(Event::TakenBranch);
        if kind.is_call() {
            self.branches.call(to, after);
        }
        match kind {
            Kind::Cond => self.conditional(from, true),
            Kind::Ret => {
                self.add(Event::Return);
                (!self.branches.ret(from, to)).then_some(Event::MispredictedReturn)
            }
            Kind::IndCall | Kind::IndJump => {
                (!self.branches.is_last(from, to)).then_some(Event::MispredictedIndirect)
            }
            Kind::Call | Kind::Jump | Kind::Syscall | Kind::Sysret | Kind::Iret => None,
            Kind::Interrupt | Kind::Int => unreachable!("handled above"),
        }
    }
}
