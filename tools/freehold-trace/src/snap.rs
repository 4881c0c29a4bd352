//! Reads `NAME.snap`: the kernel's VMA lists and present pages, one snapshot after the other.
//!
//! An event contains the number of a snapshot, and `recording.rs` requests the snapshot by this number. The
//! file is read only as far as the requested snapshot; skipped snapshots are kept, up to a maximum number of
//! lines. An invalid line is an error that ends the recording, in contrast to `trace.rs`: a snapshot with a
//! missing VMA would make the replay report false differences. `write.rs` writes this format; the tests
//! (`snap_tests.rs`) read its output. A new field needs a parser here, a field in `snapshot.rs`, and its
//! output in `write.rs`.

use crate::error::{Bad, ReadError};
use crate::fields::{Fields, text};
use crate::lines::Lines;
use crate::numbers::Numbers;
use crate::{Area, Pages, Snapshot, Why};
use std::collections::BTreeMap;

/// Maximum number of VMAs in a snapshot.
const MAX_AREAS: usize = 1 << 20;
/// Maximum number of runs of pages in a snapshot.
const MAX_RUNS: usize = 1 << 22;
/// Maximum number of lines of skipped snapshots that are kept.
const MAX_KEPT: usize = 1 << 22;
/// Upper bound of page numbers.
const PAGE_NUMBERS: u64 = 1 << 52;
/// The bits of an address within a page.
const IN_PAGE: u64 = 0xfff;

/// Reads the snapshots of a recording on demand.
pub(crate) struct SnapReader {
    /// The file. Its current line is already parsed.
    lines: Lines,
    /// The numbers of the snapshots read so far.
    numbers: Numbers,
    /// The next snapshot, if only its first line was read. That line is the current line of `lines`.
    begun: Option<Snapshot>,
    /// Skipped snapshots by number.
    kept: BTreeMap<u32, Snapshot>,
    /// Number of lines of the skipped snapshots.
    kept_lines: usize,
}

impl SnapReader {
    /// Reads the snapshots after the header. The current line of `lines` is the header.
    pub(crate) fn new(lines: Lines) -> Self {
        SnapReader { lines, numbers: Numbers::default(), begun: None, kept: BTreeMap::new(), kept_lines: 0 }
    }

    /// Returns snapshot `id`. Returns `None` if the snapshot does not exist, or was returned before.
    pub(crate) fn snapshot(&mut self, id: u32) -> Result<Option<Snapshot>, ReadError> {
        if let Some(found) = self.kept.remove(&id) {
            self.kept_lines -= weight(&found);
            return Ok(Some(found));
        }
        if self.numbers.contains(id) && self.begun.as_ref().is_none_or(|begun| begun.id != id) {
            return Ok(None);
        }
        while let Some(next) = self.next()? {
            if next.id == id {
                return Ok(Some(next));
            }
            self.kept_lines += weight(&next);
            if self.kept_lines > MAX_KEPT {
                let what = "lines of snapshots before the one that the recording needs";
                return Err(self.lines.wrong(Bad::TooMany(what, MAX_KEPT as u64)));
            }
            self.kept.insert(next.id, next);
        }
        Ok(None)
    }

    /// Returns the next snapshot of the file.
    fn next(&mut self) -> Result<Option<Snapshot>, ReadError> {
        let mut current = self.begun.take();
        while self.lines.advance()? {
            let line = self.lines.line();
            let step = match (line.first(), &mut current) {
                (Some(b'#'), _) => remark(line),
                (Some(b'@'), _) => {
                    let begun = first_line(line, self.lines.number());
                    let begun = begun.and_then(|begun| {
                        self.numbers.insert(begun.id, "snapshot", "snapshots").map(|()| begun)
                    });
                    let begun = begun.map_err(|bad| self.lines.wrong(bad))?;
                    match current.replace(begun) {
                        None => Ok(()),
                        done => {
                            self.begun = current;
                            return Ok(done.map(in_order));
                        }
                    }
                }
                (_, None) => Err(Bad::Expected("`@`, the beginning of a snapshot", 0)),
                (Some(b'P'), Some(current)) => pages(line, current),
                (_, Some(current)) => area(line, current),
            };
            step.map_err(|bad| self.lines.wrong(bad))?;
        }
        Ok(current.map(in_order))
    }
}

/// Sorts the runs of pages, so that each page occurs once. A recorder may have gone back in its list, and may
/// have listed pages twice.
fn in_order(mut snapshot: Snapshot) -> Snapshot {
    if snapshot.pages.is_sorted_by(|a, b| a.first + a.count <= b.first) {
        return snapshot;
    }
    snapshot.pages.sort_by_key(|run| run.first);
    let mut end = 0;
    snapshot.pages.retain_mut(|run| {
        let behind = run.first + run.count;
        run.first = run.first.max(end);
        run.count = behind.saturating_sub(run.first);
        end = end.max(behind);
        run.count > 0
    });
    snapshot
}

