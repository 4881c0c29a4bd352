//! One operation repeated by one thread, on the engine and on the host.
//!
//! `mmap_churn.rs` measures each operation in turns on both sides, and prints the times in one table. On the
//! engine, the calls are direct calls of the library, without an entry into a kernel; the host pays for the
//! entry. A new operation needs a variant of [`Single`], an entry in `Single::ALL`, and an arm in each of its
//! functions.

use crate::executor::Instant;
use crate::host::{self, Area};
use crate::load::{ANON, PAGE, RW, map, populated, since};
use crate::measure::Figure;
use freehold::fault::Access;
use freehold::space::Prot;
use freehold_machine::Process;

/// The operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Single {
    /// mmap and munmap of a page that is not touched.
    MapUnmap,
    /// mmap of a page, a write, and munmap.
    MapTouchUnmap,
    /// mprotect of a page in the middle of a VMA, and a second mprotect that restores the old rights.
    SplitMerge,
    /// A write fault, per page.
    Fault,
    /// munmap of present pages, per page.
    Unmap,
    /// fork of a process, per present page.
    Fork,
}

/// Number of repetitions in a turn.
const TIMES: u64 = 10_000;
/// Number of pages in the large areas.
const PAGES: u64 = 1 << 15;

impl Single {
    /// All operations.
    pub const ALL: [Single; 6] = [
        Single::MapUnmap,
        Single::MapTouchUnmap,
        Single::SplitMerge,
        Single::Fault,
        Single::Unmap,
        Single::Fork,
    ];

    /// Returns the name of the row.
    pub fn name(self) -> &'static str {
        match self {
            Single::MapUnmap => "mmap + munmap of a page",
            Single::MapTouchUnmap => "mmap + write + munmap of a page",
            Single::SplitMerge => "mprotect of a page and back (split + merge)",
            Single::Fault => "write fault, per page",
            Single::Unmap => "munmap of 128 MiB, per page",
            Single::Fork => "fork with 128 MiB, per page",
        }
    }

    /// Returns the nanoseconds of one operation on the engine.
    pub fn of_engine(self, process: &Process) -> anyhow::Result<f64> {
        match self {
            Single::MapUnmap | Single::MapTouchUnmap => each(TIMES, || {
                let at = process.mmap(0, PAGE, RW, ANON, None, 0)?;
                if self == Single::MapTouchUnmap {
                    process.space().handle_fault(at, Access::WRITE)?;
                }
                Ok(process.munmap(at, PAGE)?)
            }),
            Single::SplitMerge => {
                let at = map(process, 6 * PAGE)?;
                let nanoseconds = each(TIMES, || {
                    process.mprotect(at + 2 * PAGE, PAGE, Prot::READ)?;
                    Ok(process.mprotect(at + 2 * PAGE, PAGE, RW)?)
                });
                process.munmap(at, 6 * PAGE)?;
                nanoseconds
            }
            Single::Fault => {
                let at = map(process, PAGES * PAGE)?;
                let mut page = 0;
                let nanoseconds = each(PAGES, || {
                    process.space().handle_fault(at + page * PAGE, Access::WRITE)?;
                    page += 1;
                    Ok(())
                });
                process.munmap(at, PAGES * PAGE)?;
                nanoseconds
            }
            Single::Unmap => {
                let at = populated(process, PAGES * PAGE)?;
                let started = Instant::now();
                process.munmap(at, PAGES * PAGE)?;
                Ok(since(started) / PAGES as f64)
            }
            Single::Fork => {
                let at = populated(process, PAGES * PAGE)?;
                let started = Instant::now();
                let child = process.fork()?;
                let took = since(started);
                drop(child);
                process.munmap(at, PAGES * PAGE)?;
                Ok(took / PAGES as f64)
            }
        }
    }

    /// Returns the nanoseconds of one operation on the host.
    pub fn of_host(self) -> anyhow::Result<f64> {
        match self {
            Single::MapUnmap | Single::MapTouchUnmap => each(TIMES, || {
                let area = Area::map(PAGE)?;
                if self == Single::MapTouchUnmap {
                    area.touch(0);
                }
                Ok(())
            }),
            Single::SplitMerge => {
                let area = Area::apart(6 * PAGE)?;
                each(TIMES, || {
                    area.protect_and_back(2);
                    Ok(())
                })
            }
            Single::Fault => {
                let area = Area::apart(PAGES * PAGE)?;
                let mut page = 0;
                each(PAGES, || {
                    area.touch(page);
                    page += 1;
                    Ok(())
                })
            }
            Single::Unmap => Ok(Area::populated(PAGES * PAGE)?.unmap().as_nanos() as f64 / PAGES as f64),
            Single::Fork => {
                // Subtract the time of a fork without the area.
                let without = forks()?;
                let _area = Area::populated(PAGES * PAGE)?;
                Ok((forks()? - without).max(0.0) / PAGES as f64)
            }
        }
    }
}

/// Returns the mean time of an operation in nanoseconds.
fn each(times: u64, mut operation: impl FnMut() -> anyhow::Result<()>) -> anyhow::Result<f64> {
    let started = Instant::now();
    for _ in 0..times {
        operation()?;
    }
    Ok(since(started) / times as f64)
}

/// Returns the median time of some forks on the host, in nanoseconds.
fn forks() -> anyhow::Result<f64> {
    let times: Vec<f64> =
        (0..7).map(|_| Ok(host::fork()?.as_nanos() as f64)).collect::<anyhow::Result<_>>()?;
    Ok(Figure::of(times).median)
}
