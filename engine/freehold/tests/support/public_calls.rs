//! Finds the public methods of the engine by reading its sources line by line. `sweep/complete.rs` and
//! `lab/freehold-model/tests/wild.rs` compare the list with the calls that they make, so that a new method
//! without a test fails there.
//!
//! The reader knows only the layout that rustfmt produces: `impl` lines start at column 0 and methods are
//! indented by four spaces. It skips trait implementations.
#![allow(dead_code, reason = "each test program uses its part")]

use std::{collections::BTreeMap, fs, path::Path};

/// Returns every public method in the sources as "Type::method", with its file. Methods that are hidden from
/// the documentation are calls between crates of the project, and are left out.
pub fn public_calls(folder: &Path) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    read_folder(folder, &mut found);
    found
}

fn read_folder(folder: &Path, found: &mut BTreeMap<String, String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            read_folder(&path, found);
            continue;
        }
        let text = fs::read_to_string(&path).unwrap();
        let (mut of, mut hidden) = (None, false);
        for line in text.lines() {
            if line == "#[doc(hidden)]" {
                hidden = true;
            } else if line.starts_with("impl") {
                of = implemented(line).filter(|_| !hidden);
            } else if line.starts_with('}') {
                of = None;
            } else if let (Some(of), Some(name)) = (&of, public_name(line)) {
                found.insert(format!("{of}::{name}"), path.display().to_string());
            }
            // An attribute applies to the next item. Comments and other attributes may lie between them.
            hidden &= line.starts_with(['#', '/']);
        }
    }
}

/// Returns the type that a line such as `impl<P: Platform> AddressSpace<P> {` opens, unless the line
/// implements a trait.
fn implemented(line: &str) -> Option<String> {
    let mut depth = 0;
    let rest = line.strip_prefix("impl")?;
    let start = rest.find(|c| {
        depth += i32::from(c == '<') - i32::from(c == '>');
        depth == 0 && c == ' '
    })?;
    let rest = &rest[start + 1..];
    if rest.contains(" for ") {
        return None;
    }
    Some(rest.split(['<', ' ']).next()?.to_owned())
}

fn public_name(line: &str) -> Option<&str> {
    let rest = line.strip_prefix("    pub ")?;
    let rest = rest.strip_prefix("const ").unwrap_or(rest);
    let rest = rest.strip_prefix("unsafe ").unwrap_or(rest).strip_prefix("fn ")?;
    rest.split(['(', '<']).next()
}
