//! The reverse map: from a page to every entry that maps it, in all address spaces.
//!
//! A page has a *home*: its file, or the VMA tree of its anonymous pages. A *place* is an address in a VMA of
//! the home at which the page may be mapped. A walk visits all places of a page under the rmap lock of the
//! home, held for reading: the i_mmap lock of the file, or the lock of the tree. No walk takes an mmap lock.
//! `docs/guide/reverse-map-and-pins.md` has the rules by which a walk misses no entry.
//!
//! Reading order:
//!
//! 1. `tree/`: the trees of VMAs, and their locks;
//! 2. `walk.rs`: from a frame to its page, and to the page's places;
//! 3. `entries.rs`: operations on all entries of a page;
//! 4. `migrate.rs`: moves; `failure.rs` and `lose.rs`: memory failures;
//! 5. `edit.rs`: linking and unlinking of VMAs that change.
//!
//! A new operation on all entries of a page belongs in `entries.rs`, and an operation that links or unlinks
//! VMAs uses `edit.rs`. `AddressSpace::check`, which tests call after each scenario, fails if the reverse map
//! does not find a page where it is mapped. The tests are `rmap` (`engine/freehold/tests`), and `rmap` and
//! `failure` (`shuttle_engine`).

pub(crate) mod edit;
mod entries;
mod failure;
mod failure_swapped;
mod lose;
mod migrate;
pub(crate) mod tree;
pub(crate) mod walk;

pub use crate::error::MigrateError;
pub use entries::PageError;
pub(crate) use failure::failed_frame;
pub use failure::{Damage, OfflineError};
pub use tree::lock::FileRmap;
