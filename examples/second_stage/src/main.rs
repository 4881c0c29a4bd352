//! The second stage of a virtual machine: guest memory that is mapped on demand, and live migration.
//!
//! `README.md` explains the program. `cargo run --package freehold-example-second-stage` runs it.
#![deny(unsafe_code)]

mod guest;

use freehold_example_minimal::Board;
use freehold_sync::counted::Counted;
use freehold_vmspace::{Memory, PAGE_SIZE};
use guest::{Exit, Guest};
use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    let memory = Counted::try_new(Memory::new(Board::new(1024))?).map_err(|_| "no memory")?;
    let mut guest = Guest::new(&memory)?;
    run(&mut guest, &memory).map_err(|exit| format!("the guest stops: {exit:?}"))?;

    // The end of the memory drops the board, which counts its frames.
    drop((guest, memory));
    Ok(())
}

fn run(guest: &mut Guest, memory: &Counted<Memory<Board>>) -> Result<(), Exit> {
    // The image is mapped in advance, and all other memory on demand.
    guest.load_image(0x10_0000, &[0x90; 3 * PAGE_SIZE as usize])?;
    println!("the image is loaded: {} pages are resident", guest.rss().total());
    guest.store(0x7c00, 1)?;
    guest.store(0x18_0000, 2)?;
    assert_eq!(guest.load(0x9_0000)?, 0);
    assert_eq!(guest.load(0x10_2ff8)?, u64::from_le_bytes([0x90; 8]));
    println!("{} faults map pages: {} pages are resident", guest.faults(), guest.rss().total());
    assert_eq!((guest.faults(), guest.rss().total()), (3, 6));
    assert_eq!(guest.store(0xb_8000, 0x41), Err(Exit::Device(0xb_8000)));
    println!("a store to the screen at 0xb8000 leaves the guest for the device");

    // Live migration: send all pages while the guest runs, then the pages that it has written since.
    let mut target = Guest::new(memory)?;
    guest.start_log();
    guest.send(&guest.pages(), &mut target)?;
    guest.store(0x7c00, 10)?;
    guest.store(0x7c08, 11)?;
    guest.store(0x9_0000, 12)?;
    guest.load(0x18_0000)?;
    guest.load(0x19_0000)?;
    let written = guest.take_log();
    println!("round 1: the guest has written the pages {written:x?}");
    assert!(written.iter().eq(&[0x7000, 0x9_0000]));
    guest.send(&written, &mut target)?;

    guest.store(0x7c00, 20)?;
    guest.unmap(0x10_0000..0x10_2000);
    let written = guest.take_log();
    println!("round 2: the guest has written or freed the pages {written:x?}");
    assert!(written.iter().eq(&[0x7000, 0x10_0000, 0x10_1000]));
    guest.send(&written, &mut target)?;

    for (at, value) in [(0x7c00, 20), (0x7c08, 11), (0x9_0000, 12), (0x18_0000, 2), (0x10_0000, 0)] {
        assert_eq!((guest.load(at)?, target.load(at)?), (value, value), "at {at:#x}");
    }
    assert_eq!(guest.load(0x10_2000)?, target.load(0x10_2000)?);
    println!("the target has the same memory");
    Ok(())
}
