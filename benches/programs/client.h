/* The client functions of the PMI programs, with two implementations: wire.h, or library.h if PMI_LIBRARY is the path
 * of a libpmi.so. They record failures in `wrong` (PROTOCOL) and continue, except if the server has disconnected:
 * then they call `client_lost`, which writes the mark and exits. */
#ifndef CLIENT_H
#define CLIENT_H

#include "checks.h"

enum { KEY_BYTES = 32, VALUE_BYTES_MAX = 1000 };

static unsigned char wrong;

static void client_lost(void) __attribute__((noreturn));

static void client_init(void);
static void client_put(const char *key, const char *value);
static void client_commit(void);       /* the next fence publishes all puts */
static int client_get(const char *key, char *into, size_t size);   /* 1 if the key exists */
static void client_enter_fence(void);  /* arrives at the fence, if the client can do so without waiting */
static void client_leave_fence(void);  /* waits for the other ranks */
static void client_finalize(void);

static inline void client_fence(void)
{
    client_enter_fence();
    client_leave_fence();
}

#ifdef PMI_LIBRARY
#include "library.h"
#else
#include "wire.h"
#endif

#endif
