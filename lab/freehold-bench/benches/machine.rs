//! The costs of the machine itself, to separate them from those of the engine.
//!
//! `cargo bench --bench machine`. Three groups: accesses through the TLB (hit, flush, fault), allocation and
//! contents of frames, and functions of the host (read sections, waiting). The engine runs on this machine,
//! so benches of the engine include these costs. The code under measurement is `freehold-machine`; no address
//! space exists, so [`setup`] writes the page table by hand. A new figure belongs in the function of its
//! group: `accesses`, `memory` or `host`. Names of figures contain the kind of memory, and whether oracles
//! are on.

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use freehold::platform::{FramePurpose, FrameRequest, Platform};
use freehold_machine::{Machine, MachineConfig, Mmu};
use freehold_pagetable::{Access, Flush, Format, Level, Levels, Pfn, PteFlags, TableMemory, VirtAddr, X86_4};
use freehold_sync::Host;
use freehold_sync::atomic::Ordering::SeqCst;
use std::hint::black_box;

/// The address of the first mapped page.
const AT: u64 = 0x40_0000;

/// A machine and a space with mapped pages.
struct Setup {
    machine: Machine,
    mmu: Mmu<X86_4>,
    /// The table of the mapped pages.
    leaves: Pfn,
}

/// Creates a space with one table of 512 mapped pages at `AT`.
fn setup(config: MachineConfig) -> Setup {
    let machine = Machine::new(config).unwrap();
    let mut table = machine.alloc_table(None).unwrap();
    let mmu = machine.space_created(table).unwrap();
    let address = VirtAddr::new(AT);
    for level in [Level::P4d, Level::Pud, Level::Pmd] {
        let next = machine.alloc_table(None).unwrap();
        machine.table(table).entry(address.index(level)).store(X86_4::table(next), SeqCst);
        table = next;
    }
    let mut frames = [Pfn::new(0); 512];
    assert_eq!(machine.alloc_frames(&FrameRequest::pages(FramePurpose::File), &mut frames), 512);
    for (index, frame) in frames.into_iter().enumerate() {
        let raw = X86_4::leaf(Level::Pte, frame, PteFlags::USER | PteFlags::WRITE);
        machine.table(table).entry(index).store(raw, SeqCst);
    }
    Setup { machine, mmu, leaves: table }
}

/// The handler of a fault that must not happen.
fn no_fault(address: VirtAddr, _: Access) -> Result<(), VirtAddr> {
    Err(address)
}

/// Measures accesses by a CPU.
fn accesses(c: &mut Criterion) {
    let kinds = [
        ("phantom", MachineConfig::phantom(1 << 30).fast()),
        ("backed", MachineConfig::backed(1 << 30).fast()),
        ("backed, oracles", MachineConfig::backed(1 << 30)),
    ];
    for (name, config) in kinds {
        let Setup { machine, mmu, leaves } = setup(config);
        let mut cpu = machine.cpu(0);
        let mut page = 0;
        c.bench_function(&format!("touch, hit ({name})"), |b| {
            b.iter(|| {
                page = (page + 1) % 64;
                cpu.touch(&mmu, AT + page * 4096, Access::WRITE, no_fault)
            })
        });
        c.bench_function(&format!("load u64, hit ({name})"), |b| {
            b.iter(|| cpu.load::<u64, _>(&mmu, black_box(AT + 8), no_fault))
        });
        c.bench_function(&format!("store u64, hit ({name})"), |b| {
            b.iter(|| cpu.store(&mmu, black_box(AT + 8), 1u64, no_fault))
        });
        let flush = |start: u64, len: u64, all| Flush {
            start: VirtAddr::new(start),
            end: VirtAddr::new(start + len),
            all,
            levels: Levels::of(Level::Pte),
            tables_freed: false,
        };
        c.bench_function(&format!("flush one page, touch it again ({name})"), |b| {
            b.iter(|| {
                machine.flush(&mmu, &flush(AT, 4096, false));
                cpu.touch(&mmu, AT, Access::READ, no_fault)
            })
        });
        c.bench_function(&format!("flush everything ({name})"), |b| {
            b.iter(|| machine.flush(&mmu, &flush(0, 0, true)))
        });
        let entry = machine.table(leaves).entry(0);
        c.bench_function(&format!("fault ({name})"), |b| {
            b.iter(|| {
                let raw = entry.swap(0, SeqCst);
                machine.flush(&mmu, &flush(AT, 4096, false));
                cpu.touch(&mmu, AT, Access::READ, |_, _| {
                    entry.store(raw, SeqCst);
                    Ok::<(), ()>(())
                })
            })
        });
    }
}

/// Measures frames and tables.
fn memory(c: &mut Criterion) {
    for (name, config) in [
        ("phantom", MachineConfig::phantom(64 << 30).fast()),
        ("phantom, oracles", MachineConfig::phantom(64 << 30)),
        ("backed, oracles", MachineConfig::backed(1 << 30)),
    ] {
        let machine: Machine = Machine::new(config).unwrap();
        let mut group = c.benchmark_group(format!("alloc and free ({name})"));
        group.throughput(Throughput::Elements(64));
        group.bench_function("64 frames", |b| {
            let mut frames = [Pfn::new(0); 64];
            b.iter(|| {
                machine.alloc_frames(&FrameRequest::pages(FramePurpose::File), &mut frames);
                // SAFETY: just allocated and not in use.
                unsafe { machine.free_frames(&frames) }
            })
        });
        group.throughput(Throughput::Elements(1));
        group.bench_function("a table", |b| {
            b.iter(|| {
                let table = machine.alloc_table(None).unwrap();
                // SAFETY: just allocated and not in use.
                unsafe { machine.free_table(table) }
            })
        });
    }
}

/// Measures functions of the host.
fn host(c: &mut Criterion) {
    c.bench_function("with_cpu", |b| b.iter(|| <Machine>::with_cpu(black_box)));
    c.bench_function("rcu_read", |b| b.iter(<Machine>::rcu_read));
    c.bench_function("now_ns", |b| b.iter(<Machine>::now_ns));
    let word = freehold_sync::atomic::AtomicU32::new(0);
    c.bench_function("wake_one, no waiter", |b| b.iter(|| <Machine>::wake_one(&word)));
}

criterion_group! {
    name = benches;
    config = Criterion::default().sample_size(20);
    targets = host, memory, accesses
}
criterion_main!(benches);
