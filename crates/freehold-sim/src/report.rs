//! What a run took, and which lines it was lost on.

use crate::world::World;
use std::collections::{BTreeMap, btree_map::Entry};
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

/// A cache line that passed between processors, or all of one name together.
#[derive(Clone, Debug)]
pub struct HotLine {
    /// Of its first byte; of the first one's.
    pub address: usize,
    /// How many lines.
    pub count: u64,
    /// Accesses of any kind.
    pub accesses: u64,
    /// Of these, those for which it came from another processor or was taken from others.
    pub transfers: u64,
    /// Of these, those for which it came from another socket.
    pub remote: u64,
    /// Time that processors waited for it, its way included.
    pub lost_ns: u64,
    /// Of this, while it was on its way to others.
    pub queued_ns: u64,
    /// What lies in it, as far as somebody has said.
    pub names: Vec<&'static str>,
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
                    count: 1,
                    accesses: count.accesses,
                    transfers: count.transfers,
                    remote: count.remote,
                    names: count.names,
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

impl Report {
    /// Adds what another run took after this one, on the same processors: its clocks go on where these
    /// ended.
    pub fn add(&mut self, later: Report) {
        self.elapsed_ns += later.elapsed_ns;
        self.busy_ns.resize(self.busy_ns.len().max(later.busy_ns.len()), 0);
        self.busy_ns.iter_mut().zip(later.busy_ns).for_each(|(all, more)| *all += more);
        self.accesses += later.accesses;
        self.transfers += later.transfers;
        self.sleeps += later.sleeps;
        self.interrupts += later.interrupts;
        self.turns += later.turns;
        let mut lines: BTreeMap<usize, HotLine> =
            self.lines.drain(..).map(|line| (line.address, line)).collect();
        for line in later.lines {
            match lines.entry(line.address) {
                Entry::Occupied(mut known) => known.get_mut().add(line),
                Entry::Vacant(place) => drop(place.insert(line)),
            }
        }
        self.lines.extend(lines.into_values());
        self.lines.sort_by_key(|line| (std::cmp::Reverse(line.lost_ns), line.address));
    }
}

impl Report {
    /// The lines, all of one [name](HotLine::name) together, those that cost most first.
    pub fn by_name(&self) -> Vec<HotLine> {
        let mut all: BTreeMap<String, HotLine> = BTreeMap::new();
        for line in &self.lines {
            match all.entry(line.name()) {
                Entry::Occupied(mut known) => {
                    known.get_mut().count += 1;
                    known.get_mut().add(line.clone());
                }
                Entry::Vacant(place) => drop(place.insert(line.clone())),
            }
        }
        let mut all: Vec<HotLine> = all.into_values().collect();
        all.sort_by_key(|line| (std::cmp::Reverse(line.lost_ns), line.address));
        all
    }
}

/// Without the modules and parameters of a type.
fn short(name: &str) -> &str {
    let name = name.split_once('<').map_or(name, |(name, _)| name);
    name.rsplit_once("::").map_or(name, |(_, name)| name)
}

impl HotLine {
    /// What lies in it; or, if nobody has said so, where it is passed on most often: the end of the file's
    /// path, and the line in it.
    pub fn name(&self) -> String {
        if !self.names.is_empty() {
            let mut names: Vec<&str> = self.names.iter().map(|name| short(name)).collect();
            names.sort_unstable();
            return names.join(" + ");
        }
        let Some((place, _)) = self.places.first() else { return format!("{:#x}", self.address) };
        let parts: Vec<&str> = place.file().rsplit('/').take(2).collect();
        format!("{}/{}:{}", parts.last().copied().unwrap_or(""), parts[0], place.line())
    }

    /// Adds what became of the same line later.
    fn add(&mut self, later: HotLine) {
        self.accesses += later.accesses;
        self.transfers += later.transfers;
        self.remote += later.remote;
        self.lost_ns += later.lost_ns;
        self.queued_ns += later.queued_ns;
        for name in later.names {
            if !self.names.contains(&name) {
                self.names.push(name);
            }
        }
        for (place, times) in later.places {
            match self.places.iter_mut().find(|(known, _)| *known == place) {
                Some((_, all)) => *all += times,
                None => self.places.push((place, times)),
            }
        }
        self.places.sort_by_key(|(_, times)| std::cmp::Reverse(*times));
    }
}

impl fmt::Display for HotLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let HotLine { transfers, remote, accesses, lost_ns, .. } = self;
        write!(
            f,
            "{}: {transfers} transfers ({remote} between sockets) of {accesses} accesses",
            self.name()
        )?;
        write!(f, ", {lost_ns} ns lost")?;
        for (place, times) in self.places.iter().take(3) {
            write!(f, "\n    {times} at {place}")?;
        }
        Ok(())
    }
}
