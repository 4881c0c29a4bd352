//! NUMA: a policy of a mapping reaches the platform with every request for a frame of an anonymous page, a
//! page moves to a node, and pools of huge pages have pages on nodes.
//!
//! The platform is `Gated` (`support/gate.rs`) with several nodes, which interprets a tag as a set of nodes.
//! `fault/requests.rs` checks the other fields of requests.

use crate::support::{gate::Gated, *};
use freehold::{
    PageIndex,
    call::Advice,
    engine::HugePages,
    error::MigrateError,
    fault::{Access, FaultError},
    hugetlb::HugePageSize,
    platform::{NodeChoice, Platform},
    space::AddressSpace,
};
use std::sync::atomic::Ordering::SeqCst;

/// Runs `scenario` on an engine with four nodes, with 8 MiB each.
fn with_nodes(scenario: impl Fn(&Counted<Engine<Gated>>, &AddressSpace<Gated>)) {
    for locking in Locking::ALL {
        let machine: Machine = Machine::new(MachineConfig::backed(32 << 20)).unwrap();
        let gated = Gated { nodes: 4, ..Gated::new(&machine) };
        let engine = Engine::new(gated, Config::new().vma_nodes(nodes_for(locking))).unwrap();
        let space = AddressSpace::new(&engine, &SpaceConfig::new().locking(locking)).unwrap();
        scenario(&engine, &space);
        drop((space, engine));
        machine.accounting().assert_clean();
    }
}

fn map(space: &AddressSpace<Gated>, at: u64, len: u64) {
    space.mmap(at, len, RW, ANON | MapFlags::FIXED, None, 0).unwrap();
}

/// Stores to pages, and returns their nodes.
fn touch(space: &AddressSpace<Gated>, at: u64, pages: u64) -> Vec<usize> {
    let node = |page| {
        space.handle_fault(at + page * PAGE, Access::WRITE).unwrap();
        space.engine().platform().node_of(space.frame_at(at + page * PAGE).unwrap())
    };
    (0..pages).map(node).collect()
}

#[test]
fn policy_of_a_mapping_chooses_the_nodes_of_its_pages() {
    with_nodes(|_, space| {
        // The cache of the CPU gets frames of one node, which the policy must not use.
        map(space, BASE, 8 * PAGE);
        touch(space, BASE, 1);
        space.set_policy(BASE + 2 * PAGE, 4 * PAGE, 0b1010).unwrap();
        let first = BASE / PAGE;
        let expected = |page: u64| [1, 3][((first + page) % 2) as usize];
        assert_eq!(touch(space, BASE + 2 * PAGE, 4), (2..6).map(expected).collect::<Vec<_>>());
        // A copy for the child, or for the parent, follows the policy, too.
        let child = space.fork().unwrap();
        assert_eq!(touch(&child, BASE + 2 * PAGE, 4), (2..6).map(expected).collect::<Vec<_>>());
        assert_ne!(child.frame_at(BASE + 2 * PAGE), space.frame_at(BASE + 2 * PAGE));
    });
}

#[test]
fn page_whose_strict_nodes_have_no_memory_is_refused() {
    with_nodes(|_, space| {
        map(space, BASE, 2 * PAGE);
        // The machine has no node 6.
        space.set_policy(BASE, PAGE, 1 << 6).unwrap();
        assert_eq!(space.handle_fault(BASE, Access::WRITE), Err(FaultError::OutOfMemory));
        assert!(space.handle_fault(BASE + PAGE, Access::WRITE).is_ok());
        space.set_policy(BASE, PAGE, 0).unwrap();
        assert!(space.handle_fault(BASE, Access::WRITE).is_ok());
    });
}

