//! Huge pages of pools with a userfaultfd: random calls on a naive model, on the engine, and on the running
//! kernel (`src/pools`).
//!
//! A life is a sequence of random calls with one seed. Each answer of the engine or the kernel must equal the
//! model's, and the engine must use as many pages of the pool as the model. A failure prints the seed, the
//! last calls and the state of the model. If the environment has no userfaultfd or too few huge pages, the
//! test against the kernel prints this reason and passes. The calls are drawn by
//! `freehold_model::pools::draw`, so a new call is added there.

use freehold::space::{HugetlbLock, Locking};
use freehold_machine::Effort;
use freehold_model::{
    draw::Draw,
    pools::{self, Answer, Engine, Like, Linux, Model, Op, Subject},
};
use rand_pcg::{
    Pcg64Mcg,
    rand_core::{Rng, SeedableRng},
};

/// Number of calls in a life.
const CALLS: u64 = 120;

/// The source of random words of a life.
struct Words(Pcg64Mcg);

impl Draw for Words {
    fn word(&mut self) -> u64 {
        self.0.next_u64()
    }
}

/// Makes the same random calls on the model and on `other`, and runs the check `alike` after each call.
/// Returns the number of calls that succeeded.
fn life<S: Subject>(seed: u64, like: Like, other: &mut S, alike: impl Fn(&Model, &S)) -> u64 {
    let (mut random, mut model) = (Words(Pcg64Mcg::seed_from_u64(seed)), Model::new(like));
    let mut made: Vec<(Op, Answer)> = Vec::new();
    let protected = random.word();
    for _ in 0..CALLS {
        let op = pools::draw(&mut random, protected);
        let (expected, found) = (model.call(op), other.call(op));
        made.push((op, expected));
        let before: Vec<String> =
            made.iter().rev().take(30).rev().map(|call| format!("{call:?}\n")).collect();
        assert_eq!(found, expected, "seed {seed}, the last call of\n{}\n{model:?}", before.concat());
        alike(&model, other);
    }
    made.iter().filter(|(_, answer)| matches!(answer, Answer::Done(_) | Answer::Value(_))).count() as u64
}

#[test]
fn the_engine_agrees_with_the_model() {
    let both = [HugetlbLock::FileLock, HugetlbLock::VmaLock];
    let mut done = 0;
    let lives = Effort::of(8, 64, 4000);
    for seed in 0..lives {
        let locking = Locking::ALL[seed as usize % Locking::ALL.len()];
        let mut engine = Engine::new(locking.hugetlb(both[seed as usize / 8 % 2]));
        done += life(seed, Like::Engine, &mut engine, |model, engine| {
            assert_eq!(engine.in_use(), model.in_use(), "pages of the pool, seed {seed}");
        });
        engine.end();
    }
    // A run in which most calls fail would test little.
    assert!(done > lives * CALLS / 3, "{done} done");
}

#[test]
fn the_kernel_agrees_with_the_model() {
    for seed in 0..Effort::of(8, 64, 4000) {
        let Some(mut linux) = Linux::new() else {
            println!("not compared: no userfaultfd, or fewer than {} huge pages", 4 * pools::PAGES);
            return;
        };
        life(seed, Like::Linux, &mut linux, |_, _| ());
    }
}
