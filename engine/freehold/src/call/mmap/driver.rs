//! mmap of a driver's file, which has no page cache. The driver decides which object is mapped, and which
//! frames are mapped immediately.
//!
//! ```text
//! ask        call the mmap hook, which fails or returns hooks, flags, and frames for some or all pages
//! prepare    do all other steps that may fail
//! store      replace the old mappings
//! fill       install entries for the frames, one table at a time, each within a read section in which
//!            the driver's answer is still valid
//! ```
//!
//! The mmap lock and the VMA are held for writing until the fill is complete. During this time only the walk
//! of a revocation can reach the range, and it removes the revoked entries. If a revocation happened after
//! the driver was asked, the answer is not valid any more. The mapping is then removed under the same locks,
//! and the driver is asked again.
//!
//! If there are frames to map, the old mappings are removed before the page tables are allocated. As on
//! Linux, a failure after this point leaves a hole. Such a failure is caused by a lack of memory, or by an
//! error of the attempt that follows a revocation. If the first call of the hook fails, the old mappings
//! stay.
//!
//! `file/kinds/driver.rs` defines the hook, its request and its answer. `file/change/revoke.rs` explains why
//! the fill detects every revocation. `tests/special` has the tests: `revoke.rs` for answers that are no
//! longer valid, `oom.rs` for failed allocations.

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

/// The answer of a driver: hooks, flags, and frames to map immediately.
type DriverAnswer<P> = (Counted<Special<P>>, VmFlags, Vec<Run>);

/// Frames were revoked after the driver answered.
struct Revoked;

impl<'s, P: Platform> WriteGuard<'s, P> {
    /// Creates the mapping that the driver of `file` describes. Returns true if it must be populated.
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
            // Three changes of the tree: the removal of old entries, the insertion, and a possible removal of
            // the new entry.
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
            // No step can fail from here on.
            let vma = self.insert(range, new, &attrs);
            let populate = self.count_stored(&request, charge, Some(vma));
            match self.space.fill_special(vma, &special, &runs, revocations) {
                Ok(()) => return Ok(populate),
                Err(Revoked) => {
                    let unmapped = self.unmap(&UnmapRange::trusted::<P>(range));
                    gone.add(unmapped.expect("unmapping a whole VMA with a reserved change cannot fail"));
                }
            }
        }
    }

    /// Calls the driver and returns its answer, if the answer describes a valid mapping.
    fn ask_driver(&self, file: &Counted<File<P>>, info: VmaInfo) -> Result<DriverAnswer<P>, MmapError> {
        let driver = file.driver().ok_or(MmapError::NotMappable)?;
        let mut asked = MapRequest::new(file, self.space.mmu(), info);
        let special = driver.mmap(&mut asked)?;
        let (flags, runs) = asked.answered()?;
        // The file's tree must list the VMA; otherwise walks of the file would not find it.
        let listed = special.mapping().is_some_and(|mapping| Counted::ptr_eq(mapping, file.mapping()));
        if listed { Ok((special, flags, runs)) } else { Err(MmapError::Invalid) }
    }
}

/// Splits a run into parts that each lie in one page table.
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
    /// Allocates the page tables for the addresses of `runs`. Nothing is mapped at these addresses.
    ///
    /// # Errors
    ///
    /// Fails if there is no memory. Some tables may have been allocated.
    fn make_tables(&self, runs: &[Run]) -> Result<(), NoMemory> {
        for part in runs.iter().flat_map(parts) {
            let at = VirtAddr::new(part.range.start());
            self.vm.pte_table_alloc(at).map_err(|_| NoMemory)?;
        }
        Ok(())
    }

    /// Maps `runs` in `vma`. The VMA is locked for writing, and its tables were allocated.
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
            let table = self.vm.pte_table(start).expect("`make_tables` allocated the table");
            let rcu = P::rcu_read();
            if !asked.holds(&rcu) {
                return Err(Revoked);
            }
            let pages = (part.range.end() - part.range.start()) / PAGE_SIZE;
            let frames = (0..pages).map(|n| part.first.add(n));
            let installed = self.vm.map_foreign(table, start, frames, rights);
            debug_assert!(installed, "an entry was present in a range without mappings");
        }
        Ok(())
    }
}
