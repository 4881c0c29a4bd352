//! Facts that only perf events report: when a page fault was resolved, and the file of a mapping.
//!
//! Each processor has two rings, which the kernel fills for the recorded process and its descendants: one for
//! minor faults and mappings of files, one for major faults, which waited for storage. [`Perf`] reads the
//! rings and [`Again`] opens new rings. The two may be on different threads, so new rings pass through a
//! channel:
//!
//! - `collect.rs` creates both, and calls [`Perf::drain`] in every round of its thread. Reports are appended
//!   to [`Perf::found`], and later sorted by time.
//! - `follow.rs` calls [`Again::begin`] at an exec that changes credentials, because the kernel closes the
//!   events of such a process.
//!
//! A ring that overflows reports the number of lost records, which becomes a loss of events (`lib.rs`).
//!
//! The layout of the records is that of perf_event_open(2). The offsets in [`resolved`] and [`mapped`] depend
//! on the fields that [`Ring::new`] requests with `sample` and `sample_id_all`: a change there changes the
//! offsets. This file has no tests of its own; `freehold-cli/tests/record.rs` records real programs where the
//! machine permits it.

use super::raw::{Mapped, Raw, RawKind};
use super::tracee::now;
use anyhow::Context;
use perf_event::events::Software;
use perf_event::{Builder, Clock, SampleFlag, Sampler};
use std::sync::mpsc::{Receiver, Sender, channel};

/// Minimum size in bytes of the ring of each event and processor.
const RING_BYTES: usize = 2 << 20;
/// The size of a ring is the size of the kernel's trace buffer divided by this number, but at least
/// `RING_BYTES`.
const PART_OF_BUFFER: usize = 8;
/// A kind of record in a ring: records were lost.
const LOST: u32 = 2;
/// A kind of record in a ring: a sample, which means that the event happened.
const SAMPLE: u32 = 9;
/// A kind of record in a ring: a mapping was created.
const MMAP2: u32 = 10;

/// The perf events of a process and its descendants, on all processors.
pub struct Perf {
    /// The rings that are read.
    rings: Vec<Ring>,
    /// Rings that [`Again`] has opened.
    more: Receiver<Vec<Ring>>,
    /// The reports so far, including losses. The period of a loss begins at the last record before the loss.
    pub found: Vec<Raw>,
}

/// Opens perf events again for a process that has lost its events.
#[derive(Clone)]
pub struct Again {
    /// The processors.
    cpus: Vec<u16>,
    /// Size of a ring in bytes.
    bytes: usize,
    /// Passes new rings to the [`Perf`] that reads them.
    rings: Sender<Vec<Ring>>,
}

/// The ring of one event on one processor.
struct Ring {
    /// The event with its mapped ring.
    sampler: Sampler,
    cpu: u16,
    /// True if the ring is for faults that waited for storage.
    major: bool,
    /// The time of the ring's last record.
    last: u64,
}

impl Perf {
    /// Starts perf events on these processors, with rings whose size is a part of `kilobytes`, the size of
    /// the kernel's trace buffer. Also returns an [`Again`], which can open the events again.
    ///
    /// # Errors
    ///
    /// Fails with a message for the user if a requirement is missing.
    pub fn new(process: i32, kilobytes: u32, cpus: Vec<u16>) -> anyhow::Result<(Perf, Again)> {
        let bytes = (kilobytes as usize * 1024 / PART_OF_BUFFER).next_power_of_two().max(RING_BYTES);
        let (sender, more) = channel();
        let again = Again { cpus, bytes, rings: sender };
        Ok((Perf { rings: again.rings(process)?, more, found: Vec::new() }, again))
    }

    /// Reads the available records, and does not wait for more.
    pub fn drain(&mut self) {
        self.rings.extend(self.more.try_iter().flatten());
        for ring in &mut self.rings {
            while let Some(record) = ring.sampler.next_record() {
                let (kind, bytes) = (record.ty(), record.to_contiguous());
                let raw = match kind {
                    SAMPLE => resolved(&bytes, ring.major, ring.cpu),
                    MMAP2 => mapped(&bytes, ring.cpu),
                    LOST => {
                        let count = word(&bytes, 8).unwrap_or(1);
                        self.found.extend(Raw::losses(count, ring.last..now()));
                        None
                    }
                    _ => None,
                };
                ring.last = raw.as_ref().map_or(ring.last, |raw| raw.time);
                self.found.extend(raw);
            }
        }
    }
}

impl Again {
    /// Opens the events of `process` again. The process must not run. An event that is reported twice counts
    /// once.
    ///
    /// # Errors
    ///
    /// Fails with a message for the user if a requirement is missing.
    pub fn begin(&self, process: i32) -> anyhow::Result<()> {
        // If no receiver exists, the recording has ended.
        let _ = self.rings.send(self.rings(process)?);
        Ok(())
    }

    /// Opens all events of a process.
    fn rings(&self, process: i32) -> anyhow::Result<Vec<Ring>> {
        let both = self.cpus.iter().flat_map(|cpu| [(*cpu, false), (*cpu, true)]);
        both.map(|(cpu, major)| Ring::new(process, cpu, major, self.bytes)).collect()
    }
}

impl Ring {
    /// Opens one event of a process on one processor, with a ring of `bytes` bytes.
    fn new(process: i32, cpu: u16, major: bool, bytes: usize) -> anyhow::Result<Ring> {
        let event = if major { Software::PAGE_FAULTS_MAJ } else { Software::PAGE_FAULTS_MIN };
        let mut builder = Builder::new(event);
        builder.observe_pid(process).one_cpu(cpu.into()).inherit(true).include_kernel().sample_period(1);
        builder.sample(SampleFlag::TID | SampleFlag::TIME | SampleFlag::ADDR).sample_id_all(true);
        builder.clockid(Clock::MONOTONIC);
        if !major {
            builder.mmap(true).mmap_data(true).mmap2(true);
        }
        let mut counter =
            builder.build().context("no permission for perf events (perf_event_open): run as root")?;
        counter.enable()?;
        let sampler = counter.sampled(bytes).context("no memory for the rings of perf events")?;
        Ok(Ring { sampler, cpu, major, last: now() })
    }
}

/// Parses a sample: process and thread, time, address.
fn resolved(bytes: &[u8], major: bool, cpu: u16) -> Option<Raw> {
    let (thread, time, address) = (half(bytes, 4)?, word(bytes, 8)?, word(bytes, 16)?);
    Some(Raw { time, cpu: Some(cpu), thread: thread as i32, what: RawKind::Resolved { address, major } })
}

/// Parses a mapping of a file. Returns `None` for a mapping without a file. The record ends with process,
/// thread and time.
fn mapped(bytes: &[u8], cpu: u16) -> Option<Raw> {
    let path = bytes.get(64..bytes.len().checked_sub(16)?)?;
    let path = path.split(|byte| *byte == 0).next()?;
    if path.starts_with(b"//anon") || path.starts_with(b"[") {
        return None;
    }
    let mapped = Mapped {
        start: word(bytes, 8)?,
        len: word(bytes, 16)?,
        inode: (half(bytes, 32)?, half(bytes, 36)?, word(bytes, 40)?),
        path: String::from_utf8_lossy(path).into_owned(),
    };
    let time = word(bytes, bytes.len() - 8)?;
    let thread = half(bytes, 4)? as i32;
    Some(Raw { time, cpu: Some(cpu), thread, what: RawKind::Mapped(Box::new(mapped)) })
}

/// Returns the 8-byte number at offset `at`.
fn word(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

/// Returns the 4-byte number at offset `at`.
fn half(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}
