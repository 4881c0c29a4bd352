//! userfaultfds: what is registered is registered in the engine, and the replay stands in for the program
//! that serves the faults.
//!
//! What that did (UFFDIO_COPY and others) is not recorded. So nobody waits: the engine's userfaultfds say
//! SIGBUS, and where Linux had a page in the end, a page of zeroes is supplied before the fault is taken
//! again, or before the call that wants it is made.

use super::TASK_SIZE;
use super::calls::returned;
use super::image::lines_in;
use super::workers::lock;
use freehold::error::Errno;
use freehold::hugetlb::HugePageSize;
use freehold::uffd::{Features, FillMode, RegisterMode, UffdConfig, Userfaultfd};
use freehold::vma::flags::VmFlags;
use freehold_machine::{Machine, Process};
use freehold_trace::operation::uffdio;
use freehold_trace::plan::{PlannedCall, aside};
use freehold_trace::{Area, Call, CallName, Returned};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard};

const PAGE: u64 = 4096;
/// Pages that are supplied for one call, at most.
const MOST_PAGES: u64 = 1 << 20;
const ENOMEM: u16 = 12;
const EFAULT: u16 = 14;

/// The userfaultfds of an address space, by their numbers in the plan.
#[derive(Default)]
pub(super) struct Pagers(Mutex<BTreeMap<u32, Arc<Userfaultfd<Machine>>>>);

/// What became of a registration.
pub(super) enum Registered {
    /// It was made, with this answer.
    Made(Returned),
    /// It is not checked.
    Aside(&'static str),
}

impl Pagers {
    /// Registers memory of `process`, or takes that back.
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

    /// The userfaultfd ends.
    pub(super) fn end(&self, number: u32) {
        let ended = self.lock().remove(&number);
        if let Some(ended) = ended {
            ended.close();
        }
    }

    /// Whether there is none.
    pub(super) fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    /// Supplies the page at `address`, where a userfaultfd serves it and it is not there.
    pub(super) fn supply_page(&self, process: &Process, address: u64) {
        let handles: Vec<_> = self.lock().values().cloned().collect();
        let bytes = page_bytes(process, address);
        let (page, zeroes) = (address & !(bytes - 1), vec![0; bytes as usize]);
        for handle in handles {
            let copied = handle.copy(page, &zeroes, FillMode::empty());
            if copied.is_err() {
                // It may be in the file's cache: what is there stays.
                let _ = handle.continue_with(page, bytes, FillMode::empty());
            }
        }
    }

    /// Supplies what a call brought in.
    pub(super) fn supply(&self, process: &Process, call: &Call) {
        if let Some(range) = brings(call).filter(|_| call.returned.value().is_some() && !self.is_empty()) {
            self.supply_range(process, &range, &mut MOST_PAGES.clone());
        }
    }

    /// Supplies what a transfer has reached of these pieces: `bytes`.
    pub(super) fn supply_pieces(&self, process: &Process, pieces: &[(u64, u64)], bytes: u64) {
        if self.is_empty() {
            return;
        }
        let (mut left, mut pages) = (bytes, MOST_PAGES);
        for &(at, len) in pieces {
            let len = len.min(left);
            left -= len;
            self.supply_range(process, &(at & !(PAGE - 1)..at.saturating_add(len)), &mut pages);
        }
    }

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

    /// Whether a call that Linux answered otherwise did not get pages that a userfaultfd was to serve.
    pub(super) fn may_lack(&self, process: &Process, call: &Call) -> bool {
        let refused = matches!(call.returned, Returned::Error(ENOMEM | EFAULT));
        let range = brings(call).filter(|_| refused && !self.is_empty());
        range.is_some_and(|range| !registered(process, &range).is_empty())
    }

    /// Whether some of these pieces are registered.
    pub(super) fn serve(&self, process: &Process, pieces: &[(u64, u64)]) -> bool {
        let is_served =
            |&(at, len): &(u64, u64)| !registered(process, &(at..at.saturating_add(len))).is_empty();
        !self.is_empty() && pieces.iter().any(is_served)
    }

    fn handle(&self, process: &Process, number: u32) -> Option<Arc<Userfaultfd<Machine>>> {
        let mut all = self.lock();
        if let Some(known) = all.get(&number) {
            return Some(Arc::clone(known));
        }
        let config = UffdConfig { features: Features::SIGBUS, user_mode_only: false };
        let made = Arc::new(Userfaultfd::new(process.space(), config).ok()?);
        all.insert(number, Arc::clone(&made));
        Some(made)
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u32, Arc<Userfaultfd<Machine>>>> {
        lock(&self.0)
    }
}

/// What is registered in the range, part by part, and how.
fn registered(process: &Process, range: &Range<u64>) -> Vec<(Range<u64>, RegisterMode)> {
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

/// Bytes of a page at `address`.
fn page_bytes(process: &Process, address: u64) -> u64 {
    let size = process.find_vma(address).and_then(|vma| vma.huge_page_size());
    size.map_or(PAGE, HugePageSize::bytes)
}

/// Whether the engine can register all that is mapped in the range.
fn is_served(process: &Process, range: &Range<u64>) -> bool {
    let mut lines = lines_in(process, range.clone());
    lines.all(|line| {
        process.find_vma(line.start).is_none_or(|vma| {
            let file = vma.object().file().filter(|_| !vma.is_anonymous());
            vma.flags().contains(VmFlags::HUGETLB) || file.is_none_or(|file| file.mapping().is_shmem())
        })
    })
}

/// The VMAs of a snapshot without registrations that the engine cannot make, and how many had some. What
/// these alone keep apart is one.
pub(super) fn without_elsewhere<'a>(process: &Process, areas: &'a [Area]) -> (Cow<'a, [Area]>, u64) {
    const REGISTERED: [[u8; 2]; 3] = [*b"um", *b"uw", *b"ui"];
    let is_elsewhere = |area: &&Area| {
        let mut codes = area.flags.iter().flatten();
        codes.any(|code| REGISTERED.contains(code)) && !is_served(process, &(area.start..area.end))
    };
    let count = areas.iter().filter(is_elsewhere).count();
    if count == 0 {
        return (Cow::Borrowed(areas), 0);
    }
    let mut all: Vec<Area> = Vec::new();
    let mut before = false;
    for area in areas {
        let elsewhere = is_elsewhere(&area);
        let mut area = area.clone();
        if elsewhere && let Some(codes) = &mut area.flags {
            codes.retain(|code| !REGISTERED.contains(code));
        }
        match all.last_mut().filter(|_| before || elsewhere) {
            Some(last) if is_one(process, last, &area) => extend(last, &area),
            _ => all.push(area),
        }
        before = elsewhere;
    }
    (Cow::Owned(all), count as u64)
}

/// Whether two VMAs of a snapshot are alike, and one here.
fn is_one(process: &Process, left: &Area, right: &Area) -> bool {
    let alike = left.prot == right.prot && left.shared == right.shared && left.flags == right.flags;
    let touch = left.end == right.start && left.name == right.name;
    alike && touch && process.find_vma(right.start).is_some_and(|vma| vma.start() < right.start)
}

fn extend(left: &mut Area, right: &Area) {
    left.end = right.end;
    if let (Some(left), Some(right)) = (&mut left.sizes, &right.sizes) {
        left.iter_mut().zip(right).for_each(|(left, right)| *left += right);
    }
}

/// Where a call brings in all pages, or tries to.
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
