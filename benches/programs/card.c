/* `card KEYS BYTES FILE [cards]`: passes a fence in which all ranks get ready, puts KEYS values of BYTES bytes, and passes a
 * second fence. Appends a line to FILE: when this rank arrived at the second fence and when it was released, in
 * nanoseconds of the machine's monotonic clock. Values are random bytes. With `cards`, only every fourth 16 bytes are, and the rest
 * is the same in all values, as in the business cards of MPI libraries. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <inttypes.h>
#include <unistd.h>

#include "request.h"

enum { BYTES_MAX = 1023 };

int main(int argc, char **argv)
{
    const char *fd = getenv("PMI_FD"), *rank = getenv("PMI_RANK");
    if (argc < 4 || argc > 5 || !fd || !rank || !(server = fdopen(atoi(fd), "r+")))
        return 2;
    setvbuf(server, NULL, _IOFBF, 8192);
    int keys = atoi(argv[1]), bytes = atoi(argv[2]);
    if (bytes < 1 || bytes > BYTES_MAX)
        return 2;
    call("cmd=init pmi_version=1 pmi_subversion=1\n", "cmd=response_to_init");
    char name[256] = "", line[4096], value[BYTES_MAX + 1];
    fputs("cmd=get_my_kvsname\n", server);
    fflush(server);
    const char *field = fgets(line, sizeof line, server) ? strstr(line, " kvsname=") : NULL;
    if (!field || sscanf(field, " kvsname=%255s", name) != 1)
        return 1;
    call("cmd=barrier_in\n", "cmd=barrier_out");
    int cards = argc == 5;
    uint64_t state = (uint64_t)atoi(rank) * 1000003 + 1;
    for (int key = 0; key < keys; key++) {
        for (int at = 0; at < bytes; at++) {
            state ^= state << 13, state ^= state >> 7, state ^= state << 17;
            uint64_t digit = cards && at / 16 % 4 != 0 ? (uint64_t)at % 64 : state % 64;
            value[at] = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ-_"[digit];
        }
        value[bytes] = 0;
        snprintf(line, sizeof line, "cmd=put kvsname=%s key=card-%s-%d value=%s\n", name, rank, key, value);
        call(line, "cmd=put_result rc=0");
    }
    uint64_t arrived = now();
    call("cmd=barrier_in\n", "cmd=barrier_out");
    uint64_t released = now();
    call("cmd=finalize\n", "cmd=finalize_ack");
    int length = snprintf(line, sizeof line, "%" PRIu64 " %" PRIu64 "\n", arrived, released);
    int file = open(argv[3], O_WRONLY | O_APPEND);
    return file < 0 || write(file, line, (size_t)length) != length;
}
