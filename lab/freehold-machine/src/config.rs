//! The configuration of a machine.
//!
//! A test or tool builds a [`MachineConfig`] from [`MachineConfig::backed`] or [`MachineConfig::phantom`] and
//! changes it with the other functions, then passes it to [`Machine::new`](crate::Machine::new). Sizes are in
//! bytes of simulated memory. The configuration of a machine cannot be changed later. A new field needs a
//! default in `backed`, whose values are the defaults of all tests (oracles on, hardware like x86-64), and a
//! function like [`MachineConfig::pkeys`] if tests set the field.

/// The memory of a machine's frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memory {
    /// Frames have contents, in memory that the host maps when it is touched.
    Backed {
        /// Size in bytes, rounded down to whole frames.
        bytes: u64,
    },
    /// Frames have numbers and records but no contents: writes are lost, and reads return the
    /// [fill](MachineConfig::fill). Page tables have contents also in this case.
    Phantom {
        /// Size in bytes, rounded down to whole frames.
        bytes: u64,
    },
}

/// The parameters of a machine. Build the machine with [`Machine::new`](crate::Machine::new).
#[derive(Clone, Copy, Debug)]
pub struct MachineConfig {
    /// Physical memory for pages.
    pub memory: Memory,
    /// Memory for page tables, in bytes. Page tables always have contents.
    pub table_bytes: u64,
    /// Number of virtual CPUs, at most [`MAX_CPUS`](Self::MAX_CPUS).
    pub cpus: usize,
    /// True if the machine checks for stale translations and wrong frees. Only benchmarks switch this off.
    pub oracles: bool,
    /// True if every free searches every TLB for a translation to the freed frames. Needs `oracles`.
    pub scan_on_free: bool,
    /// True if the CPUs support protection keys. The CPUs start without rights to any key except 0, as Linux
    /// initialises them.
    pub pkeys: bool,
    /// True if every root table has a kernel's half: entries that all address spaces share and that the
    /// engine does not touch.
    pub kernel_half: bool,
    /// Charges all pages to one account of `freehold_kit` with this limit, in frames. For measurements of the
    /// account.
    pub account: Option<u64>,
    /// The byte that every read of phantom memory returns. With 0, the default, reclaim takes every page for
    /// a page full of zeroes, which needs no slot of a swap device.
    pub fill: u8,
}

impl MachineConfig {
    /// Maximum number of virtual CPUs of a machine.
    pub const MAX_CPUS: usize = crate::host::MAX_CPUS;

    /// Returns the configuration of a machine with contents, for tests.
    pub fn backed(bytes: u64) -> Self {
        MachineConfig {
            memory: Memory::Backed { bytes },
            table_bytes: 64 << 20,
            cpus: 8,
            oracles: true,
            scan_on_free: true,
            pkeys: false,
            kernel_half: false,
            account: None,
            fill: 0,
        }
    }

    /// Returns the configuration of a machine without contents. The machine has enough page tables to map all
    /// of its memory sparsely.
    pub fn phantom(bytes: u64) -> Self {
        MachineConfig {
            memory: Memory::Phantom { bytes },
            table_bytes: (bytes / 128).max(64 << 20),
            ..Self::backed(0)
        }
    }

    /// Returns this configuration with `cpus` virtual CPUs.
    pub fn cpus(self, cpus: usize) -> Self {
        MachineConfig { cpus, ..self }
    }

    /// Returns this configuration with `table_bytes` bytes for page tables.
    pub fn tables(self, table_bytes: u64) -> Self {
        MachineConfig { table_bytes, ..self }
    }

    /// Returns this configuration with protection keys.
    pub fn pkeys(self) -> Self {
        MachineConfig { pkeys: true, ..self }
    }

    /// Returns this configuration with a kernel's half in every root table.
    pub fn kernel_half(self) -> Self {
        MachineConfig { kernel_half: true, ..self }
    }

    /// Returns this configuration with `fill` as the byte that every read of phantom memory returns.
    pub fn fill(self, fill: u8) -> Self {
        MachineConfig { fill, ..self }
    }

    /// Returns this configuration without oracles, for benchmarks.
    pub fn fast(self) -> Self {
        MachineConfig { oracles: false, scan_on_free: false, ..self }
    }
}
