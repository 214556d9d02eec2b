/* What the PMI programs ask of a client. One of two is compiled in: wire.h, or, where PMI_LIBRARY is the path of a
 * libpmi.so, library.h. Both have these functions, which count in `wrong` what goes wrong (PROTOCOL) instead of ending
 * the program, except where the server is gone: then `client_lost` is called, which marks and leaves. */
#ifndef CLIENT_H
#define CLIENT_H

#include "checks.h"

enum { KEY_BYTES = 32, VALUE_BYTES_MAX = 1000 };

static unsigned char wrong;

static void client_lost(void) __attribute__((noreturn));

static void client_init(void);
static void client_put(const char *key, const char *value);
static void client_commit(void);       /* what was put is for the next fence */
static int client_get(const char *key, char *into, size_t size);   /* 1: it is there */
static void client_enter_fence(void);  /* says that this rank is there, where a client can without waiting */
static void client_leave_fence(void);  /* waits for the others */
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
