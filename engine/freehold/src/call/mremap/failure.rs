//! Errors of the steps of mremap, as errors of mremap.

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
