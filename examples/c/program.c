/* A kernel with two processes, in an ordinary process: anonymous memory, fork, a file, and two threads. */
#define _DEFAULT_SOURCE 1 /* for MAP_ANONYMOUS */
#include "board.h"

#include <errno.h>
#include <freehold.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#define PAGE BOARD_PAGE

/* Acts as the CPU: runs one instruction that loads or stores a word. The CPU walks the tables, raises a page
 * fault if it finds no translation, and repeats the instruction. Returns 0, or the number of the signal for
 * the program. */
static int run(struct fh_space *space, uint64_t address, uint32_t access, uint64_t *value) {
    for (;;) {
        uint64_t frame;
        board_begin_instruction();
        int walked = fh_walk(fh_space_root(space), address, access, &frame);
        if (walked == 0) {
            _Atomic uint64_t *word = board_word(frame, address % PAGE);
            if (access & FH_ACCESS_WRITE)
                *word = *value;
            else
                *value = *word;
        }
        board_end_instruction();
        if (walked == 0)
            return 0;
        struct fh_signal signal;
        int fault = fh_fault(space, address, access, &signal);
        if (fault == -EFAULT)
            return signal.number;
        REQUIRE(fault >= 0);
        fh_tick();
    }
}

static uint64_t load(struct fh_space *space, uint64_t address) {
    uint64_t value;
    REQUIRE(run(space, address, 0, &value) == 0);
    return value;
}

static void store(struct fh_space *space, uint64_t address, uint64_t value) {
    REQUIRE(run(space, address, FH_ACCESS_WRITE, &value) == 0);
}

static uint64_t map(struct fh_space *space, uint64_t pages) {
    int flags = MAP_PRIVATE | MAP_ANONYMOUS;
    int64_t at = fh_mmap(space, 0, pages * PAGE, PROT_READ | PROT_WRITE, flags, NULL, 0);
    REQUIRE(at > 0);
    return (uint64_t)at;
}

static void anonymous_memory(struct fh_space *space) {
    uint64_t value, at = map(space, 4);
    printf("mmap: 4 pages are mapped, %" PRIu64 " are resident\n", fh_resident(space));
    store(space, at, 1);
    store(space, at + PAGE, 2);
    printf("two stores fault: %" PRIu64 " pages are resident\n", fh_resident(space));
    printf("munmap of half a page: error %d\n", fh_munmap(space, at + PAGE / 2, PAGE));

    struct fh_space *child;
    REQUIRE(fh_fork(space, &child) == 0);
    store(child, at, 10);
    printf("fork, and a store of the child: the parent loads %" PRIu64, load(space, at));
    printf(" and %" PRIu64 ", the child ", load(space, at + PAGE));
    printf("%" PRIu64 " and %" PRIu64 "\n", load(child, at), load(child, at + PAGE));
    REQUIRE(fh_munmap(space, at, 4 * PAGE) == 0);
    int signal = run(space, at, 0, &value);
    printf("munmap: a load of the parent raises signal %d", signal);
    printf(", the child still loads %" PRIu64 "\n", load(child, at));
    fh_space_put(child);
}

/* A file system with one file. */
struct disk {
    unsigned char pages[3][PAGE];
    int reads, writes;
};

static int read_page(void *data, uint64_t index, void *page) {
    struct disk *disk = data;
    disk->reads++;
    memcpy(page, disk->pages[index], PAGE);
    return 0;
}

static int write_page(void *data, uint64_t index, const void *page) {
    struct disk *disk = data;
    disk->writes++;
    memcpy(disk->pages[index], page, PAGE);
    return 0;
}

static void release(void *data) {
    struct disk *disk = data;
    printf("the file ends after %d reads and %d writes of the disk\n", disk->reads, disk->writes);
}

