//! The kernel's heap, which is Rust's global allocator. Objects up to half a page have sizes of powers of two
//! (their *class*), are cut from pages, and are cached per CPU. Larger objects are blocks of frames.
//!
//! The free objects of a class that no CPU caches are in the lists of their pages. A page with free objects is
//! in the list of its class. Once all objects of a page are free, the page is returned to the frame allocator.
//! The first free object of a page contains the page's data ([`Head`]), and [`frames::heap_place`] says which
//! object that is.
//!
//! Interrupts are off, so the cache of a CPU needs no lock. The pages of each class in [`SHARED`] have a spin
//! lock, under which nothing allocates; the lock of the buddy system is taken under it. An allocation never
//! sleeps and may happen under a spin lock. It fails only if `frames.rs` has no suitable block left, even in the
//! reserve that programs do not get.
//!
//! If the allocation of a `Box`, an `Arc` or a collection fails, the kernel panics. `sched/charge.rs` says how
//! calls avoid that. The program `shortage.c` of the tests checks that memory is returned.

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
/// Maximum number of objects of a class, and of their bytes, that a CPU caches before it moves half of them to
/// their pages.
const AT_HAND: (usize, usize) = (128, 4 * PAGE_SIZE as usize);
/// Number of objects that a CPU takes from the pages of a class at a time, if the pages have so many.
const BATCH: usize = 32;
/// The number that means "no object" in [`Head`] and in [`frames::heap_place`].
const NO_OBJECT: u16 = u16::MAX;
/// The number that means "no page" in [`Head`]. Frame 0 is never free.
const NO_PAGE: u32 = 0;

#[global_allocator]
static HEAP: Heap = Heap;

/// The pages of each class that have free objects.
static SHARED: [SpinLock<Pages>; CLASSES] = [const { SpinLock::new(Pages { first: NO_PAGE }) }; CLASSES];

/// The global allocator. Its state is in [`SHARED`] and [`CACHES`].
struct Heap;

/// The contents of the first free object of a page: the data of the page. The other free objects have only a
/// `next`. An object is named by its offset in the page, in units of the smallest size.
#[repr(C)]
struct Head {
    /// The next free object of the page, or `NO_OBJECT`.
    next: u16,
    /// Number of free objects of the page.
    count: u16,
    /// The neighbours of the page in the list of its class, or `NO_PAGE`.
    next_page: u32,
    previous_page: u32,
}

/// The list of the pages of a class that have free objects.
///
/// # Invariants
///
/// [`frames::heap_place`] of a page in the list names its first free object, which has a `Head`. For every other
/// page the value is `NO_OBJECT`.
struct Pages {
    first: u32,
}

/// Returns the first free object of a page in a list.
///
/// # Safety
///
/// The caller holds the lock of the list.
unsafe fn head(page: u32) -> *mut Head {
    // SAFETY: by the caller's promise and the invariant of `Pages`.
    unsafe { object_at(page, *frames::heap_place(page.into())) }
}

/// Returns the address of an object.
fn object_at(page: u32, place: u16) -> *mut Head {
    direct(u64::from(page) * PAGE_SIZE + (u64::from(place) << SMALLEST_SHIFT))
}

/// Returns the page of an object, and the object's place in it.
fn place_of(object: *mut u8) -> (u32, u16) {
    let at = object as u64 - direct::<u8>(0) as u64;
    ((at / PAGE_SIZE) as u32, ((at % PAGE_SIZE) >> SMALLEST_SHIFT) as u16)
}

impl Pages {
    /// Makes an object free. If all objects of its page are free, returns the page, which is then in no list.
    ///
    /// # Safety
    ///
    /// The object has the class of the list, is free, and the caller owns it.
    unsafe fn put(&mut self, object: *mut u8, class: usize) -> Option<u32> {
        let (page, place) = place_of(object);
        let noted = frames::heap_place(page.into());
        // SAFETY: the lock of the list is held, and the object belongs to the caller. The invariant says which
        // objects have a `Head`.
        unsafe {
            let new = match *noted {
                NO_OBJECT => {
                    let next_page = core::mem::replace(&mut self.first, page);
                    if next_page != NO_PAGE {
                        (*head(next_page)).previous_page = page;
                    }
                    Head { next: NO_OBJECT, count: 1, next_page, previous_page: NO_PAGE }
                }
                first => {
                    let before = object_at(page, first).read();
                    Head { next: first, count: before.count + 1, ..before }
                }
            };
            let is_whole = usize::from(new.count) == PAGE_SIZE as usize / size_of_class(class);
            object_at(page, place).write(new);
            *noted = place;
            is_whole.then(|| {
                self.remove(page);
                page
            })
        }
    }

