//! fork: copies an address space. Both sides share the private pages until one of them writes.
//!
//! ```text
//! parent  mmap lock for writing, and each VMA's write lock before the VMA is read (hazard C-21)
//! child   built privately: only the reverse maps of files can find it
//! ```
//!
//! fork visits the VMAs in ascending order. For each VMA it creates the VMA of the child, inserts the new VMA
//! into the file's interval tree immediately behind the VMA of the parent, and copies the entries. A writable
//! entry becomes read-only on both sides, under both tables' locks. The parent's CPUs may still store through
//! stale TLB entries until the flush. The flush happens before any of the parent's locks is released. If a
//! VMA never had an anonymous page, its entries are not copied: they map pages of files or the zero page, and
//! faults can recreate them.
//!
//! A pinned page stays the parent's own, and the child gets a copy (hazard C-57). The copy is made after the
//! flush, while the parent's VMAs are still locked. No CPU stores to the page during the copy, so the child
//! gets the contents that the page had at the flush.
//!
//! A failure leaves a consistent, partial child, which is dropped like any other address space. Pages become
//! exclusive to the parent again as soon as the child's references are dropped (hazard C-64).
//!
//! `copy_entries` of `freehold-vmspace` copies the entries of small pages, and `hugetlb/moves.rs` copies the
//! entries of huge pages of pools. `tests/fork` and `shuttle_engine/fork.rs` compare the memory of parent and
//! child. Without the flush, `no_cached_translation_is_left_when_a_call_returns` fails. A new setting of an
//! address space needs a line in `new_child` or `copy_into` if children inherit it. A new kind of entry that
//! faults cannot recreate needs a VMA flag in `has_entries_to_copy`.

use crate::space::{
    AddressSpace, SpaceConfig,
    limits::ReplacedPages,
    locking::{WriteGuard, entry},
};
use crate::{
    counted::Counted,
    error::{ForkError, NoMemory},
    platform::Platform,
    rmap::edit::RmapEdit,
    uffd::{event::Notices, state::Context},
    vma::{AnonVma, Vma, flags::VmFlags, merge::Attrs, owned::OwnedVma},
    wait::Rounds,
};
use freehold_sync::atomic::Ordering::Relaxed;
use freehold_vmspace::{Fork, ForkGather, UserRange};

impl<P: Platform> AddressSpace<P> {
    /// Copies this address space for a forked child. Later stores on one side are visible on the other side
    /// only in shared mappings.
    ///
    /// The child gets neither VMAs with `DONTCOPY` nor the contents of VMAs with `WIPEONFORK`. The child does
    /// not get memory locks either, including those of mlockall for future mappings. The child gets
    /// registrations only with userfaultfds that requested fork events.
    ///
    /// # Errors
    ///
    /// See [`ForkError`]. After an error there is no child, and this space is unchanged.
    ///
    /// # Locks
    ///
    /// The mmap lock for writing and the write lock of each VMA, both killably. Under these locks, the
    /// child's mmap lock and the i_mmap lock of each file. After these locks are released, waits until each
    /// userfaultfd with fork events has received its event.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, remote::AccessMode, space::*};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// # let space = AddressSpace::new(&engine, &SpaceConfig::default()).unwrap();
    /// # let (rw, private) = (Prot::READ | Prot::WRITE, MapFlags::PRIVATE | MapFlags::ANONYMOUS);
    /// # let at = space.mmap(0, 4 * PAGE_SIZE, rw, private, None, 0).unwrap();
    /// space.write_memory(at, b"parent", AccessMode::Plain).unwrap();
    /// let child = space.fork().unwrap();
    /// child.write_memory(at, b"child!", AccessMode::Plain).unwrap();
    /// let mut found = [0; 6];
    /// space.read_memory(at, &mut found, AccessMode::Plain).unwrap();
    /// assert_eq!(&found, b"parent");
    /// ```
    pub fn fork(&self) -> Result<Counted<Self>, ForkError> {
        self.retry_when_short(|| self.try_fork())
    }

    /// Makes one attempt of [`fork`](Self::fork).
    fn try_fork(&self) -> Result<Counted<Self>, ForkError> {
        let child = self.new_child()?;
        let mut notices = Notices::new();
        let guard = self.write_killable()?;
        // The child would read zeroes where pages were removed. No page is removed under the lock.
        if self.is_reaped() {
            return Err(ForkError::Killed);
        }
        let copied = guard.copy_into(&child, &mut notices);
        // After an error, the child and its userfaultfd contexts are dropped without the parent's lock.
        drop(guard);
        copied?;
        notices.send();
        Ok(child)
    }

    /// Creates an empty address space with the same settings.
    fn new_child(&self) -> Result<Counted<Self>, NoMemory> {
        let config = SpaceConfig {
            mmap_base: Some(self.mmap_base),
            layout: self.layout,
            placement: self.placement,
            brk: Some(self.start_brk.load(Relaxed)),
            data: self.data.clone(),
            limits: self.limits.get(),
            mdwe: self.mdwe().inherited(),
            thp_disable: self.thp_disable(),
            memory_merge: self.memory_merge(),
            locking: self.locking,
            lock_stats: self.mmap_lock.stats().is_some() && self.engine.lock_stats.is_none(),
        };
        AddressSpace::make(&self.engine, &config)
    }
}

