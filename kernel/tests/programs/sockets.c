// Pairs of sockets: the boundaries of messages, room, ends, descriptors and credentials in messages, options.
// Checks `kernel/src/files/socket`, `kernel/src/calls/sockets.rs` and `kernel/src/calls/messages.rs`.
#define _GNU_SOURCE
#include "check.h"
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>

static const int kinds[] = {SOCK_STREAM, SOCK_DGRAM, SOCK_SEQPACKET};
static volatile int broken;
static char much[1 << 20];

static void note(int signal) {
    (void)signal;
    broken++;
}

#define FAILS(error, call) (errno = 0, (call) == -1 && errno == (error))

static void make(int kind, int ends[2]) { CHECK(!socketpair(AF_UNIX, kind, 0, ends)); }

static void drop(int ends[2]) { CHECK(!close(ends[0]) && !close(ends[1])); }

static short events_of(int file) {
    struct pollfd polled = {file, POLLIN | POLLOUT | POLLRDHUP, 0};
    CHECK(poll(&polled, 1, 0) >= 0);
    return polled.revents;
}

// Sends bytes with the descriptors of `files`.
static ssize_t send_files(int to, const char *text, size_t bytes, const int *files, int count) {
    static _Alignas(8) char control[CMSG_SPACE(300 * sizeof(int))];
    struct iovec part = {(void *)text, bytes};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control};
    message.msg_controllen = CMSG_SPACE(count * sizeof(int));
    struct cmsghdr *first = CMSG_FIRSTHDR(&message);
    *first = (struct cmsghdr){CMSG_LEN(count * sizeof(int)), SOL_SOCKET, SCM_RIGHTS};
    memcpy(CMSG_DATA(first), files, count * sizeof(int));
    return sendmsg(to, &message, MSG_DONTWAIT);
}

// Receives bytes and up to `most` descriptors, of which it stores the number. Returns the flags of the
// message.
static int receive_files(int from, char *text, size_t bytes, ssize_t *got, int *files, int *count, int most, int flags) {
    static _Alignas(8) char control[CMSG_SPACE(300 * sizeof(int))];
    struct iovec part = {text, bytes};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control};
    message.msg_controllen = most ? CMSG_LEN(most * sizeof(int)) : 0;
    *got = recvmsg(from, &message, flags);
    *count = 0;
    if (*got < 0) return -1;
    struct cmsghdr *first = CMSG_FIRSTHDR(&message);
    if (first) {
        CHECK(first->cmsg_level == SOL_SOCKET && first->cmsg_type == SCM_RIGHTS);
        *count = (first->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        memcpy(files, CMSG_DATA(first), *count * sizeof(int));
    }
    return message.msg_flags;
}

// Returns true if the pipe has no writer any more. Linux collects a cycle of sockets a little after the close
// of another socket.
static int has_ended(int reader) {
    struct pollfd polled = {reader, POLLIN, 0};
    for (int tries = 0; tries < 30; tries++) {
        int ends[2];
        if (poll(&polled, 1, 100) == 1) return polled.revents == POLLHUP;
        make(SOCK_STREAM, ends);
        drop(ends);
    }
    return 0;
}

static void messages_keep_their_boundaries(void) {
    for (int n = 0; n < 3; n++) {
        int ends[2], stream = kinds[n] == SOCK_STREAM, queued;
        char text[16] = "";
        make(kinds[n] | SOCK_NONBLOCK | SOCK_CLOEXEC, ends);
        CHECK(fcntl(ends[0], F_GETFD) == FD_CLOEXEC && fcntl(ends[1], F_GETFL) & O_NONBLOCK);
        CHECK(FAILS(EAGAIN, recv(ends[0], text, 8, 0)) && FAILS(EAGAIN, read(ends[1], text, 8)));
        CHECK(send(ends[0], "", 0, 0) == 0);
        if (!stream) CHECK(recv(ends[1], text, 8, 0) == 0);
        struct iovec parts[2] = {{"abc", 3}, {"def", 3}};
        CHECK(writev(ends[0], parts, 2) == 6 && sendto(ends[0], "gh", 2, 0, 0, 0) == 2);
        CHECK(!ioctl(ends[1], FIONREAD, &queued) && queued == (kinds[n] == SOCK_DGRAM ? 6 : 8));
        CHECK(!ioctl(ends[0], TIOCOUTQ, &queued) && queued > 8);
        CHECK(recv(ends[1], text, 4, MSG_PEEK) == 4 && recv(ends[1], text, 16, MSG_PEEK) == (stream ? 8 : 6));
        CHECK(recv(ends[1], text, 3, MSG_TRUNC) == (stream ? 3 : 6) && !memcmp(text, "abc", 3));
        CHECK(recv(ends[1], text, 16, 0) == (stream ? 5 : 2) && !memcmp(text, stream ? "defgh" : "gh", 2));
        CHECK(FAILS(EAGAIN, recv(ends[1], text, 0, 0)) && read(ends[1], text, 0) == 0);
        // The other direction, from one buffer to two.
        CHECK(send(ends[1], "12345", 5, MSG_NOSIGNAL | MSG_EOR) == 5);
        struct iovec into[2] = {{text, 2}, {text + 8, 2}};
        struct msghdr message = {.msg_iov = into, .msg_iovlen = 2};
        CHECK(recvmsg(ends[0], &message, 0) == 4 && message.msg_flags == (stream ? 0 : MSG_TRUNC));
        CHECK(!memcmp(text, "12", 2) && !memcmp(text + 8, "34", 2));
        // A bad address loses a message, but no bytes of a stream.
        if (stream) CHECK(recv(ends[0], text, 8, 0) == 1);
        CHECK(send(ends[0], "kept", 4, 0) == 4 && FAILS(EFAULT, recv(ends[1], (void *)8, 4, 0)));
        CHECK(stream ? recv(ends[1], text, 8, 0) == 4 : FAILS(EAGAIN, recv(ends[1], text, 8, 0)));
        CHECK(FAILS(EFAULT, send(ends[0], (void *)8, 4, 0)) && FAILS(EAGAIN, recv(ends[1], text, 8, 0)));
        drop(ends);
    }
}

