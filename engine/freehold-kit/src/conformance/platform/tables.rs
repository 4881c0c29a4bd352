//! Page tables: their memory and their records.
#![expect(unsafe_code, reason = "frees the tables that the checks allocated")]

use super::frames::{free, take};
use crate::conformance::report::require;
use crate::conformance::suite::{Checked, Stop, not_run};
use alloc::vec;
use alloc::vec::Vec;
use core::ptr;
use freehold::platform::atomic::Ordering::Relaxed;
use freehold::platform::{ENTRIES, Format, Pfn, Platform};
use freehold::{PAGE_SHIFT, PAGE_SIZE};

/// Number of tables that a check allocates.
const COUNT: usize = 16;

/// Allocates root tables of no space.
fn take_tables<P: Platform>(platform: &P) -> Result<Vec<Pfn>, Stop> {
    let tables: Vec<Pfn> = (0..COUNT).map_while(|_| platform.alloc_table(None).ok()).collect();
    if tables.len() < 2 {
        free_tables(platform, &tables);
        return not_run("the platform has no memory for two tables");
    }
    Ok(tables)
}

fn free_tables<P: Platform>(platform: &P, tables: &[Pfn]) {
    for table in tables {
        // SAFETY: the table came from `alloc_table`, is empty, and no entry points to it.
        unsafe { platform.free_table(*table) };
    }
}

/// Returns the first entry that is not zero, and its index.
fn filled<P: Platform>(platform: &P, table: Pfn) -> Option<(usize, u64)> {
    (0..ENTRIES).map(|n| (n, platform.table(table).entry(n).load(Relaxed))).find(|(_, raw)| *raw != 0)
}

pub fn zeroed<P: Platform>(platform: &P) -> Checked {
    // Memory that programs have used may become tables.
    let frames = take(platform, 64)?;
    let ones = vec![0xff; PAGE_SIZE as usize];
    frames.iter().for_each(|pfn| platform.write_frame(*pfn, 0, &ones));
    free(platform, &frames);
    let tables = take_tables(platform)?;
    for table in &tables {
        let at = ptr::from_ref(platform.table(*table)) as u64;
        require!(
            at.is_multiple_of(PAGE_SIZE),
            "table({table:?}) is at {at:#x}, which is not a multiple of {PAGE_SIZE}"
        );
        require!(
            ptr::eq(platform.table(*table), platform.table(*table))
                && ptr::eq(platform.table_meta(*table), platform.table_meta(*table)),
            "table({table:?}) or table_meta({table:?}) returns different objects in two calls"
        );
        let (bits, number) = (P::Format::PFN_BITS, table.get());
        require!(number >> bits == 0, "the table {table:?} does not fit the {bits} bits of the format");
        if let Some((index, raw)) = filled(platform, *table) {
            return Err(alloc::format!(
                "alloc_table returned {table:?}, which is not zeroed: entry {index} is {raw:#x}"
            )
            .into());
        }
    }
    free_tables(platform, &tables);
    Ok(())
}

pub fn direct_map<P: Platform>(platform: &P) -> Checked {
    let frames = take(platform, COUNT)?;
    for pfn in &frames {
        platform.write_frame(*pfn, 0, &(pfn.get() ^ u64::MAX).to_ne_bytes());
    }
    let tables = take_tables(platform)?;
    for (index, first) in tables.iter().enumerate() {
        for second in &tables[..index] {
            require!(first != second, "alloc_table returned {first:?} twice: it was still in use");
            require!(
                !ptr::eq(platform.table_meta(*first), platform.table_meta(*second)),
                "table_meta({first:?}) and table_meta({second:?}) return the same record"
            );
        }
    }
    // The words are not entries: no space has these tables.
    let word = |table: &Pfn, n: usize| platform.table(*table).entry(n);
    for n in [0, ENTRIES - 1] {
        tables.iter().for_each(|table| word(table, n).store(table.get() << PAGE_SHIFT | 1, Relaxed));
        for table in &tables {
            let found = word(table, n).load(Relaxed);
            require!(
                found == table.get() << PAGE_SHIFT | 1,
                "every table got its number in entry {n}, but {table:?} has {found:#x}: table() returns the memory of \
                 another table"
            );
        }
    }
    for pfn in &frames {
        let mut bytes = [0; 8];
        platform.read_frame(*pfn, 0, &mut bytes);
        require!(
            u64::from_ne_bytes(bytes) == pfn.get() ^ u64::MAX,
            "a store to a table changed the allocated frame {pfn:?}: the two share memory"
        );
    }
    tables
        .iter()
        .for_each(|table| [0, ENTRIES - 1].into_iter().for_each(|n| word(table, n).store(0, Relaxed)));
    free_tables(platform, &tables);
    free(platform, &frames);
    Ok(())
}
