//! One small error enum per verb, and the only table that maps errors to errno numbers.
//!
//! A call that can fail returns the enum of its verb, with one variant for each cause that a caller can
//! distinguish. The method `errno` returns the number for a system call. The trait [`ToErrno`] returns the
//! same number, for code that is generic over the operation. This file has the errors of most calls of
//! `call/`, of mincore and population, and of seals and probes. The other errors are in `access.rs`,
//! `fill.rs`, `io.rs`, `migrate.rs`, `settings.rs` and `uffd.rs`. The errors of faults are in
//! `fault/outcome.rs`.
//!
//! The first paragraph of a variant's documentation is the message of the error. The paragraph must be one
//! sentence without links and without names in backticks; otherwise the build fails.
//!
//! This folder is the lowest layer and uses no other folder. Most conversions between errors of two calls are
//! in the file of the call that needs them. A new enum needs an entry in `tests/every_call/messages.rs`:
//! without the entry, `every_error_of_the_engine_is_covered` fails.

use freehold_sync::Killed;

pub use freehold_vmspace::NoMemory;

/// Implements [`ToErrno`] for errors by their own `errno`.
macro_rules! to_errno {
    ($($name:ty),*) => {$(
        impl $crate::error::ToErrno for $name {
            fn to_errno(&self) -> $crate::error::Errno {
                self.errno()
            }
        }
    )*};
}

