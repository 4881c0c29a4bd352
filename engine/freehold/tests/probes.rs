//! Breakpoints (`src/uprobe/`) in pages of files: each is present exactly once in every process that maps the
//! text, now or later, and nowhere else.
//!
//! A test adds a probe at `PLACE` of a program whose bytes never equal a trap, makes calls that map, move,
//! copy or discard the page, and compares the bytes that each process reads (`assert_trapped`,
//! `assert_plain`). The file itself must not change (`assert_file_untouched`). Every scenario runs on every
//! design, including those of the locks of files. The TLBs of the machine keep stale translations until they
//! are flushed. The last test makes random calls and compares them with a model. A new call that maps or
//! copies pages needs a test that ends with `assert_trapped`.

use crate::support::{
    failure::{Failure, at_every_allocation},
    *,
};
use freehold::{
    PageIndex, PageRange,
    call::{Advice, RemapFlags},
    error::ProbeError,
    remote::AccessMode,
    space::Rss,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Mutex,
};

const RX: Prot = Prot::READ.union(Prot::EXEC);
const TRAP: [u8; 1] = [0xcc];
/// Offset of the breakpoint, in page 1 of the file.
const PLACE: u64 = PAGE + 100;

/// A disk with a program whose bytes are never equal to a trap.
#[derive(Default)]
struct Text {
    /// Pages that read as zeroes because they were truncated or punched.
    gone: Mutex<BTreeSet<u64>>,
}

/// Returns the byte of the program at an offset.
fn byte(offset: u64) -> u8 {
    (offset % 151) as u8 + (offset / PAGE) as u8
}

/// Returns the bytes of the program from an offset on.
fn bytes<const N: usize>(offset: u64) -> [u8; N] {
    core::array::from_fn(|n| byte(offset + n as u64))
}

impl Pager<Machine> for Text {
    fn read_page(&self, platform: &Machine, index: PageIndex, frame: Pfn) -> Result<(), IoError> {
        if self.gone.lock().unwrap().contains(&index.get()) {
            platform.zero_frame(frame);
        } else {
            platform.write_frame(frame, 0, &bytes::<{ PAGE as usize }>(index.byte()));
        }
        Ok(())
    }

    fn discard(&self, pages: PageRange) {
        self.gone.lock().unwrap().extend(pages.numbers());
    }
}

/// An open file with the program.
type Program = Counted<File<Machine>>;

fn program_of(world: &World, bytes: u64) -> Program {
    let mapping = Mapping::new(world.engine(), Text::default(), bytes, false).unwrap();
    File::new(&mapping, FileAccess::READ_WRITE, "/bin/program").unwrap()
}

/// Returns a program of 8 pages, all of which are in the cache.
fn program(world: &World) -> Program {
    let program = program_of(world, 8 * PAGE);
    (0..8).for_each(|index| program.mapping().fill(PageIndex::new(index)).unwrap());
    program
}

/// Runs `scenario` on every design, including those of the locks of files.
fn everywhere(scenario: impl Fn(&World, &Process, &mut Vcpu)) {
    everywhere_with(16 << 20, &Config::default(), scenario);
}

/// Maps the whole program.
fn map(process: &Process, program: &Program, prot: Prot) -> u64 {
    process.mmap(0, program.mapping().pages() * PAGE, prot, MapFlags::PRIVATE, Some(program), 0).unwrap()
}

/// Returns eight bytes at an address, as a program sees them.
fn seen(process: &Process, cpu: &mut Vcpu, at: u64) -> [u8; 8] {
    let mut out = [0; 8];
    process.read(cpu, at, &mut out).unwrap();
    out
}

/// Returns the eight bytes at `offset` with a breakpoint at the first of them.
fn trapped(offset: u64) -> [u8; 8] {
    let mut out = bytes(offset);
    out[0] = TRAP[0];
    out
}

