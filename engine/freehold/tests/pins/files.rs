//! Pins of pages of files: dirty tracking, refused long-term pins, and truncation. A device stores past the
//! page tables, so the engine must mark a page dirty when it is unpinned. The disk `Noting` records the
//! written pages, and `support/storage.rs` is the storage for direct access.

use super::*;
use freehold::{PageIndex, file::Zeroes};
use std::{
    sync::{Arc, Mutex},
    thread,
};
use support::{storage::Storage, until};

/// A disk that records written pages: the number of the page and its first word.
struct Noting(Arc<Mutex<Vec<(u64, u64)>>>);

impl Pager<Machine> for Noting {
    fn read_page(&self, platform: &Machine, index: PageIndex, frame: Pfn) -> Result<(), IoError> {
        Disk.read_page(platform, index, frame)
    }

    fn write_page(&self, platform: &Machine, index: PageIndex, frame: Pfn) -> Result<(), IoError> {
        let index = index.get();
        let mut bytes = [0; 8];
        platform.read_frame(frame, 0, &mut bytes);
        self.0.lock().unwrap().push((index, u64::from_le_bytes(bytes)));
        Ok(())
    }
}

fn map(process: &Process, file: &Counted<File<Machine>>, flags: MapFlags) {
    process.mmap(BASE, 4 * PAGE, RW, flags | MapFlags::FIXED, Some(file), 0).unwrap();
}

/// A device stores to a page after the page was written back. The page tables do not show that store.
#[test]
fn unpinning_makes_the_page_dirty() {
    everywhere(|world, process, cpu| {
        let written = Arc::default();
        let mapping = Mapping::new(world.engine(), Noting(Arc::clone(&written)), 4 * PAGE, false).unwrap();
        let file = File::new(&mapping, FileAccess::READ_WRITE, "/noted").unwrap();
        map(process, &file, MapFlags::SHARED);
        let written = || std::mem::take(&mut *written.lock().unwrap());
        let pins = process.pin_user_pages(BASE + PAGE, 2, WRITE).unwrap();
        file.mapping().write_back((0..4).into()).unwrap();
        assert_eq!(
            written(),
            [(1, Disk::number(1)), (2, Disk::number(2))],
            "pinning for writing makes the pages dirty"
        );
        // Stores past the engine, as a device does.
        world.machine.write_frame(pins.frames()[0], 0, &5u64.to_le_bytes());
        file.mapping().write_back((0..4).into()).unwrap();
        assert_eq!(written(), []);
        pins.unpin_dirty();
        file.mapping().write_back((0..4).into()).unwrap();
        assert_eq!(written(), [(1, 5), (2, Disk::number(2))]);
        // Stores by the kernel make the page dirty at once, and reading through a pin does not.
        let pins = process.pin_user_pages(BASE + PAGE, 2, WRITE).unwrap();
        file.mapping().write_back((0..4).into()).unwrap();
        written();
        put(&pins, 1, 6);
        drop(pins);
        process.pin_user_pages(BASE, 4, READ).unwrap().unpin_dirty();
        file.mapping().write_back((0..4).into()).unwrap();
        assert_eq!(written(), [(2, 6)]);
        assert_eq!(process.load(cpu, BASE + 2 * PAGE), Ok(6u64));
    });
}

#[test]
fn long_term_write_pin_of_a_tracked_file_is_refused() {
    everywhere(|world, process, cpu| {
        let file = world.file(4);
        map(process, &file, MapFlags::SHARED);
        process.store(cpu, BASE, 1u64).unwrap();
        assert_eq!(refused(process, cpu, BASE, WRITE | LONG), PinError::Tracked);
        assert_eq!(fast(process, cpu, BASE, 1, WRITE).len(), 1);
        assert_eq!(fast(process, cpu, BASE, 1, WRITE | LONG).len(), 0);
        assert_eq!(process.pin_user_pages(BASE, 4, LONG).unwrap().len(), 4);
        // Shared memory has no storage, so its dirty state need not be tracked.
        let memory = Mapping::new(world.engine(), Zeroes, 4 * PAGE, true).unwrap();
        let memory = File::new(&memory, FileAccess::READ_WRITE, "memory").unwrap();
        map(process, &memory, MapFlags::SHARED);
        let pins = process.pin_user_pages(BASE, 4, WRITE | LONG).unwrap();
        put(&pins, 0, 3);
        assert_eq!(process.load(cpu, BASE), Ok(3u64));
        assert_eq!(fast(process, cpu, BASE, 1, WRITE | LONG).len(), 1);
    });
}

