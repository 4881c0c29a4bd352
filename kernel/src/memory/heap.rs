//! The kernel's own objects: sizes of powers of two from pages that are cut up, each processor with free
//! ones at hand; what is larger than half a page is a block of frames. Pages that were cut up stay so.

use crate::arch::cpu::{self, MAX_CPUS, PerCpu};
use crate::arch::{layout::direct, lock::SpinLock};
use crate::memory::frames;
use core::alloc::{GlobalAlloc, Layout};
use core::ptr;
use freehold::PAGE_SIZE;

const CLASSES: usize = 8;
const SMALLEST_SHIFT: u32 = 4;
const LARGEST: usize = 1 << (SMALLEST_SHIFT as usize + CLASSES - 1);
/// Bytes that a processor has at hand of a class before it gives half of them away.
const AT_HAND: usize = 4 * PAGE_SIZE as usize;

#[global_allocator]
static HEAP: Heap = Heap;

/// Free objects of each class that no processor has.
static SHARED: [SpinLock<List>; CLASSES] = [const { SpinLock::new(List::new()) }; CLASSES];

struct Heap;

/// A free object holds the next one's address.
struct List {
    first: *mut Free,
    count: usize,
}

struct Free {
    next: *mut Free,
}

// SAFETY: free objects are the list's.
unsafe impl Send for List {}

impl List {
    const fn new() -> Self {
        List { first: ptr::null_mut(), count: 0 }
    }

    #[inline]
    fn pop(&mut self) -> *mut u8 {
        let first = self.first;
        if !first.is_null() {
            // SAFETY: a free object of this list.
            self.first = unsafe { (*first).next };
            self.count -= 1;
        }
        first.cast()
    }

    /// # Safety
    ///
    /// The object is free and the caller's.
    #[inline]
    unsafe fn push(&mut self, object: *mut u8) {
        let object: *mut Free = object.cast();
        // SAFETY: by the caller's promise; objects are larger than this.
        unsafe { (*object).next = self.first };
        self.first = object;
        self.count += 1;
    }

    fn take_from(&mut self, other: &mut List, count: usize) {
        for _ in 0..count.min(other.count) {
            let object = other.pop();
            // SAFETY: just taken.
            unsafe { self.push(object) };
        }
    }
}

/// Free objects that a processor has at hand.
pub struct HeapCache([List; CLASSES]);

impl HeapCache {
    pub const fn new() -> Self {
        HeapCache([const { List::new() }; CLASSES])
    }

    #[inline(never)]
    fn refill(&mut self, class: usize) -> *mut u8 {
        let list = &mut self.0[class];
        let size = 1usize << (class as u32 + SMALLEST_SHIFT);
        list.take_from(&mut SHARED[class].lock(), PAGE_SIZE as usize / size);
        if list.count == 0 {
            let Some(frame) = frames::alloc(0) else { return ptr::null_mut() };
            let page: *mut u8 = direct(frame * PAGE_SIZE);
            for at in (0..PAGE_SIZE as usize).step_by(size).rev() {
                // SAFETY: parts of a page that is ours now.
                unsafe { list.push(page.add(at)) };
            }
        }
        list.pop()
    }

    #[inline(never)]
    fn give_away(&mut self, class: usize) {
        let list = &mut self.0[class];
        let half = list.count / 2;
        SHARED[class].lock().take_from(list, half);
    }
}

static CACHES: [PerCpu<HeapCache>; MAX_CPUS] = [const { PerCpu::new(HeapCache::new()) }; MAX_CPUS];

/// The class of a layout, or the order of a block.
#[inline]
fn class_of(layout: Layout) -> Result<usize, u32> {
    let size = layout.size().max(layout.align()).max(1 << SMALLEST_SHIFT).next_power_of_two();
    match size <= LARGEST {
        true => Ok((size.trailing_zeros() - SMALLEST_SHIFT) as usize),
        false => Err((size as u64).div_ceil(PAGE_SIZE).next_power_of_two().trailing_zeros()),
    }
}

// SAFETY: objects lie apart, each of its class's size and aligned to it; null where there is no memory.
unsafe impl GlobalAlloc for Heap {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        match class_of(layout) {
            Ok(class) => {
                // SAFETY: the processor's own; nothing sleeps or comes back here.
                let cache = unsafe { &mut *CACHES[cpu::number()].get() };
                match cache.0[class].pop() {
                    object if object.is_null() => cache.refill(class),
                    object => object,
                }
            }
            Err(order) => match frames::alloc(order) {
                Some(frame) => direct(frame * PAGE_SIZE),
                None => ptr::null_mut(),
            },
        }
    }

    #[inline]
    unsafe fn dealloc(&self, object: *mut u8, layout: Layout) {
        match class_of(layout) {
            Ok(class) => {
                // SAFETY: as in `alloc`; the object comes back.
                let cache = unsafe {
                    let cache = &mut *CACHES[cpu::number()].get();
                    cache.0[class].push(object);
                    cache
                };
                if cache.0[class].count << (class as u32 + SMALLEST_SHIFT) > AT_HAND {
                    cache.give_away(class);
                }
            }
            // SAFETY: came from there as this block.
            Err(order) => unsafe {
                frames::free((object as u64 - direct::<u8>(0) as u64) / PAGE_SIZE, order);
            },
        }
    }
}
