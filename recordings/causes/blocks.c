// Shows which pages a store brings in. Anonymous memory has blocks of 16 KiB everywhere, and blocks of 64 KiB
// where MADV_HUGEPAGE requested them. The program then reads or locks the memory, so that recorded events touch
// every page that a store has brought in.
#define _GNU_SOURCE
#include <stdint.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 4096UL
#define PAGES 64

static volatile char *memory(unsigned long first, int advice) {
    char *room = mmap(0, 4 * PAGES * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    uintptr_t at = ((uintptr_t)room + PAGES * PAGE) & -(PAGES * PAGE);
    munmap(room, 4 * PAGES * PAGE);
    char *memory = mmap((void *)(at + first * PAGE), PAGES * PAGE, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    if (advice >= 0)
        madvise(memory, PAGES * PAGE, advice);
    return memory;
}

static void touch(volatile char *at) {
    (void)at[30 * PAGE];
    at[5 * PAGE] = 1;
    at[37 * PAGE] = 1;
    at[31 * PAGE] = 1;
    at[63 * PAGE] = 1;
}

// Populates the memory: absent pages become pages of zeroes.
static void read_all(volatile char *at) {
    madvise((void *)at, PAGES * PAGE, MADV_POPULATE_READ);
}

int main(void) {
    const int advice[] = {-1, MADV_HUGEPAGE, MADV_NOHUGEPAGE};
    for (int kind = 0; kind < 3; kind++) {
        for (unsigned long first = 0; first < 32; first += 3) {
            volatile char *at = memory(first, advice[kind]);
            touch(at);
            read_all(at);
        }
        volatile char *at = memory(0, advice[kind]);
        touch(at);
        madvise((void *)(at + 34 * PAGE), 2 * PAGE, MADV_DONTNEED);
        at[34 * PAGE] = 1;
        mprotect((void *)(at + 8 * PAGE), PAGE, PROT_READ);
        at[11 * PAGE] = 1;
        munmap((void *)(at + 48 * PAGE), PAGE);
        at[50 * PAGE] = 1;
        at[52 * PAGE] = 1;
        if (!fork()) {
            at[6 * PAGE] = 2;
            at[20 * PAGE] = 2;
            read_all(at);
            _exit(0);
        }
        wait(0);
        at[20 * PAGE] = 3;
        read_all(at);
    }
    volatile char *locked = memory(0, MADV_HUGEPAGE);
    madvise((void *)(locked + 20 * PAGE), PAGE, MADV_POPULATE_WRITE);
    mlock((void *)locked, 18 * PAGE);
    read_all(locked);
    prctl(PR_SET_THP_DISABLE, 1, 2, 0, 0);
    touch(memory(0, -1));
    volatile char *asked = memory(0, MADV_HUGEPAGE);
    touch(asked);
    read_all(asked);
    prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0);
    asked = memory(0, MADV_HUGEPAGE);
    touch(asked);
    read_all(asked);
    return 0;
}
