// Settings of huge pages in /sys/kernel/mm/transparent_hugepage: words, numbers, and their effects on
// anonymous and shared memory. Checks `kernel/src/proc/huge.rs`. The settings are those of the machine, so
// the program runs only on the kernel's machine, where no other program is affected.
#define _GNU_SOURCE
#include "check.h"
#include <fcntl.h>
#include <sys/mman.h>

#define HUGE (2ul << 20)
#define FOLDER "/sys/kernel/mm/transparent_hugepage/"

static long write_bytes(const char *name, const char *text, size_t bytes) {
    char path[128];
    snprintf(path, sizeof path, FOLDER "%s", name);
    int file = open(path, O_WRONLY);
    CHECK(file >= 0);
    long written = write(file, text, bytes);
    int error = errno;
    CHECK(!close(file));
    errno = error;
    return written;
}

static void set(const char *name, const char *text) {
    CHECK(write_bytes(name, text, strlen(text)) == (long)strlen(text));
}

static int reads(const char *name, const char *expected) {
    char path[128], text[256];
    snprintf(path, sizeof path, FOLDER "%s", name);
    FILE *file = fopen(path, "r");
    CHECK(file && fgets(text, sizeof text, file) && !fclose(file));
    text[strcspn(text, "\n")] = 0;
    if (strcmp(text, expected)) printf("%s: %s\n", name, text);
    return !strcmp(text, expected);
}

// Returns a row of smaps of the VMA that begins at an address, in kB.
static long smaps(void *at, const char *row) {
    char line[512], first[32];
    snprintf(first, sizeof first, "%lx-", (unsigned long)at);
    FILE *file = fopen("/proc/self/smaps", "r");
    CHECK(file);
    long kib = -1;
    int is_here = 0;
    while (kib < 0 && fgets(line, sizeof line, file)) {
        if (!strncmp(line, first, strlen(first))) is_here = 1;
        if (is_here && !strncmp(line, row, strlen(row))) kib = strtol(line + strlen(row) + 1, NULL, 10);
    }
    CHECK(!fclose(file));
    return kib;
}

// Touches one page of a new mapping and returns a row of smaps.
static long after_a_touch(int flags, int advice, const char *row) {
    char *room = mmap(0, 2 * HUGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(room != MAP_FAILED);
    char *aligned = (char *)(((unsigned long)room + HUGE - 1) & -HUGE);
    CHECK(mmap(aligned, HUGE, PROT_READ | PROT_WRITE, MAP_ANONYMOUS | MAP_FIXED | flags, -1, 0) == aligned);
    CHECK(advice < 0 || !madvise(aligned, HUGE, advice));
    aligned[0] = 1;
    long kib = smaps(aligned, row);
    CHECK(!munmap(room, 2 * HUGE));
    return kib;
}

static void words_are_listed_and_selected(void) {
    CHECK(reads("enabled", "always [madvise] never") && reads("hpage_pmd_size", "2097152"));
    CHECK(reads("hugepages-2048kB/enabled", "always [inherit] madvise never"));
    CHECK(reads("hugepages-64kB/enabled", "always inherit madvise [never]"));
    CHECK(reads("hugepages-2048kB/shmem_enabled", "always [inherit] within_size advise never"));
    CHECK(reads("hugepages-8kB/shmem_enabled", "always inherit within_size advise [never]"));
    set("defrag", "defer+madvise\n");
    CHECK(reads("defrag", "always defer [defer+madvise] madvise never"));
    // A zero byte ends the word.
    CHECK(write_bytes("enabled", "always", sizeof "always") > 0);
    CHECK(reads("enabled", "[always] madvise never"));
    set("enabled", "madvise");
    CHECK(write_bytes("enabled", "some", 4) == -1 && errno == EINVAL);
    CHECK(write_bytes("hugepages-64kB/enabled", "within_size", 11) == -1 && errno == EINVAL);
    set("hugepages-8kB/shmem_enabled", "within_size");
    CHECK(reads("hugepages-8kB/shmem_enabled", "always inherit [within_size] advise never"));
    set("hugepages-8kB/shmem_enabled", "never");
    CHECK(reads("hugepages-8kB/shmem_enabled", "always inherit within_size advise [never]"));
}

static void numbers_are_kept(void) {
    CHECK(reads("khugepaged/max_ptes_none", "511"));
    set("khugepaged/max_ptes_none", "7\n");
    CHECK(reads("khugepaged/max_ptes_none", "7"));
    CHECK(write_bytes("khugepaged/max_ptes_none", "x", 1) == -1 && errno == EINVAL);
    set("khugepaged/max_ptes_none", "511");
}

static void anonymous_memory_follows_the_words(void) {
    CHECK(after_a_touch(MAP_PRIVATE, -1, "AnonHugePages:") == 0);
    CHECK(after_a_touch(MAP_PRIVATE, MADV_HUGEPAGE, "AnonHugePages:") == 2048);
    set("enabled", "always");
    CHECK(after_a_touch(MAP_PRIVATE, -1, "AnonHugePages:") == 2048);
    set("hugepages-2048kB/enabled", "never");
    CHECK(after_a_touch(MAP_PRIVATE, MADV_HUGEPAGE, "AnonHugePages:") == 0);
    set("enabled", "never");
    set("hugepages-2048kB/enabled", "madvise");
    CHECK(after_a_touch(MAP_PRIVATE, MADV_HUGEPAGE, "AnonHugePages:") == 2048);
    CHECK(after_a_touch(MAP_PRIVATE, -1, "AnonHugePages:") == 0);
    set("enabled", "madvise");
    set("hugepages-2048kB/enabled", "inherit");
    // A block of another size.
    CHECK(after_a_touch(MAP_PRIVATE, -1, "Rss:") == 4);
    set("hugepages-64kB/enabled", "always");
    CHECK(after_a_touch(MAP_PRIVATE, -1, "Rss:") == 64);
    set("hugepages-64kB/enabled", "inherit");
    CHECK(after_a_touch(MAP_PRIVATE, -1, "Rss:") == 4);
    set("hugepages-64kB/enabled", "never");
}

static void shared_memory_follows_the_words(void) {
    CHECK(after_a_touch(MAP_SHARED, MADV_HUGEPAGE, "Rss:") == 4);
    set("shmem_enabled", "advise");
    CHECK(after_a_touch(MAP_SHARED, MADV_HUGEPAGE, "Rss:") == 2048);
    CHECK(after_a_touch(MAP_SHARED, -1, "Rss:") == 4);
    set("shmem_enabled", "always");
    CHECK(after_a_touch(MAP_SHARED, -1, "Rss:") == 2048);
    set("hugepages-2048kB/shmem_enabled", "never");
    CHECK(after_a_touch(MAP_SHARED, -1, "Rss:") == 4);
    set("hugepages-2048kB/shmem_enabled", "inherit");
    set("shmem_enabled", "never");
}

int main(void) {
    PART(words_are_listed_and_selected);
    PART(numbers_are_kept);
    PART(anonymous_memory_follows_the_words);
    PART(shared_memory_follows_the_words);
    return 0;
}
