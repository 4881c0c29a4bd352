// System V semaphores. Checks `kernel/src/process/semaphores.rs` and `kernel/src/calls/semaphores.rs`.
#define _GNU_SOURCE
#include "check.h"
#include <pthread.h>
#include <signal.h>
#include <sys/ipc.h>
#include <sys/sem.h>
#include <sys/wait.h>
#include <time.h>

#define FAILS(call, error) CHECK((call) == -1 && errno == (error))

static int make(int count) {
    int id = semget(IPC_PRIVATE, count, 0600);
    CHECK(id >= 0);
    return id;
}

static int change(int id, int number, int by, int flags) {
    struct sembuf one = {number, by, flags};
    return semop(id, &one, 1);
}

static int value(int id, int number) {
    return semctl(id, number, GETVAL);
}

static void sets_are_found_by_key(void) {
    const key_t key = 0x46726565;
    FAILS(semget(key, 1, 0), ENOENT);
    FAILS(semget(key, 0, IPC_CREAT), EINVAL);
    FAILS(semget(key, -1, IPC_CREAT), EINVAL);
    FAILS(semget(key, 32001, IPC_CREAT), EINVAL);
    int id = semget(key, 3, IPC_CREAT | 0640);
    CHECK(id >= 0 && semget(key, 3, 0) == id && semget(key, 0, IPC_CREAT) == id);
    FAILS(semget(key, 4, 0), EINVAL);
    FAILS(semget(key, 3, IPC_CREAT | IPC_EXCL), EEXIST);
    struct semid_ds status;
    CHECK(!semctl(id, 0, IPC_STAT, &status) && status.sem_nsems == 3 && status.sem_perm.__key == key);
    CHECK((status.sem_perm.mode & 0777) == 0640 && status.sem_otime == 0 && status.sem_ctime > 1000000000);
    status.sem_perm.mode = 0600;
    CHECK(!semctl(id, 0, IPC_SET, &status) && !semctl(id, 0, IPC_STAT, &status));
    CHECK((status.sem_perm.mode & 0777) == 0600);
    CHECK(!semctl(id, 0, IPC_RMID));
    FAILS(semctl(id, 0, IPC_STAT, &status), EINVAL);
    FAILS(semctl(id, 0, IPC_RMID), EINVAL);
    FAILS(semget(key, 3, 0), ENOENT);
    // The number of a set that is gone does not name the next set.
    int next = make(1);
    CHECK(next != id);
    FAILS(semctl(next, 0, 99), EINVAL);
    FAILS(semctl(-1, 0, GETVAL), EINVAL);
    CHECK(!semctl(next, 0, IPC_RMID));
}

static void values_are_set_and_read(void) {
    int id = make(4);
    unsigned short all[4] = {1, 2, 3, 32767}, got[4];
    CHECK(!semctl(id, 0, SETALL, all) && !semctl(id, 0, GETALL, got) && !memcmp(all, got, sizeof all));
    CHECK(semctl(id, 3, GETPID) == getpid());
    CHECK(!semctl(id, 1, SETVAL, 7) && value(id, 1) == 7 && value(id, 2) == 3);
    FAILS(semctl(id, 4, GETVAL), EINVAL);
    FAILS(semctl(id, -1, GETVAL), EINVAL);
    FAILS(semctl(id, 1, SETVAL, 32768), ERANGE);
    FAILS(semctl(id, 1, SETVAL, -1), ERANGE);
    FAILS(semctl(id, 0, SETALL, 8), EFAULT);
    FAILS(semctl(id, 0, GETALL, 8), EFAULT);
    all[0] = 40000;
    FAILS(semctl(id, 0, SETALL, all), ERANGE);
    CHECK(value(id, 0) == 1);
    CHECK(!semctl(id, 0, IPC_RMID));
}

static void operations_happen_as_a_whole(void) {
    int id = make(2);
    struct sembuf both[] = {{0, 1, 0}, {1, -1, IPC_NOWAIT}}, zero[] = {{0, 0, IPC_NOWAIT}, {0, 2, 0}};
    FAILS(semop(id, both, 2), EAGAIN);
    CHECK(value(id, 0) == 0);
    CHECK(!semctl(id, 1, SETVAL, 1) && !semop(id, both, 2) && value(id, 0) == 1 && value(id, 1) == 0);
    FAILS(semop(id, zero, 2), EAGAIN);
    CHECK(!change(id, 0, -1, 0) && !semop(id, zero, 2) && value(id, 0) == 2);
    // An operation sees the changes of those before it.
    struct sembuf down[] = {{0, -2, 0}, {0, 0, 0}, {0, 5, 0}};
    CHECK(!semop(id, down, 3) && value(id, 0) == 5);
    FAILS(change(id, 0, 32767, 0), ERANGE);
    FAILS(change(id, 2, 1, 0), EFBIG);
    FAILS(semop(id, both, 0), EINVAL);
    FAILS(semop(id, both, 501), E2BIG);
    FAILS(semop(id, (void *)8, 1), EFAULT);
    FAILS(semop(-1, both, 1), EINVAL);
    struct timespec wait = {0, 20000000}, odd = {0, 1000000000};
    struct sembuf more = {1, -1, 0};
    FAILS(semtimedop(id, &more, 1, &wait), EAGAIN);
    FAILS(semtimedop(id, &more, 1, &odd), EINVAL);
    CHECK(!semctl(id, 0, IPC_RMID));
}

