//! Which record and which field an address belongs to, for those that read a [`Report`](crate::Report).
//!
//! A program announces its records when it makes them, inside of a run or before. What is announced later
//! replaces what was announced for the same bytes. A record that was freed keeps its name until then, unless
//! it is [withdrawn](withdraw): memory that is used again unannounced appears under the old one.

use crate::trace::Within;
use std::cell::RefCell;
use std::collections::BTreeMap;

/// A field's name, and where in the record it begins. It ends where the next one begins.
pub type Field = (&'static str, usize);

/// Records of one type that lie one after the other.
#[derive(Clone, Copy, Debug)]
struct Records {
    end: usize,
    /// Bytes of one.
    size: usize,
    name: &'static str,
    fields: &'static [Field],
}

thread_local! {
    /// By where they begin. No two overlap.
    static NAMES: RefCell<BTreeMap<usize, Records>> = const { RefCell::new(BTreeMap::new()) };
}

/// There are `count` records of `size` bytes at an address, with these fields, in any order. A record without
/// fields has its name alone. Of a type's full name the folders and parameters are left out.
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

/// So many bytes at an address belong to no record that was announced.
pub fn withdraw(address: usize, bytes: usize) {
    let _own = Within::simulation();
    NAMES.with_borrow_mut(|names| forget(names, address, address + bytes));
}

/// Nothing was announced by this thread.
pub fn clear() {
    NAMES.with_borrow_mut(BTreeMap::clear);
}

/// Takes these bytes away from those that had them.
fn forget(names: &mut BTreeMap<usize, Records>, start: usize, end: usize) {
    while let Some((&at, &known)) = names.range(..end).next_back().filter(|(_, known)| known.end > start) {
        names.remove(&at);
        // What stands before it stays, where it ends with a whole record.
        let whole = start.saturating_sub(at) / known.size * known.size;
        if whole > 0 {
            names.insert(at, Records { end: at + whole, ..known });
        }
        // What stands behind it, where it begins with one.
        let skipped = end.saturating_sub(at).next_multiple_of(known.size);
        if at + skipped < known.end {
            names.insert(at + skipped, known);
        }
    }
}

/// Records that were announced, a line of text for each run of them: where it begins and ends, bytes of one
/// record, its type's name, and each field with where it begins in the record.
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

/// The name of the record's type and of the field at an address: `Vma.count`.
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

fn short(name: &str) -> &str {
    let path = name.split(['<', ';']).next().unwrap_or(name);
    path.rsplit("::").next().unwrap_or(path)
}
