//! Removing or moving pages of a file does not wait for RCU read sections. A task that found a page checks
//! again before it uses the page.
//!
//! A test holds a read section open, and makes each operation of `TAKING` on another thread. The platform of
//! `support/gate.rs` sends a message if that thread begins to wait for a grace period, and the test then
//! fails. A new operation that removes pages from a file belongs in `TAKING`.

use super::{
    gate::{Gated, send_at_barriers},
    *,
};
use freehold::{PageIndex, PageRange, fault::Access, hugetlb::HugePageSize, space::AddressSpace};
use freehold_machine::exempt;
use freehold_sync::Host;
use std::sync::mpsc::channel;

/// Address of the mapping, which uses huge pages or small pages.
const AT: u64 = 1 << 30;

/// An open file on the machine with gates.
type Mapped = Counted<File<Gated>>;
/// Name and code of an operation of [`TAKING`].
type Taking = (&'static str, fn(&Counted<Engine<Gated>>, &Mapped, u64, Pfn));

/// A file of zeroes.
struct Zeroed;

impl Pager<Gated> for Zeroed {
    fn read_page(&self, gated: &Gated, _: PageIndex, frame: Pfn) -> Result<(), IoError> {
        gated.zero_frame(frame);
        Ok(())
    }

    fn write_page(&self, _: &Gated, _: PageIndex, _: Pfn) -> Result<(), IoError> {
        Ok(())
    }
}

/// Operations that remove page 1 of the file, or move it to another frame. The operations get the page size
/// in bytes.
const TAKING: &[Taking] = &[
    ("migration", |engine, _, _, pfn| {
        engine.migrate(pfn).unwrap();
    }),
    ("truncation", |_, file, page, _| file.mapping().truncate(page).unwrap()),
    ("a hole", |_, file, page, _| file.mapping().punch(page..2 * page).unwrap()),
    ("failure", |engine, _, _, pfn| {
        engine.memory_failure(pfn).unwrap();
    }),
    ("dropping clean pages", |_, file, page, _| {
        file.mapping().drop_clean(PageRange::ALL);
        file.mapping().truncate(page).unwrap();
    }),
];

/// Runs every operation on a file of two pages that `make` creates, while this thread is in a read section.
/// Fails if the operation waits for the read section.
fn beside_a_read_section(page: u64, make: impl Fn(&Counted<Engine<Gated>>) -> Counted<Mapping<Gated>>) {
    for &(what, take) in TAKING {
        for locking in Locking::ALL {
            let machine: Machine = Machine::new(MachineConfig::backed(32 << 20)).unwrap();
            let engine = Engine::new(Gated::new(&machine), Config::default()).unwrap();
            let mapping = make(&engine);
            let file = File::new(&mapping, FileAccess::READ_WRITE, "/a/file").unwrap();
            let config = SpaceConfig::new().locking(locking);
            let space = AddressSpace::new(&engine, &config).unwrap();
            let shared = MapFlags::SHARED | MapFlags::FIXED;
            space.mmap(AT, 2 * page, RW, shared, Some(&file), 0).unwrap();
            mapping.fill(PageIndex::ZERO).unwrap();
            space.handle_fault(AT + page, Access::WRITE).unwrap();
            let pfn = space.frame_at(AT + page).unwrap();

            let section = Gated::rcu_read();
            exempt(|| {
                let (sender, receiver) = channel();
                let (engine, taken) = (engine.clone(), file.clone());
                let taker = std::thread::spawn(move || {
                    send_at_barriers(sender);
                    take(&engine, &taken, page, pfn);
                });
                assert!(receiver.recv().is_err(), "{what} waits for the read section");
                taker.join().expect(what);
                assert_ne!(space.frame_at(AT + page), Some(pfn), "{what}");
            });
            drop(section);

            space.check();
            let failed = engine.failed_frames();
            drop((space, file, mapping, engine));
            let left = machine.accounting();
            assert_eq!((left.frames as u64, left.tables, left.spaces), (failed, 0, 0), "{what}: {left}");
        }
    }
}

#[test]
fn removing_pages_does_not_wait_for_read_sections() {
    beside_a_read_section(PAGE, |engine| Mapping::new(engine, Zeroed, 2 * PAGE, false).unwrap());
    beside_a_read_section(PAGE, |engine| Mapping::memfd(engine, 2 * PAGE).unwrap());
}

#[test]
fn removing_huge_pages_does_not_wait_for_read_sections() {
    beside_a_read_section(HUGE, |engine| {
        assert_eq!(engine.resize_huge_pool(HugePageSize::Mib2, 4, None), 4);
        Mapping::of_huge_pages(engine, HugePageSize::Mib2, 2 * HUGE, true).unwrap()
    });
}
