/* Compares the state of the host program before and after calls of the library: signals, threads, the environment,
 * the working directory, the umask, open descriptors, children. */
#define _GNU_SOURCE
#include "either.h"

#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/wait.h>

extern char **environ;

struct state {
    char status[4096], environment[65536], directory[4096];
    int mask, descriptors, is_subreaper, has_children;
    struct itimerval timer;
};

static void read_state(struct state *state)
{
    static const char *const lines[] = {
        "Threads:", "SigPnd:", "ShdPnd:", "SigBlk:", "SigIgn:", "SigCgt:", "NoNewPrivs:",
    };
    char line[4096];
    FILE *file = fopen("/proc/self/status", "r");
    memset(state, 0, sizeof *state);
    while (fgets(line, sizeof line, file))
        for (size_t i = 0; i < sizeof lines / sizeof *lines; i++)
            if (strncmp(line, lines[i], strlen(lines[i])) == 0)
                strcat(state->status, line);
    fclose(file);
    for (char **entry = environ; *entry; entry++)
        if (strlen(state->environment) + strlen(*entry) + 2 < sizeof state->environment)
            strcat(strcat(state->environment, *entry), "\n");
    if (!getcwd(state->directory, sizeof state->directory))
        must(errno, "getcwd");
    umask((mode_t)(state->mask = umask(0)));
    DIR *open_files = opendir("/proc/self/fd");
    while (readdir(open_files))
        state->descriptors++;
    closedir(open_files);
    prctl(PR_GET_CHILD_SUBREAPER, &state->is_subreaper);
    state->has_children = waitpid(-1, NULL, WNOHANG) != -1;
    getitimer(ITIMER_REAL, &state->timer);
}

static int same(const struct state *before, const struct state *now, const char *when)
{
    int differences = 0;
#define SAME(what, holds)                                               \
    if (!(holds)) {                                                     \
        printf("%d: %s changed by %s\n", rank, what, when);             \
        differences++;                                                  \
    }
    SAME("signals or threads", strcmp(before->status, now->status) == 0)
    SAME("environment", strcmp(before->environment, now->environment) == 0)
    SAME("directory", strcmp(before->directory, now->directory) == 0)
    SAME("umask", before->mask == now->mask)
    SAME("subreaper", before->is_subreaper == now->is_subreaper)
    SAME("children", before->has_children == now->has_children)
    SAME("timer", memcmp(&before->timer, &now->timer, sizeof before->timer) == 0)
    if (differences)
        printf("before:\n%s%snow:\n%s%s", before->status, before->environment, now->status, now->environment);
    return differences;
}

static void handler(int number)
{
    (void)number;
}

int main(void)
{
    static struct state before, now;
    int differences = 0;
    sigset_t blocked;
    /* Settings that differ from the defaults. */
    signal(SIGPIPE, SIG_DFL);
    signal(SIGUSR1, handler);
    signal(SIGUSR2, SIG_IGN);
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGHUP);
    sigprocmask(SIG_BLOCK, &blocked, NULL);
    umask(027);
    read_state(&before);
    begin();
    read_state(&now);
    differences += same(&before, &now, "init");
    put("key", "value");
    fence();
    expect("key", "value");
    int in_use = now.descriptors;
    read_state(&now);
    differences += same(&before, &now, "put, fence and get");
    for (int i = 0; i < 50; i++)
        fence();
    read_state(&now);
    differences += same(&before, &now, "many fences");
    /* A board needs one descriptor at most; one opened for each call would show here. */
    if (now.descriptors > in_use + 2) {
        printf("%d: %d descriptors became %d\n", rank, in_use, now.descriptors);
        differences++;
    }
    end();
    read_state(&now);
    differences += same(&before, &now, "finalize");
    if (now.descriptors > before.descriptors + 1) {
        printf("%d: %d descriptors became %d at the end\n", rank, before.descriptors, now.descriptors);
        differences++;
    }
    if (differences == 0)
        printf("%d: nothing has changed\n", rank);
    return differences != 0;
}
