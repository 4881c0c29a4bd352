//! The memory of the machine: free frames, the records of all frames, and the heap.
//!
//! ```text
//! kernel image | heap, 8 MiB | records of frames and tables | frames
//! ```
#![expect(unsafe_code, reason = "owns the memory of the machine")]

use crate::arch::{DIRECT, MEMORY_END};
use crate::lock::Lock;
use core::alloc::{GlobalAlloc, Layout};
use core::ptr::null_mut;
use freehold::PAGE_SIZE;
use freehold::platform::atomic::{AtomicU64, Ordering::Relaxed};
use freehold::platform::{Frame, Pfn, Table, TableMeta};

const HEAP: u64 = 8 << 20;

unsafe extern "C" {
    static kernel_end: u8;
}

/// Returns the address of the heap.
fn heap() -> u64 {
    (&raw const kernel_end as u64).next_multiple_of(PAGE_SIZE)
}

/// Returns the first frame that has a record, and the number of such frames.
fn frames() -> (u64, u64) {
    let records = heap() + HEAP - DIRECT;
    let count = (MEMORY_END - records) / (PAGE_SIZE + (size_of::<Frame>() + size_of::<TableMeta>()) as u64);
    // One frame less: the records of tables are aligned.
    (MEMORY_END / PAGE_SIZE - count + 1, count - 1)
}

/// Returns true if this is the number of a frame with a record.
pub fn has_frame(pfn: Pfn) -> bool {
    let (first, count) = frames();
    (first..first + count).contains(&pfn.get())
}

/// Returns the index of a frame in the arrays of records.
fn index(pfn: Pfn) -> usize {
    assert!(has_frame(pfn), "no frame {pfn:?}");
    (pfn.get() - frames().0) as usize
}

/// Returns the record of a frame.
pub fn frame(pfn: Pfn) -> &'static Frame {
    // SAFETY: `prepare` wrote one record for each frame. The heap ends at the address of the first record.
    unsafe { &*((heap() + HEAP) as *const Frame).add(index(pfn)) }
}

/// Returns the record of a table.
pub fn table_meta(pfn: Pfn) -> &'static TableMeta {
    let first = heap() + HEAP + frames().1 * size_of::<Frame>() as u64;
    let first = first.next_multiple_of(align_of::<TableMeta>() as u64);
    // SAFETY: as in `frame`; these records follow the records of frames.
    unsafe { &*(first as *const TableMeta).add(index(pfn)) }
}

/// Returns the memory of a frame as 512 atomic words.
pub fn words(pfn: Pfn) -> &'static Table {
    index(pfn);
    // SAFETY: the frame exists, and the kernel accesses the memory of frames by atomics only.
    unsafe { &*((DIRECT + pfn.get() * PAGE_SIZE) as *const Table) }
}

/// The number of the first free frame; the first word of a free frame has the number of the next one.
static FREE: Lock<u64> = Lock::new(0);
static FREE_FRAMES: AtomicU64 = AtomicU64::new(0);

/// Writes the records, and makes all frames free.
pub fn prepare() {
    let (first, count) = frames();
    for pfn in (first..first + count).rev().map(Pfn::new) {
        // SAFETY: the memory of the records has no other use, and no other CPU runs yet.
        unsafe {
            (&raw const *frame(pfn)).cast_mut().write(Frame::new());
            (&raw const *table_meta(pfn)).cast_mut().write(TableMeta::new());
        }
        free(pfn);
    }
}

/// Allocates a frame.
pub fn allocate() -> Option<Pfn> {
    FREE.with(|first| {
        let pfn = (*first != 0).then(|| Pfn::new(*first))?;
        *first = words(pfn).entry(0).swap(0, Relaxed);
        FREE_FRAMES.fetch_sub(1, Relaxed);
        Some(pfn)
    })
}

/// Frees a frame.
pub fn free(pfn: Pfn) {
    FREE.with(|first| {
        words(pfn).entry(0).store(*first, Relaxed);
        *first = pfn.get();
        FREE_FRAMES.fetch_add(1, Relaxed);
    });
}

/// Returns the number of free frames.
pub fn free_frames() -> u64 {
    FREE_FRAMES.load(Relaxed)
}

/// The heap: a list of free blocks for each power of two, and the part that was never used.
struct Heap {
    free: [*mut *mut u8; 24],
    used: u64,
}

// SAFETY: the lists are only accessed under the lock.
unsafe impl Send for Heap {}

struct Allocator(Lock<Heap>);

#[global_allocator]
static ALLOCATOR: Allocator = Allocator(Lock::new(Heap { free: [null_mut(); 24], used: 0 }));

/// Returns the power of two of the block for this layout.
fn order(layout: Layout) -> usize {
    layout.size().max(layout.align()).max(16).next_power_of_two().trailing_zeros() as usize
}

// SAFETY: a block has one owner from `alloc` to `dealloc`, and is aligned to its size.
unsafe impl GlobalAlloc for Allocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let order = order(layout);
        self.0.with(|heap| {
            let Some(first) = heap.free.get_mut(order) else { return null_mut() };
            if !first.is_null() {
                let block = *first;
                // SAFETY: a free block begins with the address of the next free block.
                *first = unsafe { *block }.cast();
                return block.cast();
            }
            let begin = (self::heap() + heap.used).next_multiple_of(1 << order);
            let used = begin + (1 << order) - self::heap();
            if used > HEAP {
                return null_mut();
            }
            heap.used = used;
            begin as *mut u8
        })
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        self.0.with(|heap| {
            let first = &mut heap.free[order(layout)];
            // SAFETY: the block is aligned, has at least 16 bytes, and has no owner any more.
            unsafe { *block.cast::<*mut u8>() = first.cast() };
            *first = block.cast();
        });
    }
}
