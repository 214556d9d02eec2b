/* Every rank queries its number and its node, takes part in an Allreduce and a ring, and writes one line.
 * The line ends with "right" only if all sums are right. */
#include <mpi.h>
#include <stdio.h>
#include <string.h>

int main(int argc, char **argv)
{
    int rank, size, found, universe = -1, appnum = -1, *value;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);

    MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_UNIVERSE_SIZE, &value, &found);
    if (found)
        universe = *value;
    MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_APPNUM, &value, &found);
    if (found)
        appnum = *value;

    MPI_Comm node;
    int local, locals;
    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, rank, MPI_INFO_NULL, &node);
    MPI_Comm_rank(node, &local);
    MPI_Comm_size(node, &locals);
    MPI_Comm_free(&node);

    long one = rank + 1, sum = 0;
    MPI_Allreduce(&one, &sum, 1, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);

    /* A token travels around the ring and each rank adds its number. Its size requires a rendezvous. */
    static long token[32768];
    int next = (rank + 1) % size, previous = (rank + size - 1) % size;
    if (size == 1) {
        token[0] = 1;
    } else if (rank == 0) {
        token[0] = 1;
        MPI_Send(token, 32768, MPI_LONG, next, 7, MPI_COMM_WORLD);
        MPI_Recv(token, 32768, MPI_LONG, previous, 7, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    } else {
        MPI_Recv(token, 32768, MPI_LONG, previous, 7, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        token[0] += rank + 1;
        MPI_Send(token, 32768, MPI_LONG, next, 7, MPI_COMM_WORLD);
    }
    long all = (long) size * (size + 1) / 2;
    long mine = rank == 0 ? all : (long) (rank + 1) * (rank + 2) / 2;
    const char *verdict = sum == all && token[0] == mine ? "right" : "WRONG";
    printf("rank %d of %d, local %d of %d, universe %d, app %d%s%s: %s\n", rank, size, local, locals, universe, appnum,
           argc > 1 ? ", " : "", argc > 1 ? argv[1] : "", verdict);
    MPI_Finalize();
    return strcmp(verdict, "right") != 0;
}
