# All code that touches a program's memory. If the address space refuses a page fault between ucopy_begin and
# ucopy_end, execution continues at ucopy_fixup. Each function keeps in rdx the number of bytes that are not
# done yet; ucopy_fixup returns this number.
#
# A new function lies between ucopy_begin and ucopy_end, sets rdx before its first access, and pushes nothing,
# because ucopy_fixup returns to its caller. It is declared in `platform/user.rs`. The kernel also copies
# frames with ucopy (`platform/mod.rs`). The tests `files` and `wild` check copies that end at unmapped
# memory.
.section .text
.balign 16
.global ucopy_begin
ucopy_begin:

# ucopy(rdi: to, rsi: from, rdx: bytes) -> bytes not copied
.global ucopy
ucopy:
1: cmp $32, %rdx
  jb 2f
  movups (%rsi), %xmm0
  movups 16(%rsi), %xmm1
  movups %xmm0, (%rdi)
  movups %xmm1, 16(%rdi)
  add $32, %rsi
  add $32, %rdi
  sub $32, %rdx
  jmp 1b
2: cmp $8, %rdx
  jb 3f
  mov (%rsi), %rcx
  mov %rcx, (%rdi)
  add $8, %rsi
  add $8, %rdi
  sub $8, %rdx
  jmp 2b
3: test %rdx, %rdx
  jz 4f
  mov (%rsi), %cl
  mov %cl, (%rdi)
  inc %rsi
  inc %rdi
  dec %rdx
  jmp 3b
4: xor %eax, %eax
  ret

# uload32(rdi: to, in the kernel; rsi: from) -> 0, or nonzero on failure
.global uload32
uload32:
  mov $4, %edx
  mov (%rsi), %ecx
  mov %ecx, (%rdi)
  xor %eax, %eax
  ret

# uexchange32(rdi: word, esi: expected, edx: new; rcx: where to store the old value, in the kernel) -> 0, or
# nonzero on failure
.global uexchange32
uexchange32:
  mov %edx, %r8d
  mov $4, %edx
  mov %esi, %eax
  lock cmpxchg %r8d, (%rdi)
  mov %eax, (%rcx)
  xor %eax, %eax
  ret

.global ucopy_end
ucopy_end:
.global ucopy_fixup
ucopy_fixup:
  mov %rdx, %rax
  ret
