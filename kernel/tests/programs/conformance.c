// The conformance suite of freehold-kit on the kernel's platform: lends two threads to the suite, and shows its
// report (kernel/src/proc/conformance.rs). Linux has no such file, so the program runs on this kernel only.
#define _GNU_SOURCE
#include "check.h"
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>

static const char FILE_NAME[] = "/proc/sys/freehold/conformance";

static void *lend(void *arg) {
    int fd = open(FILE_NAME, O_WRONLY);
    CHECK(fd >= 0);
    // Returns only if a signal ends the thread.
    (void)!write(fd, "lend", 4);
    return arg;
}

int main(void) {
    static char report[1 << 16];
    pthread_t thread;
    for (int n = 0; n < 2; n++) CHECK(!pthread_create(&thread, 0, lend, 0));
    int fd = open(FILE_NAME, O_RDONLY);
    CHECK(fd >= 0);
    size_t bytes = 0;
    for (ssize_t more; (more = read(fd, report + bytes, sizeof report - 1 - bytes)) != 0;) {
        // The threads are not lent yet.
        if (more < 0 && errno == EAGAIN && bytes == 0) {
            sched_yield();
            continue;
        }
        CHECK(more > 0);
        bytes += more;
    }
    fputs(report, stdout);
    fflush(stdout);
    // Threads that are lent end with the process.
    _exit(strstr(report, "FAILED") != 0);
}
