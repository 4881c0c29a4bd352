//! MDWE: memory that was written is never executed (prctl's `PR_SET_MDWE`).
//!
//! ```text
//! mmap        refuses WRITE with EXEC
//! mprotect    refuses EXEC with WRITE, and EXEC where it was not; what is executable may stay so
//! ```

use super::AddressSpace;
use crate::{error::MdweError, platform::Platform, space::Mdwe, vma::flags::VmFlags};
use freehold_sync::atomic::Ordering::Relaxed;

impl<P: Platform> AddressSpace<P> {
    /// What it denies itself.
    pub fn mdwe(&self) -> Mdwe {
        // Relaxed, here and below: one word, on which nothing else depends; a change of rights meanwhile
        // comes before or after.
        Mdwe::from_bits_retain(self.mdwe.load(Relaxed))
    }

    /// Denies it, from now on. What is mapped already stays as it is.
    ///
    /// # Errors
    ///
    /// See [`MdweError`].
    ///
    /// # Locks
    ///
    /// None.
    pub fn set_mdwe(&self, mdwe: Mdwe) -> Result<(), MdweError> {
        if !mdwe.is_sound() {
            return Err(MdweError::Invalid);
        }
        match self.mdwe.compare_exchange(0, mdwe.bits(), Relaxed, Relaxed) {
            Err(now) if now != mdwe.bits() => Err(MdweError::NotPermitted),
            _ => Ok(()),
        }
    }

    /// Whether memory with the rights `old` may not get the rights `new`; `old` are `new` for what is only
    /// being mapped.
    #[inline]
    pub(crate) fn denies_exec(&self, old: VmFlags, new: VmFlags) -> bool {
        new.contains(VmFlags::EXEC)
            && (new.contains(VmFlags::WRITE) || !old.contains(VmFlags::EXEC))
            && self.mdwe().contains(Mdwe::REFUSE_EXEC_GAIN)
    }
}
