//! Which pages of files were evicted, and when: a table of fingerprints (Linux: shadow entries).
//!
//! A page of a file that is read again after its eviction is a *refault*. Its *distance* is the number of
//! pages that were evicted in between. The table has one slot for each two frames of memory. A hash of a
//! group of pages gives their slots, on one cache line, and a tag. A slot has the tag, the age of the page,
//! and the time of the eviction. A later eviction with the same slot replaces it, so the table needs no locks
//! and never grows. A refault is missed if its slot was replaced. A page with the slot and the tag of another
//! page is a wrong hint, once in 4096 such pages.

use super::policy::Age;
use crate::error::NoMemory;
use allocator_api2::{alloc::AllocError, boxed::Box, vec::Vec};
use freehold_sync::atomic::{AtomicU32, Ordering::Relaxed};

/// Number of bits of a slot that hold the time. The next bits hold the age, and the other bits the tag.
const TIME_BITS: u32 = 16;
const TIMES: u32 = 1 << TIME_BITS;
const AGE_BITS: u32 = 4;
const _: () = assert!(Age::COUNT == 1 << AGE_BITS);
/// The first bit of the tag.
const TAG_SHIFT: u32 = TIME_BITS + AGE_BITS;
/// Number of units of time in which as many pages are evicted as memory has, as a power of two. The times
/// repeat after sixteen times memory.
const MEMORY_BITS: u32 = TIME_BITS - 4;
/// Number of consecutive pages of a file whose slots share a cache line. Consecutive pages are often read by
/// one CPU, and evicted together.
const GROUP: u64 = 16;

/// The table of the evicted pages of an engine.
pub(super) struct Ghosts {
    /// The slots; 0 if empty. Their number is a power of two, or there are none. Each word is read and
    /// written on its own.
    slots: Box<[AtomicU32]>,
    /// Number of evictions in a unit of time, as a power of two.
    unit: u32,
}

impl Ghosts {
    /// Creates an empty table for a memory of this number of frames.
    ///
    /// # Errors
    ///
    /// Fails if there is no memory.
    pub fn try_new(frames: u64) -> Result<Self, NoMemory> {
        let len = if frames == 0 { 0 } else { (frames / 2).next_power_of_two() as usize };
        let mut slots = Vec::new();
        slots.try_reserve_exact(len).map_err(|_| AllocError)?;
        slots.extend((0..len).map(|_| AtomicU32::new(0)));
        let unit = frames.next_power_of_two().ilog2().saturating_sub(MEMORY_BITS);
        Ok(Ghosts { slots: slots.into_boxed_slice(), unit })
    }

    /// Returns the slot and the tag of a page.
    fn place(&self, file: usize, index: u64) -> Option<(&AtomicU32, u32)> {
        // Mixes all bits of both numbers into the upper half (the multiplier is 2^64 divided by the golden
        // ratio, made odd).
        let mixed = (file as u64 ^ (index / GROUP).rotate_left(32)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let mixed = (mixed ^ mixed >> 32).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let place = (mixed >> 32) * GROUP + index % GROUP;
        let slot = self.slots.get(place as usize & self.slots.len().wrapping_sub(1))?;
        Some((slot, (mixed as u32 >> TAG_SHIFT).max(1) << TAG_SHIFT))
    }

    /// Records that page `index` of the file with this key was evicted with this age, as eviction number
    /// `now`.
    pub fn insert(&self, file: usize, index: u64, age: Age, now: u64) {
        if let Some((slot, tag)) = self.place(file, index) {
            // Relaxed, here and below: a hint without other data.
            let age = u32::from(age.byte()) << TIME_BITS;
            slot.store(tag | age | ((now >> self.unit) as u32 % TIMES), Relaxed);
        }
    }

    /// Forgets the eviction of a page that is read again. Returns the age of the page and the number of
    /// evictions since then, or `None` if no eviction of the page is known.
    pub fn take(&self, file: usize, index: u64, now: u64) -> Option<(Age, u64)> {
        let (slot, tag) = self.place(file, index)?;
        let found = slot.load(Relaxed);
        if found >> TAG_SHIFT != tag >> TAG_SHIFT {
            return None;
        }
        slot.store(0, Relaxed);
        let units = ((now >> self.unit) as u32).wrapping_sub(found) % TIMES;
        let age = Age::of((found >> TIME_BITS) as u8 % Age::COUNT as u8);
        Some((age, u64::from(units) << self.unit))
    }
}

#[cfg(all(test, not(any(loom, shuttle, sim))))]
mod tests {
    use super::{Age, Ghosts, TIMES};

    const AGE: Age = Age::new(13);

    #[test]
    fn distance_is_the_number_of_evictions_since_then() {
        let ghosts = Ghosts::try_new(1 << 10).unwrap();
        ghosts.insert(0x1000, 7, AGE, 100);
        assert_eq!(ghosts.take(0x1000, 8, 130), None);
        assert_eq!(ghosts.take(0x2000, 7, 130), None);
        assert_eq!(ghosts.take(0x1000, 7, 130), Some((AGE, 30)));
        assert_eq!(ghosts.take(0x1000, 7, 130), None, "forgotten");
        // The times wrap.
        ghosts.insert(0x1000, 7, AGE, u64::from(TIMES) - 1);
        assert_eq!(ghosts.take(0x1000, 7, u64::from(TIMES) + 4), Some((AGE, 5)));
    }

    #[test]
    fn distances_of_a_large_memory_are_rounded_to_units() {
        let ghosts = Ghosts::try_new(1 << 22).unwrap();
        let unit = 1 << ghosts.unit;
        ghosts.insert(0x1000, 7, AGE, 5 * unit + 1);
        assert_eq!(ghosts.take(0x1000, 7, (3 << 22) + 5 * unit), Some((AGE, 3 << 22)));
    }

    #[test]
    fn most_evictions_of_half_a_memory_are_found() {
        let ghosts = Ghosts::try_new(1 << 12).unwrap();
        (0..1 << 10).for_each(|index| ghosts.insert(0x1000, index, AGE, index));
        let found = (0..1 << 10)
            .filter(|&index| ghosts.take(0x1000, index, 1 << 10) == Some((AGE, (1 << 10) - index)));
        assert!(found.count() > 700, "three quarters of the slots are left");
    }

    #[test]
    fn memory_without_frames_has_no_table() {
        let ghosts = Ghosts::try_new(0).unwrap();
        ghosts.insert(0x1000, 7, AGE, 1);
        assert_eq!(ghosts.take(0x1000, 7, 2), None);
    }
}
