//! The part of a scene that is used again for the next scene with the same kind of memory: a world with empty
//! caches, a segment, a special mapping and a board. [`Stage::renewed`] resets what the last operation may
//! have changed, and replaces a world that has become slow. A new object here must be reset there and dropped
//! in [`Stage::end`].

use super::{
    board::{Board, PAGES},
    states::State,
    support::{scarce::ScarceWorld, *},
};
use freehold::{
    PageIndex,
    file::{Frames, Segment, Special},
};
use std::{ops::Deref, sync::Arc};

/// A world and the objects that the scenes with one kind of memory share.
pub struct Stage {
    pub state: &'static State,
    scarce: ScarceWorld,
    pub segment: Counted<Segment<Machine>>,
    pub vdso: Counted<Special<Machine>>,
    pub board: Arc<Board>,
    pub device: Counted<File<Machine>>,
}

impl Deref for Stage {
    type Target = ScarceWorld;
    fn deref(&self) -> &ScarceWorld {
        &self.scarce
    }
}

/// Address of four pages that the stage maps in the hog (`support/scarce.rs`).
pub const HOG: u64 = BASE + (1 << 32);

impl Stage {
    pub fn new(state: &'static State) -> Self {
        let mut scarce = ScarceWorld::new((state.world)());
        let world = &scarce.world;
        let segment = Segment::new(world.engine(), 7, 4 * PAGE).unwrap();
        let vdso = Special::new(world.engine(), Frames::new("[vdso]", &[]).unwrap()).unwrap();
        let board = Board::new(&world.machine);
        let device = board.open(world);
        anon(&scarce.hog, HOG, 4);
        fill(&scarce.hog, &mut scarce.cpu, HOG, 4, 70);
        // The pages stay when a scene reclaims memory.
        scarce.hog.mlock(HOG, 4 * PAGE).unwrap();
        scarce.use_up(0);
        scarce.note_use();
        Stage { state, scarce, segment, vdso, board, device }
    }

    /// Prepares the stage for the next scene.
    pub fn renewed(self) -> Self {
        let stage = if self.is_worn() {
            let state = self.state;
            self.end();
            Stage::new(state)
        } else {
            self
        };
        for page in 0..PAGES {
            let frame = stage.board.frame(page);
            stage.world.machine.write_frame(frame, 0, &Board::number(page).to_le_bytes());
        }
        stage.board.driver_mode().splits = true;
        stage.board.driver_mode().whole = None;
        stage
    }

    /// Empties the caches of the engine before a call, so that every allocation of the call reaches the
    /// allocator.
    pub fn use_up_stores(&mut self) {
        self.scarce.use_up(0);
    }

    /// Checks that all memory of the scene is free.
    pub fn check_that_all_is_back(&mut self, doing: &str) {
        if self.segment.is_removed()
            || (0..4).any(|index| self.segment.mapping().has_page(PageIndex::new(index)))
        {
            self.segment = Segment::new(self.world.engine(), 7, 4 * PAGE).unwrap();
        }
        // The thread of a pager runs on another CPU, whose cache keeps some of the freed frames. A huge page
        // with a failed frame leaves its pool.
        let may_stay = self.state.features.is_some() || self.world.engine().failed_frames() > 0;
        self.scarce.check_that_all_is_back(may_stay, || format!("{doing} of {}", self.state.name));
    }

    pub fn end(self) {
        let Stage { scarce, segment, vdso, board, device, .. } = self;
        drop((segment, vdso, device));
        board.assert_closed();
        drop(board);
        scarce.end();
    }
}
