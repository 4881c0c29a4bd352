// Addresses beyond the end of a program's addresses, in every register that a program can set through the
// kernel: the instruction pointer (handlers, sigreturn, ptrace, exec), segment bases, debug registers, and
// the stack pointer, which may have any value. The processor faults in the kernel if the kernel loads such an
// address, so a mistake ends the machine (`UserAddr` in `kernel/src/arch/frame.rs`). `canonical five` is for
// five levels of page tables.
#define _GNU_SOURCE
#include "check.h"
#include <elf.h>
#include <fcntl.h>
#include <linux/sched.h>
#include <signal.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <ucontext.h>

enum { PAGE = 4096, SET_GS = 0x1001, GET_GS = 0x1004, RESUME = 1 << 16, RESTORER = 0x04000000 };

// The end of a program's addresses, and the end of the lower half of the canonical addresses.
static unsigned long end, half;
static unsigned long beyond[7];
#define EACH for (unsigned n = 0; n < 7; n++)

static void find_ends(int five) {
    half = 1ul << (five ? 56 : 47);
    end = half - PAGE;
    unsigned long all[] = {end, half - 1, half, 1ul << 63, -half - 1, -half, -1ul};
    memcpy(beyond, all, sizeof all);
}

static int is_canonical(unsigned long at) { return at < half || at >= -half; }

static int status_of(pid_t child) {
    int status;
    CHECK(child > 0 && waitpid(child, &status, 0) == child);
    return status;
}

static void nothing_is_left(void) { CHECK(waitpid(-1, 0, 0) == -1 && errno == ECHILD); }

// Calls clone directly, because the child may have no stack. The child exits at once.
static long clone_by_hand(unsigned long flags, unsigned long stack, unsigned long tls) {
    register unsigned long r10 __asm__("r10") = 0, r8 __asm__("r8") = tls;
    long result;
    __asm__ volatile("syscall; test %%rax, %%rax; jnz 1f; mov $60, %%eax; mov $7, %%edi; syscall; 1:"
                     : "=a"(result)
                     : "0"((long)SYS_clone), "D"(flags), "S"(stack), "d"(0l), "r"(r10), "r"(r8)
                     : "rcx", "r11", "memory");
    return result;
}

static void segment_bases_must_be_below_the_end(void) {
    unsigned long base = 1;
    CHECK(!syscall(SYS_arch_prctl, SET_GS, end - 1));
    EACH CHECK(syscall(SYS_arch_prctl, SET_GS, beyond[n]) == -1 && errno == EPERM);
    CHECK(!syscall(SYS_arch_prctl, GET_GS, &base) && base == end - 1);
    CHECK(!syscall(SYS_arch_prctl, SET_GS, 0));
    long thread = CLONE_VM | CLONE_SIGHAND | CLONE_THREAD;
    EACH {
        CHECK(clone_by_hand(CLONE_SETTLS | SIGCHLD, 0, beyond[n]) == -EPERM);
        CHECK(clone_by_hand(CLONE_SETTLS | thread, 0, beyond[n]) == -EPERM);
        CHECK(clone_by_hand(CLONE_SETTLS | CLONE_VFORK | CLONE_VM | SIGCHLD, 0, beyond[n]) == -EPERM);
        // Invalid flags are reported first.
        CHECK(clone_by_hand(CLONE_SETTLS | CLONE_THREAD, 0, beyond[n]) == -EINVAL);
        struct clone_args args = {.flags = CLONE_SETTLS, .exit_signal = SIGCHLD, .tls = beyond[n]};
        CHECK(syscall(SYS_clone3, &args, sizeof args) == -1 && errno == EPERM);
    }
    nothing_is_left();
    CHECK(status_of(clone_by_hand(CLONE_SETTLS | SIGCHLD, 0, end - 1)) == 7 << 8);
}

static void stack_pointer_may_have_any_value(void) {
    EACH {
        CHECK(status_of(clone_by_hand(SIGCHLD, beyond[n], 0)) == 7 << 8);
        struct clone_args args = {.exit_signal = SIGCHLD, .stack = beyond[n] - PAGE, .stack_size = PAGE + 1};
        CHECK(syscall(SYS_clone3, &args, sizeof args) == -1 && errno == EINVAL);
        args.stack = beyond[n], args.stack_size = 1ul << 63;
        CHECK(syscall(SYS_clone3, &args, sizeof args) == -1 && errno == EINVAL);
    }
    // With a valid stack, the call fails because of the base.
    struct clone_args args = {.flags = CLONE_SETTLS, .exit_signal = SIGCHLD, .tls = end};
    args.stack = end - PAGE, args.stack_size = PAGE;
    CHECK(syscall(SYS_clone3, &args, sizeof args) == -1 && errno == EPERM);
    nothing_is_left();
}

