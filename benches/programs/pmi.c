/* The PMI programs, one per mode: `pmi PAGE MODE`.
 *
 *   hello   init, put, fence, get 2, fence, finalize: what the shortest MPI program asks of PMI
 *   1:2     the same, timed inside: from the first fence, when all are ready, to the last rank's last get
 *   1:p     likewise, but each rank gets all entries, in an order of its own
 *   fence   one fence after another, each timed
 *   flood   as fence, while a second thread of the upper half's ranks writes lines to stdout as fast as it can;
 *           their first threads go on fencing, so that a full pipe never keeps a rank from its fence
 *   sleep   all ranks but rank 0 wait in a fence until the bench has looked at the launcher's memory
 *
 * The mark is left last: a rank that marked has finalized (sleep: has entered its fence). */
#define _GNU_SOURCE
#include "wire.h"

#include <pthread.h>

static struct page *page;
static int rank;
static unsigned char wrong;

static void leave_mark(void) { page->mark[rank] = HERE | wrong | wire.wrong; }

static void wire_lost(void)
{
    wire.wrong |= PROTOCOL;
    leave_mark();
    _exit(1);
}

static int neighbour(int step)
{
    int np = (int)page->np;
    return (rank + np + step) % np;
}

static void hello(void)
{
    wire_put(rank);
    wire_fence();
    wire_get(neighbour(-1));
    wire_get(neighbour(1));
}

/* Everybody's rank, shuffled with a seed that is this rank's and the same in every run. */
static int *shuffled(void)
{
    int np = (int)page->np;
    uint64_t seed = 0x9e3779b97f4a7c15u * (uint64_t)(rank + 1);
    int *order = malloc(sizeof *order * (size_t)np);
    if (!order)
        wire_lost();
    for (int i = 0; i < np; i++) {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        int at = (int)(seed % (uint64_t)(i + 1));
        order[i] = order[at];
        order[at] = i;
    }
    return order;
}

static void exchange_two(void)
{
    wire_fence();
    note_start(page, now_ns());
    hello();
    note_end(page, now_ns());
}

static void exchange_all(void)
{
    int *order = shuffled();
    wire_fence();
    note_start(page, now_ns());
    wire_put(rank);
    wire_fence();
    for (uint64_t i = 0; i < page->np; i++)
        wire_get(order[i]);
    note_end(page, now_ns());
}

/* The first tenth, in which pipes fill and caches warm, is not kept. */
static void fences(void)
{
    uint64_t warm = page->fences / 10, *times = calloc(page->fences, 2 * sizeof *times);
    if (!times)
        wire_lost();
    memset(times, 0xff, page->fences * 2 * sizeof *times);
    wire_fence();
    note_start(page, now_ns());
    for (uint64_t i = 0; i < warm + page->fences; i++) {
        uint64_t entered = now_ns();
        wire_fence();
        uint64_t left = now_ns();
        if (i >= warm) {
            times[2 * (i - warm)] = entered;
            times[2 * (i - warm) + 1] = left;
        }
    }
    note_end(page, now_ns());
    size_t size = page->fences * 2 * sizeof *times;
    memcpy((char *)page + page->samples + (size_t)rank * size, times, size);
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
        wire_lost();
    fences();
    flooding = 0;
    if (floods)
        atomic_fetch_add(&page->bytes, flooded);
}

static void sleep_in_fence(void)
{
    const struct timespec tick = { .tv_nsec = 10000000 };
    wire_fence();
    if (rank == 0) {
        leave_mark();
        while (!page->go)
            nanosleep(&tick, 0);
        wire_enter_fence();
    } else {
        wire_enter_fence();
        leave_mark();
    }
    wire_leave_fence();
}

int main(int argc, char **argv)
{
    static const struct { const char *name; void (*run)(void); } modes[] = {
        { "hello", hello }, { "1:2", exchange_two }, { "1:p", exchange_all },
        { "fence", fences }, { "flood", fences_in_flood }, { "sleep", sleep_in_fence },
    };
    if (argc != 3)
        return EXIT_NO_PAGE;
    page = page_open(argv[1]);
    rank = rank_in(page);
    alarm((unsigned)page->seconds);
    wrong = check_start(page, 1);
    wire.fd = env_number("PMI_FD");
    wire_init();
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++)
        if (strcmp(argv[2], modes[i].name) == 0)
            modes[i].run();
    wire_fence();
    wire_finalize();
    leave_mark();
    _exit(0);
}
