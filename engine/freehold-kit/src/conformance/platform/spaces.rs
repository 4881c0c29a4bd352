//! Address spaces: flushes, contexts and walks without a lock. The checks make page tables by hand, with
//! the format's functions, so that they choose when an entry changes and when it is flushed.

use super::frames::{free, take};
use super::scene::{AT, Scene, create, free_table};
use crate::conformance::kernel::Kernel;
use crate::conformance::report::require;
use crate::conformance::suite::{Checked, Stage, Stop, not_run, run_two};
use alloc::vec::Vec;
use freehold::PAGE_SIZE;
use freehold::platform::atomic::Ordering::Acquire;
use freehold::platform::{Format, Pfn, Platform};

/// Takes frames and stores the value `n` in the first word of frame `n`.
fn numbered<P: Platform>(platform: &P, count: usize) -> Result<Vec<Pfn>, Stop> {
    let frames = take(platform, count)?;
    for (n, pfn) in frames.iter().enumerate() {
        platform.write_frame(*pfn, 0, &(n as u64).to_ne_bytes());
    }
    Ok(frames)
}

/// The ranges of a flush of one page.
const FLUSHES: [(&str, u64, bool); 3] =
    [("of one page", 1, false), ("of 2,000 pages", 2000, false), ("of the whole space", 1, true)];

/// Runs a check with a new space and numbered frames, and frees them unless the check finds a mistake.
fn with_scene<P: Platform, K: Kernel<P>>(
    platform: &P,
    kernel: &K,
    check: impl FnOnce(&mut Scene<'_, P>, &[Pfn]) -> Checked,
) -> Checked {
    let frames = numbered(platform, 8)?;
    let found = Scene::new(platform).and_then(|mut scene| {
        let found = check(&mut scene, &frames);
        if !matches!(found, Err(Stop::Mistake(_))) {
            scene.end(kernel);
        }
        found
    });
    if !matches!(found, Err(Stop::Mistake(_))) {
        free(platform, &frames);
    }
    found
}

pub fn created<P: Platform>(platform: &P) -> Checked {
    let (root, mmu) = create(platform)?;
    let entries = P::Format::USER_ENTRIES;
    // Acquire: pairs with a release of `space_created`, which publishes a table.
    let filled = (0..entries).find(|n| platform.table(root).entry(*n).load(Acquire) != 0);
    require!(
        filled.is_none(),
        "space_created() fills entry {} of the root table. The {entries} entries below USER_END belong to the \
         engine, which would use the kernel's tables as its own",
        filled.unwrap_or(entries)
    );
    platform.space_ending(&mmu, root);
    drop(mmu);
    free_table(platform, root);
    Ok(())
}

pub fn flush_here<P: Platform, K: Kernel<P>>(platform: &P, kernel: &K) -> Checked {
    with_scene(platform, kernel, |scene, frames| {
        for (name, pages, all) in FLUSHES {
            scene.map(AT, frames[1]);
            scene.sees(kernel, AT, Some(1), "an entry was filled")?;
            scene.unmap(AT);
            scene.flush(AT, pages, all, false);
            scene.sees(
                kernel,
                AT,
                None,
                &alloc::format!("the entry was emptied, and flush {name} returned"),
            )?;
            scene.map(AT, frames[2]);
            scene.sees(kernel, AT, Some(2), "the entry was filled with another frame")?;
            scene.unmap(AT);
            scene.flush(AT, pages, all, false);
        }
        Ok(())
    })
}

pub fn flush_elsewhere<P: Platform, K: Kernel<P>>(platform: &P, kernel: &K) -> Checked {
    with_scene(platform, kernel, |scene, frames| {
        FLUSHES.into_iter().try_for_each(|how| flushes_other_cpu(scene, frames[1], kernel, how))
    })
}

/// The second task uses a translation, and the first one removes it.
fn flushes_other_cpu<P: Platform, K: Kernel<P>>(
    scene: &Scene<'_, P>,
    pfn: Pfn,
    kernel: &K,
    (name, pages, all): (&str, u64, bool),
) -> Checked {
    scene.map(AT, pfn);
    let (shared, stage) = (scene.shared(), Stage::new());
    let first = || {
        stage.wait_for(kernel, 1);
        scene.unmap(AT);
        scene.flush(AT, pages, all, false);
        stage.reach(2);
        Ok(())
    };
    let second = || {
        let before = shared.sees(kernel, AT, Some(1), "an entry was filled");
        stage.reach(1);
        stage.wait_for(kernel, 2);
        before?;
        let what = alloc::format!("another CPU emptied the entry, and its flush {name} returned");
        let after = shared.sees(kernel, AT, None, &what);
        shared.leave(kernel);
        after
    };
    run_two(kernel, first, second)
}

pub fn tables<P: Platform, K: Kernel<P>>(platform: &P, kernel: &K) -> Checked {
    let next = AT + PAGE_SIZE;
    with_scene(platform, kernel, |scene, frames| {
        scene.map(AT, frames[1]);
        scene.map(next, frames[2]);
        scene.sees(kernel, AT, Some(1), "an entry was filled")?;
        // The second page was not accessed, so only the table can be cached.
        let old = scene.replace_table()?;
        scene.sees(
            kernel,
            next,
            None,
            "the table of the page was unlinked, and a flush with `tables_freed` returned",
        )?;
        scene.map(next, frames[3]);
        scene.sees(kernel, next, Some(3), "the page was mapped by another table")?;
        free_table(platform, old);
        Ok(())
    })
}

pub fn contexts<P: Platform, K: Kernel<P>>(platform: &P, kernel: &K) -> Checked {
    // More spaces than a CPU has contexts for.
    const SPACES: usize = 16;
    let frames = numbered(platform, SPACES)?;
    let mut scenes = Vec::new();
    let found = (0..frames.len()).try_for_each(|n| {
        let scene = Scene::new(platform)?;
        scene.map(AT, frames[n]);
        scenes.push(scene);
        Ok(())
    });
    let found = found.and_then(|()| {
        // Two spaces in turn, and then all.
        let mut turns = (0..8).map(|turn| turn % 2).chain(0..scenes.len()).chain((0..scenes.len()).rev());
        let when = "the CPU switched to the space from another space";
        turns.try_for_each(|n| scenes[n].sees(kernel, AT, Some(n as u64), when))
    });
    if !matches!(found, Err(Stop::Mistake(_))) {
        scenes.into_iter().for_each(|scene| scene.end(kernel));
        free(platform, &frames);
    }
    found
}

pub fn reused<P: Platform, K: Kernel<P>>(platform: &P, kernel: &K) -> Checked {
    // More spaces than there are identifiers of eight bits, one after the other.
    (0..300).try_for_each(|turn| {
        with_scene(platform, kernel, |scene, frames| {
            let n = turn % frames.len();
            scene.map(AT, frames[n]);
            scene.sees(kernel, AT, Some(n as u64), "the space was created after the end of other spaces")
        })
    })
}

pub fn walks<P: Platform, K: Kernel<P>>(platform: &P, kernel: &K) -> Checked {
    with_scene(platform, kernel, |scene, frames| {
        scene.map(AT, frames[1]);
        delays_flush(scene, kernel)
    })
}

/// The second task walks the tables without a lock, and the first one flushes them.
fn delays_flush<P: Platform, K: Kernel<P>>(scene: &Scene<'_, P>, kernel: &K) -> Checked {
    let (shared, stage, left) = (scene.shared(), Stage::new(), Stage::new());
    let first = || {
        stage.wait_for(kernel, 1);
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
    run_two(kernel, first, second)
}
