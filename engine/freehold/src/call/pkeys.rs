//! pkey_alloc and pkey_free: allocate and free protection keys.
//!
//! `space/pkeys.rs` explains protection keys and keeps the set of allocated keys, which the mmap lock guards.
//! `mprotect.rs` gives a key to pages. Freeing a key changes no page, as on Linux. `tests/pkeys.rs` has the
//! tests.

use crate::{
    error::PkeyError,
    platform::{PkeyRights, Platform},
    space::AddressSpace,
};

impl<P: Platform> AddressSpace<P> {
    /// Allocates a protection key, and sets the rights of the calling thread for its pages. Returns the key.
    ///
    /// # Errors
    ///
    /// See [`PkeyError`].
    ///
    /// # Locks
    ///
    /// The mmap lock for writing, killably.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, engine::{Config, Engine}, platform::PkeyRights, space::*};
    /// # use freehold_machine::{Machine, MachineConfig};
    /// # let engine = Engine::new(<Machine>::new(MachineConfig::backed(1 << 20).pkeys()).unwrap(), Config::default()).unwrap();
    /// # let space = AddressSpace::new(&engine, &SpaceConfig::default()).unwrap();
    /// assert_eq!(space.pkey_alloc(PkeyRights::empty()), Ok(1));
    /// assert_eq!(space.pkey_alloc(PkeyRights::DISABLE_ACCESS), Ok(2));
    /// ```
    pub fn pkey_alloc(&self, rights: PkeyRights) -> Result<u8, PkeyError> {
        if !PkeyRights::all().contains(rights) {
            return Err(PkeyError::Invalid);
        }
        let guard = self.write_killable()?;
        let pkey = self.pkeys.allocate(&guard).ok_or(PkeyError::NoneLeft)?;
        self.platform().set_pkey_rights(pkey, rights);
        Ok(pkey)
    }

    /// Frees a protection key. Pages with this key keep it.
    ///
    /// # Errors
    ///
    /// See [`PkeyError`].
    ///
    /// # Locks
    ///
    /// The mmap lock for writing, killably.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, engine::{Config, Engine}, error::PkeyError, platform::PkeyRights, space::*};
    /// # use freehold_machine::{Machine, MachineConfig};
    /// # let engine = Engine::new(<Machine>::new(MachineConfig::backed(1 << 20).pkeys()).unwrap(), Config::default()).unwrap();
    /// # let space = AddressSpace::new(&engine, &SpaceConfig::default()).unwrap();
    /// let key = space.pkey_alloc(PkeyRights::empty()).unwrap();
    /// space.pkey_free(key).unwrap();
    /// assert_eq!(space.pkey_free(key), Err(PkeyError::Invalid));
    /// assert_eq!(space.pkey_alloc(PkeyRights::empty()), Ok(key));
    /// ```
    pub fn pkey_free(&self, pkey: u8) -> Result<(), PkeyError> {
        let guard = self.write_killable()?;
        if !self.pkeys.is_allocated(&guard, pkey) {
            return Err(PkeyError::Invalid);
        }
        self.pkeys.free(&guard, pkey);
        Ok(())
    }
}