static void stream_waits_for_all(void) {
    int ends[2], status;
    char text[8];
    make(SOCK_STREAM, ends);
    pid_t child = fork();
    if (!child) {
        for (int n = 0; n < 4; n++) {
            usleep(5000);
            CHECK(write(ends[0], "ab", 2) == 2);
        }
        _exit(0);
    }
    CHECK(recv(ends[1], text, 6, MSG_WAITALL) == 6 && !memcmp(text, "ababab", 6));
    CHECK(wait(&status) == child && status == 0 && recv(ends[1], text, 8, MSG_DONTWAIT) == 2);
    close(ends[0]);
    CHECK(recv(ends[1], text, 8, MSG_WAITALL) == 0);
    close(ends[1]);
}

static void room_is_limited(void) {
    for (int n = 0; n < 3; n++) {
        int ends[2], count = 0, status;
        make(kinds[n], ends);
        CHECK(events_of(ends[0]) == POLLOUT);
        if (kinds[n] != SOCK_STREAM) {
            CHECK(send(ends[0], much, 212960, MSG_DONTWAIT) == 212960);
            CHECK(FAILS(EMSGSIZE, send(ends[0], much, 212961, MSG_DONTWAIT)));
            CHECK(FAILS(EAGAIN, send(ends[0], much, 1, MSG_DONTWAIT)) && events_of(ends[0]) == 0);
            CHECK(recv(ends[1], much, sizeof much, 0) == 212960);
        } else {
            ssize_t all = send(ends[0], much, sizeof much, MSG_DONTWAIT), some;
            CHECK(all > 200000 && all < 300000);
            for (ssize_t rest = all; rest > 0; rest -= some) CHECK((some = recv(ends[1], much, sizeof much, 0)) > 0);
        }
        while (send(ends[0], "x", 1, MSG_DONTWAIT) == 1) count++;
        CHECK(errno == EAGAIN && count == 278 && events_of(ends[0]) == 0 && events_of(ends[1]) == (POLLIN | POLLOUT));
        // A sender and a poller wait for room.
        pid_t child = fork();
        if (!child) {
            struct pollfd polled = {ends[0], POLLOUT, 0};
            CHECK(send(ends[0], "last", 4, 0) == 4 && poll(&polled, 1, 5000) == 1);
            _exit(0);
        }
        usleep(5000);
        for (int left = count; left > 0; left--) CHECK(recv(ends[1], much, 1, 0) == 1);
        CHECK(wait(&status) == child && status == 0 && recv(ends[1], much, 8, 0) == 4);
        int bytes = 1000;
        socklen_t size = sizeof bytes;
        CHECK(!setsockopt(ends[0], SOL_SOCKET, SO_SNDBUF, &bytes, size));
        CHECK(!getsockopt(ends[0], SOL_SOCKET, SO_SNDBUF, &bytes, &size) && bytes == 4608);
        for (count = 0; send(ends[0], "x", 1, MSG_DONTWAIT) == 1;) count++;
        CHECK(count == 6);
        drop(ends);
    }
}

