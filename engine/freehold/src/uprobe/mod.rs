//! Probes (Linux: uprobes): a breakpoint in the page of a file, in every process that maps it as text, now or
//! later. The file stays as it is: each process gets a private copy of the page, with the breakpoint in it.
//!
//! One rule says what a page of a private mapping that is not written shows: *where a probe is, the
//! breakpoint replaces the instruction it was made for*. The **fault** alone makes it so for pages to come.
//! All else only takes away what a fault would not make: so mmap, exec, fork, mremap, DONTNEED need no word
//! about probes, and no breakpoint can be there twice or be overwritten by a move (hazard C-68).
//!
//! ```text
//! add      publish   the registry has the probe: faults make patched copies, and map nothing around them
//!          wait      a grace period: a fault that had looked before has mapped the page
//!          walk      the VMAs of the file, i_mmap lock shared: entries of the file's page go; private copies are patched
//! remove   mark      the probe is leaving: faults do not patch for it any more
//!          wait, walk as above: copies that are nothing but ours go, others get their bytes back
//!          forget    the registry is without it: a trap is nobody's now
//! ```
//!
//! A fault reads the registry, looks up the page and maps it within one RCU guard: it sees the probe, or the
//! walk meets its entry. mprotect, which may make text of what was not, changes the flags first and then
//! looks at the registry within a guard: it finds the probe, or the walk finds the flags. Entries move only
//! forward along the walk, from source to target and from parent to child (`docs/reverse-map-and-pins.md`,
//! rules 3 and 4), so one pass meets all of them.
//!
//! | page found | add | remove |
//! | --- | --- | --- |
//! | the file's | the entry goes | stays |
//! | private, differs from the file's by breakpoints alone | the entry goes; the next fault makes it anew | the same |
//! | private, this process's alone | closed, flushed, written in place, opened | the same |
//! | private, shared by fork | replaced by a patched copy (hazards C-2, C-56) | the same |
//! | just moving to another frame | waited for, the walk starts over | the same |
//!
//! "Private" and "not written": the VMA maps a file, `MAYEXEC`, neither `MAYSHARE` nor `WRITE`. In a VMA that
//! has become writable since, breakpoints stay, none are put, and removing takes them away.

mod place;
pub(crate) mod state;

use crate::{
    PAGE_SIZE,
    error::{NoMemory, ProbeError},
    file::{FillError, Mapping},
    platform::Platform,
    rmap::tree::{IMmap, root::RmapRoot},
    space::AddressSpace,
    wait::grace_period,
};
use arrayvec::ArrayVec;
use freehold_sync::{RwSemWriteGuard, atomic::Ordering::Relaxed};
use freehold_vmspace::{PageIndex, PageRange};
use place::Unsettled;
use state::{List, MAX_BYTES, Probe, may_show};

/// What a breakpoint stands for that a processor ran into.
#[derive(Clone, Debug)]
pub struct Hit {
    /// Its home's address: no other file's as long as the file is there.
    file: usize,
    offset: u64,
    original: ArrayVec<u8, MAX_BYTES>,
}

impl Hit {
    /// Whether it is a probe of this file, which the caller keeps.
    pub fn is_of<P: Platform>(&self, file: &Mapping<P>) -> bool {
        self.file == core::ptr::from_ref(file.home()).addr()
    }

    /// The probe's place in the file, in bytes.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// What the file had there when the probe was added: sixteen bytes, beyond the end of the page too, or as
    /// many as it had; enough for any instruction of x86, to be carried out elsewhere.
    pub fn original(&self) -> &[u8] {
        &self.original
    }
}

