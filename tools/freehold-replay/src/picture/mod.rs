//! Draws the history of a recording: addresses over time, one lane per process.
//!
//! The picture is drawn from the recording alone, without a replay. The plan's model
//! ([`freehold_trace::plan::Vmas`]) determines the effect of calls on VMAs. Adjacent VMAs of the same kind
//! look like one.
//!
//! | files | work |
//! | --- | --- |
//! | `life.rs`, `coverage.rs`, `kind.rs` | collect the history: processes, address spaces, blocks of memory, faults |
//! | `lanes.rs`, `scale.rs`, `panel.rs`, `raster.rs` | choose the processes to draw, and convert addresses and times to cells |
//! | `draw.rs`, `paint.rs`, `strips.rs` | draw the parts |
//! | `svg.rs`, `style.rs` | write the document and its style sheet |
//!
//! A *lane* shows one process. A *row* contains the lanes of processes that do not overlap in time. A *panel*
//! shows one address space; a process has a panel for each address space that it began by a fork or an exec.
//! A *block* is a range of one kind of memory from one time to another.
//!
//! The tests of the history and of the whole document are in `mod_tests.rs`. The output for one recording
//! must not vary between runs.

mod coverage;
mod draw;
pub(crate) mod kind;
mod lanes;
pub(crate) mod life;
mod paint;
mod panel;
mod raster;
mod scale;
mod strips;
mod style;
mod svg;

use crate::source::Source;
use draw::draw;
pub(crate) use draw::{Area, draw_with};
use freehold_trace::{Kind, ReadError};
use life::Life;

/// Returns the picture of a recording.
///
/// # Errors
///
/// Fails if the recording cannot be read.
pub fn of_recording(source: impl Into<Source>) -> Result<String, ReadError> {
    let mut recording = source.into().open()?;
    let mut life = Life::default();
    while let Ok(Some(event)) = recording.next_event() {
        let snapshot = match event.kind {
            Kind::Exec { snapshot: Some(id) } | Kind::Snapshot { id, .. } => {
                recording.snapshot(id).ok().flatten()
            }
            _ => None,
        };
        life.event(&event, snapshot.as_ref());
    }
    life.finish();
    Ok(draw(recording.name(), &life))
}

#[cfg(test)]
#[path = "mod_tests.rs"]
mod tests;
