//! Pins of pages of files: how stores are reported, what is refused for long, what truncation takes.

use super::*;
use freehold::{PageIndex, file::Zeroes};
use std::{
    sync::{Arc, Mutex},
    thread,
};
use support::{storage::Storage, until};

/// A disk that notes what is written to it: the page, and its first word.
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

/// A device's stores come after the page was written back, which nothing in the tables shows.
#[test]
fn unpinning_says_that_a_page_was_written() {
    everywhere(|world, process, cpu| {
        let written = Arc::default();
        let mapping = Mapping::new(world.engine(), Noting(Arc::clone(&written)), 4 * PAGE, false).unwrap();
        let file = File::new(&mapping, FileAccess::READ_WRITE, "/noted").unwrap();
        map(process, &file, MapFlags::SHARED);
        let written = || std::mem::take(&mut *written.lock().unwrap());
        let pins = process.pin_user_pages(BASE + PAGE, 2, WRITE).unwrap();
        file.mapping().write_back((0..4).into()).unwrap();
        assert_eq!(written(), [(1, Disk::number(1)), (2, Disk::number(2))], "about to be stored to");
        // Past everybody's knowledge, as a device does.
        world.machine.write_frame(pins.frames()[0], 0, &5u64.to_le_bytes());
        file.mapping().write_back((0..4).into()).unwrap();
        assert_eq!(written(), []);
        pins.unpin_dirty();
        file.mapping().write_back((0..4).into()).unwrap();
        assert_eq!(written(), [(1, 5), (2, Disk::number(2))]);
        // The kernel's own stores are known at once; and reading is not writing.
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
fn for_long_a_file_must_not_be_kept_in_the_dark() {
    everywhere(|world, process, cpu| {
        let file = world.file(4);
        map(process, &file, MapFlags::SHARED);
        process.store(cpu, BASE, 1u64).unwrap();
        assert_eq!(refused(process, cpu, BASE, WRITE | LONG), PinError::Tracked);
        assert_eq!(fast(process, cpu, BASE, 1, WRITE).len(), 1);
        assert_eq!(fast(process, cpu, BASE, 1, WRITE | LONG).len(), 0);
        assert_eq!(process.pin_user_pages(BASE, 4, LONG).unwrap().len(), 4);
        // Shared memory has nobody to tell.
        let memory = Mapping::new(world.engine(), Zeroes, 4 * PAGE, true).unwrap();
        let memory = File::new(&memory, FileAccess::READ_WRITE, "memory").unwrap();
        map(process, &memory, MapFlags::SHARED);
        let pins = process.pin_user_pages(BASE, 4, WRITE | LONG).unwrap();
        put(&pins, 0, 3);
        assert_eq!(process.load(cpu, BASE), Ok(3u64));
        assert_eq!(fast(process, cpu, BASE, 1, WRITE | LONG).len(), 1);
    });
}

/// Of a private mapping, for long, only what no store of the program will replace.
#[test]
fn private_mappings_are_copied_for_long() {
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
fn truncation_leaves_the_pin_its_page() {
    everywhere(|world, process, cpu| {
        let file = world.file(4);
        map(process, &file, MapFlags::SHARED);
        let pins = process.pin_user_pages(BASE, 4, WRITE).unwrap();
        file.mapping().truncate(PAGE).unwrap();
        put(&pins, 2, 5);
        assert!(process.load::<u64>(cpu, BASE + 2 * PAGE).is_err());
        file.mapping().truncate(4 * PAGE).unwrap();
        assert_ne!(process.load(cpu, BASE + 2 * PAGE), Ok(5u64), "a page that was cut off came back");
        assert_eq!(word(&pins, 2), 5);
        pins.unpin_dirty();
    });
}

/// Storage is nobody's for long; for a transfer it is, and truncation waits for that.
#[test]
fn storage_is_pinned_for_a_transfer_only() {
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
            // Zapped already: what is left is to free the frame, but not while a device may store there.
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
