/* The PMI programs, one per mode: `pmi PAGE MODE`. They are compiled twice: with a client of the wire protocol, and
 * with one that calls libpmi.so (client.h).
 *
 *   hello   init, put, fence, get 2, fence, finalize: the PMI calls of the shortest MPI program
 *   1:2     the same, with the time measured inside: from the first fence, when all are ready, to the last rank's
 *           last get
 *   1:p     likewise, but each rank gets all entries, in an order of its own
 *   fence   fences in a loop, each measured
 *   flood   as fence, while a second thread in each rank of the upper half writes lines to stdout as fast as it
 *           can; their first threads continue with fences, so that a full pipe never delays a rank's arrival
 *   sleep   all ranks but rank 0 wait in a fence until the bench has measured the memory of the launcher
 *   get     rank 0 measures single gets and batches of them, while all others wait in a fence
 *   memory  1:p, with this process's private memory before PMI is initialised and after all gets; then as sleep
 *   rounds  1:2 in as many rounds as each rank has entries, with a new entry in each; then as sleep
 *
 * The mark is written last: a rank that has written it has finalised (sleep, memory, rounds: has entered its
 * fence). */
#define _GNU_SOURCE
#include "values.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>

enum { BATCH_GETS = 20 };         /* as in benches/src/sections/get.rs */

static struct page *page;
static int rank;

static void leave_mark(void) { page->mark[rank] = HERE | wrong; }

static void client_lost(void)
{
    wrong |= PROTOCOL;
    leave_mark();
    _exit(1);
}

static void *allocated(size_t count, size_t size)
{
    void *memory = calloc(count, size);
    if (!memory)
        client_lost();
    return memory;
}

static uint64_t neighbour(int step)
{
    return (uint64_t)(rank + step) % page->np;
}

static void put_own(void)
{
    for (uint64_t i = 0; i < page->keys; i++)
        put_entry(page, (uint64_t)rank * page->keys + i);
    client_commit();
}

static void hello(void)
{
    put_own();
    client_fence();
    get_entry(page, neighbour((int)page->np - 1));
    get_entry(page, neighbour(1));
}

/* Returns the numbers of all entries, shuffled with a seed that depends on the rank only. */
static uint32_t *shuffled(uint64_t count)
{
    uint64_t seed = 0x9e3779b97f4a7c15u * (uint64_t)(rank + 1);
    uint32_t *order = allocated(count, sizeof *order);
    for (uint64_t i = 0; i < count; i++) {
        uint64_t at = next_random(&seed) % (i + 1);
        order[i] = order[at];
        order[at] = (uint32_t)i;
    }
    return order;
}

static void exchange_two(void)
{
    client_fence();
    note_start(page, now_ns());
    hello();
    note_end(page, now_ns());
}

static void exchange_all(void)
{
    uint32_t *order = shuffled(page->np);
    client_fence();
    note_start(page, now_ns());
    put_own();
    client_fence();
    for (uint64_t i = 0; i < page->np; i++)
        get_entry(page, order[i]);
    note_end(page, now_ns());
}

/* Does not store the first tenth, in which pipes fill up and caches warm up. */
static void fences(void)
{
    uint64_t warm = page->fences / 10, *times = allocated(page->fences, 2 * sizeof *times);
    memset(times, 0xff, page->fences * 2 * sizeof *times);
    client_fence();
    note_start(page, now_ns());
    for (uint64_t i = 0; i < warm + page->fences; i++) {
        uint64_t entered = now_ns();
        client_fence();
        uint64_t left = now_ns();
        if (i >= warm) {
            times[2 * (i - warm)] = entered;
            times[2 * (i - warm) + 1] = left;
        }
    }
    note_end(page, now_ns());
    size_t size = page->fences * 2 * sizeof *times;
    memcpy((char *)page_samples(page) + (size_t)rank * size, times, size);
}

static _Atomic int flooding = 1;
static _Atomic uint64_t flooded;

static void *flood(void *unused)
{
    (void)unused;
    char line[81];
    memset(line, '.', sizeof line);
    line[snprintf(line, sizeof line, "rank %d floods ", rank)] = '.';
    line[79] = '\n';
    while (flooding) {
        ssize_t written = write(1, line, 80);
        if (written < 0 && errno != EINTR)
            break;
        if (written > 0)
            flooded += (uint64_t)written;
    }
    return 0;
}

static void fences_in_flood(void)
{
    pthread_t second;
    int floods = (uint64_t)rank >= page->np / 2;
    if (floods && pthread_create(&second, 0, flood, 0) != 0)
        client_lost();
    fences();
    flooding = 0;
    if (floods)
        atomic_fetch_add(&page->bytes, flooded);
}

static void sleep_in_fence(void)
{
    const struct timespec tick = { .tv_nsec = 10000000 };
    client_fence();
    if (rank == 0) {
        leave_mark();
        while (!page->go)
            nanosleep(&tick, 0);
        client_enter_fence();
    } else {
        client_enter_fence();
        leave_mark();
    }
    client_leave_fence();
}

/* Returns `count` random keys: with prefix "card-" keys of the board, with another prefix absent ones. */
static char (*random_keys(uint64_t count, const char *prefix))[KEY_BYTES]
{
    uint64_t entries = page->np * page->keys, seed = 0x2545f4914f6cdd1du;
    char (*keys)[KEY_BYTES] = allocated(count, sizeof *keys);
    for (uint64_t i = 0; i < count; i++)
        key_of(next_random(&seed) % entries, prefix, keys[i]);
    return keys;
}

