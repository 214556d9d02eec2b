/*
 * Shared code of the walks, which call every function of an interface with arguments of all kinds.
 *
 * A check is one call and prints one line: `section.function.case = CODE outputs`. If the call
 * raises a signal or hangs, the line says so, and the walk continues. A value that differs from run
 * to run is printed as its kind (`<jobid>`), so that the output of two runs can be compared.
 *
 * Rank 0 prints the lines. Where ranks get different results, all of them print, each with its rank
 * at the end of the name: `exchange.PMI_KVS_Get.of_0@2`.
 */
#ifndef WALK_H
#define WALK_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <limits.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* A call that takes longer counts as hanging. */
#define CALL_SECONDS 10
/* After this many hanging calls the walk gives up: further results would mean nothing. */
#define HANGS_MAX 2

/* The initial contents of output arguments. */
#define UNTOUCHED (-7777)
#define UNTOUCHED_BYTE '~'
/* The size of buffers: much larger than the sizes passed to any function. */
#define ROOM 16384

static int walk_rank = -1;     /* from the launcher's environment variables */
static int walk_everyone = 0;  /* do all ranks print? */
static int walk_hangs = 0;
static const char *walk_section = "";
static FILE *walk_out;
static const char *walk_known_text = NULL; /* a text that is printed as its kind */
static const char *walk_known_kind = NULL;

static char walk_notes[3 * ROOM]; /* the outputs of the current check */
static sigjmp_buf walk_back;
static volatile sig_atomic_t walk_guarded = 0;

/* Returns the rank without calling PMI. */
static inline int rank_by_environment(void)
{
    const char *names[] = {"PMI_RANK", "PMI_ID", "SLURM_PROCID"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (getenv(names[i]))
            return atoi(getenv(names[i]));
    return 0;
}

static inline int is_writing(void)
{
    return walk_everyone || walk_rank == 0;
}

/* ---- Lines ---- */

static inline void note(const char *format, ...)
{
    size_t length = strlen(walk_notes);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(walk_notes + length, sizeof walk_notes - length, format, arguments);
    va_end(arguments);
}

static inline void line(const char *check, const char *result)
{
    char at[16] = "", whole[4 * ROOM];
    if (!is_writing())
        return;
    if (walk_everyone)
        snprintf(at, sizeof at, "@%d", walk_rank);
    /* One write, so that the lines of ranks do not mix. */
    int length = snprintf(whole, sizeof whole, "%s.%s%s = %s\n", walk_section, check, at, result);
    fwrite(whole, 1, (size_t)length, walk_out);
    fflush(walk_out);
}

static inline const char *code_name(int code)
{
    static const char *const names[] = {"SUCCESS", "INIT", "NOMEM", "INVALID_ARG", "INVALID_KEY", "INVALID_KEY_LENGTH",
        "INVALID_VAL", "INVALID_VAL_LENGTH", "INVALID_LENGTH", "INVALID_NUM_ARGS", "INVALID_ARGS",
        "INVALID_NUM_PARSED", "INVALID_KEYVALP", "INVALID_SIZE", WALK_CODE_14};
    static char other[32];
    if (code >= 0 && code <= 14)
        return names[code];
    if (code == -1)
        return "FAIL";
    snprintf(other, sizeof other, "code %d", code);
    return other;
}

/* Notes an output number. */
static inline void note_number(const char *name, int number)
{
    if (number == UNTOUCHED)
        note(" %s untouched", name);
    else
        note(" %s %d", name, number);
}

/* Notes an output text in a buffer of `length` bytes, and whether bytes after the buffer have changed. */
static inline void note_text(const char *text, int length)
{
    if (text[0] == UNTOUCHED_BYTE) {
        note(" untouched");
        return;
    }
    size_t end = length > 0 ? strnlen(text, (size_t)length) : 0;
    if (walk_known_text && *walk_known_text && strcmp(text, walk_known_text) == 0) {
        note(" %s", walk_known_kind);
    } else {
        note(" \"");
        for (size_t at = 0; at < end;) {
            size_t run = 1;
            while (at + run < end && text[at + run] == text[at])
                run++;
            unsigned char byte = (unsigned char)text[at];
            size_t shown = run > 8 ? 1 : run;
            for (size_t i = 0; i < shown; i++) {
                if (byte == '\n')
                    note("\\n");
                else if (byte == '"' || byte == '\\')
                    note("\\%c", byte);
                else if (byte < 0x20 || byte > 0x7e)
                    note("\\x%02x", byte);
                else
                    note("%c", byte);
            }
            if (run > 8)
                note("{*%d}", (int)run);
            at += run;
        }
        note("\"");
    }
    if (length > 0 && end == (size_t)length)
        note(" unterminated");
    if (length >= 0 && length < ROOM && text[length] != UNTOUCHED_BYTE)
        note(" overrun");
}

/* ---- Calls ---- */

static void walk_signal(int number)
{
    if (!walk_guarded) {
        signal(number, SIG_DFL);
        raise(number);
        return;
    }
    walk_guarded = 0;
    siglongjmp(walk_back, number);
}

static inline void guard(void)
{
    static const int signals[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGALRM};
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = walk_signal;
    sigemptyset(&action.sa_mask);
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++)
        sigaction(signals[i], &action, NULL);
    signal(SIGPIPE, SIG_IGN);
}

static inline void begin_call(void)
{
    walk_notes[0] = '\0';
    alarm(CALL_SECONDS);
    walk_guarded = 1;
}

static inline void end_call(void)
{
    walk_guarded = 0;
    alarm(0);
}

