//! mremap: resizes and moves mappings.
//!
//! ```text
//!   shrink in place   |-- kept --|xxxxxxx|        the tail is unmapped like munmap, with the same locks
//!   grow in place     |---- vma ----|+++++|       the extension is a new mapping that merges with the VMA
//!   move              |---- vma ----|      ->     |---- vma' ----|+++++|
//! ```
//!
//! A move is prepared completely before anything changes: the source is split off its VMA and locked, and the
//! target's VMA and page tables are allocated. Then the target is inserted into the tree, the entries move,
//! and the empty source is unmapped. None of these steps can fail, so no entry ever has to be moved back
//! (hazard C-47). With `FIXED`, the target is unmapped before the preparation, and stays unmapped after a
//! failure.
//!
//! `request.rs` checks the arguments, `claim.rs` acquires the right, `pages.rs` moves the entries, and
//! `failure.rs` converts errors. The model's `mremap.rs` has the rules and the order of the checks.
//! `tests/mremap/moves.rs` tests moves and failed moves. Mutation `mremap-gathers-before` shows that the
//! source must be gathered before entries move.

mod claim;
mod failure;
mod pages;
mod request;

use self::{claim::Destination, request::Remap};
use crate::{
    PAGE_SHIFT,
    committed::Charge,
    error::MremapError,
    file::Object,
    platform::Platform,
    rmap::edit::RmapEdit,
    space::{
        AddressSpace,
        change::{deferred_retire::DeferredRetire, split_merge::NewMapping, unmap::UnmapRange},
        limits::ReplacedPages,
        locking::WriteGuard,
        placement_request::PlacementRequest,
        range_writer::RangeWriterState,
        shortage::ShortageRounds,
    },
    uffd::{event::Notice, state::Features},
    vma::{AnonVma, Vma, flags::VmFlags, merge::Attrs},
};
use bitflags::bitflags;
use freehold_vmspace::{HugePageSize, PageCount, PageIndex, UserRange};

bitflags! {
    /// Flags of mremap, with Linux's numbers.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct RemapFlags: u64 {
        /// MREMAP_MAYMOVE: the mapping may move.
        const MAYMOVE = 1;
        /// MREMAP_FIXED: the mapping moves to the given address.
        const FIXED = 2;
        /// MREMAP_DONTUNMAP: the mapping moves, and the old range stays mapped and empty.
        const DONTUNMAP = 4;
    }
}

impl<P: Platform> AddressSpace<P> {
    /// Resizes the mapping of `old_len` bytes at `addr` to `new_len` bytes, and moves it if [`RemapFlags`]
    /// allow or require a move. Returns the new address. Supports all features of mremap(2) and checks the
    /// arguments in Linux's order.
    ///
    /// With [`RemapFlags::FIXED`] the mapping moves to `new_addr`. With [`RemapFlags::DONTUNMAP`] alone,
    /// `new_addr` is a hint. With equal lengths and `FIXED` the range may span several VMAs, which move one
    /// by one and keep the gaps between them.
    ///
    /// # Errors
    ///
    /// See [`MremapError`]. If an error is found after a fixed target was cleared, the target stays unmapped.
    /// If several VMAs are moved, the VMAs before the failing VMA have moved.
    ///
    /// # Locks
    ///
    /// The locks of a [range writer](crate::space::locking#writers), killably. Waits for munmaps of the
    /// ranges to end. Afterwards, to populate the extension of a locked mapping, the locks of faults.
    ///
    /// # Examples
    /// ```
    /// # use freehold::{PAGE_SIZE, call::RemapFlags, engine::{Config, Engine}, space::*};
    /// # let machine = <freehold_machine::Machine>::new(freehold_machine::MachineConfig::backed(1 << 20)).unwrap();
    /// # let space = AddressSpace::new(&Engine::new(machine, Config::default()).unwrap(), &SpaceConfig::default()).unwrap();
    /// # let at = space.mmap(0, 4 * PAGE_SIZE, Prot::READ, MapFlags::PRIVATE | MapFlags::ANONYMOUS, None, 0).unwrap();
    /// let moved = space.mremap(at, 4 * PAGE_SIZE, 8 * PAGE_SIZE, RemapFlags::MAYMOVE, 0).unwrap();
    /// assert!(space.vma_info(moved + 7 * PAGE_SIZE).is_some());
    /// ```
    pub fn mremap(
        &self,
        addr: u64,
        old_len: u64,
        new_len: u64,
        flags: RemapFlags,
        new_addr: u64,
    ) -> Result<u64, MremapError> {
        let request = Remap::decode::<P>(addr, old_len, new_len, flags, new_addr)?;
        let mut rounds = ShortageRounds::new();
        loop {
            let mut unmapped = false;
            match self.try_mremap(request, &mut unmapped) {
                // Another task may have mapped something where this call has unmapped something.
                Err(error) if unmapped => return Err(error),
                Err(error) => rounds.again(self, error)?,
                Ok(at) => return Ok(at),
            }
        }
    }