static inline void check_get(const char *key, int exists)
{
    if (client_get(key, entry.value, sizeof entry.value) != exists)
        wrong |= WRONG_VALUE;
}

/* Stores `page->gets` times of one get each, then as many of a batch each. */
static uint64_t *time_gets(const char *prefix, int exists, uint64_t *into)
{
    char (*keys)[KEY_BYTES] = random_keys(page->gets * BATCH_GETS, prefix);
    for (uint64_t i = 0; i < page->gets; i++) {
        uint64_t before = now_ns();
        check_get(keys[i], exists);
        *into++ = now_ns() - before;
    }
    for (uint64_t i = 0; i < page->gets; i++) {
        uint64_t before = now_ns();
        for (uint64_t k = 0; k < BATCH_GETS; k++)
            check_get(keys[i * BATCH_GETS + k], exists);
        *into++ = now_ns() - before;
    }
    free(keys);
    return into;
}

static void times_of_gets(void)
{
    /* Ranks that have counted themselves still need a moment to enter their fence. */
    const struct timespec moment = { .tv_nsec = 50000000 };
    put_own();
    client_fence();
    if (rank != 0) {
        atomic_fetch_add(&page->arrived, 1);
        return;
    }
    while (page->arrived + 1 < page->np)
        nanosleep(&moment, 0);
    nanosleep(&moment, 0);

    uint64_t entries = page->np * page->keys, *samples = page_samples(page);
    uint32_t *order = shuffled(entries);
    for (uint64_t i = 0; i < entries; i++)
        get_entry(page, order[i]);
    for (uint64_t i = 0; i < page->gets; i++) {
        uint64_t before = now_ns();
        *samples++ = now_ns() - before;
    }
    samples = time_gets("card-", 1, samples);
    time_gets("none-", 0, samples);
}

/* Returns the private memory of this process in KiB, without touching a new page of memory. */
static uint64_t private_kib(void)
{
    static char text[4096];
    static const char *const names[] = { "\nPrivate_Clean:", "\nPrivate_Dirty:" };
    int fd = open("/proc/self/smaps_rollup", O_RDONLY | O_CLOEXEC);
    size_t length = 0;
    ssize_t got;
    memset(text, 0, sizeof text);
    while (fd >= 0 && (got = read(fd, text + length, sizeof text - 1 - length)) > 0)
        length += (size_t)got;
    close(fd);
    uint64_t sum = 0;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const char *at = strstr(text, names[i]);
        if (!at)
            client_lost();
        sum += strtoull(at + strlen(names[i]), 0, 10);
    }
    return sum;
}

/* Writes to all pages of a buffer, so that they are private pages of this process. */
static void touch(volatile void *buffer, size_t size)
{
    for (size_t i = 0; i < size; i++)
        ((volatile char *)buffer)[i] = 0;
}

/* All memory of this program itself is allocated before the first reading. Both readings are taken while all ranks
 * are at the same point, because a page that only one process has mapped by then counts as private, even one of a
 * library. */
static void memory(void)
{
    uint32_t *order = shuffled(page->np);
    uint64_t *samples = page_samples(page) + 2 * rank;
    touch(&client, sizeof client);
    touch(&entry.value, sizeof entry.value);
    private_kib();
    page_meet(page);
    uint64_t before = private_kib();

    client_init();
    put_own();
    client_fence();
    for (uint64_t i = 0; i < page->np; i++)
        get_entry(page, order[i]);
    client_fence();
    uint64_t after = private_kib();
    client_fence();
    samples[0] = before;
    samples[1] = after;
    sleep_in_fence();
}

/* Measured as a whole, from when all are ready to the last get of the last round. */
static void rounds(void)
{
    uint64_t before = neighbour((int)page->np - 1), after = neighbour(1);
    client_fence();
    note_start(page, now_ns());
    for (uint64_t round = 0; round < page->keys; round++) {
        put_entry(page, (uint64_t)rank * page->keys + round);
        client_commit();
        client_fence();
        get_entry(page, before * page->keys + round);
        get_entry(page, after * page->keys + round);
    }
    note_end(page, now_ns());
    sleep_in_fence();
}

int main(int argc, char **argv)
{
    static const struct { const char *name; void (*run)(void); int starts_client; } modes[] = {
        { "hello", hello, 0 }, { "1:2", exchange_two, 0 }, { "1:p", exchange_all, 0 },
        { "fence", fences, 0 }, { "flood", fences_in_flood, 0 }, { "sleep", sleep_in_fence, 0 },
        { "get", times_of_gets, 0 }, { "memory", memory, 1 }, { "rounds", rounds, 0 },
    };
    if (argc != 3)
        return EXIT_NO_PAGE;
    page = page_open(argv[1]);
    rank = rank_in(page);
    alarm((unsigned)page->seconds);
    wrong = check_start(page, 1);
    values_init();
    /* The first call also maps the code and data of the clock, which must not count as part of an exchange. */
    note_latest(&page->contact_ns, now_ns());
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++)
        if (strcmp(argv[2], modes[i].name) == 0) {
            if (!modes[i].starts_client)
                client_init();
            modes[i].run();
        }
    client_fence();
    client_finalize();
    leave_mark();
    _exit(0);
}
