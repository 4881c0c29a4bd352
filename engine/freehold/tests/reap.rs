//! `AddressSpace::reap`: which pages of a killed process another task removes, and which stay.
//!
//! `shuttle_engine/reap.rs` (`lab/freehold-machine`) explores concurrent changes. A new kind of VMA needs a
//! case here: its pages go only if they belong to this process alone.

use crate::support::*;
use freehold::{call::LockFlags, remote::PinFlags};

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
        assert_eq!(process.load(cpu, maps[1]), Ok(7u64), "the file has the store of the other mapping");
        assert_eq!([BASE, far].map(|at| process.load(cpu, at)), [Ok(0u64); 2]);
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
        assert_eq!([0, 1].map(|page| process.load(cpu, BASE + page * PAGE)), [Ok(0u64); 2]);
    });
}
