/* `phases FROM STEP`: a PMI client whose phases begin at the same times in all ranks: at FROM seconds of CLOCK_MONOTONIC, and
 * STEP seconds after each other. Ranks sleep in between, so all that the machine does in a window belongs to one phase:
 *
 *   FROM            contact: init
 *   FROM + STEP     exchange: put, fence, two gets
 *   FROM + 2 STEP   finalize
 *   FROM + 3 STEP   exit */
#define _GNU_SOURCE
#include <errno.h>

#include "request.h"

static void sleep_until(double seconds)
{
    struct timespec until = { (time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9) };
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL) == EINTR)
        ;
}

int main(int argc, char **argv)
{
    const char *fd = getenv("PMI_FD"), *rank = getenv("PMI_RANK"), *size = getenv("PMI_SIZE");
    if (argc != 3 || !fd || !rank || !size || !(server = fdopen(atoi(fd), "r+")))
        return 2;
    setvbuf(server, NULL, _IOFBF, 8192);
    double from = atof(argv[1]), step = atof(argv[2]);
    char name[256] = "", line[4096];

    sleep_until(from);
    call("cmd=init pmi_version=1 pmi_subversion=1\n", "cmd=response_to_init");
    call("cmd=get_maxes\n", "cmd=maxes");
    fputs("cmd=get_my_kvsname\n", server);
    fflush(server);
    const char *field = fgets(line, sizeof line, server) ? strstr(line, " kvsname=") : NULL;
    if (!field || sscanf(field, " kvsname=%255s", name) != 1)
        return 1;

    sleep_until(from + step);
    snprintf(line, sizeof line, "cmd=put kvsname=%s key=card-%s value=%064d\n", name, rank, atoi(rank));
    call(line, "cmd=put_result");
    call("cmd=barrier_in\n", "cmd=barrier_out");
    for (int other = -1; other <= 1; other += 2) {
        snprintf(line, sizeof line, "cmd=get kvsname=%s key=card-%d\n", name, (atoi(rank) + atoi(size) + other) % atoi(size));
        call(line, "cmd=get_result rc=0");
    }

    sleep_until(from + 2 * step);
    call("cmd=finalize\n", "cmd=finalize_ack");
    sleep_until(from + 3 * step);
    return 0;
}
