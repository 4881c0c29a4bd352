// The file pagemap in /proc and its request PAGEMAP_SCAN. Checks the words in `kernel/src/proc/maps.rs`, and the
// categories, limits and errors in `scan.rs`.
#define _GNU_SOURCE
#include "check.h"
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#define PAGE 4096ul
#define HUGE (2ul << 20)
#define RW (PROT_READ | PROT_WRITE)
#define TOP 0x7ffffffff000ul

// Old headers lack these.
enum { GUARD_INSTALL = 102, GUARD_REMOVE = 103 };
enum { WRITTEN = 2, FILE_PAGE = 4, PRESENT = 8, SWAPPED = 16, ZERO = 32, HUGE_PAGE = 64, SOFT_DIRTY = 128, GUARD = 256 };
enum { EXCLUSIVE = 1 << 1, PROTECTED = 1 << 2, GUARDED = 1 << 3, OF_FILE = 1 << 6, OUT = 1 << 7, THERE = 1 << 8 };
struct region { uint64_t start, end, categories; };
struct scan {
    uint64_t size, flags, start, end, walk_end, vec, vec_len, max_pages, inverted, mask, any, returned;
};
#define PAGEMAP_SCAN _IOWR('f', 16, struct scan)

static struct region found[4096];
static int own;

static char *map(size_t pages, int flags, int file) {
    char *at = mmap(0, pages * PAGE, RW, flags, file, 0);
    CHECK(at != MAP_FAILED);
    return at;
}
static char *anon(size_t pages) { return map(pages, MAP_PRIVATE | MAP_ANONYMOUS, -1); }

// Returns the start of `count` huge pages of addresses.
static char *huge(size_t count) {
    uintptr_t at = (uintptr_t)anon((count + 1) * HUGE / PAGE);
    return (char *)((at + HUGE - 1) & -HUGE);
}

static int read_page(volatile char *at) { return *at; }

// Returns bits 55 to 63 of the word of a page, without bit 55, which says whether the page is soft-dirty.
static unsigned bits_in(int pagemap, char *at) {
    uint64_t word;
    CHECK(pread(pagemap, &word, 8, (uintptr_t)at / PAGE * 8) == 8);
    return word >> 55 & ~1u;
}
static unsigned bits(char *at) { return bits_in(own, at); }

// Returns a number whose lowest bit says whether the first page is soft-dirty, and so on.
static unsigned soft_dirty(char *at, int pages) {
    unsigned dirty = 0;
    uint64_t word;
    for (int n = 0; n < pages; n++) {
        CHECK(pread(own, &word, 8, ((uintptr_t)at / PAGE + n) * 8) == 8);
        dirty |= (word >> 55 & 1) << n;
    }
    return dirty;
}

static struct scan of(char *at, size_t pages) {
    return (struct scan){.size = sizeof(struct scan), .start = (uintptr_t)at, .end = (uintptr_t)at + pages * PAGE,
                         .vec = (uintptr_t)found, .vec_len = 4096, .returned = 511 - SOFT_DIRTY};
}

// Scans. Returns the number of regions, or the negative number of the error.
static int scan_in(int pagemap, struct scan *scan) {
    scan->walk_end = 1;
    int count = ioctl(pagemap, PAGEMAP_SCAN, scan);
    return count < 0 ? -errno : count;
}
static int scan(struct scan *s) { return scan_in(own, s); }
static long walked(struct scan *s) { return s->walk_end == 1 ? -1 : (long)((s->walk_end - s->start) / PAGE); }

// Checks a scan of all pages: each region by its first page, the page behind it, and its categories.
static void regions(int line, char *at, size_t pages, int count, ...) {
    struct scan s = of(at, pages);
    int got = scan(&s), same = got == count && walked(&s) == (long)pages;
    va_list wanted;
    va_start(wanted, count);
    for (int n = 0; n < count; n++) {
        unsigned long first = va_arg(wanted, int), end = va_arg(wanted, int), categories = va_arg(wanted, int);
        same = same && found[n].start == s.start + first * PAGE && found[n].end == s.start + end * PAGE &&
               found[n].categories == categories;
    }
    va_end(wanted);
    if (same)
        return;
    dprintf(1, "line %d: %d regions, walked %ld:", line, got, walked(&s));
    for (int n = 0; n < got; n++)
        dprintf(1, " %ld-%ld %lx", (long)((found[n].start - s.start) / PAGE), (long)((found[n].end - s.start) / PAGE),
                (unsigned long)found[n].categories);
    dprintf(1, "\n");
    CHECK(same);
}
#define REGIONS(...) regions(__LINE__, __VA_ARGS__)