static inline void ended_by(const char *check, int number)
{
    char result[32];
    alarm(0);
    snprintf(result, sizeof result, "signal %d", number);
    line(check, number == SIGALRM ? "hangs" : result);
    if (number == SIGALRM && ++walk_hangs >= HANGS_MAX) {
        walk_everyone = 1;
        walk_section = "walk";
        line("gave_up", "after calls that did not end");
        _exit(3);
    }
}

/* Makes a call, and prints a line with its code and what the statements NOTES note. */
#define CHECK(check, call, notes)                                  \
    do {                                                           \
        int signal_ = sigsetjmp(walk_back, 1);                     \
        if (signal_ != 0) {                                        \
            ended_by(check, signal_);                              \
            break;                                                 \
        }                                                          \
        begin_call();                                              \
        int code_ = (call);                                        \
        end_call();                                                \
        notes;                                                     \
        char result_[4 * ROOM];                                    \
        snprintf(result_, sizeof result_, "%s%s", code_name(code_), walk_notes); \
        line(check, result_);                                      \
    } while (0)

/* A check of the code. */
#define CODE(check, call) CHECK(check, call, (void)0)

/* A check of the code and an output number. */
#define NUMBER(check, call, variable)                              \
    do {                                                           \
        (variable) = UNTOUCHED;                                    \
        CHECK(check, call, note_number(#variable, variable));      \
    } while (0)

/* A check of the code and a text in `buffer`; `length` is the size passed to the function. */
#define TEXT(check, call, buffer, length)                          \
    do {                                                           \
        memset(buffer, UNTOUCHED_BYTE, ROOM);                      \
        (buffer)[ROOM - 1] = '\0';                                 \
        CHECK(check, call, note_text(buffer, length));             \
    } while (0)

/*
 * A check of the code in a forked child, for calls that may leave the library in an undefined
 * state. Only while PMI is not initialised: in a forked child of a rank, all calls fail.
 */
#define APART(check, call)                                                          \
    do {                                                                            \
        int pipe_[2], status_ = 0, code_ = 0;                                       \
        char result_[32];                                                           \
        if (pipe(pipe_) != 0)                                                       \
            abort();                                                                \
        pid_t child_ = fork();                                                      \
        if (child_ == 0) {                                                          \
            signal(SIGSEGV, SIG_DFL);                                               \
            signal(SIGABRT, SIG_DFL);                                               \
            signal(SIGALRM, SIG_DFL);                                               \
            alarm(CALL_SECONDS);                                                    \
            code_ = (call);                                                         \
            _exit(write(pipe_[1], &code_, sizeof code_) == (ssize_t)sizeof code_ ? 0 : 1); \
        }                                                                           \
        close(pipe_[1]);                                                            \
        waitpid(child_, &status_, 0);                                               \
        if (WIFSIGNALED(status_) && WTERMSIG(status_) == SIGALRM)                   \
            line(check, "hangs");                                                   \
        else if (WIFSIGNALED(status_))                                              \
            snprintf(result_, sizeof result_, "signal %d", WTERMSIG(status_)), line(check, result_); \
        else if (read(pipe_[0], &code_, sizeof code_) == (ssize_t)sizeof code_)     \
            line(check, code_name(code_));                                          \
        else                                                                        \
            snprintf(result_, sizeof result_, "exit %d", WEXITSTATUS(status_)), line(check, result_); \
        close(pipe_[0]);                                                            \
    } while (0)

/* Returns `length` times `byte`, terminated, in one of four buffers. */
static inline char *text_of(int length, char byte)
{
    static char buffers[4][ROOM];
    static int turn = 0;
    char *buffer = buffers[turn++ % 4];
    memset(buffer, byte, (size_t)length);
    buffer[length] = '\0';
    return buffer;
}

/* Returns the name of a check with a number in it. */
static inline const char *numbered(const char *format, int number)
{
    static char names[4][128];
    static int turn = 0;
    char *name = names[turn++ % 4];
    snprintf(name, sizeof names[0], format, number);
    return name;
}

/* Waits until the launcher kills this rank because another one has aborted; ends after CALL_SECONDS, since
 * Hydra sometimes leaves a rank alive. */
static inline void wait_for_the_kill(void)
{
    alarm(CALL_SECONDS);
    for (;;)
        pause();
}

/* ---- Sections ---- */

struct section {
    const char *name;
    void (*walk)(void);
    /* Does it run always, unless excluded, or only when it is named? */
    enum { ALWAYS, USUALLY, ON_DEMAND } when;
};

/*
 * Runs the sections. Arguments: `--only SECTION` and `--without SECTION`, each any number of times;
 * `--into DIRECTORY` prints the lines to DIRECTORY/<rank> instead of standard output.
 */
static inline int walk(const struct section *sections, size_t count, int argc, char **argv)
{
    walk_rank = rank_by_environment();
    walk_out = stdout;
    for (int i = 1; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--into") == 0) {
            char path[PATH_MAX];
            snprintf(path, sizeof path, "%s/%d", argv[i + 1], walk_rank);
            if (!(walk_out = fopen(path, "a"))) {
                perror(path);
                return 2;
            }
        }
    }
    guard();
    for (size_t at = 0; at < count; at++) {
        int only = 0, named = 0, without = 0;
        for (int i = 1; i + 1 < argc; i += 2) {
            int same = strcmp(argv[i + 1], sections[at].name) == 0;
            only |= strcmp(argv[i], "--only") == 0;
            named |= same && strcmp(argv[i], "--only") == 0;
            without |= same && strcmp(argv[i], "--without") == 0;
        }
        int wanted = only ? named : sections[at].when != ON_DEMAND;
        if (sections[at].when == ALWAYS || (wanted && !without)) {
            walk_section = sections[at].name;
            walk_everyone = 0;
            sections[at].walk();
        }
    }
    walk_section = "walk";
    walk_everyone = 1;
    line("end", "reached");
    return 0;
}

#endif
