//! Storing and reading the location of a program's arguments and environment. exec and prctl's `PR_SET_MM`
//! set the location, fork copies it, and /proc/PID/cmdline and /proc/PID/environ read it.
//!
//! The location is one value (`state/arguments.rs`) under a spin lock of rank `Leaf`, under which no other
//! lock may be taken. All bounds therefore change together, and a reader of /proc does not wait for the mmap
//! lock. Only the bounds are checked here: the addresses need not be mapped. `remote/arguments.rs` reads the
//! bytes at these addresses and copes with every location. `engine/freehold/tests/reports/readers.rs` tests
//! both files.

use super::AddressSpace;
use crate::{error::ArgumentsError, platform::Platform, space::Arguments};
use core::ops::Range;

impl<P: Platform> AddressSpace<P> {
    /// Sets the location of the arguments and the environment.
    ///
    /// # Errors
    ///
    /// Fails with [`ArgumentsError::Invalid`] if a range ends before its start or above the end of user
    /// space. Nothing is changed after an error.
    ///
    /// # Locks
    ///
    /// The spin lock of the arguments, briefly.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, error::ArgumentsError, space::*};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// # let space = AddressSpace::new(&engine, &SpaceConfig::default()).unwrap();
    /// let arguments = Arguments { args: 0x1000..0x1020, env: 0x1020..0x1100 };
    /// space.set_arguments(&arguments).unwrap();
    /// assert_eq!(space.fork().unwrap().arguments(), arguments);
    /// let backwards = Arguments { args: 0x1020..0x1000, ..arguments };
    /// assert_eq!(space.set_arguments(&backwards), Err(ArgumentsError::Invalid));
    /// ```
    pub fn set_arguments(&self, arguments: &Arguments) -> Result<(), ArgumentsError> {
        let fits = |range: &Range<u64>| range.start <= range.end && range.end <= Self::TASK_SIZE;
        if !fits(&arguments.args) || !fits(&arguments.env) {
            return Err(ArgumentsError::Invalid);
        }
        self.put_arguments(arguments.clone());
        Ok(())
    }

    /// Stores a location without a check. The caller has read it from another address space, where it was
    /// checked.
    pub(crate) fn put_arguments(&self, arguments: Arguments) {
        *self.arguments.lock::<P>() = arguments;
    }

    /// Returns the location of the arguments and the environment.
    ///
    /// # Locks
    ///
    /// The spin lock of the arguments, briefly.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, space::*};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// # let space = AddressSpace::new(&engine, &SpaceConfig::default()).unwrap();
    /// assert_eq!(space.arguments(), Arguments::default());
    /// ```
    pub fn arguments(&self) -> Arguments {
        self.arguments.lock::<P>().clone()
    }
}
