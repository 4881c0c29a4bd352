//! State of an address space that is independent of its locks: settings, counters, and the words on which
//! tasks wait. The operations that need a guard or the VMA tree are in `space/`:
//!
//! | file here | contents | operations |
//! | --- | --- | --- |
//! | `arguments.rs` | location of the program's arguments | `space/arguments.rs` |
//! | `closings.rs` | words on which tasks wait for closing ranges and claims | `space/closing.rs` |
//! | `contention.rs` | conflicts between changes | `space/write_mode.rs` |
//! | `counters.rs` | sizes, credits, fault counts | `space/accounting.rs`, `space/limits.rs` |
//! | `layout.rs` | where mmap searches for addresses | `space/placement.rs` |
//! | `limits.rs` | resource limits and privileges | `space/limits.rs` |
//! | `mdwe.rs` | restrictions on executable memory | `space/mdwe.rs` |
//! | `pkeys.rs` | protection keys in use | `space/pkeys.rs` |
//! | `thp.rs` | where transparent huge pages are disabled | `space/thp.rs` |
//!
//! No file here may use a module of `space/` outside this folder: this folder is a lower layer. The list
//! `LAYERS` in `xtask/tests/tidy.rs` has the layers, and a test there compares them with the code.

pub(crate) mod arguments;
pub(crate) mod closings;
pub(crate) mod contention;
pub(crate) mod counters;
pub(crate) mod layout;
pub(crate) mod limits;
pub(crate) mod mdwe;
pub(crate) mod pkeys;
pub(crate) mod thp;
