//! A listener hears of every change that any call makes to any kind of memory.
//!
//! A device ([`Shadow`]) has a translation of every page of the scene before the operation. After the
//! operation, the tables must have each translation that the device still has, with its rights. So a path
//! that removes or replaces a translation, or takes a right, without a notification makes this test fail.

use super::{
    design, is_in_quick_run,
    ops::{Op, each_op},
    scene::{Scene, UNITS},
    stage::{HOG, Stage},
    states::STATES,
    support::{oom::Scene as _, *},
    write_of,
};
use freehold::space::{AddressSpace, ListenerId, Write};
use std::sync::Arc;

/// A device, its number as a listener, and its space.
type Device = (Arc<Shadow>, ListenerId, Counted<AddressSpace<Machine>>);

/// Attaches devices to the processes of the scene, fills them, and adds the number of translations to
/// `installed`.
fn devices(scene: &Scene, installed: &mut usize) -> Vec<Device> {
    let processes = [&scene.process].into_iter().chain(&scene.child).chain([&scene.hog]);
    let units = (0..UNITS).map(|unit| scene.at(unit)).chain((0..UNITS).map(|unit| scene.far(unit)));
    let places: Vec<u64> = units.chain((0..4).map(|page| HOG + page * PAGE)).collect();
    let mut attach = |process: &Process| {
        let (device, id) = Shadow::attach(process.space()).unwrap();
        *installed += device.fill(process, places.iter().copied());
        (device, id, process.space().clone())
    };
    processes.map(&mut attach).collect()
}

/// Fills devices, makes the operation, and checks the devices. The number of translations is added to
/// `installed`.
fn hear(op: &Op, stage: Stage, write: Write, installed: &mut usize) -> Stage {
    let mut scene = Scene::new(stage, op, design(0, write));
    let devices = devices(&scene, installed);
    let _ = scene.run(op, None);
    for (device, id, space) in devices {
        device.check(&space);
        space.unregister_listener(id);
    }
    scene.end()
}

#[test]
fn every_call_notifies_the_listeners_of_its_changes() {
    let quick = Effort::asked() == Effort::Quick;
    for (number, state) in STATES.iter().enumerate() {
        let mut stage = Stage::new(state);
        let write = write_of(number);
        let mut installed = 0;
        for (nth, op) in each_op().enumerate() {
            if quick && !is_in_quick_run(nth, number) {
                continue;
            }
            stage = hear(op, stage, write, &mut installed);
        }
        assert!(installed > 0, "the devices had translations in the state {number}");
        stage.end();
    }
}