static unsigned long expected;

// Handles the SIGSEGV of a jump to `expected`.
static void fault(int signal, siginfo_t *info, void *frame) {
    greg_t *now = ((ucontext_t *)frame)->uc_mcontext.gregs;
    int mapped = is_canonical(expected);
    CHECK(signal == SIGSEGV && (unsigned long)now[REG_RIP] == expected);
    CHECK(info->si_code == (mapped ? SEGV_MAPERR : SI_KERNEL));
    CHECK((unsigned long)info->si_addr == (mapped ? expected : 0));
    CHECK(now[REG_TRAPNO] == (mapped ? 14 : 13) && now[REG_ERR] == (mapped ? 0x15 : 0));
    if (mapped) CHECK((unsigned long)now[REG_CR2] == expected);
    CHECK(!(now[REG_EFL] & RESUME) == !mapped);
    _exit(3);
}

static void act(int signal, void (*by)(int, siginfo_t *, void *), int flags) {
    struct sigaction action = {.sa_sigaction = by, .sa_flags = SA_SIGINFO | flags};
    CHECK(!sigaction(signal, &action, 0));
}

static void act_at(int signal, unsigned long handler, unsigned long flags) {
    struct { unsigned long handler, flags, restorer, mask; } action = {handler, RESTORER | flags, 0x1000, 0};
    CHECK(!syscall(SYS_rt_sigaction, signal, &action, 0, 8));
}

static void handler_may_be_at_any_address(void) {
    EACH {
        pid_t child = fork();
        if (!child) {
            expected = beyond[n];
            act(SIGSEGV, fault, 0), act_at(SIGUSR1, beyond[n], 0);
            raise(SIGUSR1);
        }
        CHECK(status_of(child) == 3 << 8);
        if (!(child = fork())) act_at(SIGUSR1, beyond[n], 0), raise(SIGUSR1);
        CHECK(status_of(child) == SIGSEGV);
        // The handler of SIGSEGV is itself at an invalid address: the signal is blocked during it, or
        // handlers nest until the stack is full.
        if (!(child = fork())) act_at(SIGSEGV, beyond[n], 0), raise(SIGSEGV);
        CHECK(status_of(child) == SIGSEGV);
        if (!(child = fork())) act_at(SIGSEGV, beyond[n], SA_NODEFER), raise(SIGSEGV);
        CHECK(status_of(child) == SIGSEGV);
    }
}

static int changed;
static unsigned long value;
extern char leave[];
__asm__("leave_here: .globl leave; leave: mov $60, %eax; mov $9, %edi; syscall");

static void change(int signal, siginfo_t *info, void *frame) {
    greg_t *now = ((ucontext_t *)frame)->uc_mcontext.gregs;
    (void)signal, (void)info;
    now[REG_RIP] = (greg_t)leave;
    now[changed] = (greg_t)value;
}

static int after_change(int which, unsigned long to, void (*by)(int, siginfo_t *, void *)) {
    pid_t child = fork();
    if (!child) {
        changed = which, value = expected = to;
        if (by) act(SIGSEGV, by, 0);
        act(SIGUSR1, change, 0);
        raise(SIGUSR1);
    }
    return status_of(child);
}

static void handler_may_return_to_any_address(void) {
    EACH {
        CHECK(after_change(REG_RIP, beyond[n], fault) == 3 << 8);
        CHECK(after_change(REG_RIP, beyond[n], 0) == SIGSEGV);
        CHECK(after_change(REG_RSP, beyond[n], 0) == 9 << 8);
    }
}

struct image {
    Elf64_Ehdr head;
    Elf64_Phdr parts[2];
    char interpreter[32];
};

static void write_image(const char *path, int type, unsigned long entry, unsigned long start,
                        const char *by) {
    struct image image = {
        .head = {.e_ident = {0x7f, 'E', 'L', 'F', ELFCLASS64, ELFDATA2LSB, EV_CURRENT},
                 .e_type = type, .e_machine = EM_X86_64, .e_version = 1, .e_entry = entry, .e_phoff = 64,
                 .e_ehsize = 64, .e_phentsize = 56, .e_phnum = by ? 2 : 1},
        .parts = {{.p_type = PT_LOAD, .p_flags = 5, .p_vaddr = start, .p_filesz = sizeof image,
                   .p_memsz = sizeof image, .p_align = PAGE},
                  {.p_type = PT_INTERP, .p_flags = 4, .p_offset = offsetof(struct image, interpreter)}}};
    if (by) {
        strcpy(image.interpreter, by);
        image.parts[1].p_filesz = image.parts[1].p_memsz = strlen(by) + 1;
    }
    int file = open(path, O_CREAT | O_TRUNC | O_WRONLY, 0755);
    CHECK(file >= 0 && write(file, &image, sizeof image) == sizeof image && !close(file));
}