/// Returns the memory that a snapshot uses, in lines.
fn weight(snapshot: &Snapshot) -> usize {
    1 + snapshot.areas.len() + snapshot.pages.len()
}

/// Accepts a comment. A second header is an error.
fn remark(line: &[u8]) -> Result<(), Bad> {
    if line.starts_with(b"# fhsnap ") || line.starts_with(b"# fhtrace ") {
        return Err(Bad::Expected("no second header: this looks like two files in one", 0));
    }
    Ok(())
}

/// Parses the first line of a snapshot: `@ ID WHY PROC T0 T1 THREADS COMM | EXE | STATUS`.
fn first_line(line: &[u8], number: u32) -> Result<Snapshot, Bad> {
    let mut fields = Fields::new(line);
    fields.eat(b'@');
    fields.blank("a snapshot's number")?;
    let id = fields.decimal_u32("a snapshot's number")?;
    fields.blank("the reason")?;
    let begin = fields.position();
    let why = fields.until(b' ');
    let why = Why::of_word(why).ok_or(Bad::Expected("exec, freeze, exit or midexec", begin))?;
    fields.blank("a process")?;
    let process = fields.decimal_u32("a process's serial number")?;
    fields.blank("the start time")?;
    let from = fields.decimal("a time in nanoseconds")?;
    fields.blank("the end time")?;
    let to = fields.decimal("a time in nanoseconds")?;
    fields.blank("the number of threads")?;
    let threads = fields.decimal_u32("the number of threads")?;
    fields.blank("the command's name")?;
    let begin = fields.position();
    let rest = text(fields.rest(), begin)?;
    let parts = rest.split_once(" | ").and_then(|(comm, rest)| Some((comm, rest.rsplit_once(" | ")?)));
    let Some((comm, (exe, sizes))) = parts else {
        return Err(Bad::Expected("COMMAND | EXECUTABLE | SIZES", begin));
    };
    let status =
        status(sizes).ok_or(Bad::Expected("sizes such as VmPeak:512;VmRSS:12", line.len() - sizes.len()))?;
    Ok(Snapshot {
        id,
        line: number,
        why,
        process,
        taken: (from, to),
        threads,
        comm: comm.to_owned(),
        exe: exe.to_owned(),
        status,
        areas: Vec::new(),
        pages: Vec::new(),
    })
}

/// Parses sizes in kB: `NAME:KB;NAME:KB`.
fn status(sizes: &str) -> Option<Vec<(String, u64)>> {
    if sizes.is_empty() {
        return Some(Vec::new());
    }
    let sizes = sizes.split(';').map(|size| {
        let (name, kilobytes) = size.split_once(':')?;
        let mut fields = Fields::new(kilobytes.as_bytes());
        let kilobytes = fields.decimal("").ok()?;
        fields.is_empty().then(|| (name.to_owned(), kilobytes))
    });
    sizes.collect()
}

/// Parses a run of present pages, and adds it to `snapshot`: `P GAP COUNT CATEGORIES`. GAP is the distance
/// from the previous run.
fn pages(line: &[u8], snapshot: &mut Snapshot) -> Result<(), Bad> {
    let mut fields = Fields::new(line);
    fields.eat(b'P');
    fields.blank("the number of skipped pages")?;
    let back = fields.eat(b'-');
    let gap = fields.hex("the number of skipped pages, hexadecimal")?;
    fields.blank("the number of present pages")?;
    let begin = fields.position();
    let count = fields.hex("the number of present pages, hexadecimal")?;
    fields.blank("categories")?;
    let categories = fields.hex_u32("categories, hexadecimal")?;
    fields.end()?;
    let before = snapshot.pages.last().map_or(0, |last| last.first + last.count);
    let first = if back { before.checked_sub(gap) } else { before.checked_add(gap) };
    let Some(first) =
        first.filter(|first| count > 0 && *first < PAGE_NUMBERS && count <= PAGE_NUMBERS - first)
    else {
        return Err(Bad::Expected("at least one page, and only pages of the address space", begin));
    };
    if snapshot.pages.len() == MAX_RUNS {
        return Err(Bad::TooMany("runs of pages in a snapshot", MAX_RUNS as u64));
    }
    snapshot.pages.push(Pages { first, count, categories });
    Ok(())
}

