//! get_user_pages: pages held by a reference that is no page-table entry's, for a device or for the kernel's
//! own use.
//!
//! ```text
//! fast    no lock of the space or a VMA: the tables are walked as the hardware walks them (Platform::walk_tables), then the lowest
//!         one is locked, if that needs no waiting, and found linked still. Any doubt: slow
//! slow    the VMA, or the mmap lock, as a fault has it; what is missing is faulted in
//! ```
//!
//! Both take pins alike, under the lock of the table whose entry maps the page
//! ([`frame::pin`](crate::frame)). There alone is a page made exclusive or shared, mapped or unmapped, so
//! nothing has to be looked at again afterwards, and the three sides of hazards C-56 and C-57 fall to three
//! rules:
//!
//! 1. An anonymous page is pinned only if it is exclusive. One that is shared is copied first, for a reader
//!    as well: else the other side's copy-on-write, or our own, would part the pin from what our programs
//!    see.
//! 2. fork does not share a page that is exclusive and pinned: the child gets a copy, made when no processor
//!    of the parent can store to the page any more, and before one can again. A pin that comes after fork has
//!    been at the table finds the page shared, and waits for fork to end.
//! 3. A store to an exclusive page goes to the page, whatever other references it has.
//!
//! A pin for long, say for a device that stays registered, is refused in two cases: where frames are a file's
//! storage, because truncation would have to wait for it; and for stores to a file's own page, because the
//! file would hear of them too late. Of a private mapping it has the space's own copy of each page at once,
//! even to read.

use super::{AccessMode, How, page::Missing};
use crate::{
    PAGE_SIZE, Pfn, VirtAddr,
    counted::Counted,
    engine::Engine,
    error::PinError,
    fault::{FaultError, FaultOutcome, SegvCode},
    file::Object,
    platform::Platform,
    space::{AddressSpace, held_lock::HeldLock},
    vma::{Vma, flags::VmFlags},
    wait::Rounds,
};
use allocator_api2::vec::Vec;
use bitflags::bitflags;
use freehold_pagetable::{EntryGuard, EntryTable, Kind, Level, MarkerKind, PteFlags};

bitflags! {
    /// What pages are pinned for.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct PinFlags: u32 {
        /// They will be stored to (FOLL_WRITE).
        const WRITE = 1;
        /// Where the VMA could be made to allow it, it does (FOLL_FORCE): [`AccessMode::Forced`].
        const FORCE = 2;
        /// For as long as a program likes (FOLL_LONGTERM); without it, for one transfer, which ends by
        /// itself.
        const LONGTERM = 4;
    }
}

/// Pages that are pinned, until this is dropped: their frames stay what they are, whatever becomes of the
/// mapping.
///
/// An anonymous page stays the program's own as long as it is mapped: what is stored by one side is seen by
/// the other.
///
/// # Invariants
///
/// Each frame but those of zeroes has a pin.
#[must_use = "pages are unpinned when this is dropped"]
pub struct Pins<P: Platform> {
    engine: Counted<Engine<P>>,
    frames: Vec<Pfn>,
    write: bool,
}

impl<P: Platform> Pins<P> {
    /// How many pages.
    pub fn len(&self) -> usize {
        self.frames.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// Their frames, in the order of addresses. Stores are allowed if the pages were pinned for them.
    pub fn frames(&self) -> &[Pfn] {
        &self.frames
    }

    /// Reads bytes of the pages, from `offset` of the first on.
    ///
    /// # Errors
    ///
    /// There are not so many; nothing was read.
    pub fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), PinError> {
        let mut done = 0;
        self.for_each_piece(offset, out.len(), |pfn, at, len| {
            self.engine.platform().read_frame(pfn, at, &mut out[done..done + len]);
            done += len;
        })
    }

    /// Writes bytes to the pages, from `offset` of the first on. Files know of it when this returns.
    ///
    /// # Errors
    ///
    /// There are not so many, or they were not pinned for stores; nothing was written.
    pub fn write(&self, offset: u64, data: &[u8]) -> Result<(), PinError> {
        if !self.write {
            return Err(PinError::BadAddress);
        }
        let mut done = 0;
        self.for_each_piece(offset, data.len(), |pfn, at, len| {
            self.engine.platform().write_frame(pfn, at, &data[done..done + len]);
            done += len;
            let frame = self.engine.platform().frame(self.engine.memory().record_of(pfn));
            if !frame.is_anon() {
                frame.set_dirty();
            }
        })
    }

    /// Unpins pages that were stored to, by a device say: those of files are written back some time, also if
    /// they were between the first store and now. Of pages that were not pinned for stores it is not
    /// believed.
    pub fn unpin_dirty(mut self) {
        let frames = core::mem::take(&mut self.frames);
        self.engine.memory().unpin(&frames, self.write);
    }

