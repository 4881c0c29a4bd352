// Programs that ask for as much work as they can: long calls, many timers, sleepers, descriptors,
// attributes, mappings and processes. A
// heartbeat beside each of them must never be late, and a signal must end the program soon. Checks the scheduler
// and the loops of the kernel over counts that a program chooses. The test counts instructions (`counted` in
// `tests.toml`), so its times are exact. On a machine that does not, the argument multiplies the bounds.
#define _GNU_SOURCE
#include "check.h"
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/sendfile.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <time.h>

enum { MS = 1000000, BEAT = 5 * MS };
// The latest time of a heartbeat, and of an end after a kill.
static int64_t bound = 100 * MS;
// The shared part: set by the child when it is about to begin.
static volatile int *ready;

static int64_t now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000000000 + time.tv_nsec;
}

// Runs `flood` in a child for half a second. The heartbeat must be on time, and a kill must end the child soon.
static void beside(void (*flood)(void)) {
    *ready = 0;
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        flood();
        for (;;) pause();
    }
    int64_t begin = 0, latest = 0;
    while (begin == 0 || now() < begin + 500 * MS) {
        int64_t due = now() + BEAT;
        struct timespec at = {due / 1000000000, due % 1000000000};
        CHECK(!clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, 0));
        if (now() - due > latest) latest = now() - due;
        if (begin == 0 && *ready) begin = now();
        CHECK(waitpid(child, 0, WNOHANG) == 0);
    }
    int status;
    begin = now();
    CHECK(!kill(child, SIGKILL) && waitpid(child, &status, 0) == child && WIFSIGNALED(status));
    int64_t end = now() - begin;
    if (latest > bound || end > bound) {
        printf("the heartbeat was %ld us late, the end took %ld us\n", (long)latest / 1000, (long)end / 1000);
        fflush(stdout);
    }
    CHECK(latest <= bound && end <= bound);
}

static void copy_without_end(void) {
    int from = open("/dev/urandom", O_RDONLY), to = open("/dev/null", O_WRONLY);
    CHECK(from >= 0 && to >= 0);
    *ready = 1;
    for (;;) CHECK(sendfile(to, from, 0, 0x7ffff000) >= 0);
}

static void read_without_end(void) {
    int from = open("/dev/urandom", O_RDONLY);
    struct iovec parts[1024];
    char *part = malloc(1 << 20);
    for (int n = 0; n < 1024; n++) parts[n] = (struct iovec){part, 1 << 20};
    *ready = 1;
    for (;;) CHECK(readv(from, parts, 1024) > 0);
}

static void look_for_holes(void) {
    int file = memfd_create("full", 0);
    uint64_t all[2] = {0, 0}, counts[5];
    CHECK(!ftruncate(file, 1L << 62));
    // Every second page, so that each page is a run of its own.
    for (long page = 0; page < 4096; page += 2) CHECK(pwrite(file, "x", 1, page << 12) == 1);
    *ready = 1;
    for (;;) CHECK(!syscall(451, file, all, counts, 0) && lseek(file, 4096L << 12, SEEK_DATA) == -1);
}

