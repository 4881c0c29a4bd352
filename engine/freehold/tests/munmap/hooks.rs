//! Hooks that call back into the engine (C-6, C-8), and VMAs that are used too long (C-7).
//!
//! The bugs in Linux: munmap ran a hook of the architecture after it had downgraded its lock. The hook itself
//! unmapped memory, and waited for the lock that its caller held, or freed memory that its caller still used.
//! Drivers kept a pointer to a VMA beyond the end of the lock, or confused "the first VMA that ends above" an
//! address with the VMA at that address.
//!
//! In the engine, no hook gets a guard or a VMA. The destructor of a file runs while no lock is held, also if
//! the last VMA of the file is unmapped, and may make any call. A disk that reads a page for a fault may do
//! the same, because the fault waits without a lock, and so may a disk that writes or discards pages. A disk
//! that is asked to release a page must not make such a call, because a lock of its file is held, and in the
//! lock order this lock comes after those of an address space. The lock order checker reports such a call at
//! once, and not only when two threads collide. The compiler
//! ensures that no VMA outlives its guard; `src/space/locking.rs` has examples that must not compile.
//!
//! The disk `Meddler` calls back at a chosen event. Hooks of devices, most of which run under locks of the
//! address space, are tested in `special/hooks.rs`.

use super::*;
use freehold::{
    PageIndex, PageRange,
    call::{RemapFlags, SyncFlags},
    fault::FaultError,
    file::FillError,
};
use std::sync::{
    Arc, Mutex,
    atomic::{AtomicU64, Ordering::SeqCst},
};

/// Calls that a hook makes on the process.
type Reaction = Box<dyn Fn(&Process) + Send + Sync>;

/// The event at which a disk calls back.
#[derive(Clone, Copy, PartialEq)]
enum When {
    Read,
    Written,
    Discarded,
    Released,
    Gone,
}

/// A disk that calls back.
struct Meddler {
    process: Arc<Mutex<Option<Process>>>,
    reaction: Reaction,
    when: When,
    calls: Arc<AtomicU64>,
}

impl Meddler {
    fn react(&self, when: When) {
        // The lock is released before the reaction, which may call this function again.
        let process = self.process.lock().unwrap().clone();
        if let Some(process) = process.filter(|_| self.when == when && !std::thread::panicking()) {
            self.calls.fetch_add(1, SeqCst);
            (self.reaction)(&process);
        }
    }
}

impl Pager<Machine> for Meddler {
    fn read_page(&self, platform: &Machine, index: PageIndex, frame: Pfn) -> Result<(), IoError> {
        self.react(When::Read);
        Disk.read_page(platform, index, frame)
    }

    fn write_page(&self, _: &Machine, _: PageIndex, _: Pfn) -> Result<(), IoError> {
        self.react(When::Written);
        Ok(())
    }

    fn discard(&self, _: PageRange) {
        self.react(When::Discarded);
    }

    fn release(&self, _: PageIndex) -> bool {
        self.react(When::Released);
        true
    }
}

impl Drop for Meddler {
    fn drop(&mut self) {
        self.react(When::Gone);
    }
}

/// Runs `scene` on a process that maps four pages of a file at `BASE`. The disk of the file calls `reaction`
/// at the event `when`, once.
fn with_reacting_disk(
    when: When,
    reaction: impl Fn(&Process) + Send + Sync + Clone + 'static,
    scene: impl Fn(&Process, &mut Vcpu, Counted<File<Machine>>),
) {
    everywhere(|world, process, cpu| {
        let calls = Arc::new(AtomicU64::new(0));
        let known = Arc::new(Mutex::new(Some(process.clone())));
        let disk = Meddler {
            process: known.clone(),
            reaction: Box::new(reaction.clone()),
            when,
            calls: calls.clone(),
        };
        let mapping = Mapping::new(world.engine(), disk, 4 * PAGE, false).unwrap();
        let file = File::new(&mapping, FileAccess::READ_WRITE, "/a/file").unwrap();
        drop(mapping);
        process.mmap(BASE, 4 * PAGE, RW, MapFlags::SHARED | MapFlags::FIXED, Some(&file), 0).unwrap();
        scene(process, cpu, file);
        process.check();
        assert_eq!(calls.load(SeqCst), 1);
        *known.lock().unwrap() = None;
    });
}

/// C-6: a disk may change mappings while it reads a page. The fault then looks everything up again.
#[test]
fn c6_disk_may_unmap_during_a_read() {
    with_reacting_disk(
        When::Read,
        |process| process.munmap(BASE, 4 * PAGE).unwrap(),
        |process, cpu, _file| assert!(process.load::<u64>(cpu, BASE).is_err()),
    );
}

/// C-6: a disk may change mappings while it writes a page.
#[test]
fn c6_disk_may_unmap_during_a_write() {
    with_reacting_disk(
        When::Written,
        |process| process.munmap(BASE, 4 * PAGE).unwrap(),
        |process, cpu, _file| {
            process.store(cpu, BASE, 1u64).unwrap();
            process.msync(BASE, PAGE, SyncFlags::SYNC).unwrap();
            assert!(process.load::<u64>(cpu, BASE).is_err());
        },
    );
}

