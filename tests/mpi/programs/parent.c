/* parent.c [spawn]: a program that uses PMIx without MPI. With the argument, the last rank spawns two ranks of this program without
 * it. They print which rank has spawned them. */
#include <pmix.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void check(const char *call, pmix_status_t status)
{
    if (status != PMIX_SUCCESS) {
        printf("%s: %s\n", call, PMIx_Error_string(status));
        exit(1);
    }
}

int main(int argc, char **argv)
{
    (void) argv;
    pmix_proc_t me, all;
    pmix_value_t *value = NULL;
    check("PMIx_Init", PMIx_Init(&me, NULL, 0));
    all = me;
    all.rank = PMIX_RANK_WILDCARD;
    if (argc > 1) {
        check("PMIx_Get", PMIx_Get(&all, PMIX_JOB_SIZE, NULL, 0, &value));
        if (me.rank == value->data.uint32 - 1) {
            pmix_app_t app;
            pmix_nspace_t namespace;
            memset(&app, 0, sizeof app);
            char path[4096] = "", *words[] = {path, NULL};
            if (readlink("/proc/self/exe", path, sizeof path - 1) < 0)
                return 1;
            app.cmd = path;
            app.argv = words;
            app.maxprocs = 2;
            check("PMIx_Spawn", PMIx_Spawn(NULL, 0, &app, 1, namespace));
        }
    } else {
        check("PMIx_Get", PMIx_Get(&me, PMIX_PARENT_ID, NULL, 0, &value));
        printf("rank %u is a child of rank %u\n", me.rank, value->data.proc->rank);
        fflush(stdout);
    }
    check("PMIx_Fence", PMIx_Fence(&all, 1, NULL, 0));
    check("PMIx_Finalize", PMIx_Finalize(NULL, 0));
    return 0;
}
