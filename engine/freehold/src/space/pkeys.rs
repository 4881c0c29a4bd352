//! Protection keys: a second set of rights to pages, which a thread changes for itself without a call.
//!
//! A key is a number that pages have, in their VMA's flags and in their entries, besides the rights that
//! everybody has to them. What a thread may do with the pages of each key is said by a register of its
//! processor, which the platform knows and each fault reports ([`Access::pkru`](crate::fault::Access)). Here
//! is which keys are in use. A program that uses a free key does so at its own risk, as on Linux: freeing one
//! changes no page.
//!
//! Key 0 is what pages have by themselves; a call may name it where processors know keys. One key more may be
//! taken for memory that may be executed and not read, which x86 cannot say otherwise: the first time that
//! somebody asks for `EXEC` alone, and then for good.

use super::locking::WriteGuard;
use crate::{
    platform::{PkeyRights, Platform},
    space::state::pkeys::Pkeys,
    vma::flags::VmFlags,
};
use freehold_sync::atomic::Ordering::Relaxed;

/// How many there are.
const KEYS: u8 = 16;

impl Pkeys {
    /// As they are in the parent of a fork.
    pub fn inherit<P: Platform>(&self, _own: &WriteGuard<'_, P>, parent: &WriteGuard<'_, P>) {
        let parent = &parent.space.pkeys;
        self.allocated.store(parent.allocated.load(Relaxed), Relaxed);
        self.execute_only.store(parent.execute_only.load(Relaxed), Relaxed);
    }

    /// Whether a program has allocated `pkey`, or it is key 0. The key for executing is not a program's, and
    /// where processors know no keys, nobody has key 0 either.
    pub fn is_allocated<P: Platform>(&self, guard: &WriteGuard<'_, P>, pkey: u8) -> bool {
        let execute_only = self.execute_only.load(Relaxed);
        guard.space.platform().has_pkeys()
            && pkey < KEYS
            && self.allocated.load(Relaxed) & (1 << pkey) != 0
            && (execute_only == 0 || u32::from(pkey) != execute_only)
    }

    /// Allocates the lowest free key, if the processor knows keys and one is free.
    pub fn allocate<P: Platform>(&self, guard: &WriteGuard<'_, P>) -> Option<u8> {
        let allocated = self.allocated.load(Relaxed);
        let pkey = allocated.trailing_ones() as u8;
        if pkey >= KEYS || !guard.space.platform().has_pkeys() {
            return None;
        }
        self.allocated.store(allocated | 1 << pkey, Relaxed);
        Some(pkey)
    }

    /// Frees `pkey`, which is [allocated](Self::is_allocated).
    pub fn free<P: Platform>(&self, _guard: &WriteGuard<'_, P>, pkey: u8) {
        self.allocated.store(self.allocated.load(Relaxed) & !(1 << pkey), Relaxed);
    }

    fn execute_only<P: Platform>(&self, guard: &WriteGuard<'_, P>) -> Option<u8> {
        let known = self.execute_only.load(Relaxed) as u8;
        let pkey = if known == 0 { self.allocate(guard).filter(|pkey| *pkey != 0)? } else { known };
        self.execute_only.store(u32::from(pkey), Relaxed);
        Some(pkey)
    }
}

impl<P: Platform> WriteGuard<'_, P> {
    /// The key of pages that get the rights `access` in a VMA with the flags `old`: the one that was asked
    /// for; else that for executing, where this is all that is allowed; else what they have, unless they
    /// have it for that reason.
    #[inline(always)]
    pub(crate) fn key_for(&self, old: VmFlags, access: VmFlags, asked: Option<u8>) -> u8 {
        if let Some(pkey) = asked {
            return pkey;
        }
        let pkeys = &self.space.pkeys;
        if access == VmFlags::EXEC
            && let Some(pkey) = pkeys.execute_only(self)
        {
            self.space.platform().set_pkey_rights(pkey, PkeyRights::DISABLE_ACCESS);
            return pkey;
        }
        let was_execute_only = (old & VmFlags::ACCESS) == VmFlags::EXEC
            && old.pkey() != 0
            && u32::from(old.pkey()) == pkeys.execute_only.load(Relaxed);
        if was_execute_only && access != VmFlags::EXEC { 0 } else { old.pkey() }
    }
}