    /// Makes one attempt of [`mremap`](Self::mremap). Sets `unmapped` if the attempt fails after it has
    /// unmapped something.
    fn try_mremap(&self, request: Remap, unmapped: &mut bool) -> Result<u64, MremapError> {
        let state = RangeWriterState::default();
        let (guard, destination) = self.lock_for_mremap(&state, &request)?;
        let request = guard.in_whole_huge_pages(request)?;
        if request.new_len < request.old_len && !request.has_target() {
            return guard.shrink_in_place(&request, unmapped);
        }
        let mut later = DeferredRetire::new();
        let result = guard.remap(request, destination, &mut later);
        *unmapped = result.is_err() && later.has_vmas();
        drop(guard);
        later.retire();
        let (at, populate) = result?;
        if populate {
            // Errors are not reported: the mapping stays, and the next access reports the problem.
            let _ = self.populate(UserRange::new(at + request.old_len, at + request.new_len));
        }
        Ok(at)
    }
}

impl<'s, P: Platform> WriteGuard<'s, P> {
    /// If the mapping consists of huge pages, rounds the lengths of the request up to whole huge pages. Fails
    /// if such a mapping would grow.
    fn in_whole_huge_pages(&self, request: Remap) -> Result<Remap, MremapError> {
        let size = self.find(request.addr).and_then(Vma::huge_page_size);
        let Some(bytes) = size.map(HugePageSize::bytes) else { return Ok(request) };
        let whole = |len: u64| len.checked_next_multiple_of(bytes).ok_or(MremapError::Invalid);
        let request = Remap { old_len: whole(request.old_len)?, new_len: whole(request.new_len)?, ..request };
        // The lengths have grown, so source and target may now overlap.
        let target_is_sane = !request.has_target() || request.target_is_sane::<P>();
        if request.grows() || !target_is_sane { Err(MremapError::Invalid) } else { Ok(request) }
    }

    /// Unmaps the tail like munmap. Sets `unmapped` if this fails after a part of the tail was unmapped.
    fn shrink_in_place(self, request: &Remap, unmapped: &mut bool) -> Result<u64, MremapError> {
        self.check_source(request)?;
        let start = request.addr + request.new_len;
        let mut tail = UnmapRange::new::<P>(start, request.old_len - request.new_len)?;
        let done = self.unmap_by_design(&mut tail);
        *unmapped = tail.range().start() > start;
        done?;
        Ok(request.addr)
    }

    /// Performs all requests except shrinking in place. Returns the address, and true if the extension must
    /// be populated.
    fn remap(
        &self,
        request: Remap,
        destination: Destination,
        later: &mut DeferredRetire<'s, P>,
    ) -> Result<(u64, bool), MremapError> {
        if request.has_target() {
            // Source and target may each be split into three VMAs before either is removed.
            let counts = self.space.counters.counts();
            if counts.map_count + 2 >= self.space.engine.max_map_count().saturating_sub(3) {
                return Err(MremapError::TooManyVmas);
            }
        }
        if request.fixed() && request.old_len == request.new_len {
            return self.remap_several(request, later).map(|at| (at, false));
        }
        let populate = self.check_source(&request)?;
        let at = match (request.has_target(), request.grows()) {
            (true, _) => self.remap_to(request, later)?,
            (false, true) => self.expand(request, destination, later)?,
            (false, false) => request.addr,
        };
        Ok((at, populate))
    }

