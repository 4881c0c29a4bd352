//! Probes (Linux: uprobes): breakpoints in pages of files. A probe takes effect in every process that maps
//! the page as text, now or later. The file itself does not change: each process gets a private copy of the
//! page that contains the breakpoint.
//!
//! One rule determines the contents of a page in a private mapping that is not writable: *a breakpoint
//! replaces the instruction at the place of each probe*. Only the **fault** creates patched copies of pages
//! that are not mapped yet. All other code only removes or corrects pages that a fault would map differently.
//! Therefore mmap, exec, fork, mremap and MADV_DONTNEED contain no code for probes, and no breakpoint can be
//! inserted twice or overwritten by a move (hazard C-68).
//!
//! ```text
//! add      publish     the registry contains the probe: faults make patched copies from now on
//!          wait        for a grace period: faults that read the old registry have mapped their page
//!          walk        the VMAs of the file, with the i_mmap lock shared: unmap the file's page, and
//!                      patch private copies
//! remove   mark        the probe is leaving: faults do not patch pages for it any more
//!          wait, walk  as above: unmap copies that differ from the file only by breakpoints, and restore
//!                      the bytes of other copies
//!          forget      the registry does not contain the probe: a trap at its place belongs to no probe
//! ```
//!
//! A fault reads the registry, looks up the page and maps it within one RCU guard. Either the fault sees the
//! probe, or the walk finds the entry that the fault installed. mprotect can turn a mapping into text. For
//! this case mprotect changes the flags first and then reads the registry within a guard. Either mprotect
//! finds the probe, or the walk finds the new flags. Entries move only forward along the walk, from source to
//! target and from parent to child, so that one pass visits all of them
//! (`docs/guide/reverse-map-and-pins.md`, rules 3 and 4).
//!
//! | page found | add | remove |
//! | --- | --- | --- |
//! | the file's page | unmap it | leave it |
//! | private, differs from the file's page only by breakpoints | unmap it; the next fault makes a new copy | the same |
//! | private, used only by this process | clear the entry, flush, write in place, restore the entry | the same |
//! | private, shared by fork | replace it by a patched copy (hazards C-2, C-56) | the same |
//! | moving to another frame | wait for the move, restart the walk | the same |
//!
//! A mapping is "private" and "not writable" if its VMA maps a file and has `MAYEXEC`, but neither `MAYSHARE`
//! nor `WRITE`. In a VMA that became writable later, existing breakpoints stay and no new breakpoints are
//! inserted. Removing a probe also removes its breakpoints in such a VMA.
//!
//! `place.rs` updates one page of one address space, and `state.rs` has the registry. Faults make patched
//! copies in `fault/file.rs`. The tests are `probes` (`engine/freehold/tests`) and `probes`
//! (`shuttle_engine`).

mod place;
pub(crate) mod state;

use crate::{
    PAGE_SIZE,
    error::{NoMemory, ProbeError},
    file::{FillError, Mapping},
    platform::Platform,
    rmap::tree::{IMmap, root::RmapRoot},
    space::AddressSpace,
    wait::{Rounds, grace_period},
};
use arrayvec::ArrayVec;
use freehold_sync::{RwSemWriteGuard, atomic::Ordering::Relaxed};
use freehold_vmspace::{PageIndex, PageRange};
use place::Unsettled;
use state::{List, MAX_BYTES, Probe, may_show};

/// The probe whose breakpoint a CPU executed.
#[derive(Clone, Debug)]
pub struct Hit {
    /// Address of the file's home, which is unique while the file exists.
    file: usize,
    offset: u64,
    original: ArrayVec<u8, MAX_BYTES>,
}

impl Hit {
    /// Returns true if the probe belongs to `file`. The caller keeps a reference to the file.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, file::{File, FileAccess, Mapping, Zeroes}, space::*};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// # let space = AddressSpace::new(&engine, &SpaceConfig::default()).unwrap();
    /// # let mapping = Mapping::new(&engine, Zeroes, PAGE_SIZE, false).unwrap();
    /// # let file = File::new(&mapping, FileAccess::READ, "/bin/it").unwrap();
    /// # let rx = Prot::READ | Prot::EXEC;
    /// # let at = space.mmap(0, PAGE_SIZE, rx, MapFlags::PRIVATE, Some(&file), 0).unwrap();
    /// mapping.add_probe(16, &[0xcc]).unwrap();
    /// let hit = space.probe_at(at + 16).unwrap();
    /// let other = Mapping::new(&engine, Zeroes, PAGE_SIZE, false).unwrap();
    /// assert!(hit.is_of(&mapping) && !hit.is_of(&other));
    /// ```
    pub fn is_of<P: Platform>(&self, file: &Mapping<P>) -> bool {
        self.file == core::ptr::from_ref(file.home()).addr()
    }

