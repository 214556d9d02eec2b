/* A PMI-1 client that sends one request after another, and the machine's monotonic clock. */
#ifndef REQUEST_H
#define REQUEST_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static FILE *server;

/* Sends a request and reads the reply, which must begin like `expected`. */
static void call(const char *request, const char *expected)
{
    char line[4096];
    fputs(request, server);
    fflush(server);
    if (!fgets(line, sizeof line, server) || strncmp(line, expected, strlen(expected)) != 0) {
        fprintf(stderr, "no %s: %s", expected, line);
        exit(1);
    }
}

static uint64_t now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000 + (uint64_t)time.tv_nsec;
}

#endif
