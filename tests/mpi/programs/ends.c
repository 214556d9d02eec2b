/* ends.c HOW WHO CODE: rank WHO ends in the way HOW, while the others wait for it in a barrier.
 *
 * abort   MPI_Abort(CODE)
 * exit    _exit(CODE) without MPI_Finalize
 * signal  raise(CODE)
 * wait    writes a line and waits for a signal
 * after   every rank finalizes, then rank WHO returns CODE
 */
#include <mpi.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    int rank;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (argc < 4)
        MPI_Abort(MPI_COMM_WORLD, 99);
    const char *how = argv[1];
    int who = atoi(argv[2]), code = atoi(argv[3]);
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == who) {
        if (strcmp(how, "abort") == 0)
            MPI_Abort(MPI_COMM_WORLD, code);
        if (strcmp(how, "exit") == 0)
            _exit(code);
        if (strcmp(how, "signal") == 0)
            raise(code);
        if (strcmp(how, "wait") == 0) {
            printf("rank %d waits\n", rank);
            fflush(stdout);
            pause();
        }
    }
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Finalize();
    return rank == who ? code : 0;
}
