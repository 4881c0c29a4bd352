//! The program that runs in user mode. It tests its own memory, and prints a line after each test.
//!
//! The last three tests use two threads on two CPUs: while one thread stores to a page, the other thread
//! changes the rights of the page, forks, and unmaps the page. A store that succeeds after the change has
//! used a translation that the change should have removed from the TLB of the other CPU.
#![cfg_attr(target_os = "none", no_std, no_main)]
#![cfg_attr(target_os = "none", expect(unsafe_code, reason = "makes system calls and accesses raw memory"))]

#[cfg(not(target_os = "none"))]
fn main() {
    println!("This program runs on a kernel for bare metal: cargo xtask bare");
}

#[cfg(target_os = "none")]
mod bare {
    use core::arch::{asm, global_asm};
    use core::hint::spin_loop;
    use core::panic::PanicInfo;

    const PAGE: u64 = 4096;
    const READ: u64 = 1;
    const RW: u64 = 3;
    const SHARED: u64 = 1;
    const PRIVATE: u64 = 2;
    const ANON: u64 = 0x22;
    const FIXED: u64 = 0x10;

    // `start` calls `main`. `load` and `store` return the loaded or stored byte, or 256 after a fault that has
    // no page: the kernel then continues the program at `fault`.
    #[cfg(target_arch = "riscv64")]
    global_asm!(
        ".section .start, \"ax\"",
        "start: call main",
        ".section .text",
        "load: lbu a0, (a0)",
        "ret",
        "store: sb a1, (a0)",
        "mv a0, a1",
        "ret",
        "fault: li a0, 256",
        "ret"
    );
    #[cfg(target_arch = "aarch64")]
    global_asm!(
        ".section .start, \"ax\"",
        "start: bl main",
        ".section .text",
        "load: ldrb w0, [x0]",
        "ret",
        "store: strb w1, [x0]",
        "mov x0, x1",
        "ret",
        "fault: mov x0, #256",
        "ret"
    );

    unsafe extern "C" {
        safe fn load(addr: u64) -> u64;
        safe fn store(addr: u64, value: u64) -> u64;
        safe fn fault();
    }
    /// The result of `load` and `store` after a fault that has no page.
    const FAULT: u64 = 256;

    fn call(number: u64, [a, b, c, d, e]: [u64; 5]) -> u64 {
        let result;
        // SAFETY: the kernel changes no memory of Rust values.
        unsafe {
            #[cfg(target_arch = "riscv64")]
            asm!("ecall", inout("a0") a => result, in("a1") b, in("a2") c, in("a3") d, in("a4") e,
                 in("a7") number);
            #[cfg(target_arch = "aarch64")]
            asm!("svc #0", inout("x0") a => result, in("x1") b, in("x2") c, in("x3") d, in("x4") e,
                 in("x8") number);
        }
        result
    }

    fn print(text: &str) {
        call(0, [text.as_ptr() as u64, text.len() as u64, 0, 0, 0]);
    }

    fn exit(status: u64) -> ! {
        call(1, [status, 0, 0, 0, 0]);
        unreachable!()
    }

    /// Maps pages; `file` 0 is no file.
    fn mmap(addr: u64, pages: u64, prot: u64, flags: u64, file: u64) -> u64 {
        let at = call(2, [addr, pages * PAGE, prot, flags, file]);
        assert!(at < 1 << 63);
        at
    }

    fn munmap(addr: u64, pages: u64) {
        assert!(call(3, [addr, pages * PAGE, 0, 0, 0]) == 0);
    }

    fn mprotect(addr: u64, pages: u64, prot: u64) {
        assert!(call(4, [addr, pages * PAGE, prot, 0, 0]) == 0);
    }

    /// Runs `f` in a child, which ends with the result.
    fn fork(f: impl FnOnce() -> bool) {
        let result = call(5, [0; 5]);
        assert!(result < 2);
        if result == 0 {
            exit(if f() { 0 } else { 1 });
        }
    }

