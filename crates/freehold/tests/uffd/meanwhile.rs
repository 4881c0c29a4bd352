//! A change that begins in the middle of a fill: what is put after it began would be put where the pager has
//! not heard of the change.

use super::{gate::Gated, *};
use freehold::{
    PageIndex,
    space::{AddressSpace, Advice},
};
use std::{sync::Arc, sync::mpsc::channel, thread};

/// COPY and a hole that is punched: the pager's page must not come into the hole behind the pager's back.
#[test]
fn shared_memory_is_not_filled_once_a_change_has_begun() {
    for locking in Locking::ALL {
        let machine: Machine = Machine::new(MachineConfig::backed(16 << 20)).unwrap();
        let gated = Gated::new(&machine);
        let engine = Engine::new(gated.clone(), Config::default()).unwrap();
        let space = AddressSpace::new(&engine, &SpaceConfig { locking, ..SpaceConfig::default() }).unwrap();
        let mapping = Mapping::new(&engine, Zeroes, 4 * PAGE, true).unwrap();
        let file = File::new(&mapping, FileAccess::READ_WRITE, "/dev/shm/it").unwrap();
        space.mmap(BASE, 4 * PAGE, RW, MapFlags::SHARED | MapFlags::FIXED, Some(&file), 0).unwrap();
        let config = UffdConfig { features: Features::EVENT_REMOVE, user_mode_only: false };
        let uffd = Arc::new(Userfaultfd::new(&space, config).unwrap());
        uffd.register(BASE, 4 * PAGE, MISSING).unwrap();
        let (tell, hear) = channel();
        let (inside, pager) = (space.clone(), uffd.clone());
        gated.write.put(move || {
            let hole = thread::spawn(move || inside.madvise(BASE, PAGE, Advice::Remove));
            // On another thread: this one holds the VMA's lock.
            let changing = || {
                let refused = FillMode::from_bits_retain(8);
                until(|| pager.zeropage(page(1), PAGE, refused) == Err(UffdError::Changing));
            };
            thread::scope(|scope| scope.spawn(changing).join().unwrap());
            tell.send(hole).unwrap();
        });
        assert_eq!(uffd.copy(BASE, &bytes(7), WAKE), Err(UffdError::Changing), "{locking:?}");
        assert!(!mapping.has_page(PageIndex::new(0)), "{locking:?}: nothing was put");
        let hole = hear.recv().unwrap();
        assert!(matches!(uffd.read(), Ok(Message::Remove(range)) if range == (BASE..page(1))));
        hole.join().unwrap().unwrap();
        assert_eq!(uffd.copy(BASE, &bytes(7), WAKE), Ok(PAGE));
        space.check();
        drop((uffd, file, mapping, space, engine, gated));
        machine.accounting().assert_clean();
    }
}
