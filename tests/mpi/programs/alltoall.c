/* Every rank sends a number of its own to every other one, and writes whether it has got the right ones. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv)
{
    int rank, size, wrong = 0;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    int *sent = malloc(size * sizeof *sent), *got = malloc(size * sizeof *got);
    for (int other = 0; other < size; other++)
        sent[other] = rank * size + other;
    MPI_Alltoall(sent, 1, MPI_INT, got, 1, MPI_INT, MPI_COMM_WORLD);
    for (int other = 0; other < size; other++)
        wrong += got[other] != other * size + rank;
    printf("rank %d of %d: %d wrong\n", rank, size, wrong);
    MPI_Finalize();
    return 0;
}
