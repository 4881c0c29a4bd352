//! Pins, fork and copying on write (hazards C-56, C-57): a program and the holder of its pins see one memory;
//! a child sees another.

use super::*;
use freehold::engine::HugePages;

/// C-57: the page stays the parent's, and the child has what it was.
#[test]
fn c57_fork_copies_what_is_pinned() {
    for flags in [READ, WRITE, LONG, WRITE | LONG] {
        everywhere(|_, process, cpu| {
            anon(process, BASE, 3);
            fill(process, cpu, BASE, 3, 10);
            let pins = process.pin_user_pages(BASE + PAGE, 1, flags).unwrap();
            let child = Process::of(process.fork().unwrap());
            assert_eq!(process.frame_at(BASE), child.frame_at(BASE));
            assert_ne!(process.frame_at(BASE + PAGE), child.frame_at(BASE + PAGE));
            assert_eq!(process.frame_at(BASE + PAGE), Some(pins.frames()[0]));
            assert_eq!(child.rss().anon, 3);
            // Both ways: what the program stores, and what the device does.
            process.store(cpu, BASE + PAGE, 21u64).unwrap();
            assert_eq!((word(&pins, 0), child.load(cpu, BASE + PAGE)), (21, Ok(11u64)));
            child.store(cpu, BASE + PAGE, 31u64).unwrap();
            if flags.contains(WRITE) {
                put(&pins, 0, 22);
                assert_eq!(process.load(cpu, BASE + PAGE), Ok(22u64));
            }
            assert_eq!(child.load(cpu, BASE + PAGE), Ok(31u64));
            child.check();
        });
    }
}

/// C-56: a page that is shared already is copied before it is pinned, for a reader too. A later store on
/// either side then does not part the pin from its program.
#[test]
fn c56_what_is_shared_is_copied_before_it_is_pinned() {
    everywhere(|_, process, cpu| {
        anon(process, BASE, 2);
        fill(process, cpu, BASE, 2, 10);
        let child = Process::of(process.fork().unwrap());
        for (side, other) in [(process, &child), (&child, process)] {
            let at = BASE + if core::ptr::eq(side, process) { 0 } else { PAGE };
            assert_eq!(fast(side, cpu, at, 1, READ).len(), 0, "shared, and pinned");
            let before = side.load::<u64>(cpu, at).unwrap();
            let pins = side.pin_user_pages(at, 1, READ).unwrap();
            assert_eq!(word(&pins, 0), before);
            other.store(cpu, at, 90u64).unwrap();
            assert_eq!(word(&pins, 0), before);
            side.store(cpu, at, 91u64).unwrap();
            assert_eq!(word(&pins, 0), 91);
            assert_eq!(other.load(cpu, at), Ok(90u64));
        }
        child.check();
    });
}

/// What is read-only stays so when it is copied to be pinned.
#[test]
fn c56_read_only_pages_too() {
    everywhere(|_, process, cpu| {
        anon(process, BASE, 1);
        fill(process, cpu, BASE, 1, 10);
        process.mprotect(BASE, PAGE, R).unwrap();
        let child = Process::of(process.fork().unwrap());
        let pins = process.pin_user_pages(BASE, 1, LONG).unwrap();
        assert_ne!(process.frame_at(BASE), child.frame_at(BASE));
        assert!(process.store(cpu, BASE, 1u64).is_err());
        process.mprotect(BASE, PAGE, RW).unwrap();
        process.store(cpu, BASE, 11u64).unwrap();
        assert_eq!((word(&pins, 0), child.load(cpu, BASE)), (11, Ok(10u64)));
    });
}

/// A pin outlives what it pinned; then it is nobody's page any more, and fork shares what has come since.
#[test]
fn forks_of_forks() {
    everywhere(|_, process, cpu| {
        anon(process, BASE, 1);
        fill(process, cpu, BASE, 1, 10);
        let pins = process.pin_user_pages(BASE, 1, WRITE).unwrap();
        let child = Process::of(process.fork().unwrap());
        let grandchild = Process::of(child.fork().unwrap());
        assert_eq!(child.frame_at(BASE), grandchild.frame_at(BASE), "the copy is a page like others");
        drop(pins);
        let second = Process::of(process.fork().unwrap());
        assert_eq!(process.frame_at(BASE), second.frame_at(BASE), "copied though nobody has it any more");
        process.store(cpu, BASE, 11u64).unwrap();
        for (side, value) in [(process, 11u64), (&child, 10), (&grandchild, 10), (&second, 10)] {
            assert_eq!(side.load(cpu, BASE), Ok(value));
            side.check();
        }
    });
}

/// One pinned page of a huge one: the rest is shared in small pieces.
#[test]
fn c57_a_part_of_a_huge_page() {
    for locking in Locking::ALL {
        let world = World::with(24 << 20, Config { huge_pages: HugePages::Always, ..Config::default() });
        world.live(locking, |_, process, cpu| {
            anon(process, BASE, 512);
            fill(process, cpu, BASE, 512, 10);
            assert_eq!(process.smaps(0).map(|smap| smap.usage.anonymous_huge).sum::<u64>(), HUGE);
            assert_eq!(fast(process, cpu, BASE + 100 * PAGE, 412, WRITE).len(), 412);
            let pins = fast(process, cpu, BASE + 100 * PAGE, 2, WRITE);
            let child = Process::of(process.fork().unwrap());
            let frames = |side: &Process| [99, 100, 101, 102].map(|n| side.frame_at(BASE + n * PAGE));
            let (ours, theirs) = (frames(process), frames(&child));
            assert_eq!((ours[0], ours[3]), (theirs[0], theirs[3]));
            assert!(ours[1] != theirs[1] && ours[2] != theirs[2]);
            put(&pins, 1, 5);
            process.store(cpu, BASE + 100 * PAGE, 6u64).unwrap();
            assert_eq!((word(&pins, 0), process.load(cpu, BASE + 101 * PAGE)), (6, Ok(5u64)));
            support::assert_filled(&child, cpu, BASE, 512, 10);
            child.check();
        });
    }
}
