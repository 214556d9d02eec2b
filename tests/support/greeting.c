// Prints where it was loaded from. With an argument, it stays until it is killed.
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int greeting(void);

int main(int argc, char **argv)
{
    char exe[4096] = "";
    Dl_info found;
    const char *directory = getenv("SCELA_STAGE_DIR");
    if (readlink("/proc/self/exe", exe, sizeof exe - 1) < 0 || !dladdr((void *)greeting, &found))
        return 1;
    printf("greeting %d\nname %s\nexe %s\nlibrary %s\ndirectory %s\n", greeting(), argv[0], exe, found.dli_fname,
           directory ? directory : "none");
    fflush(stdout);
    if (argc > 1)
        pause();
    return 0;
}
