/* `fences COUNT FILE`: passes COUNT fences, with 20 ms of sleep before each. Rank 0 appends a line to FILE for each: the time from
 * its arrival to its release, in nanoseconds. */
#include <inttypes.h>
#include <unistd.h>

#include "request.h"

int main(int argc, char **argv)
{
    const char *fd = getenv("PMI_FD"), *rank = getenv("PMI_RANK");
    if (argc != 3 || !fd || !rank || !(server = fdopen(atoi(fd), "r+")))
        return 2;
    call("cmd=init pmi_version=1 pmi_subversion=1\n", "cmd=response_to_init");
    FILE *times = atoi(rank) == 0 ? fopen(argv[2], "a") : NULL;
    for (int fence = atoi(argv[1]); fence > 0; fence--) {
        usleep(20000);
        uint64_t arrived = now();
        call("cmd=barrier_in\n", "cmd=barrier_out");
        if (times) {
            fprintf(times, "%" PRIu64 "\n", now() - arrived);
            fflush(times);
        }
    }
    call("cmd=finalize\n", "cmd=finalize_ack");
    return 0;
}
