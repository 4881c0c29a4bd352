//! Listeners of an address space: when they are called, and what they may refuse. The code under test is
//! `src/space/listener.rs`, `src/remote/device.rs`, and `notify/` of `freehold-vmspace`.
//!
//! `sweep/heard.rs` tests that a listener hears of the changes of every call, and `random_interactions` tests
//! sequences of calls. `shuttle_engine/listeners.rs` explores concurrent calls.

use crate::support::*;
use freehold::{
    UserRange,
    call::Advice,
    error::AccessError,
    fault::Access,
    space::{AddressSpace, ListenError, Listener, Refused, Write},
};
use freehold_sync::Host;
use std::sync::{
    Arc, Mutex,
    atomic::{AtomicBool, Ordering::SeqCst},
};

/// A call of a listener.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Heard {
    Start(UserRange),
    Try(UserRange),
    End(UserRange),
    Release,
}

/// A listener that records its calls.
#[derive(Default)]
struct Recorder {
    calls: Mutex<Vec<Heard>>,
    refuses: AtomicBool,
}

impl Recorder {
    fn heard(&self) -> Vec<Heard> {
        std::mem::take(&mut self.calls.lock().unwrap())
    }

    fn record(&self, call: Heard) {
        self.calls.lock().unwrap().push(call);
    }
}

impl Listener for Recorder {
    fn range_start(&self, range: UserRange) {
        self.record(Heard::Start(range));
    }

    fn try_range_start(&self, range: UserRange) -> Result<(), Refused> {
        if self.refuses.load(SeqCst) {
            return Err(Refused);
        }
        self.record(Heard::Try(range));
        Ok(())
    }

    fn range_end(&self, range: UserRange) {
        self.record(Heard::End(range));
    }

    fn release(&self) {
        self.record(Heard::Release);
    }
}

/// Returns `pages` pages from the `first`.
fn pages(first: u64, pages: u64) -> UserRange {
    UserRange::new(BASE + first * PAGE, BASE + (first + pages) * PAGE)
}

#[test]
fn listener_hears_the_range_of_a_change_and_its_end() {
    everywhere(|world, process, cpu| {
        anon(process, BASE, 4);
        fill(process, cpu, BASE, 4, 1);
        let recorder = Arc::new(Recorder::default());
        let id = process.register_listener(recorder.clone()).unwrap();
        // Loads and further stores change no translation.
        process.store(cpu, BASE, 7u64).unwrap();
        assert_eq!(recorder.heard(), []);
        process.mprotect(BASE, PAGE, R).unwrap();
        assert_eq!(recorder.heard(), [Heard::Start(pages(0, 1)), Heard::End(pages(0, 1))]);
        process.madvise(BASE + PAGE, PAGE, Advice::DontNeed).unwrap();
        assert_eq!(recorder.heard(), [Heard::Start(pages(1, 1)), Heard::End(pages(1, 1))]);
        world.engine().migrate(process.frame_at(BASE).unwrap()).unwrap();
        assert_eq!(recorder.heard(), [Heard::Start(pages(0, 1)), Heard::End(pages(0, 1))]);
        process.munmap(BASE + 2 * PAGE, 2 * PAGE).unwrap();
        assert_eq!(recorder.heard(), [Heard::Start(pages(2, 2)), Heard::End(pages(2, 2))]);
        process.unregister_listener(id);
        process.munmap(BASE, 2 * PAGE).unwrap();
        assert_eq!(recorder.heard(), []);
    });
}

#[test]
fn listener_hears_of_a_copy_at_a_store() {
    everywhere(|_, process, cpu| {
        anon(process, BASE, 1);
        fill(process, cpu, BASE, 1, 1);
        let child = Process::of(process.fork().unwrap());
        let recorder = Arc::new(Recorder::default());
        process.register_listener(recorder.clone()).unwrap();
        process.store(cpu, BASE, 7u64).unwrap();
        assert_eq!(recorder.heard(), [Heard::Start(pages(0, 1)), Heard::End(pages(0, 1))]);
        drop(child);
    });
}

