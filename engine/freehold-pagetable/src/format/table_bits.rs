//! The sizes of pages and tables. Every other size and index follows from [`PAGE_SHIFT`] and [`TABLE_BITS`].
//!
//! A table is as large as a page, and an entry has eight bytes. Only Arm has a choice of sizes, which it
//! calls granules. A kernel chooses one for all address spaces, so the size is a constant of the build:
//! `--cfg granule="16k"` or `"64k"` in `RUSTFLAGS`. The types and the format do not depend on it, and
//! `Format::PAGE_SHIFTS` says which sizes a format has.

/// The base-2 logarithm of the size of a page in bytes.
pub const PAGE_SHIFT: u32 = if cfg!(granule = "64k") {
    16
} else if cfg!(granule = "16k") {
    14
} else {
    12
};

/// The base-2 logarithm of the number of entries of a table. Under loom a table has two entries: two are
/// enough to try every interleaving at neighbouring entries, and loom needs too long for more.
pub const TABLE_BITS: u32 = if cfg!(loom) { 1 } else { PAGE_SHIFT - 3 };

/// A value without bytes that is aligned to the size of a page.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(not(any(granule = "16k", granule = "64k")), repr(align(4096)))]
#[cfg_attr(granule = "16k", repr(align(16384)))]
#[cfg_attr(granule = "64k", repr(align(65536)))]
pub struct PageAligned;

const _: () = assert!(align_of::<PageAligned>() == 1 << PAGE_SHIFT);
