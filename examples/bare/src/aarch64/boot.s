// The first instructions of each CPU, and the entry to and the return from user mode.
//
// `start` runs on one CPU, at exception level 1 and at the physical address. `start_second` runs on the other
// CPU; x0 is the number that the kernel gives to the CPU.

.section .start, "ax"
.global start
start:
    adrp x0, bss_begin
    add  x0, x0, :lo12:bss_begin
    adrp x1, bss_end
    add  x1, x1, :lo12:bss_end
1:  str  xzr, [x0], #8
    cmp  x0, x1
    b.lo 1b
    // The first entry of the root table points to the table of 1 GiB blocks.
    adrp x0, gigabyte_blocks
    orr  x0, x0, #3
    adrp x1, kernel_root
    str  x0, [x1]
    mov  x0, #0

.global start_second
start_second:
    mov  x19, x0
    // The kernel's root table also translates the lower half, until `upper` runs in the upper half.
    adrp x0, kernel_root
    msr  ttbr0_el1, x0
    msr  ttbr1_el1, x0
    // Memory types 0, 1 and 2: write-back, write-through, device.
    mov  x0, #0xbbff
    msr  mair_el1, x0
    ldr  x0, ={control}
    msr  tcr_el1, x0
    dsb  sy
    tlbi vmalle1
    dsb  sy
    isb
    // Turns on the MMU and the caches.
    mrs  x0, sctlr_el1
    mov  x1, #0x1005
    orr  x0, x0, x1
    msr  sctlr_el1, x0
    isb
    ldr  x0, =upper
    br   x0

.section .text
upper:
    // Each CPU has 64 KiB of stack.
    ldr  x0, =kernel_stacks_end
    sub  x0, x0, x19, lsl #16
    mov  sp, x0
    ldr  x0, =vectors
    msr  vbar_el1, x0
    msr  tpidr_el1, x19
    isb
    mov  x0, x19
    mov  x1, xzr
    bl   kernel_main

// run_program(registers) -> (esr, far): runs the program with these registers until its next exception. The
// kernel's registers are on its stack meanwhile, and the stack pointer of the kernel points to the program's
// registers.
.global run_program
run_program:
    stp  x19, x20, [sp, #-96]!
    stp  x21, x22, [sp, #16]
    stp  x23, x24, [sp, #32]
    stp  x25, x26, [sp, #48]
    stp  x27, x28, [sp, #64]
    stp  x29, x30, [sp, #80]
    mov  x9, sp
    mov  sp, x0
    ldp  x10, x11, [sp, #8 * 31]
    msr  elr_el1, x10
    msr  sp_el0, x11
    // User mode with all interrupts masked: this kernel has no source of interrupts.
    mov  x10, #0x3c0
    msr  spsr_el1, x10
    str  x9, [sp, #8 * 33]
.irp n, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30
    ldr  x\n, [sp, #8 * \n]
.endr
    eret

user_exception:
.irp n, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30
    str  x\n, [sp, #8 * \n]
.endr
    mrs  x10, elr_el1
    mrs  x11, sp_el0
    stp  x10, x11, [sp, #8 * 31]
    ldr  x9, [sp, #8 * 33]
    mov  sp, x9
    mrs  x0, esr_el1
    mrs  x1, far_el1
    ldp  x21, x22, [sp, #16]
    ldp  x23, x24, [sp, #32]
    ldp  x25, x26, [sp, #48]
    ldp  x27, x28, [sp, #64]
    ldp  x29, x30, [sp, #80]
    ldp  x19, x20, [sp], #96
    ret

// load_word(address) -> (value, 1): loads a word with the rights of a program. If the load faults, the second
// result is 0.
.global load_word
load_word:
    // Completes earlier stores to tables.
    dsb  ish
    isb
    mov  x1, #1
word:
    ldtr x0, [x0]
    ret

kernel_exception:
    mrs  x2, elr_el1
    adr  x0, word
    cmp  x0, x2
    b.ne 1f
    // Continues behind the load.
    add  x0, x0, #4
    msr  elr_el1, x0
    mov  x1, #0
    eret
1:  mrs  x0, esr_el1
    mrs  x1, far_el1
    mrs  x2, elr_el1
    bl   unexpected_exception

// Eight exceptions of the kernel, then those of 64-bit user mode, then those of 32-bit user mode.
.balign 0x800
vectors:
.rept 8
    b    kernel_exception
    .balign 0x80
.endr
.rept 4
    b    user_exception
    .balign 0x80
.endr
.rept 4
    b    kernel_exception
    .balign 0x80
.endr

// The kernel's half of the address space: blocks of 1 GiB, the memory from address 0 on. The first block has
// the devices.
.section .data
.balign 4096
.global kernel_root
kernel_root:
    .zero 4096
gigabyte_blocks:
    .quad 0x60000000000409
    .set n, 1
.rept 255
    .quad (n << 30) | 0x40000000000701
    .set n, n + 1
.endr
    .zero 2048
.global empty_root
empty_root:
    .zero 4096