    fn for_each_piece(
        &self,
        offset: u64,
        len: usize,
        mut f: impl FnMut(Pfn, usize, usize),
    ) -> Result<(), PinError> {
        let end = offset.checked_add(len as u64).ok_or(PinError::BadAddress)?;
        if end > self.frames.len() as u64 * PAGE_SIZE {
            return Err(PinError::BadAddress);
        }
        let mut at = offset;
        while at < end {
            let (skip, part) = super::within_page(at, (end - at) as usize);
            f(self.frames[(at / PAGE_SIZE) as usize], skip, part);
            at += part as u64;
        }
        Ok(())
    }
}

impl<P: Platform> Drop for Pins<P> {
    fn drop(&mut self) {
        self.engine.memory().unpin(&self.frames, false);
    }
}

impl<P: Platform> AddressSpace<P> {
    /// Pins the pages from that of `addr` on, at most so many: fewer if not all can be had, but at least one
    /// if any was asked for. Any task may ask, for any address space.
    ///
    /// A transfer must let go of its pins soon: a page with a pin cannot move, and truncation of a file that
    /// is mapped directly waits for it. So nobody waits for a lock of such a file while it holds a pin of it.
    ///
    /// # Errors
    ///
    /// See [`PinError`]; nothing is pinned.
    ///
    /// # Locks
    ///
    /// Those of faults; none on entry, and none from one page table to the next.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, engine::{Config, Engine}, remote::PinFlags, space::*};
    /// # use freehold_machine::{Machine, MachineConfig};
    /// # let engine = Engine::new(<Machine>::new(MachineConfig::backed(1 << 20)).unwrap(), Config::default()).unwrap();
    /// # let space = AddressSpace::new(&engine, &SpaceConfig::default()).unwrap();
    /// # let (rw, private) = (Prot::READ | Prot::WRITE, MapFlags::PRIVATE | MapFlags::ANONYMOUS);
    /// # let at = space.mmap(0, 4 * PAGE_SIZE, rw, private, None, 0).unwrap();
    /// let pins = space.pin_user_pages(at, 2, PinFlags::WRITE).unwrap();
    /// space.munmap(at, 4 * PAGE_SIZE).unwrap();
    /// // The frames stay until the pins go.
    /// drop(pins);
    /// ```
    pub fn pin_user_pages(&self, addr: u64, pages: usize, flags: PinFlags) -> Result<Pins<P>, PinError> {
        Pinning::new(self, addr, pages, flags)?.pin_slow()
    }

    /// As [`pin_user_pages`](Self::pin_user_pages), but no frames that are a file's storage: for callers that
    /// will wait while they hold the pins.
    pub(super) fn pin_unless_storage(
        &self,
        addr: u64,
        pages: usize,
        flags: PinFlags,
    ) -> Result<Pins<P>, PinError> {
        Pinning { not_storage: true, ..Pinning::new(self, addr, pages, flags)? }.pin_slow()
    }

    /// As [`pin_user_pages`](Self::pin_user_pages), for a task whose processor runs this space: pages that
    /// are there as wanted are pinned without a lock of the space or its VMAs.
    ///
    /// # Errors
    ///
    /// As `pin_user_pages`.
    ///
    /// # Locks
    ///
    /// Tables' locks one at a time, tried for; where something is missing, those of faults. None on entry.
    pub fn pin_user_pages_fast(&self, addr: u64, pages: usize, flags: PinFlags) -> Result<Pins<P>, PinError> {
        let mut pinning = Pinning::new(self, addr, pages, flags)?;
        let mut rounds = Rounds::new();
        loop {
            pinning.pin_fast();
            if pinning.is_over() {
                return Ok(pinning.pins);
            }
            if let Err(error) = rounds.again::<P>().map_err(PinError::from).and_then(|()| pinning.slowly()) {
                return pinning.partial(error);
            }
        }
    }

    /// As [`pin_user_pages_fast`](Self::pin_user_pages_fast), for a caller that must not wait: the pages up
    /// to the first that cannot be pinned without waiting, perhaps none.
    ///
    /// # Errors
    ///
    /// No memory for the list.
    ///
    /// # Locks
    ///
    /// Tables' locks one at a time, tried for. The caller may hold any lock but those of tables.
    pub fn pin_user_pages_fast_only(
        &self,
        addr: u64,
        pages: usize,
        flags: PinFlags,
    ) -> Result<Pins<P>, PinError> {
        let mut pinning = Pinning::new(self, addr, pages, flags)?;
        pinning.pin_fast();
        Ok(pinning.pins)
    }
}

/// How tables are found and locked.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Walk {
    /// Nothing keeps them but the walk itself.
    Fast,
    /// The VMA is held still.
    Slow,
}

