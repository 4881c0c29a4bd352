//! The checks of a swap device, through the engine, which makes its requests.

use super::engine::{failed, has, map, new_space, put};
use super::kernel::Kernel;
use super::report::{Report, require};
use super::suite::{Checked, Suite, not_run};
use alloc::vec::Vec;
use freehold::PAGE_SIZE;
use freehold::call::Advice;
use freehold::counted::Counted;
use freehold::engine::Engine;
use freehold::platform::Platform;
use freehold::space::AddressSpace;
use freehold::swap::{SwapDevice, SwapId};

/// Number of pages that the checks swap out.
const PAGES: u64 = 64;

/// Checks a swap device: takes it into use with the highest priority, swaps pages out and in, and takes it
/// out of use. The device needs at least 128 slots, and no other device may have the highest priority.
///
/// | check | the device |
/// | --- | --- |
/// | `swap::contents` | returns the contents that were written to each slot |
/// | `swap::reused` | returns the new contents of a slot that was discarded and written again |
/// | `swap::off` | gives all pages back when it is taken out of use |
///
/// Call this function like [`engine`](super::engine()).
pub fn swap<P: Platform, K: Kernel<P>>(
    engine: &Counted<Engine<P>>,
    device: impl SwapDevice<P>,
    kernel: &K,
) -> Report {
    let mut suite = Suite::new(kernel);
    let id = engine.swap_on(device, i16::MAX);
    let id = || id.as_ref().copied().map_err(failed("swap_on"));
    suite.check("swap::contents", || contents(engine, id()?));
    suite.check("swap::reused", || reused(engine, id()?));
    suite.check("swap::off", || off(engine, id()?));
    suite.finish()
}

/// Returns a space with pages on the device, and the first of their addresses. Page `n` has the value
/// `first + n`.
fn swapped_out<P: Platform>(
    engine: &Counted<Engine<P>>,
    id: SwapId,
    first: u64,
) -> Result<(Counted<AddressSpace<P>>, u64), super::suite::Stop> {
    let space = new_space(engine)?;
    let at = map(&space, PAGES)?;
    (0..PAGES).try_for_each(|n| put(&space, at + n * PAGE_SIZE, first + n))?;
    space.madvise(at, PAGES * PAGE_SIZE, Advice::PageOut).map_err(failed("madvise(MADV_PAGEOUT)"))?;
    let usage = engine.swap_usage(id);
    if usage.is_none_or(|usage| usage.used == 0) {
        return not_run("no page was swapped out to the device");
    }
    Ok((space, at))
}

/// Checks the values of the pages.
fn are_back<P: Platform>(space: &AddressSpace<P>, at: u64, first: u64) -> Checked {
    (0..PAGES).try_for_each(|n| has(space, at + n * PAGE_SIZE, first + n, "a space that was swapped out"))
}

fn contents<P: Platform>(engine: &Counted<Engine<P>>, id: SwapId) -> Checked {
    let (space, at) = swapped_out(engine, id, 1000)?;
    are_back(&space, at, 1000)?;
    let usage = engine.swap_usage(id);
    require!(usage.is_some_and(|usage| usage.bad == 0), "writes to the device have failed: {usage:?}");
    Ok(())
}

fn reused<P: Platform>(engine: &Counted<Engine<P>>, id: SwapId) -> Checked {
    for round in 0..4 {
        let (space, at) = swapped_out(engine, id, 10_000 * round)?;
        // Every other round frees the slots without a read.
        if round % 2 == 1 {
            are_back(&space, at, 10_000 * round)?;
        }
    }
    Ok(())
}

fn off<P: Platform>(engine: &Counted<Engine<P>>, id: SwapId) -> Checked {
    let (space, at) = swapped_out(engine, id, 5)?;
    let spaces: Vec<_> = [space.clone()].into();
    engine.swap_off(id, || spaces.clone()).map_err(failed("swap_off"))?;
    are_back(&space, at, 5)?;
    require!(engine.swap_usage(id).is_none(), "swap_off succeeded, but the device is in use");
    Ok(())
}
