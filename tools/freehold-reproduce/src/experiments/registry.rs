//! The list of all experiments. `lib.rs` plans and runs the experiments in this order; the command line and
//! the reports also use the list. `mod.rs` says what else a new experiment needs.

use super::{
    Experiment, fault_throughput, file_reads, hugetlb, i_mmap, mmap_churn, munmap_hold, munmap_stall,
    page_fault, reclaim, writers,
};

/// All experiments, in the order of the steps.
pub const ALL: [&dyn Experiment; 10] = [
    &munmap_hold::MunmapHold,
    &munmap_stall::MunmapStall,
    &fault_throughput::FaultThroughput,
    &i_mmap::IMmap,
    &hugetlb::Hugetlb,
    &page_fault::PageFault,
    &mmap_churn::MmapChurn,
    &writers::Writers,
    &file_reads::FileReads,
    &reclaim::Reclaim,
];
