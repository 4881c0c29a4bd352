//! Pages that the pager supplies: COPY, ZEROPAGE, CONTINUE, POISON.
//!
//! Each operation read-locks one VMA, without the mmap lock where possible, and holds the lock for a batch of
//! pages. A page is put only at an empty entry; a page with contents may also replace a marker. Faults that
//! wait for the pages are woken when all pages are mapped. `fill_huge.rs` handles huge pages of pools.
//!
//! A new page of shared memory is published in its file's cache and mapped while the table's lock is held. A
//! fault that finds the page in the cache then waits for that lock and finds the entry. No store can
//! therefore occur before the page's write protection is in place (hazard C-53). Linux keeps the page locked
//! instead. A new source of contents is a variant of `Source`, with arms here and in `put_huge`.
//!
//! A fill must not take effect after a change whose message the pager has not read. Each function that
//! installs an entry therefore calls `still_fills` in the RCU read section in which it installs the entry.
//! `uffd::changes_during_fills` (`engine/freehold/tests`) fails without this check, and
//! `uffd::c53_protected_fill_concurrent_with_accesses` (`shuttle_engine`) fails if a page is visible before
//! its protection.

use super::{Context, Userfaultfd, decode, fill_huge::Obstacle};
use crate::{
    PAGE_SIZE, VirtAddr,
    counted::Counted,
    error::{NoMemory, UffdError},
    file::{File, Mapping, NewPage, Object},
    hugetlb::fault::place::HugePlace,
    platform::Platform,
    rmap::failed_frame,
    space::{
        AddressSpace,
        change::anon::AnonVmaError,
        held_lock::HeldLock,
        locking::{ReadGuard, VmaRead},
        shortage::ShortageRounds,
    },
    vma::{
        Vma,
        flags::{
            VmFlags,
            pte_flags::{WRITTEN, vma_pte_flags, written},
        },
    },
    wait::Rounds,
};
use bitflags::bitflags;
use freehold_pagetable::{Kind, Level, MarkerKind, Pte, PteFlags, PteTable, TableError};
use freehold_vmspace::{CacheFill, UserRange};

/// Number of pages after which the VMA's lock is released, so that a waiting writer can take it.
const BATCH: u64 = 32;

bitflags! {
    /// Options for supplying pages, with Linux's numbers.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct FillMode: u64 {
        /// UFFDIO_COPY_MODE_DONTWAKE and its counterparts: waiting faults are not woken.
        const DONTWAKE = 1;
        /// UFFDIO_COPY_MODE_WP, UFFDIO_CONTINUE_MODE_WP: the new entries are write-protected.
        const WP = 2;
    }
}

/// Source of the pages' contents.
#[derive(Clone, Copy)]
pub(super) enum Source<'b> {
    /// These bytes.
    Bytes(&'b [u8]),
    /// Zeroes.
    Zeroes,
    /// The page that the file's cache has.
    Cached,
    /// No contents: the pages are lost.
    Poison,
}

impl From<TableError> for UffdError {
    fn from(error: TableError) -> Self {
        match error {
            TableError::OutOfTables => UffdError::OutOfMemory,
            TableError::Huge(_) | TableError::Marker(_) => UffdError::Present,
        }
    }
}

