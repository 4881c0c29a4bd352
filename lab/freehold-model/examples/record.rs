//! Reads lines of calls and prints them as a *case*: calls with the results of the running kernel, or of the
//! model with `--model`.
//!
//! `cargo run -p freehold-model --example record < calls.txt > cases/name.txt`
//!
//! A line of the input is a call as `freehold_model::text` writes it. Results and maps in the input are
//! ignored, so the printed calls of a difference, or an existing case, can be the input. Comments at the
//! start of the input are kept. The files in `lab/freehold-model/cases` are made in this way;
//! `tests/cases.rs` runs them on all subjects.

use std::io::Read as _;

use freehold_model::linux::{Linux, Options};
use freehold_model::{Model, World, cases, text};

fn main() {
    let mut input = String::new();
    std::io::stdin().read_to_string(&mut input).expect("text");
    let world = World::bare();
    let comments: String =
        input.lines().take_while(|l| l.starts_with('#')).map(|l| format!("{l}\n")).collect();
    let calls = input.lines().filter(|l| l.starts_with('p'));
    let ops: Vec<_> = calls
        .map(|l| {
            let call = l.split(" -> ").next().unwrap_or(l).split('#').next().unwrap_or(l);
            text::parse_op(&world, call).unwrap_or_else(|| panic!("cannot read {l:?}"))
        })
        .collect();
    let case = if std::env::args().any(|a| a == "--model") {
        cases::record(&mut Model::new(world), &ops)
    } else {
        cases::record(&mut Linux::new(Options::default()).expect("the kernel can be driven here"), &ops)
    };
    print!("{comments}{case}");
}
