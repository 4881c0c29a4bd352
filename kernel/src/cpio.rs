//! Reads the archive of the initial file system: `cpio -H newc`, not compressed.
//!
//! `files/tree.rs` makes the root file system from the entries, and `start.rs` reads the first program's
//! arguments and environment from them. The command `cargo xtask boot` writes the archive
//! (`kernel/xtask/src/boot/archive.rs`). The first invalid header ends the list, so a damaged archive gives
//! fewer files, and never a panic. Owners, times and inode numbers are ignored.
//! `cargo test --package freehold-kernel` runs the tests below.

/// Bytes of a header.
const HEADER: usize = 110;

/// A file of an archive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    /// The path, without a leading slash.
    pub name: &'a [u8],
    /// Type and permissions, as in `st_mode`.
    pub mode: u32,
    /// The contents of a file, or the target of a symbolic link.
    pub contents: &'a [u8],
}

/// Returns the files of an archive, up to its trailer or to the first bytes that are not a valid entry.
pub fn entries(archive: &[u8]) -> impl Iterator<Item = Entry<'_>> {
    let mut left = archive;
    core::iter::from_fn(move || {
        let (entry, rest) = next(left)?;
        left = rest;
        (entry.name != b"TRAILER!!!").then_some(entry)
    })
}

fn next(archive: &[u8]) -> Option<(Entry<'_>, &[u8])> {
    let header = archive.get(..HEADER)?;
    if !matches!(&header[..6], b"070701" | b"070702") {
        return None;
    }
    let field = |n: usize| {
        let digits = core::str::from_utf8(&header[6 + 8 * n..14 + 8 * n]).ok()?;
        usize::from_str_radix(digits, 16).ok()
    };
    let (mode, size, name_size) = (field(1)?, field(6)?, field(11)?);
    let name = archive.get(HEADER..HEADER.checked_add(name_size)?)?.split_last()?.1;
    let start = (HEADER + name_size).next_multiple_of(4);
    let end = start.checked_add(size)?;
    let contents = archive.get(start..end)?;
    let rest = archive.get(end.next_multiple_of(4)..).unwrap_or_default();
    let name = name.strip_prefix(b"./").or(name.strip_prefix(b"/")).unwrap_or(name);
    Some((Entry { name, mode: u32::try_from(mode).ok()?, contents }, rest))
}

#[cfg(test)]
mod tests {
    use super::*;
    extern crate std;
    use std::{format, string::String, vec::Vec};

    fn file(name: &str, mode: u32, contents: &str) -> String {
        let mut text = format!("070701{:08x}{mode:08x}", 1);
        for value in [0, 0, 1, 0, contents.len(), 0, 0, 0, 0, name.len() + 1, 0] {
            text += &format!("{value:08x}");
        }
        text += &format!("{name}\0");
        while text.len() % 4 != 0 {
            text.push('\0');
        }
        text += contents;
        while text.len() % 4 != 0 {
            text.push('\0');
        }
        text
    }

    #[test]
    fn archive_lists_its_files_up_to_the_trailer() {
        let archive = file("./bin", 0o040_755, "")
            + &file("bin/sh", 0o100_755, "hello")
            + &file("etc", 0o120_777, "bin")
            + &file("TRAILER!!!", 0, "")
            + &file("behind", 0o100_644, "");
        let found: Vec<_> = entries(archive.as_bytes()).collect();
        let entry = |name, mode, contents| Entry { name, mode, contents };
        assert_eq!(
            found,
            [
                entry(b"bin", 0o040_755, b""),
                entry(b"bin/sh", 0o100_755, b"hello"),
                entry(b"etc", 0o120_777, b"bin"),
            ]
        );
    }

    #[test]
    fn truncated_archive_ends_the_list() {
        let archive = file("a", 0o100_644, "contents");
        for length in 0..archive.len() {
            assert!(entries(&archive.as_bytes()[..length]).count() <= 1);
        }
        assert_eq!(entries(b"no archive at all").count(), 0);
    }
}
