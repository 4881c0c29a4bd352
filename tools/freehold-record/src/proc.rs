//! Reads the state of a stopped process from /proc: VMAs, present pages, limits and sizes. The caller must
//! keep the process stopped; a change of its VMAs during the reading is an error.
//!
//! `follow.rs` calls [`snapshot`] at an exec, at an exit and at a freeze. Sources: `smaps` for VMAs, `status`
//! for sizes, `pagemap` (the ioctl PAGEMAP_SCAN) for present pages, `limits` for resource limits. The parsers
//! take the contents of files, so that tests (`proc_tests.rs`) need no process. A new fact about a process
//! also needs a field in `snapshot.rs`, a reader in `snap.rs` and a writer in `write.rs` of `freehold-trace`.
#![expect(unsafe_code, reason = "an ioctl that no library supports")]

use anyhow::{Context, bail};
use freehold_trace::operation::capability;
use freehold_trace::{Area, Limits, Pages, Snapshot, Why};
use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;

/// The lines of `smaps` that a snapshot contains, in the order of `Area::sizes`.
const SIZES: [&str; 9] = [
    "Rss",
    "Shared_Clean",
    "Shared_Dirty",
    "Private_Clean",
    "Private_Dirty",
    "Referenced",
    "Anonymous",
    "AnonHugePages",
    "Locked",
];

/// Reads a snapshot of `process` through its thread `thread`. The process must be stopped. The caller sets
/// the snapshot's number, its times, the number of threads, and the process's number in the recording.
///
/// # Errors
///
/// Fails if /proc cannot be read or parsed.
pub fn snapshot(process: i32, thread: i32, why: Why) -> anyhow::Result<Snapshot> {
    let folder = format!("/proc/{process}/task/{thread}");
    let read = |name: &str| {
        let path = format!("{folder}/{name}");
        let bytes = fs::read(&path).with_context(|| format!("cannot read {path}"))?;
        anyhow::Ok(String::from_utf8_lossy(&bytes).into_owned())
    };
    let exe = fs::read_link(format!("{folder}/exe")).map(|path| path.to_string_lossy().into_owned());
    Ok(Snapshot {
        id: 0,
        line: 0,
        why,
        process: 0,
        taken: (0, 0),
        threads: 0,
        comm: read("comm")?.trim_end_matches('\n').to_owned(),
        exe: exe.unwrap_or_default(),
        status: status(&read("status")?),
        areas: areas(&read("smaps")?)?,
        pages: pages(&File::open(format!("{folder}/pagemap"))?)?,
    })
}

/// Checks that accesses can be sampled on this machine.
///
/// # Errors
///
/// Fails with a message for the user if the kernel has no accessed bits for programs.
pub fn can_sample() -> anyhow::Result<()> {
    let mine = fs::OpenOptions::new().write(true).open("/proc/self/clear_refs").map(drop);
    mine.context("this kernel cannot clear accessed bits (/proc/PID/clear_refs, CONFIG_PROC_PAGE_MONITOR)")
}

/// Clears the accessed bits of all pages of `process`.
///
/// # Errors
///
/// Fails if the kernel denies it.
pub fn clear_accessed(process: i32) -> anyhow::Result<()> {
    let path = format!("/proc/{process}/clear_refs");
    fs::write(&path, "1").with_context(|| format!("cannot write to {path}"))
}

/// Returns true if the program that `process` has just executed changed the credentials of the process, or if
/// the user of the process may lack the right to read the program's file. In both cases the kernel closes the
/// perf events of the process.
pub fn is_privileged(process: i32) -> bool {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let differ = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
        let mut ids = line.split_whitespace();
        ids.next() != ids.next()
    };
    let readable = fs::metadata(format!("/proc/{process}/exe"));
    let readable = readable.is_ok_and(|exe| exe.permissions().mode() & 0o444 == 0o444);
    let root = status.lines().any(|line| line.starts_with("Uid:\t0\t"));
    differ("Uid:") || differ("Gid:") || !root && !readable
}

/// Returns the resource limits of `process`, which is stopped.
///
/// # Errors
///
/// Fails if /proc cannot be read or parsed.
pub fn limits_of(process: i32) -> anyhow::Result<Limits> {
    let read = |name: &str| {
        let path = format!("/proc/{process}/{name}");
        fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))
    };
    limits(&read("limits")?, &read("status")?)
}

/// Parses the resource limits in `limits`, with the capabilities in `status`.
///
/// # Errors
///
/// Fails if a limit is missing.
pub fn limits(limits: &str, status: &str) -> anyhow::Result<Limits> {
    let limit = |name: &str| {
        let mut words = limits.lines().find_map(|line| line.strip_prefix(name))?.split_whitespace();
        let mut number = || match words.next()? {
            "unlimited" => Some(u64::MAX),
            number => number.parse().ok(),
        };
        Some((number()?, number()?))
    };
    let limit = |name: &str| limit(name).with_context(|| format!("no limit of this name: {name}"));
    let (data, data_hard) = limit("Max data size ")?;
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let effective = effective.and_then(|set| u64::from_str_radix(set.trim(), 16).ok());
    Ok(Limits {
        address_space: limit("Max address space ")?.0,
        data,
        data_hard,
        stack: limit("Max stack size ")?.0,
        memlock: limit("Max locked memory ")?.0,
        may_lock: effective.context("no capabilities")? & capability::IPC_LOCK != 0,
    })
}

