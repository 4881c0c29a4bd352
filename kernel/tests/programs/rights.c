// What a user may do to files of others, and programs that are written while they run.
#define _GNU_SOURCE
#include "check.h"
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>

#define FAILS(what, why) CHECK((what) == -1 && errno == (why))

static char *none[] = {NULL}, *one[] = {"program", "exit", NULL};

static void make(const char *name, int mode) {
    int file = open(name, O_CREAT | O_WRONLY, 0600);
    CHECK(file >= 0 && fchmod(file, mode) == 0 && close(file) == 0);
}

static void as_nobody(void) {
    struct stat own;
    CHECK(setgid(65534) == 0 && setuid(65534) == 0);
    FAILS(open("/tmp/r/all/f600", O_RDONLY), EACCES);
    CHECK(close(open("/tmp/r/all/f644", O_RDONLY)) == 0);
    FAILS(open("/tmp/r/all/f644", O_WRONLY), EACCES);
    FAILS(open("/tmp/r/all/f644", O_RDONLY | O_TRUNC), EACCES);
    FAILS(truncate("/tmp/r/all/f644", 1), EACCES);
    FAILS(open("/tmp/r/closed/f", O_RDONLY), EACCES);
    FAILS(access("/tmp/r/closed/f", F_OK), EACCES);
    FAILS(access("/tmp/r/all/f600", R_OK), EACCES);
    FAILS(chdir("/tmp/r/closed"), EACCES);
    FAILS(mkdir("/tmp/r/new", 0755), EACCES);
    FAILS(unlink("/tmp/r/f"), EACCES);
    FAILS(unlink("/tmp/r/all/f644"), EPERM);
    FAILS(rename("/tmp/r/all/f644", "/tmp/r/all/g"), EPERM);
    FAILS(chmod("/tmp/r/all/f644", 0777), EPERM);
    FAILS(chown("/tmp/r/all/f644", 65534, -1), EPERM);
    FAILS(utimensat(AT_FDCWD, "/tmp/r/all/f644", NULL, 0), EACCES);
    FAILS(execv("/tmp/r/all/f644", one), EACCES);
    make("/tmp/r/all/own", 0400);
    CHECK(stat("/tmp/r/all/own", &own) == 0 && own.st_uid == 65534 && own.st_gid == 65534);
    FAILS(open("/tmp/r/all/own", O_WRONLY), EACCES);
    CHECK(chmod("/tmp/r/all/own", 0600) == 0 && close(open("/tmp/r/all/own", O_RDWR)) == 0);
    CHECK(unlink("/tmp/r/all/own") == 0);
}

static void check_child(void (*run)(void)) {
    int status;
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        run();
        _exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child && status == 0);
}

static void files_are_their_owners(void) {
    umask(0);
    CHECK(mkdir("/tmp/r", 0755) == 0 && mkdir("/tmp/r/all", 01777) == 0 && mkdir("/tmp/r/closed", 0700) == 0);
    make("/tmp/r/all/f600", 0600);
    make("/tmp/r/all/f644", 0644);
    make("/tmp/r/closed/f", 0644);
    make("/tmp/r/f", 0666);
    check_child(as_nobody);
    CHECK(close(open("/tmp/r/all/f600", O_RDWR)) == 0);
    FAILS(execv("/tmp/r/all/f644", one), EACCES);
}

static void without_arguments(void) { execve("/tmp/r/program", none, none); }
static void with_one(void) { execve("/tmp/r/program", one, none); }

static void running_programs_are_not_written(void) {
    static char part[65536];
    int in = open("/proc/self/exe", O_RDONLY), out = open("/tmp/r/program", O_CREAT | O_WRONLY, 0755);
    CHECK(in >= 0 && out >= 0);
    for (ssize_t bytes; (bytes = read(in, part, sizeof part)) > 0;) CHECK(write(out, part, bytes) == bytes);
    FAILS(execv("/tmp/r/program", one), ETXTBSY);
    CHECK(close(out) == 0 && close(in) == 0);
    check_child(with_one);
    check_child(without_arguments);
    FAILS(open("/proc/self/exe", O_WRONLY), ETXTBSY);
    CHECK(close(open("/tmp/r/program", O_WRONLY)) == 0);
}

int main(int argc, char **argv) {
    if (argc == 1 && !*argv[0]) return 0;
    if (argc == 2 && !strcmp(argv[1], "exit")) return 0;
    PART(files_are_their_owners);
    PART(running_programs_are_not_written);
    return 0;
}
