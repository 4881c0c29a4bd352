//! Tests how `layout.rs` derives the base and the direction of Linux's search for free space. A case is a
//! list of VMAs (`area`), as in the snapshot of an exec, and the expected base, or `None` if the VMAs do not
//! show the base.

use super::*;

fn area(start: u64, end: u64, name: &str) -> Area {
    let (name, thp_eligible) = (name.to_owned(), false);
    Area { start, end, prot: 1, shared: false, offset: 0, name, sizes: None, flags: None, thp_eligible }
}

#[test]
fn top_down_base_is_the_end_of_the_loader_below_the_stack() {
    let program = area(0x5555_0000_0000, 0x5555_0000_1000, "/bin/t");
    let loader = area(0x7f00_0000_0000, 0x7f00_0000_3000, "/lib/ld.so");
    let stack = area(0x7ffe_0000_0000, 0x7ffe_0002_0000, "[stack]");
    let vdso = area(0x7fff_0000_0000, 0x7fff_0000_2000, "[vdso]");
    let all = [program.clone(), loader, stack.clone(), vdso.clone()];
    assert_eq!(base_of(&all), Some((0x7f00_0000_3000, Layout::TopDown)));
    // A program without a loader, on a kernel that maps the vdso above the stack.
    assert_eq!(base_of(&[program.clone(), stack, vdso]), None);
    assert_eq!(base_of(&[program]), None);
    assert_eq!(base(&Start::Unknown), None);
}

#[test]
fn legacy_base_is_the_start_of_the_loader() {
    let program = area(0x5555_5555_4000, 0x5555_5555_6000, "/bin/t");
    let loader = area(LEGACY_BASE + 0x12_3000, LEGACY_BASE + 0x15_6000, "/lib/ld.so");
    let vdso = area(LEGACY_BASE + 0x15_6000, LEGACY_BASE + 0x15_8000, "[vdso]");
    let stack = area(0x7ffe_0000_0000, 0x7ffe_0002_0000, "[stack]");
    let all = [loader.clone(), vdso, program, stack];
    assert_eq!(base_of(&all), Some((loader.start, Layout::BottomUp)));
    // The loader lies below the range from which Linux draws the base, as in a program without a stack limit.
    let lower = area(0x1555_5552_0000, 0x1555_5555_6000, "/lib/ld.so");
    assert_eq!(base_of(&[lower, all[2].clone(), all[3].clone()]), None);
}