#[test]
fn listener_is_released_at_the_end_of_the_space() {
    everywhere(|world, _, cpu| {
        let process = Process::new(world.engine(), &SpaceConfig::new()).unwrap();
        anon(&process, BASE, 1);
        fill(&process, cpu, BASE, 1, 1);
        let recorder = Arc::new(Recorder::default());
        process.register_listener(recorder.clone()).unwrap();
        process.clear();
        let heard = recorder.heard();
        let [Heard::Start(all), Heard::End(ended)] = heard[..] else { panic!("{heard:?}") };
        let whole = UserRange::new(0, AddressSpace::<Machine>::TASK_SIZE);
        assert!(all == ended && (all == whole || all == UserRange::ALL), "{heard:?}");
        drop(process);
        assert_eq!(recorder.heard(), [Heard::Release]);
        assert_eq!(Arc::strong_count(&recorder), 1, "the space has dropped the listener");
    });
}

#[test]
fn refused_eviction_leaves_the_pages() {
    everywhere(|_, process, cpu| {
        anon(process, BASE, 2);
        fill(process, cpu, BASE, 2, 1);
        let [first, second] = [(); 2].map(|()| Arc::new(Recorder::default()));
        process.register_listener(first.clone()).unwrap();
        process.register_listener(second.clone()).unwrap();
        process.madvise(BASE, 2 * PAGE, Advice::Free).unwrap();
        second.refuses.store(true, SeqCst);
        let _ = (first.heard(), second.heard());
        assert_eq!(process.drop_discardable(), 0);
        assert_eq!(process.rss().anon, 2);
        // The first listener had accepted.
        assert!(matches!(first.heard()[..], [Heard::Try(_), Heard::End(_)]));
        assert_eq!(second.heard(), []);
        second.refuses.store(false, SeqCst);
        assert_eq!(process.drop_discardable(), 2);
        assert!(matches!(second.heard()[..], [Heard::Try(_), Heard::End(_)]));
    });
}

#[test]
fn refused_eviction_leaves_the_pages_of_a_file() {
    everywhere(|world, process, cpu| {
        let file = world.file(2);
        let flags = MapFlags::SHARED | MapFlags::FIXED;
        process.mmap(BASE, 2 * PAGE, R, flags, Some(&file), 0).unwrap();
        process.load::<u64>(cpu, BASE).unwrap();
        let recorder = Arc::new(Recorder::default());
        process.register_listener(recorder.clone()).unwrap();
        recorder.refuses.store(true, SeqCst);
        process.madvise(BASE, 2 * PAGE, Advice::PageOut).unwrap();
        assert!(process.frame_at(BASE).is_some());
        recorder.refuses.store(false, SeqCst);
        process.madvise(BASE, 2 * PAGE, Advice::PageOut).unwrap();
        assert!(process.frame_at(BASE).is_none());
    });
}

#[test]
fn accesses_of_a_device_count_as_accesses() {
    everywhere(|world, process, cpu| {
        anon(process, BASE, 2);
        fill(process, cpu, BASE, 2, 1);
        let (device, _) = Shadow::attach(process.space()).unwrap();
        let frame = process.frame_at(BASE).unwrap();
        device.load(process, BASE).unwrap();
        assert_eq!(world.engine().referenced(frame), Ok(1));
        assert_eq!(world.engine().referenced(frame), Ok(0));
        device.load(process, BASE).unwrap();
        let referenced = || process.smaps_rollup().usage.referenced;
        let before = referenced();
        assert_eq!(world.engine().referenced(frame), Ok(1), "only the device has accessed the page");
        assert_eq!(referenced(), before - PAGE);
        device.load(process, BASE).unwrap();
        process.madvise(BASE, PAGE, Advice::Cold).unwrap();
        assert_eq!(world.engine().referenced(frame), Ok(0));
    });
}