impl<P: Platform> WriteGuard<'_, P> {
    /// Copies all VMAs into `child`, which is empty.
    fn copy_into(&self, child: &Counted<AddressSpace<P>>, notices: &mut Notices<P>) -> Result<(), ForkError> {
        let copy = child.write_nested();
        child.start_brk.store(self.space.start_brk.load(Relaxed), Relaxed);
        child.brk.store(self.space.brk.load(Relaxed), Relaxed);
        child.put_arguments(self.space.arguments());
        child.pkeys.inherit(&copy, self);
        let mut gather = self.space.vm.gather(UserRange::ALL.va());
        let (mut kept, mut rounds) = (0, Rounds::new());
        let copied = self.vmas(UserRange::ALL).try_for_each(|vma| {
            rounds.again::<P>()?;
            self.lock_vma_killable(vma)?;
            if vma.flags().contains(VmFlags::DONTCOPY) {
                return Ok(());
            }
            let uffd = notices.note_fork(vma, child)?;
            self.copy_vma(vma, uffd.as_ref(), &copy, &mut gather).map(|pages| kept += pages)
        });
        // Flushes also after an error, because entries have lost rights.
        gather.finish();
        copied?;
        match kept {
            0 => Ok(()),
            _ => {
                Ok(copy.vmas(UserRange::ALL).try_for_each(|vma| self.space.copy_pinned_pages(vma, child))?)
            }
        }
    }

    /// Copies `vma` and its entries. Returns the number of pinned pages, which the child does not have yet.
    fn copy_vma(
        &self,
        vma: &Vma<P>,
        uffd: Option<&Counted<Context<P>>>,
        copy: &WriteGuard<'_, P>,
        gather: &mut ForkGather<'_, P>,
    ) -> Result<u64, ForkError> {
        let flags = vma.flags();
        let charge =
            self.charge(flags, vma.pages(), ReplacedPages::default()).map_err(|_| ForkError::Limit)?;
        let wiped = flags.contains(VmFlags::WIPEONFORK);
        let anon = match vma.anon().is_some() && !wiped {
            true => AnonVma { id: self.space.engine.new_anon().forked(), tree: vma.tree() },
            false => AnonVma::NONE,
        };
        let lost = if uffd.is_some() { VmFlags::LOCK_MASK } else { VmFlags::LOCK_MASK | VmFlags::UFFD };
        let attrs = Attrs { flags: flags - lost, anon, uffd, reserves: None, ..vma.attrs() };
        copy.reserve(1)?;
        let child = copy.alloc(vma.range(), &attrs)?;
        copy.insert_copy(vma, child);
        charge.keep();
        let uffd_wp = attrs.flags.contains(VmFlags::UFFD_WP);
        if let Some(size) = vma.huge_page_size() {
            let fork = Fork { private: !vma.flags().contains(VmFlags::MAYSHARE), uffd_wp };
            if fork.private || uffd_wp {
                self.space.copy_huge_pages(vma, size, fork, copy.space, gather)?;
            }
            return Ok(0);
        }
        match !wiped && has_entries_to_copy(vma, attrs.flags) {
            true => {
                let fork = Fork { private: vma.flags().is_cow(), uffd_wp };
                Ok(self.space.vm.copy_entries(vma.range(), fork, &copy.space.vm, gather)?)
            }
            false => Ok(0),
        }
    }

    /// Inserts the child's VMA into the tree. The VMA is complete before walkers of the file can find it
    /// (hazard C-18).
    fn insert_copy(&self, parent: &Vma<P>, child: OwnedVma<'_, P>) {
        let child = child.into_ref();
        self.attach(child);
        self.replace(child.range(), &[entry(child)]);
        self.space.counters.count_vmas(self, 1);
        self.space.counters.count_mapped(self, child.flags(), child.pages());
        RmapEdit::of(child).insert_after(parent, child);
    }
}

impl<P: Platform> AddressSpace<P> {
    /// Gives `child` copies of the pages in this VMA of the child that the parent has pinned.
    fn copy_pinned_pages(&self, vma: &Vma<P>, child: &AddressSpace<P>) -> Result<(), NoMemory> {
        // Huge pages of pools were copied together with their entries.
        if !vma.anon().is_some() || vma.flags().contains(VmFlags::HUGETLB) {
            return Ok(());
        }
        self.vm.copy_pinned_pages(vma.range(), &child.vm, |page| vma.anon_page(page))
    }
}

/// Returns true if a VMA has entries that faults of the child could not recreate. `child` has the flags of
/// the child's VMA.
fn has_entries_to_copy<P: Platform>(vma: &Vma<P>, child: VmFlags) -> bool {
    let kept = VmFlags::MAYBE_GUARD | VmFlags::PFNMAP | VmFlags::MIXEDMAP | VmFlags::UFFD_WP;
    vma.anon().is_some() || child.intersects(kept)
}
