//! The model: a sequential address space with one list of VMAs and one map from page numbers to pages.
//!
//! The model says what Linux does; nothing here may be copied from the engine, because the two are compared.
//! Each operation has a file, written for clarity and not for speed. `dispatch.rs` calls the operations, and
//! `merge.rs`, `munmap.rs`, `place.rs` and `fault.rs` have the parts that operations share. A new call is a
//! function in a file here and an arm in `dispatch.rs`. The order of checks in a file is that of the kernel:
//! it decides which errno a call returns. A mistake shows as a difference in `tests/differential.rs`, which
//! compares the model with the running kernel.
//!
//! VMAs are stored and not derived from per-page attributes, because boundaries have a history. Linux merges
//! only when an operation touches a boundary, and the merge depends on the anon_vma of either side. An
//! anon_vma is the object that collects a VMA's anonymous pages for reverse mapping. The first write fault
//! creates it (or borrows it from a neighbour), and fork copies it. So a VMA here carries an `anon` number,
//! and a flag that tells whether the VMA is from a fork. The contents of private pages are in `pages`; a page
//! that is not in the map was never touched.
//!
//! Private pages are reference counted and copied on write ([`Rc::make_mut`]). Both together implement the
//! copy-on-write of fork. File pages are in the inode.
//!
//! Not modelled: transparent huge pages (they change no result, and executors switch them off), overcommit
//! (the arena is smaller than the memory of any machine), and residence of file pages (the page cache decides
//! what `mincore` reports; see [`crate::compare`]).

mod brk;
mod dispatch;
mod fault;
mod file;
mod fork;
mod inode;
mod ksm;
mod madvise;
mod merge;
mod mlock;
mod mmap;
mod mprotect;
mod mremap;
mod munmap;
mod place;
mod seal;
mod sync;

use std::collections::BTreeMap;
use std::rc::Rc;

use crate::op::*;
use crate::world::{Quirks, World};
pub use fork::MAX_PROCS;
use inode::Inode;

/// The contents of a page.
type Bytes = [u8; PAGE as usize];
/// The value of a call, or its errno.
type Res<T = u64> = Result<T, i32>;

/// A page that belongs to the process and not to a file.
#[derive(Clone, Debug)]
enum Page {
    /// The shared page of zeroes: anonymous memory that was only read.
    Zero,
    /// A private page.
    Anon(Rc<Bytes>),
    /// A guard: every access faults.
    Guard,
}

/// The file behind a VMA. Two VMAs merge only if their files are equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Backing {
    /// Private anonymous memory.
    Anon,
    /// A file, through this descriptor.
    File(FileId),
    /// Shared anonymous memory: an inode of its own.
    Shared(usize),
    /// A mapping outside the arena.
    Outside,
}

/// One mapping.
#[derive(Clone, Debug)]
struct Vma {
    start: u64,
    end: u64,
    /// [`vmflag`] bits.
    flags: u32,
    /// Page offset in the file. For private anonymous memory, the page number of the address at which the
    /// memory was first written.
    pgoff: u64,
    back: Backing,
    /// The anon_vma, if the VMA has one.
    anon: Option<u32>,
    /// True if the VMA got its anon_vma in a fork. On Linux, the chain of such a VMA also contains the
    /// anon_vma of the parent. The longer chain prevents some merges.
    forked: bool,
}

impl Vma {
    fn pages(&self) -> u64 {
        (self.end - self.start) / PAGE
    }
    fn has(&self, flags: u32) -> bool {
        self.flags & flags != 0
    }
    /// Returns the page offset of an address in the VMA.
    fn pgoff_at(&self, addr: u64) -> u64 {
        self.pgoff.wrapping_add(addr.wrapping_sub(self.start) / PAGE)
    }
    /// Returns the highest address at which a mapping below this VMA may end. The gap below a stack stays
    /// free.
    fn start_gap(&self, gap: u64) -> u64 {
        if self.has(vmflag::GROWSDOWN) { self.start.saturating_sub(gap * PAGE) } else { self.start }
    }
}

