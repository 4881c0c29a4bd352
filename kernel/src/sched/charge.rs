//! The kernel's memory that programs cause: which process caused it, and whether a call may allocate more.
//!
//! Rust's collections panic if the heap has no memory, so no call may let the heap run out:
//!
//! - `memory/frames.rs` keeps a reserve. Programs get no frames from the reserve; only the heap uses it.
//! - A call may allocate about a page of heap memory without asking. The reserve has a page for each thread.
//! - A call that allocates more, or that makes an object which outlives the call, first calls [`admit`] or
//!   [`reserve`], which fail with ENOMEM once only the reserve is left. Paths that free memory do not ask.
//! - An object that outlives its call has a [`Charge`], which counts its bytes for the process that made it.
//!   `process/shortage.rs` ends the process with the most memory if memory runs out. What a process leaves
//!   behind counts for the processes that have files of it.
//! - Names, files and attributes may outlive every process, so no end of a process frees them. They are charged
//!   to all files together, which may have an eighth of memory. [`admit_to_files`] then fails with ENOSPC.
//!
//! `files/`, `process/` and `calls/` use this file. The program `shortage.c` of the tests makes as many objects
//! of each kind as memory allows.

use crate::memory::account::Account;
use crate::memory::bytes_for_programs;
use crate::memory::frames::{self, Supply};
use crate::sched::thread::current;
use alloc::sync::Arc;
use alloc::vec::Vec;
use freehold::error::Errno;

/// The account of names, files and attributes, without the contents of files.
static FILES: Account = Account::new();
/// The part of the memory of programs that [`FILES`] may have.
const FILES_PART: u64 = 8;

/// Bytes of kernel memory that are charged until the charge is dropped.
pub struct Charge {
    /// The account of the process that caused the memory; `None` for [`FILES`].
    account: Option<Arc<Account>>,
    bytes: u64,
}

impl Charge {
    fn account(&self) -> &Account {
        self.account.as_deref().unwrap_or(&FILES)
    }

    /// Charges all files together. The caller has called [`admit_to_files`], or a call that passes the object on
    /// does so.
    pub fn of_files(bytes: usize) -> Self {
        FILES.recharge(0, bytes as u64);
        Charge { account: None, bytes: bytes as u64 }
    }

    /// Charges a process by its account. The caller has called [`admit`], or the object is small.
    pub fn to(account: Arc<Account>, bytes: usize) -> Self {
        account.recharge(0, bytes as u64);
        Charge { account: Some(account), bytes: bytes as u64 }
    }

    /// Charges the calling thread's process. The caller has called [`admit`], or a call that passes the object
    /// on does so.
    pub fn new(bytes: usize) -> Self {
        Self::to(current().account.clone(), bytes)
    }

    /// Changes the number of bytes of a charge to all files.
    ///
    /// # Errors
    ///
    /// ENOSPC if all files together have their part of memory. The charge is then unchanged.
    pub fn grow(&mut self, bytes: u64) -> Result<(), Errno> {
        if bytes > self.bytes && FILES.bytes().saturating_add(bytes - self.bytes) > most_of_files() {
            return Err(Errno::ENOSPC);
        }
        self.set(bytes as usize);
        Ok(())
    }

    /// Returns the bytes in the account of the charge, if its process has ended: see [`Account::left`].
    pub fn left(&self, survey: u64) -> u64 {
        self.account().left(survey)
    }

    /// Changes the number of bytes.
    pub fn set(&mut self, bytes: usize) {
        let before = core::mem::replace(&mut self.bytes, bytes as u64);
        self.account().recharge(before, self.bytes);
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.account().recharge(self.bytes, 0);
    }
}

/// Checks that the calling thread may allocate more memory than the little that each call may allocate.
///
/// # Errors
///
/// ENOMEM if only the reserve is left.
#[inline]
pub fn admit() -> Result<(), Errno> {
    if frames::supply() == Supply::Plenty { Ok(()) } else { Err(refused()) }
}

/// Returns the maximum number of bytes of [`FILES`].
fn most_of_files() -> u64 {
    bytes_for_programs() / FILES_PART
}

/// Checks that a name, a file or an attribute may be added to a file system.
///
/// # Errors
///
/// ENOSPC if all files together have their part of memory; ENOMEM if only the reserve is left.
pub fn admit_to_files() -> Result<(), Errno> {
    if FILES.bytes() > most_of_files() {
        return Err(Errno::ENOSPC);
    }
    admit()
}

/// Records that the calling thread got no memory, so that `process/shortage.rs` can find memory for it.
/// Returns ENOMEM.
#[cold]
pub fn refused() -> Errno {
    current().wants_memory.set(true);
    Errno::ENOMEM
}

/// Makes room for `more` further elements of a list.
///
/// # Errors
///
/// ENOMEM if memory is short, or if no block of memory is large enough. The list is then unchanged.
#[inline]
pub fn reserve<T>(list: &mut Vec<T>, more: usize) -> Result<(), Errno> {
    if list.capacity() - list.len() >= more {
        return Ok(());
    }
    admit()?;
    // The end of another process would not make a larger block.
    list.try_reserve(more).map_err(|_| Errno::ENOMEM)
}

/// Returns a list of `count` equal elements.
///
/// # Errors
///
/// ENOMEM if memory is short.
pub fn filled<T: Clone>(value: T, count: usize) -> Result<Vec<T>, Errno> {
    let mut list = Vec::new();
    reserve(&mut list, count)?;
    list.resize(count, value);
    Ok(list)
}
