//! Files, with the ways in which recorded programs opened and changed them.
//!
//! A file of the recording is one [`Opened`]: its page cache in the engine, and one engine file for each
//! recorded way of opening ([`Access`]: the rights, and the open call). `world.rs` creates it when a plan
//! first names the file. `calls.rs` makes the calls that change the file (ftruncate, fallocate, seals)
//! through [`World::change`]. `perform.rs` sets a length that follows from other events
//! ([`World::set_length`]).
//!
//! Workers use files concurrently, so the seals and the table of an `Opened` have locks of their own. After a
//! change that may remove pages, [`World::change`] updates the expected pages of every mapping of the file
//! (`reached.rs`); otherwise later snapshots would differ. Another call that changes a file needs an arm in
//! [`Opened::change`]. `freehold-cli/tests/record.rs` replays recorded changes of files.

use super::image::Image;
use super::length;
use super::shmem_sizes;
use super::workers::lock;
use super::world::{Mapped, World};
use freehold::counted::{Counted, Weak};
use freehold::error::Errno;
use freehold::file::{File, FileAccess, FillError, Mapping, Seals};
use freehold_machine::Machine;
use freehold_trace::operation::{fallocate, fcntl, seal};
use freehold_trace::plan::Access;
use freehold_trace::{Call, CallName, Returned};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, OnceLock};

/// The seals that the engine must know.
const WRITES: u64 = seal::WRITE | seal::FUTURE_WRITE;
/// The flag of memfd_create that allows seals.
const MFD_ALLOW_SEALING: u64 = 2;
/// The flag of memfd_create that makes the file non-executable, and seals this property.
const MFD_NOEXEC_SEAL: u64 = 8;

/// A file with all ways in which it was opened. Each way is a separate file for the engine.
pub(super) struct Opened {
    /// The page cache of the file.
    pub(super) mapping: Counted<Mapping<Machine>>,
    /// The path, for reports.
    pub(super) name: String,
    /// The seals, if the file is a memfd. The seals of the length (SHRINK, GROW) are checked here and not
    /// given to the engine. With these seals, the engine could refuse a length that the replay sets without a
    /// recorded call, for example after a write that has made the file longer.
    seals: Option<Mutex<u64>>,
    /// The file, opened for reading and writing. Used for a mapping if the recording does not show how its
    /// file was opened.
    guess: OnceLock<Counted<File<Machine>>>,
    /// Open files by the way of opening, while a VMA maps them.
    known: Mutex<HashMap<Access, Weak<File<Machine>>>>,
}

impl Opened {
    /// Creates a file with this page cache. `memfd` contains the flags of memfd_create, if that call created
    /// the file.
    pub(super) fn new(mapping: Counted<Mapping<Machine>>, name: &str, memfd: Option<u64>) -> Opened {
        let (guess, known) = Default::default();
        let seals = memfd.map(|flags| match flags & (MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL) {
            0 => seal::SEAL,
            MFD_ALLOW_SEALING => 0,
            _ => seal::EXEC,
        });
        Opened { mapping, name: name.to_owned(), seals: seals.map(Mutex::new), guess, known }
    }

    /// Returns true if seals may be added to a memfd that was created with these flags.
    pub(super) fn may_be_sealed(flags: u64) -> bool {
        flags & (MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL) != 0
    }

    /// Returns the open file behind a mapping. `access` says how the program opened the file, if that is
    /// recorded. Returns `None` if memory runs out.
    pub(super) fn file(&self, access: Option<Access>) -> Option<Counted<File<Machine>>> {
        let new = |access| File::new(&self.mapping, access, &self.name).ok();
        let Some(how) = access else {
            if self.guess.get().is_none() {
                // If another thread has set `guess` first, the file of that thread is used.
                let _ = self.guess.set(new(FileAccess::READ_WRITE)?);
            }
            return self.guess.get().cloned();
        };
        let mut known = self.known();
        if let Some(file) = known.get(&how).and_then(Weak::upgrade) {
            return Some(file);
        }
        known.retain(|_, file| file.upgrade().is_some());
        let file = new(FileAccess::READ.read(how.read).write(how.write))?;
        known.insert(how, Counted::downgrade(&file));
        Some(file)
    }

