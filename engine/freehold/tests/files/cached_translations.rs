//! Stores through cached translations, and pages of files that are moved or removed while another task uses
//! them.
//!
//! The engine clears an entry, or its write bit, and flushes the TLBs afterwards. Until the flush, a CPU can
//! store through its cached translation, so the frame must record that the page was written. The dirty bit of
//! the frame is set once before the flush, because a concurrent write-back finds the entry already cleared.
//! The bit is set again after the flush, because that write-back may have cleared it before the last store.
//! If either step is missing, a store to a file is lost.
//!
//! Three tests stop each operation of `TAKING` at its first flush, by a gate of `support/gate.rs`, and store
//! or run a second operation there. The disk `Store` then shows which words were written. Another test checks
//! after each operation of `ENDING` that no CPU can use its cached translation. A new way to unmap a page, or
//! to remove the right to write, belongs in these lists.

use super::{
    gate::{Gated, before_read_section},
    *,
};
use freehold::{
    PageIndex, Pfn,
    call::{Advice, RemapFlags},
    error::MigrateError,
    fault::{Access, FaultError},
    reclaim::ReclaimRequest,
    space::AddressSpace,
};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, mpsc::channel},
};

/// An address space on the machine with gates.
type Space = Counted<AddressSpace<Gated>>;
/// An open file on the machine with gates.
type Mapped = Counted<File<Gated>>;

/// A disk that keeps the first words of written pages.
#[derive(Clone, Default)]
struct Store {
    words: Arc<Mutex<BTreeMap<u64, u64>>>,
}

impl Store {
    fn word(&self, index: u64) -> Option<u64> {
        self.words.lock().unwrap().get(&index).copied()
    }
}

impl Pager<Gated> for Store {
    fn read_page(&self, gated: &Gated, _: PageIndex, frame: Pfn) -> Result<(), IoError> {
        gated.zero_frame(frame);
        Ok(())
    }

    fn write_page(&self, gated: &Gated, index: PageIndex, frame: Pfn) -> Result<(), IoError> {
        let mut word = [0; 8];
        gated.machine.read_frame(frame, 0, &mut word);
        self.words.lock().unwrap().insert(index.get(), u64::from_le_bytes(word));
        Ok(())
    }
}

/// Two pages of a file, mapped shared at `BASE`.
struct Scene {
    machine: Machine,
    gated: Gated,
    store: Store,
    file: Mapped,
    space: Space,
}

impl Scene {
    fn new(locking: Locking) -> Self {
        let machine: Machine = Machine::new(MachineConfig::backed(16 << 20)).unwrap();
        let gated = Gated::new(&machine);
        let engine = Engine::new(gated.clone(), Config::default()).unwrap();
        let store = Store::default();
        let mapping = Mapping::new(&engine, store.clone(), 2 * PAGE, false).unwrap();
        let file = File::new(&mapping, FileAccess::READ_WRITE, "/a/file").unwrap();
        let space = AddressSpace::new(&engine, &SpaceConfig::new().locking(locking)).unwrap();
        let shared = MapFlags::SHARED | MapFlags::FIXED;
        space.mmap(BASE, 2 * PAGE, RW, shared, Some(&file), 0).unwrap();
        Scene { machine, gated, store, file, space }
    }

    /// Stores to page 1 and begins a write-back of the page. The write-back has removed the right to write
    /// from the entry and has flushed it. It is stopped before it looks the page up and takes the dirty bit
    /// of the frame. The returned function lets the write-back continue and waits for its end.
    fn stopped_write_back(&self, cpu: &mut Vcpu) -> impl FnOnce() + Send + 'static {
        put(&self.space, cpu, 1, 1);
        let ((begun, has_begun), (go_on, may_go_on)) = (channel(), channel());
        self.gated.flush.put(move || {
            before_read_section(move || {
                begun.send(()).unwrap();
                may_go_on.recv().unwrap();
            });
        });
        let file = self.file.clone();
        let writer = std::thread::spawn(move || file.mapping().write_back((1..2).into()).unwrap());
        has_begun.recv().unwrap();
        move || {
            go_on.send(()).unwrap();
            writer.join().unwrap();
        }
    }

    fn end(self) {
        let Scene { machine, gated, store, file, space } = self;
        assert!(!gated.flush.is_waiting(), "nothing was flushed");
        space.check();
        file.mapping().check();
        drop((space, file, store, gated));
        machine.accounting().assert_clean();
    }
}

/// Stores to a page by its number.
fn put(space: &Space, cpu: &mut Vcpu, page: u64, value: u64) {
    let fault = |at: freehold::VirtAddr, access| space.handle_fault(at.get(), access).map(drop);
    cpu.store(space.mmu(), BASE + page * PAGE, value, fault).unwrap();
}

