//! Pins, fork and copy on write (C-56, C-57): a program and the holder of its pins see the same memory, and a
//! child sees other memory. Each test stores through the program, the child and the pin, and checks which of
//! the three see the store. `hugetlb/private.rs` tests the same rule for huge pages of pools.

use super::*;
use freehold::engine::HugePages;

/// C-57: a pinned page stays with the parent, and the child gets a copy of its contents.
#[test]
fn c57_fork_copies_pinned_pages() {
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
            // Stores are visible in both directions: those of the program, and those of the device.
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

/// C-56: a page that is shared after a fork is copied before it is pinned, also for reading. A later store by
/// either process therefore does not separate the pin from its program.
#[test]
fn c56_shared_pages_are_copied_before_they_are_pinned() {
    everywhere(|_, process, cpu| {
        anon(process, BASE, 2);
        fill(process, cpu, BASE, 2, 10);
        let child = Process::of(process.fork().unwrap());
        for (side, other) in [(process, &child), (&child, process)] {
            let at = BASE + if core::ptr::eq(side, process) { 0 } else { PAGE };
            assert_eq!(fast(side, cpu, at, 1, READ).len(), 0, "a shared page was pinned");
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

/// C-56: a read-only page that is copied in order to be pinned stays read-only.
#[test]
fn c56_read_only_pages_are_copied_and_stay_read_only() {
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

/// The copy of a child is an ordinary page. After the pin is dropped, fork shares the parent's page again.
#[test]
fn fork_shares_pages_again_after_unpinning() {
    everywhere(|_, process, cpu| {
        anon(process, BASE, 1);
        fill(process, cpu, BASE, 1, 10);
        let pins = process.pin_user_pages(BASE, 1, WRITE).unwrap();
        let child = Process::of(process.fork().unwrap());
        let grandchild = Process::of(child.fork().unwrap());
        assert_eq!(
            child.frame_at(BASE),
            grandchild.frame_at(BASE),
            "the copy of a pinned page is not shared"
        );
        drop(pins);
        let second = Process::of(process.fork().unwrap());
        assert_eq!(
            process.frame_at(BASE),
            second.frame_at(BASE),
            "the page was copied although it is not pinned any more"
        );
        process.store(cpu, BASE, 11u64).unwrap();
        for (side, value) in [(process, 11u64), (&child, 10), (&grandchild, 10), (&second, 10)] {
            assert_eq!(side.load(cpu, BASE), Ok(value));
            side.check();
        }
    });
}

/// C-57: one small page of a huge page is pinned. The other pages are shared as small pages.
#[test]
fn c57_fork_copies_only_pinned_parts_of_a_huge_page() {
    for locking in Locking::ALL {
        let world = World::with(24 << 20, Config::new().huge_pages(HugePages::Always));
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