#[test]
fn device_has_no_translation_without_rights() {
    everywhere(|world, process, _| {
        let (device, _) = Shadow::attach(process.space()).unwrap();
        assert_eq!(device.load(process, BASE), Err(AccessError::BadAddress));
        process.mmap(BASE, PAGE, R, ANON | MapFlags::FIXED, None, 0).unwrap();
        assert_eq!(device.load(process, BASE), Ok(0));
        assert_eq!(device.store(process, BASE, 1), Err(AccessError::BadAddress));
        let secret = Mapping::secret(world.engine()).unwrap();
        secret.truncate(PAGE).unwrap();
        let secret = File::new(&secret, FileAccess::READ_WRITE, "/secretmem").unwrap();
        process.mmap(BASE + PAGE, PAGE, RW, MapFlags::SHARED | MapFlags::FIXED, Some(&secret), 0).unwrap();
        assert_eq!(device.load(process, BASE + PAGE), Err(AccessError::BadAddress));
    });
}

#[test]
fn number_of_listeners_is_limited() {
    everywhere(|_, process, _| {
        let register = || process.register_listener(Arc::new(Recorder::default()));
        let ids: Vec<_> = (0..8).map(|_| register().unwrap()).collect();
        assert_eq!(register(), Err(ListenError::TooMany));
        process.unregister_listener(ids[3]);
        process.unregister_listener(ids[3]);
        assert!(!ids.contains(&register().unwrap()));
        ids.iter().for_each(|id| process.unregister_listener(*id));
        assert!(register().is_ok());
    });
}

/// A listener that makes a change when it is released, and records whether it hears of the change.
struct Late {
    change: Box<dyn Fn() + Send + Sync>,
    recorder: Recorder,
}

impl Listener for Late {
    fn range_start(&self, range: UserRange) {
        self.recorder.range_start(range);
    }

    fn try_range_start(&self, range: UserRange) -> Result<(), Refused> {
        self.recorder.try_range_start(range)
    }

    fn range_end(&self, range: UserRange) {
        self.recorder.range_end(range);
    }

    fn release(&self) {
        (self.change)();
        self.recorder.release();
    }
}

/// The change stands for a walk of the reverse map by another task, which reaches the space until it is
/// unmapped.
#[test]
fn listener_hears_of_changes_until_it_is_released() {
    everywhere(|world, process, cpu| {
        anon(process, BASE, 1);
        fill(process, cpu, BASE, 1, 1);
        let child = Process::of(process.fork().unwrap());
        let (engine, frame) = (world.engine().clone(), process.frame_at(BASE).unwrap());
        let change = Box::new(move || assert!(engine.migrate(frame).is_ok()));
        let late = Arc::new(Late { change, recorder: Recorder::default() });
        child.register_listener(late.clone()).unwrap();
        drop(child);
        let heard = late.recorder.heard();
        assert_eq!(heard, [Heard::Start(pages(0, 1)), Heard::End(pages(0, 1)), Heard::Release]);
    });
}

/// A listener that sleeps, as `range_start` may. The machine panics where sleeping is forbidden.
struct Sleeper;

impl Listener for Sleeper {
    fn range_start(&self, _: UserRange) {
        // Returns at once, because the word has another value.
        <Machine>::wait(&freehold_sync::atomic::AtomicU32::new(0), 1);
    }

    fn try_range_start(&self, _: UserRange) -> Result<(), Refused> {
        Ok(())
    }

    fn range_end(&self, range: UserRange) {
        self.range_start(range);
    }

    fn release(&self) {}
}

/// A range writer changes simple VMAs under a spin lock, unless there is a listener.
#[test]
fn listener_may_sleep_during_changes_of_range_writers() {
    let design = Locking::default().write(Write::RangesOnly);
    World::with(16 << 20, Config::new()).live(design, |_, process, _| {
        process.register_listener(Arc::new(Sleeper)).unwrap();
        for first in [0, 8] {
            process.mmap(BASE + first * PAGE, 4 * PAGE, RW, ANON | MapFlags::FIXED, None, 0).unwrap();
        }
        process.mprotect(BASE, 2 * PAGE, R).unwrap();
        process.handle_fault(BASE + 8 * PAGE, Access::WRITE).unwrap();
        process.mprotect(BASE + 8 * PAGE, 2 * PAGE, R).unwrap();
        process.munmap(BASE, 4 * PAGE).unwrap();
    });
}
