// Pages that are taken away although they stay mapped: lazily freed pages (MADV_FREE), droppable memory
// (MAP_DROPPABLE) and pages of files, by MADV_PAGEOUT and when memory is short. The first argument is a file of at
// least 8 pages that no other program maps; without it, pages of files are not checked. Pages of a file in memory
// (tmpfs) are unmapped, and pages of other files also leave the cache. With the second argument `pressure`, the
// program also uses up all memory of the machine.
#define _GNU_SOURCE
#include "check.h"
#include <fcntl.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/sysinfo.h>
#include <sys/uio.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 4096ul
#define RW (PROT_READ | PROT_WRITE)
#define DROPPABLE 8
#define TMPFS 0x01021994
#ifndef MADV_COLD
#define MADV_COLD 20
#define MADV_PAGEOUT 21
#endif

static const char *clean_file;

static char *map(size_t bytes, int flags) {
    char *at = mmap(0, bytes, RW, flags | MAP_ANONYMOUS, -1, 0);
    CHECK(at != MAP_FAILED);
    return at;
}

// Stores its number plus one to each page.
static void fill(char *at, int pages) {
    for (int n = 0; n < pages; n++)
        at[n * PAGE] = n + 1;
}

// Returns the first bytes of up to 8 pages as a number of decimal digits.
static long digits(volatile char *at, int pages) {
    long sum = 0;
    for (int n = 0; n < pages; n++)
        sum = sum * 10 + at[n * PAGE];
    return sum;
}

// Returns the pages in memory, as a number of digits 0 and 1.
static long resident(void *at, int pages) {
    unsigned char states[8];
    CHECK(mincore(at, pages * PAGE, states) == 0);
    long sum = 0;
    for (int n = 0; n < pages; n++)
        sum = sum * 10 + (states[n] & 1);
    return sum;
}

// Returns the rest of a line of smaps, for the VMA at the address.
static const char *smaps(char *at, const char *name) {
    static char line[512];
    FILE *f = fopen("/proc/self/smaps", "r");
    CHECK(f);
    int within = 0;
    while (fgets(line, sizeof line, f)) {
        unsigned long start, end;
        if (sscanf(line, "%lx-%lx ", &start, &end) == 2 && !strstr(line, " kB"))
            within = (unsigned long)at >= start && (unsigned long)at < end;
        else if (within && !strncmp(line, name, strlen(name)))
            break;
    }
    fclose(f);
    return line + strlen(name);
}

static int has_flag(char *at, const char *word) { return strstr(smaps(at, "VmFlags:"), word) != 0; }
static long number_of(char *at, const char *name) { return atol(smaps(at, name)); }

static void lazily_freed_pages_go_until_they_are_written(void) {
    char *at = map(8 * PAGE, MAP_PRIVATE);
    fill(at, 8);
    CHECK(madvise(at, 8 * PAGE, MADV_COLD) == 0 && madvise(at, 8 * PAGE, MADV_PAGEOUT) == 0);
    CHECK(digits(at, 8) == 12345678);
    CHECK(madvise(at, 6 * PAGE, MADV_FREE) == 0);
    at[PAGE] = 9;
    struct iovec mine = {"x", 1}, there = {at + 2 * PAGE + 1, 1};
    CHECK(process_vm_writev(getpid(), &mine, 1, &there, 1, 0) == 1);
    CHECK(madvise(at, 5 * PAGE, MADV_PAGEOUT) == 0);
    CHECK(resident(at, 8) == 1100111 && digits(at, 8) == 9300678 && at[2 * PAGE + 1] == 'x');
    // Another process also maps the pages, or needs the contents.
    fill(at, 8);
    CHECK(madvise(at, 4 * PAGE, MADV_FREE) == 0);
    int child = fork(), status;
    if (!child) {
        madvise(at, 8 * PAGE, MADV_PAGEOUT);
        int kept = digits(at, 8) == 12345678;
        madvise(at + 4 * PAGE, 4 * PAGE, MADV_FREE);
        madvise(at, 8 * PAGE, MADV_PAGEOUT);
        _exit(!kept);
    }
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    CHECK(madvise(at, 8 * PAGE, MADV_PAGEOUT) == 0 && digits(at, 8) == 5678);
    // Only for private anonymous memory that is not locked.
    char *shared = map(PAGE, MAP_SHARED);
    CHECK(madvise(shared, PAGE, MADV_FREE) == -1 && errno == EINVAL);
    CHECK(mlock(at, PAGE) == 0 && madvise(at, PAGE, MADV_FREE) == -1 && errno == EINVAL);
    CHECK(madvise(at, PAGE, MADV_PAGEOUT) == -1 && errno == EINVAL && munlock(at, PAGE) == 0);
    CHECK(munmap(at + PAGE, PAGE) == 0);
    CHECK(madvise(at, 3 * PAGE, MADV_PAGEOUT) == -1 && errno == ENOMEM);
    munmap(at, 8 * PAGE);
    munmap(shared, PAGE);
}