static void connection_reports_its_end(void) {
    for (int n = 0; n < 3; n += 2) {
        int ends[2], error, stream = kinds[n] == SOCK_STREAM;
        socklen_t bytes = sizeof error;
        char text[8];
        make(kinds[n], ends);
        CHECK(!close(ends[1]) && events_of(ends[0]) == (POLLIN | POLLOUT | POLLHUP | POLLRDHUP));
        broken = 0;
        CHECK(FAILS(EPIPE, write(ends[0], "x", 1)) && broken == stream);
        CHECK(FAILS(EPIPE, send(ends[0], "x", 1, MSG_NOSIGNAL)) && broken == stream);
        CHECK(recv(ends[0], text, 8, 0) == 0 && recv(ends[0], text, 8, MSG_DONTWAIT) == 0);
        close(ends[0]);
        // The other socket was closed with an unread message.
        make(kinds[n], ends);
        CHECK(write(ends[0], "lost", 4) == 4 && write(ends[1], "kept", 4) == 4 && !close(ends[1]));
        CHECK(events_of(ends[0]) == (POLLIN | POLLOUT | POLLHUP | POLLRDHUP | POLLERR));
        if (stream) CHECK(read(ends[0], text, 8) == 4 && FAILS(ECONNRESET, read(ends[0], text, 8)));
        if (!stream) CHECK(FAILS(ECONNRESET, read(ends[0], text, 8)) && read(ends[0], text, 8) == 4);
        CHECK(read(ends[0], text, 8) == 0);
        close(ends[0]);
        make(kinds[n], ends);
        CHECK(write(ends[0], "lost", 4) == 4 && !close(ends[1]));
        CHECK(!getsockopt(ends[0], SOL_SOCKET, SO_ERROR, &error, &bytes) && error == ECONNRESET);
        CHECK(!getsockopt(ends[0], SOL_SOCKET, SO_ERROR, &error, &bytes) && error == 0);
        CHECK(FAILS(EPIPE, write(ends[0], "x", 1)) && read(ends[0], text, 8) == 0);
        close(ends[0]);
        // A shutdown ends the opposite direction of the other socket.
        make(kinds[n], ends);
        CHECK(write(ends[1], "kept", 4) == 4 && !shutdown(ends[0], SHUT_RD));
        CHECK(FAILS(EPIPE, write(ends[1], "x", 1)) && events_of(ends[1]) == POLLOUT);
        CHECK(read(ends[0], text, 8) == 4 && read(ends[0], text, 8) == 0);
        CHECK(!shutdown(ends[0], SHUT_WR) && FAILS(EPIPE, write(ends[0], "x", 1)) && read(ends[1], text, 8) == 0);
        CHECK(events_of(ends[1]) == (POLLIN | POLLOUT | POLLHUP | POLLRDHUP));
        drop(ends);
    }
}

static void datagrams_report_a_lost_receiver(void) {
    int ends[2];
    char text[8];
    struct sockaddr_storage name;
    socklen_t bytes = sizeof name;
    make(SOCK_DGRAM | SOCK_NONBLOCK, ends);
    CHECK(write(ends[1], "kept", 4) == 4 && write(ends[0], "lost", 4) == 4 && !close(ends[1]));
    broken = 0;
    CHECK(read(ends[0], text, 8) == 4);
    CHECK(FAILS(ECONNREFUSED, write(ends[0], "x", 1)) && FAILS(ENOTCONN, write(ends[0], "x", 1)) && !broken);
    CHECK(FAILS(ENOTCONN, getpeername(ends[0], (struct sockaddr *)&name, &bytes)));
    CHECK(FAILS(EAGAIN, read(ends[0], text, 8)) && events_of(ends[0]) == POLLOUT);
    close(ends[0]);
    make(SOCK_DGRAM, ends);
    CHECK(!shutdown(ends[0], SHUT_RD) && FAILS(EPIPE, write(ends[1], "x", 1)) && !broken);
    CHECK(read(ends[0], text, 8) == 0 && FAILS(EAGAIN, recv(ends[0], text, 8, MSG_DONTWAIT)));
    CHECK(write(ends[0], "back", 4) == 4 && !shutdown(ends[0], SHUT_WR) && FAILS(EPIPE, write(ends[0], "x", 1)));
    CHECK(read(ends[1], text, 8) == 4 && events_of(ends[1]) == POLLOUT);
    drop(ends);
}

