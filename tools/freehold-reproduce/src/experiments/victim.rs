//! Tasks that run another operation while a munmap runs.
//!
//! `munmap_stall.rs` runs one victim on each of some threads while another thread unmaps memory, and records
//! the times of the victim's operations. Long times show that a lock of the munmap stops other tasks. A
//! victim works on the engine ([`Victim::on`]) and on the host ([`Victim::on_host`]). A new victim needs a
//! variant of [`Victim`], an entry in `Victim::ALL`, and an arm in each of its functions.

use crate::executor::Instant;
use crate::host::Area;
use crate::load::{ANON, PAGE, RW, map};
use freehold::fault::Access;
use freehold::space::Arguments;
use freehold_machine::Process;
use std::fs;
use std::hint::black_box;
use std::time::Duration;

/// An operation that returns its time.
pub type Operation = Box<dyn FnMut() -> anyhow::Result<Duration> + Send>;

/// Number of pages that a victim faults in, one at a time, before it frees all of them.
const PAGES: u64 = 1 << 14;

/// The operation that is watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Victim {
    /// Reads cmdline and maps, as ps does.
    Reader,
    /// A fault in another VMA.
    Fault,
    /// mmap and munmap of one page in another part of the address space.
    Churn,
}

impl Victim {
    /// All victims.
    pub const ALL: [Victim; 3] = [Victim::Reader, Victim::Fault, Victim::Churn];

    /// Returns a short name.
    pub fn name(self) -> &'static str {
        match self {
            Victim::Reader => "reader",
            Victim::Fault => "fault",
            Victim::Churn => "mmap + munmap",
        }
    }

    /// Returns a description for titles, in one line.
    pub fn title(self) -> &'static str {
        match self {
            Victim::Reader => "A reader of cmdline and maps",
            Victim::Fault => "A fault in another VMA",
            Victim::Churn => "mmap + munmap of a page elsewhere",
        }
    }

    /// Returns the operation in a process of the engine.
    pub fn on(self, process: &Process) -> anyhow::Result<Operation> {
        let process = process.clone();
        Ok(match self {
            Victim::Reader => {
                let args = map(&process, PAGE)?;
                process.space().handle_fault(args, Access::WRITE)?;
                process.set_arguments(&Arguments { args: args..args + 64, env: args + 64..args + 128 })?;
                let (mut cmdline, mut maps) = ([0; 64], String::new());
                Box::new(move || {
                    maps.clear();
                    let started = Instant::now();
                    process.read_cmdline(0, &mut cmdline)?;
                    process.write_maps(&mut maps)?;
                    Ok(started.elapsed())
                })
            }
            Victim::Fault => {
                let at = map(&process, PAGES * PAGE)?;
                let mut page = 0;
                Box::new(move || {
                    if page == PAGES {
                        process.madvise(at, PAGES * PAGE, freehold::call::Advice::DontNeed)?;
                        page = 0;
                    }
                    let started = Instant::now();
                    process.space().handle_fault(at + page * PAGE, Access::WRITE)?;
                    page += 1;
                    Ok(started.elapsed())
                })
            }
            Victim::Churn => Box::new(move || {
                let started = Instant::now();
                let at = process.mmap(0, PAGE, RW, ANON, None, 0)?;
                process.munmap(at, PAGE)?;
                Ok(started.elapsed())
            }),
        })
    }

    /// Returns the operation on the host, in this process.
    pub fn on_host(self) -> anyhow::Result<Operation> {
        Ok(match self {
            Victim::Reader => Box::new(|| {
                let started = Instant::now();
                black_box((fs::read("/proc/self/cmdline")?, fs::read("/proc/self/maps")?));
                Ok(started.elapsed())
            }),
            Victim::Fault => {
                let area = Area::apart(PAGES * PAGE)?;
                let mut page = 0;
                Box::new(move || {
                    if page == PAGES {
                        area.discard();
                        page = 0;
                    }
                    let started = Instant::now();
                    area.touch(page);
                    page += 1;
                    Ok(started.elapsed())
                })
            }
            Victim::Churn => Box::new(move || {
                let started = Instant::now();
                drop(Area::map(PAGE)?);
                Ok(started.elapsed())
            }),
        })
    }
}
