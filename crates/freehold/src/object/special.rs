//! Mappings of frames that the engine does not own, such as the vdso.

use crate::{Pfn, error::NoMemory};
use allocator_api2::{boxed::Box, vec::Vec};

/// A fixed list of frames under a name. Whoever makes it keeps the frames alive as long as it exists.
///
/// Its pages are mapped without being counted; a private write copies them as it would a file's.
#[derive(Debug)]
pub struct Special {
    name: &'static str,
    frames: Box<[Pfn]>,
}

impl Special {
    /// The mapping called `name`, for instance `[vdso]`, of these frames in this order.
    ///
    /// # Errors
    ///
    /// No memory for the list.
    pub fn new(name: &'static str, frames: &[Pfn]) -> Result<Self, NoMemory> {
        let mut list = Vec::new();
        list.try_reserve_exact(frames.len()).map_err(|_| NoMemory)?;
        list.extend_from_slice(frames);
        Ok(Special { name, frames: list.into_boxed_slice() })
    }

    /// How reports call it.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// The frame of the page with this offset, if there is one.
    pub fn frame(&self, pgoff: u64) -> Option<Pfn> {
        self.frames.get(usize::try_from(pgoff).ok()?).copied()
    }

    /// Pages.
    pub fn pages(&self) -> u64 {
        self.frames.len() as u64
    }
}
