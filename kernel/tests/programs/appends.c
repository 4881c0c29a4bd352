// Writers of one file exclude each other, as do threads that share a descriptor's position. Checks the two
// locks of `kernel/src/files/open.rs`, writes from a mapping of the same file, and RLIMIT_FSIZE. Several
// processes or threads race in each part, so the test uses two CPUs. `check.h` has CHECK and PART.
#define _GNU_SOURCE
#include "check.h"
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>

enum { WRITERS = 4, LINES = 2000, WIDTH = 16 };

static int fresh(int flags) {
    unlink("/tmp/lines");
    int file = open("/tmp/lines", O_CREAT | O_EXCL | O_RDWR | flags, 0600);
    CHECK(file >= 0);
    return file;
}

static void write_lines(int file, int writer) {
    for (int n = 0; n < LINES; n++) {
        char line[WIDTH + 1];
        snprintf(line, sizeof line, "%4d %10d\n", writer, n);
        CHECK(write(file, line, WIDTH) == WIDTH);
    }
}

// Checks that every line of every writer is whole and in the writer's order.
static void check_lines(int file) {
    int next[WRITERS] = {0};
    char line[WIDTH + 1] = "";
    for (int n = 0; n < WRITERS * LINES; n++) {
        int writer, number;
        CHECK(pread(file, line, WIDTH, n * WIDTH) == WIDTH);
        CHECK(line[WIDTH - 1] == '\n' && sscanf(line, "%d %d", &writer, &number) == 2);
        CHECK(writer >= 0 && writer < WRITERS && next[writer]++ == number);
    }
    CHECK(pread(file, line, 1, WRITERS * LINES * WIDTH) == 0);
}

static void wait_for_all(void) {
    int status;
    while (wait(&status) > 0)
        CHECK(status == 0);
}

// Each process opens the file itself.
static void appending_processes_keep_lines_whole(void) {
    int file = fresh(0);
    for (int writer = 0; writer < WRITERS; writer++)
        if (fork() == 0) {
            int own = open("/tmp/lines", O_WRONLY | O_APPEND);
            CHECK(own >= 0);
            write_lines(own, writer);
            _exit(0);
        }
    wait_for_all();
    check_lines(file);
    close(file);
}

// The descriptor is inherited, so the processes share its position.
static void processes_share_an_inherited_position(void) {
    int file = fresh(0);
    for (int writer = 0; writer < WRITERS; writer++)
        if (fork() == 0) {
            write_lines(file, writer);
            _exit(0);
        }
    wait_for_all();
    check_lines(file);
    close(file);
}

static int shared;
static unsigned char taken[WRITERS * LINES];

static void *take_numbers(void *unused) {
    int number;
    while (read(shared, &number, sizeof number) == sizeof number)
        __atomic_fetch_add(&taken[number], 1, __ATOMIC_RELAXED);
    return unused;
}

static void concurrent_reads_get_distinct_data(void) {
    pthread_t threads[WRITERS];
    shared = fresh(0);
    for (int n = 0; n < WRITERS * LINES; n++)
        CHECK(write(shared, &n, sizeof n) == sizeof n);
    CHECK(lseek(shared, 0, SEEK_SET) == 0);
    for (int n = 0; n < WRITERS; n++)
        CHECK(pthread_create(&threads[n], NULL, take_numbers, NULL) == 0);
    for (int n = 0; n < WRITERS; n++)
        CHECK(pthread_join(threads[n], NULL) == 0);
    for (int n = 0; n < WRITERS * LINES; n++)
        CHECK(taken[n] == 1);
    close(shared);
}

// The source of the write is a mapping of the same file, whose pages fault during the write.
static void file_can_be_written_from_its_own_mapping(void) {
    enum { SIZE = 64 << 12 };
    int file = fresh(0);
    CHECK(ftruncate(file, SIZE) == 0 && pwrite(file, "begin", 5, 0) == 5);
    char *map = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    CHECK(map != MAP_FAILED);
    CHECK(pwrite(file, map, SIZE, SIZE) == SIZE && pwrite(file, map, SIZE, 1) == SIZE);
    CHECK(!memcmp(map, "bbegi", 5) && lseek(file, 0, SEEK_END) == 2 * SIZE);
    CHECK(pread(file, map, SIZE, SIZE) == SIZE && !memcmp(map, "\0egin", 5));
    CHECK(munmap(map, SIZE) == 0);
    close(file);
}

static void writes_stop_at_the_file_size_limit(void) {
    int file = fresh(0);
    if (fork() == 0) {
        struct rlimit limit = {100, 100};
        CHECK(signal(SIGXFSZ, SIG_IGN) != SIG_ERR && setrlimit(RLIMIT_FSIZE, &limit) == 0);
        char text[80] = "";
        CHECK(write(file, text, 80) == 80 && write(file, text, 80) == 20);
        CHECK(write(file, text, 80) == -1 && errno == EFBIG && write(file, text, 0) == 0);
        CHECK(ftruncate(file, 101) == -1 && errno == EFBIG && ftruncate(file, 100) == 0);
        CHECK(signal(SIGXFSZ, SIG_DFL) != SIG_ERR);
        write(file, text, 1);
        _exit(0);
    }
    int status;
    CHECK(wait(&status) > 0 && WIFSIGNALED(status) && WTERMSIG(status) == SIGXFSZ);
    close(file);
}

int main(void) {
    PART(appending_processes_keep_lines_whole);
    PART(processes_share_an_inherited_position);
    PART(concurrent_reads_get_distinct_data);
    PART(file_can_be_written_from_its_own_mapping);
    PART(writes_stop_at_the_file_size_limit);
    return 0;
}
