/* The kernel's floor: `floor PAGE PROGRAM WORKERS [WORD...]`. The ranks get the page, `bare` and the words.
 *
 * One worker process per core starts its share of the ranks with posix_spawn, one after another, and reaps them.
 * Nothing is served, read or forwarded: no launcher can be faster. This is a small static program rather than the
 * bench itself, so that no large page tables or extra descriptors slow it down. It writes its time to the page, from
 * before the first worker is forked until the last one is reaped. */
#define _GNU_SOURCE
#include "spawn.h"

enum { WORDS_MAX = 4 };

static void work(char *program, char *path, char **words, uint64_t first, uint64_t end)
{
    char rank_text[32];
    char *added[] = { rank_text };
    struct starts starts = starts_prepare(added, 1);
    char *args[3 + WORDS_MAX + 1] = { program, path, "bare" };
    for (int i = 0; words[i]; i++)
        args[3 + i] = words[i];

    for (uint64_t rank = first; rank < end; rank++) {
        snprintf(rank_text, sizeof rank_text, "PMI_RANK=%llu", (unsigned long long)rank);
        start_rank(&starts, 0, args);
    }
    _exit(reap_all() ? 0 : EXIT_CHILD);
}

int main(int argc, char **argv)
{
    if (argc < 4 || argc > 4 + WORDS_MAX)
        return EXIT_NO_PAGE;
    struct page *page = page_open(argv[1]);
    uint64_t workers = strtoull(argv[3], 0, 10);
    if (workers == 0)
        return EXIT_NO_PAGE;

    page->start_ns = now_ns();
    for (uint64_t i = 0; i < workers; i++) {
        pid_t pid = fork();
        if (pid < 0)
            return EXIT_SPAWN;
        if (pid == 0)
            work(argv[2], argv[1], argv + 4, page->np * i / workers, page->np * (i + 1) / workers);
    }
    int good = reap_all();
    page->end_ns = now_ns();
    return good ? 0 : EXIT_CHILD;
}