impl<P: Platform> Userfaultfd<P> {
    /// Puts copies of `bytes`, which are whole pages, at `start` (UFFDIO_COPY). Returns the number of bytes
    /// put. The number is smaller than requested if an obstacle appears after the first page. In this case
    /// Linux returns EAGAIN together with the number.
    ///
    /// In a private mapping of shared memory the copy is private; in a shared mapping the copy becomes the
    /// file's page. A huge page of a pool comes from the reservation for its offset or from the unreserved
    /// pages. If there is neither a reservation nor an unreserved page, the call fails with
    /// [`UffdError::OutOfMemory`].
    ///
    /// # Errors
    ///
    /// Fails with a [`UffdError`] if no page was put.
    ///
    /// # Locks
    ///
    /// The VMA's lock for reading, taken without the mmap lock where possible. For shared memory, the
    /// invalidate lock for reading. For huge pages of a pool, a fault mutex and the hugetlb VMA lock. Locks
    /// of page tables.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, remote::AccessMode, space::*, uffd::*};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// # let space = AddressSpace::new(&engine, &SpaceConfig::default()).unwrap();
    /// # let (rw, private) = (Prot::READ | Prot::WRITE, MapFlags::PRIVATE | MapFlags::ANONYMOUS);
    /// # let at = space.mmap(0, 4 * PAGE_SIZE, rw, private, None, 0).unwrap();
    /// # let uffd = Userfaultfd::new(&space, UffdConfig::default()).unwrap();
    /// # uffd.register(at, 4 * PAGE_SIZE, RegisterMode::MISSING).unwrap();
    /// let page = [7; PAGE_SIZE as usize];
    /// assert_eq!(uffd.copy(at, &page, FillMode::empty()), Ok(PAGE_SIZE));
    /// let mut found = [0; 2];
    /// space.read_memory(at, &mut found, AccessMode::Plain).unwrap();
    /// assert_eq!(found, [7, 7]);
    /// ```
    pub fn copy(&self, start: u64, bytes: &[u8], mode: FillMode) -> Result<u64, UffdError> {
        self.fill(start, bytes.len() as u64, Source::Bytes(bytes), mode, FillMode::all())
    }

    /// Puts pages of zeroes (UFFDIO_ZEROPAGE), like [`copy`](Self::copy). In a private mapping any marker is
    /// an obstacle, including the marker of a write-protected absent page. Not available for huge pages of a
    /// pool.
    ///
    /// # Errors
    ///
    /// Fails like [`copy`](Self::copy).
    ///
    /// # Locks
    ///
    /// The locks of [`copy`](Self::copy).
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, error::UffdError, space::*, uffd::*};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// # let space = AddressSpace::new(&engine, &SpaceConfig::default()).unwrap();
    /// # let (rw, private) = (Prot::READ | Prot::WRITE, MapFlags::PRIVATE | MapFlags::ANONYMOUS);
    /// # let at = space.mmap(0, 4 * PAGE_SIZE, rw, private, None, 0).unwrap();
    /// # let uffd = Userfaultfd::new(&space, UffdConfig::default()).unwrap();
    /// # uffd.register(at, 4 * PAGE_SIZE, RegisterMode::MISSING).unwrap();
    /// assert_eq!(uffd.zeropage(at + PAGE_SIZE, PAGE_SIZE, FillMode::empty()), Ok(PAGE_SIZE));
    /// assert_eq!(uffd.zeropage(at, 4 * PAGE_SIZE, FillMode::empty()), Ok(PAGE_SIZE), "up to the obstacle");
    /// assert_eq!(uffd.zeropage(at, 4 * PAGE_SIZE, FillMode::empty()), Err(UffdError::Present));
    /// ```
    pub fn zeropage(&self, start: u64, len: u64, mode: FillMode) -> Result<u64, UffdError> {
        self.fill(start, len, Source::Zeroes, mode, FillMode::DONTWAKE)
    }

    /// Maps pages of shared memory, or huge pages of a pool, that are in their file (UFFDIO_CONTINUE). A
    /// private mapping maps these pages for reading; a store copies the page.
    ///
    /// # Errors
    ///
    /// Fails like [`copy`](Self::copy), and with [`UffdError::BadAddress`] if the cache does not have a page.
    ///
    /// # Locks
    ///
    /// The VMA's lock for reading, as for [`copy`](Self::copy); locks of page tables.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, error::UffdError, file::{File, FileAccess, Mapping}, space::*, uffd::*};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// # let space = AddressSpace::new(&engine, &SpaceConfig::default()).unwrap();
    /// # let uffd = Userfaultfd::new(&space, UffdConfig::default()).unwrap();
    /// # let file = File::new(&Mapping::memfd(&engine, 4 * PAGE_SIZE).unwrap(), FileAccess::READ_WRITE, "/memfd:it").unwrap();
    /// let at = space.mmap(0, 2 * PAGE_SIZE, Prot::READ, MapFlags::SHARED, Some(&file), 0).unwrap();
    /// uffd.register(at, 2 * PAGE_SIZE, RegisterMode::MINOR).unwrap();
    /// file.mapping().write_at(0, b"ready").unwrap();
    /// assert_eq!(uffd.continue_with(at, PAGE_SIZE, FillMode::empty()), Ok(PAGE_SIZE));
    /// let missing = uffd.continue_with(at + PAGE_SIZE, PAGE_SIZE, FillMode::empty());
    /// assert_eq!(missing, Err(UffdError::BadAddress));
    /// ```
    pub fn continue_with(&self, start: u64, len: u64, mode: FillMode) -> Result<u64, UffdError> {
        self.fill(start, len, Source::Cached, mode, FillMode::all())
    }

    /// Declares pages lost (UFFDIO_POISON): an access to them then raises SIGBUS with BUS_MCEERR_AR.
    ///
    /// # Errors
    ///
    /// Fails like [`copy`](Self::copy).
    ///
    /// # Locks
    ///
    /// The locks of [`continue_with`](Self::continue_with).
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, fault::{Access, FaultError}, space::*, uffd::*};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// # let space = AddressSpace::new(&engine, &SpaceConfig::default()).unwrap();
    /// # let (rw, private) = (Prot::READ | Prot::WRITE, MapFlags::PRIVATE | MapFlags::ANONYMOUS);
    /// # let at = space.mmap(0, 4 * PAGE_SIZE, rw, private, None, 0).unwrap();
    /// # let uffd = Userfaultfd::new(&space, UffdConfig::default()).unwrap();
    /// # uffd.register(at, 4 * PAGE_SIZE, RegisterMode::MISSING).unwrap();
    /// uffd.poison(at, PAGE_SIZE, FillMode::empty()).unwrap();
    /// assert_eq!(space.handle_fault(at, Access::READ), Err(FaultError::MemoryFailed { addr: at }));
    /// ```
    pub fn poison(&self, start: u64, len: u64, mode: FillMode) -> Result<u64, UffdError> {
        self.fill(start, len, Source::Poison, mode, FillMode::DONTWAKE)
    }

    /// Puts pages from `source` at `start`, batch by batch. `known` contains the options that the operation
    /// accepts.
    fn fill(
        &self,
        start: u64,
        len: u64,
        source: Source<'_>,
        mode: FillMode,
        known: FillMode,
    ) -> Result<u64, UffdError> {
        if self.context.is_changing() {
            return Err(UffdError::Changing);
        }
        let range = decode::<P>(start, len).ok_or(UffdError::Invalid)?;
        if !known.contains(mode) {
            return Err(UffdError::Invalid);
        }
        let space = self.space()?;
        let filler =
            Filler { context: &self.context, space: &space, source, wp: mode.contains(FillMode::WP) };
        let (mut at, mut rounds) = (range.start(), Rounds::new());
        let (mut failed, mut shortage) = (Ok(()), ShortageRounds::new());
        while at < range.end() && failed.is_ok() {
            let before = at;
            failed = rounds.again::<P>().map_err(UffdError::from).and_then(|()| filler.batch(range, &mut at));
            if at > before {
                shortage.progressed();
            }
            failed = failed.or_else(|error| space.bring_back_for_pager(at, error));
            failed = failed.or_else(|error| shortage.again(&space, error));
        }
        if at > start && !mode.contains(FillMode::DONTWAKE) {
            self.context.wake(UserRange::new(start, at));
        }
        failed.map(|()| len).or_else(|error| if at > start { Ok(at - start) } else { Err(error) })
    }
}

