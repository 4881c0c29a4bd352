//! Where a program's arguments and environment lie. The bounds change together, under a spin lock of their
//! own, so that a reader does not meet the mmap lock. What they are: `remote/arguments.rs`.

use super::AddressSpace;
use crate::{error::ArgumentsError, platform::Platform, space::Arguments};
use core::ops::Range;

impl<P: Platform> AddressSpace<P> {
    /// Says where the arguments lie: what exec does, and PR_SET_MM.
    ///
    /// # Errors
    ///
    /// A range that ends before it starts, or beyond the last address; nothing was changed.
    ///
    /// # Locks
    ///
    /// One of their own, for the moment.
    pub fn set_arguments(&self, arguments: &Arguments) -> Result<(), ArgumentsError> {
        let fits = |range: &Range<u64>| range.start <= range.end && range.end <= Self::TASK_SIZE;
        if !fits(&arguments.args) || !fits(&arguments.env) {
            return Err(ArgumentsError::Invalid);
        }
        self.put_arguments(arguments.clone());
        Ok(())
    }

    /// As [`set_arguments`](Self::set_arguments), of another space.
    pub(crate) fn put_arguments(&self, arguments: Arguments) {
        *self.arguments.lock::<P>() = arguments;
    }

    /// Where the arguments lie.
    ///
    /// # Locks
    ///
    /// One of their own, for the moment.
    pub fn arguments(&self) -> Arguments {
        self.arguments.lock::<P>().clone()
    }
}
