/* modex MODE: each rank puts one value of 64 bytes and gets those of all ranks, through PMIx without MPI. Rank 0 writes the
 * longest time of a rank, in seconds, from its put to its last get.
 *
 * collect  the fence collects the values
 * direct   the fence collects nothing: each get asks the rank's server
 */
#include <pmix.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec * 1e-9;
}

static void check(const char *call, pmix_status_t status)
{
    if (status != PMIX_SUCCESS) {
        fprintf(stderr, "%s: %s\n", call, PMIx_Error_string(status));
        exit(1);
    }
}

static void put(const char *key, pmix_value_t *value)
{
    check("PMIx_Put", PMIx_Put(PMIX_GLOBAL, key, value));
    check("PMIx_Commit", PMIx_Commit());
}

static void fence(bool collects)
{
    pmix_info_t info;
    memset(&info, 0, sizeof(info));
    strncpy(info.key, PMIX_COLLECT_DATA, sizeof(info.key) - 1);
    info.value.type = PMIX_BOOL;
    info.value.data.flag = collects;
    check("PMIx_Fence", PMIx_Fence(NULL, 0, &info, 1));
}

static pmix_value_t *get(const pmix_proc_t *me, uint32_t rank, const char *key)
{
    pmix_proc_t other = *me;
    pmix_value_t *value = NULL;
    other.rank = rank;
    check("PMIx_Get", PMIx_Get(&other, key, NULL, 0, &value));
    return value;
}

int main(int argc, char **argv)
{
    pmix_proc_t me, all;
    check("PMIx_Init", PMIx_Init(&me, NULL, 0));
    all = me;
    all.rank = PMIX_RANK_WILDCARD;
    pmix_value_t *size = NULL;
    check("PMIx_Get", PMIx_Get(&all, PMIX_JOB_SIZE, NULL, 0, &size));
    uint32_t np = size->data.uint32;
    fence(false);
    double began = now();
    char bytes[64];
    memset(bytes, (int) (me.rank % 251), sizeof(bytes));
    pmix_value_t value = {.type = PMIX_BYTE_OBJECT};
    value.data.bo.bytes = bytes;
    value.data.bo.size = sizeof(bytes);
    put("card", &value);
    fence(argc > 1 && strcmp(argv[1], "collect") == 0);
    for (uint32_t rank = 0; rank < np; rank++) {
        pmix_value_t *got = get(&me, rank, "card");
        if (got->data.bo.size != sizeof(bytes) || got->data.bo.bytes[63] != (char) (rank % 251)) {
            fprintf(stderr, "rank %u has a wrong value of rank %u\n", me.rank, rank);
            return 1;
        }
    }
    pmix_value_t took = {.type = PMIX_DOUBLE};
    took.data.dval = now() - began;
    put("took", &took);
    fence(true);
    if (me.rank == 0) {
        double longest = 0;
        for (uint32_t rank = 0; rank < np; rank++) {
            double other = get(&me, rank, "took")->data.dval;
            longest = other > longest ? other : longest;
        }
        printf("%f\n", longest);
    }
    check("PMIx_Finalize", PMIx_Finalize(NULL, 0));
    return 0;
}
