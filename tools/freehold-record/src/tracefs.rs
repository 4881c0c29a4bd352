//! Controls the kernel's tracing through files. The recorder has its own instance of the tracing, which
//! follows one process and its descendants.
//!
//! 1. [`Instance::new`] creates a folder in `instances/`, sizes its buffers, and enables the events of
//!    system calls, faults, locks, tasks and signals. The layouts of the events are parsed (`format.rs`).
//! 2. [`Instance::start`] limits the events to the command's processes and starts tracing.
//! 3. [`Buffer::drain`] copies full pages (`collect.rs`), which `ring.rs` decodes after the run.
//!
//! Dropping the instance removes the folder. Other users of tracing are not disturbed. Only root may use
//! tracefs. An event or call that this kernel lacks is an error only if a recording needs it ([`EVENTS`],
//! [`NEEDED`]). A new event needs a line in [`EVENTS`] and its layout in `format.rs`. A new system call needs
//! no change here, because every call in `CallName::ALL` is enabled.

use super::format::{Layout, Layouts};
use super::pointed::is_watched;
use anyhow::{Context, bail};
use freehold_trace::CallName;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// The usual mount point of tracefs.
const TRACEFS: &str = "/sys/kernel/tracing";

/// The inode of the PID namespace that contains all processes.
const FIRST_PID_NAMESPACE: u64 = 0xeffffffc;

/// Prefix of the names of the recorder's instances. The number of the recorder's process follows.
const PREFIX: &str = "freehold-";

/// Events other than system calls: group and name, a filter, and true if a recording needs the event.
const EVENTS: [(&str, Option<&str>, bool); 11] = [
    ("exceptions/page_fault_user", None, true),
    ("exceptions/page_fault_kernel", None, true),
    ("mmap_lock/mmap_lock_start_locking", None, true),
    ("mmap_lock/mmap_lock_acquire_returned", None, true),
    ("mmap_lock/mmap_lock_released", None, true),
    ("task/task_newtask", None, true),
    ("sched/sched_process_exec", None, true),
    ("sched/sched_process_exit", None, true),
    ("signal/signal_generate", Some("sig==11||sig==7"), true),
    // Interrupts that are sent to another processor.
    ("tlb/tlb_flush", Some("reason==4"), false),
    ("mmap/exit_mmap", None, false),
];

/// The calls that a recording needs. A kernel may lack other calls.
const NEEDED: [CallName; 5] =
    [CallName::Mmap, CallName::Munmap, CallName::Mprotect, CallName::Brk, CallName::Mremap];

/// The recorder's instance of the kernel's tracing. Removed when dropped.
#[derive(Debug)]
pub struct Instance {
    /// The folder of the instance.
    folder: PathBuf,
    /// Keeps a private mount of tracefs, which has no mount point.
    _mount: Option<OwnedFd>,
    /// The layouts of events in the buffers.
    pub layouts: Layouts,
    /// Size of a page of the buffers, in bytes.
    pub page_size: usize,
}

impl Instance {
    /// Creates an instance with `kilobytes` of buffer for each processor. Tracing is off.
    ///
    /// # Errors
    ///
    /// Fails with a message for the user if tracefs, the permission to use it, or an event is missing.
    pub fn new(kilobytes: u32) -> anyhow::Result<Instance> {
        is_numbered_by_the_kernel()?;
        let (root, _mount) = tracefs()?;
        let instances = root.join("instances");
        remove_left(&instances);
        let folder = instances.join(format!("{PREFIX}{}", std::process::id()));
        fs::create_dir(&folder).with_context(|| {
            format!("no permission to trace (cannot create {}): run as root", folder.display())
        })?;
        let mut instance = Instance { folder, _mount, layouts: Layouts::new(), page_size: 0 };
        for (file, value) in [
            ("tracing_on", "0"),
            ("trace_clock", "mono"),
            // The earliest events are kept when a buffer is full, and the dropped events are counted.
            ("options/overwrite", "0"),
            // Children of the process are followed too.
            ("options/event-fork", "1"),
            ("buffer_size_kb", &kilobytes.to_string()),
        ] {
            instance.write(file, value)?;
        }
        instance.page_size = page_size(&instance.read("events/header_page")?)?;
        for call in CallName::ALL {
            let (name, needed) = (call.as_str(), NEEDED.contains(call));
            // The starts of watched calls are reported by `pointed.rs`, because their structures are in
            // memory that these events do not show.
            if !is_watched(*call) {
                instance.enable(&format!("syscalls/sys_enter_{name}"), None, needed)?;
            }
            instance.enable(&format!("syscalls/sys_exit_{name}"), None, needed)?;
        }
        for (event, filter, needed) in EVENTS {
            instance.enable(event, filter, needed)?;
        }
        Ok(instance)
    }

