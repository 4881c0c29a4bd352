//! Names of the records and fields at addresses, for readers of a [`Report`](crate::Report).
//!
//! A program announces its records when it creates them, inside a run or before. A later announcement
//! replaces earlier announcements for the same bytes. A freed record keeps its name until a later
//! announcement replaces the name, or until the name is [withdrawn](withdraw). Memory that is reused without
//! an announcement therefore appears under the old name.
//!
//! Under `cfg(sim)`, `freehold-sync` announces the records of the engine and `freehold-machine` its frames.
//! `report/fields.rs` looks up the name of each transferred word. The names belong to a thread, as a run
//! does. `tests/names.rs` checks the names in reports.

use crate::trace::Within;
use std::cell::RefCell;
use std::collections::BTreeMap;

/// The name of a field and its offset in the record. The field ends where the next field begins.
pub type Field = (&'static str, usize);

/// Consecutive records of one type.
#[derive(Clone, Copy, Debug)]
struct Records {
    /// The address after the last record.
    end: usize,
    /// Bytes of one record.
    size: usize,
    name: &'static str,
    fields: &'static [Field],
}

thread_local! {
    /// The records, by start address. No two overlap.
    static NAMES: RefCell<BTreeMap<usize, Records>> = const { RefCell::new(BTreeMap::new()) };
}

/// Announces `count` records of `size` bytes at an address, with these fields, in any order. A record without
/// fields has only its own name. The path and the parameters of a type's full name are left out.
pub fn announce(name: &'static str, address: usize, size: usize, count: usize, fields: &'static [Field]) {
    let _own = Within::simulation();
    let end = address + size * count;
    if end > address {
        NAMES.with_borrow_mut(|names| {
            forget(names, address, end);
            names.insert(address, Records { end, size, name, fields });
        });
    }
}

/// Removes the names of `bytes` bytes at an address.
pub fn withdraw(address: usize, bytes: usize) {
    let _own = Within::simulation();
    NAMES.with_borrow_mut(|names| forget(names, address, address + bytes));
}

/// Removes all names that this thread announced.
pub fn clear() {
    NAMES.with_borrow_mut(BTreeMap::clear);
}

/// Removes the names of these bytes from the records that contain them.
fn forget(names: &mut BTreeMap<usize, Records>, start: usize, end: usize) {
    while let Some((&at, &known)) = names.range(..end).next_back().filter(|(_, known)| known.end > start) {
        names.remove(&at);
        // The whole records before `start` are kept.
        let whole = start.saturating_sub(at) / known.size * known.size;
        if whole > 0 {
            names.insert(at, Records { end: at + whole, ..known });
        }
        // The whole records behind `end` are kept.
        let skipped = end.saturating_sub(at).next_multiple_of(known.size);
        if at + skipped < known.end {
            names.insert(at + skipped, known);
        }
    }
}

/// Describes the announced records, one line of text for each range of records: start, end, bytes of one
/// record, the name of its type, and each field with its offset.
pub fn describe() -> String {
    NAMES.with_borrow(|names| {
        let mut text = String::new();
        for (start, known) in names {
            let Records { end, size, name, .. } = known;
            text.push_str(&format!("{start:#x} {end:#x} {size} {}", short(name)));
            known.fields.iter().for_each(|(field, begins)| text.push_str(&format!(" {field}:{begins}")));
            text.push('\n');
        }
        text
    })
}

/// Returns the name of the record's type and of the field at an address: `Vma.count`.
pub(crate) fn of(address: usize) -> Option<String> {
    NAMES.with_borrow(|names| {
        let (at, known) = names.range(..=address).next_back().filter(|(_, known)| address < known.end)?;
        let offset = (address - at) % known.size;
        let field = known.fields.iter().filter(|(_, begins)| *begins <= offset).max_by_key(|field| field.1);
        Some(match field {
            Some((field, _)) => format!("{}.{field}", short(known.name)),
            None => short(known.name).to_owned(),
        })
    })
}

/// Returns the name of a type without its path and its parameters.
fn short(name: &str) -> &str {
    let path = name.split(['<', ';']).next().unwrap_or(name);
    path.rsplit("::").next().unwrap_or(path)
}