static void pages_are_reported_by_kind(void) {
    char *at = anon(8);
    at[0] = at[2 * PAGE] = 1;
    read_page(at + PAGE);
    CHECK(!mprotect(at + 2 * PAGE, PAGE, PROT_NONE));
    CHECK(bits(at) == (THERE | EXCLUSIVE) && bits(at + PAGE) == THERE && bits(at + 2 * PAGE) == (THERE | EXCLUSIVE));
    CHECK(bits(at + 3 * PAGE) == 0);
    int own_page = WRITTEN | PRESENT, file_page = own_page | FILE_PAGE;
    REGIONS(at, 8, 4, 0, 1, own_page, 1, 2, own_page | ZERO, 2, 3, own_page, 3, 8, WRITTEN);

    int file = memfd_create("pages", 0);
    CHECK(file >= 0 && !ftruncate(file, 4 * PAGE));
    char *shared = map(4, MAP_SHARED, file), *copy = map(4, MAP_PRIVATE, file);
    shared[0] = shared[PAGE] = 1;
    CHECK(bits(shared) == (THERE | OF_FILE | EXCLUSIVE) && bits(shared + 3 * PAGE) == 0);
    copy[0] = 2;
    read_page(copy + PAGE);
    CHECK(bits(copy) == (THERE | EXCLUSIVE) && bits(copy + PAGE) == (THERE | OF_FILE));
    CHECK(bits(shared) == (THERE | OF_FILE | EXCLUSIVE) && bits(shared + PAGE) == (THERE | OF_FILE));
    REGIONS(copy, 2, 2, 0, 1, own_page, 1, 2, file_page);
    REGIONS(shared, 2, 1, 0, 2, file_page);
    char *both = map(4, MAP_SHARED | MAP_ANONYMOUS, -1);
    both[0] = 1;
    CHECK(bits(both) == (THERE | OF_FILE | EXCLUSIVE));
    munmap(at, 8 * PAGE);
    munmap(shared, 4 * PAGE);
    munmap(copy, 4 * PAGE);
    munmap(both, 4 * PAGE);
    close(file);
}

static void shared_pages_are_not_exclusive(void) {
    char *at = anon(2), byte;
    at[0] = at[PAGE] = 1;
    int go[2], done[2];
    CHECK(!pipe(go) && !pipe(done));
    pid_t child = fork();
    if (!child) {
        int pagemap = open("/proc/self/pagemap", O_RDONLY);
        CHECK(bits_in(pagemap, at) == THERE);
        at[0] = 2;
        CHECK(bits_in(pagemap, at) == (THERE | EXCLUSIVE) && bits_in(pagemap, at + PAGE) == THERE);
        CHECK(write(done[1], "", 1) == 1 && read(go[0], &byte, 1) == 1);
        _exit(0);
    }
    CHECK(read(done[0], &byte, 1) == 1 && bits(at + PAGE) == THERE && bits(at) == (THERE | EXCLUSIVE));
    char name[64];
    sprintf(name, "/proc/%d/pagemap", child);
    int pagemap = open(name, O_RDONLY);
    struct scan s = of(at, 2);
    s.mask = PRESENT;
    CHECK(pagemap >= 0 && scan_in(pagemap, &s) == 1 && found[0].end == s.end && bits_in(pagemap, at) != 0);
    int status;
    CHECK(write(go[1], "", 1) == 1 && waitpid(child, &status, 0) == child && status == 0);
    CHECK(bits(at) == (THERE | EXCLUSIVE) && bits(at + PAGE) == (THERE | EXCLUSIVE));
    s.size = 1;
    CHECK(scan_in(pagemap, &s) == -ESRCH && walked(&s) == -1);
    uint64_t word;
    CHECK(pread(pagemap, &word, 8, (uintptr_t)at / PAGE * 8) == 0);
    close(pagemap);
    munmap(at, 2 * PAGE);
}

