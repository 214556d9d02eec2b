/* A PMI-1 wire client, as small as one can be: one request, one reply, one socket.
 *
 * It counts what goes wrong in `wire.wrong` (PROTOCOL, WRONG_VALUE) instead of ending the program, except where the
 * server is gone: then `wire_lost` is called, which marks and leaves. */
#ifndef WIRE_H
#define WIRE_H

#include "checks.h"

#include <errno.h>
#include <stdio.h>

enum { LINE_MAX_BYTES = 1024, VALUE_BYTES = 64 };

static struct {
    int fd;
    unsigned char wrong;
    size_t start, end;            /* what is buffered and not yet read */
    char buffer[8192];
    char name[256];               /* of the key-value space */
} wire;

static void wire_lost(void) __attribute__((noreturn));

static inline void wire_send(const char *text, size_t length)
{
    while (length > 0) {
        ssize_t sent = send(wire.fd, text, length, MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR)
            continue;
        if (sent <= 0)
            wire_lost();
        text += sent;
        length -= (size_t)sent;
    }
}

/* The next line, without its newline; valid until the next call. */
static inline char *wire_line(void)
{
    for (;;) {
        char *newline = memchr(wire.buffer + wire.start, '\n', wire.end - wire.start);
        if (newline) {
            char *line = wire.buffer + wire.start;
            *newline = 0;
            wire.start = (size_t)(newline + 1 - wire.buffer);
            return line;
        }
        memmove(wire.buffer, wire.buffer + wire.start, wire.end - wire.start);
        wire.end -= wire.start;
        wire.start = 0;
        if (wire.end == sizeof wire.buffer)
            wire_lost();
        ssize_t got = recv(wire.fd, wire.buffer + wire.end, sizeof wire.buffer - wire.end, 0);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            wire_lost();
        wire.end += (size_t)got;
    }
}

/* Reads one reply, which must begin like `expected`. */
static inline char *wire_reply(const char *expected)
{
    char *line = wire_line();
    if (strncmp(line, expected, strlen(expected)) != 0)
        wire.wrong |= PROTOCOL;
    return line;
}

static inline char *wire_call(const char *request, const char *expected)
{
    wire_send(request, strlen(request));
    return wire_reply(expected);
}

/* Copies the value of ` name=` in a line, up to the next blank; 0 when it is not there. */
static inline int wire_field(const char *line, const char *name, char *into, size_t size)
{
    const char *at = strstr(line, name);
    if (!at)
        return 0;
    at += strlen(name);
    size_t length = strcspn(at, " ");
    if (length >= size)
        return 0;
    memcpy(into, at, length);
    into[length] = 0;
    return 1;
}

static inline void wire_init(void)
{
    if (!strstr(wire_call("cmd=init pmi_version=1 pmi_subversion=1\n", "cmd=response_to_init"), "rc=0"))
        wire.wrong |= PROTOCOL;
    wire_call("cmd=get_maxes\n", "cmd=maxes");
    char *line = wire_call("cmd=get_my_kvsname\n", "cmd=my_kvsname");
    if (!wire_field(line, " kvsname=", wire.name, sizeof wire.name))
        wire.wrong |= PROTOCOL;
}

/* What rank `rank` puts: as long as a business card of shared memory and one network address. */
static inline void value_of(int rank, char *into)
{
    int length = snprintf(into, VALUE_BYTES + 1, "rank-%d-", rank);
    for (int i = length; i < VALUE_BYTES; i++)
        into[i] = (char)('a' + (rank + i) % 26);
    into[VALUE_BYTES] = 0;
}

static inline void wire_put(int rank)
{
    char value[VALUE_BYTES + 1], request[LINE_MAX_BYTES];
    value_of(rank, value);
    snprintf(request, sizeof request, "cmd=put kvsname=%s key=card-%d value=%s\n", wire.name, rank, value);
    if (!strstr(wire_call(request, "cmd=put_result"), "rc=0"))
        wire.wrong |= PROTOCOL;
}

static inline void wire_get(int rank)
{
    char expected[VALUE_BYTES + 1], value[LINE_MAX_BYTES], request[LINE_MAX_BYTES];
    value_of(rank, expected);
    snprintf(request, sizeof request, "cmd=get kvsname=%s key=card-%d\n", wire.name, rank);
    char *line = wire_call(request, "cmd=get_result");
    if (!wire_field(line, " value=", value, sizeof value) || strcmp(value, expected) != 0)
        wire.wrong |= WRONG_VALUE;
}

static inline void wire_enter_fence(void) { wire_send("cmd=barrier_in\n", 15); }
static inline void wire_leave_fence(void) { wire_reply("cmd=barrier_out"); }

static inline void wire_fence(void)
{
    wire_enter_fence();
    wire_leave_fence();
}

static inline void wire_finalize(void) { wire_call("cmd=finalize\n", "cmd=finalize_ack"); }

#endif
