//! Performs the load of `freehold reproduce reclaim` with the hot set on the host.
//!
//! The experiment compares policies of the engine. This program does the same in the memory of the host, for
//! a comparison by hand, because a memory group and a swap device need root. With a swap device in memory
//! (zram) and version 1 of memory groups:
//!
//! ```sh
//! cargo build --release -p freehold-reproduce --example hot_set_on_host
//! echo 256M > /sys/block/zram0/disksize && mkswap /dev/zram0 && swapon /dev/zram0
//! mkdir /sys/fs/cgroup/memory/hot && echo 66M > /sys/fs/cgroup/memory/hot/memory.limit_in_bytes
//! sh -c 'echo $$ > /sys/fs/cgroup/memory/hot/cgroup.procs; exec target/release/examples/hot_set_on_host 64'
//! ```
//!
//! The argument is the size of memory in MiB. The limit of the group is a little larger, because the program
//! itself needs some memory.

use anyhow::Context;

fn main() -> anyhow::Result<()> {
    let mib: u64 = std::env::args().nth(1).context("the size of memory in MiB is missing")?.parse()?;
    anyhow::ensure!(mib.is_power_of_two(), "{mib} MiB is not a power of two");
    let found = freehold_reproduce::hot_set_on_host(mib << 20)?;
    println!("hot set kept {:.1} %", 100.0 * found.hot);
    println!("faults per second {:.0}", found.faults);
    println!("faults that read a page, per access {:.1} %", 100.0 * found.reads);
    Ok(())
}
