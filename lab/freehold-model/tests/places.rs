//! The addresses that the kernel chooses for mappings without a fixed place, against those of the engine and
//! the model: searching downwards and upwards, with the arena around each border of the searched ranges.
//!
//! The addresses are known only in a program without address randomisation. So the test starts itself again
//! as such a program, once with each layout (`ADDR_COMPAT_LAYOUT` searches upwards). A new border of the
//! searched ranges is an entry of [`MIDDLES`]. The rules are in `src/model/place.rs` and, for the engine, in
//! `space/placement.rs`. Calls with `MAP_32BIT` are not compared (`src/escape.rs`).

use crate::support::{assert_same, calls, linux, lockings};
use freehold_model::compare::{self, Plan};
use freehold_model::linux::Options;
use freehold_model::world::{LEGACY_BASE, Quirks};
use freehold_model::{Engine, Model, Subject};
use std::io::Write as _;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Borders of the ranges that are searched for free addresses, and an address above all of them.
const MIDDLES: [u64; 4] = [1 << 30, 2 << 30, 4 << 30, LEGACY_BASE + (1 << 40)];

#[test]
fn engine_and_model_choose_the_addresses_of_the_kernel() {
    for layout in [0, libc::ADDR_COMPAT_LAYOUT] {
        let mut again = Command::new(std::env::current_exe().expect("this program"));
        again.args(["--exact", "places::addresses_agree_in_a_known_layout", "--ignored", "--nocapture"]);
        let persona = (libc::ADDR_NO_RANDOMIZE | layout) as libc::c_ulong;
        // SAFETY: the closure runs between fork and exec, and makes only a system call without pointers.
        unsafe {
            again.pre_exec(move || match libc::personality(persona) {
                -1 => Err(std::io::Error::last_os_error()),
                _ => Ok(()),
            })
        };
        let output = again.output().expect("the program starts");
        // The output tells whether the kernel can be driven. The test writes the output directly to stderr,
        // so that the output is visible without --nocapture.
        let _ = std::io::stderr().write_all(&output.stderr);
        let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && said.contains("1 passed"), "layout {layout:#x}: {said}");
    }
}

#[test]
#[ignore = "engine_and_model_choose_the_addresses_of_the_kernel runs it in a program with a known layout"]
fn addresses_agree_in_a_known_layout() {
    for (n, middle) in MIDDLES.into_iter().enumerate() {
        let Some(mut linux) = linux(Options { around: Some(middle), ..Options::default() }) else { return };
        let seed = 5 + ((n as u64) << 32);
        let plan = |seed| Plan { seed, calls: calls(2_000), per_run: 256, between_maps: 16 };
        let mut model = Model::new(linux.world());
        let report = compare::run(&mut model, &mut linux, &plan(seed));
        assert_same(&format!("model and kernel around {middle:#x}"), &plan(seed), &report, &model);
        linux.treat_quirks(Quirks::Avoided);
        let locking = lockings()[n];
        let mut engine = Engine::new(linux.world(), locking).with_file_pages_resident();
        let report = compare::run(&mut engine, &mut linux, &plan(seed + 9000));
        assert_same(&format!("engine and kernel around {middle:#x}"), &plan(seed + 9000), &report, &engine);
    }
}
