// Reports of memory in /proc: smaps and smaps_rollup, clear_refs, page tables, peaks, and queries of maps. Checks
// `maps.rs`, `query.rs` and `clear_refs.rs` in `kernel/src/proc`, and the counters of the engine that they show.
// Numbers in the files are in kB.
#define _GNU_SOURCE
#include "check.h"
#include <fcntl.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

#define PAGE 4096ul
#define RW (PROT_READ | PROT_WRITE)

static char *map(size_t bytes, int flags) {
    char *at = mmap(0, bytes, RW, flags, -1, 0);
    CHECK(at != MAP_FAILED);
    return at;
}

// Returns the number behind a name in a file of /proc, or -1. If an address is given, searches only the
// paragraph of smaps for the VMA at this address.
static long number(const char *file, const char *name, char *at) {
    FILE *f = fopen(file, "r");
    CHECK(f);
    char line[512];
    long found = -1;
    int within = !at;
    while (fgets(line, sizeof line, f)) {
        unsigned long start, end;
        char *colon = strchr(line, ':');
        if (sscanf(line, "%lx-%lx ", &start, &end) == 2 && !strstr(line, " kB"))
            within = !at || ((unsigned long)at >= start && (unsigned long)at < end);
        else if (within && colon && !strncmp(line, name, strlen(name)) && line + strlen(name) == colon)
            found = strtol(colon + 1, 0, 10);
    }
    fclose(f);
    return found;
}

static long of(char *at, const char *name) { return number("/proc/self/smaps", name, at); }
static long status(const char *name) { return number("/proc/self/status", name, 0); }
static long rollup(const char *name) { return number("/proc/self/smaps_rollup", name, 0); }

static int clear(const char *text) {
    int file = open("/proc/self/clear_refs", O_WRONLY);
    CHECK(file >= 0);
    errno = 0;
    int taken = write(file, text, strlen(text));
    int error = errno;
    close(file);
    return taken < 0 ? -error : taken;
}

static void lazily_freed_pages_are_clean(void) {
    char *at = map(64 * PAGE, MAP_PRIVATE | MAP_ANONYMOUS);
    memset(at, 1, 4 * PAGE);
    CHECK(of(at, "Private_Dirty") == 16 && of(at, "Private_Clean") == 0);
    CHECK(madvise(at, 2 * PAGE, MADV_FREE) == 0);
    CHECK(of(at, "Private_Dirty") == 8 && of(at, "Private_Clean") == 8 && of(at, "Referenced") == 8);
    CHECK(of(at, "LazyFree") <= 8);
    at[0] = 2;
    CHECK(of(at, "Private_Dirty") == 12 && of(at, "Private_Clean") == 4);
    CHECK(of(at, "Rss") == 16 && of(at, "Anonymous") == 16 && of(at, "Pss_Dirty") == 12);
    munmap(at, 64 * PAGE);
}

static void smaps_rollup_separates_kinds_of_memory(void) {
    char *own = map(256 * PAGE, MAP_PRIVATE | MAP_ANONYMOUS), *shared = map(16 * PAGE, MAP_SHARED | MAP_ANONYMOUS);
    long anon = rollup("Pss_Anon"), shmem = rollup("Pss_Shmem");
    CHECK(anon > 0 && shmem >= 0 && rollup("Pss_File") >= 0);
    memset(own, 1, 256 * PAGE);
    memset(shared, 1, 16 * PAGE);
    CHECK(rollup("Pss_Anon") >= anon + 1024 && rollup("Pss_Shmem") == shmem + 64);
    long parts = rollup("Pss_Anon") + rollup("Pss_File") + rollup("Pss_Shmem"), all = rollup("Pss");
    CHECK(parts <= all + 16 && parts >= all - 16);
    CHECK(rollup("KSM") == 0 && rollup("ShmemPmdMapped") == 0 && rollup("FilePmdMapped") == 0);
    munmap(own, 256 * PAGE);
    munmap(shared, 16 * PAGE);
}

