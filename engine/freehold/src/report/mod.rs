//! Reports about an address space (/proc/PID/maps, smaps, pagemap, clear_refs, PROCMAP_QUERY and mincore) and
//! the engine's check of its own invariants.

mod check;
pub mod clear_refs;
pub mod maps;
mod mincore;
pub mod pagemap;
mod query;
pub mod smaps;

pub use query::QueryFlags;