static int end_of(const char *path) {
    pid_t child = fork();
    if (!child) {
        // The old program does not get the signal any more.
        act(SIGSEGV, fault, 0);
        execl(path, path, (char *)0);
        _exit(4);
    }
    return status_of(child);
}

static void program_entry_must_be_below_the_end(void) {
    const char *path = "/tmp/canonical-program", *by = "/tmp/canonical-by";
    const unsigned long start = 0x10000000;
    CHECK(mkdir("/tmp", 0777) == 0 || errno == EEXIST);
    EACH {
        write_image(path, ET_EXEC, beyond[n], start, 0);
        CHECK(end_of(path) == SIGSEGV);
        write_image(path, ET_DYN, beyond[n], 0, 0);
        CHECK(end_of(path) == SIGSEGV);
        write_image(path, ET_EXEC, start, start, by);
        write_image(by, ET_DYN, beyond[n], 0, 0);
        CHECK(end_of(path) == SIGSEGV);
        // The addresses of segments must also be below the end.
        write_image(path, ET_EXEC, start, beyond[n] & -PAGE, 0);
        CHECK(end_of(path) == SIGSEGV);
    }
    // exec itself fails if the header of the interpreter is invalid.
    CHECK(!truncate(by, 10) && (write_image(path, ET_EXEC, start, start, by), 1) && end_of(path) == 4 << 8);
    CHECK(!unlink(path) && !unlink(by));
}

static int stop_of(pid_t child) {
    int status = status_of(child);
    CHECK(WIFSTOPPED(status));
    return WSTOPSIG(status);
}

#define PLACE(field) ((void *)offsetof(struct user, field))

static void tracer_may_set_any_instruction_pointer(void) {
    pid_t child = fork();
    if (!child) {
        CHECK(!ptrace(PTRACE_TRACEME, 0, 0, 0));
        raise(SIGSTOP);
        _exit(6);
    }
    CHECK(stop_of(child) == SIGSTOP);
    struct user_regs_struct all, now;
    CHECK(!ptrace(PTRACE_GETREGS, child, 0, &all));
    EACH {
        long at = (long)beyond[n];
        CHECK(ptrace(PTRACE_POKEUSER, child, PLACE(regs.fs_base), at) == -1 && errno == EIO);
        CHECK(ptrace(PTRACE_POKEUSER, child, PLACE(regs.gs_base), at) == -1 && errno == EIO);
        CHECK(ptrace(PTRACE_POKEUSER, child, PLACE(u_debugreg[0]), at) == -1 && errno == EINVAL);
        now = all, now.fs_base = at;
        CHECK(ptrace(PTRACE_SETREGS, child, 0, &now) == -1 && errno == EIO);
        CHECK(!ptrace(PTRACE_POKEUSER, child, PLACE(regs.rsp), at));
        CHECK(!ptrace(PTRACE_POKEUSER, child, PLACE(regs.rip), at));
        // The fault repeats as long as the tracer suppresses the signal.
        for (int again = 0; again < 3; again++) {
            siginfo_t info;
            CHECK(!ptrace(again == 1 ? PTRACE_SINGLESTEP : PTRACE_CONT, child, 0, 0));
            CHECK(stop_of(child) == SIGSEGV);
            CHECK(!ptrace(PTRACE_GETREGS, child, 0, &now) && now.rip == beyond[n] && now.rsp == beyond[n]);
            CHECK(!(now.eflags & 0x100) && now.fs_base == all.fs_base);
            CHECK(!ptrace(PTRACE_GETSIGINFO, child, 0, &info));
            CHECK(info.si_code == (is_canonical(beyond[n]) ? SEGV_MAPERR : SI_KERNEL));
        }
        CHECK(!ptrace(PTRACE_SETREGS, child, 0, &all));
    }
    CHECK(!ptrace(PTRACE_CONT, child, 0, 0) && status_of(child) == 6 << 8);
}

int main(int argc, char **argv) {
    find_ends(argc > 1 && !strcmp(argv[1], "five"));
    PART(segment_bases_must_be_below_the_end);
    PART(stack_pointer_may_have_any_value);
    PART(handler_may_be_at_any_address);
    PART(handler_may_return_to_any_address);
    PART(program_entry_must_be_below_the_end);
    PART(tracer_may_set_any_instruction_pointer);
    return 0;
}
