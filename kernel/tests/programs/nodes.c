// Memory on several NUMA nodes: the folders of nodes, policies of mappings and threads, moves of pages, and
// numa_maps. Checks `kernel/src/platform/policy.rs`, `kernel/src/calls/policies.rs` and `page_moves.rs`,
// `kernel/src/proc/numa_maps.rs`, and the nodes of `kernel/src/memory/frames.rs`.
//
// The test `nodes` runs the program with the kernel's option `nodes=2`, whose answers are those of Linux with
// `numa=fake=2`. On a machine with one node, the last node is node 0, and the parts check less. The argument
// `unprivileged` skips the parts that need the superuser outside of a user namespace.
#define _GNU_SOURCE
#include "check.h"
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#define FAILS(what, number) CHECK((what) == -1 && errno == number)
enum { DEFAULT, PREFERRED, BIND, INTERLEAVE, LOCAL, PREFERRED_MANY, WEIGHTED };
enum { MF_STRICT = 1, MF_MOVE = 2, MF_MOVE_ALL = 4 };
enum { F_NODE = 1, F_ADDR = 2, F_ALLOWED = 4 };
enum { PAGE = 4096, STATIC = 1 << 15, RELATIVE = 1 << 14 };

// The number of the last node, and the sets with this node and with all nodes.
static int last;
static unsigned long last_set, all;

static char *text_of(const char *path) {
    static char text[65536];
    int file = open(path, O_RDONLY);
    CHECK(file >= 0);
    long bytes = 0, more;
    while ((more = read(file, text + bytes, sizeof text - 1 - bytes)) > 0) bytes += more;
    CHECK(more == 0 && !close(file));
    text[bytes] = 0;
    return text;
}