    /// Returns the offset of the probe in the file, in bytes.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, file::{File, FileAccess, Mapping, Zeroes}, space::*};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// # let space = AddressSpace::new(&engine, &SpaceConfig::default()).unwrap();
    /// # let mapping = Mapping::new(&engine, Zeroes, PAGE_SIZE, false).unwrap();
    /// # let file = File::new(&mapping, FileAccess::READ, "/bin/it").unwrap();
    /// # let rx = Prot::READ | Prot::EXEC;
    /// # let at = space.mmap(0, PAGE_SIZE, rx, MapFlags::PRIVATE, Some(&file), 0).unwrap();
    /// mapping.add_probe(16, &[0xcc]).unwrap();
    /// let hit = space.probe_at(at + 16).unwrap();
    /// assert_eq!(hit.offset(), 16);
    /// ```
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Returns the bytes that the file contained at the place when the probe was added. The result has
    /// sixteen bytes, which may cross the end of the page, or fewer bytes at the end of the file. Sixteen
    /// bytes contain the whole x86 instruction, so that a caller can execute a copy of the instruction
    /// elsewhere.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, file::{File, FileAccess, Mapping, Zeroes}, space::*};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// # let space = AddressSpace::new(&engine, &SpaceConfig::default()).unwrap();
    /// # let mapping = Mapping::new(&engine, Zeroes, PAGE_SIZE, false).unwrap();
    /// # let file = File::new(&mapping, FileAccess::READ, "/bin/it").unwrap();
    /// # let rx = Prot::READ | Prot::EXEC;
    /// # let at = space.mmap(0, PAGE_SIZE, rx, MapFlags::PRIVATE, Some(&file), 0).unwrap();
    /// mapping.write_at(16, &[0x55, 0xc3]).unwrap();
    /// mapping.add_probe(16, &[0xcc]).unwrap();
    /// let hit = space.probe_at(at + 16).unwrap();
    /// assert_eq!((&hit.original()[..3], hit.original().len()), (&[0x55, 0xc3, 0][..], 16));
    /// ```
    pub fn original(&self) -> &[u8] {
        &self.original
    }
}

impl<P: Platform> AddressSpace<P> {
    /// Returns the probe that begins at `addr`. Called by the handler of a breakpoint trap. Returns `None` if
    /// there is no probe, or if the probe was removed. If the memory at `addr` no longer contains a
    /// breakpoint, the program can continue at `addr`.
    ///
    /// Many threads may hit one probe concurrently, because this function writes no shared memory.
    ///
    /// # Locks
    ///
    /// No lock if no task changes the address space. Otherwise the lookup takes the VMA's lock or the mmap
    /// lock for reading. The caller holds no lock.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, file::{File, FileAccess, Mapping, Zeroes}, space::*};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// # let space = AddressSpace::new(&engine, &SpaceConfig::default()).unwrap();
    /// # let file = File::new(&Mapping::new(&engine, Zeroes, PAGE_SIZE, false).unwrap(), FileAccess::READ, "/bin/it").unwrap();
    /// # let at = space.mmap(0, PAGE_SIZE, Prot::READ | Prot::EXEC, MapFlags::PRIVATE, Some(&file), 0).unwrap();
    /// file.mapping().add_probe(16, &[0xcc]).unwrap();
    /// let hit = space.probe_at(at + 16).unwrap();
    /// assert_eq!((hit.offset(), hit.original()[0]), (16, 0));
    /// assert!(space.probe_at(at + 17).is_none());
    /// ```
    #[cfg(feature = "uprobe")]
    pub fn probe_at(&self, addr: u64) -> Option<Hit> {
        let rcu = P::rcu_read();
        if let Ok(seen) = self.speculate(&rcu, addr) {
            let seen = seen.filter(|seen| may_show(seen.info.flags))?;
            return hit(seen.file?, seen.info.offset_of(addr), &rcu);
        }
        drop(rcu);
        let vma = self.find_vma(addr)?;
        let file = vma.object().file().filter(|_| may_show(vma.flags()))?;
        hit(file.mapping().home(), vma.info().offset_of(addr), &P::rcu_read())
    }
}

fn hit<P: Platform>(home: &RmapRoot<P, IMmap>, offset: u64, rcu: &P::RcuGuard) -> Option<Hit> {
    let probe = home.probes.read::<P>(rcu)?.at(offset)?;
    Some(Hit { file: core::ptr::from_ref(home).addr(), offset, original: probe.original.clone() })
}

