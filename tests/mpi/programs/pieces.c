/* pieces.c LINES: every rank writes LINES lines, each in several writes. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv)
{
    int rank, lines = argc > 1 ? atoi(argv[1]) : 1;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    for (int line = 0; line < lines; line++) {
        printf("rank %d", rank);
        printf(" says line %d", line);
        printf(" in pieces");
        printf("\n");
    }
    MPI_Finalize();
    return 0;
}
