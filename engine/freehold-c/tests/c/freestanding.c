/* A program without a C library. The functions below are those that a kernel on bare metal must have. */
#include <freehold.h>

void *memcpy(void *to, const void *from, size_t count) {
    for (size_t i = 0; i < count; i++)
        ((volatile unsigned char *)to)[i] = ((const unsigned char *)from)[i];
    return to;
}

void *memmove(void *to, const void *from, size_t count) {
    if ((uintptr_t)to <= (uintptr_t)from)
        return memcpy(to, from, count);
    while (count-- > 0)
        ((volatile unsigned char *)to)[count] = ((const unsigned char *)from)[count];
    return to;
}

void *memset(void *to, int byte, size_t count) {
    for (size_t i = 0; i < count; i++)
        ((volatile unsigned char *)to)[i] = (unsigned char)byte;
    return to;
}

int memcmp(const void *a, const void *b, size_t count) {
    for (size_t i = 0; i < count; i++) {
        int difference = ((const unsigned char *)a)[i] - ((const unsigned char *)b)[i];
        if (difference != 0)
            return difference;
    }
    return 0;
}

int bcmp(const void *a, const void *b, size_t count) {
    return memcmp(a, b, count);
}

size_t strlen(const char *text) {
    const char *end = text;
    while (*end)
        end++;
    return (size_t)(end - text);
}

static long system_call(long number, long a, long b, long c) {
    long result;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(number), "D"(a), "S"(b), "d"(c)
                     : "rcx", "r11", "memory");
    return result;
}

static _Noreturn void leave(const char *message, int status) {
    system_call(1, 1, (long)message, (long)strlen(message));
    for (;;)
        system_call(60, status, 0, 0);
}

/* The heap never reuses memory. */
static _Alignas(4096) unsigned char heap[1 << 22];
static size_t heap_used;

static void *heap_alloc(size_t size, size_t align) {
    size_t start = (heap_used + align - 1) & ~(align - 1);
    if (start + size > sizeof heap)
        return NULL;
    heap_used = start + size;
    return heap + start;
}

static void heap_free(void *block, size_t size, size_t align) {
    (void)block, (void)size, (void)align;
}

static void end_with_message(const char *message) {
    leave(message, 1);
}

/* There is one task, so no wait would end. */
static void wait_for(const uint32_t *word, uint32_t expected) {
    if (*(const volatile uint32_t *)word == expected)
        leave("a wait without an end\n", 1);
}

static void wake(const uint32_t *word, bool all) {
    (void)word, (void)all;
}

static uint32_t cpu_enter(void) {
    return 0;
}

static void cpu_exit(void) {
}

enum { FRAMES = 64 };
static _Alignas(4096) unsigned char memory[FRAMES][4096];
static _Alignas(64) unsigned char frame_records[FRAMES][FH_FRAME_RECORD_SIZE];
static _Alignas(64) unsigned char table_records[FRAMES][FH_TABLE_RECORD_SIZE];
static uint64_t free_list[FRAMES], free_length;

static size_t alloc_frames(const struct fh_frame_request *request, uint64_t *frames, size_t count) {
    size_t taken = 0;
    while (request->order == 0 && taken < count && free_length > 0)
        frames[taken++] = free_list[--free_length];
    return taken;
}

static void free_frames(const uint64_t *frames, size_t count) {
    for (size_t i = 0; i < count; i++)
        free_list[free_length++] = frames[i];
}

static void flush(void *space, const struct fh_flush *request) {
    (void)space, (void)request;
}

static void require(bool holds) {
    if (!holds)
        leave("failed\n", 1);
}

static void run(void) {
    struct fh_platform_ops ops = {
        .size = sizeof ops, .alloc = heap_alloc, .free = heap_free, .panic = end_with_message,
        .wait = wait_for, .wake = wake, .cpu_enter = cpu_enter, .cpu_exit = cpu_exit,
        .alloc_frames = alloc_frames, .free_frames = free_frames, .flush = flush,
    };
    struct fh_machine machine = {
        .size = sizeof machine, .cpus = 1, .frames = FRAMES, .direct_map = memory,
        .frame_records = frame_records, .table_records = table_records,
    };
    for (uint64_t frame = FRAMES - 1; frame > 0; frame--)
        free_list[free_length++] = frame;
    struct fh_engine *engine;
    struct fh_space *space;
    struct fh_signal signal;
    uint64_t frame;
    require(fh_init(&ops, &machine) == 0);
    require(fh_engine_new(&engine) == 0 && fh_space_new(engine, &space) == 0);
    int64_t at = fh_mmap(space, 0, 4096, 3, 0x22, NULL, 0);
    require(at > 0 && fh_fault(space, (uint64_t)at, FH_ACCESS_WRITE, &signal) == 0);
    require(fh_walk(fh_space_root(space), (uint64_t)at, FH_ACCESS_WRITE, &frame) == 0);
    fh_space_put(space);
    fh_engine_put(engine);
    require(free_length == FRAMES - 1);
    leave("0 frames leaked\n", 0);
}

/* The stack of a new program is aligned; that of a called function is off by 8. */
__asm__(".globl _start\n_start:\n\tcall start\n");
void start(void);

void start(void) {
    run();
}
