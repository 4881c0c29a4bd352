//! Tests of the words of slots in one thread: the encoding of each state, and the changes that each state
//! allows. `slot_loom_tests.rs` runs the changes concurrently, and `tests/swap.rs` tests whole devices.

use super::*;
use crate::swap::word::VALUE_BITS;

const PFN: Pfn = Pfn::new((1 << VALUE_BITS) - 1);
const SHADOW: Shadow = Shadow::new(u64::MAX);

/// The record of the only frame.
struct One(Frame);

impl Frames for One {
    fn frame(&self, pfn: Pfn) -> &Frame {
        assert_eq!(pfn, PFN);
        &self.0
    }
}

/// Returns a frame to which the test has the only reference.
fn one() -> One {
    let frame = Frame::new();
    frame.init_run();
    One(frame)
}

/// Returns the states that have a count, with this count.
fn counted(count: u32) -> [State; 7] {
    let cached = |copy| State::Cached { pfn: PFN, count, copy };
    let reading = |waited| State::Reading { pfn: PFN, count, waited };
    let [new, writing, clean, failed] = [Copy::New, Copy::Writing, Copy::Clean, Copy::Failed].map(cached);
    let stored = State::Stored { shadow: SHADOW, count };
    [new, writing, clean, failed, stored, reading(false), reading(true)]
}

#[test]
fn every_state_is_encoded_in_a_word_of_its_own() {
    let unused = [State::Free, State::Reserved, State::Bad];
    let mut words: alloc::vec::Vec<_> = [1, 2, MAX_COUNT].into_iter().flat_map(counted).collect();
    words.extend(unused);
    for state in &words {
        assert_eq!(State::of(state.word()), *state);
    }
    let mut words: alloc::vec::Vec<_> = words.into_iter().map(State::word).collect();
    words.sort_unstable();
    assert!(words.is_sorted_by(|a, b| a < b), "two states have the same word");
    assert_eq!(State::Free.word(), 0);
}

#[test]
fn count_of_swap_entries_does_not_overflow() {
    for state in counted(MAX_COUNT - 1) {
        let (word, frames) = (AtomicU64::new(state.word()), one());
        let slot = Slot(&word);
        assert_eq!(slot.duplicate(), Ok(()));
        assert_eq!(slot.duplicate(), Err(DuplicateError::TooManyEntries));
        assert_eq!(slot.state(), state.with_count(MAX_COUNT));
        assert_eq!(slot.release(&frames), (false, Rest::default()));
        assert_eq!(slot.state(), state);
    }
    for state in [State::Free, State::Reserved, State::Bad] {
        assert_eq!(Slot(&AtomicU64::new(state.word())).duplicate(), Err(DuplicateError::NotInUse));
    }
}

#[test]
fn last_release_leaves_a_slot_in_use_only_while_a_device_works() {
    for state in counted(1) {
        let (word, frames) = (AtomicU64::new(state.word()), one());
        let cached = state.frame().map(|(pfn, _)| pfn);
        if cached.is_some() {
            assert!(frames.0.enter_swap_cache());
        }
        let (after, unused) = match state {
            State::Cached { copy: Copy::Writing, .. } | State::Reading { .. } => (state.with_count(0), None),
            State::Cached { copy: Copy::Failed, .. } => (State::Bad, Some(Unused::Bad)),
            _ => (State::Reserved, Some(Unused::Free)),
        };
        let rest = Rest { unused, frame: cached, wake: false };
        assert_eq!(Slot(&word).release(&frames), (true, rest));
        assert_eq!(Slot(&word).state(), after);
        // The frame may enter another cache.
        assert!(frames.0.enter_swap_cache());
    }
}

#[test]
fn write_begins_once_and_reads_only_of_stored_pages() {
    for state in counted(2) {
        let (word, frames) = (AtomicU64::new(state.word()), one());
        let slot = Slot(&word);
        let is_new = matches!(state, State::Cached { copy: Copy::New, .. });
        assert_eq!(slot.begin_write(&frames).is_some(), is_new);
        assert_eq!(slot.begin_write(&frames), None);
        let (word, frames) = (AtomicU64::new(state.word()), one());
        let slot = Slot(&word);
        let is_stored = matches!(state, State::Stored { .. });
        assert_eq!(slot.begin_read(PFN, &frames), is_stored.then_some(SHADOW));
        assert_eq!(frames.0.refs(), if is_stored { 3 } else { 1 });
        assert_eq!(slot.begin_read(PFN, &frames), None);
    }
}

#[test]
fn only_clean_pages_are_dropped() {
    for state in counted(2) {
        let (word, frames) = (AtomicU64::new(state.word()), one());
        assert!(frames.0.enter_swap_cache());
        let is_clean = matches!(state, State::Cached { copy: Copy::Clean, .. });
        assert_eq!(Slot(&word).is_clean(), is_clean);
        assert_eq!(Slot(&word).drop_clean(SHADOW, &frames), is_clean.then_some(PFN));
        let after = if is_clean { State::Stored { shadow: SHADOW, count: 2 } } else { state };
        assert_eq!(Slot(&word).state(), after);
    }
}

#[test]
fn frame_that_is_in_a_cache_is_not_inserted() {
    let (word, frames) = (AtomicU64::new(State::Reserved.word()), one());
    frames.0.enter_cache();
    assert!(!Slot(&word).insert(PFN, &frames));
    assert_eq!((Slot(&word).state(), frames.0.refs()), (State::Reserved, 1));
}