static void guards_count_as_swapped(void) {
    char *at = anon(8);
    at[0] = at[PAGE] = 1;
    CHECK(!madvise(at + PAGE, 2 * PAGE, GUARD_INSTALL));
    uint64_t word;
    CHECK(bits(at + PAGE) == (OUT | GUARDED) && bits(at + 3 * PAGE) == 0);
    CHECK(pread(own, &word, 8, (uintptr_t)(at + PAGE) / PAGE * 8) == 8 && (word & 0x7fffffffffffff) == 0x9f);
    int guard = GUARD | SWAPPED | WRITTEN;
    REGIONS(at, 8, 3, 0, 1, WRITTEN | PRESENT, 1, 3, guard, 3, 8, WRITTEN);
    CHECK(!madvise(at + PAGE, PAGE, GUARD_REMOVE) && bits(at + PAGE) == 0);
    struct scan s = of(at, 8);
    s.any = GUARD | ZERO;
    s.returned = GUARD;
    CHECK(scan(&s) == 1 && found[0].start == s.start + 2 * PAGE && found[0].categories == GUARD);
    munmap(at, 8 * PAGE);
}

static void memory_without_a_page_table_is_not_written(void) {
    char *at = huge(2);
    at[4 * PAGE] = 1;
    REGIONS(at, 1024, 4, 0, 4, WRITTEN, 4, 5, WRITTEN | PRESENT, 5, 512, WRITTEN, 512, 1024, 0);
    munmap(at, 2 * HUGE);
    REGIONS(at, 1024, 0);
}

static void huge_pages_are_one_region(void) {
    char *at = huge(2);
    int all = WRITTEN | PRESENT | HUGE_PAGE;
    if (!madvise(at, 2 * HUGE, MADV_HUGEPAGE)) {
        at[0] = 1;
        read_page(at + HUGE);
        if (bits(at + HUGE - PAGE)) {
            CHECK(bits(at + HUGE - PAGE) == (THERE | EXCLUSIVE) && bits(at + HUGE) == (THERE | OF_FILE));
            REGIONS(at, 1024, 2, 0, 512, all, 512, 1024, all | ZERO);
            REGIONS(at + 3 * PAGE, 8, 1, 0, 8, all);
            struct scan s = of(at + 2 * PAGE, 100);
            s.max_pages = 5;
            CHECK(scan(&s) == 1 && walked(&s) == 5 && found[0].end == s.start + 5 * PAGE);
        }
    }
    munmap(at, 2 * HUGE);
    at = mmap(0, 2 * HUGE, RW, MAP_SHARED | MAP_ANONYMOUS | MAP_HUGETLB, -1, 0);
    if (at == MAP_FAILED)
        return;
    at[0] = 1;
    CHECK(bits(at + PAGE) == (THERE | OF_FILE | EXCLUSIVE) && bits(at + HUGE) == 0);
    REGIONS(at, 1024, 2, 0, 512, all | FILE_PAGE, 512, 1024, HUGE_PAGE);
    munmap(at, 2 * HUGE);
    at = mmap(0, HUGE, RW, MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB, -1, 0);
    at[0] = 1;
    CHECK(bits(at + PAGE) == (THERE | EXCLUSIVE));
    REGIONS(at + PAGE, 8, 1, 0, 8, all);
    munmap(at, HUGE);
}

