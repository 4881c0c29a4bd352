// Makes every system call with the largest arguments: long ranges, many elements, no timeouts. A heartbeat beside
// the calls must never be late, and a kill must end each call soon; the kernel measures how long interrupts are
// off. The test counts instructions (`counted` in `tests.toml`), so its times are exact.
//
// The calls are all numbers below NUMBERS, so a new call is covered without a change here, except for the kinds of
// files and the values that only this call knows: they belong in `prepare` and `choose`. A child makes the calls of
// one number, and another child continues after a call that ends it or takes too long. Calls that fill memory take
// too long before memory is full.
#define _GNU_SOURCE
#include "check.h"
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>

enum { MS = 1000000, BEAT = 5 * MS, LATE = 100 * MS, PATIENCE = 20 * MS };
enum { NUMBERS = 480, FIRST_FILE = 900, FILES = 10, WORDS = 1 << 18 };

// Calls that are not made: they make processes that continue this program, or reach other processes or the whole
// machine.
static const int left_out[] = {
    SYS_clone, SYS_fork, SYS_vfork, SYS_clone3, SYS_kill, SYS_tkill, SYS_tgkill, SYS_rt_sigqueueinfo,
    SYS_rt_tgsigqueueinfo, SYS_pidfd_send_signal, SYS_ptrace, SYS_reboot, SYS_setpriority, SYS_prlimit64,
    SYS_sched_setaffinity, SYS_process_madvise, SYS_process_vm_writev,
};

// Shared with the children: the call in progress.
static struct {
    volatile int number, pattern, over;
    volatile int64_t latest;
} *shared;

static uint64_t *words;
static uint64_t seed;

static int64_t now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000000000 + time.tv_nsec;
}

static void sleep_until(int64_t due) {
    struct timespec at = {due / 1000000000, due % 1000000000};
    clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, 0);
}

static uint64_t random_below(uint64_t most) {
    seed ^= seed << 13, seed ^= seed >> 7, seed ^= seed << 17;
    return seed % most;
}

// Makes the files and the memory that the arguments name. The memory has arrays of all kinds: pairs of an address
// and a length, and addresses.
static void prepare(void) {
    words = mmap(0, WORDS * 8, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(words != MAP_FAILED);
    for (int n = 0; n < 8192; n += 2) words[n] = (uintptr_t)words, words[n + 1] = WORDS * 8;
    int sparse = memfd_create("sparse", 0), full = memfd_create("full", 0), ends[2], sockets[2];
    CHECK(!ftruncate(sparse, 1L << 62) && !ftruncate(full, 1 << 22));
    for (long page = 0; page < 1024; page += 2) CHECK(pwrite(full, "x", 1, page << 12) == 1);
    CHECK(!pipe(ends) && !socketpair(AF_UNIX, SOCK_STREAM, 0, sockets));
    int files[FILES] = {sparse, full, open("/dev/zero", O_RDWR), open("/dev/urandom", O_RDWR),
                        open("/tmp/many", O_RDONLY), epoll_create1(0), ends[0], ends[1],
                        sockets[0], sockets[1]};
    for (int n = 0; n < FILES; n++) CHECK(dup2(files[n], FIRST_FILE + n) >= 0);
    // The calls write nothing to the console.
    for (int n = 0; n < 3; n++) CHECK(dup2(FIRST_FILE + 2, n) >= 0);
    // Descriptors for poll, select and epoll, and for calls that close or copy them all.
    int bell = eventfd(0, 0);
    for (int n = 0; n < 800; n++) {
        struct epoll_event event = {.events = EPOLLIN};
        int copy = dup(bell);
        CHECK(copy >= 0 && !epoll_ctl(FIRST_FILE + 5, EPOLL_CTL_ADD, copy, &event));
    }
}

// Chooses an argument. The first one is more often a file or an address; the later ones are more often a length.
static uint64_t choose(int place) {
    static const uint64_t lengths[] = {UINT64_MAX, INT64_MAX, 1UL << 47, 1UL << 40, UINT32_MAX,
                                       INT32_MAX, 1 << 30, 1 << 20, 1024, WORDS * 8};
    static const uint64_t small[] = {0, 0, 0, 1, 2, 3, 4, 8, 16};
    switch (random_below(place == 0 ? 4 : 6)) {
        case 0: return FIRST_FILE + random_below(FILES);
        case 1: return (uintptr_t)words;
        case 2: return lengths[random_below(sizeof lengths / sizeof *lengths)];
        case 3: return small[random_below(sizeof small / sizeof *small)];
        case 4: return lengths[random_below(sizeof lengths / sizeof *lengths)];
        default: return (uintptr_t)(words + random_below(2) * 4096);
    }
}

// The arguments of a call: some regular patterns, then random ones.
static void arguments(int number, int pattern, uint64_t out[6]) {
    seed = 0x9e3779b97f4a7c15 * (number * 1000 + pattern + 1);
    for (int n = 0; n < 8; n++) random_below(1);
    const uint64_t at = (uintptr_t)words, file = FIRST_FILE + pattern % FILES, long_ = INT32_MAX;
    const uint64_t regular[][6] = {
        {UINT64_MAX, UINT64_MAX, UINT64_MAX, UINT64_MAX, UINT64_MAX, UINT64_MAX},
        {0, long_, at, 0, at, 0},
        {at, long_, at, long_, at, long_},
        {file, at, long_, 0, at, 0},
        {FIRST_FILE, at, at, 0, 0, 0},
        {FIRST_FILE + 2, FIRST_FILE + 3, 0, long_, 0, 0},
        {0, 1UL << 46, 3, 0x4022, UINT64_MAX, 0},
        {at, WORDS * 8, 1UL << 46, 1, 0, 0},
    };
    int regulars = sizeof regular / sizeof *regular;
    for (int n = 0; n < 6; n++) out[n] = pattern < regulars ? regular[pattern][n] : choose(n);
}

static int is_left_out(int number) {
    for (unsigned n = 0; n < sizeof left_out / sizeof *left_out; n++) {
        if (left_out[n] == number) return 1;
    }
    return 0;
}

// Makes the calls of a number, from a pattern on.
static void child(int number, int pattern, int patterns) {
    setpgid(0, 0);
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, 0);
    prepare();
    for (; pattern < patterns; pattern++) {
        uint64_t a[6];
        arguments(number, pattern, a);
        shared->pattern = pattern;
        register uint64_t r10 __asm__("r10") = a[3], r8 __asm__("r8") = a[4], r9 __asm__("r9") = a[5];
        uint64_t answer = number;
        __asm__ volatile("syscall"
                         : "+a"(answer)
                         : "D"(a[0]), "S"(a[1]), "d"(a[2]), "r"(r10), "r"(r8), "r"(r9)
                         : "rcx", "r11", "memory");
    }
    shared->over = 1;
    _exit(0);
}

