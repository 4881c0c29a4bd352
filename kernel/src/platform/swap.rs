//! The swap device of the kernel, `/dev/zram0`: it compresses pages and keeps them in the kernel's heap, as
//! Linux's zram does. Option `swap=MIB` makes it; without the option there is no swap.
//!
//! A page that does not become smaller is stored as it is. The memory of stored pages is charged to no process:
//! the pages themselves are counted as swapped pages of their processes, and the size of the device limits them.
//! A write fails if little of the kernel's reserve is left ([`LEAST_FREE`]); the page then stays in its frame,
//! and its slot is lost. `calls/swap.rs` has swapon and swapoff, `process/shortage.rs` calls reclaim. The program
//! `swap.c` of the tests checks this file.

use crate::arch::cpu;
use crate::arch::lock::SpinLock;
use crate::arch::preempt::preempt_point;
use crate::memory::frames;
use crate::options;
use crate::platform::{Machine, engine};
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use freehold::PAGE_SIZE;
use freehold::error::{Errno, IoError};
use freehold::platform::{Pfn, Platform};
use freehold::swap::{SwapDevice, SwapId, SwapRead, SwapUsage, SwapWrite};
use lz4_flex::block::{CompressTable, compress_into_with_table, decompress_into, get_maximum_output_size};

/// The name of the device.
pub const NAME: &str = "/dev/zram0";
/// The priority of the device unless swapon sets one: that of Linux's first device.
pub const USUAL_PRIORITY: i16 = -2;
/// Bytes of a page.
const PAGE: usize = PAGE_SIZE as usize;
/// Number of slots under one lock.
const PART: usize = 128;
/// Number of free frames below which no page is stored.
const LEAST_FREE: u64 = 128;

/// The device, if it is in use.
static DEVICE: SpinLock<Option<SwapId>> = SpinLock::new(None);

/// Number of pages that were read from the device and written to it since the start.
static PAGES_IN: AtomicU64 = AtomicU64::new(0);
static PAGES_OUT: AtomicU64 = AtomicU64::new(0);

/// Returns the number of pages that were read from swap and written to it since the start.
pub fn pages_in_and_out() -> [u64; 2] {
    // Relaxed, also where they are written: statistics.
    [&PAGES_IN, &PAGES_OUT].map(|pages| pages.load(Relaxed))
}

/// The contents of some slots.
type Part = SpinLock<Vec<Option<Box<[u8]>>>>;

/// Memory of a CPU for the compressor, which must not allocate while memory is short.
struct Buffers {
    page: Vec<u8>,
    packed: Vec<u8>,
    /// One table.
    tables: Vec<CompressTable>,
}

/// Returns a list of `count` elements.
fn list<T>(count: usize, make: impl FnMut() -> Result<T, Errno>) -> Result<Vec<T>, Errno> {
    let mut list = Vec::new();
    list.try_reserve_exact(count).map_err(|_| Errno::ENOMEM)?;
    for element in core::iter::repeat_with(make).take(count) {
        list.push(element?);
    }
    Ok(list)
}

/// A device of compressed pages.
struct Compressed {
    parts: Vec<Part>,
    /// The buffers of each CPU. Only this CPU locks them, and a thread keeps its CPU meanwhile.
    cpus: Vec<SpinLock<Buffers>>,
}

impl Compressed {
    /// Creates a device without contents.
    fn new(slots: u64) -> Result<Self, Errno> {
        let buffers = || {
            Ok(SpinLock::new(Buffers {
                page: list(PAGE, || Ok(0))?,
                packed: list(get_maximum_output_size(PAGE), || Ok(0))?,
                tables: list(1, || Ok(CompressTable::small()))?,
            }))
        };
        let part = || Ok(SpinLock::new(list(PART, || Ok(None))?));
        Ok(Compressed { parts: list(slots as usize / PART, part)?, cpus: list(cpu::count(), buffers)? })
    }

