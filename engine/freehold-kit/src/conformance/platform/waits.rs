//! Waiting and waking. The second task waits, and the first task wakes it.
//!
//! After each wake-up the first task watches the second. The second task has to continue, because its word
//! has changed and it was woken. If the kernel says exactly when a task sleeps ([`Kernel::is_asleep`]), no
//! check depends on time.

use crate::conformance::kernel::Kernel;
use crate::conformance::report::require;
use crate::conformance::suite::{Checked, Stage, Stop, run_two};
use freehold::platform::atomic::{AtomicU32, Ordering::SeqCst};
use freehold::platform::{Interrupted, Killed, Platform};

/// Number of waits of a check.
const ROUNDS: u32 = 30;
/// Number of steps after which a wake-up is sent although the second task does not sleep.
const LONGEST: u32 = 10_000;

/// Watches the second task until it has reached `step`. If the task sleeps, wakes it by `rescue`, and returns
/// the mistake.
fn watch<P: Platform, K: Kernel<P>>(
    kernel: &K,
    (stage, step): (&Stage, u32),
    rescue: impl Fn(),
    mistake: impl FnOnce() -> alloc::string::String,
) -> Checked {
    let began = P::now_ns();
    while !stage.is_reached(step) {
        kernel.pause();
        let asleep = kernel.is_asleep().unwrap_or_else(|| P::now_ns() - began > kernel.patience_ns());
        if asleep && !stage.is_reached(step) {
            while !stage.is_reached(step) {
                rescue();
                kernel.pause();
            }
            return Err(mistake().into());
        }
    }
    Ok(())
}

/// Gives the second task the opportunity to fall asleep: waits until it sleeps, if the kernel knows that, or
/// a number of steps that differs from round to round. On some hosts a task that waits never sleeps.
fn let_sleep<P: Platform, K: Kernel<P>>(kernel: &K, round: u32) {
    if round.is_multiple_of(3) {
        return;
    }
    let known = kernel.is_asleep().is_some();
    for _ in 0..if known { LONGEST } else { round % 7 * 50 } {
        if kernel.is_asleep() == Some(true) {
            return;
        }
        kernel.pause();
    }
}

pub fn differs<P: Platform, K: Kernel<P>>(kernel: &K) -> Checked {
    let (word, stage) = (AtomicU32::new(1), Stage::new());
    let first = || {
        watch::<P, K>(
            kernel,
            (&stage, 1),
            || P::wake_all(&word),
            || {
                "wait(word, 0) sleeps although the word is 1: it must compare the word with the expected value".into()
            },
        )
    };
    let second = || {
        P::wait(&word, 0);
        let killable = P::wait_killable(&word, 0);
        let interruptible = P::wait_interruptible(&word, 0);
        stage.reach(1);
        require!(
            killable.is_ok() && interruptible.is_ok(),
            "no signal is pending, but a wait fails: wait_killable {killable:?}, wait_interruptible {interruptible:?}"
        );
        Ok(())
    };
    run_two(kernel, first, second)
}

/// The second task waits for each value of a word, and the first task stores the values and wakes it.
fn rounds<P: Platform, K: Kernel<P>>(
    kernel: &K,
    wait: impl Fn(&AtomicU32, u32) -> Result<(), Killed> + Send + Sync,
    wake: impl Fn(&AtomicU32),
    names: &str,
) -> Checked {
    let (word, stage) = (AtomicU32::new(0), Stage::new());
    let first = || {
        for round in 1..=ROUNDS {
            let_sleep::<P, K>(kernel, round);
            // SeqCst: the change comes before the wake-up, as in every lock of the engine.
            word.store(round, SeqCst);
            wake(&word);
            let rescue = || {
                word.store(ROUNDS, SeqCst);
                P::wake_all(&word);
                P::wake_one(&word);
            };
            watch::<P, K>(kernel, (&stage, round), rescue, || {
                alloc::format!(
                    "a wake-up was lost: {names}: the word was changed and then woken, but the task sleeps on"
                )
            })?;
        }
        Ok(())
    };
    let second = || {
        for round in 1..=ROUNDS {
            // The wait may return early.
            while word.load(SeqCst) < round {
                if let Err(error) = wait(&word, round - 1) {
                    word.store(ROUNDS, SeqCst);
                    stage.reach(ROUNDS);
                    return Err(
                        alloc::format!("{names}: no signal is pending, but the wait fails: {error}").into()
                    );
                }
            }
            stage.reach(round);
        }
        Ok(())
    };
    run_two(kernel, first, second)
}

pub fn wake_one<P: Platform, K: Kernel<P>>(kernel: &K) -> Checked {
    let wait = |word: &AtomicU32, expected| {
        P::wait(word, expected);
        Ok(())
    };
    rounds::<P, K>(kernel, wait, P::wake_one, "wait and wake_one")
}

pub fn wake_all<P: Platform, K: Kernel<P>>(kernel: &K) -> Checked {
    let wait =
        |word: &AtomicU32, expected| P::wait_interruptible(word, expected).map_err(|Interrupted| Killed);
    rounds::<P, K>(kernel, wait, P::wake_all, "wait_interruptible and wake_all")
}

pub fn wake_killable<P: Platform, K: Kernel<P>>(kernel: &K) -> Checked {
    rounds::<P, K>(kernel, P::wait_killable, P::wake_one, "wait_killable and wake_one")
}

pub fn killed<P: Platform, K: Kernel<P>>(kernel: &K) -> Checked {
    let (word, stage, stop) = (AtomicU32::new(0), Stage::new(), AtomicU32::new(0));
    let first = || {
        stage.wait_for(kernel, 1);
        let_sleep::<P, K>(kernel, 1);
        let rescue = || {
            stop.store(1, SeqCst);
            word.store(1, SeqCst);
            P::wake_all(&word);
        };
        if let Err(reason) = kernel.kill_second() {
            rescue();
            return Err(Stop::NotRun(reason));
        }
        watch::<P, K>(kernel, (&stage, 2), rescue, || {
            "a fatal signal is pending, but the task sleeps on in wait_killable".into()
        })
    };
    let second = || {
        stage.reach(1);
        while stop.load(SeqCst) == 0 {
            if P::wait_killable(&word, 0).is_err() {
                // No wait may sleep now. These have nothing to wait for, so they do not sleep in any case.
                let again = P::wait_killable(&word, 1);
                let interruptible = P::wait_interruptible(&word, 1);
                stage.reach(2);
                require!(
                    again.is_err() && interruptible.is_err(),
                    "a fatal signal is pending, but waits whose word has changed succeed: wait_killable {again:?}, \
                     wait_interruptible {interruptible:?}"
                );
                return Ok(());
            }
        }
        stage.reach(2);
        Ok(())
    };
    run_two(kernel, first, second)
}
