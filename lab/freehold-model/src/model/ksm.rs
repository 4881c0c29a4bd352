//! prctl's PR_SET_MEMORY_MERGE, which marks memory whose equal pages may become one.

use super::*;

/// Whether memory with these flags can be marked.
pub(super) fn may_merge(flags: u32) -> bool {
    flags & (vmflag::SHARED | vmflag::MAYSHARE | vmflag::DROPPABLE) == 0
}

impl Model {
    /// Marks everything, and what will be mapped; or takes every mark away, also those of madvise. To ask for
    /// what holds already does nothing.
    pub(super) fn set_merge(&mut self, p: usize, on: bool) -> Res {
        let pr = self.proc(p);
        let wanted = if on { vmflag::MERGEABLE } else { 0 };
        if pr.def_flags & vmflag::MERGEABLE == wanted {
            return Ok(0);
        }
        pr.def_flags ^= vmflag::MERGEABLE;
        // Neighbours that have become alike stay apart.
        for v in pr.vmas.iter_mut().filter(|v| v.back != Backing::Outside && may_merge(v.flags)) {
            v.flags = v.flags & !vmflag::MERGEABLE | wanted;
        }
        Ok(0)
    }
}
