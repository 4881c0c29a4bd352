//! prctl's PR_SET_MEMORY_MERGE, which marks memory whose equal pages the kernel may merge into one.
//!
//! The merging itself changes no result and is not modelled. The mark is a flag of VMAs (MERGEABLE), so it
//! decides whether VMAs merge; madvise sets and clears it for a range (`madvise.rs`), and new mappings get it
//! from the process. `cases/memory-merge.txt` has the rules.

use super::*;

/// Returns true if memory with these flags can be marked.
pub(super) fn may_merge(flags: u32) -> bool {
    flags & (vmflag::SHARED | vmflag::MAYSHARE | vmflag::DROPPABLE) == 0
}

impl Model {
    /// If `on` is true, marks all memory and all later mappings. Otherwise removes every mark, including
    /// those that madvise has set. Does nothing if the process is already in that state.
    pub(super) fn set_merge(&mut self, p: usize, on: bool) -> Res {
        let pr = self.proc(p);
        let wanted = if on { vmflag::MERGEABLE } else { 0 };
        if pr.def_flags & vmflag::MERGEABLE == wanted {
            return Ok(0);
        }
        pr.def_flags ^= vmflag::MERGEABLE;
        // VMAs that become equal to their neighbours are not merged.
        for v in pr.vmas.iter_mut().filter(|v| v.back != Backing::Outside && may_merge(v.flags)) {
            v.flags = v.flags & !vmflag::MERGEABLE | wanted;
        }
        Ok(0)
    }
}