/// Parses the line of a VMA, and adds the VMA to `snapshot`. VMAs must ascend, and precede the pages.
fn area(line: &[u8], snapshot: &mut Snapshot) -> Result<(), Bad> {
    let area = parse_area(line)?;
    let before = snapshot.areas.last().map_or(0, |last| last.end);
    if area.start < before {
        return Err(Bad::Expected(IN_ORDER, 0));
    }
    if !snapshot.pages.is_empty() {
        return Err(Bad::Expected("no VMA after the first `P`", 0));
    }
    if snapshot.areas.len() == MAX_AREAS {
        return Err(Bad::TooMany("VMAs in a snapshot", MAX_AREAS as u64));
    }
    snapshot.areas.push(area);
    Ok(())
}

/// The expected addresses of a VMA, for messages.
const IN_ORDER: &str = "whole pages after those of the previous VMA";

/// Parses a VMA: `START-END PERMS OFFSET NAME`, followed by ` | SIZES | FLAGS[!]` if smaps was read.
pub(crate) fn parse_area(line: &[u8]) -> Result<Area, Bad> {
    let mut fields = Fields::new(line);
    let start = fields.hex("`@`, `P`, or the first address of a VMA")?;
    if !fields.eat(b'-') {
        return fields.expected("`-` and the VMA's end");
    }
    let end = fields.hex("the VMA's end, hexadecimal")?;
    if start >= end || (start | end) & IN_PAGE != 0 {
        return Err(Bad::Expected(IN_ORDER, 0));
    }
    fields.blank("permissions")?;
    let (prot, shared) = permissions(&mut fields)?;
    fields.blank("an offset")?;
    let offset = fields.hex("an offset, hexadecimal")?;
    fields.blank("a name, or `-`")?;
    let (name, measured) = split_name(&mut fields)?;
    let name = if name == "-" { "" } else { name }.to_owned();
    let (sizes, flags, thp_eligible) = match measured {
        None => (None, None, false),
        Some((sizes, flags, eligible)) => (Some(sizes), Some(flags), eligible),
    };
    Ok(Area { start, end, prot, shared, offset, name, sizes, flags, thp_eligible })
}

/// Parses permissions such as `r-xp`. Returns the bits of `prot`, and true for a shared VMA.
fn permissions(fields: &mut Fields) -> Result<(u8, bool), Bad> {
    let mut prot = 0;
    for (bit, letter) in [(1, b'r'), (2, b'w'), (4, b'x')] {
        if fields.eat(letter) {
            prot |= bit;
        } else if !fields.eat(b'-') {
            return fields.expected("permissions such as r-xp");
        }
    }
    let shared = fields.eat(b's');
    if !shared && !fields.eat(b'p') {
        return fields.expected("`s` or `p`");
    }
    Ok((prot, shared))
}

/// The contents of smaps for a VMA: its sizes in kB, its flags, and true if it may contain transparent huge
/// pages.
type Measured = ([u32; 9], Vec<[u8; 2]>, bool);

/// Returns the name, which may itself contain ` | `, and the fields after it.
fn split_name<'a>(fields: &mut Fields<'a>) -> Result<(&'a str, Option<Measured>), Bad> {
    let begin = fields.position();
    let rest = text(fields.rest(), begin)?;
    if rest.is_empty() {
        return Err(Bad::Expected("a name, or `-`", begin));
    }
    let Some((front, flags)) = rest.rsplit_once(" | ") else { return Ok((rest, None)) };
    let Some((name, sizes)) = front.rsplit_once(" | ") else {
        return Err(Bad::Expected("NAME | SIZES | FLAGS", begin));
    };
    let codes = flags.strip_suffix('!');
    let eligible = codes.is_some();
    let codes = codes.unwrap_or(flags).as_bytes();
    let (pairs, odd) = codes.as_chunks::<2>();
    if !odd.is_empty() || !codes.iter().all(|code| code.is_ascii_alphanumeric()) {
        return Err(Bad::Expected("two-letter codes of flags", begin + front.len() + 3));
    }
    let measured =
        kilobytes(sizes).ok_or(Bad::Expected("nine sizes in kB, or `0`", begin + name.len() + 3))?;
    Ok((name, Some((measured, pairs.to_vec(), eligible))))
}

/// Parses a single `0`, or nine comma-separated numbers. An empty number means 0.
fn kilobytes(sizes: &str) -> Option<[u32; 9]> {
    let mut found = [0; 9];
    if sizes == "0" {
        return Some(found);
    }
    let mut parts = sizes.split(',');
    for size in &mut found {
        let mut fields = Fields::new(parts.next()?.as_bytes());
        if !fields.is_empty() {
            *size = fields.decimal_u32("").ok()?;
        }
        if !fields.is_empty() {
            return None;
        }
    }
    parts.next().is_none().then_some(found)
}

#[cfg(test)]
#[path = "snap_tests.rs"]
mod tests;
