//! Figures that were published with the steps.
//!
//! The experiments print these figures beside the measured figures, so that a reader can compare the
//! directions of the changes. The published absolute values come from other machines and are not expected to
//! match. `docs/guide/five-steps.md` describes the steps and names the publications. A figure must be as
//! published, in the unit that its comment states.

/// Step 0: size in GiB, microseconds of munmap before and after.
pub const MUNMAP: [(u64, f64, f64); 3] =
    [(80, 5_008_377.0, 4_905_841.0), (160, 9_129_243.0, 9_145_306.0), (320, 17_915_310.0, 17_990_174.0)];

/// Step 0: faults per second before and after.
pub const FAULTS: [(&str, f64, f64); 4] = [
    ("mmap-pread-seq", 554_894.0, 563_517.0),
    ("mmap-pread-seq-mt", 581_232.0, 580_772.0),
    ("mmap-xread-seq-mt", 99_182.0, 105_400.0),
    ("mmap-file", 100_165.0, 108_396.0),
];

/// Step 2: number of tasks, jobs per minute of alltests before and after the step, and jobs per minute of
/// disk before and after the step.
pub const JOBS: [(usize, [f64; 2], [f64; 2]); 9] = [
    (100, [17_918.72, 28_417.97], [7_582.14, 7_257.48]),
    (200, [16_529.39, 26_807.92], [6_962.44, 7_109.15]),
    (300, [16_591.17, 26_878.08], [6_435.93, 6_904.75]),
    (500, [16_593.17, 26_433.72], [6_353.42, 6_846.71]),
    (600, [16_508.56, 26_409.20], [6_368.82, 6_806.75]),
    (1000, [16_369.00, 26_195.76], [6_242.53, 6_855.11]),
    (1500, [16_168.06, 25_850.58], [6_139.81, 6_761.09]),
    (1600, [16_142.56, 25_767.42], [4_807.12, 6_725.33]),
    (2000, [16_007.26, 25_513.07], [4_668.36, 5_834.93]),
];

/// Step 3 with 48 processes: each figure with the lock of the file, and with a lock per VMA.
pub struct Hugetlb {
    /// Faults per second over the whole run.
    pub faults: [f64; 2],
    /// Number of waits in ten seconds.
    pub waits: [f64; 2],
    /// Total waiting time in ten seconds, in nanoseconds.
    pub waited: [f64; 2],
    /// Longest wait in two hours, in nanoseconds.
    pub longest: [f64; 2],
}

/// Published figures of step 3.
pub const HUGETLB: Hugetlb = Hugetlb {
    faults: [1_161_818.0, 1_476_668.0],
    waits: [28_129.0, 14_078.0],
    waited: [233_225e6, 18_144e6],
    longest: [2_010_000e3, 115_000e3],
};

/// Number of threads, faults per second of one processor before and after, and faults per second of the
/// machine before and after.
pub type PageFault = (usize, [f64; 2], [f64; 2]);

/// Published figures of step 4, with 56 processors.
pub const PAGE_FAULT: [PageFault; 8] = [
    (1, [507_926.55, 506_519.37], [507_566.15, 506_139.08]),
    (4, [479_119.71, 481_333.68], [1_880_478.24, 1_886_795.63]),
    (7, [452_880.30, 455_845.62], [3_106_394.34, 3_140_550.75]),
    (12, [347_639.10, 352_004.23], [4_061_358.48, 4_112_477.02]),
    (21, [200_061.22, 229_597.03], [3_988_619.12, 4_577_747.14]),
    (30, [145_251.20, 164_202.51], [3_909_839.54, 4_311_052.28]),
    (48, [106_848.44, 120_641.55], [4_761_108.47, 5_283_790.50]),
    (56, [92_472.38, 103_464.79], [4_885_561.46, 5_415_839.40]),
];