static void file(struct fh_engine *engine, struct fh_space *space) {
    static const struct fh_pager_ops ops = {
        .size = sizeof ops,
        .read_page = read_page,
        .write_page = write_page,
        .release = release,
    };
    static struct disk disk;
    memset(disk.pages, 'a', sizeof disk.pages);
    struct fh_file *notes;
    uint32_t access = FH_FILE_READ | FH_FILE_WRITE;
    REQUIRE(fh_file_new(engine, &ops, &disk, sizeof disk.pages, "/notes", access, &notes) == 0);
    int64_t mapped = fh_mmap(space, 0, sizeof disk.pages, PROT_READ | PROT_WRITE, MAP_SHARED, notes, 0);
    REQUIRE(mapped > 0);
    uint64_t value, at = (uint64_t)mapped;
    printf("file: a load returns '%c'\n", (char)load(space, at + PAGE));
    store(space, at + PAGE, 'b');
    char byte;
    REQUIRE(fh_file_read(notes, PAGE, &byte, 1) == 1);
    printf("a store of 'b': read returns '%c', the disk has '%c'", byte, disk.pages[1][0]);
    REQUIRE(fh_msync(space, at, sizeof disk.pages, MS_SYNC) == 0);
    printf(", and '%c' after msync\n", disk.pages[1][0]);
    REQUIRE(fh_file_truncate(notes, PAGE) == 0);
    printf("truncate: a load beyond the end raises signal %d\n", run(space, at + PAGE, 0, &value));
    fh_file_put(notes);
    REQUIRE(fh_munmap(space, at, sizeof disk.pages) == 0);
}

/* A thread of the program, which runs on a CPU of its own. */
struct thread {
    struct fh_space *space;
    uint32_t cpu;
    /* The part of a mapping that this thread unmaps. */
    uint64_t at, pages;
};

/* Unmaps one page after the other. In between, uses memory of its own in the same space. */
static void *unmap(void *argument) {
    struct thread *thread = argument;
    board_act_as_cpu(thread->cpu);
    for (uint64_t page = 0; page < thread->pages; page++) {
        REQUIRE(fh_munmap(thread->space, thread->at + page * PAGE, PAGE) == 0);
        uint64_t own = map(thread->space, 4);
        store(thread->space, own, thread->cpu);
        store(thread->space, own + 3 * PAGE, page);
        REQUIRE(load(thread->space, own) == thread->cpu && load(thread->space, own + 3 * PAGE) == page);
        REQUIRE(fh_munmap(thread->space, own, 4 * PAGE) == 0);
    }
    return NULL;
}

static void threads(struct fh_space *space) {
    enum { HALF = 64 };
    uint64_t at = map(space, 2 * HALF);
    for (uint64_t page = 0; page < 2 * HALF; page++)
        store(space, at + page * PAGE, page);
    printf("threads: %" PRIu64 " pages are resident", fh_resident(space));
    struct thread both[2] = {
        {.space = space, .cpu = 1, .at = at, .pages = HALF},
        {.space = space, .cpu = 2, .at = at + HALF * PAGE, .pages = HALF},
    };
    pthread_t tasks[2];
    for (int i = 0; i < 2; i++)
        REQUIRE(pthread_create(&tasks[i], NULL, unmap, &both[i]) == 0);
    for (int i = 0; i < 2; i++)
        REQUIRE(pthread_join(tasks[i], NULL) == 0);
    printf(", and %" PRIu64 " after two threads have unmapped them\n", fh_resident(space));
    uint64_t value;
    for (uint64_t page = 0; page < 2 * HALF; page++)
        REQUIRE(run(space, at + page * PAGE, 0, &value) != 0);
}

int main(void) {
    struct fh_engine *engine;
    struct fh_space *space;
    board_boot(1024);
    REQUIRE(fh_engine_new(&engine) == 0);
    REQUIRE(fh_space_new(engine, &space) == 0);
    anonymous_memory(space);
    file(engine, space);
    threads(space);
    fh_space_put(space);
    fh_engine_put(engine);
    board_check();
    return 0;
}
