// Amounts of memory near the size of the machine and above it: pages that are freed lazily (MADV_FREE) and not
// given back, and a sort of more than memory with a swap device.
//
// The first argument is `lazy` or `sort`, and the second one the number of MiB.
#define _GNU_SOURCE
#include "check.h"
#include <stdint.h>
#include <sys/mman.h>

enum { PAGE = 4096, WORDS = PAGE / 8, RECORD = 16 };

static long bytes;

static uint64_t *map(void) {
    uint64_t *at = mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(at != MAP_FAILED);
    return at;
}

static uint64_t random_word(uint64_t *state) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return *state >> 33;
}

// Stores a word that depends on the page and the seed at both ends of each page.
static void fill(uint64_t *at, uint64_t seed) {
    for (long n = 0; n < bytes / PAGE; n++) at[n * WORDS] = at[n * WORDS + WORDS - 1] = seed << 32 | n;
}

// Checks the pages, and returns the number of pages with zeroes. A page has its contents, or none of them.
static long check_filled(volatile uint64_t *at, uint64_t seed) {
    long zeroes = 0;
    for (long n = 0; n < bytes / PAGE; n++) {
        uint64_t first = at[n * WORDS], last = at[n * WORDS + WORDS - 1];
        CHECK(first == last && (first == 0 || first == (seed << 32 | n)));
        zeroes += first == 0;
    }
    return zeroes;
}

static void lazily_freed_memory_is_used_again(void) {
    uint64_t *freed = map();
    fill(freed, 1);
    CHECK(!madvise(freed, bytes, MADV_FREE));
    uint64_t *later = map();
    fill(later, 2);
    CHECK(check_filled(later, 2) == 0);
    printf("%ld of %ld pages were taken\n", check_filled(freed, 1), bytes / PAGE);
    // In the other direction. Pages that are written again stay.
    CHECK(!madvise(later, bytes, MADV_FREE));
    fill(freed, 3);
    CHECK(check_filled(freed, 3) == 0);
    check_filled(later, 2);
    CHECK(!munmap(later, bytes) && !munmap(freed, bytes));
}

// A record of 128 bytes. All its words have the key, so that a compressor needs about a tenth of a page.
struct record { uint64_t words[RECORD]; };

static uint64_t key_of(const struct record *record) { return record->words[0]; }

// Sorts records in place: the accesses run from both ends of ever smaller parts.
static void sort(struct record *from, struct record *end) {
    while (end - from > 1) {
        uint64_t middle = key_of(from + (end - from) / 2);
        struct record *low = from, *high = end - 1;
        while (low <= high) {
            while (key_of(low) < middle) low++;
            while (key_of(high) > middle) high--;
            if (low > high) break;
            struct record record = *low;
            *low++ = *high;
            *high-- = record;
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

static void records_are_sorted(void) {
    struct record *records = (struct record *)map();
    long count = bytes / sizeof *records;
    uint64_t state = 1, sum = 0, squares = 0, last = 0;
    for (long n = 0; n < count; n++) {
        uint64_t key = random_word(&state);
        for (int word = 0; word < RECORD; word++) records[n].words[word] = key;
        sum += key;
        squares += key * key;
    }
    sort(records, records + count);
    for (long n = 0; n < count; n++) {
        uint64_t key = key_of(&records[n]);
        for (int word = 0; word < RECORD; word++) CHECK(records[n].words[word] == key);
        CHECK(last <= key);
        last = key;
        sum -= key;
        squares -= key * key;
    }
    CHECK(sum == 0 && squares == 0 && !munmap(records, bytes));
}

int main(int argc, char **argv) {
    CHECK(argc == 3);
    bytes = atol(argv[2]) << 20;
    if (!strcmp(argv[1], "lazy"))
        PART(lazily_freed_memory_is_used_again);
    else
        PART(records_are_sorted);
    return 0;
}
