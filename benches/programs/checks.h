/* Checks that a rank was started in the environment that it is promised (design.md, section 4).
 *
 * They cost a handful of system calls, so that the measured time is the launcher's: one poll() checks all
 * descriptors, where reading /proc/self/fd would take as long as the start itself. */
#ifndef CHECKS_H
#define CHECKS_H

#define _GNU_SOURCE
#include "page.h"

#include <poll.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>

enum { DESCRIPTORS_MAX = 256 };   /* checked: 3 up to this; leaked descriptors have low numbers */

static inline int env_number(const char *name)
{
    const char *text = getenv(name);
    return text && *text ? atoi(text) : -1;
}

/* Returns the rank, from the variable that this launcher sets. */
static inline int rank_of_environment(void)
{
    static const char *const names[] = { "PMI_RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "SLURM_PROCID" };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        int rank = env_number(names[i]);
        if (rank >= 0)
            return rank;
    }
    return -1;
}

static inline int rank_in(const struct page *page)
{
    int rank = rank_of_environment();
    if (rank < 0 || (uint64_t)rank >= page->np)
        _exit(EXIT_NO_RANK);
    return rank;
}

static inline int is_stream_socket(int fd)
{
    int type = 0;
    socklen_t size = sizeof type;
    struct sockaddr_storage peer;
    socklen_t peer_size = sizeof peer;
    return getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size) == 0 && type == SOCK_STREAM
        && getpeername(fd, (struct sockaddr *)&peer, &peer_size) == 0;
}

/* Slots of poll(): descriptors from 3, and last PMI_FD, which may be larger. scela-run's ranks inherit the file of the node's
 * topology as the one after PMI_FD. */
static inline unsigned char check_descriptors(int pmi_fd)
{
    struct pollfd slots[DESCRIPTORS_MAX - 3 + 1];
    const int count = DESCRIPTORS_MAX - 3;
    unsigned char wrong = 0;

    for (int i = 0; i < count; i++)
        slots[i] = (struct pollfd){ .fd = pmi_fd >= 0 && (i + 3 == pmi_fd || i + 3 == pmi_fd + 1) ? -1 : i + 3 };
    slots[count] = (struct pollfd){ .fd = pmi_fd, .events = POLLRDHUP };
    if (poll(slots, count + 1, 0) < 0)
        return OPEN_DESCRIPTOR;
    for (int i = 0; i < count; i++)
        if (slots[i].fd >= 0 && !(slots[i].revents & POLLNVAL))
            wrong |= OPEN_DESCRIPTOR;
    if (slots[count].revents & (POLLNVAL | POLLHUP | POLLRDHUP | POLLERR))
        wrong |= NO_SOCKET;
    return wrong;
}

/* `with_pmi` is 0 if the launcher does not serve PMI, like the floor. */
static inline unsigned char check_start(const struct page *page, int with_pmi)
{
    int pmi_fd = with_pmi ? env_number("PMI_FD") : -1;
    unsigned char wrong = check_descriptors(pmi_fd);
    struct rlimit limit;

    if (with_pmi && (pmi_fd < 3 || !is_stream_socket(pmi_fd)))
        wrong |= NO_SOCKET;
    if (with_pmi && pmi_fd >= 3 && (uint64_t)env_number("PMI_SIZE") != page->np)
        wrong |= WRONG_SIZE;
    if (getpgrp() != getpid())
        wrong |= NO_GROUP;
    if (getrlimit(RLIMIT_NOFILE, &limit) < 0 || limit.rlim_cur != page->nofile)
        wrong |= OTHER_LIMIT;
    return wrong;
}

#endif
