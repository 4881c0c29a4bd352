//! `AddressSpace::reap`: which pages of a killed process another task removes, and which stay.
//!
//! `shuttle_engine/reap.rs` (`lab/freehold-machine`) explores concurrent changes. A new kind of VMA needs a
//! case here: its pages go only if they belong to this process alone.

use crate::support::*;
use freehold::{
    call::{Advice, LockFlags},
    error::{AccessError, ForkError, MadviseError},
    fault::FaultError,
    remote::{AccessMode, IoVec, PinFlags},
};

#[test]
fn private_pages_go_and_shared_pages_stay() {
    everywhere(|world, process, cpu| {
        let far = BASE + (5 << 30);
        for at in [BASE, far] {
            anon(process, at, 4);
            fill(process, cpu, at, 4, 1);
        }
        process.mlock2(far, 4 * PAGE, LockFlags::empty()).unwrap();
        let file = world.file(4);
        let maps = [MapFlags::SHARED, MapFlags::PRIVATE]
            .map(|flags| process.mmap(0, 4 * PAGE, RW, flags, Some(&file), 0).unwrap());
        for at in maps {
            process.store(cpu, at, 7u64).unwrap();
            process.load::<u64>(cpu, at + PAGE).unwrap();
        }
        let child = Process::of(process.fork().unwrap());
        let before = process.counts();
        process.reap().unwrap();
        assert_eq!((process.rss().anon, process.rss().file), (0, 2), "pages of the shared mapping");
        assert_eq!(process.counts(), before, "the VMAs stay");
        assert_eq!(process.load(cpu, maps[0]), Ok(7u64));
        let lost = [BASE, far, maps[1]].map(|at| process.load::<u64>(cpu, at));
        assert_eq!(lost, [BASE, far, maps[1]].map(|addr| Err(FaultError::Bus { addr })));
        assert_eq!([BASE, far, maps[1]].map(|at| child.load(cpu, at)), [Ok(1u64), Ok(1), Ok(7)]);
    });
}

#[test]
fn pinned_frames_stay() {
    everywhere(|_, process, cpu| {
        anon(process, BASE, 2);
        fill(process, cpu, BASE, 2, 1);
        let pins = process.pin_user_pages(BASE, 1, PinFlags::WRITE).unwrap();
        process.reap().unwrap();
        let mut word = [0; 8];
        pins.read(0, &mut word).unwrap();
        assert_eq!(u64::from_le_bytes(word), 1, "a device keeps the memory that it has pinned");
        let addr = BASE;
        assert_eq!(process.load::<u64>(cpu, addr), Err(FaultError::Bus { addr }));
    });
}

/// Hazard C-66.
#[test]
fn c66_no_access_finds_zeroes_where_pages_were_removed() {
    everywhere(|_, process, cpu| {
        anon(process, BASE, 4);
        fill(process, cpu, BASE, 2, 1);
        let other = Process::of(process.fork().unwrap());
        process.reap().unwrap();
        // Never touched pages, too: an empty entry does not say which page it was.
        for page in 0..4 {
            let addr = BASE + page * PAGE;
            assert_eq!(process.load::<u64>(cpu, addr), Err(FaultError::Bus { addr }));
            assert_eq!(process.store(cpu, addr, 2u64), Err(FaultError::Bus { addr }));
            let mut word = [9; 8];
            for mode in [AccessMode::Plain, AccessMode::Forced, AccessMode::Report] {
                assert_eq!(process.read_memory(addr, &mut word, mode), Err(AccessError::BadAddress));
                assert_eq!(process.write_memory(addr, &word, mode), Err(AccessError::BadAddress));
            }
            assert_eq!(word, [9; 8]);
            let (local, remote) = (IoVec { base: BASE, len: 8 }, IoVec { base: addr, len: 8 });
            assert_eq!(other.process_vm_readv(&[local], process, &[remote]), Err(AccessError::BadAddress));
            assert!(process.pin_user_pages(addr, 1, PinFlags::empty()).is_err());
        }
        assert_eq!(process.rss().anon, 0, "no fault has brought a page");
        assert_eq!(process.fork().err(), Some(ForkError::Killed));
        assert_eq!(other.load(cpu, BASE), Ok(1u64));
    });
}

#[test]
fn nothing_is_collapsed_where_pages_were_removed() {
    everywhere(|_, process, cpu| {
        let at = process.mmap(0, 2 * HUGE, RW, ANON, None, 0).unwrap().next_multiple_of(HUGE);
        fill(process, cpu, at, 4, 1);
        let pins = process.pin_user_pages(at, 1, PinFlags::WRITE).unwrap();
        process.reap().unwrap();
        drop(pins);
        assert_eq!(process.madvise(at, HUGE, Advice::Collapse), Err(MadviseError::Invalid));
        assert_eq!(process.rss().anon, 0);
    });
}
