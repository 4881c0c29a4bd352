//! The checks of a platform through the engine: memory, charges, a shortage, a pager that completes its
//! requests later, and a listener.

use super::kernel::{Kernel, NotRun};
use super::later::Later;
use super::platform::{AT, AllFrames};
use super::report::{Report, require};
use super::suite::{Checked, Stage, Stop, Suite, not_run, run_two};
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec;
use core::cell::Cell;
use core::fmt;
use freehold::counted::Counted;
use freehold::engine::Engine;
use freehold::fault::{Access, FaultError};
use freehold::file::{IoError, Mapping};
use freehold::platform::atomic::{AtomicU64, Ordering::SeqCst};
use freehold::platform::{Flush, Format, Platform, VirtAddr};
use freehold::remote::AccessMode;
use freehold::space::{AddressSpace, Listener, MapFlags, Prot, Refused, SpaceConfig};
use freehold::{PAGE_SIZE, UserRange};

const RW: Prot = Prot::READ.union(Prot::WRITE);
const ANON: MapFlags = MapFlags::PRIVATE.union(MapFlags::ANONYMOUS);
/// Number of pages of most mappings.
const PAGES: u64 = 16;

/// Checks a platform through an engine that runs on it.
///
/// | check | the platform | needs |
/// | --- | --- | --- |
/// | `engine::memory` | keeps the contents of private memory, also of a parent and its child, and frees it | |
/// | `engine::accesses` | lets a program use the pages that a fault maps, and no page that was unmapped | accesses |
/// | `engine::charges` | counts a charge for each page, and none after the end of the memory | [`Kernel::charged`] |
/// | `engine::shortage` | lets an operation without memory fail or go on, and go on after memory is free | [`Kernel::may_use_all_memory`] |
/// | `engine::pager` | lets a task sleep until another task completes its request to a pager | two tasks |
/// | `engine::listener` | delivers the changes of a space to a listener, before memory is freed | |
///
/// Call this function in a task that may sleep and holds no lock. [`platform`](super::platform()) should have
/// passed before: the engine relies on the contract, and panics or hangs if the platform breaks it.
pub fn engine<P: Platform, K: Kernel<P>>(engine: &Counted<Engine<P>>, kernel: &K) -> Report {
    let mut suite = Suite::new(kernel);
    suite.check("engine::memory", || memory(engine));
    suite.check("engine::accesses", || accesses(engine, kernel));
    suite.check("engine::charges", || charges(engine, kernel));
    suite.check("engine::shortage", || shortage(engine, kernel));
    suite.check("engine::pager", || pager(engine, kernel));
    suite.check("engine::listener", || listener(engine));
    suite.finish()
}

/// Returns the mistake that a call of the engine failed.
pub(super) fn failed<E: fmt::Display>(call: &str) -> impl FnOnce(E) -> Stop + '_ {
    move |error| Stop::Mistake(alloc::format!("{call} fails: {error}"))
}

pub(super) fn new_space<P: Platform>(engine: &Counted<Engine<P>>) -> Result<Counted<AddressSpace<P>>, Stop> {
    AddressSpace::new(engine, &SpaceConfig::new()).map_err(failed("AddressSpace::new"))
}

/// Maps private memory.
pub(super) fn map<P: Platform>(space: &AddressSpace<P>, pages: u64) -> Result<u64, Stop> {
    space.mmap(0, pages * PAGE_SIZE, RW, ANON, None, 0).map_err(failed("mmap"))
}

/// Stores a value in the first word of a page.
pub(super) fn put<P: Platform>(space: &AddressSpace<P>, at: u64, value: u64) -> Checked {
    let written = space.write_memory(at, &value.to_ne_bytes(), AccessMode::Plain);
    written.map(drop).map_err(failed("write_memory"))
}

/// Checks the first word of a page.
pub(super) fn has<P: Platform>(space: &AddressSpace<P>, at: u64, value: u64, whose: &str) -> Checked {
    let mut bytes = [0; 8];
    space.read_memory(at, &mut bytes, AccessMode::Plain).map_err(failed("read_memory"))?;
    let found = u64::from_ne_bytes(bytes);
    require!(found == value, "the page at {at:#x} of {whose} has the value {found} instead of {value}");
    Ok(())
}