struct range { uint64_t start, len; };
static void protected_pages_are_not_written(void) {
    int uffd = syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK);
    CHECK(uffd >= 0);
    // Write protection, also of huge pages of pools (1 << 12) and missing pages (1 << 13); poisoned pages (1 << 14).
    struct { uint64_t api, features, ioctls; } api = {0xaa, 1 << 12 | 1 << 13 | 1 << 14, 0};
    CHECK(!ioctl(uffd, _IOC(_IOC_READ | _IOC_WRITE, 0xaa, 0x3f, 24), &api));
    char *at = anon(8);
    struct { struct range range; uint64_t mode, ioctls; } asked = {{(uintptr_t)at, 8 * PAGE}, 3, 0};
    at[0] = 1;
    read_page(at + PAGE);
    CHECK(!ioctl(uffd, _IOC(_IOC_READ | _IOC_WRITE, 0xaa, 0, 32), &asked));
    struct { struct range range; uint64_t mode; } protect = {{(uintptr_t)at, 4 * PAGE}, 1};
    CHECK(!ioctl(uffd, _IOC(_IOC_READ | _IOC_WRITE, 0xaa, 6, 24), &protect));
    struct { struct range range; uint64_t mode, updated; } poison = {{(uintptr_t)at + 6 * PAGE, PAGE}, 0, 0};
    CHECK(!ioctl(uffd, _IOC(_IOC_READ | _IOC_WRITE, 0xaa, 8, 32), &poison));
    CHECK(bits(at) == (THERE | EXCLUSIVE | PROTECTED) && bits(at + PAGE) == (THERE | PROTECTED));
    CHECK(bits(at + 2 * PAGE) == (OUT | PROTECTED) && bits(at + 4 * PAGE) == 0 && bits(at + 6 * PAGE) == OUT);
    REGIONS(at, 8, 6, 0, 1, PRESENT, 1, 2, PRESENT | ZERO, 2, 4, SWAPPED, 4, 6, WRITTEN, 6, 7, SWAPPED | WRITTEN, 7, 8,
            WRITTEN);
    // These pages are not protected asynchronously.
    struct scan s = of(at, 8);
    s.flags = 1;
    CHECK(scan(&s) == 0 && walked(&s) == 8);
    s.flags = 2;
    CHECK(scan(&s) == -EPERM && walked(&s) == 8);
    s.flags = 3;
    CHECK(scan(&s) == -EPERM);
    munmap(at, 8 * PAGE);
    CHECK(scan(&s) == 0);
    at = mmap(0, 2 * HUGE, RW, MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB, -1, 0);
    if (at != MAP_FAILED) {
        at[0] = 1;
        asked.range = protect.range = (struct range){(uintptr_t)at, 2 * HUGE};
        asked.mode = 2;
        CHECK(!ioctl(uffd, _IOC(_IOC_READ | _IOC_WRITE, 0xaa, 0, 32), &asked));
        CHECK(!ioctl(uffd, _IOC(_IOC_READ | _IOC_WRITE, 0xaa, 6, 24), &protect));
        CHECK(bits(at) == (THERE | EXCLUSIVE | PROTECTED) && bits(at + HUGE) == PROTECTED);
        REGIONS(at, 1024, 2, 0, 512, PRESENT | HUGE_PAGE, 512, 1024, SWAPPED | HUGE_PAGE);
        munmap(at, 2 * HUGE);
    }
    close(uffd);
}

// Checks which of eight pages with asynchronous protection are not protected.
#define WRITTEN_ARE(at, ...) CHECK(written_are(at, sizeof (int[]){__VA_ARGS__} / sizeof(int), (int[]){__VA_ARGS__}))

// Returns 1 if exactly these pages among eight are not protected. Protects nothing.
static int written_are(char *at, int count, int *pages) {
    struct scan s = of(at, 8);
    s.flags = 2;
    s.mask = WRITTEN;
    int regions = scan(&s), next = 0;
    for (int n = 0; n < regions; n++)
        for (uint64_t page = found[n].start; page < found[n].end; page += PAGE)
            if (next == count || (page - s.start) / PAGE != (unsigned)pages[next++])
                return 0;
    return regions >= 0 && next == count;
}

// Protects the written pages, at most `most` if that is not 0. Returns the number of regions.
static int protect_written(char *at, size_t pages, int most) {
    struct scan s = of(at, pages);
    s.flags = 3;
    s.mask = s.returned = WRITTEN;
    s.max_pages = most;
    return scan(&s);
}