static char *map(int pages) {
    char *at = mmap(0, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(at != MAP_FAILED && !madvise(at, pages * PAGE, MADV_NOHUGEPAGE));
    return at;
}

static int node_of(void *at) {
    int node = -1;
    CHECK(!syscall(SYS_get_mempolicy, &node, 0, 0, at, F_NODE | F_ADDR));
    return node;
}

static long bind_to(void *at, long bytes, int mode, unsigned long nodes, int flags) {
    return syscall(SYS_mbind, at, bytes, mode, nodes ? &nodes : 0, 64, flags);
}

static void folders_describe_the_nodes(void) {
    char path[80], expected[80];
    unsigned long allowed = 0;
    CHECK(!syscall(SYS_get_mempolicy, 0, &allowed, 64, 0, F_ALLOWED) && allowed == all);
    for (int node = 0; node <= last; node++) {
        sprintf(path, "/sys/devices/system/node/node%d/meminfo", node);
        sprintf(expected, "Node %d MemTotal:", node);
        char *row = strstr(text_of(path), expected);
        CHECK(row && atol(row + strlen(expected)) > 1024);
        sprintf(path, "/sys/devices/system/node/node%d/distance", node);
        char *word = strtok(text_of(path), " \n");
        for (int other = 0; other <= last; other++, word = strtok(0, " \n")) CHECK(word && atoi(word) == 10);
        CHECK(!word);
    }
}

static void policy_of_a_mapping_chooses_the_node(void) {
    char *at = map(8);
    at[0] = 1;
    CHECK(node_of(at) == 0);
    CHECK(!bind_to(at + PAGE, PAGE, BIND, last_set, 0) && !bind_to(at + 2 * PAGE, PAGE, PREFERRED, last_set, 0));
    CHECK(!bind_to(at + 3 * PAGE, PAGE, LOCAL, 0, 0) && !bind_to(at + 4 * PAGE, PAGE, PREFERRED_MANY, last_set, 0));
    CHECK(!bind_to(at + 5 * PAGE, PAGE, BIND | STATIC, last_set | 1ul << 20, 0));
    CHECK(!bind_to(at + 6 * PAGE, PAGE, BIND | RELATIVE, 1ul << (last + 1 + last), 0));
    for (int page = 1; page < 8; page++) at[page * PAGE] = 1;
    int expected[] = {0, last, last, 0, last, last, last, 0};
    for (int page = 0; page < 8; page++) CHECK(node_of(at + page * PAGE) == expected[page]);
    // A preferred node is the lowest of the set.
    int mode = -1;
    unsigned long nodes = 0;
    CHECK(!bind_to(at, PAGE, PREFERRED, all, 0));
    CHECK(!syscall(SYS_get_mempolicy, &mode, &nodes, 64, at, F_ADDR) && mode == PREFERRED && nodes == 1);
    FAILS(bind_to(at, PAGE, BIND, 1ul << 20, 0), EINVAL);
    CHECK(!munmap(at, 8 * PAGE));
}

// The offset of a page in the mapped object selects the node.
static void interleaved_pages_alternate(void) {
    char *at = map(8);
    CHECK(!bind_to(at, 4 * PAGE, INTERLEAVE, all, 0) && !bind_to(at + 4 * PAGE, 4 * PAGE, WEIGHTED, all, 0));
    for (int page = 7; page >= 0; page--) at[page * PAGE] = 1;
    for (int page = 0; page < 4; page++) {
        CHECK(node_of(at + page * PAGE) == (int)(((unsigned long)at / PAGE + page) % (last + 1)));
    }
    CHECK(!munmap(at, 8 * PAGE));
}

static void policy_of_a_thread_chooses_the_node(void) {
    char *at = map(16);
    CHECK(!syscall(SYS_set_mempolicy, BIND, &last_set, 64));
    at[0] = at[PAGE] = 1;
    CHECK(node_of(at) == last && node_of(at + PAGE) == last);
    // Pages of files follow the policy, too. The policy of a mapping is stronger.
    int file = memfd_create("nodes", 0);
    CHECK(file >= 0 && write(file, "x", 1) == 1);
    char *shared = mmap(0, PAGE, PROT_READ, MAP_SHARED, file, 0);
    CHECK(shared != MAP_FAILED && *shared == 'x' && node_of(shared) == last);
    CHECK(!bind_to(at + 2 * PAGE, PAGE, BIND, 1, 0));
    at[2 * PAGE] = 1;
    CHECK(node_of(at + 2 * PAGE) == 0);
    pid_t child = fork();
    if (child == 0) {
        at[0] = 2;
        at[3 * PAGE] = 1;
        CHECK(node_of(at) == last && node_of(at + 3 * PAGE) == last);
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    CHECK(!syscall(SYS_set_mempolicy, INTERLEAVE, &all, 64));
    int next = -1;
    CHECK(!syscall(SYS_get_mempolicy, &next, 0, 0, 0, F_NODE) && next == 0);
    // The calls themselves may have allocated pages for the stack, so only the alternation is certain.
    for (int page = 4; page < 12; page++) at[page * PAGE] = 1;
    for (int page = 4; page < 11; page++) {
        CHECK(node_of(at + (page + 1) * PAGE) == (node_of(at + page * PAGE) + 1) % (last + 1));
    }
    CHECK(!syscall(SYS_set_mempolicy, DEFAULT, 0, 0));
    FAILS(syscall(SYS_get_mempolicy, &next, 0, 0, 0, F_NODE), EINVAL);
    at[12 * PAGE] = 1;
    CHECK(node_of(at + 12 * PAGE) == 0);
    CHECK(!munmap(at, 16 * PAGE) && !munmap(shared, PAGE) && !close(file));
}

// A freed page of another node is not given to a thread without a policy.
static void freed_pages_stay_on_their_node(void) {
    enum { PAGES = 600 };
    char *at = map(PAGES);
    CHECK(!bind_to(at, PAGES * PAGE, BIND, last_set, 0));
    for (int page = 0; page < PAGES; page++) at[page * PAGE] = 1;
    CHECK(!munmap(at, PAGES * PAGE));
    at = map(PAGES);
    for (int page = 0; page < PAGES; page++) at[page * PAGE] = 1;
    for (int page = 0; page < PAGES; page++) CHECK(node_of(at + page * PAGE) == 0);
    CHECK(!munmap(at, PAGES * PAGE));
}

static void move_pages_moves_and_reports(void) {
    char *at = map(4);
    memset(at, 'a', 3 * PAGE);
    void *pages[] = {at, at + PAGE + 5, at + 2 * PAGE, at + 3 * PAGE, (void *)0x10000};
    int nodes[] = {last, last, 0, last, last}, status[5];
    CHECK(!syscall(SYS_move_pages, 0, 3, pages, 0, status, 0));
    for (int n = 0; n < 3; n++) CHECK(status[n] == 0);
    CHECK(syscall(SYS_move_pages, 0, 5, pages, nodes, status, MF_MOVE) == 0);
    CHECK(status[0] == last && status[1] == last && status[2] == 0);
    CHECK(status[3] == -ENOENT && status[4] == -EFAULT);
    CHECK(node_of(at) == last && node_of(at + PAGE) == last && node_of(at + 2 * PAGE) == 0);
    for (int byte = 0; byte < 3 * PAGE; byte++) CHECK(at[byte] == 'a');
    nodes[0] = 9;
    FAILS(syscall(SYS_move_pages, 0, 1, pages, nodes, status, MF_MOVE), ENODEV);
    FAILS(syscall(SYS_move_pages, 0, 1, pages, nodes, status, 8), EINVAL);
    CHECK(!munmap(at, 4 * PAGE));
}

static void shared_page_moves_only_if_asked_for(void) {
    char *at = map(1);
    at[0] = 'b';
    int ready[2], end[2], status[1] = {9}, nodes[] = {last};
    char byte;
    CHECK(!pipe(ready) && !pipe(end));
    pid_t child = fork();
    if (child == 0) {
        CHECK(write(ready[1], "x", 1) == 1 && read(end[0], &byte, 1) == 1 && at[0] == 'b');
        _exit(0);
    }
    CHECK(read(ready[0], &byte, 1) == 1);
    void *pages[] = {at};
    if (last > 0) {
        CHECK(!syscall(SYS_move_pages, 0, 1, pages, nodes, status, MF_MOVE) && status[0] == -EACCES);
        CHECK(node_of(at) == 0);
    }
    CHECK(!syscall(SYS_move_pages, 0, 1, pages, nodes, status, MF_MOVE_ALL) && status[0] == last);
    CHECK(node_of(at) == last && at[0] == 'b');
    // The pages of another process.
    nodes[0] = 0;
    CHECK(!syscall(SYS_move_pages, child, 1, pages, nodes, status, MF_MOVE_ALL) && status[0] == 0);
    CHECK(node_of(at) == 0 && write(end[1], "x", 1) == 1);
    int ended;
    CHECK(waitpid(child, &ended, 0) == child && ended == 0 && !munmap(at, PAGE));
}

static void mbind_moves_pages(void) {
    char *at = map(4);
    memset(at, 'c', 2 * PAGE);
    CHECK(!bind_to(at, 4 * PAGE, BIND, last_set, 0) && node_of(at) == 0);
    if (last > 0) {
        FAILS(bind_to(at, 4 * PAGE, BIND, last_set, MF_STRICT), EIO);
        CHECK(node_of(at) == 0);
    }
    CHECK(!bind_to(at, 4 * PAGE, BIND, last_set, MF_STRICT | MF_MOVE));
    CHECK(node_of(at) == last && node_of(at + PAGE) == last && at[2 * PAGE - 1] == 'c');
    CHECK(!bind_to(at, 4 * PAGE, BIND, last_set, MF_STRICT));
    CHECK(!bind_to(at, 4 * PAGE, DEFAULT, 0, MF_STRICT) && node_of(at) == last);
    CHECK(!munmap(at, 4 * PAGE));
}

static void migrate_pages_moves_a_whole_process(void) {
    char *at = map(2);
    at[0] = 'd';
    CHECK(!bind_to(at + PAGE, PAGE, BIND, last_set, 0));
    at[PAGE] = 'e';
    unsigned long first_set = 1, none = 0;
    CHECK(syscall(SYS_migrate_pages, 0, 64, &first_set, &last_set) >= 0);
    CHECK(node_of(at) == last && node_of(at + PAGE) == last && at[0] == 'd' && at[PAGE] == 'e');
    // Two nodes exchange their pages.
    if (last == 1) {
        unsigned long both = 3, swapped = 2;
        CHECK(syscall(SYS_migrate_pages, 0, 64, &swapped, &first_set) >= 0 && node_of(at) == 0);
        CHECK(syscall(SYS_migrate_pages, 0, 64, &both, &both) == 0 && node_of(at) == 0);
    }
    FAILS(syscall(SYS_migrate_pages, 0, 64, &first_set, &none), EINVAL);
    CHECK(!munmap(at, 2 * PAGE));
}

static void numa_maps_counts_the_pages_of_each_node(void) {
    char *at = map(8), address[40], expected[200];
    memset(at, 'f', 2 * PAGE);
    CHECK(!bind_to(at + 2 * PAGE, 4 * PAGE, BIND, last_set, 0));
    memset(at + 2 * PAGE, 'g', 3 * PAGE);
    sprintf(address, "%08lx ", (unsigned long)at);
    char *row = strstr(text_of("/proc/self/numa_maps"), address);
    CHECK(row && !strncmp(row + strlen(address), "default ", 8));
    *strchr(row, '\n') = 0;
    CHECK(strstr(row, " anon=2 dirty=2 ") && strstr(row, " N0=2 ") && strstr(row, "kernelpagesize_kB=4"));
    sprintf(address, "%08lx ", (unsigned long)at + 2 * PAGE);
    row = strstr(text_of("/proc/self/numa_maps"), address);
    CHECK(row);
    *strchr(row, '\n') = 0;
    sprintf(expected, "%sbind:%d anon=3 dirty=3 ", address, last);
    CHECK(!strncmp(row, expected, strlen(expected)));
    sprintf(expected, " N%d=3 ", last);
    CHECK(strstr(row, expected) && strstr(text_of("/proc/self/numa_maps"), " stack "));
    if (last == 1) {
        CHECK(!bind_to(at, 2 * PAGE, INTERLEAVE, all, 0));
        sprintf(expected, "%08lx interleave:0-1 ", (unsigned long)at);
        CHECK(strstr(text_of("/proc/self/numa_maps"), expected));
    }
    CHECK(!munmap(at, 8 * PAGE));
}

static void pool_has_huge_pages_on_a_node(void) {
    char path[120];
    sprintf(path, "/sys/devices/system/node/node%d/hugepages/hugepages-2048kB/nr_hugepages", last);
    int file = open(path, O_WRONLY);
    CHECK(file >= 0 && write(file, "2", 1) == 1);
    CHECK(atoi(text_of(path)) == 2);
    enum { HUGE = 2 << 20 };
    char *at = mmap(0, HUGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB, -1, 0);
    CHECK(at != MAP_FAILED);
    at[0] = 1;
    CHECK(node_of(at) == last);
    CHECK(!munmap(at, HUGE) && write(file, "0", 1) == 1 && !close(file));
}

// Writes the number of huge pages of a node.
static void resize_pool(int node, const char *pages) {
    char path[120];
    sprintf(path, "/sys/devices/system/node/node%d/hugepages/hugepages-2048kB/nr_hugepages", node);
    int file = open(path, O_WRONLY);
    CHECK(file >= 0 && write(file, pages, 1) == 1 && !close(file) && atoi(text_of(path)) == atoi(pages));
}

// Also for shared mappings. The place of a huge page counts in huge pages.
static void pages_of_pools_follow_the_policy(void) {
    enum { HUGE = 2 << 20 };
    for (int node = 0; node <= last; node++) resize_pool(node, "4");
    int kinds[] = {MAP_PRIVATE, MAP_SHARED};
    for (int n = 0; n < 2; n++) {
        int flags = kinds[n] | MAP_ANONYMOUS | MAP_HUGETLB;
        char *at = mmap(0, 4 * HUGE, PROT_READ | PROT_WRITE, flags, -1, 0);
        CHECK(at != MAP_FAILED && !bind_to(at, HUGE, BIND, last_set, 0));
        CHECK(!bind_to(at + HUGE, HUGE, PREFERRED, last_set, 0));
        CHECK(!bind_to(at + 2 * HUGE, 2 * HUGE, INTERLEAVE, all, 0));
        for (int page = 0; page < 4; page++) at[(long)page * HUGE] = 1;
        CHECK(node_of(at) == last && node_of(at + HUGE) == last);
        CHECK(node_of(at + 2 * HUGE) + node_of(at + 3 * HUGE) == last);
        CHECK(!munmap(at, 4 * HUGE));
    }
    for (int node = 0; node <= last; node++) resize_pool(node, "0");
}

static void shared_memory_follows_the_policy(void) {
    char *at = mmap(0, 4 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(at != MAP_FAILED && !bind_to(at, 2 * PAGE, BIND, last_set, 0));
    CHECK(!bind_to(at + 2 * PAGE, 2 * PAGE, INTERLEAVE, all, 0));
    for (int page = 0; page < 4; page++) at[page * PAGE] = 1;
    CHECK(node_of(at) == last && node_of(at + PAGE) == last);
    CHECK(node_of(at + 2 * PAGE) + node_of(at + 3 * PAGE) == last);
    CHECK(!munmap(at, 4 * PAGE));
}

static int most_huge_pages(void) {
    const char *path = "/proc/sys/vm/nr_hugepages";
    int file = open(path, O_WRONLY);
    CHECK(file >= 0 && write(file, "9999", 4) == 4);
    int most = atoi(text_of(path));
    CHECK(write(file, "0", 1) == 1 && !close(file));
    return most;
}

// Page tables cannot move. They lie together, so the memory around them can become huge pages.
static void page_tables_do_not_break_up_the_memory_of_pages(void) {
    enum { SPANS = 180, PAGES = 256, SPAN = 2 << 20 };
    int before = most_huge_pages();
    long bytes = (long)SPANS * SPAN;
    char *at = mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(at != MAP_FAILED && !madvise(at, bytes, MADV_NOHUGEPAGE));
    for (int span = 0; span < SPANS; span++) {
        for (int page = 0; page < PAGES; page++) at[(long)span * SPAN + page * PAGE] = 1;
    }
    // The pages become free, and the tables stay.
    CHECK(!madvise(at, bytes, MADV_DONTNEED));
    int after = most_huge_pages();
    printf("huge pages: %d before, %d with page tables\n", before, after);
    CHECK(before > 40 && after >= before - 10);
    CHECK(!munmap(at, bytes));
}

// A strict policy whose nodes are full ends the process, and only it.
static void full_node_ends_the_process_that_is_bound_to_it(void) {
    long bytes = 1l << 30;
    char *mine = map(1);
    pid_t child = fork();
    if (child == 0) {
        char *at = mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        CHECK(at != MAP_FAILED && !bind_to(at, bytes, BIND, last_set, 0));
        for (long byte = 0; byte < bytes; byte += PAGE) at[byte] = 1;
        _exit(1);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    mine[0] = 1;
    CHECK(node_of(mine) == 0 && !munmap(mine, PAGE));
}

int main(int argc, char **argv) {
    int privileged = argc == 1 || strcmp(argv[1], "unprivileged");
    const char *online = "/sys/devices/system/node/online";
    // A kernel without support of several nodes has no such file.
    int has_folders = !access(online, R_OK);
    char *range = has_folders ? strchr(text_of(online), '-') : 0;
    last = range ? atoi(range + 1) : 0;
    last_set = 1ul << last;
    all = (2ul << last) - 1;
    if (has_folders) PART(folders_describe_the_nodes);
    PART(policy_of_a_mapping_chooses_the_node);
    PART(interleaved_pages_alternate);
    PART(shared_memory_follows_the_policy);
    PART(policy_of_a_thread_chooses_the_node);
    PART(freed_pages_stay_on_their_node);
    PART(move_pages_moves_and_reports);
    PART(mbind_moves_pages);
    PART(numa_maps_counts_the_pages_of_each_node);
    if (privileged) {
        PART(shared_page_moves_only_if_asked_for);
        PART(migrate_pages_moves_a_whole_process);
        PART(pool_has_huge_pages_on_a_node);
        PART(pages_of_pools_follow_the_policy);
        PART(page_tables_do_not_break_up_the_memory_of_pages);
        PART(full_node_ends_the_process_that_is_bound_to_it);
    }
    return 0;
}