    /// Moves every VMA of the range to a fixed target of the same length, and keeps the gaps between them.
    fn remap_several(&self, request: Remap, later: &mut DeferredRetire<'s, P>) -> Result<u64, MremapError> {
        let source = UserRange::clipped(request.addr, request.old_len);
        let end = source.end();
        // A call notifies a userfaultfd of at most one move, so several VMAs move only if none of them is
        // registered.
        let mut vmas = self.vmas(source);
        let several = vmas.next().is_some_and(|first| first.end() < end) && vmas.next().is_some();
        drop(vmas);
        let (mut target, mut last_end) = (request.new_addr, None);
        let mut result = Err(MremapError::NotMapped);
        loop {
            // Addresses below the old end of the last VMA are not visited again, although the move may have
            // mapped something there.
            let at = last_end.unwrap_or(request.addr);
            let Some(vma) = self.first_in(at..end) else { return result };
            let gap = match last_end {
                None if request.addr < vma.start() => return Err(MremapError::NotMapped),
                None => 0,
                Some(last) => vma.start() - last,
            };
            if several && vma.flags().intersects(VmFlags::UFFD) {
                return Err(MremapError::NotMapped);
            }
            if must_move_alone(vma) && (last_end.is_some() || vma.end() < end) {
                return Err(MremapError::NotMapped);
            }
            last_end = Some(vma.end());
            let part = vma.start().max(request.addr)..vma.end().min(end);
            let len = part.end - part.start;
            let one =
                Remap { addr: part.start, old_len: len, new_len: len, new_addr: target + gap, ..request };
            self.check_source(&one)?;
            let moved = self.remap_to(one, later)?;
            result = result.or(Ok(moved));
            target = moved + len;
        }
    }

    /// Checks the VMA at the address. Returns true if the VMA is locked and grows, so that the extension must
    /// be populated.
    fn check_source(&self, request: &Remap) -> Result<bool, MremapError> {
        let vma = self.find(request.addr).ok_or(MremapError::NotMapped)?;
        let flags = vma.flags();
        if flags.contains(VmFlags::SEALED) {
            return Err(MremapError::NotPermitted);
        }
        if let Some(size) = vma.huge_page_size() {
            let target = if request.fixed() { request.new_addr } else { 0 };
            let whole = |at: u64| at.is_multiple_of(size.bytes());
            if ![request.addr, request.old_len, request.new_len, target].into_iter().all(whole) {
                return Err(MremapError::Invalid);
            }
        }
        if !request.grows() && !request.has_target() {
            return Ok(false);
        }
        let fixed_size = flags.intersects(VmFlags::DONTEXPAND | VmFlags::PFNMAP);
        // A duplicate of private memory would be empty.
        let duplicates_private =
            request.old_len == 0 && !flags.intersects(VmFlags::SHARED | VmFlags::MAYSHARE);
        if duplicates_private || (request.keeps_source() && fixed_size) {
            return Err(MremapError::Invalid);
        }
        if request.old_len.min(request.new_len) > vma.end() - request.addr {
            return Err(MremapError::NotMapped);
        }
        if !request.grows() {
            return Ok(false);
        }
        if vma.pgoff_of(request.addr).checked_add(request.new_len >> PAGE_SHIFT).is_none() {
            return Err(MremapError::Invalid);
        }
        if fixed_size {
            return Err(MremapError::NotExpandable);
        }
        let growth = PageCount::of_bytes(request.growth());
        if flags.contains(VmFlags::LOCKED) && !self.may_lock_pages(growth) {
            return Err(MremapError::LockLimit);
        }
        if !self.may_expand(flags, growth, ReplacedPages::default()) {
            return Err(MremapError::Limit);
        }
        Ok(flags & VmFlags::LOCK_MASK == VmFlags::LOCKED)
    }

