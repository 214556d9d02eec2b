/* The client functions (client.h) by calls of libpmi.so.
 *
 * The library is loaded by its path, and only in client_init: no other libpmi can take its place, and a program can
 * read its memory use before the library is loaded. */
#ifndef LIBRARY_H
#define LIBRARY_H

#include <dlfcn.h>
#include <pmi.h>
#include <stdio.h>

static struct {
    __typeof__(PMI_Init) *init;
    __typeof__(PMI_KVS_Get_my_name) *my_name;
    __typeof__(PMI_KVS_Put) *put;
    __typeof__(PMI_KVS_Commit) *commit;
    __typeof__(PMI_KVS_Get) *get;
    __typeof__(PMI_Barrier) *barrier;
    __typeof__(PMI_Finalize) *finalize;
    char name[256];               /* of the key-value space */
} client;

static inline void *library_function(void *library, const char *name)
{
    void *function = dlsym(library, name);
    if (!function)
        client_lost();
    return function;
}

static inline void library_check(int code)
{
    if (code != PMI_SUCCESS)
        wrong |= PROTOCOL;
}

static inline void client_init(void)
{
    void *library = dlopen(PMI_LIBRARY, RTLD_NOW | RTLD_LOCAL);
    int spawned;
    if (!library) {
        fprintf(stderr, "%s\n", dlerror());
        _exit(EXIT_NO_LIBRARY);
    }
    client.init = library_function(library, "PMI_Init");
    client.my_name = library_function(library, "PMI_KVS_Get_my_name");
    client.put = library_function(library, "PMI_KVS_Put");
    client.commit = library_function(library, "PMI_KVS_Commit");
    client.get = library_function(library, "PMI_KVS_Get");
    client.barrier = library_function(library, "PMI_Barrier");
    client.finalize = library_function(library, "PMI_Finalize");
    if (client.init(&spawned) != PMI_SUCCESS)
        client_lost();
    library_check(client.my_name(client.name, sizeof client.name));
}

static inline void client_put(const char *key, const char *value)
{
    library_check(client.put(client.name, key, value));
}

static inline void client_commit(void) { library_check(client.commit(client.name)); }

static inline int client_get(const char *key, char *into, size_t size)
{
    return client.get(client.name, key, into, (int)size) == PMI_SUCCESS;
}

/* The C interface does not separate arrival and wait: client_leave_fence does both. */
static inline void client_enter_fence(void) {}

static inline void client_leave_fence(void)
{
    if (client.barrier() != PMI_SUCCESS)
        client_lost();
}

static inline void client_finalize(void) { library_check(client.finalize()); }

#endif
