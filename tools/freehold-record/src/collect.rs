//! Takes away what the kernel reports, on a thread of its own, so that its buffers do not run full.

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

/// How often the buffers are looked after.
const PERIOD: Duration = Duration::from_millis(4);

/// Is ready to collect.
pub struct Collector {
    instance: Instance,
    process: i32,
    work: Work,
    /// Begins perf events anew.
    pub again: Again,
}

/// Collects.
pub struct Running {
    instance: Instance,
    stop: Arc<AtomicBool>,
    thread: JoinHandle<anyhow::Result<Work>>,
}

/// What was collected.
pub struct Collected {
    instance: Instance,
    /// The pages of each processor, in a file that has no name.
    pages: Vec<(u16, File)>,
    /// What perf events told, and when reports were lost, by time.
    perf: Vec<Raw>,
    /// Events that were lost.
    pub lost: u64,
    /// Why calls were not seen that say something in structures of the caller's, if so.
    pub unseen: Option<anyhow::Error>,
}

struct Work {
    buffers: Vec<(Buffer, BufWriter<File>)>,
    perf: Perf,
    pointed: anyhow::Result<Pointed>,
    /// Reports that had found no room when that was last looked at, and when that was.
    dropped: u64,
    looked: u64,
    losses: Vec<Raw>,
}

impl Collector {
    /// For `process` and what it forks, with so much buffer for each processor; what is taken away lies in
    /// `folder`.
    ///
    /// # Errors
    ///
    /// What is missing, for the user.
    pub fn new(process: i32, kilobytes: u32, folder: &Path) -> anyhow::Result<Collector> {
        super::proc::pages(&File::open("/proc/self/pagemap")?)
            .context("this kernel cannot list present pages (PAGEMAP_SCAN, since Linux 6.7)")?;
        let instance = Instance::new(kilobytes)?;
        let mut buffers = Vec::new();
        for buffer in instance.buffers()? {
            let file = tempfile::tempfile_in(folder)
                .with_context(|| format!("no file can be made in {}", folder.display()))?;
            buffers.push((buffer, BufWriter::with_capacity(1 << 20, file)));
        }
        let cpus: Vec<_> = buffers.iter().map(|(buffer, _)| buffer.cpu).collect();
        let pointed = Pointed::new(&instance, kilobytes, cpus.first().copied().unwrap_or_default());
        let (perf, again) = Perf::new(process, kilobytes, cpus)?;
        let work = Work { buffers, perf, pointed, dropped: 0, looked: now(), losses: Vec::new() };
        Ok(Collector { instance, process, work, again })
    }

    /// Begins.
    ///
    /// # Errors
    ///
    /// Those of telling the kernel so.
    pub fn start(self) -> anyhow::Result<Running> {
        let Collector { instance, process, mut work, .. } = self;
        instance.start(process)?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = thread::spawn(move || {
            // The last round begins after nothing more can come.
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
    fn round(&mut self) -> anyhow::Result<()> {
        const KEPT: &str = "what the kernel traced cannot be kept";
        // Whatever had found no room by the last time was noted then: what is missing now came after that.
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
    /// Ends, with everything that was reported before.
    ///
    /// # Errors
    ///
    /// Those of reading and writing.
    pub fn stop(self) -> anyhow::Result<Collected> {
        let Running { instance, stop, thread } = self;
        instance.stop()?;
        stop.store(true, Ordering::Release);
        let work = thread.join().map_err(|_| anyhow::anyhow!("the thread that collects has panicked"))??;
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
    /// Hands over all reports, and `others` (which are in order), by time.
    ///
    /// # Errors
    ///
    /// Those of reading.
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
