/* Checks the functions of board.c with the conformance suite. */
#define FH_CONFORMANCE
#include "board.h"

#include <freehold.h>
#include <pthread.h>
#include <stdio.h>

struct task {
    void (*function)(void *);
    void *data;
};

static void *run_on_cpu_1(void *argument) {
    struct task *task = argument;
    board_act_as_cpu(1);
    task->function(task->data);
    return NULL;
}

static void run_two(void (*first)(void *), void *first_data, void (*second)(void *), void *second_data) {
    pthread_t thread;
    struct task task = {second, second_data};
    REQUIRE(pthread_create(&thread, NULL, run_on_cpu_1, &task) == 0);
    first(first_data);
    REQUIRE(pthread_join(thread, NULL) == 0);
}

/* Loads a word as a program does: walks the tables, within one instruction. */
static bool load(void *space, uint64_t root, uint64_t address, uint64_t *value) {
    (void)space;
    uint64_t frame;
    board_begin_instruction();
    bool found = fh_walk(root, address, 0, &frame) == 0;
    if (found)
        *value = *board_word(frame, address % BOARD_PAGE);
    board_end_instruction();
    return found;
}

static void report(const char *check, uint32_t outcome, const char *text) {
    if (outcome == FH_CHECK_FAILED)
        printf("FAILED   %s: %s\n", check, text);
    if (outcome == FH_CHECK_NOT_RUN)
        printf("not run  %s\n", check);
}

int main(void) {
    struct fh_check_ops ops = {
        .size = sizeof ops,
        .report = report,
        .run_two = run_two,
        .load = load,
        .may_use_all_memory = true,
    };
    board_boot(4096);
    int failures = fh_check_platform(&ops);
    printf("%d checks have failed\n", failures);
    board_check();
    return failures != 0;
}