    /// Calls `f` with the contents of a slot.
    fn with<R>(&self, slot: u64, f: impl FnOnce(&mut Option<Box<[u8]>>) -> R) -> R {
        f(&mut self.parts[slot as usize / PART].lock()[slot as usize % PART])
    }

    /// Stores the page of a frame.
    fn write_slot(&self, slot: u64, frame: Pfn) -> Result<(), IoError> {
        if frames::free_count() < LEAST_FREE {
            return Err(IoError);
        }
        let mut buffers = self.cpus[cpu::number()].lock();
        let Buffers { page, packed, tables } = &mut *buffers;
        // Programs may change the frame meanwhile, so it is read once.
        Machine.read_frame(frame, 0, page);
        let contents = match compress_into_with_table(page, packed, &mut tables[0]) {
            Ok(len) if len < PAGE => &packed[..len],
            _ => &page[..],
        };
        let mut stored = Vec::new();
        stored.try_reserve_exact(contents.len()).map_err(|_| IoError)?;
        stored.extend_from_slice(contents);
        self.with(slot, |place| *place = Some(stored.into_boxed_slice()));
        Ok(())
    }

    /// Fills a frame with the page of a slot.
    fn read_slot(&self, slot: u64, frame: Pfn) -> Result<(), IoError> {
        let mut buffers = self.cpus[cpu::number()].lock();
        let page = &mut buffers.page;
        self.with(slot, |place| match place.as_deref() {
            Some(contents) if contents.len() == PAGE => {
                page.copy_from_slice(contents);
                Ok(())
            }
            Some(contents) => match decompress_into(contents, page) {
                Ok(PAGE) => Ok(()),
                _ => Err(IoError),
            },
            None => Err(IoError),
        })?;
        Machine.write_frame(frame, 0, page);
        Ok(())
    }
}

impl SwapDevice<Machine> for Compressed {
    fn slots(&self) -> u64 {
        (self.parts.len() * PART) as u64
    }

    fn read(&self, mut request: SwapRead<Machine>) {
        while let Some((slot, frame)) = request.next_page() {
            let read = self.read_slot(slot, frame);
            PAGES_IN.fetch_add(1, Relaxed);
            request.complete(slot, read);
            preempt_point();
        }
    }

    fn write(&self, mut request: SwapWrite<Machine>) {
        while let Some((slot, frame)) = request.next_page() {
            let written = self.write_slot(slot, frame);
            PAGES_OUT.fetch_add(1, Relaxed);
            request.complete(slot, written);
            preempt_point();
        }
    }

    fn discard(&self, slot: u64) {
        let contents = self.with(slot, Option::take);
        drop(contents);
    }
}

/// Makes the device of the option `swap` and adds it to the engine. Does nothing without the option.
///
/// # Errors
///
/// Fails with EBUSY if the device is in use, EINVAL if the option is missing, or ENOMEM.
pub fn on(priority: i16) -> Result<(), Errno> {
    let slots = options::swap_mib() * (1 << 20) / PAGE_SIZE;
    if slots == 0 {
        return Err(Errno::EINVAL);
    }
    if DEVICE.lock().is_some() {
        return Err(Errno::EBUSY);
    }
    let id = engine().swap_on(Compressed::new(slots)?, priority).map_err(|error| error.errno())?;
    *DEVICE.lock() = Some(id);
    Ok(())
}

/// Makes another device, with this number of slots, which is not in use.
pub fn another(slots: u64) -> Result<impl SwapDevice<Machine>, Errno> {
    Compressed::new(slots)
}

/// Returns the device that is in use.
pub fn device() -> Option<SwapId> {
    *DEVICE.lock()
}

/// Records that the device is not in use any more.
pub fn removed() {
    *DEVICE.lock() = None;
}

/// Returns the numbers of slots of the device that is in use.
pub fn usage() -> Option<SwapUsage> {
    engine().swap_usage(device()?)
}
