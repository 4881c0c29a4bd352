//! Mappings of frames that the engine does not own: how exec gives a program its vdso.

use super::AddressSpace;
use crate::{
    PAGE_SHIFT, PAGE_SIZE,
    counted::Counted,
    error::MmapError,
    object::{Object, Special},
    platform::Platform,
    space::{TASK_SIZE, limits::Replaced},
    vma::{Family, flags::VmFlags, merge::Attrs},
};
use freehold_sync::atomic::Ordering::Relaxed;

impl<P: Platform> AddressSpace<P> {
    /// Maps `len` bytes of `special`, from its first frame on, and returns where: at `hint` if that is a free address, else
    /// where [`mmap`](Self::mmap) would put it. What lies behind the last frame is a bus error.
    ///
    /// The VMA has `flags` and does not merge, split or grow; it is never locked into memory, since it is never out of it.
    ///
    /// # Errors
    ///
    /// As `mmap`, for a range or a limit that does not allow it; nothing was changed.
    ///
    /// # Locks
    ///
    /// The mmap lock for writing, killably.
    pub fn install_special(
        &self,
        hint: u64,
        len: u64,
        flags: VmFlags,
        special: &Counted<Special>,
    ) -> Result<u64, MmapError> {
        if len == 0 || !hint.is_multiple_of(PAGE_SIZE) {
            return Err(MmapError::Invalid);
        }
        let len = len
            .checked_next_multiple_of(PAGE_SIZE)
            .filter(|&len| len <= TASK_SIZE)
            .ok_or(MmapError::NoSpace)?;
        let guard = self.write_killable()?;
        if self.counters.counts().map_count > self.engine.config().max_map_count {
            return Err(MmapError::TooManyVmas);
        }
        let at_hint = hint != 0 && guard.hint_is_free(hint, len);
        let start = if at_hint { hint } else { guard.find_gap(len, false)? };
        let defaults = VmFlags::from_bits_retain(self.default_flags.load(Relaxed)) - VmFlags::LOCK_MASK;
        let flags = (flags - VmFlags::LOCK_MASK) | defaults | VmFlags::DONTEXPAND | VmFlags::SOFTDIRTY;
        let pages = len >> PAGE_SHIFT;
        if !self.may_expand(flags, pages, Replaced::default()) {
            return Err(MmapError::Limit);
        }
        let object = Object::Special(special.clone());
        let attrs = Attrs { flags, object: &object, pgoff: 0, anon: Family::NONE, policy: 0, uffd: None };
        let range = start..start + len;
        let new = guard.prepare_new(range.clone(), &attrs)?;
        guard.insert(range, new, &attrs);
        self.counters.account(&guard, flags, pages as i64);
        Ok(start)
    }
}