/// Defines an error with its messages and its errno numbers. The other two macros also define conversions.
macro_rules! plain_error {
    ($(#[$meta:meta])* $name:ident { $($(#[doc = $doc:literal])+ $variant:ident => $errno:ident,)* }) => {
        freehold_sync::error_enum! {
            $(#[$meta])*
            #[non_exhaustive]
            pub enum $name { $($(#[doc = $doc])+ $variant,)* }
        }

        impl $name {
            /// Returns the number that a system call returns for this error.
            ///
            /// # Examples
            ///
            /// ```
            #[doc = concat!("# use freehold::error::{Errno, ", stringify!($name), "};")]
            $(#[doc = concat!(
                "assert_eq!(", stringify!($name), "::", stringify!($variant), ".errno(), Errno::",
                stringify!($errno), ");"
            )])*
            /// ```
            pub fn errno(self) -> Errno {
                match self { $(Self::$variant => Errno::$errno,)* }
            }
        }

        to_errno!($name);
    };
}

/// Defines an error of a verb that may run out of memory and that no signal interrupts. `NoMemory` converts
/// to the variant `OutOfMemory`.
macro_rules! unkillable_error {
    ($(#[$meta:meta])* $name:ident { $($(#[doc = $doc:literal])+ $variant:ident => $errno:ident,)* }) => {
        plain_error! { $(#[$meta])* $name { $($(#[doc = $doc])+ $variant => $errno,)* } }

        impl From<NoMemory> for $name {
            fn from(_: NoMemory) -> Self { Self::OutOfMemory }
        }
    };
}

/// Defines an error of a verb that may run out of memory, and that a fatal signal may interrupt. `NoMemory`
/// and `Killed` convert to the variants `OutOfMemory` and `Killed`. An operation with such an error may be
/// tried again. `no_space` is the variant that says that no addresses were free, if there is one.
macro_rules! verb_error {
    ($(#[$meta:meta])* $name:ident { $($(#[doc = $doc:literal])+ $variant:ident => $errno:ident,)* }
     $(no_space = $no_space:ident)?) => {
        unkillable_error! { $(#[$meta])* $name { $($(#[doc = $doc])+ $variant => $errno,)* } }

        impl From<Killed> for $name {
            fn from(_: Killed) -> Self { Self::Killed }
        }

        impl $crate::error::LacksMemory for $name {
            fn lacks_memory(&self) -> bool { *self == Self::OutOfMemory }
            $(fn lacks_addresses(&self) -> bool { *self == Self::$no_space })?
        }
    };
}

/// Error of an operation that is tried again after memory or addresses have become free
/// (`shortage.rs`).
pub(crate) trait LacksMemory: From<Killed> {
    /// Returns true if memory was short, and the failed attempt has changed nothing that another attempt
    /// would not find.
    fn lacks_memory(&self) -> bool;

    /// Returns true if no addresses were free, and the failed attempt has changed nothing.
    fn lacks_addresses(&self) -> bool {
        false
    }
}

mod access;
mod errno;
mod fill;
mod io;
mod migrate;
mod settings;
mod uffd;

pub use access::{AccessError, ArgumentsError, PinError, QueryError, StackMoveError};
pub use errno::{Errno, ToErrno};
pub use fill::FillError;
pub use io::IoError;
pub use migrate::MigrateError;
pub use settings::{
    BrkError, EngineError, HeapError, MdweError, MergeError, SoftDirtyError, SpaceError, SwapOffError,
    SwapOnError,
};
pub use uffd::{UffdError, UffdReadError, UffdRegisterError};

to_errno!(FillError, UffdReadError);

impl FillError {
    /// Returns the errno number of this error for system calls that read, write or truncate a file.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{error::{Errno, FillError}, file::{Mapping, Seals}};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// let file = Mapping::memfd(&engine, 8).unwrap();
    /// file.add_seals(Seals::SHRINK).unwrap();
    /// let error = file.truncate(4).unwrap_err();
    /// assert_eq!((error, error.errno()), (FillError::Sealed, Errno::EPERM));
    /// ```
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
    /// Reason why memory could not be mapped.
    MmapError {
        /// The mapping is neither anonymous nor of a file.
        BadDescriptor => EBADF,
        /// The length is zero, the offset or the fixed address is not page-aligned, or the flags are unknown
        /// or contradict each other.
        Invalid => EINVAL,
        /// The offset and the length exceed the largest size of a file.
        OffsetOverflow => EOVERFLOW,
        /// The range does not fit the address space, or no gap is large enough.
        NoSpace => ENOMEM,
        /// The limit on VMAs would be exceeded.
        TooManyVmas => ENOMEM,
        /// A limit on memory would be exceeded: RLIMIT_AS, RLIMIT_DATA or the commit limit.
        Limit => ENOMEM,
        /// The pool has fewer huge pages than the mapping reserves.
        NoHugePages => ENOMEM,
        /// There is no memory for the engine's records.
        OutOfMemory => ENOMEM,
        /// Another mapping lies in the range of MAP_FIXED_NOREPLACE.
        Occupied => EEXIST,
        /// The caller lacks the privilege to lock memory or to map such a low address, a VMA in the range is
        /// sealed, or the file is sealed against writing.
        NotPermitted => EPERM,
        /// More memory would be locked than RLIMIT_MEMLOCK allows.
        LockLimit => EAGAIN,
        /// The file is not open for this access.
        AccessDenied => EACCES,
        /// A flag given with MAP_SHARED_VALIDATE is unknown.
        UnknownFlag => EOPNOTSUPP,
        /// The file cannot be mapped, or cannot be mapped in this way without an MMU.
        NotMappable => ENODEV,
        /// The file's driver cannot map this range now.
        NotReady => EAGAIN,
        /// The file could not be read for a mapping without an MMU.
        Io => EIO,
        /// The file or special mapping belongs to another engine than the address space.
        OtherEngine => EXDEV,
        /// A fatal signal arrived while waiting for the lock.
        Killed => EINTR,
    }
    no_space = NoSpace
}

verb_error! {
    /// Reason why memory could not be unmapped.
    MunmapError {
        /// The start is not page-aligned, the length is zero, or the range leaves user space.
        Invalid => EINVAL,
        /// The limit on VMAs would be exceeded by splitting one in two.
        TooManyVmas => ENOMEM,
        /// There is no memory for the engine's records.
        OutOfMemory => ENOMEM,
        /// A VMA in the range is sealed.
        Sealed => EPERM,
        /// A VMA at the edge of the range must not be split.
        NotSplittable => EINVAL,
        /// A fatal signal arrived while waiting for the lock.
        Killed => EINTR,
    }
}

verb_error! {
    /// Reason why a mapping could not be resized or moved.
    MremapError {
        /// The flags, addresses or lengths are invalid, the ranges overlap, or the VMA can be neither
        /// duplicated nor split.
        Invalid => EINVAL,
        /// Nothing is mapped at the address, or the range leaves its VMA.
        NotMapped => EFAULT,
        /// This kind of mapping cannot grow.
        NotExpandable => EFAULT,
        /// The mapping has no room to grow in place, and it may not move or there is no place to move it to.
        NoSpace => ENOMEM,
        /// The number of VMAs is too close to its limit, or a split would exceed it.
        TooManyVmas => ENOMEM,
        /// A limit on memory would be exceeded: RLIMIT_AS, RLIMIT_DATA or the commit limit.
        Limit => ENOMEM,
        /// There is no memory for records or page tables.
        OutOfMemory => ENOMEM,
        /// More memory would be locked than RLIMIT_MEMLOCK allows.
        LockLimit => EAGAIN,
        /// A VMA is sealed, or the caller lacks the privilege to map such a low address.
        NotPermitted => EPERM,
        /// A fatal signal arrived while waiting for the lock.
        Killed => EINTR,
    }
    no_space = NoSpace
}

verb_error! {
    /// Reason why an address space could not be copied.
    ForkError {
        /// There is no memory for records or page tables.
        OutOfMemory => ENOMEM,
        /// The commit limit would be exceeded.
        Limit => ENOMEM,
        /// A fatal signal arrived while waiting for a lock, or pages of a killed process were removed.
        Killed => EINTR,
    }
}

verb_error! {
    /// Reason why access rights could not be changed.
    MprotectError {
        /// The start is not page-aligned, the rights are unknown, or no VMA grows in the requested direction.
        Invalid => EINVAL,
        /// The range has a hole, or ends beyond the last address.
        NotMapped => ENOMEM,
        /// The mapping may not have one of these rights.
        AccessDenied => EACCES,
        /// A VMA in the range is sealed.
        Sealed => EPERM,
        /// A limit on memory would be exceeded: RLIMIT_DATA or the commit limit.
        Limit => ENOMEM,
        /// The limit on VMAs would be exceeded by splitting one.
        TooManyVmas => ENOMEM,
        /// There is no memory for the engine's records.
        OutOfMemory => ENOMEM,
        /// A fatal signal arrived while waiting for the lock.
        Killed => EINTR,
    }
}

verb_error! {
    /// Reason why an advice was not followed.
    MadviseError {
        /// The advice is unknown, the start is not page-aligned, the range ends beyond the last address, or
        /// this kind of mapping does not support the advice.
        Invalid => EINVAL,
        /// The range has a hole; the advice was applied to the rest of the range, unless the advice populates
        /// pages or injects failures.
        NotMapped => ENOMEM,
        /// A VMA could not be split because of the limit on VMAs or for lack of memory.
        NotCut => EAGAIN,
        /// A page that was to become part of a huge page is in use outside page tables.
        InUse => EAGAIN,
        /// There is no memory for pages or page tables.
        OutOfMemory => ENOMEM,
        /// A VMA is sealed and not writable, or the file is sealed against holes.
        Sealed => EPERM,
        /// The mapping is private or read-only, so that no hole can be punched through it.
        AccessDenied => EACCES,
        /// A page cannot be accessed, or one of several ranges lies beyond user space.
        BadAccess => EFAULT,
        /// The memory of a page to populate has failed.
        MemoryFailed => EHWPOISON,
        /// A page into which a failure is to be injected is in use, or the pager of a userfaultfd has not
        /// supplied this page yet.
        Busy => EBUSY,
        /// The caller is not permitted to inject memory failures.
        NotPermitted => EPERM,
        /// Secret memory cannot have holes.
        NotSupported => EOPNOTSUPP,
        /// The file could not be read or written.
        Io => EIO,
        /// A fatal signal arrived while waiting for the lock.
        Killed => EINTR,
    }
}

verb_error! {
    /// Reason why memory could not be locked or unlocked.
    MlockError {
        /// The flags are unknown, the range ends beyond the last address, or a VMA must not be split.
        Invalid => EINVAL,
        /// The caller may not lock memory, because RLIMIT_MEMLOCK is zero.
        NotPermitted => EPERM,
        /// More memory would be locked than RLIMIT_MEMLOCK allows.
        LockLimit => ENOMEM,
        /// The range has a hole; the part before the hole was locked or unlocked.
        NotMapped => ENOMEM,
        /// The limit on VMAs would be exceeded by splitting one.
        TooManyVmas => ENOMEM,
        /// There is no memory for the engine's records.
        OutOfMemory => ENOMEM,
        /// A page cannot be accessed and was not populated; the range is locked.
        NotAccessible => ENOMEM,
        /// There is no memory for a page; the range is locked.
        OutOfFrames => EAGAIN,
        /// A fatal signal arrived while waiting for the lock.
        Killed => EINTR,
    }
}

verb_error! {
    /// Reason why pages could not be populated.
    PopulateError {
        /// The range has a hole.
        NotMapped => ENOMEM,
        /// The mapping does not allow this access.
        NotPermitted => EINVAL,
        /// A page cannot be accessed, is a guard, or lies beyond the end of its file.
        BadAccess => EFAULT,
        /// The memory of a page has failed.
        MemoryFailed => EHWPOISON,
        /// There is no memory for pages or page tables.
        OutOfMemory => ENOMEM,
        /// A fatal signal arrived while waiting for the lock.
        Killed => EINTR,
    }
}

verb_error! {
    /// Reason why a file was not written back.
    MsyncError {
        /// The flags are unknown or contradict each other, or the start is not page-aligned.
        Invalid => EINVAL,
        /// The range has a hole, or ends beyond the last address.
        NotMapped => ENOMEM,
        /// The range was to be invalidated, but is locked.
        Locked => EBUSY,
        /// The file could not be written.
        Io => EIO,
        /// There is no memory for the engine's records.
        OutOfMemory => ENOMEM,
        /// A fatal signal arrived while waiting for the lock.
        Killed => EINTR,
    }
}

verb_error! {
    /// Reason why the resident pages could not be reported.
    MincoreError {
        /// The start is not page-aligned, or the buffer has fewer bytes than the range has pages.
        Invalid => EINVAL,
        /// The range has a hole, or ends beyond user space.
        NotMapped => ENOMEM,
        /// There is no memory for the engine's records.
        OutOfMemory => ENOMEM,
        /// A fatal signal arrived while waiting for the lock.
        Killed => EINTR,
    }
}

verb_error! {
    /// Reason why a NUMA policy was not set.
    MbindError {
        /// The start is not page-aligned, the range ends beyond the last address, or a VMA must not be split.
        Invalid => EINVAL,
        /// The range has a hole.
        NotMapped => EFAULT,
        /// The limit on VMAs would be exceeded by splitting one.
        TooManyVmas => ENOMEM,
        /// There is no memory for the engine's records.
        OutOfMemory => ENOMEM,
        /// A fatal signal arrived while waiting for the lock.
        Killed => EINTR,
    }
}

verb_error! {
    /// Reason why mappings were not sealed.
    MsealError {
        /// The start is not page-aligned, the range ends beyond the last address, or a VMA must not be split.
        Invalid => EINVAL,
        /// The range has a hole; nothing was sealed.
        NotMapped => ENOMEM,
        /// The limit on VMAs would be exceeded by splitting one.
        TooManyVmas => ENOMEM,
        /// There is no memory for the engine's records.
        OutOfMemory => ENOMEM,
        /// A fatal signal arrived while waiting for the lock.
        Killed => EINTR,
    }
}

plain_error! {
    /// Reason why a file was not sealed.
    SealError {
        /// The seals are unknown, or the file cannot be sealed.
        Invalid => EINVAL,
        /// The file is sealed against more seals.
        Sealed => EPERM,
        /// The file cannot be sealed against writing while it is mapped for writing or its pages are in use.
        Busy => EBUSY,
    }
}

verb_error! {
    /// Reason why a mapping of a file could not be replaced by a mapping of other pages of the file.
    RemapFilePagesError {
        /// The range is empty or overflows, rights were given, or the range is not a mapping of one shared
        /// file.
        ///
        /// A removed segment that is attached only in the range also causes this error.
        Invalid => EINVAL,
        /// The offset and the length exceed the largest size of a file.
        OffsetOverflow => EOVERFLOW,
        /// The limit on VMAs would be exceeded.
        TooManyVmas => ENOMEM,
        /// A limit on memory would be exceeded: RLIMIT_AS, RLIMIT_DATA or the commit limit.
        Limit => ENOMEM,
        /// There is no memory for the engine's records.
        OutOfMemory => ENOMEM,
        /// A VMA in the range is sealed, the file is sealed against writing, or the caller may not lock
        /// memory.
        NotPermitted => EPERM,
        /// More memory would be locked than RLIMIT_MEMLOCK allows.
        LockLimit => EAGAIN,
        /// The file is not open for this access.
        AccessDenied => EACCES,
        /// A fatal signal arrived while waiting for the lock.
        Killed => EINTR,
    }
}

plain_error! {
    /// Reason why the pages of a file were not written back.
    SyncError {
        /// A page could not be written, or a dirty page was lost.
        Io => EIO,
        /// A fatal signal arrived while waiting for writes.
        Killed => EINTR,
    }
}

impl From<Killed> for SyncError {
    fn from(_: Killed) -> Self {
        SyncError::Killed
    }
}

verb_error! {
    /// Reason why System V shared memory could not be attached.
    ShmatError {
        /// The address is missing, is not page-aligned, does not fit, or another mapping is there.
        Invalid => EINVAL,
        /// The segment is destroyed.
        Removed => EIDRM,
        /// The segment belongs to another engine than the address space.
        OtherEngine => EXDEV,
        /// The caller lacks the privilege to map such a low address, or a VMA in the range is sealed.
        NotPermitted => EPERM,
        /// No gap is large enough, or the range does not fit the address space.
        NoSpace => ENOMEM,
        /// The limit on VMAs would be exceeded.
        TooManyVmas => ENOMEM,
        /// A limit on memory would be exceeded: RLIMIT_AS, RLIMIT_DATA or the commit limit.
        Limit => ENOMEM,
        /// There is no memory for the engine's records.
        OutOfMemory => ENOMEM,
        /// More memory would be locked than RLIMIT_MEMLOCK allows.
        LockLimit => EAGAIN,
        /// A fatal signal arrived while waiting for the lock.
        Killed => EINTR,
    }
    no_space = NoSpace
}

verb_error! {
    /// Reason why System V shared memory could not be detached.
    ShmdtError {
        /// The address is not page-aligned, or nothing is attached there.
        Invalid => EINVAL,
        /// There is no memory for the engine's records.
        OutOfMemory => ENOMEM,
        /// A fatal signal arrived while waiting for the lock.
        Killed => EINTR,
    }
}

verb_error! {
    /// Reason why a protection key was not allocated or freed.
    PkeyError {
        /// The rights are unknown, or the key is not allocated.
        Invalid => EINVAL,
        /// All keys are in use, or the machine has none.
        NoneLeft => ENOSPC,
        /// There is no memory left.
        ///
        /// No call returns this error.
        OutOfMemory => ENOMEM,
        /// A fatal signal arrived while waiting for the lock.
        Killed => EINTR,
    }
}

verb_error! {
    /// Reason why a probe was not added or removed.
    ProbeError {
        /// The probe has no bytes, has more than sixteen, or crosses a page boundary.
        Invalid => EINVAL,
        /// The place lies beyond the end of the file.
        BeyondEnd => EINVAL,
        /// Another probe is at this place, or overlaps it.
        Taken => EEXIST,
        /// The file already contains the bytes of the probe there.
        Unchanged => EOPNOTSUPP,
        /// No probe begins there.
        NotThere => ENOENT,
        /// The file could not be read.
        Io => EIO,
        /// There is no memory for the engine's records, or for a process's copy of the page.
        OutOfMemory => ENOMEM,
        /// A fatal signal arrived while the file was read.
        Killed => EINTR,
    }
}
