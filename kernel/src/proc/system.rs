//! The files of /proc about the system as a whole: meminfo, cpuinfo, stat and similar. Texts have the form of
//! Linux, because programs parse them. Figures that the kernel does not count are 0 or fixed; stat shows all
//! time since the start as user time.
//!
//! `text.rs` calls the function of a file when the file is read, and holds no lock during the call. Functions
//! of other modules return the counts, and take their own locks. Counts of frames and of committed memory are
//! in pages of 4 KiB, counts of a pool in huge pages; meminfo shows kB.
//!
//! To add a file, add a line to [`FILES`]. To count a row of meminfo, add its name to `counted` in the
//! function `meminfo`; `MEMINFO` has the names of all rows. `cargo xtask kernel-tests corners` checks rows of
//! meminfo (`kernel/tests/programs/corners.c`). The other files have no test of their own.

use crate::arch::{clock, cpu, layout::Tables};
use crate::memory::{self, frames};
use crate::platform::{engine, swap};
use crate::process::{self, aging};
use alloc::format;
use alloc::string::String;
use core::arch::x86_64::{__cpuid, __cpuid_count};
use core::fmt::Write;
use freehold::PAGE_SIZE;
use freehold::hugetlb::HugePageSize;
use freehold::platform::Format;

/// The name of a file, and the function that makes its text.
pub type Text = (&'static str, fn() -> String);

/// The files, in the order in which a listing of /proc shows them.
pub const FILES: &[Text] = &[
    ("meminfo", meminfo),
    ("cpuinfo", cpuinfo),
    ("stat", stat),
    ("uptime", uptime),
    ("loadavg", || format!("0.00 0.00 0.00 1/{} 1\n", process::pids().len())),
    ("version", || "Linux version 6.12.0 (freehold) #1 SMP Freehold\n".into()),
    ("filesystems", || "nodev\ttmpfs\nnodev\tproc\nnodev\tsysfs\nnodev\tramfs\nnodev\thugetlbfs\n".into()),
    ("vmstat", vmstat),
    ("cmdline", || "\n".into()),
    ("swaps", swaps),
    ("devices", || "Character devices:\n  1 mem\n  5 /dev/tty\n  5 /dev/console\n".into()),
    ("partitions", || "major minor  #blocks  name\n".into()),
    ("modules", String::new),
    ("interrupts", String::new),
];

/// Rows of meminfo in kB. Programs expect all rows. Most figures are not counted and always 0.
const MEMINFO: &str = "MemTotal MemFree MemAvailable Buffers Cached SwapCached Active Inactive Active(anon) \
    Inactive(anon) Active(file) Inactive(file) Unevictable Mlocked SwapTotal SwapFree Dirty Writeback AnonPages \
    Mapped Shmem KReclaimable Slab SReclaimable SUnreclaim KernelStack PageTables CommitLimit Committed_AS \
    VmallocTotal VmallocUsed VmallocChunk AnonHugePages ShmemHugePages FileHugePages";

/// Returns the size of this number of pages in KiB.
fn kib(pages: u64) -> u64 {
    pages * (PAGE_SIZE >> 10)
}

/// Makes swaps.
fn swaps() -> String {
    let mut text = String::from("Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n");
    if let Some(usage) = swap::usage() {
        let (size, used) = (kib(usage.slots), kib(usage.used));
        let name = swap::NAME;
        let _ = writeln!(text, "{name:<40}partition\t{size}\t\t{used}\t\t{}", usage.priority);
    }
    text
}

/// Makes meminfo.
fn meminfo() -> String {
    let all = memory::total_bytes() >> 10;
    let free = (frames::free_count() * PAGE_SIZE) >> 10;
    let pool = engine().huge_pool(HugePageSize::Mib2).counts(None);
    let huge = (pool.total + pool.surplus) * 2048;
    let swap = swap::usage().unwrap_or_default();
    let counted = |name: &str| match name {
        "MemTotal" => all,
        "MemFree" | "MemAvailable" => free,
        "AnonPages" => (all - free).saturating_sub(huge),
        "SwapTotal" => kib(swap.slots),
        "SwapFree" => kib(swap.slots - swap.used),
        "CommitLimit" => crate::proc::settings::commit_limit() * 4,
        "Committed_AS" => engine().committed_pages().get() * 4,
        _ => 0,
    };
    let mut text = String::new();
    for name in MEMINFO.split_whitespace() {
        let _ = writeln!(text, "{:<16}{:>8} kB", format!("{name}:"), counted(name));
    }
    let counts = [
        ("HugePages_Total:", pool.total),
        ("HugePages_Free:", pool.free),
        ("HugePages_Rsvd:", pool.reserved),
        ("HugePages_Surp:", pool.surplus),
    ];
    for (name, count) in counts {
        let _ = writeln!(text, "{name:<16}{count:>8}");
    }
    let _ = writeln!(text, "Hugepagesize:       2048 kB\nHugetlb:        {huge:>8} kB");
    text
}

/// Names of the flags that CPUID leaf 1 returns in edx, one for each bit; a dash for a bit without a name.
const EDX: &str =
    "fpu - - pse tsc msr pae - cx8 apic - - - pge - cmov pat pse36 - - - - - mmx fxsr sse sse2 - ht";
/// Names of the flags that leaf 1 returns in ecx.
const ECX: &str =
    "pni - - - - - - - - ssse3 - - - cx16 - - - - - sse4_1 sse4_2 - - popcnt - aes - - avx - rdrand";
/// Names of the flags that leaf 7 returns in ecx.
const SEVEN: &str = "- - - pku ospke - - - - - - - - - - - la57";

/// Makes cpuinfo.
fn cpuinfo() -> String {
    let (vendor, leaf) = (__cpuid(0), __cpuid(1));
    let mut name = [0; 12];
    for (n, word) in [vendor.ebx, vendor.edx, vendor.ecx].iter().enumerate() {
        name[4 * n..4 * n + 4].copy_from_slice(&word.to_le_bytes());
    }
    let name = String::from_utf8_lossy(&name);
    let (family, model) = (leaf.eax >> 8 & 0xf, leaf.eax >> 4 & 0xf);
    let mut flags = String::new();
    let seven = if vendor.eax >= 7 { __cpuid_count(7, 0).ecx } else { 0 };
    for (word, names) in [(leaf.edx, EDX), (leaf.ecx, ECX), (seven, SEVEN)] {
        for (bit, name) in names.split(' ').enumerate() {
            if name != "-" && word >> bit & 1 != 0 {
                let _ = write!(flags, " {name}");
            }
        }
    }
    let mut text = String::new();
    for number in 0..cpu::count() {
        let _ = write!(
            text,
            "processor\t: {number}\nvendor_id\t: {name}\ncpu family\t: {family}\nmodel\t\t: {model}\n\
             model name\t: x86-64\nstepping\t: {}\ncpu MHz\t\t: 1000.000\ncache size\t: 512 KB\n\
             physical id\t: 0\nsiblings\t: {}\ncore id\t\t: {number}\ncpu cores\t: {}\nfpu\t\t: yes\n\
             flags\t\t:{flags} lm nx syscall\naddress sizes\t: 40 bits physical, {} bits virtual\n\n",
            leaf.eax & 0xf,
            cpu::count(),
            cpu::count(),
            Tables::USER_END.ilog2() + 1,
        );
    }
    text
}

/// Makes stat.
fn stat() -> String {
    let ticks = clock::now_ns() / 10_000_000;
    let mut text = format!("cpu  {ticks} 0 0 0 0 0 0 0 0 0\n");
    for number in 0..cpu::count() {
        let _ = writeln!(text, "cpu{number} {ticks} 0 0 0 0 0 0 0 0 0");
    }
    let count = process::pids().len();
    let _ = write!(
        text,
        "intr 0\nctxt 0\nbtime 0\nprocesses {count}\nprocs_running 1\nprocs_blocked 0\nsoftirq 0 0 0 0 0 0 0 0 0 0 0\n"
    );
    text
}

/// Makes uptime.
fn uptime() -> String {
    let hundredths = clock::now_ns() / 10_000_000;
    let (seconds, rest) = (hundredths / 100, hundredths % 100);
    format!("{seconds}.{rest:02} 0.00\n")
}

/// Makes vmstat.
fn vmstat() -> String {
    let free = frames::free_count();
    let [pages_in, pages_out] = swap::pages_in_and_out();
    let stats = engine().reclaim_stats();
    let (tested, freed) = (stats.reclaimed.tested, stats.reclaimed.freed);
    let [anon, shared, file] = stats.refaulted;
    let (refaulted, activated) = (anon + shared, aging::accessed_pages());
    format!(
        "nr_free_pages {free}\nnr_mlock 0\nworkingset_refault_anon {refaulted}\nworkingset_refault_file {file}\n\
         pgpgin 0\npgpgout 0\npswpin {pages_in}\npswpout {pages_out}\npgactivate {activated}\npgfault 0\n\
         pgmajfault 0\npgsteal_direct {freed}\npgscan_direct {tested}\noom_kill 0\nthp_fault_alloc 0\nthp_split_page 0\n\
         unevictable_pgs_culled 0\n"
    )
}
