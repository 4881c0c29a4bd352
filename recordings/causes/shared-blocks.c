// Shows which pages a first access brings in. Shared memory has blocks of 16 KiB everywhere, of 64 KiB
// within the length of the file, and of 128 KiB and 2 MiB where MADV_HUGEPAGE requested them.
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 4096UL
#define PAGES 128UL
#define HUGE (2UL << 20)

static int memory(unsigned long pages) {
    int fd = memfd_create("blocks", 0);
    ftruncate(fd, pages * PAGE);
    return fd;
}

// Maps pages of the file from page `first` on. The address is `shift` pages above an address with the
// alignment of the file.
static volatile char *map(int fd, int flags, unsigned long first, unsigned long pages, unsigned long shift) {
    char *room = mmap(0, pages * PAGE + 3 * HUGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    uintptr_t at = ((uintptr_t)room + HUGE) & -HUGE;
    munmap(room, pages * PAGE + 3 * HUGE);
    at += (first + shift) * PAGE;
    return mmap((void *)at, pages * PAGE, PROT_READ | PROT_WRITE, flags | MAP_FIXED, fd, first * PAGE);
}

static void touch(volatile char *at, unsigned long page, int write) {
    if (write)
        at[page * PAGE] = 1;
    else
        (void)at[page * PAGE];
}

static void each_way(int write, int advice) {
    // Maps the whole file and parts of the file, also at addresses that are not aligned like the file.
    for (unsigned long first = 0; first < 40; first += 13) {
        int fd = memory(PAGES + 8);
        volatile char *at = map(fd, MAP_SHARED, first, PAGES - first, 0);
        if (advice >= 0)
            madvise((void *)at, (PAGES - first) * PAGE, advice);
        touch(at, 5, write);
        touch(at, 37, write);
        touch(at, 80, write);
        volatile char *other = map(fd, MAP_SHARED, 0, PAGES, first);
        touch(other, 7, write);
        touch(other, 75, write);
        touch(other, 100, write);
        touch(map(fd, MAP_PRIVATE, 0, PAGES, 0), 50, write);
    }
    // The file ends inside a block.
    int fd = memory(45);
    volatile char *at = map(fd, MAP_SHARED, 0, 45, 0);
    touch(at, 44, write);
    touch(at, 33, write);
    // A hole and a new end remove pages of blocks.
    fd = memory(PAGES);
    at = map(fd, MAP_SHARED, 0, PAGES, 0);
    for (unsigned long page = 0; page < PAGES; page += 16)
        touch(at, page, write);
    fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 22 * PAGE, 3 * PAGE);
    fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 40 * PAGE, PAGE / 2);
    touch(at, 28, write);
    touch(at, 23, write);
    touch(at, 45, write);
    ftruncate(fd, 101 * PAGE);
    ftruncate(fd, PAGES * PAGE);
    touch(at, 98, write);
    touch(at, 106, write);
    madvise((void *)(at + 8 * PAGE), 2 * PAGE, MADV_DONTNEED);
    touch(at, 8, write);
}

int main(void) {
    for (int write = 0; write < 2; write++) {
        each_way(write, -1);
        each_way(write, MADV_HUGEPAGE);
        each_way(write, MADV_NOHUGEPAGE);
    }
    volatile char *anonymous = map(-1, MAP_SHARED | MAP_ANONYMOUS, 0, PAGES, 0);
    touch(anonymous, 20, 1);
    int id = shmget(IPC_PRIVATE, 3 * HUGE, 0600);
    volatile char *segment = shmat(id, (void *)0x600000000000UL, 0);
    touch(segment, 20, 1);
    madvise((void *)segment, 3 * HUGE, MADV_HUGEPAGE);
    touch(segment, 600, 1);
    shmctl(id, IPC_RMID, 0);
    int named = open("/dev/shm/shared-blocks", O_RDWR | O_CREAT, 0600);
    ftruncate(named, PAGES * PAGE);
    volatile char *linked = map(named, MAP_SHARED, 0, PAGES, 0);
    madvise((void *)linked, PAGES * PAGE, MADV_HUGEPAGE);
    touch(linked, 20, 1);
    unlink("/dev/shm/shared-blocks");
    int fd = memory(3 * HUGE / PAGE);
    volatile char *huge = map(fd, MAP_SHARED, 0, 3 * HUGE / PAGE, 0);
    madvise((void *)huge, 3 * HUGE, MADV_HUGEPAGE);
    touch(huge, 5, 1);
    touch(huge, 1500, 0);
    volatile char *part = map(fd, MAP_SHARED, 100, 1000, 0);
    touch(part, 7, 0);
    if (!fork()) {
        touch(anonymous, 17, 0);
        touch(anonymous, 50, 1);
        touch(part, 300, 1);
        touch(part, 3, 1);
        _exit(0);
    }
    wait(0);
    touch(anonymous, 51, 0);
    return 0;
}
