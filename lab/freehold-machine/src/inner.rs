//! The machine's state, which all its handles share, and the allocation of frames and tables.
//!
//! `machine.rs`, `cpu.rs` and `mmu.rs` hold references to [`Inner`]. Each part has its own synchronisation:
//! pools, CPUs and lists have locks, records and table memory consist of atomics, and all other parts never
//! change once the machine is built. Frames and tables are freed in a fixed order: the pool retires the
//! number, the oracles (`oracle.rs`) check and poison it, and the pool makes it available. An allocation
//! first checks whether a failure is injected. When the allocation has taken a number, an oracle checks the
//! poison of that number. `tests/memory.rs` and `tests/oracles.rs` test both orders. A new part of the
//! machine is a field of [`Inner`], with a lock or atomics of its own if it changes.

use crate::bitmap::Bitmap;
use crate::charges::Charges;
use crate::config::{MachineConfig, Memory};
use crate::contents::Page;
use crate::cpu_shared::CpuShared;
use crate::host::{self, LazyArray, Lock};
use crate::kernel::Kernel;
use crate::machine::MemoryShort;
use crate::oracle;
use crate::pool::Pool;
use crate::shadow::Translations;
use crate::space_slot::SpaceSlot;
use crate::tlb::SpaceTag;
use freehold::platform::Frame;
use freehold_kit::account::{Account, Stock};
use freehold_pagetable::{Format, PAGE_SIZE, Pfn, Table, TableMeta};
use std::io;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

/// Number of the first frame. The number is not 0, so that an uninitialised number is not a frame, and it is
/// aligned for the largest leaf.
const FRAME_BASE: u64 = 1 << 18;
/// Number of the first table. The number is far from the numbers of frames, so that frames and tables are
/// never confused. Every format has enough bits for the number.
const TABLE_BASE: u64 = 1 << if PAGE_SIZE == 4096 { 35 } else { 31 };

/// Number of the next machine of this process. The number distinguishes a thread's CPU from CPUs of other
/// machines.
static MACHINES: AtomicU64 = AtomicU64::new(1);

/// The state of a machine whose page tables have the format `F`.
pub(crate) struct Inner<F: Format> {
    pub(crate) id: u64,
    pub(crate) config: MachineConfig,
    pub(crate) frames: Pool,
    frame_records: LazyArray<Frame>,
    /// Contents of the frames, by index. `None` for phantom memory.
    contents: Option<LazyArray<Page>>,
    /// 1 for frames that the kernel has written to and not published to instruction fetches, by index.
    /// `None` if the format does not ask for it.
    unpublished: Option<LazyArray<AtomicU64>>,
    pub(crate) tables: Pool,
    table_memory: LazyArray<Table>,
    table_records: LazyArray<TableMeta>,
    /// The slots of `space_slots` that belong to a space.
    pub(crate) spaces: Lock<Bitmap>,
    pub(crate) space_slots: LazyArray<SpaceSlot>,
    pub(crate) cpus: Box<[CpuShared]>,
    flushes: Box<[FlushCounts]>,
    /// Notifications of lost pages that `take_lost_pages` has not returned yet.
    pub(crate) lost_pages: Lock<Vec<(Pfn, u64)>>,
    /// The translations of devices; see `shadow.rs`.
    pub(crate) devices: Lock<Vec<Weak<Lock<Translations>>>>,
    /// True if a device was ever attached.
    pub(crate) has_devices: AtomicBool,
    /// Function that answers `Platform::memory_short`. Without a function the answer is `Fail`.
    pub(crate) memory_short: Lock<Option<Arc<MemoryShort<F>>>>,
    /// The owners of charged frames.
    pub(crate) charges: Charges,
    /// True if pages are charged: with oracles, or with an account.
    pub(crate) charges_pages: bool,
    /// The account of all pages, if the configuration has one.
    pub(crate) account: Option<Box<Account<{ host::MAX_CPUS }>>>,
    /// The kernel's half of every root table, if the machine has one.
    pub(crate) kernel: Option<Kernel>,
    format: PhantomData<F>,
}

/// Counts of the flushes that threads request under one number of `with_cpu`. Only the thread that is inside
/// `with_cpu` with that number writes the counts.
#[derive(Debug, Default)]
#[repr(align(128))]
struct FlushCounts {
    range: AtomicU64,
    all: AtomicU64,
    tables: AtomicU64,
}

/// The kinds of flushes that are counted separately: of a range, or of a whole space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FlushKind {
    Range,
    All,
}

