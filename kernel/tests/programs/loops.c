// The loops of will-it-scale that measure how well memory management scales, each with a fixed number of
// rounds: faults on anonymous memory, on private and on shared files, new and removed mappings, moves of the
// break, TLB flushes.
//
//     loops NAME|all [THREADS [ROUNDS]]       threads of one process
//     loops -p NAME|all [PROCESSES [ROUNDS]]  processes
//
// A new loop needs a function, and an entry in `loops`.
#define _GNU_SOURCE
#include "check.h"
#include <pthread.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>

static size_t bytes = 16 << 20;
static long rounds = 4;

static int file(void) {
    int made = memfd_create("loop", 0);
    CHECK(made >= 0 && !ftruncate(made, bytes));
    return made;
}

static char *map(int flags, int file) {
    char *at = mmap(0, bytes, PROT_READ | PROT_WRITE, flags, file, 0);
    CHECK(at != MAP_FAILED);
    return at;
}

static void faults(int flags, int file) {
    for (long round = 0; round < rounds; round++) {
        char *at = map(flags, file);
        for (size_t n = 0; n < bytes; n += 4096) at[n] = (char)round;
        CHECK(at[bytes - 4096] == (char)round && at[1] == 0);
        CHECK(!munmap(at, bytes));
    }
    if (file >= 0) close(file);
}

static void page_fault1(void) { faults(MAP_PRIVATE | MAP_ANONYMOUS, -1); }
static void page_fault2(void) { faults(MAP_PRIVATE, file()); }
static void page_fault3(void) { faults(MAP_SHARED, file()); }

static void mmaps(int flags, int file) {
    for (long round = 0; round < rounds * 1000; round++) CHECK(!munmap(map(flags, file), bytes));
    if (file >= 0) close(file);
}

static void mmap1(void) { mmaps(MAP_PRIVATE | MAP_ANONYMOUS, -1); }
static void mmap2(void) { mmaps(MAP_SHARED, file()); }

// All threads of a process share one break, so its value is checked only if there is one thread.
static void brk1(void) {
    char *start = sbrk(0);
    CHECK(start != (char *)-1);
    for (long round = 0; round < rounds * 1000; round++) {
        CHECK(syscall(SYS_brk, start + 4096) > 0);
        CHECK(syscall(SYS_brk, start) > 0);
    }
}

static void brk2(void) {
    char *start = sbrk(0);
    CHECK(start != (char *)-1);
    for (long round = 0; round < rounds; round++) {
        for (int n = 1; n <= 1000; n++) CHECK(syscall(SYS_brk, start + n * 4096L) > 0);
        CHECK(syscall(SYS_brk, start) > 0);
    }
}

static void tlb_flush1(void) {
    char *at = map(MAP_PRIVATE | MAP_ANONYMOUS, -1);
    for (long round = 0; round < rounds * 1000; round++) {
        char *page = at + round % 64 * 4096;
        *page = 1;
        CHECK(!madvise(page, 4096, MADV_DONTNEED));
        CHECK(*page == 0);
    }
    CHECK(!munmap(at, bytes));
}

static void tlb_flush2(void) {
    char *at = map(MAP_PRIVATE | MAP_ANONYMOUS, -1);
    for (long round = 0; round < rounds * 500; round++) {
        *at = 1;
        CHECK(!mprotect(at, 4096, PROT_READ));
        CHECK(!mprotect(at, 4096, PROT_READ | PROT_WRITE));
    }
    CHECK(!munmap(at, bytes));
}

static const struct {
    const char *name;
    void (*run)(void);
    // Pages or calls in a round.
    long steps;
} loops[] = {
    {"page_fault1", page_fault1, 4096}, {"page_fault2", page_fault2, 4096}, {"page_fault3", page_fault3, 4096},
    {"mmap1", mmap1, 1000},             {"mmap2", mmap2, 1000},             {"brk1", brk1, 1000},
    {"brk2", brk2, 1000},               {"tlb_flush1", tlb_flush1, 1000},   {"tlb_flush2", tlb_flush2, 500},
};

static void (*current)(void);
static pthread_barrier_t barrier;

static void *one(void *arg) {
    pthread_barrier_wait(&barrier);
    current();
    return arg;
}

static void as_threads(int many) {
    pthread_t threads[256];
    CHECK(!pthread_barrier_init(&barrier, 0, many));
    for (int n = 0; n < many; n++) CHECK(!pthread_create(&threads[n], 0, one, 0));
    for (int n = 0; n < many; n++) CHECK(!pthread_join(threads[n], 0));
}

static void as_processes(int many) {
    for (int n = 0; n < many; n++) {
        pid_t child = fork();
        CHECK(child >= 0);
        if (!child) {
            current();
            _exit(0);
        }
    }
    int status;
    for (int n = 0; n < many; n++) CHECK(wait(&status) > 0 && status == 0);
}

int main(int argc, char **argv) {
    int processes = argc > 1 && !strcmp(argv[1], "-p");
    argc -= processes, argv += processes;
    const char *name = argc > 1 ? argv[1] : "all";
    int many = argc > 2 ? atoi(argv[2]) : 2;
    if (argc > 3) rounds = atol(argv[3]);
    CHECK(many > 0 && many <= 256);
    for (unsigned n = 0; n < sizeof loops / sizeof *loops; n++) {
        if (strcmp(name, "all") && strcmp(name, loops[n].name)) continue;
        struct timespec before, after;
        current = loops[n].run;
        clock_gettime(CLOCK_MONOTONIC, &before);
        processes ? as_processes(many) : as_threads(many);
        clock_gettime(CLOCK_MONOTONIC, &after);
        double took = after.tv_sec - before.tv_sec + (after.tv_nsec - before.tv_nsec) / 1e9;
        printf("%s: %d %s, %.0f a second\n", loops[n].name, many, processes ? "processes" : "threads",
               many * rounds * loops[n].steps / took);
        fflush(stdout);
    }
    return 0;
}
