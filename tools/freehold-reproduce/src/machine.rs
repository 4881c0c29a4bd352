//! The machine of a run.
//!
//! Every report begins with these facts, because times depend on them. [`Facts::here`] reads them from /proc.
//! A simulated machine describes itself elsewhere (`executor/fibers.rs`). A new fact needs a field of
//! [`Facts`], and its words in [`Facts::text`].

use freehold_replay::units;
use serde::Serialize;
use std::fs;

/// Facts about the machine that a reader of the figures needs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Facts {
    /// Name of the processor.
    pub processor: String,
    /// Number of processors that the program may use.
    pub cpus: usize,
    /// Memory in bytes.
    pub memory: u64,
    /// Name and version of the kernel.
    pub kernel: String,
}

impl Facts {
    /// Returns the facts of this machine. A fact that cannot be read is `unknown`, or 0.
    pub fn here() -> Facts {
        let read = |path| fs::read_to_string(path).unwrap_or_default();
        let unknown = || "unknown".to_owned();
        let field = |text: &str, name: &str| {
            let line = text.lines().find(|line| line.starts_with(name))?;
            Some(line.split_once(':')?.1.trim().to_owned())
        };
        let memory = field(&read("/proc/meminfo"), "MemTotal");
        let kilobytes = memory.and_then(|text| text.trim_end_matches("kB").trim().parse::<u64>().ok());
        Facts {
            processor: field(&read("/proc/cpuinfo"), "model name").unwrap_or_else(unknown),
            cpus: std::thread::available_parallelism().map_or(1, usize::from),
            memory: kilobytes.unwrap_or(0) * 1024,
            kernel: match read("/proc/sys/kernel/osrelease").trim() {
                "" => unknown(),
                release => format!("Linux {release}"),
            },
        }
    }

    /// Returns the facts in one line.
    pub fn text(&self) -> String {
        let cpus = units::counted(self.cpus as u64, "processor");
        format!("{cpus} ({}), {} of memory, {}", self.processor, units::bytes(self.memory), self.kernel)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn facts_are_read_and_written_in_one_line() {
        let here = Facts::here();
        assert!(here.cpus >= 1 && here.memory > 0 && here.kernel.starts_with("Linux "), "{here:?}");
        let facts =
            Facts { processor: "EPYC".to_owned(), cpus: 2, memory: 23 << 30, kernel: "Linux 6.1".to_owned() };
        assert_eq!(facts.text(), "2 processors (EPYC), 23 GiB of memory, Linux 6.1");
    }
}
