//! The comparisons of the model, the engine and the running kernel, in one program.

mod cases;
mod differential;
mod engine;
mod lines;
mod merges;
mod places;
mod pools;
mod properties;
mod support;
mod wild;
