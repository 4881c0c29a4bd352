//! Draws the history of a recording: addresses over time, one lane per process.
//!
//! The picture is drawn from the recording alone, without a replay. The plan's model
//! ([`freehold_trace::plan::Vmas`]) determines the effect of calls on VMAs. Adjacent VMAs of the same kind
//! look like one.

mod coverage;
mod draw;
mod kind;
mod lanes;
mod life;
mod paint;
mod panel;
mod raster;
mod scale;
mod strips;
mod style;
mod svg;

use crate::source::Source;
use draw::draw;
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
