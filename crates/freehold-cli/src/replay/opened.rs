//! Files, as recorded programs have opened and changed them.

use super::image::Image;
use super::world::{Mapped, UNKNOWN_SIZE, World};
use freehold::counted::Counted;
use freehold::error::Errno;
use freehold::object::{File, FileAccess, FillError, Mapping, Seals};
use freehold_machine::Machine;
use freehold_trace::plan::Access;
use freehold_trace::{Call, CallName, Returned};
use std::ops::Range;
use std::sync::OnceLock;

/// `F_ADD_SEALS`, as a number of fcntl.
const F_ADD_SEALS: u32 = 1033;
/// `F_SEAL_SEAL`: all seals of a memfd that was made without leave to be sealed.
const SEALED: u64 = 1;
/// `F_SEAL_EXEC`, of which the engine does not know.
const SEAL_EXEC: u64 = 0x20;
pub(super) const MFD_ALLOW_SEALING: u64 = 2;
/// It takes the right to be executed away, and seals that.
const MFD_NOEXEC_SEAL: u64 = 8;
const FALLOC_FL_KEEP_SIZE: u64 = 1;
const PUNCH_HOLE: u64 = 3;

/// A file, and how it was opened: each way is a file of its own for the engine.
pub(super) struct Opened {
    pub(super) mapping: Counted<Mapping<Machine>>,
    pub(super) name: String,
    /// The flags of memfd_create, if that made it.
    pub(super) memfd: Option<u64>,
    /// As it is taken to be where nobody knows: for reading and writing.
    guess: OnceLock<Counted<File<Machine>>>,
    /// By what it may do: 1 read, 2 write.
    known: [OnceLock<Counted<File<Machine>>>; 4],
}

impl Opened {
    pub(super) fn new(mapping: Counted<Mapping<Machine>>, name: &str, memfd: Option<u64>) -> Opened {
        let (guess, known) = Default::default();
        Opened { mapping, name: name.to_owned(), memfd, guess, known }
    }

    /// The open file behind a mapping; `access` is how it was opened, where that is recorded. None without memory.
    pub(super) fn file(&self, access: Option<Access>) -> Option<&Counted<File<Machine>>> {
        let (place, access) = match access {
            None => (&self.guess, FileAccess::READ_WRITE),
            Some(Access { read, write }) => {
                let place = &self.known[usize::from(read) | usize::from(write) << 1];
                (place, FileAccess { read, write, ..FileAccess::READ })
            }
        };
        if place.get().is_none() {
            // Another may have been as fast.
            let _ = place.set(File::new(&self.mapping, access, &self.name).ok()?);
        }
        place.get()
    }

    /// `file` is this one, and was opened in a way that the recording tells.
    pub(super) fn tells(&self, file: &Counted<File<Machine>>) -> bool {
        self.known.iter().filter_map(OnceLock::get).any(|known| Counted::same(known, file))
    }

    /// Makes a call that changes the file. None: the engine does not have it.
    pub(super) fn change(&self, call: &Call) -> Option<Returned> {
        let [_, mode, offset, len, ..] = call.args;
        let done = |result: Result<(), FillError>| match result {
            Ok(()) => Returned::Value(0),
            Err(error) => Returned::Error(errno(error).0 as u16),
        };
        Some(match (call.name, mode) {
            (CallName::Ftruncate, bytes) => done(self.mapping.truncate(bytes)),
            (CallName::Fallocate, 0) => {
                let bytes = self.mapping.size().max(offset.saturating_add(len));
                done(self.mapping.truncate(bytes))
            }
            (CallName::Fallocate, FALLOC_FL_KEEP_SIZE) => Returned::Value(0),
            (CallName::Fallocate, PUNCH_HOLE) => done(self.mapping.punch(offset..offset.saturating_add(len))),
            (CallName::Fcntl, _) => return self.seals(call),
            _ => return None,
        })
    }

    fn seals(&self, call: &Call) -> Option<Returned> {
        let flags = self.memfd.filter(|flags| flags & MFD_NOEXEC_SEAL == 0)?;
        let adds = call.args[1] as u32 == F_ADD_SEALS;
        let bits = call.args[2];
        if flags & MFD_ALLOW_SEALING == 0 {
            let refused = Returned::Error(Errno::EPERM.0 as u16);
            return Some(if adds { refused } else { Returned::Value(SEALED) });
        }
        if !adds {
            return Some(Returned::Value(u64::from(self.mapping.seals()?.bits())));
        }
        if bits & SEAL_EXEC != 0 {
            return None;
        }
        Some(match self.mapping.add_seals(Seals::from_bits_retain(bits as u32)) {
            Ok(()) => Returned::Value(0),
            Err(error) => Returned::Error(error.errno().0 as u16),
        })
    }
}

fn errno(error: FillError) -> Errno {
    match error {
        FillError::BeyondEnd | FillError::Invalid => Errno::EINVAL,
        FillError::Sealed => Errno::EPERM,
        FillError::Killed => Errno::EINTR,
        _ => Errno::ENOMEM,
    }
}

impl World {
    /// A call that changes a file.
    pub(super) fn change(&self, file: Option<u32>, call: &Call) -> Option<Returned> {
        let Some(Mapped::File(opened)) = self.mapped(file?) else { return None };
        let answer = opened.change(call);
        self.pages_went(&opened.mapping);
        answer
    }

    /// A file has this length now; nothing: that is not known any more.
    pub(super) fn set_length(&self, file: u32, bytes: Option<u64>) {
        let Some(Mapped::File(opened)) = self.mapped(file) else { return };
        // Refused only by a seal, and then its length is what it was.
        let _ = opened.mapping.truncate(bytes.unwrap_or(UNKNOWN_SIZE));
        self.pages_went(&opened.mapping);
    }

    /// Wherever the file is mapped, only those of its pages are expected that the engine still has.
    fn pages_went(&self, mapping: &Counted<Mapping<Machine>>) {
        self.each_mapping(mapping, |image, range| {
            image.reached.follow(image.process(), range.start, range.end - range.start);
        });
    }

    /// Something that is not recorded may have taken pages of a file: wherever it is mapped, they may be there or not.
    pub(super) fn doubt(&self, file: u32) {
        let Some(Mapped::File(opened)) = self.mapped(file) else { return };
        self.each_mapping(&opened.mapping, |image, range| image.reached.doubt(&range));
    }

    /// The addresses of each VMA that maps the file, in all address spaces.
    fn each_mapping(&self, mapping: &Counted<Mapping<Machine>>, mut each: impl FnMut(&Image, Range<u64>)) {
        for image in self.live() {
            let process = image.process();
            for line in process.maps(0) {
                let vma = process.find_vma(line.start);
                let file = vma.as_ref().and_then(|vma| vma.object().file());
                let same = file.is_some_and(|file| Counted::same(file.mapping(), mapping));
                drop(vma);
                if same {
                    each(&image, line.start..line.end);
                }
            }
        }
    }
}
