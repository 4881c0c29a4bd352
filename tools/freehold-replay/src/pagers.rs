//! Userfaultfds. Recorded registrations are repeated in the engine. The replay takes the place of the program
//! that serves the faults, the *pager*.
//!
//! The operations of the pager (UFFDIO_COPY and others) are not recorded. Faults therefore do not wait for a
//! pager: the engine's userfaultfds use UFFD_FEATURE_SIGBUS. Where Linux finally had a page, the replay
//! *supplies* a page of zeroes before it takes the fault again, or before it makes the call that needs the
//! page.
//!
//! Each address space has one [`Pagers`] (`image.rs`), whose table has a lock of its own; `perform.rs` calls
//! it for faults, calls and forks. A fork may copy registrations, and no event shows the copies. The address
//! space of the child is therefore *doubted*. The tests are `pages_of_a_userfaultfd_are_supplied`
//! (`tests/small.rs`), `registrations_that_a_fork_copies_are_not_compared` (`tests/untold.rs`) and others of
//! these files.

use super::TASK_SIZE;
use super::answers::returned;
use super::maps::lines_in;
use super::workers::lock;
use freehold::error::Errno;
use freehold::hugetlb::HugePageSize;
use freehold::uffd::{Features, FillMode, RegisterMode, UffdConfig, Userfaultfd};
use freehold::vma::flags::VmFlags;
use freehold_machine::{Machine, Process};
use freehold_trace::operation::uffdio;
use freehold_trace::plan::{PlannedCall, aside};
use freehold_trace::{Call, CallName, Returned};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard};

const PAGE: u64 = 4096;
/// Largest number of pages that are supplied for one call.
const MAX_PAGES: u64 = 1 << 20;
const ENOMEM: u16 = 12;
const EFAULT: u16 = 14;

/// The userfaultfds of an address space.
#[derive(Default)]
pub(super) struct Pagers {
    /// Userfaultfds by their numbers in the plan.
    known: Mutex<BTreeMap<u32, Arc<Userfaultfd<Machine>>>>,
    /// A fork may have copied registrations into this address space. Set before a task runs in the address
    /// space.
    doubted: AtomicBool,
}

/// Result of a registration.
pub(super) enum Registered {
    /// The call was made, with this answer.
    Made(Returned),
    /// The call is not checked, for this reason.
    Aside(&'static str),
}

impl Pagers {
    /// Registers or unregisters memory of `process`.
    pub(super) fn call(&self, process: &Process, planned: &PlannedCall) -> Registered {
        let [_, operation, start, len, mode, _] = planned.call.args;
        let handle = planned.userfaultfd.and_then(|number| self.handle(process, number));
        let Some(handle) = handle else { return Registered::Made(Returned::Error(ENOMEM)) };
        let range = start..start.saturating_add(len);
        let linux = planned.call.returned;
        if linux.value().is_some() && !is_served(process, &range) {
            return Registered::Aside(aside::ELSEWHERE);
        }
        let before = match linux {
            Returned::Error(_) => registered(process, &range),
            _ => Vec::new(),
        };
        let done = match RegisterMode::from_bits(mode) {
            _ if operation == uffdio::UNREGISTER => {
                handle.unregister(start, len).map_err(|error| error.errno())
            }
            Some(mode) => handle.register(start, len, mode).map(drop).map_err(|error| error.errno()),
            None => Err(Errno::EINVAL),
        };
        let ours = returned(done.map(|()| 0));
        if linux.value().is_some() || ours == linux {
            return Registered::Made(ours);
        }
        if ours.value().is_some() {
            let _ = handle.unregister(start, len);
            for (part, mode) in before {
                let _ = handle.register(part.start, part.end - part.start, mode);
            }
        }
        if planned.features.is_some() {
            Registered::Made(ours)
        } else {
            Registered::Aside(aside::REGISTRATIONS)
        }
    }

