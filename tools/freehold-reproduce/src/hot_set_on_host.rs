//! The load with a hot set on the host, in a memory group with less memory: [`hot_set_on_host`].

use crate::host::{Area, faults};
use crate::zipf::{Draws, ROUNDS, SAMPLES};
use std::io;
use std::time::{Duration, Instant};

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
    let area = Area::apart(pages * PAGE)?;
    (0..pages).for_each(|page| area.access(page, Some(page + 1)));
    let (mut draws, accesses) = (Draws::new(pages), ROUNDS * pages);
    let (mut looked, mut kept, mut all, mut started) = (0, 0, (0, 0), Instant::now());
    let mut took = Duration::ZERO;
    for n in 0..accesses {
        if n >= accesses / 2 && n % (accesses / 2 / SAMPLES) == 0 {
            if n > accesses / 2 {
                took += started.elapsed();
            } else {
                all = faults();
            }
            let present = area.present()?;
            looked += draws.hot_pages().len();
            kept += draws.hot_pages().filter(|page| present[*page as usize]).count();
            started = Instant::now();
        }
        let draw = draws.next();
        area.access(draw.page, draw.stores.then_some(draw.page + 1));
    }
    took += started.elapsed();
    let (major, minor) = faults();
    Ok(HostHotSet {
        hot: kept as f64 / looked as f64,
        faults: (major + minor - all.0 - all.1) as f64 / took.as_secs_f64(),
        reads: (major - all.0) as f64 / (accesses / 2) as f64,
    })
}
