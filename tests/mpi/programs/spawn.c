/* spawn.c [ROUNDS]: in each round the ranks spawn three more ranks of this program. Parents and children
 * merge into one group, sum up their ranks, and write one line each. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

static void meet(const char *who, MPI_Comm others, int high)
{
    MPI_Comm both;
    int rank, size, remote, all, mine, sum;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Comm_remote_size(others, &remote);
    MPI_Intercomm_merge(others, high, &both);
    MPI_Comm_size(both, &all);
    MPI_Comm_rank(both, &mine);
    MPI_Allreduce(&mine, &sum, 1, MPI_INT, MPI_SUM, both);
    printf("%s %d of %d: %d met, %d together, sum %d\n", who, rank, size, remote, all, sum);
    fflush(stdout);
    MPI_Comm_free(&both);
    MPI_Comm_disconnect(&others);
}

int main(int argc, char **argv)
{
    MPI_Comm others;
    MPI_Init(&argc, &argv);
    MPI_Comm_get_parent(&others);
    if (others != MPI_COMM_NULL) {
        meet("child", others, 1);
    } else {
        for (int rounds = argc > 1 ? atoi(argv[1]) : 1; rounds > 0; rounds--) {
            MPI_Comm_spawn(argv[0], MPI_ARGV_NULL, 3, MPI_INFO_NULL, 0, MPI_COMM_WORLD, &others,
                           MPI_ERRCODES_IGNORE);
            meet("parent", others, 0);
        }
    }
    MPI_Finalize();
    return 0;
}
