//! get_user_pages: takes references to pages for devices or for the kernel. Page table entries have
//! references of their own.
//!
//! ```text
//! fast    takes no lock of the space or a VMA: walks the page tables as the hardware does
//!         (Platform::walk_tables), then locks the lowest table without waiting and checks that it is still
//!         linked; falls back to slow if any of this fails
//! slow    holds the VMA's lock or the mmap lock, like a fault; faults in missing pages
//! ```
//!
//! Both paths take pins under the lock of the table whose entry maps the page ([`frame::pin`](crate::frame)).
//! A page becomes exclusive or shared, mapped or unmapped, only under that lock. A pinned page therefore does
//! not have to be checked again. Three rules prevent hazards C-56 and C-57:
//!
//! 1. An anonymous page is pinned only if it is exclusive. A shared page is copied first, even for reading.
//!    Without the copy, a copy-on-write by either sharer could separate the pinned page from the page that
//!    the pinning process uses.
//! 2. fork does not share a page that is exclusive and pinned. The child gets a copy, which is made while no
//!    CPU can store to the page through the parent's mapping. If fork has already processed a table, a pin
//!    request finds that the pages of this table are shared, and waits for the end of fork.
//! 3. A store to an exclusive page changes this page, regardless of other references to it.
//!
//! A long-term pin, for example for a registered device, is refused in two cases. Frames that are a file's
//! storage cannot be pinned, because truncation would have to wait for the pin. A file's own page cannot be
//! pinned for writing, because the file would be notified of stores too late. In a private mapping, a
//! long-term pin makes the space's own copy of each page immediately, even for reading.
//!
//! `refusal` has the rules that depend on the mapping, and `entry` has the rules that depend on the page.
//! `docs/guide/reverse-map-and-pins.md` explains pins. The tests are `pins` (`engine/freehold/tests`), and
//! `pins` and `pinned` (`shuttle_engine`).

use super::{AccessMode, PageAccess, page::Missing, pins::Pins};
use crate::{
    PAGE_SIZE, VirtAddr,
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
    /// Purpose of a pin.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct PinFlags: u32 {
        /// The pages will be written (FOLL_WRITE).
        const WRITE = 1;
        /// The pin also has all rights that the VMA could be given (FOLL_FORCE): [`AccessMode::Forced`].
        const FORCE = 2;
        /// The pin has no time limit (FOLL_LONGTERM). Without this flag, a pin is held for one transfer that
        /// ends without action of the program.
        const LONGTERM = 4;
    }
}

impl<P: Platform> AddressSpace<P> {
    /// Pins up to `pages` pages, starting at the page of `addr`. Pins fewer pages if some are not available,
    /// but at least one unless `pages` is zero. Any task may call this function for any address space.
    /// Protection keys do not apply.
    ///
    /// Pins for a transfer must be short. A pinned page cannot move, and truncation of a directly mapped file
    /// waits for its pins. Therefore a task that holds a pin of such a file must not wait for a lock of the
    /// file.
    ///
    /// # Errors
    ///
    /// See [`PinError`]. After an error no page is pinned.
    ///
    /// # Locks
    ///
    /// The locks of faults. The caller holds no lock, and no lock is held between two page tables.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, remote::PinFlags, space::*};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// # let space = AddressSpace::new(&engine, &SpaceConfig::default()).unwrap();
    /// # let (rw, private) = (Prot::READ | Prot::WRITE, MapFlags::PRIVATE | MapFlags::ANONYMOUS);
    /// # let at = space.mmap(0, 4 * PAGE_SIZE, rw, private, None, 0).unwrap();
    /// let pins = space.pin_user_pages(at, 2, PinFlags::WRITE).unwrap();
    /// space.munmap(at, 4 * PAGE_SIZE).unwrap();
    /// // The frames stay until the pins are dropped.
    /// drop(pins);
    /// ```
    pub fn pin_user_pages(&self, addr: u64, pages: usize, flags: PinFlags) -> Result<Pins<P>, PinError> {
        self.retry_when_short(|| Pinning::new(self, addr, pages, flags, false))?.pin_slow()
    }

