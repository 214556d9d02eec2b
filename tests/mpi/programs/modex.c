/* modex.c HOW: a program that uses PMIx without MPI. Every rank puts a value of 1 MB, gets those of others, and writes one
 * line.
 *
 * collect   a fence of all ranks collects the values
 * direct    a fence of all ranks collects nothing: the values are fetched from their nodes
 * unfenced  no fence: a get waits until the other rank has put
 * some      a fence of the ranks with even numbers collects; the others take no part in anything
 * guessed   the rank names another namespace than its own, and prints whether PMIx_Init failed
 */
#include <pmix.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BYTES (1 << 20)

/* Random bytes, so that no library can compress them. The same for each run. */
static char *value_of(uint32_t rank)
{
    char *bytes = malloc(BYTES);
    uint32_t state = rank + 1;
    for (size_t at = 0; at < BYTES; at++) {
        state = state * 1664525 + 1013904223;
        bytes[at] = (char) (state >> 24);
    }
    return bytes;
}

static void check(const char *call, pmix_status_t status)
{
    if (status != PMIX_SUCCESS) {
        printf("%s: %s\n", call, PMIx_Error_string(status));
        exit(1);
    }
}

static void put(uint32_t rank)
{
    pmix_value_t value = {.type = PMIX_BYTE_OBJECT};
    value.data.bo.bytes = value_of(rank);
    value.data.bo.size = BYTES;
    check("PMIx_Put", PMIx_Put(PMIX_GLOBAL, "blob", &value));
    check("PMIx_Commit", PMIx_Commit());
    free(value.data.bo.bytes);
}

static int is_right(const pmix_proc_t *me, uint32_t rank)
{
    pmix_proc_t other = *me;
    pmix_value_t *value = NULL;
    other.rank = rank;
    check("PMIx_Get", PMIx_Get(&other, "blob", NULL, 0, &value));
    char *expected = value_of(rank);
    int right = value->type == PMIX_BYTE_OBJECT && value->data.bo.size == BYTES &&
                memcmp(value->data.bo.bytes, expected, BYTES) == 0;
    free(expected);
    return right;
}

static void fence(const pmix_proc_t *members, size_t count, bool collect)
{
    pmix_info_t info;
    memset(&info, 0, sizeof info);
    strcpy(info.key, PMIX_COLLECT_DATA);
    info.value.type = PMIX_BOOL;
    info.value.data.flag = collect;
    check("PMIx_Fence", PMIx_Fence(members, count, &info, 1));
}

int main(int argc, char **argv)
{
    const char *how = argc > 1 ? argv[1] : "";
    pmix_proc_t me, all;
    pmix_value_t *value = NULL;
    if (strcmp(how, "guessed") == 0) {
        /* The guess differs from the real name in its first character only. */
        char *name = strdup(getenv("PMIX_NAMESPACE"));
        name[0] = name[0] == '0' ? '1' : '0';
        setenv("PMIX_NAMESPACE", name, 1);
        printf("%s\n", PMIx_Init(&me, NULL, 0) == PMIX_SUCCESS ? "admitted" : "refused");
        return 0;
    }
    check("PMIx_Init", PMIx_Init(&me, NULL, 0));
    all = me;
    all.rank = PMIX_RANK_WILDCARD;
    check("PMIx_Get", PMIx_Get(&all, PMIX_JOB_SIZE, NULL, 0, &value));
    uint32_t size = value->data.uint32;
    /* Its number, its own value and those of all others that take part. */
    uint32_t step = strcmp(how, "some") == 0 ? 2 : 1, seen = 0;
    if (me.rank % step == 0) {
        put(me.rank);
        if (step == 2) {
            pmix_proc_t *members = calloc(size, sizeof *members);
            size_t count = 0;
            for (uint32_t rank = 0; rank < size; rank += step) {
                members[count] = me;
                members[count++].rank = rank;
            }
            fence(members, count, true);
        } else if (strcmp(how, "unfenced") != 0) {
            fence(NULL, 0, strcmp(how, "collect") == 0);
        }
        for (uint32_t rank = 0; rank < size; rank += step)
            seen += is_right(&me, rank);
    }
    printf("rank %u of %u: %u values\n", me.rank, size, seen);
    fflush(stdout);
    /* Values are fetched from the others as long as they live. */
    if (step == 1)
        fence(NULL, 0, false);
    check("PMIx_Finalize", PMIx_Finalize(NULL, 0));
    return 0;
}
