// Common to all test programs: a check that reports where it failed and ends the program.
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
