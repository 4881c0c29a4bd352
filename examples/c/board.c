#define _DEFAULT_SOURCE 1 /* for pthread_rwlock_t */
#include "board.h"

#include <freehold.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CPUS 4

/* Frame 0 is never allocated. The lock guards the list and its length. */
static unsigned char *memory;
static uint64_t *free_list, free_length, frame_count;
static pthread_mutex_t free_lock = PTHREAD_MUTEX_INITIALIZER;

/* The number of bytes in use by the library. */
static _Atomic size_t heap;

static void *heap_alloc(size_t size, size_t align) {
    size_t whole = (size + align - 1) / align * align;
    void *block = align <= _Alignof(max_align_t) ? malloc(size) : aligned_alloc(align, whole);
    if (block)
        heap += size;
    return block;
}

static void heap_free(void *block, size_t size, size_t align) {
    (void)align;
    heap -= size;
    free(block);
}

static void end_with_message(const char *message) {
    fprintf(stderr, "panic: %s\n", message);
    abort();
}

/* One lock and one condition for all words that tasks wait for. */
static pthread_mutex_t sleep_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t sleep_condition = PTHREAD_COND_INITIALIZER;

static void wait_for(const uint32_t *word, uint32_t expected) {
    pthread_mutex_lock(&sleep_lock);
    /* A task that changes the word wakes afterwards, and needs the lock for that. So no wake-up is lost. */
    if (__atomic_load_n(word, __ATOMIC_SEQ_CST) == expected)
        pthread_cond_wait(&sleep_condition, &sleep_lock);
    pthread_mutex_unlock(&sleep_lock);
}

static void wake(const uint32_t *word, bool all) {
    (void)word, (void)all;
    pthread_mutex_lock(&sleep_lock);
    pthread_cond_broadcast(&sleep_condition);
    pthread_mutex_unlock(&sleep_lock);
}

/* A thread is a CPU, so there is no preemption to turn off. */
static _Thread_local uint32_t this_cpu;

void board_act_as_cpu(uint32_t cpu) {
    this_cpu = cpu;
}

static uint32_t cpu_enter(void) {
    return this_cpu;
}

static void cpu_exit(void) {
}

static size_t alloc_frames(const struct fh_frame_request *request, uint64_t *frames, size_t count) {
    size_t taken = 0;
    /* There are no blocks of several frames, so the library uses no huge pages. */
    if (request->order != 0)
        return 0;
    pthread_mutex_lock(&free_lock);
    while (taken < count && free_length > 0)
        frames[taken++] = free_list[--free_length];
    pthread_mutex_unlock(&free_lock);
    return taken;
}

static void free_frames(const uint64_t *frames, size_t count) {
    pthread_mutex_lock(&free_lock);
    for (size_t i = 0; i < count; i++)
        free_list[free_length++] = frames[i];
    pthread_mutex_unlock(&free_lock);
}

/* Held for reading during an instruction. */
static pthread_rwlock_t instruction = PTHREAD_RWLOCK_INITIALIZER;

void board_begin_instruction(void) {
    pthread_rwlock_rdlock(&instruction);
}

void board_end_instruction(void) {
    pthread_rwlock_unlock(&instruction);
}

/* CPUs keep no translation after an instruction, so a flush only waits for the instructions under way. */
static void flush(void *space, const struct fh_flush *request) {
    (void)space, (void)request;
    pthread_rwlock_wrlock(&instruction);
    pthread_rwlock_unlock(&instruction);
}

_Atomic uint64_t *board_word(uint64_t frame, uint64_t offset) {
    return (_Atomic uint64_t *)(memory + frame * BOARD_PAGE + offset);
}

static void *zeroes(uint64_t count, size_t size, size_t align) {
    void *array = aligned_alloc(align, (count * size + align - 1) / align * align);
    REQUIRE(array);
    return memset(array, 0, count * size);
}

void board_boot(uint64_t frames) {
    static const struct fh_platform_ops ops = {
        .size = sizeof ops,
        .alloc = heap_alloc,
        .free = heap_free,
        .panic = end_with_message,
        .wait = wait_for,
        .wake = wake,
        .cpu_enter = cpu_enter,
        .cpu_exit = cpu_exit,
        .alloc_frames = alloc_frames,
        .free_frames = free_frames,
        .flush = flush,
    };
    memory = zeroes(frames, BOARD_PAGE, BOARD_PAGE);
    free_list = zeroes(frames, sizeof *free_list, sizeof *free_list);
    frame_count = frames;
    for (uint64_t frame = frames - 1; frame > 0; frame--)
        free_list[free_length++] = frame;
    struct fh_machine machine = {
        .size = sizeof machine,
        .cpus = CPUS,
        .first_frame = 0,
        .frames = frames,
        .direct_map = memory,
        .frame_records = zeroes(frames, FH_FRAME_RECORD_SIZE, 8),
        .table_records = zeroes(frames, FH_TABLE_RECORD_SIZE, 64),
    };
    REQUIRE(fh_init(&ops, &machine) == 0);
}

void board_check(void) {
    uint64_t leaked = frame_count - 1 - free_length;
    printf("%" PRIu64 " frames and %zu bytes leaked\n", leaked, (size_t)heap);
    if (leaked != 0 || heap != 0)
        exit(1);
}

void board_require(bool holds, const char *condition) {
    if (!holds)
        end_with_message(condition);
}