    /// Performs a move with `FIXED` or `DONTUNMAP`. Unmaps a fixed target and the excess of the source first.
    fn remap_to(&self, mut request: Remap, later: &mut DeferredRetire<'s, P>) -> Result<u64, MremapError> {
        if request.fixed() {
            later.add(self.unmap(&UnmapRange::new::<P>(request.new_addr, request.new_len)?)?);
            // The unmapped range may have contained the source.
            self.find(request.addr).ok_or(MremapError::NotMapped)?;
        }
        if request.new_len < request.old_len {
            let tail =
                UnmapRange::new::<P>(request.addr + request.new_len, request.old_len - request.new_len)?;
            later.add(self.unmap(&tail)?);
            request.old_len = request.new_len;
        }
        let vma = self.find(request.addr).ok_or(MremapError::NotMapped)?;
        let pages = PageCount::of_bytes(request.old_len);
        if request.keeps_source() && !self.may_expand(vma.flags(), pages, ReplacedPages::default()) {
            return Err(MremapError::Limit);
        }
        if !request.fixed() {
            request.new_addr = self.place_target(vma, &request, request.new_addr)?;
        } else if !self.space.may_map_at(request.new_addr) {
            return Err(MremapError::NotPermitted);
        }
        self.move_vma(&request, later)
    }

    /// Grows the mapping. The mapping grows in place if it ends where its VMA ends and the addresses behind
    /// it are free. Otherwise the mapping moves.
    fn expand(
        &self,
        mut request: Remap,
        destination: Destination,
        later: &mut DeferredRetire<'s, P>,
    ) -> Result<u64, MremapError> {
        if let Destination::Claimed(target) = destination {
            request.new_addr = target;
            return self.move_vma(&request, later);
        }
        let vma = self.find(request.addr).ok_or(MremapError::NotMapped)?;
        let extension = UserRange::clipped(vma.end(), request.growth());
        let limit = self.next_slot(extension.start()).map(|slot| slot.range().start());
        let free = extension.end() <= limit.unwrap_or(AddressSpace::<P>::TASK_SIZE);
        if vma.end() - request.addr == request.old_len && free {
            self.extend_in_place(vma, extension)?;
            return Ok(request.addr);
        }
        if !request.flags.contains(RemapFlags::MAYMOVE) {
            return Err(MremapError::NoSpace);
        }
        request.new_addr = self.place_target(vma, &request, 0)?;
        self.move_vma(&request, later)
    }

    /// Returns the address to which a mapping moves: the hint if it is free, otherwise any free place.
    fn place_target(&self, vma: &Vma<P>, request: &Remap, hint: u64) -> Result<u64, MremapError> {
        let shared = vma.flags().contains(VmFlags::MAYSHARE);
        let placement = PlacementRequest::for_object(
            vma.object(),
            shared,
            hint,
            request.new_len,
            vma.pgoff_of(request.addr),
        );
        Ok(self.find_placement(&placement)?)
    }

    /// Maps the free range behind `vma` as its continuation. The result may also merge with the next VMA.
    fn extend_in_place(&self, vma: &Vma<P>, extension: UserRange) -> Result<(), MremapError> {
        let pages = extension.pages();
        let charge = self.charge_moved(vma.flags(), pages, PageCount::ZERO)?;
        let _ = self.pin_anon_vma(vma);
        // As on Linux, the extension merges with the next VMA even if fork created this VMA.
        let (pgoff, anon) =
            (vma.pgoff() + vma.pages(), AnonVma { id: vma.anon().unforked(), ..vma.anon_vma() });
        let attrs = Attrs { pgoff, anon, flags: vma.flags() | VmFlags::SOFTDIRTY, ..vma.attrs() };
        let new = self.prepare_new(extension, &attrs)?;
        if !matches!(new, NewMapping::Append(_) | NewMapping::Bridge(..)) {
            // A special VMA does not merge even with its own continuation.
            return Err(MremapError::NoSpace);
        }
        let flags = attrs.flags;
        self.insert(extension, new, &attrs);
        charge.keep();
        self.count_mapped(flags, pages);
        Ok(())
    }

