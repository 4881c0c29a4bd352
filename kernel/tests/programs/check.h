// Common to all C programs of the tests: a check that reports where it failed and ends the program.
//
// A program is a list of parts. To add a part, write a function whose name states the fact, and add
// PART(name) to `main`. The program must also pass on Linux (`cargo xtask kernel-tests --linux NAME`).
// `kernel/tests/tests.toml` says how the program is run and which names of parts its output must contain.
// `kernel/tests/README.md` lists the subject of each program. A new subject gets a program of its own, and a
// row there.
#ifndef CHECK_H
#define CHECK_H
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CHECK(what)                                                                                    \
    do {                                                                                               \
        if (!(what)) {                                                                                 \
            dprintf(1, "%s:%d: check failed: %s (errno %d, %s)\n", __FILE__, __LINE__, #what, errno,   \
                    strerror(errno));                                                                  \
            _exit(1);                                                                                  \
        }                                                                                              \
    } while (0)

// Runs a part of the program, and prints its name once it has passed.
#define PART(name)                                                                                     \
    do {                                                                                               \
        name();                                                                                        \
        printf("%s\n", #name);                                                                         \
        fflush(stdout);                                                                                \
    } while (0)
#endif
