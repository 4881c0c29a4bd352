//! Frames: their numbers and records, blocks, runs, and the direct map.
#![expect(unsafe_code, reason = "frees the frames that the checks allocated")]

use crate::conformance::report::require;
use crate::conformance::suite::{Checked, Stop, not_run};
use alloc::vec;
use alloc::vec::Vec;
use core::ptr;
use freehold::platform::{Format, FramePurpose, FrameRequest, Level, Pfn, Platform};
use freehold::{PAGE_SHIFT, PAGE_SIZE};

/// Number of frames that a check takes at a time.
const COUNT: usize = 64;
/// Number of frames of one call.
const BATCH: usize = 16;

/// Allocates up to `count` frames, some at a time.
///
/// # Errors
/// Stops the check if the platform returns more frames than it was asked for, or has fewer than eight.
pub fn take<P: Platform>(platform: &P, count: usize) -> Result<Vec<Pfn>, Stop> {
    let mut frames = vec![Pfn::new(u64::MAX); count];
    let mut taken = 0;
    while taken < count {
        let end = count.min(taken + BATCH);
        let request = FrameRequest::pages(FramePurpose::Anonymous);
        let got = platform.alloc_frames(&request, &mut frames[taken..end]);
        require!(got <= end - taken, "alloc_frames was asked for {} frames and returned {got}", end - taken);
        taken += got;
        if got == 0 {
            break;
        }
    }
    frames.truncate(taken);
    if taken < count.min(8) {
        free(platform, &frames);
        return not_run("the platform has fewer than 8 free frames");
    }
    Ok(frames)
}

/// Frees frames that a check allocated.
pub fn free<P: Platform>(platform: &P, frames: &[Pfn]) {
    // SAFETY: the frames were allocated by the caller, and nothing refers to them.
    unsafe { platform.free_frames(frames) };
}

/// Checks that a frame exists, is free and fits the format.
fn is_sound<P: Platform>(platform: &P, pfn: Pfn) -> Checked {
    require!(platform.has_frame(pfn), "{pfn:?} was allocated, but has_frame({pfn:?}) is false");
    let bits = P::Format::PFN_BITS;
    require!(
        pfn.get() >> bits == 0,
        "{pfn:?} was allocated, but the format has only {bits} bits for its number"
    );
    let frames = platform.frames();
    require!(
        frames.is_empty() || frames.contains(&pfn),
        "{pfn:?} was allocated, but frames() returns {frames:?}, which does not contain it"
    );
    let record = platform.frame(pfn);
    require!(record.is_free(), "{pfn:?} was allocated, but its record says that it is in use");
    require!(ptr::eq(record, platform.frame(pfn)), "frame({pfn:?}) returns different records in two calls");
    let (node, nodes) = (platform.node_of(pfn), platform.nodes());
    require!(node < nodes, "node_of({pfn:?}) is {node}, but nodes() is {nodes}");
    Ok(())
}

/// Checks that no frame is in the list twice.
fn are_distinct(frames: &[Pfn], how: &str) -> Checked {
    let mut sorted = frames.to_vec();
    sorted.sort();
    match sorted.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => {
            Err(alloc::format!("{:?} was allocated twice{how}: it was still in use", pair[0]).into())
        }
        None => Ok(()),
    }
}

pub fn numbers<P: Platform>(platform: &P) -> Checked {
    let frames = take(platform, COUNT)?;
    frames.iter().try_for_each(|pfn| is_sound(platform, *pfn))?;
    are_distinct(&frames, "")?;
    for (first, second) in frames.iter().zip(&frames[1..]) {
        require!(
            !ptr::eq(platform.frame(*first), platform.frame(*second)),
            "frame({first:?}) and frame({second:?}) return the same record"
        );
    }
    require!(
        !platform.has_frame(Pfn::new(u64::MAX >> PAGE_SHIFT)),
        "has_frame is true for the number of no frame"
    );
    free(platform, &frames);
    Ok(())
}

pub fn no_frame_twice<P: Platform>(platform: &P) -> Checked {
    let mut held = take(platform, COUNT)?;
    // Frees a part, and allocates again while the other part is in use.
    for (turn, part) in [COUNT / 2, 1, BATCH + 1].into_iter().enumerate() {
        are_distinct(&held, "")?;
        let kept = held.len().saturating_sub(part);
        free(platform, &held.split_off(kept));
        held.extend(take(platform, part.max(8))?);
        are_distinct(&held, &alloc::format!(", after {part} frames were freed (turn {turn})"))?;
    }
    free(platform, &held);
    Ok(())
}

