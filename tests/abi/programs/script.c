/* A rank that executes its arguments as steps with libpmi and prints the results, each with its rank in front: the
 * counterpart of tests/support/rank, which speaks the wire protocol.
 *
 *   init, fence, finalize   call the function; the rank fails unless that succeeds
 *   put KEY VALUE           puts; the rank fails unless that succeeds
 *   get KEY                 prints KEY=VALUE, or KEY is absent
 *   rounds COUNT BYTES      COUNT fences; before each, every rank puts a value of up to BYTES bytes; after it, the
 *                           rank gets values of all rounds so far in an order of its own and checks them
 *   gets COUNT              gets COUNT times a rank's "k", and as often an absent key
 *   maps                    prints the number of mapped boards and of writable and private mappings
 *   @RANK, @*               the following steps are for this rank only; for all ranks
 *   say TEXT, touch FILE, await FILE, exit CODE, pause
 *   kill SIGNAL             sends the signal to itself
 *   killer MILLISECONDS     starts a thread that kills the process after this time
 *   clobber                 tries to write to the board by every available method
 */
#define _GNU_SOURCE
#include "pmi.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static int rank, size;
static char name[256];

static void say(const char *text)
{
    char line[4096];
    int length = snprintf(line, sizeof line, "%d: %s\n", rank, text);
    if (write(1, line, (size_t)length) != length)
        _exit(98);
}

static void must(int code, const char *what)
{
    if (code != PMI_SUCCESS) {
        fprintf(stderr, "rank %d: %s failed with %d\n", rank, what, code);
        exit(97);
    }
}

static void init(void)
{
    int spawned;
    must(PMI_Init(&spawned), "init");
    must(PMI_Get_rank(&rank), "rank");
    must(PMI_Get_size(&size), "size");
    must(PMI_KVS_Get_my_name(name, sizeof name), "name");
}

static void put(const char *key, const char *value)
{
    must(PMI_KVS_Put(name, key, value), "put");
    must(PMI_KVS_Commit(name), "commit");
}

static void get(const char *key)
{
    char value[1024], line[2048];
    if (PMI_KVS_Get(name, key, value, sizeof value) == PMI_SUCCESS)
        snprintf(line, sizeof line, "%s=%s", key, value);
    else
        snprintf(line, sizeof line, "%s is absent", key);
    say(line);
}

static void value_of(int round, int who, int bytes, char *into)
{
    int length = 1 + (who * 131 + round * 17) % bytes;
    for (int i = 0; i < length; i++)
        into[i] = (char)('a' + (who + round + i) % 26);
    into[length] = 0;
}

static void rounds(int count, int bytes)
{
    uint64_t seed = 0x9e3779b97f4a7c15u * (uint64_t)(rank + 1);
    for (int round = 0; round < count; round++) {
        char key[64], value[1024], expected[1024];
        snprintf(key, sizeof key, "round-%d-%d", round, rank);
        value_of(round, rank, bytes, value);
        put(key, value);
        must(PMI_Barrier(), "fence");
        for (int i = 0; i < size; i++) {
            seed = seed * 6364136223846793005u + 1442695040888963407u;
            int who = (int)((seed >> 33) % (uint64_t)size), then = (int)((seed >> 17) % (uint64_t)(round + 1));
            snprintf(key, sizeof key, "round-%d-%d", then, who);
            value_of(then, who, bytes, expected);
            must(PMI_KVS_Get(name, key, value, sizeof value), key);
            if (strcmp(value, expected) != 0) {
                fprintf(stderr, "rank %d: %s is %s and not %s\n", rank, key, value, expected);
                exit(96);
            }
        }
        snprintf(key, sizeof key, "round-%d-%d", round + 1, size);
        if (PMI_KVS_Get(name, key, value, sizeof value) == PMI_SUCCESS) {
            fprintf(stderr, "rank %d: %s was never put\n", rank, key);
            exit(96);
        }
    }
}

static void gets_only(int count)
{
    char key[64], value[1024];
    for (int i = 0; i < count; i++) {
        snprintf(key, sizeof key, "k%d", i % size);
        must(PMI_KVS_Get(name, key, value, sizeof value), key);
        snprintf(key, sizeof key, "none%d", i);
        if (PMI_KVS_Get(name, key, value, sizeof value) == PMI_SUCCESS)
            exit(96);
    }
}

