//! What scenes of one kind of memory have in common, one after the other: a machine, its engine, and a
//! process that keeps what the engine has in store, so that every allocation asks for memory that can fail.

use super::{
    board::{Board, PAGES},
    states::State,
    support::{failure::Failure, heap::last_refused, *},
};
use freehold::{
    PageIndex,
    file::{Frames, Segment, Special},
    platform::{FramePurpose, FrameRequest},
    space::Write,
};
use std::sync::Arc;

/// VMAs are made many at a time: blocks of at least this size; nodes of the tree are smaller.
const CHUNK: usize = 2048;
/// The process that keeps them shall not have many more.
const MOST: u64 = 500;

pub struct Stage {
    pub state: &'static State,
    /// The operation at hand.
    pub doing: &'static str,
    pub world: World,
    pub segment: Counted<Segment<Machine>>,
    pub vdso: Counted<Special<Machine>>,
    pub board: Arc<Board>,
    pub device: Counted<File<Machine>>,
    /// Has pages of its own at [`HOG`].
    pub hog: Process,
    cpu: Vcpu,
    /// The machine's, and nobody's else.
    frame: Pfn,
    /// Frames, tables and spaces in use between scenes.
    in_use: (usize, usize, usize),
}

/// Where the other process has pages.
pub const HOG: u64 = BASE + (1 << 32);

impl Stage {
    pub fn new(state: &'static State) -> Self {
        let world = (state.world)();
        let segment = Segment::new(world.engine(), 7, 4 * PAGE).unwrap();
        let vdso = Special::new(world.engine(), Frames::new("[vdso]", &[]).unwrap()).unwrap();
        let board = Board::new(&world.machine);
        let device = board.open(&world);
        // A change of a part takes other memory, and does without.
        let hog = world.process(Locking { write: Write::Whole, ..Locking::default() });
        let mut cpu = world.machine.cpu(1);
        anon(&hog, HOG, 4);
        fill(&hog, &mut cpu, HOG, 4, 70);
        let mut frame = [Pfn::new(0)];
        assert_eq!(world.machine.alloc_frames(&FrameRequest::pages(FramePurpose::File), &mut frame), 1);
        let [frame] = frame;
        let mut stage = Stage {
            state,
            world,
            segment,
            vdso,
            board,
            device,
            hog,
            cpu,
            frame,
            in_use: (0, 0, 0),
            doing: "",
        };
        stage.use_up_stores();
        stage.in_use = stage.count();
        stage
    }

    /// Ready for the next scene.
    pub fn renew(&mut self) {
        if self.hog.counts().map_count > MOST || self.world.engine().failed_frames() > 0 {
            let (state, doing) = (self.state, self.doing);
            core::mem::replace(self, Stage::new(state)).end();
            self.doing = doing;
        }
        for page in 0..PAGES {
            self.world.machine.write_frame(self.board.frame(page), 0, &Board::number(page).to_le_bytes());
        }
        self.board.manner().splits = true;
        self.board.manner().whole = None;
    }

    /// Nothing that the engine has in store may be there for a call.
    pub fn use_up_stores(&self) {
        self.give_frames_back();
        let mut at = HOG + (1 << 30) + self.hog.counts().map_count * PAGE;
        let mut take = || {
            let prot = if (at / PAGE).is_multiple_of(2) { R } else { RW };
            at += PAGE;
            self.hog.mmap(at, PAGE, prot, ANON | MapFlags::FIXED, None, 0)
        };
        loop {
            Failure::Heap.arm(1);
            let taken = take();
            if Failure::Heap.stop() > 0 {
                assert!(taken.is_err());
                if last_refused() >= CHUNK {
                    return;
                }
                // A node of its own tree.
                take().unwrap();
            }
        }
    }

    /// Empties this CPU's cache of frames: what is done before a frame is looked for that might be there.
    fn give_frames_back(&self) {
        let in_use = self.world.engine().soft_offline(self.frame);
        assert!(in_use.is_err(), "a frame of the machine's was taken from it");
    }

    fn count(&self) -> (usize, usize, usize) {
        let in_use = self.world.machine.accounting();
        (in_use.frames, in_use.tables, in_use.spaces)
    }

    /// All that the scene had is back; but memory that has failed, and what other processors keep of what
    /// they were given.
    pub fn check_that_all_is_back(&mut self) {
        if self.segment.is_removed()
            || (0..4).any(|index| self.segment.mapping().has_page(PageIndex::new(index)))
        {
            self.segment = Segment::new(self.world.engine(), 7, 4 * PAGE).unwrap();
        }
        self.give_frames_back();
        let failed = self.world.engine().failed_frames();
        let (frames, tables, spaces) = self.count();
        let what = || format!("{} of {}", self.doing, self.state.name);
        let kept = frames as i64 - self.in_use.0 as i64;
        // A pager's thread is another processor, which keeps some of the frames that it was given; and a huge
        // page of which a frame has failed leaves its pool. Then they are counted when the stage
        // ends.
        assert!(
            kept == 0 || self.state.features.is_some() || failed > 0,
            "{}: {kept} frames were leaked",
            what()
        );
        assert_eq!((tables, spaces), (self.in_use.1, self.in_use.2), "{}: tables and spaces", what());
    }

    pub fn end(self) {
        let failed = self.world.engine().failed_frames();
        let Stage { world: World { machine, engine }, segment, vdso, board, device, hog, cpu, frame, .. } =
            self;
        drop((segment, vdso, device, hog, cpu));
        board.assert_closed();
        drop((board, engine));
        // SAFETY: from the machine, and nobody has used it.
        unsafe { machine.free_frames(&[frame]) };
        let left = machine.accounting();
        assert_eq!((left.frames as u64, left.tables, left.spaces), (failed, 0, 0), "{left}");
    }

    /// Something went wrong: what is left is not looked at.
    pub fn abandon(self) {
        core::mem::forget(self);
    }
}