/// A long-term pin of a private mapping gets a copy that no store of the program replaces.
#[test]
fn long_term_pin_copies_private_pages() {
    everywhere(|world, process, cpu| {
        let file = world.file(4);
        map(process, &file, MapFlags::PRIVATE);
        let short = process.pin_user_pages(BASE, 1, READ).unwrap();
        assert_eq!((word(&short, 0), process.rss().anon), (Disk::number(0), 0));
        let long = process.pin_user_pages(BASE, 2, LONG).unwrap();
        assert_eq!((process.rss().anon, word(&long, 1)), (2, Disk::number(1)));
        process.store(cpu, BASE, 4u64).unwrap();
        assert_eq!((word(&long, 0), word(&short, 0)), (4, Disk::number(0)));
        let stored = process.pin_user_pages(BASE + 2 * PAGE, 1, WRITE | LONG).unwrap();
        put(&stored, 0, 8);
        let mut bytes = [0; 8];
        file.mapping().read_at(2 * PAGE, &mut bytes).unwrap();
        assert_eq!(u64::from_le_bytes(bytes), Disk::number(2), "the file was stored to");
    });
}

#[test]
fn truncation_keeps_the_frame_of_a_pin() {
    everywhere(|world, process, cpu| {
        let file = world.file(4);
        map(process, &file, MapFlags::SHARED);
        let pins = process.pin_user_pages(BASE, 4, WRITE).unwrap();
        file.mapping().truncate(PAGE).unwrap();
        put(&pins, 2, 5);
        assert!(process.load::<u64>(cpu, BASE + 2 * PAGE).is_err());
        file.mapping().truncate(4 * PAGE).unwrap();
        assert_ne!(process.load(cpu, BASE + 2 * PAGE), Ok(5u64), "a truncated page reappeared");
        assert_eq!(word(&pins, 2), 5);
        pins.unpin_dirty();
    });
}

/// Pages of direct-access storage cannot be pinned long-term. They can be pinned for a transfer, and
/// truncation waits for the end of that pin.
#[test]
fn storage_refuses_long_term_pins_and_truncation_waits_for_short_ones() {
    everywhere(|world, process, cpu| {
        let storage = Storage::new(&world.machine);
        let file = storage.file(world, 4);
        map(process, &file, MapFlags::SHARED);
        for flags in [LONG, WRITE | LONG] {
            assert_eq!(refused(process, cpu, BASE, flags), PinError::Direct);
        }
        process.store(cpu, BASE + PAGE, 1u64).unwrap();
        for flags in [LONG, WRITE | LONG] {
            assert_eq!(fast(process, cpu, BASE + PAGE, 1, flags).len(), 0);
        }
        let pins = process.pin_user_pages(BASE + PAGE, 1, WRITE).unwrap();
        put(&pins, 0, 3);
        assert_eq!(storage.word(1), 3);
        thread::scope(|scope| {
            let cut = scope.spawn(|| file.mapping().truncate(0).unwrap());
            // The entry is already cleared. The truncation still has to free the frame, but not while a
            // device may store to it.
            until(|| process.frame_at(BASE + PAGE).is_none());
            for _ in 0..10 {
                thread::yield_now();
                assert!(!cut.is_finished() && storage.freed() == 0);
            }
            pins.unpin_dirty();
        });
        assert_eq!(storage.freed(), 1);
    });
}