static void droppable_memory_goes_whenever_it_is_asked_for(void) {
    char *at = mmap(0, 8 * PAGE, RW, DROPPABLE | MAP_ANONYMOUS, -1, 0);
    CHECK(at != MAP_FAILED);
    fill(at, 8);
    CHECK(has_flag(at, " dp") && has_flag(at, " wf") && has_flag(at, " dd") && has_flag(at, " nr"));
    CHECK(mlock(at, 8 * PAGE) == 0 && !has_flag(at, " lo"));
    CHECK(madvise(at, 4 * PAGE, MADV_PAGEOUT) == 0 && resident(at, 8) == 1111 && digits(at, 8) == 5678);
    CHECK(madvise(at, PAGE, MADV_DODUMP) == -1 && errno == EINVAL);
    CHECK(madvise(at, PAGE, MADV_KEEPONFORK) == -1 && errno == EINVAL);
    int child = fork(), status;
    if (!child)
        _exit(digits(at, 8) != 0);
    CHECK(waitpid(child, &status, 0) == child && status == 0 && digits(at, 8) == 5678);
    CHECK(mmap(0, PAGE, RW, DROPPABLE | MAP_ANONYMOUS | MAP_LOCKED, -1, 0) == MAP_FAILED && errno == EINVAL);
    CHECK(mmap(0, PAGE, RW, DROPPABLE, 0, 0) == MAP_FAILED && errno != 0);
    munmap(at, 8 * PAGE);
}

static void shared_memory_keeps_its_contents(void) {
    char *at = map(8 * PAGE, MAP_SHARED);
    fill(at, 8);
    CHECK(madvise(at, 8 * PAGE, MADV_PAGEOUT) == 0 && digits(at, 8) == 12345678);
    munmap(at, 8 * PAGE);
}

static void clean_pages_of_files_are_unmapped_or_leave_the_cache(void) {
    if (!clean_file)
        return;
    int file = open(clean_file, O_RDONLY);
    struct statfs system;
    CHECK(file >= 0 && fstatfs(file, &system) == 0);
    char *at = mmap(0, 8 * PAGE, PROT_READ, MAP_SHARED, file, 0);
    CHECK(at != MAP_FAILED);
    long before = digits(at, 8);
    CHECK(resident(at, 8) == 11111111);
    // Another mapping keeps its pages in memory.
    char *other = mmap(0, 8 * PAGE, RW, MAP_PRIVATE, file, 0);
    CHECK(other != MAP_FAILED);
    volatile char byte = other[0];
    other[PAGE] = 3;
    munmap(other + 2 * PAGE, 6 * PAGE);
    CHECK(madvise(at, 8 * PAGE, MADV_PAGEOUT) == 0);
    CHECK(resident(at, 2) / 10 == 1 && resident(at + 2 * PAGE, 6) == (system.f_type == TMPFS ? 111111 : 0));
    CHECK(number_of(at, "Rss:") <= 8);
    CHECK(digits(at, 8) == before && other[0] == byte);
    // A private copy stays.
    munmap(at, 8 * PAGE);
    CHECK(madvise(other, 2 * PAGE, MADV_PAGEOUT) == 0 && other[PAGE] == 3);
    munmap(other, 2 * PAGE);
    close(file);
}

// Fills more memory than the machine has, if no page is taken away.
static void memory_that_is_not_needed_is_there_for_others(void) {
    struct sysinfo info;
    CHECK(sysinfo(&info) == 0);
    size_t bytes = info.totalram / 10 * 6 & -PAGE, pages = bytes / PAGE, gone = 0;
    for (int kind = 0; kind < 2; kind++) {
        // The other process begins before the pages are made, so that it does not share them.
        int go[2], status;
        CHECK(pipe(go) == 0);
        int child = fork();
        if (!child) {
            char *second = map(bytes, MAP_PRIVATE), byte;
            CHECK(read(go[0], &byte, 1) == 1);
            for (size_t n = 0; n < pages; n++)
                second[n * PAGE] = 1;
            _exit(0);
        }
        char *first = mmap(0, bytes, RW, (kind ? DROPPABLE : MAP_PRIVATE) | MAP_ANONYMOUS, -1, 0);
        CHECK(first != MAP_FAILED);
        for (size_t n = 0; n < pages; n++)
            first[n * PAGE] = 1;
        CHECK(kind || madvise(first, bytes, MADV_FREE) == 0);
        first[0] = 2;
        CHECK(write(go[1], "x", 1) == 1);
        CHECK(waitpid(child, &status, 0) == child && status == 0);
        gone = 0;
        for (size_t n = 0; n < pages; n++)
            gone += first[n * PAGE] == 0;
        CHECK(gone > pages / 10 && (kind || first[0] == 2));
        munmap(first, bytes);
        close(go[0]);
        close(go[1]);
    }
}

int main(int count, char **words) {
    clean_file = count > 1 ? words[1] : 0;
    PART(lazily_freed_pages_go_until_they_are_written);
    PART(droppable_memory_goes_whenever_it_is_asked_for);
    PART(shared_memory_keeps_its_contents);
    PART(clean_pages_of_files_are_unmapped_or_leave_the_cache);
    if (count > 2 && !strcmp(words[2], "pressure"))
        PART(memory_that_is_not_needed_is_there_for_others);
    return 0;
}