    /// Waits until a child or a thread has ended without a failure.
    fn wait() {
        assert!(call(6, [0; 5]) == 0);
    }

    /// Runs `f(argument)` in a thread with a stack of its own.
    fn thread(f: extern "C" fn(u64) -> !, argument: u64) {
        let stack = mmap(0, 8, RW, ANON, 0) + 8 * PAGE;
        assert!(call(7, [f as *const () as u64, stack, argument, 0, 0]) == 0);
    }

    #[panic_handler]
    fn panic(info: &PanicInfo<'_>) -> ! {
        print("a test of the program failed in line:");
        let (mut digits, mut line) = ([b'0'; 4], info.location().map_or(0, |place| place.line()));
        for digit in digits.iter_mut().rev() {
            *digit += (line % 10) as u8;
            line /= 10;
        }
        print(core::str::from_utf8(&digits).unwrap_or(""));
        exit(1)
    }

    #[unsafe(no_mangle)]
    extern "C" fn main() -> ! {
        call(8, [fault as *const () as u64, 0, 0, 0, 0]);
        demand_faults();
        fork_and_copy();
        files();
        rights();
        unmapping();
        two_cpus_fault();
        stores_end_when_rights_change();
        a_child_does_not_see_later_stores();
        stores_end_when_the_page_is_unmapped();
        exit(0)
    }

    fn demand_faults() {
        let at = mmap(0, 512, RW, ANON, 0);
        for page in (0..512).step_by(2) {
            assert!(load(at + page * PAGE) == 0);
        }
        for page in 0..512 {
            assert!(store(at + page * PAGE, page % 251) == page % 251);
        }
        for page in 0..512 {
            assert!(load(at + page * PAGE) == page % 251 && load(at + page * PAGE + 1) == 0);
        }
        munmap(at, 512);
        print("demand faults: 512 pages");
    }

    fn fork_and_copy() {
        let at = mmap(0, 64, RW, ANON, 0);
        for page in 0..64 {
            store(at + page * PAGE, 1);
        }
        fork(|| {
            let old = (0..64).all(|page| load(at + page * PAGE) == 1);
            (0..64).for_each(|page| _ = store(at + page * PAGE, 2));
            old && (0..64).all(|page| load(at + page * PAGE) == 2)
        });
        // The child has either copied a page before these stores, or it still finds the old contents.
        for page in 32..64 {
            store(at + page * PAGE, 3);
        }
        wait();
        for page in 0..64 {
            assert!(load(at + page * PAGE) == if page < 32 { 1 } else { 3 });
        }
        munmap(at, 64);
        print("fork: parent and child have pages of their own");
    }

    fn files() {
        let private = mmap(0, 64, RW, PRIVATE, 1);
        let other = mmap(0, 64, READ, PRIVATE, 1);
        for page in 0..64 {
            assert!(load(private + page * PAGE + 17) == page + 1);
        }
        store(private + 5 * PAGE, 99);
        assert!(load(private + 5 * PAGE) == 99 && load(private + 5 * PAGE + 1) == 6);
        assert!(load(other + 5 * PAGE) == 6 && store(other, 1) == FAULT);
        let shared = mmap(0, 16, RW, SHARED, 2);
        fork(|| store(shared + 3 * PAGE, 7) == 7 && load(private + 5 * PAGE) == 99);
        wait();
        assert!(load(shared + 3 * PAGE) == 7 && load(shared) == 0);
        munmap(private, 64);
        munmap(other, 64);
        munmap(shared, 16);
        print("files: private stores stay private, shared stores are shared");
    }

    fn rights() {
        let at = mmap(0, 4, RW, ANON, 0);
        store(at + PAGE, 5);
        mprotect(at + PAGE, 2, READ);
        assert!(store(at + PAGE, 6) == FAULT && store(at + 2 * PAGE, 6) == FAULT);
        assert!(load(at + PAGE) == 5 && store(at, 6) == 6 && store(at + 3 * PAGE, 6) == 6);
        mprotect(at + PAGE, 1, 0);
        assert!(load(at + PAGE) == FAULT);
        mprotect(at + PAGE, 2, RW);
        assert!(load(at + PAGE) == 5 && store(at + PAGE, 6) == 6 && store(at + 2 * PAGE, 6) == 6);
        munmap(at, 4);
        // The program's own code is read-only.
        assert!(store(0x40_0000, 0) == FAULT);
        print("mprotect: stores without permission fault");
    }

