// Calls that do as much work under a spin lock as they accept. The option `irqoff` measures how long interrupts are off.
// Checks `kernel/src/process/semaphores.rs` and `kernel/src/files/socket/message.rs`.
#define _GNU_SOURCE
#include "check.h"
#include <sys/resource.h>
#include <sys/sem.h>
#include <sys/socket.h>
#include <sys/uio.h>

// The limits of Linux.
enum { OPERATIONS = 500, RIGHTS = 253, IN_FLIGHT = 4096 };

// Performs operations with SEM_UNDO on as many semaphores as one call accepts. The last attempt takes all back.
static void many_semaphores_change_at_once(void) {
    struct sembuf all[OPERATIONS];
    int id = semget(IPC_PRIVATE, OPERATIONS, 0600);
    CHECK(id >= 0);
    for (int n = 0; n < OPERATIONS; n++) all[n] = (struct sembuf){n, 1, SEM_UNDO};
    CHECK(!semop(id, all, OPERATIONS));
    for (int n = 0; n < OPERATIONS; n++) all[n].sem_op = -1;
    CHECK(!semop(id, all, OPERATIONS));
    for (int n = 0; n < OPERATIONS; n++) all[n].sem_op = 1;
    all[OPERATIONS - 1] = (struct sembuf){OPERATIONS - 1, -1, IPC_NOWAIT | SEM_UNDO};
    CHECK(semop(id, all, OPERATIONS) == -1 && errno == EAGAIN);
    CHECK(semctl(id, 0, GETVAL) == 0 && !semctl(id, 0, IPC_RMID));
}

// Sends descriptors as one message.
static ssize_t pass(int socket, const int *descriptors, int count) {
    static char control[CMSG_SPACE(RIGHTS * sizeof(int))];
    char byte = 1;
    struct iovec part = {&byte, 1};
    size_t length = count * sizeof(int);
    struct msghdr message = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = CMSG_SPACE(length)};
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    *header = (struct cmsghdr){.cmsg_len = CMSG_LEN(length), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
    memcpy(CMSG_DATA(header), descriptors, length);
    return sendmsg(socket, &message, 0);
}

// Sends a socket whose queue has as many sockets as may be in flight. The call looks for cycles.
static void queue_full_of_sockets_is_sent(void) {
    struct rlimit limit = {2 * IN_FLIGHT, 2 * IN_FLIGHT};
    int full[2], other[2], sockets[RIGHTS + 1];
    // Linux counts the descriptors in flight of a user whose limit this is.
    CHECK(!setrlimit(RLIMIT_NOFILE, &limit));
    CHECK(!socketpair(AF_UNIX, SOCK_STREAM, 0, full) && !socketpair(AF_UNIX, SOCK_STREAM, 0, other));
    for (int n = 0; n < RIGHTS; n += 2) CHECK(!socketpair(AF_UNIX, SOCK_STREAM, 0, sockets + n));
    for (int n = 0; n < IN_FLIGHT / RIGHTS; n++) CHECK(pass(full[0], sockets, RIGHTS) == 1);
    CHECK(pass(other[0], full + 1, 1) == 1);
    close(other[0]), close(other[1]), close(full[0]), close(full[1]);
    for (int n = 0; n <= RIGHTS; n++) close(sockets[n]);
}

int main(void) {
    PART(many_semaphores_change_at_once);
    PART(queue_full_of_sockets_is_sent);
    return 0;
}
