//! The mappings in the picture of the page: where each lies, and the description that the page shows under
//! the pointer.
//!
//! Only the largest mappings, and those with the most faults, have an area. `mod.rs` passes both lists to the
//! template; they have the same order. `picture/draw.rs` places the areas.

use super::words;
use crate::analysis::Study;
use crate::analysis::mappings::Mapping;
use crate::picture::Area;
use serde::Serialize;

/// Largest number of mappings with a description.
const MAX: usize = 1_200;

/// The description of a mapping.
#[derive(Serialize)]
pub(super) struct Described {
    /// The kind and the name.
    what: String,
    /// Addresses and size.
    place: String,
    /// The operation that made it.
    made: String,
    /// Its faults.
    faults: u64,
    /// Its life, in nanoseconds.
    from_ns: u64,
    to_ns: u64,
}

/// Returns the mappings with an area, in the order of the recording.
fn chosen(study: &Study) -> Vec<&Mapping> {
    let mut all: Vec<&Mapping> = study.mappings.iter().collect();
    let weight = |mapping: &&Mapping| {
        let life = mapping.to_ns.saturating_sub(mapping.from_ns) as f64;
        let size =
            (mapping.bytes as f64 / 4096.0).powf(0.22) + 1.5 * (mapping.faults.sum() as f64).powf(0.45);
        life * size
    };
    all.sort_by(|a, b| weight(b).total_cmp(&weight(a)));
    all.truncate(MAX);
    all.sort_by_key(|mapping| (mapping.line, mapping.start));
    all
}

/// Returns the areas of the mappings.
pub(super) fn areas(study: &Study) -> Vec<Area> {
    let area = |mapping: &Mapping| Area {
        space: mapping.space,
        range: mapping.start..mapping.start.saturating_add(mapping.bytes),
        time: mapping.from_ns..mapping.to_ns.max(mapping.from_ns),
    };
    chosen(study).into_iter().map(area).collect()
}

/// Returns the descriptions of the mappings.
pub(super) fn descriptions(study: &Study) -> Vec<Described> {
    let described = |mapping: &Mapping| Described {
        what: words::mapping(mapping.kind, &mapping.name),
        place: words::place(mapping),
        made: words::made(&mapping.made_by, mapping.task, mapping.line),
        faults: mapping.faults.sum(),
        from_ns: mapping.from_ns,
        to_ns: mapping.to_ns,
    };
    chosen(study).into_iter().map(described).collect()
}
