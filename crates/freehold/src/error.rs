//! One small error per verb, and the one table that turns them into errno numbers.

use core::fmt;
use freehold_sync::Killed;

pub use freehold_vmspace::NoMemory;

/// A Linux errno number, positive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Errno(pub i32);

macro_rules! errnos {
    ($($name:ident = $number:literal, $what:literal;)*) => {
        impl Errno { $(#[doc = $what] pub const $name: Errno = Errno($number);)* }
    };
}

errnos! {
    EPERM = 1, "Operation not permitted";
    ENOENT = 2, "Nothing there";
    ESRCH = 3, "The process is gone";
    EINTR = 4, "Interrupted by a signal";
    EIO = 5, "Input or output failed";
    EBADF = 9, "Bad file descriptor";
    EAGAIN = 11, "Try again";
    ENOMEM = 12, "Out of memory, a limit, or a hole in the range";
    EACCES = 13, "Permission denied";
    EFAULT = 14, "Bad address";
    EBUSY = 16, "Busy";
    EEXIST = 17, "Something is mapped there already";
    EXDEV = 18, "Of another engine";
    ENODEV = 19, "The file cannot be mapped";
    EINVAL = 22, "Invalid argument";
    ETXTBSY = 26, "Text file busy";
    EFBIG = 27, "File too large";
    ENOSPC = 28, "None left";
    EIDRM = 43, "Identifier removed";
    EOVERFLOW = 75, "Offset too large";
    EOPNOTSUPP = 95, "Not supported";
    EHWPOISON = 133, "The memory failed";
}

/// An error of a verb that needs no memory, and that no signal ends.
macro_rules! plain_error {
    ($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident => $errno:ident,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[non_exhaustive]
        pub enum $name { $($(#[$vdoc])* $variant,)* }

        impl $name {
            /// The number a system call would return for this error.
            pub fn errno(self) -> Errno {
                match self { $(Self::$variant => Errno::$errno,)* }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(self, f)
            }
        }

        impl core::error::Error for $name {}
    };
}

/// An error of a verb that no signal ends.
macro_rules! unkillable_error {
    ($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident => $errno:ident,)* }) => {
        plain_error! { $(#[$doc])* $name { $($(#[$vdoc])* $variant => $errno,)* } }

        impl From<NoMemory> for $name {
            fn from(_: NoMemory) -> Self { Self::OutOfMemory }
        }
    };
}

macro_rules! verb_error {
    ($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident => $errno:ident,)* }) => {
        unkillable_error! { $(#[$doc])* $name { $($(#[$vdoc])* $variant => $errno,)* } }

        impl From<Killed> for $name {
            fn from(_: Killed) -> Self { Self::Killed }
        }
    };
}

mod access;
mod fill;
mod migrate;
mod settings;
mod uffd;

pub use access::{AccessError, ArgumentsError, PinError, QueryError, StackMoveError};
pub use fill::FillError;
pub use migrate::MigrateError;
pub use settings::{EngineError, HeapError, MdweError, MergeError, SpaceError};
pub use uffd::{UffdError, UffdReadError, UffdRegisterError};

impl FillError {
    /// The number that a system call which reads, writes or truncates a file would return for this error.
    pub fn errno(self) -> Errno {
        match self {
            FillError::BeyondEnd => Errno::EFBIG,
            FillError::Io => Errno::EIO,
            FillError::NoMemory => Errno::ENOMEM,
            FillError::Sealed => Errno::EPERM,
            FillError::NoSpace | FillError::NoHugePages => Errno::ENOSPC,
            FillError::Invalid => Errno::EINVAL,
            FillError::Busy => Errno::ETXTBSY,
            FillError::Unsupported => Errno::EOPNOTSUPP,
            FillError::Lost => Errno::EIO,
            FillError::Killed => Errno::EINTR,
        }
    }
}

verb_error! {
    /// Why memory could not be mapped.
    MmapError {
        /// Neither anonymous nor with a file.
        BadDescriptor => EBADF,
        /// Length zero, unaligned fixed address, unknown kind of sharing, or flags that contradict each
        /// other.
        Invalid => EINVAL,
        /// Offset and length do not fit the file's largest size.
        OffsetOverflow => EOVERFLOW,
        /// The range does not fit the address space, or no gap is large enough.
        NoSpace => ENOMEM,
        /// More VMAs than the limit allows.
        TooManyVmas => ENOMEM,
        /// RLIMIT_AS, RLIMIT_DATA or the commit limit.
        Limit => ENOMEM,
        /// The pool of huge pages has not as many as the mapping is to have reserved.
        NoHugePages => ENOMEM,
        /// No memory for the engine's own records.
        OutOfMemory => ENOMEM,
        /// MAP_FIXED_NOREPLACE over something.
        Occupied => EEXIST,
        /// MAP_LOCKED without the right, a fixed address below the minimum without privilege, a sealed VMA in
        /// the way, or a
        /// file that is sealed against writing.
        NotPermitted => EPERM,
        /// More locked memory than RLIMIT_MEMLOCK.
        LockLimit => EAGAIN,
        /// The descriptor does not allow this access.
        AccessDenied => EACCES,
        /// A flag that MAP_SHARED_VALIDATE does not know.
        UnknownFlag => EOPNOTSUPP,
        /// The file cannot be mapped, or without an MMU not in this way.
        NotMappable => ENODEV,
        /// The file's driver cannot map this now.
        NotReady => EAGAIN,
        /// The file could not be read: without an MMU, mapping may mean copying.
        Io => EIO,
        /// The file or special mapping belongs to another engine than the address space.
        OtherEngine => EXDEV,
        /// A fatal signal arrived while waiting for the lock.
        Killed => EINTR,
    }
}

verb_error! {
    /// Why memory could not be unmapped.
    MunmapError {
        /// Unaligned start, length zero, or beyond the end of user space.
        Invalid => EINVAL,
        /// Cutting a VMA in two would exceed the limit on VMAs.
        TooManyVmas => ENOMEM,
        /// No memory for the engine's own records.
        OutOfMemory => ENOMEM,
        /// A VMA in the range is sealed.
        Sealed => EPERM,
        /// A VMA at the edge must not be split.
        NotSplittable => EINVAL,
        /// A fatal signal arrived while waiting for the lock.
        Killed => EINTR,
    }
}

verb_error! {
    /// Why a mapping could not be resized or moved.
    MremapError {
        /// Unknown flags, unaligned addresses, a length of zero or beyond user space, ranges that overlap, a
        /// flag that needs
        /// another, a private mapping to be duplicated, or a VMA that must not be split.
        Invalid => EINVAL,
        /// Nothing is mapped at the address, or the range leaves its VMA.
        NotMapped => EFAULT,
        /// This kind of mapping cannot grow.
        NotExpandable => EFAULT,
        /// No room to grow into, and none to move to or no permission to move.
        NoSpace => ENOMEM,
        /// Too close to the limit on VMAs, or a split would exceed it.
        TooManyVmas => ENOMEM,
        /// RLIMIT_AS, RLIMIT_DATA or the commit limit.
        Limit => ENOMEM,
        /// No memory for records or tables.
        OutOfMemory => ENOMEM,
        /// More locked memory than RLIMIT_MEMLOCK.
        LockLimit => EAGAIN,
        /// A sealed VMA, or a target below the minimum address without privilege.
        NotPermitted => EPERM,
        /// A fatal signal arrived while waiting for the lock.
        Killed => EINTR,
    }
}

verb_error! {
    /// Why an address space could not be copied.
    ForkError {
        /// No memory for records or tables.
        OutOfMemory => ENOMEM,
        /// The commit limit.
        Limit => ENOMEM,
        /// A fatal signal arrived while waiting for a lock.
        Killed => EINTR,
    }
}

verb_error! {
    /// Why access rights could not be changed.
    MprotectError {
        /// Unaligned start, unknown rights, both directions of growth, or growth where nothing grows that
        /// way.
        Invalid => EINVAL,
        /// A hole in the range, or a range beyond the last address.
        NotMapped => ENOMEM,
        /// A right that the mapping may not have.
        AccessDenied => EACCES,
        /// A VMA in the range is sealed.
        Sealed => EPERM,
        /// RLIMIT_DATA or the commit limit.
        Limit => ENOMEM,
        /// Cutting a VMA would exceed the limit on VMAs.
        TooManyVmas => ENOMEM,
        /// No memory for the engine's own records.
        OutOfMemory => ENOMEM,
        /// A fatal signal arrived while waiting for the lock.
        Killed => EINTR,
    }
}

verb_error! {
    /// Why an advice was not followed.
    MadviseError {
        /// Unknown advice, unaligned start, a range beyond the last address, or an advice that this kind of
        /// mapping cannot take.
        Invalid => EINVAL,
        /// A hole in the range; everything else was dealt with, except where pages were to be populated.
        NotMapped => ENOMEM,
        /// A VMA could not be cut: the limit on VMAs, or no memory.
        NotCut => EAGAIN,
        /// A page that was to become part of a huge one is in use by others than page tables.
        InUse => EAGAIN,
        /// No memory for pages or tables.
        OutOfMemory => ENOMEM,
        /// A sealed VMA that cannot be written cannot be emptied either, and a file may be sealed against
        /// holes.
        Sealed => EPERM,
        /// A hole cannot be punched through a private or read-only mapping.
        AccessDenied => EACCES,
        /// A page to populate, or whose memory is to fail, cannot be accessed; or one of several ranges lies
        /// beyond user space.
        BadAccess => EFAULT,
        /// The memory of a page to populate failed.
        MemoryFailed => EHWPOISON,
        /// A page whose memory is to fail is in use in a way that forbids it; or one that was to become part
        /// of a huge page is missing, and a
        /// userfaultfd's pager supplies it.
        Busy => EBUSY,
        /// Memory is to fail, and no privilege.
        NotPermitted => EPERM,
        /// Secret memory has no holes.
        NotSupported => EOPNOTSUPP,
        /// The file failed.
        Io => EIO,
        /// A fatal signal arrived while waiting for the lock.
        Killed => EINTR,
    }
}

verb_error! {
    /// Why memory could not be locked or unlocked.
    MlockError {
        /// Unknown flags, a range beyond the last address, or a VMA that must not be cut.
        Invalid => EINVAL,
        /// RLIMIT_MEMLOCK is zero, and no privilege.
        NotPermitted => EPERM,
        /// More than RLIMIT_MEMLOCK.
        LockLimit => ENOMEM,
        /// A hole in the range; what lies before it was done.
        NotMapped => ENOMEM,
        /// Cutting a VMA would exceed the limit on VMAs.
        TooManyVmas => ENOMEM,
        /// No memory for the engine's own records.
        OutOfMemory => ENOMEM,
        /// Locked, but a page cannot be accessed and so not be brought in.
        NotAccessible => ENOMEM,
        /// Locked, but there is no memory for a page.
        OutOfFrames => EAGAIN,
        /// A fatal signal arrived while waiting for the lock.
        Killed => EINTR,
    }
}

verb_error! {
    /// Why pages could not be faulted in beforehand.
    PopulateError {
        /// A hole in the range.
        NotMapped => ENOMEM,
        /// The mapping does not allow the access that was asked for.
        NotPermitted => EINVAL,
        /// No access allowed, a guard, or beyond the end of a file.
        BadAccess => EFAULT,
        /// The memory of a page failed.
        MemoryFailed => EHWPOISON,
        /// No memory for pages or tables.
        OutOfMemory => ENOMEM,
        /// A fatal signal arrived while waiting for the lock.
        Killed => EINTR,
    }
}

verb_error! {
    /// Why a file was not written back.
    MsyncError {
        /// Unknown or contradictory flags, or an unaligned start.
        Invalid => EINVAL,
        /// A hole in the range, or a range beyond the last address.
        NotMapped => ENOMEM,
        /// To be invalidated, but locked.
        Locked => EBUSY,
        /// The file could not be written.
        Io => EIO,
        /// No memory for the engine's own records.
        OutOfMemory => ENOMEM,
        /// A fatal signal arrived while waiting for the lock.
        Killed => EINTR,
    }
}

verb_error! {
    /// Why it is not known which pages are in memory.
    MincoreError {
        /// Unaligned start, or less room for the answer than there are pages.
        Invalid => EINVAL,
        /// A hole in the range, or a range beyond the end of user space.
        NotMapped => ENOMEM,
        /// No memory for the engine's own records.
        OutOfMemory => ENOMEM,
        /// A fatal signal arrived while waiting for the lock.
        Killed => EINTR,
    }
}

verb_error! {
    /// Why a NUMA policy was not set.
    MbindError {
        /// Unaligned start, a range beyond the last address, or a VMA that must not be cut.
        Invalid => EINVAL,
        /// A hole in the range.
        NotMapped => EFAULT,
        /// Cutting a VMA would exceed the limit on VMAs.
        TooManyVmas => ENOMEM,
        /// No memory for the engine's own records.
        OutOfMemory => ENOMEM,
        /// A fatal signal arrived while waiting for the lock.
        Killed => EINTR,
    }
}

verb_error! {
    /// Why mappings were not sealed.
    MsealError {
        /// Unaligned start, a range beyond the last address, or a VMA that must not be cut.
        Invalid => EINVAL,
        /// A hole in the range; nothing was sealed.
        NotMapped => ENOMEM,
        /// Cutting a VMA would exceed the limit on VMAs.
        TooManyVmas => ENOMEM,
        /// No memory for the engine's own records.
        OutOfMemory => ENOMEM,
        /// A fatal signal arrived while waiting for the lock.
        Killed => EINTR,
    }
}

/// Why a file was not sealed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SealError {
    /// Unknown seals, or a file that cannot be sealed.
    Invalid,
    /// Sealed against more seals.
    Sealed,
    /// To be sealed against writing, and somebody maps it so that it can be written, or has a page of it.
    Busy,
}

impl SealError {
    /// The number a system call would return for this error.
    pub fn errno(self) -> Errno {
        match self {
            SealError::Invalid => Errno::EINVAL,
            SealError::Sealed => Errno::EPERM,
            SealError::Busy => Errno::EBUSY,
        }
    }
}

impl fmt::Display for SealError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

impl core::error::Error for SealError {}

verb_error! {
    /// Why other pages of a file could not be mapped in place of those there.
    RemapFilePagesError {
        /// An empty range or one that overflows, rights, a hole in the range, or something else there than
        /// one shared file; or a
        /// removed segment, which went with what was there.
        Invalid => EINVAL,
        /// Offset and length do not fit the file's largest size.
        OffsetOverflow => EOVERFLOW,
        /// More VMAs than the limit allows.
        TooManyVmas => ENOMEM,
        /// RLIMIT_AS, RLIMIT_DATA or the commit limit.
        Limit => ENOMEM,
        /// No memory for the engine's own records.
        OutOfMemory => ENOMEM,
        /// A sealed VMA in the way, a file that is sealed against writing, or locked memory without the
        /// right.
        NotPermitted => EPERM,
        /// More locked memory than RLIMIT_MEMLOCK.
        LockLimit => EAGAIN,
        /// The descriptor does not allow this access.
        AccessDenied => EACCES,
        /// A fatal signal arrived while waiting for the lock.
        Killed => EINTR,
    }
}

verb_error! {
    /// Why System V shared memory could not be attached.
    ShmatError {
        /// Unaligned address, REMAP without an address, or an address where something is or that does not
        /// fit.
        Invalid => EINVAL,
        /// The segment is destroyed.
        Removed => EIDRM,
        /// The segment belongs to another engine than the address space.
        OtherEngine => EXDEV,
        /// A fixed address below the minimum without privilege, or a sealed VMA in the way.
        NotPermitted => EPERM,
        /// No gap is large enough, or the range does not fit the address space.
        NoSpace => ENOMEM,
        /// More VMAs than the limit allows.
        TooManyVmas => ENOMEM,
        /// RLIMIT_AS, RLIMIT_DATA or the commit limit.
        Limit => ENOMEM,
        /// No memory for the engine's own records.
        OutOfMemory => ENOMEM,
        /// More locked memory than RLIMIT_MEMLOCK.
        LockLimit => EAGAIN,
        /// A fatal signal arrived while waiting for the lock.
        Killed => EINTR,
    }
}

verb_error! {
    /// Why System V shared memory could not be detached.
    ShmdtError {
        /// Unaligned, or nothing is attached there.
        Invalid => EINVAL,
        /// No memory for the engine's own records.
        OutOfMemory => ENOMEM,
        /// A fatal signal arrived while waiting for the lock.
        Killed => EINTR,
    }
}

verb_error! {
    /// Why a protection key was not allocated or freed.
    PkeyError {
        /// Unknown rights, or a key that is not allocated.
        Invalid => EINVAL,
        /// All keys are in use, or the machine has none.
        NoneLeft => ENOSPC,
        /// Never.
        OutOfMemory => ENOMEM,
        /// A fatal signal arrived while waiting for the lock.
        Killed => EINTR,
    }
}

verb_error! {
    /// Why a probe was not added or taken away.
    ProbeError {
        /// No bytes or more than sixteen, or bytes of two pages.
        Invalid => EINVAL,
        /// Beyond the end of the file.
        BeyondEnd => EINVAL,
        /// There is a probe already, at this place or overlapping it.
        Taken => EEXIST,
        /// The file itself has these bytes there.
        Unchanged => EOPNOTSUPP,
        /// No probe begins there.
        NotThere => ENOENT,
        /// The file could not be read.
        Io => EIO,
        /// No memory for the engine's own records, or for a process's copy of the page.
        OutOfMemory => ENOMEM,
        /// A fatal signal arrived while the file was read.
        Killed => EINTR,
    }
}
