//! The memory of a crash dump as /proc/vmcore maps it: first the headers that the kernel has created, then
//! the pieces of the crashed machine's memory. Some pieces cannot be mapped.
//!
//! On Linux, this hook calls munmap: if a piece cannot be mapped, the hook unmaps the pieces before it, under
//! the lock that mmap holds. In the engine the hook fails instead, and nothing was mapped (C-31 a, c). No
//! task sees a part of the mapping before it is complete, and the lock is held throughout.
//!
//! The driver `Vmcore` maps pieces of a board that are not contiguous. A test chooses the piece that fails,
//! and compares VMAs, counts and page tables before and after the call.

use super::*;
use freehold::{
    error::MmapError,
    file::{Driver, MapRequest, Special, VmOps},
    vma::flags::VmFlags,
};
use std::sync::{Arc, Mutex};

/// Number of header pages. Pieces of old memory follow the headers. The frames of these pieces belong to a
/// board and are not contiguous.
const HEADERS: u64 = 2;
const PIECES: [(u64, u64); 3] = [(4, 2), (8, 3), (12, 1)];
const SIZE: u64 = 8;

/// The driver of /proc/vmcore.
struct Vmcore {
    board: Arc<Board>,
    /// Number of the piece that cannot be mapped.
    broken: Arc<Mutex<Option<usize>>>,
}

/// Object of a mapping without hooks.
struct Dump {
    _board: Arc<Board>,
}

impl VmOps<Machine> for Dump {
    fn name(&self) -> &str {
        "/proc/vmcore"
    }
}

impl Driver<Machine> for Vmcore {
    fn mmap(&self, request: &mut MapRequest<'_, Machine>) -> Result<Counted<Special<Machine>>, MmapError> {
        let flags = request.vma().flags;
        if flags.intersects(VmFlags::WRITE | VmFlags::EXEC) {
            return Err(MmapError::NotPermitted);
        }
        let (mut at, pages) = (request.vma().pgoff.get(), request.vma().pages().get());
        if at + pages > SIZE {
            return Err(MmapError::Invalid);
        }
        request.set_flags((flags | VmFlags::MIXEDMAP) - (VmFlags::MAYWRITE | VmFlags::MAYEXEC))?;
        let (start, end, mut piece_at) = (at, at + pages, 0);
        let pieces = std::iter::once((None, 0, HEADERS));
        let pieces = pieces.chain((0..).zip(PIECES).map(|(n, (frame, pages))| (Some(n), frame, pages)));
        for (piece, frame, pages) in pieces {
            let piece_end = piece_at + pages;
            if at < piece_end.min(end) {
                if piece.is_some() && piece == *self.broken.lock().unwrap() {
                    return Err(MmapError::NotReady);
                }
                let first = self.board.frame(frame + at - piece_at);
                request.map_frames(at - start, foreign(first, piece_end.min(end) - at))?;
                at = piece_end.min(end);
            }
            piece_at = piece_end;
        }
        Ok(Special::of_file(Dump { _board: self.board.clone() }, request.file().mapping())?)
    }
}

/// Returns the frame of a page of the dump.
fn frame(page: u64) -> u64 {
    let mut first = HEADERS;
    for (frame, pages) in PIECES {
        if (first..first + pages).contains(&page) {
            return frame + page - first;
        }
        first += pages;
    }
    page
}

/// Returns an open /proc/vmcore, and the place where a test sets the number of the piece that cannot be
/// mapped.
fn dump(world: &World) -> (Counted<File<Machine>>, Arc<Mutex<Option<usize>>>) {
    let broken = Arc::default();
    let driver = Vmcore { board: Board::new(&world.machine), broken: Arc::clone(&broken) };
    let mapping = Mapping::new(world.engine(), freehold::file::Zeroes, 0, true).unwrap();
    (File::with_driver(&mapping, driver, FileAccess::READ, "/proc/vmcore").unwrap(), broken)
}

#[test]
fn dump_is_mapped_piece_by_piece() {
    everywhere(|world, process, cpu| {
        let (file, _) = dump(world);
        for (first, pages) in [(0, SIZE), (1, 4), (3, 1), (5, 3)] {
            for kind in [MapFlags::SHARED, MapFlags::PRIVATE] {
                process
                    .mmap(BASE, pages * PAGE, R, kind | MapFlags::FIXED, Some(&file), first * PAGE)
                    .unwrap();
                for page in 0..pages {
                    let found = process.load(cpu, BASE + page * PAGE);
                    assert_eq!(found, Ok(Board::number(frame(first + page))));
                }
                assert_eq!(layout(process), [(0, pages)]);
                assert!(process.mprotect(BASE, pages * PAGE, RW).is_err());
                process.munmap(BASE, pages * PAGE).unwrap();
            }
        }
        let write = process.mmap(BASE, PAGE, RW, PRIVATE, Some(&file), 0);
        assert_eq!(write, Err(MmapError::NotPermitted));
        assert_eq!(process.mmap(BASE, 9 * PAGE, R, PRIVATE, Some(&file), 0), Err(MmapError::Invalid));
    });
}

/// C-31: each piece fails in turn, over a hole and over another mapping. The other mapping stays with its
/// pages.
#[test]
fn c31_failed_piece_leaves_no_mapping() {
    for over_something in [false, true] {
        everywhere(|world, process, cpu| {
            let (file, broken) = dump(world);
            if over_something {
                anon(process, BASE - PAGE, 4);
                fill(process, cpu, BASE - PAGE, 4, 50);
            }
            let before = (layout_from(process), process.rss(), process.counts().total_vm);
            let tables = world.machine.accounting().tables;
            for piece in 0..PIECES.len() {
                *broken.lock().unwrap() = Some(piece);
                let mapped = process.mmap(BASE, SIZE * PAGE, R, PRIVATE, Some(&file), 0);
                assert_eq!(mapped, Err(MmapError::NotReady));
                process.check();
                let after = (layout_from(process), process.rss(), process.counts().total_vm);
                assert_eq!(after, before);
                assert_eq!(world.machine.accounting().tables, tables, "page tables leaked");
                assert!(process.try_read().is_some(), "a lock is still held");
                for page in 3..SIZE {
                    assert!(process.load::<u64>(cpu, BASE + page * PAGE).is_err());
                }
                if over_something {
                    assert_filled(process, cpu, BASE - PAGE, 4, 50);
                }
            }
            *broken.lock().unwrap() = None;
            process.mmap(BASE, SIZE * PAGE, R, PRIVATE, Some(&file), 0).unwrap();
            assert_eq!(process.load(cpu, BASE + 7 * PAGE), Ok(Board::number(frame(7))));
        });
    }
}

/// Returns the borders of the mappings, however their VMAs are split.
fn layout_from(process: &Process) -> Vec<(u64, u64)> {
    let mut joined: Vec<(u64, u64)> = Vec::new();
    for line in process.maps(0) {
        match joined.last_mut() {
            Some((_, end)) if *end == line.start => *end = line.end,
            _ => joined.push((line.start, line.end)),
        }
    }
    joined
}
