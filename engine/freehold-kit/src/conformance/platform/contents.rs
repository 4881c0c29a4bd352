//! Contents of frames: zeroes, writes and copies change exactly the named bytes.

use super::frames::{free, take};
use crate::conformance::report::require;
use crate::conformance::suite::Checked;
use alloc::vec;
use alloc::vec::Vec;
use freehold::PAGE_SIZE;
use freehold::platform::{Format, Pfn, Platform};

const PAGE: usize = PAGE_SIZE as usize;

/// Offsets and lengths: at both ends of a frame, across words, and whole frames.
const PARTS: [(usize, usize); 12] = [
    (0, 1),
    (1, 1),
    (7, 2),
    (0, 8),
    (3, 13),
    (100, 300),
    (255, 258),
    (PAGE - 1, 1),
    (PAGE - 9, 9),
    (PAGE / 2 - 3, 600),
    (0, PAGE),
    (8, 0),
];

/// Returns a page of bytes that repeat at no power of two.
fn pattern(seed: usize) -> Vec<u8> {
    (0..PAGE).map(|n| ((n % 251) * 7 + n / 251 + seed * 89) as u8).collect()
}

fn read<P: Platform>(platform: &P, pfn: Pfn) -> Vec<u8> {
    let mut page = vec![0xa5; PAGE];
    platform.read_frame(pfn, 0, &mut page);
    page
}

/// Compares a frame with the bytes that it must have.
fn has<P: Platform>(platform: &P, pfn: Pfn, wanted: &[u8], after: &str) -> Checked {
    let found = read(platform, pfn);
    match (0..PAGE).find(|n| found[*n] != wanted[*n]) {
        None => Ok(()),
        Some(n) => Err(alloc::format!(
            "after {after}, byte {n} of {pfn:?} must be {:#x}, but is {:#x}",
            wanted[n],
            found[n]
        )
        .into()),
    }
}

pub fn zero<P: Platform>(platform: &P) -> Checked {
    let frames = take(platform, 24)?;
    let full = pattern(1);
    frames.iter().for_each(|pfn| platform.write_frame(*pfn, 0, &full));
    let (zeroed, kept) = frames.split_at(frames.len() / 2);
    zeroed.iter().for_each(|pfn| platform.zero_frame(*pfn));
    for pfn in zeroed {
        has(platform, *pfn, &[0; PAGE], "zero_frame")?;
    }
    for pfn in kept {
        has(platform, *pfn, &full, "zero_frame of another frame")?;
    }
    // Two frames in a row, if the platform has returned such frames.
    if let Some(pair) = kept.windows(2).find(|pair| pair[1] == pair[0].add(1)) {
        platform.zero_frames(pair[0], 2);
        has(platform, pair[0], &[0; PAGE], "zero_frames")?;
        has(platform, pair[1], &[0; PAGE], "zero_frames")?;
    }
    free(platform, &frames);
    Ok(())
}

pub fn write<P: Platform>(platform: &P) -> Checked {
    let frames = take(platform, 8)?;
    let (pfn, other) = (frames[0], frames[1]);
    let (old, new, rest) = (pattern(2), pattern(3), pattern(4));
    platform.write_frame(other, 0, &rest);
    for (offset, len) in PARTS {
        platform.write_frame(pfn, 0, &old);
        platform.write_frame(pfn, offset, &new[..len]);
        let mut wanted = old.clone();
        wanted[offset..offset + len].copy_from_slice(&new[..len]);
        has(platform, pfn, &wanted, &alloc::format!("write_frame of {len} bytes at {offset}"))?;
        has(
            platform,
            other,
            &rest,
            &alloc::format!("write_frame of {len} bytes at {offset} of another frame"),
        )?;
        let mut out = vec![0; len];
        platform.read_frame(pfn, offset, &mut out);
        require!(
            out == new[..len],
            "read_frame of {len} bytes at {offset} returns other bytes than write_frame wrote"
        );
    }
    if !P::Format::COHERENT_FETCH {
        // The function has no default that works.
        platform.publish_code(pfn, 1);
    }
    free(platform, &frames);
    Ok(())
}

pub fn copy<P: Platform>(platform: &P) -> Checked {
    let frames = take(platform, 24)?;
    let (from, to) = (frames[0], frames[1]);
    let (source, old) = (pattern(5), pattern(6));
    platform.write_frame(from, 0, &source);
    platform.write_frame(to, 0, &old);
    platform.copy_frame(to, from);
    has(platform, to, &source, "copy_frame to it")?;
    has(platform, from, &source, "copy_frame from it")?;
    for (to_offset, len) in PARTS {
        for from_offset in [0, 1, 8, PAGE - len] {
            if from_offset + len > PAGE {
                continue;
            }
            platform.write_frame(to, 0, &old);
            platform.copy_part((to, to_offset), (from, from_offset), len);
            let mut wanted = old.clone();
            wanted[to_offset..to_offset + len].copy_from_slice(&source[from_offset..from_offset + len]);
            let after = alloc::format!("copy_part of {len} bytes from {from_offset} to {to_offset}");
            has(platform, to, &wanted, &after)?;
        }
    }
    let pairs: Vec<&[Pfn]> = frames.windows(2).filter(|pair| pair[1] == pair[0].add(1)).collect();
    if let (Some(first), Some(last)) = (pairs.first(), pairs.last())
        && last[0].get().abs_diff(first[0].get()) > 1
    {
        platform.write_frame(first[0], 0, &source);
        platform.write_frame(first[1], 0, &old);
        platform.copy_frames(last[0], first[0], 2);
        has(platform, last[0], &source, "copy_frames to it")?;
        has(platform, last[1], &old, "copy_frames to the frame before it")?;
    }
    free(platform, &frames);
    Ok(())
}