/// A request under way.
struct Pinning<'s, P: Platform> {
    space: &'s AddressSpace<P>,
    flags: PinFlags,
    /// No frame of storage.
    not_storage: bool,
    /// The next page.
    at: u64,
    end: u64,
    /// Room for all.
    pins: Pins<P>,
}

impl<'s, P: Platform> Pinning<'s, P> {
    fn new(space: &'s AddressSpace<P>, addr: u64, pages: usize, flags: PinFlags) -> Result<Self, PinError> {
        let at = addr & !(PAGE_SIZE - 1);
        let len = (pages as u64).checked_mul(PAGE_SIZE).ok_or(PinError::BadAddress)?;
        let end = at.checked_add(len).ok_or(PinError::BadAddress)?;
        let mut frames = Vec::new();
        frames.try_reserve_exact(pages).map_err(|_| PinError::OutOfMemory)?;
        let write = flags.contains(PinFlags::WRITE);
        Ok(Pinning {
            space,
            flags,
            not_storage: false,
            at,
            end,
            pins: Pins { engine: space.engine.clone(), frames, write },
        })
    }

    fn is_over(&self) -> bool {
        self.at == self.end
    }

    /// What there is, or why there is nothing.
    fn partial(self, error: PinError) -> Result<Pins<P>, PinError> {
        if self.pins.is_empty() { Err(error) } else { Ok(self.pins) }
    }

    /// Goes on as far as that is possible without a lock.
    fn pin_fast(&mut self) {
        let space = self.space;
        // A section of its own for each table: no processor keeps flushes waiting for longer.
        while !self.is_over()
            && let Some(Ok(())) = space.platform().walk_tables(space.vm.mmu(), || {
                // A pin for long needs to know what kind of mapping it is, except of what is this space's
                // own.
                self.table(self.end, Walk::Fast, self.flags.contains(PinFlags::LONGTERM))
            })
        {}
    }

    fn pin_slow(mut self) -> Result<Pins<P>, PinError> {
        let mut rounds = Rounds::new();
        while !self.is_over() {
            if let Err(error) = rounds.again::<P>().map_err(PinError::from).and_then(|()| self.slowly()) {
                return self.partial(error);
            }
        }
        Ok(self.pins)
    }

    /// Goes on by one page at least.
    fn slowly(&mut self) -> Result<(), PinError> {
        let manner = match self.flags.contains(PinFlags::FORCE) {
            true => AccessMode::Forced,
            false => AccessMode::Plain,
        };
        let how = How { write: self.pins.write, manner, own: false };
        let (space, page, mut refused) = (self.space, self.at, None);
        space.with_vma(page, manner, |vma, held| self.attempt(vma, held, how, &mut refused))?;
        refused.map_or(Ok(()), Err)
    }

    /// One attempt, while `held` keeps the VMA still.
    fn attempt(
        &mut self,
        vma: &Vma<P>,
        held: HeldLock<'_, '_, P>,
        how: How,
        refused: &mut Option<PinError>,
    ) -> FaultOutcome<P> {
        if !how.allowed(self.space.platform(), vma) {
            return FaultOutcome::Failed(FaultError::Segv { addr: self.at, code: SegvCode::Accerr });
        }
        let long = self.flags.contains(PinFlags::LONGTERM);
        *refused = self.refusal(vma);
        if refused.is_some() {
            return FaultOutcome::Done;
        }
        let kept = self.space.keep_tables(vma);
        let pinned = self.table(self.end.min(vma.end()), Walk::Slow, long && vma.flags().is_cow());
        drop(kept);
        match pinned {
            Ok(()) => FaultOutcome::Done,
            Err(Stop::TooMany) => {
                *refused = Some(PinError::TooMany);
                FaultOutcome::Done
            }
            Err(Stop::Missing(missing)) => self.space.make_up(vma, self.at, how.write, &missing, held),
        }
    }

    /// Why no page of `vma` can be pinned, whatever is there.
    fn refusal(&self, vma: &Vma<P>) -> Option<PinError> {
        let Object::File(file) = vma.object() else { return None };
        let (mapping, long) = (file.mapping(), self.flags.contains(PinFlags::LONGTERM));
        if mapping.is_direct() && (long || self.not_storage) {
            return Some(PinError::Direct);
        }
        let stored_to = self.pins.write && vma.flags().contains(VmFlags::SHARED);
        (long && stored_to && !mapping.is_shmem()).then_some(PinError::Tracked)
    }

