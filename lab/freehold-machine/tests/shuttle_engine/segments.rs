//! The end of System V segments (C-71): while one call destroys a segment, another task attaches it or is
//! refused.
//!
//! The code under test is `file/kinds/segment.rs` and `call/shm.rs`. A segment that is marked as removed is
//! destroyed with its last attachment, and no task attaches a destroyed segment. The scenario accepts two
//! results: the attach and the remapping both succeed, or both fail. The sequential rules are tested in
//! `engine/freehold/tests`, module `shm`.

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

/// remap_file_pages unmaps the only attachment of a removed segment and then maps the segment again. The
/// unmapping destroys the segment. Another process attaches the segment concurrently.
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
            // When remap_file_pages destroyed the segment, the attach was complete or had at least taken its
            // reference.
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
