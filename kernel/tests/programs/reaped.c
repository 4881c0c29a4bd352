// Memory of killed processes that have not ended yet: process_mrelease frees their private pages at once, and no
// access finds zeroes in their place. A process that needs memory also gets the memory of such a process. Checks `process_mrelease` in `kernel/src/calls/pidfds.rs` and
// `kernel/src/process/victim.rs`. The victims stop for their tracer before they end, with all their memory.
#define _GNU_SOURCE
#include "check.h"
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>

#define FAILS(call, error) CHECK((call) == -1 && errno == (error))
enum { MIB = 1 << 20, MEMORY = 64 * MIB, LARGE = 120 * MIB, PAGE = 4096 };

static int release(int process, unsigned flags) { return syscall(SYS_process_mrelease, process, flags); }

// Returns a number in kilobytes of a file in /proc.
static long number_of(const char *path, const char *name) {
    char text[4096];
    int file = open(path, O_RDONLY);
    CHECK(file >= 0);
    ssize_t bytes = read(file, text, sizeof text - 1);
    CHECK(bytes > 0 && !close(file));
    text[bytes] = 0;
    char *at = strstr(text, name);
    CHECK(at);
    return atol(at + strlen(name));
}

static long resident(pid_t pid) {
    char path[40];
    sprintf(path, "/proc/%d/status", pid);
    return number_of(path, "VmRSS:");
}

static char *private, *shared;

// Makes a process with much memory, which its tracer, the caller, lets run. `share` may make another process that
// shares the memory.
static pid_t make_victim(void (*share)(void)) {
    int status;
    pid_t child = fork();
    if (!child) {
        memset(private, 7, MEMORY);
        memset(shared, 8, PAGE);
        CHECK(!ptrace(PTRACE_TRACEME, 0, 0, 0) && !raise(SIGSTOP));
        if (share) share();
        for (;;) pause();
    }
    CHECK(waitpid(child, &status, 0) == child && WIFSTOPPED(status) && WSTOPSIG(status) == SIGSTOP);
    CHECK(!ptrace(PTRACE_SETOPTIONS, child, 0, PTRACE_O_TRACEEXIT));
    return child;
}

// Kills the process, and waits until it has stopped before its end.
static void kill_and_stop(pid_t child) {
    int status;
    CHECK(!kill(child, SIGKILL));
    do CHECK(waitpid(child, &status, __WALL) == child && WIFSTOPPED(status));
    while (status >> 8 != (SIGTRAP | PTRACE_EVENT_EXIT << 8));
}

static void let_end(pid_t child) {
    int status;
    CHECK(!ptrace(PTRACE_CONT, child, 0, 0));
    CHECK(waitpid(child, &status, __WALL) == child && status == SIGKILL);
}

// Set by the argument "exact": MemFree counts every free page, which Linux's does not.
static int exact;

static void memory_is_free_before_the_end(void) {
    pid_t child = make_victim(NULL);
    int process = syscall(SYS_pidfd_open, child, 0);
    kill_and_stop(child);
    CHECK(resident(child) >= MEMORY / 1024);
    long before = number_of("/proc/meminfo", "MemFree:");
    CHECK(!release(process, 0));
    CHECK(!exact || number_of("/proc/meminfo", "MemFree:") - before > MEMORY / 1024 - 1024);
    CHECK(resident(child) < 8192);
    // The process has not ended, and a second call finds nothing to do.
    CHECK(waitpid(child, NULL, WNOHANG | __WALL) == 0);
    CHECK(!release(process, 0));
    let_end(child);
    FAILS(release(process, 0), ESRCH);
    close(process);
}

static void no_access_finds_zeroes(void) {
    pid_t child = make_victim(NULL);
    int process = syscall(SYS_pidfd_open, child, 0);
    char path[40], found[16] = {1};
    sprintf(path, "/proc/%d/mem", child);
    int memory = open(path, O_RDWR);
    struct iovec own = {found, sizeof found}, of_child = {private + 5 * PAGE, sizeof found};
    struct iovec of_file = {shared, sizeof found};
    CHECK(memory >= 0);
    kill_and_stop(child);
    CHECK(process_vm_readv(child, &own, 1, &of_child, 1, 0) == sizeof found && found[3] == 7);
    CHECK(!release(process, 0));
    memset(found, 1, sizeof found);
    FAILS(process_vm_readv(child, &own, 1, &of_child, 1, 0), EFAULT);
    FAILS(process_vm_writev(child, &own, 1, &of_child, 1, 0), EFAULT);
    FAILS(ptrace(PTRACE_PEEKDATA, child, private, 0), EIO);
    CHECK(pread(memory, found, sizeof found, (long)private) <= 0);
    CHECK(found[0] == 1 && found[15] == 1);
    // Shared memory stays.
    CHECK(process_vm_readv(child, &own, 1, &of_file, 1, 0) == sizeof found && found[3] == 8);
    let_end(child);
    close(memory), close(process);
}

