//! Prints the events of a recording as lines of `NAME.trace`: `cargo run --example show FILE`.
//!
//! Use this program to look at a compressed recording or strace output as events, and to create the expected
//! events of `tests/strace.rs`. Skipped calls are counted on standard error.

use freehold_trace::{Recording, TraceWriter};
use std::error::Error;
use std::io::{BufWriter, stdout};
use std::path::Path;

fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::args_os().nth(1).ok_or("usage: show FILE")?;
    let mut recording = Recording::open(Path::new(&path)).map_err(|error| error.to_string())?;
    let mut writer = TraceWriter::new(BufWriter::new(stdout().lock()), recording.name())?;
    let mut files = 0;
    while let Some(event) = recording.next_event().map_err(|error| error.to_string())? {
        for file in &recording.files()[files..] {
            writer.file(file)?;
        }
        files = recording.files().len();
        writer.event(&event)?;
    }
    writer.finish()?;
    eprintln!("skipped: {:?}", recording.skipped());
    Ok(())
}
