//! brk: the heap, one growing area behind the program's data.

use super::{AddressSpace, limits::Replaced, locking::WriteGuard, split_merge::NewMapping, unmap::Decoded};
use crate::{
    PAGE_SIZE,
    error::{HeapError, NoMemory},
    object::Object,
    platform::Platform,
    vma::{flags::VmFlags, merge::Attrs},
};
use freehold_sync::{Killed, atomic::Ordering::Relaxed};
use freehold_vmspace::{PageIndex, UserRange};

/// What the heap is, besides what mlockall adds.
const HEAP: VmFlags = VmFlags::READ
    .union(VmFlags::WRITE)
    .union(VmFlags::MAYREAD)
    .union(VmFlags::MAYWRITE)
    .union(VmFlags::MAYEXEC)
    .union(VmFlags::ACCOUNT)
    .union(VmFlags::SOFTDIRTY);

/// The end of the last page that a break at `brk` needs; `None` beyond the last address.
fn page_end(brk: u64) -> Option<u64> {
    brk.checked_next_multiple_of(PAGE_SIZE)
}

/// The heap may not grow; nobody is told why.
struct Refused;

impl From<NoMemory> for Refused {
    fn from(_: NoMemory) -> Self {
        Refused
    }
}

impl<P: Platform> AddressSpace<P> {
    /// Asks for the break, the end of the heap, to be at `to`. Returns where it is: at `to`, or, when that
    /// cannot be, where it was. It never lies below where it started.
    ///
    /// # Errors
    ///
    /// Only a fatal signal.
    ///
    /// # Locks
    ///
    /// The mmap lock for writing, killably; in shrinking, as munmap; where the heap is locked, then those of
    /// faults.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, engine::{Config, Engine}, space::*};
    /// # use freehold_machine::{Machine, MachineConfig};
    /// # let engine = Engine::new(<Machine>::new(MachineConfig::backed(1 << 20)).unwrap(), Config::default()).unwrap();
    /// # let space = AddressSpace::new(&engine, &SpaceConfig::default()).unwrap();
    /// # let (rw, private) = (Prot::READ | Prot::WRITE, MapFlags::PRIVATE | MapFlags::ANONYMOUS);
    /// # let at = space.mmap(0, 4 * PAGE_SIZE, rw, private, None, 0).unwrap();
    /// let heap = space.brk(0).unwrap();
    /// assert_eq!(space.brk(heap + PAGE_SIZE), Ok(heap + PAGE_SIZE));
    /// assert_eq!(space.brk(u64::MAX), Ok(heap + PAGE_SIZE), "as it was");
    /// ```
    pub fn brk(&self, to: u64) -> Result<u64, Killed> {
        let (guard, now) = loop {
            let guard = self.write_killable()?;
            // Relaxed: under the mmap lock, like every access.
            let now = self.brk.load(Relaxed);
            let above = now.max(to).saturating_add(PAGE_SIZE) & !(PAGE_SIZE - 1);
            let range = UserRange::new(now.min(to) & !(PAGE_SIZE - 1), above);
            if !guard.is_closing(range) {
                break (guard, now);
            }
            self.closings.wait_after(guard)?;
        };
        let (Some(old_end), Some(new_end)) = (page_end(now), page_end(to)) else { return Ok(now) };
        if to < self.start_brk.load(Relaxed) || !self.may_have_data(to) {
            return Ok(now);
        }
        if new_end == old_end {
            self.brk.store(to, Relaxed);
            return Ok(to);
        }
        if to <= now {
            return Ok(self.shrink_heap(guard, now, to, UserRange::new(new_end, old_end)));
        }
        if guard.grow_heap(UserRange::new(old_end, new_end)).is_err() {
            return Ok(now);
        }
        self.brk.store(to, Relaxed);
        let locked = guard.default_flags().contains(VmFlags::LOCKED);
        drop(guard);
        if locked {
            self.populate_leniently(UserRange::new(old_end, new_end));
        }
        Ok(to)
    }

    /// Puts the heap, which is empty, at `start`: prctl(PR_SET_MM) with PR_SET_MM_START_BRK and
    /// PR_SET_MM_BRK, by which a restored program gets the heap it had. What is mapped does not change.
    ///
    /// # Errors
    ///
    /// See [`HeapError`].
    ///
    /// # Locks
    ///
    /// The mmap lock for writing, killably.
    pub fn set_heap(&self, start: u64) -> Result<(), HeapError> {
        if start > Self::TASK_SIZE {
            return Err(HeapError::Invalid);
        }
        let guard = self.write_killable()?;
        // Relaxed: under the mmap lock, like every access that must agree with another.
        self.start_brk.store(start, Relaxed);
        self.brk.store(start, Relaxed);
        drop(guard);
        Ok(())
    }

    /// RLIMIT_DATA, which counts the program's data with the heap.
    fn may_have_data(&self, brk: u64) -> bool {
        let data = self.data.end - self.data.start;
        (brk - self.start_brk.load(Relaxed)).saturating_add(data) <= self.limits.get().data
    }

    /// Unmaps `gone`, the pages between the new break and the old one. Returns the break.
    fn shrink_heap(&self, guard: WriteGuard<'_, P>, now: u64, to: u64, gone: UserRange) -> u64 {
        if guard.vmas(gone).next().is_none() {
            return now;
        }
        // Set first: on success the lock is gone.
        self.brk.store(to, Relaxed);
        match guard.unmap_unlocking(&Decoded::trusted::<P>(gone)) {
            Ok(()) => to,
            Err((guard, _)) => {
                self.brk.store(now, Relaxed);
                drop(guard);
                now
            }
        }
    }
}

impl<P: Platform> WriteGuard<'_, P> {
    /// What mlockall(MCL_FUTURE) and `set_memory_merge` add to new mappings.
    fn default_flags(&self) -> VmFlags {
        // Relaxed: under the mmap lock, like every access.
        VmFlags::from_bits_retain(self.space.default_flags.load(Relaxed))
    }

    /// Maps `range`, which starts at the end of the heap.
    fn grow_heap(&self, range: UserRange) -> Result<(), Refused> {
        let space = self.space;
        let flags = HEAP | self.default_flags();
        let pages = range.pages();
        if range.end() > AddressSpace::<P>::TASK_SIZE
            || (flags.contains(VmFlags::LOCKED) && !self.may_lock_pages(pages))
            || !self.is_clear_for_heap(range)
            || !self.may_expand(flags, pages, Replaced::default())
            || !self.may_have_vmas(0)
            || pages > space.engine.config().commit_pages
        {
            return Err(Refused);
        }
        let pgoff = PageIndex::of_byte(range.start());
        let attrs = Attrs::new(flags, &Object::Anonymous, pgoff);
        // The first page of the heap never joins what lies before it, even if that looks alike.
        let new = match range.start() > space.start_brk.load(Relaxed) {
            true => self.prepare_new(range, &attrs)?,
            false => {
                self.reserve(1)?;
                NewMapping::Fresh(self.alloc(range, &attrs)?)
            }
        };
        let _ = self.insert(range, new, &attrs);
        space.counters.count_mapped(self, flags, pages);
        if flags.contains(VmFlags::LOCKED) {
            space.counters.count_locked(self, pages);
        }
        Ok(())
    }

    /// Whether `range` is free, and a page more, and then the gap that what comes next keeps below itself.
    fn is_clear_for_heap(&self, range: UserRange) -> bool {
        self.next_taken(range.start()).is_none_or(|(_, kept)| range.end() + PAGE_SIZE <= kept)
    }
}
