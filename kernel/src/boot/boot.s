# Entries of the CPUs, and the kernel's own page tables. The first CPU comes from PVH (32 bits, flat segments,
# paging off, ebx = start info). Every other CPU comes from a start-up interrupt (16 bits) to the copy of
# ap_trampoline that `smp.rs` makes. Both entries turn on long mode at `enter_long` and jump to Rust in the
# upper half: the first CPU to `kernel_main`, the other CPUs to `secondary_main`. AT&T syntax.
#
# The code runs at its physical address (`kernel.ld`) until these jumps. `memory/mod.rs` extends the direct
# map in boot_pdpt_low, and `memory/stacks.rs` fills boot_pdpt_stacks. The indices of the entries must agree
# with `arch/layout.rs`, `memory/stacks.rs` and `kernel.ld`. A mistake here usually resets the machine before
# it can report anything.
.section .note.pvh, "a", @note
.balign 4
.long 4                         # length of the name
.long 8                         # length of the address: QEMU reads eight bytes
.long 18                        # XEN_ELFNOTE_PHYS32_ENTRY
.asciz "Xen"
.quad pvh_start

.section .boot, "awx", @progbits
.balign 4096
boot_pml4:                      # the kernel's own root; every space copies its upper half
  .quad boot_pdpt_low + 7       # 0: identity map, in which CPUs start
  .skip 8 * 255
  .quad boot_pdpt_low + 3       # 256: the direct map, at 0xffff800000000000
  .skip 8 * 127
  .quad boot_pdpt_stacks + 3    # 384: kernel stacks, at 0xffffc00000000000
  .skip 8 * 126
  .quad boot_pdpt_high + 3      # 511: the kernel's image
.global boot_root
.if LEVELS == 5
boot_root:                      # root of the fifth level
  .quad boot_pml4 + 7           # 0: the identity map
  .skip 8 * 510
  .quad boot_pml4 + 3           # 511: the kernel's half
.else
.set boot_root, boot_pml4
.endif
.global boot_pdpt_low
boot_pdpt_low:
  .quad boot_pd + 3, boot_pd + 0x1003, boot_pd + 0x2003, boot_pd + 0x3003
  .skip 8 * 508
.global boot_pdpt_stacks
boot_pdpt_stacks:
  .skip 4096
boot_pdpt_high:
  .skip 8 * 510
  .quad boot_pd + 3             # 0xffffffff80000000
  .skip 8
boot_pd:                        # the first 4 GiB in pages of 2 MiB
  .set i, 0
  .rept 2048
  .quad (i << 21) + 0x183       # present, writable, large, global
  .set i, i + 1
  .endr
boot_gdt:
  .quad 0, 0x00af9a000000ffff, 0x00cf92000000ffff, 0x00cf9a000000ffff
boot_gdtr:
  .word 31
  .long boot_gdt
.balign 8
boot_info:
  .quad 0
.global ap_stack_top
ap_stack_top:
  .quad 0
.balign 16
  .skip 1024
boot_stack:

.code32
.global pvh_start
pvh_start:
  cli
  cld
  mov $boot_stack, %esp
  mov %ebx, boot_info
  xor %ebp, %ebp
enter_long:                     # ebp: 0 on the first CPU
.if LEVELS == 5
  xor %eax, %eax
  cpuid
  cmp $7, %eax
  jb four_levels
  mov $7, %eax
  xor %ecx, %ecx
  cpuid
  bt $16, %ecx
  jnc four_levels
  mov %cr4, %eax
  or $0x1000, %eax              # LA57
  mov %eax, %cr4
.endif
  mov %cr4, %eax
  or $0x6a0, %eax               # PAE, PGE, OSFXSR, OSXMMEXCPT
  mov %eax, %cr4
  mov $boot_root, %eax
  mov %eax, %cr3
  mov $0xc0000080, %ecx
  rdmsr
  or $0x901, %eax               # SCE, LME, NXE
  wrmsr
  mov %cr0, %eax
  and $~4, %eax                 # EM off
  or $0x80010023, %eax          # PG, WP, NE, MP, PE
  mov %eax, %cr0
  lgdt boot_gdtr
  ljmp $8, $start64

.if LEVELS == 5
four_levels:                    # ends the machine as PROTOCOL.md describes
  mov $too_few, %esi
  mov $too_few_end - too_few, %ecx
  mov $0xe9, %edx
  rep outsb
  mov $1, %al
  out %al, $0xf4
  hlt
too_few:
  .ascii "panic this kernel needs a CPU with five levels of page tables\n"
too_few_end:
.endif

.code64
start64:
  mov $0x10, %eax
  mov %eax, %ds
  mov %eax, %es
  mov %eax, %ss
  xor %eax, %eax
  mov %eax, %fs
  mov %eax, %gs
  test %ebp, %ebp
  jnz 1f
  movabs $first_stack_top, %rsp
  mov boot_info, %edi
  movabs $kernel_main, %rax
  push $0
  jmp *%rax
1:
  mov ap_stack_top, %rsp
  xor %ebp, %ebp
  movabs $secondary_main, %rax
  push $0
  jmp *%rax

.code16
.global ap_trampoline
.global ap_trampoline_end
ap_trampoline:                  # copied to physical 0x8000
  cli
  cld
  xor %ax, %ax
  mov %ax, %ds
  lgdtl 0x8000 + (trampoline_gdtr - ap_trampoline)
  mov %cr0, %eax
  or $1, %eax
  mov %eax, %cr0
  ljmpl $0x18, $ap32
.balign 4
trampoline_gdtr:
  .word 31
  .long boot_gdt
ap_trampoline_end:
.code32
ap32:
  mov $0x10, %eax
  mov %eax, %ds
  mov %eax, %es
  mov %eax, %ss
  mov $1, %ebp
  jmp enter_long
.code64

.section .bss.first_stack, "aw", @nobits
.balign 4096
  .skip 65536
first_stack_top:
