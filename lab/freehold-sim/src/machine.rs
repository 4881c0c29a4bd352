//! Machines: how many processors, how far from each other, and what everything costs.

use serde::Deserialize;
use std::fmt;

/// A length of time; in a machine's file a number of nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(try_from = "f64")]
pub struct Span(u64);

impl Span {
    /// In picoseconds, which is what clocks count.
    pub(crate) fn ps(self) -> u64 {
        self.0
    }
}

impl TryFrom<f64> for Span {
    type Error = String;

    fn try_from(ns: f64) -> Result<Span, String> {
        match (0.0..=1e12).contains(&ns) {
            true => Ok(Span((ns * 1000.0).round() as u64)),
            false => Err(format!("{ns} ns: between 0 and 1000 s")),
        }
    }
}

/// By how much something takes longer: 1 or more.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(try_from = "f64")]
pub struct Factor(f64);

impl Factor {
    pub(crate) fn times(self, ps: u64) -> u64 {
        (ps as f64 * self.0).round() as u64
    }
}

impl TryFrom<f64> for Factor {
    type Error = String;

    fn try_from(factor: f64) -> Result<Factor, String> {
        match (1.0..=100.0).contains(&factor) {
            true => Ok(Factor(factor)),
            false => Err(format!("{factor}: a factor between 1 and 100")),
        }
    }
}

/// Bytes for each nanosecond.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(try_from = "f64")]
pub struct Rate(f64);

impl Rate {
    /// How long so many bytes take, in picoseconds.
    pub(crate) fn of(self, bytes: u64) -> u64 {
        (bytes as f64 * 1000.0 / self.0).round() as u64
    }
}

impl TryFrom<f64> for Rate {
    type Error = String;

    fn try_from(rate: f64) -> Result<Rate, String> {
        match (0.001..=1e6).contains(&rate) {
            true => Ok(Rate(rate)),
            false => Err(format!("{rate} bytes for each nanosecond: between 0.001 and 1,000,000")),
        }
    }
}

/// A machine, as its file in `machines/` describes it.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Machine {
    /// What it is.
    pub title: String,
    /// Its processors.
    pub topology: Topology,
    /// What an access to a word costs, by the state of its cache line.
    pub line: LineCosts,
    /// What else takes time.
    pub cost: Costs,
    /// Moving whole pages.
    pub memory: Bandwidth,
}

/// Processors are numbered as Linux does: the first of each core, socket by socket, then the second of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Topology {
    /// Sockets; each has memory of its own.
    pub sockets: usize,
    /// Cores of a socket.
    pub cores: usize,
    /// Clusters of a socket: cores that share a last cache of their own. One, where it is not said: then the
    /// socket's cores share it.
    #[serde(default = "one")]
    pub clusters: usize,
    /// Processors of a core, which share its caches.
    pub threads: usize,
}

fn one() -> usize {
    1
}

fn few_lines() -> Span {
    Span(25_000)
}

/// What an access to a word costs. What is not said of a cluster is as in the socket.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LineCosts {
    /// A load or store of a line that the processor has.
    pub hit: Span,
    /// A read-modify-write of a line that the processor has alone. Added to the transfer where it has not.
    pub rmw: Span,
    /// A full fence.
    pub fence: Span,
    /// A line from memory of the own socket.
    pub memory: Span,
    /// From another socket's.
    pub memory_remote: Span,
    /// A line that others have, unchanged, from the cluster's last cache.
    pub shared_cluster: Option<Span>,
    /// From the same socket.
    pub shared: Span,
    /// From another socket's.
    pub shared_remote: Span,
    /// A line from the processor of the same cluster that changed it last.
    pub transfer_cluster: Option<Span>,
    /// From one of the same socket.
    pub transfer: Span,
    /// From one of another socket.
    pub transfer_remote: Span,
    /// Taking a line away from processors of the same cluster that have copies, whatever their number.
    pub upgrade_cluster: Option<Span>,
    /// The same where a copy is in another cluster.
    pub upgrade: Span,
    /// The same where a copy is in another socket.
    pub upgrade_remote: Span,
    /// How long a processor that has changed a line keeps it from others that want it: each time half as
    /// long at least, half as long again at most.
    pub hold: Span,
}

/// What else takes time.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Costs {
    /// Instructions between two accesses.
    pub work: Span,
    /// By what instructions slow down while the other processor of the core is busy: a factor.
    pub smt: Factor,
    /// A turn of a loop that waits.
    pub pause: Span,
    /// A page fault's way into the kernel and back.
    pub trap: Span,
    /// What a kernel does for a fault beside the address space: accounting, statistics.
    pub fault: Span,
    /// Sending an interrupt to other processors.
    pub interrupt_send: Span,
    /// For each of them.
    pub interrupt_each: Span,
    /// Until it arrives.
    pub interrupt_latency: Span,
    /// Until it arrives in another socket.
    pub interrupt_latency_remote: Span,
    /// What it costs the processor that is interrupted.
    pub interrupt_handle: Span,
    /// Going to sleep, until the next task runs.
    pub sleep: Span,
    /// Waking a task, for the one that wakes it.
    pub wake: Span,
    /// Until a task that was woken runs on an idle processor.
    pub wake_latency: Span,
    /// How long a task keeps a processor that others want.
    pub slice: Span,
    /// How long a grace period lasts beyond the read sections that it waits for.
    pub grace: Span,
}

/// Moving whole pages, in bytes for each nanosecond.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bandwidth {
    /// What one processor zeroes.
    pub zero: Rate,
    /// What one processor copies.
    pub copy: Rate,
    /// What a socket's memory takes in or gives, in all.
    pub socket: Rate,
    /// What taking one frame off the socket's free ones takes, under their lock: a few lines of lists.
    #[serde(default = "few_lines")]
    pub frame: Span,
}

/// How far two processors are from each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Distance {
    /// They are of one core.
    Core,
    /// Of one cluster; of one socket, where that is not divided.
    Cluster,
    /// Of one socket.
    Socket,
    /// Of different sockets.
    Remote,
}

impl LineCosts {
    /// An unchanged line from a processor that far away. The other one of a core counts as of the cluster.
    pub(crate) fn shared(&self, distance: Distance) -> Span {
        distance.of(self.shared_cluster.unwrap_or(self.shared), self.shared, self.shared_remote)
    }

    /// A changed one. The other processor of the same core has the same cache.
    pub(crate) fn transfer(&self, distance: Distance) -> Span {
        let cluster = self.transfer_cluster.unwrap_or(self.transfer);
        let cluster = if distance == Distance::Core { self.hit } else { cluster };
        distance.of(cluster, self.transfer, self.transfer_remote)
    }

    /// Taking it away.
    pub(crate) fn upgrade(&self, distance: Distance) -> Span {
        distance.of(self.upgrade_cluster.unwrap_or(self.upgrade), self.upgrade, self.upgrade_remote)
    }
}

impl Distance {
    fn of<T>(self, cluster: T, socket: T, remote: T) -> T {
        match self {
            Distance::Core | Distance::Cluster => cluster,
            Distance::Socket => socket,
            Distance::Remote => remote,
        }
    }
}

/// The machines that come with this crate: their names and files.
pub const MACHINES: &[(&str, &str)] = &[
    ("e5-2690v4", include_str!("../machines/e5-2690v4.toml")),
    ("e7-4890v2", include_str!("../machines/e7-4890v2.toml")),
    ("e5-2680", include_str!("../machines/e5-2680.toml")),
    ("vm-48", include_str!("../machines/vm-48.toml")),
    ("epyc-9654", include_str!("../machines/epyc-9654.toml")),
    ("zen5-vm-2", include_str!("../machines/zen5-vm-2.toml")),
];

/// There is no such machine, or its description does not hold together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadMachine(String);

impl fmt::Display for BadMachine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for BadMachine {}

fn bad(error: toml::de::Error) -> BadMachine {
    BadMachine(error.to_string())
}

impl Machine {
    /// The most processors that a machine may have.
    pub const MAX_CPUS: usize = 512;

    /// The machine of this name among [`MACHINES`].
    ///
    /// # Errors
    /// There is none; the message has the names that there are.
    pub fn named(name: &str) -> Result<Machine, BadMachine> {
        Machine::parse(Machine::file(name)?)
    }

