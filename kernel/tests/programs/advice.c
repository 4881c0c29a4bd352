// Advice about open files: posix_fadvise and readahead. Which descriptors and arguments fail, and with which error, and
// that no advice changes what a program reads.
#define _GNU_SOURCE
#include "check.h"
#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>

enum { PAGE = 4096, PAGES = 16, UNKNOWN = 6 };
static const char *const path = "/tmp/advice-file", *const fifo = "/tmp/advice-fifo";

static int advise(int file, long offset, long len, int advice) {
    return syscall(SYS_fadvise64, file, offset, len, advice) == 0 ? 0 : errno;
}

static int ahead(int file, long offset, long len) { return readahead(file, offset, len) == 0 ? 0 : errno; }

// Checks both calls on a descriptor, which is then closed.
static void checks(int file, int advice_error, int ahead_error) {
    CHECK(file >= 0);
    for (int advice = 0; advice < UNKNOWN; advice++) CHECK(advise(file, 0, 0, advice) == advice_error);
    int invalid = advice_error ? advice_error : EINVAL;
    CHECK(advise(file, 0, 0, UNKNOWN) == invalid);
    CHECK(advise(file, 0, 0, -1) == invalid);
    CHECK(advise(file, 0, -1, POSIX_FADV_NORMAL) == invalid);
    CHECK(advise(file, -1, 0, POSIX_FADV_WILLNEED) == advice_error);
    CHECK(advise(file, -PAGE, PAGE, POSIX_FADV_DONTNEED) == advice_error);
    CHECK(ahead(file, 0, PAGE) == ahead_error);
    CHECK(ahead(file, 0, 0) == ahead_error);
    CHECK(ahead(file, -1, PAGE) == ahead_error);
    CHECK(ahead(file, 0, -1) == (ahead_error ? ahead_error : EINVAL));
    close(file);
}

static void advice_is_checked(void) {
    int ends[2], pair[2];
    CHECK(mkfifo(fifo, 0600) == 0 && pipe(ends) == 0 && socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
    checks(open(fifo, O_RDWR), ESPIPE, EINVAL);
    checks(ends[0], ESPIPE, EINVAL);
    checks(ends[1], ESPIPE, EBADF);
    checks(pair[0], 0, EINVAL);
    checks(epoll_create1(0), 0, EINVAL);
    checks(eventfd(0, 0), 0, EINVAL);
    checks(open("/tmp", O_RDONLY), 0, EINVAL);
    checks(open("/dev/null", O_RDWR), 0, EINVAL);
    checks(open("/dev/zero", O_RDONLY), 0, EINVAL);
    CHECK(advise(-1, 0, 0, UNKNOWN) == EBADF && ahead(-1, 0, -1) == EBADF);
}

static void readahead_is_checked(void) {
    checks(open(path, O_RDWR | O_CREAT, 0600), 0, 0);
    checks(open(path, O_RDONLY), 0, 0);
    checks(open(path, O_WRONLY), 0, EBADF);
    checks(memfd_create("advice", 0), 0, 0);
    checks(open("/proc/self/maps", O_RDONLY), 0, 0);
}

static void advice_keeps_contents(void) {
    static char bytes[PAGES * PAGE], found[PAGES * PAGE];
    for (size_t at = 0; at < sizeof bytes; at++) bytes[at] = (char)(at / PAGE + at);
    for (int advice = 0; advice < UNKNOWN; advice++) {
        int file = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
        CHECK(write(file, bytes, sizeof bytes) == sizeof bytes);
        char *mapped = mmap(0, sizeof bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        CHECK(mapped != MAP_FAILED);
        mapped[3 * PAGE] = bytes[3 * PAGE] = 'a' + advice;
        CHECK(advise(file, PAGE + 5, 7 * PAGE, advice) == 0 && advise(file, 0, 0, advice) == 0);
        CHECK(ahead(file, 0, sizeof bytes) == 0);
        for (int at = 0; at < PAGES; at++) CHECK(pread(file, found + at * PAGE, PAGE, at * PAGE) == PAGE);
        CHECK(memcmp(found, bytes, sizeof bytes) == 0 && memcmp(mapped, bytes, sizeof bytes) == 0);
        CHECK(munmap(mapped, sizeof bytes) == 0);
        close(file);
    }
}

// Returns a number of /proc/meminfo, in KiB.
static long meminfo(const char *key) {
    char line[128];
    long number = -1;
    FILE *info = fopen("/proc/meminfo", "r");
    while (info && fgets(line, sizeof line, info))
        if (!strncmp(line, key, strlen(key))) number = atol(line + strlen(key) + 1);
    if (info) fclose(info);
    return number;
}

// A file that came with the kernel, whose pages read as zeroes after a hole. Elsewhere any file.
static void holes_use_no_memory(void) {
    const char *archived = "/tests/first.sh";
    int file = open(archived, O_RDWR);
    if (file < 0) {
        file = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
        CHECK(write(file, "contents", 8) == 8);
    }
    long before = meminfo("MemFree:");
    for (int n = 0; n < 100000; n++)
        CHECK(fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, PAGE) == 0);
    char byte = 1;
    CHECK(pread(file, &byte, 1, 0) == 1 && byte == 0);
    // Each hole used 24 bytes once. Other programs use memory, too, on another machine.
    CHECK(access(archived, F_OK) != 0 || before - meminfo("MemFree:") < 1024);
    close(file);
}

int main(void) {
    PART(advice_is_checked);
    PART(readahead_is_checked);
    PART(advice_keeps_contents);
    PART(holes_use_no_memory);
    return 0;
}
