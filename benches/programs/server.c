/* The floor of a job that speaks PMI: `server PAGE PROGRAM MODE WORKERS`. PROGRAM is started with PAGE and MODE.
 *
 * A server of PMI-1 over sockets without a tree: one process answers all ranks. Worker processes start them as the
 * floor does. A worker sends the server's end of each rank's socket to the server, so that no start copies a large
 * table of descriptors. There are no agents, links, guardians, output pipes or other services: what a launcher needs
 * beyond this is its own. Ranks that wait in a fence are released two at a time, and what they ask next is answered
 * before the next two are released, because ranks that run in turns get all from the caches. With MODE `wakes`, one futex
 * call releases all ranks instead. */
#define _GNU_SOURCE
#include "spawn.h"

#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>

enum {
    PMI_FD = 10,
    RELEASED_AT_ONCE = 2,
    EVENTS_MAX = 64,
    LINE_BYTES_MAX = 4096,
    WORKER = 1 << 30,             /* marks the events of workers */
};

/* A rank's connection, with the beginning of a line that has not arrived whole. */
struct rank {
    int fd;
    size_t length;
    char *partial;
};

struct entry {
    char *key, *value;
};

static struct page *page;
static int wakes;
static struct rank *ranks;
static uint64_t np, arrived, released, gone;
static struct entry *board;
static size_t board_mask;
static int poller;

static void fail(const char *what)
{
    fprintf(stderr, "server: %s: %s\n", what, strerror(errno));
    _exit(EXIT_CHILD);
}

/* Returns the slot of a key, which is empty if the board does not have it. */
static struct entry *slot_of(const char *key)
{
    uint64_t hash = 0xcbf29ce484222325u;
    for (const char *at = key; *at; at++)
        hash = (hash ^ (unsigned char)*at) * 0x100000001b3u;
    size_t at = hash & board_mask;
    while (board[at].key && strcmp(board[at].key, key) != 0)
        at = (at + 1) & board_mask;
    return &board[at];
}

static void answer(const struct rank *rank, const char *text, size_t length)
{
    /* Replies are far shorter than the buffer of a socket, and a rank waits for each of them. */
    if (send(rank->fd, text, length, MSG_NOSIGNAL) != (ssize_t)length)
        fail("send");
}

static void say(const struct rank *rank, const char *text) { answer(rank, text, strlen(text)); }

/* Returns what follows ` name=` in a line; 0 if it is absent. */
static char *field(char *line, const char *name)
{
    char *at = strstr(line, name);
    return at ? at + strlen(name) : 0;
}

static void serve(struct rank *rank, char *line)
{
    if (strncmp(line, "cmd=get ", 8) == 0) {
        char reply[LINE_BYTES_MAX];
        char *key = field(line, " key=");
        const struct entry *found = key ? slot_of(key) : 0;
        int length = found && found->key
            ? snprintf(reply, sizeof reply, "cmd=get_result rc=0 msg=success value=%s\n", found->value)
            : snprintf(reply, sizeof reply, "cmd=get_result rc=-1 msg=absent\n");
        answer(rank, reply, (size_t)length);
    } else if (strncmp(line, "cmd=put ", 8) == 0) {
        char *key = field(line, " key="), *value = field(line, " value=");
        if (!key || !value)
            fail("put without key or value");
        key[strcspn(key, " ")] = 0;
        struct entry *slot = slot_of(key);
        free(slot->value);
        if (!slot->key)
            slot->key = strdup(key);
        slot->value = strdup(value);
        if (!slot->key || !slot->value)
            fail("strdup");
        say(rank, "cmd=put_result rc=0 msg=success\n");
    } else if (strcmp(line, "cmd=barrier_in") == 0) {
        if (++arrived == np) {
            arrived = 0;
            if (wakes) {
                atomic_fetch_add(&page->released, 1);
                syscall(SYS_futex, &page->released, FUTEX_WAKE, INT_MAX, 0, 0, 0);
            } else {
                released = 0;
            }
        }
    } else if (strncmp(line, "cmd=init ", 9) == 0) {
        say(rank, "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0\n");
    } else if (strcmp(line, "cmd=get_maxes") == 0) {
        say(rank, "cmd=maxes kvsname_max=256 keylen_max=64 vallen_max=1024\n");
    } else if (strcmp(line, "cmd=get_my_kvsname") == 0) {
        say(rank, "cmd=my_kvsname kvsname=floor\n");
    } else if (strcmp(line, "cmd=finalize") == 0) {
        say(rank, "cmd=finalize_ack\n");
    } else {
        errno = EPROTO;
        fail(line);
    }
}

/* Reads what a rank has sent, and answers each whole line. */
static void hear(struct rank *rank)
{
    static char buffer[2 * LINE_BYTES_MAX];
    if (rank->length > 0)
        memcpy(buffer, rank->partial, rank->length);
    ssize_t got = recv(rank->fd, buffer + rank->length, LINE_BYTES_MAX, 0);
    if (got < 0 && errno == EINTR)
        return;
    if (got <= 0) {
        close(rank->fd);
        gone++;
        return;
    }
    char *line = buffer, *end = buffer + rank->length + got, *newline;
    while ((newline = memchr(line, '\n', (size_t)(end - line)))) {
        *newline = 0;
        serve(rank, line);
        line = newline + 1;
    }
    rank->length = (size_t)(end - line);
    if (rank->length >= LINE_BYTES_MAX)
        fail("a line is too long");
    if (rank->length > 0 && !rank->partial && !(rank->partial = malloc(LINE_BYTES_MAX)))
        fail("malloc");
    if (rank->length > 0)
        memcpy(rank->partial, line, rank->length);
}

