/* The empty program: `empty PAGE pmi|bare`. It looks at what it was given, marks its rank and leaves; `bare` is for
 * launchers that serve no PMI, the floor above all. */
#include "checks.h"

int main(int argc, char **argv)
{
    if (argc != 3)
        return EXIT_NO_PAGE;
    struct page *page = page_open(argv[1]);
    int rank = rank_in(page);
    page->mark[rank] = HERE | check_start(page, strcmp(argv[2], "pmi") == 0);
    return 0;
}
