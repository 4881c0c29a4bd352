//! The memory of the host: how much is available, and how much an experiment needs.
//!
//! `Plan::check` in `lib.rs` calls [`check`] for each experiment before a run starts, because an experiment
//! that runs out of memory would waste the time of the run. `Experiment::memory` estimates the need, mostly
//! with [`of_phantom`]; an estimate that is too low lets the host run out of memory. `scale.rs` decides with
//! [`available`] whether the host is measured too. The tests are in `memory_tests.rs`.

use freehold_replay::units;
use std::fs;

/// Returns the number of bytes that are available without taking memory from other processes. Respects the
/// limit of the process's control group. Returns `None` if neither value can be read.
pub fn available() -> Option<u64> {
    let info = fs::read_to_string("/proc/meminfo").ok().and_then(|text| of_meminfo(&text));
    [info, of_group()].into_iter().flatten().min()
}

/// Returns the number of bytes that the process may still use in its control group, if the group has a limit.
/// File pages in the page cache count as available, because the kernel drops them when needed.
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

/// Returns the number of host bytes that fully mapped phantom memory takes with pages of 4 KiB: records of
/// frames, page tables, and lists of free frames.
pub fn of_phantom(bytes: u64) -> u64 {
    // A record of 32 bytes and an entry of 8 bytes for each page, and some overhead.
    bytes / 4096 * 48 + (64 << 20)
}

/// Checks that there is enough memory.
///
/// # Errors
///
/// Fails with a message for the user that states the needed and the available memory, and what to change.
pub fn check(experiment: &str, need: u64, available: Option<u64>) -> Result<(), String> {
    match available {
        Some(available) if need > available => Err(format!(
            "{experiment} needs {} of memory at this size, but only {} are free: free some memory, choose other experiments, or \
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