static int shared;
static volatile int entered, woken;

static void *enter(void *unused) {
    (void)unused;
    for (int n = 0; n < 500; n++) {
        CHECK(!change(shared, 0, -1, 0));
        CHECK(++entered == 1);
        entered--;
        CHECK(!change(shared, 0, 1, 0));
    }
    return NULL;
}

static void *wait_for_zero(void *unused) {
    (void)unused;
    CHECK(!change(shared, 1, 0, 0));
    woken = 1;
    return NULL;
}

static void threads_wait_for_each_other(void) {
    pthread_t threads[4], zero;
    shared = make(2);
    CHECK(!change(shared, 0, 1, 0) && !change(shared, 1, 2, 0));
    CHECK(!pthread_create(&zero, NULL, wait_for_zero, NULL));
    for (int n = 0; n < 4; n++) CHECK(!pthread_create(&threads[n], NULL, enter, NULL));
    for (int n = 0; n < 4; n++) CHECK(!pthread_join(threads[n], NULL));
    while (semctl(shared, 1, GETZCNT) != 1) usleep(1000);
    CHECK(!woken && semctl(shared, 1, GETNCNT) == 0 && value(shared, 0) == 1);
    CHECK(!change(shared, 1, -1, 0));
    usleep(20000);
    CHECK(!woken && !change(shared, 1, -1, 0) && !pthread_join(zero, NULL) && woken);
    CHECK(!semctl(shared, 0, IPC_RMID));
}

static void changes_are_undone_at_the_end_of_a_process(void) {
    int id = make(3), status;
    CHECK(!change(id, 0, 5, 0) && !change(id, 1, 5, 0));
    pid_t child = fork();
    if (!child) {
        CHECK(!change(id, 0, -3, SEM_UNDO) && !change(id, 0, -1, SEM_UNDO) && !change(id, 1, 2, SEM_UNDO));
        CHECK(!change(id, 2, 4, SEM_UNDO) && !semctl(id, 1, SETVAL, 9));
        CHECK(value(id, 0) == 1);
        // A child of its own does not inherit the record, and setting a value clears it.
        if (!fork()) _exit(0);
        wait(NULL);
        CHECK(value(id, 0) == 1 && !change(id, 2, -4, 0));
        _exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    CHECK(value(id, 0) == 5 && value(id, 1) == 9 && value(id, 2) == 0);
    // The end of a process that holds a semaphore wakes the next.
    CHECK(!semctl(id, 0, SETVAL, 1));
    child = fork();
    if (!child) {
        CHECK(!change(id, 0, -1, SEM_UNDO) && !change(id, 1, 1, 0));
        pause();
    }
    CHECK(!change(id, 1, -10, 0) && !kill(child, SIGKILL) && !change(id, 0, -1, 0));
    CHECK(waitpid(child, &status, 0) == child && status == SIGKILL);
    CHECK(!change(id, 0, 32767, SEM_UNDO));
    FAILS(change(id, 1, -32768, SEM_UNDO | IPC_NOWAIT), EAGAIN);
    CHECK(!semctl(id, 0, IPC_RMID));
}

static void ignore(int signal) {
    (void)signal;
}

static void removal_ends_waits(void) {
    int id = make(1), status;
    pid_t child = fork();
    if (!child) _exit(change(id, 0, -1, 0) == -1 ? errno : 0);
    while (semctl(id, 0, GETNCNT) != 1) usleep(1000);
    CHECK(!semctl(id, 0, IPC_RMID));
    CHECK(waitpid(child, &status, 0) == child && status == EIDRM << 8);
    // A signal ends a wait, even with SA_RESTART.
    id = make(1);
    struct sigaction action = {.sa_handler = ignore, .sa_flags = SA_RESTART};
    CHECK(!sigaction(SIGALRM, &action, NULL));
    ualarm(20000, 0);
    FAILS(change(id, 0, -1, 0), EINTR);
    CHECK(semctl(id, 0, GETNCNT) == 0 && !semctl(id, 0, IPC_RMID));
}

static void limits_are_reported(void) {
    struct seminfo limits, sums;
    int id = make(7);
    CHECK(semctl(0, 0, IPC_INFO, &limits) >= 0 && semctl(0, 0, SEM_INFO, &sums) >= 0);
    CHECK(limits.semmsl == 32000 && limits.semopm == 500 && limits.semvmx == 32767 && limits.semmni == 32000);
    CHECK(sums.semusz >= 1 && sums.semaem >= 7);
    struct semid_ds status;
    int found = 0;
    for (int n = 0; n <= 32767 && !found; n++) found = semctl(n, 0, SEM_STAT, &status) == id;
    CHECK(found && status.sem_nsems == 7);
    char text[4096], line[64];
    FILE *file = fopen("/proc/sysvipc/sem", "r");
    size_t bytes = fread(text, 1, sizeof text - 1, file);
    text[bytes] = 0;
    snprintf(line, sizeof line, "%10d %10d  %4o %10u", 0, id, 0600, 7);
    CHECK(strstr(text, line) && !fclose(file));
    CHECK(!semctl(id, 0, IPC_RMID));
}

int main(void) {
    PART(sets_are_found_by_key);
    PART(values_are_set_and_read);
    PART(operations_happen_as_a_whole);
    PART(threads_wait_for_each_other);
    PART(changes_are_undone_at_the_end_of_a_process);
    PART(removal_ends_waits);
    PART(limits_are_reported);
    return 0;
}