/// Stores through the cached translation of the CPU.
fn put_remembered(space: &Space, cpu: &mut Vcpu, page: u64, value: u64) {
    let stored = cpu.store(space.mmu(), BASE + page * PAGE, value, |_, _| Err(()));
    assert_eq!(stored, Ok(()), "the translation is cached");
}

/// Name and code of an operation of [`TAKING`].
type Taking = (&'static str, fn(&Space, &Mapped));

/// Operations that unmap page 1, or that remove the right to write from its entry.
const TAKING: &[Taking] = &[
    ("munmap", |space, _| space.munmap(BASE, 2 * PAGE).unwrap()),
    ("mmap over the page", |space, _| {
        space.mmap(BASE + PAGE, PAGE, R, ANON | MapFlags::FIXED, None, 0).unwrap();
    }),
    ("DONTNEED", |space, _| space.madvise(BASE + PAGE, PAGE, Advice::DontNeed).unwrap()),
    ("guards", |space, _| space.madvise(BASE + PAGE, PAGE, Advice::GuardInstall).unwrap()),
    ("PAGEOUT", |space, _| space.madvise(BASE + PAGE, PAGE, Advice::PageOut).unwrap()),
    ("reclaim", |space, _| {
        let frame = space.frame_at(BASE + PAGE).unwrap();
        space.engine().reclaim(&ReclaimRequest::pages(1).only(&|pfn| pfn == frame));
    }),
    ("mkclean", |space, _| {
        space.engine().mkclean(space.frame_at(BASE + PAGE).unwrap()).unwrap();
    }),
];

/// Runs `test` on every design, for each operation of [`TAKING`].
fn in_every_way(test: impl Fn(&'static str, Scene, fn(&Space, &Mapped))) {
    for (what, take) in TAKING {
        Locking::ALL.into_iter().for_each(|locking| test(what, Scene::new(locking), *take));
    }
}

/// A program stores to the page after the entry was cleared and the page was written back. The page is dirty
/// after the flush.
#[test]
fn store_after_write_back_and_before_the_flush_is_kept() {
    in_every_way(|what, scene, take| {
        let mut cpu = scene.machine.cpu(0);
        let go_on = scene.stopped_write_back(&mut cpu);
        put(&scene.space, &mut cpu, 1, 10);
        let (space, store) = (scene.space.clone(), scene.store.clone());
        scene.gated.flush.put(move || {
            go_on();
            assert_eq!(store.word(1), Some(10));
            put_remembered(&space, &mut cpu, 1, 11);
        });
        take(&scene.space, &scene.file);
        scene.file.mapping().write_back((1..2).into()).unwrap();
        assert_eq!(scene.store.word(1), Some(11), "{what}: a store is lost");
        scene.end();
    });
}

/// A program stores to the page before the entry is cleared. A write-back before the flush writes the page.
#[test]
fn store_before_the_entry_is_cleared_is_written_back() {
    in_every_way(|what, scene, take| {
        let mut cpu = scene.machine.cpu(0);
        let go_on = scene.stopped_write_back(&mut cpu);
        put(&scene.space, &mut cpu, 1, 10);
        // The write-back has cleared the dirty bit of the frame, but not that of the entry.
        go_on();
        put_remembered(&scene.space, &mut cpu, 1, 11);
        let (file, store) = (scene.file.clone(), scene.store.clone());
        scene.gated.flush.put(move || {
            // Runs on a thread of its own, because this thread may hold locks.
            std::thread::spawn(move || file.mapping().write_back((1..2).into()).unwrap()).join().unwrap();
            assert_eq!(store.word(1), Some(11), "{what}: a store is missed");
        });
        take(&scene.space, &scene.file);
        drop(cpu);
        scene.end();
    });
}

/// A truncation completes while another task has cleared an entry and not flushed yet. No CPU uses its cached
/// translation afterwards.
#[test]
fn completed_truncation_leaves_no_cached_translation() {
    in_every_way(|what, scene, take| {
        if what == "mkclean" {
            // The call has a reference to the page, which a truncation waits for.
            return scene.end();
        }
        let mut cpu = scene.machine.cpu(0);
        put(&scene.space, &mut cpu, 1, 10);
        let (file, space) = (scene.file.clone(), scene.space.clone());
        scene.gated.flush.put(move || {
            // Runs on a thread of its own, because this thread may hold locks.
            std::thread::spawn(move || file.mapping().truncate(PAGE).unwrap()).join().unwrap();
            let loaded = cpu.load::<u64, _>(space.mmu(), BASE + PAGE, |_, _| Err(()));
            assert_eq!(loaded, Err(()), "{what}: a truncated page is still reachable");
        });
        take(&scene.space, &scene.file);
        scene.end();
    });
}

/// Operations that remove access rights to the anonymous page at `BASE`. The flag is true if loads are also
/// forbidden afterwards.
type Ending = (&'static str, bool, fn(&Space));

const ENDING: &[Ending] = &[
    ("mprotect to read-only", false, |space| space.mprotect(BASE, PAGE, R).unwrap()),
    ("mprotect to nothing", true, |space| space.mprotect(BASE, PAGE, Prot::empty()).unwrap()),
    ("munmap", true, |space| space.munmap(BASE, PAGE).unwrap()),
    ("mmap over the page", true, |space| {
        space.mmap(BASE, PAGE, RW, ANON | MapFlags::FIXED, None, 0).unwrap();
    }),
    ("DONTNEED", true, |space| space.madvise(BASE, PAGE, Advice::DontNeed).unwrap()),
    ("guards", true, |space| space.madvise(BASE, PAGE, Advice::GuardInstall).unwrap()),
    ("PAGEOUT", true, |space| {
        space.madvise(BASE, PAGE, Advice::Free).unwrap();
        space.madvise(BASE, PAGE, Advice::PageOut).unwrap();
    }),
    ("fork", false, |space| drop(space.fork().unwrap())),
    ("mremap", true, |space| {
        let flags = RemapFlags::MAYMOVE | RemapFlags::FIXED;
        space.mremap(BASE, PAGE, PAGE, flags, BASE + 64 * PAGE).unwrap();
    }),
    ("mremap of a whole table", true, |space| {
        let flags = RemapFlags::MAYMOVE | RemapFlags::FIXED;
        let table = 512 * PAGE;
        space.mmap(BASE + PAGE, table - PAGE, RW, ANON | MapFlags::FIXED, None, 0).unwrap();
        space.mremap(BASE, table, table, flags, BASE + 8 * table).unwrap();
    }),
];

/// When a call returns, no CPU has a cached translation that the call revoked.
#[test]
fn no_cached_translation_is_left_when_a_call_returns() {
    for (what, loads, end) in ENDING {
        for locking in Locking::ALL {
            let scene = Scene::new(locking);
            let (mut cpu, space) = (scene.machine.cpu(0), &scene.space);
            // Maps a separate range, so that its page table holds no other mapping.
            space.munmap(BASE, 2 * PAGE).unwrap();
            space.mmap(BASE, PAGE, RW, ANON | MapFlags::FIXED, None, 0).unwrap();
            put(space, &mut cpu, 0, 1);
            end(space);
            let stored = cpu.store(space.mmu(), BASE, 2u64, |_, _| Err(()));
            assert_eq!(stored, Err(()), "{what}, {locking:?}: a store");
            let loaded = cpu.load::<u64, _>(space.mmu(), BASE, |_, _| Err(()));
            assert!(!loads || loaded.is_err(), "{what}, {locking:?}: a load");
            drop(cpu);
            scene.end();
        }
    }
}

/// Name and code of an operation that removes or moves a page; it gets the frame of the page.
type Going = (&'static str, fn(&Counted<Engine<Gated>>, &Mapped, Pfn));

/// C-26, C-37: a page of a file is removed while a fault copies it. The frame stays allocated until the copy
/// is complete. If the file was truncated by then, the copy is not mapped.
#[test]
fn c26_c37_frame_stays_until_a_fault_has_copied_it() {
    let going: [Going; 3] = [
        ("migration", |engine, _, pfn| {
            assert_eq!(engine.migrate(pfn), Err(MigrateError::Busy));
        }),
        ("truncation", |_, file, _| file.mapping().truncate(0).unwrap()),
        ("a hole", |_, file, _| file.mapping().punch(0..PAGE).unwrap()),
    ];
    for (what, go) in going {
        for locking in Locking::ALL {
            let scene = Scene::new(locking);
            let (machine, space) = (scene.machine.clone(), scene.space.clone());
            let mut cpu = machine.cpu(0);
            put(&space, &mut cpu, 0, 1);
            let pfn = space.frame_at(BASE).unwrap();
            let private = MapFlags::PRIVATE | MapFlags::FIXED;
            space.mmap(BASE, PAGE, RW, private, Some(&scene.file), 0).unwrap();
            let (engine, file) = (space.engine().clone(), scene.file.clone());
            let (pass, passed) = channel();
            scene.gated.copy.put(move || {
                // Runs on a thread of its own, because this thread is in a read section.
                std::thread::spawn(move || go(&engine, &file, pfn)).join().unwrap();
                assert!(!machine.frame(pfn).is_free(), "{what}: the frame was freed during the copy");
                pass.send(()).unwrap();
            });
            let fault = space.handle_fault(BASE, Access::WRITE).map(drop);
            passed.recv().expect("no page was copied");
            match what {
                "truncation" => assert_eq!(fault, Err(FaultError::Bus { addr: BASE })),
                _ => assert_eq!(fault, Ok(()), "{what}"),
            }
            if what != "truncation" {
                let found = cpu.load::<u64, _>(space.mmu(), BASE, |_, _| Err(()));
                assert_eq!(found, Ok(u64::from(what == "migration")), "{what}");
            }
            drop((space, cpu));
            scene.end();
        }
    }
}
