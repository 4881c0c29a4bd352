//! The conformance suite, for authors of a platform in C.
#![expect(unsafe_code, reason = "functions in C's calling convention receive pointers")]
#![expect(clippy::missing_safety_doc, reason = "the head of the header has the rules for all pointers")]

use crate::{
    host::Kernel,
    platform::SpaceRecord,
    result::failure,
    setup::{WithSize, is_ready},
};
use alloc::ffi::CString;
use core::ffi::{c_char, c_int, c_void};
use core::mem::ManuallyDrop;
use freehold::error::{Errno, ToErrno};
use freehold::prelude::{Config, Engine};
use freehold_kit::conformance::{self, NotRun, Outcome, Report};

/// Outcome of a check: no mistake was found.
pub const CHECK_PASSED: u32 = 0;
/// Outcome of a check: the text names the mistake.
pub const CHECK_FAILED: u32 = 1;
/// Outcome of a check: it did not run, for the reason in the text.
pub const CHECK_NOT_RUN: u32 = 2;

/// The functions of the kernel that the conformance suite needs, besides those of struct fh_platform_ops.
/// docs/guide/conformance.md describes the checks.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct CheckOps {
    /// Size of this structure in bytes: sizeof(struct fh_check_ops).
    pub size: usize,
    /// Receives the result of each check: its name, FH_CHECK_PASSED and so on, and a text. Called when all
    /// checks have run.
    pub report: Option<unsafe extern "C" fn(check: *const c_char, outcome: u32, text: *const c_char)>,
    /// Optional. Receives the name of each check before it begins. If the kernel hangs or panics, the last
    /// name is that of the check.
    pub begins: Option<unsafe extern "C" fn(check: *const c_char)>,
    /// Optional. Runs first(first_data) on the calling task and second(second_data) on another CPU at the
    /// same time. Returns when both have returned.
    pub run_two: Option<
        unsafe extern "C" fn(
            first: unsafe extern "C" fn(data: *mut c_void),
            first_data: *mut c_void,
            second: unsafe extern "C" fn(data: *mut c_void),
            second_data: *mut c_void,
        ),
    >,
    /// Optional. Loads the aligned word at this address as a program of the space does, and writes it to
    /// value. Returns false if the access faults; the fault is not handled.
    pub load:
        Option<unsafe extern "C" fn(space: *mut c_void, root: u64, address: u64, value: *mut u64) -> bool>,
    /// Optional. Makes the CPU leave the space that load has entered.
    pub leave_space: Option<unsafe extern "C" fn(space: *mut c_void, root: u64)>,
    /// True if the suite may allocate all frames for a moment.
    pub may_use_all_memory: bool,
}

// SAFETY: the first field is `size`, and zeroes are absent functions and false.
unsafe impl WithSize for CheckOps {
    const SMALLEST: usize = size_of::<CheckOps>();
}

/// Calls the function behind `data`, which is a reference to a function without arguments.
unsafe extern "C" fn call_first(data: *mut c_void) {
    // SAFETY: `run_two` passes such a reference, and runs until this function has returned.
    unsafe { (*data.cast::<&mut dyn FnMut()>())() }
}

/// Calls the function behind `data`, which may be called on another thread.
unsafe extern "C" fn call_second(data: *mut c_void) {
    // SAFETY: as in `call_first`.
    unsafe { (*data.cast::<&mut (dyn FnMut() + Send)>())() }
}

/// Returns the string of C with this text.
fn string(text: &str) -> CString {
    CString::new(text).unwrap_or_default()
}

impl conformance::Kernel<Kernel> for CheckOps {
    fn begins(&self, check: &'static str) {
        if let Some(begins) = self.begins {
            // SAFETY: the functions keep the contract of the header.
            unsafe { begins(string(check).as_ptr()) };
        }
    }

    fn run_two(
        &self,
        mut first: &mut dyn FnMut(),
        mut second: &mut (dyn FnMut() + Send),
    ) -> Result<(), NotRun> {
        let run_two = self.run_two.ok_or(NotRun::because("there is no function run_two"))?;
        let (first, second) = ((&raw mut first).cast(), (&raw mut second).cast());
        // SAFETY: the functions keep the contract of the header, so both references outlive the calls.
        unsafe { run_two(call_first, first, call_second, second) };
        Ok(())
    }

    fn load(&self, _: &Kernel, space: &SpaceRecord, address: u64) -> Result<Option<u64>, NotRun> {
        let load = self.load.ok_or(NotRun::because("there is no function load"))?;
        let mut value = 0;
        // SAFETY: the functions keep the contract of the header.
        let loaded = unsafe { load(space.record, space.root.get(), address, &raw mut value) };
        Ok(loaded.then_some(value))
    }

    fn leave_space(&self, space: &SpaceRecord) {
        if let Some(leave_space) = self.leave_space {
            // SAFETY: the functions keep the contract of the header.
            unsafe { leave_space(space.record, space.root.get()) };
        }
    }

    fn may_use_all_memory(&self) -> bool {
        self.may_use_all_memory
    }
}

impl CheckOps {
    /// Passes the results of a report to the kernel. Returns the number of failed checks.
    fn pass_on(&self, report: &Report) -> c_int {
        let Some(receive) = self.report else { return 0 };
        for check in report.checks() {
            let (outcome, text) = match &check.outcome {
                Outcome::Failed(mistake) => (CHECK_FAILED, mistake.as_str()),
                Outcome::NotRun(reason) => (CHECK_NOT_RUN, reason.as_str()),
                _ => (CHECK_PASSED, ""),
            };
            // SAFETY: the functions keep the contract of the header.
            unsafe { receive(string(check.name).as_ptr(), outcome, string(text).as_ptr()) };
        }
        report.failures().count() as c_int
    }
}

/// Runs the conformance suite on the functions of fh_init: first the functions alone, then an engine on them.
/// In a library that is built with the feature conformance.
///
/// Returns the number of failed checks; -EINVAL if report is missing, or before fh_init has succeeded; or
/// -ENOMEM. The suite itself needs memory of alloc, and panics if there is none. No other task uses the
/// library during the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fh_check_platform(ops: *const CheckOps) -> c_int {
    // SAFETY: by the rules of the header, `ops` leads to a structure.
    let ops = unsafe { CheckOps::copy(ops) };
    let Some(ops) = ops.filter(|ops| ops.report.is_some() && is_ready()) else {
        return failure(Errno::EINVAL);
    };
    // The drop of the kernel belongs to the end of an engine.
    let failures = ops.pass_on(&conformance::platform(&*ManuallyDrop::new(Kernel), &ops));
    match Engine::new(Kernel, Config::new()) {
        Ok(engine) => failures + ops.pass_on(&conformance::engine(&engine, &ops)),
        Err(error) => failure(error.to_errno()),
    }
}