    /// Pins what one table maps, up to `limit` or the first page that is not there as wanted; an error if
    /// that is the first. `own`: only what is this space's own.
    fn table(&mut self, limit: u64, walk: Walk, own: bool) -> Result<(), Stop> {
        let (space, address) = (self.space, VirtAddr::new(self.at));
        if let Some(table) = space.vm.pte_table(address) {
            let guard = match walk {
                Walk::Fast => table.try_lock_linked(),
                // A table that was reclaimed since it was found was empty.
                Walk::Slow => table.lock_linked(),
            };
            return self.entries(guard.ok_or(Stop::ABSENT)?, limit, walk, own);
        }
        if let Some(table) = space.vm.pmd_table(address) {
            return self.large(table, address, limit, walk, own);
        }
        let table = space.vm.pud_table(address).ok_or(Stop::ABSENT)?;
        self.large(table, address, limit, walk, own)
    }

    /// As [`table`](Self::table), for a table whose entry at `address` may be a leaf.
    fn large<const LEVEL: usize>(
        &mut self,
        table: EntryTable<'_, P::Format, P, LEVEL>,
        address: VirtAddr,
        limit: u64,
        walk: Walk,
        own: bool,
    ) -> Result<(), Stop> {
        if !table.peek(address).is_leaf(Level::from_number(LEVEL)) {
            return Err(Stop::ABSENT);
        }
        let guard = match walk {
            Walk::Fast => table.try_lock_linked().ok_or(Stop::ABSENT)?,
            Walk::Slow => table.lock(),
        };
        self.entries(guard, limit, walk, own)
    }

    fn entries<const LEVEL: usize>(
        &mut self,
        mut guard: EntryGuard<'_, P::Format, P, LEVEL>,
        limit: u64,
        walk: Walk,
        own: bool,
    ) -> Result<(), Stop> {
        let (first, level) = (self.at, Level::from_number(LEVEL));
        let end = limit.min(guard.span().end().get());
        while self.at < end {
            let address = VirtAddr::new(self.at);
            match self.entry(guard.get(address).kind(level), address.frame_in_leaf(level), walk, own) {
                Ok(()) if self.pins.write => {
                    guard.grant(address, PteFlags::ACCESSED | PteFlags::DIRTY);
                }
                Ok(()) => {}
                Err(stop) if self.at == first => return Err(stop),
                Err(_) => break,
            }
            self.at += PAGE_SIZE;
        }
        Ok(())
    }

    /// Pins one page, by its entry, or the frame `n` of what that maps. Its table is locked.
    fn entry(&mut self, kind: Kind, n: u64, walk: Walk, own: bool) -> Result<(), Stop> {
        let (first, pfn, flags) = match kind {
            Kind::Leaf { pfn, flags } => (pfn, pfn.add(n), flags),
            // Its fault waits until the page is where it goes, or is known to be lost.
            Kind::None
            | Kind::Table { .. }
            | Kind::Marker { kind: MarkerKind::Migration | MarkerKind::Poison, .. } => {
                return Err(Stop::ABSENT);
            }
            Kind::Marker { kind: MarkerKind::Guard, .. } => return Err(Stop::never(self.at)),
            Kind::Marker { .. } => {
                return Err(Stop::Missing(Missing::Never(FaultError::Bus { addr: self.at })));
            }
        };
        if walk == Walk::Fast && flags.contains(PteFlags::NO_ACCESS) {
            return Err(Stop::ABSENT);
        }
        let engine = &self.space.engine;
        if flags.contains(PteFlags::SPECIAL) {
            if !engine.memory().is_zero(pfn) {
                // It may go with the VMA.
                return Err(Stop::never(self.at));
            }
            if self.pins.write || own {
                return Err(Stop::READ_ONLY);
            }
            self.pins.frames.push(engine.memory().zero());
            return Ok(());
        }
        // Of a huge page of a pool the first frame's record counts.
        let (whole, part) = (engine.platform().frame(first), engine.platform().frame(pfn));
        let frame = if n > 0 && whole.hugetlb().is_some() { whole } else { part };
        if frame.is_secret() {
            return Err(Stop::never(self.at));
        }
        let ours = frame.is_anon() && frame.is_exclusive();
        let stored_to = flags.contains(PteFlags::WRITE) || ours && self.flags.contains(PinFlags::FORCE);
        // What can be stored to and is no file's with a store behind it serves for long as well.
        let lasts = ours || self.pins.write && frame.is_shmem();
        if self.pins.write && !stored_to || !ours && (frame.is_anon() || own && !lasts) {
            return Err(Stop::READ_ONLY);
        }
        if !frame.pin() {
            return Err(Stop::TooMany);
        }
        self.pins.frames.push(pfn);
        Ok(())
    }
}

/// Why a page is not pinned.
enum Stop {
    Missing(Missing),
    TooMany,
}

impl Stop {
    const ABSENT: Self = Stop::Missing(Missing::Absent);
    const READ_ONLY: Self = Stop::Missing(Missing::ReadOnly);

    fn never(addr: u64) -> Self {
        Stop::Missing(Missing::Never(FaultError::Segv { addr, code: SegvCode::Maperr }))
    }
}