    /// Returns the registration mode of the memory that an mremap moves, if the memory stays registered.
    pub(super) fn moved(&self, process: &Process, planned: &PlannedCall) -> Option<RegisterMode> {
        planned.stays_registered?;
        let at = planned.call.args[0];
        registered(process, &(at..at + 1)).first().map(|(_, mode)| *mode)
    }

    /// After an mremap, registers the moved memory at its new address, as the kernel does with
    /// UFFD_FEATURE_EVENT_REMAP. The engine's userfaultfds have no events.
    pub(super) fn register_moved(
        &self,
        process: &Process,
        planned: &PlannedCall,
        mode: Option<RegisterMode>,
    ) {
        let handle = planned.stays_registered.and_then(|number| self.handle(process, number));
        if let (Some(handle), Some(mode), Some(to)) = (handle, mode, planned.call.returned.value()) {
            let bytes = planned.call.args[2].next_multiple_of(PAGE);
            // If the registration fails, a later comparison reports a difference.
            let _ = handle.register(to, bytes, mode);
        }
    }

    /// Closes a userfaultfd.
    pub(super) fn end(&self, number: u32) {
        let ended = self.lock().remove(&number);
        if let Some(ended) = ended {
            ended.close();
        }
    }

    /// Returns true if there are no userfaultfds.
    pub(super) fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    /// Supplies the page at `address` if a userfaultfd serves it and the page is absent.
    pub(super) fn supply_page(&self, process: &Process, address: u64) {
        let handles: Vec<_> = self.lock().values().cloned().collect();
        let bytes = page_bytes(process, address);
        let (page, zeroes) = (address & !(bytes - 1), vec![0; bytes as usize]);
        for handle in handles {
            let copied = handle.copy(page, &zeroes, FillMode::empty());
            if copied.is_err() {
                // If the page is in the file's cache, it is mapped with its contents.
                let _ = handle.continue_with(page, bytes, FillMode::empty());
            }
        }
    }

    /// Supplies the pages that a call brought in.
    pub(super) fn supply(&self, process: &Process, call: &Call) {
        if let Some(range) = brings(call).filter(|_| call.returned.value().is_some() && !self.is_empty()) {
            self.supply_range(process, &range, &mut MAX_PAGES.clone());
        }
    }

    /// Supplies the pages that a transfer has reached: the pages of the first `bytes` bytes of `pieces`.
    pub(super) fn supply_pieces(&self, process: &Process, pieces: &[(u64, u64)], bytes: u64) {
        if self.is_empty() {
            return;
        }
        let (mut left, mut pages) = (bytes, MAX_PAGES);
        for &(at, len) in pieces {
            let len = len.min(left);
            left -= len;
            self.supply_range(process, &(at & !(PAGE - 1)..at.saturating_add(len)), &mut pages);
        }
    }

    /// Supplies the pages of the registered parts of `range`. Decreases `most` for each page, and stops at 0.
    fn supply_range(&self, process: &Process, range: &Range<u64>, most: &mut u64) {
        for (part, mode) in registered(process, range) {
            if mode == RegisterMode::WP {
                continue;
            }
            let bytes = page_bytes(process, part.start);
            for page in (part.start & !(bytes - 1)..part.end).step_by(bytes as usize) {
                if *most == 0 {
                    return;
                }
                *most -= 1;
                self.supply_page(process, page);
            }
        }
    }

    /// Returns true if Linux may have refused the call because the call did not get pages that a userfaultfd
    /// serves.
    pub(super) fn may_lack(&self, process: &Process, call: &Call) -> bool {
        let refused = matches!(call.returned, Returned::Error(ENOMEM | EFAULT));
        let range = brings(call).filter(|_| refused && !self.is_empty());
        range.is_some_and(|range| !registered(process, &range).is_empty())
    }

    /// Returns true if memory in some of these pieces is registered.
    pub(super) fn serve(&self, process: &Process, pieces: &[(u64, u64)]) -> bool {
        let is_served =
            |&(at, len): &(u64, u64)| !registered(process, &(at..at.saturating_add(len))).is_empty();
        !self.is_empty() && pieces.iter().any(is_served)
    }