    fn file(name: &str) -> Result<&'static str, BadMachine> {
        let names = || MACHINES.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
        let found = MACHINES.iter().find(|(known, _)| *known == name);
        found
            .map(|(_, text)| *text)
            .ok_or_else(|| BadMachine(format!("no machine {name:?}: there are {}", names())))
    }

    /// The machine of this name with some figures changed, each written `SECTION.KEY=VALUE` as in its file:
    /// `cost.smt=1`. Its title says so.
    ///
    /// # Errors
    /// As [`named`](Self::named); a change that is none, or of a figure that a machine has not.
    pub fn changed(name: &str, changes: &[String]) -> Result<Machine, BadMachine> {
        let mut table = Machine::file(name)?.parse::<toml::Table>().map_err(bad)?;
        for change in changes {
            let form = || BadMachine(format!("{change:?} is no change: SECTION.KEY=VALUE"));
            let (key, value) = change.split_once('=').ok_or_else(form)?;
            let (section, key) = key.split_once('.').ok_or_else(form)?;
            let place = table.get_mut(section).and_then(toml::Value::as_table_mut);
            let place = place.ok_or_else(|| BadMachine(format!("{change:?}: a machine has no {section}")))?;
            let value = format!("value = {value}").parse::<toml::Table>().map_err(|_| form())?;
            place.insert(key.to_owned(), value["value"].clone());
        }
        if !changes.is_empty()
            && let Some(toml::Value::String(title)) = table.get_mut("title")
        {
            title.push_str(&format!(", with {}", changes.join(", ")));
        }
        Machine::checked(Machine::deserialize(table).map_err(bad)?)
    }

    /// A machine from the text of its file.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(text: &str) -> Result<Machine, BadMachine> {
        Machine::checked(toml::from_str(text).map_err(bad)?)
    }

    /// Whether what it says holds together.
    fn checked(machine: Machine) -> Result<Machine, BadMachine> {
        let cpus = machine.cpus();
        if !(1..=Machine::MAX_CPUS).contains(&cpus) {
            return Err(BadMachine(format!("{cpus} processors: between 1 and {}", Machine::MAX_CPUS)));
        }
        let Topology { cores, clusters, .. } = machine.topology;
        if clusters == 0 || !cores.is_multiple_of(clusters) {
            return Err(BadMachine(format!("{cores} cores in {clusters} clusters: each has as many")));
        }
        Ok(machine)
    }

    /// How many processors it has.
    pub fn cpus(&self) -> usize {
        let Topology { sockets, cores, threads, .. } = self.topology;
        sockets * cores * threads
    }

    /// Numbers of processors from a list as `1,4,16`.
    ///
    /// # Errors
    /// What is no number, or more than the machine has.
    pub fn some_cpus(&self, list: &str) -> Result<Vec<usize>, BadMachine> {
        let most = self.cpus();
        let one = |text: &str| match text.parse() {
            Ok(cpus) if (1..=most).contains(&cpus) => Ok(cpus),
            Ok(cpus) => Err(BadMachine(format!("{cpus} processors: {} has 1 to {most}", self.title))),
            Err(_) => Err(BadMachine(format!("{text:?} is no number of processors"))),
        };
        list.split(',').map(one).collect()
    }

    /// The socket of a processor.
    pub fn socket_of(&self, cpu: usize) -> usize {
        self.core_of(cpu) / self.topology.cores
    }

    /// The cluster of a processor, counted through all sockets.
    pub fn cluster_of(&self, cpu: usize) -> usize {
        self.core_of(cpu) / (self.topology.cores / self.topology.clusters)
    }

    /// How far one processor is from another.
    pub(crate) fn distance(&self, cpu: usize, other: usize) -> Distance {
        match () {
            () if self.core_of(cpu) == self.core_of(other) => Distance::Core,
            () if self.cluster_of(cpu) == self.cluster_of(other) => Distance::Cluster,
            () if self.socket_of(cpu) == self.socket_of(other) => Distance::Socket,
            () => Distance::Remote,
        }
    }

    /// The core of a processor, counted through all sockets.
    pub fn core_of(&self, cpu: usize) -> usize {
        cpu % (self.topology.sockets * self.topology.cores)
    }
}
