// Memory at addresses that need more than 47 bits. Such addresses are available only if the CPU has five
// levels of page tables and a hint asks for them. `high five` expects such addresses, and `high four` expects
// none. `high five` runs on the kernel for five levels (`Tables` in `kernel/src/arch/layout.rs`).
#define _GNU_SOURCE
#include "check.h"
#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/wait.h>

enum { PAGE = 4096 };

static const unsigned long WINDOW = 1ul << 47, HIGH = 1ul << 50, END = 1ul << 56;
static int five;

static char *pages(unsigned long hint, long bytes, int flags) {
    return mmap((void *)hint, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
}

static int is_listed(char *at) {
    char line[256], wanted[32];
    int here = 0;
    snprintf(wanted, sizeof wanted, "%lx-", (long)at);
    FILE *file = fopen("/proc/self/maps", "r");
    while (!here && fgets(line, sizeof line, file)) here = !strncmp(line, wanted, strlen(wanted));
    fclose(file);
    return here;
}

static void addresses_are_low_without_a_hint(void) {
    char *at = pages(0, 1 << 20, 0), *below = pages(HIGH >> 10, PAGE, 0);
    CHECK((unsigned long)at < WINDOW && (unsigned long)below == HIGH >> 10 && (unsigned long)&at < WINDOW);
    munmap(at, 1 << 20), munmap(below, PAGE);
    // The mapping is too large for the addresses below 2^47, and without a hint no higher address is used.
    CHECK(pages(0, WINDOW, MAP_NORESERVE) == MAP_FAILED && errno == ENOMEM);
}

static void hint_selects_high_addresses(void) {
    char *at = pages(HIGH, 64 * PAGE, 0);
    CHECK(at != MAP_FAILED && ((unsigned long)at == HIGH) == five && ((unsigned long)at < WINDOW) == !five);
    for (int n = 0; n < 64; n++) at[n * PAGE] = (char)n;
    for (int n = 0; n < 64; n++) CHECK(at[n * PAGE] == n);
    CHECK(is_listed(at));
    CHECK(!munmap(at, 64 * PAGE) && !is_listed(at));
    at = pages(~0ul, PAGE, 0);
    CHECK(at != MAP_FAILED && ((unsigned long)at >= WINDOW) == five);
    at[0] = 1;
    CHECK(!munmap(at, PAGE));
}

static void calls_accept_high_addresses(void) {
    char *at = pages(HIGH, 16 * PAGE, MAP_FIXED_NOREPLACE), state[4];
    CHECK(at == (char *)HIGH);
    int file = memfd_create("contents", 0);
    strcpy(at, "high");
    CHECK(pwrite(file, at, 5, 0) == 5 && pread(file, at + PAGE, 5, 0) == 5 && !strcmp(at + PAGE, "high"));
    CHECK(!mincore(at, 4 * PAGE, (unsigned char *)state) && state[1] == 1 && state[2] == 0);
    CHECK(!mprotect(at, PAGE, PROT_READ) && pread(file, at, 1, 0) == -1 && errno == EFAULT);
    char *moved = mremap(at, 2 * PAGE, 2 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, at + (1ul << 49));
    CHECK(moved == at + (1ul << 49) && !strcmp(moved, "high") && !madvise(moved + PAGE, PAGE, MADV_DONTNEED));
    char *last = pages(END - 2 * PAGE, PAGE, MAP_FIXED);
    CHECK(last == (char *)END - 2 * PAGE);
    last[5] = 5;
    CHECK(pages(END - PAGE, PAGE, MAP_FIXED) == MAP_FAILED && errno == ENOMEM);
    pid_t child = fork();
    int status;
    if (!child) {
        CHECK(!strcmp(moved, "high") && last[5] == 5);
        last[5] = 6;
        _exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child && status == 0 && last[5] == 5);
    CHECK(!munmap(last, PAGE) && !munmap(moved, 2 * PAGE) && !munmap(at, 16 * PAGE));
    close(file);
}

static void *touch(void *arg) {
    for (unsigned long n = 0; n < 200; n++) {
        char *at = pages(((long)arg + 1) << 50 | n << 30, 4 * PAGE, 0);
        CHECK(at != MAP_FAILED && (unsigned long)at >= WINDOW);
        at[PAGE] = 1;
        CHECK(!munmap(at, 4 * PAGE));
    }
    return arg;
}

static void threads_map_high_addresses(void) {
    pthread_t threads[4];
    for (long n = 0; n < 4; n++) CHECK(!pthread_create(&threads[n], 0, touch, (void *)n));
    for (long n = 0; n < 4; n++) CHECK(!pthread_join(threads[n], 0));
}

static void high_addresses_are_refused(void) {
    CHECK(pages(HIGH, PAGE, MAP_FIXED) == MAP_FAILED && errno == ENOMEM);
    CHECK(pages(WINDOW, PAGE, MAP_FIXED) == MAP_FAILED && errno == ENOMEM);
    CHECK(write(1, (char *)HIGH, 1) == -1 && errno == EFAULT);
}

int main(int argc, char **argv) {
    five = argc > 1 && !strcmp(argv[1], "five");
    PART(addresses_are_low_without_a_hint);
    PART(hint_selects_high_addresses);
    if (five) {
        PART(calls_accept_high_addresses);
        PART(threads_map_high_addresses);
    } else {
        PART(high_addresses_are_refused);
    }
    return 0;
}