    /// Returns the engine's userfaultfd with this number in the plan. Creates it at its first use. Returns
    /// `None` if the engine cannot create it.
    fn handle(&self, process: &Process, number: u32) -> Option<Arc<Userfaultfd<Machine>>> {
        let mut all = self.lock();
        if let Some(known) = all.get(&number) {
            return Some(Arc::clone(known));
        }
        let config = UffdConfig::new().features(Features::SIGBUS);
        let made = Arc::new(Userfaultfd::new(process.space(), config).ok()?);
        all.insert(number, Arc::clone(&made));
        Some(made)
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u32, Arc<Userfaultfd<Machine>>>> {
        lock(&self.known)
    }

    /// If `copies` is true, records that a fork may have copied registrations into the address space.
    pub(super) fn doubt(&self, copies: bool) {
        if copies {
            self.doubted.store(true, Relaxed);
        }
    }

    /// Returns true if a fork may have copied registrations into the address space.
    pub(super) fn are_doubted(&self) -> bool {
        self.doubted.load(Relaxed)
    }

    /// Returns true if a copied registration may decide how a fault at `address` ends.
    pub(super) fn may_serve_copy(&self, process: &Process, address: u64) -> bool {
        let page = address & !(PAGE - 1)..(address | (PAGE - 1));
        self.are_doubted()
            && process.find_vma(address).is_some_and(|vma| vma.start() <= address)
            && registered(process, &page).is_empty()
    }
}

/// Returns the registered parts of the range with their modes.
pub(super) fn registered(process: &Process, range: &Range<u64>) -> Vec<(Range<u64>, RegisterMode)> {
    let lines = lines_in(process, range.clone());
    let modes = [
        (VmFlags::UFFD_MISSING, RegisterMode::MISSING),
        (VmFlags::UFFD_WP, RegisterMode::WP),
        (VmFlags::UFFD_MINOR, RegisterMode::MINOR),
    ];
    let parts = lines.map(|line| {
        let has = modes.iter().filter(|(flag, _)| line.flags.contains(*flag));
        let mode = has.fold(RegisterMode::empty(), |all, (_, mode)| all | *mode);
        (line.start.max(range.start)..line.end.min(range.end), mode)
    });
    parts.filter(|(_, mode)| !mode.is_empty()).collect()
}

/// Returns the size of a page at `address` in bytes.
fn page_bytes(process: &Process, address: u64) -> u64 {
    let size = process.find_vma(address).and_then(|vma| vma.huge_page_size());
    size.map_or(PAGE, HugePageSize::bytes)
}

/// Returns true if the engine can register all VMAs in the range.
pub(super) fn is_served(process: &Process, range: &Range<u64>) -> bool {
    let mut lines = lines_in(process, range.clone());
    lines.all(|line| {
        process.find_vma(line.start).is_none_or(|vma| {
            let file = vma.object().file().filter(|_| !vma.is_anonymous());
            vma.flags().contains(VmFlags::HUGETLB) || file.is_none_or(|file| file.mapping().is_shmem())
        })
    })
}

/// Returns the range in which a call tries to bring in all pages.
fn brings(call: &Call) -> Option<Range<u64>> {
    const POPULATE: [u64; 2] = [22, 23];
    const MLOCK_ONFAULT: u64 = 1;
    const MCL_CURRENT: u64 = 1;
    const MCL_ONFAULT: u64 = 4;
    let [at, len, flags, ..] = call.args;
    let range = at & !(PAGE - 1)..at.saturating_add(len);
    match call.name {
        CallName::Mlock => Some(range),
        CallName::Mlock2 if flags & MLOCK_ONFAULT == 0 => Some(range),
        CallName::Madvise if POPULATE.contains(&flags) => Some(range),
        CallName::Mlockall if at & (MCL_CURRENT | MCL_ONFAULT) == MCL_CURRENT => Some(0..TASK_SIZE),
        _ => None,
    }
}
