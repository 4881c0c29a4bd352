//! How much memory the host has.

use freehold_replay::units;
use std::fs;

/// Bytes that can be had without taking anybody else's: what the kernel says, and what the control group that
/// this process is in may have. Nothing where neither can be read.
pub fn available() -> Option<u64> {
    let info = fs::read_to_string("/proc/meminfo").ok().and_then(|text| of_meminfo(&text));
    [info, of_group()].into_iter().flatten().min()
}

/// What the control group leaves, if it has a limit. What files have in the page cache goes when it is
/// needed.
fn of_group() -> Option<u64> {
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    let group = groups.lines().find_map(|line| line.strip_prefix("0::"))?;
    let read = |file: &str| fs::read_to_string(format!("/sys/fs/cgroup{group}/{file}")).ok();
    let limit: u64 = read("memory.max")?.trim().parse().ok()?;
    let used: u64 = read("memory.current")?.trim().parse().ok()?;
    let stat = read("memory.stat").unwrap_or_default();
    let cached = stat.lines().find_map(|line| line.strip_prefix("inactive_file "));
    let cached = cached.and_then(|bytes| bytes.parse().ok()).unwrap_or(0);
    Some(limit.saturating_sub(used.saturating_sub(cached)))
}

fn of_meminfo(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// What phantom memory of so many bytes takes of the host when all of it is mapped by pages of 4 KiB: records
/// of frames, page tables, and the lists of free ones.
pub fn of_phantom(bytes: u64) -> u64 {
    // 32 bytes of a record and 8 of an entry for each page of 4096 bytes; the rest is for what is around
    // them.
    bytes / 4096 * 48 + (64 << 20)
}

/// Makes sure that there is enough.
///
/// # Errors
///
/// For the user: how much there is too little, and what to do.
pub fn check(experiment: &str, need: u64, available: Option<u64>) -> Result<(), String> {
    match available {
        Some(available) if need > available => Err(format!(
            "{experiment} needs {} of memory at this size, and {} are free: give it more, name other experiments, or \
             choose smaller sizes (--quick, or --at-most 16GiB)",
            units::bytes(need),
            units::bytes(available)
        )),
        _ => Ok(()),
    }
}

#[cfg(test)]
#[path = "memory_tests.rs"]
mod tests;
