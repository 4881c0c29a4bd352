//! Reading `/proc/PID/{maps,smaps,status}`.
//!
//! The parent (`mod.rs`) reads these files of a child between batches of calls, while the child waits, and
//! converts them to the [`MapLine`]s and [`Counters`] that `compare.rs` compares. Only lines inside the arena
//! are returned; the mappings outside were made before the run. The parser ignores unknown fields and flags,
//! because kernels add some. A buffer is reused, because smaps of many mappings is long. A file of
//! [`World::INODES`] is recognised by its name here and in `query.rs`.

use std::fs::File;
use std::io::Read;

use crate::op::*;
use crate::world::World;

/// Reads a file of a process into a buffer.
fn read(pid: i32, name: &str, into: &mut Vec<u8>) -> Result<(), String> {
    into.clear();
    let path = format!("/proc/{pid}/{name}");
    let done = File::open(&path).and_then(|mut f| f.read_to_end(into));
    done.map(|_| ()).map_err(|e| format!("{path}: {e}"))
}

/// Returns the lines of a text. A line that is not UTF-8 is empty.
fn lines(text: &[u8]) -> impl Iterator<Item = &str> {
    text.split(|b| *b == b'\n').map(|l| std::str::from_utf8(l).unwrap_or(""))
}

/// Parses `start-end rights offset dev inode path`, the first line of a mapping.
fn header(line: &str) -> Option<(u64, u64, &str, u64, &str)> {
    let mut words = line.splitn(6, ' ');
    let (start, end) = words.next()?.split_once('-')?;
    let hex = |s| u64::from_str_radix(s, 16).ok();
    let (start, end) = (hex(start)?, hex(end)?);
    let rights = words.next()?;
    let offset = hex(words.next()?)?;
    let path = words.nth(2).unwrap_or("").trim();
    Some((start, end, rights, offset, path))
}

/// Returns true if the process does not exist or is a zombie.
pub(super) fn dead(pid: i32) -> bool {
    let mut text = Vec::new();
    if pid <= 0 || read(pid, "stat", &mut text).is_err() {
        return true;
    }
    let stat = String::from_utf8_lossy(&text);
    stat.rsplit(')').next().is_none_or(|s| s.trim_start().starts_with(['Z', 'X']))
}

/// Returns the free ranges outside the arena. The gap below a stack stays free, because the kernel never
/// places a mapping there.
pub(super) fn gaps(pid: i32, w: &World) -> Result<Vec<(u64, u64)>, String> {
    let mut text = Vec::new();
    read(pid, "maps", &mut text)?;
    let mut used: Vec<(u64, u64)> = vec![(w.start, w.end), (w.task_size, u64::MAX)];
    for (start, end, _, _, path) in lines(&text).filter_map(header) {
        let start = if path == "[stack]" { start - w.stack_gap * PAGE } else { start };
        if start < w.end && end > w.start {
            return Err(format!("the arena is taken by {path}"));
        }
        used.push((start, end));
    }
    used.sort();
    let mut free = Vec::new();
    let mut pos = w.min_addr;
    for (start, end) in used {
        if start > pos {
            free.push((pos, start));
        }
        pos = pos.max(end);
    }
    Ok(free)
}

/// Returns the counters of a process with an empty arena, and the number of its pages that can be locked.
pub(super) fn outside(pid: i32) -> Result<(Counters, i64), String> {
    let mut text = Vec::new();
    read(pid, "smaps", &mut text)?;
    let mut count = status(pid)?;
    let mut lockable = 0;
    let mut pages = 0;
    for line in lines(&text) {
        if let Some(flags) = line.strip_prefix("VmFlags:") {
            if !flags.split_whitespace().any(|f| matches!(f, "io" | "de" | "pf" | "mm")) {
                // The kernel counts the pages of one VMA in an int here.
                lockable += i64::from(pages as i32);
            }
        } else if let Some((start, end, _, _, path)) = header(line) {
            pages = if path == "[vsyscall]" { 0 } else { ((end - start) / PAGE) as i64 };
            count.map_count += (pages > 0) as i64;
        }
    }
    Ok((count, lockable))
}

/// Returns the counters of `status`. `map_count` is 0.
pub(super) fn status(pid: i32) -> Result<Counters, String> {
    let mut text = Vec::new();
    read(pid, "status", &mut text)?;
    let field = |name: &str| {
        let line = lines(&text).find_map(|l| l.strip_prefix(name)).unwrap_or("0");
        line.split_whitespace().next().and_then(|n| n.parse::<u64>().ok()).unwrap_or(0) as i64 * 1024
            / PAGE as i64
    };
    Ok(Counters {
        map_count: 0,
        total_vm: field("VmSize:"),
        locked_vm: field("VmLck:"),
        data_vm: field("VmData:"),
        stack_vm: field("VmStk:"),
    })
}

/// Returns the lines of the arena.
pub(super) fn arena(pid: i32, w: &World, text: &mut Vec<u8>) -> Vec<MapLine> {
    let mut out: Vec<MapLine> = Vec::new();
    if read(pid, "smaps", text).is_err() {
        return out;
    }
    let mut inside = false;
    for line in lines(text) {
        match line.as_bytes().first() {
            Some(b'V') if inside && line.starts_with("VmFlags:") => {
                let names = line[8..].split_whitespace();
                let flags = names.filter_map(vmflag::parse).fold(0, |a, b| a | b);
                out.last_mut().expect("the header came first").flags = flags;
            }
            Some(b'0'..=b'9' | b'a'..=b'f') => {
                let Some((start, end, _, offset, path)) = header(line) else { continue };
                inside = w.holds(start, end);
                if start >= w.end {
                    break;
                }
                if inside {
                    let file = match path {
                        p if p.starts_with("/memfd:model0") => Some(MapFile::Inode(0)),
                        p if p.starts_with("/memfd:model1") => Some(MapFile::Inode(1)),
                        p if p.starts_with("/dev/zero") => Some(MapFile::SharedAnon),
                        _ => None,
                    };
                    out.push(MapLine { start, end, flags: 0, offset, file });
                }
            }
            _ => {}
        }
    }
    out
}
