//! Reading a VMA without any lock. The values read are valid if the mmap lock's sequence number shows that no
//! writer changed the address space during the read.
//!
//! ```text
//! reader   in an RCU section: reads the number, which must be even; looks up the tree; reads the words of
//!          the VMA; reads the number again, which must be unchanged
//! writer   makes the number odd; changes the tree and VMAs; makes the number even
//! ```
//!
//! If the number is unchanged, no write section overlapped the read. The entry was in the tree during the
//! whole read. Its VMA was therefore attached and belonged to this space, the fields are consistent with each
//! other, and the mapped file existed. The file itself may be freed as soon as the read is over, but the
//! file's home stays until the RCU section ends.
//!
//! If the number has changed, the values read are meaningless; the VMA may even have belonged to another
//! space. The read is harmless nevertheless: the memory stays a VMA until the RCU section ends, and the
//! fields are atomics.
//!
//! `probe_at` (`uprobe/`) and `vma_info` read VMAs in this way. No function here may wait or take a lock.
//! `c70_lock_free_lookup_sees_one_moment` (`shuttle_engine`) fails if a result combines values of two
//! moments.
#![expect(
    unsafe_code,
    reason = "follows words of the tree, and the word for a file's home, without a lock that keeps the target"
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

/// The attributes that a VMA had at one moment, and the home of the file that it maps.
pub(crate) struct VmaSnapshot<'r, P: Platform> {
    /// The attributes.
    pub info: VmaInfo,
    /// The home of the file (`rmap/tree/root.rs`), or `None` without a file. Valid during the RCU section.
    pub file: Option<&'r RmapRoot<P, IMmap>>,
}

impl<P: Platform> AddressSpace<P> {
    /// Returns the VMA at `addr` as it was at one moment, or `None` if there was none. Fails if a writer is
    /// changing the address space; the caller then has to take a lock.
    pub(crate) fn speculate<'r>(
        &'r self,
        rcu: &'r P::RcuGuard,
        addr: u64,
    ) -> Result<Option<VmaSnapshot<'r, P>>, NeedMmapLock> {
        let look = self.mmap_lock.speculate().ok_or(NeedMmapLock::Busy)?;
        let seen = match self.tree.lookup(rcu, addr) {
            // SAFETY: the entry was found within `rcu`, which outlives the read.
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
        // SAFETY: the pointer is null, or the home of a file that an attached VMA mapped at some moment of
        // this RCU section (see the module). A home is freed a grace period after its file.
        Ok(seen.map(|(info, file)| VmaSnapshot { info, file: unsafe { file.as_ref() } }))
    }

    /// Returns the attributes that the VMA at `addr` had at one moment of this call. Sufficient, for example,
    /// to decide whether a futex is in private memory.
    ///
    /// # Locks
    ///
    /// No lock if no task changes the address space; otherwise the locks of [`find_vma`](Self::find_vma).
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, space::*, vma::flags::VmFlags};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// # let space = AddressSpace::new(&engine, &SpaceConfig::default()).unwrap();
    /// # let (rw, private) = (Prot::READ | Prot::WRITE, MapFlags::PRIVATE | MapFlags::ANONYMOUS);
    /// # let at = space.mmap(0, 4 * PAGE_SIZE, rw, private, None, 0).unwrap();
    /// let info = space.vma_info(at + PAGE_SIZE + 5).unwrap();
    /// assert_eq!((info.range.start(), info.pages().get()), (at, 4));
    /// assert!(!info.flags.contains(VmFlags::SHARED));
    /// ```
    pub fn vma_info(&self, addr: u64) -> Option<VmaInfo> {
        // The RCU section ends before the call waits for a lock.
        let looked = self.speculate(&P::rcu_read(), addr).map(|seen| seen.map(|seen| seen.info));
        match looked {
            Ok(info) => info,
            Err(_) => self.find_vma(addr).map(|vma| vma.info()),
        }
    }
}
