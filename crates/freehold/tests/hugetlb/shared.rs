//! Shared mappings of files, and the tables that their processes share.

use super::*;

#[test]
fn two_processes_see_one_page() {
    everywhere(2, |world, process, cpu| {
        let file = file(world, SPAN);
        let other = world.process(process.locking());
        map_span(process, &file, BASE);
        map_span(&other, &file, BASE + 3 * SPAN);
        process.store(cpu, BASE + HUGE, 5u64).unwrap();
        assert_eq!(other.load::<u64>(cpu, BASE + 3 * SPAN + HUGE), Ok(5));
        assert_eq!(counts(world).free, 1);
        other.check();
        other.munmap(BASE + 3 * SPAN, SPAN).unwrap();
        assert_eq!(process.load::<u64>(cpu, BASE + HUGE), Ok(5));
    });
}

#[test]
fn truncation_takes_pages_from_all() {
    everywhere(2, |world, process, cpu| {
        let file = file(world, SPAN);
        let other = world.process(process.locking());
        map_span(process, &file, BASE);
        map_span(&other, &file, BASE);
        process.store(cpu, BASE, 1u64).unwrap();
        process.store(cpu, BASE + HUGE, 2u64).unwrap();
        assert_eq!(other.load::<u64>(cpu, BASE + HUGE), Ok(2));
        file.mapping().truncate(HUGE).unwrap();
        assert_eq!(counts(world).free, 1);
        for process in [process, &other] {
            assert_eq!(process.load::<u64>(cpu, BASE), Ok(1));
            assert_eq!(process.load::<u64>(cpu, BASE + HUGE), Err(FaultError::Bus { addr: BASE + HUGE }));
        }
        other.check();
    });
}
