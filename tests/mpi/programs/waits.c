/* waits.c HOW: a program that uses PMIx without MPI. The last rank takes no part in what the others do, until the last fence.
 *
 * timeout   the others wait for the last rank in several calls, for one second each, and print how each call ends
 * uneven    the others call PMIx_Connect for all, rank 0 for one second and the rest without a time
 * ranges    rank 0 publishes a value in each range; all ranks print which of them they find
 */
#include <pmix.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static pmix_proc_t me;
static uint32_t size;

static void check(const char *call, pmix_status_t status)
{
    if (status != PMIX_SUCCESS) {
        printf("%s: %s\n", call, PMIx_Error_string(status));
        exit(1);
    }
}

static void say(const char *call, pmix_status_t status)
{
    printf("rank %u, %s: %s\n", me.rank, call, PMIx_Error_string(status));
    fflush(stdout);
}

static pmix_info_t number(const char *key, pmix_data_type_t type, int value)
{
    pmix_info_t info;
    memset(&info, 0, sizeof info);
    strcpy(info.key, key);
    info.value.type = type;
    info.value.data.integer = value;
    return info;
}

static pmix_status_t lookup(const char *key, const pmix_info_t *infos, size_t count)
{
    pmix_pdata_t data;
    memset(&data, 0, sizeof data);
    strcpy(data.key, key);
    return PMIx_Lookup(&data, 1, infos, count);
}

/* Calls that wait for the last rank, in vain. */
static void wait_in_vain(void)
{
    pmix_info_t limit = number(PMIX_TIMEOUT, PMIX_INT, 1), *results = NULL;
    pmix_proc_t *all = calloc(size, sizeof *all), both[2] = {me, me};
    size_t count = 0;
    /* Not the wildcard, by which the last rank arrives at another fence. */
    for (uint32_t rank = 0; rank < size; rank++) {
        all[rank] = me;
        all[rank].rank = rank;
    }
    say("fence", PMIx_Fence(all, size, &limit, 1));
    free(all);
    if (me.rank == 0) {
        pmix_info_t infos[2] = {number(PMIX_WAIT, PMIX_BOOL, 1), limit};
        say("lookup", lookup("nothing", infos, 2));
        both[1].rank = size - 1;
        say("connect", PMIx_Connect(both, 2, &limit, 1));
        say("fence of two", PMIx_Fence(both, 2, &limit, 1));
        say("group", PMIx_Group_construct("group", both, 2, &limit, 1, &results, &count));
        say("lookup", lookup("nothing", NULL, 0));
    }
}

/* A connection for which only rank 0 has set a time. */
static void connect_unevenly(void)
{
    pmix_info_t limit = number(PMIX_TIMEOUT, PMIX_INT, 1);
    pmix_proc_t all = me;
    all.rank = PMIX_RANK_WILDCARD;
    say("connect", PMIx_Connect(&all, 1, &limit, me.rank == 0));
}

/* The value of a key in each range, and of a key that has one in several. */
static void publish_in_ranges(void)
{
    static const pmix_data_range_t ranges[] = {PMIX_RANGE_PROC_LOCAL, PMIX_RANGE_LOCAL, PMIX_RANGE_NAMESPACE,
                                               PMIX_RANGE_SESSION,    PMIX_RANGE_GLOBAL, PMIX_RANGE_RM};
    static const char *const keys[] = {"own", "node", "namespace", "session", "global", "manager"};
    pmix_proc_t all = me;
    all.rank = PMIX_RANK_WILDCARD;
    for (size_t at = 0; me.rank == 0 && at < 6; at++) {
        pmix_info_t infos[2] = {number(keys[at], PMIX_INT, 7), number(PMIX_RANGE, PMIX_DATA_RANGE, ranges[at])};
        pmix_status_t status = PMIx_Publish(infos, 2);
        if (status != PMIX_SUCCESS)
            say(keys[at], status);
        else if (at == 2)
            say("namespace again", PMIx_Publish(infos, 2));
    }
    check("PMIx_Fence", PMIx_Fence(&all, 1, NULL, 0));
    for (size_t at = 0; at < 6; at++)
        if (lookup(keys[at], NULL, 0) == PMIX_SUCCESS)
            printf("rank %u finds %s\n", me.rank, keys[at]);
    fflush(stdout);
}

int main(int argc, char **argv)
{
    pmix_proc_t all;
    pmix_value_t *value = NULL;
    check("PMIx_Init", PMIx_Init(&me, NULL, 0));
    all = me;
    all.rank = PMIX_RANK_WILDCARD;
    check("PMIx_Get", PMIx_Get(&all, PMIX_JOB_SIZE, NULL, 0, &value));
    size = value->data.uint32;
    if (argc > 1 && strcmp(argv[1], "ranges") == 0)
        publish_in_ranges();
    else if (argc > 1 && strcmp(argv[1], "uneven") == 0 && me.rank < size - 1)
        connect_unevenly();
    else if (argc > 1 && strcmp(argv[1], "timeout") == 0 && me.rank < size - 1)
        wait_in_vain();
    check("PMIx_Fence", PMIx_Fence(&all, 1, NULL, 0));
    check("PMIx_Finalize", PMIx_Finalize(NULL, 0));
    return 0;
}
