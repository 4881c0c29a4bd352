//! System V segments at their end (C-71): beside the call that ends one, others attach it or are refused, but
//! nobody attaches what goes.

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

/// A removed segment is mapped anew where it lies, which ends it; another process attaches it.
#[test]
fn c71_a_segment_that_ends_is_attached_by_nobody() {
    explore("remap_file_pages of a removed segment, beside shmat", 60, |locking| {
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
            // Attached before, or at least about to be.
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