impl<P: Platform> AddressSpace<P> {
    /// The probe that begins at `addr`, for the handler of the trap there. None: there is none, or not any
    /// more; if memory at `addr` does not hold a breakpoint now, the program goes on at `addr` as if nothing
    /// had happened.
    ///
    /// Many threads may run into one probe at a time: nothing that they share is written.
    ///
    /// # Locks
    ///
    /// None where nobody changes the address space; else the VMA's for reading, or the mmap lock for reading,
    /// for the look-up. None on entry.
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
    /// Puts `breakpoint`, one to sixteen bytes within a page, at `offset` of the file, in the private copies
    /// of all spaces that map it as text (see the module). When this returns, no processor executes what was
    /// there before, but in a range that is just being unmapped.
    ///
    /// A copy that shows something else than the file at that place is another program's text, and is left
    /// alone; so is the page of every process once the file itself is overwritten there. There is one probe
    /// at a place: an owner that has several uses for it counts them. Probes last as long as the `Mapping`,
    /// of which their owner keeps a reference. Without an MMU there are no private copies, and nothing is put
    /// anywhere.
    ///
    /// # Errors
    ///
    /// See [`ProbeError`]; there is no probe. After `OutOfMemory` some breakpoints may be left, if the memory
    /// to take them back was missing too: [`probe_at`](AddressSpace::probe_at) still knows them, and
    /// [`remove_probe`](Self::remove_probe) finishes.
    ///
    /// # Locks
    ///
    /// The file's content lock for writing. Under it: the invalidate lock for reading, to read the file; the
    /// i_mmap lock for reading and tables' locks one at a time; frames' locks are waited for. The caller
    /// holds none.
    pub fn add_probe(&self, offset: u64, breakpoint: &[u8]) -> Result<(), ProbeError> {
        let len = breakpoint.len() as u64;
        if !(1..=MAX_BYTES as u64).contains(&len) || offset % PAGE_SIZE + len > PAGE_SIZE {
            return Err(ProbeError::Invalid);
        }
        let mut content = self.content.write();
        if offset.checked_add(len).is_none_or(|end| end > self.size()) {
            return Err(ProbeError::BeyondEnd);
        }
        let probe = self.read_place(offset, breakpoint)?;
        let with = List::with(self.probes().locked(&content), probe)?;
        let before = self.probes().replace(&mut content, Some(with));
        if self.settle_all(PageIndex::of_byte(offset)).is_err() {
            let _ = self.end_probe(&mut content, offset, || before);
            return Err(ProbeError::OutOfMemory);
        }
        Ok(())
    }

    /// Takes the probe at `offset` away, everywhere. When this returns no processor executes its breakpoint.
    ///
    /// # Errors
    ///
    /// There is none; or no memory for a copy of a page that was written and is shared by fork: then the
    /// breakpoint is left there, in no new copy, and known to [`probe_at`](AddressSpace::probe_at), until
    /// this is called again with success.
    ///
    /// # Locks
    ///
    /// As [`add_probe`](Self::add_probe), but the file is not read.
    pub fn remove_probe(&self, offset: u64) -> Result<(), ProbeError> {
        let mut content = self.content.write();
        let without = List::without(self.probes().locked(&content), offset)?;
        Ok(self.end_probe(&mut content, offset, || without)?)
    }

    /// Ends the probe at `offset`; `without` is the list that remains.
    fn end_probe(
        &self,
        content: &mut RwSemWriteGuard<'_, P>,
        offset: u64,
        without: impl FnOnce() -> crate::uprobe::state::Owned,
    ) -> Result<(), NoMemory> {
        if let Some(probe) = self.probes().locked(content).and_then(|list| list.at(offset)) {
            // Relaxed: the grace period orders it for all readers but those that look beside it and need not
            // know.
            probe.leaving.store(true, Relaxed);
        }
        grace_period::<P>();
        self.settle_all(PageIndex::of_byte(offset))?;
        drop(self.probes().replace(content, without()));
        Ok(())
    }

    /// What the file has at a place that is to get a probe. Under the content lock.
    fn read_place(&self, offset: u64, breakpoint: &[u8]) -> Result<Probe, ProbeError> {
        let mut bytes = [0; MAX_BYTES];
        let len = self.read_at(offset, &mut bytes).map_err(|error| match error {
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
        })?;
        let probe = Probe::new(offset, breakpoint, &bytes[..len]);
        // A page further on could not be read, but that of the breakpoint could.
        if len < breakpoint.len() {
            return Err(ProbeError::Io);
        }
        if probe.original.starts_with(breakpoint) { Err(ProbeError::Unchanged) } else { Ok(probe) }
    }

    /// Makes the page `index` show what the registry says, wherever it is mapped. Under the content lock, a
    /// grace period after the registry changed.
    fn settle_all(&self, index: PageIndex) -> Result<(), NoMemory> {
        loop {
            let (mut moving, mut result) = (None, Ok(()));
            self.home().each_mapper(PageRange::one(index), |mapper| {
                match place::settle_probes(mapper.vm, mapper.vma, self, index) {
                    Ok(()) => {}
                    Err(Unsettled::Moving(pfn)) => moving = Some(pfn),
                    // The others all the same: what can be taken away is.
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