/// One process.
#[derive(Clone, Debug)]
struct Process {
    /// VMAs by address, not overlapping. The first and the last represent the mappings outside the arena.
    vmas: Vec<Vma>,
    pages: BTreeMap<u64, Page>,
    count: Counters,
    brk: u64,
    /// Flags that future mappings get: locks, and the mark for merging equal pages.
    def_flags: u32,
    /// The bits of PR_SET_MDWE.
    mdwe: u64,
    limits: Limits,
    /// A copy of [`World::quirks`].
    quirks: Quirks,
    met_quirk: bool,
}

/// Soft limits, in pages.
#[derive(Clone, Copy, Debug)]
struct Limits {
    space: u64,
    data: u64,
    lock: u64,
    stack: u64,
}

/// The model of one [`World`].
#[derive(Clone, Debug)]
pub struct Model {
    world: World,
    procs: Vec<Option<Process>>,
    inodes: Vec<Inode>,
    next_anon: u32,
    met_quirk: bool,
}

impl Model {
    /// Returns true if a call so far met one of the kernel's quirks (see [`Quirks`]).
    pub fn met_quirk(&self) -> bool {
        self.met_quirk || self.procs.iter().flatten().any(|p| p.met_quirk)
    }

    /// Creates a model of that world.
    pub fn new(world: World) -> Model {
        let mut m = Model { world, procs: Vec::new(), inodes: Vec::new(), next_anon: 0, met_quirk: false };
        m.start();
        m
    }

    /// Raises the limit of mappings by this number, or lowers it if the number is negative.
    pub(crate) fn grow_limit(&mut self, by: i64) {
        self.world.max_map_count = self.world.max_map_count.wrapping_add_signed(by);
    }

    /// Sets the initial state of the world: one process with an empty arena, and the files.
    fn start(&mut self) {
        let w = &self.world;
        let outside = |start, end| Vma {
            start,
            end,
            flags: vmflag::SHARED | vmflag::MAYSHARE,
            pgoff: 0,
            back: Backing::Outside,
            anon: None,
            forked: false,
        };
        let limits = Limits { space: u64::MAX, data: u64::MAX, lock: 2048, stack: 2048 };
        let first = Process {
            vmas: vec![outside(w.min_addr, w.start), outside(w.end, w.task_size)],
            pages: BTreeMap::new(),
            count: w.outside,
            brk: w.heap,
            def_flags: 0,
            mdwe: 0,
            limits,
            quirks: w.quirks,
            met_quirk: false,
        };
        self.procs = vec![Some(first)];
        self.inodes = (0..World::INODES.len()).map(|i| Inode::initial(i as u8)).collect();
        self.next_anon = 0;
        self.met_quirk = false;
    }

    /// Returns the indices of the living processes.
    pub fn living(&self) -> Vec<Proc> {
        (0..self.procs.len()).filter(|&i| self.procs[i].is_some()).map(|i| i as Proc).collect()
    }

    /// Returns a living process.
    fn proc(&mut self, p: usize) -> &mut Process {
        self.procs[p].as_mut().expect("only living processes call")
    }
}

impl Counters {
    /// Adds `pages` pages of a mapping with these flags. A negative number is subtracted. Does not change
    /// `map_count` and `locked_vm`.
    fn add(&mut self, flags: u32, pages: i64) {
        self.total_vm += pages;
        if flags & (vmflag::EXEC | vmflag::WRITE | vmflag::GROWSDOWN) == vmflag::EXEC {
            return;
        }
        if flags & vmflag::GROWSDOWN != 0 {
            self.stack_vm += pages;
        } else if flags & (vmflag::WRITE | vmflag::SHARED) == vmflag::WRITE {
            self.data_vm += pages;
        }
    }
}

/// Rounds up to a page. Wraps to 0 at the top, as the kernel's macro does.
fn page_up(x: u64) -> u64 {
    x.wrapping_add(PAGE - 1) & !(PAGE - 1)
}

fn aligned(x: u64) -> bool {
    x.is_multiple_of(PAGE)
}

fn page_down(x: u64) -> u64 {
    x & !(PAGE - 1)
}