fn memory<P: Platform>(engine: &Counted<Engine<P>>) -> Checked {
    let space = new_space(engine)?;
    // The second round gets the frames of the first.
    for round in 0..2 {
        let at = map(&space, PAGES)?;
        let page = |n: u64| at + n * PAGE_SIZE;
        (0..PAGES).try_for_each(|n| has(&space, page(n), 0, "new memory"))?;
        (0..PAGES).try_for_each(|n| put(&space, page(n), 100 * round + n + 1))?;
        (0..PAGES).try_for_each(|n| has(&space, page(n), 100 * round + n + 1, "a space"))?;
        let child = space.fork().map_err(failed("fork"))?;
        put(&space, page(0), 7)?;
        put(&child, page(1), 8)?;
        has(&child, page(0), 100 * round + 1, "a child, whose parent has stored to the page")?;
        has(&space, page(1), 100 * round + 2, "a parent, whose child has stored to the page")?;
        has(&child, page(2), 100 * round + 3, "a child")?;
        child.check();
        drop(child);
        space.munmap(at, PAGES * PAGE_SIZE).map_err(failed("munmap"))?;
        let left = space.rss().total();
        require!(left == 0, "all memory is unmapped, but {left} pages are resident");
        space.check();
    }
    Ok(())
}

/// Loads a word as a program, and handles its faults.
fn load<P: Platform, K: Kernel<P>>(
    kernel: &K,
    space: &AddressSpace<P>,
    at: u64,
) -> Result<Result<u64, FaultError>, Stop> {
    for _ in 0..16 {
        if let Some(value) = kernel.load(space.engine().platform(), space.mmu(), at)? {
            return Ok(Ok(value));
        }
        if let Err(error) = space.handle_fault(at, Access::READ) {
            return Ok(Err(error));
        }
        if P::Format::CACHES_INVALID {
            // As a kernel does after a fault.
            space.engine().platform().flush(space.mmu(), &Flush::page(VirtAddr::new(at)));
        }
    }
    Err(Stop::Mistake(alloc::format!(
        "a load from {at:#x} faults again and again, although handle_fault succeeds"
    )))
}

fn accesses<P: Platform, K: Kernel<P>>(engine: &Counted<Engine<P>>, kernel: &K) -> Checked {
    let space = new_space(engine)?;
    let child = Cell::new(None);
    let found = loads_agree(kernel, &space, &child);
    // No CPU may run a space that ends.
    kernel.leave_space(space.mmu());
    if let Some(child) = child.take() {
        kernel.leave_space(child.mmu());
    }
    found
}

/// Compares what a program loads with what the engine has stored. Puts the child that it creates in `child`.
fn loads_agree<P: Platform, K: Kernel<P>>(
    kernel: &K,
    space: &AddressSpace<P>,
    child: &Cell<Option<Counted<AddressSpace<P>>>>,
) -> Checked {
    let fixed = ANON | MapFlags::FIXED;
    let at = space.mmap(AT, PAGES * PAGE_SIZE, RW, fixed, None, 0).map_err(failed("mmap"))?;
    let load = |at| load(kernel, space, at);
    let first = load(at)?.map_err(failed("a fault on new memory"))?;
    require!(first == 0, "a program loads {first} from new memory instead of 0");
    put(space, at, 5)?;
    let second = load(at)?.map_err(failed("a fault on a written page"))?;
    require!(
        second == 5,
        "the engine stored 5, and a program then loads {second}: it uses a stale translation"
    );
    let forked = space.fork().map_err(failed("fork"))?;
    child.set(Some(forked.clone()));
    put(space, at, 6)?;
    let third = load(at)?.map_err(failed("a fault on a copied page"))?;
    require!(third == 6, "a copied page has 6, and the program loads {third}: it uses a stale translation");
    let fourth = self::load(kernel, &forked, at)?.map_err(failed("a fault of a child"))?;
    require!(fourth == 5, "a child's page has 5, and its program loads {fourth}");
    space.munmap(at, PAGES * PAGE_SIZE).map_err(failed("munmap"))?;
    let gone = load(at)?;
    require!(
        gone.is_err(),
        "a program loads {gone:?} from memory that is unmapped: it uses a stale translation"
    );
    Ok(())
}

fn charges<P: Platform, K: Kernel<P>>(engine: &Counted<Engine<P>>, kernel: &K) -> Checked {
    let platform = engine.platform();
    let before = kernel.charged(platform)?;
    let space = new_space(engine)?;
    let at = map(&space, PAGES)?;
    for pages in 1..=PAGES {
        put(&space, at + (pages - 1) * PAGE_SIZE, pages)?;
        let charged = kernel.charged(platform)?.wrapping_sub(before);
        require!(charged == pages, "{pages} pages were written, but {charged} frames are charged");
    }
    space.munmap(at, PAGES * PAGE_SIZE).map_err(failed("munmap"))?;
    let left = kernel.charged(platform)?.wrapping_sub(before) as i64;
    require!(left == 0, "all pages were unmapped, but {left} frames more than before are charged");
    Ok(())
}

