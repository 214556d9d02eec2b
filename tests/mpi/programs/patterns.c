/* Sends known patterns of messages, one for each argument, so that a profile of them can be compared number by number. A
 * pattern sends in each way that the MPI library has. The last argument may be the number of a rank that does not call
 * MPI_Finalize. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int rank, size;
static char out[1 << 16], in[1 << 16];

/* Each rank sends 100 bytes to the next one by each kind of send: 4 blocking, 4 nonblocking, and 3 starts of a persistent one. */
static void ring(MPI_Comm comm) {
    int next = (rank + 1) % size, before = (rank + size - 1) % size;
    MPI_Request requests[20];
    int count = 0;
    static char buffer[8 * (100 + MPI_BSEND_OVERHEAD)];
    for (int i = 0; i < 8; i++) MPI_Irecv(in + 100 * i, 100, MPI_BYTE, before, i, comm, &requests[count++]);
    MPI_Barrier(comm);
    MPI_Buffer_attach(buffer, sizeof buffer);
    MPI_Isend(out, 100, MPI_CHAR, next, 0, comm, &requests[count++]);
    MPI_Issend(out, 25, MPI_INT, next, 1, comm, &requests[count++]);
    MPI_Ibsend(out, 100, MPI_CHAR, next, 2, comm, &requests[count++]);
    MPI_Irsend(out, 100, MPI_CHAR, next, 3, comm, &requests[count++]);
    MPI_Send(out, 100, MPI_CHAR, next, 4, comm);
    MPI_Ssend(out, 100, MPI_CHAR, next, 5, comm);
    MPI_Bsend(out, 100, MPI_CHAR, next, 6, comm);
    MPI_Rsend(out, 100, MPI_CHAR, next, 7, comm);
    MPI_Waitall(count, requests, MPI_STATUSES_IGNORE);
    int bytes;
    void *detached;
    MPI_Buffer_detach(&detached, &bytes);
    MPI_Request pair[2];
    MPI_Send_init(out, 100, MPI_CHAR, next, 9, comm, &pair[0]);
    MPI_Recv_init(in, 100, MPI_CHAR, before, 9, comm, &pair[1]);
    for (int i = 0; i < 2; i++) {
        MPI_Startall(2, pair);
        MPI_Waitall(2, pair, MPI_STATUSES_IGNORE);
    }
    MPI_Start(&pair[1]);
    MPI_Start(&pair[0]);
    MPI_Waitall(2, pair, MPI_STATUSES_IGNORE);
    MPI_Request_free(&pair[0]);
    MPI_Request_free(&pair[1]);
    MPI_Send(out, 5, MPI_CHAR, MPI_PROC_NULL, 0, comm);
}

/* A halo of two dimensions without periods: 64 bytes in each direction, by sendrecv and by a neighbourhood collective. */
static void halo(void) {
    int dims[2] = {0, 0}, periods[2] = {0, 0};
    MPI_Comm grid;
    MPI_Dims_create(size, 2, dims);
    MPI_Cart_create(MPI_COMM_WORLD, 2, dims, periods, 0, &grid);
    for (int dimension = 0; dimension < 2; dimension++)
        for (int direction = -1; direction < 2; direction += 2) {
            int from, to;
            MPI_Cart_shift(grid, dimension, direction, &from, &to);
            MPI_Sendrecv(out, 8, MPI_DOUBLE, to, 0, in, 8, MPI_DOUBLE, from, 0, grid, MPI_STATUS_IGNORE);
        }
    MPI_Neighbor_alltoall(out, 8, MPI_DOUBLE, in, 8, MPI_DOUBLE, grid);
    MPI_Comm_free(&grid);
}

/* Each rank sends to each other one in columns of a square, through communicators whose ranks are in reverse order. */
static void transpose(void) {
    MPI_Comm column;
    int columns = 1;
    while ((columns + 1) * (columns + 1) <= size) columns++;
    /* Freed handles are used again: the ranks of a communicator must not be those of an earlier one. */
    for (int round = 0; round < 3; round++) {
        MPI_Comm_split(MPI_COMM_WORLD, (rank + round) % columns, -rank, &column);
        int here, there;
        MPI_Comm_rank(column, &here);
        MPI_Comm_size(column, &there);
        for (int other = 0; other < there; other++) {
            MPI_Request request;
            MPI_Isend(out, 10 + round, MPI_BYTE, other, 0, column, &request);
            MPI_Recv(in, 10 + round, MPI_BYTE, other, 0, column, MPI_STATUS_IGNORE);
            MPI_Wait(&request, MPI_STATUS_IGNORE);
        }
        MPI_Comm_free(&column);
    }
}

