//! Reads recordings, and prints the number of events and the speed: `cargo run --release --example speed
//! FILE...`.
//!
//! Run the program before and after a change of a reader. The program reads events and snapshots, and does
//! not plan or replay them.

use freehold_trace::{Kind, Recording};
use std::path::Path;
use std::time::Instant;

fn main() -> Result<(), freehold_trace::ReadError> {
    for path in std::env::args().skip(1) {
        let start = Instant::now();
        let mut recording = Recording::open(Path::new(&path))?;
        let (mut events, mut faults, mut snapshots) = (0_u64, 0_u64, 0_u64);
        while let Some(event) = recording.next_event()? {
            events += 1;
            match event.kind {
                Kind::Fault { .. } => faults += 1,
                Kind::Snapshot { id, .. } => snapshots += u64::from(recording.snapshot(id)?.is_some()),
                _ => {}
            }
        }
        let seconds = start.elapsed().as_secs_f64();
        let rate = events as f64 / seconds / 1e6;
        println!(
            "{path}: {events} events, {faults} faults, {snapshots} snapshots, {rate:.2} million events/s"
        );
    }
    Ok(())
}