static void ask_for_many_pages(void) {
    *ready = 1;
    // One page serves as all three arrays, again and again: the addresses in it are 0.
    enum { PAGES = 1 << 24 };
    int file = memfd_create("zeroes", 0);
    CHECK(!ftruncate(file, 1 << 21));
    char *at = mmap(0, PAGES * 8L, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(at != MAP_FAILED);
    for (long done = 0; done < PAGES * 8L; done += 1 << 21) {
        CHECK(mmap(at + done, 1 << 21, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0) != MAP_FAILED);
    }
    for (;;) syscall(SYS_move_pages, 0, (long)PAGES, at, 0, at, 0);
}

static volatile int taken;
static void take(int signal) { taken += signal; }

// 30,000 timers that expire together, and then every nanosecond.
static void set_timers(int notify, int is_blocked) {
    enum { TIMERS = 30000 };
    struct rlimit most = {2 * TIMERS, 2 * TIMERS};
    CHECK(!setrlimit(RLIMIT_SIGPENDING, &most));
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    if (is_blocked) sigprocmask(SIG_BLOCK, &set, 0);
    signal(SIGUSR1, take);
    int64_t first = now() + 1000 * MS;
    for (int n = 0; n < TIMERS; n++) {
        struct sigevent event = {.sigev_notify = notify, .sigev_signo = SIGUSR1};
        int timer;
        CHECK(!syscall(SYS_timer_create, CLOCK_MONOTONIC, &event, &timer));
        struct itimerspec often = {{0, 1}, {first / 1000000000, first % 1000000000}};
        CHECK(!syscall(SYS_timer_settime, timer, TIMER_ABSTIME, &often, 0));
    }
    while (now() < first - 20 * MS) usleep(1000);
    *ready = 1;
    for (;;) taken++;
}

static void set_silent_timers(void) { set_timers(SIGEV_NONE, 0); }
static void set_blocked_timers(void) { set_timers(SIGEV_SIGNAL, 1); }
static void set_ringing_timers(void) { set_timers(SIGEV_SIGNAL, 0); }

struct waiter {
    uint64_t value, address;
    uint32_t flags, reserved;
};
enum { WORDS = 128, THREADS = 200, SIZE_32 = 2, PRIVATE = 128, SYS_WAITV = 449 };
static uint32_t word, other;
static volatile int asleep;

static void *wait_for_words(void *unused) {
    struct waiter all[WORDS];
    for (int n = 0; n < WORDS; n++) all[n] = (struct waiter){0, (uintptr_t)&word, SIZE_32 | PRIVATE, 0};
    __atomic_add_fetch(&asleep, 1, __ATOMIC_SEQ_CST);
    for (;;) syscall(SYS_WAITV, all, WORDS, 0, 0, 0);
    return unused;
}

static void start_waiters(void) {
    pthread_attr_t small;
    pthread_t thread;
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 32768);
    for (int n = 0; n < THREADS; n++) CHECK(!pthread_create(&thread, &small, wait_for_words, 0));
    while (asleep < THREADS) usleep(1000);
    usleep(50000);
}

static void wake_many_waiters(void) {
    start_waiters();
    *ready = 1;
    struct timespec soon = {0, 1000};
    for (;;) {
        // No sleeper has this bit.
        syscall(SYS_futex, &word, 10 | PRIVATE, INT32_MAX, 0, 0, 1);
        syscall(SYS_futex, &word, 0 | PRIVATE, 0, &soon, 0, 0);
        syscall(SYS_futex, &word, 3 | PRIVATE, 0, INT32_MAX, &other, 0);
        syscall(SYS_futex, &word, 1 | PRIVATE, INT32_MAX, 0, 0, 0);
    }
}

// A table of descriptors with many blocks, of which each has one descriptor.
static void copy_many_descriptors(void) {
    struct rlimit most;
    CHECK(!getrlimit(RLIMIT_NOFILE, &most));
    most.rlim_cur = most.rlim_max;
    CHECK(!setrlimit(RLIMIT_NOFILE, &most));
    int file = open("/dev/null", O_RDONLY), folder = open("/proc/self/fd", O_RDONLY);
    for (int n = 128; n < (int)most.rlim_cur && n < 1 << 19; n += 64) CHECK(dup2(file, n) == n);
    char *entries = malloc(1 << 20);
    *ready = 1;
    for (;;) {
        CHECK(!lseek(folder, 0, SEEK_SET));
        while (syscall(SYS_getdents64, folder, entries, 1 << 20) > 0);
        CHECK(!syscall(SYS_close_range, 128, ~0U, 4));
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) _exit(syscall(SYS_close_range, 1 << 18, ~0U, 0));
        CHECK(waitpid(child, 0, 0) == child);
    }
}

static void change_many_attributes(void) {
    int file = open("/dev/shm/many", O_CREAT | O_RDWR, 0600);
    char name[20], *names = malloc(1 << 16);
    int count = 0;
    do {
        snprintf(name, sizeof name, "user.%x", count++);
    } while (!fsetxattr(file, name, "", 0, 0));
    CHECK(errno == ENOSPC && count > 1000);
    *ready = 1;
    for (;;) {
        CHECK(!fsetxattr(file, "user.0", "", 0, XATTR_REPLACE) && fgetxattr(file, name, "", 0) == -1);
        CHECK(flistxattr(file, names, 1 << 16) > 6000);
    }
}

