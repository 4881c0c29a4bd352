//! What a run took, and which lines it was lost on.

use crate::world::World;
use std::fmt;
use std::panic::Location;

/// See the [module](self).
#[derive(Clone, Debug)]
pub struct Report {
    /// Virtual time until the last task ended.
    pub elapsed_ns: u64,
    /// Virtual time in which each processor had a task.
    pub busy_ns: Vec<u64>,
    /// Accesses to shared words.
    pub accesses: u64,
    /// Cache lines that came from another processor, or had to be taken from others.
    pub transfers: u64,
    /// Times that a task went to sleep.
    pub sleeps: u64,
    /// Processors that were interrupted.
    pub interrupts: u64,
    /// Times that another processor went on.
    pub turns: u64,
    /// The lines that were transferred, those that cost most first.
    pub lines: Vec<HotLine>,
}

/// A cache line that passed between processors.
#[derive(Clone, Debug)]
pub struct HotLine {
    /// Of its first byte.
    pub address: usize,
    /// Accesses of any kind.
    pub accesses: u64,
    /// Of these, those for which it came from another processor or was taken from others.
    pub transfers: u64,
    /// Time that processors waited for it, its way included.
    pub lost_ns: u64,
    /// Of this, while it was on its way to others.
    pub queued_ns: u64,
    /// Where in the program it was transferred, the most frequent first.
    pub places: Vec<(&'static Location<'static>, u64)>,
}

impl Report {
    pub(crate) fn of(world: World) -> Report {
        let (elapsed, busy, counts) = (world.elapsed(), world.busy(), world.counts);
        let transferred = world.into_lines().filter(|(_, count)| count.transfers > 0);
        let mut lines: Vec<HotLine> = transferred
            .map(|(address, mut count)| {
                count.places.sort_by_key(|(place, times)| {
                    (std::cmp::Reverse(*times), place.file(), place.line(), place.column())
                });
                HotLine {
                    address,
                    accesses: count.accesses,
                    transfers: count.transfers,
                    lost_ns: count.lost / 1000,
                    queued_ns: count.queued / 1000,
                    places: count.places,
                }
            })
            .collect();
        lines.sort_by_key(|line| (std::cmp::Reverse(line.lost_ns), line.address));
        Report {
            elapsed_ns: elapsed / 1000,
            busy_ns: busy.into_iter().map(|ps| ps / 1000).collect(),
            accesses: counts.accesses,
            transfers: lines.iter().map(|line| line.transfers).sum(),
            sleeps: counts.sleeps,
            interrupts: counts.interrupts,
            turns: counts.turns,
            lines,
        }
    }
}

impl fmt::Display for HotLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} transfers of {} accesses, {} ns lost", self.transfers, self.accesses, self.lost_ns)?;
        for (place, times) in self.places.iter().take(3) {
            write!(f, "\n    {times} at {place}")?;
        }
        Ok(())
    }
}
