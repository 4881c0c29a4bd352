//! Every opened file is closed exactly once (C-31, C-33).
//!
//! The bugs in Linux: if an error occurred after a driver had set up its mapping, a mapping was closed that
//! was never opened. Merges removed VMAs without closing them, or closed the VMA that stayed.
//!
//! In these tests, the reference of a VMA to its file is the opened object. Three adjacent VMAs map one file
//! or two files, with equal or different rights. Every call runs over every range. Each file must be closed
//! when its last VMA is removed, and not before. Each page must show the correct offset of the correct file
//! at all times.
//!
//! `Trio::change` has the calls, with the effect of each on the expected contents. A new call that splits,
//! merges or removes VMAs is one more arm there, and one more number in the loop of the test.
//! `special/hooks.rs` counts the hooks of a device in the same way.

use super::*;
use freehold::{
    PageIndex,
    call::{Advice, RemapFlags},
    space::{Counts, Limits},
};
use std::{
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
};

/// A disk that increments a counter when it is dropped.
struct Closing {
    number: u64,
    closed: Arc<[AtomicU64; 2]>,
}

impl Closing {
    fn word(number: u64, index: u64) -> u64 {
        (number + 1) * 1000 + index
    }
}

impl Pager<Machine> for Closing {
    fn read_page(&self, platform: &Machine, index: PageIndex, frame: Pfn) -> Result<(), IoError> {
        let index = index.get();
        platform.zero_frame(frame);
        platform.write_frame(frame, 0, &Closing::word(self.number, index).to_le_bytes());
        Ok(())
    }
}

impl Drop for Closing {
    fn drop(&mut self) {
        self.closed[self.number as usize].fetch_add(1, SeqCst);
    }
}

/// Expected contents of a page: the word of a page of a file, or zeroes; `None` if the page is not mapped.
type Shown = Option<u64>;

/// Number of pages in the three VMAs together.
const PAGES: u64 = 6;
/// Target of moves.
const AWAY: u64 = 100;

/// A process with three adjacent VMAs of one file or two files, and their expected contents.
struct Trio {
    process: Process,
    files: [Counted<File<Machine>>; 2],
    closed: Arc<[AtomicU64; 2]>,
    /// Expected contents from page 0 on, and from `AWAY` on.
    shown: [Vec<Shown>; 2],
}

impl Trio {
    /// Maps the three VMAs. `files` and `rights` have one bit for each VMA. The designs are used in rotation.
    fn new(world: &World, files: u64, rights: u64) -> Self {
        let process = world.process(Locking::ALL[(files << 3 | rights) as usize % Locking::ALL.len()]);
        let closed: Arc<[AtomicU64; 2]> = Arc::default();
        let open = |number| {
            let disk = Closing { number, closed: closed.clone() };
            let mapping = Mapping::new(world.engine(), disk, 2 * PAGES * PAGE, false).unwrap();
            File::new(&mapping, FileAccess::READ_WRITE, "/a/file").unwrap()
        };
        let both = [open(0), open(1)];
        let mut shown = Vec::new();
        for vma in 0..3 {
            let number = files >> vma & 1;
            let prot = if rights >> vma & 1 == 0 { RW } else { R };
            let (start, offset) = (BASE + 2 * vma * PAGE, 2 * vma * PAGE);
            let flags = MapFlags::PRIVATE | MapFlags::FIXED;
            process.mmap(start, 2 * PAGE, prot, flags, Some(&both[number as usize]), offset).unwrap();
            shown.extend((2 * vma..2 * vma + 2).map(|index| Some(Closing::word(number, index))));
        }
        Trio { process, files: both, closed, shown: [shown, vec![None; PAGES as usize]] }
    }

    fn show(&mut self, range: &Range<u64>, what: impl Fn(u64) -> Shown) {
        range.clone().for_each(|page| self.shown[0][page as usize] = what(page));
    }

    fn change(&mut self, call: u64, range: Range<u64>) {
        let (start, len) = (BASE + range.start * PAGE, (range.end - range.start) * PAGE);
        let process = self.process.clone();
        let map = |file: Option<&Counted<File<Machine>>>, prot| {
            let kind = if file.is_none() { ANON } else { MapFlags::PRIVATE };
            let offset = if file.is_none() { 0 } else { range.start * PAGE };
            process.mmap(start, len, prot, kind | MapFlags::FIXED, file, offset).unwrap();
        };
        match call {
            0 => {
                process.munmap(start, len).unwrap();
                self.show(&range, |_| None);
            }
            1 => process.mprotect(start, len, R).unwrap(),
            2 => process.mprotect(start, len, RW).unwrap(),
            3 => {
                map(None, RW);
                self.show(&range, |_| Some(0));
            }
            4 => {
                map(Some(&self.files[0].clone()), RW);
                self.show(&range, |page| Some(Closing::word(0, page)));
            }
            5 => {
                process.madvise(start, len, Advice::DontFork).unwrap();
                process.madvise(start, len, Advice::DoFork).unwrap();
            }
            6 => {
                let flags = RemapFlags::MAYMOVE | RemapFlags::FIXED;
                process.mremap(start, len, len, flags, BASE + (AWAY + range.start) * PAGE).unwrap();
                for page in range.clone() {
                    self.shown[1][page as usize] = self.shown[0][page as usize].take();
                }
            }
            _ => {
                process.mlock(start, len).unwrap();
                process.munlock(start, len).unwrap();
            }
        }
    }

