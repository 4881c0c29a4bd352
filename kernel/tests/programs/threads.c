// Threads: locks, conditions, barriers, thread-local memory, many starts and ends, robust locks, locks
// between processes. Checks `kernel/src/process/futex.rs` through the C library, with glibc and with musl.
// The test `recorded-threads` records a run of this program and replays it.
#define _GNU_SOURCE
#include "check.h"
#include <pthread.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>

enum { THREADS = 4, ROUNDS = 20000 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static long total;
static int turn;
static __thread long own;

static void run(void *(*body)(void *)) {
    pthread_t threads[THREADS];
    for (long n = 0; n < THREADS; n++) CHECK(!pthread_create(&threads[n], 0, body, (void *)n));
    for (long n = 0; n < THREADS; n++) CHECK(!pthread_join(threads[n], 0));
}

static void *count(void *arg) {
    for (int n = 0; n < ROUNDS; n++) {
        pthread_mutex_lock(&lock);
        total++;
        pthread_mutex_unlock(&lock);
        own++;
    }
    CHECK(own == ROUNDS);
    return arg;
}

static void lock_excludes_other_threads(void) {
    total = 0;
    run(count);
    CHECK(total == THREADS * ROUNDS);
}

static void *in_turn(void *arg) {
    for (int n = 0; n < 200; n++) {
        pthread_mutex_lock(&lock);
        while (turn != (long)arg) pthread_cond_wait(&changed, &lock);
        turn = (turn + 1) % THREADS;
        pthread_cond_broadcast(&changed);
        pthread_mutex_unlock(&lock);
    }
    return arg;
}

static void condition_variable_orders_threads(void) {
    turn = 0;
    run(in_turn);
    CHECK(turn == 0);
}

static pthread_barrier_t barrier;
static int arrived[THREADS];

static void *meet(void *arg) {
    for (int n = 1; n <= 200; n++) {
        arrived[(long)arg] = n;
        pthread_barrier_wait(&barrier);
        for (int other = 0; other < THREADS; other++) CHECK(arrived[other] == n);
        pthread_barrier_wait(&barrier);
    }
    return arg;
}

static void barrier_waits_for_all_threads(void) {
    CHECK(!pthread_barrier_init(&barrier, 0, THREADS));
    run(meet);
}

static void *touch(void *arg) {
    volatile char room[64 << 10];
    for (unsigned n = 0; n < sizeof room; n += 4096) room[n] = (char)n;
    return arg;
}

static void many_threads_start_and_end(void) {
    for (int n = 0; n < 100; n++) run(touch);
}

static pthread_mutex_t *shared;

static void shared_lock(int robust) {
    pthread_mutexattr_t kind;
    shared = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(shared != MAP_FAILED);
    CHECK(!pthread_mutexattr_init(&kind));
    CHECK(!pthread_mutexattr_setpshared(&kind, PTHREAD_PROCESS_SHARED));
    if (robust) CHECK(!pthread_mutexattr_setrobust(&kind, PTHREAD_MUTEX_ROBUST));
    CHECK(!pthread_mutex_init(shared, &kind));
}

static void processes_share_a_lock(void) {
    shared_lock(0);
    long *count = (long *)(shared + 1);
    for (int n = 0; n < THREADS; n++) {
        if (fork()) continue;
        for (int round = 0; round < ROUNDS; round++) {
            pthread_mutex_lock(shared);
            ++*count;
            pthread_mutex_unlock(shared);
        }
        _exit(0);
    }
    int status;
    for (int n = 0; n < THREADS; n++) CHECK(wait(&status) > 0 && status == 0);
    CHECK(*count == THREADS * ROUNDS);
}

static void robust_lock_reports_a_dead_holder(void) {
    shared_lock(1);
    if (!fork()) {
        pthread_mutex_lock(shared);
        _exit(0);
    }
    CHECK(wait(0) > 0);
    CHECK(pthread_mutex_lock(shared) == EOWNERDEAD);
    CHECK(!pthread_mutex_consistent(shared));
    CHECK(!pthread_mutex_unlock(shared));
}

static int membarrier(int command) { return syscall(SYS_membarrier, command, 0, 0); }

enum { GLOBAL = 1, PRIVATE = 8, REGISTER_PRIVATE = 16, SYNC_CORE = 32, REGISTER_SYNC_CORE = 64 };
enum { GET_REGISTRATIONS = 512, EVENTS = 500 };
// The two flags of Dekker's algorithm, on lines of their own, and the step of each thread.
static struct {
    _Alignas(128) volatile int value;
} mine, theirs, step[2], seen;

// The side without barriers. Only the compiler keeps the order of the store and the load.
static void *store_then_load(void *unused) {
    seen.value = -1;
    for (int n = 1; n <= EVENTS; n++) {
        while (step[0].value != n) {}
        mine.value = n;
        __asm__ volatile("" ::: "memory");
        seen.value = theirs.value;
        __atomic_store_n(&step[1].value, n, __ATOMIC_RELEASE);
    }
    return unused;
}

// A barrier of one thread replaces a barrier between a store and a load of every other thread.
static void membarrier_orders_other_threads(void) {
    int status;
    pid_t child = fork();
    if (child == 0) {
        CHECK(membarrier(PRIVATE) == -1 && errno == EPERM);
        CHECK(membarrier(GET_REGISTRATIONS) == 0);
        // A registration for barriers with a serializing instruction is reported as both registrations.
        CHECK(!membarrier(REGISTER_SYNC_CORE));
        CHECK(membarrier(GET_REGISTRATIONS) == (REGISTER_SYNC_CORE | REGISTER_PRIVATE));
        CHECK(!membarrier(SYNC_CORE));
        CHECK(membarrier(PRIVATE) == -1 && errno == EPERM);
        CHECK(syscall(SYS_membarrier, GET_REGISTRATIONS, 1, 0) == -1 && errno == EINVAL);
        _exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    CHECK(!membarrier(REGISTER_PRIVATE));
    child = fork();
    if (child == 0) {
        CHECK(!membarrier(PRIVATE));
        _exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    pthread_t other;
    CHECK(!pthread_create(&other, 0, store_then_load, 0));
    while (seen.value != -1) {}
    // The other thread now runs without calls, so each grace period waits until an interrupt.
    struct timespec begin, end;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    for (int n = 0; n < 20; n++) CHECK(!membarrier(GLOBAL));
    clock_gettime(CLOCK_MONOTONIC, &end);
    CHECK((end.tv_sec - begin.tv_sec) * 1000000000 + end.tv_nsec - begin.tv_nsec > 1000000);
    for (int n = 1; n <= EVENTS; n++) {
        int command = n % 100 == 0 ? GLOBAL : PRIVATE;
        __atomic_store_n(&step[0].value, n, __ATOMIC_RELEASE);
        theirs.value = n;
        CHECK(!membarrier(command));
        int found = mine.value;
        while (step[1].value != n) {}
        // One of the threads sees the store of the other.
        CHECK(found == n || seen.value == n);
    }
    CHECK(!pthread_join(other, 0));
}

int main(void) {
    PART(lock_excludes_other_threads);
    PART(condition_variable_orders_threads);
    PART(barrier_waits_for_all_threads);
    PART(many_threads_start_and_end);
    PART(processes_share_a_lock);
    PART(robust_lock_reports_a_dead_holder);
    PART(membarrier_orders_other_threads);
    return 0;
}