    /// Pins pages like [`pin_user_pages`](Self::pin_user_pages), but refuses frames that are a file's
    /// storage. Intended for callers that wait while they hold the pins.
    pub(super) fn pin_unless_storage(
        &self,
        addr: u64,
        pages: usize,
        flags: PinFlags,
    ) -> Result<Pins<P>, PinError> {
        let pinning = self.retry_when_short(|| Pinning::new(self, addr, pages, flags, false))?;
        Pinning { not_storage: true, ..pinning }.pin_slow()
    }

    /// Pins pages like [`pin_user_pages`](Self::pin_user_pages), on a CPU that runs this space. Pages that
    /// are present with the required rights are pinned without a lock of the space or its VMAs. The calling
    /// thread's protection keys apply.
    ///
    /// # Errors
    ///
    /// The errors of [`pin_user_pages`](Self::pin_user_pages).
    ///
    /// # Locks
    ///
    /// Page tables' locks, one at a time, without waiting. If a page is missing, the locks of faults. The
    /// caller holds no lock.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, remote::PinFlags, space::*};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// # let space = AddressSpace::new(&engine, &SpaceConfig::default()).unwrap();
    /// # let (rw, private) = (Prot::READ | Prot::WRITE, MapFlags::PRIVATE | MapFlags::ANONYMOUS);
    /// # let at = space.mmap(0, 4 * PAGE_SIZE, rw, private, None, 0).unwrap();
    /// # let mut cpu = engine.platform().cpu(0);
    /// # cpu.run(space.mmu());
    /// let pins = cpu.call(|| space.pin_user_pages_fast(at, 4, PinFlags::WRITE)).unwrap();
    /// assert_eq!((pins.len(), space.rss().anon), (4, 4));
    /// ```
    pub fn pin_user_pages_fast(&self, addr: u64, pages: usize, flags: PinFlags) -> Result<Pins<P>, PinError> {
        let mut pinning = self.retry_when_short(|| Pinning::new(self, addr, pages, flags, true))?;
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

    /// Pins pages like [`pin_user_pages_fast`](Self::pin_user_pages_fast), but never waits. Stops at the
    /// first page that cannot be pinned without waiting, so that the result may be empty.
    ///
    /// # Errors
    ///
    /// Fails if there is no memory for the list of frames.
    ///
    /// # Locks
    ///
    /// Page tables' locks, one at a time, without waiting. The caller may hold any lock except page tables'
    /// locks.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, fault::Access, remote::PinFlags, space::*};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// # let space = AddressSpace::new(&engine, &SpaceConfig::default()).unwrap();
    /// # let (rw, private) = (Prot::READ | Prot::WRITE, MapFlags::PRIVATE | MapFlags::ANONYMOUS);
    /// # let at = space.mmap(0, 4 * PAGE_SIZE, rw, private, None, 0).unwrap();
    /// # let mut cpu = engine.platform().cpu(0);
    /// # cpu.run(space.mmu());
    /// space.handle_fault(at, Access::WRITE).unwrap();
    /// let pins = cpu.call(|| space.pin_user_pages_fast_only(at, 4, PinFlags::WRITE)).unwrap();
    /// assert_eq!(pins.len(), 1, "the second page is not present");
    /// ```
    pub fn pin_user_pages_fast_only(
        &self,
        addr: u64,
        pages: usize,
        flags: PinFlags,
    ) -> Result<Pins<P>, PinError> {
        let mut pinning = Pinning::new(self, addr, pages, flags, true)?;
        pinning.pin_fast();
        Ok(pinning.pins)
    }
}

/// The method by which page tables are found and locked.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Walk {
    /// Only the walk itself keeps the tables from being freed.
    Fast,
    /// A lock keeps the VMA stable.
    Slow,
}

