// Sums over steps. Each rank writes its sum to a file after each step; at a start all ranks go on from the newest step
// that every rank has written. Arguments: a directory, the number of steps, and the step in which rank 1 crashes if there
// is no file "crashed" in the directory yet.
#include <fcntl.h>
#include <limits.h>
#include <mpi.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static void path_of(char *path, const char *directory, int rank, int step) {
    snprintf(path, PATH_MAX, "%s/%d.%d", directory, rank, step);
}

static void save(const char *directory, int rank, int step, long sum) {
    char path[PATH_MAX], temporary[PATH_MAX];
    path_of(path, directory, rank, step);
    snprintf(temporary, PATH_MAX, "%s/%d.new", directory, rank);
    FILE *file = fopen(temporary, "w");
    fprintf(file, "%ld\n", sum);
    fclose(file);
    rename(temporary, path);
}

int main(int argc, char **argv) {
    int rank, size, step = 0;
    long sum = 0;
    char path[PATH_MAX];
    const char *directory = argv[1];
    int steps = atoi(argv[2]), crash = atoi(argv[3]);
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    int newest = 0;
    for (path_of(path, directory, rank, 1); access(path, R_OK) == 0; path_of(path, directory, rank, newest + 1)) newest++;
    MPI_Allreduce(&newest, &step, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
    if (step > 0) {
        path_of(path, directory, rank, step);
        FILE *file = fopen(path, "r");
        if (fscanf(file, "%ld", &sum) != 1) MPI_Abort(MPI_COMM_WORLD, 2);
        fclose(file);
    }
    if (rank == 0) printf("from step %d\n", step);
    fflush(stdout);
    while (step < steps) {
        step++;
        if (rank == 1 && step == crash) {
            snprintf(path, PATH_MAX, "%s/crashed", directory);
            if (open(path, O_CREAT | O_EXCL, 0600) >= 0) raise(SIGKILL);
        }
        long mine = (long)step * (rank + 1), all;
        MPI_Allreduce(&mine, &all, 1, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
        sum += all;
        save(directory, rank, step, sum);
        MPI_Barrier(MPI_COMM_WORLD);
    }
    if (rank == 0) printf("sum %ld\n", sum);
    MPI_Finalize();
    return 0;
}