    /// Removes a page from the list.
    ///
    /// # Safety
    ///
    /// The page is in the list.
    unsafe fn remove(&mut self, page: u32) {
        // SAFETY: by the caller's promise and the invariant.
        unsafe {
            let Head { next_page, previous_page, .. } = head(page).read();
            match previous_page {
                NO_PAGE => self.first = next_page,
                _ => (*head(previous_page)).next_page = next_page,
            }
            if next_page != NO_PAGE {
                (*head(next_page)).previous_page = previous_page;
            }
            *frames::heap_place(page.into()) = NO_OBJECT;
        }
    }

    /// Takes a free object of the first page.
    fn take(&mut self) -> Option<*mut u8> {
        if self.first == NO_PAGE {
            return None;
        }
        let page = self.first;
        // SAFETY: the page is in the list, and the lock is held.
        unsafe {
            let object = head(page);
            let data = object.read();
            match data.next {
                NO_OBJECT => self.remove(page),
                next => {
                    let second = object_at(page, next);
                    // Only the first field of the second object was valid.
                    let rest = (*second).next;
                    second.write(Head { next: rest, count: data.count - 1, ..data });
                    *frames::heap_place(page.into()) = next;
                }
            }
            Some(object.cast())
        }
    }
}

/// A list of free objects. Each object stores the address of the next.
struct List {
    first: *mut Free,
    count: usize,
}

/// The contents of a free object that a CPU caches: the address of the next object in its list.
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
}

/// The free objects that a CPU caches.
pub struct HeapCache([List; CLASSES]);

impl HeapCache {
    pub const fn new() -> Self {
        HeapCache([const { List::new() }; CLASSES])
    }

    /// Takes objects from pages of their class, or cuts a new page, and returns one of them; null if memory runs
    /// out.
    #[inline(never)]
    fn refill(&mut self, class: usize) -> *mut u8 {
        let list = &mut self.0[class];
        let mut pages = SHARED[class].lock();
        for _ in 0..BATCH {
            let Some(object) = pages.take() else { break };
            // SAFETY: the object was just taken from its page.
            unsafe { list.push(object) };
        }
        drop(pages);
        if list.count == 0 {
            let Some(frame) = frames::alloc(0) else { return ptr::null_mut() };
            let page: *mut u8 = direct(frame * PAGE_SIZE);
            for at in (0..PAGE_SIZE as usize).step_by(size_of_class(class)).rev() {
                // SAFETY: the objects are disjoint parts of a page that was just allocated.
                unsafe { list.push(page.add(at)) };
            }
        }
        list.pop()
    }

    /// Moves half of the cached objects of a class to their pages.
    #[inline(never)]
    fn give_away(&mut self, class: usize) {
        let list = &mut self.0[class];
        let mut pages = SHARED[class].lock();
        for _ in 0..list.count / 2 {
            // SAFETY: the object was free in the cache of this CPU. A whole page has no object in use.
            unsafe {
                if let Some(page) = pages.put(list.pop(), class) {
                    frames::free(page.into(), 0);
                }
            }
        }
    }
}

/// The cached objects of each CPU.
static CACHES: [PerCpu<HeapCache>; MAX_CPUS] = [const { PerCpu::new(HeapCache::new()) }; MAX_CPUS];

/// Returns the size of the objects of a class.
fn size_of_class(class: usize) -> usize {
    1 << (class as u32 + SMALLEST_SHIFT)
}

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
                let (count, bytes) = AT_HAND;
                let cached = cache.0[class].count;
                if cached > count || cached * size_of_class(class) > bytes {
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
