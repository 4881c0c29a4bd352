//! The comparisons of the model, the engine and the running kernel, in one program: `cargo test --package
//! freehold-model-tests --test model`.
//!
//! Each file compares two or three subjects with calls from one source: recorded cases, drawings, random
//! calls, small layouts, arbitrary bytes. A source of calls has a file of its own: `cases.rs`, `lines.rs`
//! (drawings), `differential.rs`, `engine.rs` and `places.rs` (random calls), `merges.rs` (layouts),
//! `properties.rs` and `wild.rs` (bytes), `pools.rs` (huge pages of pools). `histories.rs` tests the search for
//! an order of concurrent calls. `support` has the designs and the
//! numbers of calls. Tests against the kernel run only where the environment permits it, and otherwise print
//! SKIPPED and pass. A difference is printed as a short list of calls; add it as a file to
//! `lab/freehold-model/cases`, and then find out which side is wrong.

mod cases;
mod differential;
mod engine;
mod histories;
mod lines;
mod merges;
mod places;
mod pools;
mod properties;
mod support;
mod wild;