static void descriptors_travel_in_messages(void) {
    for (int n = 0; n < 3; n++) {
        int ends[2], pipes[2], got[8], count, other[2];
        ssize_t bytes;
        char text[8];
        make(kinds[n], ends);
        CHECK(!pipe(pipes) && send_files(ends[0], "with", 4, pipes, 2) == 4 && !close(pipes[1]));
        CHECK(write(ends[0], "more", 4) == 4);
        CHECK(receive_files(ends[1], text, 8, &bytes, got, &count, 8, MSG_CMSG_CLOEXEC) == MSG_CMSG_CLOEXEC);
        CHECK(bytes == 4 && count == 2 && fcntl(got[0], F_GETFD) == FD_CLOEXEC);
        CHECK(write(got[1], "through", 7) == 7 && read(pipes[0], text, 8) == 7 && !close(got[0]));
        CHECK(read(ends[1], text, 8) == 4 && !close(got[1]) && has_ended(pipes[0]));
        // Room for one descriptor: the other one is closed.
        CHECK(!pipe(other) && send_files(ends[0], "two", 3, other, 2) == 3 && !close(other[1]));
        CHECK(receive_files(ends[1], text, 8, &bytes, got, &count, 1, 0) == MSG_CTRUNC && bytes == 3 && count == 1);
        CHECK(has_ended(other[0]) && !close(got[0]) && !close(other[0]));
        // A read closes descriptors.
        CHECK(!pipe(other) && send_files(ends[0], "read", 4, other + 1, 1) == 4 && !close(other[1]));
        CHECK(read(ends[1], text, 8) == 4 && has_ended(other[0]) && !close(other[0]));
        // A look at a message copies its descriptors.
        CHECK(send_files(ends[0], "look", 4, pipes, 1) == 4);
        CHECK(receive_files(ends[1], text, 8, &bytes, got, &count, 8, MSG_PEEK) == 0 && count == 1);
        CHECK(receive_files(ends[1], text, 8, &bytes, got + 1, &count, 8, 0) == 0 && count == 1 && got[0] != got[1]);
        CHECK(!close(got[0]) && !close(got[1]));
        int wrong[2] = {pipes[0], 999};
        CHECK(FAILS(EBADF, send_files(ends[0], "bad", 3, wrong, 2)));
        int many[254];
        for (int m = 0; m < 254; m++) many[m] = pipes[0];
        CHECK(FAILS(EINVAL, send_files(ends[0], "many", 4, many, 254)) && send_files(ends[0], "many", 4, many, 253) == 4);
        CHECK(read(ends[1], text, 8) == 4 && !close(pipes[0]));
        drop(ends);
    }
    // A receiver of a stream stops behind a message with descriptors.
    int ends[2], got[8], count;
    ssize_t bytes;
    char text[16];
    make(SOCK_STREAM, ends);
    CHECK(write(ends[0], "one", 3) == 3 && send_files(ends[0], "two", 3, ends, 1) == 3 && write(ends[0], "three", 5) == 5);
    CHECK(receive_files(ends[1], text, 16, &bytes, got, &count, 8, 0) == 0 && bytes == 6 && count == 1 && !close(got[0]));
    CHECK(read(ends[1], text, 16) == 5);
    drop(ends);
}

static void received_descriptors_need_free_numbers(void) {
    int ends[2], pipes[2], got[8], count;
    ssize_t bytes;
    char text[8];
    struct rlimit most, few;
    make(SOCK_DGRAM, ends);
    CHECK(!pipe(pipes) && send_files(ends[0], "x", 1, pipes, 2) == 1 && !close(pipes[1]));
    CHECK(!getrlimit(RLIMIT_NOFILE, &most));
    few = most;
    few.rlim_cur = pipes[1] + 1;
    CHECK(!setrlimit(RLIMIT_NOFILE, &few));
    CHECK(receive_files(ends[1], text, 8, &bytes, got, &count, 8, 0) == MSG_CTRUNC && count == 1 && got[0] == pipes[1]);
    CHECK(!setrlimit(RLIMIT_NOFILE, &most) && has_ended(pipes[0]) && !close(got[0]) && !close(pipes[0]));
    drop(ends);
}

static void descriptors_in_flight_are_closed(void) {
    int ends[2], pipes[2], count = 0;
    make(SOCK_STREAM, ends);
    CHECK(!pipe(pipes) && send_files(ends[0], "x", 1, pipes + 1, 1) == 1 && !close(pipes[1]));
    drop(ends);
    CHECK(has_ended(pipes[0]) && !close(pipes[0]));
    // A long chain: the queue of each socket has the next one.
    make(SOCK_STREAM, ends);
    CHECK(!pipe(pipes) && send_files(ends[0], "x", 1, pipes + 1, 1) == 1 && !close(pipes[1]) && !close(ends[0]));
    for (int below = ends[1]; count < 1000; count++) {
        make(SOCK_STREAM, ends);
        ssize_t sent = send_files(ends[0], "x", 1, &below, 1);
        CHECK(sent == 1 || errno == ETOOMANYREFS);
        CHECK(!close(below) && !close(ends[0]));
        below = ends[1];
    }
    struct pollfd polled = {pipes[0], POLLIN, 0};
    CHECK(poll(&polled, 1, 0) == 0 || polled.revents == POLLHUP);
    CHECK(!close(ends[1]) && has_ended(pipes[0]) && !close(pipes[0]));
}

