//! Transfers of bytes between an address space and a buffer of the caller: `read_memory`, `write_memory`, the
//! vectored calls and `read_chunks`. A *forced* access ignores the rights of the mapping, as a debugger does,
//! and writes to a private copy. `between.rs` tests transfers between two address spaces. A new kind of
//! access needs a case in `transfer_ends_at_the_first_inaccessible_page`.

use super::*;
use freehold::{
    call::Advice,
    error::AccessError,
    remote::{AccessMode, IoVec},
};
use std::{
    ops::ControlFlow,
    sync::atomic::{AtomicBool, Ordering::SeqCst},
};

/// Returns the first eight bytes as a number.
fn word(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes[..8].try_into().unwrap())
}

#[test]
fn read_memory_returns_written_bytes() {
    everywhere(|_, process, cpu| {
        anon(process, BASE, 4);
        process.store(cpu, BASE + PAGE, 5u64).unwrap();
        let mut out = vec![0; 3 * PAGE as usize];
        assert_eq!(process.read_memory(BASE, &mut out, AccessMode::Plain), Ok(out.len()));
        assert_eq!(word(&out[PAGE as usize..]), 5);
        let data: Vec<u8> = (0..2 * PAGE as usize).map(|n| n as u8).collect();
        assert_eq!(process.write_memory(BASE + PAGE - 3, &data, AccessMode::Plain), Ok(data.len()));
        let mut back = vec![0; data.len()];
        process.read(cpu, BASE + PAGE - 3, &mut back).unwrap();
        assert_eq!(back, data);
    });
}

#[test]
fn transfer_ends_at_the_first_inaccessible_page() {
    everywhere(|_, process, _| {
        anon(process, BASE, 2);
        process.mmap(BASE + 2 * PAGE, PAGE, R, ANON | MapFlags::FIXED, None, 0).unwrap();
        let mut out = vec![0; 6 * PAGE as usize];
        // A transfer ends at the first inaccessible page. It fails only if it transferred nothing.
        assert_eq!(process.read_memory(BASE + PAGE, &mut out, AccessMode::Plain), Ok(2 * PAGE as usize));
        assert_eq!(process.write_memory(BASE + PAGE + 8, &out, AccessMode::Plain), Ok(PAGE as usize - 8));
        assert_eq!(
            process.read_memory(BASE + 3 * PAGE, &mut out, AccessMode::Plain),
            Err(AccessError::BadAddress)
        );
        assert_eq!(
            process.write_memory(BASE + 2 * PAGE, &out, AccessMode::Plain),
            Err(AccessError::BadAddress)
        );
        assert_eq!(
            process.read_memory(u64::MAX - 4, &mut out, AccessMode::Forced),
            Err(AccessError::BadAddress)
        );
        assert_eq!(process.read_memory(BASE, &mut [], AccessMode::Plain), Ok(0));
        process.madvise(BASE + PAGE, PAGE, Advice::GuardInstall).unwrap();
        assert_eq!(process.read_memory(BASE, &mut out, AccessMode::Forced), Ok(PAGE as usize));
        assert_eq!(process.write_memory(BASE + PAGE, &out, AccessMode::Forced), Err(AccessError::BadAddress));
    });
}

#[test]
fn vectored_transfer_ends_at_the_first_short_part() {
    everywhere(|_, process, cpu| {
        anon(process, BASE, 1);
        anon(process, BASE + 2 * PAGE, 1);
        process.store(cpu, BASE + 2 * PAGE, 9u64).unwrap();
        let part = |page: u64, len| IoVec { base: BASE + page * PAGE, len };
        let mut out = vec![0; 64];
        assert_eq!(
            process.read_vectored(&[part(0, 8), part(2, 8), part(1, 8), part(0, 8)], &mut out),
            Ok(16)
        );
        assert_eq!(word(&out[8..]), 9);
        assert_eq!(process.read_vectored(&[part(1, 8), part(0, 8)], &mut out), Err(AccessError::BadAddress));
        assert_eq!(process.write_vectored(&[part(0, 8), part(2, 100)], &[7; 20]), Ok(20));
        assert_eq!(process.load::<u64>(cpu, BASE + 2 * PAGE), Ok(u64::from_le_bytes([7; 8])));
        assert_eq!(process.read_vectored(&[part(0, u64::MAX)], &mut out), Err(AccessError::TooLong));
    });
}

