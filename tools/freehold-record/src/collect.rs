//! Collects the kernel's reports on a separate thread, so that the kernel's buffers do not fill up.
//!
//! Sources: the trace buffers of tracefs, one per processor (copied as raw pages into files without a name),
//! the rings of perf events, and the queues of BPF programs. Every 4 ms a round empties all of them, and
//! notes losses with the time span in which they happened.
//!
//! [`Collector`] is created before the command starts, [`Running`] is the running thread, [`Collected`] the
//! result. The thread owns the buffers while it runs; [`Running::stop`] sets a flag and takes the buffers
//! from the finished thread. [`Collected::merge`] decodes the pages and passes all reports to `write.rs`,
//! ordered by time. The thread must not do more than copy: every delay lets the kernel's buffers fill up.
//!
//! A new source needs a field of `Work`, and `Work::round` must empty the source. Its reports and losses are
//! appended to `Perf::found`, or merged in [`Collected::merge`]. `freehold-cli/tests/record.rs` tests
//! collection and losses.

use super::perf::{Again, Perf};
use super::pointed::Pointed;
use super::raw::{Raw, RawKind};
use super::ring::Events;
use super::tracee::now;
use super::tracefs::{Buffer, Instance};
use anyhow::Context;
use std::fs::File;
use std::io::{BufReader, BufWriter, Seek, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// Interval between reads of the buffers.
const PERIOD: Duration = Duration::from_millis(4);

/// A collector that is ready to start.
pub struct Collector {
    /// The instance of tracefs, which is removed when dropped.
    instance: Instance,
    /// The process of the command.
    process: i32,
    /// The sources, ready to be read.
    work: Work,
    /// Opens perf events again, for `follow.rs`.
    pub again: Again,
}

/// A collector that is running.
pub struct Running {
    /// The instance of tracefs, which is removed when dropped.
    instance: Instance,
    /// Set to true to end the thread.
    stop: Arc<AtomicBool>,
    /// The thread, which returns the sources at its end.
    thread: JoinHandle<anyhow::Result<Work>>,
}

/// The collected reports.
pub struct Collected {
    /// The instance of tracefs, which is removed when dropped.
    instance: Instance,
    /// The pages of each processor, in a file without a name.
    pages: Vec<(u16, File)>,
    /// The reports of perf events, and the losses, ordered by time.
    perf: Vec<Raw>,
    /// Number of events that were lost.
    pub lost: u64,
    /// The reason why calls with structures in the caller's memory were not recorded. `None` if they were
    /// recorded.
    pub unseen: Option<anyhow::Error>,
}

/// The sources, owned by the collecting thread while it runs.
struct Work {
    /// The trace buffer of each processor, and the file to which its pages are copied.
    buffers: Vec<(Buffer, BufWriter<File>)>,
    /// The rings of perf events, and the reports so far.
    perf: Perf,
    /// The BPF programs, or the reason why they are not available.
    pointed: anyhow::Result<Pointed>,
    /// Number of events that the kernel had dropped at the last check.
    dropped: u64,
    /// Time of the last check for dropped events, in nanoseconds.
    looked: u64,
    /// The losses so far, as pairs of reports.
    losses: Vec<Raw>,
}

impl Collector {
    /// Creates a collector for `process` and its descendants, with `kilobytes` of buffer for each processor.
    /// The collected pages are stored in `folder`.
    ///
    /// # Errors
    ///
    /// Fails with a message for the user if a requirement is missing.
    pub fn new(process: i32, kilobytes: u32, folder: &Path) -> anyhow::Result<Collector> {
        super::proc::pages(&File::open("/proc/self/pagemap")?)
            .context("this kernel cannot list present pages (PAGEMAP_SCAN, since Linux 6.7)")?;
        let instance = Instance::new(kilobytes)?;
        let mut buffers = Vec::new();
        for buffer in instance.buffers()? {
            let file = tempfile::tempfile_in(folder)
                .with_context(|| format!("cannot create a file in {}", folder.display()))?;
            buffers.push((buffer, BufWriter::with_capacity(1 << 20, file)));
        }
        let cpus: Vec<_> = buffers.iter().map(|(buffer, _)| buffer.cpu).collect();
        let pointed = Pointed::new(&instance, kilobytes, cpus.first().copied().unwrap_or_default());
        let (perf, again) = Perf::new(process, kilobytes, cpus)?;
        let work = Work { buffers, perf, pointed, dropped: 0, looked: now(), losses: Vec::new() };
        Ok(Collector { instance, process, work, again })
    }

    /// Starts tracing and collecting.
    ///
    /// # Errors
    ///
    /// Fails if tracing cannot be started.
    pub fn start(self) -> anyhow::Result<Running> {
        let Collector { instance, process, mut work, .. } = self;
        instance.start(process)?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = thread::spawn(move || {
            // The last round begins after tracing has stopped.
            loop {
                let last = stopped.load(Ordering::Acquire);
                work.round()?;
                if last {
                    return Ok(work);
                }
                thread::sleep(PERIOD);
            }
        });
        Ok(Running { instance, stop, thread })
    }
}

impl Work {
    /// Empties all sources once, and notes new losses.
    fn round(&mut self) -> anyhow::Result<()> {
        const KEPT: &str = "cannot store the trace of the kernel";
        // The last check counted all drops that happened before it began, so any new drop happened after the
        // start of that check.
        let (before, looked) = (self.dropped, now());
        let dropped = self.buffers.iter().map(|(buffer, _)| buffer.dropped());
        self.dropped = dropped.sum::<Result<u64, _>>().context(KEPT)?;
        let until = now();
        for (buffer, file) in &mut self.buffers {
            buffer.drain(file).context(KEPT)?;
        }
        self.perf.drain();
        if let Ok(pointed) = &mut self.pointed {
            pointed.drain(&mut self.perf.found).context(KEPT)?;
        }
        let lost = self.dropped.saturating_sub(before);
        if lost > 0 {
            self.losses.extend(Raw::losses(lost, self.looked..until));
        }
        self.looked = looked;
        Ok(())
    }
}

impl Running {
    /// Stops, and returns all reports.
    ///
    /// # Errors
    ///
    /// Fails if reading or writing fails.
    pub fn stop(self) -> anyhow::Result<Collected> {
        let Running { instance, stop, thread } = self;
        instance.stop()?;
        stop.store(true, Ordering::Release);
        let work = thread.join().map_err(|_| anyhow::anyhow!("the collecting thread panicked"))??;
        let mut pages = Vec::new();
        for (buffer, mut file) in work.buffers {
            file.flush()?;
            let mut file = file.into_inner().map_err(|error| error.into_error())?;
            file.rewind()?;
            pages.push((buffer.cpu, file));
        }
        let mut perf = work.perf.found;
        perf.extend(work.losses);
        perf.sort_by_key(|raw| raw.time);
        let count = |raw: &Raw| if let RawKind::Lost(count) = raw.what { count } else { 0 };
        let lost = perf.iter().map(count).sum();
        Ok(Collected { instance, pages, perf, lost, unseen: work.pointed.err() })
    }
}

impl Collected {
    /// Passes all reports and `others` (which must be ordered) to `each`, ordered by time.
    ///
    /// # Errors
    ///
    /// Fails if reading fails.
    pub fn merge(self, others: Vec<Raw>, mut each: impl FnMut(Raw)) -> anyhow::Result<()> {
        let Collected { instance, pages, perf, .. } = self;
        let mut rings: Vec<_> = pages
            .into_iter()
            .map(|(cpu, file)| {
                Events::new(
                    BufReader::with_capacity(1 << 20, file),
                    instance.page_size,
                    cpu,
                    &instance.layouts,
                )
            })
            .collect();
        let (mut perf, mut others) = (perf.into_iter(), others.into_iter());
        let processors = rings.len();
        let mut heads = Vec::new();
        for ring in &mut rings {
            heads.push(ring.next()?);
        }
        heads.extend([perf.next(), others.next()]);
        loop {
            let times =
                heads.iter().enumerate().filter_map(|(index, head)| Some((head.as_ref()?.time, index)));
            let Some((_, first)) = times.min() else { return Ok(()) };
            let next = match rings.get_mut(first) {
                Some(ring) => ring.next()?,
                None if first == processors => perf.next(),
                None => others.next(),
            };
            if let Some(raw) = std::mem::replace(&mut heads[first], next) {
                each(raw);
            }
        }
    }
}
