//! Advice that changes flags of VMAs: the order of access, huge pages, merging, core dumps, and fork.
//!
//! The calling task is a range writer or the exclusive writer (`space/locking.rs`). A VMA of which only a
//! part changes is split, and parts that become equal to their neighbours merge (`modify` in
//! `space/change/split_merge.rs`). No page table entry changes. A new advice of this kind needs a rule in
//! `advised_flags`; without a rule, the flags stay as they are. The model's `madvise.rs` and
//! `lab/freehold-model/cases/flags-split-merge.txt` have the rules.

use super::advice::{Advice, check_seal, fail_on_hole};
use crate::{
    call::ksm::may_merge,
    error::MadviseError,
    file::Object,
    platform::Platform,
    space::{
        AddressSpace,
        change::{
            split_merge::{SplitMergeError, VmaChange},
            vma_ranges::{HolePolicy, VmaRanges},
        },
        range_writer::RangeWriterState,
        state::counters::LimitDemand,
    },
    vma::{Vma, flags::VmFlags},
};
use core::cell::Cell;
use freehold_vmspace::UserRange;

impl<P: Platform> AddressSpace<P> {
    /// Changes the flags of all VMAs in `range` as the advice requires. After a failure, the VMAs below the
    /// one that failed keep the change.
    pub(super) fn advise_flags(&self, range: UserRange, advice: Advice) -> Result<(), MadviseError> {
        // The part that is not changed yet, and whether the part below has no hole.
        let (rest, mut whole) = (Cell::new(range), true);
        let changed = self.retry_when_short(|| {
            let (state, range) = (RangeWriterState::default(), rest.get());
            let guard = self.write_range(&state, range, LimitDemand::CUTS)?;
            guard.for_each_vma_range(range, HolePolicy::Skip, |vma, part| {
                check_seal(self.platform(), vma, advice)?;
                let flags = advised_flags(vma, advice)?;
                if flags != vma.flags() {
                    let change = VmaChange { flags, policy: vma.policy() };
                    guard.modify(vma, part, change).map_err(|error| match error {
                        SplitMergeError::NoMemory => MadviseError::OutOfMemory,
                        error => error.into(),
                    })?;
                }
                whole &= part.start() == rest.get().start();
                rest.set(range.rest(part.end()));
                Ok::<(), MadviseError>(())
            })
        });
        // A VMA that cannot be split for want of memory is reported as on Linux.
        let changed = changed.map_err(|error| match error {
            MadviseError::OutOfMemory => MadviseError::NotCut,
            error => error,
        })?;
        fail_on_hole(changed && whole)
    }
}

/// Returns the flags of `vma` after the advice. Fails with `Invalid` if the VMA does not support the advice.
fn advised_flags<P: Platform>(vma: &Vma<P>, advice: Advice) -> Result<VmFlags, MadviseError> {
    let flags = vma.flags();
    let special = flags.intersects(VmFlags::SPECIAL);
    let refused = match advice {
        Advice::DoFork => special && !flags.contains(VmFlags::HUGETLB),
        Advice::WipeOnFork => !matches!(vma.object(), Object::Anonymous) || flags.contains(VmFlags::SHARED),
        Advice::KeepOnFork => flags.contains(VmFlags::DROPPABLE),
        Advice::DoDump => {
            (special && !flags.contains(VmFlags::HUGETLB)) || flags.contains(VmFlags::DROPPABLE)
        }
        _ => false,
    };
    if refused {
        return Err(MadviseError::Invalid);
    }
    let order = flags - VmFlags::RAND_READ - VmFlags::SEQ_READ;
    Ok(match advice {
        Advice::Normal => order,
        Advice::Random => order | VmFlags::RAND_READ,
        Advice::Sequential => order | VmFlags::SEQ_READ,
        Advice::DontFork => flags | VmFlags::DONTCOPY,
        Advice::DoFork => flags - VmFlags::DONTCOPY,
        Advice::Mergeable if !may_merge(flags, vma.object()) => flags,
        Advice::Mergeable => flags | VmFlags::MERGEABLE,
        Advice::Unmergeable => flags - VmFlags::MERGEABLE,
        Advice::HugePage => (flags - VmFlags::NOHUGEPAGE) | VmFlags::HUGEPAGE,
        Advice::NoHugePage => (flags - VmFlags::HUGEPAGE) | VmFlags::NOHUGEPAGE,
        Advice::DontDump => flags | VmFlags::DONTDUMP,
        Advice::DoDump => flags - VmFlags::DONTDUMP,
        Advice::WipeOnFork => flags | VmFlags::WIPEONFORK,
        Advice::KeepOnFork => flags - VmFlags::WIPEONFORK,
        _ => flags,
    })
}