static void watch(int fd, uint64_t data)
{
    struct epoll_event event = { .events = EPOLLIN, .data.u64 = data };
    if (epoll_ctl(poller, EPOLL_CTL_ADD, fd, &event) != 0)
        fail("epoll_ctl");
}

/* The message of a worker about a rank: its number, with our end of its socket. */
union rights {
    char bytes[CMSG_SPACE(sizeof(int))];
    struct cmsghdr aligned;
};

/* Takes the socket of a rank that a worker is starting. Returns 0 if the worker has started all of its ranks. */
static int take_rank(int worker)
{
    uint64_t rank;
    union rights rights;
    struct iovec part = { &rank, sizeof rank };
    struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1, .msg_control = &rights, .msg_controllen = sizeof rights };
    ssize_t got = recvmsg(worker, &message, MSG_CMSG_CLOEXEC);
    if (got == 0)
        return 0;
    const struct cmsghdr *head = got == sizeof rank ? CMSG_FIRSTHDR(&message) : 0;
    if (!head || rank >= np)
        fail("recvmsg");
    memcpy(&ranks[rank].fd, CMSG_DATA(head), sizeof(int));
    watch(ranks[rank].fd, rank);
    return 1;
}

static void give_rank(int server, uint64_t rank, int fd)
{
    union rights rights = { .bytes = { 0 } };
    struct iovec part = { &rank, sizeof rank };
    struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1, .msg_control = &rights, .msg_controllen = sizeof rights };
    struct cmsghdr *head = CMSG_FIRSTHDR(&message);
    head->cmsg_level = SOL_SOCKET;
    head->cmsg_type = SCM_RIGHTS;
    head->cmsg_len = CMSG_LEN(sizeof fd);
    memcpy(CMSG_DATA(head), &fd, sizeof fd);
    if (sendmsg(server, &message, MSG_NOSIGNAL) < 0)
        _exit(EXIT_SPAWN);
}

static void work(int server, char **args, uint64_t first, uint64_t end)
{
    char rank_text[32], size_text[32], fd_text[32];
    char *added[] = { rank_text, size_text, fd_text };
    struct starts starts = starts_prepare(added, 3);
    snprintf(size_text, sizeof size_text, "PMI_SIZE=%llu", (unsigned long long)np);
    snprintf(fd_text, sizeof fd_text, "PMI_FD=%d", PMI_FD);
    for (uint64_t rank = first; rank < end; rank++) {
        int pair[2];
        if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0)
            _exit(EXIT_SPAWN);
        posix_spawn_file_actions_t files;
        posix_spawn_file_actions_init(&files);
        posix_spawn_file_actions_adddup2(&files, pair[1], PMI_FD);
        snprintf(rank_text, sizeof rank_text, "PMI_RANK=%llu", (unsigned long long)rank);
        give_rank(server, rank, pair[0]);
        start_rank(&starts, &files, args);
        posix_spawn_file_actions_destroy(&files);
        close(pair[0]);
        close(pair[1]);
    }
    close(server);
    _exit(reap_all() ? 0 : EXIT_CHILD);
}

/* Releases the next ranks of a fence. */
static void release(void)
{
    for (int i = 0; i < RELEASED_AT_ONCE && released < np; i++)
        say(&ranks[released++], "cmd=barrier_out\n");
}

/* The limit is raised for this process only: ranks get the shell's. */
static void raise_limit(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0)
        fail("getrlimit");
    limit.rlim_cur = limit.rlim_max;
    if (setrlimit(RLIMIT_NOFILE, &limit) != 0)
        fail("setrlimit");
}

int main(int argc, char **argv)
{
    if (argc != 5)
        return EXIT_NO_PAGE;
    page = page_open(argv[1]);
    np = page->np;
    wakes = strcmp(argv[3], "wakes") == 0;
    uint64_t workers = strtoull(argv[4], 0, 10);
    for (board_mask = 1; board_mask < 2 * np * 4;)
        board_mask *= 2;
    ranks = calloc(np, sizeof *ranks);
    board = calloc(board_mask, sizeof *board);
    board_mask--;
    poller = epoll_create1(EPOLL_CLOEXEC);
    released = np;
    if (workers == 0 || !ranks || !board || poller < 0)
        fail("set-up");

    char *args[] = { argv[2], argv[1], argv[3], 0 };
    for (uint64_t i = 0; i < workers; i++) {
        int pair[2];
        if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0)
            fail("socketpair");
        pid_t pid = fork();
        if (pid < 0)
            fail("fork");
        if (pid == 0) {
            close(poller);
            close(pair[0]);
            work(pair[1], args, np * i / workers, np * (i + 1) / workers);
        }
        close(pair[1]);
        watch(pair[0], WORKER | (uint64_t)pair[0]);
    }
    raise_limit();

    while (gone < np) {
        struct epoll_event events[EVENTS_MAX];
        int count = epoll_wait(poller, events, EVENTS_MAX, released < np ? 0 : -1);
        if (count < 0 && errno != EINTR)
            fail("epoll_wait");
        for (int i = 0; i < count; i++) {
            uint64_t data = events[i].data.u64;
            if (data & WORKER) {
                int worker = (int)(data & ~(uint64_t)WORKER);
                /* Later workers have a copy of the descriptor, so closing it would not remove it from the set. */
                if (!take_rank(worker) && epoll_ctl(poller, EPOLL_CTL_DEL, worker, 0) != 0)
                    fail("epoll_ctl");
            } else {
                hear(&ranks[data]);
            }
        }
        if (released < np)
            release();
    }
    return reap_all() ? 0 : EXIT_CHILD;
}