impl<F: Format> Inner<F> {
    pub(crate) fn new(config: MachineConfig) -> io::Result<Self> {
        assert!(
            (1..=MachineConfig::MAX_CPUS).contains(&config.cpus),
            "1 to {} CPUs",
            MachineConfig::MAX_CPUS
        );
        host::set_cpus(config.cpus);
        let (bytes, backed) = match config.memory {
            Memory::Backed { bytes } => (bytes, true),
            Memory::Phantom { bytes } => (bytes, false),
        };
        let frames = usize::try_from(bytes / PAGE_SIZE).map_err(|_| io::ErrorKind::OutOfMemory)?;
        let tables =
            usize::try_from(config.table_bytes / PAGE_SIZE).map_err(|_| io::ErrorKind::OutOfMemory)?;
        let end = TABLE_BASE + tables as u64;
        if frames == 0 || tables == 0 || FRAME_BASE + frames as u64 > TABLE_BASE || end >> F::PFN_BITS != 0 {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let dense = !config.oracles;
        let mut inner = Inner {
            // Relaxed: the number only has to be unique.
            id: MACHINES.fetch_add(1, Ordering::Relaxed),
            config,
            frames: Pool::new("frame", FRAME_BASE, frames, config.oracles)?,
            frame_records: LazyArray::new(frames, dense)?,
            contents: if backed { Some(LazyArray::new(frames, false)?) } else { None },
            unpublished: match F::COHERENT_FETCH || !backed {
                true => None,
                false => Some(LazyArray::new(frames, false)?),
            },
            tables: Pool::new("page table", TABLE_BASE, tables, config.oracles)?,
            table_memory: LazyArray::new(tables, dense)?,
            table_records: LazyArray::new(tables, dense)?,
            spaces: Lock::new(Bitmap::new(SpaceTag::COUNT)),
            space_slots: LazyArray::new(SpaceTag::COUNT, false)?,
            cpus: (0..config.cpus).map(|_| CpuShared::new(config.pkeys)).collect(),
            flushes: (0..host::MAX_CPUS).map(|_| FlushCounts::default()).collect(),
            lost_pages: Lock::new(Vec::new()),
            devices: Lock::new(Vec::new()),
            has_devices: AtomicBool::new(false),
            memory_short: Lock::new(None),
            charges: Charges::new(frames, tables, config.oracles)?,
            charges_pages: config.oracles || config.account.is_some(),
            account: config
                .account
                .map(|limit| Box::new(Account::new(limit, std::array::from_fn(|_| Stock::new())))),
            kernel: None,
            format: PhantomData,
        };
        if config.kernel_half {
            inner.kernel = Some(Kernel::new(&inner).ok_or(io::ErrorKind::OutOfMemory)?);
        }
        Ok(inner)
    }

    /// Notes that the kernel has written to a frame, or has published its contents to instruction fetches.
    pub(crate) fn set_published(&self, pfn: Pfn, published: bool) {
        if let Some(word) = self.unpublished.as_ref().and_then(|words| words.get(self.frames.index_of(pfn))) {
            // Relaxed: the release of the entry that permits fetches orders this store.
            word.store(u64::from(!published), Ordering::Relaxed);
        }
    }

    /// Returns true if instruction fetches may find older contents of the frame.
    pub(crate) fn is_unpublished(&self, pfn: Pfn) -> bool {
        let word = self.unpublished.as_ref().and_then(|words| words.get(self.frames.index_of(pfn)));
        word.is_some_and(|word| word.load(Ordering::Relaxed) != 0)
    }

    /// The number of the first frame.
    pub(crate) fn first_frame(&self) -> Pfn {
        Pfn::new(FRAME_BASE)
    }

    /// Returns the CPU of this machine that the calling thread runs on.
    #[inline]
    pub(crate) fn current_cpu(&self) -> Option<usize> {
        let cpu = host::local(|local| local.cpu())?;
        (cpu.machine == self.id).then_some(cpu.number)
    }

    /// Returns the engine's record of a frame. Panics if this machine has no such frame.
    #[inline]
    pub(crate) fn frame_record(&self, pfn: Pfn) -> &Frame {
        // The array is as long as the pool, so an offset within the array is also within the pool.
        self.frame_records.get(self.frames.offset(pfn)).unwrap_or_else(|| self.frames.no_such(pfn))
    }

    /// Returns the memory of a table. Panics if this machine has no such table.
    #[inline]
    pub(crate) fn table(&self, pfn: Pfn) -> &Table {
        // The array is as long as the pool, so an offset within the array is also within the pool.
        self.table_memory.get(self.tables.offset(pfn)).unwrap_or_else(|| self.tables.no_such(pfn))
    }

    /// Returns the engine's record of a table. Panics if this machine has no such table.
    #[inline]
    pub(crate) fn table_record(&self, pfn: Pfn) -> &TableMeta {
        // The array is as long as the pool, so an offset within the array is also within the pool.
        self.table_records.get(self.tables.offset(pfn)).unwrap_or_else(|| self.tables.no_such(pfn))
    }

    /// Returns true if frames have contents. Frames of phantom memory have no contents.
    pub(crate) fn has_contents(&self) -> bool {
        self.contents.is_some()
    }

    /// Returns the contents of a frame; `None` for phantom memory.
    #[inline]
    pub(crate) fn page(&self, pfn: Pfn) -> Option<&Page> {
        let contents = self.contents.as_ref()?;
        contents.get(self.frames.index_of(pfn))
    }

    /// Allocates up to `out.len()` frames, each on its own. Returns the number of allocated frames.
    pub(crate) fn alloc_frames(&self, out: &mut [Pfn]) -> usize {
        if host::local(|local| local.allocation_fails()) {
            return 0;
        }
        let got = self.frames.take(out);
        if self.config.oracles {
            out[..got].iter().for_each(|pfn| oracle::frame_handed_out(self, *pfn));
        }
        got
    }

    /// Allocates up to `out.len()` blocks of 2^`order` consecutive frames, aligned to their size. Returns the
    /// number of allocated blocks.
    pub(crate) fn alloc_blocks(&self, order: u32, out: &mut [Pfn]) -> usize {
        let block = || self.alloc_in_one_piece(1 << order, Pool::take_run);
        out.iter_mut().map_while(|out| block().map(|first| *out = first)).count()
    }

    /// Allocates `frames` consecutive frames, without alignment. Returns the first.
    pub(crate) fn alloc_run(&self, frames: u64) -> Option<Pfn> {
        self.alloc_in_one_piece(frames, Pool::take_run_anywhere)
    }

    /// Takes `frames` consecutive frames with `take`. Returns the first.
    fn alloc_in_one_piece(&self, frames: u64, take: impl FnOnce(&Pool, usize) -> Option<Pfn>) -> Option<Pfn> {
        if host::local(|local| local.allocation_fails()) {
            return None;
        }
        let first = take(&self.frames, usize::try_from(frames).ok()?)?;
        if self.config.oracles {
            (0..frames).for_each(|n| oracle::frame_handed_out(self, first.add(n)));
        }
        Some(first)
    }

    /// Frees frames: retires the numbers, lets the oracles check and poison the frames, and makes the numbers
    /// available.
    pub(crate) fn free_frames(&self, frames: &[Pfn]) {
        if frames.is_empty() {
            return;
        }
        self.frames.retire(frames);
        if self.config.oracles {
            oracle::frames_freed(self, frames);
        }
        self.frames.give(frames);
    }

    /// Allocates a table. Returns `None` if there is no free table, or if a failure is injected.
    pub(crate) fn alloc_table(&self) -> Option<Pfn> {
        if host::local(|local| local.allocation_fails()) {
            return None;
        }
        let mut out = [Pfn::new(0)];
        if self.tables.take(&mut out) == 0 {
            return None;
        }
        if self.config.oracles {
            oracle::table_handed_out(self, out[0]);
        }
        Some(out[0])
    }

    /// Frees a table in the same order as `free_frames`, and resets the record of the table.
    pub(crate) fn free_table(&self, table: Pfn) {
        self.uncharge_table(table);
        self.tables.retire(&[table]);
        if self.config.oracles {
            oracle::table_freed(self, table);
        }
        self.table_record(table).reset();
        self.tables.give(&[table]);
    }

    /// Counts a requested flush. `tables_freed` says that the flush reported freed tables.
    pub(crate) fn count_flush(&self, kind: FlushKind, tables_freed: bool) {
        host::with_cpu(|number| {
            let counts = &self.flushes[number];
            let bump = |count: &AtomicU64| {
                // Relaxed, and no read-modify-write: each count has one writer at a time; see `FlushCounts`.
                count.store(count.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
            };
            match kind {
                FlushKind::Range => bump(&counts.range),
                FlushKind::All => bump(&counts.all),
            }
            if tables_freed {
                bump(&counts.tables);
            }
        });
    }

    /// Returns three counts of requested flushes: flushes of ranges, flushes of whole spaces, and flushes of
    /// either kind that reported freed tables.
    pub(crate) fn flush_counts(&self) -> [u64; 3] {
        let sum = |of: fn(&FlushCounts) -> &AtomicU64| {
            self.flushes.iter().map(|counts| of(counts).load(Ordering::Relaxed)).sum()
        };
        [sum(|counts| &counts.range), sum(|counts| &counts.all), sum(|counts| &counts.tables)]
    }
}

impl<F: Format> Drop for Inner<F> {
    fn drop(&mut self) {
        // Deferred functions that wait for a grace period may still point into this memory.
        if host::may_wait_for_grace() {
            host::rcu_barrier();
        }
    }
}
