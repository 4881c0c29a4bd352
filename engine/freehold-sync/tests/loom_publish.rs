//! Tests of the words of `publish.rs` under loom, which tries all schedules and all orders that the memory
//! model allows. The data next to a word is a loom cell, so loom reports an access that the word does not
//! order.
#![cfg(loom)]

use freehold_sync::{
    publish::{ActiveCount, EventCounter, Published, PublishedNumber},
    testing::model,
};
use loom::{cell::UnsafeCell, sync::Arc, thread};

/// A word and the data that it describes.
struct World<W> {
    word: W,
    data: [UnsafeCell<u64>; 2],
}

// SAFETY: a thread writes the data before the word is changed, and other threads read it afterwards. loom
// checks that the word suffices.
unsafe impl<W: Sync> Sync for World<W> {}

impl<W> World<W> {
    fn new(word: W) -> Arc<Self> {
        Arc::new(World { word, data: [(); 2].map(|()| UnsafeCell::new(0)) })
    }

    fn write(&self, n: usize) {
        // SAFETY: loom checks the access.
        self.data[n].with_mut(|data| unsafe { *data = 1 });
    }

    fn check(&self, n: usize) {
        // SAFETY: loom checks the access.
        assert_eq!(self.data[n].with(|data| unsafe { *data }), 1);
    }
}

/// Runs `first` in this thread and `second` in another one.
fn both<W: Send + Sync + 'static>(word: W, first: fn(&World<W>), second: fn(&World<W>)) {
    let world = World::new(word);
    let other = {
        let world = world.clone();
        thread::spawn(move || second(&world))
    };
    first(&world);
    other.join().unwrap();
}

/// Returns the pointer that stands for the data with this number.
fn pointer<W>(world: &World<W>, n: usize) -> *mut UnsafeCell<u64> {
    core::ptr::from_ref(&world.data[n]).cast_mut()
}

/// Checks the data with this address, if the pointer is not null.
fn check_at(world: &World<Published<UnsafeCell<u64>>>, found: *mut UnsafeCell<u64>) {
    if !found.is_null() {
        world.check(usize::from(found != pointer(world, 0)));
    }
}

#[test]
fn reader_of_a_published_pointer_sees_the_object() {
    model(|| {
        both(
            Published::new(),
            |world| {
                world.write(0);
                world.word.publish(pointer(world, 0));
            },
            |world| check_at(world, world.word.get()),
        );
    });
}

#[test]
fn each_of_two_publishers_sees_the_object_of_the_first() {
    fn publish(world: &World<Published<UnsafeCell<u64>>>, n: usize) {
        world.write(n);
        if let Err(other) = world.word.publish_first(pointer(world, n)) {
            check_at(world, other);
        }
        check_at(world, world.word.get());
    }
    model(|| both(Published::new(), |world| publish(world, 0), |world| publish(world, 1)));
}

#[test]
fn replaced_pointer_and_its_successor_are_seen_with_their_objects() {
    model(|| {
        both(
            Published::new(),
            |world| {
                world.write(0);
                check_at(world, world.word.replace(pointer(world, 0)));
            },
            |world| {
                world.write(1);
                check_at(world, world.word.replace(pointer(world, 1)));
            },
        );
    });
    model(|| {
        both(
            Published::new(),
            |world| {
                world.write(0);
                world.word.replace(pointer(world, 0));
            },
            |world| check_at(world, world.word.get()),
        );
    });
}

#[test]
fn reader_of_a_published_number_sees_its_data() {
    model(|| {
        both(
            PublishedNumber::new(0),
            |world| {
                world.write(0);
                world.word.publish(1);
            },
            |world| {
                if world.word.get() == 1 {
                    world.check(0);
                }
            },
        );
    });
}

#[test]
fn each_of_two_publishers_of_a_number_sees_the_data_of_the_first() {
    fn publish(world: &World<PublishedNumber>, n: usize) {
        world.write(n);
        if let Err(other) = world.word.publish_first(n as u64 + 1) {
            world.check(other as usize - 1);
        }
        world.check(world.word.get() as usize - 1);
    }
    model(|| both(PublishedNumber::new(0), |world| publish(world, 0), |world| publish(world, 1)));
}

#[test]
fn reader_of_a_counted_event_sees_the_event() {
    model(|| {
        both(
            EventCounter::new(),
            |world| {
                world.write(0);
                world.word.record();
            },
            |world| {
                if world.word.count() == 1 {
                    world.check(0);
                }
            },
        );
    });
}

/// Both activities begin before the threads start, as if a lock had ordered their beginning.
#[test]
fn task_that_finds_no_activity_sees_the_results() {
    model(|| {
        let world = World::new(ActiveCount::new());
        (0..2).for_each(|_| world.word.begin());
        let others: Vec<_> = (0..2)
            .map(|n| {
                let world = world.clone();
                thread::spawn(move || {
                    world.write(n);
                    world.word.end();
                })
            })
            .collect();
        if !world.word.any() {
            (0..2).for_each(|n| world.check(n));
        }
        others.into_iter().for_each(|other| other.join().unwrap());
    });
}