    /// Charges `pages` with these flags if they count as committed. `kept` pages are already committed for
    /// the source. The limit is not checked for them, because their charge is released when the source is
    /// unmapped.
    fn charge_moved(
        &self,
        flags: VmFlags,
        pages: PageCount,
        kept: PageCount,
    ) -> Result<Charge<'s, P>, MremapError> {
        self.charge(flags, pages, ReplacedPages { total: kept, committed: kept })
            .map_err(|_| MremapError::Limit)
    }

    /// Counts the new pages of a mapping in the totals of the space.
    fn count_mapped(&self, flags: VmFlags, pages: PageCount) {
        self.space.counters.count_mapped(self, flags, pages);
        if flags.contains(VmFlags::LOCKED) {
            self.space.counters.count_locked(self, pages);
        }
    }

    /// Moves the mapping to `new_addr`, where enough space is free.
    fn move_vma(&self, request: &Remap, later: &mut DeferredRetire<'s, P>) -> Result<u64, MremapError> {
        let from = UserRange::at(request.addr, request.old_len);
        let target = UserRange::at(request.new_addr, request.new_len);
        let joined = self.joins_source(request, target);
        let (source, charge) = self.prepare_source(request)?;
        let attrs = moved_attrs(source, request);
        // One change of the tree for the target, and one for the source.
        self.reserve(2)?;
        // The source will be unmapped. All resources for its removal are allocated before any entry moves.
        // The source is a separate VMA by now, and the target does not merge with it. The gathered set
        // therefore stays valid.
        let leaving = match request.keeps_source() || from.is_empty() {
            true => None,
            false => Some(self.gather(&UnmapRange::trusted::<P>(from))?),
        };
        let new = self.prepare_target(source, request, target, &attrs)?;
        let prepared = self.prepare_pages(source, &new, from, target);
        let huge = prepared.inspect_err(|_| self.space.drop_tables(self, target))?;
        // No step can fail from here on.
        later.moved = Notice::remap(source, request.addr, request.new_addr, request.old_len);
        if source.flags().contains(VmFlags::UFFD_WP) && attrs.uffd.is_none() && !from.is_empty() {
            // Memory that is not registered any more must not stay write-protected (hazard C-44).
            self.space.unprotect(source, from);
        }
        let (flags, fresh) = (attrs.flags, matches!(new, NewMapping::Fresh(_)));
        let landing = self.insert(target, new, &attrs);
        if let Some(whole) = joined {
            self.share_with_rest(landing, whole, from);
        }
        // If the source stays, a merge may have replaced its VMA by a larger VMA that covers the source.
        let source = if leaving.is_some() { source } else { self.find(request.addr).unwrap_or(landing) };
        self.move_pages(source, (landing, fresh), huge, from, target.start());
        charge.keep();
        self.count_mapped(flags, PageCount::of_bytes(request.new_len));
        if request.keeps_source() {
            self.empty_source(source, landing, from);
        }
        leaving.into_iter().for_each(|gathered| later.add_source(gathered.unmap()));
        Ok(target.start())
    }

    /// Checks that the source may move, and splits it off its VMA if it will be unmapped. The returned VMA is
    /// locked for writing, so that no fault runs in it.
    fn prepare_source(&self, request: &Remap) -> Result<(&Vma<P>, Charge<'s, P>), MremapError> {
        let mut source = self.find(request.addr).ok_or(MremapError::NotMapped)?;
        let end = request.addr + request.old_len;
        if !self.may_have_vmas(4) {
            return Err(MremapError::TooManyVmas);
        }
        if !source.may_split(request.addr) || !source.may_split(end) {
            return Err(MremapError::Invalid);
        }
        let kept = if request.keeps_source() { 0 } else { request.old_len };
        let pages = PageCount::of_bytes(request.new_len);
        let charge = self.charge_moved(source.flags(), pages, PageCount::of_bytes(kept))?;
        if !request.keeps_source() && request.old_len != 0 {
            if source.start() < request.addr {
                source = self.split(source, request.addr)?;
            }
            if end < source.end() {
                self.split(source, end)?;
            }
        }
        Ok((self.lock_vma(source).vma(), charge))
    }

    /// Prepares the insertion of the target. The target does not merge with a source that will be unmapped.
    fn prepare_target<'g>(
        &'g self,
        source: &Vma<P>,
        request: &Remap,
        target: UserRange,
        attrs: &Attrs<'_, P>,
    ) -> Result<NewMapping<'g, P>, MremapError> {
        let goes =
            |vma: &Vma<P>| core::ptr::eq(vma, source) && !request.keeps_source() && request.old_len != 0;
        Ok(match self.prepare_new(target, attrs)? {
            NewMapping::Bridge(prev, next) if goes(prev) => NewMapping::Prepend(next),
            NewMapping::Bridge(prev, next) if goes(next) => NewMapping::Append(prev),
            NewMapping::Append(vma) | NewMapping::Prepend(vma) if goes(vma) => {
                NewMapping::Fresh(self.alloc(target, attrs)?)
            }
            other => other,
        })
    }

    /// Returns the range of the VMA that contains the source, if the target would merge with this VMA.
    /// Returns `None` if the source stays.
    fn joins_source(&self, request: &Remap, target: UserRange) -> Option<UserRange> {
        let source = self.find(request.addr).filter(|_| !request.keeps_source() && request.old_len != 0)?;
        self.would_join(target, &moved_attrs(source, request), source).then(|| source.range())
    }

    /// Gives the rest of the source's VMA the attributes that it gets on Linux. `whole` is the range of this
    /// VMA before the split. Linux first merges the target with the VMA, and perhaps with the neighbour on
    /// the other side, and then splits the source off. All of `whole` therefore gets sticky flags and the
    /// anon_vma of that neighbour. Here the split comes first, because it can fail, and the rest of `whole`
    /// gets the attributes afterwards.
    fn share_with_rest(&self, landing: &Vma<P>, whole: UserRange, from: UserRange) {
        let sides =
            [(whole.start() < from.start(), from.start() - 1), (from.end() < whole.end(), from.end())];
        for (exists, at) in sides {
            let Some(rest) = self.find(at).filter(|_| exists) else { continue };
            let right = self.lock_vma(rest);
            right.set_flags(rest.flags() | (landing.flags() & VmFlags::STICKY));
            if !rest.anon().is_some() {
                right.join_within(&mut RmapEdit::new(rest.object(), landing.tree()), landing.anon_vma());
            }
        }
    }

    /// Unlocks the source of a move with DONTUNMAP. The source stays mapped and is empty. A VMA that moved as
    /// a whole has no anonymous pages any more and loses its anon_vma.
    fn empty_source(&self, source: &Vma<P>, landing: &Vma<P>, from: UserRange) {
        let right = self.lock_vma(source);
        let flags = source.flags();
        if flags.contains(VmFlags::LOCKED) {
            self.space.counters.count_unlocked(self, source.pages());
        }
        right.set_flags(flags - VmFlags::LOCK_MASK);
        if !core::ptr::eq(source, landing) && source.range() == from {
            // As on Linux, the VMA keeps its offsets, although the reverse map no longer finds pages by these
            // offsets.
            right.leave_anon_vma();
        }
    }
}

