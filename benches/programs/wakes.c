/* A rank's part of the least exchange through shared memory: `wakes PAGE`. The kernel's cost of one that libpmi makes.
 *
 * From the time when all ranks are ready, it sends one message, sleeps until the server's one futex call has released all ranks,
 * and reads what its two neighbours have written. There are no keys, values or replies. */
#include "checks.h"

/* Waits until all ranks have arrived after `before` such fences. */
static void arrive(struct page *page, int socket, uint32_t before)
{
    static const char message[] = "cmd=barrier_in\n";
    if (write(socket, message, sizeof message - 1) != sizeof message - 1)
        _exit(1);
    while (atomic_load(&page->released) == before)
        syscall(SYS_futex, &page->released, FUTEX_WAIT, before, 0, 0, 0);
}

int main(int argc, char **argv)
{
    if (argc < 2)
        return EXIT_NO_PAGE;
    struct page *page = page_open(argv[1]);
    int rank = rank_in(page), socket = env_number("PMI_FD");
    alarm((unsigned)page->seconds);
    unsigned char mark = HERE | check_start(page, 1);
    /* The first call maps the code and data of the clock. */
    (void)now_ns();
    page_meet(page);
    note_start(page, now_ns());
    page->mark[rank] = mark;
    arrive(page, socket, 0);
    uint64_t before = ((uint64_t)rank + page->np - 1) % page->np, after = ((uint64_t)rank + 1) % page->np;
    if (!(page->mark[before] & page->mark[after] & HERE))
        page->mark[rank] = mark | WRONG_VALUE;
    note_end(page, now_ns());
    /* The end of a process must not count as part of the others' exchange. */
    arrive(page, socket, 1);
    return 0;
}
