//! The engine as a subject of the comparison of huge pages: makes each call of `mod.rs` on mappings of a
//! machine of its own.
//!
//! The pool has a page for each page of each mapping, so no call fails for want of pages. `within` cuts a
//! range at the end of its mapping and `span` does not; a call that cuts its range here must also cut it in
//! `linux.rs`, and vice versa. [`Engine::end`] checks that no page and no reservation is leaked.

use super::{Answer, Area, HUGE, Op, PAGES, Part, Subject};
use freehold::{
    call::Advice,
    counted::Counted,
    engine::{Config, Engine as Kernel},
    error::UffdError,
    file::{File, FileAccess, Mapping},
    hugetlb::HugePageSize,
    space::{Locking, MapFlags, Prot, SpaceConfig},
    uffd::{Features, FillMode, ProtectMode, RegisterMode, UffdConfig, Userfaultfd},
};
use freehold_machine::DefaultFormat;
use freehold_machine::{Cpu, Machine, MachineConfig, Process};

/// Number of pages of the pool: one for each page of each mapping.
const POOL: u64 = 4 * PAGES;
const BASE: u64 = 1 << 32;

/// The mappings that `mod.rs` describes, on a separate machine.
pub struct Engine {
    uffd: Userfaultfd<Machine>,
    file: Counted<File<Machine>>,
    process: Process,
    cpu: Cpu<DefaultFormat>,
    engine: Counted<Kernel<Machine>>,
}

/// Converts the result of a call that fills pages.
fn fill(done: Result<u64, UffdError>) -> Answer {
    match done {
        Ok(bytes) => Answer::Done(bytes / HUGE),
        Err(error) => Answer::Failed(error.errno().0),
    }
}

/// Converts the result of a call that returns no value.
fn done<T>(result: Result<T, freehold::error::Errno>) -> Answer {
    match result {
        Ok(_) => Answer::Done(0),
        Err(errno) => Answer::Failed(errno.0),
    }
}

impl Engine {
    /// Creates mappings without pages.
    ///
    /// # Panics
    ///
    /// Panics if the host has no room for the machine.
    pub fn new(locking: Locking) -> Self {
        let machine = Machine::new(MachineConfig::backed((POOL + 4) * HUGE)).expect("memory");
        let engine = Kernel::new(machine.clone(), Config::default()).expect("memory");
        assert_eq!(engine.resize_huge_pool(HugePageSize::Mib2, POOL, None), POOL);
        let config = SpaceConfig::new().locking(locking);
        let process = Process::new(&engine, &config).expect("memory");
        let mapping = Mapping::of_huge_pages(&engine, HugePageSize::Mib2, PAGES * HUGE, false);
        let file = File::new(&mapping.expect("memory"), FileAccess::READ_WRITE, "huge").expect("memory");
        let rights = Prot::READ | Prot::WRITE;
        for area in Area::ALL {
            let kind = if area.is_private() { MapFlags::PRIVATE } else { MapFlags::SHARED };
            let (flags, file) = match area {
                Area::Anonymous => (kind | MapFlags::ANONYMOUS | MapFlags::HUGETLB, None),
                _ => (kind, Some(&file)),
            };
            let at = BASE + area.offset();
            let mapped = process.mmap(at, PAGES * HUGE, rights, flags | MapFlags::FIXED, file, 0);
            assert_eq!(mapped, Ok(at));
        }
        let config = UffdConfig::new().features(Features::SIGBUS);
        let uffd = Userfaultfd::new(process.space(), config).expect("memory");
        Engine { uffd, file, process, cpu: machine.cpu(0), engine }
    }

    /// Number of pages of the pool that are in use.
    pub fn in_use(&self) -> u64 {
        POOL - self.engine.huge_pool(HugePageSize::Mib2).counts(None).free
    }

    /// Drops everything.
    ///
    /// # Panics
    ///
    /// Panics if a page of the pool, or a reservation, is leaked.
    pub fn end(self) {
        self.process.check();
        let Engine { uffd, file, process, cpu, engine } = self;
        drop((uffd, file, process, cpu));
        let counts = engine.huge_pool(HugePageSize::Mib2).counts(None);
        assert_eq!((counts.free, counts.reserved), (POOL, 0));
    }

    /// Returns the range of a part. The range may extend beyond the mapping.
    fn span(part: Part) -> (u64, u64) {
        (BASE + part.area.offset() + part.page * HUGE, part.pages * HUGE)
    }

    /// Returns the range of a part, cut at the end of the mapping.
    fn within(part: Part) -> (u64, u64) {
        Self::span(Part { pages: part.pages.min(PAGES - part.page), ..part })
    }
}

/// Returns the mode of a fill, write-protected if `wp` is true.
fn mode(wp: bool) -> FillMode {
    if wp { FillMode::WP } else { FillMode::empty() }
}

impl Subject for Engine {
    fn call(&mut self, op: Op) -> Answer {
        let (uffd, process, mapping) = (&self.uffd, &self.process, self.file.mapping());
        match op {
            Op::Register(part, mode) => {
                let (at, len) = Self::within(part);
                let mode = RegisterMode::from_bits_retain(mode);
                done(uffd.register(at, len, mode).map_err(|error| error.errno()))
            }
            Op::Unregister(part) => {
                let (at, len) = Self::within(part);
                done(uffd.unregister(at, len).map_err(|error| error.errno()))
            }
            Op::Copy(part, wp, number) => {
                fill(uffd.copy(Self::span(part).0, &super::contents(part.pages, number), mode(wp)))
            }
            Op::Zeropage(part) => {
                let (at, len) = Self::span(part);
                fill(uffd.zeropage(at, len, mode(false)))
            }
            Op::Continue(part, wp) => {
                let (at, len) = Self::span(part);
                fill(uffd.continue_with(at, len, mode(wp)))
            }
            Op::Poison(part) => {
                let (at, len) = Self::span(part);
                fill(uffd.poison(at, len, mode(false)))
            }
            Op::Protect(part, on) => {
                let (at, len) = Self::within(part);
                let mode = if on { ProtectMode::WP } else { ProtectMode::empty() };
                done(uffd.write_protect(at, len, mode).map_err(|error| error.errno()))
            }
            Op::Load(area, page) => {
                let at = Self::span(Part { area, page, pages: 1 }).0;
                process.load(&mut self.cpu, at).map_or(Answer::Fault, Answer::Value)
            }
            Op::Store(area, page, value) => {
                let at = Self::span(Part { area, page, pages: 1 }).0;
                process.store(&mut self.cpu, at, value).map_or(Answer::Fault, |()| Answer::Done(0))
            }
            Op::DontNeed(part) => {
                let (at, len) = Self::within(part);
                done(process.madvise(at, len, Advice::DontNeed).map_err(|error| error.errno()))
            }
            Op::Punch(page, pages) => {
                let end = PAGES.min(page + pages);
                done(mapping.punch(page * HUGE..end * HUGE).map_err(|_| freehold::error::Errno::EIO))
            }
            Op::Truncate(page) => {
                let cut = mapping.truncate(page * HUGE).and_then(|()| mapping.truncate(PAGES * HUGE));
                done(cut.map_err(|_| freehold::error::Errno::EIO))
            }
            Op::Mprotect(part, writable) => {
                let (at, len) = Self::within(part);
                let rights = if writable { Prot::READ | Prot::WRITE } else { Prot::READ };
                done(process.mprotect(at, len, rights).map_err(|error| error.errno()))
            }
        }
    }
}