/// A pin request in progress.
struct Pinning<'s, P: Platform> {
    space: &'s AddressSpace<P>,
    flags: PinFlags,
    how: PageAccess,
    /// A protection key whose pages the fast walk may pin. A page with another key needs the slow path,
    /// because the rights of the calling thread cannot be read while a table is locked.
    open_key: Option<u8>,
    /// True if frames that are a file's storage are refused.
    not_storage: bool,
    /// Address of the next page.
    at: u64,
    end: u64,
    /// Pages pinned so far, with capacity for all pages.
    pins: Pins<P>,
}

impl<'s, P: Platform> Pinning<'s, P> {
    /// Returns a request that has pinned nothing. With `own`, the calling thread belongs to the space.
    fn new(
        space: &'s AddressSpace<P>,
        addr: u64,
        pages: usize,
        flags: PinFlags,
        own: bool,
    ) -> Result<Self, PinError> {
        let at = addr & !(PAGE_SIZE - 1);
        let len = (pages as u64).checked_mul(PAGE_SIZE).ok_or(PinError::BadAddress)?;
        let end = at.checked_add(len).ok_or(PinError::BadAddress)?;
        let mut frames = Vec::new();
        frames.try_reserve_exact(pages).map_err(|_| PinError::OutOfMemory)?;
        let write = flags.contains(PinFlags::WRITE);
        let manner = match flags.contains(PinFlags::FORCE) {
            true => AccessMode::Forced,
            false => AccessMode::Plain,
        };
        let how = PageAccess { write, manner, own };
        Ok(Pinning {
            space,
            flags,
            how,
            open_key: how.key_allows(space.platform(), 0).then_some(0),
            not_storage: false,
            at,
            end,
            pins: Pins { engine: space.engine.clone(), frames, write },
        })
    }

    /// Returns true if all pages are pinned.
    fn is_over(&self) -> bool {
        self.at == self.end
    }

    /// Returns the pages pinned so far, or `error` if there are none.
    fn partial(self, error: PinError) -> Result<Pins<P>, PinError> {
        if self.pins.is_empty() { Err(error) } else { Ok(self.pins) }
    }

    /// Pins pages until a page would need a lock of the space.
    fn pin_fast(&mut self) {
        let space = self.space;
        // Each table has its own call of `walk_tables`, so that a CPU delays flushes for at most one table.
        while !self.is_over()
            && let Some(Ok(())) = space.platform().walk_tables(space.vm.mmu(), || {
                // A long-term pin depends on the kind of the mapping, which the fast walk does not know. The
                // fast walk therefore gives long-term pins only to pages that allow them in every mapping.
                self.table(self.end, Walk::Fast, self.flags.contains(PinFlags::LONGTERM))
            })
        {}
    }

    /// Pins all pages under locks.
    fn pin_slow(mut self) -> Result<Pins<P>, PinError> {
        let mut rounds = Rounds::new();
        while !self.is_over() {
            if let Err(error) = rounds.again::<P>().map_err(PinError::from).and_then(|()| self.slowly()) {
                return self.partial(error);
            }
        }
        Ok(self.pins)
    }

    /// Pins at least one page while a lock keeps the VMA stable.
    fn slowly(&mut self) -> Result<(), PinError> {
        let (space, page, manner, mut refused) = (self.space, self.at, self.how.manner, None);
        space.with_vma(page, manner, |vma, held| self.attempt(vma, held, &mut refused))?;
        refused.map_or(Ok(()), Err)
    }