pub fn direct_map<P: Platform>(platform: &P) -> Checked {
    let frames = take(platform, COUNT)?;
    let last = PAGE_SIZE as usize - 8;
    for offset in [0, last] {
        for pfn in &frames {
            platform.write_frame(*pfn, offset, &pfn.get().to_ne_bytes());
        }
        for pfn in &frames {
            let mut bytes = [0; 8];
            platform.read_frame(*pfn, offset, &mut bytes);
            let found = u64::from_ne_bytes(bytes);
            require!(
                found == pfn.get(),
                "every frame got its number at offset {offset}, but {pfn:?} has {found:#x}: write_frame and \
                 read_frame reach the memory of another frame, or none"
            );
        }
    }
    free(platform, &frames);
    Ok(())
}

pub fn blocks<P: Platform>(platform: &P) -> Checked {
    let mut found = false;
    for level in [Level::Pmd, Level::Pud].into_iter().filter(|level| *level <= P::Format::MAX_LEAF) {
        let mut block = [Pfn::new(u64::MAX)];
        let request = FrameRequest::blocks(FramePurpose::Anonymous, level);
        match platform.alloc_frames(&request, &mut block) {
            0 => continue,
            1 => found = true,
            more => {
                return Err(alloc::format!("alloc_frames was asked for a block and returned {more}").into());
            }
        }
        let (first, frames, order) = (block[0], level.frames(), request.order);
        require!(
            first.is_aligned(level),
            "the block of order {order} at {first:?} does not begin at a multiple of its {frames} frames"
        );
        for n in [0, 1, frames / 2, frames - 1] {
            is_sound(platform, first.add(n))?;
        }
        let singles = take(platform, BATCH)?;
        let inside = singles.iter().find(|pfn| (first.get()..first.get() + frames).contains(&pfn.get()));
        if let Some(pfn) = inside {
            return Err(alloc::format!(
                "{pfn:?} was allocated twice: it is in the block of order {order} at {first:?}"
            )
            .into());
        }
        free(platform, &singles);
        free_run(platform, first, frames);
    }
    if found { Ok(()) } else { not_run("the platform has no blocks, or none is free now") }
}

pub fn runs<P: Platform>(platform: &P) -> Checked {
    let request = FrameRequest::pages(FramePurpose::NoMmu);
    let mut held: Vec<Pfn> = Vec::new();
    for frames in [1, 3, 8] {
        let Some(first) = platform.alloc_run(&request, frames) else {
            free(platform, &held);
            return not_run("the platform has no runs, or none is free now");
        };
        require!(first != Pfn::new(0), "alloc_run returned frame 0, which is the address of no mapping");
        for pfn in (0..frames).map(|n| first.add(n)) {
            is_sound(platform, pfn)?;
            held.push(pfn);
        }
    }
    held.extend(take(platform, BATCH)?);
    are_distinct(&held, " by alloc_run")?;
    free(platform, &held);
    Ok(())
}

/// Frees consecutive frames.
pub fn free_run<P: Platform>(platform: &P, first: Pfn, frames: u64) {
    let mut part = [Pfn::new(0); COUNT];
    for start in (0..frames).step_by(COUNT) {
        let count = (frames - start).min(COUNT as u64) as usize;
        part.iter_mut().take(count).zip(start..).for_each(|(pfn, n)| *pfn = first.add(n));
        free(platform, &part[..count]);
    }
}

/// All frames of the platform that were free. Each frame has the number of the next one in its first word, so
/// the list needs no memory.
pub struct AllFrames(Option<Pfn>);

/// Stands for the end of the list.
const END: u64 = u64::MAX;

impl AllFrames {
    /// Allocates all free frames.
    pub fn take<P: Platform>(platform: &P) -> Self {
        let (mut first, mut part) = (END, [Pfn::new(0); COUNT]);
        loop {
            let got = platform.alloc_frames(&FrameRequest::pages(FramePurpose::Anonymous), &mut part);
            for pfn in &part[..got] {
                platform.write_frame(*pfn, 0, &first.to_ne_bytes());
                first = pfn.get();
            }
            if got == 0 {
                return AllFrames((first != END).then(|| Pfn::new(first)));
            }
        }
    }

    /// Frees the frames.
    pub fn free<P: Platform>(self, platform: &P) {
        let mut next = self.0;
        while let Some(pfn) = next {
            let mut number = [0; 8];
            platform.read_frame(pfn, 0, &mut number);
            let number = u64::from_ne_bytes(number);
            next = (number != END).then(|| Pfn::new(number));
            free(platform, &[pfn]);
        }
    }
}
