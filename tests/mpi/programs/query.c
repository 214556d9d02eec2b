/* query.c: rank 0 of a program that uses PMIx without MPI queries its launcher, and writes one line for each answer. The others
 * wait for it in a fence. */
#include <pmix.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static pmix_proc_t me;

static void check(const char *call, pmix_status_t status)
{
    if (status != PMIX_SUCCESS) {
        printf("%s: %s\n", call, PMIx_Error_string(status));
        exit(1);
    }
}

static void fence(void)
{
    check("PMIx_Fence", PMIx_Fence(NULL, 0, NULL, 0));
}

/* Queries up to two keys about a namespace, or about all if it is null. */
static void query(const char *key, const char *other, const char *namespace)
{
    char *keys[] = {(char *) key, (char *) other, NULL};
    pmix_info_t *about = calloc(1, sizeof *about), *results = NULL;
    pmix_query_t query = {.keys = keys, .qualifiers = namespace ? about : NULL, .nqual = namespace != NULL};
    size_t count = 0;
    strcpy(about->key, PMIX_NSPACE);
    about->value.type = PMIX_STRING;
    about->value.data.string = (char *) namespace;
    pmix_status_t status = PMIx_Query_info(&query, 1, &results, &count);
    printf("%s: %s\n", key, PMIx_Error_string(status));
    for (size_t at = 0; at < count; at++) {
        const pmix_value_t *value = &results[at].value;
        if (value->type == PMIX_STRING) {
            int is_own = strcmp(value->data.string, me.nspace) == 0;
            printf("%s is %s\n", results[at].key, is_own ? "the own namespace" : value->data.string);
        } else if (value->type == PMIX_UINT32) {
            printf("%s is %u\n", results[at].key, value->data.uint32);
        } else if (value->type == PMIX_SIZE) {
            printf("%s is %zu\n", results[at].key, value->data.size);
        } else if (value->type == PMIX_DATA_ARRAY && value->data.darray->type == PMIX_PROC_INFO) {
            const pmix_proc_info_t *rows = value->data.darray->array;
            for (size_t row = 0; row < value->data.darray->size; row++) {
                const pmix_proc_info_t *entry = &rows[row];
                const char *program = strrchr(entry->executable_name, '/');
                const char *pid = entry->pid == 0 ? "not known" : entry->pid == getpid() ? "mine" : "another";
                printf("%s: rank %u%s, %s, pid %s, state %d\n", results[at].key, entry->proc.rank,
                       strcmp(entry->proc.nspace, me.nspace) == 0 ? "" : " of another namespace",
                       strncmp(program ? program + 1 : "", "query", 5) == 0 ? "this program" : entry->executable_name, pid,
                       entry->state);
            }
        } else {
            printf("%s has type %d\n", results[at].key, value->type);
        }
    }
    fflush(stdout);
}

int main(void)
{
    check("PMIx_Init", PMIx_Init(&me, NULL, 0));
    fence();
    if (me.rank == 0) {
        query(PMIX_QUERY_NAMESPACES, NULL, NULL);
        query(PMIX_QUERY_NUM_PSETS, PMIX_QUERY_PSET_NAMES, NULL);
        query(PMIX_JOB_SIZE, NULL, me.nspace);
        query(PMIX_QUERY_PROC_TABLE, NULL, me.nspace);
        query(PMIX_QUERY_LOCAL_PROC_TABLE, "test.unknown", me.nspace);
        query(PMIX_QUERY_PROC_TABLE, NULL, "unknown");
        query(PMIX_QUERY_QUEUE_LIST, NULL, NULL);
    }
    fence();
    check("PMIx_Finalize", PMIx_Finalize(NULL, 0));
    return 0;
}
