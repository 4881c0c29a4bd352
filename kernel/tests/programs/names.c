// Names: renaming, links, removal, files without a name, and what /proc says of them.
#define _GNU_SOURCE
#include "check.h"
#include <fcntl.h>
#include <sys/stat.h>

static void names_move(void) {
    struct stat a, b;
    CHECK(mkdir("/tmp/n", 0755) == 0 && chdir("/tmp/n") == 0);
    int file = open("one", O_CREAT | O_RDWR, 0600);
    CHECK(file >= 0 && write(file, "text", 4) == 4);
    CHECK(link("one", "two") == 0 && fstat(file, &a) == 0 && a.st_nlink == 2);
    CHECK(mkdir("inner", 0755) == 0 && rename("two", "inner/two") == 0);
    CHECK(stat("inner/two", &b) == 0 && a.st_ino == b.st_ino);
    CHECK(rename("inner", "inner/below") == -1 && errno == EINVAL);
    CHECK(rmdir("inner") == -1 && errno == ENOTEMPTY);
    CHECK(unlink("inner/two") == 0 && rmdir("inner") == 0);
    CHECK(unlink("one") == 0 && fstat(file, &a) == 0 && a.st_nlink == 0 && a.st_size == 4);
    char target[64] = "", path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", file);
    CHECK(readlink(path, target, sizeof target - 1) > 0 && !strcmp(target, "/tmp/n/one (deleted)"));
    close(file);
    CHECK(chdir("/") == 0 && rmdir("/tmp/n") == 0);
}

static void holes_are_zeroes(void) {
    char page[4096];
    int file = open("/tmp", O_TMPFILE | O_RDWR, 0600);
    memset(page, 7, sizeof page);
    CHECK(file >= 0 && pwrite(file, page, 4096, 0) == 4096 && pwrite(file, page, 4096, 8192) == 4096);
    CHECK(lseek(file, 0, SEEK_HOLE) == 4096 && lseek(file, 4096, SEEK_DATA) == 8192);
    CHECK(fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096) == 0);
    CHECK(pread(file, page, 1, 0) == 1 && page[0] == 0 && lseek(file, 0, SEEK_END) == 12288);
    close(file);
}

int main(void) {
    PART(names_move);
    PART(holes_are_zeroes);
    return 0;
}