fn shortage<P: Platform, K: Kernel<P>>(engine: &Counted<Engine<P>>, kernel: &K) -> Checked {
    if !kernel.may_use_all_memory() {
        return not_run("the suite may not use all memory (`Kernel::may_use_all_memory`)");
    }
    const MOST: u64 = 4096;
    let space = new_space(engine)?;
    let at = map(&space, MOST)?;
    put(&space, at, 1)?;
    let held = AllFrames::take(engine.platform());
    // The engine's caches may have frames, and the platform may make memory free when it is asked.
    let failure = (1..MOST)
        .map(|n| at + n * PAGE_SIZE)
        .find_map(|at| space.handle_fault(at, Access::WRITE).err().map(|error| (at, error)));
    held.free(engine.platform());
    if let Some((at, error)) = failure {
        require!(
            error == FaultError::OutOfMemory,
            "memory is short, and a fault fails with another error: {error}"
        );
        let again = space.handle_fault(at, Access::WRITE);
        require!(again.is_ok(), "memory is free again, but the fault fails: {again:?}");
        put(&space, at, 2)?;
        has(&space, at, 2, "a space after a shortage")?;
    }
    has(&space, at, 1, "a space after a shortage")?;
    space.munmap(at, MOST * PAGE_SIZE).map_err(failed("munmap"))?;
    space.check();
    Ok(())
}

fn pager<P: Platform, K: Kernel<P>>(engine: &Counted<Engine<P>>, kernel: &K) -> Checked {
    let (later, stage) = (Arc::new(Later::new()), Stage::new());
    let pager = Arc::clone(&later);
    let file = Mapping::new(engine, super::later::Pages(pager), 2 * PAGE_SIZE, false)
        .map_err(failed("Mapping::new"))?;
    let first = || {
        let mut bytes = vec![0; PAGE_SIZE as usize];
        let read = file.read_at(0, &mut bytes);
        let failed_read = file.read_at(PAGE_SIZE, &mut [0; 8]);
        stage.reach(1);
        read.map_err(failed("a read of a page that the pager completes later"))?;
        require!(bytes.iter().all(|byte| *byte == 0x5a), "a page has other bytes than the pager has stored");
        require!(failed_read.is_err(), "the pager failed to read a page, but the read of the file succeeds");
        Ok(())
    };
    let second = || {
        while !stage.is_reached(1) {
            if let Some(mut request) = later.take() {
                while let Some((index, frame)) = request.next_page() {
                    request.platform().write_frame(frame, 0, &vec![0x5a; PAGE_SIZE as usize]);
                    request.complete(index, if index.get() == 0 { Ok(()) } else { Err(IoError) });
                }
            }
            kernel.pause();
        }
        Ok(())
    };
    run_two(kernel, first, second)
}

/// A listener that counts the pages whose change began and ended.
#[derive(Default)]
struct Heard {
    begun: AtomicU64,
    ended: AtomicU64,
    released: AtomicU64,
}

impl Listener for Heard {
    fn range_start(&self, range: UserRange) {
        self.begun.fetch_add(range.pages().get(), SeqCst);
    }

    fn try_range_start(&self, range: UserRange) -> Result<(), Refused> {
        self.range_start(range);
        Ok(())
    }

    fn range_end(&self, range: UserRange) {
        self.ended.fetch_add(range.pages().get(), SeqCst);
    }

    fn release(&self) {
        self.released.fetch_add(1, SeqCst);
    }
}

fn listener<P: Platform>(engine: &Counted<Engine<P>>) -> Checked {
    let space = new_space(engine)?;
    let at = map(&space, PAGES)?;
    put(&space, at, 1)?;
    let heard = Arc::new(Heard::default());
    let id = space
        .register_listener(heard.clone())
        .map_err(|error| Stop::NotRun(NotRun(alloc::format!("no listener can be registered: {error:?}"))))?;
    space.munmap(at, PAGES * PAGE_SIZE).map_err(failed("munmap"))?;
    let (begun, ended) = (heard.begun.load(SeqCst), heard.ended.load(SeqCst));
    require!(
        begun >= 1 && begun == ended,
        "pages were unmapped, but the listener heard {begun} begin to change and {ended} end"
    );
    space.unregister_listener(id);
    let again = map(&space, 1)?;
    put(&space, again, 1)?;
    space.munmap(again, PAGE_SIZE).map_err(failed("munmap"))?;
    let (after, name) = (heard.begun.load(SeqCst), String::from("an unregistered listener"));
    require!(after == begun, "{name} heard of {} pages", after - begun);
    drop(space);
    Ok(())
}
