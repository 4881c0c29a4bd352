//! Changes of a file that affect the page-table entries for its pages.
//!
//! | file | operation |
//! | --- | --- |
//! | `truncate.rs` | truncation and hole punching: removes pages, and explains why no fault maps a removed page |
//! | `adopt_size.rs` | adopts a size that the storage has already |
//! | `unmap.rs` | clears the entries of pages, for the other operations |
//! | `write_back.rs` | writes dirty pages to the backing store |
//! | `exchange.rs` | moves a page to another frame |
//! | `advise.rs` | advice of programs about an open file |
//! | `drop_clean.rs` | drops clean pages that are not in use |
//! | `revoke.rs` | revokes the frames of a device |
//!
//! These operations find the entries through the VMAs that map the file (`rmap/tree/`), under the i_mmap
//! lock. None of them may wait for a lock of an address space, because those locks come before the invalidate
//! lock and the i_mmap lock. A new operation gets a file here and visits the VMAs with `each_mapper`
//! (`rmap/tree/`), as `unmap.rs` does. `mapping.rs` (in the folder above) has the states of a page.

mod adopt_size;
pub(super) mod advise;
mod drop_clean;
mod exchange;
mod revoke;
mod truncate;
mod unmap;
mod write_back;
