//! mmap of a file that is not made of pages: its driver says what is mapped, and what of it is there from the
//! start.
//!
//! ```text
//! ask        the mmap hook; it fails, or answers with hooks, flags, and frames for some or all pages
//! prepare    everything else that may fail
//! store      in place of what was there
//! fill       entries for the frames, table by table, each table's within a read section in which the answer still holds
//! ```
//!
//! Nobody can come to the range before the fill is over, for the mmap lock and the VMA are held for writing;
//! except the walk of a revocation, which thereby takes what it is to take. If one came since the driver was
//! asked, what it said is not to be trusted any more: the mapping goes, under the same hold, and the driver
//! is asked again.
//!
//! With frames to map, what was in the way goes before the tables are made: as on Linux, a failure after that
//! (of memory alone) leaves a hole. When the hook itself refuses, what was there stays.

use super::request::MmapRequest;
use crate::{
    PAGE_SIZE, VirtAddr,
    counted::Counted,
    error::{MmapError, NoMemory},
    file::{Asked, File, MapRequest, Object, Run, Special, VmaInfo},
    platform::Platform,
    space::{
        AddressSpace,
        change::{deferred_retire::DeferredRetire, unmap::UnmapRange},
        locking::WriteGuard,
    },
    vma::{
        Vma,
        flags::{VmFlags, pte_flags::vma_pte_flags},
    },
    wait::Rounds,
};
use allocator_api2::vec::Vec;
use freehold_vmspace::UserRange;

/// What a driver wants mapped: by which hooks, with which flags, and which frames at once.
type DriverAnswer<P> = (Counted<Special<P>>, VmFlags, Vec<Run>);

/// Frames were taken back since the driver was asked.
struct Revoked;

impl<'s, P: Platform> WriteGuard<'s, P> {
    /// Maps what the driver of `file` says. Tells whether it wants populating.
    pub(super) fn store_driven(
        &self,
        file: &Counted<File<P>>,
        request: &MmapRequest<P>,
        range: UserRange,
        gone: &mut DeferredRetire<'s, P>,
    ) -> Result<bool, MmapError> {
        let mut rounds = Rounds::new();
        loop {
            rounds.again::<P>()?;
            let (gathered, charge) = self.gather_replaced(request, range)?;
            let info = request.vma_info(range);
            let revocations = file.mapping().asking();
            let (special, flags, runs) = self.ask_driver(file, info)?;
            let request = request.answered(Object::Special(special.clone()), flags);
            let attrs = request.attrs();
            // Three changes of the tree: old entries go, the new one comes, and may have to go again.
            self.reserve(3)?;
            let new = self.prepare_new(range, &attrs)?;
            if runs.is_empty() {
                let vma = match gathered {
                    Some(gathered) => self.replace_gathered(gathered, range, new, &attrs, gone),
                    None => self.insert(range, new, &attrs),
                };
                return Ok(self.count_stored(&request, charge, Some(vma)));
            }
            gathered.into_iter().for_each(|gathered| gone.add(gathered.unmap()));
            if let Err(error) = self.space.make_tables(&runs) {
                self.space.drop_tables(self, range);
                return Err(error.into());
            }
            // Nothing can fail from here on.
            let vma = self.insert(range, new, &attrs);
            let populate = self.count_stored(&request, charge, Some(vma));
            match self.space.fill_special(vma, &special, &runs, revocations) {
                Ok(()) => return Ok(populate),
                Err(Revoked) => {
                    let unmapped = self.unmap(&UnmapRange::trusted::<P>(range));
                    gone.add(unmapped.expect("a VMA of its own goes whole, its change reserved before"));
                }
            }
        }
    }

    /// What the driver says, if it is something that can be mapped.
    fn ask_driver(&self, file: &Counted<File<P>>, info: VmaInfo) -> Result<DriverAnswer<P>, MmapError> {
        let driver = file.driver().ok_or(MmapError::NotMappable)?;
        let mut asked = MapRequest::new(file, self.space.mmu(), info);
        let special = driver.mmap(&mut asked)?;
        let (flags, runs) = asked.answered()?;
        // Somewhere else nobody would find the VMA.
        let listed = special.mapping().is_some_and(|mapping| Counted::ptr_eq(mapping, file.mapping()));
        if listed { Ok((special, flags, runs)) } else { Err(MmapError::Invalid) }
    }
}

/// The parts of a run that one table holds each, and their frames.
fn parts(run: &Run) -> impl Iterator<Item = Run> {
    const TABLE: u64 = freehold_pagetable::Level::Pte.table_span();
    let (whole, mut at) = (run.clone(), run.range.start());
    core::iter::from_fn(move || {
        let end = (at - at % TABLE + TABLE).min(whole.range.end());
        let part = Run {
            range: UserRange::new(at, end),
            first: whole.first.add((at - whole.range.start()) / PAGE_SIZE),
        };
        at = end;
        (!part.range.is_empty()).then_some(part)
    })
}

impl<P: Platform> AddressSpace<P> {
    /// Makes the tables for `runs`, where nothing is mapped.
    ///
    /// # Errors
    ///
    /// No memory; some tables may have been made.
    fn make_tables(&self, runs: &[Run]) -> Result<(), NoMemory> {
        for part in runs.iter().flat_map(parts) {
            let at = VirtAddr::new(part.range.start());
            self.vm.pte_table_alloc(at).map_err(|_| NoMemory)?;
        }
        Ok(())
    }

    /// Maps `runs` in `vma`, which is locked for writing and whose tables were made.
    fn fill_special(
        &self,
        vma: &Vma<P>,
        special: &Special<P>,
        runs: &[Run],
        asked: Asked<'_, P>,
    ) -> Result<(), Revoked> {
        let rights = vma_pte_flags(vma.flags()) | special.entry_flags(vma.flags());
        for part in runs.iter().flat_map(parts) {
            let start = VirtAddr::new(part.range.start());
            let table = self.vm.pte_table(start).expect("made before");
            let rcu = P::rcu_read();
            if !asked.holds(&rcu) {
                return Err(Revoked);
            }
            let pages = (part.range.end() - part.range.start()) / PAGE_SIZE;
            let frames = (0..pages).map(|n| part.first.add(n));
            let installed = self.vm.map_foreign(table, start, frames, rights);
            debug_assert!(installed, "something was mapped where nothing can be");
        }
        Ok(())
    }
}
