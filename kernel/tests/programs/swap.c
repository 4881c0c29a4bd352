// Memory that is larger than the machine's: pages are swapped out and come back with their contents. Checks
// `kernel/src/platform/swap.rs`, `kernel/src/calls/swap.rs` and the engine's swap.
//
// The argument is the number of MiB that a part uses. With a second argument, the machine has the swap device
// /dev/zram0.
#define _GNU_SOURCE
#include "check.h"
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/swap.h>
#include <sys/syscall.h>
#include <sys/sysinfo.h>
#include <sys/wait.h>

enum { PAGE = 4096, WORDS = PAGE / 8, THREADS = 4 };

static const char *device = "/dev/zram0";
static long bytes;

static uint64_t *map(long size) {
    uint64_t *at = mmap(0, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(at != MAP_FAILED);
    return at;
}

// Fills a page with words that depend on its number and on `seed`. A compressor needs about a tenth of the page.
static void fill(uint64_t *page, long number, uint64_t seed) {
    for (int n = 0; n < WORDS; n++) page[n] = seed << 32 | (number + n / 16);
}

static void check(volatile uint64_t *page, long number, uint64_t seed) {
    for (int n = 0; n < WORDS; n++) CHECK(page[n] == (seed << 32 | (uint64_t)(number + n / 16)));
}

static void fill_all(uint64_t *at, long pages, uint64_t seed) {
    for (long n = 0; n < pages; n++) fill(at + n * WORDS, n, seed);
}

static void check_all(uint64_t *at, long pages, uint64_t seed) {
    for (long n = 0; n < pages; n++) check(at + n * WORDS, n, seed);
}

// Returns the number behind `name` in a file.
static long number_in(const char *path, const char *name) {
    static char text[65536];
    int file = open(path, O_RDONLY);
    CHECK(file >= 0);
    long size = 0, more;
    while ((more = read(file, text + size, sizeof text - 1 - size)) > 0) size += more;
    CHECK(!close(file));
    text[size] = 0;
    char *at = strstr(text, name);
    return at ? atol(at + strlen(name)) : -1;
}

static long swapped_kib(void) { return number_in("/proc/self/status", "VmSwap:"); }

static void contents_survive_a_lack_of_memory(void) {
    uint64_t *at = map(bytes);
    fill_all(at, bytes / PAGE, 1);
    struct sysinfo info;
    CHECK(!sysinfo(&info));
    if (info.totalswap && (uint64_t)bytes > info.totalram * info.mem_unit) {
        CHECK(swapped_kib() > 0 && info.freeswap < info.totalswap);
        CHECK(number_in("/proc/meminfo", "SwapFree:") < number_in("/proc/meminfo", "SwapTotal:"));
    }
    check_all(at, bytes / PAGE, 1);
    // In the other direction, so that the pages that were used last are needed first.
    for (long n = bytes / PAGE - 1; n >= 0; n--) check(at + n * WORDS, n, 1);
    // Pages of the program itself may be left.
    CHECK(!munmap(at, bytes) && swapped_kib() < 1024);
}

static void parent_and_child_have_their_own_contents(void) {
    long size = bytes / 2;
    uint64_t *at = map(size);
    fill_all(at, size / PAGE, 2);
    pid_t child = fork();
    CHECK(child >= 0);
    uint64_t seed = child ? 3 : 4;
    // Every other page stays shared.
    for (long n = 0; n < size / PAGE; n += 2) {
        check(at + n * WORDS, n, 2);
        fill(at + n * WORDS, n, seed);
    }
    for (long n = 0; n < size / PAGE; n++) check(at + n * WORDS, n, n % 2 ? 2 : seed);
    if (!child) _exit(0);
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    for (long n = 0; n < size / PAGE; n++) check(at + n * WORDS, n, n % 2 ? 2 : seed);
    CHECK(!munmap(at, size));
}

static uint64_t *shared_area;

static void *worker(void *argument) {
    long thread = (long)argument, pages = bytes / PAGE / THREADS;
    uint64_t *at = shared_area + thread * pages * WORDS;
    for (int round = 1; round <= 2; round++) {
        fill_all(at, pages, 10 * round + thread);
        check_all(at, pages, 10 * round + thread);
    }
    return 0;
}

static void threads_swap_side_by_side(void) {
    pthread_t threads[THREADS];
    shared_area = map(bytes);
    for (long n = 0; n < THREADS; n++) CHECK(!pthread_create(&threads[n], 0, worker, (void *)n));
    for (long n = 0; n < THREADS; n++) CHECK(!pthread_join(threads[n], 0));
    CHECK(!munmap(shared_area, bytes));
}

// Sorts words in place: the accesses run from both ends of ever smaller parts.
static void sort(uint64_t *from, uint64_t *end) {
    while (end - from > 1) {
        uint64_t middle = from[(end - from) / 2], *low = from, *high = end - 1;
        while (low <= high) {
            while (*low < middle) low++;
            while (*high > middle) high--;
            if (low > high) break;
            uint64_t word = *low;
            *low++ = *high;
            *high-- = word;
        }
        // The smaller part by recursion, so that the stack stays small.
        if (high + 1 - from < end - low) {
            sort(from, high + 1);
            from = low;
        } else {
            sort(low, end);
            end = high + 1;
        }
    }
}

static void more_than_memory_is_sorted(void) {
    long words = bytes / 8;
    uint64_t *at = map(bytes), state = 1, sum = 0;
    for (long n = 0; n < words; n++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        at[n] = state >> 56;
        sum += at[n];
    }
    sort(at, at + words);
    for (long n = 0; n < words; n++) {
        CHECK(n == 0 || at[n - 1] <= at[n]);
        sum -= at[n];
    }
    CHECK(sum == 0 && !munmap(at, bytes));
}

// Shared memory is swapped out as well: mappings, read, write and holes find the contents. A quarter of the
// memory is in a file, which Freehold's kernel limits like a tmpfs.
static void shared_memory_survives_a_lack_of_memory(void) {
    long size = bytes / 4, pages = size / PAGE, others = bytes - size;
    int file = memfd_create("large", 0);
    CHECK(file >= 0 && !ftruncate(file, size));
    uint64_t *at = mmap(0, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    CHECK(at != MAP_FAILED);
    fill_all(at, pages, 7);
    uint64_t *other = map(others);
    fill_all(other, others / PAGE, 8);
    struct stat stat;
    CHECK(!fstat(file, &stat) && stat.st_blocks * 512 == size);
    CHECK(lseek(file, 0, SEEK_HOLE) == size);
    // A page through write, and its neighbour through read.
    static uint64_t page[WORDS];
    fill(page, 3, 9);
    CHECK(pwrite(file, page, PAGE, 3 * PAGE) == PAGE);
    CHECK(pread(file, page, PAGE, 4 * PAGE) == PAGE);
    check(page, 4, 7);
    pid_t child = fork();
    CHECK(child >= 0);
    if (!child) {
        check(at + 3 * WORDS, 3, 9);
        for (long n = 4; n < pages; n++) check(at + n * WORDS, n, 7);
        for (long n = 0; n < pages; n += 5) fill(at + n * WORDS, n, 10);
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    check_all(other, others / PAGE, 8);
    for (long n = 4; n < pages; n++) check(at + n * WORDS, n, n % 5 ? 7 : 10);
    CHECK(!fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, pages / 2 * PAGE));
    CHECK(!fstat(file, &stat) && stat.st_blocks * 512 == size - pages / 2 * PAGE);
    CHECK(at[WORDS] == 0 && at[3 * WORDS + 1] == 0);
    for (long n = pages / 2; n < pages; n++) check(at + n * WORDS, n, n % 5 ? 7 : 10);
    CHECK(!munmap(at, size) && !munmap(other, others) && !close(file));
}

static void pagemap_names_the_slots_of_swapped_pages(void) {
    enum { PAGES = 16 };
    uint64_t *at = map(PAGES * PAGE), words[PAGES];
    fill_all(at, PAGES, 6);
    CHECK(!madvise(at, PAGES * PAGE, 21 /* MADV_PAGEOUT */));
    int file = open("/proc/self/pagemap", O_RDONLY);
    CHECK(file >= 0 && pread(file, words, sizeof words, (uintptr_t)at / PAGE * 8) == sizeof words && !close(file));
    int swapped = 0;
    for (int n = 0; n < PAGES; n++) {
        // Bits 62 and 63: swapped, present. Bits 0 to 4: the device, and 31 for markers.
        if (!(words[n] >> 62 & 1)) continue;
        CHECK(!(words[n] >> 63) && !(words[n] >> 61 & 1) && (words[n] & 31) == 0);
        for (int m = 0; m < n; m++) CHECK(!(words[m] >> 62 & 1) || (words[m] ^ words[n]) & ((1ul << 55) - 1));
        swapped++;
    }
    CHECK(swapped > 1);
    check_all(at, PAGES, 6);
    CHECK(!munmap(at, PAGES * PAGE));
}

static void swapoff_brings_all_pages_back(void) {
    long size = bytes / 4;
    uint64_t *at = map(size);
    fill_all(at, size / PAGE, 5);
    long shared_pages = size / PAGE / 2;
    int file = memfd_create("shared", 0);
    CHECK(file >= 0 && !ftruncate(file, shared_pages * PAGE));
    uint64_t *shared = mmap(0, shared_pages * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    CHECK(shared != MAP_FAILED);
    fill_all(shared, shared_pages, 6);
    CHECK(!madvise(at, size, 21 /* MADV_PAGEOUT */) && swapped_kib() > 0);
    CHECK(!madvise(shared, shared_pages * PAGE, 21));
    // nr_cache, nr_dirty, nr_writeback, nr_evicted, nr_recently_evicted.
    uint64_t range[2] = {0, 0}, counts[5];
    CHECK(!syscall(451 /* cachestat */, file, range, counts, 0));
    CHECK(counts[3] > 0 && counts[0] + counts[3] == (uint64_t)shared_pages);
    CHECK(number_in("/proc/self/smaps_rollup", "Swap:") > swapped_kib());
    CHECK(!swapoff(device) && swapped_kib() == 0 && number_in("/proc/meminfo", "SwapTotal:") == 0);
    check_all(at, size / PAGE, 5);
    check_all(shared, shared_pages, 6);
    CHECK(!munmap(shared, shared_pages * PAGE) && !close(file));
    CHECK(swapoff(device) == -1 && errno == EINVAL);
    CHECK(!swapon(device, SWAP_FLAG_PREFER | 7));
    CHECK(number_in("/proc/swaps", "partition\t") > 0);
    CHECK(swapon(device, 0) == -1 && errno == EBUSY);
    CHECK(!munmap(at, size));
}

static void vmstat_counts_swapped_pages(void) {
    const char *file = "/proc/vmstat";
    long out = number_in(file, "pswpout "), in = number_in(file, "pswpin ");
    long scanned = number_in(file, "pgscan_direct "), freed = number_in(file, "pgsteal_direct ");
    CHECK(out > bytes / 4096 / 4 && in > 0 && in <= out);
    CHECK(scanned >= freed && freed > 0);
    CHECK(number_in(file, "workingset_refault_anon ") > 0);
}

// Needs the kernel's option "generations". The first walk of a space also finds a space that never ran, so
// the memory is used until three walks have found accessed pages.
static void walks_find_the_accessed_pages(void) {
    long pages = bytes / 4096, last = 0;
    uint64_t *at = map(bytes);
    for (int walks = 0; walks < 3;) {
        fill_all(at, pages, walks);
        check_all(at, pages, walks);
        long accessed = number_in("/proc/vmstat", "pgactivate ");
        walks += accessed > last;
        last = accessed;
    }
    CHECK(!munmap(at, bytes));
}

int main(int argc, char **argv) {
    bytes = (argc > 1 ? atol(argv[1]) : 16) << 20;
    PART(contents_survive_a_lack_of_memory);
    PART(parent_and_child_have_their_own_contents);
    PART(threads_swap_side_by_side);
    PART(more_than_memory_is_sorted);
    PART(shared_memory_survives_a_lack_of_memory);
    if (argc > 2) {
        PART(vmstat_counts_swapped_pages);
        if (!strcmp(argv[2], "generations")) {
            PART(walks_find_the_accessed_pages);
            return 0;
        }
        PART(pagemap_names_the_slots_of_swapped_pages);
        PART(swapoff_brings_all_pages_back);
    }
    return 0;
}
