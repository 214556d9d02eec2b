/* The empty program: `empty PAGE pmi|bare`. It checks its environment, marks its rank and exits; `bare` is for
 * launchers that do not serve PMI, such as the floor. `empty` alone only exits: on other hosts there is no page. */
#include "checks.h"

int main(int argc, char **argv)
{
    if (argc == 1)
        return 0;
    if (argc != 3)
        return EXIT_NO_PAGE;
    struct page *page = page_open(argv[1]);
    int rank = rank_in(page);
    page->mark[rank] = HERE | check_start(page, strcmp(argv[2], "pmi") == 0);
    return 0;
}