static void stores_end_asynchronous_protection(void) {
    int uffd = syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK), ends[2];
    // Asynchronous protection (1 << 15).
    struct { uint64_t api, features, ioctls; } api = {0xaa, 1 << 15, 0};
    CHECK(uffd >= 0 && !ioctl(uffd, _IOC(_IOC_READ | _IOC_WRITE, 0xaa, 0x3f, 24), &api) && (api.features & 1 << 15));
    int file = memfd_create("pages", 0);
    CHECK(file >= 0 && !ftruncate(file, 8 * PAGE) && !pipe(ends));
    char *all[] = {anon(8), map(8, MAP_SHARED, file), map(8, MAP_PRIVATE, file)};
    for (int n = 0; n < 3; n++) {
        char *at = all[n];
        struct { struct range range; uint64_t mode, ioctls; } asked = {{(uintptr_t)at, 8 * PAGE}, 2, 0};
        at[0] = at[2 * PAGE] = 1;
        CHECK(!ioctl(uffd, _IOC(_IOC_READ | _IOC_WRITE, 0xaa, 0, 32), &asked));
        WRITTEN_ARE(at, 0, 1, 2, 3, 4, 5, 6, 7);
        CHECK(protect_written(at, 8, 0) == 1 && written_are(at, 0, 0));
        CHECK(read_page(at) == 1 && read_page(at + PAGE) != 1 && written_are(at, 0, 0));
        at[PAGE] = at[2 * PAGE] = 2;
        at[5 * PAGE] = 3;
        CHECK(at[0] == 1 && at[2 * PAGE] == 2);
        WRITTEN_ARE(at, 1, 2, 5);
        // A scan protects only the pages that it reports.
        CHECK(protect_written(at, 8, 2) == 1);
        WRITTEN_ARE(at, 5);
        // A system call stores without the program.
        CHECK(write(ends[1], "x", 1) == 1 && read(ends[0], at + 7 * PAGE, 1) == 1 && at[7 * PAGE] == 'x');
        WRITTEN_ARE(at, 5, 7);
        CHECK(protect_written(at, 8, 0) == 2 && written_are(at, 0, 0));
        // A scan without room for regions protects all pages that match.
        at[3 * PAGE] = 4;
        WRITTEN_ARE(at, 3);
        struct scan s = of(at, 8);
        s.flags = 1;
        s.mask = WRITTEN;
        s.vec = s.vec_len = 0;
        CHECK(scan(&s) == 0 && walked(&s) == 8 && written_are(at, 0, 0));
        // The category of such memory.
        s = of(at, 8);
        s.mask = s.returned = 1;
        CHECK(scan(&s) == 1 && found[0].end == s.end && found[0].categories == 1);
    }
    char *at = all[0];
    CHECK(!madvise(at + 2 * PAGE, PAGE, MADV_DONTNEED));
    WRITTEN_ARE(at, 2);
    CHECK(protect_written(at, 8, 0) == 1 && written_are(at, 0, 0));
    pid_t child = fork();
    if (!child) {
        at[0] = 9;
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0 && written_are(at, 0, 0));
    at[0] = 5;
    CHECK(!mprotect(at, 8 * PAGE, PROT_READ) && !mprotect(at, 8 * PAGE, RW));
    WRITTEN_ARE(at, 0);
    close(uffd);
    struct scan s = of(at, 8);
    s.mask = WRITTEN;
    CHECK(scan(&s) >= 1 && found[0].start == s.start);
    s.flags = 2;
    CHECK(scan(&s) == -EPERM);
    at[6 * PAGE] = 1;
    for (int n = 0; n < 3; n++) munmap(all[n], 8 * PAGE);
    close(file);
}

static void masks_select_pages(void) {
    char *at = anon(8);
    at[0] = at[PAGE] = at[3 * PAGE] = at[4 * PAGE] = 1;
    read_page(at + 6 * PAGE);
    struct scan s = of(at, 8);
    s.mask = PRESENT;
    CHECK(scan(&s) == 3 && walked(&s) == 8);
    s.inverted = PRESENT;
    s.returned = PRESENT;
    CHECK(scan(&s) == 3 && found[0].start == s.start + 2 * PAGE && found[0].categories == 0);
    s.inverted = s.mask = 0;
    CHECK(scan(&s) == 6 && found[5].end == s.end);
    s.returned = 0;
    CHECK(scan(&s) == 1 && found[0].end == s.end);
    s.any = PRESENT | SWAPPED;
    s.inverted = ZERO | FILE_PAGE;
    CHECK(scan(&s) == 3);
    s.mask = ZERO;
    CHECK(scan(&s) == 2 && found[1].end == s.start + 5 * PAGE);
    // No page may be protected asynchronously.
    s = of(at, 8);
    s.mask = 1;
    CHECK(scan(&s) == 0);
    s.inverted = 1;
    CHECK(scan(&s) == 6);
    s = of(at, 8);
    s.flags = 1;
    CHECK(scan(&s) == 0 && walked(&s) == 8);
    CHECK(!mprotect(at + PAGE, PAGE, PROT_READ));
    s = of(at, 8);
    s.mask = PRESENT;
    CHECK(scan(&s) == 3 && found[0].end == s.start + 2 * PAGE);
    munmap(at + 5 * PAGE, PAGE);
    s = of(at, 8);
    s.returned = 0;
    CHECK(scan(&s) == 2 && found[0].end == s.start + 5 * PAGE && found[1].start == s.start + 6 * PAGE);
    munmap(at, 8 * PAGE);
}