/// A running fill operation.
pub(super) struct Filler<'f, P: Platform> {
    context: &'f Counted<Context<P>>,
    pub space: &'f AddressSpace<P>,
    pub source: Source<'f>,
    /// True if the new entries are write-protected.
    wp: bool,
}

impl<P: Platform> Filler<'_, P> {
    /// Puts a batch of pages, starting at `at`. Advances `at` past each page that was put.
    fn batch(&self, range: UserRange, at: &mut u64) -> Result<(), UffdError> {
        let fits = |vma: &Vma<P>| match vma.uffd().is_some_and(|other| Counted::ptr_eq(other, self.context)) {
            true if range.end() <= vma.end() => Ok(()),
            _ => Err(UffdError::NotRegistered),
        };
        let vma = self.space.lock_for_pager(*at, true, fits)?;
        if self.context.is_changing() {
            return Err(UffdError::Changing);
        }
        if self.wp && !vma.flags().contains(VmFlags::UFFD_WP) {
            return Err(UffdError::Invalid);
        }
        // The pager does not fill the caches of ordinary files, which are only registered with `WP_ASYNC`.
        let fills = vma
            .object()
            .file()
            .is_none_or(|file| file.mapping().is_shmem() || vma.huge_page_size().is_some());
        if !fills || matches!(self.source, Source::Cached) && vma.is_anonymous() {
            return Err(UffdError::Invalid);
        }
        let huge = HugePlace::new(&vma, *at).map(|place| (place.size, self.put_huge(&place, range)));
        if let Some((size, put)) = huge {
            drop(vma);
            return match put {
                Ok(()) => {
                    *at += size.bytes();
                    Ok(())
                }
                Err(Obstacle::Error(error)) => Err(error),
                Err(Obstacle::Wait(what)) => Ok(self.space.engine.wait_for(what)?),
            };
        }
        let end = range.end().min(*at + BATCH * PAGE_SIZE);
        while *at < end {
            let page = *at;
            let table = self.space.vm.pte_table_alloc(VirtAddr::new(page))?;
            match self.source {
                Source::Bytes(bytes) => {
                    let offset = (page - range.start()) as usize;
                    let bytes = &bytes[offset..offset + PAGE_SIZE as usize];
                    if !self.put_new(&vma, page, table, Some(bytes))? {
                        return Ok(());
                    }
                    *at += PAGE_SIZE;
                }
                Source::Zeroes if vma.flags().contains(VmFlags::SHARED) => {
                    if !self.put_new(&vma, page, table, None)? {
                        return Ok(());
                    }
                    *at += PAGE_SIZE;
                }
                _ => self.put_many(&vma, table, at, end.min(table.span().end().get()))?,
            }
            if *at == page {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Puts pages that need no allocation, in one table, in one hold of its lock. Puts none if the table was
    /// reclaimed.
    fn put_many(
        &self,
        vma: &Vma<P>,
        table: PteTable<'_, P::Format, P>,
        at: &mut u64,
        end: u64,
    ) -> Result<(), UffdError> {
        let rights = vma_pte_flags(vma.flags());
        let zero = Pte::page(self.space.engine.memory().zero(), rights | PteFlags::SPECIAL);
        let rcu = P::rcu_read();
        // `still_fills` checks within the read section, so that a change that waits for a grace period finds
        // the pages put here.
        let mut done = self.still_fills();
        let Some(mut fill) = self.space.vm.fill_cached(table) else { return done };
        while *at < end && done.is_ok() {
            let address = VirtAddr::new(*at);
            let found = fill.get(address);
            let within = match self.source {
                Source::Cached => Ok(()),
                _ => within_file(vma, *at),
            };
            done = within.and_then(|()| match self.source {
                _ if !self.is_vacant(vma, found, Level::Pte) => Err(UffdError::Present),
                Source::Cached => self.put_cached(vma, *at, &rcu, &mut fill),
                Source::Poison => {
                    fill.put_uncounted(address, Pte::marker(MarkerKind::Poison, 0));
                    Ok(())
                }
                Source::Bytes(_) | Source::Zeroes => {
                    fill.put_uncounted(address, zero);
                    Ok(())
                }
            });
            if done.is_ok() {
                *at += PAGE_SIZE;
            }
        }
        fill.finish(rcu);
        done
    }

    /// Maps a page that the file's cache has.
    fn put_cached(
        &self,
        vma: &Vma<P>,
        page: u64,
        rcu: &P::RcuGuard,
        fill: &mut CacheFill<'_, P>,
    ) -> Result<(), UffdError> {
        let Object::File(file) = vma.object() else { return Err(UffdError::Invalid) };
        let found = file.mapping().find(rcu, vma.pgoff_of(page)).ok_or(UffdError::BadAddress)?;
        let rights = self.file_rights(vma);
        let put = fill.put(VirtAddr::new(page), found.pfn(), rights, || found.is_still())?;
        if put && rights.contains(PteFlags::WRITE) {
            file.mapping().mark_granted(rcu, vma.pgoff_of(page));
        }
        if put { Ok(()) } else { Err(UffdError::BadAddress) }
    }

    /// Returns the flags of an entry for the file's own page. The entry is dirty only if it is also writable.
    /// A dirty entry without write permission could be mistaken for a completed private copy (hazard C-52).
    pub(super) fn file_rights(&self, vma: &Vma<P>) -> PteFlags {
        let rights = vma_pte_flags(vma.flags());
        match self.wp {
            true => rights | PteFlags::UFFD_WP,
            false if vma.flags().contains(VmFlags::SHARED | VmFlags::WRITE) => rights | WRITTEN,
            false => rights,
        }
    }

    /// Returns the flags of an entry for a private page.
    pub(super) fn own_rights(&self, vma: &Vma<P>) -> PteFlags {
        let rights = vma_pte_flags(vma.flags()) | written(vma.flags());
        if self.wp { (rights - PteFlags::WRITE) | PteFlags::UFFD_WP } else { rights }
    }

    /// Returns true if a page may be put in place of the entry `found`. A page with contents may replace the
    /// marker of a write-protected page, of a guard page, or of a page that was declared lost. The zero page
    /// and a declaration of loss must not replace a marker. A page that is moving, or whose memory failed,
    /// counts as present.
    pub(super) fn is_vacant(&self, vma: &Vma<P>, found: Pte<P::Format>, level: Level) -> bool {
        let has_contents = match self.source {
            Source::Bytes(_) | Source::Cached => true,
            Source::Zeroes => vma.flags().contains(VmFlags::SHARED),
            Source::Poison => false,
        };
        match found.kind(level) {
            Kind::None => true,
            Kind::Marker { kind: MarkerKind::UffdWp | MarkerKind::Guard, .. } => has_contents,
            Kind::Marker { kind: MarkerKind::Poison, payload } => {
                has_contents && failed_frame(payload).is_none()
            }
            Kind::Marker { .. } | Kind::Leaf { .. } | Kind::Table { .. } => false,
        }
    }

    /// Puts a page with these bytes, or with zeroes. Here and in the functions below, false means that the
    /// table was reclaimed and nothing was put.
    fn put_new(
        &self,
        vma: &Vma<P>,
        page: u64,
        table: PteTable<'_, P::Format, P>,
        bytes: Option<&[u8]>,
    ) -> Result<bool, UffdError> {
        within_file(vma, page)?;
        let Some(found) = table.lock_linked().map(|table| table.get(VirtAddr::new(page))) else {
            return Ok(false);
        };
        if !self.is_vacant(vma, found, Level::Pte) {
            return Err(UffdError::Present);
        }
        match vma.object() {
            Object::File(file) if vma.flags().contains(VmFlags::SHARED) => {
                self.put_shared(vma, file, page, table, bytes)
            }
            _ => self.put_private(vma, page, table, bytes),
        }
    }

    /// Makes a private page and maps it.
    fn put_private(
        &self,
        vma: &Vma<P>,
        page: u64,
        table: PteTable<'_, P::Format, P>,
        bytes: Option<&[u8]>,
    ) -> Result<bool, UffdError> {
        let (vm, platform) = (&self.space.vm, self.space.platform());
        let pfn = vm.alloc_anon(bytes.is_none(), vma.anon_page(page))?;
        if let Some(bytes) = bytes {
            platform.write_frame(pfn, 0, bytes);
        }
        let put = self.put(vma, table, page, Pte::page(pfn, self.own_rights(vma)));
        vm.count_or_discard(pfn, matches!(put, Ok(true)));
        put
    }

    /// Makes the page a page of the file, and maps it.
    fn put_shared(
        &self,
        vma: &Vma<P>,
        file: &File<P>,
        page: u64,
        table: PteTable<'_, P::Format, P>,
        bytes: Option<&[u8]>,
    ) -> Result<bool, UffdError> {
        let (mapping, index) = (file.mapping(), vma.pgoff_of(page));
        let contents = |platform: &P, pfn| match bytes {
            Some(bytes) => platform.write_frame(pfn, 0, bytes),
            None => platform.zero_frame(pfn),
        };
        // This is the result if the file already has a page, because `publish` is then not called.
        let mut put = Err(UffdError::Present);
        mapping
            .insert_page(index, vma.policy(), contents, |new| put = self.publish(vma, page, table, new))?;
        put
    }

    /// Publishes the file's new page and maps it, both under the table's lock. A fault that finds the page
    /// then finds its entry. A change that waits for the end of the caller's read section also finds the
    /// entry.
    fn publish(
        &self,
        vma: &Vma<P>,
        page: u64,
        table: PteTable<'_, P::Format, P>,
        new: &mut NewPage<'_>,
    ) -> Result<bool, UffdError> {
        self.still_fills()?;
        let address = VirtAddr::new(page);
        let Some(mut fill) = self.space.vm.fill_cached(table) else { return Ok(false) };
        let is_ours = self.is_vacant(vma, fill.get(address), Level::Pte) && new.publish();
        let put = match is_ours {
            // The invalidate lock keeps the page in the cache, and the frame's lock keeps the page in the
            // frame.
            true => match fill.put(address, new.pfn(), self.file_rights(vma), || true) {
                Ok(_) => Ok(true),
                Err(NoMemory) => Err(UffdError::OutOfMemory),
            },
            false => Err(UffdError::Present),
        };
        fill.finish(());
        put
    }

    /// Checks that no change is in progress. Called in the read section in which a page is put, so that a
    /// change that waits for a grace period finds the page.
    pub(super) fn still_fills(&self) -> Result<(), UffdError> {
        if self.context.is_changing() { Err(UffdError::Changing) } else { Ok(()) }
    }

    /// Sets the entry of a page, if a page may be put there.
    fn put(
        &self,
        vma: &Vma<P>,
        table: PteTable<'_, P::Format, P>,
        page: u64,
        pte: Pte<P::Format>,
    ) -> Result<bool, UffdError> {
        let address = VirtAddr::new(page);
        // In a read section, as in `put_many`.
        let _rcu = P::rcu_read();
        self.still_fills()?;
        let Some(mut guard) = table.lock_linked() else { return Ok(false) };
        if !self.is_vacant(vma, guard.get(address), Level::Pte) {
            return Err(UffdError::Present);
        }
        within_file(vma, page)?;
        guard.set(address, pte);
        Ok(true)
    }
}

/// Checks that a page may be put at this offset of the VMA's file. No page, shared or private, may be put
/// beyond the end of a file. No page at all may be put in a device of zeroes.
pub(super) fn within_file<P: Platform>(vma: &Vma<P>, page: u64) -> Result<(), UffdError> {
    let ends_before = |mapping: &Mapping<P>| !mapping.is_inside(mapping.index_of(vma.pgoff_of(page)));
    match vma.object() {
        Object::Zeroes(_) => Err(UffdError::BadAddress),
        Object::File(file) if ends_before(file.mapping()) => Err(UffdError::BadAddress),
        _ => Ok(()),
    }
}

/// Makes sure that a VMA has an anon_vma.
pub(super) fn prepare<P: Platform>(
    space: &AddressSpace<P>,
    guard: &ReadGuard<'_, P>,
    vma: &Vma<P>,
) -> Result<(), NoMemory> {
    match space.prepare_anon(vma, HeldLock::Mmap(guard)) {
        Err(AnonVmaError::NoMemory) => Err(NoMemory),
        _ => Ok(()),
    }
}

impl<P: Platform> AddressSpace<P> {
    /// Read-locks the VMA at `at`, if `fits` accepts the VMA. With `anon_vma`, also makes sure that a VMA
    /// with private pages has an anon_vma.
    ///
    /// # Locks
    ///
    /// The VMA's lock for reading, if possible without another lock. Otherwise also the mmap lock for
    /// reading, for the lookup and the choice of an anon_vma.
    pub(super) fn lock_for_pager(
        &self,
        at: u64,
        anon_vma: bool,
        fits: impl Fn(&Vma<P>) -> Result<(), UffdError>,
    ) -> Result<VmaRead<'_, P>, UffdError> {
        let lacks_anon_vma =
            |vma: &Vma<P>| anon_vma && !vma.flags().contains(VmFlags::SHARED) && !vma.anon().is_some();
        let mut rounds = Rounds::new();
        loop {
            rounds.again::<P>()?;
            if let Ok(vma) = self.lock_vma(at)
                && !lacks_anon_vma(&vma)
            {
                return fits(&vma).map(|()| vma);
            }
            let guard = self.read_killable()?;
            let vma = guard.find(at).ok_or(UffdError::NotRegistered)?;
            fits(vma)?;
            if lacks_anon_vma(vma) {
                prepare(self, &guard, vma)?;
            }
            if let Ok(vma) = guard.lock_vma(vma) {
                return Ok(vma);
            }
            // The VMA has the maximum number of readers. Tries again when readers have left.
            drop(guard);
            P::relax();
        }
    }
}