/// Returns the sizes in `status`, in kB.
pub fn status(text: &str) -> Vec<(String, u64)> {
    let sizes = text.lines().filter_map(|line| {
        let (name, rest) = line.split_once(':')?;
        let kilobytes = rest.trim().strip_suffix(" kB")?.parse().ok()?;
        (name.starts_with("Vm") || name.starts_with("Rss")).then(|| (name.to_owned(), kilobytes))
    });
    sizes.filter(|(name, _)| name != "VmSwap").collect()
}

/// Parses the VMAs of `smaps`.
///
/// # Errors
///
/// Fails if a line cannot be parsed, or if the VMAs cannot have existed at the same time.
pub fn areas(text: &str) -> anyhow::Result<Vec<Area>> {
    let mut areas: Vec<Area> = Vec::new();
    for line in text.lines() {
        if let Some(area) = first_line(line) {
            // Another process that shares the address space may change it during the read.
            if area.start >= area.end || areas.last().is_some_and(|last| last.end > area.start) {
                bail!("the address space changes while it is read: `{line}` in smaps");
            }
            areas.push(area);
            continue;
        }
        let (Some((name, value)), Some(area)) = (line.split_once(':'), areas.last_mut()) else {
            bail!("unexpected line in smaps: `{line}`");
        };
        let value = value.trim();
        match name {
            "VmFlags" => {
                let codes = value.split_whitespace().filter_map(|code| code.as_bytes().try_into().ok());
                area.flags = Some(codes.collect());
            }
            "THPeligible" => area.thp_eligible = value == "1",
            _ => {
                if let Some(index) = SIZES.iter().position(|size| *size == name) {
                    let kilobytes = value
                        .trim_end_matches(" kB")
                        .parse()
                        .with_context(|| format!("unexpected line in smaps: `{line}`"))?;
                    area.sizes.get_or_insert_default()[index] = kilobytes;
                }
            }
        }
    }
    Ok(areas)
}

/// Parses `START-END PERMS OFFSET DEVICE INODE NAME`. Returns `None` for other lines.
fn first_line(line: &str) -> Option<Area> {
    let mut rest = line;
    let mut word = || {
        let (word, behind) = rest.split_once(' ').unwrap_or((rest, ""));
        rest = behind;
        (!word.is_empty()).then_some(word)
    };
    let (start, end) = word()?.split_once('-')?;
    let (start, end) = (u64::from_str_radix(start, 16).ok()?, u64::from_str_radix(end, 16).ok()?);
    let rights = word()?.as_bytes();
    let offset = u64::from_str_radix(word()?, 16).ok()?;
    let (_device, inode) = (word()?, word()?);
    inode.parse::<u64>().ok()?;
    let mut prot = 0;
    for (index, letter) in b"rwx".iter().enumerate() {
        prot |= u8::from(rights.get(index)? == letter) << index;
    }
    Some(Area {
        start,
        end,
        prot,
        shared: *rights.get(3)? == b's',
        offset,
        name: rest.trim_start().to_owned(),
        sizes: None,
        flags: None,
        thp_eligible: false,
    })
}

/// `struct pm_scan_arg`.
#[repr(C)]
struct Scan {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    vec: u64,
    vec_len: u64,
    max_pages: u64,
    category_inverted: u64,
    category_mask: u64,
    category_anyof_mask: u64,
    return_mask: u64,
}

/// `struct page_region`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Region {
    start: u64,
    end: u64,
    categories: u64,
}

/// `_IOWR('f', 16, struct pm_scan_arg)`.
const PAGEMAP_SCAN: libc::c_ulong = 0xc060_6610;
const PRESENT_OR_SWAPPED: u64 = 8 | 16;
/// The requested categories: file, present, swapped, zero page, huge. Snapshots use the same bits.
const CATEGORIES: u64 = 4 | 8 | 16 | 32 | 64;
/// The address after the last page that a process can map.
const END: u64 = 0x7fff_ffff_f000;

/// Returns the runs of pages that are present or swapped out.
///
/// # Errors
///
/// Fails with the errors of the ioctl: ENOTTY on a kernel without this request (before 6.7).
pub fn pages(pagemap: &File) -> io::Result<Vec<Pages>> {
    let mut found = vec![Region::default(); 4096];
    let mut pages = Vec::new();
    let mut start = 0;
    loop {
        let mut scan = Scan {
            size: size_of::<Scan>() as u64,
            flags: 0,
            start,
            end: END,
            walk_end: 0,
            vec: found.as_mut_ptr() as u64,
            vec_len: found.len() as u64,
            max_pages: 0,
            category_inverted: 0,
            category_mask: 0,
            category_anyof_mask: PRESENT_OR_SWAPPED,
            return_mask: CATEGORIES,
        };
        // SAFETY: `scan` is the structure that this request reads and writes. The kernel writes at most
        // `vec_len` regions to `vec`, which outlives the call.
        let count = unsafe { libc::ioctl(pagemap.as_raw_fd(), PAGEMAP_SCAN, &mut scan) };
        let count = usize::try_from(count).map_err(|_| io::Error::last_os_error())?;
        let regions = &found[..count.min(found.len())];
        pages.extend(regions.iter().map(|region| Pages {
            first: region.start >> 12,
            count: (region.end - region.start) >> 12,
            categories: region.categories as u32,
        }));
        // If there are many regions, `walk_end` may be before the end of the last region that the kernel
        // returned.
        let next = regions.last().map_or(0, |last| last.end).max(scan.walk_end);
        if next >= END || next <= start {
            return Ok(pages);
        }
        start = next;
    }
}

#[cfg(test)]
#[path = "proc_tests.rs"]
mod tests;
