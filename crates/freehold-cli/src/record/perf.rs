//! What only perf events tell: when a page fault was resolved, and which file a mapping is of.

use super::raw::{Mapped, Raw, What};
use anyhow::Context;
use perf_event::events::Software;
use perf_event::{Builder, Clock, SampleFlag, Sampler};

/// Bytes in the ring of each event and processor.
const RING_BYTES: usize = 2 << 20;
/// Kinds of record in a ring.
const LOST: u32 = 2;
const SAMPLE: u32 = 9;
const MMAP2: u32 = 10;

/// The perf events of a process and of what comes of it, on all processors.
pub struct Perf {
    rings: Vec<Ring>,
    /// What was read so far.
    pub found: Vec<Raw>,
    /// Records that found no room.
    pub lost: u64,
}

struct Ring {
    sampler: Sampler,
    cpu: u16,
    /// It is that of faults that had to wait for storage.
    major: bool,
}

impl Perf {
    /// Begins now.
    ///
    /// # Errors
    ///
    /// What is missing, for the user.
    pub fn new(process: i32, cpus: impl Iterator<Item = u16>) -> anyhow::Result<Perf> {
        let mut rings = Vec::new();
        for cpu in cpus {
            for major in [false, true] {
                let event = if major { Software::PAGE_FAULTS_MAJ } else { Software::PAGE_FAULTS_MIN };
                let mut builder = Builder::new(event);
                builder
                    .observe_pid(process)
                    .one_cpu(cpu.into())
                    .inherit(true)
                    .include_kernel()
                    .sample_period(1);
                builder.sample(SampleFlag::TID | SampleFlag::TIME | SampleFlag::ADDR).sample_id_all(true);
                builder.clockid(Clock::MONOTONIC);
                if !major {
                    builder.mmap(true).mmap_data(true).mmap2(true);
                }
                let mut counter =
                    builder.build().context("no leave for perf events (perf_event_open): be root")?;
                counter.enable()?;
                let sampler = counter.sampled(RING_BYTES).context("no room for the rings of perf events")?;
                rings.push(Ring { sampler, cpu, major });
            }
        }
        Ok(Perf { rings, found: Vec::new(), lost: 0 })
    }

    /// Reads what is there, and does not wait for more.
    pub fn drain(&mut self) {
        for ring in &mut self.rings {
            while let Some(record) = ring.sampler.next_record() {
                let (kind, bytes) = (record.ty(), record.to_contiguous());
                match kind {
                    SAMPLE => self.found.extend(resolved(&bytes, ring.major, ring.cpu)),
                    MMAP2 => self.found.extend(mapped(&bytes, ring.cpu)),
                    LOST => self.lost += word(&bytes, 8).unwrap_or(1),
                    _ => {}
                }
            }
        }
    }
}

/// A sample: process and thread, time, address.
fn resolved(bytes: &[u8], major: bool, cpu: u16) -> Option<Raw> {
    let (thread, time, address) = (half(bytes, 4)?, word(bytes, 8)?, word(bytes, 16)?);
    Some(Raw { time, cpu: Some(cpu), thread: thread as i32, what: What::Resolved { address, major } })
}

/// A mapping of a file; nothing for what has no file. The record ends with process, thread and time.
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
    Some(Raw { time, cpu: Some(cpu), thread, what: What::Mapped(Box::new(mapped)) })
}

fn word(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

fn half(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}