    /// Locks the table of open files.
    fn known(&self) -> MutexGuard<'_, HashMap<Access, Weak<File<Machine>>>> {
        lock(&self.known)
    }

    /// Returns true if `file` is this file, opened in a way that is recorded.
    pub(super) fn tells(&self, file: &Counted<File<Machine>>) -> bool {
        self.known().values().any(|known| known.is_of(file))
    }

    /// Makes a call that changes the file. Returns `None` if the engine lacks the call or cannot determine
    /// its answer.
    pub(super) fn change(&self, call: &Call) -> Option<Returned> {
        if self.mapping.is_zeroes() {
            return None;
        }
        let [_, mode, offset, len, ..] = call.args;
        let done = |result: Result<(), Errno>| match result {
            Ok(()) => Returned::Value(0),
            Err(Errno(number)) => Returned::Error(number as u16),
        };
        let refused = call.returned.value().is_none();
        Some(match (call.name, mode) {
            (CallName::Ftruncate | CallName::Fallocate, _)
                if refused && length::known(&self.mapping).is_none() =>
            {
                return None;
            }
            (CallName::Fallocate, _) if len == 0 => Returned::Error(Errno::EINVAL.0 as u16),
            (CallName::Ftruncate, bytes) => done(self.resize(bytes)),
            (CallName::Fallocate, 0 | fallocate::KEEP_SIZE) => {
                let end = offset.saturating_add(len);
                let resized = if mode == 0 { self.resize(self.mapping.size().max(end)) } else { Ok(()) };
                if resized.is_ok() {
                    shmem_sizes::allocate(&self.mapping, offset..end);
                }
                done(resized)
            }
            (CallName::Fallocate, fallocate::HOLE) => {
                done(self.mapping.punch(offset..offset.saturating_add(len)).map_err(errno))
            }
            (CallName::Fcntl, _) => return self.seal(call),
            _ => return None,
        })
    }

    /// Returns the seals, or none if the file is not a memfd.
    fn sealed(&self) -> u64 {
        self.seals.as_ref().map_or(0, |seals| *lock(seals))
    }

    /// Sets the length, unless a seal forbids it.
    fn resize(&self, bytes: u64) -> Result<(), Errno> {
        let seals = self.sealed();
        let forbids = length::known(&self.mapping).is_some_and(|now| {
            bytes < now && seals & seal::SHRINK != 0 || bytes > now && seals & seal::GROW != 0
        });
        if forbids { Err(Errno::EPERM) } else { self.mapping.truncate(bytes).map_err(errno) }
    }

    /// Adds seals, or returns the current seals. Returns `None` if the file is not a memfd, or if the
    /// recording does not determine the answer.
    fn seal(&self, call: &Call) -> Option<Returned> {
        let seals = self.seals.as_ref()?;
        let mut seals = lock(seals);
        if call.args[1] as u32 != fcntl::ADD_SEALS {
            return Some(Returned::Value(*seals));
        }
        let added = u64::from(call.args[2] as u32);
        // On an executable file this seal implies more seals, and the recording does not show if the file is
        // executable.
        if added & seal::EXEC != 0 {
            return None;
        }
        let result = match () {
            _ if added & !seal::ALL != 0 => Err(Errno::EINVAL),
            _ if *seals & seal::SEAL != 0 => Err(Errno::EPERM),
            _ if added & WRITES == 0 => Ok(()),
            _ => {
                let writes = Seals::from_bits_retain((added & WRITES) as u32);
                self.mapping.add_seals(writes).map_err(|error| error.errno())
            }
        };
        Some(match result {
            Ok(()) => {
                *seals |= added;
                Returned::Value(0)
            }
            Err(Errno(number)) => Returned::Error(number as u16),
        })
    }
}

/// Converts an error of the page cache to an errno.
fn errno(error: FillError) -> Errno {
    match error {
        FillError::BeyondEnd | FillError::Invalid => Errno::EINVAL,
        FillError::Sealed => Errno::EPERM,
        FillError::Killed => Errno::EINTR,
        _ => Errno::ENOMEM,
    }
}

impl World {
    /// Makes a call that changes a file.
    pub(super) fn change(&self, file: Option<u32>, call: &Call) -> Option<Returned> {
        let Some(Mapped::File(opened)) = self.mapped(file?) else { return None };
        let answer = opened.change(call);
        self.pages_went(&opened.mapping);
        answer
    }

    /// Sets the length of a file. `None` means that the length is no longer known.
    pub(super) fn set_length(&self, file: u32, bytes: Option<u64>) {
        let Some(Mapped::File(opened)) = self.mapped(file) else { return };
        // A file that is already longer than the largest size keeps its length, so that nothing is cut off.
        if bytes.is_none() && opened.mapping.size() > length::MAX_SIZE {
            return;
        }
        // The engine has no seal that forbids a change of the length. If memory runs out, the length stays
        // unchanged.
        let _ = opened.mapping.truncate(length::to_size(bytes));
        self.pages_went(&opened.mapping);
    }

    /// Updates the expected pages in every mapping of the file to the pages that the engine still has.
    fn pages_went(&self, mapping: &Counted<Mapping<Machine>>) {
        self.each_mapping(mapping, |image, range| {
            image.reached.follow(image.process(), range.start, range.end - range.start);
        });
    }

    /// Records that an unrecorded event may have freed pages of a file. From now on, each page in a mapping
    /// of the file may be present or absent.
    pub(super) fn doubt(&self, file: u32) {
        let Some(Mapped::File(opened)) = self.mapped(file) else { return };
        self.each_mapping(&opened.mapping, |image, range| {
            image.reached.doubt(&range);
            image.touched.cut(&range);
        });
    }

    /// Calls `each` with the addresses of every VMA that maps the file, in all address spaces.
    fn each_mapping(&self, mapping: &Counted<Mapping<Machine>>, mut each: impl FnMut(&Image, Range<u64>)) {
        for image in self.live() {
            let process = image.process();
            for line in process.maps(0) {
                let vma = process.find_vma(line.start);
                let file = vma.as_ref().and_then(|vma| vma.object().file());
                let same = file.is_some_and(|file| Counted::ptr_eq(file.mapping(), mapping));
                drop(vma);
                if same {
                    each(&image, line.start..line.end);
                }
            }
        }
    }
}
