//! Memory runs out in calls of a userfaultfd and in calls that send messages (C-10, C-55). Every allocation
//! of every call fails once, alone or together with all later allocations. Either the call fails and can be
//! repeated, or it succeeds without the memory.
//!
//! A new call is one more entry of `CALLS`. Another thread reads the messages, so that no call waits for a
//! pager. The sweep (`sweep/ops/userfaults.rs`) makes the same calls on more kinds of memory, and also
//! compares the state after a failure.

use super::{
    support::{
        failure::{Failure, Point, at_every_allocation},
        scarce::ScarceWorld,
    },
    *,
};
use freehold::{
    call::Advice,
    error::Errno,
    uffd::{MoveMode, ProtectMode},
};

/// Contents of two pages.
static CONTENTS: [u8; 2 * PAGE as usize] = [7; 2 * PAGE as usize];

/// A call on a process and its userfaultfd.
struct Call {
    name: &'static str,
    run: fn(&Process, &Uffd) -> Result<(), Errno>,
    /// True if the call allocates.
    allocates: bool,
}

/// Converts the result of a fill. A fill of only a part means that memory ran out.
fn all(done: Result<u64, UffdError>, bytes: u64) -> Result<(), Errno> {
    match done {
        Ok(done) if done == bytes => Ok(()),
        // Only a part was filled. A repeated call for the whole range finds that part present.
        Ok(_) => Err(Errno::ENOMEM),
        Err(UffdError::Present | UffdError::SourceHole) => Ok(()),
        Err(error) => Err(error.errno()),
    }
}

const CALLS: &[Call] = &[
    Call {
        name: "a context",
        run: |process, _| {
            let new = Userfaultfd::new(process.space(), UffdConfig::default());
            new.map(drop).map_err(|_| Errno::ENOMEM)
        },
        allocates: true,
    },
    Call {
        name: "register",
        run: |_, uffd| uffd.register(page(21), 2 * PAGE, MISSING).map(drop).map_err(|error| error.errno()),
        allocates: true,
    },
    Call {
        name: "unregister",
        run: |_, uffd| uffd.unregister(page(1), PAGE).map_err(|error| error.errno()),
        allocates: true,
    },
    // If there is no memory, the call may skip the merge, because it cannot report an error.
    Call { name: "close", run: |_, uffd| (uffd.close(), Ok(())).1, allocates: false },
    Call { name: "copy", run: |_, uffd| all(uffd.copy(page(2), &CONTENTS, WAKE), 2 * PAGE), allocates: true },
    Call {
        name: "copy into shared memory",
        run: |_, uffd| all(uffd.copy(page(600), &CONTENTS[..PAGE as usize], WAKE), PAGE),
        allocates: true,
    },
    Call { name: "zeroes", run: |_, uffd| all(uffd.zeropage(page(2), PAGE, WAKE), PAGE), allocates: false },
    Call {
        name: "write protection of unpopulated memory",
        run: |_, uffd| {
            uffd.write_protect(page(600), 4 * PAGE, ProtectMode::WP).map_err(|error| error.errno())
        },
        allocates: true,
    },
    Call {
        name: "move",
        run: |_, uffd| all(uffd.move_pages(page(2), page(20), PAGE, MoveMode::empty()), PAGE),
        allocates: false,
    },
    Call {
        name: "fork",
        run: |process, _| process.fork().map(drop).map_err(|error| error.errno()),
        allocates: true,
    },
    Call {
        name: "munmap",
        run: |process, _| process.munmap(page(1), 2 * PAGE).map_err(|error| error.errno()),
        allocates: true,
    },
    Call {
        name: "DONTNEED",
        run: |process, _| process.madvise(BASE, PAGE, Advice::DontNeed).map_err(|error| error.errno()),
        allocates: false,
    },
];

/// Makes a call with one failure.
fn with_failure(call: &Call, locking: Locking, point: &Point) {
    let what = format!("{}, {locking:?}, {point}", call.name);
    let mut scarce = ScarceWorld::new(World::new());
    let world = &scarce.world;
    let process = world.process(locking);
    let mut cpu = world.machine.cpu(0);
    let features =
        Features::EVENT_FORK | Features::EVENT_UNMAP | Features::EVENT_REMOVE | Features::WP_UNPOPULATED;
    let uffd = registered(&process, 4, MISSING | WP, features);
    uffd.copy(BASE, &pages_of(0..2), WAKE).unwrap();
    anon(&process, page(20), 4);
    process.store(&mut cpu, page(20), 1u64).unwrap();
    let file = shmem(world, 4);
    map_shmem(&process, page(600), 4, MapFlags::SHARED, &file);
    uffd.register(page(600), 4 * PAGE, MISSING | WP).unwrap();
    scarce.use_up(0);
    // Another thread, for which memory does not fail, reads the messages of the call.
    let read = || drop(uffd.try_read());
    let done = while_repeating(read, || point.fail(|| (call.run)(&process, &uffd)));
    match done {
        Ok(()) => {}
        Err(errno) => {
            assert!(point.reached(), "{what}: {errno:?} without an injected failure");
            assert_eq!(errno, Errno::ENOMEM, "{what}");
            assert!(process.try_read().is_some(), "{what}: a lock is still held");
            process.check();
            assert_eq!(while_repeating(read, || (call.run)(&process, &uffd)), Ok(()), "{what}: again");
        }
    }
    process.check();
    uffd.close();
    process.check();
    assert!(process.load::<u64>(&mut cpu, BASE).is_ok());
    drop((uffd, file, process, cpu));
    scarce.end();
}

#[test]
fn c55_failed_uffd_call_can_be_repeated() {
    for locking in [Locking::default(), Locking::ALL[0]] {
        for call in CALLS {
            let failures = at_every_allocation(&Failure::ALL, |point| with_failure(call, locking, point));
            assert_eq!(failures > 0, call.allocates, "{}: {failures} failures", call.name);
        }
    }
}
