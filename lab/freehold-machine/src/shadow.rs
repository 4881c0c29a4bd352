//! A device that keeps translations of an address space, like the second stage of a guest or an IOMMU without
//! page faults of its own. It is a complete user of [`Listener`], and an oracle for notifications.
//!
//! The device installs a translation when it first accesses a page ([`Shadow::load`], [`Shadow::store`]), and
//! uses the translation until the listener removes it. An access holds the lock of the device from its
//! look-up to its end, so removal waits for accesses in progress. A real device flushes its TLB (IOMMU) where
//! this file removes entries of its map.
//!
//! | oracle | detects a missing or late notification |
//! | --- | --- |
//! | use | an access uses a frame that was freed, or freed and allocated again, since the look-up |
//! | free | a frame is freed while a device translates an address to it |
//! | check | a translation differs from the entry in the tables, or has a right that the entry lacks |
//!
//! `tests/oracles.rs` has a device that hears of no change, and expects the panics of the last two oracles.
//! The first one finds a frame that was freed before its translation was installed, which no test arranges.
//! `shuttle_engine` and the random tests of the engine run devices concurrently with, and after, all kinds
//! of changes.

use crate::DefaultFormat;
use crate::{Machine, exempt, host::Lock, inner::Inner};
use freehold::{
    UserRange,
    error::AccessError,
    space::{AddressSpace, Interval, ListenError, Listener, ListenerId, Refused},
};
use freehold_pagetable::{Format, Kind, Level, PAGE_SIZE, Pfn, PteFlags, VirtAddr};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

/// A translation of one page.
#[derive(Clone, Copy)]
struct Translation {
    frame: Pfn,
    write: bool,
    /// True if the device has used the translation since the last `clear_young`.
    young: bool,
    /// The value of the free clock after the look-up; see `pool`.
    stamp: u64,
}

/// The translations of a device, by address.
#[derive(Default)]
pub(crate) struct Translations {
    pages: BTreeMap<u64, Translation>,
    /// True once the space has ended.
    released: bool,
}

/// A device with translations of one address space. It must be [attached](Self::attach) to that space, and
/// its accesses name the space.
pub struct Shadow<F: Format = DefaultFormat> {
    machine: Machine<F>,
    interval: Interval<Machine<F>>,
    /// The driver's lock.
    translations: Arc<Lock<Translations>>,
    /// True if the device refuses changes that must not sleep.
    refuses: AtomicBool,
}

impl<F: Format> Shadow<F> {
    /// Creates a device and registers it as a listener of `space`.
    ///
    /// # Errors
    /// Fails like [`AddressSpace::register_listener`].
    pub fn attach(space: &AddressSpace<Machine<F>>) -> Result<(Arc<Self>, ListenerId), ListenError> {
        let machine = space.engine().platform().clone();
        let translations = exempt(|| Arc::new(Lock::new(Translations::default())));
        machine.inner().watch(&translations);
        let interval = Interval::new(UserRange::ALL);
        let refuses = AtomicBool::new(false);
        let shadow = exempt(|| Arc::new(Shadow { machine, interval, translations, refuses }));
        let id = space.register_listener(shadow.clone())?;
        Ok((shadow, id))
    }

    /// Makes the device refuse changes that must not sleep, or accept them again.
    pub fn refuse(&self, refuses: bool) {
        self.refuses.store(refuses, Ordering::Relaxed);
    }

    /// Loads the first eight bytes of the page at `at`, as the device.
    ///
    /// # Errors
    /// Fails like [`AddressSpace::device_page`], and if the space has ended.
    ///
    /// # Panics
    /// Panics if an oracle finds a missing notification.
    pub fn load(&self, space: &AddressSpace<Machine<F>>, at: u64) -> Result<u64, AccessError> {
        self.access(space, at, false, |shadow, frame| {
            let mut bytes = [0; 8];
            freehold::platform::Platform::read_frame(&shadow.machine, frame, 0, &mut bytes);
            u64::from_le_bytes(bytes)
        })
    }

