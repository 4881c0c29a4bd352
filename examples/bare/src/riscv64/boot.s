# The first instructions of each CPU, and the entry to and the return from user mode.
#
# `start` runs on one CPU, in supervisor mode, at the physical address; a0 is the number of the hart.
# `start_second` runs on the other CPU; a1 is the number that the kernel gives to the CPU.

.section .start, "ax"
.global start
start:
    mv   s0, a0
    li   s1, 0
    la   t0, bss_begin
    la   t1, bss_end
1:  sd   zero, (t0)
    addi t0, t0, 8
    bltu t0, t1, 1b
    # The last entry of each upper table points to the next table, down to the table of 1 GiB pages.
    la   t1, kernel_root
    li   t2, {levels} - 3
1:  beqz t2, translate
    li   t0, 4096
    add  t3, t1, t0
    srli t0, t3, 2
    ori  t0, t0, 1
    sd   t0, -8(t3)
    mv   t1, t3
    addi t2, t2, -1
    j    1b

.global start_second
start_second:
    mv   s0, a0
    mv   s1, a1

translate:
    # Each CPU has 64 KiB of stack.
    la   sp, kernel_stacks_end
    slli t0, s1, 16
    sub  sp, sp, t0
    li   t1, {offset}
    add  sp, sp, t1
    la   t0, kernel_root
    srli t0, t0, 12
    li   t2, {mode}
    or   t2, t2, t0
    # The next instruction has no translation at its physical address. Its fault continues at stvec.
    la   t0, 2f
    add  t0, t0, t1
    csrw stvec, t0
    sfence.vma
    csrw satp, t2
.balign 4
2:  la   t0, kernel_trap
    csrw stvec, t0
    mv   tp, s1
    mv   a0, s1
    mv   a1, s0
    call kernel_main

.balign 4
kernel_trap:
    csrr a0, scause
    csrr a1, stval
    csrr a2, sepc
    call unexpected_trap

# run_program(registers) -> (scause, stval): runs the program with these registers until its next trap. The
# kernel's registers are on its stack meanwhile, and sscratch points to the program's registers.
.section .text
.global run_program
run_program:
    addi sp, sp, -112
    sd   ra, 0(sp)
    sd   tp, 8(sp)
.irp n, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11
    sd   s\n, 16 + 8 * \n(sp)
.endr
    sd   sp, 32 * 8(a0)
    csrw sscratch, a0
    la   t0, user_trap
    csrw stvec, t0
    ld   t0, 0(a0)
    csrw sepc, t0
.irp n, 1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31
    ld   x\n, 8 * \n(a0)
.endr
    ld   a0, 8 * 10(a0)
    sret

.balign 4
user_trap:
    csrrw a0, sscratch, a0
.irp n, 1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31
    sd   x\n, 8 * \n(a0)
.endr
    csrr t0, sscratch
    sd   t0, 8 * 10(a0)
    csrr t0, sepc
    sd   t0, 0(a0)
    la   t0, kernel_trap
    csrw stvec, t0
    ld   sp, 32 * 8(a0)
    ld   ra, 0(sp)
    ld   tp, 8(sp)
.irp n, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11
    ld   s\n, 16 + 8 * \n(sp)
.endr
    addi sp, sp, 112
    csrr a0, scause
    csrr a1, stval
    ret

# load_word(address) -> (value, 1): loads a word of a program. If the load faults, the second result is 0.
.global load_word
load_word:
    la   t0, no_word
    csrrw t1, stvec, t0
    li   a1, 1
    ld   a0, (a0)
1:  csrw stvec, t1
    ret
.balign 4
no_word:
    # The bit SPP is clear again, as `run_program` expects it.
    li   t0, 1 << 8
    csrc sstatus, t0
    li   a1, 0
    j    1b

# The kernel's half of the address space: 256 pages of 1 GiB, the memory from address 0 on. Entries have the
# bits D, A, G, X, W, R and V.
.section .data
.balign 4096
.global kernel_root
kernel_root:
    # The upper tables, one after the other.
    .zero 4096 * ({levels} - 3)
    .zero 2048
    .set n, 0
.rept 256
    .quad (n << 28) | 0xef
    .set n, n + 1
.endr