// Makes a mapping of many VMAs without pages.
static void map_many(void) {
    enum { VMAS = 10000 };
    char *at = mmap(0, VMAS * 8192L, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(at != MAP_FAILED);
    for (int n = 0; n < VMAS; n++) CHECK(!mprotect(at + n * 8192L, 4096, PROT_READ));
}

static void report_many_mappings(void) {
    static const char *const files[] = {"maps", "smaps", "smaps_rollup", "numa_maps", "status"};
    map_many();
    *ready = 1;
    for (;;) {
        for (int n = 0; n < 5; n++) {
            char path[40], byte;
            snprintf(path, sizeof path, "/proc/self/%s", files[n]);
            int file = open(path, O_RDONLY);
            CHECK(file >= 0 || errno == ENOENT);
            if (file < 0) continue;
            // Behind the end of the text, and its beginning.
            pread(file, &byte, 1, 1L << 30);
            pread(file, &byte, 1, 0);
            close(file);
        }
    }
}

static void clear_many_mappings(void) {
    map_many();
    int file = open("/proc/self/clear_refs", O_WRONLY);
    CHECK(file >= 0);
    *ready = 1;
    for (;;) CHECK(write(file, "1", 1) == 1 && write(file, "4", 1) == 1);
}

static void populate_present_pages(void) {
    enum { POPULATE_READ = 22 };
    char *at = mmap(0, 1 << 29, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(at != MAP_FAILED && !madvise(at, 1 << 29, POPULATE_READ));
    *ready = 1;
    for (;;) CHECK(!madvise(at, 1 << 29, POPULATE_READ));
}

// A mapping with many upper page tables, each of which has one table below.
static void move_sparse_mapping(void) {
    const long size = 1L << 40, step = 1L << 32;
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    char *from = mmap(0, size, PROT_READ | PROT_WRITE, flags, -1, 0), *to = mmap(0, size, PROT_NONE, flags, -1, 0);
    CHECK(from != MAP_FAILED && to != MAP_FAILED);
    for (long at = 0; at < size; at += step) from[at] = 1;
    *ready = 1;
    for (;;) {
        CHECK(mremap(from, size, size, MREMAP_MAYMOVE | MREMAP_FIXED, to) == to);
        char *before = from;
        from = to, to = before;
    }
}

// Processes that run for ever and have just been made.
static void run_many_processes(void) {
    for (int n = 0; n < 50; n++) {
        pid_t child = fork();
        CHECK(child >= 0);
        if (child > 0) continue;
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        for (;;);
    }
    *ready = 1;
    for (;;);
}

static void execute_with_many_strings(void) {
    enum { STRINGS = 300000 };
    static char *strings[STRINGS + 1];
    for (int n = 0; n < STRINGS; n++) strings[n] = "";
    struct rlimit none = {RLIM_INFINITY, RLIM_INFINITY};
    CHECK(!setrlimit(RLIMIT_STACK, &none));
    *ready = 1;
    for (;;) CHECK(execve("/proc", strings, strings) == -1);
}

#define FLOOD(name) beside(name), printf("%s\n", #name), fflush(stdout)

int main(int count, char **arguments) {
    if (count > 1) bound *= atoi(arguments[1]);
    ready = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(ready != MAP_FAILED);
    FLOOD(copy_without_end);
    FLOOD(read_without_end);
    FLOOD(look_for_holes);
    FLOOD(ask_for_many_pages);
    FLOOD(set_silent_timers);
    FLOOD(set_blocked_timers);
    FLOOD(set_ringing_timers);
    FLOOD(wake_many_waiters);
    FLOOD(copy_many_descriptors);
    FLOOD(change_many_attributes);
    FLOOD(report_many_mappings);
    FLOOD(clear_many_mappings);
    FLOOD(populate_present_pages);
    FLOOD(move_sparse_mapping);
    FLOOD(run_many_processes);
    FLOOD(execute_with_many_strings);
    return 0;
}
