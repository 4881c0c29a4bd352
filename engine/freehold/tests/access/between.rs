//! `process_vm_readv` and `process_vm_writev` between two address spaces, and within one address space
//! (`src/remote/process_vm.rs`). Each test fills one process with a numbered pattern, transfers parts of it,
//! and compares the bytes on both sides. `memory.rs` tests transfers between an address space and a buffer.

use super::*;
use freehold::{error::AccessError, remote::IoVec};
use support::storage::Storage;

/// Returns a part of a vectored transfer.
fn part(at: u64, len: u64) -> IoVec {
    IoVec { base: at, len }
}

/// Returns `len` bytes of the memory of a process.
fn bytes(process: &Process, at: u64, len: usize) -> Vec<u8> {
    let mut out = vec![0; len];
    assert_eq!(process.read_memory(at, &mut out, freehold::remote::AccessMode::Plain), Ok(len));
    out
}

/// Maps 20 pages and fills them with a numbered pattern. Returns the bytes.
fn numbered(process: &Process) -> Vec<u8> {
    anon(process, BASE, 20);
    let data: Vec<u8> = (0..20 * PAGE).map(|n| (n % 251) as u8).collect();
    process.write_memory(BASE, &data, freehold::remote::AccessMode::Plain).unwrap();
    data
}

#[test]
fn bytes_are_copied_in_both_directions() {
    everywhere(|world, process, _| {
        let other = world.process(process.locking());
        let data = numbered(&other);
        let there = BASE + (64 << 20);
        anon(process, there, 24);
        // The borders of the parts differ between the two lists. The parts contain more pages than one step
        // copies.
        let local = [part(there + 100, 3), part(there + 7, 0), part(there + 5000, 70_000)];
        let remote = [part(BASE + 9, 10_000), part(BASE + 17, 60_003)];
        assert_eq!(process.process_vm_readv(&local, &other, &remote), Ok(70_003));
        let expected = [&data[9..10_009], &data[17..60_020]].concat();
        assert_eq!([bytes(process, there + 100, 3), bytes(process, there + 5000, 70_000)].concat(), expected);
        let local = [part(there + 5000, 9000)];
        assert_eq!(process.process_vm_writev(&local, &other, &[part(BASE + 4000, 1 << 30)]), Ok(9000));
        assert_eq!(bytes(&other, BASE + 4000, 9000), bytes(process, there + 5000, 9000));
        // A process may copy to itself.
        assert_eq!(process.process_vm_readv(&[part(there, 50)], process, &[part(there + 100, 50)]), Ok(50));
        assert_eq!(bytes(process, there, 3), expected[..3]);
        other.check();
    });
}

#[test]
fn copy_ends_at_the_first_inaccessible_page() {
    everywhere(|world, process, _| {
        let other = world.process(process.locking());
        numbered(&other);
        anon(process, BASE, 2);
        let page = |n: u64| BASE + n * PAGE;
        let read = |at, from, len| process.process_vm_readv(&[part(at, len)], &other, &[part(from, len)]);
        assert_eq!(read(page(0), page(19), 2 * PAGE), Ok(PAGE as usize));
        assert_eq!(read(page(1) + 8, page(0), 3 * PAGE), Ok(PAGE as usize - 8));
        assert_eq!(read(page(0), page(20), 8), Err(AccessError::BadAddress));
        assert_eq!(read(page(2), page(0), 8), Err(AccessError::BadAddress));
        assert_eq!(read(u64::MAX - 3, page(0), 8), Err(AccessError::BadAddress));
        assert_eq!(read(page(0), u64::MAX - 3, 8), Err(AccessError::BadAddress));
        assert_eq!(read(page(0), page(0), 1 << 63), Err(AccessError::TooLong));
        let twice = [part(page(0), 1 << 62), part(page(0), 1 << 62)];
        assert_eq!(process.process_vm_readv(&twice, &other, &twice), Err(AccessError::TooLong));
        other.mprotect(page(3), PAGE, R).unwrap();
        let write = process.process_vm_writev(&[part(page(0), 8192)], &other, &[part(page(2) + 96, 8192)]);
        assert_eq!(write, Ok(4000));
        assert_eq!(process.process_vm_readv(&[], &other, &[part(page(0), 8)]), Ok(0));
        other.check();
    });
}

/// Bytes of direct-access storage are copied through a buffer, because a task that holds a page of the
/// storage must not wait for another page.
#[test]
fn pages_of_direct_access_storage_are_copied() {
    everywhere(|world, process, _| {
        let storage = Storage::new(&world.machine);
        let file = storage.file(world, 4);
        let other = world.process(process.locking());
        for (side, at) in [(&other, BASE), (process, BASE)] {
            side.mmap(at, 4 * PAGE, RW, MapFlags::SHARED | MapFlags::FIXED, Some(&file), 0).unwrap();
        }
        file.mapping().write_at(0, &[7; 6000]).unwrap();
        let from = [part(BASE, 6000)];
        assert_eq!(process.process_vm_readv(&[part(BASE + 2 * PAGE, 6000)], &other, &from), Ok(6000));
        assert_eq!(bytes(&other, BASE + 2 * PAGE, 6001), [&[7; 6000][..], &[0]].concat());
        let to = [part(BASE + PAGE + 5000, 300)];
        assert_eq!(process.process_vm_writev(&[part(BASE, 300)], &other, &to), Ok(300));
        assert_eq!(bytes(process, BASE + PAGE + 5000, 300), [7; 300]);
        drop(other);
    });
}