impl<P: Platform> Mapping<P> {
    /// Inserts `breakpoint`, which is one to sixteen bytes within a page, at `offset` of the file. The
    /// breakpoint appears in the private copies of all spaces that map the page as text (see the module).
    /// When this function returns, no CPU executes the original bytes, except in a range that is being
    /// unmapped.
    ///
    /// A private copy that differs from the file at this place contains modified text and is not changed. If
    /// the instruction was overwritten in the file itself, new copies do not get the breakpoint either. Each
    /// place has at most one probe; an owner with several users of one probe counts these users. Probes exist
    /// as long as the `Mapping`, so the owner of a probe keeps a reference to the `Mapping`. Without an MMU
    /// there are no private copies, and this function inserts no breakpoint.
    ///
    /// # Errors
    ///
    /// See [`ProbeError`]. After an error there is no probe, with one exception: after `OutOfMemory`, some
    /// breakpoints may remain because there was no memory to remove them either. In this case
    /// [`probe_at`](AddressSpace::probe_at) still finds the probe, and [`remove_probe`](Self::remove_probe)
    /// can remove it.
    ///
    /// # Locks
    ///
    /// The locks of [`fill`](Self::fill), released before the next lock. The file's content lock for writing;
    /// then the i_mmap lock for reading and page tables' locks, one at a time. Waits for the locks of frames
    /// that are being moved. The caller holds no lock.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, error::ProbeError, file::{File, FileAccess, Mapping, Zeroes}, remote::AccessMode, space::*};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// # let space = AddressSpace::new(&engine, &SpaceConfig::default()).unwrap();
    /// # let file = File::new(&Mapping::new(&engine, Zeroes, PAGE_SIZE, false).unwrap(), FileAccess::READ, "/bin/it").unwrap();
    /// # let at = space.mmap(0, PAGE_SIZE, Prot::READ | Prot::EXEC, MapFlags::PRIVATE, Some(&file), 0).unwrap();
    /// file.mapping().add_probe(16, &[0xcc]).unwrap();
    /// let mut found = [0];
    /// space.read_memory(at + 16, &mut found, AccessMode::Plain).unwrap();
    /// assert_eq!(found, [0xcc]);
    /// file.mapping().read_at(16, &mut found).unwrap();
    /// assert_eq!(found, [0], "the file is unchanged");
    /// assert_eq!(file.mapping().add_probe(16, &[0xcc]), Err(ProbeError::Taken));
    /// ```
    #[cfg(feature = "uprobe")]
    pub fn add_probe(&self, offset: u64, breakpoint: &[u8]) -> Result<(), ProbeError> {
        self.retry_when_short(|| self.try_add_probe(offset, breakpoint))
    }

    /// Makes one attempt of [`add_probe`](Self::add_probe).
    fn try_add_probe(&self, offset: u64, breakpoint: &[u8]) -> Result<(), ProbeError> {
        let len = breakpoint.len() as u64;
        if !(1..=MAX_BYTES as u64).contains(&len) || offset % PAGE_SIZE + len > PAGE_SIZE {
            return Err(ProbeError::Invalid);
        }
        // The pages under the probe are read without the lock. They stay in the cache as long as `_kept`
        // lives, unless the file is truncated before the lock is taken, or is a direct file.
        let (index, mut rounds) = (PageIndex::of_byte(offset), Rounds::new());
        let (mut content, readable, _kept) = loop {
            if offset.checked_add(len).is_none_or(|end| end > self.size()) {
                return Err(ProbeError::BeyondEnd);
            }
            let last = PageIndex::of_byte(offset.saturating_add(MAX_BYTES as u64 - 1));
            // A truncation of a direct file holds locks of the file while it waits for the end of references
            // to its frames. So the addition keeps no frame of such a file while it waits for a lock.
            let keeps = self.orders_discards() || self.is_swappable();
            let kept = [index, last].map(|index| match keeps {
                true if self.is_direct() => Some(self.page(index).map(|_| None)),
                true => Some(self.page(index).map(Some)),
                false => None,
            });
            let readable = match &kept {
                [Some(Err(error)), _] if *error != FillError::BeyondEnd => return Err(unreadable(*error)),
                [_, Some(Err(_))] => (index + 1).byte() - offset,
                _ => MAX_BYTES as u64,
            };
            let is_short = matches!(kept[1], Some(Err(_)));
            let content = self.content.write();
            let has_last = || is_short || self.has_page(last);
            if !keeps || self.has_page(index) && has_last() {
                break (content, readable as usize, kept);
            }
            rounds.again::<P>()?;
        };
        if offset.checked_add(len).is_none_or(|end| end > self.size()) {
            return Err(ProbeError::BeyondEnd);
        }
        let probe = self.read_place(offset, breakpoint, readable)?;
        let with = List::with(self.probes().locked(&content), probe)?;
        let before = self.probes().replace(&mut content, Some(with));
        if self.settle_all(PageIndex::of_byte(offset)).is_err() {
            let _ = self.end_probe(&mut content, offset, || before);
            return Err(ProbeError::OutOfMemory);
        }
        Ok(())
    }

