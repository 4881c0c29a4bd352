use super::*;

fn area(start: u64, end: u64, name: &str) -> Area {
    let (name, thp_eligible) = (name.to_owned(), false);
    Area { start, end, prot: 1, shared: false, offset: 0, name, sizes: None, flags: None, thp_eligible }
}

#[test]
fn placing_begins_below_the_stack_at_the_end_of_the_loader() {
    let program = area(0x5555_0000_0000, 0x5555_0000_1000, "/bin/t");
    let loader = area(0x7f00_0000_0000, 0x7f00_0000_3000, "/lib/ld.so");
    let stack = area(0x7ffe_0000_0000, 0x7ffe_0002_0000, "[stack]");
    let vdso = area(0x7fff_0000_0000, 0x7fff_0000_2000, "[vdso]");
    let all = [program.clone(), loader, stack.clone(), vdso.clone()];
    assert_eq!(base_of(&all), Some(0x7f00_0000_3000));
    // A program without a loader, on a kernel that puts the vdso above the stack.
    assert_eq!(base_of(&[program.clone(), stack, vdso]), None);
    assert_eq!(base_of(&[program]), None);
    assert_eq!(base(&Start::Unknown), None);
}
