//! A change that begins in the middle of a fill (`src/uffd/fill.rs`, `src/uffd/fill_huge.rs`). A fill must
//! not complete after the change has begun, because the pager does not know of the change yet. Each test uses
//! a gate of `support/gate.rs` to stop a fill while the fill copies into its frame. The test then begins the
//! change on another thread and waits until fills are refused with `UffdError::Changing`. The stopped fill
//! must then fail with the same error and map nothing.

use super::{
    gate::Gated,
    pools::{START, contents},
    *,
};
use freehold::{PageIndex, call::Advice, hugetlb::HugePageSize, space::AddressSpace};
use std::{sync::Arc, sync::mpsc::channel, thread};

/// A hole is punched during a COPY: the fill must not put a page into the hole.
#[test]
fn shared_memory_is_not_filled_after_a_change_has_begun() {
    for locking in Locking::ALL {
        let machine: Machine = Machine::new(MachineConfig::backed(16 << 20)).unwrap();
        let gated = Gated::new(&machine);
        let engine = Engine::new(gated.clone(), Config::default()).unwrap();
        let space = AddressSpace::new(&engine, &SpaceConfig::new().locking(locking)).unwrap();
        let mapping = Mapping::new(&engine, Zeroes, 4 * PAGE, true).unwrap();
        let file = File::new(&mapping, FileAccess::READ_WRITE, "/dev/shm/it").unwrap();
        space.mmap(BASE, 4 * PAGE, RW, MapFlags::SHARED | MapFlags::FIXED, Some(&file), 0).unwrap();
        let config = UffdConfig::new().features(Features::EVENT_REMOVE);
        let uffd = Arc::new(Userfaultfd::new(&space, config).unwrap());
        uffd.register(BASE, 4 * PAGE, MISSING).unwrap();
        let (sender, receiver) = channel();
        let (inside, pager) = (space.clone(), uffd.clone());
        gated.write.put(move || {
            let hole = thread::spawn(move || inside.madvise(BASE, PAGE, Advice::Remove));
            // Runs on another thread, because this thread holds the VMA lock.
            let changing = || {
                let refused = FillMode::from_bits_retain(8);
                until(|| pager.zeropage(page(1), PAGE, refused) == Err(UffdError::Changing));
            };
            thread::scope(|scope| scope.spawn(changing).join().unwrap());
            sender.send(hole).unwrap();
        });
        assert_eq!(uffd.copy(BASE, &bytes(7), WAKE), Err(UffdError::Changing), "{locking:?}");
        assert!(!mapping.has_page(PageIndex::new(0)), "{locking:?}: a page was filled");
        let hole = receiver.recv().unwrap();
        assert!(matches!(uffd.read(), Ok(Message::Remove(range)) if range == (BASE..page(1))));
        hole.join().unwrap().unwrap();
        assert_eq!(uffd.copy(BASE, &bytes(7), WAKE), Ok(PAGE));
        space.check();
        drop((uffd, file, mapping, space, engine, gated));
        machine.accounting().assert_clean();
    }
}

/// DONTNEED runs during a COPY of a huge page of a pool: the page is not mapped, and returns to the pool with
/// its reservation.
#[test]
fn refused_fill_returns_page_and_reservation_to_the_pool() {
    for (locking, private) in Locking::ALL.into_iter().flat_map(|locking| [(locking, true), (locking, false)])
    {
        let machine: Machine = Machine::new(MachineConfig::backed(6 * HUGE)).unwrap();
        let gated = Gated::new(&machine);
        let engine = Engine::new(gated.clone(), Config::default()).unwrap();
        assert_eq!(engine.resize_huge_pool(HugePageSize::Mib2, 2, None), 2);
        let space = AddressSpace::new(&engine, &SpaceConfig::new().locking(locking)).unwrap();
        let mapping = Mapping::of_huge_pages(&engine, HugePageSize::Mib2, 2 * HUGE, false).unwrap();
        let file = File::new(&mapping, FileAccess::READ_WRITE, "/huge/file").unwrap();
        let kind = if private { MapFlags::PRIVATE } else { MapFlags::SHARED };
        space.mmap(START, 2 * HUGE, RW, kind | MapFlags::FIXED, Some(&file), 0).unwrap();
        let config = UffdConfig::new().features(Features::EVENT_REMOVE);
        let uffd = Arc::new(Userfaultfd::new(&space, config).unwrap());
        uffd.register(START, 2 * HUGE, MISSING).unwrap();
        let books = || {
            let counts = engine.huge_pool(HugePageSize::Mib2).counts(None);
            (counts.free, counts.reserved)
        };
        let (sender, receiver) = channel();
        let (inside, pager) = (space.clone(), uffd.clone());
        gated.write.put(move || {
            let discard = thread::spawn(move || inside.madvise(START, HUGE, Advice::DontNeed));
            // Runs on another thread, because this thread holds the VMA lock.
            let changing = || until(|| pager.copy(START, &[], WAKE) == Err(UffdError::Changing));
            thread::scope(|scope| scope.spawn(changing).join().unwrap());
            sender.send(discard).unwrap();
        });
        let page = contents(7..8);
        assert_eq!(uffd.copy(START, &page, WAKE), Err(UffdError::Changing), "{locking:?}, {private}");
        assert_eq!(books(), (2, 2), "{locking:?}, {private}");
        let discard = receiver.recv().unwrap();
        assert!(matches!(uffd.read(), Ok(Message::Remove(range)) if range == (START..START + HUGE)));
        discard.join().unwrap().unwrap();
        assert_eq!(uffd.copy(START, &page, WAKE), Ok(HUGE));
        assert_eq!(books(), (1, 1));
        space.check();
        drop((uffd, file, mapping, space));
        assert_eq!(books(), (2, 0), "{locking:?}, {private}");
        drop((engine, gated));
        machine.accounting().assert_clean();
    }
}
