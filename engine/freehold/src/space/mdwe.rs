//! MDWE: memory is never writable and executable at once, and never becomes executable later (prctl's
//! `PR_SET_MDWE`).
//!
//! ```text
//! mmap        rejects WRITE with EXEC
//! mprotect    rejects EXEC with WRITE, and EXEC for memory that is not executable yet
//! ```
//!
//! The restrictions are one word of the address space (`state/mdwe.rs` has its values). The word changes at
//! most once, from 0 to the first restrictions. mmap and mprotect call `denies_exec` for each mapping. The
//! rule must be Linux's: `mdwe.txt` and `mdwe-alone.txt` in `lab/freehold-model/cases` compare the answers of
//! the engine, the model and the running kernel.

use super::AddressSpace;
use crate::{error::MdweError, platform::Platform, space::Mdwe, vma::flags::VmFlags};
use freehold_sync::atomic::Ordering::Relaxed;

impl<P: Platform> AddressSpace<P> {
    /// Returns the restrictions of this address space.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, space::{AddressSpace, Mdwe, SpaceConfig}};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// let mdwe = Mdwe::REFUSE_EXEC_GAIN | Mdwe::NO_INHERIT;
    /// let space = AddressSpace::new(&engine, &SpaceConfig::new().mdwe(mdwe)).unwrap();
    /// assert_eq!((space.mdwe(), space.fork().unwrap().mdwe()), (mdwe, Mdwe::empty()));
    /// ```
    pub fn mdwe(&self) -> Mdwe {
        // Relaxed, here and below: a single word on which no other data depends. A concurrent change of
        // rights is ordered before or after this access.
        Mdwe::from_bits_retain(self.mdwe.load(Relaxed))
    }

    /// Sets restrictions permanently. Existing mappings keep their rights.
    ///
    /// # Errors
    ///
    /// See [`MdweError`].
    ///
    /// # Locks
    ///
    /// None.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, error::{MdweError, MprotectError}, space::*};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// # let space = AddressSpace::new(&engine, &SpaceConfig::default()).unwrap();
    /// # let (rw, private) = (Prot::READ | Prot::WRITE, MapFlags::PRIVATE | MapFlags::ANONYMOUS);
    /// # let at = space.mmap(0, 4 * PAGE_SIZE, rw, private, None, 0).unwrap();
    /// space.set_mdwe(Mdwe::REFUSE_EXEC_GAIN).unwrap();
    /// assert_eq!(space.mprotect(at, PAGE_SIZE, Prot::EXEC), Err(MprotectError::AccessDenied));
    /// assert_eq!(space.set_mdwe(Mdwe::empty()), Err(MdweError::NotPermitted));
    /// ```
    pub fn set_mdwe(&self, mdwe: Mdwe) -> Result<(), MdweError> {
        if !mdwe.is_sound() {
            return Err(MdweError::Invalid);
        }
        match self.mdwe.compare_exchange(0, mdwe.bits(), Relaxed, Relaxed) {
            Err(now) if now != mdwe.bits() => Err(MdweError::NotPermitted),
            _ => Ok(()),
        }
    }

    /// Returns true if the restrictions forbid that memory with the rights `old` gets the rights `new`. For a
    /// new mapping `old` equals `new`.
    #[inline]
    pub(crate) fn denies_exec(&self, old: VmFlags, new: VmFlags) -> bool {
        new.contains(VmFlags::EXEC)
            && (new.contains(VmFlags::WRITE) || !old.contains(VmFlags::EXEC))
            && self.mdwe().contains(Mdwe::REFUSE_EXEC_GAIN)
    }
}
