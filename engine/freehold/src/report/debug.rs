//! Output of public types for `{:?}`. The output contains only values that can be read without a lock,
//! because the task that prints may hold any lock. A type of `file/`, `space/` or `engine/` whose fields need
//! locks belongs here. The output of `Userfaultfd` and `NoMmuMapping` is in the files of these types.

use super::maps::{MapLine, MapName};
use crate::{
    engine::Engine,
    file::{File, Mapping},
    platform::Platform,
    space::AddressSpace,
};
use core::fmt;

impl<P: Platform> fmt::Debug for Engine<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine").field("config", self.config()).finish_non_exhaustive()
    }
}

impl<P: Platform> fmt::Debug for AddressSpace<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AddressSpace")
            .field("locking", &self.locking())
            .field("counts", &self.counts())
            .finish_non_exhaustive()
    }
}

impl<P: Platform> fmt::Debug for Mapping<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mapping").field("size", &self.size()).finish_non_exhaustive()
    }
}

impl<P: Platform> fmt::Debug for File<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("File").field("name", &self.name()).finish_non_exhaustive()
    }
}

impl<P: Platform> fmt::Debug for MapName<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

impl<P: Platform> fmt::Debug for MapLine<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MapLine")
            .field("range", &format_args!("{:#x}..{:#x}", self.start, self.end))
            .field("flags", &self.flags)
            .field("offset", &self.offset)
            .field("name", &self.name)
            .finish()
    }
}
