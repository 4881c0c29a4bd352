//! Memory that is kept for later, given back when somebody asks for it.
//!
//! | kept | goes back by |
//! | --- | --- |
//! | free VMAs | itself, chunk by chunk, but for a few chunks; [`Engine::trim`] |
//! | free frames, per CPU | itself, but for 1 MiB; [`Engine::trim`] |
//! | clean pages of files that nobody uses | [`Mapping::drop_clean`](crate::file::Mapping::drop_clean), [`Engine::drop_clean`] |
//! | spare nodes of a tree of VMAs | its space's end; [`AddressSpace::trim`](crate::space::AddressSpace::trim) |
//! | page tables that MADV_DONTNEED has emptied | munmap of all that they span, as in Linux |
//! | the frames of zeroes; what is there once per CPU (counters, slots of readers, ends of these lists) | the engine's end |
//! | free pages of a pool of huge ones | [`Engine::resize_huge_pool`] |

use super::Engine;
use crate::platform::Platform;
use freehold_vmspace::PageRange;

impl<P: Platform> Engine<P> {
    /// Gives back what is kept to be used again soon: the calling CPU's free VMAs and free frames, and memory
    /// for VMAs that nobody uses. Another CPU's are for that CPU alone to take: it gives them back as soon as
    /// it makes a VMA or a frame free, so an embedder that wants all at once calls this on every CPU.
    ///
    /// The memory of VMAs goes after a grace period, which is not waited for.
    ///
    /// # Locks
    ///
    /// The slab's, for a short time. May be called with any lock of an outer rank held.
    pub fn trim(&self) {
        self.slab.trim();
        self.memory().trim();
    }

    /// Takes pages of files out of their caches that need not be there, until `frames` of them have gone or
    /// each file was asked once; the files in turn, one call going on where the last one stopped. Returns how
    /// many went. See [`Mapping::drop_clean`](crate::file::Mapping::drop_clean).
    ///
    /// Their frames are free, on the lists of the calling CPU some of them: see [`trim`](Self::trim).
    ///
    /// # Locks
    ///
    /// As [`Mapping::drop_clean`](crate::file::Mapping::drop_clean); to find the files a spin lock. A file
    /// whose last user lets go of it meanwhile ends here.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, engine::{Config, Engine}, file::{Mapping, Zeroes}};
    /// # use freehold_machine::{Machine, MachineConfig};
    /// # let engine = Engine::new(<Machine>::new(MachineConfig::backed(1 << 20)).unwrap(), Config::default()).unwrap();
    /// let files = [(); 2].map(|()| Mapping::new(&engine, Zeroes, 8 * PAGE_SIZE, false).unwrap());
    /// for file in &files {
    ///     file.read_at(0, &mut [0; 3 * PAGE_SIZE as usize]).unwrap();
    /// }
    /// assert_eq!(engine.drop_clean(4), 4);
    /// assert_eq!(engine.drop_clean(4), 2);
    /// ```
    pub fn drop_clean(&self, frames: u64) -> u64 {
        let mut dropped = 0;
        for _ in 0..self.files().list.len() {
            if dropped >= frames {
                break;
            }
            if let Some(file) = self.files().list.next() {
                dropped += file.drop_clean_up_to(frames - dropped, PageRange::ALL);
            }
        }
        dropped
    }
}
