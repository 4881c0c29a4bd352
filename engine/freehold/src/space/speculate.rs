//! Looking at a VMA without any lock: what is read counts if the mmap lock's sequence number shows that
//! nobody has written to the address space meanwhile.
//!
//! ```text
//! reader   RCU; number, even; tree; words of the VMA; number again, unchanged?
//! writer   number odd; changes the tree and VMAs; number even
//! ```
//!
//! If it is unchanged no write section overlapped the look: then the entry was in the tree from beginning to
//! end, so its VMA was attached, and this space's; its fields belong together; and the file that it maps was
//! there. The file itself may go as soon as the look is over, but its home does not before the RCU section
//! ends. If the number has changed nothing that was read means anything, not even that the VMA was this
//! space's: its memory is a VMA until the RCU section ends, and its fields are atomics, so to have read it
//! does no harm.
#![expect(
    unsafe_code,
    reason = "follows words of the tree, and the word for a file's home, without a lock that keeps either"
)]

use super::{
    AddressSpace,
    locking::{NeedMmapLock, TreeEntry},
    tree_entry::decode,
};
use crate::{
    platform::Platform,
    rmap::tree::{IMmap, root::RmapRoot},
    vma::VmaInfo,
};
use freehold_range::Lookup;

/// A [`VmaInfo`], and where the file is known that the VMA maps.
pub(crate) struct VmaSnapshot<'r, P: Platform> {
    pub info: VmaInfo,
    /// As long as the RCU section.
    pub file: Option<&'r RmapRoot<P, IMmap>>,
}

impl<P: Platform> AddressSpace<P> {
    /// The VMA at `addr` as it was at one moment; nothing if there was none. An error: somebody is changing
    /// the address space, so one has to take a lock.
    pub(crate) fn speculate<'r>(
        &'r self,
        rcu: &'r P::RcuGuard,
        addr: u64,
    ) -> Result<Option<VmaSnapshot<'r, P>>, NeedMmapLock> {
        let look = self.mmap_lock.speculate().ok_or(NeedMmapLock::Busy)?;
        let seen = match self.tree.lookup(rcu, addr) {
            // SAFETY: found within `rcu`, which outlives the look.
            Lookup::Found(found) => match unsafe { decode::<P>(&found) } {
                TreeEntry::Vma(vma) => {
                    Some((vma.info_unlocked().ok_or(NeedMmapLock::Busy)?, vma.file_home()))
                }
                TreeEntry::Closing(_) | TreeEntry::Boundary(_) => None,
            },
            Lookup::Hole => None,
            Lookup::Contended => return Err(NeedMmapLock::Busy),
        };
        if !look.valid(&self.mmap_lock) {
            return Err(NeedMmapLock::Busy);
        }
        // SAFETY: null, or the home of the file that an attached VMA mapped at a moment of this RCU section,
        // by the module's argument; it is freed a grace period after the file has gone.
        Ok(seen.map(|(info, file)| VmaSnapshot { info, file: unsafe { file.as_ref() } }))
    }

    /// What was true of the VMA at `addr` at one moment of this call, for callers that need no more than
    /// that: whether a futex lies in private memory, say.
    ///
    /// # Locks
    ///
    /// None where nobody changes the address space; else those of [`find_vma`](Self::find_vma).
    pub fn vma_info(&self, addr: u64) -> Option<VmaInfo> {
        // Over before a lock is waited for.
        let looked = self.speculate(&P::rcu_read(), addr).map(|seen| seen.map(|seen| seen.info));
        match looked {
            Ok(info) => info,
            Err(_) => self.find_vma(addr).map(|vma| vma.info()),
        }
    }
}
