/* Lets allocations of the heap fail, from each of them on. A call then returns -ENOMEM, and nothing leaks.
 * The machine is that of examples/c, with an allocator that fails. */
#define _DEFAULT_SOURCE 1 /* for pthread_rwlock_t */
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>

/* The number of allocations that succeed before all others fail; negative if none fails. */
static long left = -1;
static bool failed;

static bool fails(void) {
    if (left == 0)
        return failed = true;
    left -= left > 0;
    return false;
}

static void *failing_malloc(size_t size) {
    return fails() ? NULL : malloc(size);
}

static void *failing_aligned_alloc(size_t align, size_t size) {
    return fails() ? NULL : aligned_alloc(align, size);
}

#define malloc failing_malloc
#define aligned_alloc failing_aligned_alloc
#include "board.c"

#include <errno.h>

static int released;

static int read_page(void *data, uint64_t index, void *page) {
    (void)data, (void)index;
    memset(page, 7, BOARD_PAGE);
    return 0;
}

static void release(void *data) {
    (void)data;
    released++;
}

/* The objects of a run, all of which may be NULL. */
struct objects {
    struct fh_engine *engine;
    struct fh_space *space, *child;
    struct fh_file *file;
};

static const struct fh_pager_ops pager = {.size = sizeof pager, .read_page = read_page, .release = release};

/* Makes calls until one fails. Returns its result. */
static int64_t make_calls(struct objects *o) {
    struct fh_signal signal;
    int64_t result, at;
    if ((result = fh_engine_new(&o->engine)) < 0 || (result = fh_space_new(o->engine, &o->space)) < 0)
        return result;
    if ((result = fh_file_new(o->engine, &pager, NULL, 9 * BOARD_PAGE, "/file", FH_FILE_READ, &o->file)) < 0)
        return result;
    if ((result = at = fh_mmap(o->space, 0, 9 * BOARD_PAGE, 3, 2, o->file, 0)) < 0)
        return result;
    if ((result = fh_fault(o->space, at, FH_ACCESS_WRITE, &signal)) < 0)
        return result;
    if ((result = fh_mprotect(o->space, at + BOARD_PAGE, BOARD_PAGE, 1)) < 0)
        return result;
    if ((result = fh_fork(o->space, &o->child)) < 0)
        return result;
    return fh_munmap(o->space, at + 5 * BOARD_PAGE, BOARD_PAGE);
}

int main(void) {
    int failures = 0;
    board_boot(256);
    for (;;) {
        struct objects o = {0};
        left = failures;
        failed = false;
        released = 0;
        int64_t result = make_calls(&o);
        left = -1;
        REQUIRE(failed ? result == -ENOMEM : result == 0);
        bool opened = o.file;
        fh_space_put(o.space);
        fh_space_put(o.child);
        fh_file_put(o.file);
        fh_engine_put(o.engine);
        fh_rcu_barrier();
        REQUIRE(released == opened && heap == 0 && free_length == frame_count - 1);
        if (!failed)
            break;
        failures++;
    }
    REQUIRE(failures > 10);
    board_check();
    return 0;
}
