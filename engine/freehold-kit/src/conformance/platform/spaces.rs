//! Address spaces: flushes, contexts and walks without a lock. The checks make page tables by hand, with
//! the format's functions, so that they choose when an entry changes and when it is flushed.

use super::frames::{free, take};
use super::scene::{AT, Scene};
use crate::conformance::kernel::Kernel;
use crate::conformance::report::require;
use crate::conformance::suite::{Checked, Stage, not_run, run_two};
use alloc::vec::Vec;
use freehold::PAGE_SIZE;
use freehold::platform::{Pfn, Platform};

/// Takes frames and stores the value `n` in the first word of frame `n`.
fn numbered<P: Platform>(platform: &P, count: usize) -> Result<Vec<Pfn>, crate::conformance::suite::Stop> {
    let frames = take(platform, count)?;
    for (n, pfn) in frames.iter().enumerate() {
        platform.write_frame(*pfn, 0, &(n as u64).to_ne_bytes());
    }
    Ok(frames)
}

/// The ranges of a flush of one page.
const FLUSHES: [(&str, u64, bool); 3] =
    [("of one page", 1, false), ("of 2,000 pages", 2000, false), ("of the whole space", 1, true)];

pub fn flush_here<P: Platform, K: Kernel<P>>(platform: &P, kernel: &K) -> Checked {
    let frames = numbered(platform, 8)?;
    let scene = Scene::new(platform)?;
    for (name, pages, all) in FLUSHES {
        scene.map(AT, frames[1]);
        scene.sees(kernel, AT, Some(1), "an entry was filled")?;
        scene.unmap(AT);
        scene.flush(AT, pages, all, false);
        scene.sees(kernel, AT, None, &alloc::format!("the entry was emptied, and flush {name} returned"))?;
        scene.map(AT, frames[2]);
        scene.sees(kernel, AT, Some(2), "the entry was filled with another frame")?;
        scene.unmap(AT);
        scene.flush(AT, pages, all, false);
    }
    scene.end(kernel);
    free(platform, &frames);
    Ok(())
}

pub fn flush_elsewhere<P: Platform, K: Kernel<P>>(platform: &P, kernel: &K) -> Checked {
    let frames = numbered(platform, 8)?;
    let scene = Scene::new(platform)?;
    let shared = scene.shared();
    for (name, pages, all) in FLUSHES {
        scene.map(AT, frames[1]);
        let stage = Stage::new();
        let first = || {
            stage.wait_for::<P>(1);
            scene.unmap(AT);
            scene.flush(AT, pages, all, false);
            stage.reach(2);
            Ok(())
        };
        let second = || {
            let before = shared.sees(kernel, AT, Some(1), "an entry was filled");
            stage.reach(1);
            stage.wait_for::<P>(2);
            before?;
            let what = alloc::format!("another CPU emptied the entry, and its flush {name} returned");
            let after = shared.sees(kernel, AT, None, &what);
            shared.leave(kernel);
            after
        };
        run_two(kernel, first, second)?;
    }
    scene.end(kernel);
    free(platform, &frames);
    Ok(())
}

pub fn tables<P: Platform, K: Kernel<P>>(platform: &P, kernel: &K) -> Checked {
    let frames = numbered(platform, 8)?;
    let mut scene = Scene::new(platform)?;
    let next = AT + PAGE_SIZE;
    scene.map(AT, frames[1]);
    scene.map(next, frames[2]);
    scene.sees(kernel, AT, Some(1), "an entry was filled")?;
    // The second page was not accessed, so only the table can be cached.
    let old = scene.replace_table()?;
    scene.flush(AT, 2, false, true);
    scene.sees(
        kernel,
        next,
        None,
        "the table of the page was unlinked, and a flush with `tables_freed` returned",
    )?;
    scene.map(next, frames[3]);
    scene.sees(kernel, next, Some(3), "the page was mapped by another table")?;
    scene.free_table(old);
    scene.unmap(next);
    scene.flush(AT, 2, false, false);
    scene.end(kernel);
    free(platform, &frames);
    Ok(())
}

pub fn contexts<P: Platform, K: Kernel<P>>(platform: &P, kernel: &K) -> Checked {
    let frames = numbered(platform, 16)?;
    let mut scenes = Vec::new();
    for pfn in &frames {
        let scene = Scene::new(platform)?;
        scene.map(AT, *pfn);
        scenes.push(scene);
    }
    // Two spaces in turn, and then more spaces than a CPU has contexts for.
    let turns = (0..8).map(|turn| turn % 2).chain(0..scenes.len()).chain((0..scenes.len()).rev());
    for n in turns {
        scenes[n].sees(kernel, AT, Some(n as u64), "the CPU switched to the space from another space")?;
    }
    for scene in scenes {
        scene.unmap(AT);
        scene.flush(AT, 1, false, false);
        scene.end(kernel);
    }
    free(platform, &frames);
    Ok(())
}

pub fn reused<P: Platform, K: Kernel<P>>(platform: &P, kernel: &K) -> Checked {
    let frames = numbered(platform, 8)?;
    let count = frames.len();
    // More spaces than there are identifiers of eight bits, one after the other.
    for turn in 0..300 {
        let scene = Scene::new(platform)?;
        scene.map(AT, frames[turn % count]);
        let value = (turn % count) as u64;
        scene.sees(kernel, AT, Some(value), "the space was created after the end of other spaces")?;
        scene.unmap(AT);
        scene.flush(AT, 1, false, false);
        scene.end(kernel);
    }
    free(platform, &frames);
    Ok(())
}

pub fn walks<P: Platform, K: Kernel<P>>(platform: &P, kernel: &K) -> Checked {
    let frames = numbered(platform, 8)?;
    let scene = Scene::new(platform)?;
    let shared = scene.shared();
    scene.map(AT, frames[1]);
    let (stage, left) = (Stage::new(), Stage::new());
    let first = || {
        stage.wait_for::<P>(1);
        scene.flush(AT, 1, false, true);
        require!(
            stage.is_reached(3) || left.is_reached(1),
            "flush with `tables_freed` returned while a function ran in walk_tables on another CPU"
        );
        Ok(())
    };
    let second = || {
        // On many platforms only a CPU that runs the space may walk its tables.
        let loaded = shared.sees(kernel, AT, Some(1), "an entry was filled");
        let walked = shared.walk_tables(|| {
            stage.reach(1);
            // No call of the host: interrupts may have to stay off in a walk.
            (0..20_000).for_each(|_| core::hint::spin_loop());
            left.reach(1);
        });
        stage.reach(3);
        shared.leave(kernel);
        loaded?;
        match walked {
            Some(()) => Ok(()),
            None => not_run("the platform supports no walks without a lock (walk_tables returns None)"),
        }
    };
    let found = run_two(kernel, first, second);
    scene.unmap(AT);
    scene.flush(AT, 1, false, false);
    scene.end(kernel);
    free(platform, &frames);
    found
}
