//! The end of System V segments (C-71): concurrently with the call that destroys a segment, other tasks
//! attach it or are refused. No task attaches a destroyed segment.

use crate::{
    explore::{explore, thread},
    scene::{PAGE, Scene, page},
};
use freehold::{
    call::ShmFlags,
    error::{RemapFilePagesError, ShmatError},
    file::Segment,
    space::{MapFlags, Prot},
};

const PAGES: u64 = 2;
const KEY: u32 = 7;

/// remap_file_pages maps a removed segment again at its address, which destroys the segment. Another process
/// attaches the segment concurrently.
#[test]
fn c71_destroyed_segment_cannot_be_attached() {
    explore("remap_file_pages of a removed segment concurrent with shmat", 60, |locking| {
        let scene = Scene::new(locking);
        let other = scene.another();
        let segment = Segment::new(&scene.engine, KEY, PAGES * PAGE).expect("memory");
        scene.process.shmat(&segment, page(0), ShmFlags::empty()).expect("attached");
        segment.remove();
        let mut attached = Err(ShmatError::Removed);
        let mut mapped = Ok(());
        thread::scope(|scope| {
            scope.spawn(|| attached = other.shmat(&segment, page(0), ShmFlags::empty()));
            scope.spawn(|| {
                let process = &scene.process;
                mapped =
                    process.remap_file_pages(page(0), PAGES * PAGE, Prot::empty(), 0, MapFlags::NONBLOCK);
            });
        });
        match (attached, mapped) {
            // The attach was complete before remap_file_pages destroyed the segment, or at least had taken
            // its reference.
            (Ok(_), Ok(())) => {
                other.shmdt(page(0)).expect("attached");
                scene.process.shmdt(page(0)).expect("attached");
            }
            (Err(ShmatError::Removed), Err(RemapFilePagesError::Invalid)) => scene.assert_unmapped(0..PAGES),
            mixed => panic!("{mixed:?}"),
        }
        assert!(segment.is_destroyed());
        drop(segment);
        drop(other);
        scene.assert_empty();
        scene.end();
    });
}