static void limits_end_the_scan_at_the_next_match(void) {
    char *at = anon(8);
    at[0] = at[PAGE] = at[3 * PAGE] = at[4 * PAGE] = 1;
    struct { int pages, regions, count, walked; } rows[] = {
        {0, 9, 2, 8}, {4, 9, 2, 8}, {3, 9, 2, 4}, {2, 9, 1, 3}, {1, 9, 1, 1}, {-1, 9, 2, 8},
        {0, 2, 2, 8}, {0, 1, 1, 3}, {2, 1, 1, 3}, {1, 1, 1, 1}, {0, 0, 0, 8}, {1, 0, 0, 8},
    };
    for (unsigned n = 0; n < sizeof rows / sizeof *rows; n++) {
        struct scan s = of(at, 8);
        s.mask = PRESENT;
        s.max_pages = (long)rows[n].pages;
        s.vec_len = rows[n].regions;
        int count = scan(&s);
        if (count != rows[n].count || walked(&s) != rows[n].walked)
            dprintf(1, "row %u: %d regions, walked %ld\n", n, count, walked(&s));
        CHECK(count == rows[n].count && walked(&s) == rows[n].walked);
    }
    struct scan s = of(at, 8);
    s.vec = s.vec_len = 0;
    CHECK(scan(&s) == 0 && walked(&s) == 8);
    munmap(at, 8 * PAGE);

    at = huge(2);
    s = of(at, 1024);
    s.max_pages = 700;
    CHECK(scan(&s) == 1 && walked(&s) == 700 && found[0].end == s.start + 700 * PAGE);
    munmap(at, 2 * HUGE);
}

static void long_scans_go_on_in_rounds(void) {
    char *at = anon(4000);
    for (int n = 0; n < 4000; n += 2) at[n * PAGE] = 1;
    struct scan s = of(at, 4000);
    s.returned = PRESENT;
    CHECK(scan(&s) == 4000 && found[3999].end == s.end && walked(&s) == 3584);
    s.mask = PRESENT;
    CHECK(scan(&s) == 2000 && found[1999].end == s.end - PAGE && walked(&s) == 3072);
    s.mask = 0;
    int lengths[] = {1000, 511, 512, 513, 514};
    for (int n = 0; n < 5; n++) {
        s.vec_len = lengths[n];
        CHECK(scan(&s) == lengths[n] && walked(&s) == lengths[n]);
    }
    s.vec_len = 4096;
    s.max_pages = 513;
    CHECK(scan(&s) == 513 && walked(&s) == 513);
    // The first round does not fit.
    char *buffer = anon(2);
    CHECK(!munmap(buffer + PAGE, PAGE));
    s.max_pages = 0;
    s.vec = (uintptr_t)buffer + PAGE - 100 * sizeof(struct region);
    CHECK(scan(&s) == -EFAULT && walked(&s) == 512);
    munmap(buffer, PAGE);
    munmap(at, 4000 * PAGE);
}