/* Messages of any length to any rank, by a generator that the test has, too; a third of them by MPI_Put. */
static void random_pairs(void) {
    unsigned state = 7;
    MPI_Win window;
    MPI_Win_create(in, sizeof in, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &window);
    MPI_Win_fence(0, window);
    for (int i = 0; i < 20 * size; i++) {
        state = state * 1103515245 + 12345;
        int from = (state >> 16) % size;
        state = state * 1103515245 + 12345;
        int to = (state >> 16) % size;
        state = state * 1103515245 + 12345;
        int bytes = (state >> 16) % 1000;
        if (i % 3 == 2) {
            if (rank == from) MPI_Put(out, bytes, MPI_BYTE, to, 0, bytes, MPI_BYTE, window);
        } else {
            MPI_Request request = MPI_REQUEST_NULL;
            if (rank == from) MPI_Isend(out, bytes, MPI_BYTE, to, i, MPI_COMM_WORLD, &request);
            if (rank == to) MPI_Recv(in, bytes, MPI_BYTE, from, i, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            MPI_Wait(&request, MPI_STATUS_IGNORE);
        }
    }
    MPI_Win_fence(0, window);
    /* Rank 0 fetches 48 bytes from each other rank. */
    if (rank == 0)
        for (int other = 1; other < size; other++) MPI_Get(out, 12, MPI_INT, other, 0, 12, MPI_INT, window);
    MPI_Win_fence(0, window);
    MPI_Win_free(&window);
}

/* Messages between two groups: the lower half sends 7 bytes to the rank of the same number in the upper half. */
static void between_groups(void) {
    MPI_Comm half, inter;
    int upper = rank >= size / 2;
    MPI_Comm_split(MPI_COMM_WORLD, upper, rank, &half);
    MPI_Intercomm_create(half, 0, MPI_COMM_WORLD, upper ? 0 : size / 2, 5, &inter);
    int here, there;
    MPI_Comm_rank(half, &here);
    MPI_Comm_remote_size(inter, &there);
    if (!upper && here < there) MPI_Send(out, 7, MPI_BYTE, here, 0, inter);
    if (upper && here < there) MPI_Recv(in, 7, MPI_BYTE, here, 0, inter, MPI_STATUS_IGNORE);
    MPI_Comm_free(&inter);
    MPI_Comm_free(&half);
}

/* One collective operation of each kind. */
static void collectives(void) {
    int *counts = malloc(size * sizeof *counts), *displacements = malloc(size * sizeof *displacements);
    for (int i = 0; i < size; i++) counts[i] = i % 3, displacements[i] = 3 * i;
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Bcast(out, 1000, MPI_BYTE, 1 % size, MPI_COMM_WORLD);
    MPI_Reduce(out, in, 10, MPI_INT, MPI_SUM, 0, MPI_COMM_WORLD);
    MPI_Allreduce(MPI_IN_PLACE, in, 10, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    if (rank == 0) MPI_Gather(MPI_IN_PLACE, 3, MPI_DATATYPE_NULL, in, 3, MPI_BYTE, 0, MPI_COMM_WORLD);
    else MPI_Gather(out, 3, MPI_BYTE, NULL, 0, MPI_DATATYPE_NULL, 0, MPI_COMM_WORLD);
    MPI_Scatter(out, 3, MPI_BYTE, in, 3, MPI_BYTE, 0, MPI_COMM_WORLD);
    MPI_Allgather(out, 4, MPI_BYTE, in, 4, MPI_BYTE, MPI_COMM_WORLD);
    MPI_Alltoall(out, 5, MPI_BYTE, in, 5, MPI_BYTE, MPI_COMM_WORLD);
    MPI_Allgatherv(out, counts[rank], MPI_BYTE, in, counts, displacements, MPI_BYTE, MPI_COMM_WORLD);
    for (int i = 0; i < size; i++) counts[i] = (rank + i) % 4;
    MPI_Alltoallv(MPI_IN_PLACE, NULL, NULL, MPI_DATATYPE_NULL, in, counts, displacements, MPI_BYTE, MPI_COMM_WORLD);
    MPI_Request request;
    MPI_Ibcast(out, 2000, MPI_BYTE, 0, MPI_COMM_WORLD, &request);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    free(counts);
    free(displacements);
}

/* Waits until all other ranks have handed their counts to the agent, whose file is descriptor 12. */
static void await_others(void) {
    for (int rows = 0; rows < size - 1; usleep(1000)) {
        unsigned length;
        off_t at = 0;
        for (rows = 0; pread(12, &length, 4, at) == 4; rows++) at += 4 + length;
    }
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    int unfinished = -1;
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "ring")) ring(MPI_COMM_WORLD);
        else if (!strcmp(argv[i], "halo")) halo();
        else if (!strcmp(argv[i], "transpose")) transpose();
        else if (!strcmp(argv[i], "random")) random_pairs();
        else if (!strcmp(argv[i], "groups")) between_groups();
        else if (!strcmp(argv[i], "collectives")) collectives();
        else unfinished = atoi(argv[i]);
    }
    if (rank == unfinished) {
        await_others();
        _exit(0);
    }
    MPI_Finalize();
    return 0;
}
