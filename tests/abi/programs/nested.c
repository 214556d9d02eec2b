/* A rank that runs other launchers with system(3), before, between and after its PMI calls: `nested COMMAND`. Neither
 * may see the other. The launchers start `nested inner`. */
#include "either.h"

static const char *command;

/* Runs the command and ends the rank if it fails. */
static void launch(const char *when)
{
    char text[64];
    fflush(stdout);
    sprintf(text, "the launcher %s", when);
    must(system(command), text);
}

/* Exchanges a value with the next rank. Hydra cuts values at blanks. */
static void exchange(const char *round)
{
    char key[64], value[64];
    sprintf(key, "%s-%d", round, rank);
    sprintf(value, "%s-of-%d", round, rank);
    put(key, value);
    launch("between put and fence");
    fence();
    launch("after the fence");
    sprintf(key, "%s-%d", round, (rank + 1) % size);
    sprintf(value, "%s-of-%d", round, (rank + 1) % size);
    expect(key, value);
}

int main(int argc, char **argv)
{
    int is_inner = argc > 1 && strcmp(argv[1], "inner") == 0;
    command = is_inner ? "true" : argv[1];
    if (!is_inner)
        launch("before init");
    begin();
    launch("after init");
    exchange(is_inner ? "inner" : "first");
    exchange("second");
    end();
    launch("after finalize");
    printf(is_inner ? "inner %d of %d\n" : "%d of %d: went on\n", rank, size);
    return 0;
}