static void wrong_scans_are_refused(void) {
    char *at = anon(8);
    at[0] = 1;
    struct scan good = of(at, 8), s;
#define REFUSED(error, ...)                                                                            \
    do {                                                                                               \
        s = good;                                                                                      \
        __VA_ARGS__;                                                                                   \
        CHECK(scan(&s) == -(error) && walked(&s) == -1);                                               \
    } while (0)
    REFUSED(EINVAL, s.size = 0);
    REFUSED(EINVAL, s.size -= 8);
    REFUSED(EINVAL, s.size += 8);
    REFUSED(EINVAL, s.flags = 4);
    REFUSED(EINVAL, s.flags = 1ul << 63);
    REFUSED(EINVAL, s.mask = 512);
    REFUSED(EINVAL, s.any = 512);
    REFUSED(EINVAL, s.inverted = 512);
    REFUSED(EINVAL, s.returned = 512);
    REFUSED(EINVAL, s.start += 8);
    REFUSED(EINVAL, s.vec = 0);
    REFUSED(EFAULT, s.end = s.start - PAGE);
    REFUSED(EFAULT, s.end = ~0ul);
    REFUSED(EFAULT, s.end = 1ul << 56);
    REFUSED(EFAULT, s.start = s.end = 1ul << 56);
    REFUSED(EFAULT, s.start = s.end = 1ul << 56; s.vec = 0);
    REFUSED(EINVAL, s.start = (1ul << 56) + 1);
    REFUSED(EFAULT, s.vec = 1ul << 56);
    REFUSED(EFAULT, s.vec = 1ul << 56; s.vec_len = 0);
    REFUSED(EFAULT, s.vec_len = 1ul << 60);
    REFUSED(EFAULT, s.vec_len = ~0ul);
    REFUSED(EINVAL, s.vec = 1ul << 56; s.flags = 8);
    s = good;
    s.vec = 0x10000;
    CHECK(scan(&s) == -EFAULT && walked(&s) == 8);
    s.mask = ZERO;
    CHECK(scan(&s) == 0 && walked(&s) == 8);
    s = good;
    s.end -= 100;
    CHECK(scan(&s) == 2 && walked(&s) == 8);
    s.end = s.start;
    CHECK(scan(&s) == 0 && walked(&s) == 0);
    s.start = s.end = TOP;
    CHECK(scan(&s) == 0 && walked(&s) == 0);
    s = good;
    s.vec++;
    CHECK(scan(&s) == 2);
    s = good;
    s.flags = 2;
    CHECK(scan(&s) == -EPERM && walked(&s) == 8);
    s.start = 0;
    s.end = 0x10000;
    CHECK(scan(&s) == 0 && walked(&s) == 16);

    CHECK(ioctl(own, PAGEMAP_SCAN, 0) == -1 && errno == EFAULT);
    CHECK(ioctl(own, _IO('f', 16), &good) == -1 && errno == EINVAL);
    CHECK(ioctl(own, 0x5401, &good) == -1 && errno == EINVAL);
    *(struct scan *)at = good;
    CHECK(!mprotect(at, PAGE, PROT_READ) && ioctl(own, PAGEMAP_SCAN, at) == -1 && errno == EFAULT);
    munmap(at, 8 * PAGE);
}

// Kills a child that scans without end. The child dies within a scan of all its memory.
static void killed_scan_ends(void) {
    pid_t child = fork();
    if (!child) {
        char *at = anon(2000);
        for (int n = 0; n < 2000; n += 2) at[n * PAGE] = 1;
        struct scan s = of(0, 0);
        s.end = TOP;
        s.mask = ZERO;
        for (;;) scan(&s);
    }
    usleep(50000);
    int status;
    CHECK(!kill(child, SIGKILL) && waitpid(child, &status, 0) == child && WTERMSIG(status) == SIGKILL);
}

static void clear_soft_dirty(void) {
    int file = open("/proc/self/clear_refs", O_WRONLY);
    CHECK(file >= 0 && write(file, "4", 1) == 1);
    close(file);
}

// Returns the number whose lowest bit says whether a scan reports the first page as soft-dirty, and so on.
static unsigned scanned_soft_dirty(char *at, size_t pages) {
    struct scan s = of(at, pages);
    s.mask = s.returned = SOFT_DIRTY;
    int count = scan(&s);
    CHECK(count >= 0 && walked(&s) == (long)pages);
    unsigned dirty = 0;
    for (int n = 0; n < count; n++)
        for (uint64_t page = found[n].start; page < found[n].end; page += PAGE)
            dirty |= 1u << (page - s.start) / PAGE;
    return dirty;
}