// Linux accepts a cycle and frees it after the last close. This kernel refuses the message that closes a
// cycle.
static void cycles_are_freed(void) {
    for (int length = 1; length <= 3; length++) {
        int pairs[3][2], pipes[2], refused = 0;
        CHECK(!pipe(pipes));
        for (int n = 0; n < length; n++) make(SOCK_DGRAM, pairs[n]);
        for (int n = 0; n < length; n++) {
            int files[2] = {pairs[(n + 1) % length][1], pipes[1]};
            ssize_t sent = send_files(pairs[n][0], "x", 1, files, 2);
            CHECK(sent == 1 || errno == ETOOMANYREFS);
            refused += sent != 1;
        }
        CHECK(refused <= 1);
        for (int n = 0; n < length; n++) drop(pairs[n]);
        CHECK(!close(pipes[1]) && has_ended(pipes[0]) && !close(pipes[0]));
    }
    // The other socket of the pair in the own queue, both ways.
    int ends[2], pipes[2];
    CHECK(!pipe(pipes));
    make(SOCK_STREAM, ends);
    int first[2] = {ends[0], pipes[1]}, second[2] = {ends[1], pipes[1]};
    CHECK(send_files(ends[0], "x", 1, first, 2) == 1);
    CHECK(send_files(ends[1], "x", 1, second, 2) == 1 || errno == ETOOMANYREFS);
    drop(ends);
    CHECK(!close(pipes[1]) && has_ended(pipes[0]) && !close(pipes[0]));
}

static void links_keep_no_socket_open(void) {
    int ends[2], pipes[2];
    char path[64], name[64];
    struct stat about;
    make(SOCK_STREAM, ends);
    sprintf(path, "/proc/self/fd/%d", ends[1]);
    CHECK(FAILS(ENXIO, open(path, O_RDWR)) && readlink(path, name, sizeof name) > 9 && !memcmp(name, "socket:[", 8));
    CHECK(!stat(path, &about) && S_ISSOCK(about.st_mode) && !fstat(ends[1], &about) && S_ISSOCK(about.st_mode));
    int place = open(path, O_PATH), link = open(path, O_PATH | O_NOFOLLOW);
    sprintf(path, "/proc/self/fdinfo/%d", ends[1]);
    int info = open(path, O_RDONLY);
    CHECK(place >= 0 && link >= 0 && info >= 0 && !pipe(pipes));
    // The files that lead to the socket are in its own queue.
    int files[4] = {place, link, info, pipes[1]};
    CHECK(send_files(ends[0], "x", 1, files, 4) == 1);
    for (int n = 0; n < 4; n++) CHECK(!close(files[n]));
    drop(ends);
    CHECK(has_ended(pipes[0]) && !close(pipes[0]));
}

static void flight_is_limited(void) {
    int pairs[40][2], pipes[2], files[253], sent = 0;
    CHECK(!pipe(pipes));
    for (int n = 0; n < 253; n++) files[n] = pipes[1];
    for (int n = 0; n < 40; n++) {
        make(SOCK_DGRAM, pairs[n]);
        if (send_files(pairs[n][0], "x", 1, files, 253) == 1) sent++;
        else CHECK(errno == ETOOMANYREFS);
    }
    CHECK(sent >= 16);
    for (int n = 0; n < 40; n++) drop(pairs[n]);
    CHECK(!close(pipes[1]) && has_ended(pipes[0]) && !close(pipes[0]));
    make(SOCK_DGRAM, pairs[0]);
    for (int n = 0; n < 253; n++) files[n] = pairs[0][0];
    CHECK(send_files(pairs[0][0], "x", 1, files, 253) == 1);
    drop(pairs[0]);
}

