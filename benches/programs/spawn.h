/* Starting ranks as fast as the kernel can: one worker process per core starts its share with posix_spawn, one after
 * another, and reaps them. */
#ifndef SPAWN_H
#define SPAWN_H

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

/* The set-up of a worker's starts. */
struct starts {
    char **env;                   /* the environment of this process, and then `added` */
    posix_spawnattr_t own_group;
};

/* Prepares starts whose ranks get `count` further variables, of which the texts may change between starts. */
static struct starts starts_prepare(char **added, size_t count)
{
    struct starts starts;
    size_t own = 0;
    while (environ[own])
        own++;
    starts.env = malloc((own + count + 1) * sizeof *starts.env);
    if (!starts.env)
        _exit(EXIT_SPAWN);
    memcpy(starts.env, environ, own * sizeof *starts.env);
    memcpy(starts.env + own, added, count * sizeof *starts.env);
    starts.env[own + count] = 0;
    posix_spawnattr_init(&starts.own_group);
    posix_spawnattr_setflags(&starts.own_group, POSIX_SPAWN_SETPGROUP);
    return starts;
}

/* Starts a rank, as leader of its own process group. Exits if that fails. */
static void start_rank(const struct starts *starts, const posix_spawn_file_actions_t *files, char **args)
{
    pid_t pid;
    if (posix_spawn(&pid, args[0], files, &starts->own_group, args, starts->env) != 0)
        _exit(EXIT_SPAWN);
}

#endif