static void clear_refs_clears_referenced(void) {
    char *own = map(4 * PAGE, MAP_PRIVATE | MAP_ANONYMOUS), *shared = map(4 * PAGE, MAP_SHARED | MAP_ANONYMOUS);
    own[0] = shared[0] = 1;
    CHECK(of(own, "Referenced") == 4 && of(shared, "Referenced") == 4);
    CHECK(clear("2\n") == 2 && of(own, "Referenced") == 0 && of(shared, "Referenced") == 4);
    CHECK(clear("3") == 1 && of(shared, "Referenced") == 0);
    CHECK(of(own, "Private_Dirty") == 4 && of(shared, "Private_Dirty") == 4);
    CHECK(clear(" 1 ") == 3 && clear("4") == 1 && clear("+1") == 2 && clear("001") == 3);
    const char *wrong[] = {"0", "6", "-1", "1x", "0x1", "1 2", "", "            1"};
    for (unsigned n = 0; n < sizeof wrong / sizeof *wrong; n++)
        if (*wrong[n])
            CHECK(clear(wrong[n]) == -EINVAL);
    CHECK(clear("999999999999999") == -ERANGE);
    CHECK(clear("1                    2") == 12);
    char byte;
    int file = open("/proc/self/clear_refs", O_RDONLY);
    CHECK(file < 0 || (read(file, &byte, 1) == -1 && errno == EINVAL));
    munmap(own, 4 * PAGE);
    munmap(shared, 4 * PAGE);
}

// A read returns at most a page, and ends at the end of a line (maps) or of a paragraph (smaps). Tools that read
// once therefore get whole lines, and get them quickly however many mappings there are.
static void reads_of_maps_and_smaps_return_whole_lines(void) {
    char *at = map(256 * PAGE, MAP_PRIVATE | MAP_ANONYMOUS);
    for (int page = 0; page < 256; page += 2)
        CHECK(mprotect(at + page * PAGE, PAGE, PROT_READ) == 0);
    static char text[1 << 20];
    const char *files[] = {"/proc/self/maps", "/proc/self/smaps"};
    for (int n = 0; n < 2; n++) {
        int file = open(files[n], O_RDONLY), reads = 0, found = 0;
        CHECK(file >= 0);
        for (;; reads++) {
            ssize_t bytes = read(file, text, sizeof text - 1);
            CHECK(bytes >= 0 && bytes <= (ssize_t)PAGE);
            if (!bytes)
                break;
            text[bytes] = 0;
            char *last = text + bytes - 1, name[32];
            CHECK(*last == '\n');
            while (last > text && last[-1] != '\n')
                last--;
            CHECK(!n || !strncmp(last, "VmFlags:", 8));
            sprintf(name, "%lx-", (unsigned long)at + 254 * PAGE);
            found += strstr(text, name) != 0;
        }
        CHECK(found == 1 && reads > 1);
        // A short buffer gets the rest of a line with the next read.
        CHECK(lseek(file, 0, SEEK_SET) == 0 && read(file, text, 10) == 10 && read(file, text + 10, 90) == 90);
        CHECK(pread(file, text + 200, 100, 0) == 100 && !memcmp(text, text + 200, 100));
        close(file);
    }
    munmap(at, 256 * PAGE);
}