static void soft_dirty_pages_were_written(void) {
    char *at = anon(8), *kept = anon(8), byte = 1;
    CHECK(soft_dirty(at, 8) == 0xff && scanned_soft_dirty(at, 8) == 0xff);
    at[0] = at[PAGE] = at[2 * PAGE] = at[3 * PAGE] = 1;
    clear_soft_dirty();
    CHECK(soft_dirty(at, 8) == 0 && scanned_soft_dirty(at, 8) == 0);
    at[PAGE] = 2;
    read_page(at);
    read_page(at + 4 * PAGE);
    at[5 * PAGE] = 1;
    CHECK(soft_dirty(at, 8) == 0x22 && scanned_soft_dirty(at, 8) == 0x22);
    int ends[2];
    CHECK(!pipe(ends) && write(ends[1], &byte, 1) == 1 && read(ends[0], at + 2 * PAGE, 1) == 1);
    CHECK(!mprotect(at, 8 * PAGE, PROT_READ) && !mprotect(at, 8 * PAGE, RW));
    CHECK(soft_dirty(at, 8) == 0x26);
    pid_t child = fork();
    if (!child) {
        own = open("/proc/self/pagemap", O_RDONLY);
        CHECK(soft_dirty(at, 8) == 0x26);
        at[0] = 3;
        CHECK(soft_dirty(at, 8) == 0x27);
        clear_soft_dirty();
        CHECK(soft_dirty(at, 8) == 0);
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0 && soft_dirty(at, 8) == 0x26);
    at[3 * PAGE] = 1;
    CHECK(soft_dirty(at, 8) == 0x2e);
    // Memory that is mapped or moved after the clear is soft-dirty.
    clear_soft_dirty();
    CHECK(mmap(at, PAGE, RW, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == at && (soft_dirty(at, 8) & 1));
    kept[0] = 1;
    clear_soft_dirty();
    CHECK(mremap(at, 8 * PAGE, 8 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, kept) == kept && soft_dirty(kept, 8) == 0xff);
    // The flag of the VMA in smaps.
    clear_soft_dirty();
    CHECK(!madvise(kept, PAGE, MADV_DONTNEED) && soft_dirty(kept, 8) == 0);
    char line[256];
    int lines = 0, flagged = 0;
    FILE *smaps = fopen("/proc/self/smaps", "r");
    while (fgets(line, sizeof line, smaps))
        if (!strncmp(line, "VmFlags:", 8)) {
            lines++;
            flagged += strstr(line, " sd") != 0;
        }
    fclose(smaps);
    CHECK(lines > 4 && flagged <= 2);
    munmap(kept, 8 * PAGE);
    // Shared memory and files.
    int file = memfd_create("pages", 0);
    CHECK(file >= 0 && !ftruncate(file, 4 * PAGE));
    char *shared = map(4, MAP_SHARED, file);
    shared[0] = shared[PAGE] = 1;
    clear_soft_dirty();
    CHECK(soft_dirty(shared, 4) == 0);
    read_page(shared + 2 * PAGE);
    shared[PAGE] = 2;
    shared[3 * PAGE] = 2;
    CHECK(soft_dirty(shared, 4) == 10);
    munmap(shared, 4 * PAGE);
    close(file);
    // A huge page.
    char *big = huge(1);
    if (!madvise(big, HUGE, MADV_HUGEPAGE)) {
        big[0] = 1;
        clear_soft_dirty();
        CHECK(soft_dirty(big, 8) == 0);
        big[PAGE] = 1;
        CHECK(soft_dirty(big, 8) & 2);
    }
    munmap(big, HUGE);
}

// With an argument, the system must track soft-dirty pages.
int main(int arguments, char **values) {
    (void)values;
    own = open("/proc/self/pagemap", O_RDONLY);
    CHECK(own >= 0);
    PART(pages_are_reported_by_kind);
    PART(shared_pages_are_not_exclusive);
    PART(guards_count_as_swapped);
    PART(memory_without_a_page_table_is_not_written);
    PART(huge_pages_are_one_region);
    PART(protected_pages_are_not_written);
    PART(stores_end_asynchronous_protection);
    PART(masks_select_pages);
    PART(limits_end_the_scan_at_the_next_match);
    PART(long_scans_go_on_in_rounds);
    PART(wrong_scans_are_refused);
    PART(killed_scan_ends);
    if (arguments > 1)
        PART(soft_dirty_pages_were_written);
    return 0;
}