    /// Stores eight bytes at the start of the page at `at`, as the device.
    ///
    /// # Errors
    /// The errors of [`load`](Self::load).
    ///
    /// # Panics
    /// The panics of [`load`](Self::load).
    pub fn store(&self, space: &AddressSpace<Machine<F>>, at: u64, value: u64) -> Result<(), AccessError> {
        self.access(space, at, true, |shadow, frame| {
            freehold::platform::Platform::write_frame(&shadow.machine, frame, 0, &value.to_le_bytes());
        })
    }

    /// Calls `f` with the frame of the page at `at`, with the driver's lock held.
    fn access<R>(
        &self,
        space: &AddressSpace<Machine<F>>,
        at: u64,
        write: bool,
        f: impl Fn(&Self, Pfn) -> R,
    ) -> Result<R, AccessError> {
        let at = at & !(PAGE_SIZE - 1);
        loop {
            let mut translations = self.translations.lock();
            if translations.released {
                return Err(AccessError::BadAddress);
            }
            match translations.pages.get_mut(&at).filter(|found| found.write || !write) {
                Some(found) => {
                    self.assert_live(at, found);
                    found.young = true;
                    return Ok(f(self, found.frame));
                }
                None => drop(translations),
            }
            self.install(space, at, write)?;
        }
    }

    /// Looks up the page at `at` and installs its translation, unless it changes during the look-up.
    fn install(&self, space: &AddressSpace<Machine<F>>, at: u64, write: bool) -> Result<(), AccessError> {
        let seen = self.interval.read_begin();
        let frame = space.device_page(at, write)?;
        // Read after the look-up, which may have faulted in a frame that was freed a moment before.
        let stamp = self.machine.inner().frames.stamp();
        let mut translations = self.translations.lock();
        if !self.interval.read_retry(seen) && !translations.released {
            let found = Translation { frame, write, young: false, stamp };
            exempt(|| translations.pages.insert(at, found));
        }
        Ok(())
    }

    /// Panics if the frame of a translation was freed since its look-up.
    fn assert_live(&self, at: u64, found: &Translation) {
        if let Err(how) = self.machine.inner().frames.check(found.frame, found.stamp) {
            panic!("a device used {at:#x} -> {:?}: {how:?}, a notification is missing", found.frame);
        }
    }

    /// Returns the frame that the device has for the page at `at`, and true if it may write.
    pub fn translation(&self, at: u64) -> Option<(Pfn, bool)> {
        self.translations.lock().pages.get(&at).map(|found| (found.frame, found.write))
    }

    /// Checks that the tables have each translation of the device, with its rights. For times at which
    /// nothing changes.
    ///
    /// # Panics
    /// Panics if a translation differs from its entry.
    pub fn check(&self, space: &AddressSpace<Machine<F>>) {
        let translations = self.translations.lock();
        for (at, found) in &translations.pages {
            self.assert_live(*at, found);
            let entry = self.machine.inner().peek(space.mmu().root(), VirtAddr::new(*at));
            let (frame, flags) = entry.unwrap_or_else(|| panic!("a device has a page at {at:#x}"));
            assert_eq!(frame, found.frame, "a device has another page at {at:#x}");
            let lacks = found.write && !flags.contains(PteFlags::WRITE);
            assert!(!lacks, "a device may write to {at:#x}, and the program may not");
            assert!(!flags.contains(PteFlags::NO_ACCESS), "a device may read {at:#x}");
        }
    }

    /// Removes all translations. The device installs none afterwards.
    pub fn forget(&self) {
        self.release();
    }

    /// Checks that the device has heard of the end of the space.
    ///
    /// # Panics
    /// Panics if it has not.
    pub fn assert_released(&self) {
        assert!(self.translations.lock().released, "a device has not heard of the end of its space");
    }