#[test]
fn forced_access_ignores_rights_and_writes_private_copies() {
    everywhere(|world, process, cpu| {
        let file = world.file(4);
        process.mmap(BASE, 4 * PAGE, R, MapFlags::PRIVATE | MapFlags::FIXED, Some(&file), 0).unwrap();
        assert_eq!(process.write_memory(BASE, &[1; 8], AccessMode::Plain), Err(AccessError::BadAddress));
        // Writes to a page of the file that is mapped (page 0), and to a page that is not mapped (page 2).
        assert_eq!(process.load::<u64>(cpu, BASE), Ok(Disk::number(0)));
        for page in [0, 2] {
            assert_eq!(process.write_memory(BASE + page * PAGE, &[1; 8], AccessMode::Forced), Ok(8));
            assert_eq!(process.load::<u64>(cpu, BASE + page * PAGE), Ok(u64::from_le_bytes([1; 8])));
            let mut on_file = [0; 8];
            file.mapping().read_at(page * PAGE, &mut on_file).unwrap();
            assert_eq!(word(&on_file), Disk::number(page));
            // The program itself still has no right to write.
            assert!(process.store(cpu, BASE + page * PAGE, 3u64).is_err());
        }
        // A forced write to a shared mapping without the right to write is refused.
        process.mmap(BASE + 8 * PAGE, PAGE, R, MapFlags::SHARED | MapFlags::FIXED, Some(&file), 0).unwrap();
        assert_eq!(
            process.write_memory(BASE + 8 * PAGE, &[1; 8], AccessMode::Forced),
            Err(AccessError::BadAddress)
        );
        // A mapping without any rights.
        process.mmap(BASE + 10 * PAGE, PAGE, Prot::empty(), ANON | MapFlags::FIXED, None, 0).unwrap();
        let mut out = [0; 8];
        assert_eq!(
            process.read_memory(BASE + 10 * PAGE, &mut out, AccessMode::Plain),
            Err(AccessError::BadAddress)
        );
        assert_eq!(process.write_memory(BASE + 10 * PAGE, &[6; 8], AccessMode::Forced), Ok(8));
        assert_eq!(process.read_memory(BASE + 10 * PAGE, &mut out, AccessMode::Forced), Ok(8));
        assert_eq!(out, [6; 8]);
        assert!(process.load::<u64>(cpu, BASE + 10 * PAGE).is_err());
        // A child has its own copy of the bytes that the debugger wrote.
        let child = Process::of(process.fork().unwrap());
        process.write_memory(BASE, &[2; 8], AccessMode::Forced).unwrap();
        assert_eq!(child.load::<u64>(cpu, BASE), Ok(u64::from_le_bytes([1; 8])));
    });
}

#[test]
fn c2_forced_write_never_reaches_the_file() {
    // C-2: forced writes, discards and reads run concurrently. The bytes of the file never change.
    let world = World::new();
    let process = world.process(Locking::default());
    let file = world.file(1);
    process.mmap(BASE, PAGE, R, MapFlags::PRIVATE | MapFlags::FIXED, Some(&file), 0).unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(SeqCst) {
                process.madvise(BASE, PAGE, Advice::DontNeed).unwrap();
            }
        });
        scope.spawn(|| {
            let mut cpu = world.machine.cpu(0);
            while !stop.load(SeqCst) {
                process.load::<u64>(&mut cpu, BASE).unwrap();
            }
        });
        for _ in 0..2000 {
            assert_eq!(process.write_memory(BASE, &[0xee; 8], AccessMode::Forced), Ok(8));
            let mut on_file = [0; 8];
            file.mapping().read_at(0, &mut on_file).unwrap();
            assert_eq!(word(&on_file), Disk::number(0));
        }
        stop.store(true, SeqCst);
    });
    drop((process, file));
    world.end();
}

#[test]
fn read_chunks_passes_long_ranges_in_chunks() {
    everywhere(|world, process, cpu| {
        anon(process, BASE, 2);
        process.write(cpu, BASE + PAGE - 5, b"argument\0second\0").unwrap();
        let mut text = Vec::new();
        let range = BASE + PAGE - 5..BASE + PAGE + 11;
        let read = process.read_chunks(range.clone(), &mut [0; 6], |chunk| {
            text.extend_from_slice(chunk);
            ControlFlow::Continue(())
        });
        assert_eq!((read, text.as_slice()), (Ok(16), b"argument\0second\0".as_slice()));
        let first = process.read_chunks(range, &mut [0; 6], |_| ControlFlow::Break(()));
        assert_eq!(first, Ok(6));
        let beyond = process
            .read_chunks(BASE + 2 * PAGE - 4..BASE + 3 * PAGE, &mut [0; 6], |_| ControlFlow::Continue(()));
        assert_eq!(beyond, Ok(4));
        // `read_chunks` does not wait for pages of a file.
        let file = world.file(1);
        process.mmap(BASE, PAGE, R, MapFlags::PRIVATE | MapFlags::FIXED, Some(&file), 0).unwrap();
        let on_file = process.read_chunks(BASE..BASE + 8, &mut [0; 6], |_| ControlFlow::Continue(()));
        assert_eq!(on_file, Err(AccessError::BadAddress));
    });
}
