//! fork and exit in the model.
//!
//! fork clones the process and walks its VMAs: DONTFORK drops a VMA, WIPEONFORK empties it, locks are not
//! inherited, and a VMA with an anon_vma gets a new anon_vma. The new anon_vma counts as forked, so it
//! prevents later merges (`merge.rs`). Pages are shared by reference counts and copied when one side stores.
//! exit drops the process; its index is not used again. The cases whose names contain `fork` have the rules
//! that are easy to miss. State of a process that a child does not inherit is reset in `Model::fork`.

use super::*;

/// Maximum number of processes of the model and of every other subject.
pub const MAX_PROCS: usize = 6;

impl Model {
    /// Forks process `p`. Returns the index of the child.
    pub(super) fn fork(&mut self, p: usize) -> Outcome {
        if self.procs.len() >= MAX_PROCS {
            return Outcome::Err(libc::EAGAIN);
        }
        let outside = self.world.outside;
        let mut child = self.proc(p).clone();
        child.def_flags &= vmflag::MERGEABLE;
        child.mdwe = child.inherited_mdwe();
        child.count.locked_vm = outside.locked_vm;
        let mut fresh = self.next_anon;
        let parent = std::mem::take(&mut child.vmas);
        for mut v in parent {
            if v.has(vmflag::DONTFORK) {
                // The kernel subtracts the VMA from the counters according to its flags.
                child.count.map_count -= 1;
                child.count.add(v.flags, -(v.pages() as i64));
                child.forget_pages(v.start, v.end, |_| true);
                continue;
            }
            v.flags &= !vmflag::LOCK_MASK;
            if v.has(vmflag::WIPEONFORK) {
                v.anon = None;
                v.forked = false;
                child.forget_pages(v.start, v.end, |_| true);
            } else if v.anon.is_some() {
                v.anon = Some(fresh);
                v.forked = true;
                fresh += 1;
            } else {
                // The kernel copies the page tables of this VMA only if they may contain guards. The child
                // must fault in again the pages that were only read.
                child.forget_pages(v.start, v.end, |page| matches!(page, Page::Zero) || !keeps(v.flags));
            }
            child.vmas.push(v);
        }
        self.next_anon = fresh;
        self.procs.push(Some(child));
        Outcome::Ok(self.procs.len() as u64 - 1)
    }

    /// Ends process `p`.
    pub(super) fn exit(&mut self, p: usize) -> Outcome {
        self.procs[p] = None;
        Outcome::Ok(0)
    }
}

/// Returns true if fork copies the page tables of a VMA that has no anon_vma.
fn keeps(flags: u32) -> bool {
    flags & vmflag::MAYBE_GUARD != 0
}