static void maps(void)
{
    char line[4096], inodes[64][32];
    int boards = 0, mappings = 0, writable = 0, private = 0;
    FILE *file = fopen("/proc/self/maps", "r");
    while (file && fgets(line, sizeof line, file)) {
        char access[8], inode[32];
        if (!strstr(line, "memfd:scela-board") || sscanf(line, "%*s %7s %*s %*s %31s", access, inode) != 2)
            continue;
        mappings++;
        writable += access[1] == 'w';
        private += access[3] == 'p';
        int known = 0;
        for (int i = 0; i < boards; i++)
            known |= strcmp(inodes[i], inode) == 0;
        if (!known && boards < 64)
            strcpy(inodes[boards++], inode);
    }
    if (file)
        fclose(file);
    snprintf(line, sizeof line, "%d board, %d writable, %d private", boards, writable, private);
    say(mappings ? line : "no board");
    if (boards == 1) {
        snprintf(line, sizeof line, "inode %s", inodes[0]);
        say(line);
    }
}

/* Prints each method that is not refused. */
static void clobber(void)
{
    char line[4096], path[64];
    unsigned long start, end, inode;
    FILE *file = fopen("/proc/self/maps", "r");
    while (file && fgets(line, sizeof line, file)) {
        if (!strstr(line, "memfd:scela-board") || sscanf(line, "%lx-%lx", &start, &end) != 2)
            continue;
        if (mprotect((void *)start, 4096, PROT_READ | PROT_WRITE) == 0)
            say("mprotect was not refused");
        snprintf(path, sizeof path, "/proc/self/map_files/%lx-%lx", start, end);
        int fd = open(path, O_RDWR);
        if (fd < 0)
            continue;
        struct stat stat;
        inode = fstat(fd, &stat) == 0 ? stat.st_ino : 0;
        if (inode && mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) != MAP_FAILED)
            say("mmap was not refused");
        if (pwrite(fd, "x", 1, 0) == 1)
            say("pwrite was not refused");
        if (ftruncate(fd, 0) == 0)
            say("ftruncate was not refused");
        if (fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096) == 0)
            say("fallocate was not refused");
        close(fd);
    }
    if (file)
        fclose(file);
    say("clobbered");
}

static void *killer(void *milliseconds)
{
    struct timespec time = { .tv_nsec = (long)(intptr_t)milliseconds * 1000000 };
    nanosleep(&time, 0);
    kill(getpid(), SIGKILL);
    return 0;
}

static void await(const char *file)
{
    const struct timespec tick = { .tv_nsec = 2000000 };
    while (access(file, F_OK) != 0)
        nanosleep(&tick, 0);
}

static void step(char *text)
{
    char *rest = strchr(text, ' ');
    if (rest)
        *rest++ = 0;
    else
        rest = "";
    char *second = strchr(rest, ' ');
    if (strcmp(text, "init") == 0)
        init();
    else if (strcmp(text, "fence") == 0)
        must(PMI_Barrier(), "fence");
    else if (strcmp(text, "finalize") == 0)
        must(PMI_Finalize(), "finalize");
    else if (strcmp(text, "put") == 0 && second) {
        *second = 0;
        put(rest, second + 1);
    } else if (strcmp(text, "get") == 0)
        get(rest);
    else if (strcmp(text, "rounds") == 0 && second)
        rounds(atoi(rest), atoi(second + 1));
    else if (strcmp(text, "gets") == 0)
        gets_only(atoi(rest));
    else if (strcmp(text, "maps") == 0)
        maps();
    else if (strcmp(text, "clobber") == 0)
        clobber();
    else if (strcmp(text, "say") == 0)
        say(rest);
    else if (strcmp(text, "touch") == 0)
        close(open(rest, O_CREAT | O_WRONLY, 0600));
    else if (strcmp(text, "await") == 0)
        await(rest);
    else if (strcmp(text, "exit") == 0)
        exit(atoi(rest));
    else if (strcmp(text, "kill") == 0)
        kill(getpid(), atoi(rest));
    else if (strcmp(text, "killer") == 0) {
        pthread_t thread;
        must(pthread_create(&thread, 0, killer, (void *)(intptr_t)atoi(rest)), "thread");
    } else if (strcmp(text, "pause") == 0)
        for (;;)
            pause();
    else {
        fprintf(stderr, "no such step: %s\n", text);
        exit(99);
    }
}

/* Copies the text with every {rank} replaced. */
static void with_rank(const char *text, char *into, size_t bytes)
{
    size_t length = 0;
    while (*text && length + 16 < bytes) {
        if (strncmp(text, "{rank}", 6) == 0) {
            length += (size_t)sprintf(into + length, "%d", rank);
            text += 6;
        } else {
            into[length++] = *text++;
        }
    }
    into[length] = 0;
}

int main(int argc, char **argv)
{
    int mine = 1;
    const char *own = getenv("PMI_RANK");
    rank = own ? atoi(own) : 0;
    for (int i = 1; i < argc; i++) {
        if (argv[i][0] == '@') {
            mine = argv[i][1] == '*' || atoi(argv[i] + 1) == rank;
        } else if (mine) {
            char text[4096];
            with_rank(argv[i], text, sizeof text);
            step(text);
        }
    }
    return 0;
}