// Receives a byte and the credentials of its sender.
static struct ucred sender_of(int from) {
    _Alignas(8) char control[CMSG_SPACE(sizeof(struct ucred))];
    char byte;
    struct iovec part = {&byte, 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    struct ucred sender;
    CHECK(recvmsg(from, &message, 0) == 1);
    struct cmsghdr *first = CMSG_FIRSTHDR(&message);
    CHECK(first && first->cmsg_type == SCM_CREDENTIALS && first->cmsg_len == CMSG_LEN(sizeof sender));
    memcpy(&sender, CMSG_DATA(first), sizeof sender);
    return sender;
}

static ssize_t send_as(int to, struct ucred sender) {
    _Alignas(8) char control[CMSG_SPACE(sizeof sender)];
    struct iovec part = {"x", 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    struct cmsghdr *first = CMSG_FIRSTHDR(&message);
    *first = (struct cmsghdr){CMSG_LEN(sizeof sender), SOL_SOCKET, SCM_CREDENTIALS};
    memcpy(CMSG_DATA(first), &sender, sizeof sender);
    return sendmsg(to, &message, 0);
}

static void credentials_name_the_sender(void) {
    for (int n = 0; n < 3; n++) {
        int ends[2], yes = 1, status;
        make(kinds[n], ends);
        struct ucred other;
        socklen_t bytes = sizeof other;
        CHECK(!getsockopt(ends[0], SOL_SOCKET, SO_PEERCRED, &other, &bytes) && bytes == sizeof other);
        CHECK(other.pid == getpid() && other.uid == geteuid() && other.gid == getegid());
        CHECK(!setsockopt(ends[1], SOL_SOCKET, SO_PASSCRED, &yes, sizeof yes));
        CHECK(write(ends[0], "x", 1) == 1 && sender_of(ends[1]).pid == getpid());
        pid_t child = fork();
        if (!child) _exit(write(ends[0], "y", 1) != 1);
        CHECK(wait(&status) == child && status == 0 && write(ends[0], "z", 1) == 1);
        struct ucred sender = sender_of(ends[1]);
        CHECK(sender.pid == child && sender.uid == getuid() && sender.gid == getgid());
        CHECK(sender_of(ends[1]).pid == getpid());
        CHECK(send_as(ends[0], (struct ucred){getpid(), getuid(), getgid()}) == 1 && sender_of(ends[1]).pid == getpid());
        CHECK(FAILS(ESRCH, send_as(ends[0], (struct ucred){0x3ffff0, getuid(), getgid()})) || errno == EPERM);
        if (kinds[n] == SOCK_STREAM) {
            // Bytes of different senders do not come together.
            char text[8];
            CHECK(write(ends[0], "ab", 2) == 2 && (child = fork()) >= 0);
            if (!child) _exit(write(ends[0], "cd", 2) != 2);
            CHECK(wait(&status) == child && status == 0 && recv(ends[1], text, 8, 0) == 2 && recv(ends[1], text, 8, 0) == 2);
        }
        drop(ends);
    }
}

static void options_are_kept(void) {
    int ends[2], word, yes = 1;
    socklen_t bytes;
    for (int n = 0; n < 3; n++) {
        make(kinds[n], ends);
        static const int known[][2] = {{SO_DOMAIN, AF_UNIX}, {SO_PROTOCOL, 0}, {SO_ERROR, 0}, {SO_ACCEPTCONN, 0},
                                       {SO_SNDBUF, 212992}, {SO_RCVBUF, 212992}, {SO_PASSCRED, 0}, {SO_RCVLOWAT, 1}};
        for (unsigned m = 0; m < sizeof known / sizeof *known; m++) {
            bytes = sizeof word;
            CHECK(!getsockopt(ends[0], SOL_SOCKET, known[m][0], &word, &bytes) && bytes == 4 && word == known[m][1]);
        }
        bytes = sizeof word;
        CHECK(!getsockopt(ends[0], SOL_SOCKET, SO_TYPE, &word, &bytes) && word == kinds[n]);
        static const int settable[] = {SO_REUSEADDR, SO_KEEPALIVE, SO_BROADCAST, SO_PASSCRED, SO_OOBINLINE};
        for (unsigned m = 0; m < sizeof settable / sizeof *settable; m++) {
            CHECK(!setsockopt(ends[0], SOL_SOCKET, settable[m], &yes, sizeof yes));
            CHECK(!getsockopt(ends[0], SOL_SOCKET, settable[m], &word, &bytes) && word == 1);
            CHECK(!getsockopt(ends[1], SOL_SOCKET, settable[m], &word, &bytes) && word == 0);
        }
        word = 5000;
        CHECK(!setsockopt(ends[0], SOL_SOCKET, SO_RCVBUF, &word, sizeof word));
        CHECK(!getsockopt(ends[0], SOL_SOCKET, SO_RCVBUF, &word, &bytes) && word == 10000);
        struct timeval soon = {0, 20000}, wait;
        CHECK(!setsockopt(ends[0], SOL_SOCKET, SO_RCVTIMEO, &soon, sizeof soon));
        bytes = sizeof wait;
        CHECK(!getsockopt(ends[0], SOL_SOCKET, SO_RCVTIMEO, &wait, &bytes) && bytes == 16 && wait.tv_usec == 20000);
        CHECK(FAILS(EAGAIN, read(ends[0], &word, 4)));
        soon.tv_usec = 1000000;
        CHECK(FAILS(EDOM, setsockopt(ends[0], SOL_SOCKET, SO_SNDTIMEO, &soon, sizeof soon)));
        soon.tv_usec = 20000;
        CHECK(!setsockopt(ends[0], SOL_SOCKET, SO_SNDTIMEO, &soon, sizeof soon));
        while (write(ends[0], much, 4000) > 0) continue;
        CHECK(errno == EAGAIN);
        bytes = -1;
        CHECK(FAILS(EINVAL, getsockopt(ends[0], SOL_SOCKET, SO_TYPE, &word, &bytes)));
        CHECK(FAILS(EINVAL, setsockopt(ends[0], SOL_SOCKET, SO_SNDBUF, &word, 3)));
        CHECK(FAILS(ENOPROTOOPT, setsockopt(ends[0], SOL_SOCKET, SO_TYPE, &word, 4)));
        CHECK(FAILS(ENOPROTOOPT, setsockopt(ends[0], SOL_SOCKET, 1000, &word, 4)));
        CHECK(FAILS(EOPNOTSUPP, setsockopt(ends[0], 6, 1, &word, 4)));
        drop(ends);
    }
}

static void wrong_arguments_are_refused(void) {
    int ends[2];
    char byte = 0;
    struct sockaddr_un name = {AF_UNIX, "/nonexistent"};
    socklen_t bytes = 0;
    CHECK(FAILS(EAFNOSUPPORT, socketpair(99, SOCK_STREAM, 0, ends)) && FAILS(EAFNOSUPPORT, socketpair(0, SOCK_STREAM, 0, ends)));
    CHECK(FAILS(ESOCKTNOSUPPORT, socketpair(AF_UNIX, SOCK_RDM, 0, ends)));
    CHECK(FAILS(EPROTONOSUPPORT, socketpair(AF_UNIX, SOCK_STREAM, 5, ends)));
    CHECK(FAILS(EINVAL, socketpair(AF_UNIX, SOCK_STREAM | 16, 0, ends)) && FAILS(EINVAL, socket(AF_UNIX, SOCK_STREAM | 16, 0)));
    int next = dup(0);
    CHECK(!close(next) && FAILS(EFAULT, syscall(SYS_socketpair, AF_UNIX, SOCK_STREAM, 0, 8)) && dup(0) == next && !close(next));
    CHECK(FAILS(EBADF, send(999, "x", 1, 0)) && FAILS(EBADF, shutdown(999, 0)));
    CHECK(!pipe(ends) && FAILS(ENOTSOCK, send(ends[1], "x", 1, 0)) && FAILS(ENOTSOCK, recv(ends[0], &byte, 1, 0)));
    CHECK(FAILS(ENOTSOCK, listen(ends[0], 1)) && FAILS(ENOTSOCK, shutdown(ends[0], 7)));
    drop(ends);
    make(SOCK_STREAM, ends);
    CHECK(FAILS(EISCONN, sendto(ends[0], "x", 1, 0, (struct sockaddr *)&name, sizeof name)));
    CHECK(FAILS(EINVAL, listen(ends[0], 1)) && FAILS(EINVAL, accept(ends[0], 0, 0)) && FAILS(EINVAL, shutdown(ends[0], 3)));
    CHECK(!getsockname(ends[0], (struct sockaddr *)&name, &bytes) && bytes == 2);
    bytes = -1;
    CHECK(FAILS(EINVAL, getpeername(ends[0], (struct sockaddr *)&name, &bytes)));
    struct msghdr message = {.msg_iovlen = 1025};
    CHECK(FAILS(EMSGSIZE, sendmsg(ends[0], &message, 0)) && FAILS(EMSGSIZE, recvmsg(ends[0], &message, 0)));
    _Alignas(8) char control[32];
    struct iovec part = {"x", 1};
    message = (struct msghdr){.msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    *(struct cmsghdr *)control = (struct cmsghdr){8, SOL_SOCKET, SCM_RIGHTS};
    CHECK(FAILS(EINVAL, sendmsg(ends[0], &message, 0)));
    *(struct cmsghdr *)control = (struct cmsghdr){33, SOL_SOCKET, SCM_RIGHTS};
    CHECK(FAILS(EINVAL, sendmsg(ends[0], &message, 0)));
    *(struct cmsghdr *)control = (struct cmsghdr){20, SOL_SOCKET, 77};
    CHECK(FAILS(EINVAL, sendmsg(ends[0], &message, 0)) && FAILS(EAGAIN, recv(ends[1], &byte, 1, MSG_DONTWAIT)));
    drop(ends);
}

static void several_messages_in_one_call(void) {
    int ends[2];
    char text[3][8];
    struct iovec out[3] = {{"a", 1}, {"bc", 2}, {"def", 3}}, in[3] = {{text[0], 8}, {text[1], 8}, {text[2], 2}};
    struct mmsghdr sent[3] = {0}, got[4] = {0};
    for (int n = 0; n < 3; n++) {
        sent[n].msg_hdr = (struct msghdr){.msg_iov = out + n, .msg_iovlen = 1};
        got[n].msg_hdr = (struct msghdr){.msg_iov = in + n, .msg_iovlen = 1};
    }
    make(SOCK_DGRAM, ends);
    CHECK(sendmmsg(ends[0], sent, 3, 0) == 3 && sent[2].msg_len == 3);
    CHECK(recvmmsg(ends[1], got, 4, MSG_WAITFORONE, 0) == 3 && got[1].msg_len == 2 && got[2].msg_len == 2);
    CHECK(got[2].msg_hdr.msg_flags == MSG_TRUNC && !memcmp(text[1], "bc", 2));
    CHECK(FAILS(EAGAIN, recvmmsg(ends[1], got, 4, MSG_DONTWAIT, 0)));
    drop(ends);
}

static void epoll_sees_edges(void) {
    int ends[2], set = epoll_create1(0);
    char text[8];
    make(SOCK_STREAM | SOCK_NONBLOCK, ends);
    struct epoll_event event = {EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, {0}}, got;
    CHECK(!epoll_ctl(set, EPOLL_CTL_ADD, ends[0], &event) && epoll_wait(set, &got, 1, 0) == 1 && got.events == EPOLLOUT);
    CHECK(epoll_wait(set, &got, 1, 0) == 0 && write(ends[1], "a", 1) == 1);
    CHECK(epoll_wait(set, &got, 1, 0) == 1 && got.events == (EPOLLIN | EPOLLOUT) && epoll_wait(set, &got, 1, 0) == 0);
    CHECK(write(ends[1], "b", 1) == 1 && epoll_wait(set, &got, 1, 0) == 1 && read(ends[0], text, 8) == 2);
    while (write(ends[0], much, 4096) > 0) continue;
    CHECK(epoll_wait(set, &got, 1, 0) == 0);
    while (read(ends[1], much, sizeof much) > 0) continue;
    CHECK(epoll_wait(set, &got, 1, 0) == 1 && got.events == EPOLLOUT);
    CHECK(!shutdown(ends[1], SHUT_WR) && epoll_wait(set, &got, 1, 0) == 1);
    CHECK(got.events == (EPOLLIN | EPOLLOUT | EPOLLRDHUP));
    drop(ends);
    close(set);
}

enum { SENDERS = 3, EACH = 500 };
static int shared[2];

static void *send_numbers(void *from) {
    for (long n = 0; n < EACH; n++) {
        long number = (long)from * EACH + n;
        CHECK(send(shared[0], &number, sizeof number, 0) == sizeof number);
    }
    return 0;
}

static void *receive_numbers(void *counts) {
    long number;
    while (recv(shared[1], &number, sizeof number, 0) == sizeof number) {
        __atomic_fetch_add((int *)counts + number, 1, __ATOMIC_RELAXED);
    }
    return 0;
}

static void threads_share_a_socket(void) {
    static int counts[SENDERS * EACH];
    pthread_t senders[SENDERS], receivers[2];
    make(SOCK_SEQPACKET, shared);
    for (long n = 0; n < SENDERS; n++) CHECK(!pthread_create(senders + n, 0, send_numbers, (void *)n));
    for (int n = 0; n < 2; n++) CHECK(!pthread_create(receivers + n, 0, receive_numbers, counts));
    for (int n = 0; n < SENDERS; n++) CHECK(!pthread_join(senders[n], 0));
    CHECK(!shutdown(shared[0], SHUT_WR));
    for (int n = 0; n < 2; n++) CHECK(!pthread_join(receivers[n], 0));
    for (int n = 0; n < SENDERS * EACH; n++) CHECK(counts[n] == 1);
    drop(shared);
}

int main(void) {
    signal(SIGPIPE, note);
    PART(messages_keep_their_boundaries);
    PART(stream_waits_for_all);
    PART(room_is_limited);
    PART(connection_reports_its_end);
    PART(datagrams_report_a_lost_receiver);
    PART(descriptors_travel_in_messages);
    PART(received_descriptors_need_free_numbers);
    PART(descriptors_in_flight_are_closed);
    PART(cycles_are_freed);
    PART(links_keep_no_socket_open);
    PART(flight_is_limited);
    PART(credentials_name_the_sender);
    PART(options_are_kept);
    PART(wrong_arguments_are_refused);
    PART(several_messages_in_one_call);
    PART(epoll_sees_edges);
    PART(threads_share_a_socket);
    return 0;
}