// Notes how late it wakes. Runs beside all calls.
static void heartbeat(void) {
    for (;;) {
        int64_t due = now() + BEAT;
        sleep_until(due);
        int64_t late = now() - due;
        if (late > shared->latest) shared->latest = late;
        if (late > LATE) {
            printf("%ld us late in call %d, pattern %d\n", (long)late / 1000, shared->number, shared->pattern);
            fflush(stdout);
        }
    }
}

// Makes the calls of a number. Returns the longest time from a kill to the end.
static int64_t try_number(int number, int patterns) {
    int64_t longest = 0;
    shared->number = number, shared->pattern = -1, shared->over = 0;
    for (int next = 0; next < patterns && !shared->over; next = shared->pattern + 1) {
        pid_t pid = fork();
        CHECK(pid >= 0);
        if (pid == 0) child(number, next, patterns);
        int seen = -1, status;
        int64_t since = now();
        while (waitpid(pid, &status, WNOHANG) == 0) {
            sleep_until(now() + MS);
            if (shared->pattern != seen) seen = shared->pattern, since = now();
            if (now() - since < PATIENCE || shared->pattern < next) continue;
            int64_t begin = now();
            kill(pid, SIGKILL);
            CHECK(waitpid(pid, &status, 0) == pid);
            int64_t end = now() - begin;
            if (end > longest) longest = end;
            if (end > LATE) {
                printf("%ld us to end call %d, pattern %d\n", (long)end / 1000, number, shared->pattern);
                fflush(stdout);
            }
            break;
        }
    }
    return longest;
}

int main(int count, char **arguments) {
    int patterns = count > 1 ? atoi(arguments[1]) : 16, only = count > 2 ? atoi(arguments[2]) : -1;
    shared = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(shared != MAP_FAILED);
    CHECK(!mkdir("/tmp/many", 0700));
    for (int n = 0; n < 2000; n++) {
        char path[40];
        snprintf(path, sizeof path, "/tmp/many/%d", n);
        int file = open(path, O_CREAT | O_RDWR, 0600);
        CHECK(file >= 0);
        close(file);
    }
    sigset_t all;
    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, 0);
    pid_t beating = fork();
    CHECK(beating >= 0);
    if (beating == 0) heartbeat();
    int64_t longest = 0;
    for (int number = 0; number < NUMBERS; number++) {
        if (is_left_out(number) || (only >= 0 && number != only)) continue;
        int64_t end = try_number(number, patterns);
        if (end > longest) longest = end;
    }
    CHECK(kill(beating, 0) == 0 && shared->latest > 0);
    printf("heartbeat at most %ld us late\n", (long)shared->latest / 1000);
    printf("kill took at most %ld us\n", (long)longest / 1000);
    CHECK(shared->latest <= LATE && longest <= LATE);
    CHECK(!kill(beating, SIGKILL));
    printf("every call gave way\n");
    return 0;
}