/// Checks that the process sees the breakpoint, and no other change.
#[track_caller]
fn assert_trapped(process: &Process, cpu: &mut Vcpu, start: u64) {
    assert_eq!(seen(process, cpu, start + PLACE), trapped(PLACE));
    // The rest of the page and the adjacent pages are unchanged.
    assert_eq!(seen(process, cpu, start + PAGE), bytes(PAGE));
    assert_eq!(seen(process, cpu, start), bytes(0));
    assert_eq!(seen(process, cpu, start + 2 * PAGE), bytes(2 * PAGE));
    let hit = process.probe_at(start + PLACE).expect("no probe at the address");
    assert_eq!((hit.offset(), hit.original()), (PLACE, &bytes::<16>(PLACE)[..]));
    process.check();
}

/// Checks that the process sees the program without the breakpoint.
#[track_caller]
fn assert_plain(process: &Process, cpu: &mut Vcpu, start: u64) {
    assert_eq!(seen(process, cpu, start + PLACE), bytes(PLACE));
    assert_eq!(seen(process, cpu, start + PAGE), bytes(PAGE));
    assert!(process.probe_at(start + PLACE).is_none());
    process.check();
}

#[track_caller]
fn assert_file_untouched(program: &Program) {
    let mut out = [0; 16];
    assert_eq!(program.mapping().read_at(PLACE, &mut out), Ok(16));
    assert_eq!(out, bytes(PLACE));
}

#[test]
fn mapped_text_has_the_probe_until_it_is_removed() {
    everywhere(|world, process, cpu| {
        let program = program(world);
        let start = map(process, &program, RX);
        let other = world.process(Locking::default());
        let twice = [map(&other, &program, RX), map(&other, &program, R)];
        assert_eq!(seen(process, cpu, start + PLACE), bytes(PLACE));
        twice.iter().for_each(|at| assert_eq!(seen(&other, cpu, at + PLACE), bytes(PLACE)));
        let before = process.rss();
        program.mapping().add_probe(PLACE, &TRAP).unwrap();
        // The page was unmapped, and the next access maps a copy.
        assert_eq!(process.rss(), Rss { file: before.file - 1, ..before });
        assert_trapped(process, cpu, start);
        assert_eq!(process.rss(), Rss { file: before.file - 1, anon: 1, ..before });
        // A private read-only mapping also has the breakpoint, because it may become executable.
        twice.iter().for_each(|at| assert_trapped(&other, cpu, *at));
        assert_file_untouched(&program);
        program.mapping().remove_probe(PLACE).unwrap();
        assert_plain(process, cpu, start);
        twice.iter().for_each(|at| assert_plain(&other, cpu, *at));
        assert_eq!(process.rss(), before);
        assert_eq!(process.counts().data_vm, 0);
    });
}

#[test]
fn future_mappings_have_the_probe() {
    everywhere(|world, process, cpu| {
        let program = program_of(world, 8 * PAGE);
        // The page is not in the cache yet.
        program.mapping().add_probe(PLACE, &TRAP).unwrap();
        let start = map(process, &program, RX);
        assert_trapped(process, cpu, start);
        assert_eq!((process.rss().anon, process.rss().file), (1, 2));
        // The program is also mapped with MAP_POPULATE, at another address and offset.
        let flags = MapFlags::PRIVATE | MapFlags::POPULATE;
        let second = process.mmap(0, PAGE, RX, flags, Some(&program), PAGE).unwrap();
        assert_eq!(process.rss().anon, 2);
        assert_eq!(seen(process, cpu, second + 100), trapped(PLACE));
        assert_eq!(process.probe_at(second + 100).map(|hit| hit.offset()), Some(PLACE));
        assert!(process.probe_at(second + 101).is_none());
        // A mapping that replaces the text also has the breakpoint, and an unmapped range has none.
        let third = process
            .mmap(second, PAGE, RX, MapFlags::PRIVATE | MapFlags::FIXED, Some(&program), PAGE)
            .unwrap();
        assert_eq!(seen(process, cpu, third + 100), trapped(PLACE));
        process.munmap(third, PAGE).unwrap();
        assert!(process.probe_at(third + 100).is_none());
        program.mapping().remove_probe(PLACE).unwrap();
        assert_plain(process, cpu, start);
    });
}

