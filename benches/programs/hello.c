/*
 * hello [READY GO]: the least MPI program that communicates: Open MPI connects ranks only when they do.
 *
 * With two FIFOs, each rank then writes a byte to READY and waits, asleep, until GO has a writer.
 */
#include <fcntl.h>
#include <mpi.h>
#include <unistd.h>

static int wait_between(const char *ready, const char *go)
{
    int fd = open(ready, O_WRONLY);
    if (fd < 0 || write(fd, "", 1) != 1 || close(fd) != 0)
        return 0;
    fd = open(go, O_RDONLY);
    return fd >= 0 && close(fd) == 0;
}

int main(int argc, char **argv)
{
    int one = 1, sum = 0, size = 0;
    MPI_Init(&argc, &argv);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Allreduce(&one, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    if (argc == 3 && !wait_between(argv[1], argv[2]))
        MPI_Abort(MPI_COMM_WORLD, 2);
    MPI_Finalize();
    return sum == size ? 0 : 1;
}