    /// Enables an event, with a filter. Fails if a needed event does not exist.
    fn enable(&mut self, event: &str, filter: Option<&str>, needed: bool) -> anyhow::Result<()> {
        let folder = format!("events/{event}");
        if !self.folder.join(&folder).is_dir() {
            if needed {
                bail!("this kernel was built without the event {event}");
            }
            return Ok(());
        }
        let name = event.rsplit('/').next().unwrap_or_default();
        let text = self.read(&format!("{folder}/format"))?;
        let (id, layout) =
            Layout::parse(name, &text).with_context(|| format!("cannot parse the format of {event}"))?;
        if let Some(filter) = filter {
            self.write(&format!("{folder}/filter"), filter)?;
        }
        self.write(&format!("{folder}/enable"), "1")?;
        self.layouts.insert(id, layout);
        Ok(())
    }

    /// Starts to trace the process and its descendants.
    ///
    /// # Errors
    ///
    /// Fails if writing fails.
    pub fn start(&self, process: i32) -> anyhow::Result<()> {
        // The order matters: without a process, the kernel would trace all processes.
        self.write("set_event_pid", &process.to_string())?;
        self.write("tracing_on", "1")
    }

    /// Stops tracing. The buffers keep their contents.
    ///
    /// # Errors
    ///
    /// Fails if writing fails.
    pub fn stop(&self) -> anyhow::Result<()> {
        self.write("tracing_on", "0")
    }

    /// Returns the buffers of the processors.
    ///
    /// # Errors
    ///
    /// Fails if a buffer cannot be opened.
    pub fn buffers(&self) -> anyhow::Result<Vec<Buffer>> {
        let mut buffers = Vec::new();
        for entry in fs::read_dir(self.folder.join("per_cpu"))? {
            let path = entry?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let Some(cpu) = name.strip_prefix("cpu").and_then(|number| number.parse().ok()) else { continue };
            let pages = OpenOptions::new()
                .read(true)
                .custom_flags(libc::O_NONBLOCK)
                .open(path.join("trace_pipe_raw"))?;
            buffers.push(Buffer { cpu, stats: path.join("stats"), pages, page: vec![0; self.page_size] });
        }
        buffers.sort_by_key(|buffer| buffer.cpu);
        Ok(buffers)
    }

    /// Returns the kernel's number of an event, to which a program can be attached.
    ///
    /// # Errors
    ///
    /// Fails if there is no such event.
    pub fn number(&self, event: &str) -> anyhow::Result<u64> {
        let id = self.read(&format!("events/{event}/id"))?;
        id.trim().parse().with_context(|| format!("{event} has no number"))
    }

    /// Reads a file of the instance.
    fn read(&self, file: &str) -> anyhow::Result<String> {
        let path = self.folder.join(file);
        let cannot = || format!("cannot read {}", path.display());
        // Some of these files return only their beginning to a reader with a small buffer.
        let mut text = BufReader::with_capacity(1 << 16, File::open(&path).with_context(cannot)?);
        let mut bytes = Vec::new();
        while let Some(read) = Some(text.fill_buf().with_context(cannot)?).filter(|read| !read.is_empty()) {
            let length = read.len();
            bytes.extend_from_slice(read);
            text.consume(length);
        }
        String::from_utf8(bytes).with_context(cannot)
    }

