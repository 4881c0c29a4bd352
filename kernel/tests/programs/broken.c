// A program with errors for valgrind to find: uses of memory that is uninitialised, out of bounds, freed or
// lost. Its threads call a function at which gdb stops (`break.gdb`). The tests `valgrind`, `gdb` and
// `strace` compare the output of these tools with the same run on Linux. The program makes the errors only if
// it has an argument. `break.gdb` uses the names `stop_here` and `changed`.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

int changed;

__attribute__((noinline)) int stop_here(int thread, int value) {
    changed++;
    return thread * 10 + value;
}

static void *call(void *arg) {
    return (void *)(long)stop_here((int)(long)arg, 7);
}

static volatile int sink;

__attribute__((noinline)) static void errors(void) {
    int *volatile there = malloc(10 * sizeof *there);
    if (there[3] == 12345) sink = 1;
    there[10] = 1;
    free(there);
    sink = there[2];
    there = malloc(100);
    there = NULL;
}

int main(int argc, char **argv) {
    (void)argv;
    for (long n = 1; n <= 3; n++) {
        pthread_t thread;
        void *result;
        if (pthread_create(&thread, NULL, call, (void *)n) || pthread_join(thread, &result)) return 1;
        printf("thread %ld: %ld\n", n, (long)result);
    }
    if (argc > 1) errors();
    return 0;
}
