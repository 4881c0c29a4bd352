//! The kernel's heap, which is Rust's global allocator. Objects up to half a page have sizes of powers of two
//! (their *class*), are cut from pages, and are cached per CPU. Larger objects are blocks of frames. Pages
//! that were cut into objects are never returned to the frame allocator.
//!
//! Interrupts are off, so the cache of a CPU needs no lock. Each list in [`SHARED`] has a spin lock, under
//! which nothing allocates. An allocation never sleeps and may happen under a spin lock. It fails only if
//! `frames.rs` has no suitable block left, even in the reserve that programs do not get.
//!
//! If the allocation of a `Box`, an `Arc` or a collection fails, the kernel panics; `try_reserve` returns an
//! error instead. Code that allocates as much as a program demands should call `try_reserve` first.

use crate::arch::cpu::{self, MAX_CPUS, PerCpu};
use crate::arch::{layout::direct, lock::SpinLock};
use crate::memory::frames;
use core::alloc::{GlobalAlloc, Layout};
use core::ptr;
use freehold::PAGE_SIZE;

/// Number of classes: 16 bytes to 2 KiB.
const CLASSES: usize = 8;
/// Binary logarithm of the size of the objects of the smallest class.
const SMALLEST_SHIFT: u32 = 4;
/// Size of the objects of the largest class, in bytes.
const LARGEST: usize = 1 << (SMALLEST_SHIFT as usize + CLASSES - 1);
/// Bytes of one class that a CPU caches before it moves half of them to the shared list.
const AT_HAND: usize = 4 * PAGE_SIZE as usize;

#[global_allocator]
static HEAP: Heap = Heap;

/// Free objects of each class that no CPU caches.
static SHARED: [SpinLock<List>; CLASSES] = [const { SpinLock::new(List::new()) }; CLASSES];

/// The global allocator. Its state is in [`SHARED`] and [`CACHES`].
struct Heap;

/// A list of free objects. Each object stores the address of the next.
struct List {
    first: *mut Free,
    count: usize,
}

/// The contents of a free object: the address of the next object in its list.
struct Free {
    next: *mut Free,
}

// SAFETY: the list owns its free objects.
unsafe impl Send for List {}

impl List {
    const fn new() -> Self {
        List { first: ptr::null_mut(), count: 0 }
    }

    /// Removes and returns an object; null if the list is empty.
    #[inline]
    fn pop(&mut self) -> *mut u8 {
        let first = self.first;
        if !first.is_null() {
            // SAFETY: the head is a free object of this list.
            self.first = unsafe { (*first).next };
            self.count -= 1;
        }
        first.cast()
    }

    /// Adds an object to the list.
    ///
    /// # Safety
    ///
    /// The object is free, and the caller owns it.
    #[inline]
    unsafe fn push(&mut self, object: *mut u8) {
        let object: *mut Free = object.cast();
        // SAFETY: by the caller's promise. Every object is at least as large as a `Free`.
        unsafe { (*object).next = self.first };
        self.first = object;
        self.count += 1;
    }

    /// Moves up to `count` objects of another list to this list.
    fn take_from(&mut self, other: &mut List, count: usize) {
        for _ in 0..count.min(other.count) {
            let object = other.pop();
            // SAFETY: the object was just taken from the other list.
            unsafe { self.push(object) };
        }
    }
}

/// The free objects that a CPU caches.
pub struct HeapCache([List; CLASSES]);

impl HeapCache {
    pub const fn new() -> Self {
        HeapCache([const { List::new() }; CLASSES])
    }

    /// Takes objects from the shared list, or cuts a new page, and returns one of them; null if memory runs
    /// out.
    #[inline(never)]
    fn refill(&mut self, class: usize) -> *mut u8 {
        let list = &mut self.0[class];
        let size = 1usize << (class as u32 + SMALLEST_SHIFT);
        list.take_from(&mut SHARED[class].lock(), PAGE_SIZE as usize / size);
        if list.count == 0 {
            let Some(frame) = frames::alloc(0) else { return ptr::null_mut() };
            let page: *mut u8 = direct(frame * PAGE_SIZE);
            for at in (0..PAGE_SIZE as usize).step_by(size).rev() {
                // SAFETY: the objects are disjoint parts of a page that was just allocated.
                unsafe { list.push(page.add(at)) };
            }
        }
        list.pop()
    }

    /// Moves half of the cached objects of a class to the shared list.
    #[inline(never)]
    fn give_away(&mut self, class: usize) {
        let list = &mut self.0[class];
        let half = list.count / 2;
        SHARED[class].lock().take_from(list, half);
    }
}

/// The cached objects of each CPU.
static CACHES: [PerCpu<HeapCache>; MAX_CPUS] = [const { PerCpu::new(HeapCache::new()) }; MAX_CPUS];

/// Returns the class of a layout, or the order of a block if the layout is larger than all classes.
#[inline]
fn class_of(layout: Layout) -> Result<usize, u32> {
    let size = layout.size().max(layout.align()).max(1 << SMALLEST_SHIFT).next_power_of_two();
    match size <= LARGEST {
        true => Ok((size.trailing_zeros() - SMALLEST_SHIFT) as usize),
        false => Err((size as u64).div_ceil(PAGE_SIZE).next_power_of_two().trailing_zeros()),
    }
}

// SAFETY: objects are disjoint, have the size of their class and are aligned to it. A null pointer means that
// memory ran out.
unsafe impl GlobalAlloc for Heap {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        match class_of(layout) {
            Ok(class) => {
                // SAFETY: only this CPU uses the cache, and nothing here sleeps or allocates recursively.
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
                // SAFETY: as in `alloc`. The object came from this heap, by `dealloc`'s contract.
                let cache = unsafe {
                    let cache = &mut *CACHES[cpu::number()].get();
                    cache.0[class].push(object);
                    cache
                };
                if cache.0[class].count << (class as u32 + SMALLEST_SHIFT) > AT_HAND {
                    cache.give_away(class);
                }
            }
            // SAFETY: the object came from `frames::alloc` as a block of this order.
            Err(order) => unsafe {
                frames::free((object as u64 - direct::<u8>(0) as u64) / PAGE_SIZE, order);
            },
        }
    }
}