    /// Writes a file of the instance.
    fn write(&self, file: &str, value: &str) -> anyhow::Result<()> {
        let path = self.folder.join(file);
        let mut file = OpenOptions::new().write(true).open(&path);
        let written = file.as_mut().map(|file| file.write_all(value.as_bytes()));
        match written {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => {
                Err(error).with_context(|| format!("cannot write {value} to {}", path.display()))
            }
            Err(_) => bail!("cannot write {}", path.display()),
        }
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        // The kernel frees the buffers with the folder. A failure cannot be reported here.
        let _ = self.stop();
        let _ = fs::remove_dir(&self.folder);
    }
}

/// Fails in a PID namespace. The kernel's tracing uses the kernel's own process numbers, so a recorder with
/// other numbers would trace the wrong processes.
fn is_numbered_by_the_kernel() -> anyhow::Result<()> {
    match fs::metadata("/proc/self/ns/pid") {
        Ok(own) if own.ino() != FIRST_PID_NAMESPACE => {
            bail!(
                "the recorder runs in a PID namespace, with different process numbers: record outside the container"
            )
        }
        _ => Ok(()),
    }
}

/// Returns the folder of tracefs: the mount point, or a private mount.
fn tracefs() -> anyhow::Result<(PathBuf, Option<OwnedFd>)> {
    let usual = Path::new(TRACEFS);
    if usual.join("instances").exists() {
        return Ok((usual.to_owned(), None));
    }
    let mount = || {
        let context = fsopen("tracefs", FsOpenFlags::FSOPEN_CLOEXEC)?;
        fsconfig_create(&context)?;
        fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())
    };
    let mount =
        mount().with_context(|| format!("no tracefs at {TRACEFS}, and cannot mount one: run as root"))?;
    Ok((PathBuf::from(format!("/proc/self/fd/{}", mount.as_raw_fd())), Some(mount)))
}

/// Removes the instances of recorders that were killed. If an instance cannot be removed, its only harm is
/// the memory that it uses.
fn remove_left(instances: &Path) {
    let Ok(entries) = fs::read_dir(instances) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let process = name.to_str().and_then(|name| name.strip_prefix(PREFIX)?.parse::<u32>().ok());
        if process.is_some_and(|process| !Path::new("/proc").join(process.to_string()).exists()) {
            let _ = fs::remove_dir(entry.path());
        }
    }
}

/// The buffer of one processor.
#[derive(Debug)]
pub struct Buffer {
    /// The processor.
    pub cpu: u16,
    /// The file with the counts of the buffer.
    stats: PathBuf,
    /// The file from which whole pages are read.
    pages: File,
    /// Space for one page.
    page: Vec<u8>,
}

impl Buffer {
    /// Returns the number of events that were dropped so far.
    ///
    /// # Errors
    ///
    /// Fails if reading fails.
    pub fn dropped(&self) -> io::Result<u64> {
        let stats = fs::read_to_string(&self.stats)?;
        let counts = stats.lines().filter_map(|line| line.split_once(": "));
        let counts =
            counts.filter(|(name, _)| matches!(*name, "overrun" | "commit overrun" | "dropped events"));
        Ok(counts.filter_map(|(_, count)| count.trim().parse::<u64>().ok()).sum())
    }

    /// Moves the available pages to `to`, and does not wait for more.
    ///
    /// # Errors
    ///
    /// Fails if reading or writing fails.
    pub fn drain(&mut self, to: &mut impl Write) -> io::Result<()> {
        loop {
            match self.pages.read(&mut self.page) {
                Ok(0) => return Ok(()),
                Ok(_) => to.write_all(&self.page)?,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
}

/// Returns the size of a page in bytes, from the kernel's description: the sum of the data's offset and size.
fn page_size(description: &str) -> anyhow::Result<usize> {
    let data = description.lines().find(|line| line.contains(" data;")).unwrap_or_default();
    let number = |key: &str| {
        let rest = &data[data.find(key)? + key.len()..];
        rest.split(';').next()?.parse::<usize>().ok()
    };
    let size = number("offset:").zip(number("size:")).map(|(offset, size)| offset + size);
    size.filter(|size| (4096..=1 << 20).contains(size))
        .context("cannot parse the description of the trace buffer's pages")
}