#[test]
fn huge_pages_follow_the_policy() {
    with_nodes(|engine, space| {
        engine.set_huge_pages(HugePages::Always);
        map(space, BASE, 2 * HUGE);
        space.set_policy(BASE, 2 * HUGE, 0b1010).unwrap();
        let node = |page: u64| {
            space.handle_fault(BASE + page * HUGE + PAGE, Access::WRITE).unwrap();
            let first = space.frame_at(BASE + page * HUGE).expect("the fault has installed a huge page");
            engine.platform().node_of(first)
        };
        // The place counts in huge pages.
        let first = BASE / HUGE % 2;
        assert_eq!([node(first), node(1 - first)], [1, 3]);
        space.madvise(BASE, HUGE, Advice::DontNeed).unwrap();
    });
}

/// The machine gives the frames of the last nodes first.
#[test]
fn frames_of_other_nodes_do_not_stay_in_the_cache_of_a_cpu() {
    with_nodes(|engine, space| {
        map(space, BASE, 128 * PAGE);
        space.set_policy(BASE, 64 * PAGE, 0b0001).unwrap();
        space.set_policy(BASE + 64 * PAGE, 64 * PAGE, 0b1000).unwrap();
        touch(space, BASE, 128);
        let free = || engine.platform().machine.accounting().frames;
        let before = free();
        space.munmap(BASE + 64 * PAGE, 64 * PAGE).unwrap();
        assert_eq!(free(), before - 64, "frames of node 3 return to the platform");
        space.munmap(BASE, 64 * PAGE).unwrap();
        assert!(free() > before - 128, "frames of the local node are kept");
    });
}

#[test]
fn policy_of_a_task_reaches_the_platform_with_every_request_of_the_task() {
    with_nodes(|engine, space| {
        let (gated, file) = (engine.platform(), Mapping::memfd(engine, 2 * PAGE).unwrap());
        let asked = || {
            let asked = core::mem::take(&mut *gated.asked.lock().unwrap());
            asked.into_iter().map(|asked| asked.node).collect::<Vec<_>>()
        };
        map(space, BASE, 4 * PAGE);
        space.set_policy(BASE + 3 * PAGE, PAGE, 0b0001).unwrap();
        touch(space, BASE, 1);
        asked();
        touch(space, BASE + PAGE, 1);
        assert_eq!(asked(), [], "from the cache");
        gated.task_policy.store(true, SeqCst);
        touch(space, BASE + 2 * PAGE, 2);
        file.fill(PageIndex::new(0)).unwrap();
        let own = NodeChoice::Policy { tag: 1, place: BASE / PAGE + 3 };
        assert_eq!(asked(), [NodeChoice::Task, own, NodeChoice::Task]);
        gated.task_policy.store(false, SeqCst);
        file.fill(PageIndex::new(1)).unwrap();
        assert_eq!(asked(), []);
    });
}

#[test]
fn shared_memory_follows_the_policy_of_the_mapping() {
    with_nodes(|_, space| {
        let shared = MapFlags::SHARED | MapFlags::ANONYMOUS | MapFlags::FIXED;
        space.mmap(BASE, 4 * PAGE, RW, shared, None, 0).unwrap();
        space.set_policy(BASE, 3 * PAGE, 0b1100).unwrap();
        assert_eq!(touch(space, BASE, 3), [2, 3, 2]);
        space.set_policy(BASE + 3 * PAGE, PAGE, 1 << 6).unwrap();
        assert_eq!(space.handle_fault(BASE + 3 * PAGE, Access::WRITE), Err(FaultError::OutOfMemory));
    });
}

