/* The kernel's floor: `floor PAGE PROGRAM WORKERS`.
 *
 * One worker process per core starts its share of the ranks with posix_spawn, one after another, and reaps them.
 * Nothing is served, read or forwarded: no launcher can be faster. This is a small static program rather than the
 * bench itself, so that no large page tables or extra descriptors slow it down. It writes its time to the page, from
 * before the first worker is forked until the last one is reaped. */
#define _GNU_SOURCE
#include "page.h"

#include <errno.h>
#include <spawn.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>

extern char **environ;

enum { EXIT_SPAWN = 92, EXIT_CHILD = 93 };

/* Reaps all children; returns 0 if one of them failed. */
static int reap_all(void)
{
    int status, good = 1;
    for (;;) {
        pid_t pid = wait(&status);
        if (pid < 0 && errno == EINTR)
            continue;
        if (pid < 0)
            return good;
        if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
            good = 0;
    }
}

static void work(char *program, char *path, uint64_t first, uint64_t end)
{
    size_t count = 0;
    while (environ[count])
        count++;
    char **env = malloc((count + 2) * sizeof *env);
    char rank_text[32];
    if (!env)
        _exit(EXIT_SPAWN);
    memcpy(env, environ, count * sizeof *env);
    env[count] = rank_text;
    env[count + 1] = 0;

    posix_spawnattr_t own_group;
    posix_spawnattr_init(&own_group);
    posix_spawnattr_setflags(&own_group, POSIX_SPAWN_SETPGROUP);
    char *args[] = { program, path, "bare", 0 };

    for (uint64_t rank = first; rank < end; rank++) {
        pid_t pid;
        snprintf(rank_text, sizeof rank_text, "PMI_RANK=%llu", (unsigned long long)rank);
        if (posix_spawn(&pid, program, 0, &own_group, args, env) != 0)
            _exit(EXIT_SPAWN);
    }
    _exit(reap_all() ? 0 : EXIT_CHILD);
}

int main(int argc, char **argv)
{
    if (argc != 4)
        return EXIT_NO_PAGE;
    struct page *page = page_open(argv[1]);
    uint64_t workers = strtoull(argv[3], 0, 10);
    if (workers == 0)
        return EXIT_NO_PAGE;

    page->start_ns = now_ns();
    for (uint64_t i = 0; i < workers; i++) {
        pid_t pid = fork();
        if (pid < 0)
            return EXIT_SPAWN;
        if (pid == 0)
            work(argv[2], argv[1], page->np * i / workers, page->np * (i + 1) / workers);
    }
    int good = reap_all();
    page->end_ns = now_ns();
    return good ? 0 : EXIT_CHILD;
}
