/* `halo X Y Z BYTES ROUNDS SEED`: each rank owns a cell of a periodic grid, and exchanges BYTES with the cells beside it,
 * ROUNDS times. Ranks own cells in order if SEED is 0, and else in an order drawn from it. Rank 0 prints the seconds from the
 * barrier before the first round to the barrier after the last one. */
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* Waits without spinning: the ranks of all hosts share the cores of one machine. */
static void complete(int count, MPI_Request *requests)
{
    for (int done = 0;;) {
        MPI_Testall(count, requests, &done, MPI_STATUSES_IGNORE);
        if (done)
            return;
        usleep(200);
    }
}

static void meet(void)
{
    MPI_Request request;
    MPI_Ibarrier(MPI_COMM_WORLD, &request);
    complete(1, &request);
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    int rank, size, sizes[3], at[3];
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (argc != 7)
        return 2;
    for (int d = 0; d < 3; d++)
        sizes[d] = atoi(argv[1 + d]);
    int bytes = atoi(argv[4]), rounds = atoi(argv[5]);
    uint64_t state = strtoull(argv[6], NULL, 10);
    int *cell_of = malloc(size * sizeof *cell_of), *rank_of = malloc(size * sizeof *rank_of);
    if (sizes[0] * sizes[1] * sizes[2] != size || !cell_of || !rank_of)
        return 2;
    for (int i = 0; i < size; i++)
        cell_of[i] = i;
    for (int i = size - 1; i > 0 && state; i--) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        int j = (state >> 33) % (i + 1), kept = cell_of[i];
        cell_of[i] = cell_of[j];
        cell_of[j] = kept;
    }
    for (int i = 0; i < size; i++)
        rank_of[cell_of[i]] = i;
    int cell = cell_of[rank];
    at[0] = cell / (sizes[1] * sizes[2]), at[1] = cell / sizes[2] % sizes[1], at[2] = cell % sizes[2];
    int neighbours[6], faces = 0;
    for (int d = 0; d < 3; d++) {
        int steps[2] = {1, sizes[d] - 1};
        /* Two cells are beside each other on both sides, and one cell is alone. */
        for (int i = 0; i < 2 && i < sizes[d] - 1; i++) {
            int to[3] = {at[0], at[1], at[2]};
            to[d] = (at[d] + steps[i]) % sizes[d];
            neighbours[faces++] = rank_of[(to[0] * sizes[1] + to[1]) * sizes[2] + to[2]];
        }
    }
    char *out = calloc(faces, bytes), *in = malloc((size_t)faces * bytes);
    if (!out || !in)
        return 2;
    meet();
    double began = MPI_Wtime();
    for (int round = 0; round < rounds; round++) {
        MPI_Request requests[12];
        for (int f = 0; f < faces; f++)
            MPI_Irecv(in + (size_t)f * bytes, bytes, MPI_BYTE, neighbours[f], 0, MPI_COMM_WORLD, &requests[f]);
        for (int f = 0; f < faces; f++)
            MPI_Isend(out + (size_t)f * bytes, bytes, MPI_BYTE, neighbours[f], 0, MPI_COMM_WORLD, &requests[faces + f]);
        complete(2 * faces, requests);
    }
    meet();
    if (rank == 0)
        printf("halo %.6f\n", MPI_Wtime() - began);
    MPI_Finalize();
    return 0;
}
