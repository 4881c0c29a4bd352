# Ways into the kernel and out of it. Each way in pushes the same frame (`Frame` in `frame.rs`). Below the
# frame it pushes the 16 vector registers, because programs keep them over system calls and the kernel uses
# them. Interrupts are off. A trap continues in `trap.rs`, a system call in `calls/mod.rs`, and a new thread
# in `sched/scheduler.rs`.
#
# The numbers in this file are offsets in `Frame` and `Cpu`, and selectors of `descriptors.rs`. Change them
# together with those files. The test `registers` checks that programs keep their registers, and the test
# `canonical` checks returns to invalid addresses.
.section .text
.macro PUSH_REGISTERS
  push %rax
  push %rcx
  push %rdx
  push %rbx
  push %rbp
  push %rsi
  push %rdi
  push %r8
  push %r9
  push %r10
  push %r11
  push %r12
  push %r13
  push %r14
  push %r15
  sub $256, %rsp
  .irp n,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15
  movaps %xmm\n, \n*16(%rsp)
  .endr
  lea 256(%rsp), %rdi
.endm
.macro POP_REGISTERS
  .irp n,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15
  movaps \n*16(%rsp), %xmm\n
  .endr
  add $256, %rsp
  pop %r15
  pop %r14
  pop %r13
  pop %r12
  pop %r11
  pop %r10
  pop %r9
  pop %r8
  pop %rdi
  pop %rsi
  pop %rbp
  pop %rbx
  pop %rdx
  pop %rcx
  pop %rax
.endm

# One stub of 16 bytes for each vector. The processor pushes an error code for some of them.
.balign 16
.global trap_stubs
trap_stubs:
  .set v, 0
  .rept 256
  .balign 16
  .set has_error, (v == 8) || (v >= 10 && v <= 14) || (v == 17) || (v == 21) || (v == 29) || (v == 30)
  .if !has_error
    push $0
  .endif
    push $v
    jmp trap_entry
  .set v, v + 1
  .endr

.balign 16
trap_entry:
  testb $3, 24(%rsp)
  jz 1f
  swapgs
1:
  PUSH_REGISTERS
  xor %ebp, %ebp
  cld
  call trap
# rax is the address of the next instruction. An address in a program is a `UserAddr`. `iretq` and `sysretq`
# load this address. A new thread also enters user mode for the first time here.
return_by_iret:
  mov %rax, 392(%rsp)           # Frame::rip
  POP_REGISTERS
  testb $3, 24(%rsp)
  jz 1f
  swapgs
1:
  add $16, %rsp                 # vector and error code
  iretq

.balign 16
.global syscall_entry
syscall_entry:
  swapgs
  mov %rsp, %gs:16              # Cpu::user_stack
  mov %gs:8, %rsp               # Cpu::kernel_stack
  push $0x2b                    # the order of a trap: ss, rsp, rflags, cs, rip, error code, vector
  push %gs:16
  push %r11
  push $0x33
  push %rcx
  push $0
  push $0x100                   # Frame::SYSTEM_CALL
  PUSH_REGISTERS
  xor %ebp, %ebp
  call system_call
  cmpq $0x100, 376(%rsp)        # a handler that replaces the whole frame changes the vector
  jne return_by_iret
  mov %rax, 392(%rsp)           # Frame::rip
  POP_REGISTERS
  swapgs
  add $16, %rsp
  pop %rcx
  add $8, %rsp
  pop %r11
  pop %rsp
  sysretq

# switch_stacks(rdi: where to store this stack pointer, rsi: stack pointer of the next thread)
.global switch_stacks
switch_stacks:
  push %rbx
  push %rbp
  push %r12
  push %r13
  push %r14
  push %r15
  mov %rsp, (%rdi)
  mov %rsi, %rsp
  pop %r15
  pop %r14
  pop %r13
  pop %r12
  pop %rbp
  pop %rbx
  ret

# Entry of a new thread: `switch_stacks` returns here. The thread's frame lies above.
.global thread_begin
thread_begin:
  lea 256(%rsp), %rdi
  call thread_first_run
  jmp return_by_iret

# run_on_stack(rdi: top of a stack, rsi: a function that does not return)
.global run_on_stack
run_on_stack:
  mov %rdi, %rsp
  xor %ebp, %ebp
  push $0
  jmp *%rsi