    /// Returns which of the files are mapped by a VMA.
    fn mapped(&self) -> [bool; 2] {
        let mapped = |word: u64| self.shown.iter().flatten().flatten().any(|shown| shown / 1000 == word);
        [mapped(1), mapped(2)]
    }

    fn check(&self, cpu: &mut Vcpu, what: &str) {
        self.process.check();
        self.files.iter().for_each(|file| file.mapping().check());
        for (from, shown) in [0, AWAY].into_iter().zip(&self.shown) {
            for (page, shown) in (from..).zip(shown) {
                let found = self.process.load::<u64>(cpu, BASE + page * PAGE);
                assert_eq!(found.ok(), *shown, "{what}: page {page}");
            }
        }
    }

    /// Drops the files. A mapped file stays open, and is closed with its last VMA.
    fn end(self, what: &str) {
        let mapped = self.mapped();
        let Trio { process, files, closed, .. } = self;
        let count = || [closed[0].load(SeqCst), closed[1].load(SeqCst)];
        drop(files);
        assert_eq!(count(), mapped.map(|mapped| u64::from(!mapped)), "{what}: closed too early or too late");
        process.munmap(BASE, 2 * AWAY * PAGE).unwrap();
        assert_eq!(count(), [1, 1], "{what}: not closed once each");
    }
}

/// C-33: every call over every range, twice. The second call runs on VMAs that the first call has split or
/// merged.
#[test]
fn c33_files_are_closed_with_their_last_vma() {
    let world = World::new();
    let mut cpu = world.machine.cpu(0);
    let ranges = || (0..PAGES).flat_map(|start| (start + 1..=PAGES).map(move |end| start..end));
    for (files, rights) in (0..8).flat_map(|files| (0..8).map(move |rights| (files, rights))) {
        for call in 0..8 {
            for range in ranges() {
                let what = format!("files {files:03b}, rights {rights:03b}, call {call} of {range:?}");
                let mut trio = Trio::new(&world, files, rights);
                trio.change(call, range.clone());
                trio.check(&mut cpu, &what);
                if trio.shown[0].iter().all(Option::is_some) {
                    trio.change(2, 0..PAGES);
                    trio.check(&mut cpu, &what);
                }
                trio.end(&what);
            }
        }
    }
    drop(cpu);
    world.end();
}

/// C-31, C-9: an mmap fails because of a limit, after all checks of the file have passed. The call has no
/// effect.
#[test]
fn c31_c9_refused_mmap_keeps_no_reference_to_its_file() {
    let world = World::new();
    let mut cpu = world.machine.cpu(0);
    for refusal in 0..3 {
        let mut trio = Trio::new(&world, 0b101, 0b010);
        let before = trio.process.counts();
        let mut limits = trio.process.limits().get();
        match refusal {
            0 => limits.address_space = (PAGES + 1) * PAGE,
            1 => limits.data = PAGE,
            _ => (limits.memlock, limits.may_lock) = (PAGE, false),
        }
        trio.process.limits().set(&limits);
        for (at, flags) in [(8, MapFlags::PRIVATE), (3, MapFlags::PRIVATE | MapFlags::FIXED)] {
            let flags = if refusal == 2 { flags | MapFlags::LOCKED } else { flags };
            let file = Some(&trio.files[1]);
            let mapped = trio.process.mmap(BASE + at * PAGE, 12 * PAGE, RW, flags, file, 0);
            assert!(mapped.is_err(), "refusal {refusal}");
        }
        // A refused call may leave VMAs split.
        let after = Counts { map_count: before.map_count, ..trio.process.counts() };
        assert_eq!(after, before, "refusal {refusal}");
        trio.process.limits().set(&Limits::default());
        trio.check(&mut cpu, "refused");
        trio.change(2, 0..PAGES);
        trio.check(&mut cpu, "refused, then allowed");
        trio.end("refused");
    }
    drop(cpu);
    world.end();
}
