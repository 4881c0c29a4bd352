//! Location of a program's arguments and environment.
//!
//! A spin lock guards the bounds, so that all of them change together and a reader does not wait for the mmap
//! lock. `remote/arguments.rs` reads the arguments themselves.

use super::AddressSpace;
use crate::{error::ArgumentsError, platform::Platform, space::Arguments};
use core::ops::Range;

impl<P: Platform> AddressSpace<P> {
    /// Sets the location of the arguments, for exec and PR_SET_MM.
    ///
    /// # Errors
    ///
    /// Fails with [`ArgumentsError::Invalid`] if a range ends before its start or above the end of user
    /// space. Nothing is changed then.
    ///
    /// # Locks
    ///
    /// A spin lock of the arguments, briefly.
    pub fn set_arguments(&self, arguments: &Arguments) -> Result<(), ArgumentsError> {
        let fits = |range: &Range<u64>| range.start <= range.end && range.end <= Self::TASK_SIZE;
        if !fits(&arguments.args) || !fits(&arguments.env) {
            return Err(ArgumentsError::Invalid);
        }
        self.put_arguments(arguments.clone());
        Ok(())
    }

    /// Sets the location of the arguments to one that was read from another space, without checking it.
    pub(crate) fn put_arguments(&self, arguments: Arguments) {
        *self.arguments.lock::<P>() = arguments;
    }

    /// Returns the location of the arguments.
    ///
    /// # Locks
    ///
    /// A spin lock of the arguments, briefly.
    pub fn arguments(&self) -> Arguments {
        self.arguments.lock::<P>().clone()
    }
}
