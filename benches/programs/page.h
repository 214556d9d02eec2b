/* The page: memory that the bench shares with every program that it starts.
 *
 * The bench creates the file in /dev/shm, fills in the header and passes its path as the first argument. Ranks read
 * there what they should find, write their marks, and store their times. benches/src/page.rs is the other side of
 * this layout: 64-bit words in native order, then one mark per rank, then the samples, whose meaning depends on the
 * program. */
#ifndef PAGE_H
#define PAGE_H

#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

struct page {
    uint64_t np;                  /* the number of ranks */
    uint64_t nofile;              /* the bench's soft RLIMIT_NOFILE, which ranks should have */
    uint64_t fences;              /* the number of fences to measure */
    uint64_t seconds;             /* the time after which a rank exits by itself */
    uint64_t samples;             /* the offset of the samples */
    _Atomic uint64_t go;          /* set by the bench: waiting ranks may continue */
    _Atomic uint64_t start_ns;    /* the earliest start, CLOCK_MONOTONIC */
    _Atomic uint64_t end_ns;      /* the latest end */
    _Atomic uint64_t bytes;       /* the number of bytes written to stdout in flood mode */
    uint64_t value_min;           /* the smallest size of a value in bytes */
    uint64_t value_max;           /* the largest */
    uint64_t keys;                /* the number of entries that each rank puts */
    uint64_t gets;                /* the number of gets to measure of each kind */
    _Atomic uint32_t arrived;     /* the number of ranks that have arrived in page_meet */
    _Atomic uint32_t met;         /* a futex: 1 once all have arrived */
    _Atomic uint32_t released;    /* a futex: how many fences of `wakes` the server has released */
    uint32_t reserved;
    _Atomic uint64_t contact_ns;  /* the latest time at which a rank was about to send its first PMI message */
    unsigned char mark[];         /* by rank: 0 until it is written */
};

/* A mark: HERE and the faults. */
enum {
    HERE = 0x80,
    NO_SOCKET = 0x01,             /* PMI_FD is not a live stream socket */
    OPEN_DESCRIPTOR = 0x02,       /* a descriptor besides 0 to 2, PMI_FD and the topology's is open */
    NO_GROUP = 0x04,              /* not the leader of its own process group */
    OTHER_LIMIT = 0x08,           /* RLIMIT_NOFILE is not the shell's */
    WRONG_VALUE = 0x10,           /* a get returned a value other than the one put */
    PROTOCOL = 0x20,              /* the PMI connection broke, or a reply was out of order */
    WRONG_SIZE = 0x40,            /* PMI_SIZE is not the requested number of ranks */
};

/* Exit codes of a program that cannot write its mark. */
enum { EXIT_NO_PAGE = 90, EXIT_NO_RANK = 91, EXIT_NO_LIBRARY = 94 };

static inline struct page *page_open(const char *path)
{
    struct stat file;
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &file) < 0)
        _exit(EXIT_NO_PAGE);
    struct page *page = mmap(0, (size_t)file.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (page == MAP_FAILED)
        _exit(EXIT_NO_PAGE);
    return page;
}

static inline uint64_t *page_samples(struct page *page) { return (uint64_t *)((char *)page + page->samples); }

/* Waits until all ranks have arrived, without PMI. */
static inline void page_meet(struct page *page)
{
    if (atomic_fetch_add(&page->arrived, 1) + 1 == page->np) {
        atomic_store(&page->met, 1);
        syscall(SYS_futex, &page->met, FUTEX_WAKE, INT_MAX, 0, 0, 0);
    }
    while (!atomic_load(&page->met))
        syscall(SYS_futex, &page->met, FUTEX_WAIT, 0, 0, 0, 0);
}

static inline uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static inline void note_start(struct page *page, uint64_t at)
{
    uint64_t seen = atomic_load(&page->start_ns);
    while (at < seen && !atomic_compare_exchange_weak(&page->start_ns, &seen, at)) {}
}

static inline void note_latest(_Atomic uint64_t *latest, uint64_t at)
{
    uint64_t seen = atomic_load(latest);
    while (at > seen && !atomic_compare_exchange_weak(latest, &seen, at)) {}
}

static inline void note_end(struct page *page, uint64_t at)
{
    note_latest(&page->end_ns, at);
}

#endif
