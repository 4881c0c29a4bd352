// Protection keys: their allocation, what they deny to programs and to calls, and that each thread keeps its
// rights over switches, handlers, fork and exec. On a CPU without keys: that they are unavailable. Checks the
// state of PKRU in `kernel/src/arch/features.rs`. FIRST is the value of PKRU with which a program starts. Two
// bits for each key deny accesses and writes; a part sets them back to FIRST at its end.
#define _GNU_SOURCE
#include "check.h"
#include <cpuid.h>
#include <elf.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <ucontext.h>

enum { PAGE = 4096, FIRST = 0x55555554, KEY_FAULT = 32 };

static unsigned rights(void) {
    unsigned low, high;
    __asm__ volatile("rdpkru" : "=a"(low), "=d"(high) : "c"(0));
    return low;
}

static void set_rights(unsigned all) { __asm__ volatile("wrpkru" ::"a"(all), "c"(0), "d"(0) : "memory"); }

static char *pages(int count) {
    char *at = mmap(0, count * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(at != MAP_FAILED);
    return at;
}

// Returns the offset of the rights in XSAVE's image.
static unsigned rights_at(void) {
    unsigned size, at, c, d;
    CHECK(__get_cpuid_count(0xd, 9, &size, &at, &c, &d) && size == 8);
    return at;
}

static unsigned image_bytes(void) {
    unsigned a, bytes, c, d;
    CHECK(__get_cpuid_count(0xd, 0, &a, &bytes, &c, &d));
    return bytes;
}

static int key_in_smaps(char *at) {
    char line[256], wanted[32];
    int key = -1, here = 0;
    snprintf(wanted, sizeof wanted, "%lx-", (long)at);
    FILE *file = fopen("/proc/self/smaps", "r");
    while (key < 0 && fgets(line, sizeof line, file)) {
        here |= !strncmp(line, wanted, strlen(wanted));
        if (here && !strncmp(line, "VmFlags:", 8)) break;
        if (here) sscanf(line, "ProtectionKey: %d", &key);
    }
    fclose(file);
    return key;
}

static void keys_are_allocated_and_freed(void) {
    CHECK(pkey_alloc(1, 0) == -1 && errno == EINVAL);
    CHECK(pkey_alloc(0, 4) == -1 && errno == EINVAL);
    for (int key = 1; key < 16; key++) CHECK(pkey_alloc(0, 0) == key);
    CHECK(pkey_alloc(0, 0) == -1 && errno == ENOSPC);
    CHECK(!pkey_free(7) && pkey_alloc(0, PKEY_DISABLE_WRITE) == 7);
    CHECK(pkey_get(7) == PKEY_DISABLE_WRITE && pkey_get(8) == 0);
    for (int key = 1; key < 16; key++) CHECK(!pkey_free(key));
    CHECK(pkey_free(7) == -1 && errno == EINVAL);
    CHECK(pkey_free(16) == -1 && errno == EINVAL);
    char *at = pages(1);
    CHECK(pkey_mprotect(at, PAGE, PROT_READ, 7) == -1 && errno == EINVAL);
    CHECK(!pkey_mprotect(at, PAGE, PROT_READ, -1) && !pkey_mprotect(at, PAGE, PROT_READ, 0));
    munmap(at, PAGE);
    set_rights(FIRST);
}

static volatile siginfo_t said;
static volatile unsigned in_handler, code;
static volatile int came;

// Handles SIGSEGV: opens all keys in the frame, so that the access succeeds when it is repeated. Also opens a
// key for the handler itself; that right ends when the handler returns.
static void open_all(int number, siginfo_t *info, void *context) {
    (void)number;
    ucontext_t *frame = context;
    in_handler = rights();
    said = *info;
    code = (unsigned)frame->uc_mcontext.gregs[REG_ERR];
    unsigned *kept = (unsigned *)((char *)frame->uc_mcontext.fpregs + rights_at());
    came++;
    set_rights(0x55555550);
    *kept &= 0xf0000000;
}

static void handle(int number, void (*handler)(int, siginfo_t *, void *), int flags) {
    struct sigaction action = {.sa_sigaction = handler, .sa_flags = SA_SIGINFO | flags};
    CHECK(!sigaction(number, &action, 0));
}

static void refused(char *at, unsigned all, int writes, int key, unsigned wanted) {
    came = 0;
    set_rights(all);
    if (writes) *(volatile char *)at = 1;
    else (void)*(volatile char *)at;
    CHECK(rights() == (all & 0xf0000000));
    CHECK(came == 1 && in_handler == FIRST && code == wanted);
    CHECK(said.si_code == SEGV_PKUERR && said.si_addr == at && (int)said.si_pkey == key);
    set_rights(FIRST);
}

static void key_denies_accesses(void) {
    handle(SIGSEGV, open_all, 0);
    int key = pkey_alloc(0, PKEY_DISABLE_WRITE);
    CHECK(key == 1 && rights() == 0x55555558);
    char *at = pages(4);
    at[0] = 5;
    CHECK(!pkey_mprotect(at, 4 * PAGE, PROT_READ | PROT_WRITE, key));
    CHECK(key_in_smaps(at) == key);
    came = 0;
    CHECK(at[0] == 5 && at[PAGE] == 0 && came == 0);
    refused(at + 3, 0x55555558, 1, key, KEY_FAULT | 7);
    refused(at + 2, 0x55555554, 0, key, KEY_FAULT | 5);
    refused(at + 1, 0xd5555554, 1, key, KEY_FAULT | 7);
    // The pages are not present, but the key is checked first.
    refused(at + 2 * PAGE, 0x55555554, 0, key, 4);
    refused(at + 3 * PAGE, 0x55555558, 1, key, 6);
    munmap(at, 4 * PAGE);
    CHECK(!pkey_free(key));
    set_rights(FIRST);
}

static void key_denies_accesses_by_calls(void) {
    int key = pkey_alloc(0, 0), file = memfd_create("contents", 0);
    CHECK(key > 0 && file >= 0);
    char *at = pages(2);
    CHECK(!pkey_mprotect(at, 2 * PAGE, PROT_READ | PROT_WRITE, key));
    at[0] = 7;
    CHECK(!pkey_set(key, PKEY_DISABLE_WRITE));
    CHECK(pwrite(file, at, 1, 0) == 1);
    CHECK(pread(file, at, 1, 0) == -1 && errno == EFAULT);
    CHECK(pread(file, at + PAGE, 1, 0) == -1 && errno == EFAULT);
    CHECK(uname((struct utsname *)at) == -1 && errno == EFAULT);
    CHECK(!pkey_set(key, PKEY_DISABLE_ACCESS));
    CHECK(pwrite(file, at, 1, 0) == -1 && errno == EFAULT);
    CHECK(pwrite(file, at + PAGE, 1, 0) == -1 && errno == EFAULT);
    CHECK(access(at, F_OK) == -1 && errno == EFAULT);
    // The remote side of process_vm_readv, the process with the PID, ignores protection keys.
    char byte = 0;
    struct iovec here = {&byte, 1}, there = {at, 1};
    CHECK(process_vm_readv(getpid(), &here, 1, &there, 1, 0) == 1 && byte == 7);
    // The local side, the caller's own memory, respects protection keys.
    CHECK(process_vm_readv(getpid(), &there, 1, &here, 1, 0) == -1 && errno == EFAULT);
    CHECK(process_vm_writev(getpid(), &there, 1, &here, 1, 0) == -1 && errno == EFAULT);
    CHECK(!pkey_set(key, PKEY_DISABLE_WRITE));
    CHECK(process_vm_readv(getpid(), &there, 1, &here, 1, 0) == -1 && errno == EFAULT);
    CHECK(process_vm_writev(getpid(), &there, 1, &here, 1, 0) == 1);
    CHECK(!pkey_set(key, PKEY_DISABLE_ACCESS));
    // vmsplice pins the caller's own pages.
    int ends[2];
    CHECK(!pipe(ends) && vmsplice(ends[1], &there, 1, 0) == -1 && errno == EFAULT);
    CHECK(!pkey_set(key, PKEY_DISABLE_WRITE));
    CHECK(vmsplice(ends[1], &there, 1, 0) == 1 && vmsplice(ends[0], &there, 1, 0) == -1 && errno == EFAULT);
    CHECK(!pkey_set(key, 0));
    CHECK(vmsplice(ends[0], &there, 1, 0) == 1 && at[0] == 7);
    close(ends[0]), close(ends[1]);
    CHECK(pread(file, at + PAGE, 1, 0) == 1 && at[PAGE] == 7);
    close(file), munmap(at, 2 * PAGE);
    CHECK(!pkey_free(key));
    set_rights(FIRST);
}

static volatile int go;

static void *keep(void *arg) {
    unsigned own = 0x55555550 & ~(0xcu << 4 * (long)arg);
    CHECK(rights() == 0x55555504);
    set_rights(own);
    while (!go) sched_yield();
    for (int n = 0; n < 500; n++) {
        if (n % 16 == 0) {
            char *at = pages(1);
            at[0] = 1;
            munmap(at, PAGE);
        }
        sched_yield();
        for (volatile int spin = 0; spin < 200; spin++) {}
        CHECK(rights() == own);
    }
    return 0;
}

static void each_thread_keeps_its_rights(void) {
    pthread_t threads[6];
    set_rights(0x55555504);
    for (long n = 0; n < 6; n++) CHECK(!pthread_create(&threads[n], 0, keep, (void *)(n + 1)));
    set_rights(FIRST);
    go = 1;
    for (int n = 0; n < 6; n++) CHECK(!pthread_join(threads[n], 0));
    CHECK(rights() == FIRST);
}

static void fork_inherits_and_exec_resets_rights(void) {
    int status, key = pkey_alloc(0, 0);
    CHECK(key == 1);
    set_rights(0x55555504);
    pid_t child = fork();
    if (!child) {
        CHECK(rights() == 0x55555504 && pkey_alloc(0, 0) == 2);
        set_rights(0x55555504);
        execl("/proc/self/exe", "keys", "executed", (char *)0);
        CHECK(!"exec");
    }
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    CHECK(rights() == 0x55555504 && !pkey_free(key));
    set_rights(FIRST);
}

static int executed(void) {
    CHECK(rights() == FIRST && pkey_alloc(0, 0) == 1);
    return 0;
}

// Opens all keys before it touches its stack, whose pages have a closed key.
__attribute__((naked)) static void on_closed_stack(int number, siginfo_t *info, void *context) {
    (void)number, (void)info, (void)context;
    __asm__ volatile("xor %eax, %eax\n xor %ecx, %ecx\n xor %edx, %edx\n wrpkru\n incl came(%rip)\n ret");
}

static void signal_frame_fits_a_stack_of_any_key(void) {
    int key = pkey_alloc(0, PKEY_DISABLE_ACCESS);
    char *at = pages(16);
    CHECK(key > 0 && !pkey_mprotect(at, 16 * PAGE, PROT_READ | PROT_WRITE, key));
    stack_t other = {.ss_sp = at, .ss_size = 16 * PAGE}, none = {.ss_flags = SS_DISABLE};
    CHECK(!sigaltstack(&other, 0));
    handle(SIGUSR1, on_closed_stack, SA_ONSTACK);
    came = 0;
    CHECK(!raise(SIGUSR1));
    CHECK(came == 1 && rights() == FIRST);
    CHECK(!sigaltstack(&none, 0) && !munmap(at, 16 * PAGE) && !pkey_free(key));
}

static void execute_only_memory_has_a_key(void) {
    char *at = pages(1), byte;
    int ends[2];
    memcpy(at, "\xb8\x2a\0\0\0\xc3", 6);  // mov $42, %eax; ret
    CHECK(!pipe(ends) && !mprotect(at, PAGE, PROT_EXEC));
    CHECK(((int (*)(void))at)() == 42);
    int key = key_in_smaps(at);
    CHECK(key > 0 && pkey_get(key) == PKEY_DISABLE_ACCESS);
    CHECK(pkey_free(key) == -1 && errno == EINVAL);
    CHECK(write(ends[1], at, 1) == -1 && errno == EFAULT);
    refused(at, FIRST, 0, key, KEY_FAULT | 5);
    CHECK(!mprotect(at, PAGE, PROT_READ | PROT_EXEC));
    CHECK(write(ends[1], at, 1) == 1 && read(ends[0], &byte, 1) == 1 && byte == '\xb8');
    CHECK(key_in_smaps(at) == 0);
    close(ends[0]), close(ends[1]), munmap(at, PAGE);
}

static void tracer_reads_the_rights(void) {
    static char image[PAGE];
    int status;
    pid_t child = fork();
    if (!child) {
        set_rights(0x55555514);
        CHECK(!ptrace(PTRACE_TRACEME, 0, 0, 0) && !raise(SIGSTOP));
        _exit(rights() == 0x55555504 ? 3 : 4);
    }
    CHECK(waitpid(child, &status, 0) == child && WIFSTOPPED(status));
    struct iovec part = {image, sizeof image};
    CHECK(!ptrace(PTRACE_GETREGSET, child, NT_X86_XSTATE, &part));
    CHECK(part.iov_len == image_bytes() && (image[513] & 2));
    unsigned *kept = (unsigned *)(image + rights_at());
    CHECK(*kept == 0x55555514);
    *kept = 0x55555504;
    CHECK(!ptrace(PTRACE_SETREGSET, child, NT_X86_XSTATE, &part) && !ptrace(PTRACE_CONT, child, 0, 0));
    CHECK(waitpid(child, &status, 0) == child && WEXITSTATUS(status) == 3);
}

static void keys_are_unavailable(void) {
    char *at = pages(1);
    at[0] = 5;
    CHECK(pkey_alloc(0, 0) == -1 && errno == ENOSPC);
    CHECK(pkey_free(0) == -1 && errno == EINVAL);
    CHECK(pkey_mprotect(at, PAGE, PROT_READ, 0) == -1 && errno == EINVAL);
    CHECK(!pkey_mprotect(at, PAGE, PROT_EXEC, -1) && at[0] == 5 && key_in_smaps(at) == -1);
}

// A thread that may not write to sealed memory may not discard it either.
static void key_denies_discards_of_sealed_memory(void) {
    char *at = pages(1);
    int key = pkey_alloc(0, 0);
    *at = 1;
    CHECK(key > 0 && !pkey_mprotect(at, PAGE, PROT_READ | PROT_WRITE, key));
    CHECK(!syscall(462 /* mseal */, at, PAGE, 0) && !madvise(at, PAGE, MADV_DONTNEED) && *at == 0);
    *at = 1;
    CHECK(!pkey_set(key, PKEY_DISABLE_WRITE));
    CHECK(madvise(at, PAGE, MADV_DONTNEED) == -1 && errno == EPERM);
    CHECK(madvise(at, PAGE, MADV_DONTFORK) == -1 && errno == EPERM && *at == 1);
    CHECK(!pkey_set(key, 0) && !madvise(at, PAGE, MADV_DONTNEED) && *at == 0);
    set_rights(FIRST);
    CHECK(!pkey_free(key));
}

int main(int argc, char **argv) {
    (void)argv;
    unsigned a, b, c, d;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(c >> 4 & 1)) {
        PART(keys_are_unavailable);
        return 0;
    }
    CHECK(rights() == FIRST);
    if (argc > 1) return executed();
    PART(keys_are_allocated_and_freed);
    PART(key_denies_accesses);
    PART(key_denies_accesses_by_calls);
    PART(key_denies_discards_of_sealed_memory);
    PART(each_thread_keeps_its_rights);
    PART(fork_inherits_and_exec_resets_rights);
    PART(signal_frame_fits_a_stack_of_any_key);
    PART(execute_only_memory_has_a_key);
    PART(tracer_reads_the_rights);
    return 0;
}
