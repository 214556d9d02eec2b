/* The operations that both interfaces have, for programs that are built with each of them. A failure ends the rank
 * with a message. */
#ifndef EITHER_H
#define EITHER_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define VALUE_BYTES 1024

#if API == 2
#include <pmi2.h>
#else
#include <pmi.h>
static char space[512];
#endif

static int rank, size;

static inline void must(int code, const char *what)
{
    if (code != 0) {
        printf("%d: %s failed with %d\n", rank, what, code);
        fflush(stdout);
        _exit(1);
    }
}

/* The functions try_* return the code. */
static inline int try_begin(void)
{
    int spawned, appnum;
#if API == 2
    return PMI2_Init(&spawned, &size, &rank, &appnum);
#else
    (void)appnum;
    int code = PMI_Init(&spawned);
    if (code == 0)
        code = PMI_Get_rank(&rank);
    if (code == 0)
        code = PMI_Get_size(&size);
    if (code == 0)
        code = PMI_KVS_Get_my_name(space, sizeof space);
    return code;
#endif
}

static inline int try_put(const char *key, const char *value)
{
#if API == 2
    return PMI2_KVS_Put(key, value);
#else
    return PMI_KVS_Put(space, key, value);
#endif
}

static inline int try_get(const char *key, char *value)
{
#if API == 2
    int length;
    return PMI2_KVS_Get(NULL, PMI2_ID_NULL, key, value, VALUE_BYTES, &length);
#else
    return PMI_KVS_Get(space, key, value, VALUE_BYTES);
#endif
}

static inline int try_fence(void)
{
#if API == 2
    return PMI2_KVS_Fence();
#else
    int code = PMI_KVS_Commit(space);
    return code == 0 ? PMI_Barrier() : code;
#endif
}

static inline int try_end(void)
{
#if API == 2
    return PMI2_Finalize();
#else
    return PMI_Finalize();
#endif
}

static inline void begin(void)
{
    must(try_begin(), "init");
}

static inline void put(const char *key, const char *value)
{
    must(try_put(key, value), "put");
}

static inline void fence(void)
{
    must(try_fence(), "fence");
}

static inline void end(void)
{
    must(try_end(), "finalize");
}

/* Gets a value, and ends the rank if it is not the expected one. */
static inline void expect(const char *key, const char *expected)
{
    char value[VALUE_BYTES];
    int code = try_get(key, value);
    if (code != 0 || strcmp(value, expected) != 0) {
        printf("%d: %s is not %s: code %d, %s\n", rank, key, expected, code, code ? "-" : value);
        fflush(stdout);
        _exit(1);
    }
}

#endif