/// C-6: a disk may change mappings while it discards pages, and may use its file.
#[test]
fn c6_disk_may_unmap_during_a_discard() {
    with_reacting_disk(
        When::Discarded,
        |process| process.munmap(BASE, 4 * PAGE).unwrap(),
        |process, cpu, file| {
            process.store(cpu, BASE, 1u64).unwrap();
            file.mapping().truncate(0).unwrap();
            assert!(process.load::<u64>(cpu, BASE).is_err());
        },
    );
}

/// C-6, C-8: a disk that is asked to release a page must not change mappings.
#[test]
#[cfg(debug_assertions)]
#[should_panic(expected = "lock order: waiting for Mmap")]
fn c6_c8_munmap_by_a_disk_during_a_release_is_detected() {
    with_reacting_disk(
        When::Released,
        |process| process.munmap(BASE, 4 * PAGE).unwrap(),
        |_, _, file| {
            file.mapping().fill(PageIndex::new(0)).unwrap();
            file.mapping().drop_clean(PageRange::ALL);
        },
    );
}

/// C-6, the case that occurred in Linux: the destructor of a file unmaps, maps and forks before the munmap of
/// its last VMA has completed.
#[test]
fn c6_destructor_may_unmap_during_munmap() {
    with_reacting_disk(
        When::Gone,
        |process| {
            process.munmap(BASE - PAGE, 6 * PAGE).unwrap();
            anon(process, BASE, 2);
            drop(process.fork().unwrap());
        },
        |process, cpu, file| {
            drop(file);
            process.munmap(BASE, 4 * PAGE).unwrap();
            assert_eq!(process.load::<u64>(cpu, BASE + PAGE), Ok(0));
            assert_eq!(layout(process), [(0, 2)]);
        },
    );
}

/// C-6: the destructor runs because another mapping is placed or moved over its last VMA.
#[test]
fn c6_destructor_may_unmap_during_replacement() {
    with_reacting_disk(
        When::Gone,
        |process| process.munmap(BASE + PAGE, PAGE).unwrap(),
        |process, cpu, file| {
            drop(file);
            anon(process, BASE, 4);
            assert_eq!(layout(process), [(0, 1), (2, 4)]);
            assert_eq!(process.load::<u64>(cpu, BASE + 2 * PAGE), Ok(0));
        },
    );
    with_reacting_disk(
        When::Gone,
        |process| process.munmap(BASE + PAGE, PAGE).unwrap(),
        |process, cpu, file| {
            drop(file);
            anon(process, BASE + 8 * PAGE, 4);
            fill(process, cpu, BASE + 8 * PAGE, 4, 3);
            let flags = RemapFlags::MAYMOVE | RemapFlags::FIXED;
            process.mremap(BASE + 8 * PAGE, 4 * PAGE, 4 * PAGE, flags, BASE).unwrap();
            assert_eq!(layout(process), [(0, 1), (2, 4)]);
            assert_eq!(process.load::<u64>(cpu, BASE + 2 * PAGE), Ok(5));
        },
    );
}

/// C-9: a read that failed on the disk is tried again, and the first attempt leaves nothing behind.
#[test]
fn c9_failed_read_leaves_nothing_behind() {
    /// A disk whose reads fail.
    struct Broken;
    impl Pager<Machine> for Broken {
        fn read_page(&self, _: &Machine, _: PageIndex, _: Pfn) -> Result<(), IoError> {
            Err(IoError)
        }
    }
    everywhere(|world, process, cpu| {
        let mapping = Mapping::new(world.engine(), Broken, 4 * PAGE, false).unwrap();
        let file = File::new(&mapping, FileAccess::READ_WRITE, "/a/file").unwrap();
        let at =
            process.mmap(0, 4 * PAGE, RW, MapFlags::PRIVATE | MapFlags::POPULATE, Some(&file), 0).unwrap();
        for _ in 0..2 {
            assert_eq!(process.store(cpu, at, 1u64), Err(FaultError::Bus { addr: at }));
            assert_eq!(mapping.fill(PageIndex::new(0)), Err(FillError::Io));
            assert!(!mapping.has_page(PageIndex::new(0)));
        }
        assert_eq!(process.rss().total(), 0);
    });
}

/// C-7: a lookup returns the VMA that contains an address, not the next VMA.
#[test]
fn c7_lookup_in_a_hole_finds_nothing() {
    everywhere(|_, process, _| {
        anon(process, BASE, 2);
        anon(process, BASE + 4 * PAGE, 2);
        for (page, found) in [(0, true), (1, true), (2, false), (3, false), (4, true), (6, false)] {
            let addr = BASE + page * PAGE;
            for addr in [addr, addr + PAGE - 1] {
                assert_eq!(process.find_vma(addr).is_some(), found, "{addr:#x}");
                assert_eq!(process.space().read().find(addr).is_some(), found, "{addr:#x}");
                assert_eq!(process.space().write().find(addr).is_some(), found, "{addr:#x}");
            }
        }
        let guard = process.space().read();
        assert_eq!(guard.next(BASE + 2 * PAGE).unwrap().start(), BASE + 4 * PAGE);
        assert!(guard.next(BASE + 6 * PAGE).is_none());
        assert_eq!(guard.prev(BASE + 4 * PAGE).unwrap().end(), BASE + 2 * PAGE);
        assert!(guard.prev(BASE + PAGE).is_none());
    });
}
