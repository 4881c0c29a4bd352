//! The model: a sequential address space, one list of VMAs and one map from page numbers to pages.
//!
//! Why VMAs are kept and not derived from per-page attributes: boundaries have a history. Linux merges
//! only when an operation touches a boundary, and whether it may depends on the anon_vma of either side:
//! the object that collects a VMA's anonymous pages for reverse mapping, made by its first write fault
//! (or borrowed from a neighbour), copied by fork. So a VMA here carries an `anon` number, and whether it
//! came from a fork; everything a page holds is in `pages`, where absence means "not touched".
//!
//! Private pages are reference counted and copied when written ([`Rc::make_mut`]): that is all of fork's
//! copy-on-write. File pages live in the inode.
//!
//! Left out, and why: transparent huge pages (change no result; executors switch them off), overcommit
//! (the arena is smaller than any machine), residence of file pages (`mincore` reports those as resident
//! only to the page cache's liking; see [`crate::compare`]).

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

/// Bytes of a page.
type Bytes = [u8; PAGE as usize];
/// A call's value, or its errno.
type Res<T = u64> = Result<T, i32>;

/// A page of a process that is not simply the file's.
#[derive(Clone, Debug)]
enum Page {
    /// Anonymous memory that was only read: the shared page of zeros.
    Zero,
    /// A private page.
    Anon(Rc<Bytes>),
    /// A guard: every access is a fault.
    Guard,
}

/// The file behind a VMA. Two VMAs merge only with equal ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Backing {
    /// Private anonymous memory.
    Anon,
    /// A file, through this descriptor.
    File(FileId),
    /// Shared anonymous memory: an inode of its own.
    Shared(usize),
    /// What lies outside the arena.
    Outside,
}

/// One mapping.
#[derive(Clone, Debug)]
struct Vma {
    start: u64,
    end: u64,
    /// [`vmflag`] bits.
    flags: u32,
    /// Page offset in the file; for private anonymous memory the page number where it was first written.
    pgoff: u64,
    back: Backing,
    /// The anon_vma, if it has one.
    anon: Option<u32>,
    /// Its anon_vma chain is not singular: a fork's child has its parent's in it too.
    forked: bool,
}

impl Vma {
    fn pages(&self) -> u64 {
        (self.end - self.start) / PAGE
    }
    fn has(&self, flags: u32) -> bool {
        self.flags & flags != 0
    }
    /// The page offset that belongs to an address inside.
    fn pgoff_at(&self, addr: u64) -> u64 {
        self.pgoff.wrapping_add(addr.wrapping_sub(self.start) / PAGE)
    }
    /// The first address a mapping below may not reach: a stack keeps its gap.
    fn start_gap(&self, gap: u64) -> u64 {
        if self.has(vmflag::GROWSDOWN) { self.start.saturating_sub(gap * PAGE) } else { self.start }
    }
}

/// One process.
#[derive(Clone, Debug)]
struct Process {
    /// By address, not overlapping; the first and last stand for what is outside the arena.
    vmas: Vec<Vma>,
    pages: BTreeMap<u64, Page>,
    count: Counters,
    brk: u64,
    /// Flags of future mappings: locks, and whether equal pages may become one.
    def_flags: u32,
    /// What it denies itself of executable memory.
    mdwe: u64,
    limits: Limits,
    /// As the world's.
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
    /// Whether a call so far ran into one of the kernel's slips (see [`Quirks`]).
    pub fn met_quirk(&self) -> bool {
        self.met_quirk || self.procs.iter().flatten().any(|p| p.met_quirk)
    }

    /// A fresh model of that world.
    pub fn new(world: World) -> Model {
        let mut m = Model { world, procs: Vec::new(), inodes: Vec::new(), next_anon: 0, met_quirk: false };
        m.start();
        m
    }

    /// So many more mappings may be made.
    pub(crate) fn grow_limit(&mut self, by: i64) {
        self.world.max_map_count = self.world.max_map_count.wrapping_add_signed(by);
    }

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

    /// Indices of the living processes.
    pub fn living(&self) -> Vec<Proc> {
        (0..self.procs.len()).filter(|&i| self.procs[i].is_some()).map(|i| i as Proc).collect()
    }

    fn proc(&mut self, p: usize) -> &mut Process {
        self.procs[p].as_mut().expect("only living processes call")
    }
}

impl Counters {
    /// Counts `pages` of a mapping with these flags in (or, negative, out), `map_count` and `locked_vm`
    /// apart.
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

/// Rounds up to a page; wraps to 0 at the top as the kernel's macro does.
fn page_up(x: u64) -> u64 {
    x.wrapping_add(PAGE - 1) & !(PAGE - 1)
}

fn aligned(x: u64) -> bool {
    x.is_multiple_of(PAGE)
}

fn page_down(x: u64) -> u64 {
    x & !(PAGE - 1)
}