    /// Makes one attempt while `held` keeps the VMA stable.
    fn attempt(
        &mut self,
        vma: &Vma<P>,
        held: HeldLock<'_, '_, P>,
        refused: &mut Option<PinError>,
    ) -> FaultOutcome<P> {
        if vma.object().is_secret() || !self.how.allowed(self.space.platform(), vma) {
            return FaultOutcome::Failed(FaultError::Segv { addr: self.at, code: SegvCode::Accerr });
        }
        self.open_key = Some(vma.flags().pkey());
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
            Err(Stop::Missing(missing)) => self.space.make_up(vma, self.at, self.how.write, &missing, held),
        }
    }

    /// Returns the reason why no page of `vma` can be pinned, or `None`. The reason depends only on the VMA
    /// and the request, and not on the mapped pages.
    fn refusal(&self, vma: &Vma<P>) -> Option<PinError> {
        let Object::File(file) = vma.object() else { return None };
        let (mapping, long) = (file.mapping(), self.flags.contains(PinFlags::LONGTERM));
        if mapping.is_direct() && (long || self.not_storage) {
            return Some(PinError::Direct);
        }
        let stored_to = self.pins.write && vma.flags().contains(VmFlags::SHARED);
        (long && stored_to && !mapping.is_shmem()).then_some(PinError::Tracked)
    }

    /// Pins pages of one table, up to `limit` or to the first page without the required rights. Fails if
    /// already the first page lacks these rights. With `own`, pins a page only if the page belongs to no
    /// other space, or allows a long-term pin in any mapping.
    fn table(&mut self, limit: u64, walk: Walk, own: bool) -> Result<(), Stop> {
        let (space, address) = (self.space, VirtAddr::new(self.at));
        if let Some(table) = space.vm.pte_table(address) {
            let guard = match walk {
                Walk::Fast => table.try_lock_linked(),
                // Reclaim frees only empty tables, so a table that is not linked any more was empty.
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

    /// Implements [`table`](Self::table) for a table whose entry at `address` may be a leaf.
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

    /// Implements [`table`](Self::table) for a locked table of any level.
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

    /// Pins frame `n` of the page that an entry maps. `kind` describes that entry. The table is locked.
    fn entry(&mut self, kind: Kind, n: u64, walk: Walk, own: bool) -> Result<(), Stop> {
        let (first, pfn, flags) = match kind {
            Kind::Leaf { pfn, flags } => (pfn, pfn.add(n), flags),
            // The fault waits for the end of a migration, brings a page back, reports a lost page, or maps a
            // page.
            Kind::Marker {
                kind: MarkerKind::Migration | MarkerKind::Poison | MarkerKind::UffdWp | MarkerKind::Swap,
                ..
            }
            | Kind::None
            | Kind::Table { .. } => return Err(Stop::ABSENT),
            Kind::Marker { kind: MarkerKind::Guard, .. } => return Err(Stop::never(self.at)),
        };
        let closed = flags.contains(PteFlags::NO_ACCESS) || self.open_key != Some(flags.pkey());
        if walk == Walk::Fast && closed {
            return Err(Stop::ABSENT);
        }
        let engine = &self.space.engine;
        if flags.contains(PteFlags::SPECIAL) {
            if !engine.memory().is_zero(pfn) {
                // A special frame may be freed with its VMA.
                return Err(Stop::never(self.at));
            }
            if self.pins.write || own {
                return Err(Stop::READ_ONLY);
            }
            self.pins.frames.push(engine.memory().zero());
            return Ok(());
        }
        // The first frame's record counts the references of a huge page of a pool.
        let (whole, part) = (engine.platform().frame(first), engine.platform().frame(pfn));
        let frame = if n > 0 && whole.hugetlb().is_some() { whole } else { part };
        if frame.is_secret() {
            return Err(Stop::never(self.at));
        }
        let ours = frame.is_anon() && frame.is_exclusive();
        let forced = self.flags.contains(PinFlags::FORCE) && flags.contains(PteFlags::SOFT_DIRTY);
        let stored_to = flags.contains(PteFlags::WRITE) || ours && forced;
        // A writable page of shared memory also allows a long-term pin, because it is never written back.
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

/// Reason why a page was not pinned.
enum Stop {
    /// A fault must first bring in or copy the page, or no page can be mapped there.
    Missing(Missing),
    /// The frame has the maximum number of pins.
    TooMany,
}

impl Stop {
    const ABSENT: Self = Stop::Missing(Missing::Absent);
    const READ_ONLY: Self = Stop::Missing(Missing::ReadOnly);

    fn never(addr: u64) -> Self {
        Stop::Missing(Missing::Never(FaultError::Segv { addr, code: SegvCode::Maperr }))
    }
}
