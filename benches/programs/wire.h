/* The client functions (client.h) over the PMI-1 wire protocol, as small as possible: one request, one reply, one
 * socket. */
#ifndef WIRE_H
#define WIRE_H

#include <errno.h>
#include <stdio.h>

enum { REQUEST_BYTES_MAX = 2048 };

static struct {
    int fd;
    size_t start, end;            /* the unread part of the buffer */
    char buffer[8192];
    char name[256];               /* of the key-value space */
} client;

static inline void wire_send(const char *text, size_t length)
{
    while (length > 0) {
        ssize_t sent = send(client.fd, text, length, MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR)
            continue;
        if (sent <= 0)
            client_lost();
        text += sent;
        length -= (size_t)sent;
    }
}

/* Returns the next line without its newline; valid until the next call. */
static inline char *wire_line(void)
{
    for (;;) {
        char *newline = memchr(client.buffer + client.start, '\n', client.end - client.start);
        if (newline) {
            char *line = client.buffer + client.start;
            *newline = 0;
            client.start = (size_t)(newline + 1 - client.buffer);
            return line;
        }
        memmove(client.buffer, client.buffer + client.start, client.end - client.start);
        client.end -= client.start;
        client.start = 0;
        if (client.end == sizeof client.buffer)
            client_lost();
        ssize_t got = recv(client.fd, client.buffer + client.end, sizeof client.buffer - client.end, 0);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            client_lost();
        client.end += (size_t)got;
    }
}

/* Reads one reply, which must begin like `expected`. */
static inline char *wire_reply(const char *expected)
{
    char *line = wire_line();
    if (strncmp(line, expected, strlen(expected)) != 0)
        wrong |= PROTOCOL;
    return line;
}

static inline char *wire_call(const char *request, const char *expected)
{
    wire_send(request, strlen(request));
    return wire_reply(expected);
}

/* Copies the value of ` name=` in a line, up to the next blank; returns 0 if it is absent. */
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

static inline void client_init(void)
{
    client.fd = env_number("PMI_FD");
    if (!strstr(wire_call("cmd=init pmi_version=1 pmi_subversion=1\n", "cmd=response_to_init"), "rc=0"))
        wrong |= PROTOCOL;
    wire_call("cmd=get_maxes\n", "cmd=maxes");
    char *line = wire_call("cmd=get_my_kvsname\n", "cmd=my_kvsname");
    if (!wire_field(line, " kvsname=", client.name, sizeof client.name))
        wrong |= PROTOCOL;
}

static inline void client_put(const char *key, const char *value)
{
    char request[REQUEST_BYTES_MAX];
    snprintf(request, sizeof request, "cmd=put kvsname=%s key=%s value=%s\n", client.name, key, value);
    if (!strstr(wire_call(request, "cmd=put_result"), "rc=0"))
        wrong |= PROTOCOL;
}

/* On the wire, the next fence publishes puts without a commit. */
static inline void client_commit(void) {}

static inline int client_get(const char *key, char *into, size_t size)
{
    char request[REQUEST_BYTES_MAX];
    snprintf(request, sizeof request, "cmd=get kvsname=%s key=%s\n", client.name, key);
    char *line = wire_call(request, "cmd=get_result");
    return strstr(line, "rc=0") && wire_field(line, " value=", into, size);
}

static inline void client_enter_fence(void) { wire_send("cmd=barrier_in\n", 15); }
static inline void client_leave_fence(void) { wire_reply("cmd=barrier_out"); }

static inline void client_finalize(void) { wire_call("cmd=finalize\n", "cmd=finalize_ack"); }

#endif
