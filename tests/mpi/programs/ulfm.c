/* The last rank kills itself; the others shrink the world and finish. */
#include <mpi.h>
#include <mpi-ext.h>
#include <signal.h>
#include <stdio.h>

int main(int argc, char **argv)
{
    int rank, size, survivors = 0, one = 1, sum = 0;
    MPI_Comm rest;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == size - 1) {
        raise(SIGKILL);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    MPIX_Comm_revoke(MPI_COMM_WORLD);
    if (MPIX_Comm_shrink(MPI_COMM_WORLD, &rest) == MPI_SUCCESS) {
        MPI_Comm_size(rest, &survivors);
        MPI_Allreduce(&one, &sum, 1, MPI_INT, MPI_SUM, rest);
    }
    printf("rank %d: %d survivors, sum %d\n", rank, survivors, sum);
    fflush(stdout);
    MPI_Finalize();
    return 0;
}