/// Returns the attributes of the moved mapping, which counts as soft-dirty. Anonymous memory without any
/// pages gets the offsets of its new place, so that it can merge there. Memory with pages keeps its offsets,
/// because the reverse map finds the pages by them.
fn moved_attrs<'v, P: Platform>(source: &'v Vma<P>, request: &Remap) -> Attrs<'v, P> {
    let unfaulted = source.is_anonymous() && !source.anon().is_some();
    let pgoff = if unfaulted { PageIndex::of_byte(request.new_addr) } else { source.pgoff_of(request.addr) };
    let flags = source.flags() | VmFlags::SOFTDIRTY;
    match source.uffd().filter(|uffd| uffd.wants(Features::EVENT_REMAP)) {
        Some(_) => Attrs { pgoff, flags, ..source.attrs() },
        None => Attrs { pgoff, flags: flags - VmFlags::UFFD, uffd: None, ..source.attrs() },
    }
}

/// Returns true if a call that moves this VMA can move no other VMA. On Linux, segments and devices of zeroes
/// move alone, because their files choose the address of a mapping.
fn must_move_alone<P: Platform>(vma: &Vma<P>) -> bool {
    match vma.object() {
        Object::Zeroes(_) => true,
        Object::File(file) => file.segment().is_some() && vma.huge_page_size().is_none(),
        Object::Anonymous | Object::Special(_) => false,
    }
}