static void a_process_that_lives_is_not_released(void) {
    pid_t child = make_victim(NULL);
    int process = syscall(SYS_pidfd_open, child, 0);
    FAILS(release(process, 0), EINVAL);
    CHECK(!ptrace(PTRACE_CONT, child, 0, 0));
    FAILS(release(process, 0), EINVAL);
    FAILS(release(process, 1), EINVAL);
    FAILS(release(0, 0), EBADF);
    FAILS(release(-1, 0), EBADF);
    kill_and_stop(child);
    FAILS(release(process, 1), EINVAL);
    CHECK(!release(process, 0));
    let_end(child);
    FAILS(release(process, 1), EINVAL);
    close(process);
}

static volatile int *sharer;

static int look_on(void *unused) {
    *sharer = getpid();
    for (;;) pause();
    return unused != NULL;
}

// Makes a process that shares the memory.
static void make_sharer(void) {
    static char stack[16384];
    CHECK(clone(look_on, stack + sizeof stack, CLONE_VM | CLONE_PARENT | SIGCHLD, NULL) > 0);
}

static void memory_of_a_process_that_lives_stays(void) {
    *sharer = 0;
    pid_t child = make_victim(make_sharer);
    int process = syscall(SYS_pidfd_open, child, 0);
    CHECK(!ptrace(PTRACE_CONT, child, 0, 0));
    while (!*sharer) usleep(1000);
    pid_t other = *sharer;
    kill_and_stop(child);
    FAILS(release(process, 0), EINVAL);
    char found = 1;
    struct iovec own = {&found, 1}, of_child = {private, 1};
    CHECK(process_vm_readv(other, &own, 1, &of_child, 1, 0) == 1 && found == 7);
    CHECK(resident(child) >= MEMORY / 1024);
    // Once all are killed, the memory is not needed.
    int status;
    CHECK(!kill(other, SIGKILL) && waitpid(other, &status, 0) == other && status == SIGKILL);
    CHECK(!release(process, 0));
    CHECK(resident(child) < 8192);
    let_end(child);
    close(process);
}

static void vfork_child(void) {
    if (!vfork()) {
        *sharer = getpid();
        for (;;) pause();
    }
}

static void memory_of_a_vfork_child_stays(void) {
    *sharer = 0;
    pid_t child = make_victim(vfork_child);
    int process = syscall(SYS_pidfd_open, child, 0);
    CHECK(!ptrace(PTRACE_CONT, child, 0, 0));
    while (!*sharer) usleep(1000);
    CHECK(!kill(child, SIGKILL));
    int of_other = syscall(SYS_pidfd_open, *sharer, 0);
    FAILS(release(process, 0), EINVAL);
    FAILS(release(of_other, 0), EINVAL);
    CHECK(!kill(*sharer, SIGKILL));
    int status;
    while (waitpid(child, &status, __WALL) == child && WIFSTOPPED(status)) ptrace(PTRACE_CONT, child, 0, 0);
    CHECK(status == SIGKILL);
    close(process), close(of_other);
}

static void fill_memory(void) {
    char *more = mmap(NULL, LARGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(more != MAP_FAILED);
    memset(more, 9, LARGE);
    *sharer = 1;
}

// A process that uses up memory gets that of the largest process, although that process cannot end.
static void memory_is_found_before_the_end(void) {
    int status;
    if (!exact) return;
    *sharer = 0;
    pid_t child = make_victim(fill_memory);
    CHECK(!ptrace(PTRACE_CONT, child, 0, 0));
    while (!*sharer) usleep(1000);
    pid_t other = fork();
    if (!other) fill_memory(), _exit(0);
    CHECK(waitpid(other, &status, 0) == other && status == 0);
    CHECK(waitpid(child, &status, __WALL) == child && status >> 8 == (SIGTRAP | PTRACE_EVENT_EXIT << 8));
    let_end(child);
}

static void second_kill_changes_nothing(void) {
    pid_t child = make_victim(NULL);
    kill_and_stop(child);
    CHECK(!kill(child, SIGKILL));
    usleep(20000);
    CHECK(waitpid(child, NULL, WNOHANG | __WALL) == 0);
    let_end(child);
}

// The end of the tracer ends the stop.
static void end_of_the_tracer_ends_the_stop(void) {
    int ends[2], status;
    char byte;
    CHECK(!pipe(ends));
    pid_t tracer = fork();
    if (!tracer) {
        // The child keeps the other end of the pipe open.
        close(ends[0]);
        kill_and_stop(make_victim(NULL));
        _exit(0);
    }
    close(ends[1]);
    CHECK(waitpid(tracer, &status, 0) == tracer && status == 0);
    CHECK(read(ends[0], &byte, 1) == 0);
    close(ends[0]);
}

int main(int count, char **arguments) {
    exact = count > 1 && !strcmp(arguments[1], "exact");
    private = mmap(NULL, MEMORY, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    shared = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(private != MAP_FAILED && shared != MAP_FAILED);
    sharer = (int *)(shared + PAGE);
    PART(a_process_that_lives_is_not_released);
    PART(memory_is_free_before_the_end);
    PART(no_access_finds_zeroes);
    PART(memory_of_a_process_that_lives_stays);
    PART(memory_of_a_vfork_child_stays);
    PART(second_kill_changes_nothing);
    PART(end_of_the_tracer_ends_the_stop);
    PART(memory_is_found_before_the_end);
    return 0;
}