    fn unmapping() {
        let at = mmap(0, 300, RW, ANON, 0);
        (0..300).for_each(|page| _ = store(at + page * PAGE, 1));
        munmap(at + PAGE, 298);
        assert!(load(at) == 1 && load(at + PAGE) == FAULT && load(at + 298 * PAGE) == FAULT);
        assert!(load(at + 299 * PAGE) == 1);
        munmap(at, 300);
        assert!(load(at) == FAULT && load(at + 299 * PAGE) == FAULT);
        print("munmap: loads from unmapped pages fault");
    }

    /// Stores to the first byte of each of 1024 pages, and to a byte of its own for each thread.
    fn fill(at: u64, thread: u64) {
        for page in 0..1024 {
            store(at + page * PAGE + thread, thread);
        }
    }

    fn two_cpus_fault() {
        extern "C" fn second(at: u64) -> ! {
            fill(at, 2);
            exit(0)
        }
        let at = mmap(0, 1024, RW, ANON, 0);
        thread(second, at);
        fill(at, 1);
        wait();
        for page in 0..1024 {
            assert!(load(at + page * PAGE + 1) == 1 && load(at + page * PAGE + 2) == 2);
        }
        munmap(at, 1024);
        print("two CPUs fault in the same 1024 pages");
    }

    /// Stores 1, 2, 3 and so on to the first byte of the first page until the first byte of the second page
    /// is set. A store without a page has no effect.
    extern "C" fn count(at: u64) -> ! {
        for number in 0.. {
            store(at, number % 256);
            if load(at + PAGE) == 1 {
                break;
            }
        }
        exit(0)
    }

    /// Starts a thread that executes `count`, and waits for its first store.
    fn start_count() -> u64 {
        let at = mmap(0, 2, RW, ANON, 0);
        thread(count, at);
        changes(at);
        at
    }

    fn stop_count(at: u64) {
        store(at + PAGE, 1);
        wait();
        munmap(at, 2);
    }

    /// Waits until the byte changes. The thread must be running on the other CPU, because this thread keeps
    /// its CPU.
    fn changes(at: u64) {
        let old = load(at);
        while load(at) == old {
            spin_loop();
        }
    }

    /// Returns true if the byte stays the same for some time.
    fn stays(at: u64) -> bool {
        let old = load(at);
        (0..2000).all(|_| load(at) == old)
    }

    fn stores_end_when_rights_change() {
        let at = start_count();
        for _ in 0..100 {
            mprotect(at, 1, READ);
            assert!(stays(at));
            mprotect(at, 1, RW);
            changes(at);
        }
        stop_count(at);
        print("mprotect: the other CPU's stores end at once, 100 times");
    }

    fn a_child_does_not_see_later_stores() {
        let at = start_count();
        for _ in 0..10 {
            fork(|| stays(at));
            changes(at);
            // The child runs after the other thread has ended, or on this CPU while the thread runs.
            wait();
        }
        stop_count(at);
        print("fork: the child does not see later stores of the other CPU, 10 times");
    }

    fn stores_end_when_the_page_is_unmapped() {
        let at = start_count();
        let other = mmap(0, 1, RW, ANON, 0);
        for _ in 0..100 {
            munmap(at, 1);
            // The next page that is allocated may have the frame of the unmapped page.
            store(other, 77);
            assert!(stays(other) && load(at) == FAULT);
            munmap(other, 1);
            mmap(other, 1, RW, ANON | FIXED, 0);
            mmap(at, 1, RW, ANON | FIXED, 0);
            changes(at);
        }
        stop_count(at);
        munmap(other, 1);
        print("munmap: the other CPU's stores end at once, 100 times");
    }
}