#[test]
fn remote_access_reads_the_breakpoint() {
    everywhere(|world, process, _| {
        let program = program(world);
        program.mapping().add_probe(PLACE, &TRAP).unwrap();
        let start = map(process, &program, RX);
        let mut out = [0; 8];
        assert_eq!(process.read_memory(start + PLACE, &mut out, AccessMode::Plain), Ok(8));
        assert_eq!(out, trapped(PLACE));
        // A debugger reads pages that the program may not access.
        process.mprotect(start, PAGE * 8, Prot::empty()).unwrap();
        process.madvise(start, PAGE * 8, Advice::DontNeed).unwrap();
        assert_eq!(process.read_memory(start + PLACE, &mut out, AccessMode::Forced), Ok(8));
        assert_eq!(out, trapped(PLACE));
    });
}

#[test]
fn fork_copies_probes() {
    everywhere(|world, process, cpu| {
        let program = program(world);
        let start = map(process, &program, RX);
        // Another page was written, so fork copies the entries of the VMA, including that of the probed page.
        process.write_memory(start, &bytes::<1>(0), AccessMode::Forced).unwrap();
        seen(process, cpu, start + PLACE);
        let before = Process::of(process.fork().unwrap());
        program.mapping().add_probe(PLACE, &TRAP).unwrap();
        let untouched = Process::of(process.fork().unwrap());
        assert_trapped(process, cpu, start);
        let after = Process::of(process.fork().unwrap());
        let grandchild = Process::of(after.fork().unwrap());
        let all = [process, &before, &untouched, &after, &grandchild];
        all.iter().for_each(|one| assert_trapped(one, cpu, start));
        assert_file_untouched(&program);
        program.mapping().remove_probe(PLACE).unwrap();
        all.iter().for_each(|one| assert_plain(one, cpu, start));
        // The written page is still a copy, and the other pages are those of the file again.
        assert_eq!(all.map(|one| one.rss().anon), [1; 5]);
    });
}

/// C-68: the target of a move had the breakpoint before the entry was moved there.
#[test]
fn c68_probe_is_present_exactly_once_after_moves() {
    everywhere(|world, process, cpu| {
        let program = program(world);
        let start =
            process.mmap(BASE, 4 * PAGE, RX, MapFlags::PRIVATE | MapFlags::FIXED, Some(&program), 0).unwrap();
        seen(process, cpu, start + PLACE);
        program.mapping().add_probe(PLACE, &TRAP).unwrap();
        program.mapping().add_probe(5 * PAGE + 3, &TRAP).unwrap();
        assert_trapped(process, cpu, start);
        // The copy with the breakpoint moves, too.
        let to = BASE + (1 << 30);
        let flags = RemapFlags::MAYMOVE | RemapFlags::FIXED;
        assert_eq!(process.mremap(start, 4 * PAGE, 4 * PAGE, flags, to), Ok(to));
        assert_eq!(process.rss().anon, 1);
        assert_trapped(process, cpu, to);
        assert!(process.probe_at(start + PLACE).is_none());
        assert!(process.read(cpu, start + PLACE, &mut [0; 1]).is_err());
        // The mapping grows in place, over a page with a probe.
        assert_eq!(process.mremap(to, 4 * PAGE, 8 * PAGE, RemapFlags::empty(), 0), Ok(to));
        assert_trapped(process, cpu, to);
        assert_eq!(seen(process, cpu, to + 5 * PAGE + 3), trapped(5 * PAGE + 3));
        assert_eq!(process.rss().anon, 2);
        // The mapping moves and grows, and then shrinks at its new address.
        process.mremap(to + 2 * PAGE, 6 * PAGE, 2 * PAGE, RemapFlags::empty(), 0).unwrap();
        assert_eq!(process.mremap(to, 4 * PAGE, 8 * PAGE, flags, start), Ok(start));
        assert_trapped(process, cpu, start);
        assert_eq!(seen(process, cpu, start + 5 * PAGE + 3), trapped(5 * PAGE + 3));
        assert_eq!(process.mremap(start, 8 * PAGE, 2 * PAGE, RemapFlags::empty(), 0), Ok(start));
        assert_eq!(process.rss().anon, 1);
        // The source stays mapped (MREMAP_DONTUNMAP), and its pages are faulted in again.
        let kept = process
            .mremap(start, 2 * PAGE, 2 * PAGE, RemapFlags::MAYMOVE | RemapFlags::DONTUNMAP, 0)
            .unwrap();
        for at in [start, kept] {
            assert_eq!(seen(process, cpu, at + PLACE), trapped(PLACE));
        }
        program.mapping().remove_probe(PLACE).unwrap();
        for at in [start, kept] {
            assert_plain(process, cpu, at);
        }
    });
}