    /// Removes the probe at `offset` from all spaces. When this function returns, no CPU executes its
    /// breakpoint.
    ///
    /// # Errors
    ///
    /// Fails with [`ProbeError::NotThere`] if there is no probe, and with [`ProbeError::OutOfMemory`] if a
    /// page that was written and is shared by fork could not be copied. In the second case the breakpoint
    /// remains in that page but appears in no new copy. [`probe_at`](AddressSpace::probe_at) finds the probe
    /// until a later call of this function succeeds.
    ///
    /// # Locks
    ///
    /// The locks of [`add_probe`](Self::add_probe), except that the file is not read.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, error::ProbeError, file::{File, FileAccess, Mapping, Zeroes}, space::*};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// # let space = AddressSpace::new(&engine, &SpaceConfig::default()).unwrap();
    /// # let file = File::new(&Mapping::new(&engine, Zeroes, PAGE_SIZE, false).unwrap(), FileAccess::READ, "/bin/it").unwrap();
    /// # let at = space.mmap(0, PAGE_SIZE, Prot::READ | Prot::EXEC, MapFlags::PRIVATE, Some(&file), 0).unwrap();
    /// file.mapping().add_probe(16, &[0xcc]).unwrap();
    /// file.mapping().remove_probe(16).unwrap();
    /// assert!(space.probe_at(at + 16).is_none());
    /// assert_eq!(file.mapping().remove_probe(16), Err(ProbeError::NotThere));
    /// ```
    #[cfg(feature = "uprobe")]
    pub fn remove_probe(&self, offset: u64) -> Result<(), ProbeError> {
        self.retry_when_short(|| {
            let mut content = self.content.write();
            let without = List::without(self.probes().locked(&content), offset)?;
            Ok(self.end_probe(&mut content, offset, || without)?)
        })
    }

    /// Removes the probe at `offset`. `without` returns the list that remains.
    fn end_probe(
        &self,
        content: &mut RwSemWriteGuard<'_, P>,
        offset: u64,
        without: impl FnOnce() -> crate::uprobe::state::Owned,
    ) -> Result<(), NoMemory> {
        if let Some(probe) = self.probes().locked(content).and_then(|list| list.at(offset)) {
            // Relaxed: the grace period orders this store before every reader that begins after it. A
            // concurrent reader may see either value.
            probe.leaving.store(true, Relaxed);
        }
        grace_period::<P>();
        self.settle_all(PageIndex::of_byte(offset))?;
        drop(self.probes().replace(content, without()));
        Ok(())
    }

    /// Reads the bytes of the file at the place of a new probe, at most `most` bytes. The caller holds the
    /// content lock.
    fn read_place(&self, offset: u64, breakpoint: &[u8], most: usize) -> Result<Probe, ProbeError> {
        let mut bytes = [0; MAX_BYTES];
        let len = self.try_read_at(offset, &mut bytes[..most]).map_err(unreadable)?;
        let probe = Probe::new(offset, breakpoint, &bytes[..len]);
        // The read stops at a page that cannot be read. Only the bytes under the breakpoint are required.
        if len < breakpoint.len() {
            return Err(ProbeError::Io);
        }
        if probe.original.starts_with(breakpoint) { Err(ProbeError::Unchanged) } else { Ok(probe) }
    }

    /// Updates the page `index` in all mappings, so that it contains the breakpoints of the registry. Called
    /// under the content lock, after the grace period that follows a change of the registry.
    fn settle_all(&self, index: PageIndex) -> Result<(), NoMemory> {
        loop {
            let (mut moving, mut result) = (None, Ok(()));
            self.home().each_mapper(PageRange::one(index), |mapper| {
                match place::settle_probes(mapper.vm, mapper.vma, self, index) {
                    Ok(()) => {}
                    Err(Unsettled::Moving(pfn)) => moving = Some(pfn),
                    // The walk continues: other pages can still be updated.
                    Err(Unsettled::NoMemory) => result = Err(NoMemory),
                }
            });
            match moving {
                Some(pfn) => self.files().memory().wait_out_frame(pfn),
                None => return result,
            }
        }
    }
}

/// Converts the error of a read of the place of a new probe.
fn unreadable(error: FillError) -> ProbeError {
    match error {
        FillError::NoMemory => ProbeError::OutOfMemory,
        FillError::BeyondEnd => ProbeError::BeyondEnd,
        FillError::Killed => ProbeError::Killed,
        FillError::Io
        | FillError::Busy
        | FillError::Sealed
        | FillError::Lost
        | FillError::NoSpace
        | FillError::NoHugePages
        | FillError::Unsupported
        | FillError::Invalid => ProbeError::Io,
    }
}
