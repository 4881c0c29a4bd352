//! Conversions of errors: the steps of mremap fail with errors of munmap, of mmap's search for an address,
//! and of splits. `mod.rs` returns them as [`MremapError`]. The errno numbers must be those of mremap on
//! Linux; the model's `mremap.rs` also has these numbers.

use crate::{
    error::{MmapError, MremapError, MunmapError},
    space::change::split_merge::SplitMergeError,
};

impl From<MunmapError> for MremapError {
    fn from(error: MunmapError) -> Self {
        match error {
            MunmapError::Sealed => MremapError::NotPermitted,
            MunmapError::Invalid | MunmapError::NotSplittable => MremapError::Invalid,
            MunmapError::TooManyVmas => MremapError::TooManyVmas,
            MunmapError::OutOfMemory => MremapError::OutOfMemory,
            MunmapError::Killed => MremapError::Killed,
        }
    }
}

impl From<SplitMergeError> for MremapError {
    fn from(error: SplitMergeError) -> Self {
        MunmapError::from(error).into()
    }
}

impl From<MmapError> for MremapError {
    fn from(error: MmapError) -> Self {
        match error {
            MmapError::OutOfMemory => MremapError::OutOfMemory,
            _ => MremapError::NoSpace,
        }
    }
}
