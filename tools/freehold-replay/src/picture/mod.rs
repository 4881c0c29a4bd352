//! A recording's life as a picture: addresses over time, one lane per process.
//!
//! It is drawn from the recording alone, not from the replay. What calls do to VMAs the plan's model says
//! ([`freehold_trace::plan::Vmas`]); those that touch and are of one kind look like one.

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

/// The picture of a recording.
///
/// # Errors
///
/// It cannot be read.
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
