//! The load with a hot set on the host, in a memory group with less memory: [`hot_set_on_host`].

use crate::host::{Area, faults};
use crate::zipf::{self, Draw, Pages};
use std::io;

/// Bytes of a page.
const PAGE: u64 = 4096;

/// The hot set on the host.
#[derive(Clone, Copy, Debug)]
pub struct HostHotSet {
    /// Share of the hot pages that were in memory, at all samples together.
    pub hot: f64,
    /// Faults per second, in the half of the accesses in which the samples are.
    pub faults: f64,
    /// Faults that read a page from the swap device, per access.
    pub reads: f64,
}

impl Pages for Area {
    type Error = io::Error;

    fn access(&mut self, draw: &Draw) -> io::Result<()> {
        Area::access(self, draw.page, draw.stores.then_some(draw.page + 1));
        Ok(())
    }

    fn count_present(&mut self, pages: impl Iterator<Item = u64>) -> io::Result<u64> {
        let present = self.present()?;
        Ok(pages.filter(|page| present[*page as usize]).count() as u64)
    }

    fn faults(&self) -> u64 {
        let (major, minor) = faults();
        major + minor
    }
}

/// Performs the load of the experiment `reclaim` with the hot set on the host, with 1.5 times `bytes` bytes
/// of memory. The caller has limited the memory of this process to about `bytes` bytes, and the host has
/// swap.
///
/// # Errors
///
/// Fails with the error of the host.
///
/// # Panics
///
/// Panics if `bytes` is not a power of two of at least 64 KiB.
pub fn hot_set_on_host(bytes: u64) -> io::Result<HostHotSet> {
    assert!(bytes.is_power_of_two() && bytes >= 1 << 16, "{bytes} bytes");
    let pages = bytes / PAGE / 2 * 3;
    let (mut area, mut before) = (Area::apart(pages * PAGE)?, 0);
    let found = zipf::run(&mut area, pages, |_| before = faults().0)?;
    let reads = (faults().0 - before) as f64 / found.accesses as f64;
    Ok(HostHotSet { hot: found.hot, faults: found.faults, reads })
}
