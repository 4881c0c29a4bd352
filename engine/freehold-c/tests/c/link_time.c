/* The machine of examples/c, whose mandatory functions are external functions. */
#define FH_LINK_TIME
#include "board.c"

#include <errno.h>

static int calls;

void *fh_platform_alloc(size_t size, size_t align) {
    calls++;
    return heap_alloc(size, align);
}

void fh_platform_free(void *block, size_t size, size_t align) {
    heap_free(block, size, align);
}

void fh_platform_panic(const char *message) {
    end_with_message(message);
}

void fh_platform_wait(const uint32_t *word, uint32_t expected) {
    wait_for(word, expected);
}

void fh_platform_wake(const uint32_t *word, bool all) {
    wake(word, all);
}

uint32_t fh_platform_cpu_enter(void) {
    return cpu_enter();
}

void fh_platform_cpu_exit(void) {
    cpu_exit();
}

size_t fh_platform_alloc_frames(const struct fh_frame_request *request, uint64_t *frames, size_t count) {
    return alloc_frames(request, frames, count);
}

void fh_platform_free_frames(const uint64_t *frames, size_t count) {
    free_frames(frames, count);
}

void fh_platform_flush(void *space, const struct fh_flush *request) {
    flush(space, request);
}

static uint64_t now_ns(void) {
    calls++;
    return 0;
}

int main(void) {
    struct fh_engine *engine;
    struct fh_space *space;
    struct fh_machine machine = {.size = sizeof machine};
    /* A table of optional functions, and no machine. */
    struct fh_platform_ops optional = {.size = sizeof optional, .now_ns = now_ns};
    REQUIRE(fh_init(&optional, &machine) == -EINVAL);
    board_boot(256);
    REQUIRE(fh_engine_new(&engine) == 0 && fh_space_new(engine, &space) == 0);
    REQUIRE(fh_mmap(space, 0, BOARD_PAGE, 3, 0x22, NULL, 0) > 0);
    fh_space_put(space);
    fh_engine_put(engine);
    REQUIRE(calls > 0);
    board_check();
    return 0;
}
