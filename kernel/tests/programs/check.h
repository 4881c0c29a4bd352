// What every test program has: a check that says where it failed, and ends the program.
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
            dprintf(1, "%s:%d: not so: %s (errno %d, %s)\n", __FILE__, __LINE__, #what, errno,         \
                    strerror(errno));                                                                  \
            _exit(1);                                                                                  \
        }                                                                                              \
    } while (0)

// A part of the program: it is announced, and has passed when it returns.
#define PART(name)                                                                                     \
    do {                                                                                               \
        name();                                                                                        \
        printf("%s\n", #name);                                                                         \
        fflush(stdout);                                                                                \
    } while (0)
#endif