#[test]
fn c68_page_moved_before_the_probe_was_added_gets_it() {
    everywhere(|world, process, cpu| {
        let program = program(world);
        let start = map(process, &program, RX);
        seen(process, cpu, start + PLACE);
        let to = BASE + (1 << 30);
        let flags = RemapFlags::MAYMOVE | RemapFlags::FIXED;
        process.mremap(start + PAGE, PAGE, PAGE, flags, to).unwrap();
        program.mapping().add_probe(PLACE, &TRAP).unwrap();
        assert_eq!(seen(process, cpu, to + 100), trapped(PLACE));
        process.mremap(to, PAGE, PAGE, flags, start + PAGE).unwrap();
        assert_trapped(process, cpu, start);
        assert_eq!(process.rss().anon, 1);
        program.mapping().remove_probe(PLACE).unwrap();
        assert_plain(process, cpu, start);
    });
}

#[test]
fn discarded_page_gets_the_probe_again() {
    everywhere(|world, process, cpu| {
        let program = program(world);
        let start = map(process, &program, RX);
        program.mapping().add_probe(PLACE, &TRAP).unwrap();
        for _ in 0..2 {
            assert_trapped(process, cpu, start);
            process.madvise(start + PAGE, PAGE, Advice::DontNeed).unwrap();
            assert_eq!(process.rss().anon, 0);
        }
        // A fault on an adjacent page does not map the probed page.
        process.madvise(start, 8 * PAGE, Advice::DontNeed).unwrap();
        seen(process, cpu, start);
        assert_eq!(process.rss(), Rss { file: 7, anon: 0, ..Rss::default() });
        assert_trapped(process, cpu, start);
    });
}

#[test]
fn mapping_that_becomes_text_gets_the_probe() {
    everywhere(|world, process, cpu| {
        let program = program(world);
        let start = map(process, &program, RW);
        // One page is a page of the file, and another page was written.
        seen(process, cpu, start + PLACE);
        let written = 3 * PAGE;
        process.store(cpu, start + written, 9u64).unwrap();
        program.mapping().add_probe(PLACE, &TRAP).unwrap();
        program.mapping().add_probe(written + 100, &TRAP).unwrap();
        let both = |process: &Process, cpu: &mut Vcpu| {
            (seen(process, cpu, start + PLACE), seen(process, cpu, start + written + 100))
        };
        // Data has no breakpoints, also after a first fault.
        assert_eq!(both(process, cpu), (bytes(PLACE), bytes(written + 100)));
        process.madvise(start + PAGE, PAGE, Advice::DontNeed).unwrap();
        assert_eq!(both(process, cpu).0, bytes(PLACE));
        let child = Process::of(process.fork().unwrap());
        process.mprotect(start, 8 * PAGE, RX).unwrap();
        process.check();
        assert_eq!(both(process, cpu), (trapped(PLACE), trapped(written + 100)));
        assert_eq!(process.load(cpu, start + written), Ok(9u64));
        // The mapping of the child is still data. The child shared the written page.
        assert_eq!(both(&child, cpu), (bytes(PLACE), bytes(written + 100)));
        // After the text became writable again, existing breakpoints stay, new copies have none, and all can
        // be removed.
        process.mprotect(start, 8 * PAGE, RW).unwrap();
        process.store(cpu, start + PAGE, 1u64).unwrap();
        assert_eq!(both(process, cpu), (trapped(PLACE), trapped(written + 100)));
        program.mapping().remove_probe(PLACE).unwrap();
        program.mapping().remove_probe(written + 100).unwrap();
        assert_eq!(both(process, cpu), (bytes(PLACE), bytes(written + 100)));
        assert_eq!(
            (process.load(cpu, start + PAGE), process.load(cpu, start + written)),
            (Ok(1u64), Ok(9u64))
        );
        child.check();
    });
}