    /// Installs a translation of every page at `addresses` that the device can get without a fault, for
    /// writing where the entries allow it, and returns their number. A test that fills the device before a
    /// call, and checks it afterwards, finds every missing notification of that call.
    pub fn fill(&self, space: &AddressSpace<Machine<F>>, addresses: impl IntoIterator<Item = u64>) -> usize {
        let installs = |at: &u64| {
            let entry = self.machine.inner().peek(space.mmu().root(), VirtAddr::new(*at));
            entry.is_some_and(|(_, flags)| {
                // The clean entry of a page that may be discarded must stay clean.
                let write = flags.contains(PteFlags::WRITE | PteFlags::DIRTY);
                // Memory that devices may not access has no translation.
                !flags.contains(PteFlags::NO_ACCESS) && self.install(space, *at, write).is_ok()
            })
        };
        addresses.into_iter().filter(installs).count()
    }
}

impl<F: Format> Shadow<F> {
    /// Removes the translations of `range`.
    fn invalidate(&self, range: UserRange) {
        if self.interval.start(range) {
            let mut translations = self.translations.lock();
            exempt(|| translations.pages.retain(|at, _| !range.contains(*at)));
        }
    }
}

impl<F: Format> Listener for Shadow<F> {
    fn range_start(&self, range: UserRange) {
        self.invalidate(range);
    }

    fn try_range_start(&self, range: UserRange) -> Result<(), Refused> {
        if self.refuses.load(Ordering::Relaxed) {
            return Err(Refused);
        }
        self.invalidate(range);
        Ok(())
    }

    fn range_end(&self, range: UserRange) {
        self.interval.end(range);
    }

    fn release(&self) {
        let mut translations = self.translations.lock();
        translations.released = true;
        exempt(|| translations.pages.clear());
    }

    fn clear_young(&self, range: UserRange) -> bool {
        let mut translations = self.translations.lock();
        let pages = translations.pages.range_mut(range.addresses());
        pages.fold(false, |any, (_, found)| std::mem::take(&mut found.young) || any)
    }

    fn test_young(&self, range: UserRange) -> bool {
        self.translations.lock().pages.range(range.addresses()).any(|(_, found)| found.young)
    }
}

impl<F: Format> Inner<F> {
    /// Returns the frame and the flags of the leaf of `address`, without a change of its bits.
    fn peek(&self, root: Pfn, address: VirtAddr) -> Option<(Pfn, PteFlags)> {
        let (mut table, mut level) = (root, F::ROOT);
        loop {
            let raw = self.table(table).entry(address.index(level)).load(Ordering::Acquire);
            match F::kind(raw, level) {
                Kind::Leaf { pfn, flags } => return Some((pfn.add(address.frame_in_leaf(level)), flags)),
                Kind::Table { pfn } if level > Level::Pte => (table, level) = (pfn, level.below()),
                Kind::Table { .. } | Kind::None | Kind::Marker { .. } => return None,
            }
        }
    }

    /// Lets the free oracle check the translations of a device.
    fn watch(&self, translations: &Arc<Lock<Translations>>) {
        let mut devices = self.devices.lock();
        devices.retain(|device| device.strong_count() > 0);
        exempt(|| devices.push(Arc::downgrade(translations)));
        self.has_devices.store(true, Ordering::Relaxed);
    }

    /// Panics if a device translates an address to one of these frames, which are being freed.
    pub(crate) fn assert_no_device_uses(&self, freed: &[Pfn]) {
        // Relaxed: a device that is being attached has no translation.
        if !self.has_devices.load(Ordering::Relaxed) {
            return;
        }
        let live = |devices: &Vec<Weak<_>>| devices.iter().filter_map(Weak::upgrade).collect();
        let devices: Vec<Arc<Lock<Translations>>> = exempt(|| live(&self.devices.lock()));
        for device in devices {
            for (at, found) in &device.lock().pages {
                let gone = freed.contains(&found.frame);
                assert!(!gone, "{:?} was freed while a device translates {at:#x} to it", found.frame);
            }
        }
    }
}
