//! Protection keys: additional restrictions on pages, which a thread changes for itself without a system
//! call.
//!
//! A key is a number. The flags of a VMA and its page-table entries contain the key of its pages, in addition
//! to the rights that apply to all threads. A register of the processor holds the rights of the current
//! thread to the pages of each key. The platform writes that register, and each fault reports it
//! ([`Access::pkru`](crate::fault::Access)). This file keeps the list of keys in use. As on Linux, freeing a
//! key changes no page: pages keep a freed key until the program changes it.
//!
//! Key 0 is the default. A call may name key 0 on processors that have keys. One other key can be allocated
//! for memory that may be executed but not read, because x86 has no such page right. The engine allocates
//! this key at the first request for `EXEC` without other rights, and never frees it.
//!
//! `call/pkeys.rs` has pkey_alloc and pkey_free, `call/mprotect.rs` has pkey_mprotect, and `state/pkeys.rs`
//! has the record. All functions take the guard of a writer. A change of the rules must agree with Linux;
//! `engine/freehold/tests/pkeys.rs` tests them on every design.

use super::{AddressSpace, locking::WriteGuard};
use crate::{
    platform::{Format, PkeyRights, Platform, PteFlags},
    space::state::pkeys::Pkeys,
    vma::flags::VmFlags,
};

impl Pkeys {
    /// Copies the keys in use from the parent of a fork.
    pub fn inherit<P: Platform>(&self, _own: &WriteGuard<'_, P>, parent: &WriteGuard<'_, P>) {
        self.replace(parent.space.pkeys.set());
    }

    /// Returns true if a program has allocated `pkey`, or if `pkey` is 0. Returns false for the execute-only
    /// key, and for every key if the processor has no keys.
    pub fn is_allocated<P: Platform>(&self, guard: &WriteGuard<'_, P>, pkey: u8) -> bool {
        let set = self.set();
        guard.space.has_pkeys() && set.contains(pkey) && set.execute_only() != Some(pkey)
    }

    /// Allocates the lowest free key. Returns `None` if the processor has no keys, or none is free. The
    /// guard must be that of an exclusive writer.
    pub fn allocate<P: Platform>(&self, guard: &WriteGuard<'_, P>) -> Option<u8> {
        let set = self.set();
        let pkey = set.lowest_free().filter(|_| guard.space.has_pkeys())?;
        self.replace(set.with(pkey));
        Some(pkey)
    }

    /// Frees `pkey`, which must be [allocated](Self::is_allocated). The guard must be that of an exclusive
    /// writer.
    pub fn free<P: Platform>(&self, _guard: &WriteGuard<'_, P>, pkey: u8) {
        self.replace(self.set().without(pkey));
    }

    /// Returns the execute-only key, which the first call allocates. Returns `None` if the processor has no
    /// keys, or none is free. Range writers may call this function concurrently. All of them then find the
    /// same free key and store the same record.
    fn execute_only<P: Platform>(&self, guard: &WriteGuard<'_, P>) -> Option<u8> {
        let set = self.set();
        if set.execute_only().is_some() {
            return set.execute_only();
        }
        let pkey = set.lowest_free().filter(|pkey| *pkey != 0 && guard.space.has_pkeys())?;
        self.replace(set.with_execute_only(pkey));
        Some(pkey)
    }
}

impl<P: Platform> AddressSpace<P> {
    /// Returns true if the processor and the format of the page tables have protection keys.
    pub(crate) fn has_pkeys(&self) -> bool {
        P::Format::FLAGS.contains(PteFlags::PKEY) && self.platform().has_pkeys()
    }
}

impl<P: Platform> WriteGuard<'_, P> {
    /// Returns the protection key for pages that get the rights `access` in a VMA with the flags `old`.
    ///
    /// If the caller names a key `asked`, the pages get that key. Otherwise, if `access` is only `EXEC`, the
    /// pages get the execute-only key. Otherwise the pages keep their key, except that the execute-only key
    /// is replaced by key 0.
    #[cfg_attr(feature = "inline", inline(always))]
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
            && pkeys.set().execute_only() == Some(old.pkey());
        if was_execute_only && access != VmFlags::EXEC { 0 } else { old.pkey() }
    }
}