#[test]
fn shared_mappings_and_the_file_have_no_probe() {
    everywhere(|world, process, cpu| {
        let program = program(world);
        let shared = process.mmap(0, 8 * PAGE, RW | RX, MapFlags::SHARED, Some(&program), 0).unwrap();
        let reader = File::new(program.mapping(), FileAccess::READ, "/bin/program").unwrap();
        let read_only = process.mmap(0, 8 * PAGE, RX, MapFlags::SHARED, Some(&reader), 0).unwrap();
        let start = map(process, &program, RX);
        let all = |cpu: &mut Vcpu| [shared, read_only].map(|at| seen(process, cpu, at + PLACE));
        assert_eq!(all(cpu), [bytes(PLACE); 2]);
        program.mapping().add_probe(PLACE, &TRAP).unwrap();
        assert_trapped(process, cpu, start);
        assert_eq!(all(cpu), [bytes(PLACE); 2]);
        assert!(process.probe_at(shared + PLACE).is_none());
        assert_file_untouched(&program);
        program.mapping().write_back((0..8).into()).unwrap();
        // Another byte of the page changes. Text that is not a copy yet shows the new byte.
        let other = world.process(Locking::default());
        process.store(cpu, shared + PAGE, 5u64).unwrap();
        let at = map(&other, &program, RX);
        assert_eq!((other.load(cpu, at + PAGE), seen(&other, cpu, at + PLACE)), (Ok(5u64), trapped(PLACE)));
        // The probed instruction itself is overwritten. The breakpoint does not apply to the new instruction.
        process.write(cpu, shared + PLACE, &[1, 2]).unwrap();
        let third = world.process(Locking::default());
        let at = map(&third, &program, RX);
        assert_eq!(seen(&third, cpu, at + PLACE)[..2], [1, 2]);
        [&other, &third].iter().for_each(|process| process.check());
    });
}

#[test]
fn probe_keeps_bytes_that_a_debugger_wrote() {
    everywhere(|world, process, cpu| {
        let program = program(world);
        let start = map(process, &program, RX);
        let (near, own) = (start + PLACE + 50, b"mine");
        assert_eq!(process.write_memory(near, own, AccessMode::Forced), Ok(4));
        let child = Process::of(process.fork().unwrap());
        let alone = world.process(Locking::default());
        let at = map(&alone, &program, RX);
        assert_eq!(alone.write_memory(at + PLACE + 50, own, AccessMode::Forced), Ok(4));
        let everyone = [(process, start), (&child, start), (&alone, at)];
        for _ in 0..2 {
            program.mapping().add_probe(PLACE, &TRAP).unwrap();
            for (process, start) in everyone {
                assert_trapped(process, cpu, start);
                assert_eq!(&seen(process, cpu, start + PLACE + 50)[..4], own);
                assert_eq!(process.rss().anon, 1);
            }
            program.mapping().remove_probe(PLACE).unwrap();
            for (process, start) in everyone {
                assert_plain(process, cpu, start);
                assert_eq!(&seen(process, cpu, start + PLACE + 50)[..4], own);
                assert_eq!(process.rss().anon, 1);
            }
        }
        // C-2, C-56: a later write to one process's copy does not change the other's copy.
        program.mapping().add_probe(PLACE, &TRAP).unwrap();
        assert_eq!(process.write_memory(near, b"ours", AccessMode::Forced), Ok(4));
        assert_eq!(&seen(&child, cpu, near)[..4], own);
        assert_file_untouched(&program);
        // A byte that a debugger wrote at the place of the breakpoint is not replaced.
        let other = world.process(Locking::default());
        let at = map(&other, &program, RX);
        program.mapping().remove_probe(PLACE).unwrap();
        assert_eq!(other.write_memory(at + PLACE, b"\x01", AccessMode::Forced), Ok(1));
        program.mapping().add_probe(PLACE, &TRAP).unwrap();
        assert_eq!(seen(&other, cpu, at + PLACE)[0], 1);
        program.mapping().remove_probe(PLACE).unwrap();
        assert_eq!(seen(&other, cpu, at + PLACE)[0], 1);
        everyone.iter().for_each(|(process, _)| process.check());
    });
}

