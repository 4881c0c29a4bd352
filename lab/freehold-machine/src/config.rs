//! What machine to build.

/// What the frames of a machine are made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memory {
    /// Frames have contents, in memory of the host that is mapped when touched.
    Backed {
        /// Size; rounded down to whole frames.
        bytes: u64,
    },
    /// Frames have numbers and records but no contents: what is written is gone, what is read is zero.
    /// Page tables are real all the same.
    Phantom {
        /// Size; rounded down to whole frames.
        bytes: u64,
    },
}

/// A machine's parts. Build it with [`Machine::new`](crate::Machine::new).
#[derive(Clone, Copy, Debug)]
pub struct MachineConfig {
    /// Physical memory for pages.
    pub memory: Memory,
    /// Memory for page tables, in bytes; always real.
    pub table_bytes: u64,
    /// Virtual CPUs, at most [`MAX_CPUS`](Self::MAX_CPUS).
    pub cpus: usize,
    /// Whether stale translations and wrong frees are looked for. Only benchmarks switch it off.
    pub oracles: bool,
    /// Whether every free looks through every TLB for a translation to what is freed; needs `oracles`.
    pub scan_on_free: bool,
    /// Whether its CPUs know protection keys. They begin without rights to any key but 0, as Linux sets them
    /// up.
    pub pkeys: bool,
    /// Whether every root table has a kernel's half: entries that all address spaces share, and that the
    /// engine leaves alone.
    pub kernel_half: bool,
}

impl MachineConfig {
    /// Virtual CPUs that a machine can have.
    pub const MAX_CPUS: usize = crate::host::MAX_CPUS;

    /// A machine with contents, for tests.
    pub fn backed(bytes: u64) -> Self {
        MachineConfig {
            memory: Memory::Backed { bytes },
            table_bytes: 64 << 20,
            cpus: 8,
            oracles: true,
            scan_on_free: true,
            pkeys: false,
            kernel_half: false,
        }
    }

    /// A machine of any size without contents, with tables enough to map all of its memory thinly.
    pub fn phantom(bytes: u64) -> Self {
        MachineConfig {
            memory: Memory::Phantom { bytes },
            table_bytes: (bytes / 128).max(64 << 20),
            ..Self::backed(0)
        }
    }

    /// The same with so many virtual CPUs.
    pub fn cpus(self, cpus: usize) -> Self {
        MachineConfig { cpus, ..self }
    }

    /// The same with so many bytes for page tables.
    pub fn tables(self, table_bytes: u64) -> Self {
        MachineConfig { table_bytes, ..self }
    }

    /// The same with protection keys.
    pub fn pkeys(self) -> Self {
        MachineConfig { pkeys: true, ..self }
    }

    /// The same with a kernel's half in every root table.
    pub fn kernel_half(self) -> Self {
        MachineConfig { kernel_half: true, ..self }
    }

    /// The same without oracles, for benchmarks.
    pub fn fast(self) -> Self {
        MachineConfig { oracles: false, scan_on_free: false, ..self }
    }
}
