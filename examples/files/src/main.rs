//! A file system behind a pager: reads, a shared mapping, write-back and truncation.
//!
//! `README.md` explains the program. `cargo run --package freehold-example-files` runs it.
#![deny(unsafe_code)]

mod disk;

use disk::Disk;
use freehold::prelude::*;
use freehold_example_minimal::{Board, Process};
use std::error::Error;

/// An engine, and the open file.
type Mounted = (Counted<Engine<Board>>, Counted<File<Board>>);

/// Mounts the disk: creates the engine's view of the file, with an empty page cache.
fn mount(disk: &Disk) -> Result<Mounted, Box<dyn Error>> {
    let engine = Engine::new(Board::new(256), Config::new())?;
    let mapping = Mapping::new(&engine, disk.clone(), disk.size(), false)?;
    let file = File::new(&mapping, FileAccess::READ_WRITE, "/notes")?;
    Ok((engine, file))
}

fn main() -> Result<(), Box<dyn Error>> {
    let disk = Disk::default();
    write_the_file(&disk)?;
    share_and_truncate_the_file(&disk)?;

    // A third mount finds the file as the second left it.
    let (_engine, file) = mount(&disk)?;
    let mut bytes = [0; 2 * PAGE_SIZE as usize];
    assert_eq!(file.mapping().read_at(0, &mut bytes)?, 100);
    assert_eq!((&bytes[..8], &bytes[8..100]), (&7_u64.to_le_bytes()[..], &[b'a'; 92][..]));
    println!("mount: the file has 100 bytes, with the stored word");
    Ok(())
}

/// Writes three pages, as the system call write does.
fn write_the_file(disk: &Disk) -> Result<(), Box<dyn Error>> {
    let (_engine, file) = mount(disk)?;
    file.mapping().write_at(0, &[b'a'; 3 * PAGE_SIZE as usize])?;
    println!("write: {} bytes are in the page cache, {} blocks on the disk", disk.size(), disk.blocks());
    assert_eq!((disk.size(), disk.blocks()), (3 * PAGE_SIZE, 0));
    file.sync(PageRange::ALL)?;
    println!("fsync: {} blocks are on the disk", disk.blocks());
    assert_eq!((disk.blocks(), disk.stored(2 * PAGE_SIZE)), (3, b'a'));
    Ok(())
}

fn share_and_truncate_the_file(disk: &Disk) -> Result<(), Box<dyn Error>> {
    let (engine, file) = mount(disk)?;
    let (before, _) = disk.transfers();
    let mut bytes = [0; 8];
    file.mapping().read_at(0, &mut bytes)?;
    file.mapping().read_at(8, &mut bytes)?;
    assert_eq!((bytes, disk.transfers().0 - before), ([b'a'; 8], 1));
    println!("mount, and two reads of a page: the disk reads 1 page");

    // Two processes map the file. Both use the pages of the page cache.
    let processes = [
        Process(AddressSpace::new(&engine, &SpaceConfig::new())?),
        Process(AddressSpace::new(&engine, &SpaceConfig::new())?),
    ];
    let (rw, len) = (Prot::READ | Prot::WRITE, 3 * PAGE_SIZE);
    let at = processes[0].0.mmap(0, len, rw, MapFlags::SHARED, Some(&file), 0)?;
    let other = processes[1].0.mmap(0, len, Prot::READ, MapFlags::SHARED, Some(&file), 0)?;
    processes[0].store(at, 7)?;
    println!("mmap: one process stores 7, the other loads {}", processes[1].load(other)?);
    assert_eq!(processes[1].load(other)?, 7);
    file.mapping().read_at(0, &mut bytes)?;
    assert_eq!(u64::from_le_bytes(bytes), 7, "read sees the store, too");

    let writes = disk.transfers().1;
    assert_eq!(disk.stored(0), b'a');
    processes[0].0.msync(at, len, SyncFlags::SYNC)?;
    assert_eq!((disk.stored(0), disk.transfers().1 - writes), (7, 1));
    processes[0].0.msync(at, len, SyncFlags::SYNC)?;
    assert_eq!(disk.transfers().1 - writes, 1, "the page is clean");
    println!("msync: the disk writes 1 page, and none the second time");

    file.mapping().truncate(100)?;
    let lost = processes[1].load(other + PAGE_SIZE);
    assert_eq!(lost, Err(FaultError::Bus { addr: other + PAGE_SIZE }));
    assert_eq!(processes[1].load(other + 104)?, 0, "the rest of the last page is zero");
    println!("truncate: {} block is left, a load from the second page raises SIGBUS", disk.blocks());
    assert_eq!((disk.size(), disk.blocks()), (100, 1));
    file.sync(PageRange::ALL)?;
    assert_eq!((disk.stored(99), disk.stored(100)), (b'a', 0), "the rest is zero on the disk, too");
    Ok(())
}
