//! Releases memory that the engine keeps for reuse.
//!
//! `docs/guide/platform.md`, part 4, has a table of all kept memory and of the functions that free it. A new
//! cache of the engine needs a row in that table, and a function here if the engine does not free the cache
//! by itself. `tests/heap_in_use/idle.rs` checks that an idle engine returns to its initial use of memory,
//! and `tests/files/drop_clean.rs` tests [`Engine::drop_clean`].

use super::Engine;
use crate::platform::Platform;
use freehold_vmspace::PageRange;

impl<P: Platform> Engine<P> {
    /// Releases memory that is kept for reuse: free VMAs and free frames of the calling CPU, and unused
    /// chunks of the VMA slab. The free lists of another CPU are accessible only to that CPU, which releases
    /// their memory when it next frees a VMA or a frame. An embedder that wants to release all memory at once
    /// calls this function on every CPU. An idle CPU keeps up to 256 frames. A kernel with little memory
    /// calls this function before a CPU idles or goes offline, and when a call fails because memory has run
    /// out.
    ///
    /// The engine keeps memory in these places:
    ///
    /// | kept | freed by |
    /// | --- | --- |
    /// | free frames of each CPU | this function, on that CPU |
    /// | free VMAs of each CPU, and empty chunks of the slab | this function, on that CPU |
    /// | clean pages of files | [`drop_clean`](Self::drop_clean) |
    /// | spare nodes of the VMA tree of an address space | [`AddressSpace::trim`](crate::space::AddressSpace::trim) |
    /// | a frame of zeroes, and one of 2 MiB if it was used | the end of the engine |
    /// | free huge pages of a pool | [`resize_huge_pool`](Self::resize_huge_pool) |
    ///
    /// The memory of VMAs is freed after a grace period. This function does not wait for that grace period.
    ///
    /// # Locks
    ///
    /// The lock of the slab, for a short time. May be called while any lock of an outer rank is held.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, space::*};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// # let space = AddressSpace::new(&engine, &SpaceConfig::default()).unwrap();
    /// # let (rw, private) = (Prot::READ | Prot::WRITE, MapFlags::PRIVATE | MapFlags::ANONYMOUS);
    /// # let at = space.mmap(0, 4 * PAGE_SIZE, rw, private, None, 0).unwrap();
    /// space.mlock(at, 4 * PAGE_SIZE).unwrap();
    /// space.munmap(at, 4 * PAGE_SIZE).unwrap();
    /// let kept = engine.platform().accounting().frames;
    /// engine.trim();
    /// assert!(engine.platform().accounting().frames < kept);
    /// ```
    pub fn trim(&self) {
        self.trim_own();
    }

    /// Releases memory like [`trim`](Self::trim). Returns true if frames became free on the platform.
    pub(crate) fn trim_own(&self) -> bool {
        self.slab.trim();
        self.memory().trim()
    }

    /// Drops clean, unused pages of files from their caches until `frames` pages are dropped or each file was
    /// visited once. Files are visited in a fixed cycle, and each call continues where the last call stopped.
    /// Returns the number of dropped pages. See [`Mapping::drop_clean`](crate::file::Mapping::drop_clean).
    ///
    /// The frames of dropped pages become free. Some of these frames stay on the free list of the calling
    /// CPU; see [`trim`](Self::trim).
    ///
    /// # Locks
    ///
    /// The locks of [`Mapping::drop_clean`](crate::file::Mapping::drop_clean), and a spin lock to find the
    /// files. If the last user of a file releases the file during the call, the file is destroyed in this
    /// call.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, file::{Mapping, Zeroes}};
    /// # let engine = freehold_machine::example_engine(1 << 20);
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
