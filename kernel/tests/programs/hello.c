// Prints the arguments and the environment of a program, and returns the number of arguments. Three tests
// compare the output: of a static program, of a dynamic one, and of one with musl.
#include "check.h"

extern char **environ;

int main(int argc, char **argv) {
    for (int n = 1; n < argc; n++) printf("argument %d: %s\n", n, argv[n]);
    for (char **at = environ; *at; at++)
        if (!strncmp(*at, "GREETING=", 9)) printf("environment: %s\n", *at);
    CHECK(sysconf(_SC_PAGESIZE) == 4096);
    char *heap = malloc(1 << 20);
    CHECK(heap);
    memset(heap, 7, 1 << 20);
    CHECK(heap[(1 << 20) - 1] == 7);
    free(heap);
    printf("hello, world\n");
    return argc;
}
