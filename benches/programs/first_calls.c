/* first_calls MAP CALLS PROGRAM [ARGUMENT...]: runs a program, and appends to CALLS each function that one of its processes enters for the first
 * time: how many forks (without an exec) lie between the program and the process, the crate, and the function's section of the
 * text. docs/performance.md says what this is for.
 *
 * MAP is what lld writes with -Map. The program must have fixed addresses. Breakpoints find the functions, so processes run at
 * full speed otherwise. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BREAKPOINT = 0xcc, FUNCTIONS_MAX = 1 << 18, PIDS_MAX = 1 << 22, NAME_BYTES = 4096 };

struct function { unsigned long at; unsigned char first; char *name; };

static struct function *functions;
static size_t count;
static FILE *calls;
/* How many forks lie between the program and each thread. */
static unsigned char *forks;

static void fail(const char *what)
{
    perror(what);
    exit(1);
}

static int by_address(const void *a, const void *b)
{
    const struct function *x = a, *y = b;
    return x->at < y->at ? -1 : x->at > y->at;
}

/* Writes `symbol` without what differs between two compilations: hashes of functions and of crates. */
static void append_pattern(char *into, const char *symbol)
{
    char *end = into + strlen(into);
    /* Rust's newer mangling, which has hashes of crates only. */
    int is_v0 = strncmp(symbol, "_R", 2) == 0 || strstr(symbol, "._R");
    while (*symbol) {
        int hash = 0;
        if (strncmp(symbol, "17h", 3) == 0 && strspn(symbol + 3, "0123456789abcdef") == 16 && symbol[19] == 'E')
            hash = 19;
        else if (strncmp(symbol, ".llvm.", 6) == 0)
            hash = (int)strlen(symbol);
        if (hash) {
            end += sprintf(end, "%.*s*", hash == 19 ? 3 : 6, symbol);
            symbol += hash;
        } else if (is_v0 && strncmp(symbol, "Cs", 2) == 0 && strchr(symbol, '_')) {
            end += sprintf(end, "Cs*");
            symbol = strchr(symbol, '_');
        } else {
            *end++ = *symbol++;
            *end = 0;
        }
    }
}

/* Reads the lines `ADDRESS ADDRESS SIZE ALIGNMENT PATH:(SECTION)`, where PATH is an object, or an archive with (OBJECT). */
static void read_map(const char *path)
{
    FILE *map = fopen(path, "r");
    if (!map)
        fail(path);
    char *line = NULL;
    size_t room = 0;
    ssize_t length;
    functions = calloc(FUNCTIONS_MAX, sizeof *functions);
    while ((length = getline(&line, &room, map)) > 0 && count < FUNCTIONS_MAX) {
        unsigned long at, bytes;
        char *section = strstr(line, ":(.text."), *end = strrchr(line, ')');
        if (sscanf(line, "%lx %*x %lx", &at, &bytes) != 2 || bytes == 0 || !section || !end || end - line > NAME_BYTES / 2)
            continue;
        *section = *end = 0;
        char name[NAME_BYTES] = "*", *object = strrchr(line, '(');
        /* Objects of an archive are those of a crate, whose name they begin with. */
        if (object && strchr(object, '-'))
            snprintf(name, sizeof name, "%.*s", (int)strcspn(object + 1, "-"), object + 1);
        strcat(name, " ");
        append_pattern(name, section + strlen(":(.text."));
        functions[count++] = (struct function){ at, 0, strdup(name) };
    }
    fclose(map);
    qsort(functions, count, sizeof *functions, by_address);
}

static int memory_of(pid_t pid)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/mem", pid);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        fail(path);
    return fd;
}

/* Sets a breakpoint at each function. */
static void arm(pid_t pid)
{
    int fd = memory_of(pid);
    unsigned long from = functions[0].at;
    size_t bytes = functions[count - 1].at + 1 - from;
    unsigned char *text = malloc(bytes);
    if (!text || pread(fd, text, bytes, (off_t)from) != (ssize_t)bytes)
        fail("cannot read the text");
    for (size_t i = 0; i < count; i++) {
        unsigned char *byte = text + (functions[i].at - from);
        if (*byte != BREAKPOINT)
            functions[i].first = *byte;
        *byte = BREAKPOINT;
    }
    if (pwrite(fd, text, bytes, (off_t)from) != (ssize_t)bytes)
        fail("cannot write breakpoints");
    free(text);
    close(fd);
}

/* Whether the thread has stopped at a breakpoint. Removes it in all threads of the process, and tells the function. */
static int at_breakpoint(pid_t pid)
{
    struct user_regs_struct registers;
    if (ptrace(PTRACE_GETREGS, pid, 0, &registers) != 0)
        return 0;
    struct function key = { .at = registers.rip - 1 };
    struct function *found = bsearch(&key, functions, count, sizeof *functions, by_address);
    if (!found)
        return 0;
    int fd = memory_of(pid);
    unsigned char now;
    if (pread(fd, &now, 1, (off_t)key.at) == 1 && now == BREAKPOINT) {
        if (pwrite(fd, &found->first, 1, (off_t)key.at) != 1)
            fail("cannot remove a breakpoint");
        fprintf(calls, "%d %s\n", forks[pid], found->name);
    }
    close(fd);
    registers.rip = key.at;
    return ptrace(PTRACE_SETREGS, pid, 0, &registers) == 0;
}

int main(int argc, char **argv)
{
    if (argc < 4) {
        fprintf(stderr, "usage: first_calls MAP CALLS PROGRAM [ARGUMENT...]\n");
        return 2;
    }
    read_map(argv[1]);
    if (!(calls = fopen(argv[2], "a")))
        fail(argv[2]);
    setlinebuf(calls);
    forks = calloc(PIDS_MAX, 1);
    pid_t program = fork();
    if (program == 0) {
        raise(SIGSTOP);
        execvp(argv[3], argv + 3);
        fail(argv[3]);
    }
    int status, code = 1, has_begun = 0;
    waitpid(program, &status, WUNTRACED);
    long options = PTRACE_O_TRACEFORK | PTRACE_O_TRACEVFORK | PTRACE_O_TRACECLONE | PTRACE_O_TRACEEXEC;
    if (count == 0 || !forks || ptrace(PTRACE_SEIZE, program, 0, options) != 0)
        fail("cannot trace");
    kill(program, SIGCONT);
    for (pid_t pid; (pid = waitpid(-1, &status, __WALL)) > 0;) {
        if (!WIFSTOPPED(status)) {
            if (pid == program)
                code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
            continue;
        }
        int signal = WSTOPSIG(status), event = status >> 16;
        if (event == PTRACE_EVENT_EXEC && has_begun) {
            ptrace(PTRACE_DETACH, pid, 0, 0);
            continue;
        }
        if (event == PTRACE_EVENT_EXEC) {
            has_begun = 1;
            arm(pid);
        } else if (event == PTRACE_EVENT_FORK || event == PTRACE_EVENT_VFORK || event == PTRACE_EVENT_CLONE) {
            unsigned long child = 0;
            ptrace(PTRACE_GETEVENTMSG, pid, 0, &child);
            forks[child] = forks[pid] + (event == PTRACE_EVENT_FORK);
            if (event == PTRACE_EVENT_FORK)
                arm((pid_t)child);
        }
        if (event || (signal == SIGTRAP && at_breakpoint(pid)))
            signal = 0;
        ptrace(PTRACE_CONT, pid, 0, signal);
    }
    return code;
}