static void page_tables_are_counted(void) {
    char *far = (char *)0x200000000000, *next = far + (64ul << 30);
    long before = status("VmPTE");
    CHECK(before > 0);
    CHECK(mmap(far, PAGE, RW, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == far);
    CHECK(mmap(next, PAGE, RW, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == next);
    far[0] = 1;
    CHECK(status("VmPTE") == before + 12);
    next[0] = 1;
    CHECK(status("VmPTE") == before + 20);
    munmap(far, PAGE);
    munmap(next, PAGE);
    CHECK(status("VmPTE") == before);
}

static void peaks_are_kept_until_reset(void) {
    char *at = map(2048 * PAGE, MAP_PRIVATE | MAP_ANONYMOUS);
    memset(at, 1, 2048 * PAGE);
    munmap(at, 2048 * PAGE);
    CHECK(status("VmPeak") >= status("VmSize") + 8192);
    CHECK(status("VmHWM") >= status("VmRSS") + 7000);
    struct rusage usage;
    CHECK(getrusage(RUSAGE_SELF, &usage) == 0 && usage.ru_maxrss > 8192);
    CHECK(clear("5") == 1 && status("VmHWM") < status("VmRSS") + 1000);
    CHECK(status("VmPeak") >= status("VmSize") + 8192);
    CHECK(getrusage(RUSAGE_SELF, &usage) == 0 && usage.ru_maxrss < 8192);
}

// The structure of PROCMAP_QUERY. Old headers do not have it.
struct query {
    uint64_t size, flags, addr, start, end, rights, page_size, offset, inode;
    uint32_t major, minor, name_size, id_size;
    uint64_t name, id;
};
enum { READABLE = 1, WRITABLE = 2, EXECUTABLE = 4, SHARED = 8, NEXT = 16, FILE_BACKED = 32 };

static int query(int maps, struct query *query) {
    errno = 0;
    return ioctl(maps, 0xc0686611, query) ? errno : 0;
}

static void one_vma_is_found_by_a_query(void) {
    int maps = open("/proc/self/maps", O_RDONLY), smaps = open("/proc/self/smaps", O_RDONLY);
    char *at = map(3 * PAGE, MAP_PRIVATE | MAP_ANONYMOUS), name[256] = "";
    CHECK(maps >= 0 && smaps >= 0 && !mprotect(at + PAGE, PAGE, PROT_READ));
    uint64_t middle = (uint64_t)at + PAGE;
    struct query q = {.size = sizeof q, .addr = middle + 5, .name = (uint64_t)name, .name_size = sizeof name};
    CHECK(query(maps, &q) == 0 && q.start == middle && q.end == middle + PAGE && q.rights == READABLE);
    CHECK(q.page_size == PAGE && q.inode == 0 && q.name_size == 0 && q.size == sizeof q && q.addr == middle + 5);
    q = (struct query){.size = sizeof q, .addr = middle, .flags = WRITABLE};
    CHECK(query(maps, &q) == ENOENT);
    q.flags |= NEXT;
    CHECK(query(maps, &q) == 0 && q.start == middle + PAGE && q.rights == (READABLE | WRITABLE));
    CHECK(!munmap(at, 3 * PAGE));
    q = (struct query){.size = sizeof q, .addr = middle};
    CHECK(query(maps, &q) == ENOENT);

    // The program itself: its name, and no more bytes than the program knows.
    q = (struct query){.size = sizeof q, .addr = (uint64_t)query, .name = (uint64_t)name, .name_size = sizeof name};
    q.flags = FILE_BACKED | EXECUTABLE;
    struct stat own;
    char link[256] = "";
    CHECK(!stat("/proc/self/exe", &own) && readlink("/proc/self/exe", link, sizeof link) > 0);
    CHECK(query(maps, &q) == 0 && !strcmp(name, link) && q.name_size == strlen(link) + 1);
    CHECK(q.inode == own.st_ino && q.start <= q.addr && q.addr < q.end);
    q.name_size = 2;
    CHECK(query(maps, &q) == ENAMETOOLONG);
    unsigned char id[32] = {0};
    q = (struct query){.size = sizeof q, .addr = (uint64_t)query, .id = (uint64_t)id, .id_size = sizeof id};
    CHECK(query(maps, &q) == 0 && (q.id_size == 0 || q.id_size == 20));
    q = (struct query){.size = offsetof(struct query, start), .addr = (uint64_t)query};
    CHECK(query(maps, &q) == 0 && q.start == 0);

    struct { struct query known; uint64_t more; } longer = {.known = {.size = sizeof longer, .addr = (uint64_t)query}};
    CHECK(query(maps, &longer.known) == 0 && longer.known.start != 0);
    longer.more = 1;
    CHECK(query(maps, &longer.known) == E2BIG);
    q = (struct query){.size = sizeof q, .addr = (uint64_t)query, .flags = 64};
    CHECK(query(maps, &q) == EINVAL);
    q = (struct query){.size = 8, .addr = (uint64_t)query};
    CHECK(query(maps, &q) == EINVAL);
    q = (struct query){.size = sizeof q, .addr = (uint64_t)query, .name_size = 8};
    CHECK(query(maps, &q) == EINVAL);
    q = (struct query){.size = sizeof q, .addr = (uint64_t)query};
    CHECK(query(smaps, &q) == ENOTTY && !close(maps) && !close(smaps));
}

int main(void) {
    PART(lazily_freed_pages_are_clean);
    PART(smaps_rollup_separates_kinds_of_memory);
    PART(reads_of_maps_and_smaps_return_whole_lines);
    PART(clear_refs_clears_referenced);
    PART(page_tables_are_counted);
    PART(peaks_are_kept_until_reset);
    PART(one_vma_is_found_by_a_query);
    return 0;
}
