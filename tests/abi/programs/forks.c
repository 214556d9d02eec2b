/* Children that call PMI as if they were the rank: each call fails, none hangs, and the rank goes on undisturbed. They
 * are forked while another thread is inside the library. */
#include "either.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/wait.h>

#define CHILDREN 20

static atomic_int is_over;

static void *get_on_and_on(void *argument)
{
    (void)argument;
    while (!is_over)
        expect("own", "value");
    return NULL;
}

/* The number of calls that did not fail. */
static int successes(void)
{
    char value[VALUE_BYTES];
    int count = 0;
    alarm(10); /* Its signal ends a child that hangs. */
    count += try_put("child", "value") == 0;
    count += try_get("own", value) == 0;
    count += try_get("nobody-puts-this", value) == 0;
    count += try_fence() == 0;
    return count;
}

int main(void)
{
    pthread_t thread;
    char key[64];
    begin();
    put("own", "value");
    fence();
    pthread_create(&thread, NULL, get_on_and_on, NULL);
    for (int i = 0; i < CHILDREN; i++) {
        pid_t child = fork();
        int status;
        if (child == 0) {
            int count = successes();
            /* What it returns is no matter; that it does is, and that the launcher hears nothing of it. */
            if (i % 2)
                try_end();
            _exit(count);
        }
        waitpid(child, &status, 0);
        if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
            printf("%d: a child ended with status %d\n", rank, status);
            return 1;
        }
    }
    is_over = 1;
    pthread_join(thread, NULL);
    sprintf(key, "after-%d", rank);
    put(key, key);
    fence();
    sprintf(key, "after-%d", (rank + 1) % size);
    expect(key, key);
    end();
    printf("%d: went on\n", rank);
    return 0;
}
