/* Writes to stdout: `output PAGE pmi|bare bytes|lines COUNT`. COUNT bytes in blocks of 64 KiB, or COUNT lines of 16 bytes in one
 * write each. Before that it checks its environment and marks its rank. */
#include "checks.h"

enum { BLOCK = 64 * 1024, LINE = 16 };

/* The bench finds that bytes are missing. */
static int write_all(const char *bytes, size_t length)
{
    while (length > 0) {
        ssize_t written = write(STDOUT_FILENO, bytes, length);
        if (written <= 0)
            return 0;
        bytes += written;
        length -= (size_t)written;
    }
    return 1;
}

int main(int argc, char **argv)
{
    static char block[BLOCK];
    if (argc != 5)
        return EXIT_NO_PAGE;
    struct page *page = page_open(argv[1]);
    int rank = rank_in(page);
    page->mark[rank] = HERE | check_start(page, strcmp(argv[2], "pmi") == 0);
    uint64_t count = strtoull(argv[4], 0, 10);
    memset(block, 'x', sizeof block);
    if (strcmp(argv[3], "lines") == 0) {
        block[LINE - 1] = '\n';
        while (count > 0 && write_all(block, LINE))
            count--;
    } else {
        while (count > 0) {
            size_t length = count < BLOCK ? count : BLOCK;
            if (!write_all(block, length))
                break;
            count -= length;
        }
    }
    return count > 0;
}