#[test]
fn one_page_can_have_several_probes() {
    everywhere(|world, process, cpu| {
        let (program, wide) = (program(world), [0xcc, 0xcd, 0xce, 0xcf]);
        let start = map(process, &program, RX);
        let places = [PAGE, PLACE, PAGE + 254, 2 * PAGE - 4];
        seen(process, cpu, start + PLACE);
        for (n, place) in places.into_iter().enumerate() {
            program.mapping().add_probe(place, &wide).unwrap();
            let found = places.map(|place| seen(process, cpu, start + place)[..4] == wide);
            assert_eq!(found, core::array::from_fn(|at| at <= n));
            assert_eq!(process.rss().anon, 1);
        }
        let child = Process::of(process.fork().unwrap());
        assert_eq!(program.mapping().add_probe(PLACE, &TRAP), Err(ProbeError::Taken));
        assert_eq!(program.mapping().add_probe(PLACE + 3, &TRAP), Err(ProbeError::Taken));
        assert_eq!(program.mapping().add_probe(PLACE - 1, &wide[..2]), Err(ProbeError::Taken));
        assert_eq!(program.mapping().remove_probe(PLACE + 1), Err(ProbeError::NotThere));
        for (n, place) in places.into_iter().enumerate() {
            program.mapping().remove_probe(place).unwrap();
            for process in [process, &child] {
                let found = places.map(|place| seen(process, cpu, start + place)[..4] == wide);
                assert_eq!(found, core::array::from_fn(|at| at > n));
                process.check();
            }
        }
        assert_eq!((process.rss().anon, child.rss().anon), (0, 0));
        assert_eq!(program.mapping().remove_probe(PLACE), Err(ProbeError::NotThere));
    });
}

