/* `flood ADDRESS BYTES`: sends BYTES bytes over TCP to the `flood` at ADDRESS, while it receives what another one sends.
 * Ends when both are done. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { PORT = 20000, CHUNK = 64 * 1024, ATTEMPTS = 1000 };

static char chunk[CHUNK];

static int fail(const char *call)
{
    perror(call);
    return 1;
}

/* Connects; the other program may not listen yet. */
static int connected(const struct sockaddr_in *peer)
{
    const struct timespec pause = { .tv_nsec = 10 * 1000 * 1000 };
    for (int attempt = 0; attempt < ATTEMPTS; attempt++, nanosleep(&pause, NULL)) {
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (fd < 0 || connect(fd, (const struct sockaddr *)peer, sizeof *peer) == 0)
            return fd;
        close(fd);
        if (errno != ECONNREFUSED)
            return -1;
    }
    return -1;
}

static int send_all(const struct sockaddr_in *peer, long bytes)
{
    int fd = connected(peer);
    if (fd < 0)
        return fail("connect");
    while (bytes > 0) {
        ssize_t sent = send(fd, chunk, bytes < CHUNK ? (size_t)bytes : CHUNK, MSG_NOSIGNAL);
        if (sent < 0)
            return fail("send");
        bytes -= sent;
    }
    return 0;
}

int main(int argc, char **argv)
{
    struct sockaddr_in own = { .sin_family = AF_INET, .sin_port = htons(PORT), .sin_addr = { htonl(INADDR_ANY) } };
    struct sockaddr_in peer = own;
    if (argc != 3 || inet_pton(AF_INET, argv[1], &peer.sin_addr) != 1)
        return 2;
    int on = 1, listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (listener < 0 || setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0
        || bind(listener, (struct sockaddr *)&own, sizeof own) != 0 || listen(listener, 1) != 0)
        return fail("listen");
    pid_t sender = fork();
    if (sender < 0)
        return fail("fork");
    if (sender == 0)
        return send_all(&peer, atol(argv[2]));
    int fd = accept(listener, NULL, NULL);
    ssize_t received = 0;
    while (fd >= 0 && (received = recv(fd, chunk, CHUNK, 0)) > 0) {
    }
    int status = 0;
    if (fd < 0 || received < 0)
        return fail("receive");
    if (waitpid(sender, &status, 0) != sender)
        return fail("wait");
    return status != 0;
}