/// Private and shared mappings of pools. The place of a page counts in huge pages.
#[test]
fn pages_of_pools_follow_the_policy() {
    with_nodes(|engine, space| {
        for kind in [ANON, MapFlags::SHARED | MapFlags::ANONYMOUS] {
            let node = |page| engine.platform().node_of(space.frame_at(BASE + page * HUGE).unwrap());
            for node in 0..4 {
                assert_eq!(engine.resize_huge_pool(HugePageSize::Mib2, 1, Some(node)), 1);
            }
            space.mmap(BASE, 3 * HUGE, RW, kind | MapFlags::FIXED | MapFlags::HUGETLB, None, 0).unwrap();
            space.set_policy(BASE, 2 * HUGE, 0b1010).unwrap();
            for page in 0..2 {
                space.handle_fault(BASE + page * HUGE, Access::WRITE).unwrap();
            }
            let mut found = [node(0), node(1)];
            found.sort_unstable();
            assert_eq!(found, [1, 3]);
            // The node of the policy has no further page, although the mapping has reserved one.
            space.set_policy(BASE + 2 * HUGE, HUGE, 0b0010).unwrap();
            let refused = space.handle_fault(BASE + 2 * HUGE, Access::WRITE);
            assert!(matches!(refused, Err(FaultError::Bus { .. })), "{refused:?}");
            space.set_policy(BASE + 2 * HUGE, HUGE, 0).unwrap();
            space.handle_fault(BASE + 2 * HUGE, Access::WRITE).unwrap();
            assert_eq!(node(2), 0);
            space.munmap(BASE, 3 * HUGE).unwrap();
            assert_eq!(engine.resize_huge_pool(HugePageSize::Mib2, 0, None), 0);
        }
    });
}

#[test]
fn page_moves_to_a_node() {
    with_nodes(|engine, space| {
        map(space, BASE, PAGE);
        space.handle_fault(BASE, Access::WRITE).unwrap();
        for node in [3, 0, 2, 2, 1] {
            let new = engine.migrate_to(space.frame_at(BASE).unwrap(), node).unwrap();
            assert_eq!((space.frame_at(BASE), engine.platform().node_of(new)), (Some(new), node));
        }
        assert_eq!(engine.migrate_to(space.frame_at(BASE).unwrap(), 4), Err(MigrateError::OutOfMemory));
    });
}

#[test]
fn huge_page_of_a_pool_moves_to_a_node_or_stays() {
    with_nodes(|engine, space| {
        let flags = ANON | MapFlags::FIXED | MapFlags::HUGETLB;
        let pool = engine.huge_pool(HugePageSize::Mib2);
        assert_eq!(engine.resize_huge_pool(HugePageSize::Mib2, 1, Some(1)), 1);
        space.mmap(BASE, HUGE, RW, flags, None, 0).unwrap();
        space.handle_fault(BASE, Access::WRITE).unwrap();
        let node = || engine.platform().node_of(space.frame_at(BASE).unwrap());
        assert_eq!(engine.resize_huge_pool(HugePageSize::Mib2, 1, Some(2)), 1);
        assert_eq!(node(), 1);
        // Node 3 has no page of the pool, although node 2 has one.
        let page = || space.frame_at(BASE).unwrap();
        assert_eq!(engine.migrate_to(page(), 3), Err(MigrateError::OutOfMemory));
        assert_eq!((node(), pool.counts(Some(2)).free), (1, 1));
        engine.migrate_to(page(), 2).unwrap();
        assert_eq!((node(), pool.counts(Some(1)).free), (2, 1));
        // The pool may grow on node 3.
        pool.set_overcommit(1);
        engine.migrate_to(page(), 3).unwrap();
        assert_eq!((node(), pool.counts(Some(3)).total), (3, 1));
        space.munmap(BASE, HUGE).unwrap();
        assert_eq!(engine.resize_huge_pool(HugePageSize::Mib2, 0, None), 0);
    });
}

#[test]
fn pool_has_huge_pages_on_the_requested_node() {
    with_nodes(|engine, _| {
        assert_eq!(engine.resize_huge_pool(HugePageSize::Mib2, 2, Some(3)), 2);
        let nodes = |engine: &Engine<Gated>| {
            let pool = engine.huge_pool(HugePageSize::Mib2);
            (0..4).map(|node| pool.counts(Some(node)).total).collect::<Vec<_>>()
        };
        assert_eq!(nodes(engine), [0, 0, 0, 2]);
        assert_eq!(engine.resize_huge_pool(HugePageSize::Mib2, 1, Some(4)), 0, "there is no node 4");
        assert_eq!(engine.resize_huge_pool(HugePageSize::Mib2, 0, None), 0);
        assert_eq!(nodes(engine), [0, 0, 0, 0]);
    });
}