#[test]
fn add_probe_checks_offset_and_length() {
    everywhere(|world, process, cpu| {
        let program = program_of(world, 2 * PAGE + 10);
        let add = |offset, bytes: &[u8]| program.mapping().add_probe(offset, bytes);
        assert_eq!(add(0, &[]), Err(ProbeError::Invalid));
        assert_eq!(add(0, &[0xcc; 17]), Err(ProbeError::Invalid));
        assert_eq!(add(PAGE - 1, &[0xcc; 2]), Err(ProbeError::Invalid));
        assert_eq!(add(u64::MAX, &[0xcc; 1]), Err(ProbeError::BeyondEnd));
        assert_eq!(add(2 * PAGE + 10, &[0xcc; 1]), Err(ProbeError::BeyondEnd));
        assert_eq!(add(2 * PAGE + 9, &[0xcc; 2]), Err(ProbeError::BeyondEnd));
        assert_eq!(add(5, &bytes::<2>(5)), Err(ProbeError::Unchanged));
        // The probe is at the last byte of the file. Later bytes are not part of the saved instruction.
        let last = 2 * PAGE + 9;
        add(last, &TRAP).unwrap();
        add(PAGE - 1, &TRAP).unwrap();
        let start = map(process, &program, RX);
        assert_eq!(seen(process, cpu, start + last), [0xcc, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(process.probe_at(start + last).unwrap().original(), &bytes::<1>(last));
        // A saved instruction may extend into the next page.
        assert_eq!(process.probe_at(start + PAGE - 1).unwrap().original(), &bytes::<16>(PAGE - 1));
        assert!(process.probe_at(start - 1).is_none());
        assert!(process.probe_at(u64::MAX).is_none());
    });
}

#[test]
fn truncation_and_holes_remove_the_probe() {
    everywhere(|world, process, cpu| {
        let program = program(world);
        let start = map(process, &program, RX);
        program.mapping().add_probe(PLACE, &TRAP).unwrap();
        assert_trapped(process, cpu, start);
        // A private copy survives a hole. A new copy shows the zeroes of the file, without a breakpoint.
        program.mapping().punch(PAGE..2 * PAGE).unwrap();
        assert_eq!(seen(process, cpu, start + PLACE), trapped(PLACE));
        process.madvise(start + PAGE, PAGE, Advice::DontNeed).unwrap();
        process.check();
        assert_eq!(seen(process, cpu, start + PLACE), [0; 8]);
        // Beyond the end of the file, no page is mapped and no probe can be added.
        program.mapping().truncate(PAGE).unwrap();
        assert!(process.read(cpu, start + PLACE, &mut [0; 1]).is_err());
        assert_eq!(process.rss().anon, 0);
        assert_eq!(program.mapping().add_probe(PLACE + 8, &TRAP), Err(ProbeError::BeyondEnd));
        program.mapping().remove_probe(PLACE).unwrap();
        program.mapping().truncate(8 * PAGE).unwrap();
        assert_eq!(seen(process, cpu, start + PLACE), [0; 8]);
    });
}

#[test]
fn probed_copies_are_migrated() {
    everywhere(|world, process, cpu| {
        let program = program(world);
        let start = map(process, &program, RX);
        program.mapping().add_probe(PLACE, &TRAP).unwrap();
        assert_trapped(process, cpu, start);
        let child = Process::of(process.fork().unwrap());
        let old = process.frame_at(start + PAGE).unwrap();
        assert_eq!(world.engine().entries_of(old), 2);
        let new = world.engine().migrate(old).unwrap();
        assert_eq!(process.frame_at(start + PAGE), Some(new));
        assert_trapped(process, cpu, start);
        assert_trapped(&child, cpu, start);
        program.mapping().remove_probe(PLACE).unwrap();
        assert_plain(process, cpu, start);
        assert_plain(&child, cpu, start);
    });
}

#[test]
fn failed_probe_change_has_no_effect_or_can_be_repeated() {
    everywhere(|world, process, cpu| {
        let program = program(world);
        let start = map(process, &program, RX);
        // The page was written and is shared after a fork: each process needs a copy.
        process.write_memory(start + PLACE + 50, b"mine", AccessMode::Forced).unwrap();
        let child = Process::of(process.fork().unwrap());
        let both = [process, &child];
        let failures = at_every_allocation(&[Failure::HeapFromThere], |point| {
            let done = point.fail(|| program.mapping().add_probe(PLACE, &TRAP));
            if !point.reached() {
                return done.unwrap();
            }
            assert_eq!(done, Err(ProbeError::OutOfMemory));
            both.iter().for_each(|one| assert_plain(one, cpu, start));
        });
        assert!(failures > 0);
        both.iter().for_each(|one| assert_trapped(one, cpu, start));
        at_every_allocation(&[Failure::HeapFromThere], |point| {
            let done = point.fail(|| program.mapping().remove_probe(PLACE));
            if !point.reached() {
                return done.unwrap();
            }
            assert_eq!(done, Err(ProbeError::OutOfMemory));
            both.iter().for_each(|one| assert_trapped(one, cpu, start));
        });
        both.iter().for_each(|one| assert_plain(one, cpu, start));
        let processes: Vec<_> = (0..4).map(|_| Process::of(child.fork().unwrap())).collect();
        // Frame allocations fail: each process needs a copy of its own. If one copy fails, all processes are
        // left without the breakpoint.
        at_every_allocation(&[Failure::MemoryFromThere], |point| {
            let done = point.fail(|| program.mapping().add_probe(PLACE, &TRAP));
            if !point.reached() {
                return done.unwrap();
            }
            assert_eq!(done, Err(ProbeError::OutOfMemory));
            processes.iter().for_each(|one| assert_plain(one, cpu, start));
        });
        let more: Vec<_> = processes.iter().map(|one| Process::of(one.fork().unwrap())).collect();
        let everyone = || processes.iter().chain(&more);
        at_every_allocation(&[Failure::MemoryFromThere], |point| {
            let done = point.fail(|| program.mapping().remove_probe(PLACE));
            if !point.reached() {
                return done.unwrap();
            }
            assert_eq!(done, Err(ProbeError::OutOfMemory));
            // After a failed removal, the remaining breakpoints are still known, and none are added.
            for one in everyone() {
                let shown = seen(one, cpu, start + PLACE);
                assert!(shown == trapped(PLACE) || shown == bytes(PLACE));
                assert!(one.probe_at(start + PLACE).is_some());
            }
            let new = world.process(Locking::default());
            let at = map(&new, &program, RX);
            assert_eq!(seen(&new, cpu, at + PLACE), bytes(PLACE));
            assert_eq!(program.mapping().add_probe(PLACE, &TRAP), Err(ProbeError::Taken));
        });
        everyone().for_each(|one| assert_plain(one, cpu, start));
    });
}

/// Random calls of a tree of processes while probes are added and removed, compared with a model of every
/// page.
#[test]
fn random_calls_with_probes_match_the_model() {
    for seed in 0..16 {
        let locking = Locking::ALL[seed as usize % Locking::ALL.len()];
        let world = World::new();
        let program = program(&world);
        let mut cpu = world.machine.cpu(0);
        let mut dice = Dice::new(seed);
        let mut pick = |n| dice.roll(n);
        /// The model of a process. For each address at which the process maps a page of the program: the
        /// number of the page in the file, and the byte that a debugger wrote there, if any.
        type Known = BTreeMap<u64, (u64, Option<u8>)>;
        let first = world.process(locking);
        let flags = MapFlags::PRIVATE | MapFlags::FIXED;
        first.mmap(BASE, 8 * PAGE, RX, flags, Some(&program), 0).unwrap();
        let known: Known = (0..8).map(|n| (BASE + n * PAGE, (n, None))).collect();
        let mut processes = vec![(first, known)];
        let mut probes = [false; 8];
        for step in 0..300 {
            let members = processes.len();
            let who = pick(members as u64) as usize;
            let (process, known) = &mut processes[who];
            let at = BASE + pick(16) * PAGE;
            match pick(12) {
                0..=3 => {
                    let index = pick(8);
                    let place = index * PAGE + 100;
                    let probed = &mut probes[index as usize];
                    match core::mem::replace(probed, !*probed) {
                        true => program.mapping().remove_probe(place).unwrap(),
                        false => program.mapping().add_probe(place, &TRAP).unwrap(),
                    }
                }
                4 => {
                    let byte = pick(100) as u8;
                    if process.write_memory(at + 300, &[byte], AccessMode::Forced).is_ok() {
                        known.get_mut(&at).unwrap().1 = Some(byte);
                    }
                }
                5 => {
                    if known.contains_key(&at) {
                        process.madvise(at, PAGE, Advice::DontNeed).unwrap();
                        known.get_mut(&at).unwrap().1 = None;
                    }
                }
                6 => {
                    let to = BASE + pick(16) * PAGE;
                    let flags = RemapFlags::MAYMOVE | RemapFlags::FIXED;
                    if at != to
                        && let Some(what) = known.remove(&at)
                    {
                        process.mremap(at, PAGE, PAGE, flags, to).unwrap();
                        known.insert(to, what);
                    }
                }
                7 => {
                    let index = pick(8);
                    process.mmap(at, PAGE, RX, flags, Some(&program), index * PAGE).unwrap();
                    known.insert(at, (index, None));
                }
                8 => {
                    if let Some(pfn) = process.frame_at(at) {
                        let _ = world.engine().migrate(pfn);
                    }
                }
                9 if members < 5 => {
                    let child = (Process::of(process.fork().unwrap()), known.clone());
                    processes.push(child);
                }
                9 if pick(2) == 0 => drop(processes.swap_remove(who)),
                _ => {
                    if let Some((index, _)) = known.get(&at) {
                        seen(process, &mut cpu, at + index);
                    }
                }
            }
            for (process, known) in &processes {
                process.check();
                for (at, (index, written)) in known {
                    if pick(4) != 0 {
                        continue;
                    }
                    let place = index * PAGE + 100;
                    let probed = probes[*index as usize];
                    let expected = if probed { trapped(place) } else { bytes(place) };
                    assert_eq!(
                        seen(process, &mut cpu, at + 100),
                        expected,
                        "seed {seed}, step {step}, {at:#x}"
                    );
                    assert_eq!(process.probe_at(at + 100).is_some(), probed);
                    let other = seen(process, &mut cpu, at + 300)[0];
                    assert_eq!(
                        other,
                        written.unwrap_or(byte(index * PAGE + 300)),
                        "seed {seed}, step {step}"
                    );
                }
            }
            assert!(!processes.is_empty());
        }
        drop((processes, cpu, program));
        world.end();
    }
}
